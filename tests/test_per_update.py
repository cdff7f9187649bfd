"""What counts once per update, and what acts on the mean, one by one, for every generation that has the thing."""

import inspect
import warnings

import numpy as np
import oracle
import pytest
import skips

import legacyga
from legacyga import _compat

RANDOM = np.random.RandomState(23)
SIZES = (3, 2)
START = [RANDOM.randn(size, 1).astype("float32") for size in SIZES]
K = 4
# The gradients of 24 mini-steps. In each window one is fifty times larger than the others.
ROWS = [[(RANDOM.randn(size) * (50 if i % K == 1 else 1)).astype("float32") for size in SIZES] for i in range(6 * K)]
NOT_THERE = "not there in that version: {}"


def pytest_generate_tests(metafunc):
    from conftest import home_of

    if "generation" in metafunc.fixturenames:
        metafunc.parametrize("generation", list(classes_of(home_of(metafunc.config))))
    if "form" in metafunc.fixturenames:
        metafunc.parametrize("form", ["MySGD"] + list(classes_of(home_of(metafunc.config))))


def classes_of(home):
    """{generation: {name: class}} of the home's stock optimizers."""
    found = {}
    for _, cls in home.optimizer_classes():
        # Where `legacy` has a second class of the name, the public one stays.
        found.setdefault(_compat.generation_of(cls), {}).setdefault(cls.__name__, cls)
    return found


@pytest.fixture(autouse=True)
def fresh(home):
    home.reset(plain_session=True)


def make(home, generation, name="SGD", lr=0.125, **kwargs):
    """A stock optimizer, without accumulation."""
    kwargs["lr" if generation == "v1" else "learning_rate"] = lr
    return classes_of(home)[generation][name](**kwargs)


def wrap(home, generation, steps, name="SGD", **kwargs):
    if home.tf_version < (1, 11):
        skips.we_lack("wrap needs TF 1.11 or newer for the v1 API")
    return legacyga.wrap(make(home, generation, name, **kwargs), steps)


def accumulating(home, form, steps, **kwargs):
    """An SGD that accumulates: MySGD, or one of the generation `form`, wrapped."""
    if form == "MySGD":
        return legacyga.MySGD(steps_per_update=steps, keras=home.keras, **dict(dict(lr=0.125), **kwargs))
    return wrap(home, form, steps, **kwargs)


def skip_without(home, generation, argument):
    """Skip where the generation's SGD does not take an argument. OptimizerV2 hides some of them in **kwargs."""
    cls = classes_of(home)[generation]["SGD"]
    known = {name for each in cls.__mro__[:-1] for name in inspect.getfullargspec(each.__init__).args}
    if generation in ("v1", "v2"):
        known.add("decay")
    if argument not in known:
        skips.keras_lacks(NOT_THERE.format("{} in {}".format(argument, generation)))


def line(home, optimizer, constraint=None, **kwargs):
    """A compiled model whose gradients are its inputs, whatever its weights: the loss is the mean of sum(x * w)."""
    layers = home.keras.layers
    inputs = [layers.Input(shape=(size,)) for size in SIZES]
    parts = [layers.Dense(1, use_bias=False, kernel_constraint=constraint)(x) for x in inputs]
    model = home.keras.models.Model(inputs, layers.add(parts))
    model.compile(loss=lambda target, output: home.tf.reduce_mean(output, -1), optimizer=optimizer, **kwargs)
    model.set_weights(START)
    return model


def arrays(rows):
    return [np.stack(column) for column in zip(*rows)], np.zeros((len(rows), 1), "float32")


def train(model, rows, size=1):
    """The model's weights after each batch of `size` rows."""
    history = []
    for i in range(0, len(rows), size):
        model.train_on_batch(*arrays(rows[i : i + size]))
        history.append(model.get_weights())
    return history


def drive(home, optimizer, rows, between=None, variables=START):
    """The values of variables of the home after each mini-step with the gradients in `rows`.

    Args:
        between: function of the number of mini-steps taken, called before the first, between them and after the last.
    """

    def feed():
        for i, row in enumerate(rows):
            if between:
                between(i)
            yield [column.reshape(-1, 1) for column in row]
        if between:
            between(len(rows))

    return home.apply_to(variables, optimizer, feed())


def start():
    return [w.astype("float64") for w in START]


def as_gradients(_, x, __):
    return x


def expected(rows, steps, sgd):
    """The weights after every mini-step, of the oracle."""
    columns = [([column.astype("float64")[:, None] for column in row], None) for row in rows]
    return oracle.train(start(), columns, steps, sgd, as_gradients)


def assert_close(weights, wanted):
    for now, then in zip(weights, wanted):
        assert np.max(np.abs(now - then) / np.maximum(1.0, np.abs(then))) <= 4e-6


def assert_history(history, wanted, steps=K):
    """After every mini-step the oracle's weights; between updates the same bits."""
    assert len(history) == len(wanted)
    for i, (weights, then) in enumerate(zip(history, wanted), 1):
        assert_close(weights, then)
        if i % steps:
            for now, before in zip(weights, (history[i - 2] if i > 1 else START)):
                np.testing.assert_array_equal(now, before)


def mean_rows(rows, steps=K):
    """The gradients of every update, as float64 columns."""
    windows = [rows[i : i + steps] for i in range(0, len(rows), steps)]
    return [[np.mean(np.stack(column).astype("float64"), axis=0)[:, None] for column in zip(*each)] for each in windows]


def rates_of(history, steps):
    """What was subtracted at every update, of a run whose gradients were all 1."""
    weights = [START[0][0, 0]] + [float(each[0][0, 0]) for each in history[steps - 1 :: steps]]
    return [before - after for before, after in zip(weights, weights[1:])]


ONES = [[np.ones(size, "float32") for size in SIZES]] * len(ROWS)


# iterations, decay, schedules


@pytest.mark.capability("R4 per update")
def test_iterations_count_updates(home, generation):
    optimizer = wrap(home, generation, 3)
    seen = []

    def look(taken):
        if taken:
            seen.append((int(home.value(optimizer.mini_step)), int(home.value(optimizer.iterations))))

    drive(home, optimizer, ROWS[:7], look)
    assert seen == [(1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2), (1, 2)]


@pytest.mark.capability("R4 per update")
def test_decay_counts_updates(home, generation):
    skip_without(home, generation, "decay")
    optimizer = wrap(home, generation, K, lr=0.5, decay=0.5)
    assert_history(drive(home, optimizer, ROWS), expected(ROWS, K, oracle.SGD(lr=0.5, decay=0.5)))


def schedules(home):
    """[(schedule object, its rate by the number of the update)]: two of the home's own, and one as a user writes it."""
    tf, stock = home.tf, home.keras.optimizers.schedules

    class Mine(stock.LearningRateSchedule):
        def __call__(self, step):
            return 0.5 / (1.0 + tf.cast(step, "float32"))

        def get_config(self):
            return {}

    return [
        (stock.ExponentialDecay(0.5, 2, 0.5, staircase=True), lambda n: 0.5 * 0.5 ** (n // 2)),
        (stock.PiecewiseConstantDecay([1, 3], [0.5, 0.25, 0.125]), lambda n: [0.5, 0.5, 0.25, 0.25, 0.125, 0.125][n]),
        (Mine(), lambda n: 0.5 / (1.0 + n)),
    ]


# Keras 3's own gradient_accumulation_steps counts mini-steps here: there each of these schedules runs K times too fast.
@pytest.mark.capability("R4 per update")
@pytest.mark.parametrize("which", range(3), ids=["exponential", "piecewise", "own"])
def test_the_rate_of_update_n_is_that_of_the_schedule(home, form, which):
    if form == "v1" or (form == "MySGD" and home.mode == "graph"):
        skips.keras_lacks(NOT_THERE.format("schedule objects in the v1 API"))
    schedule, rate = schedules(home)[which]
    optimizer = accumulating(home, form, K, lr=schedule)
    # One of them as fit does it, within a tf.function.
    history = drive(home, optimizer, ONES) if which else train(line(home, optimizer), ONES)
    np.testing.assert_allclose(rates_of(history, K), [rate(n) for n in range(6)], rtol=0, atol=1e-6)


# The rate set from outside


@pytest.mark.capability("R4 per update")
def test_a_rate_set_within_a_window_is_that_of_its_update(home, form):
    optimizer = accumulating(home, form, K, lr=0.5)
    names = [name for name in ("learning_rate", "lr") if hasattr(optimizer, name)]
    settings = dict(zip((K + 1, 2 * K + 2), zip(names, (0.125, 0.25))))

    def set_it(taken):
        if taken not in settings:
            return
        name, rate = settings[taken]
        if form == "v1":
            # An assignment would put a new object in the place of the variable that the graph reads.
            home.backend.set_value(getattr(optimizer, name), rate)
        else:
            setattr(optimizer, name, rate)
        assert [float(home.value(getattr(optimizer, each))) for each in names] == [rate] * len(names)

    history = drive(home, optimizer, ONES[: 3 * K], set_it)
    wanted = [0.5, 0.125, 0.25 if len(names) == 2 else 0.125]
    np.testing.assert_allclose(rates_of(history, K), wanted, rtol=0, atol=1e-6)


def rate_of(home, optimizer):
    return float(home.value(optimizer.lr if hasattr(optimizer, "lr") else optimizer.learning_rate))


def fit(home, optimizer, size, make_callbacks, epochs=3):
    """Train for epochs of 8 rows; the model, and what Keras logged of the rate."""
    model = line(home, optimizer)
    x, y = arrays(ROWS[:8])
    logs = model.fit(x, y, batch_size=size, epochs=epochs, shuffle=False, verbose=0, callbacks=make_callbacks()).history
    return model, {name: [float(rate) for rate in logs[name]] for name in ("lr", "learning_rate") if name in logs}


def assert_fits_as_the_large_batch(home, form, make_callbacks, rates):
    """K micro-batches of one row against the bare optimizer with batches of K, and both against the oracle."""
    optimizer = accumulating(home, form, K, lr=0.5, momentum=0.5)
    model, logged = fit(home, optimizer, 1, make_callbacks)
    sgd, weights = oracle.SGD(lr=0.5, momentum=0.5), start()
    for rate in rates:
        sgd.lr = rate
        for row in mean_rows(ROWS[:8]):
            weights = sgd.update(weights, row)
    assert_close(model.get_weights(), weights)
    assert int(home.value(optimizer.iterations)) == 2 * len(rates)
    if form == "MySGD":
        bare = home.bare_sgd(lr=0.5, momentum=0.5)
    else:
        bare = make(home, form, lr=0.5, momentum=0.5)
    large, logged_by_large = fit(home, bare, K, make_callbacks)
    assert_close(large.get_weights(), weights)
    assert logged == logged_by_large
    assert rate_of(home, optimizer) == rate_of(home, bare)
    return logged, rate_of(home, optimizer)


@pytest.mark.capability("R4 per update")
def test_a_learning_rate_scheduler(home, generation):
    rates = [0.5, 0.125, 0.25]

    def callbacks():
        return [home.keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch])]

    logged, rate = assert_fits_as_the_large_batch(home, generation, callbacks, rates)
    # Keras 2.1 and tf.keras 1.8 log no rate.
    assert list(logged.values()) in ([rates], []) and rate == 0.25


@pytest.mark.capability("R4 per update")
def test_reduce_lr_on_plateau(home, form):
    plateau = home.keras.callbacks.ReduceLROnPlateau
    # `epsilon` in tf.keras of TF 1.8; deletable with it.
    least = "min_delta" if "min_delta" in inspect.getfullargspec(plateau.__init__).args else "epsilon"

    def callbacks():
        # No loss is as much better as that: the rate is halved at the end of every epoch but the first. TF 1.8 takes
        # patience=1 for two epochs.
        return [plateau(monitor="loss", factor=0.5, patience=0, min_lr=0.0, **{least: 1e6})]

    logged, rate = assert_fits_as_the_large_batch(home, form, callbacks, [0.5, 0.5, 0.25])
    assert list(logged.values()) == [[0.5, 0.5, 0.25]] and rate == 0.125


# Bias correction, weight decay, EMA


def adam(rows, steps, counted=1, lr=0.125, beta_1=0.5, beta_2=0.75, epsilon=1e-7):
    """Adam in the form of Keras (Kingma and Ba 2015, the end of section 2), on means; t goes up by `counted`."""
    weights, t = start(), 0
    m, v, history = [0.0] * len(weights), [0.0] * len(weights), []
    for row in mean_rows(rows, steps):
        t += counted
        m = [beta_1 * a + (1 - beta_1) * g for a, g in zip(m, row)]
        v = [beta_2 * a + (1 - beta_2) * g * g for a, g in zip(v, row)]
        rate = lr * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
        weights = [w - rate * a / (np.sqrt(b) + epsilon) for w, a, b in zip(weights, m, v)]
        history.append(weights)
    return history


@pytest.mark.capability("R4 per update")
def test_bias_correction_counts_updates(home, generation):
    # The first window's gradients are large, as in the first steps of a training.
    rows = [[column * (100 if i < K else 1) for column in row] for i, row in enumerate(ROWS)]
    wanted = adam(rows, K)
    assert np.max(np.abs(wanted[0][0] - adam(rows, K, counted=K)[0][0])) > 0.01
    optimizer = wrap(home, generation, K, "Adam", beta_1=0.5, beta_2=0.75, epsilon=1e-7)
    history = drive(home, optimizer, rows)
    assert_history(history, [start()] * (K - 1) + [each for each in wanted for _ in range(K)][: -(K - 1)])
    assert int(home.value(optimizer.iterations)) == 6


@pytest.mark.capability("R4 per update")
@pytest.mark.parametrize("excluded", ["nothing", "by the optimizer given", "by the wrapped one"])
def test_weight_decay_once_per_update(home, generation, excluded):
    """A decay of 0.8 at the rate of 0.5 takes 40 % off a weight; four of them would take 87 % off."""
    skip_without(home, generation, "weight_decay")
    variables = home.variables(START)
    inner = make(home, generation, lr=0.5, weight_decay=0.8)
    if excluded == "by the optimizer given":
        inner.exclude_from_weight_decay(var_list=variables[:1])
    optimizer = legacyga.wrap(inner, K)
    if excluded == "by the wrapped one":
        optimizer.exclude_from_weight_decay(var_list=variables[:1])
    kept = [0.6 if excluded == "nothing" else 1.0, 0.6]
    history, weights = [], start()
    for row in mean_rows(ROWS):
        history += [weights] * (K - 1)
        weights = [w * keep - 0.5 * g for w, keep, g in zip(weights, kept, row)]
        history.append(weights)
    assert_history(drive(home, optimizer, ROWS, variables=variables), history)


def averages_of(home, optimizer):
    """The bits of the optimizer's moving averages of the model's weights."""
    return [np.array(home.value(variable)) for variable in optimizer._model_variables_moving_average]


@pytest.mark.capability("R4 per update")
def test_the_moving_average_moves_per_update(home, generation):
    # Keras 3's own gradient_accumulation_steps moves it, and counts for the overwriting, per mini-step.
    skip_without(home, generation, "use_ema")
    optimizer = wrap(home, generation, K, use_ema=True, ema_momentum=0.75, ema_overwrite_frequency=3)
    variables, seen = home.variables(START), []

    def look(taken):
        if taken:
            seen.append(averages_of(home, optimizer))

    # Five updates: an overwriting at the third, and two after it.
    rows = ROWS[: 5 * K]
    trained = drive(home, optimizer, rows, look, variables)
    weights, averages = start(), start()
    history, moved = [], []
    for i, row in enumerate(mean_rows(rows), 1):
        history += [weights] * (K - 1)
        weights = [w - 0.125 * g for w, g in zip(weights, row)]
        # The average of Keras 3 begins at the first update's weights, that of v3 at the weights before.
        momentum = 0.0 if generation == "keras3" and i == 1 else 0.75
        averages = [momentum * a + (1 - momentum) * w for a, w in zip(averages, weights)]
        if i == 3:
            weights = averages
        history.append(weights)
        moved.append(averages)
    assert_history(trained, history)
    for i, now in enumerate(seen, 1):
        if i % K == 0:
            assert_close(now, moved[i // K - 1])
        elif i > 1:
            for average, before in zip(now, seen[i - 2]):
                np.testing.assert_array_equal(average, before)
    optimizer.finalize_variable_values(variables)
    for variable, average in zip(variables, seen[-1]):
        np.testing.assert_array_equal(home.value(variable), average)


@pytest.mark.capability("R4 per update")
def test_the_end_of_fit_puts_the_moving_average_in(home, generation):
    skip_without(home, generation, "use_ema")
    kwargs = dict(use_ema=True, ema_momentum=0.75)
    model, _ = fit(home, wrap(home, generation, K, **kwargs), 1, list, epochs=2)
    large, _ = fit(home, make(home, generation, **kwargs), K, list, epochs=2)
    assert_close(model.get_weights(), large.get_weights())
    for weight, average in zip(model.get_weights(), averages_of(home, model.optimizer)):
        np.testing.assert_array_equal(weight, average)


# Constraints and clipping


@pytest.mark.capability("R4 per update")
def test_a_constraint_is_applied_once_per_update(home, form):
    """This one is not idempotent: applied on every mini-step it would leave a sixteenth of a weight, not a half."""
    if form == "v3" and home.tf_version < (2, 11):
        skips.keras_lacks(NOT_THERE.format("constraints in the experimental optimizers of TF 2.10"))

    class Halve(home.keras.constraints.Constraint):
        def __call__(self, w):
            return 0.5 * w

    model = line(home, accumulating(home, form, K), Halve())
    halve = dict.fromkeys(range(len(SIZES)), lambda w: 0.5 * w)
    assert_history(train(model, ROWS), expected(ROWS, K, oracle.SGD(lr=0.125, constraints=halve)))


def assert_clips_the_mean(home, form, argument, limit, meaning):
    """The mean is clipped, and clipping each micro-batch is something else; in train_on_batch, thus as in fit."""
    sgd = oracle.SGD(lr=0.125, clip=meaning, limit=limit)
    wanted = expected(ROWS, K, sgd)
    clip, sgd = oracle.CLIPS[meaning], oracle.SGD(lr=0.125)
    each = [clip([column.astype("float64") for column in row], limit) for row in ROWS]
    wrong = expected(each, K, sgd)
    unclipped = expected(ROWS, K, oracle.SGD(lr=0.125))
    for other in (wrong, unclipped):
        assert all(np.max(np.abs(a - b)) > 0.05 for a, b in zip(wanted[-1], other[-1]))
    assert_history(train(line(home, accumulating(home, form, K, **{argument: limit})), ROWS), wanted)


@pytest.mark.capability("R4 per update")
def test_clipnorm_acts_on_the_mean(home, form):
    assert_clips_the_mean(home, form, "clipnorm", 2.0, home.clipnorm_means)


@pytest.mark.capability("R4 per update")
def test_clipvalue_acts_on_the_mean(home, generation):
    assert_clips_the_mean(home, generation, "clipvalue", 1.5, "value")


@pytest.mark.capability("R4 per update")
def test_global_clipnorm_acts_on_the_mean(home, generation):
    if generation == "v1" or home.tf_version < (2, 4):
        skips.keras_lacks(NOT_THERE.format("global_clipnorm in v1, and before TF 2.4"))
    assert_clips_the_mean(home, generation, "global_clipnorm", 2.0, "all")


@pytest.mark.capability("R4 per update")
def test_clipping_where_fit_never_clips_is_said_once(home, generation):
    if home.mode != "eager" or home.tf_version >= (2, 2):
        skips.senseless(NOT_THERE.format("a fit that never clips: TF 2.0 and 2.1 in eager mode alone have one"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrap(home, generation, 1, clipnorm=2.0)
        wrap(home, generation, K)
        assert not [each for each in caught if "clip" in str(each.message)]
        model = line(home, wrap(home, generation, K, clipnorm=2.0))
        train(model, ROWS[: 2 * K])
    assert len([each for each in caught if "clip" in str(each.message)]) == 1


@pytest.mark.capability("R4 per update")
def test_gradient_transformers_see_one_mean_per_update(home, generation):
    skip_without(home, generation, "gradient_transformers")
    tf = home.tf
    calls = tf.Variable(0.0, trainable=False)
    if home.mode == "graph":
        home.backend.get_session().run(calls.initializer)

    def square(grads_and_vars):
        with tf.control_dependencies([calls.assign_add(1.0)]):
            return [(tf.identity(gradient * gradient), variable) for gradient, variable in grads_and_vars]

    model = line(home, wrap(home, generation, K, gradient_transformers=[square]))
    history, weights = [], start()
    for row in mean_rows(ROWS):
        history += [weights] * (K - 1)
        weights = [w - 0.125 * g**2 for w, g in zip(weights, row)]
        history.append(weights)
    assert_history(train(model, ROWS), history)
    assert float(home.value(calls)) == 6


# K = 1, narrow types, XLA


@pytest.mark.capability("R6 K = 1 is the bare optimizer")
@pytest.mark.parametrize("name", ["Adam", "RMSprop"])
def test_at_one_it_is_the_bare_optimizer_to_the_bit(home, generation, name):
    """The model's weights and the optimizer's, after each of three updates; and not a variable more."""
    wrapped, bare = wrap(home, generation, 1, name, clipvalue=0.5), make(home, generation, name, clipvalue=0.5)
    for now, then in zip(drive(home, wrapped, ROWS[:3]), drive(home, bare, ROWS[:3])):
        for a, b in zip(now, then):
            np.testing.assert_array_equal(a, b)
    state, bare_state = weights_of(home, wrapped), weights_of(home, bare)
    assert len(state) == len(bare_state)
    for a, b in zip(state, bare_state):
        np.testing.assert_array_equal(a, b)


def weights_of(home, optimizer):
    """The values of all variables of the optimizer, `iterations` first."""
    variables = optimizer.weights if hasattr(optimizer, "weights") else optimizer.variables
    variables = list(variables() if callable(variables) else variables)
    # RMSprop of the v1 API leaves its `iterations` out.
    others = [variable for variable in variables if variable is not optimizer.iterations]
    return [home.value(variable) for variable in [optimizer.iterations] + others]


@pytest.mark.capability("R6 K = 1 is the bare optimizer")
def test_at_one_training_is_the_bare_ones_to_the_bit(home, generation):
    """As fit drives it, clipping included: in eager mode of TF 2.0 and 2.1 that is none."""
    kwargs = dict(momentum=0.5, nesterov=True, clipnorm=2.0)
    models = [
        line(home, optimizer) for optimizer in (wrap(home, generation, 1, **kwargs), make(home, generation, **kwargs))
    ]
    for now, then in zip(*[train(model, ROWS[:6]) for model in models]):
        for a, b in zip(now, then):
            np.testing.assert_array_equal(a, b)


# A sum of these in the type itself loses the ones beside the first; their mean is exact.
HALVES = {"float16": [2048, 1, 1, 1, 1, 1, 1, 2], "bfloat16": [256, 1, 1, 1, 1, 1, 1, 2]}


@pytest.mark.capability("R1 mean")
@pytest.mark.parametrize("dtype", sorted(HALVES))
def test_half_precision_is_summed_in_float32(home, generation, dtype):
    tf = home.tf
    if home.mode == "graph" and dtype == "bfloat16":
        skips.keras_lacks(NOT_THERE.format("bfloat16 as a floatx"))
    home.set_floatx("float16" if home.mode == "graph" else "float32")
    try:
        optimizer = wrap(home, generation, 8, lr=1.0)
        if home.mode == "graph":
            variables = [np.zeros([2], dtype)]
            gradients = [[np.full([2], number, dtype)] for number in HALVES[dtype]]
        else:
            variables = home.variables([tf.zeros([2], dtype)])
            gradients = [[tf.fill([2], tf.cast(number, dtype))] for number in HALVES[dtype]]
        last = home.apply_to(variables, optimizer, gradients)[-1][0]
    finally:
        home.set_floatx("float32")
    assert str(last.dtype) == dtype
    np.testing.assert_array_equal(last.astype("float32"), [-sum(HALVES[dtype]) / 8.0] * 2)
    # SGD of the v1 API always has a slot, before ours.
    assert [str(value.dtype) for value in weights_of(home, optimizer) if value.shape == (2,)][-1:] == ["float32"]


@pytest.mark.capability("R4 per update")
def test_compiled_with_jit_compile(home, generation):
    if home.mode == "graph" or "jit_compile" not in inspect.signature(home.keras.Model.compile).parameters:
        skips.keras_lacks(NOT_THERE.format("jit_compile in compile"))
    model = line(home, wrap(home, generation, K, momentum=0.5, clipvalue=1.5), jit_compile=True)
    history = train(model, ROWS)
    assert_history(history, expected(ROWS, K, oracle.SGD(lr=0.125, momentum=0.5, clip="value", limit=1.5)))


# What wrap must take over of the optimizer given, where the tests above came upon it


@pytest.mark.capability("wrap: surface")
def test_a_subclass_keeps_its_own_argument(home, generation):
    """Which it does not put into `get_config`, as many do not."""

    class Mine(classes_of(home)[generation]["SGD"]):
        def __init__(self, own_argument=1.0, **kwargs):
            super(Mine, self).__init__(**kwargs)
            self.own_argument = own_argument

    if home.tf_version < (1, 11):
        skips.we_lack("wrap needs TF 1.11 or newer for the v1 API")
    assert legacyga.wrap(Mine(own_argument=3.0), K).own_argument == 3.0


@pytest.mark.capability("wrap: surface")
@pytest.mark.parametrize("name", ["Adagrad", "RMSprop"])
def test_built_v1_optimizers_that_leave_iterations_out_of_their_weights(home, name):
    if home.mode != "graph":
        skips.keras_lacks(NOT_THERE.format("v1 optimizers in eager mode"))
    if home.tf_version < (1, 11):
        skips.we_lack("wrap needs TF 1.11 or newer for the v1 API")
    rows = [[column.astype("float32") for column in row] for row in mean_rows(ROWS)]
    inner = make(home, "v1", name)
    half = home.apply_to(START, inner, rows[:3])[-1]
    wrapped = legacyga.wrap(inner, 1)
    after = home.apply_to(half, wrapped, rows[3:])[-1]
    for now, then in zip(after, home.apply_to(START, make(home, "v1", name), rows)[-1]):
        np.testing.assert_array_equal(now, then)
    assert int(home.value(wrapped.iterations)) == 6
