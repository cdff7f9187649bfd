"""micro_batch in graph mode: whose moments the optimizer goes on with, and what a batch tells."""

import gc
import warnings
import weakref

import numpy as np
import oracle
import pytest
import skips
from kinds import MOMENTUM, RATE
from slow import slow
from test_micro_batch_auto import layer_that_fails
from test_models_in_slices import largest_call

import legacyga

pytestmark = pytest.mark.capability("micro_batch")

RANDOM = np.random.RandomState(3)
X, Y = [RANDOM.randn(8, 4).astype("float32") for _ in range(2)]
START = [RANDOM.randn(4, 4).astype("float32") for _ in range(2)]


@pytest.fixture(autouse=True)
def in_graphs(home):
    if home.mode == "eager":
        skips.senseless("in eager mode an optimizer's variables are those of the model's weights")
    home.reset(plain_session=True)


def stages(home, outputs=4):
    """A model of two layers, and a function that compiles it for one of them, so that nothing races."""
    layers = home.keras.layers
    inputs = layers.Input((4,))
    one, two = layers.Dense(4, use_bias=False), layers.Dense(outputs, use_bias=False)
    model = home.keras.models.Model(inputs, two(one(inputs)))
    model.set_weights([START[0], START[1][:, :outputs]])

    def compile_for(trained, optimizer):
        for each in (one, two):
            each.trainable = each is trained
        model.compile(optimizer=optimizer, loss="mse")

    return model, one, two, compile_for


def sgd(home):
    return home.bare_sgd(lr=RATE, momentum=MOMENTUM)


def train(model, times=2):
    for _ in range(times):
        model.train_on_batch(X, Y[:, : model.output_shape[1]])


def compiled(home, loss):
    model, one, _, compile_for = stages(home)
    compile_for(one, sgd(home))
    model.compile(model.optimizer, loss)
    return model


def test_a_training_function_of_ones_own(home):
    """bert4keras's adversarial_training sets one."""
    model = compiled(home, "mse")
    model._make_train_function()
    old = model.train_function
    model.train_function = lambda inputs: old(inputs)
    before = model.get_weights()
    with pytest.raises(ValueError, match="has replaced the training function of .*right after compile"):
        legacyga.micro_batch(model, 3)
    train(model)
    assert oracle.farthest(model.get_weights(), before) > 0.01


def test_a_loss_that_can_be_called_once(home):
    """As ssd_keras's SSDLoss, which replaces its settings by tensors. Sample weights ask whether it is one number."""
    if home.name != "keras":
        skips.keras_lacks("a single call of a loss under sample weights")
    ends, weights = [], np.linspace(0.5, 2.0, len(X))
    for size in (None, 3):
        calls = []

        def loss(y_true, y_pred, calls=calls):
            calls.append(1)
            if len(calls) > 1:
                raise TypeError
            return home.backend.mean(home.backend.square(y_true - y_pred), axis=-1)

        model = compiled(home, loss)
        if size:
            legacyga.micro_batch(model, size)
        model.train_on_batch(X, Y, sample_weight=weights)
        ends.append(model.get_weights())
    assert_alike(ends)


def assert_alike(ends, bar=4e-6):
    assert any(np.abs(now - then).max() > 0.01 for now, then in zip(ends[0], START))
    for end in ends[1:]:
        assert oracle.farthest(end, ends[0]) <= bar


@pytest.mark.parametrize("order", [slow("slices after compile"), slow("slices before"), "taken off before"])
@pytest.mark.parametrize("outputs", [slow(4), 2])
def test_another_stage_begins_as_without_slices(home, order, outputs):
    """`compile` with the same optimizer: its moments begin anew, or go on, as the home has it."""
    ends = []
    for size in (None, 3):
        home.reset(plain_session=True)
        model, one, two, compile_for = stages(home, outputs)
        optimizer = sgd(home)
        compile_for(one, optimizer)
        train(model, 3)
        if size and order != "slices after compile":
            legacyga.micro_batch(model, size)
        if size and order == "taken off before":
            legacyga.micro_batch(model, None)
        compile_for(two, optimizer)
        if size and order == "slices after compile":
            legacyga.micro_batch(model, size)
        train(model)
        ends.append(model.get_weights())
    assert_alike(ends)


def test_a_training_under_way_goes_on(home):
    """In slices, in others, and without: the moments stay."""
    ends = []
    for sizes in ([None] * 3, [3, 2, None]):
        home.reset(plain_session=True)
        model, one, _, compile_for = stages(home)
        compile_for(one, sgd(home))
        train(model)
        for size in sizes:
            legacyga.micro_batch(model, size)
            train(model)
        ends.append(model.get_weights())
    assert_alike(ends)


def test_a_loss_that_only_compile_knows_by_its_name(home):
    """A string, registered within a scope: nobody knows later whether it is a mean over the samples."""
    backend = home.keras.backend

    def spread(y_true, y_pred):
        return backend.mean(backend.square(y_pred - backend.mean(y_pred, axis=0)), axis=-1)

    ends = []
    for size in (None, 3):
        home.reset(plain_session=True)
        model, _, two, _ = stages(home)
        two.trainable = False
        with home.keras.utils.CustomObjectScope({"spread": spread}):
            model.compile(optimizer=sgd(home), loss="spread")
        legacyga.micro_batch(model, size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(model)
        ends.append(model.get_weights())
    assert_alike(ends)


@pytest.mark.slow
def test_two_models_of_one_optimizer(home):
    """A model that has not trained begins without the moments of the other."""
    ends = []
    for size in (None, 3):
        home.reset(plain_session=True)
        optimizer = sgd(home)
        (first, one, _, compile_first), (second, _, two, compile_second) = stages(home), stages(home)
        compile_first(one, optimizer)
        train(first, 3)
        compile_second(two, optimizer)
        if size:
            legacyga.micro_batch(second, size)
        train(second)
        ends.append(second.get_weights())
    assert_alike(ends)


@pytest.mark.slow
def test_a_model_whose_moments_are_not_known(home):
    """The optimizer has trained another one since: a v1 optimizer knows the moments of that alone."""
    optimizer = sgd(home)
    (first, one, _, compile_first), (second, _, two, compile_second) = stages(home), stages(home)
    compile_first(one, optimizer)
    train(first)
    compile_second(two, optimizer)
    train(second)
    before = first.get_weights()
    if hasattr(optimizer, "apply_gradients"):
        legacyga.micro_batch(first, 3)
    else:
        with pytest.raises(ValueError, match="has trained with it before. Give each model an optimizer of its own"):
            legacyga.micro_batch(first, 3)
        # What is refused is not there after the next compile.
        assert not any(name.startswith("_make_") for name in vars(first))
    for now, then in zip(first.get_weights(), before):
        np.testing.assert_array_equal(now, then)
    train(first)
    assert np.abs(first.get_weights()[0] - before[0]).max() > 1e-4


@pytest.mark.slow
def test_a_training_by_fit_and_by_batches(home):
    """Each has moments of its own in TF 1.13: those of one would be lost."""
    ends = []
    for sizes in ((None, None), (3, None)):
        home.reset(plain_session=True)
        model, one, _, compile_for = stages(home)
        compile_for(one, sgd(home))
        for size in sizes:
            model.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
            train(model)
            if hasattr(model, "_make_fit_function"):
                with pytest.raises(ValueError, match="Each of fit and train_on_batch has trained"):
                    legacyga.micro_batch(model, size)
            else:
                legacyga.micro_batch(model, size)
        train(model)
        ends.append(model.get_weights())
    assert_alike(ends)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [slow(False), True])
def test_the_metrics_of_a_batch(home, weighted):
    """Of functions and of objects; by the weights of the samples, where they are asked for."""
    told, loss, kwargs = [], "mse", {}
    own = getattr(home.keras.metrics, "BinaryAccuracy", None)
    if weighted:
        kwargs["sample_weight"] = np.array([0.0, 2.0, 1.0, 0.25, 3.0, 1.0, 0.5, 4.0], "float32")
        if hasattr(home.keras.losses, "MeanSquaredError"):
            loss = home.keras.losses.MeanSquaredError()
    for size in (None, 3):
        home.reset(plain_session=True)
        metrics = ["mae", own()] if own else ["mae"]
        model, one, _, compile_for = stages(home)
        compile_for(one, sgd(home))
        model.compile(optimizer=sgd(home), loss=loss, **{"weighted_metrics" if weighted else "metrics": metrics})
        legacyga.micro_batch(model, size)
        told.append([model.train_on_batch(X, np.abs(Y) > 1, **kwargs) for _ in range(3)])
    np.testing.assert_allclose(told[1], told[0], rtol=2e-5)


@pytest.mark.parametrize("losses", [slow([None, "mse"]), ["mse", None]])
def test_an_output_without_a_loss(home, losses):
    ends, told = [], []
    for size in (None, 3):
        home.reset(plain_session=True)
        layers = home.keras.layers
        inputs = layers.Input((4,))
        hidden = layers.Dense(4, use_bias=False)(inputs)
        outputs = [layers.Lambda(lambda each: 2.0 * each)(hidden), layers.Lambda(lambda each: 3.0 * each)(hidden)]
        model = home.keras.models.Model(inputs, outputs)
        model.set_weights(START[:1])
        model.compile(optimizer=sgd(home), loss=losses)
        legacyga.micro_batch(model, size)
        told.append([model.train_on_batch(X, Y) for _ in range(2)])
        ends.append(model.get_weights())
    assert_alike(ends, 2e-5)
    np.testing.assert_allclose(told[1], told[0], rtol=1e-5)


@pytest.mark.parametrize("form", [slow("coo"), "csr"])
def test_a_sparse_matrix(home, form):
    """Of scipy, as Keras feeds it to an input that is sparse: each form, of which not every one takes a slice."""
    if not home.is_standalone_before(2, 3):
        skips.keras_lacks("a dense layer of a sparse input cannot be trained")
    import scipy.sparse as sparse

    ends = []
    for size in (None, 3):
        home.reset(plain_session=True)
        layers = home.keras.layers
        inputs = layers.Input((4,), sparse=True)
        layer = layers.Dense(4, use_bias=False)
        model = home.keras.models.Model(inputs, layer(inputs))
        model.set_weights(START[:1])
        model.compile(optimizer=sgd(home), loss="mse")
        if size:
            legacyga.micro_batch(model, size)
        for _ in range(2):
            model.train_on_batch(getattr(sparse, form + "_matrix")(X), Y)
        ends.append(model.get_weights())
    assert_alike(ends)


def test_a_scipy_matrix_of_tf_keras(home):
    """tf.keras makes a SparseTensor of it, which is not cut: an error says so."""
    if home.is_standalone or home.is_keras3 or home.mode == "eager" or home.tf_version < (1, 15):
        skips.keras_lacks("a matrix that Keras makes a SparseTensor of")
    import scipy.sparse as sparse

    layers, tf = home.keras.layers, home.tf

    class Own(layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(name="kernel", shape=(4, 2), initializer="ones")
            super(Own, self).build(shape)

        def call(self, x):
            return tf.sparse.sparse_dense_matmul(x, self.kernel)

    inputs = layers.Input((4,), sparse=True)
    model = home.keras.models.Model(inputs, Own()(inputs))
    model.compile(optimizer=sgd(home), loss="mse")
    legacyga.micro_batch(model, 3)
    with pytest.raises(ValueError, match="can cut only arrays.*Received.*SparseTensor"):
        model.train_on_batch(sparse.csr_matrix(X), np.zeros((len(X), 2)))


def test_an_optimizer_of_tensorflow_that_scales_the_loss(home):
    """As enable_mixed_precision_graph_rewrite makes it: Keras has it in an optimizer of its own."""
    found = getattr(getattr(home.v1.train, "experimental", None), "MixedPrecisionLossScaleOptimizer", None)
    if home.is_standalone or home.is_keras3 or home.mode == "eager" or found is None:
        skips.keras_lacks("MixedPrecisionLossScaleOptimizer of TF 1.15 and newer, for graph mode")
    inputs = home.keras.layers.Input((4,))
    model = home.keras.models.Model(inputs, home.keras.layers.Dense(4)(inputs))
    scale = home.v1.train.experimental.FixedLossScale(8.0)
    model.compile(found(home.v1.train.GradientDescentOptimizer(0.1), scale), "mse")
    with pytest.raises(ValueError, match="cannot be cut for an optimizer that scales the loss"):
        legacyga.micro_batch(model, 3)


def test_two_updates_in_one_training_function(home):
    """As in WideDeepModel: one of them would be lost."""
    if not hasattr(getattr(home.keras, "experimental", None), "WideDeepModel") or home.mode == "eager":
        skips.keras_lacks("WideDeepModel in graph mode")
    keras = home.keras
    linear, deep = keras.experimental.LinearModel(1), keras.models.Sequential([keras.layers.Dense(1)])
    model = keras.experimental.WideDeepModel(linear, deep)
    model.compile(sgd(home), "mse")
    legacyga.micro_batch(model, 3)
    with pytest.raises(ValueError, match="calls get_updates more than once"):
        model.train_on_batch([X, X], np.zeros((len(X), 1)))


def test_what_is_told_of_each_sample(home):
    """What a program fetches beside the loss: a known way to the predictions of a training step."""
    if not home.is_standalone_before(2, 3):
        skips.keras_lacks("metrics_tensors, of Keras up to 2.2")
    for size in (4, 3):
        home.reset(plain_session=True)
        model, one, _, compile_for = stages(home)
        compile_for(one, sgd(home))
        model.metrics_tensors.append(model.outputs[0])
        model.metrics_names.append("predicted")
        legacyga.micro_batch(model, size)
        wanted = X.dot(START[0]).dot(START[1])
        np.testing.assert_allclose(model.train_on_batch(X, Y)[1], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype, bar", [slow("float16", 4e-3), ("float64", 1e-13)])
def test_a_floatx_of_another_width(home, dtype, bar):
    """Under sample weights, which one slice has none of that count."""
    if home.name == "tf.keras" and home.tf_version < (1, 10):
        skips.keras_lacks("a floatx of another width: tf.keras compiles no model then up to TF 1.9")
    home.set_floatx(dtype)
    try:
        model = home.keras.models.Sequential()
        model.add(home.keras.layers.Dense(4, input_shape=(4,), use_bias=False))
        model.set_weights(START[:1])
        # In TF 1.13 the loss of a function is divided by the sum of the weights.
        model.compile(optimizer=home.bare_sgd(lr=RATE), loss="mse")
        legacyga.micro_batch(model, 2)
        weights = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0])
        is_divided = home.name == "tf.keras" and (1, 11) <= home.tf_version < (1, 14)
        given = dict() if is_divided else dict(sample_weight=weights)
        model.train_on_batch(X.astype(dtype), Y.astype(dtype), **given)
        counts = weights.sum() if given and _counts_weights(home) else 8
        x, y, start = [each.astype(dtype).astype("float64") for each in (X, Y, START[0])]
        off = (x.dot(start) - y) * (weights if given else np.ones(8))[:, None]
        wanted = start - RATE * x.T.dot(off) / 2 / counts
        assert np.max(np.abs(model.get_weights()[0] - wanted)) <= bar
    finally:
        home.set_floatx("float32")


def _counts_weights(home):
    """Whether a loss is divided by how many sample weights are not 0: up to Keras 2.2 and TF 1.12."""
    if home.name == "keras":
        return home.is_standalone_before(2, 3)
    return home.tf_version < (1, 13)


@pytest.mark.slow
def test_a_graph_that_is_gone(home):
    """A search over models: after clear_session no graph of before is kept."""
    graphs = []
    for _ in range(3):
        home.reset()
        model, one, _, compile_for = stages(home)
        compile_for(one, sgd(home))
        legacyga.micro_batch(model, 3)
        train(model, 1)
        graphs.append(weakref.ref(model.output.graph))
        del model, one, compile_for, _
    home.reset()
    gc.collect()
    assert [each() is not None for each in graphs] == [False] * 3


def plain_sgd(home):
    # The stock optimizers of old graphs race.
    return legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras)


def assert_as_whole(home, make, recompute, x=X, y=Y, bar=4e-6):
    """Two batches in slices of 3 end, and tell, as whole ones do."""
    ends, told = [], []
    for size in (None, 3):
        home.reset(plain_session=True)
        model = make(size)
        legacyga.micro_batch(model, size, recompute=recompute)
        told.append([model.train_on_batch(x, y) for _ in range(2)])
        ends.append(model.get_weights())
    for now, then in zip(*ends):
        assert np.abs(now - then).max() <= bar
    assert np.ravel(told[0])[0] > np.ravel(told[0])[-1]
    np.testing.assert_allclose(told[1], told[0], rtol=1e-5)
    assert legacyga.recomputes(model) is recompute


@pytest.mark.parametrize("recompute", [False, slow(True)])
@pytest.mark.parametrize("reads", ["loss", "metric", "regularizer", slow("nothing")])
def test_layers_never_run_on_the_whole_batch(home, reads, recompute):
    """Also where the loss or a metric reads what a hidden layer gives, as an autoencoder's divergence does."""
    layers, backend, seen = home.keras.layers, home.keras.backend, []
    recompute = recompute or reads == "regularizer"

    def make(size):
        del seen[:]
        inputs = layers.Input((4,))
        penalty = "l2" if reads == "regularizer" else None
        hidden = layer_that_fails(home, seen.append)(inputs)
        hidden = layers.Dense(4, use_bias=False, activity_regularizer=penalty)(hidden)
        model = home.keras.models.Model(inputs, layers.Dense(4, use_bias=False)(hidden))
        model.set_weights(START)

        def loss(y_true, y_pred):
            divergence = backend.mean(backend.square(hidden), -1) if reads == "loss" else 0.0
            return backend.mean(backend.square(y_true - y_pred), -1) + divergence

        def metric(y_true, y_pred):
            return backend.max(hidden if reads == "metric" else y_pred)

        model.compile(plain_sgd(home), loss, metrics=[metric])
        return model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_as_whole(home, make, recompute)
    assert max(seen) == 3


@pytest.mark.parametrize("recompute", [False, True])
def test_sequences_without_alignment(home, recompute):
    """The loss of CTC, which Keras has as a function for a loss of the user's own."""
    layers, random = home.keras.layers, np.random.RandomState(3)

    def loss(y_true, y_pred):
        ones = home.tf.ones_like(y_true[:, 0, :1])
        return home.keras.backend.ctc_batch_cost(y_true[:, :, 0], y_pred, 6 * ones, 2 * ones)

    def make(size):
        inputs = layers.Input((6, 4))
        model = home.keras.models.Model(inputs, layers.Dense(4, activation="softmax", use_bias=False)(inputs))
        model.set_weights(START[:1])
        model.compile(plain_sgd(home), loss)
        return model

    x, y = random.randn(8, 6, 4).astype("float32"), random.randint(0, 3, (8, 2, 1)).astype("float32")
    assert_as_whole(home, make, recompute, x, y, 2e-5)


@pytest.mark.parametrize("recompute", [False, True])
def test_embeddings_stay_rows(home, recompute):
    tf, layers, seen = home.tf, home.keras.layers, []
    optimizer = type(home.bare_sgd(lr=RATE))

    class Own(optimizer):
        def get_gradients(self, loss, params):
            found = super(Own, self).get_gradients(loss, params)
            seen.append([isinstance(each, tf.IndexedSlices) for each in found])
            return found

    def make(size):
        inputs = layers.Input((2,))
        hidden = layers.Flatten()(layers.Embedding(9, 2)(inputs))
        model = home.keras.models.Model(inputs, layers.Dense(4, use_bias=False)(hidden))
        model.set_weights([np.ones((9, 2)), START[0]])
        model.compile(Own.from_config(home.bare_sgd(lr=RATE).get_config()) if size else plain_sgd(home), "mse")
        return model

    assert_as_whole(home, make, recompute, np.random.RandomState(3).randint(0, 9, (8, 2)))
    assert seen == [[True, False]]


NUMBERS = {
    "sum": lambda keras, tf, wanted, found: keras.sum(keras.square(wanted - found)),
    "by positives": lambda keras, tf, wanted, found: (
        keras.sum(keras.square(wanted - found) * keras.cast(wanted > 0, "float32"))
        / tf.maximum(1.0, keras.sum(keras.cast(wanted > 0, "float32")))
    ),
    "sum of one number": lambda keras, tf, wanted, found: tf.reshape(keras.sum(keras.square(wanted - found)), [1, 1]),
    "root": lambda keras, tf, wanted, found: tf.sqrt(keras.mean(keras.square(wanted - found))),
    "mean": lambda keras, tf, wanted, found: keras.mean(keras.square(wanted - found)),
}


def model_that_adds(home, name, optimizer, before=()):
    """A model whose only loss is a number of `add_loss`. Its layers are those of `before`, and a dense one."""
    home.reset(plain_session=True)
    layers, backend = home.keras.layers, home.backend
    inputs, wanted = layers.Input((4,)), layers.Input((4,))
    found = inputs
    for layer in before:
        found = layer(found)
    found = layers.Dense(4, use_bias=False)(found)
    model = home.keras.models.Model([inputs, wanted], found)
    model.set_weights(START[:1])
    model.add_loss(NUMBERS[name](backend, home.tf, wanted, found))
    model.compile(optimizer(), None)
    return model


@pytest.mark.parametrize("name", [slow("sum"), "by positives", slow("sum of one number"), slow("root"), "mean"])
def test_numbers_of_add_loss(home, name):
    """Only one that is divided by the samples is computed once: the weights and the log are the whole batch's."""
    ends, logs = [], []
    for size in (None, 3):
        model = model_that_adds(home, name, lambda: legacyga.MySGD(0.02, steps_per_update=1, keras=home.keras))
        if size:
            legacyga.micro_batch(model, size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logs.append([model.train_on_batch([X, Y], None) for _ in range(3)])
        ends.append(model.get_weights())
    assert legacyga.recomputes(model) is (name != "mean")
    assert_alike(ends)
    np.testing.assert_allclose(*np.ravel(logs).reshape(2, -1), rtol=1e-5)


def test_a_number_of_add_loss_behind_a_random_layer(home):
    """As in an autoencoder that samples: a second computation would draw other numbers."""
    draw = lambda x: x + 1e-3 * home.backend.random_normal(home.backend.shape(x))  # noqa: E731
    noise = [home.keras.layers.Lambda(draw)]
    sgd = lambda: legacyga.MySGD(0.02, steps_per_update=1, keras=home.keras)  # noqa: E731
    model = model_that_adds(home, "root", sgd, noise)
    legacyga.micro_batch(model, 3)
    with pytest.raises(ValueError, match="random layers must draw the same numbers twice.* give recompute=False"):
        model.train_on_batch([X, Y], None)
    np.testing.assert_array_equal(model.get_weights()[0], START[0])


def test_each_slice_is_run_once(home):
    """With as many samples as outputs, too: a further run would draw a dropout's numbers."""
    counting, seen = largest_call(home)
    inputs = home.keras.layers.Input((4,))
    model = home.keras.models.Model(inputs, home.keras.layers.Dense(4)(counting(inputs)))
    model.compile(legacyga.MySGD(0.02, keras=home.keras), "mse")
    legacyga.micro_batch(model, 4)
    model.train_on_batch(X, Y)
    assert seen == [4, 4]


@pytest.mark.parametrize("size", [2, 100])
def test_a_window_of_batches_in_one_slice(home, size):
    """A batch weighs what divides its loss, however many slices it has."""
    ends = []
    for each in (None, size):
        optimizer = lambda: legacyga.MySGD(RATE, steps_per_update=3, keras=home.keras)  # noqa: E731
        model = model_that_adds(home, "by positives", optimizer)
        if each:
            legacyga.micro_batch(model, each, recompute=True)
        for part in (slice(0, 3), slice(3, 4), slice(4, 8)):
            model.train_on_batch([X[part], Y[part]], None)
        ends.append(model.get_weights())
    assert_alike(ends)


def test_a_number_as_the_only_output(home):
    """keras-yolo3 has such a model: two passes could cut nothing, and say so."""
    if home.name != "keras":
        skips.senseless("tf.keras refuses an output without samples itself")
    layers, backend = home.keras.layers, home.backend
    inputs, wanted = layers.Input((4,)), layers.Input((4,))
    found = layers.Dense(4, use_bias=False)(inputs)
    number = layers.Lambda(lambda each: backend.mean(backend.square(each[0] - each[1])), output_shape=(1,))
    model = home.keras.models.Model([inputs, wanted], number([found, wanted]))
    model.compile(legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras), lambda y_true, y_pred: y_pred)
    legacyga.micro_batch(model, 3)
    with pytest.raises(ValueError, match="only if it has a row for each sample.* one number.* give recompute=False"):
        model.train_on_batch([X, Y], np.zeros(8))


def test_a_shape_that_layers_and_loss_read(home):
    """Of as many numbers as a slice has samples; they are no rows."""
    layers, backend = home.keras.layers, home.backend
    inputs, shapes = layers.Input((4,)), []

    def counted(each):
        shapes.append(backend.shape(each))
        return each * backend.cast(shapes[-1][1], "float32")

    model = home.keras.models.Model(inputs, layers.Lambda(counted)(layers.Dense(4, use_bias=False)(inputs)))

    def loss(y_true, y_pred):
        return backend.sum(backend.square(y_true - y_pred)) / backend.cast(shapes[0][0], "float32")

    model.compile(legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras), loss)
    legacyga.micro_batch(model, 2, recompute=True)
    with pytest.raises(ValueError, match="join an output of several slices only if it has a row for each sample"):
        model.train_on_batch(X, Y)


@pytest.mark.parametrize("by", [slow("callback"), "micro_batch"])
def test_moving_averages_move_once_a_batch(home, by):
    """Asking for the masks of outputs must not call the layers again, which would add their updates once more."""
    ends = []
    for is_given in (False, True):
        home.reset(plain_session=True)
        layers = home.keras.layers
        inputs = layers.Input((4,))
        model = home.keras.models.Model(inputs, layers.Dense(4)(layers.BatchNormalization(momentum=0.5)(inputs)))
        random = np.random.RandomState(4)
        model.set_weights([np.asarray(random.rand(*each.shape), "float32") for each in model.get_weights()])
        # A loss that is a function: those Kerases divide it by a mask.
        optimizer = legacyga.MySGD(RATE, MOMENTUM, steps_per_update=2, keras=home.keras)
        callbacks = [legacyga.GradientAccumulationCallback()] if is_given and by == "callback" else []
        for _ in range(2):
            # The training function that is made now has the updates that were added meanwhile.
            model.compile(optimizer=optimizer, loss="mse")
            if is_given and by == "micro_batch":
                legacyga.micro_batch(model, 8)
            model.fit(X, Y, batch_size=4, shuffle=False, verbose=0, callbacks=callbacks)
        ends.append(model.get_weights())
    for now, then in zip(*ends):
        np.testing.assert_allclose(now, then, rtol=0, atol=1e-6)


@pytest.mark.parametrize("recompute", [False, True])
def test_moving_averages_move_with_each_slice(home, recompute):
    """On TF 1.13 the training function has a read in place of each write, which waits for the write alone.

    They need no pass of their own.
    """
    ends = []
    for size in (None, 4):
        home.reset(plain_session=True)
        layers = home.keras.layers
        normal, inputs = layers.BatchNormalization(momentum=0.5), layers.Input((4,))
        counting, seen = largest_call(home)
        model = home.keras.models.Model(inputs, layers.Dense(4)(normal(counting(inputs))))
        model.compile(legacyga.MySGD(0.02, steps_per_update=1, keras=home.keras), "mse")
        if size:
            legacyga.micro_batch(model, size, recompute=recompute)
        model.fit(X, Y, batch_size=8 if size else 4, epochs=1, shuffle=False, verbose=0)
        ends.append([home.value(each) for each in (normal.moving_mean, normal.moving_variance)])
    assert oracle.farthest(*ends) <= 1e-6
    assert len(seen) == (4 if recompute else 2)


def small(home):
    inputs, layers = home.keras.layers.Input((4,)), [home.keras.layers.Dense(4, use_bias=False) for _ in START]
    model = home.keras.models.Model(inputs, layers[1](layers[0](inputs)))
    model.set_weights(START)
    return model


@pytest.mark.parametrize("is_placeholder", [slow(False), True])
def test_a_rate_that_compile_feeds(home, is_placeholder):
    """By `feed_dict`, which the program may change between batches."""
    if home.mode == "eager" or home.is_standalone_before(2, 1):
        skips.senseless("graph mode, of a Keras whose compile takes a feed_dict")
    v1, ends = home.v1, []
    for size in (None, 3):
        home.reset()
        rate = v1.placeholder("float32", []) if is_placeholder else v1.placeholder_with_default(0.001, [])
        feeds, model = {rate: 0.25}, small(home)
        try:
            model.compile(v1.train.GradientDescentOptimizer(rate), "mse", feed_dict=feeds)
        except (TypeError, ValueError):
            skips.keras_lacks("feed_dict")
        if size:
            legacyga.micro_batch(model, size)
        for feeds[rate] in (0.25, 0.0625):
            model.train_on_batch(X[:8], Y[:8])
        ends.append(model.get_weights())
    assert_alike(ends)


def test_an_update_that_no_batch_changes(home):
    """One that the program adds to the model, as for an average of the weights: once a batch, as without slices."""
    if home.mode == "eager":
        skips.senseless("graph mode")
    if home.is_standalone and (home.is_standalone_before(2, 1) or not home.is_standalone_before(2, 3)):
        skips.keras_lacks("updates that a program adds to a model")
    averages = []
    for size in (None, 2):
        home.reset()
        model = small(home)
        model.compile(plain_sgd(home), "mse")
        average = home.backend.variable(0.0)
        update = home.v1.assign(average, 0.5 * average + 0.5).op
        if hasattr(model, "metrics_updates"):
            model.metrics_updates.append(update)
        else:
            model.add_update(update)
        if size:
            legacyga.micro_batch(model, size)
        for _ in range(2):
            model.train_on_batch(X[:8], Y[:8])
        averages.append(home.value(average))
    assert averages == [0.75, 0.75]


def test_one_fetch(home):
    """Keras takes an operation for a list of one."""
    if home.mode == "eager":
        skips.senseless("graph mode")
    counter, model = home.backend.variable(0.0), small(home)
    try:
        model.compile(home.bare_sgd(lr=RATE), "mse", fetches=home.v1.assign_add(counter, 1.0))
        model.train_on_batch(X[:8], Y[:8])
    except (TypeError, ValueError, AttributeError):
        skips.keras_lacks("fetches")
    if home.value(counter) != 1.0:
        skips.keras_lacks("fetches")
    legacyga.micro_batch(model, 2)
    model.train_on_batch(X[:8], Y[:8])
    assert home.value(counter) == 2.0


def test_a_get_updates_set_on_the_object(home):
    """Slices are cut around it, and `wrap` refuses it, whose copy would call the one of the original."""
    if home.mode == "eager":
        skips.senseless("graph mode")
    counter, ends = None, []
    for size in (None, 2):
        home.reset()
        layer, seen = largest_call(home)
        inputs = home.keras.layers.Input((4,))
        model = home.keras.models.Model(inputs, layer(home.keras.layers.Dense(2, kernel_initializer="ones")(inputs)))
        optimizer = home.v1_optimizers.SGD(0.1)
        counter, own = home.backend.variable(0.0), optimizer.get_updates

        def patched(loss, params, own=own, counter=counter):
            return own(loss=loss, params=params) + [home.v1.assign_add(counter, 1.0)]

        optimizer.get_updates = patched
        model.compile(optimizer, "mse")
        if size:
            legacyga.micro_batch(model, size)
        model.train_on_batch(X[:8], Y[:8, :2])
        ends.append(model.get_weights())
        assert home.value(counter) == 1.0 and max(seen) == (size or 8)
    for one, other in zip(*ends):
        np.testing.assert_allclose(one, other, atol=4e-6)
    if home.has_wrap_in_v1:
        with pytest.raises(ValueError, match="has a method get_updates that a program has set on the object"):
            legacyga.wrap(optimizer, 2)


@pytest.mark.parametrize("way", ["operation", "pair"])
def test_an_update_that_a_layer_reads(home, way):
    """Both passes read what it wrote for the last batch, as one pass does. Keras makes a pair wait for the loss."""
    if way == "pair" and not home.is_standalone:
        skips.keras_lacks("updates that are pairs")

    class Growing(home.keras.layers.Layer):
        def build(self, shape):
            self.step = self.add_weight(name="step", shape=(), initializer="ones", trainable=False)
            super(Growing, self).build(shape)

        def call(self, x):
            self.add_update([(self.step, self.step + 1.0)] if way == "pair" else home.v1.assign_add(self.step, 1.0))
            return x * self.step

        def compute_output_shape(self, shape):
            return shape

    ends = []
    for recompute in (False, True):
        home.reset()
        inputs, layer = home.keras.layers.Input((4,)), Growing()
        dense = home.keras.layers.Dense(4, use_bias=False)
        model = home.keras.models.Model(inputs, layer(dense(inputs)))
        home.backend.batch_set_value(list(zip(dense.weights, START[:1])))
        model.compile(legacyga.MySGD(0.02, steps_per_update=1, keras=home.keras), "mse")
        legacyga.micro_batch(model, 4, recompute=recompute)
        for _ in range(2):
            model.train_on_batch(X, Y)
        assert home.value(layer.step) == 3
        ends.append([home.value(dense.kernel)])
    assert_alike(ends)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_variable_that_a_layer_writes_in_its_call(home, recompute):
    """As the public DenseSN of spectral normalization: once a slice, and the second pass reads what the first has."""

    class Scaled(home.keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(name="scale", shape=(), initializer="ones", trainable=False)
            super(Scaled, self).build(shape)

        def call(self, x):
            grown = 1.5 * self.scale
            with home.tf.control_dependencies([home.v1.assign(self.scale, grown)]):
                return x * home.tf.identity(grown)

        def compute_output_shape(self, shape):
            return shape

    inputs, layer = home.keras.layers.Input((4,)), Scaled()
    dense = home.keras.layers.Dense(4, use_bias=False)
    model = home.keras.models.Model(inputs, layer(dense(inputs)))
    home.backend.batch_set_value(list(zip(dense.weights, START[:1])))
    model.compile(legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras), "mse")
    legacyga.micro_batch(model, 4, recompute=recompute)
    kernel, scale = np.array(START[0], "float64"), 1.0
    for _ in range(2):
        model.train_on_batch(X, Y)
        gradient = np.zeros_like(kernel)
        for part in (slice(0, 4), slice(4, 8)):
            scale *= 1.5
            gradient += X[part].T.dot(scale * (X[part].dot(kernel) * scale - Y[part])) * 2 / Y.size
        kernel -= RATE * gradient
        assert abs(home.value(layer.scale) - scale) < 1e-5
    assert oracle.farthest([home.value(dense.kernel)], [kernel]) <= 4e-6 < oracle.farthest([kernel], START[:1])


def test_an_update_of_the_batch_that_a_layer_reads(home):
    """As the centers of the public CenterLossLayer: both passes read the values before the batch's updates."""

    class Center(home.keras.layers.Layer):
        # Names that Keras's models and wrappers have.
        layers, layer = 3, property(lambda self: self)

        def build(self, shape):
            self.center = self.add_weight(name="center", shape=(4,), initializer="ones", trainable=False)
            super(Center, self).build(shape)

        def call(self, x):
            moved = self.center + 0.5 * (home.backend.mean(x, 0) - self.center)
            # A layer of Keras 2.0 to 2.2 takes an update for one that no input changes, if it is not told.
            self.add_update([home.v1.assign(self.center, moved)], *([x] if home.is_standalone else []))
            return x * home.backend.stop_gradient(x - self.center)

        def compute_output_shape(self, shape):
            return shape

    def run(size):
        home.reset(plain_session=True)
        inputs, layer = home.keras.layers.Input((4,)), Center()
        dense = home.keras.layers.Dense(4, use_bias=False)
        model = home.keras.models.Model(inputs, layer(dense(inputs)))
        home.backend.batch_set_value(list(zip(dense.weights, START[:1])))
        model.compile(legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras), root)
        if size:
            legacyga.micro_batch(model, size)
        model.train_on_batch(X, Y)
        return [home.value(dense.kernel)]

    def root(y_true, y_pred):
        return home.tf.sqrt(home.tf.reduce_mean(home.tf.square(y_true - y_pred)))

    assert_alike([run(None), run(2)])


def test_a_generator_that_draws_anew(home):
    """Nothing puts its state back between the two passes."""
    if home.is_standalone or home.tf_version < (2, 4):
        skips.keras_lacks("layers with a tf.random.Generator")

    class Noise(home.keras.layers.Layer):
        def build(self, shape):
            self.generator = home.tf.random.Generator.from_seed(1)
            super(Noise, self).build(shape)

        def call(self, x):
            return x * self.generator.uniform(home.tf.shape(x))

    inputs = home.keras.layers.Input((4,))
    model = home.keras.models.Model(inputs, Noise()(home.keras.layers.Dense(4, use_bias=False)(inputs)))
    model.compile(plain_sgd(home), "mse")
    legacyga.micro_batch(model, 4, recompute=True)
    with pytest.raises(ValueError, match="random layers must draw the same numbers twice"):
        model.train_on_batch(X, Y)
