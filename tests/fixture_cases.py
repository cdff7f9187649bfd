"""MySGD in every case of fixtures/mysgd.npz, driven once for the tests of all rules."""

import collections

import make_fixtures
import numpy as np
import pytest
from make_fixtures import CASES, LIMITS, LR, MAX_NORM, MINI_STEPS, name_of

import legacyga

FILE = np.load(make_fixtures.PATH)
EXPECTED = {name: FILE[name] for name in FILE.files}
START = [EXPECTED["start_{}".format(i)] for i in range(4)]
BATCHES = list(zip(EXPECTED["x"], EXPECTED["y"]))


# The smaller K have one of everything, those above have all of it together.
every_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name_of(case), marks=[pytest.mark.slow] if case["steps"] > 3 else [])
        for case in CASES
        if case["clip"] != "all"
    ],
)


# One of everything, and all of it together, for the slower ways to train.
SOME = [
    dict(steps=3, momentum=0.0, nesterov=False, decay=0.0, clip="none", max_norm=False),
    dict(steps=2, momentum=0.9, nesterov=False, decay=0.1, clip="each", max_norm=True),
    dict(steps=4, momentum=0.9, nesterov=True, decay=0.1, clip="value", max_norm=True),
    dict(steps=1, momentum=0.9, nesterov=True, decay=0.1, clip="each", max_norm=True),
]


some_cases = pytest.mark.parametrize("case", SOME, ids=name_of)


# By name; and the driver of eager mode, which keeps what it has traced. Of one process, as the home is.
RESULTS, DRIVERS = {}, {}


def of_home(home, case):
    """A case with `clipnorm` in this home's meaning of it."""
    return dict(case, clip=home.clipnorm_means) if case["clip"] == "each" else case


def expected(home, case):
    """The weights after every mini-step."""
    return EXPECTED[name_of(of_home(home, case))]


def arguments(case):
    """MySGD's arguments in a case."""
    kwargs = dict(lr=LR, steps_per_update=case["steps"])
    kwargs.update((name, case[name]) for name in ("momentum", "nesterov", "decay"))
    if case["clip"] != "none":
        kwargs["clipvalue" if case["clip"] == "value" else "clipnorm"] = LIMITS[case["clip"]]
    return kwargs


def distance(weights, expected):
    """The largest distance, relative where a weight is larger than 1."""
    return np.max(np.abs(weights - expected) / np.maximum(1.0, np.abs(expected)))


def ends_window(case):
    """For each mini-step whether it is the last of its window."""
    return np.arange(1, MINI_STEPS + 1) % case["steps"] == 0


def cases_of(home):
    """The cases of the files with `clipnorm` in the home's meaning of it."""
    return [case for case in CASES if case["clip"] in ("none", "value", home.clipnorm_means)]


def structure_of(case):
    """What a graph is built for; momentum, and any K above 1, are values in it."""
    return (case["steps"] > 1,) + tuple(case[name] for name in ("nesterov", "decay", "clip", "max_norm"))


def structures_of(home):
    """The cases of each structure, in lists; those with K = 1 first."""
    by_structure = collections.OrderedDict()
    for case in sorted(cases_of(home), key=lambda case: case["steps"] > 1):
        by_structure.setdefault(structure_of(case), []).append(case)
    return list(by_structure.values())


def groups_of(home):
    """The cases in groups of eight structures."""
    alike = structures_of(home)
    return [alike[i : i + 8] for i in range(0, len(alike), 8)]


def pair_of(home, case):
    model = home.network(START, MAX_NORM if case["max_norm"] else None)
    return model, legacyga.MySGD(keras=home.keras, **arguments(case))


def eager_driver(home):
    """A function of a case: the weights after every mini-step, `iterations` and `mini_step` at the end.

    The gradients come from two functions, with the constraint and without, traced once for all cases. Of each structure
    that accumulates one case, another one in each, has its optimizer within a function too.
    """
    tf, sources = home.tf, {}
    structures = [cases for cases in structures_of(home) if cases[0]["steps"] > 1]
    traced = [cases[i % len(cases)] for i, cases in enumerate(structures)]
    batches = [(tf.constant(x), tf.constant(y)) for x, y in BATCHES]

    def source(max_norm):
        model = home.network(START, max_norm)

        @tf.function
        def gradients(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            return tape.gradient(loss, model.trainable_variables)

        return model, gradients

    def drive(case):
        max_norm = MAX_NORM if case["max_norm"] else None
        if max_norm not in sources:
            sources[max_norm] = source(max_norm)
        model, gradients = sources[max_norm]
        model.set_weights(START)
        optimizer, history = legacyga.MySGD(keras=home.keras, **arguments(case)), []
        if home.is_keras3:
            optimizer.build(model.trainable_variables)

        def step(x, y):
            optimizer.apply_gradients(zip(gradients(x, y), model.trainable_variables))

        if case in traced:
            step = tf.function(step)
        for x, y in batches:
            step(x, y)
            history.append(make_fixtures.flat(model.get_weights()))
        return np.stack(history), int(home.value(optimizer.iterations)), int(home.value(optimizer.mini_step))

    return drive


def driven_in_graphs(home, group):
    """By name the same for all cases of some structures, side by side, with a graph for each structure.

    It is built as one of the structure's cases, another one in each, so that every K and momentum is one that
    something is built with; for the others K is set while no window is under way, and momentum where it is kept.
    """
    home.reset(plain_session=True)
    backend = home.backend
    pairs = [pair_of(home, cases[i % len(cases)]) for i, cases in enumerate(group)]
    step = home._graph_step(pairs)
    start = [(variable, value) for model, _ in pairs for variable, value in zip(model.weights, START)]
    for _, optimizer in pairs:
        start += zip(optimizer.weights, backend.batch_get_value(optimizer.weights))
    weights = [weight for model, _ in pairs for weight in model.weights]
    counters = [counter for _, optimizer in pairs for counter in (optimizer.iterations, optimizer.mini_step)]
    found = {}
    for place in range(max(map(len, group))):
        # Where a structure has fewer cases, its first ones are run again beside the others'.
        side_by_side = [cases[place % len(cases)] for cases in group]
        momenta = [(optimizer.momentum, case["momentum"]) for (_, optimizer), case in zip(pairs, side_by_side)]
        backend.batch_set_value(start + momenta)
        for (_, optimizer), case in zip(pairs, side_by_side):
            if case["steps"] > 1:
                optimizer.gradient_accumulation_steps = case["steps"]
        history = []
        for x, y in BATCHES:
            step(x, y)
            history.append(make_fixtures.flat(backend.batch_get_value(weights)).reshape(len(pairs), -1))
        ends = [int(value) for value in backend.batch_get_value(counters)]
        for i, case in enumerate(side_by_side):
            found[name_of(case)] = np.stack([each[i] for each in history]), ends[2 * i], ends[2 * i + 1]
    # Every session call of the tests to come would look through what is left here.
    home.reset(plain_session=True)
    return found


def run(home, case):
    """The weights after every mini-step, `iterations` and `mini_step` at the end, of a case that was run or now is."""
    case = of_home(home, case)
    if name_of(case) not in RESULTS:
        if home.mode == "eager":
            if "drive" not in DRIVERS:
                DRIVERS["drive"] = eager_driver(home)
            RESULTS[name_of(case)] = DRIVERS["drive"](case)
        else:
            group = next(group for group in groups_of(home) if any(case in cases for cases in group))
            RESULTS.update(driven_in_graphs(home, group))
    return RESULTS[name_of(case)]
