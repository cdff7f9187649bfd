"""What an eager step costs in Python: calls of the package's own functions, which no machine changes."""

import os
import sys

import pytest
import skips

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "benchmarks"))
import python_calls

pytestmark = pytest.mark.capability("R6 K = 1 is the bare optimizer")
MOST = {"wrap": 150, "a mini-step that is no update": 120, "a step at K = 1": 25}


def test_the_calls_of_wrap_and_of_a_step(home):
    if home.mode == "graph":
        skips.senseless("in graph mode nothing of it runs in a step")
    # Whatever else this process has made of the class is not measured.
    cls = type("OwnAdam", (home.keras.optimizers.Adam,), {})
    found = python_calls.measured(home.tf, cls)
    assert {name: number for name, number in found.items() if number > MOST[name]} == {}
