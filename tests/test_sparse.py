"""R10: a sparse gradient's update is that home's own on the large batch."""

import homes
import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
import tf1
from dense import BATCH, RATE, assert_bits, assert_close, fit, make
from homes import generation_of
from slow import slow

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


@pytest.mark.slow
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


@pytest.mark.parametrize("dtype", [slow("int32"), "int64"])
@pytest.mark.parametrize("name", [slow("SGD"), slow("Adagrad"), "Adam"])
def test_windows_of_rows(home, name, dtype):
    """With ids twice in a mini-step and in several: as the bare optimizer, given each row's mean once."""
    if home.mode == "graph" and dtype == "int32":
        skips.senseless("the placeholder of a graph is of int64")
    random = np.random.RandomState(7)
    ids = [random.randint(0, 8, 6).astype(dtype) for _ in range(6)]
    rows = [(0.75 + random.randn(6, 2)).astype("float32") for _ in range(6)]
    for optimizer in kinds.made_by_name(home, name, RATE):
        wrapped = homes.Fed(home, legacyga.wrap(optimizer(), 3), [TABLE], sparse=True)
        bare = homes.Fed(home, optimizer(), [TABLE], sparse=True)
        for begin in (0, 3):
            total = np.zeros_like(TABLE)
            for step in range(begin, begin + 3):
                wrapped.step([ids[step], rows[step]])
                np.add.at(total, ids[step], rows[step] / 3.0)
            touched = np.unique(ids[begin : begin + 3])
            bare.step([touched, total[touched]])
            now, wanted = wrapped.read()[0][0], bare.read()[0][0]
            assert np.max(np.abs(now - wanted)) <= 4e-6 * np.max(np.abs(wanted - TABLE))
            assert_bits(now[8:], TABLE[8:])


@pytest.mark.slow
@pytest.mark.parametrize("form", [slow(list), np.array], ids=["lists", "arrays"])
def test_rows_that_are_no_tensors(home, form):
    """In a float64 table, with a row that is given twice. What is a number of 53 bits stays one."""
    found = [kind for kind in kinds.of(home) if kind.generation != "v1" and not kind.is_adam]
    if not found:
        skips.senseless("get_updates is given no gradients")
    rows, shape = np.array([[0.1, 0.2], [0.3, 0.7], [1.1, 0.0]]), [4, 2]
    tf, v1 = home.tf, homes.v1_of(home.tf)

    def gradient():
        return tf.IndexedSlices(form(rows.tolist()), form([1, 2, 1]), shape)

    for kind in found:
        optimizer = kind.make(2)
        if home.mode == "eager":
            table = tf.Variable(np.ones(shape))
            done = [optimizer.apply_gradients([(gradient(), table)]) for _ in range(2)]
            value = table.numpy()
        else:
            with tf1.graph_of_its_own(home) as (_, session):
                table = v1.get_variable("table", initializer=np.ones(shape), use_resource=True)
                step = optimizer.apply_gradients([(gradient(), table)])
                session.run(v1.global_variables_initializer())
                done = [session.run(step) for _ in range(2)]
                value = session.run(table)
        assert len(done) == 2
        wanted = np.ones(shape)
        np.add.at(wanted, [1, 2, 1], -kinds.RATE * rows)
        np.testing.assert_allclose(value, wanted, rtol=1e-15)


def test_the_update_is_given_each_row_once(home, sgd):
    needs.eager_only(home)
    if generation_of(sgd) == "train":
        skips.keras_lacks("its hooks are those of v2")
    given, hook = [], "_resource_apply_sparse_duplicate_indices" if generation_of(sgd) == "v2" else "update_step"

    def note(self, gradient, *args, **kwargs):
        # OptimizerV2 takes IndexedSlices apart.
        given.append(kwargs.get("indices", args[-1] if hook.startswith("_") else getattr(gradient, "indices", None)))
        return getattr(super(Noting, self), hook)(gradient, *args, **kwargs)

    Noting = type("Noting", (sgd,), {hook: note})
    fed = homes.Fed(home, legacyga.wrap(make(home, Noting), 2), [TABLE], sparse=True)
    for ids in ([5, 1, 5], [1, 7, 7]):
        fed.step([np.array(ids), np.ones((3, 2), "float32")])
    assert [each.numpy().tolist() for each in given] == [[1, 5, 7]]


@pytest.mark.parametrize("ids", [slow((0, 3)), slow((3, 4)), (3, 3)], ids=str)
def test_rows_that_xla_finds(home, sgd, ids):
    """In a function compiled by XLA, which pads what it finds with row 0."""
    needs.eager_only(home)
    if generation_of(sgd) == "train" or home.tf_version < (2, 5):
        skips.senseless("jit_compile is an argument of tf.function from TF 2.5 on")
    if home.tf_version < (2, 8):
        skips.we_lack("the rows of sparse gradients are found by tf.where, which XLA has from TF 2.8 on")
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


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_windows_of_every_form(home, sgd, seed):
    """Gradients of rows and dense ones, outside of a function, in one, and in one that XLA compiles, in any order, with
    updates of what is there between them: the mean of each window.
    """
    needs.eager_only(home)
    if generation_of(sgd) == "train":
        skips.senseless("jit_compile needs a newer TensorFlow, and its hooks are those of v2")
    tf, random = home.tf, np.random.RandomState(seed)
    (table,) = home.variables([np.zeros((6, 2), "float32")])
    optimizer = legacyga.wrap(sgd(1.0), 3)
    if hasattr(optimizer, "build"):
        optimizer.build([table])

    def of_rows(ids, rows):
        optimizer.apply_gradients([(tf.IndexedSlices(rows, ids, tf.constant([6, 2], "int64")), table)])

    def dense(gradient):
        optimizer.apply_gradients([(gradient, table)])

    ways = [
        (function, made)
        for function in (of_rows, dense)
        for made in (function, tf.function(function), tf.function(function, jit_compile=True))
    ]
    expected, window = np.zeros((6, 2)), []
    for _ in range(24):
        way = random.randint(len(ways) + 1)
        if way == len(ways):
            legacyga.flush(optimizer)
        else:
            function, made = ways[way]
            ids, rows, gradient = random.randint(0, 6, 3), random.randn(3, 2), random.randn(6, 2)
            if function is of_rows:
                made(tf.constant(ids, "int64"), tf.constant(rows, "float32"))
                gradient = np.zeros((6, 2))
                np.add.at(gradient, ids, rows)
            else:
                made(tf.constant(gradient, "float32"))
            window.append(gradient)
        if window and (way == len(ways) or len(window) == 3):
            expected, window = expected - np.mean(window, axis=0), []
        np.testing.assert_allclose(home.value(table), expected, rtol=0, atol=4e-6)
