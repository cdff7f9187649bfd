"""Whatever program around `fit` hypothesis thinks of: weights, K and counters as the README says. The long run:

LEGACYGA_EXAMPLES=10000 python -m pytest --more --home HOME --mode MODE test_any_program.py
"""

import os

import hypothesis
import kinds
import programs
import pytest
import skips
from hypothesis import strategies as st

import legacyga

pytestmark = [pytest.mark.capability("R14 trouble"), pytest.mark.long]
EXAMPLES = int(os.environ.get("LEGACYGA_EXAMPLES", 25))
TOLERANCE = 4e-6

steps = st.sampled_from([2, 3, 5])
fits = st.fixed_dictionaries(
    dict(
        epochs=st.integers(1, 2),
        partial_window=st.sampled_from([None, "flush", "carry", "drop"]),
        schedule=st.one_of(st.none(), steps),
        evaluates=st.booleans(),
        interrupted=st.booleans(),
    )
)
calls = st.one_of(
    fits.map(lambda arguments: ("fit", arguments)),
    st.integers(0, 3).map(lambda number: ("train_on_batch", dict(number=number))),
    steps.map(lambda value: ("set_steps", dict(steps=value))),
    st.sampled_from(["evaluate", "flush", "drop", "save_and_load", "compile_again", "remember", "go_back"]).map(
        lambda name: (name, {})
    ),
)


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "sgd_class", "SGD")


def test_any_program(home, sgd_class, tmpdir):
    kind = kinds.Kind(home, sgd_class)
    if kind.generation == "train":
        skips.senseless("compile takes optimizers of Keras")
    if kind.generation == "v3" and home.tf_version < (2, 11):
        skips.elsewhere("in tf.keras 2.11 and newer")

    def make(steps):
        return legacyga.wrap(sgd_class(programs.LR, momentum=programs.MOMENTUM), steps)

    @hypothesis.settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES < 1000, database=None)
    @hypothesis.given(st.integers(2, 4), st.lists(calls, min_size=1, max_size=8))
    def check(first, sequence):
        home.reset(plain_session=True)
        program, state = programs.Program(home, make, first, str(tmpdir)), None
        for name, arguments in sequence:
            if name == "remember":
                state = program.get_state()
            elif name == "go_back":
                if state is not None:
                    program.set_state(state)
            elif name == "compile_again" and home.mode == "graph":
                # Another graph's window; test_trainable.py has it.
                continue
            else:
                getattr(program, name)(**arguments)
            program.check(TOLERANCE)

    check()
