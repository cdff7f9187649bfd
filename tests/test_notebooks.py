"""The notebooks run, assert their own numbers, and print what is stored in them."""

import os
import re

import pytest
import skips

import notebooks

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EAGER = [("keras", "eager", "2.21"), ("tf.keras", "eager", "2.15")]
# The homes, modes and TensorFlows that run each. The first refreshes it.
RUNS = {
    "fit": EAGER,
    "old_keras": [("keras", "graph", "1.15"), ("keras", "graph", "1.13")],
    "slices": EAGER,
}


def texts(outputs):
    """What each cell printed, without its numbers: versions and rounding change them, and the cells assert them."""
    printed = ["".join("".join(each.get("text", "")) for each in of_cell) for of_cell in outputs]
    return [re.sub(r"\d[\d.]*(e[-+]\d+)?", "#", text) for text in printed]


def pictures(outputs):
    return [sum("image/png" in each.get("data", {}) for each in of_cell) for of_cell in outputs]


@pytest.mark.capability("demo and examples")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long(only=RUNS[name])) for name in sorted(RUNS)])
def test_a_notebook_does_what_it_shows(home, name):
    if (home.name, home.mode, "{}.{}".format(*home.tf_version)) not in RUNS[name]:
        # With --more nothing is left out by its mark.
        skips.elsewhere("the notebooks are run in other environments of the matrix")
    notebook = notebooks.read(os.path.join(ROOT, "notebooks", name + ".ipynb"))
    home.reset()
    found = notebooks.run(notebook)
    home.reset()
    stored = [cell["outputs"] for cell in notebooks.code_cells(notebook)]
    assert texts(found) == texts(stored)
    assert pictures(found) == pictures(stored)


@pytest.mark.capability("house")
def test_the_texts_of_a_cell_without_numbers():
    stream = {"text": ["K = 8: 2.1e-07 at 0.92\n", "TensorFlow 2.21.0\n"]}
    assert texts([[], [stream]]) == ["", "K = #: # at #\nTensorFlow #\n"]
