"""R10: a sparse gradient's update is that home's own on the large batch."""

import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
from dense import BATCH, RATE, assert_bits, assert_close, fit, make
from homes import generation_of

import legacyga

pytestmark = pytest.mark.capability("R10 sparse stays sparse")
RANDOM = np.random.RandomState(23)


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "adam", "Adam")
    kinds.parametrize(metafunc, "sgd", "SGD")


@pytest.fixture(autouse=True)
def fresh(home):
    needs.wrap(home)
    home.reset(plain_session=True)


ROWS = 20
IDS = [RANDOM.randint(0, 8, (BATCH, 3)) for _ in range(6)]  # duplicates in every batch, rows 8 and up never
TABLE = RANDOM.randn(ROWS, 2).astype("float32")
HEAD = [RANDOM.randn(6, 2).astype("float32"), RANDOM.randn(2).astype("float32")]
TARGETS = [RANDOM.randn(BATCH, 2).astype("float32") for _ in range(6)]


def embedding_model(home, optimizer):
    layers = home.keras.layers
    ids = layers.Input((3,), dtype="int32")
    out = layers.Dense(2)(layers.Flatten()(layers.Embedding(ROWS, 2)(ids)))
    model = home.keras.models.Model(ids, out)
    model.set_weights([TABLE] + HEAD)
    model.compile(optimizer=optimizer, loss="mse")
    return model


def trained_embedding(optimizer, steps):
    weights = oracle.double([TABLE] + HEAD)
    accumulated = oracle.Accumulated(optimizer, steps)
    for ids, y in zip(IDS, TARGETS):
        table, kernel, bias = weights
        rows = table[ids].reshape(BATCH, 6)
        error = 2.0 * (rows.dot(kernel) + bias - y) / y.size
        by_row = np.zeros_like(table)
        np.add.at(by_row, ids, error.dot(kernel.T).reshape(BATCH, 3, 2))
        found = [by_row, rows.T.dot(error), error.sum(axis=0)]
        weights = accumulated.mini_step(weights, found, range(3))
    return weights


def test_fit_of_an_embedding(home, adam):
    """Adam moves every row in every home: the moments of a row that no id named go on decaying."""
    model = embedding_model(home, legacyga.wrap(make(home, adam), 3))
    fit(model, list(zip(IDS, TARGETS)))
    wanted = trained_embedding(oracle.Adam(RATE), 3)
    assert_close(model.get_weights(), wanted)
    assert_bits(model.get_weights()[0][8:], TABLE[8:])


def test_fit_of_an_embedding_with_momentum(home, sgd):
    """As the home's own optimizer on the large batch: OptimizerV2 moves the rows that the batch names, and no others.

    v1 has the same momentum for all rows, and its bare optimizer races.
    """
    optimizer = legacyga.wrap(make(home, sgd, momentum=0.9), 3)
    batches = list(zip(IDS, TARGETS))
    model = embedding_model(home, optimizer)
    fit(model, batches)
    if generation_of(sgd) == "v1":
        return assert_close(model.get_weights(), trained_embedding(oracle.SGD(RATE, momentum=0.9), 3))
    bare = embedding_model(home, make(home, sgd, momentum=0.9))
    fit(bare, batches, batch_size=3 * BATCH)
    assert_close(model.get_weights(), bare.get_weights())


@pytest.mark.parametrize("ids", [(0, 3), (3, 4), (3, 3)], ids=str)
def test_rows_that_xla_finds(home, sgd, ids):
    """In a function compiled by XLA, which pads what it finds with row 0."""
    needs.eager_only(home)
    if generation_of(sgd) == "train" or home.tf_version < (2, 5):
        skips.senseless("jit_compile is an argument of tf.function from TF 2.5 on")
    (table,) = home.variables([np.zeros((6, 1), "float32")])
    optimizer = legacyga.wrap(sgd(1.0), 2)
    if hasattr(optimizer, "build"):
        optimizer.build([table])

    @home.tf.function(jit_compile=True)
    def mini_step(ids):
        with home.tf.GradientTape() as tape:
            loss = home.tf.reduce_sum(home.tf.gather(getattr(table, "_value", table), ids))
        source = getattr(table, "_value", table)
        optimizer.apply_gradients([(tape.gradient(loss, source), table)])

    for _ in range(4):
        mini_step(home.tf.constant(ids))
    expected = np.zeros((6, 1))
    for each in ids:
        expected[each] -= 2.0
    np.testing.assert_allclose(home.value(table), expected, rtol=0, atol=1e-6)
