"""Run notebooks without Jupyter, and store what their cells print and draw.

    python tests/notebooks.py --refresh notebooks/fit.ipynb

It needs the Keras that `test_notebooks.py` names for the notebook, matplotlib and scikit-learn.
"""

import argparse
import base64
import contextlib
import io
import json
import linecache


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(notebook):
    """Run the code cells in order, in one namespace; what each printed and drew, as the outputs that a cell stores."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    namespace, found = {"__name__": "__main__"}, []
    for number, cell in enumerate(code_cells(notebook), 1):
        source, name, printed, outputs = "".join(cell["source"]), "<cell {}>".format(number), io.StringIO(), []
        # As in Jupyter: AutoGraph and tracebacks read the source.
        linecache.cache[name] = len(source), None, source.splitlines(True), name
        with contextlib.redirect_stdout(printed):
            exec(compile(source, name, "exec"), namespace)
        if printed.getvalue():
            outputs.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(True)})
        for figure in map(pyplot.figure, pyplot.get_fignums()):
            drawn = io.BytesIO()
            # Without matplotlib's version in it the file changes where the picture does.
            figure.savefig(drawn, format="png", dpi=80, bbox_inches="tight", metadata={"Software": None})
            data = {"image/png": base64.b64encode(drawn.getvalue()).decode("ascii")}
            outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
        pyplot.close("all")
        found.append(outputs)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refresh", required=True, metavar="NOTEBOOK")
    path = parser.parse_args().refresh
    notebook = read(path)
    for number, (cell, outputs) in enumerate(zip(code_cells(notebook), run(notebook)), 1):
        cell.update(execution_count=number, outputs=outputs)
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(notebook, indent=1, sort_keys=True) + "\n")
