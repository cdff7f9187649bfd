"""micro_batch in programs whose models, losses and calls are out of the ordinary."""

import copy
import logging
import sys
import warnings

import numpy as np
import oracle
import pytest
import skips
from kinds import RATE
from test_micro_batch import MOMENTUM, START, X, Y, assert_close, expected, fit, sgd, start_anew  # noqa: F401
from test_recompute import pairs

import legacyga
from legacyga.fit import schedule
from legacyga.slices import checks

pytestmark = pytest.mark.capability("micro_batch")


def own_loss(y_true, y_pred):
    return (y_true - y_pred) ** 2


def compiled(home, loss="mse", **kwargs):
    model = home.network(START)
    model.compile(legacyga.MySGD(RATE, MOMENTUM, steps_per_update=1, keras=home.keras), loss, **kwargs)
    return model


@pytest.mark.parametrize("other", ["a name", "a model"])
def test_a_model_with_an_attribute_named_model(home, other):
    """Only a Sequential of Keras up to 2.1 trains what it has there."""
    network = home.network(START)
    model = home.keras.models.Model(network.inputs, network.outputs)
    model.compile(legacyga.MySGD(RATE, MOMENTUM, steps_per_update=1, keras=home.keras), "mse")
    model.model = "resnet50" if other == "a name" else home.network(START)
    legacyga.micro_batch(model, 3)
    fit(model)
    assert legacyga.micro_batch_size(model) == 3 and legacyga.recomputes(model) is False
    # The other model's weights come after its own.
    assert_close(model.get_weights()[:4], expected(oracle.SGD(RATE, MOMENTUM)))


def test_one_device_in_graph_mode(home):
    """Keras trains it in a loop of its own there, which would take whole batches."""
    strategies = getattr(home.tf, "distribute", None)
    if home.mode == "eager" or home.name == "keras" or not hasattr(strategies, "OneDeviceStrategy"):
        skips.senseless("graph mode of a Keras with strategies")
    with strategies.OneDeviceStrategy("cpu:0").scope():
        model = home.network(START)
        model.compile(home.keras.optimizers.SGD(RATE), "mse")
    with pytest.raises(ValueError, match="cannot be cut into slices under a strategy.*Received: .*OneDevice"):
        legacyga.micro_batch(model, 3)


def test_a_graph_does_not_grow(home):
    """Slices of unequal weights ask whether the loss is one number, which takes operations."""
    if home.mode == "eager":
        skips.senseless("graph mode only")
    model, counts = compiled(home), []
    legacyga.micro_batch(model, 3)
    for _ in range(3):
        model.train_on_batch(X[:8], Y[:8], sample_weight=np.arange(1.0, 9.0))
        counts.append(len(home.v1.get_default_graph().get_operations()))
    assert counts[1] == counts[2], counts


def of_each_sample(home):
    """A loss of the user's own that is a mean, of which Keras does not know it."""
    return lambda y_true, y_pred: home.tf.reduce_mean((y_true - y_pred) ** 2, -1)


def refused(home, make, reason):
    """recompute=False, which the user's own loss allows, is refused for what is beside it."""
    home.reset()
    model, x, y = make()
    legacyga.micro_batch(model, 3, recompute=False)
    with pytest.raises(ValueError, match="is for a loss that is a mean over the samples. Received: .*" + reason):
        model.fit(x, y, batch_size=8, verbose=0)


def test_a_sum_beside_a_loss_of_ones_own(home):
    if not hasattr(home.keras.losses, "MeanSquaredError"):
        skips.keras_lacks("losses that are objects")

    def make():
        inputs = home.keras.layers.Input((3,))
        model = home.keras.models.Model(inputs, [home.keras.layers.Dense(2)(inputs) for _ in range(2)])
        model.compile(sgd(home), [of_each_sample(home), home.keras.losses.MeanSquaredError(reduction="sum")])
        return model, X, [Y, Y]

    refused(home, make, "reduction='sum'")


@pytest.mark.parametrize("where", ["the class", "the object"])
def test_a_compute_loss_beside_a_loss_of_ones_own(home, where):
    if home.mode == "graph" or not hasattr(home.keras.Model, "compute_loss"):
        skips.keras_lacks("compute_loss")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **kwargs):
        return 100.0 * home.tf.reduce_mean(abs(y - y_pred))

    def make():
        attributes = {"compute_loss": compute_loss} if where == "the class" else {}
        cls = type("Own", (home.keras.Model,), attributes)
        inputs = home.keras.layers.Input((3,))
        model = cls(inputs, home.keras.layers.Dense(2)(inputs))
        if where == "the object":
            model.compute_loss = lambda **kwargs: compute_loss(None, **kwargs)
        model.compile(sgd(home), of_each_sample(home))
        return model, X, Y

    refused(home, make, "a compute_loss of the model's own")


def test_the_first_batch_builds_the_model(home, recwarn):
    """It makes the variables that the gradients are of, and TensorFlow warns of none without a gradient."""
    if home.mode == "graph":
        skips.senseless("eager mode only")

    class Own(home.keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.dense = home.keras.layers.Dense(2, kernel_initializer="ones", kernel_regularizer="l2")

        def call(self, x):
            return self.dense(x)

    ends, told, handler = [], [], logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    home.tf.get_logger().addHandler(handler)
    try:
        for size in (None, 3):
            home.reset()
            model = Own()
            model.compile(home.keras.optimizers.SGD(RATE), of_each_sample(home))
            legacyga.micro_batch(model, size, recompute=False)
            fit(model, epochs=2)
            ends.append(model.get_weights())
    finally:
        home.tf.get_logger().removeHandler(handler)
    assert not any("Gradients do not exist" in each for each in told + [str(each.message) for each in recwarn])
    for one, other in zip(*ends):
        np.testing.assert_allclose(one, other, atol=4e-6)


def test_a_model_of_keras_with_a_step_of_its_own(home):
    """It moves the weights within a step, and takes the gradient there."""
    found = getattr(getattr(home.keras, "models", None), "experimental", None)
    if home.mode == "graph" or not hasattr(found, "SharpnessAwareMinimization"):
        skips.keras_lacks("SharpnessAwareMinimization")
    ends = []
    for size in (None, 3):
        home.reset()
        model = found.SharpnessAwareMinimization(home.network(START), rho=0.5)
        model.compile(home.keras.optimizers.SGD(RATE), "mse")
        legacyga.micro_batch(model, size)
        fit(model)
        ends.append(model.get_weights())
    for one, other in zip(*ends):
        np.testing.assert_allclose(one, other, atol=4e-6)


def test_random_operations_of_other_names(home):
    if home.mode == "graph" or home.is_keras3:
        skips.senseless("eager mode of a Keras whose layers may draw by TensorFlow's operations")
    tf, layers = home.tf, home.keras.layers

    class Pool(layers.Layer):
        def call(self, x):
            return tf.nn.fractional_max_pool(x, [1.0, 1.4, 1.4, 1.0], True)[0]

    inputs = home.keras.Input((9, 9, 2))
    hidden = Pool()(layers.Conv2D(4, 2)(inputs))
    model = home.keras.Model(inputs, layers.Dense(4)(layers.Flatten()(hidden)))
    model.compile("sgd", lambda y_true, y_pred: tf.reduce_sum(tf.matmul(y_pred, y_pred, transpose_b=True) ** 2))
    legacyga.micro_batch(model, 8, recompute=True)
    with pytest.raises(ValueError, match="must draw the same numbers twice.*[Ff]ractional"):
        model.fit(np.ones((16, 9, 9, 2)), np.zeros((16, 4)), batch_size=16, verbose=0)


def test_a_call_that_reads_another_models_weights(home):
    """An encoder and a decoder with one table, each called by a train_step of the user's own."""
    if home.mode == "graph":
        skips.senseless("eager mode only")
    tf, layers = home.tf, home.keras.layers

    class Decoder(home.keras.Model):
        def __init__(self, table):
            super(Decoder, self).__init__()
            self.dense, self.table = layers.Dense(4, kernel_initializer="ones"), [lambda: table.embeddings]

        def call(self, x):
            return tf.matmul(self.dense(x), tf.convert_to_tensor(self.table[0]()), transpose_b=True)

    class Tied(home.keras.Model):
        def __init__(self):
            super(Tied, self).__init__()
            self.table = layers.Embedding(10, 4)
            self.encoder = home.keras.Sequential([layers.Input((5,)), self.table, layers.Flatten(), layers.Dense(4)])
            self.decoder = Decoder(self.table)

        def call(self, x):
            return self.decoder(self.encoder(x))

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                logits = self.decoder(self.encoder(x))
                loss = tf.reduce_mean(home.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return {"loss": loss}

    random = np.random.RandomState(3)
    x, y, ends, start = random.randint(0, 10, (16, 5)), random.randint(0, 10, (16,)), [], None
    for size in (None, 4):
        home.reset()
        model = Tied()
        model(x)
        shapes = [each.shape for each in model.get_weights()]
        start = start or [random.randn(*shape).astype("float32") for shape in shapes]
        model.set_weights(start)
        model.compile(home.keras.optimizers.SGD(0.5))
        legacyga.micro_batch(model, size)
        model.fit(x, y, batch_size=16, verbose=0)
        ends.append(model.get_weights())
    for one, other in zip(*ends):
        np.testing.assert_allclose(one, other, atol=4e-6)


def test_an_added_loss_without_a_row_for_each_sample(home):
    """Keras 3 adds it up; its parts cannot be told from those of samples."""
    if not home.is_keras3:
        skips.keras_lacks("add_loss of a vector")

    class Latents(home.keras.layers.Layer):
        def call(self, x):
            self.add_loss(home.tf.reduce_mean(x**2, axis=0))
            return x

    inputs = home.keras.Input((3,))
    hidden = Latents()(home.keras.layers.Dense(4)(inputs))
    model = home.keras.Model(inputs, home.keras.layers.Dense(2)(hidden))
    model.compile("sgd", "mse")
    legacyga.micro_batch(model, 4)
    with pytest.raises(ValueError, match="row for each sample"):
        model.fit(X[:16], Y[:16], batch_size=16, verbose=0)


def test_a_loss_of_ones_own_on_an_output_with_a_mask(home):
    """tf.keras multiplies its one number by the mean of the mask, so slices of one each would be another loss."""
    if home.mode == "graph" or home.is_keras3:
        skips.senseless("eager mode of tf.keras")
    layers, tf = home.keras.layers, home.tf
    ids = np.int32([[1, 2, 3], [1, 0, 0], [2, 2, 0], [3, 1, 2]])
    inputs = layers.Input((3,))
    model = home.keras.Model(inputs, layers.Embedding(4, 2, mask_zero=True)(inputs))
    model.compile("sgd", lambda y, found: tf.reduce_mean(tf.square(found - y)))
    legacyga.micro_batch(model, 2, recompute=False)
    with pytest.raises(ValueError, match="recompute=False is for a loss that is a mean over the samples.*mask"):
        model.fit(ids, np.ones((4, 3, 2), "float32"), batch_size=4, verbose=0)


def test_slices_end_with_a_train_step_set_on_the_model(home):
    """It has taken the place of the one that cuts, and there is nothing to undo."""
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.keras_lacks("a train_step")
    model = compiled(home)
    legacyga.micro_batch(model, 3)
    model.train_step = own = lambda data: {}
    legacyga.micro_batch(model, None)
    assert model.train_step is own and legacyga.micro_batch_size(model) is None


def test_a_number_in_place_of_auto_within_fit(home):
    if home.mode == "graph":
        skips.senseless("eager mode only")

    class Fix(home.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                legacyga.micro_batch(self.model, 3)

    model = compiled(home)
    legacyga.micro_batch(model, "auto")
    fit(model, epochs=2, callbacks=[Fix()])
    assert_close(model.get_weights(), expected(oracle.SGD(RATE, MOMENTUM), epochs=2))
    assert legacyga.micro_batch_size(model) == 3


def test_lists_that_find_their_size(home):
    if home.mode == "graph":
        skips.senseless("eager mode only")
    layers, ends = home.keras.layers, []
    for size in (None, "auto"):
        home.reset()
        inputs = [layers.Input((3,)), layers.Input((3,))]
        model = home.keras.Model(inputs, layers.Dense(2, kernel_initializer="ones")(layers.concatenate(inputs)))
        model.compile(home.keras.optimizers.SGD(RATE), "mse")
        legacyga.micro_batch(model, size)
        model.train_on_batch([X, X], Y)
        ends.append(model.get_weights())
    for one, other in zip(*ends):
        np.testing.assert_array_equal(one, other)


def test_a_call_without_a_gradient(home):
    """A model that makes integers, and one that takes a number, in a train_step of the user's own."""
    if home.mode == "graph" or home.is_keras3:
        skips.senseless("eager mode of a Keras whose models may take a number")
    tf, layers = home.tf, home.keras.layers

    class Signs(home.keras.Model):
        def call(self, x):
            return tf.cast(x > 0, "int64")

    class Scale(home.keras.Model):
        def call(self, time):
            return 1.0 / (1.0 + time)

    class Own(home.keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.signs, self.scale = Signs(), Scale()
            self.network = home.keras.Sequential([layers.Input((3,)), layers.Dense(2, kernel_initializer="ones")])

        def call(self, x):
            return self.network(x)

        def train_step(self, data):
            x, y = data
            signs = self.signs(x)
            with tf.GradientTape() as tape:
                outputs = self.network(tf.cast(signs, "float32")) * self.scale(tf.constant(1.0))
                loss = tf.reduce_mean((outputs - y) ** 2)
            variables = self.network.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return {"loss": loss}

    ends = []
    for size in (None, 3):
        home.reset()
        model = Own()
        model.compile(home.keras.optimizers.SGD(RATE))
        legacyga.micro_batch(model, size)
        fit(model)
        ends.append(model.network.get_weights())
    for one, other in zip(*ends):
        np.testing.assert_allclose(one, other, atol=4e-6)


def test_vectors_of_a_subclassed_model(home):
    """Up to TF 2.6 Keras makes columns of them."""
    if home.mode == "graph" or home.is_keras3 or home.tf_version >= (2, 7):
        skips.senseless("Keras makes no columns")

    class Own(home.keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.dense = home.keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, x):
            return self.dense(x)

    ends = []
    for size in (None, 3):
        home.reset()
        model = Own()
        model.compile(home.keras.optimizers.SGD(RATE), "mse")
        legacyga.micro_batch(model, size)
        model.fit(X[:, 0], Y[:, 0], batch_size=8, shuffle=False, verbose=0)
        ends.append(model.get_weights())
    for one, other in zip(*ends):
        np.testing.assert_allclose(one, other, atol=4e-6)


@pytest.mark.parametrize("recompute", [0, 0.0, np.False_, "yes"])
def test_recompute_is_true_or_false(home, recompute):
    """0 equals False: taken as None, it would let a loss that is no mean train in slices of a mean."""
    with pytest.raises(ValueError, match="recompute must be True, False or None. Received: "):
        legacyga.micro_batch(compiled(home), 3, recompute=recompute)


def test_a_second_pass_is_told_of_after_a_first_loss(home):
    if home.is_standalone_before(2, 2) or home.tf_version < (1, 8):
        skips.keras_lacks("one model of a Sequential through two calls of compile")
    model = compiled(home)
    legacyga.micro_batch(model, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", legacyga.AccumulationWarning)
        fit(model)
    model.compile(legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras), own_loss)
    with pytest.warns(legacyga.AccumulationWarning, match="computes each slice of .* twice"):
        fit(model)


def test_a_call_that_returns_none(home):
    if home.mode == "graph":
        skips.senseless("eager mode only")
    tf, layers = home.tf, home.keras.layers

    class Own(home.keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.dense = layers.Dense(2)

        def call(self, x):
            return self.dense(x), None

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(data[0])[0] - data[1]) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    ends = []
    for size in (None, 3):
        home.reset()
        model = Own()
        model(X)
        model.set_weights([np.full((3, 2), 0.5, "float32"), np.zeros(2, "float32")])
        model.compile(home.keras.optimizers.SGD(RATE), "mse")
        legacyga.micro_batch(model, size, recompute=None if size is None else True)
        fit(model)
        ends.append(model.get_weights())
    for one, other in zip(*ends):
        np.testing.assert_allclose(one, other, atol=4e-6)


def test_a_copy_of_a_model_that_finds_its_size(home):
    """deepcopy up to TF 2.4 copies a model's attributes. The copy trains itself, in whole batches."""
    if home.mode == "graph":
        skips.keras_lacks("deepcopy of a model")
    layers = home.keras.layers

    class Own(home.keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.dense = layers.Dense(Y.shape[1])

        def call(self, x):
            return self.dense(x)

    model = Own()
    model.compile(home.keras.optimizers.SGD(RATE), "mse")
    model.build((None,) + X.shape[1:])
    try:
        copy.deepcopy(model).fit(X, Y, verbose=0)
    except Exception:
        skips.keras_lacks("deepcopy of a model")
    legacyga.micro_batch(model, 3)
    assert legacyga.micro_batch_size(copy.deepcopy(model)) == 3
    legacyga.micro_batch(model, "auto")
    copied, before = copy.deepcopy(model), model.get_weights()
    fit(copied)
    for one, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(one, other)
    fit(model)
    for one, other in zip(copied.get_weights(), model.get_weights()):
        np.testing.assert_allclose(one, other, atol=4e-6)


def test_a_loss_without_a_gradient(home):
    """Keras tells of it, as without slices."""
    if home.mode == "eager":
        skips.senseless("graph mode only")
    told = []
    for size in (None, 3):
        home.reset()
        model = home.network(START)
        model.compile(home.bare_sgd(lr=RATE), lambda y_true, y_pred: home.backend.mean(y_true))
        if size is not None:
            legacyga.micro_batch(model, size)
        with pytest.raises(ValueError) as error:
            model.train_on_batch(X, Y)
        told.append(str(error.value).split(":")[0])
    assert told[0] == told[1]


def test_fetches_of_compile(home):
    """They run once a batch."""
    if home.mode == "eager":
        skips.senseless("graph mode only")
    counter = home.backend.variable(0.0)
    try:
        model = home.network(START)
        model.compile(home.bare_sgd(lr=RATE), "mse", fetches=[home.v1.assign_add(counter, 1.0)])
        model.train_on_batch(X, Y)
    except (TypeError, ValueError, AttributeError):
        skips.keras_lacks("fetches")
    if home.value(counter) != 1.0:
        skips.keras_lacks("fetches")
    model = compiled(home, fetches=[home.v1.assign_add(counter, 1.0)])
    legacyga.micro_batch(model, 3)
    fit(model)
    assert home.value(counter) == 1.0 + 3


def test_a_row_that_all_samples_share(home):
    """Its static size is 1, and the batch is cut all the same."""
    if home.mode == "graph":
        skips.senseless("eager mode only")
    tf, layers, sizes = home.tf, home.keras.layers, []

    class Added(home.keras.Model):
        def __init__(self):
            super(Added, self).__init__()
            self.dense = layers.Dense(2)

        def call(self, inputs):
            sizes.append(inputs[0].shape[0])
            return self.dense(inputs[0] + inputs[1])

    row = np.float32([[0.5, -0.5, 1.0]])
    ends = []
    for size in (None, 2):
        home.reset()
        model = Added()
        model((X, row))
        model.set_weights([np.full((3, 2), 0.5, "float32"), np.zeros(2, "float32")])
        model.compile(home.keras.optimizers.SGD(RATE), "mse")
        legacyga.micro_batch(model, size)
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).map(lambda x, y: ((x, tf.constant(row)), y))
        del sizes[:]
        model.fit(data, verbose=0)
        ends.append(model.get_weights())
    assert 2 in sizes
    for one, other in zip(*ends):
        np.testing.assert_allclose(one, other, atol=4e-6)


def test_pairs_after_a_batch_of_one_slice(home):
    """A batch of one slice shows no further sample, and another one must."""
    if home.mode == "eager":
        skips.senseless("graph mode only")
    model, x, y = pairs(home)
    legacyga.micro_batch(model, 4, recompute=False)
    model.train_on_batch([each[:4] for each in x], y[:4])
    with pytest.raises(ValueError, match="has a row for each sample"):
        model.train_on_batch([each[:8] for each in x], y[:8])


def test_an_error_while_the_function_is_made(home, monkeypatch):
    """Keras has made its own by then, which makes no update."""
    if home.mode == "eager":
        skips.senseless("graph mode only")
    model = compiled(home)
    legacyga.micro_batch(model, 3)

    def interrupted(*args):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(checks, "doubts_in_graph", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.train_on_batch(X[:8], Y[:8])
    fit(model)
    assert_close(model.get_weights(), expected(oracle.SGD(RATE, MOMENTUM)))


def test_a_dataset_whose_batches_end_in_none(home):
    if home.mode == "graph":
        skips.senseless("eager mode only")
    model = compiled(home)
    legacyga.micro_batch(model, "auto")
    data = home.tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).map(lambda x, y: (x, y, None))
    model.fit(data, verbose=0)
    assert_close(model.get_weights(), expected(oracle.SGD(RATE, MOMENTUM)))


def test_slicing_ends_in_a_model_with_a_step_of_its_own(home):
    if home.mode == "graph":
        skips.senseless("eager mode only")

    class Own(home.keras.Model):
        def train_step(self, data):
            return super(Own, self).train_step(data)

    inputs = home.keras.layers.Input((3,))
    model = Own(inputs, home.keras.layers.Dense(2)(inputs))
    model.compile(sgd(home), "mse")
    with pytest.raises(ValueError, match="recompute=False works only with Keras's own train_step"):
        legacyga.micro_batch(model, 3, recompute=False)
    legacyga.micro_batch(model, None, recompute=False)
    fit(model)
    assert legacyga.micro_batch_size(model) is None


def test_a_method_that_keras_does_not_call(home):
    """A helper named compute_loss is none of Keras's in graph mode, and before TF 2.8."""
    if home.mode == "eager" and (home.is_keras3 or home.tf_version >= (2, 8)):
        skips.senseless("Keras calls compute_loss")

    class Own(home.keras.models.Model):
        def compute_loss(self):
            return 0.0

    inputs = home.keras.layers.Input((3,))
    model = Own(inputs, home.keras.layers.Dense(2)(inputs))
    model.compile(sgd(home), "mse")
    legacyga.micro_batch(model, 3)
    fit(model)
    assert legacyga.recomputes(model) is False


def test_the_k_before_a_schedule_begins(home):
    """{5: 1} leaves K as it is for five epochs, and K is larger than they are."""
    optimizer = legacyga.MySGD(RATE, steps_per_update=100, keras=home.keras)
    with pytest.warns(
        legacyga.AccumulationWarning, match="gradient_accumulation_steps is to be 100, and an epoch has 10"
    ):
        schedule.check_steps_to_come([optimizer], {5: 1}, 20, 10, "flush")
    with warnings.catch_warnings():
        warnings.simplefilter("error", legacyga.AccumulationWarning)
        schedule.check_steps_to_come([optimizer], {0: 1}, 20, 10, "flush")


def test_a_package_that_cannot_be_imported(tmp_path, monkeypatch):
    """show_versions is there for what is broken, such as a Keras beside another TensorFlow."""
    from legacyga.backend import homes

    (tmp_path / "legacyga_broken.py").write_text("raise AttributeError('__internal__')\n")
    (tmp_path / "legacyga_needing.py").write_text("import legacyga_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert homes.installed_version("legacyga_missing") == "not installed"
    assert homes.installed_version("legacyga_broken").startswith("cannot be imported: ")
    assert homes.installed_version("legacyga_needing").startswith("cannot be imported: ")
    assert homes.installed_version("numpy") == sys.modules["numpy"].__version__
