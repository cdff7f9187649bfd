"""R4: what counts once per update: iterations, decay, schedules, bias correction, weight decay, moving averages."""

import inspect

import fixture_cases
import lines
import numpy as np
import oracle
import pytest
import skips
from dense import assert_bits, assert_close
from lines import (
    NOT_THERE,
    ONES,
    ROWS,
    START,
    K,
    accumulating,
    arrays,
    assert_history,
    drive,
    expected,
    fit,
    line,
    make,
    mean_rows,
    rates_of,
    skip_without,
    train,
    wrap,
)
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R4 per update")


def pytest_generate_tests(metafunc):
    lines.parametrize(metafunc)


@pytest.fixture(autouse=True)
def fresh(home):
    home.reset(plain_session=True)


# iterations, decay, schedules


@fixture_cases.every_case
def test_iterations_count_updates_in_every_case(home, case):
    _, iterations, _ = fixture_cases.run(home, case)
    assert iterations == fixture_cases.MINI_STEPS // case["steps"]


def test_iterations_count_updates(home, generation):
    optimizer = wrap(home, generation, 3)
    seen = []

    def look(_):
        seen.append((int(home.value(optimizer.mini_step)), int(home.value(optimizer.iterations))))

    drive(home, optimizer, ROWS[:7], look)
    assert seen == [(1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2), (1, 2)]


def test_decay_counts_updates(home, generation):
    skip_without(home, generation, "decay")
    optimizer = wrap(home, generation, K, lr=0.5, decay=0.5)
    assert_history(drive(home, optimizer, ROWS), expected(ROWS, oracle.SGD(lr=0.5, decay=0.5)))


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
@pytest.mark.parametrize("which", [slow(0), slow(1), 2], ids=["exponential", "piecewise", "own"])
def test_the_rate_of_update_n_is_that_of_the_schedule(home, form, which):
    if form == "v1" or (form == "MySGD" and home.mode == "graph"):
        skips.keras_lacks(NOT_THERE.format("schedule objects in the v1 API"))
    if which == 1 and home.tf_version < (1, 15):
        skips.keras_lacks("a PiecewiseConstantDecay that an optimizer takes: TF 1.15 or newer")
    schedule, rate = schedules(home)[which]
    optimizer = accumulating(home, form, K, lr=schedule)
    # One of them as fit does it, within a tf.function.
    history = drive(home, optimizer, ONES) if which else train(line(home, optimizer), ONES)
    np.testing.assert_allclose(rates_of(history), [rate(n) for n in range(6)], rtol=0, atol=1e-6)


# The rate set from outside


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
    np.testing.assert_allclose(rates_of(history), wanted, rtol=0, atol=1e-6)


def test_a_flush_after_the_model_was_compiled_again(home, form):
    """An update of the optimizer as it was compiled last: clipped from then on."""
    optimizer = accumulating(home, form, K, lr=0.5)
    model, wanted = line(home, optimizer), oracle.double(START)
    for row, limit in zip(ROWS[:2], (np.inf, 0.125)):
        if limit < 1:
            optimizer.clipvalue = limit
            model.compile(loss=lambda target, output: home.tf.reduce_mean(output, -1), optimizer=optimizer)
        train(model, [row])
        assert legacyga.flush(optimizer) is True
        gradients = [np.clip(column.astype("float64")[:, None], -limit, limit) for column in row]
        wanted = [weight - 0.5 * gradient for weight, gradient in zip(wanted, gradients)]
        assert_close(model.get_weights(), wanted)


def rate_of(home, optimizer):
    return float(home.value(optimizer.lr if hasattr(optimizer, "lr") else optimizer.learning_rate))


def assert_fits_as_the_large_batch(home, form, make_callbacks, rates):
    """K micro-batches of one row against the bare optimizer with batches of K, and both against the oracle."""
    optimizer = accumulating(home, form, K, lr=0.5, momentum=0.5)
    model, logged = fit(home, optimizer, 1, make_callbacks)
    sgd, weights = oracle.SGD(lr=0.5, momentum=0.5), oracle.double(START)
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


@pytest.mark.long
def test_a_learning_rate_scheduler(home, generation):
    rates = [0.5, 0.125, 0.25]

    def callbacks():
        return [home.keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch])]

    logged, rate = assert_fits_as_the_large_batch(home, generation, callbacks, rates)
    # Keras 2.0 does not log it.
    assert list(logged.values()) == ([] if home.is_standalone_before(2, 1) else [rates]) and rate == 0.25


@pytest.mark.long
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


def test_bias_correction_counts_updates(home, generation):
    # The first window's gradients are large, as in the first steps of a training.
    rows = [[column * (100 if i < K else 1) for column in row] for i, row in enumerate(ROWS)]
    exact, too_far_on = [oracle.Adam(0.125, beta_1=0.5, beta_2=0.75) for _ in range(2)]
    wanted = expected(rows, exact)
    too_far_on.iterations = K - 1
    assert np.max(np.abs(wanted[K - 1][0] - too_far_on.update(oracle.double(START), mean_rows(rows)[0])[0])) > 0.01
    optimizer = wrap(home, generation, K, "Adam", beta_1=0.5, beta_2=0.75, epsilon=1e-7)
    history = drive(home, optimizer, rows)
    assert_history(history, wanted)
    assert int(home.value(optimizer.iterations)) == 6


@pytest.mark.parametrize("excluded", [slow("nothing"), slow("by the optimizer given"), "by the wrapped one"])
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
    history, weights = [], oracle.double(START)
    for row in mean_rows(ROWS):
        history += [weights] * (K - 1)
        weights = [w * keep - 0.5 * g for w, keep, g in zip(weights, kept, row)]
        history.append(weights)
    assert_history(drive(home, optimizer, ROWS, variables=variables), history)


def averages_of(home, optimizer):
    """The bits of the optimizer's moving averages of the model's weights."""
    return [np.array(home.value(variable)) for variable in optimizer._model_variables_moving_average]


def test_the_moving_average_moves_per_update(home, generation):
    # Keras 3's own gradient_accumulation_steps moves it, and counts for the overwriting, per mini-step.
    skip_without(home, generation, "use_ema")
    optimizer = wrap(home, generation, K, use_ema=True, ema_momentum=0.75, ema_overwrite_frequency=3)
    variables, seen = home.variables(START), []

    def look(_):
        seen.append(averages_of(home, optimizer))

    # Five updates: an overwriting at the third, and two after it.
    rows = ROWS[: 5 * K]
    trained = drive(home, optimizer, rows, look, variables)
    weights, averages = oracle.double(START), oracle.double(START)
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


def test_the_end_of_fit_puts_the_moving_average_in(home, generation):
    skip_without(home, generation, "use_ema")
    kwargs = dict(use_ema=True, ema_momentum=0.75)
    model, _ = fit(home, wrap(home, generation, K, **kwargs), 1, list, epochs=2)
    large, _ = fit(home, make(home, generation, **kwargs), K, list, epochs=2)
    assert_close(model.get_weights(), large.get_weights())
    for weight, average in zip(model.get_weights(), averages_of(home, model.optimizer)):
        np.testing.assert_array_equal(weight, average)


def test_where_nothing_was_updated_no_moving_average_is_put_in(home, generation):
    """The end of fit leaves the weights as they are, those that were set since the optimizer was built, too."""
    skip_without(home, generation, "use_ema")
    optimizer = wrap(home, generation, 3 * K, use_ema=True)
    model, _ = fit(home, optimizer, 1, list, epochs=1)
    assert_bits(model.get_weights(), START)
    assert_bits(averages_of(home, optimizer), START)
    if generation != "keras3":
        # The average of v3 is that of the weights when it was made, with or without updates.
        return
    loaded = [2 * weight for weight in START]
    model.set_weights(loaded)
    model.fit(*arrays(ROWS[:2]), batch_size=1, verbose=0)
    assert_bits(model.get_weights(), loaded)
    assert int(optimizer.iterations) == 0


# XLA


def test_compiled_with_jit_compile(home, generation):
    if home.mode == "graph" or "jit_compile" not in inspect.signature(home.keras.Model.compile).parameters:
        skips.keras_lacks(NOT_THERE.format("jit_compile in compile"))
    model = line(home, wrap(home, generation, K, momentum=0.5, clipvalue=1.5), jit_compile=True)
    history = train(model, ROWS)
    assert_history(history, expected(ROWS, oracle.SGD(lr=0.125, momentum=0.5, clip="value", limit=1.5)))
