"""Slices whose outputs come first: any loss, metric and mask, against the same Keras on whole batches."""

import inspect
import warnings

import numpy as np
import oracle
import pytest
import skips
from kinds import RATE
from slow import slow, slow_but
from test_micro_batch import start_anew  # noqa: F401

import legacyga

pytestmark = pytest.mark.capability("micro_batch")

RANDOM = np.random.RandomState(11)
X = RANDOM.randn(21, 3).astype("float32")
LABELS = RANDOM.randint(0, 3, (21, 1)).astype("float32")
# 8 and 8 in slices of 3: 2, 3, 3; and a last one of 5: 2, 3.
BATCH, SIZE = 8, 3


def sgd(home):
    # The stock optimizers of old graphs race.
    return legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras)


def start(model, seed=5):
    random = np.random.RandomState(seed)
    model.set_weights([np.asarray(0.5 * random.randn(*each.shape), "float32") for each in model.get_weights()])
    return model


def embedded(home, outputs=2, more=(), penalty="l2"):
    """A model of 3 numbers, and as many layers more."""
    layers = home.keras.layers
    inputs = layers.Input((3,))
    hidden = layers.Dense(4, activation="tanh", kernel_regularizer=penalty)(inputs)
    for each in more:
        hidden = each(hidden)
    return start(home.keras.models.Model(inputs, layers.Dense(outputs)(hidden)))


def keras_trains(home, make, **kwargs):
    """Whether Keras trains such a model by an optimizer of its own."""

    def made():
        model, x, y = make()
        model.compile(home.bare_sgd(lr=RATE), model.loss)
        return model, x, y

    try:
        train(home, made, None, **kwargs)
    except Exception:
        return False
    return True


def train(home, make, size, recompute=None, **kwargs):
    """(weights, history, model) after two epochs."""
    home.reset()
    model, x, y = make()
    if size is not None:
        legacyga.micro_batch(model, size, recompute=recompute)
    fitted = dict(batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = model.fit(x, y, **dict(fitted, **kwargs)).history
    return model.get_weights(), {name: np.array(values) for name, values in history.items()}, model


def check(home, make, size=SIZE, recompute=None, bar=4e-6, twice=True, moves=1e-3, **kwargs):
    """Slices end as whole batches do; the model that was trained in slices."""
    whole, slices = train(home, make, None, **kwargs), train(home, make, size, recompute, **kwargs)
    home_moved = oracle.farthest(whole[0], make()[0].get_weights())
    assert home_moved > moves
    distance = oracle.farthest(slices[0], whole[0])
    assert distance <= bar, distance
    assert sorted(slices[1]) == sorted(whole[1])
    for name, values in whole[1].items():
        np.testing.assert_allclose(slices[1][name], values, rtol=1e-5, atol=1e-5, err_msg=name)
    if recompute is None and twice is not None:
        assert legacyga.recomputes(slices[2]) is twice
    return slices[2]


# ------------------------------------------------------------------------------------ losses that join samples


def supervised_contrastive(tf, y_true, y_pred):
    unit = y_pred / tf.sqrt(1e-6 + tf.reduce_sum(tf.square(y_pred), -1, keepdims=True))
    alike = tf.cast(tf.equal(y_true, tf.transpose(y_true)), unit.dtype)
    scores = tf.matmul(unit, unit, transpose_b=True) / 0.5
    scores -= tf.reduce_logsumexp(scores, 1, keepdims=True)
    return -tf.reduce_sum(scores * alike, 1) / tf.reduce_sum(alike, 1)


def info_nce(tf, y_true, y_pred):
    scores = tf.matmul(y_pred[:, :2], y_pred[:, 2:], transpose_b=True)
    return -tf.reduce_mean(tf.linalg.diag_part(scores) - tf.reduce_logsumexp(scores, 1))


def nt_xent(tf, y_true, y_pred):
    both = tf.concat([y_pred[:, :2], y_pred[:, 2:]], 0)
    both /= tf.sqrt(1e-6 + tf.reduce_sum(tf.square(both), -1, keepdims=True))
    scores = tf.matmul(both, both, transpose_b=True) / 0.25
    scores -= 1e3 * tf.eye(tf.shape(both)[0])
    samples = tf.shape(y_pred)[0]
    places = tf.concat([tf.range(samples) + samples, tf.range(samples)], 0)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=places, logits=scores))


def triplet(tf, y_true, y_pred):
    """The farthest of the same label and the nearest of another, in the batch."""
    distances = tf.reduce_sum(tf.square(y_pred[:, None] - y_pred[None]), -1)
    alike = tf.cast(tf.equal(y_true, tf.transpose(y_true)), distances.dtype)
    farthest = tf.reduce_max(distances * alike, 1)
    nearest = tf.reduce_min(distances + 1e3 * alike, 1)
    return tf.reduce_mean(tf.maximum(farthest - nearest + 1.0, 0.0))


def dice(tf, y_true, y_pred):
    found = tf.sigmoid(y_pred[:, :1])
    wanted = tf.cast(y_true > 0, found.dtype)
    return 1 - (2 * tf.reduce_sum(found * wanted) + 1) / (tf.reduce_sum(found) + tf.reduce_sum(wanted) + 1)


def focal(tf, y_true, y_pred):
    """Divided by the positives of the batch, as detectors have it."""
    found = tf.sigmoid(y_pred[:, :1])
    wanted = tf.cast(y_true > 1, found.dtype)
    right = found * wanted + (1 - found) * (1 - wanted)
    log = getattr(tf.math, "log", None) or tf.log
    return -tf.reduce_sum(tf.square(1 - right) * log(right + 1e-6)) / tf.maximum(tf.reduce_sum(wanted), 1.0)


LOSSES = {each.__name__: each for each in (supervised_contrastive, info_nce, nt_xent, triplet, dice, focal)}


@pytest.mark.parametrize("name", slow_but(["info_nce", "triplet"], sorted(LOSSES)))
def test_losses_that_join_samples(home, name):
    tf = home.tf

    def loss(y_true, y_pred):
        return LOSSES[name](tf, y_true, y_pred)

    def make():
        model = embedded(home, 4)
        model.compile(sgd(home), loss, metrics=["mae"])
        return model, X, LABELS

    check(home, make)


@pytest.mark.parametrize("way", ["run_eagerly", slow("steps_per_execution"), "jit_compile"])
def test_ways_to_train(home, way):
    if home.mode == "graph":
        skips.senseless("graph mode")
    since = {"run_eagerly": (2, 2), "steps_per_execution": (2, 4), "jit_compile": (2, 8)}[way]
    if home.tf_version < since:
        skips.keras_lacks("{}: from TF {}.{} on".format(way, *since))
    if way == "steps_per_execution" and home.is_keras3_before(3, 10):
        skips.keras_lacks("steps_per_execution that leaves a rest: Keras 3.5 takes steps of it twice")
    tf = home.tf

    def make():
        model = embedded(home, 4)
        more = {way: 2 if way == "steps_per_execution" else True}
        model.compile(sgd(home), lambda *each: supervised_contrastive(tf, *each), **more)
        return model, X, LABELS

    check(home, make)


# --------------------------------------------------------------------- losses that are divided by something else


def sequences(home, outputs=1, masks=1):
    """A model of padded sequences, and data: each output has a mask of its own."""
    random, layers = np.random.RandomState(3), home.keras.layers
    x, inputs, made = [], [], []
    for number in range(outputs):
        each = random.randint(1, 9, (21, 6))
        for row in each:
            row[random.randint(1, 7) :] = 0
        x.append(each)
        inputs.append(layers.Input((6,)))
        embedding = layers.Embedding(9, 4, mask_zero=number < masks)
        made.append(layers.Dense(2)(embedding(inputs[-1])))
    y = [random.randn(21, 6, 2).astype("float32") for _ in range(outputs)]
    one = outputs == 1
    model = home.keras.models.Model(inputs[0] if one else inputs, made[0] if one else made)
    return start(model), x[0] if one else x, y[0] if one else y


@pytest.mark.parametrize("outputs, masks", [slow(1, 1), (2, 2), slow(2, 1)])
def test_masks(home, outputs, masks):
    def make():
        model, x, y = sequences(home, outputs, masks)
        model.compile(sgd(home), ["mse"] * outputs if outputs > 1 else "mse")
        return model, x, y

    check(home, make, recompute=True)


def has_objects(home):
    if not hasattr(home.keras.losses, "MeanSquaredError"):
        skips.keras_lacks("losses that are objects")


@pytest.mark.parametrize("reduction", ["sum", slow("none"), "mean_with_sample_weight"])
def test_reductions(home, reduction):
    has_objects(home)
    if reduction == "mean_with_sample_weight" and (not home.is_keras3 or home.is_keras3_before(3, 7)):
        skips.keras_lacks('reduction="mean_with_sample_weight": Keras 3.7 or newer')

    def make():
        # Keras itself cannot add a penalty to what is not reduced.
        model = embedded(home, penalty=None)
        model.compile(sgd(home), home.keras.losses.MeanSquaredError(reduction=reduction))
        return model, X, X[:, :2]

    if reduction == "none" and home.mode == "graph":
        skips.keras_lacks("batches of unequal sizes for a loss that is not reduced, in graph mode")
    # The sum moves farther than 1.
    check(home, make, bar=2e-5, recompute=True, sample_weight=np.linspace(0.1, 2, 21).astype("float32"))


def test_an_ignored_class(home):
    try:
        loss = home.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    except (AttributeError, TypeError):
        skips.keras_lacks("ignore_class")
    y = RANDOM.randint(0, 3, (21,))
    y[[0, 1, 3, 9, 10, 17]] = -1

    def make():
        model = embedded(home, 3)
        model.compile(sgd(home), loss)
        return model, X, y

    check(home, make, recompute=None if home.mode == "eager" else True)


def test_ragged_targets(home):
    if home.mode == "graph" or home.is_keras3 or home.tf_version < (2, 5):
        skips.keras_lacks("a loss of ragged targets in eager mode")
    tf, random = home.tf, np.random.RandomState(0)
    lengths = random.randint(1, 6, 16)
    x, y = [
        tf.RaggedTensor.from_row_lengths(random.randn(lengths.sum(), size).astype("float32"), lengths)
        for size in (3, 2)
    ]

    def make():
        layers = home.keras.layers
        inputs = layers.Input((None, 3), ragged=True)
        model = start(home.keras.models.Model(inputs, layers.TimeDistributed(layers.Dense(2))(inputs)))
        model.compile(sgd(home), "mse")
        return model, x, y

    check(home, make)


def test_one_number_under_class_weights(home):
    tf = home.tf

    def make():
        model = embedded(home, 1)
        model.compile(sgd(home), lambda y_true, y_pred: tf.reduce_mean(tf.square(y_true - y_pred)))
        return model, X, LABELS

    weights = {0: 0.25, 1: 1.0, 2: 4.0}
    try:
        train(home, make, None, class_weight=weights)
    except tf.errors.InvalidArgumentError:
        skips.keras_lacks("a loss of one number under sample weights, in graph mode")
    check(home, make, class_weight=weights)


def test_an_output_of_one_dimension(home):
    def make():
        model = embedded(home, 1)
        layers = home.keras.layers
        vector = layers.Lambda(lambda values: values[:, 0], output_shape=())(model.outputs[0])
        model = home.keras.models.Model(model.inputs[0], vector)
        model.compile(sgd(home), "mse")
        return model, X, LABELS[:, 0]

    if not keras_trains(home, make, sample_weight=np.linspace(0.1, 2, 21)):
        skips.keras_lacks("an output of one dimension")
    check(home, make, recompute=True, sample_weight=np.linspace(0.1, 2, 21))


@pytest.mark.parametrize("rows", [False, True], ids=["mean", "of each sample"])
def test_what_layers_add(home, rows):
    """Once, though each slice is computed twice."""
    layers, tf = home.keras.layers, home.tf
    if home.mode == "graph":
        skips.senseless("graph mode computes them over the batch")

    class Penalty(layers.Layer):
        def call(self, inputs):
            self.add_loss(tf.reduce_mean(tf.square(inputs), axis=-1 if rows else None))
            return inputs + 0.0

        def compute_output_shape(self, shape):
            return shape

    def make():
        # Keras itself cannot add the regularizer's to a number for each sample.
        model = embedded(home, 2, [Penalty()], None if rows else "l2")
        model.compile(sgd(home), "mse")
        return model, X, X[:, :2]

    if not keras_trains(home, make):
        skips.keras_lacks("a number for each sample by add_loss, beside a loss")
    check(home, make, recompute=True)


@pytest.mark.parametrize("recompute", slow_but([None], [None, True, False]))
def test_numbers_that_a_layer_draws_by_numpy(home, recompute):
    """Without a trace each slice draws the next numbers: those of slices by hand, in the first batch and later."""
    layers = home.keras.layers
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.senseless("a graph draws them once")

    class Noise(layers.Layer):
        def call(self, inputs):
            return inputs * np.random.rand(1, 3).astype("float32")

        def compute_output_shape(self, shape):
            return shape

    inputs = layers.Input((3,))
    model = home.keras.models.Model(inputs, layers.Dense(1, use_bias=False)(Noise()(inputs)))
    model.compile(sgd(home), "mae", run_eagerly=True)
    model.set_weights([np.ones((3, 1), "float32")])
    legacyga.micro_batch(model, SIZE, recompute=recompute)
    before = np.random.get_state()
    try:
        for _ in range(3):
            np.random.seed(5)
            weights = model.get_weights()[0]
            model.train_on_batch(X[:BATCH], np.full((BATCH, 1), -100, "float32"))
            np.random.seed(5)
            drawn = np.concatenate([X[part] * np.random.rand(1, 3) for part in (slice(2), slice(2, 5), slice(5, 8))])
            np.testing.assert_allclose(model.get_weights()[0], weights - RATE * drawn.mean(0)[:, None], atol=4e-6)
    finally:
        np.random.set_state(before)


# {name: (whether a warning says that it may be no mean, the number that a layer adds)}
NUMBERS = {
    "mean": (False, lambda tf, x: 0.5 * tf.reduce_mean(tf.square(x)) - 0.25 * tf.reduce_mean(x)),
    "by samples": (False, lambda tf, x: tf.reduce_sum(tf.square(x)) / tf.cast(tf.shape(x)[0], x.dtype)),
    "divergence": (False, lambda tf, x: -0.5 * tf.reduce_mean(tf.reduce_sum(1 + x - x**2 - tf.exp(x), -1))),
    "sum": (True, lambda tf, x: 1e-3 * tf.reduce_sum(tf.square(x))),
    "root": (True, lambda tf, x: tf.sqrt(tf.reduce_mean(tf.square(x)))),
    "dice": (True, lambda tf, x: 1 - (tf.reduce_sum(x) + 1) / (tf.reduce_sum(x**2) + 1)),
}


@pytest.mark.parametrize("recompute", slow_but([None], [None, True]))
@pytest.mark.parametrize("name", slow_but(["sum"], sorted(NUMBERS)))
def test_numbers_that_layers_add(home, name, recompute):
    """A number that is no mean over the samples is another one in slices: a warning says so, once for a model."""
    layers, tf = home.keras.layers, home.tf
    if home.mode == "graph":
        skips.senseless("graph mode computes each number over the batch")
    if home.tf_version < (2, 2):
        skips.keras_lacks("slices in eager mode: from TF 2.2 on")
    doubted, number = NUMBERS[name]

    class Adding(layers.Layer):
        fixed = False

        def call(self, inputs):
            if self.fixed:
                # A layer that needs to know the number of samples.
                inputs = tf.reshape(inputs, [1 * inputs.shape[0], 3])
            self.add_loss(number(tf, inputs))
            return inputs + 0.0

        def compute_output_shape(self, shape):
            return shape

    layer = Adding()
    model = embedded(home, 2, [layers.Dense(3), layer], None)
    start(model)
    for fixed in (True, False):
        model.compile(sgd(home), "mse")
        legacyga.micro_batch(model, SIZE, recompute=recompute)
        layer.fixed = fixed
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                model.train_on_batch(X[:BATCH], X[:BATCH, :2])
        said = [
            each for each in caught if "a number that a layer gives to add_loss counts as a mean" in str(each.message)
        ]
        assert len(said) == (doubted and not fixed)
    # Losses of an earlier call stay: each number is there once.
    if name == "mean":
        ends = []
        for size in (None, SIZE):
            start(model)
            legacyga.micro_batch(model, size, recompute=recompute)
            ends.append([model.train_on_batch(X[:BATCH], X[:BATCH, :2]) for _ in range(2)])
        np.testing.assert_allclose(*ends, rtol=1e-5)


def test_a_penalty_on_what_a_layer_gives(home):
    if home.mode == "eager" and home.tf_version < (2, 4):
        skips.keras_lacks("an activity_regularizer in a loop")

    def make():
        model = embedded(home, 2, [home.keras.layers.Dense(3, activity_regularizer="l2")])
        model.compile(sgd(home), "mse")
        return model, X, X[:, :2]

    check(home, make, recompute=True)


def test_a_metric_of_the_whole_batch(home):
    tf = home.tf

    def correlation(y_true, y_pred):
        y_true, y_pred = [each - tf.reduce_mean(each) for each in (y_true, y_pred)]
        spread = tf.sqrt(tf.reduce_sum(tf.square(y_true)) * tf.reduce_sum(tf.square(y_pred)))
        return tf.reduce_sum(y_true * y_pred) / spread

    def make():
        model = embedded(home)
        model.compile(sgd(home), "mse", metrics=[correlation])
        return model, X, X[:, :2]

    # It has the whole batch, though each slice is computed once.
    check(home, make, twice=False)


METRICS = {
    "AUC": (), "BinaryAccuracy": (), "BinaryCrossentropy": (), "BinaryIoU": (), "CategoricalAccuracy": (),
    "CategoricalCrossentropy": (), "CosineSimilarity": (), "F1Score": (), "FBetaScore": (), "FalseNegatives": (),
    "FalsePositives": (), "Hinge": (), "KLDivergence": (), "LogCoshError": (), "MeanAbsoluteError": (),
    "MeanAbsolutePercentageError": (), "MeanIoU": (2,), "MeanSquaredError": (), "MeanSquaredLogarithmicError": (),
    "OneHotMeanIoU": (2,), "Poisson": (), "Precision": (), "PrecisionAtRecall": (0.5,), "R2Score": (), "Recall": (),
    "RecallAtPrecision": (0.5,), "RootMeanSquaredError": (), "SensitivityAtSpecificity": (0.5,),
    "SpecificityAtSensitivity": (0.5,), "SquaredHinge": (), "TopKCategoricalAccuracy": (1,), "TrueNegatives": (),
    "TruePositives": (),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [None, True])
def test_metrics_of_every_stock_kind(home, recompute):
    """Those with a state see the outputs of the whole batch, also weighted."""
    metrics, softmax = home.keras.metrics, home.keras.layers.Activation("softmax")
    known = [name for name in METRICS if hasattr(metrics, name)]
    if home.mode == "graph":
        # These ask for targets of a known shape; Keras 2.3 has MeanIoU for itself.
        known = [name for name in known if name not in ("F1Score", "FBetaScore", "R2Score", "MeanIoU")]
    if home.mode == "graph" and home.tf_version < (1, 14) or len(known) < 10:
        skips.keras_lacks("most of the metrics")

    def make():
        body = embedded(home)
        model = home.keras.models.Model(body.inputs, softmax(body.outputs[0]))
        made = [[getattr(metrics, name)(*METRICS[name]) for name in known] for _ in range(2)]
        model.compile(sgd(home), "categorical_crossentropy", metrics=made[0], weighted_metrics=made[1])
        return model, X, np.float32(np.eye(2))[np.int64(LABELS[:, 0] > 0)]

    check(home, make, recompute=recompute, twice=None)


# ------------------------------------------------------------------------------------------- what a call leaves behind


def by_hand(home, model, loss, x, y):
    """One step of SGD in which the outputs of slices, each taken once, are put together."""
    tf, samples = home.tf, len(x)
    rest = (samples - 1) % SIZE + 1
    parts = [slice(0, rest)] + [slice(begin, begin + SIZE) for begin in range(rest, samples, SIZE)]
    with tf.GradientTape() as tape:
        outputs = tf.concat([model(tf.constant(x[part]), training=True) for part in parts], 0)
        value = tf.reduce_mean(loss(tf.constant(y), outputs)) + sum(model.losses)
    for variable, gradient in zip(model.trainable_variables, tape.gradient(value, model.trainable_variables)):
        variable.assign(variable - RATE * gradient)


@pytest.mark.parametrize("kind", ["batch normalization", "dropout", "counter"])
@pytest.mark.parametrize("way", ["graph", slow("eager")])
def test_nothing_of_the_first_pass_is_left(home, kind, way):
    """Averages, random states and counters are those of one pass over the slices."""
    if home.mode == "graph":
        skips.senseless("eager mode")
    tf, layers = home.tf, home.keras.layers
    if kind == "dropout" and not home.is_keras3:
        if not hasattr(getattr(home.keras.backend, "experimental", None), "enable_tf_random_generator"):
            skips.keras_lacks("dropout whose state can be put back")
        home.keras.backend.experimental.enable_tf_random_generator()

    class Counter(layers.Layer):
        def build(self, shape):
            self.calls = tf.Variable(0.0, trainable=False)
            super(Counter, self).build(shape)

        def call(self, inputs):
            self.calls.assign_add(1.0)
            return inputs * (1.0 + 0.1 * self.calls)

    def loss(y_true, y_pred):
        return supervised_contrastive(tf, y_true, y_pred)

    def make():
        home.reset()
        if not home.is_keras3:
            tf.random.set_seed(3)
        more = {
            "batch normalization": lambda: [layers.BatchNormalization(momentum=0.5)],
            "dropout": lambda: [layers.Dropout(0.5, seed=7), layers.Dropout(0.25, seed=8)],
            "counter": lambda: [Counter()],
        }[kind]()
        # Their averages have a start of their own.
        model = embedded(home, 4, more)
        for layer in model.layers:
            if hasattr(layer, "calls"):
                layer.calls.assign(0.0)
            if hasattr(layer, "moving_variance"):
                layer.moving_variance.assign(tf.ones(4))
        model.compile(home.bare_sgd(lr=RATE), loss, run_eagerly=way == "eager")
        return model, layers

    try:
        sliced, _ = make()
        legacyga.micro_batch(sliced, SIZE, recompute=True)
        for _ in range(2):
            sliced.train_on_batch(X[:8], LABELS[:8])
        wanted, _ = make()
        for _ in range(2):
            by_hand(home, wanted, loss, X[:8], LABELS[:8])
        pairs = list(zip(sliced.variables, wanted.variables))
        if kind == "counter":
            pairs += [(sliced.layers[2].calls, wanted.layers[2].calls)]
            assert float(wanted.layers[2].calls) == 6
        for now, then in pairs:
            now, then = [np.array(home.value(each)) for each in (now, then)]
            assert np.abs(now.astype("float64") - then).max() <= 4e-6
    finally:
        if kind == "dropout" and not home.is_keras3:
            home.keras.backend.experimental.disable_tf_random_generator()


@pytest.mark.parametrize("eager", [False, slow(True)], ids=["traced", "run_eagerly"])
def test_numbers_that_numpy_draws(home, eager):
    """In a layer's call, as in RandomFlip of TF 2.10. The loss is linear in the weights, so it is their gradient's."""
    if home.mode == "graph":
        skips.senseless("a graph is built once")

    class Noise(home.keras.layers.Layer):
        def call(self, x):
            return x * np.random.rand(1, 6).astype("float32")

        def compute_output_shape(self, shape):
            return shape

    model = home.keras.models.Sequential([Noise(), home.keras.layers.Dense(1, use_bias=False)])
    model.build((None, 6))
    model.compile(home.keras.optimizers.SGD(1.0), lambda y, found: home.tf.reduce_mean(found), run_eagerly=eager)
    legacyga.micro_batch(model, 2, recompute=True)
    for _ in range(2):
        before = model.get_weights()[0]
        # train_on_batch of Keras 3 does so from 3.15 on.
        model.reset_metrics()
        loss = float(np.ravel(model.train_on_batch(np.ones((6, 6), "float32"), np.zeros((6, 1), "float32")))[0])
        assert np.sum(before * (before - model.get_weights()[0])) == pytest.approx(loss, rel=1e-4)


def test_numbers_that_cannot_be_drawn_again(home):
    tf = home.tf

    def make():
        model = embedded(home, 4, [home.keras.layers.Dropout(0.5)])
        model.compile(sgd(home), lambda *each: supervised_contrastive(tf, *each))
        return model, X, LABELS

    if home.is_keras3:
        train(home, make, SIZE)
        return
    with pytest.raises(ValueError, match="must draw the same numbers twice.*dropout.*recompute=False"):
        train(home, make, SIZE)
    train(home, make, SIZE, False)


def test_numbers_drawn_in_one_of_several_branches(home):
    """tf.switch_case has a list of functions."""
    tf = home.tf
    if home.mode == "graph" or home.is_keras3:
        skips.senseless("a model's call is traced in eager mode; a branch of Keras 3 is no function of TensorFlow")

    class Own(home.keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.dense = home.keras.layers.Dense(2)

        def call(self, x):
            scale = tf.switch_case(tf.cast(tf.reduce_sum(x) > 0, "int32"), [lambda: 1.0, lambda: tf.random.uniform([])])
            return self.dense(x) * scale

    model = Own()
    model.compile(home.keras.optimizers.SGD(0.1), "mse")
    legacyga.micro_batch(model, SIZE, recompute=True)
    with pytest.raises(ValueError, match="must draw the same numbers twice.*(RandomUniform|random_uniform)"):
        model.fit(X, np.zeros((len(X), 2)), verbose=0)


# ------------------------------------------------------------------------------------------------ models, data


def test_embeddings_stay_rows(home):
    if home.mode == "graph":
        skips.senseless("eager mode")
    tf, layers, seen = home.tf, home.keras.layers, []

    def make():
        inputs = layers.Input((2,))
        model = home.keras.models.Model(inputs, layers.Dense(4)(layers.Flatten()(layers.Embedding(9, 3)(inputs))))
        optimizer = home.bare_sgd(lr=RATE)

        class Own(type(optimizer)):
            def apply_gradients(self, grads_and_vars, *args, **kwargs):
                pairs = list(grads_and_vars)
                seen.append([isinstance(gradient, tf.IndexedSlices) for gradient, _ in pairs])
                return super(Own, self).apply_gradients(pairs, *args, **kwargs)

        start(model).compile(Own.from_config(optimizer.get_config()), lambda *each: info_nce(tf, *each))
        return model, np.random.RandomState(3).randint(0, 9, (21, 2)), LABELS

    check(home, make)
    assert all(each == [True, False, False] for each in seen)


@pytest.mark.parametrize("named", [slow(False), True], ids=["lists", "dicts"])
def test_several_inputs_and_outputs(home, named):
    if named and home.mode == "graph":
        skips.senseless("graph mode feeds a list")
    import test_micro_batch

    tf, task = home.tf, test_micro_batch.Task(home, named)
    if not named and home.name == "tf.keras" and (1, 11) <= home.tf_version < (1, 13):
        task.weights = None

    def make():
        model = task.model(home, sgd(home))
        losses = [lambda *each: tf.reduce_mean(tf.square(tf.reduce_mean(each[0] - each[1], 0)))] * 2
        losses = dict(zip(("first", "second"), losses)) if named else losses
        model.compile(sgd(home), losses, loss_weights=task.loss_weights)
        return model, task.x, task.y

    check(home, make, bar=1e-5)


@pytest.mark.parametrize("part", ["train_step", "compute_loss", slow("call"), slow("head")])
def test_parts_of_ones_own(home, part):
    """A model whose class has them; the first two compute a loss that joins the samples. A head is given as a layer."""
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.keras_lacks("train_step in graph mode")
    if part == "compute_loss" and not hasattr(home.keras.Model, "compute_loss"):
        skips.keras_lacks("compute_loss")
    tf = home.tf

    class OwnStep(home.keras.Model):
        def train_step(self, data):
            if part not in ("train_step", "head"):
                return super(OwnStep, self).train_step(data)
            x, y = data[0], data[1]
            given = dict(head=self.two) if part == "head" else {}
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(supervised_contrastive(tf, y, self(x, training=True, **given)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    if part == "compute_loss":

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **kwargs):
            return tf.reduce_mean(supervised_contrastive(tf, y, y_pred))

        OwnStep.compute_loss = compute_loss

    class OwnCall(OwnStep):
        def __init__(self):
            super(OwnCall, self).__init__()
            self.one = home.keras.layers.Dense(4, activation="tanh")
            self.two = home.keras.layers.Dense(4)

        def call(self, inputs, head=None, training=None):
            return (head or self.two)(self.one(inputs))

    def make():
        if part in ("call", "head"):
            model = OwnCall()
            model(tf.zeros((2, 3)))
            start(model)
        else:
            network = embedded(home, 4)
            model = OwnStep(network.inputs, network.outputs)
        model.compile(sgd(home), lambda *each: supervised_contrastive(tf, *each))
        return model, X, LABELS

    check(home, make)


def test_a_model_of_keras_with_a_loss_of_its_own(home):
    """The Distiller of Keras 3: `compile` is given its student's loss alone."""
    if not hasattr(home.keras, "distillation"):
        skips.keras_lacks("keras.distillation")
    keras, ends = home.keras, []
    labels = np.eye(3, dtype="float32")[np.arange(len(X)) % 3]
    for size in (None, SIZE):
        dense = keras.layers.Dense
        nets = [keras.Sequential([keras.Input(X.shape[1:]), dense(4, "tanh"), dense(3)]) for _ in range(2)]
        teacher, student = [start(net, seed) for seed, net in enumerate(nets)]
        model = keras.distillation.Distiller(teacher, student, keras.distillation.LogitsDistillation(2.0))
        model.compile(sgd(home), keras.losses.CategoricalCrossentropy(from_logits=True))
        if size:
            legacyga.micro_batch(model, size)
        before = student.get_weights()
        losses = model.fit(X, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
        ends.append((student.get_weights(), losses))
    assert oracle.farthest(ends[0][0], before) > 1e-2
    assert oracle.farthest(ends[1][0], ends[0][0]) <= 4e-6
    np.testing.assert_allclose(ends[1][1], ends[0][1], rtol=1e-5)


def test_a_generator_and_its_adversary(home):
    """Two optimizers, and a gradient that passes through one model into another."""
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.keras_lacks("train_step in graph mode")
    tf, keras = home.tf, home.keras

    class Gan(keras.Model):
        def __init__(self):
            super(Gan, self).__init__()
            layers = keras.layers
            self.generator = keras.Sequential([layers.Dense(4, activation="tanh", input_shape=(3,)), layers.Dense(2)])
            self.critic = keras.Sequential([layers.Dense(4, activation="tanh", input_shape=(2,)), layers.Dense(1)])
            self.of_critic = home.bare_sgd(lr=RATE)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                scores = self.critic(tf.concat([self.generator(x), y], 0))
                loss = tf.square(tf.reduce_mean(scores[: tf.shape(x)[0]]) - 1.0) + tf.reduce_mean(tf.square(scores))
            variables = self.critic.trainable_variables
            self.of_critic.apply_gradients(zip(tape.gradient(loss, variables), variables))
            with tf.GradientTape() as tape:
                found = tf.square(tf.reduce_mean(self.critic(self.generator(x))) - 0.5)
            variables = self.generator.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(found, variables), variables))
            return {"loss": loss, "generator": found}

    if home.tf_version < (2, 4):
        skips.keras_lacks("models within a model, by name")

    def make():
        model = Gan()
        model.built = True
        for number, each in enumerate((model.generator, model.critic)):
            start(each, number)
        model.compile(home.bare_sgd(lr=RATE), "mse")
        return model, X, X[:, :2]

    check(home, make)


def test_mixed_precision(home):
    if home.mode == "graph" or home.tf_version < (2, 4):
        skips.keras_lacks("mixed precision of TF 2.4 and newer, in eager mode")
    tf, keras = home.tf, home.keras
    policy = keras.mixed_precision.set_global_policy

    def make():
        policy("mixed_float16")
        try:
            model = embedded(home, 4)
        finally:
            policy("float32")
        scaled = keras.mixed_precision.LossScaleOptimizer(home.bare_sgd(lr=RATE))
        model.compile(scaled, lambda *each: supervised_contrastive(tf, each[0], tf.cast(each[1], "float32")))
        return model, X, LABELS

    # A float16 has 11 bits.
    check_loosely(home, make)


def check_loosely(home, make):
    whole, slices = train(home, make, None), train(home, make, SIZE)
    assert oracle.farthest(whole[0], make()[0].get_weights()) > 2e-2
    assert oracle.farthest(slices[0], whole[0]) <= 2e-3
    np.testing.assert_allclose(slices[1]["loss"], whole[1]["loss"], rtol=1e-3)


# --------------------------------------------------------------------------------------------------- which is chosen


def test_a_mean_is_computed_once(home):
    def make():
        model = embedded(home)
        model.compile(sgd(home), "mse", metrics=["mae"])
        return model, X, X[:, :2]

    slices = train(home, make, SIZE)
    assert legacyga.recomputes(slices[2]) is False
    assert legacyga.recomputes(make()[0]) is None


def test_what_costs_is_told_once(home):
    tf = home.tf
    model = embedded(home)
    model.compile(sgd(home), lambda y_true, y_pred: tf.reduce_mean(tf.square(y_true - y_pred), -1))
    legacyga.micro_batch(model, SIZE)
    for times in (1, 0):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model.fit(X, X[:, :2], batch_size=BATCH, verbose=0)
        told = [str(each.message) for each in told if "computes each slice" in str(each.message)]
        assert len(told) == times
    home.reset()
    model = embedded(home)
    model.compile(sgd(home), lambda y_true, y_pred: tf.reduce_mean(tf.square(y_true - y_pred), -1))
    legacyga.micro_batch(model, SIZE, recompute=False)
    model.fit(X, X[:, :2], batch_size=BATCH, verbose=0)
    assert legacyga.recomputes(model) is False


def test_what_is_no_mean_is_refused_where_it_is_seen(home):
    has_objects(home)

    def make():
        model = embedded(home)
        model.compile(sgd(home), home.keras.losses.MeanSquaredError(reduction="sum"))
        return model, X, X[:, :2]

    with pytest.raises(ValueError, match="for a loss that is a mean over the samples. Received: .*reduction='sum'"):
        train(home, make, SIZE, False)


def pairs(home):
    """A model whose output is a matrix of all pairs of samples, and its data."""
    layers, tf = home.keras.layers, home.tf

    class Pairs(layers.Layer):
        def call(self, parts):
            return tf.matmul(parts[0], parts[1], transpose_b=True)

        def compute_output_shape(self, shapes):
            return shapes[0][0], shapes[1][0]

    inputs = [layers.Input((3,)), layers.Input((3,))]
    model = home.keras.models.Model(inputs, Pairs()([layers.Dense(5)(each) for each in inputs]))
    model.compile(sgd(home), lambda y_true, y_pred: -tf.reduce_mean(tf.nn.log_softmax(y_pred)))
    return model, [X[:16], X[5:]], np.zeros((16, 1), "float32")


@pytest.mark.parametrize("size", [4, 3])
def test_a_matrix_of_all_pairs_is_refused(home, size):
    """Also where all slices have one size, and their blocks could be joined."""
    home.reset()
    model, x, y = pairs(home)
    with pytest.raises(ValueError, match="has a row for each sample"):
        legacyga.micro_batch(model, size, recompute=True)
        model.fit(x, y, batch_size=8, verbose=0)


def test_sequences_as_long_as_slices(home):
    """Their length is no second dimension of the batch."""

    def make():
        layers = home.keras.layers
        inputs = layers.Input((None, 3))
        model = home.keras.models.Model(inputs, layers.Dense(2)(layers.Dense(4, activation="tanh")(inputs)))
        model.compile(sgd(home), lambda y_true, y_pred: dice(home.tf, y_true, y_pred))
        random = np.random.RandomState(3)
        return start(model), random.randn(16, 4, 3).astype("float32"), random.rand(16, 4, 2).astype("float32")

    check(home, make, size=4)


def test_another_word_for_recompute(home):
    model = embedded(home)
    model.compile(sgd(home), "mse")
    with pytest.raises(ValueError, match="recompute must be True, False or None. Received: 'yes'"):
        legacyga.micro_batch(model, 3, recompute="yes")


def test_the_signature():
    assert list(inspect.signature(legacyga.micro_batch).parameters) == ["model", "size", "recompute"]
