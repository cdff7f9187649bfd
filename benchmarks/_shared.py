"""What several of the benchmarks share: medians with their spread, tables, files, and pictures."""

import json
import statistics

# The environment of a process whose peak is measured: it gives back at once what it frees. Else glibc's threshold grows
# with the tensors that are freed, and with oneDNN TensorFlow keeps a pool that grows by leaps.
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": str(2**18), "TF_ENABLE_ONEDNN_OPTS": "0"}


def spread(values):
    """[median, lower quartile, upper quartile], of few values too."""
    ordered = sorted(values)
    quarter = (len(ordered) - 1) // 4
    return [float(each) for each in (statistics.median(ordered), ordered[quarter], ordered[-1 - quarter])]


def markdown(head, rows):
    """The lines of a table, those of a Markdown page."""
    cells = [[str(each) for each in row] for row in [head] + rows]
    return ["| " + " | ".join(row) + " |" for row in [cells[0], ["---"] * len(head)] + cells[1:]]


def keep(found, path):
    """Write what was measured to a file as JSON, where there is a path."""
    if path:
        with open(path, "w") as file:
            json.dump(found, file, indent=1)
            file.write("\n")


def figure(places):
    """A figure of matplotlib and so many places side by side to draw in."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(4.6 * places, 3.8))
    FigureCanvasAgg(made)  # needs no display
    return made, [made.add_subplot(1, places, i + 1) for i in range(places)]


def save(made, path):
    made.tight_layout()
    # Without matplotlib's version in it the file changes where the picture does.
    made.savefig(path, dpi=72, metadata={"Software": None})
    print("picture: {}".format(path))
