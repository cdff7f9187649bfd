"""`python -m legacyga demo`: accumulation beside the large batch that it stands for, on real data.

A small convolutional network learns scikit-learn's digits four ways, from the same start and in the same order:
micro-batches of 8, micro-batches of 8 with K of them to an update, batches of 8 * K in slices of 8, and batches of
8 * K. Each way has a process of its own, so that its peak memory is its own. `demo_training` is what those processes
do.
"""

import collections
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

MICRO_BATCH = 8
TRAINING_IMAGES = 1440  # of the 1797; the others are for the test
PICTURE_FORMATS = (".png", ".pdf", ".svg")

# The exit code of a way that the home does not have.
LEFT_OUT = 3

# `size`: of the slices that a batch is cut into, or None.
Way = collections.namedtuple("Way", "title batch steps_per_update size")


def ways(steps):
    """The four ways to train, by name, for windows of `steps` micro-batches."""
    small, large = "batch of {}".format(MICRO_BATCH), "batch of {}".format(MICRO_BATCH * steps)
    sliced = "{}, slices of {}".format(large, MICRO_BATCH)
    return {
        "small": Way(small, MICRO_BATCH, 1, None),
        "accumulated": Way("{}, K = {}".format(small, steps), MICRO_BATCH, steps, None),
        "sliced": Way(sliced, MICRO_BATCH * steps, 1, MICRO_BATCH),
        "large": Way(large, MICRO_BATCH * steps, 1, None),
    }


def images_of_whole_windows(steps):
    """How many images fill windows of `steps` micro-batches: the others are left out."""
    return TRAINING_IMAGES // (MICRO_BATCH * steps) * MICRO_BATCH * steps


def run(home=None, steps=8, epochs=5, out="legacyga-demo.png", mode=None):
    """Train the four ways, print the table and draw the picture.

    Args:
        home: `"keras"`, `"tf.keras"`, `"tf_keras"`, or None: the first that can train of keras, tf_keras, tf.keras.
        steps: K, the micro-batches of an update. Default 8; the large batch has 8 * K images.
        epochs: the passes over the training images. Default 5.
        out: the path of the picture, .png, .pdf or .svg. Default `legacyga-demo.png` in the current folder.
        mode: `"graph"`, `"eager"`, or None: the one that the home starts in.

    Returns:
        The exit code: 0, or 1 where accumulation, or slices, and the large batch differ by more than float32 rounding,
        or 2 where the demo could not be run (then standard error says why, and what to do).
    """
    out = os.path.abspath(out)
    problem = _problem(steps, out)
    if problem:
        return cannot(problem)
    images = images_of_whole_windows(steps)
    told = "scikit-learn's digits: {} images to train on ({} left out, for whole windows of {}), {} times over"
    print(told.format(images, TRAINING_IMAGES - images, MICRO_BATCH * steps, epochs))
    results = _train_all(home, mode, steps, epochs)
    if results is None:
        return 2
    code = report(results, steps)
    draw(results, steps, out)
    print("\nloss curves: {}".format(out))
    return code


def _problem(steps, out):
    """What would stop the demo, asked before the training rather than found out after it; None if nothing would."""
    missing = [name for name in ("sklearn", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        text = 'the demo needs scikit-learn and matplotlib. Not installed: {}. Run: pip install "legacyga[demo]"'
        return text.format(", ".join(missing).replace("sklearn", "scikit-learn"))
    if not images_of_whole_windows(steps):
        return "--steps must be at most {}, for there are {} training images. Received: {}".format(
            TRAINING_IMAGES // MICRO_BATCH, TRAINING_IMAGES, steps
        )
    if os.path.splitext(out)[1].lower() not in PICTURE_FORMATS:
        return "--out must end in {}. Received: {}".format(", ".join(PICTURE_FORMATS), out)
    if not os.path.isdir(os.path.dirname(out)):
        return "--out is in a folder that does not exist. Make it first. Received: {}".format(out)


def cannot(problem):
    """Print why the demo could not be run, and return the exit code that says so."""
    sys.stderr.write("legacyga demo: {}\n".format(problem))
    return 2


def _train_all(home, mode, steps, epochs):
    """The results of the ways that the home has, by name; None if one could not be run, which has then said why."""
    # No GPU: it is the CPU's memory that is measured, and some GPUs multiply float32 in fewer bits than it has.
    # 2: TensorFlow's errors only. Its version 1 warns of NumPy's future as well, in dozens of lines.
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1")
    environment.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    options = ["--steps", str(steps), "--epochs", str(epochs)]
    options += (["--home", home] if home else []) + (["--mode", mode] if mode else [])
    trained = []
    with tempfile.TemporaryDirectory() as folder:
        for name, way in ways(steps).items():
            print("\n--- {} ---".format(way.title))
            sys.stdout.flush()
            command = [sys.executable, "-m", "legacyga", "demo", "--way", name, "--results", os.path.join(folder, name)]
            code = subprocess.call(command + options, env=environment)
            if not code:
                trained.append(name)
            elif code != LEFT_OUT:
                cannot("the process of the {} ended with exit code {}, and says why above".format(way.title, code))
                return None
        return {name: _read(os.path.join(folder, name)) for name in trained}


def _read(path):
    # Imported after the training: on Linux the peak of a process counts from what the one that started it had.
    import numpy as np

    with open(path + ".json") as file:
        results = json.load(file)
    with np.load(path + ".npz") as file:
        results["weights"] = [file["arr_{}".format(i)] for i in range(len(file.files))]
    return results


def largest_difference(weights, reference):
    """The largest difference of any weight of two lists of arrays, a float; not a number if a weight is not one."""
    import numpy as np

    return float(np.max([np.max(np.abs(one.astype("float64") - other)) for one, other in zip(weights, reference)]))


def rounding_bound(reference, updates):
    """The largest difference from the weights `reference` that float32 rounding explains, after so many updates.

    Two runs that compute the same in another order part by about half a unit in the last place an update (2 ** -23 of
    the largest weight, at most), now up and now down. Such a random walk gets as far as the square root of its steps.
    In units of that, the default arguments end at most 0.25 apart, in every home from TensorFlow 1.8 to 2.21. K = 2 to
    180 and 1 to 40 epochs end at most 0.74 apart, on 1.13, 2.10 and 2.21. 4 leaves room for other processors and
    libraries. Batches of 8 without accumulation end 10 ** 5 times this bound away.
    """
    import numpy as np

    return 4 * updates**0.5 * 2.0**-23 * max(float(np.max(np.abs(weight))) for weight in reference)


def report(results, steps):
    """Print the table and what follows from it.

    Args:
        results: by the names of `ways`, dicts of `running`, `loss` (a list, the last the final one), `accuracy`,
            `updates`, `weights` (list of arrays), and `memory` and `memory_before` (bytes, or None).
        steps: K.

    Returns:
        0, or 1 where accumulation, or slices, and the large batch differ by more than float32 rounding.
    """
    reference = results["large"]["weights"]
    titles = ways(steps)
    differences = {name: largest_difference(result["weights"], reference) for name, result in results.items()}
    row = "{:<26}{:>10}{:>15}{:>9}{:>20}{:>14}{:>14}"
    print("\n{}\n".format(results["large"]["running"]))
    print(row.format("", "final loss", "test accuracy", "updates", "largest difference", "peak memory", "in training"))
    for name, result in results.items():
        before, peak = result["memory_before"], result["memory"]
        print(
            row.format(
                titles[name].title,
                "{:.4f}".format(result["loss"][-1]),
                "{:.4f}".format(result["accuracy"]),
                result["updates"],
                "{:.2e}".format(differences[name]),
                "not measured" if peak is None else "{:.0f} MiB".format(peak / 2.0**20),
                "not measured" if peak is None else "+{:.0f} MiB".format((peak - before) / 2.0**20),
            )
        )
    print("\nfinal loss: over all training images, after the last epoch")
    print("largest difference: of any weight, to the {}".format(titles["large"].title))
    print("peak memory: of the way's own process, most of it TensorFlow itself")
    print("in training: by how much the peak rose after the first batch began")

    updates, same = results["large"]["updates"], True
    bound = rounding_bound(reference, updates)
    print("")
    for name, title in (("accumulated", "Accumulation"), ("sliced", "Slices")):
        if name in differences:
            # Written so that a difference that is not a number is too large.
            is_within = differences[name] <= bound
            verdict = "are one training: {:.2e} is within" if is_within else "DIFFER: {:.2e} is NOT within"
            told = title + " and the large batch " + verdict + " float32 rounding, {:.1e} after {} updates."
            print(told.format(differences[name], bound, updates))
            same = same and is_within
    return 0 if same else 1


def draw(results, steps, out):
    """Draw the loss after each epoch of the ways to the path `out`. The rest is as in `report`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # The accumulated curve and that of slices lie on that of the large batch: thin on a broad one, dashed, and of
    # markers alone, all are seen.
    styles = {
        "small": dict(color="tab:gray", linewidth=1.5, marker="o", markersize=4),
        "large": dict(color="tab:orange", linewidth=6, alpha=0.6, solid_capstyle="round"),
        "accumulated": dict(color="tab:blue", linewidth=1.5, linestyle="--", marker="o", markersize=4),
        "sliced": dict(color="tab:green", linestyle="none", marker="x", markersize=9),
    }
    figure = Figure(figsize=(7, 4.5))
    FigureCanvasAgg(figure)  # needs no display, and leaves a pyplot of the caller alone
    axes = figure.add_subplot(1, 1, 1)
    for name in [name for name in ("small", "large", "accumulated", "sliced") if name in results]:
        loss, updates = results[name]["loss"], results[name]["updates"]
        label = "{} ({} updates)".format(ways(steps)[name].title, updates)
        axes.plot(range(len(loss)), loss, label=label, **styles[name])
    axes.set_yscale("log")
    axes.set_xlabel("epochs (passes over {} images)".format(images_of_whole_windows(steps)))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("loss over all training images")
    axes.set_title(results["large"]["running"], fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(out, dpi=150)
