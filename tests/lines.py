"""Optimizers of each generation on a model whose gradients are its inputs: for what counts once per update."""

import inspect

import dense
import kinds
import needs
import numpy as np
import oracle
import skips
from dense import assert_close
from homes import variables_of

import legacyga

RANDOM = np.random.RandomState(23)
SIZES = (3, 2)
START = [RANDOM.randn(size, 1).astype("float32") for size in SIZES]
K = 4
# The gradients of 24 mini-steps. In each window one is fifty times larger than the others.
ROWS = [[(RANDOM.randn(size) * (50 if i % K == 1 else 1)).astype("float32") for size in SIZES] for i in range(6 * K)]
NOT_THERE = "not there in that version: {}"
ONES = [[np.ones(size, "float32") for size in SIZES]] * len(ROWS)


def parametrize(metafunc):
    """Give a test `generation`, each of the home, or `form`, each of these wrapped and MySGD."""
    from conftest import home_of

    for argument, others in (("generation", []), ("form", ["MySGD"])):
        if argument in metafunc.fixturenames:
            generations = {each: each for each in kinds.classes(home_of(metafunc.config))}
            metafunc.parametrize(argument, others + kinds.of_each(generations))


def make(home, generation, name="SGD", lr=0.125, **kwargs):
    """A stock optimizer, without accumulation."""
    return dense.make(home, kinds.classes(home)[generation][name], lr, **kwargs)


def wrap(home, generation, steps, name="SGD", **kwargs):
    needs.wrap(home)
    return legacyga.wrap(make(home, generation, name, **kwargs), steps)


def accumulating(home, form, steps, **kwargs):
    """An SGD that accumulates: MySGD, or one of the generation `form`, wrapped."""
    if form == "MySGD":
        return legacyga.MySGD(steps_per_update=steps, keras=home.keras, **dict(dict(lr=0.125), **kwargs))
    return wrap(home, form, steps, **kwargs)


def skip_without(home, generation, argument):
    """Skip where the generation's SGD does not take an argument. OptimizerV2 hides some of them in **kwargs."""
    cls = kinds.classes(home)[generation]["SGD"]
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


def train(model, rows):
    """The model's weights after a batch of each row."""
    history = []
    for row in rows:
        model.train_on_batch(*arrays([row]))
        history.append(model.get_weights())
    return history


def fit(home, optimizer, size, make_callbacks, epochs=3):
    """Train for epochs of 8 rows; the model, and what Keras logged of the rate."""
    model = line(home, optimizer)
    x, y = arrays(ROWS[:8])
    logs = model.fit(x, y, batch_size=size, epochs=epochs, shuffle=False, verbose=0, callbacks=make_callbacks()).history
    return model, {name: [float(rate) for rate in logs[name]] for name in ("lr", "learning_rate") if name in logs}


def drive(home, optimizer, rows, look=None, variables=START):
    """The values of variables of the home after each mini-step with the gradients in `rows`.

    `look` is called after each with how many were taken.
    """

    def feed():
        for taken, row in enumerate(rows, 1):
            yield [column.reshape(-1, 1) for column in row]
            if look:
                look(taken)

    return home.apply_to(variables, optimizer, feed())


def expected(rows, sgd):
    """The weights after every mini-step, of the oracle."""
    columns = [([column.astype("float64")[:, None] for column in row], None) for row in rows]
    return oracle.train(oracle.double(START), columns, K, sgd, lambda weights, gradients, _: gradients)


def assert_history(history, wanted):
    """After every mini-step the oracle's weights; between updates the same bits."""
    assert len(history) == len(wanted)
    for i, (weights, then) in enumerate(zip(history, wanted), 1):
        assert_close(weights, then)
        if i % K:
            for now, before in zip(weights, (history[i - 2] if i > 1 else START)):
                np.testing.assert_array_equal(now, before)


def mean_rows(rows):
    """The gradients of every update, as float64 columns."""
    windows = [rows[i : i + K] for i in range(0, len(rows), K)]
    return [[np.mean(np.stack(column).astype("float64"), axis=0)[:, None] for column in zip(*each)] for each in windows]


def rates_of(history):
    """What was subtracted at every update, of a run whose gradients were all 1."""
    weights = [START[0][0, 0]] + [float(each[0][0, 0]) for each in history[K - 1 :: K]]
    return [before - after for before, after in zip(weights, weights[1:])]


def weights_of(home, optimizer):
    """The values of all variables of the optimizer, `iterations` first."""
    # RMSprop of the v1 API leaves its `iterations` out.
    others = [variable for variable in variables_of(optimizer) if variable is not optimizer.iterations]
    return home.values([optimizer.iterations] + others)
