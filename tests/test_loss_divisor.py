"""R2 in graph mode: a mini-step weighs what its home's loss is divided by, whatever batches it is fed; no callback."""

import kinds
import needs
import numpy as np
import pytest
import skips
import test_weights
from homes import v1_of
from slow import slow
from test_weights_in_graphs import in_a_graph  # noqa: F401

import legacyga
from legacyga.optimizers import loss_divisor

pytestmark = pytest.mark.capability("R2 weights")

SIZES, STEPS = [5, 3, 7, 1, 2, 6], 4
ZEROS = [1.0, 0.0, 2.0, 0.0, 0.5, 1.0, 3.0, 0.0]


def pytest_generate_tests(metafunc):
    from conftest import home_of

    home = home_of(metafunc.config)
    found = kinds.of(home) if home.mode == "graph" else []
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", kinds.params(found))


def dense(home, outputs=1):
    """The network of test_weights.py, or one with a second output that is equal to the first."""
    layers = home.keras.layers
    inputs = layers.Input((3,))
    hidden = layers.Dense(4, activation="tanh", kernel_regularizer=home.keras.regularizers.l2(0.01))(inputs)
    model = home.keras.models.Model(inputs, [layers.Dense(2)(hidden) for _ in range(outputs)])
    model.set_weights(test_weights.START + test_weights.START[2:] * (outputs - 1))
    return model


def masked(home, embeddings=1, outputs=1, shape=(None, 6)):
    layers, random = home.keras.layers, np.random.RandomState(4)
    inputs = layers.Input(batch_shape=shape)
    hidden = [layers.Embedding(9, 4, mask_zero=True)(inputs) for _ in range(embeddings)]
    model = home.keras.models.Model(inputs, [layers.Dense(2)(hidden[i % embeddings]) for i in range(outputs)])
    model.set_weights([0.5 * random.randn(*each.shape) for each in model.get_weights()])
    return model


def sequences(sizes, seed=0):
    """(ids, targets): sequences of 1 to 6 steps, with zeros after them."""
    random, made = np.random.RandomState(seed), []
    for i, size in enumerate(sizes):
        ids = random.randint(1, 9, (size, 6))
        for row in ids:
            row[random.randint(1, 7) :] = 0
        made.append((ids, random.randn(size, 6, 2) + i % 3))
    return made


def ours(home, steps=STEPS):
    return legacyga.MySGD(kinds.RATE, kinds.MOMENTUM, steps_per_update=steps, keras=home.keras)


def trained(model, optimizer, loss, batches, outputs=1, size=None):
    """The weights after these batches, each (x, y) or (x, y, sample weights), and a last window that is ended.

    Args:
        size: of the slices that a batch is cut into, None for whole batches.
    """
    model.compile(optimizer=optimizer, loss=loss)
    if size:
        legacyga.micro_batch(model, size)
    for x, y, *weights in batches:
        each = [[given] * outputs if outputs > 1 else given for given in [y] + weights]
        model.train_on_batch(x, *each)
    legacyga.flush(model.optimizer)
    return model.get_weights()


def large(batches):
    """Windows of these batches, each as one batch."""
    windows = [batches[i : i + STEPS] for i in range(0, len(batches), STEPS)]
    return [tuple(map(np.concatenate, zip(*each))) for each in windows]


def alike(home, monkeypatch, make, loss, batches, **kwargs):
    """The weights where all mini-steps weigh the same."""
    with monkeypatch.context() as patched:
        patched.setattr(loss_divisor, "find", lambda *args: None)
        return trained(make(home), ours(home), loss, batches, **kwargs)


def check(home, monkeypatch, make, loss, batches, is_found=True, **kwargs):
    """The weights are those of the large batches; equal weights do not give them. Without a divisor these are it."""
    start, equally = make(home).get_weights(), alike(home, monkeypatch, make, loss, batches, **kwargs)
    weights = trained(make(home), ours(home), loss, batches, **kwargs)
    if not is_found:
        assert all(np.array_equal(*pair) for pair in zip(weights, equally))
        return
    # At K = 1 this is the home's own SGD, in order: on reference variables the bare one may write before it reads.
    wanted = trained(make(home), ours(home, 1), loss, large(batches), **kwargs)
    assert test_weights.off(weights, wanted, start) <= 4e-6
    assert test_weights.off(equally, wanted, start) > 1e-3


def with_weights(batches):
    return [(x, y, np.array((ZEROS[4:] + ZEROS)[: len(x)])) for x, y in batches]


def test_every_optimizer(home, kind):
    """Batches of 5, 3, 7 and 1 samples are one of 16, those of 2 and 6 are one of 8."""
    model = home.network(test_weights.START)
    model.compile(optimizer=kind.make(STEPS), loss="mse")
    data = test_weights.batches_of(SIZES, seed=1)
    for batch in data:
        model.train_on_batch(*batch)
    assert legacyga.flush(model.optimizer)
    test_weights.assert_trained(model, test_weights.known(data), STEPS, kind.oracle(), kind.is_adam and 4e-5 or 4e-6)


@pytest.mark.parametrize("loss", ["mse", slow("mean_absolute_error"), slow("logcosh")])
def test_sample_weights_of_which_some_are_0(home, monkeypatch, loss):
    """Old Keras divides by how many weights are not 0, tf.keras of TF 1.11 to 1.13 by their sum, others by samples."""
    check(home, monkeypatch, dense, loss, with_weights(test_weights.batches_of(SIZES, seed=2)))


def test_masks(home, monkeypatch):
    """Against the home's own large batch: some divide by what the mask leaves, others by the samples."""
    check(home, monkeypatch, masked, "mse", sequences(SIZES))


def divides_by_masks(home):
    """Whether graph mode divides "mean_absolute_error" by what a mask leaves, and not by all steps."""
    if home.is_standalone:
        return home.is_standalone_before(2, 3)
    return not (1, 14) <= home.tf_version < (2, 11)


def check_masked(home, monkeypatch, small, **kwargs):
    """As `check` of `masked`, with batches that may be shorter than their large batch."""

    def make(home):
        return masked(home, **kwargs)

    start, wanted = (
        masked(home).get_weights(),
        trained(masked(home), ours(home, 1), "mean_absolute_error", large(whole(small))),
    )
    assert test_weights.off(trained(make(home), ours(home), "mean_absolute_error", small), wanted, start) <= 4e-6
    assert test_weights.off(alike(home, monkeypatch, make, "mean_absolute_error", small), wanted, start) > 1e-3


def whole(batches):
    """Batches, each a list of arrays [samples, steps, ...], padded to 6 steps."""
    return [[padded(each) for each in batch] for batch in batches]


def padded(array):
    return np.pad(array, [(0, 0), (0, 6 - array.shape[1])] + [(0, 0)] * (array.ndim - 2), "constant")


@pytest.mark.parametrize("sizes", [SIZES[:4] * 2, [4] * 8])
def test_masks_of_batches_that_are_each_as_long_as_their_longest(home, monkeypatch, sizes):
    """The mean of a mask is no measure of what it leaves where the number of steps differs."""
    if not divides_by_masks(home):
        skips.senseless("homes that divide a loss by what its mask leaves")
    short = [(x[:, :n], y[:, :n]) for (x, y), n in zip(sequences(sizes), (3, 6, 2, 4) * 2)]
    check_masked(home, monkeypatch, short, shape=(None, None))


def test_masks_of_batches_of_a_fixed_size(home, monkeypatch):
    """As a stateful layer needs it: Keras's own placeholders of the targets know no size."""
    if not divides_by_masks(home):
        skips.senseless("homes that divide a loss by what its mask leaves")
    check_masked(home, monkeypatch, sequences([4] * 8), shape=(4, 6))


def recurrent(home):
    """A network whose last layer with weights is a loop."""
    layers, constant = home.keras.layers, home.keras.initializers.Constant
    inputs = layers.Input((6, 3))
    # Not by set_weights: TF 2 makes no gradient of a loop that a session already holds.
    starts = dict(kernel_initializer=constant(0.3), recurrent_initializer=constant(0.2))
    return home.keras.models.Model(inputs, layers.SimpleRNN(2, return_sequences=True, **starts)(inputs))


def series(sizes, seed=0):
    """(sequences, targets)."""
    random = np.random.RandomState(seed)
    return [(random.randn(size, 6, 3), random.randn(size, 6, 2) + i % 3) for i, size in enumerate(sizes)]


def test_a_recurrent_layer_at_the_end(home, monkeypatch):
    """From TF 2.0 on its outputs come in a TensorList, whose dtype is not a number's."""
    check(home, monkeypatch, recurrent, "mse", series(SIZES))


@pytest.mark.slow
@pytest.mark.parametrize("embeddings, outputs", [(0, 2), (1, 2), (2, 2)])
def test_two_outputs(home, monkeypatch, embeddings, outputs):
    """Of samples, of one mask, and of a mask each, which leave the same, for all these homes know."""
    batches = sequences(SIZES, seed=3) if embeddings else test_weights.batches_of(SIZES, seed=3)

    def make(home):
        return masked(home, embeddings, outputs) if embeddings else dense(home, outputs)

    check(home, monkeypatch, make, "mse", batches, outputs=outputs)


@pytest.mark.slow
def test_two_outputs_of_which_one_has_weights_of_steps(home, monkeypatch):
    """The placeholder of these weights does not know how many steps there are, but the output does."""
    if not home.is_standalone or home.is_standalone_before(2, 1):
        skips.senseless("homes that take sample_weight_mode, and divide by how many weights are not 0")

    def make(home):
        layers, random = home.keras.layers, np.random.RandomState(16)
        inputs = layers.Input((6, 3))
        hidden = layers.Dense(4, activation="tanh")(inputs)
        outputs = [layers.Dense(2)(hidden), layers.Dense(1)(layers.GlobalAveragePooling1D()(hidden))]
        model = home.keras.models.Model(inputs, outputs)
        model.set_weights([0.5 * random.randn(*each.shape) for each in model.get_weights()])
        return model

    def trained(steps, batches):
        model = make(home)
        model.compile(ours(home, steps), "mean_absolute_error", sample_weight_mode=["temporal", None])
        for x, y in batches:
            model.train_on_batch(x, [y, y[:, 0, :1]])
        return model.get_weights()

    data = series(SIZES[:4])
    assert test_weights.off(trained(4, data), trained(1, large(data)), make(home).get_weights()) <= 4e-6


@pytest.mark.slow
def test_two_outputs_with_unlike_weights(home, monkeypatch):
    """Where Keras divides by how many sample weights are not 0 nothing is right for both, and all weigh the same."""
    random = np.random.RandomState(5)
    batches = [(x, y, np.where(random.rand(len(x)) < 0.5, 0.0, 1.0)) for x, y in test_weights.batches_of([8] * 4)]
    equally = None
    for patched in (True, False):
        with monkeypatch.context() as patch:
            if patched:
                patch.setattr(loss_divisor, "find", lambda *args: None)
            model = dense(home, 2)
            model.compile(optimizer=ours(home), loss=["mean_absolute_error", "logcosh"])
            for x, y, weights in batches:
                model.train_on_batch(x, [y, y], sample_weight=[weights, np.ones(8)])
        equally = model.get_weights() if patched else equally
    assert all(np.array_equal(*pair) for pair in zip(model.get_weights(), equally))


def losses(home):
    """{name: (a loss, whether what divides it is found)}."""
    backend = home.backend

    def one_number(y_true, y_pred):
        return backend.mean(backend.square(y_true - y_pred))

    def of_positives(y_true, y_pred):
        positive = backend.cast(y_true > -0.5, "float32")
        return backend.sum(positive * backend.square(y_true - y_pred)) / backend.maximum(1.0, backend.sum(positive))

    def total(y_true, y_pred):
        return 0.05 * backend.sum(backend.square(y_true - y_pred))

    def of_pairs(y_true, y_pred):
        return backend.sum(backend.square(y_true - y_pred)) / backend.sum(backend.square(y_true + y_pred))

    return dict(
        one_number=(one_number, True),
        of_positives=(of_positives, True),
        total=(total, False),
        of_pairs=(of_pairs, False),
    )


@pytest.mark.parametrize("name", [slow("one_number"), "of_positives", slow("total"), "of_pairs"])
def test_losses_of_ones_own(home, monkeypatch, name):
    """A mean, a detector's by its positives; a sum and one that is no sum over samples are left as they are."""
    loss, is_found = losses(home)[name]
    check(home, monkeypatch, dense, loss, test_weights.batches_of(SIZES, seed=6), is_found)


def test_a_sum_by_a_loss_object(home, monkeypatch):
    found = getattr(home.keras.losses, "MeanSquaredError", None)
    if found is None or home.tf_version < (1, 14):
        skips.keras_lacks("loss objects with a reduction")
    check(home, monkeypatch, dense, found(reduction="sum"), test_weights.batches_of(SIZES, seed=7), False)


def test_equal_batches_keep_their_bits(home, monkeypatch):
    """As where nothing weighs, with sample weights too."""
    batches = test_weights.batches_of([6] * 6, seed=8)
    check(home, monkeypatch, dense, "mean_absolute_error", batches, False)
    check(home, monkeypatch, dense, "mean_absolute_error", [(x, y, np.array(ZEROS[:6])) for x, y in batches], False)


def test_reduction_sum_weighs_nothing(home, monkeypatch):
    needs.wrap(home)
    monkeypatch.setattr(loss_divisor, "find", lambda *args: 1 / 0)
    model, data = home.network(test_weights.START), test_weights.batches_of([5, 3], seed=9)
    optimizer = legacyga.wrap(home.bare_sgd(lr=kinds.RATE / 2, momentum=kinds.MOMENTUM), 2, reduction="sum")
    weights = trained(model, optimizer, "mse", data)
    wanted = test_weights.expected([(1, x, y) for x, y in data], 2)
    assert test_weights.off(weights, wanted) <= 4e-6


def test_at_k_1_nothing_is_looked_for(home, monkeypatch):
    monkeypatch.setattr(loss_divisor, "find", lambda *args: 1 / 0)
    model, data = home.network(test_weights.START), test_weights.batches_of([5, 3], seed=10)
    trained(model, ours(home, 1), "mse", data)
    test_weights.assert_trained(model, test_weights.known(data), 1)


@pytest.mark.parametrize("recompute", [slow(True), False])
def test_batches_in_slices(home, recompute):
    """Each weighs all of its samples, whatever its slices are."""
    model, data = home.network(test_weights.START), test_weights.batches_of(SIZES, seed=11)
    model.compile(optimizer=ours(home), loss="mse")
    legacyga.micro_batch(model, 2, recompute=recompute)
    for batch in data:
        model.train_on_batch(*batch)
    legacyga.flush(model.optimizer)
    test_weights.assert_trained(model, test_weights.known(data), STEPS)


@pytest.mark.parametrize("case", ["masks", slow("positives")])
def test_batches_in_slices_weigh_what_divides_their_loss(home, case):
    """A batch weighs what its loss is divided by as a whole: what its mask leaves, or its positives."""
    data = sequences(SIZES) if case == "masks" else test_weights.batches_of(SIZES, seed=6)
    make, loss = (masked, "mse") if case == "masks" else (dense, losses(home)["of_positives"][0])
    start = make(home).get_weights()
    weights = trained(make(home), ours(home), loss, data, size=2)
    assert test_weights.off(weights, trained(make(home), ours(home, 1), loss, large(data)), start) <= 4e-6


def test_a_loss_without_keras(home, kind):
    """`get_updates` or `minimize` of a loss of the program's own: a mean weighs, a sum does not."""
    tf, backend, variables = home.tf, home.backend, [home.backend.variable(each) for each in test_weights.START[:2]]
    x, y = backend.placeholder((None, 3)), backend.placeholder((None, 4))
    error, start = tf.square(backend.dot(x, variables[0]) + variables[1] - y), backend.batch_get_value(variables)
    random = np.random.RandomState(12)
    data = [(random.randn(n, 3), random.randn(n, 4) + i) for i, n in enumerate(SIZES[:4])]

    def gradients(x, y):
        slope = 2 * (x.dot(start[0]) + start[1] - y)
        return [x.T.dot(slope), slope.sum(0)]

    for loss, factor in ((tf.reduce_mean(error), 1.0 / 64), (0.02 * tf.reduce_sum(error), 0.02 / 4)):
        backend.batch_set_value(list(zip(variables, start)))
        optimizer = kind.make(STEPS)
        if hasattr(optimizer, "get_updates"):
            updates = optimizer.get_updates(loss=loss, params=variables)
        else:
            updates = [optimizer.minimize(loss, var_list=variables)]
            v1_of(tf).get_default_session().run(v1_of(tf).variables_initializer(optimizer.variables()))
        function = backend.function([x, y], [loss], updates=list(updates))
        for batch in data:
            function(list(batch))
        means = [factor * sum(each) for each in zip(*[gradients(*batch) for batch in data])]
        wanted = kind.oracle().update([value.astype("float64") for value in start], means)
        assert test_weights.off(backend.batch_get_value(variables), wanted, start) <= (kind.is_adam and 4e-5 or 4e-6)


def test_batches_from_a_queue(home):
    """As those of an Estimator's numpy_input_fn and of tf.train.batch."""
    v1, backend = v1_of(home.tf), home.backend
    start = test_weights.START[0]
    variable, size = backend.variable(start), backend.placeholder((), dtype="int32")
    x = np.random.RandomState(14).randn(sum(SIZES[:STEPS]), 3).astype("float32")
    queue = v1.FIFOQueue(len(x), "float32", (3,))
    loss = home.tf.reduce_mean(home.tf.square(backend.dot(queue.dequeue_many(size), variable)))
    step = backend.function([size], [loss], updates=list(ours(home).get_updates(loss=loss, params=[variable])))
    v1.get_default_session().run(queue.enqueue_many([x]))
    for each in SIZES[:STEPS]:
        step([np.array(each)])
    wanted = -kinds.RATE * 2 * x.T.astype("float64").dot(x.dot(start)) / x.dot(start).size
    np.testing.assert_allclose(home.value(variable) - start, wanted, rtol=0, atol=4e-6 * np.abs(wanted).max())


def per_step(tf, y, out):
    return tf.reduce_mean(tf.square(y - out), -1)


def of_unknown_shape(tf, tensor):
    return v1_of(tf).placeholder_with_default(tensor, [None] * tensor.shape.ndims)


def rows_of(tf, tensor):
    return tf.cast(tf.shape(tensor)[0], "float32")


def of_number(tf, y, out, mask):
    return tf.reduce_sum(per_step(tf, y, out) * mask) / tf.reduce_sum(mask)


def of_means(tf, y, out, mask):
    return tf.reduce_mean(per_step(tf, y, out) * mask) / tf.reduce_mean(mask)


def running_mean(tf, losses):
    mean = tf.reduce_mean(losses)
    for i in range(1, 30):
        mean = mean + (tf.reduce_mean(losses[:, i % 6]) - mean) / (i + 1)
    return mean


def without_nan(tf, loss):
    return tf.where(v1_of(tf).is_nan(loss), tf.zeros_like(loss), loss)


def looped(tf, losses, count):
    """A mean of losses that a loop divides by a number of the batch, which `count()` computes within it."""
    return tf.reduce_mean(tf.while_loop(lambda i, _: i < 1, lambda i, x: (i + 1, x / count()), [0, losses])[1])


def looped_with(tf, losses, count):
    return looped(tf, losses, lambda: count)


# {name: (a loss of the targets, the outputs and a mask, whether what divides it is found)}
SHAPES = {
    "sum / n": (of_number, True),
    "a batch without positives": (
        lambda tf, y, out, mask: tf.reduce_sum(per_step(tf, y, out)) / tf.maximum(1.0, tf.reduce_sum(mask)),
        True,
    ),
    "twice the number without positives": (
        lambda tf, y, out, mask: tf.reduce_sum(per_step(tf, y, out)) / tf.maximum(1.0, 2.0 * tf.reduce_sum(mask)),
        True,
    ),
    "at least 1 element": (
        lambda tf, y, out, mask: (
            tf.reduce_sum(per_step(tf, y, out)) / tf.maximum(1.0, tf.cast(tf.size(mask), "float32"))
        ),
        True,
    ),
    "the samples as the last dimension": (
        lambda tf, y, out, mask: (
            tf.reduce_sum(per_step(tf, y, out)) / tf.cast(tf.shape(tf.reduce_sum(mask, 1))[-1], "float32")
        ),
        True,
    ),
    "sizes by tf.unstack": (
        lambda tf, y, out, mask: (
            tf.reduce_sum(per_step(tf, y, out)) / tf.cast(tf.unstack(tf.shape(of_unknown_shape(tf, out)))[0], "float32")
        ),
        True,
    ),
    "a size that does not divide, by tf.unstack": (
        lambda tf, y, out, mask: tf.reduce_mean(
            per_step(tf, y, out / tf.cast(tf.unstack(tf.shape(of_unknown_shape(tf, out)))[2], "float32"))
        ),
        True,
    ),
    "printed": (
        lambda tf, y, out, mask: v1_of(tf).Print(of_number(tf, y, out, mask), [tf.constant(1.0)], first_n=0),
        True,
    ),
    "clipped": (lambda tf, y, out, mask: tf.clip_by_value(of_number(tf, y, out, mask), 0.0, 1e6), False),
    "guarded against NaN": (
        lambda tf, y, out, mask: without_nan(tf, of_number(tf, y, out, mask)),
        True,
    ),
    "ssd_keras: mean(sums / n * rows)": (
        lambda tf, y, out, mask: tf.reduce_mean(
            tf.reduce_sum(per_step(tf, y, out) * mask, 1) / tf.reduce_sum(mask) * rows_of(tf, y)
        ),
        True,
    ),
    "weights of mean 1": (
        lambda tf, y, out, mask: tf.reduce_mean(
            per_step(tf, y, out) * (mask / tf.reduce_sum(mask) * tf.cast(tf.size(mask), "float32"))
        ),
        True,
    ),
    "one number + zeros": (
        lambda tf, y, out, mask: tf.reduce_mean(of_number(tf, y, out, mask) + tf.zeros_like(mask[:, 0])),
        True,
    ),
    "sum(a / n + b / n)": (
        lambda tf, y, out, mask: tf.reduce_sum(
            per_step(tf, y, out) * mask / tf.reduce_sum(mask) + tf.abs(per_step(tf, y, out)) / tf.reduce_sum(mask)
        ),
        True,
    ),
    "mean of two losses": (
        lambda tf, y, out, mask: tf.reduce_mean(
            tf.stack([tf.reduce_mean(per_step(tf, y, out)), tf.reduce_mean(tf.abs(y - out))])
        ),
        True,
    ),
    "1 / n, 0 without positives": (
        lambda tf, y, out, mask: (
            tf.reduce_sum(per_step(tf, y, out) * mask)
            * tf.where(tf.reduce_sum(mask) > 0, 1 / tf.reduce_sum(mask), tf.zeros([]))
        ),
        False,
    ),
    "an epsilon": (
        lambda tf, y, out, mask: tf.reduce_sum(per_step(tf, y, out) * mask) / (tf.reduce_sum(mask) + 1e-7),
        True,
    ),
    "one number, tiled": (
        lambda tf, y, out, mask: tf.reduce_mean(
            tf.tile(tf.reshape(of_number(tf, y, out, mask), [1]), [tf.shape(y)[0]])
        ),
        False,
    ),
    "a sum": (lambda tf, y, out, mask: 0.01 * tf.reduce_mean(per_step(tf, y, out)) * rows_of(tf, y), False),
    "n + 1": (lambda tf, y, out, mask: tf.reduce_sum(per_step(tf, y, out)) / (tf.reduce_sum(mask) + 1), False),
    "n * m": (
        lambda tf, y, out, mask: (
            tf.reduce_sum(per_step(tf, y, out)) / (tf.reduce_sum(mask) * tf.reduce_sum(tf.abs(y))) * rows_of(tf, y)
        ),
        False,
    ),
    "flattened + of samples": (
        lambda tf, y, out, mask: (
            tf.reduce_mean(tf.square(tf.reshape(y, [-1]) - tf.reshape(out, [-1]))) + tf.reduce_mean(tf.abs(y - out))
        ),
        True,
    ),
    "chosen rows": (
        lambda tf, y, out, mask: tf.reduce_mean(tf.boolean_mask(per_step(tf, y, out), mask > 0)),
        True,
    ),
    "factors of sizes": (
        lambda tf, y, out, mask: tf.reduce_mean(tf.square(y - out) * tf.cast(tf.shape(y)[1:3], "float32")[::-1]),
        True,
    ),
    # As Keras's flatten, of its targets, whose placeholder knows no size.
    "flattened, of unknown shape + of samples": (
        lambda tf, y, out, mask: (
            tf.reduce_mean(tf.square(tf.reshape(of_unknown_shape(tf, y), [-1]) - tf.reshape(out, [-1])))
            + tf.reduce_mean(tf.abs(y - out))
        ),
        True,
    ),
    "a running mean of 30 losses": (lambda tf, y, out, mask: running_mean(tf, per_step(tf, y, out)), True),
    # The CRF of keras-contrib counts the steps of K.rnn in a state, which has rows.
    "a loop with a counter": (
        lambda tf, y, out, mask: tf.reduce_mean(
            tf.while_loop(
                lambda i, steps, _: i < 2,
                lambda i, steps, x: (i + 1, steps + 1, x * (1 - steps[0, 0] / 4)),
                [tf.constant(0), tf.zeros_like(mask), per_step(tf, y, out)],
            )[2]
        ),
        True,
    ),
    "a number in a loop": (
        lambda tf, y, out, mask: looped_with(tf, per_step(tf, y, out), tf.reduce_sum(mask)),
        False,
    ),
    "a number made in a loop": (
        lambda tf, y, out, mask: looped(tf, per_step(tf, y, out), lambda: tf.reduce_sum(mask)),
        False,
    ),
    "times an inverse mean": (
        lambda tf, y, out, mask: tf.reduce_mean(per_step(tf, y, out) * mask) * (1 / tf.reduce_mean(mask)),
        True,
    ),
    "a mean and an epsilon": (
        lambda tf, y, out, mask: tf.reduce_mean(per_step(tf, y, out) * mask) / (tf.reduce_mean(mask) + 1e-7),
        True,
    ),
    "a mean of at least 1e-6": (
        lambda tf, y, out, mask: tf.reduce_mean(per_step(tf, y, out) * mask) / tf.maximum(tf.reduce_mean(mask), 1e-6),
        True,
    ),
    "a mean of at least 1": (
        lambda tf, y, out, mask: tf.reduce_mean(per_step(tf, y, out) * mask) / tf.maximum(tf.reduce_mean(mask), 1.0),
        False,
    ),
    "times a mean": (
        lambda tf, y, out, mask: tf.reduce_mean(per_step(tf, y, out)) * tf.reduce_mean(mask),
        False,
    ),
    "of spectra": (
        lambda tf, y, out, mask: tf.reduce_mean(tf.abs(v1_of(tf).spectral.rfft(out[..., 0], [6]))),
        True,
    ),
    # As in segmentation-models' DiceLoss(per_image=True) with one class.
    "over the samples first": (
        lambda tf, y, out, mask: tf.reduce_mean(tf.reduce_mean(tf.square(of_unknown_shape(tf, y) - out[:, :1]), 0)),
        True,
    ),
    "a count over the samples first": (
        lambda tf, y, out, mask: tf.reduce_sum(per_step(tf, y, out)) / tf.reduce_sum(tf.reduce_sum(mask, 0)),
        True,
    ),
    "a count over the samples first, of unknown steps": (
        lambda tf, y, out, mask: (
            tf.reduce_sum(per_step(tf, y, out)) / tf.reduce_sum(tf.reduce_sum(of_unknown_shape(tf, mask), 0))
        ),
        True,
    ),
    # Soft positives, as IoUs are: the large batch may not need the bound that a small one needs, or may need it, too.
    "soft positives below a bound": (
        lambda tf, y, out, mask: (
            tf.reduce_sum(per_step(tf, y, out) * mask) / tf.maximum(1.0, tf.reduce_sum(0.01 * mask * tf.abs(y[..., 0])))
        ),
        False,
    ),
    "anchors of which -1 are ignored": (
        lambda tf, y, out, mask: tf.reduce_sum(per_step(tf, y, out)) / tf.maximum(1.0, tf.reduce_sum(-mask)),
        False,
    ),
    "a third of the positives": (
        lambda tf, y, out, mask: tf.reduce_sum(per_step(tf, y, out)) / tf.maximum(1.0, tf.reduce_sum(mask) / 30),
        False,
    ),
    "soft positives above a bound": (
        lambda tf, y, out, mask: (
            tf.reduce_sum(per_step(tf, y, out) * mask) / tf.maximum(1e-3, tf.reduce_sum(mask * (2 + tf.sin(y[..., 0]))))
        ),
        True,
    ),
    "a number that keeps its dimensions": (
        lambda tf, y, out, mask: tf.reduce_mean(per_step(tf, y, out) * (mask / tf.reduce_mean(mask, keepdims=True))),
        False,
    ),
    "a number for each step": (
        lambda tf, y, out, mask: tf.reduce_mean(per_step(tf, y, out) * (mask / (1 + tf.reduce_mean(mask, 0)))),
        False,
    ),
    "divided by the targets' variance": (
        lambda tf, y, out, mask: (
            tf.reduce_mean(per_step(tf, y, out)) / tf.reduce_mean(tf.square(y - tf.reduce_mean(y, keepdims=True)))
        ),
        False,
    ),
    "samples and positives": (
        lambda tf, y, out, mask: of_number(tf, y, out, mask) + tf.reduce_mean(per_step(tf, y, out)),
        False,
    ),
}


# Those that CI runs, too.
SHORT = [
    "a batch without positives",
    "chosen rows",
    "flattened + of samples",
    "one number, tiled",
    "over the samples first",
    "soft positives below a bound",
]


def moved(home, loss_of, start, batches, shape=(None, 6)):
    """A variable that begins at `start`, after these batches in one window; `shape` is [samples, steps] as fed."""
    tf, backend = home.tf, home.backend
    weights = backend.variable(start)
    fed = [backend.placeholder(shape + more) for more in ((3,), (2,), ())]
    out = tf.tensordot(fed[0], weights, 1)
    updates = ours(home, len(batches)).get_updates(loss=loss_of(tf, fed[1], out, fed[2]), params=[weights])
    step = backend.function(fed, [tf.constant(0.0)], updates=list(updates))
    for batch in batches:
        step(batch)
    return home.value(weights)


@pytest.mark.parametrize("name", [name if name in SHORT else slow(name) for name in sorted(SHAPES)])
def test_shapes_of_losses(home, monkeypatch, name):
    """Whatever is found is the large batch; where it cannot be known, all batches weigh the same."""
    random = np.random.RandomState(13)
    loss_of, is_found = SHAPES[name]
    if name == "a number made in a loop" and home.tf_version >= (2, 0):
        skips.we_lack("the search does not look into loops of TensorFlow 2, which are functions")
    counts = [1, 9, 0 if "without" in name or name == "an epsilon" else 4, 3]
    start, data = random.randn(3, 2).astype("float32"), []
    for i, (size, count) in enumerate(zip(SIZES, counts)):
        mask = np.zeros(size * 6)
        mask[:count] = 1
        data.append([random.randn(size, 6, 3), random.randn(size, 6, 2) + i, mask.reshape(size, 6)])

    def end(batches):
        return moved(home, loss_of, start, batches) - start

    found, large = end(data), end([list(map(np.concatenate, zip(*data)))])
    monkeypatch.setattr(loss_divisor, "find", lambda *args: None)
    equally = end(data)
    if is_found:
        assert np.abs(found - large).max() <= 4e-6 * np.abs(large).max()
        assert np.abs(equally - large).max() > 1e-2 * np.abs(large).max()
    else:
        np.testing.assert_array_equal(found, equally)


@pytest.mark.parametrize("loss_of", [of_number, of_means])
@pytest.mark.parametrize("shape", [(4, 6), (None, None)])
def test_shapes_of_batches(home, shape, loss_of):
    """Batches of a fixed size, and batches that are each as long as their longest sequence."""
    random, data = np.random.RandomState(15), []
    start = random.randn(3, 2).astype("float32")
    for i, (count, steps) in enumerate(zip([1, 9, 4, 3], (3, 6, 2, 4))):
        mask = np.zeros(4 * steps)
        mask[:count] = 1
        data.append([random.randn(4, steps, 3), random.randn(4, steps, 2) + i, mask.reshape(4, steps)])
    large = moved(home, loss_of, start, [list(map(np.concatenate, zip(*whole(data))))]) - start
    given = data if shape[1] is None else whole(data)
    assert np.abs(moved(home, loss_of, start, given, shape) - start - large).max() <= 4e-6 * np.abs(large).max()


@pytest.mark.parametrize("order", ["each in turn", "both, then both"])
def test_two_losses_of_one_optimizer(home, order):
    """As in a GAN: gradients of two losses, then an update of each one's variables."""
    tf, v1, random = home.tf, v1_of(home.tf), np.random.RandomState(14)
    data = [(random.randn(size, 3), random.randn(size, 2) + i) for i, size in enumerate(SIZES[:4])]

    def end(batches, optimizer):
        with tf.Graph().as_default(), v1.Session() as session:
            x, y = v1.placeholder("float32", [None, 3]), v1.placeholder("float32", [None, 2])
            weights = [v1.get_variable(name, initializer=np.full((3, 2), 0.1, "float32")) for name in "dg"]
            losses = [tf.reduce_mean(tf.square(y - tf.matmul(x, each))) for each in weights]
            if order == "each in turn":
                train = [optimizer.apply_gradients(optimizer.compute_gradients(*each)) for each in zip(losses, weights)]
            else:
                pairs = [optimizer.compute_gradients(*each) for each in zip(losses, weights)]
                train = [optimizer.apply_gradients(each) for each in pairs]
            session.run(v1.global_variables_initializer())
            for batch in batches:
                session.run(train, dict(zip((x, y), batch)))
            return np.array(session.run(weights))

    bare = v1.train.GradientDescentOptimizer(0.1)
    large = end([tuple(map(np.concatenate, zip(*data)))], bare)
    assert np.abs(large - 0.1).max() > 0.01
    assert np.abs(end(data, legacyga.wrap(bare, 4)) - large).max() <= 4e-6
