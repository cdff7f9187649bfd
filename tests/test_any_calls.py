"""Whatever sequence of calls hypothesis thinks of, on real optimizers in eager mode: as a model of the contract has it.

The model keeps the window's mini-steps, in NumPy float64. The long run:

    LEGACYGA_EXAMPLES=100000 python -m pytest --more --home HOME --mode eager test_any_calls.py
"""

import os
from contextlib import ExitStack

import hypothesis
import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
from homes import variables_of
from hypothesis import strategies as st

import legacyga

pytestmark = [pytest.mark.capability("R14 trouble"), pytest.mark.long]
EXAMPLES = int(os.environ.get("LEGACYGA_EXAMPLES", 40))
START = [np.float32([1.0, -2.0]), np.float32([[0.5, 0.25], [1.5, 2.0]]), np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])]
RATE = 0.125

# What a mini-step has for a variable: nothing, a tensor of one number, rows, or what is not finite.
number = st.integers(-8, 8).map(lambda value: value / 4.0)
dense = st.one_of(st.none(), number, st.sampled_from([np.nan, np.inf]))
rows = st.lists(st.tuples(st.integers(0, 3), number), min_size=1, max_size=5)
gradients = st.tuples(dense, dense, st.one_of(st.none(), number, rows)).filter(any)
weight = st.one_of(st.none(), st.sampled_from([0, 0.5, 1, 3]))
calls = st.one_of(
    st.tuples(st.just("mini_step"), gradients, weight),
    st.tuples(st.just("mini_step"), gradients, weight),
    st.tuples(st.just("set"), st.sampled_from([0, 1, 2, 3, 5])),
    st.tuples(st.sampled_from(["flush", "drop", "load"])),
)


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "sgd_class", "SGD")


def whole(shape, gradient):
    """A gradient as an array of the variable's shape."""
    found = np.zeros(shape)
    if isinstance(gradient, list):
        for row, value in gradient:
            found[row] += value
        return found
    return found + gradient


def finite(given):
    """The gradients of a mini-step with 0.25 for each number that is not finite."""
    return [0.25 if isinstance(each, float) and not np.isfinite(each) else each for each in given]


class Model(object):
    """What the contract says, of SGD without momentum."""

    def __init__(self, steps, policy, reduction):
        self.weights = oracle.double(START)
        self.steps = self.window_steps = steps
        self.policy, self.reduction = policy, reduction
        self.window, self.place, self.updates, self.skipped = [], 0, 0, 0

    def mini_step(self, given, weight):
        """Returns whether an error is to come."""
        if self.place == 0:
            self.window_steps = self.steps
        weight = 1.0 if weight is None else float(weight)
        self.place += 1
        arrays = [None if each is None else whole(start.shape, each) for each, start in zip(given, START)]
        bad = weight > 0 and not all(np.all(np.isfinite(each)) for each in arrays if each is not None)
        if bad and self.policy == "skip_mini_step":
            self.skipped += 1
        else:
            self.window.append((weight, arrays))
        return self.end() if self.place >= self.window_steps else False

    def end(self):
        """End a window that is under way: an update, if there is something to update with and it is finite."""
        if not self.place:
            return False
        window, self.window, self.place = self.window, [], 0
        if not window:
            return False
        total = sum(weight for weight, _ in window) or 1.0
        reduced = []
        for i in range(len(START)):
            present = [(weight, each[i]) for weight, each in window if each[i] is not None]
            # What weighs nothing adds nothing, not even a NaN.
            parts = [weight * each for weight, each in present if weight]
            found = sum(parts) if parts else np.zeros(START[i].shape)
            reduced.append(None if not present else found if self.reduction == "sum" else found / total)
        if self.policy != "propagate" and not all(np.all(np.isfinite(each)) for each in reduced if each is not None):
            self.skipped += len(window)
            return self.policy == "raise"
        self.updates += 1
        self.weights = [w if g is None else w - RATE * g for w, g in zip(self.weights, reduced)]
        return False

    def drop(self):
        self.window, self.place = [], 0


class Run(object):
    """The same on an optimizer."""

    def __init__(self, home, make):
        self.home, self.make = home, make
        self.variables, self.optimizer = home.variables(START), make()
        # With state for all variables from the start: what has none at first gets none later in some versions.
        build = getattr(self.optimizer, "build", None) or self.optimizer._create_all_weights
        build(self.variables)

    def mini_step(self, given, weight):
        tf = self.home.tf
        pairs = []
        for gradient, variable, start in zip(given, self.variables, START):
            if isinstance(gradient, list):
                values = tf.constant([[value, value] for _, value in gradient], "float32")
                gradient = tf.IndexedSlices(values, tf.constant([row for row, _ in gradient]), tf.constant(start.shape))
            elif gradient is not None:
                gradient = tf.fill(start.shape, np.float32(gradient))
            pairs.append((gradient, variable))
        if weight is None:
            self.optimizer.apply_gradients(pairs)
        else:
            with self.optimizer.mini_step_weight(weight):
                self.optimizer.apply_gradients(pairs)

    def load(self):
        """Into a new optimizer, by way of its state."""
        if not hasattr(self.optimizer, "set_weights"):
            return
        values = [np.array(self.home.value(each)) for each in variables_of(self.optimizer)]
        again = self.make()
        build = getattr(again, "build", None) or again._create_all_weights
        build(self.variables)
        again.set_weights(values)
        self.optimizer = again


def drive(home, make, model, sequence):
    run = Run(home, make)
    for name, *arguments in sequence:
        if name == "set":
            (steps,) = arguments
            if steps < 1:
                with pytest.raises(ValueError, match="must be an integer of at least 1. Received: 0"):
                    run.optimizer.gradient_accumulation_steps = steps
            else:
                run.optimizer.gradient_accumulation_steps = model.steps = steps
        elif name == "load":
            run.load()
        elif name == "drop":
            run.optimizer.drop_windows()
            model.drop()
        else:
            mini_step = name == "mini_step"
            fails = model.mini_step(*arguments) if mini_step else model.end()
            with pytest.raises(home.tf.errors.InvalidArgumentError, match="not finite") if fails else ExitStack():
                run.mini_step(*arguments) if mini_step else legacyga.flush(run.optimizer)
        read = run.optimizer
        assert read.gradient_accumulation_steps == model.steps
        told = [int(home.value(each)) for each in (read.mini_step, read.iterations, read.skipped_mini_steps)]
        assert told == [model.place, model.updates, model.skipped]
        for now, then in zip(run.variables, model.weights):
            np.testing.assert_allclose(home.value(now), then, rtol=0, atol=4e-6 * max(1.0, np.abs(then).max()))


@pytest.mark.parametrize("policy", ["propagate", "skip_mini_step", "skip_window", "raise"])
def test_any_sequence_of_calls(home, once_in_an_environment, sgd_class, policy):
    needs.eager_only(home)
    kind = kinds.Kind(home, sgd_class)
    if kind.generation == "v3" and home.tf_version < (2, 11):
        skips.elsewhere("in tf.keras 2.11 and newer")

    @hypothesis.settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES < 1000, database=None)
    @hypothesis.given(st.integers(2, 4), st.sampled_from(["mean", "sum"]), st.lists(calls, min_size=1, max_size=14))
    def check(steps, reduction, sequence):
        def make():
            return legacyga.wrap(sgd_class(RATE), steps, reduction=reduction, on_nonfinite=policy)

        if policy == "propagate":
            # Weights that are not finite are Keras's own affair.
            sequence = [(each[0], finite(each[1]), each[2]) if each[0] == "mini_step" else each for each in sequence]
        drive(home, make, Model(steps, policy, reduction), sequence)

    check()
