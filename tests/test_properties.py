"""wrap's contract for whatever hypothesis thinks of: optimizers, hyperparameters, shapes, windows, frozen variables.

The gradients are multiples of 1/16 of which float32 holds every sum, so that a window's mean is one number, whoever
computes it: wrap must agree with the bare optimizer, fed the means, to the last bit, and so must all of its state.
"""

import collections
import inspect

import homes
import hypothesis
import needs
import numpy as np
import pytest
from homes import generation_of
from hypothesis import strategies as st

import legacyga

pytestmark = pytest.mark.capability("wrap: properties")

# In eager mode for each class, in graph mode, which pays for every operation it makes, for each generation.
EXAMPLES = {"eager": 3, "graph": 6}
SHAPES = [(3,), (), (1,), (2, 3), (2, 1, 2)]
EMPTY = [(0,), (2, 0)]
TRAINED, FROZEN, NO_GRADIENT = "trained", "frozen", "no gradient"

BETA = st.floats(0.125, 0.99)
# By the name of the argument. A class is given those that it has.
HYPERPARAMETERS = {
    "momentum": st.sampled_from([0.0, 0.5, 0.9]),
    "nesterov": st.booleans(),
    "rho": st.floats(0.5, 0.99),
    "centered": st.booleans(),
    "amsgrad": st.booleans(),
    "beta_1": BETA,
    "beta_2": st.floats(0.5, 0.999),
    "initial_accumulator_value": st.floats(0.01, 1.0),
    "l1_regularization_strength": st.floats(0.0, 0.1),
    "l2_regularization_strength": st.floats(0.0, 0.1),
    "relative_step": st.booleans(),
    "weight_decay": st.floats(0.0, 0.1),
    "use_ema": st.booleans(),
    "ema_overwrite_frequency": st.integers(1, 3),
}


def groups(home):
    """{id: classes}, of which a test draws one: a class of each name and generation, in graph mode all of one."""
    found = collections.OrderedDict()
    for _, cls in home.optimizer_classes():
        found.setdefault((generation_of(cls), cls.__name__), cls)
    ids = collections.OrderedDict()
    for (generation, name), cls in found.items():
        ids.setdefault(generation if home.mode == "graph" else generation + "-" + name, []).append(cls)
    return ids


def pytest_generate_tests(metafunc):
    if "classes" in metafunc.fixturenames:
        from conftest import home_of

        found = groups(home_of(metafunc.config))
        metafunc.parametrize("classes", list(found.values()), ids=list(found))


def profile(home):
    """For everybody the same examples, as far as they have the same hypothesis."""
    return hypothesis.settings(
        max_examples=EXAMPLES[home.mode],
        derandomize=True,
        deadline=None,
        database=None,
        # Without shrinking: it takes minutes, and an example is small as it is.
        phases=[hypothesis.Phase.generate],
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )


@st.composite
def arguments(draw, home, generation, cls):
    """The keyword arguments of an optimizer."""
    names = inspect.signature(cls.__init__).parameters
    kwargs = {name: draw(values) for name, values in sorted(HYPERPARAMETERS.items()) if name in names}
    kwargs["lr" if generation == "v1" else "learning_rate"] = draw(st.floats(1e-3, 0.3))
    # The v1 Nadam has a schedule of its own in its place. Adam and Adamax of tf.keras read `iterations` for it and
    # count in no order: that decay is compared with the oracle.
    racing = ("Nadam",) if home.name == "keras" else ("Nadam", "Adam", "Adamax")
    if generation == "v2" or generation == "v1" and cls.__name__ not in racing:
        kwargs["decay"] = draw(st.sampled_from([0.0, 0.1]))
    return kwargs


@st.composite
def examples(draw, home, classes):
    """A dict that says all of a run. The first of each strategy's values make the run that is tried first."""
    cls = draw(st.sampled_from(classes))
    generation = generation_of(cls)
    steps = draw(st.sampled_from([3, 2, 4, 5, 6, 1]))
    mini_steps = draw(st.sampled_from([7, 8, 9, 10, 11, 12, 13, 14, 6, 5, 4, 3, 2, 1]))
    # The v1 optimizers cannot make slots without elements.
    shapes = st.sampled_from(SHAPES if generation == "v1" else SHAPES + EMPTY)
    # In graph mode a variable without a gradient is an error of the bare optimizer too.
    roles = st.sampled_from([TRAINED, FROZEN] + [NO_GRADIENT] * (home.mode == "eager"))
    variables = draw(st.lists(st.tuples(shapes, roles), max_size=3))
    kwargs = draw(arguments(home, generation, cls))
    if generation == "v3" and home.tf_version < (2, 15) and NO_GRADIENT in [role for _, role in variables]:
        # The bare optimizers of 2.11 to 2.14 pair the averages of all variables with those that have a gradient.
        kwargs["use_ema"] = False
    return dict(
        cls=cls,
        kwargs=kwargs,
        steps=steps,
        mini_steps=mini_steps,
        reduction=draw(st.sampled_from(["mean", "sum"])),
        # TF 2.0 and 2.1 do not clip at K = 1 in eager mode, and then nor does wrap.
        clipvalue=draw(st.sampled_from([None, 0.5])) if steps > 1 else None,
        # Before which mini-step K is set, and to what: the first falls in the middle of a window.
        change=draw(st.sampled_from([4, 1, 2, 3, 5, 6, 8, None])),
        next_steps=draw(st.sampled_from([2, 1, 3, 4, 5, 6])),
        variables=variables + [(draw(shapes), TRAINED)],
        seed=draw(st.integers(0, 2**32 - 1)),
    )


class Run(homes.Fed):
    """An optimizer and variables of its own, of which it is given those that are not frozen."""

    def __init__(self, home, optimizer, start, roles):
        self.roles = roles
        super(Run, self).__init__(home, optimizer, start)

    def given(self, values):
        return [value for value, role in zip(values, self.roles) if role != FROZEN]

    def step(self, gradients):
        if self.home.mode == "eager":
            gradients = [None if role == NO_GRADIENT else each for each, role in zip(gradients, self.roles)]
        super(Run, self).step(gradients)


def assert_same_bits(found, wanted):
    assert len(found) == len(wanted)
    for now, was in zip(found, wanted):
        np.testing.assert_array_equal(now, was)


def check(home, example):
    random = np.random.RandomState(example["seed"])
    shapes, roles = zip(*example["variables"])
    start = [np.asarray(random.standard_normal(shape), "float32") for shape in shapes]
    home.reset(plain_session=True)
    cls, kwargs, clip = example["cls"], example["kwargs"], example["clipvalue"]
    bare = Run(home, cls(**kwargs), start, roles)
    clipping = dict(kwargs, clipvalue=clip) if clip else kwargs
    steps = example["steps"]
    wrapped = Run(home, legacyga.wrap(cls(**clipping), steps, reduction=example["reduction"]), start, roles)

    next_steps, window, updates, snapshots = steps, [], 0, []
    values, state = start, None
    for i in range(example["mini_steps"]):
        if i == example["change"]:
            if steps == 1 and example["next_steps"] > 1:
                with pytest.raises(ValueError, match="so it has no accumulators"):
                    wrapped.optimizer.gradient_accumulation_steps = example["next_steps"]
            else:
                wrapped.optimizer.gradient_accumulation_steps = next_steps = example["next_steps"]
            assert wrapped.optimizer.gradient_accumulation_steps == next_steps
        if not window:
            steps_of_window = next_steps
        window.append([np.asarray(random.randint(-64, 65, shape) / 16.0, "float32") for shape in shapes])
        wrapped.step(window[-1])
        before = values, state
        values, state, counters = wrapped.read()
        if len(window) < steps_of_window:
            assert_same_bits(values, before[0])
            snapshots.append((before[1], state))
        else:
            reduced = [sum(each) for each in zip(*window)]
            if example["reduction"] == "mean":
                reduced = [each / np.float32(len(window)) for each in reduced]
            if clip:
                reduced = [np.clip(each, -clip, clip) for each in reduced]
            bare.step([np.asarray(each, "float32") for each in reduced])
            wanted, wanted_state, wanted_counters = bare.read()
            assert_same_bits(values, wanted)
            # What follows the inner optimizer's state is the window's.
            assert_same_bits(state[: len(wanted_state)], wanted_state)
            updates, window = updates + 1, []
            assert wanted_counters == [updates]
        assert counters == [updates, len(window)]
    if updates:
        for was, now in snapshots:
            if was is not None:
                assert_same_bits(now[: len(wanted_state)], was[: len(wanted_state)])
    for value, first, role in zip(values, start, roles):
        if role == FROZEN:
            np.testing.assert_array_equal(value, first)


@pytest.mark.long
def test_an_optimizer_is_its_bare_self_on_means(home, classes):
    needs.wrap(home)

    @profile(home)
    @hypothesis.given(examples(home, classes))
    def holds(example):
        check(home, example)

    holds()
    home.reset()
