"""Both forms of MySGD against one set of files: every case of fixtures/mysgd.npz, after every mini-step."""

import collections

import make_fixtures
import numpy as np
import oracle
import pytest
import skips
from make_fixtures import BATCH, CASES, LIMITS, LR, MAX_NORM, MINI_STEPS, name_of

import legacyga

FILE = np.load(make_fixtures.PATH)
EXPECTED = {name: FILE[name] for name in FILE.files}
START = [EXPECTED["start_{}".format(i)] for i in range(4)]
BATCHES = list(zip(EXPECTED["x"], EXPECTED["y"]))


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
    """The cases in groups of eight structures, whose cases are lists of one length."""
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
    for side_by_side in zip(*group):
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


@pytest.fixture(scope="module")
def run(home):
    """A function of a case: the weights after every mini-step, `iterations` and `mini_step` at the end."""
    done = {}
    drive = eager_driver(home) if home.mode == "eager" else None

    def of_case(case):
        if name_of(case) not in done:
            if drive:
                done[name_of(case)] = drive(case)
            else:
                group = next(group for group in groups_of(home) if any(case in cases for cases in group))
                done.update(driven_in_graphs(home, group))
        return done[name_of(case)]

    return of_case


@pytest.fixture(params=[case for case in CASES if case["clip"] != "all"], ids=name_of)
def case(request, home):
    """A case of the files, with `clipnorm` in this home's meaning of it."""
    return dict(request.param, clip=home.clipnorm_means) if request.param["clip"] == "each" else request.param


def ends_window(case):
    """For each mini-step whether it is the last of its window."""
    return np.arange(1, MINI_STEPS + 1) % case["steps"] == 0


@pytest.mark.capability("R1 mean")
def test_weights_equal_the_oracle_after_every_mini_step(run, case):
    history, _, _ = run(case)
    assert distance(history, EXPECTED[name_of(case)]) <= 4e-6


@pytest.mark.capability("R3 nothing else moves")
def test_weights_keep_their_bits_between_updates(run, case):
    history, _, _ = run(case)
    before = np.concatenate([[make_fixtures.flat(START)], history[:-1]])
    np.testing.assert_array_equal(history[~ends_window(case)], before[~ends_window(case)])


@pytest.mark.capability("R5 phase")
def test_every_window_ends_in_an_update_that_moves(run, case):
    history, _, mini_step = run(case)
    before = np.concatenate([[make_fixtures.flat(START)], history[:-1]])
    np.testing.assert_array_equal((history != before).any(axis=1), ends_window(case))
    assert mini_step == 0


@pytest.mark.capability("R4 per update")
def test_iterations_count_updates(run, case):
    _, iterations, _ = run(case)
    assert iterations == MINI_STEPS // case["steps"]


# One of everything, and all of it together, for the slower ways to train.
SOME = [
    dict(steps=3, momentum=0.0, nesterov=False, decay=0.0, clip="none", max_norm=False),
    dict(steps=2, momentum=0.9, nesterov=False, decay=0.1, clip="each", max_norm=True),
    dict(steps=4, momentum=0.9, nesterov=True, decay=0.1, clip="value", max_norm=True),
    dict(steps=1, momentum=0.9, nesterov=True, decay=0.1, clip="each", max_norm=True),
]


@pytest.fixture(params=SOME, ids=name_of)
def some(request, home):
    return dict(request.param, clip=home.clipnorm_means) if request.param["clip"] == "each" else request.param


def compiled(home, case, **kwargs):
    model = home.network(START, MAX_NORM if case["max_norm"] else None)
    model.compile(optimizer=legacyga.MySGD(keras=home.keras, **arguments(case)), loss="mse", **kwargs)
    return model


def assert_trained(model, home, case):
    assert distance(make_fixtures.flat(model.get_weights()), EXPECTED[name_of(case)][-1]) <= 4e-6
    assert int(home.value(model.optimizer.iterations)) == MINI_STEPS // case["steps"]


@pytest.mark.capability("ways to train")
def test_fit(home, some):
    model = compiled(home, some)
    x, y = np.concatenate(EXPECTED["x"]), np.concatenate(EXPECTED["y"])
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    assert_trained(model, home, some)


@pytest.mark.capability("ways to train")
def test_train_on_batch(home, some):
    model = compiled(home, some)
    for i, (x, y) in enumerate(BATCHES):
        model.train_on_batch(x, y)
        assert distance(make_fixtures.flat(model.get_weights()), EXPECTED[name_of(some)][i]) <= 4e-6
    assert_trained(model, home, some)


def eager_only(home, since=(2, 0)):
    if home.mode == "graph":
        skips.senseless("eager mode only")
    if home.tf_version < since:
        skips.keras_lacks("from TF {}.{} on".format(*since))


@pytest.mark.capability("ways to train")
def test_run_eagerly(home, some):
    eager_only(home)
    model = compiled(home, some, run_eagerly=True)
    x, y = np.concatenate(EXPECTED["x"]), np.concatenate(EXPECTED["y"])
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    assert_trained(model, home, some)


@pytest.mark.capability("ways to train")
def test_steps_per_execution(home, some):
    eager_only(home, since=(2, 4))
    # 5 divides neither the 24 mini-steps nor a window.
    model = compiled(home, some, steps_per_execution=5)
    x, y = np.concatenate(EXPECTED["x"]), np.concatenate(EXPECTED["y"])
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    assert_trained(model, home, some)


@pytest.mark.capability("ways to train")
@pytest.mark.parametrize("loop", ["a call a batch", "the loop inside"])
def test_custom_loop_in_tf_function(home, some, loop):
    eager_only(home)
    tf = home.tf
    model = home.network(START, MAX_NORM if some["max_norm"] else None)
    optimizer = legacyga.MySGD(keras=home.keras, **arguments(some))
    if home.is_keras3:
        optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    if loop == "a call a batch":
        traced = tf.function(step)
        for x, y in BATCHES:
            traced(tf.constant(x), tf.constant(y))
    else:
        dataset = tf.data.Dataset.from_tensor_slices((EXPECTED["x"], EXPECTED["y"]))

        @tf.function
        def epoch():
            for x, y in dataset:
                step(x, y)

        epoch()
    assert distance(make_fixtures.flat(model.get_weights()), EXPECTED[name_of(some)][-1]) <= 4e-6
    assert int(optimizer.iterations) == MINI_STEPS // some["steps"]


@pytest.mark.capability("R1 mean")
@pytest.mark.parametrize("steps", [1, 3])
def test_float64_to_1e_13(home, steps):
    """With hyperparameters that float32 holds exactly: OptimizerV2 keeps them in float32 whatever floatx is."""
    sgd = dict(lr=0.0625, momentum=0.875, nesterov=True, decay=0.125)
    home.reset()
    home.set_floatx("float64")
    try:
        model = home.network([weight.astype("float64") for weight in START])
        optimizer = legacyga.MySGD(steps_per_update=steps, clipnorm=0.5, keras=home.keras, **sgd)
        batches = [(x.astype("float64"), y.astype("float64")) for x, y in BATCHES]
        history = [make_fixtures.flat(weights[0]) for weights in home.mini_steps([(model, optimizer)], batches)]
    finally:
        home.set_floatx("float32")
        home.reset()
    bare = oracle.SGD(clip=home.clipnorm_means, limit=0.5, **sgd)
    expected = oracle.train([weight.astype("float64") for weight in START], batches, steps, bare)
    assert distance(np.stack(history), np.stack([make_fixtures.flat(weights) for weights in expected])) <= 1e-13


@pytest.mark.capability("R6 K = 1 is the bare optimizer")
@pytest.mark.parametrize(
    "kwargs",
    [{}, dict(momentum=0.9), dict(momentum=0.9, nesterov=True), dict(clipvalue=0.1), dict(clipnorm=0.5)],
    ids=str,
)
def test_one_step_is_the_bare_sgd_to_the_bit(home, kwargs):
    """Without decay: there the bare v1 optimizer races on `iterations`, and has no one result to be equal to."""
    ours, bare = legacyga.MySGD(lr=LR, steps_per_update=1, keras=home.keras, **kwargs), home.bare_sgd(lr=LR, **kwargs)
    ours_history = [make_fixtures.flat(w[0]) for w in home.mini_steps([(home.network(START), ours)], BATCHES)]
    bare_history = [make_fixtures.flat(w) for w in home.bare_steps(home.network(START), bare, BATCHES)]
    np.testing.assert_array_equal(ours_history, bare_history)
    assert len(home.optimizer_weights(ours)) == len(home.optimizer_weights(bare)), "K = 1 must cost no memory"


@pytest.mark.capability("R7 one result")
@pytest.mark.parametrize("way", ["by hand", "fit"])
def test_a_hundred_runs_have_one_result(home, way):
    """100 runs of 24 mini-steps with all that could race: decay, momentum, the norm of all gradients, a constraint."""
    case = dict(steps=2, momentum=0.9, nesterov=True, decay=0.1, clip=home.clipnorm_means, max_norm=True)
    home.reset()
    if way == "by hand":
        model = home.network(START, MAX_NORM)
        optimizer = legacyga.MySGD(keras=home.keras, **arguments(case))
        step = home.step(model, optimizer)

        def train():
            for x, y in BATCHES:
                step(x, y)
    else:
        model = compiled(home, case)
        optimizer = model.optimizer
        x, y = np.concatenate(EXPECTED["x"]), np.concatenate(EXPECTED["y"])

        def train():
            model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)

    train()
    state = home.optimizer_weights(optimizer)
    results = set()
    for _ in range(100):
        model.set_weights(START)
        home.set_optimizer_weights(optimizer, state)
        train()
        results.add(make_fixtures.flat(model.get_weights()).tobytes())
    assert len(results) == 1
