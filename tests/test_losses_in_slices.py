"""Losses of public packages in slices, written from their formulas: they end as on whole batches of the same Keras."""

import numpy as np
import pytest
import skips
from kinds import MOMENTUM, RATE
from slow import slow, slow_but
from test_micro_batch import start_anew  # noqa: F401
from test_recompute import BATCH, LABELS, LOSSES, X, check, embedded, sgd, start, supervised_contrastive

import legacyga

pytestmark = pytest.mark.capability("micro_batch")


def log(tf, values):
    # TF 1.7 has no tf.math, and that of TF 1.8 no logarithm.
    return (getattr(getattr(tf, "math", None), "log", None) or tf.log)(values)


def unit(tf, values):
    return values / tf.sqrt(1e-6 + tf.reduce_sum(tf.square(values), -1, keepdims=True))


def pairs(tf, y_true):
    """Which pairs of samples have one label, without those of a sample with itself, and which have two: ones."""
    alike = tf.cast(tf.equal(y_true, tf.transpose(y_true)), "float32")
    return alike - tf.eye(tf.shape(y_true)[0]), 1 - alike


# ------------------------------------------------------------------------------------------- of pairs, and of sums


def circle(tf, y_true, y_pred, scale=4.0, margin=0.25):
    """Sun et al. 2020."""
    scores, (alike, others) = tf.matmul(unit(tf, y_pred), unit(tf, y_pred), transpose_b=True), pairs(tf, y_true)
    near = -scale * tf.stop_gradient(tf.nn.relu(1 + margin - scores)) * (scores - 1 + margin)
    far = scale * tf.stop_gradient(tf.nn.relu(scores + margin)) * (scores - margin)
    near, far = [tf.reduce_logsumexp(each, -1) for each in (near - 1e3 * (1 - alike), far - 1e3 * (1 - others))]
    return tf.nn.softplus(near + far)


def multi_similarity(tf, y_true, y_pred, alpha=2.0, beta=8.0, center=0.5, epsilon=0.1):
    """Wang et al. 2019, with the choice of pairs that are not far from the hardest."""
    scores, (alike, others) = tf.matmul(unit(tf, y_pred), unit(tf, y_pred), transpose_b=True), pairs(tf, y_true)
    hardest = tf.reduce_max(scores - 1e3 * (1 - others), -1, keepdims=True)
    least = tf.reduce_min(scores + 1e3 * (1 - alike), -1, keepdims=True)
    alike *= tf.cast(scores < hardest + epsilon, "float32")
    others *= tf.cast(scores > least - epsilon, "float32")
    near = tf.reduce_sum(alike * tf.exp(-alpha * (scores - center)), -1)
    far = tf.reduce_sum(others * tf.exp(beta * (scores - center)), -1)
    return tf.reduce_mean(log(tf, 1 + near) / alpha + log(tf, 1 + far) / beta)


def triplet_semi_hard(tf, y_true, y_pred):
    """Schroff et al. 2015: for each pair the nearest of those that are farther than its partner, else the farthest."""
    distances, (alike, others) = tf.reduce_sum(tf.square(y_pred[:, None] - y_pred[None]), -1), pairs(tf, y_true)
    farther = tf.cast(distances[:, None] > distances[:, :, None], "float32") * others[:, None]
    nearest = tf.reduce_min(distances[:, None] + 1e3 * (1 - farther), -1)
    farthest = tf.reduce_max(distances * others, -1, keepdims=True) + tf.zeros_like(distances)
    other = tf.where(tf.reduce_sum(farther, -1) > 0, nearest, farthest)
    return tf.reduce_sum(alike * tf.nn.relu(1 + distances - other)) / tf.reduce_sum(alike)


def tversky(tf, y_true, y_pred, alpha=0.3):
    """Salehi et al. 2017, of sums over the batch."""
    found, wanted = tf.sigmoid(y_pred[:, :1]), tf.cast(y_true > 0, "float32")
    both, more, less = [tf.reduce_sum(each) for each in (found * wanted, found * (1 - wanted), (1 - found) * wanted)]
    return 1 - (both + 1) / (both + alpha * more + (1 - alpha) * less + 1)


PUBLIC = {each.__name__: each for each in (circle, multi_similarity, triplet_semi_hard, tversky)}


@pytest.mark.parametrize("name", slow_but(["multi_similarity"], sorted(PUBLIC)))
def test_losses_of_pairs_and_sums(home, name):
    def make():
        model = embedded(home, 4)
        model.compile(sgd(home), lambda y_true, y_pred: PUBLIC[name](home.tf, y_true, y_pred))
        return model, X, LABELS

    check(home, make)


@pytest.mark.parametrize("name", ["Circle", "Tversky", "Dice"])
def test_losses_of_keras_3(home, name):
    if not hasattr(home.keras.losses, name):
        skips.keras_lacks("the loss " + name)

    def make():
        model = embedded(home, 4)
        unit_norm = home.keras.layers.UnitNormalization()(model.outputs[0])
        outputs = unit_norm if name == "Circle" else home.keras.layers.Activation("sigmoid")(model.outputs[0])
        model = home.keras.Model(model.inputs, outputs)
        # With its default scale, 80, the steps are so long that rounding grows.
        loss = getattr(home.keras.losses, name)(**({"gamma": 1.0} if name == "Circle" else {}))
        model.compile(sgd(home), loss)
        return model, X, LABELS.astype("int32") if name == "Circle" else (LABELS == [[0, 1, 2, 3]]).astype("float32")

    check(home, make)


def test_a_loss_along_the_samples(home):
    """Keras's own, which is no mean over the samples with this axis."""
    if home.mode == "graph" or home.tf_version < (2, 4):
        skips.keras_lacks("a loss along the samples beside weights of them")
    loss = home.keras.losses.CosineSimilarity(axis=0)

    def make():
        model = embedded(home, 4)
        model.compile(sgd(home), loss)
        return model, X, np.concatenate([X, LABELS], 1)

    check(home, make)
    model, x, y = make()
    legacyga.micro_batch(model, 3, recompute=False)
    with pytest.raises(ValueError, match="takes all samples of a batch together"):
        model.fit(x, y, batch_size=BATCH, verbose=0)


@pytest.mark.parametrize("loss", ["kullback_leibler_divergence", slow("cosine_similarity")])
def test_a_loss_over_classes_of_an_output_without_any(home, loss):
    """Its sums over the last dimension are over the samples then."""
    if home.mode == "graph":
        skips.keras_lacks("an output of one dimension, in graph mode")
    losses = home.keras.losses
    by = getattr(losses, loss, None) or (losses.kl_divergence if loss[0] == "k" else losses.CosineSimilarity())

    def make():
        layers, model = home.keras.layers, embedded(home, 1)
        vector = layers.Lambda(lambda each: home.tf.sigmoid(each[:, 0]), output_shape=())(model.outputs[0])
        model = home.keras.models.Model(model.inputs[0], vector)
        model.compile(sgd(home), by)
        return model, X, np.abs(X[:, 0])

    check(home, make)
    check(home, make, recompute=True)


@pytest.mark.parametrize("eager", [slow(True), False], ids=["run_eagerly", "traced"])
@pytest.mark.parametrize("recompute", [slow(False), True], ids=["once", "twice"])
@pytest.mark.parametrize("way", ["softmax", slow("sigmoid"), "of TensorFlow", slow("sigmoid of TensorFlow")])
def test_probabilities_that_saturate(home, way, recompute, eager):
    """Keras computes crossentropies from the logits behind them: of 0, a clipped one has no gradient."""
    if eager and (home.mode == "graph" or "TensorFlow" in way):
        skips.senseless("without a trace Keras finds no operation behind an output")
    if "sigmoid" in way and home.tf_version < (1, 15):
        skips.keras_lacks("a binary crossentropy of saturated logits: it clips")
    if way == "sigmoid of TensorFlow" and home.mode == "graph" and (2, 2) <= home.tf_version < (2, 5):
        skips.keras_lacks("a binary crossentropy of the logits of an output in graph mode, but by Keras's own sigmoid")
    tf, layers = home.tf, home.keras.layers
    x = (300.0 * X).astype("float32")

    def make():
        model = embedded(home, 3, penalty=None)
        of_tensorflow = tf.sigmoid if "sigmoid" in way else tf.nn.softmax
        last = layers.Lambda(of_tensorflow, output_shape=(3,)) if "TensorFlow" in way else layers.Activation(way)
        wide = layers.Lambda(lambda each: 300.0 * each, output_shape=(3,))(model.outputs[0])
        model = home.keras.models.Model(model.inputs[0], last(wide))
        loss = "binary_crossentropy" if "sigmoid" in way else "categorical_crossentropy"
        kwargs = dict(run_eagerly=True) if eager else {}
        model.compile(legacyga.MySGD(1e-3, steps_per_update=1, keras=home.keras), loss, **kwargs)
        return model, x, np.eye(3, dtype="float32")[LABELS[:, 0].astype("int32")]

    check(home, make, recompute=recompute)


@pytest.mark.parametrize("recompute", [None, slow(True)])
def test_float64(home, recompute):
    """A slice's share of the batch is as exact as the weights: slices of 2, 3, 3 and of 2, 3."""
    if home.name == "tf.keras" and home.tf_version < (1, 10):
        skips.keras_lacks("a floatx of another width: tf.keras compiles no model then up to TF 1.9")
    if home.mode == "graph" and home.name == "tf.keras" and home.tf_version < (2, 10) and recompute is None:
        skips.keras_lacks("a loss of float64: tf.keras computes it in float32, in graph mode up to TF 2.9")

    def make():
        layers, model = home.keras.layers, home.keras.models.Sequential()
        # The dtype by name, for another test may have set a policy.
        model.add(layers.Dense(4, activation="tanh", dtype="float64", input_shape=(3,)))
        model.add(layers.Dense(3, dtype="float64"))
        start(model).compile(sgd(home), "mse")
        return model, X.astype("float64"), np.sin(X.astype("float64"))

    home.set_floatx("float64")
    try:
        check(home, make, bar=1e-13, recompute=recompute, twice=False)
    finally:
        home.set_floatx("float32")


# ----------------------------------------------------------------------------------------------- of sequences, boxes


def ctc_data():
    random = np.random.RandomState(3)
    return random.randn(21, 6, 3).astype("float32"), random.randint(0, 3, (21, 2)).astype("float32")


def ctc(home, labels, y_pred):
    """For each sample of 2 labels and 6 steps a loss, of shape (samples, 1)."""
    tf, backend = home.tf, home.keras.backend
    if home.mode == "graph" and home.name == "tf.keras" and home.tf_version < (1, 10):
        skips.keras_lacks("ctc_batch_cost")
    ones = tf.ones_like(labels[:, :1])
    if hasattr(backend, "ctc_batch_cost"):
        return backend.ctc_batch_cost(labels, y_pred, 6 * ones, 2 * ones)
    lengths = [tf.cast(each * ones[:, 0], "int32") for each in (2, 6)]
    logits = tf.math.log(y_pred + 1e-7)
    each = tf.nn.ctc_loss(tf.cast(labels, "int32"), logits, *lengths, logits_time_major=False, blank_index=-1)
    return each[:, None]


@pytest.mark.parametrize("recompute", [None, slow(False)])
def test_ctc(home, recompute):
    x, y = ctc_data()
    y = y[:, :, None]

    def loss(y_true, y_pred):
        return ctc(home, y_true[:, :, 0], y_pred)

    def make():
        layers = home.keras.layers
        inputs = layers.Input((6, 3))
        model = start(home.keras.models.Model(inputs, layers.Dense(4, activation="softmax")(inputs)))
        model.compile(sgd(home), loss)
        return model, x, y

    check(home, make, recompute=recompute, bar=1e-5)


@pytest.mark.parametrize("recompute", [None, slow(True)])
@pytest.mark.parametrize("by", ["output", "add_loss"])
def test_ctc_within_the_model(home, by, recompute):
    """The labels are an input, as in Keras's image_ocr, whose output is the loss, and captcha_ocr, with a CTCLayer."""
    if by == "add_loss" and home.mode == "graph":
        skips.keras_lacks("compile without a loss, in most versions")
    layers, data = home.keras.layers, ctc_data()

    class CTCLayer(layers.Layer):
        def call(self, parts):
            found = ctc(home, *parts)
            if by == "output":
                return found
            self.add_loss(found if not home.is_keras3 else home.tf.reduce_mean(found))
            return parts[1]

        def compute_output_shape(self, shapes):
            return (shapes[0][0], 1) if by == "output" else shapes[1]

    def make():
        labels, inputs = layers.Input((2,)), layers.Input((6, 3))
        found = layers.Dense(4, activation="softmax")(inputs)
        model = start(home.keras.models.Model([inputs, labels], CTCLayer()([labels, found])))
        model.compile(sgd(home), *([lambda y_true, y_pred: y_pred] if by == "output" else []))
        return model, list(data), np.zeros((21, 1)) if by == "output" else None

    check(home, make, recompute=recompute, bar=1e-5, twice=None)


def anchors_with_state(tf, y_true, state):
    return tf.cast(tf.where(tf.equal(y_true[:, :, -1], state)), "int32")


def of_boxes(tf, y_true, y_pred):
    """keras-retinanet's smooth L1, of the positive anchors, which it gathers, divided by their number in the batch."""
    positive = anchors_with_state(tf, y_true, 1.0)
    far = tf.abs(tf.gather_nd(y_pred - y_true[:, :, :-1], positive))
    loss = tf.where(far < 1 / 9.0, 4.5 * tf.square(far), far - 0.5 / 9)
    return tf.reduce_sum(loss) / tf.maximum(1.0, tf.cast(tf.shape(positive)[0], "float32"))


def of_classes(tf, y_true, y_pred):
    """Its focal loss, of the anchors that are not ignored, divided by the number of the positive ones."""
    kept = tf.cast(tf.where(tf.not_equal(y_true[:, :, -1], -1.0)), "int32")
    wanted, found = [tf.gather_nd(each, kept) for each in (y_true[:, :, :-1], y_pred)]
    weight = tf.where(wanted > 0.5, 0.25 * tf.square(1 - found), 0.75 * tf.square(found))
    loss = -weight * (wanted * log(tf, found + 1e-7) + (1 - wanted) * log(tf, 1 - found + 1e-7))
    count = tf.cast(tf.shape(anchors_with_state(tf, y_true, 1.0))[0], "float32")
    return tf.reduce_sum(loss) / tf.maximum(1.0, count)


def test_a_detector(home):
    """Two outputs with a loss each; slices without a positive anchor, and a batch without one."""
    random, tf = np.random.RandomState(5), home.tf
    state = (random.rand(21, 5, 1) > 0.8).astype("float32") - (random.rand(21, 5, 1) > 0.7)
    state[8:16] = np.minimum(state[8:16], 0)
    boxes = np.concatenate([random.randn(21, 5, 4), state], 2).astype("float32")
    classes = np.concatenate([random.rand(21, 5, 2) > 0.5, state], 2).astype("float32")
    # A target has one number more than an output: Keras 2.1 and TF 1 compare them but for losses of one's own.
    losses = [lambda *each: of_boxes(tf, *each), lambda *each: of_classes(tf, *each)]

    def make():
        layers, network = home.keras.layers, embedded(home, 30)
        found = layers.Reshape((5, 6))(network.outputs[0])
        first = layers.Lambda(lambda each: each[:, :, :4], output_shape=(5, 4))(found)
        second = layers.Lambda(lambda each: tf.sigmoid(each[:, :, 4:]), output_shape=(5, 2))(found)
        model = home.keras.models.Model(network.inputs[0], [first, second])
        model.compile(sgd(home), losses)
        return model, X, [boxes, classes]

    check(home, make)


# ---------------------------------------------------------------------------------------------------- data, windows


@pytest.mark.parametrize("form", ["ragged", slow("sparse")])
def test_inputs_that_are_not_dense(home, form):
    if home.mode == "graph" or home.is_keras3 or home.tf_version < (2, 4):
        skips.senseless("tf.keras and tf_keras, in eager mode")
    tf, layers, random = home.tf, home.keras.layers, np.random.RandomState(7)
    lengths = random.randint(1, 6, 16)
    ragged = tf.RaggedTensor.from_row_lengths(random.randint(0, 9, lengths.sum()), lengths)
    sparse = tf.sparse.from_dense(random.randn(16, 4) * (random.rand(16, 4) > 0.5))
    given = ragged if form == "ragged" else tf.cast(sparse, "float32")

    def make():
        if form == "ragged":
            inputs = layers.Input((None,), ragged=True, dtype="int64")
            hidden = layers.Lambda(lambda each: tf.reduce_mean(each, 1))(layers.Embedding(9, 3)(inputs))
        else:
            inputs = layers.Input((4,), sparse=True)
            hidden = layers.Dense(3, activation="tanh")(inputs)
        hidden = layers.Lambda(lambda each: tf.ensure_shape(each, [None, 3]))(hidden)
        model = start(home.keras.models.Model(inputs, layers.Dense(4)(hidden)))
        model.compile(sgd(home), lambda *each: supervised_contrastive(tf, *each))
        return model, tf.data.Dataset.from_tensor_slices((given, LABELS[:16])).batch(BATCH), None

    check(home, make, batch_size=None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["supervised_contrastive", "dice"])
def test_in_windows(home, name):
    """K = 2: two whole batches in slices are one update, with the mean of their gradients."""

    def make():
        model = embedded(home, 4)
        windows = legacyga.MySGD(RATE, MOMENTUM, steps_per_update=2, keras=home.keras)
        if home.has_wrap_in_v1 or home.mode == "eager":
            windows = legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 2)
        model.compile(windows, lambda *each: LOSSES[name](home.tf, *each))
        return model, X, LABELS

    model = check(home, make)
    assert home.value(model.optimizer.iterations) == 3


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 3])
def test_several_steps_of_one_execution(home, steps):
    if home.mode == "graph" or home.tf_version < (2, 4) or home.is_keras3_before(3, 10):
        skips.keras_lacks("steps_per_execution that leaves a rest")

    def make():
        model = embedded(home, 4)
        model.compile(sgd(home), "mse", metrics=["mae"], steps_per_execution=steps)
        return model, X, np.repeat(LABELS, 4, 1)

    check(home, make, recompute=True)
