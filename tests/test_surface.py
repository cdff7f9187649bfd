"""What a user of the home expects of the optimizer: class, attributes, callbacks, several compiles and models."""

import doctest

import numpy as np
import oracle
import pytest
from make_fixtures import flat

import legacyga

RANDOM = np.random.RandomState(7)
START = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
X = RANDOM.randn(32, 3).astype("float32")
Y = RANDOM.randn(32, 2).astype("float32")
BATCHES = [(X[i : i + 2], Y[i : i + 2]) for i in range(0, 32, 2)]


def expected(steps, batches=BATCHES, start=START, **kwargs):
    return oracle.train([w.astype("float64") for w in start], batches, steps, oracle.SGD(**kwargs))


def assert_close(weights, wanted):
    assert np.max(np.abs(flat(weights) - flat(wanted))) <= 4e-6


@pytest.mark.capability("surface")
def test_it_is_an_optimizer_of_the_home(home):
    optimizer = legacyga.MySGD(keras=home.keras)
    assert isinstance(optimizer, type(home.bare_sgd(lr=0.1)))
    assert home.keras.optimizers.get(optimizer) is optimizer
    assert type(optimizer).__name__ == "MySGD"


@pytest.mark.capability("surface")
def test_the_rate_reads_and_writes_under_both_names(home):
    optimizer = legacyga.MySGD(lr=0.5, keras=home.keras)
    for name, value in (("lr", 0.25), ("learning_rate", 0.125)):
        setattr(optimizer, name, value)
        assert float(home.value(optimizer.lr)) == value
        assert float(home.value(optimizer.learning_rate)) == value


@pytest.mark.capability("surface")
def test_learning_rate_is_an_alias_of_lr(home):
    assert float(home.value(legacyga.MySGD(learning_rate=0.25, keras=home.keras).lr)) == 0.25


@pytest.mark.capability("surface")
def test_counters(home):
    optimizer = legacyga.MySGD(steps_per_update=3, keras=home.keras)
    seen = []
    for _ in home.mini_steps([(home.network(START), optimizer)], BATCHES[:7]):
        seen.append((int(home.value(optimizer.mini_step)), int(home.value(optimizer.iterations))))
    assert seen == [(1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2), (1, 2)]


@pytest.mark.capability("surface")
def test_config_makes_the_optimizer_again(home):
    kwargs = dict(lr=0.25, momentum=0.5, decay=0.125, nesterov=True, steps_per_update=3, clipvalue=0.5)
    optimizer = legacyga.MySGD(keras=home.keras, **kwargs)
    config = optimizer.get_config()
    assert {name: config[name] for name in kwargs} == kwargs
    assert legacyga.MySGD(keras=home.keras, **config).get_config() == config
    again = type(optimizer).from_config(config)
    assert again.get_config() == config and type(again).__name__ == "MySGD"


@pytest.mark.capability("surface")
def test_a_schedule_of_the_rate_counts_updates(home):
    """LearningRateScheduler sets the rate between epochs of whole windows; the window after it is updated with it."""
    model = home.network(START)
    model.compile(loss="mse", optimizer=legacyga.MySGD(lr=0.1, momentum=0.9, steps_per_update=4, keras=home.keras))
    schedule = home.keras.callbacks.LearningRateScheduler(lambda epoch: [0.1, 0.05][epoch])
    model.fit(X, Y, batch_size=2, epochs=2, shuffle=False, verbose=0, callbacks=[schedule])
    sgd = oracle.SGD(lr=0.1, momentum=0.9)
    weights = oracle.train([w.astype("float64") for w in START], BATCHES, 4, sgd)[-1]
    sgd.lr = 0.05
    assert_close(model.get_weights(), oracle.train(weights, BATCHES, 4, sgd)[-1])


@pytest.mark.capability("R8 change of K")
def test_a_change_of_k_takes_effect_at_the_next_window(home):
    model = home.network(START)
    optimizer = legacyga.MySGD(lr=0.1, momentum=0.9, steps_per_update=4, keras=home.keras)
    step = home.step(model, optimizer)
    sgd = oracle.SGD(lr=0.1, momentum=0.9)
    weights, window = [w.astype("float64") for w in START], []
    # K as it is set before each mini-step, and where windows end: 4, then 2, 2 (set within the first), 1, 3.
    setting = {2: 2, 8: 1, 9: 3}
    ends = [3, 5, 7, 8, 11]
    for i, (x, y) in enumerate(BATCHES[:12]):
        if i in setting:
            optimizer.gradient_accumulation_steps = setting[i]
            assert optimizer.gradient_accumulation_steps == setting[i]
        step(x, y)
        window.append(oracle.gradients(weights, x, y))
        if i in ends:
            weights, window = sgd.update(weights, [np.mean(g, axis=0) for g in zip(*window)]), []
        assert_close(model.get_weights(), weights)
    assert int(home.value(optimizer.iterations)) == len(ends)


@pytest.mark.capability("R8 change of K")
def test_a_partial_window_is_carried_into_the_next_epoch(home):
    model = home.network(START)
    model.compile(loss="mse", optimizer=legacyga.MySGD(lr=0.1, momentum=0.9, steps_per_update=3, keras=home.keras))
    model.fit(X, Y, batch_size=2, epochs=3, shuffle=False, verbose=0)
    assert_close(model.get_weights(), expected(3, BATCHES * 3, lr=0.1, momentum=0.9)[-1])
    assert int(home.value(model.optimizer.mini_step)) == 16 * 3 % 3


@pytest.mark.capability("ways to train")
def test_compile_twice_in_one_graph(home):
    """As Mask R-CNN does: train the head with one optimizer, then all layers with another."""
    model = home.network(START)
    head = [w.astype("float64") for w in START]

    def head_only(weights, x, y):
        return [g * (i >= 2) for i, g in enumerate(oracle.gradients(weights, x, y))]

    model.layers[0].trainable = False
    model.compile(loss="mse", optimizer=legacyga.MySGD(lr=0.1, momentum=0.9, steps_per_update=4, keras=home.keras))
    model.fit(X, Y, batch_size=2, epochs=1, shuffle=False, verbose=0)
    head = oracle.train(head, BATCHES, 4, oracle.SGD(lr=0.1, momentum=0.9), head_only)[-1]
    assert_close(model.get_weights(), head)
    model.layers[0].trainable = True
    model.compile(loss="mse", optimizer=legacyga.MySGD(lr=0.05, momentum=0.9, steps_per_update=2, keras=home.keras))
    model.fit(X, Y, batch_size=2, epochs=1, shuffle=False, verbose=0)
    assert_close(model.get_weights(), expected(2, start=head, lr=0.05, momentum=0.9)[-1])


@pytest.mark.capability("ways to train")
def test_two_models_with_an_optimizer_each(home):
    starts = [START, [0.5 * w for w in START]]
    pairs = [
        (home.network(start), legacyga.MySGD(lr=0.1, momentum=0.9, steps_per_update=steps, keras=home.keras))
        for start, steps in zip(starts, (2, 5))
    ]
    for i, weights in enumerate(home.mini_steps(pairs, BATCHES)):
        for w, start, steps in zip(weights, starts, (2, 5)):
            assert_close(w, expected(steps, start=start, lr=0.1, momentum=0.9)[i])


@pytest.mark.capability("surface")
def test_the_docstrings_examples(home):
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    for module in (legacyga.mysgd, legacyga.cli.versions):
        result = doctest.testmod(module, optionflags=flags)
        assert result.attempted > 0 and result.failed == 0
