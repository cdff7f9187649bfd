"""What a user of the home expects of MySGD: class, attributes, config, callbacks."""

import numpy as np
import oracle
import pytest
from make_fixtures import flat

import legacyga

pytestmark = pytest.mark.capability("surface")


RANDOM = np.random.RandomState(7)
START = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
X = RANDOM.randn(32, 3).astype("float32")
Y = RANDOM.randn(32, 2).astype("float32")
BATCHES = [(X[i : i + 2], Y[i : i + 2]) for i in range(0, 32, 2)]


def assert_close(weights, wanted):
    assert np.max(np.abs(flat(weights) - flat(wanted))) <= 4e-6


def test_it_is_an_optimizer_of_the_home(home):
    optimizer = legacyga.MySGD(keras=home.keras)
    assert isinstance(optimizer, type(home.bare_sgd(lr=0.1)))
    assert home.keras.optimizers.get(optimizer) is optimizer
    assert type(optimizer).__name__ == "MySGD"


def test_the_rate_reads_and_writes_under_both_names(home):
    optimizer = legacyga.MySGD(lr=0.5, keras=home.keras)
    for name, value in (("lr", 0.25), ("learning_rate", 0.125)):
        setattr(optimizer, name, value)
        assert float(home.value(optimizer.lr)) == value
        assert float(home.value(optimizer.learning_rate)) == value


def test_learning_rate_is_an_alias_of_lr(home):
    assert float(home.value(legacyga.MySGD(learning_rate=0.25, keras=home.keras).lr)) == 0.25


def test_counters(home):
    optimizer = legacyga.MySGD(steps_per_update=3, keras=home.keras)
    seen = []
    for _ in home.mini_steps(home.network(START), optimizer, BATCHES[:7]):
        seen.append((int(home.value(optimizer.mini_step)), int(home.value(optimizer.iterations))))
    assert seen == [(1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2), (1, 2)]


def test_config_makes_the_optimizer_again(home):
    kwargs = dict(lr=0.25, momentum=0.5, decay=0.125, nesterov=True, steps_per_update=3, clipvalue=0.5)
    optimizer = legacyga.MySGD(keras=home.keras, **kwargs)
    config = optimizer.get_config()
    assert {name: config[name] for name in kwargs} == kwargs
    assert legacyga.MySGD(keras=home.keras, **config).get_config() == config
    again = type(optimizer).from_config(config)
    assert again.get_config() == config and type(again).__name__ == "MySGD"


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
