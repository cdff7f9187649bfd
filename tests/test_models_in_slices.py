"""Slices of models whose call, loss or training step does more than Keras's own, against whole batches."""

import weakref

import numpy as np
import oracle
import pytest
import skips
from kinds import RATE
from slow import slow
from test_micro_batch import start_anew  # noqa: F401
from test_recompute import (
    LABELS,
    SIZE,
    X,
    check,
    dice,
    embedded,
    keras_trains,
    sgd,
    start,
    supervised_contrastive,
    train,
)

import legacyga
from legacyga.backend import features

pytestmark = pytest.mark.capability("micro_batch")

Y = np.random.RandomState(12).randn(21, 2).astype("float32")


def needs_train_step(home):
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.senseless("no train_step, or no GradientTape that a model's call may have")


def needs_activity_regularizers(home):
    needs_train_step(home)
    if home.tf_version < (2, 3):
        skips.keras_lacks("an activity_regularizer in a loop")


@pytest.mark.slow
@pytest.mark.parametrize("eager", [True, False], ids=["run_eagerly", "traced"])
def test_a_gradient_after_the_first_update(home, eager):
    """One persistent tape of a GAN: the second gradient is by the weights of the forward pass."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers

    class Gan(home.keras.Model):
        def __init__(self):
            super(Gan, self).__init__()
            self.maker = home.keras.Sequential([layers.Dense(2, activation="tanh", input_shape=(3,))])
            self.judge = home.keras.Sequential([layers.Dense(3, "tanh", input_shape=(2,)), layers.Dense(1)])
            self.other = sgd(home)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                made = self.judge(self.maker(x, training=True), training=True)
                judged = self.judge(y, training=True)
                loss = tf.reduce_mean(tf.square(judged - 1.0)) + tf.reduce_mean(tf.square(made))
                fooled = dice(tf, tf.ones_like(made), made)
            for optimizer, found, model in ((self.optimizer, loss, self.judge), (self.other, fooled, self.maker)):
                gradients = tape.gradient(found, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return {"loss": loss, "fooled": fooled}

    def make():
        model = Gan()
        model.built = True
        for number, each in enumerate((model.maker, model.judge)):
            start(each, number)
        model.compile(sgd(home), run_eagerly=eager)
        return model, X, Y

    check(home, make)


@pytest.mark.parametrize("eager", [slow(True), False], ids=["run_eagerly", "traced"])
@pytest.mark.parametrize("loss", ["mse", "supervised_contrastive"])
def test_a_tape_within_the_call(home, loss, eager):
    """A force is the gradient of an energy, by the inputs."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers

    class Force(home.keras.Model):
        def __init__(self):
            super(Force, self).__init__()
            self.inner, self.energy = layers.Dense(4, activation="tanh"), layers.Dense(1)

        def call(self, x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                energy = self.energy(self.inner(x))
            return -tape.gradient(energy, x)

    def make():
        model = Force()
        model(X[:2])
        by = loss if loss == "mse" else lambda y_true, y_pred: supervised_contrastive(tf, y_true[:, :1], y_pred)
        model.compile(sgd(home), by, run_eagerly=eager)
        return start(model), X, (X if loss == "mse" else LABELS)

    check(home, make, twice=loss != "mse")


@pytest.mark.parametrize("order", [1, slow(2)])
def test_derivatives_by_inputs(home, order):
    """A training step whose loss has them, as for a differential equation."""
    needs_train_step(home)
    tf = home.tf

    class Own(home.keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                with tf.GradientTape() as outer:
                    outer.watch(x)
                    with tf.GradientTape() as inner:
                        inner.watch(x)
                        found = self(x, training=True)
                    slope = inner.gradient(found, x)
                loss = tf.reduce_mean(tf.square(y - found)) + 0.2 * tf.reduce_mean(tf.square(slope - 1.0))
                if order == 2:
                    loss += 0.1 * tf.reduce_mean(tf.square(outer.gradient(slope, x)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    def make():
        network = embedded(home, penalty=None)
        model = Own(network.inputs, network.outputs)
        model.compile(sgd(home))
        return model, X, Y

    check(home, make)


def test_activations_outside_of_a_trace(home):
    """Each slice's go before the next slice: Keras's tape does not keep them."""
    needs_train_step(home)
    alive, most = [], []

    class Watched(home.keras.layers.Layer):
        def call(self, x):
            found = x * 2.0
            if home.tf.executing_eagerly():
                alive.append(weakref.ref(found))
                most.append(sum(each() is not None for each in alive))
            return found

    def make():
        model = embedded(home, 4, more=[Watched()])
        model.compile(sgd(home), lambda *each: supervised_contrastive(home.tf, *each), run_eagerly=True)
        return model, X, LABELS

    model, x, y = make()
    legacyga.micro_batch(model, 1)
    model.fit(x[:8], y[:8], batch_size=8, verbose=0)
    assert len(most) >= 16 and max(most) <= 3, most


@pytest.mark.parametrize("recompute", [slow(None), False])
def test_a_loss_that_reads_a_weight(home, recompute):
    """Center loss has such a penalty."""
    tf = home.tf

    def make():
        model = embedded(home)
        kernel = model.layers[-1].kernel

        def loss(y_true, y_pred):
            return tf.reduce_mean(tf.square(y_true - y_pred), -1) + 0.1 * tf.reduce_sum(tf.square(kernel))

        model.compile(sgd(home), loss)
        return model, X, Y

    check(home, make, recompute=recompute)


@pytest.mark.slow
def test_a_ragged_tensor_between_two_models(home):
    needs_train_step(home)
    if home.is_keras3 or home.tf_version < (2, 15):
        skips.keras_lacks("models that pass ragged tensors to one another")
    tf, layers = home.tf, home.keras.layers

    class Encoder(home.keras.Model):
        def __init__(self):
            super(Encoder, self).__init__()
            self.dense = layers.Dense(3, activation="tanh")

        def call(self, x):
            return x.with_flat_values(self.dense(x.flat_values))

    class Head(home.keras.Model):
        def __init__(self):
            super(Head, self).__init__()
            self.dense = layers.Dense(2)

        def call(self, x):
            return self.dense(tf.reduce_sum(x, 1))

    class Both(home.keras.Model):
        def __init__(self):
            super(Both, self).__init__()
            self.encoder, self.head = Encoder(), Head()

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.head(self.encoder(x)) - y))
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return {"loss": loss}

    lengths = np.random.RandomState(2).randint(1, 4, 21)
    values = np.random.RandomState(3).randn(lengths.sum(), 2).astype("float32")

    def make():
        x, model = tf.RaggedTensor.from_row_lengths(values, lengths), Both()
        model.head(model.encoder(x[:2]))
        model.compile(sgd(home))
        return start(model), tf.data.Dataset.from_tensor_slices((x, Y)).batch(8), None

    check(home, make, batch_size=None)


@pytest.mark.parametrize("recompute", [None, slow(True)])
def test_a_call_that_autograph_rewrites(home, recompute):
    """With an `if` over a tensor, in the call and in the loss."""
    needs_train_step(home)
    if home.is_keras3 or recompute and home.tf_version < (2, 3):
        skips.keras_lacks("AutoGraph, or losses that it rewrites")
    tf, layers = home.tf, home.keras.layers

    class Branching(layers.Layer):
        def call(self, x):
            if tf.reduce_max(x) > -5.0:
                x += 0.1 * tf.tanh(x)
            return x

    class Loss(home.keras.losses.Loss):
        def call(self, y_true, y_pred):
            found = tf.reduce_mean(tf.square(y_true - y_pred), -1)
            if tf.reduce_max(y_pred) > -5.0:
                found *= 2.0
            return found

    def make():
        model = embedded(home, more=[Branching()])
        model.compile(sgd(home), "mse" if recompute is None else Loss())
        return model, X, Y

    check(home, make, recompute=recompute, twice=False)
    if recompute:
        check(home, make, recompute=False)


@pytest.mark.parametrize("eager", [True, False], ids=["run_eagerly", "traced"])
def test_a_tensor_that_the_call_stores(home, eager):
    """It is of one slice, and the training step reads it as the batch's."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers

    class Stored(home.keras.Model):
        def __init__(self):
            super(Stored, self).__init__()
            self.inner, self.outer = layers.Dense(4, activation="tanh"), layers.Dense(2)

        def call(self, x):
            self.hidden = self.inner(x)
            return self.outer(self.hidden)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - y)) + tf.reduce_mean(tf.square(self.hidden))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    model = Stored()
    model(X[:2])
    model.compile(sgd(home), run_eagerly=eager)
    legacyga.micro_batch(model, 3)
    before = model.get_weights()
    with pytest.raises(ValueError, match="stores in an attribute belongs to one slice.*'hidden'.*Return the tensor"):
        model.fit(X, Y, batch_size=8, verbose=0)
    for now, then in zip(model.get_weights(), before):
        np.testing.assert_array_equal(now, then)


def test_a_tensor_that_a_layer_stores(home):
    """Untraced, the loss would read the last slice's."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers

    class Storing(layers.Layer):
        def call(self, x):
            self.kept = x
            return 2.0 * x

    storing = Storing()
    model = embedded(home, more=[storing])
    loss = lambda y_true, y_pred: tf.reduce_mean(tf.square(y_true - y_pred)) + tf.reduce_mean(storing.kept)  # noqa: E731
    model.compile(sgd(home), loss, run_eagerly=True)
    legacyga.micro_batch(model, 3)
    before = model.get_weights()
    with pytest.raises(ValueError, match="stores in an attribute belongs to one slice.*'kept'.*Return the tensor"):
        model.fit(X, Y, batch_size=8, verbose=0)
    for now, then in zip(model.get_weights(), before):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("eager", [slow(True), False], ids=["run_eagerly", "traced"])
def test_an_output_that_the_step_does_not_read(home, eager):
    """Its variables have no gradient, which is not one of zeros: Ftrl makes weights 0 by that."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers

    class Model(home.keras.Model):
        def __init__(self):
            super(Model, self).__init__()
            self.trunk, self.one, self.other = [layers.Dense(size, activation="tanh") for size in (4, 2, 2)]

        def call(self, x):
            return self.one(self.trunk(x)), self.other(self.trunk(x))

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True)[0] - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            pairs = [pair for pair in zip(gradients, self.trainable_variables) if pair[0] is not None]
            assert len(pairs) == 4
            self.optimizer.apply_gradients(pairs)
            return {"loss": loss}

    def make():
        model = Model()
        model(X[:2])
        optimizer = home.keras.optimizers.Ftrl(0.05)
        if hasattr(optimizer, "build"):
            optimizer.build(model.trainable_variables)
        model.compile(optimizer, run_eagerly=eager)
        return start(model), X, Y

    check(home, make)


@pytest.mark.parametrize("way", ["Keras", slow("TensorFlow")])
def test_a_sigmoid_of_one_number(home, way):
    """An output of one number is its mean over the slices, which are alike here."""
    needs_train_step(home)
    if home.is_keras3:
        skips.keras_lacks("a loss of an output without dimensions")
    tf, layers = home.tf, home.keras.layers
    sigmoid = home.keras.activations.sigmoid if way == "Keras" else tf.sigmoid

    class Model(home.keras.Model):
        def __init__(self):
            super(Model, self).__init__()
            self.rows, self.gate = layers.Dense(2), layers.Dense(1)

        def call(self, x):
            return self.rows(x), sigmoid(tf.reduce_mean(self.gate(x)))

    def make():
        model = Model()
        model(X[:2])
        model.compile(sgd(home), [home.keras.losses.MeanSquaredError(), lambda y_true, y_pred: y_pred])
        return start(model), np.ones_like(X), [np.ones_like(Y), np.ones_like(LABELS)]

    check(home, make, recompute=False)


@pytest.mark.slow
def test_a_mask_from_one_part_to_the_next(home):
    """A model whose call takes no mask finds it on its input."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers

    class Reader(home.keras.Model):
        def __init__(self):
            super(Reader, self).__init__()
            self.states, self.last = layers.LSTM(4), layers.Dense(2)

        def call(self, x):
            return self.last(self.states(x))

    class Model(home.keras.Model):
        def __init__(self):
            super(Model, self).__init__()
            self.words = home.keras.Sequential([layers.Embedding(9, 3, mask_zero=True)])
            self.reader = Reader()

        def call(self, x):
            return self.reader(self.words(x))

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.reader(self.words(x)) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    random = np.random.RandomState(5)
    x = random.randint(1, 9, (21, 5))
    x[np.arange(5) >= random.randint(1, 6, (21, 1))] = 0

    def make():
        model = Model()
        model(x[:2])
        model.compile(sgd(home))
        return start(model), x, Y

    check(home, make)


def calling(home, call, loss):
    """A model whose outputs are `call(dense, x)`, and whose `dense` learns by `loss(outputs)`."""
    tf = home.tf

    class Model(home.keras.Model):
        def __init__(self):
            super(Model, self).__init__()
            self.dense = home.keras.layers.Dense(2)

        def call(self, x):
            return call(self.dense, x)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                value = loss(self(data[0], training=True))
            kernel = self.dense.kernel
            self.optimizer.apply_gradients([(tape.gradient(value, kernel), kernel)])
            return {"loss": value}

    model = Model()
    model(X[:2])
    model.compile(sgd(home), **({"jit_compile": False} if home.is_keras3 else {}))
    return model


@pytest.mark.parametrize("size", [1, slow(3)])
def test_an_output_that_has_no_rows(home, size):
    """Of one sample it looks like a row, as the loss that transformers' models of words return."""
    needs_train_step(home)
    tf = home.tf
    number = lambda dense, x: (dense(x), tf.reshape(tf.reduce_mean(dense(x)), [1]))  # noqa: E731
    model = calling(home, number, lambda outputs: tf.reduce_sum(outputs[1]))
    legacyga.micro_batch(model, size)
    with pytest.raises(ValueError, match=r"only if it has a row for each sample. Received: .*shape=\(1,\)"):
        model.fit(X, Y, batch_size=8, verbose=0)


@pytest.mark.parametrize("rows", [4, slow(8)])
@pytest.mark.parametrize("drop_remainder", [True, slow(False)])
def test_a_table_with_as_many_rows_as_a_slice(home, drop_remainder, rows):
    """The centres of a center loss: joined, they would be there twice."""
    needs_train_step(home)
    tf = home.tf
    table = tf.ones([rows, 2])
    loss = lambda outputs: tf.reduce_mean(outputs[0]) * tf.nn.l2_loss(outputs[1])  # noqa: E731
    model = calling(home, lambda dense, x: (dense(x), 2.0 * table), loss)
    legacyga.micro_batch(model, 4)
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder)
    with pytest.raises(ValueError, match="only if it has a row for each sample"):
        model.fit(batches, verbose=0)


@pytest.mark.parametrize("size", [1, slow(3)])
def test_an_output_with_as_many_rows_as_the_data_say(home, size):
    needs_train_step(home)
    tf = home.tf
    chosen = lambda x: tf.boolean_mask(tf.repeat(x, 4, axis=0), tf.repeat(x[:, 0], 4) > 0.0)  # noqa: E731
    model = calling(home, lambda dense, x: dense(chosen(x)), lambda outputs: tf.reduce_mean(tf.square(outputs)))
    legacyga.micro_batch(model, size)
    with pytest.raises(tf.errors.InvalidArgumentError, match="only if it has a row for each sample"):
        model.fit(X, Y, batch_size=8, verbose=0)


def largest_call(home):
    """A layer that changes nothing, and a list of the numbers of samples that it was called with."""
    seen = []

    class Counting(home.keras.layers.Layer):
        def call(self, x):
            def count(samples):
                seen.append(int(samples))
                return np.int32(0)

            with home.tf.control_dependencies([home.v1.py_func(count, [home.tf.shape(x)[0]], home.tf.int32)]):
                return home.tf.identity(x)

    return Counting(), seen


@pytest.mark.parametrize("calls", ["parts", slow("parts of a part"), slow("the model and a part")])
def test_a_train_step_that_calls_parts_of_a_model_with_a_call(home, calls):
    """As contrastive models of tensorflow-similarity have it: their `call` is for those who use the trained model."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers
    counting, seen = largest_call(home)

    class Two(home.keras.Model):
        def __init__(self):
            super(Two, self).__init__()
            first = home.keras.Sequential([layers.Dense(4, activation="tanh", input_shape=(3,)), counting])
            self.backbone = first
            if calls == "parts of a part":
                inputs = layers.Input((3,))
                self.within = home.keras.Model(inputs, first(inputs))
                self.backbone = None
            self.projector = home.keras.Sequential([layers.Dense(2, input_shape=(4,))])

        def call(self, x, training=None):
            return self.projector((self.backbone or self.within)(x))

        def train_step(self, data):
            x, y = data
            first = self.backbone or self.within.layers[-1]
            with tf.GradientTape() as tape:
                hidden = first(x, training=True)
                views = [self(x, training=True) if calls == "the model and a part" else self.projector(hidden)]
                views.append(self.projector(first(2 * x, training=True)))
                loss = tf.reduce_mean(supervised_contrastive(tf, y, tf.concat(views, -1)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    def make():
        model = Two()
        model(X[:2])
        model.compile(sgd(home), **({"jit_compile": False} if home.is_keras3 else {}))
        return start(model), X, LABELS

    model = check(home, make)
    del seen[:]
    model.fit(X[:8], LABELS[:8], batch_size=8, verbose=0)
    assert max(seen) == 3, seen


def test_a_train_step_that_calls_layers_alone(home):
    """There is no call of a model that could be cut: a batch that is not cut would need the whole batch's memory."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers

    class Layers(home.keras.Model):
        def __init__(self):
            super(Layers, self).__init__()
            self.dense = layers.Dense(2)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self.dense(x)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    model = Layers()
    model(X[:2])
    model.compile(sgd(home))
    start(model)
    legacyga.micro_batch(model, 3)
    before = model.get_weights()
    with pytest.raises(ValueError, match="calls no model with a whole batch"):
        model.fit(X, Y, batch_size=8, verbose=0)
    for now, then in zip(model.get_weights(), before):
        np.testing.assert_array_equal(now, then)


def update(model, tape, loss, variables=None):
    """The end of a training step. The variables are by default those of the model."""
    variables = model.trainable_variables if variables is None else variables
    model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return {"loss": loss}


def check_class(home, cls, size=3, **kwargs):
    """`check` of a class with a train_step of its own."""

    def make():
        model = cls()
        model(X[:2])
        model.compile(sgd(home), **kwargs)
        return start(model), X, Y

    check(home, make, size=size, batch_size=7)


def dense(home, outputs=2, inputs=3, **kwargs):
    """A model within another: one layer."""
    return home.keras.Sequential([home.keras.layers.Dense(outputs, input_shape=(inputs,), **kwargs)])


@pytest.mark.parametrize("way", ["function", slow("while_loop")])
def test_a_gradient_from_outside_of_a_function(home, way):
    """The graph of the function would give no gradient of the slices, and the weights would be wrong without a word."""
    needs_train_step(home)
    tf = home.tf

    class Outside(home.keras.Model):
        def __init__(self):
            super(Outside, self).__init__()
            self.inner = dense(home)

        def call(self, x):
            return self.inner(x)

        @tf.function
        def in_function(self, x):
            return tf.reduce_mean(tf.square(self(x)))

        def in_loop(self, x):
            def body(i, found):
                return i + 1, found + tf.reduce_mean(tf.square(self(x)))

            return tf.while_loop(lambda i, _: i < 2, body, (0, 0.0))[1]

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                more = self.in_function(x) if way == "function" else self.in_loop(x)
                loss = tf.reduce_mean(tf.square(self(x) - y)) + more
            return update(self, tape, loss)

    model = Outside()
    model(X[:2])
    model.compile(sgd(home))
    start(model)
    legacyga.micro_batch(model, 3)
    before = model.get_weights()
    with pytest.raises(ValueError, match="The gradient of a model in slices must be taken where the model is called"):
        model.fit(X, Y, batch_size=7, verbose=0)
    for now, then in zip(model.get_weights(), before):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("way", [slow("train_step"), "helper"])
def test_a_gradient_within_a_function(home, way):
    """A tf.function that has both the call and the tape is no obstacle."""
    needs_train_step(home)
    tf = home.tf

    class Inside(home.keras.Model):
        def __init__(self):
            super(Inside, self).__init__()
            self.inner = dense(home)

        def call(self, x):
            return self.inner(x)

        def gradients(self, x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - y)) + tf.reduce_mean(tf.square(self(2 * x)))
            return loss, tape.gradient(loss, self.trainable_variables)

        def train_step(self, data):
            loss, gradients = self.gradients(*data)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

        if way == "train_step":
            train_step = tf.function(train_step)
        else:
            gradients = tf.function(gradients)

    def make():
        model = Inside()
        model(X[:2])
        model.compile(sgd(home))
        return start(model), X, Y

    check(home, make, batch_size=7)


@pytest.mark.parametrize("by", ["add_loss", slow("activity_regularizer")])
def test_losses_that_are_read_after_the_gradient(home, by):
    """The second computation of the slices adds losses too, each of one slice. A VQ-VAE logs its own so."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers

    class Adding(layers.Layer):
        def call(self, x):
            self.add_loss(tf.reduce_mean(tf.square(x)))
            return x

    class Trainer(home.keras.Model):
        def __init__(self):
            super(Trainer, self).__init__()
            self.inner = dense(home, 3, **({} if by == "add_loss" else {"activity_regularizer": "l2"}))
            if by == "add_loss":
                self.inner.add(Adding())
            self.added = home.keras.metrics.Mean(name="added")

        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.inner(x) - x)) + sum(self.inner.losses)
            logs = update(self, tape, loss, self.inner.trainable_variables)
            self.added.update_state(sum(self.inner.losses))
            return dict(logs, added=self.added.result())

    def make():
        model = Trainer()
        model.built = True
        start(model.inner)
        model.compile(sgd(home))
        return model, X, Y

    check(home, make, batch_size=7)


def unbuilt(home, seed, outputs, **kwargs):
    """A model within another, which the first batch builds."""
    kernel = 0.5 * np.random.RandomState(seed).randn(3, outputs)
    kernel = home.keras.initializers.Constant(kernel)
    return home.keras.Sequential([home.keras.layers.Dense(outputs, kernel_initializer=kernel, **kwargs)])


def check_unbuilt(home, make, log="loss", **kwargs):
    whole, slices = train(home, make, None, batch_size=7), train(home, make, SIZE, batch_size=7, **kwargs)
    assert abs(np.diff(whole[1][log])) > 1e-3
    np.testing.assert_allclose(slices[1][log], whole[1][log], rtol=1e-5, atol=1e-5)
    assert oracle.farthest(slices[0], whole[0]) <= 4e-6


@pytest.mark.parametrize("eager", [slow(True), False], ids=["run_eagerly", "traced"])
def test_models_that_the_first_batch_builds(home, eager):
    """A GAN in its first step: tf.keras tells no variables of a model while one within it is not built."""
    needs_train_step(home)
    tf = home.tf

    class Gan(home.keras.Model):
        def __init__(self):
            super(Gan, self).__init__()
            self.maker, self.judge = unbuilt(home, 1, 3), unbuilt(home, 2, 1)
            self.other = sgd(home)

        def train_step(self, data):
            with tf.GradientTape(persistent=True) as tape:
                made = self.maker(data[0])
                judged = tf.reduce_mean(self.judge(made)) - tf.reduce_mean(tf.square(self.judge(data[0])))
                fooled = tf.reduce_mean(tf.square(self.judge(made) - 1.0))
            for optimizer, loss, model in ((self.optimizer, judged, self.judge), (self.other, fooled, self.maker)):
                variables = model.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return {"fooled": fooled}

    def make():
        model = Gan()
        model.compile(sgd(home), run_eagerly=eager)
        return model, X, Y

    check_unbuilt(home, make, "fooled")


@pytest.mark.parametrize("recompute", [None, slow(True)])
def test_an_unbuilt_model_whose_layer_adds_a_loss(home, recompute):
    needs_activity_regularizers(home)

    class Unbuilt(home.keras.Model):
        def __init__(self):
            super(Unbuilt, self).__init__()
            self.encoder, self.decoder = unbuilt(home, 1, 3, activity_regularizer="l2"), unbuilt(home, 2, 2)

        def call(self, x):
            return self.decoder(self.encoder(x))

    def make():
        model = Unbuilt()
        model.compile(sgd(home), "mse")
        return model, X, Y

    check_unbuilt(home, make, recompute=recompute)


@pytest.mark.parametrize("name", ["encoder", slow("decoder")])
def test_one_of_two_inner_models_adds_a_loss(home, name):
    """As an autoencoder with a train_step of its own: neither inner model has all of the weights that train."""
    needs_activity_regularizers(home)
    tf = home.tf

    class Autoencoder(home.keras.Model):
        def __init__(self):
            super(Autoencoder, self).__init__()
            self.encoder = dense(home, 3, activity_regularizer="l2" if name == "encoder" else None)
            self.decoder = dense(home, 3, activity_regularizer="l2" if name == "decoder" else None)

        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.decoder(self.encoder(x)) - x)) + sum(self.encoder.losses)
                loss += sum(self.decoder.losses)
            return update(self, tape, loss, self.trainable_variables)

    def make():
        model = Autoencoder()
        model.built = True
        start(model.encoder), start(model.decoder)
        model.compile(sgd(home))
        return model, X, Y

    check(home, make, batch_size=7)


def test_a_layer_that_calls_a_model_twice(home):
    """As a Siamese network. What the first call adds to the losses is still there after the second."""
    needs_activity_regularizers(home)
    tf = home.tf

    class Siamese(home.keras.layers.Layer):
        def __init__(self):
            super(Siamese, self).__init__()
            self.encoder = dense(home, 3, activity_regularizer="l2")

        def call(self, x):
            return self.encoder(x) - self.encoder(1.5 * x)

    class Trainer(home.keras.Model):
        def __init__(self):
            super(Trainer, self).__init__()
            self.siamese = Siamese()

        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.siamese(x) - x)) + sum(self.siamese.losses)
            return update(self, tape, loss, self.siamese.encoder.trainable_variables)

    def make():
        model = Trainer()
        model.built = True
        start(model.siamese.encoder)
        model.compile(sgd(home))
        return model, X, Y

    check(home, make, batch_size=7)


def test_a_class_that_exec_makes(home):
    """Its methods have no module."""
    needs_train_step(home)
    code = "class Own(Model):\n    def train_step(self, data):\n        return super(Own, self).train_step(data)"

    def make():
        names = {"Model": home.keras.Model}
        exec(code, names)
        network = embedded(home, penalty=None)
        model = names["Own"](network.inputs, network.outputs)
        model.compile(sgd(home), "mse")
        return model, X, Y

    check(home, make)


@pytest.mark.parametrize("length", [5, None], ids=["fixed", "free"])
@pytest.mark.parametrize("recompute", [None, slow(True)])
@pytest.mark.parametrize("numbers", ["positions", slow("a weight")])
@pytest.mark.parametrize("by", ["Adam", slow("SGD")])
def test_rows_that_do_not_depend_on_the_batch(home, by, numbers, recompute, length):
    """Embeddings of positions: the whole batch has one row for each. More rows change clipping, and Keras 3's Adam."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers
    # No number comes twice, because Keras's own batch has the rows of such a number apart, too.
    ids = np.random.RandomState(4).permutation(21 * 5).reshape(21, 5).astype("int32")

    class Embedded(layers.Layer):
        def __init__(self):
            super(Embedded, self).__init__()
            self.tokens, self.places = layers.Embedding(105, 4), layers.Embedding(5, 4)
            kwargs = dict(shape=(5,), dtype="int32", trainable=False, initializer="zeros")
            self.numbers = self.add_weight(name="numbers", **kwargs) if numbers == "a weight" else None

        def call(self, x):
            numbers = tf.range(tf.shape(x)[-1]) if self.numbers is None else tf.convert_to_tensor(self.numbers)
            return self.tokens(x) + self.places(numbers)

    def make():
        inputs = layers.Input((length,), dtype="int32")
        hidden = layers.GlobalAveragePooling1D()(Embedded()(inputs))
        model = home.keras.models.Model(inputs, layers.Dense(2)(layers.Activation("tanh")(hidden)))
        random = np.random.RandomState(5)
        model.set_weights(
            [
                np.arange(5)[::-1] if each.dtype == "int32" else random.randn(*each.shape).astype("float32")
                for each in model.get_weights()
            ]
        )
        optimizer = getattr(home.keras.optimizers, by)
        optimizer = optimizer(RATE, epsilon=1e-3) if by == "Adam" else optimizer(RATE, clipnorm=0.01)
        model.compile(optimizer, "mse", **({"jit_compile": False} if home.is_keras3 else {}))
        return model, ids, Y

    # Batches of 7 have a size that is known before the run.
    check(home, make, recompute=recompute, twice=False, batch_size=7 if length else 8)


def test_rows_of_ids_that_each_slice_has_anew(home):
    """The graph does not tell that a call's counter differs from slice to slice: the run does."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers

    class Counting(home.keras.Model):
        def __init__(self):
            super(Counting, self).__init__()
            self.number = tf.Variable(0, trainable=False)
            self.places = layers.Embedding(5, 2, embeddings_initializer="zeros")

        def call(self, x):
            self.number.assign_add(1)
            return x[:, :2] + self.places(tf.reshape(self.number, [1]))

    model = Counting()
    model.compile(sgd(home), "mse", **({"jit_compile": False} if home.is_keras3 else {}))
    legacyga.micro_batch(model, 2)
    model.fit(X[:6], Y[:6], batch_size=6, verbose=0)
    moved = np.abs(np.asarray(model.places.get_weights()[0])).sum(1) > 1e-3
    assert moved.tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("row", ["numbers", slow("a weight")])
@pytest.mark.parametrize("size", [slow("unknown"), "static"])
def test_a_row_that_all_samples_share(home, row, size):
    """Numbers of positions are of shape [1, length], and so are learned embeddings of positions. No slice cuts them."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers
    counting, seen = largest_call(home)
    ids = np.random.RandomState(4).randint(0, 9, (21, 5)).astype("int32")

    class Encoder(home.keras.Model):
        def __init__(self):
            super(Encoder, self).__init__()
            self.tokens, self.places = layers.Embedding(9, 4), layers.Embedding(5, 4)

        def call(self, ids, position=None):
            return counting(self.tokens(ids)) + (self.places(position) if row == "numbers" else position)

    class Outer(home.keras.Model):
        def __init__(self):
            super(Outer, self).__init__()
            self.encoder, self.head = Encoder(), dense(home, 2, 4)
            if row == "a weight":
                self.row = self.add_weight(name="row", shape=(1, 5, 4), initializer="zeros", trainable=True)

        def call(self, x):
            position = tf.range(5)[None] if row == "numbers" else tf.convert_to_tensor(self.row)
            return self.head(tf.reduce_mean(tf.tanh(self.encoder(x, position=position)), 1))

        def train_step(self, data):
            x, y = data
            position = tf.range(5)[None]
            with tf.GradientTape() as tape:
                if row == "a weight":
                    position = tf.convert_to_tensor(self.row)
                hidden = tf.tanh(self.encoder(x, position=position))
                loss = tf.reduce_mean(tf.square(self.head(tf.reduce_mean(hidden, 1)) - y))
            return update(self, tape, loss)

    def make():
        model = Outer()
        model(ids[:2])
        model.compile(sgd(home), **({"jit_compile": False} if home.is_keras3 else {}))
        data = tf.data.Dataset.from_tensor_slices((ids, Y))
        return start(model), data.batch(7, drop_remainder=size == "static"), None

    model = check(home, make, batch_size=None)
    data = make()[1]
    del seen[:]
    model.fit(data, verbose=0)
    assert max(seen) == 3, seen


@pytest.mark.parametrize("loss", ["mse", slow("dice")])
def test_a_call_that_an_object_has(home, loss):
    """A user sets one on a model of the functional API, and a SavedModel has one."""
    needs_train_step(home)

    def make():
        model = embedded(home)
        own = model.call
        model.call = lambda inputs, training=None, mask=None: 2.0 * own(inputs)
        model.compile(sgd(home), loss if loss == "mse" else lambda *each: dice(home.tf, *each))
        return model, X, Y if loss == "mse" else LABELS

    check(home, make, twice=loss != "mse", batch_size=7)


@pytest.mark.parametrize("takes", ["nothing", slow("any")])
@pytest.mark.parametrize("is_told", [slow(True), False], ids=["training=True", "by Keras"])
def test_a_call_without_the_argument_training(home, is_told, takes):
    """Its layers ask the call in progress, which is over when the slices are computed again. The slices are equal."""
    needs_train_step(home)
    keras, tf = home.keras, home.tf

    class Plain(keras.Model):
        def __init__(self):
            super(Plain, self).__init__()
            self.first, self.normal, self.last = dense(home), keras.layers.BatchNormalization(), dense(home, 2, 2)

        def call(self, x):
            return self.last(self.normal(self.first(x)))

    class Any(Plain):
        def call(self, x, **kwargs):
            return self.last(self.normal(self.first(x)))

    Net = Any if takes == "any" else Plain

    class Told(Net):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            return update(self, tape, loss)

    ends = []
    for size in (None, 4):
        home.reset()
        model = (Told if is_told else Net)()
        model(X[:2])
        start(model)
        # Not the averages that the batch has.
        model.normal.set_weights([np.float32(value) * np.ones(2, "float32") for value in (1.5, 0.5, 3.0, 9.0)])
        model.compile(sgd(home), "mse")
        if size:
            legacyga.micro_batch(model, size, recompute=True)
        x, y = (np.concatenate([each[:4], each[:4]]) for each in (X, Y))
        model.fit(x, y[:, :2], batch_size=8, shuffle=False, verbose=0)
        ends.append([home.value(each) for each in model.trainable_weights])
    assert oracle.farthest(*ends) <= 4e-6


def views(tf, x):
    """Four of each sample."""
    return tf.concat([x, x + 0.5, 2.0 * x, -x], 0)


@pytest.mark.parametrize("data", ["views", "unequal parts", slow("points of its own")])
def test_a_train_step_that_calls_with_other_tensors_than_the_data(home, data):
    """Each call is cut by its own number of samples, whatever the data have."""
    needs_train_step(home)
    keras, tf = home.keras, home.tf
    counting, seen = largest_call(home)

    class Own(keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.inner = keras.Sequential([keras.layers.Dense(2, input_shape=(3,)), counting])

        def call(self, x):
            return self.inner(x)

        def train_step(self, batch):
            x, y = (batch[0], batch[1][:, :2]) if data == "views" else (tf.constant(X[:12]), 1.0)
            if data == "unequal parts":
                x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.inner(views(tf, x), training=True)))
                loss += tf.reduce_mean(tf.square(self.inner(x, training=True) - tf.reduce_mean(y)))
            return update(self, tape, loss)

    given = tf.data.Dataset.from_tensors((X[:12], Y[:4]) if data == "unequal parts" else 0).repeat(2)
    if data == "views":
        given = tf.data.Dataset.from_tensor_slices((X[:16], Y[:16])).batch(8, drop_remainder=True)
    ends = []
    for size in (None, 8):
        home.reset()
        model = Own()
        model(X[:2])
        model.compile(sgd(home))
        begin = start(model).get_weights()
        if size:
            legacyga.micro_batch(model, size)
        del seen[:]
        model.fit(given, epochs=2, verbose=0)
        ends.append(model.get_weights())
        assert max(seen) == (size or {"views": 32}.get(data, 48))
    assert oracle.farthest(ends[0], begin) > 1e-3
    assert oracle.farthest(*ends) <= 4e-6


def test_a_variable_that_a_model_is_called_with(home):
    """A row of the model's own that all samples share, and its gradient."""
    needs_train_step(home)
    keras, tf = home.keras, home.tf

    class Encoder(keras.Model):
        def __init__(self):
            super(Encoder, self).__init__()
            self.inner = keras.layers.Dense(2)

        def call(self, x, code=None):
            return self.inner(x) * code

    class Own(keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.encoder = Encoder()
            self.code = self.add_weight(name="code", shape=(1, 2), initializer="ones")

        def call(self, x):
            return self.encoder(x, code=self.code)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.encoder(x, code=self.code) - y))
            return update(self, tape, loss)

    check_class(home, Own)


def test_labels_of_hinge(home):
    """Keras takes 0 for -1 if all labels of the batch are 0 or 1, and here one is -1."""
    labels = np.float32([[-1.0], [1.0], [0.0], [1.0], [0.0], [0.0]])

    def make():
        model = embedded(home, 1)
        model.compile(sgd(home), "hinge")
        return model, X[:6], labels

    check(home, make, size=2, twice=features.looks_at_all_labels(home.ours), batch_size=6)


@pytest.mark.parametrize("eager", [slow(True), False], ids=["run_eagerly", "traced"])
def test_a_call_that_an_attribute_switches(home, eager):
    """As one batch normalization for each domain; and one call as in inference before the one that trains."""
    needs_train_step(home)
    keras, tf = home.keras, home.tf

    class Net(keras.Model):
        def __init__(self):
            super(Net, self).__init__()
            self.first, self.other, self.last = dense(home), dense(home), dense(home, 2, 2)
            self.normal, self.domain = keras.layers.BatchNormalization(), "source"

        def call(self, x):
            hidden = self.first(x) if self.domain == "source" else tf.square(self.other(x))
            return self.last(self.normal(hidden))

    class Own(Net):
        def train_step(self, data):
            x, y = data
            wanted = tf.stop_gradient(self(x, training=False)) + y
            with tf.GradientTape() as tape:
                self.domain = "target"
                loss = tf.reduce_mean(tf.square(self(-x, training=True) - wanted))
                self.domain = "source"
                loss += tf.reduce_mean(tf.square(self(x, training=True) - wanted))
            return update(self, tape, loss)

    ends = []
    for size in (None, 4):
        home.reset()
        model = Own()
        for model.domain in ("target", "source"):
            model(X[:2])
        start(model)
        model.normal.set_weights([np.float32(value) * np.ones(2, "float32") for value in (1.5, 0.5, 3.0, 9.0)])
        model.compile(sgd(home), "mse", run_eagerly=eager)
        if size:
            legacyga.micro_batch(model, size)
        x, y = (np.concatenate([each[:4], each[:4]]) for each in (X, Y))
        # One update: the averages that slices move more often are read from the second one on.
        model.fit(x, y[:, :2], batch_size=8, shuffle=False, verbose=0)
        assert model.domain == "source"
        ends.append([home.value(each) for each in model.trainable_weights])
    assert oracle.farthest(*ends) <= 4e-6


@pytest.mark.parametrize("is_float", [False, slow(True)], ids=["int", "float"])
def test_an_attribute_that_switches_after_a_batch(home, is_float):
    """What a call does is found by a trace for each kind of call, and the attribute makes another kind."""
    needs_train_step(home)
    keras, tf = home.keras, home.tf

    class Net(keras.Model):
        def __init__(self):
            super(Net, self).__init__()
            self.last, self.normal, self.phase = dense(home), keras.layers.BatchNormalization(momentum=0.5), 1

        def call(self, x, training=None):
            return self.last(self.normal(x, training=training) if self.phase else x)

    ends = []
    for begins in (1, 0):
        home.reset()
        model = Net()
        model(X[:2])
        start(model)
        model.compile(sgd(home), lambda y, p: tf.sqrt(tf.reduce_mean(tf.square(y - p))), run_eagerly=True)
        legacyga.micro_batch(model, 4, recompute=True)
        before = model.get_weights()
        for phase in (begins, 1):
            model.phase = float(phase) if is_float else phase
            model.set_weights(before)
            model.fit(X[:8], Y[:8], batch_size=8, shuffle=False, verbose=0)
        ends.append([home.value(each) for each in model.weights])
    assert oracle.farthest(*ends) <= 4e-6


@pytest.mark.parametrize("where", ["compute_metrics", "a penalty"])
def test_a_second_call_in_the_step_of_keras(home, where):
    """It gets its own arguments and mode: after the update, or on other samples."""
    needs_train_step(home)
    tf, keras = home.tf, home.keras
    if where == "compute_metrics" and not hasattr(keras.Model, "compute_metrics"):
        skips.keras_lacks("compute_metrics")
    if where == "a penalty" and (home.is_keras3 or home.tf_version < (2, 4)):
        skips.keras_lacks("a function as a loss of a model")

    class Own(keras.Model):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            told = super(Own, self).compute_metrics(x, y, y_pred, sample_weight)
            return dict(told, clean=tf.reduce_mean(tf.square(y - self(x, training=False))))

    def make():
        network = embedded(home)
        model = Own(network.inputs, network.outputs) if where == "compute_metrics" else network
        if where == "a penalty":
            model.add_loss(lambda: tf.reduce_mean(tf.square(model(tf.constant(10 * X[:5])))))
        model.compile(sgd(home), "mse")
        return model, X, Y

    check(home, make, twice=False)


def test_a_shared_row_as_the_first_input(home):
    """Without targets the first input that has a row for each sample tells their number."""
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers

    class Own(home.keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.dense = layers.Dense(2)

        def call(self, inputs):
            row, x = inputs
            found = self.dense(x + row)
            self.add_loss(tf.reduce_mean(tf.square(found)))
            return found

    def make():
        model = Own()
        row = tf.constant([[0.5, -0.5, 1.0]])
        model((row, X[:2]))
        model.compile(sgd(home))
        return start(model), tf.data.Dataset.from_tensor_slices(X).batch(8).map(lambda x: ((row, x),)), None

    if not keras_trains(home, make, batch_size=None):
        skips.keras_lacks("a model without targets")
    check(home, make, batch_size=None, twice=None)


def test_a_training_function_of_ones_own_stays(home):
    """Set on the object. It calls the model's train_step, as docs/micro_batch.md asks."""
    needs_train_step(home)
    model, calls = embedded(home), []
    model.compile(sgd(home), "mse")

    def own(*args, **kwargs):
        calls.append(1)
        return type(model).make_train_function(model, *args, **kwargs)

    model.make_train_function = own
    for size in (None, 4, "auto", 4, None):
        legacyga.micro_batch(model, size)
        del calls[:]
        model.fit(X[:8], Y[:8], batch_size=8, epochs=1, verbose=0)
        assert calls
        assert (model.make_train_function is own) is (size != "auto")


def test_a_train_step_of_a_class_that_is_a_tf_function(home):
    """Each model has a function of its own, for a tf.function may make variables only once."""
    needs_train_step(home)
    tf = home.tf

    class Own(home.keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.last = dense(home)

        def call(self, x):
            return self.last(x)

        @tf.function
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(data[0], training=True) - data[1]))
            return update(self, tape, loss)

    ends = []
    for size in (None, 4, 4):
        home.reset()
        model = Own()
        model(X[:2])
        start(model)
        model.compile(sgd(home))
        if size:
            legacyga.micro_batch(model, size)
        model.fit(X[:8], Y[:8], batch_size=8, shuffle=False, verbose=0)
        ends.append([home.value(each) for each in model.weights])
    assert oracle.farthest(ends[0], ends[1]) <= 4e-6
    assert oracle.farthest(ends[0], ends[2]) <= 4e-6


@pytest.mark.parametrize("eager", [True, slow(False)], ids=["run_eagerly", "traced"])
def test_a_branch_that_is_built_by_its_first_slice(home, eager):
    """A layer that an attribute switches on: the same arguments have been seen before, without it."""
    needs_train_step(home)
    keras, tf = home.keras, home.tf

    class Own(keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.one, self.other, self.last = (keras.layers.Dense(2, kernel_initializer="ones") for _ in range(3))
            self.is_other = False

        def call(self, x):
            return self.last(self.other(x) if self.is_other else self.one(x))

        def train_step(self, data):
            x, y = data[:2]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
                self.is_other = True
                loss += tf.reduce_mean(tf.square(self(-x, training=True) - y))
                self.is_other = False
            return update(self, tape, loss)

    ends = []
    for size in (None, 4):
        home.reset()
        model = Own()
        model.compile(sgd(home), "mse", run_eagerly=eager)
        if size:
            legacyga.micro_batch(model, size)
        model.fit(X[:16], Y[:16], batch_size=8, shuffle=False, verbose=0)
        ends.append([home.value(each) for each in model.trainable_weights])
    assert len(ends[0]) == 6 and oracle.farthest(ends[0][:1], [np.ones((3, 2))]) > 1e-3
    assert oracle.farthest(*ends) <= 4e-6


@pytest.mark.parametrize("eager", [slow(True), False], ids=["run_eagerly", "traced"])
def test_parts_that_are_built_before_the_gradient(home, eager):
    """What was None at the call and is an object at the gradient stays; so does what the step itself has set."""
    needs_train_step(home)
    keras, tf = home.keras, home.tf

    class Own(keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.encoder = keras.Sequential([keras.layers.Dense(4)])
            self.normal, self.last, self.found = keras.layers.BatchNormalization(), keras.layers.Dense(1), None

        def call(self, x):
            return self.encoder(x)

        def train_step(self, data):
            x, y = data[:2]
            with tf.GradientTape() as tape:
                self.found = self(x, training=True)
                loss = tf.reduce_mean(tf.square(self.last(self.normal(self.found, training=True)) - y[:, :1]))
            logs = update(self, tape, loss)
            assert self.found is not None
            self.found = None
            return logs

    model = Own()
    model.compile(sgd(home), run_eagerly=eager)
    legacyga.micro_batch(model, 4)
    model.fit(X[:20], Y[:20], batch_size=8, epochs=2, verbose=0)
    before = [home.value(each) for each in model.trainable_weights]
    assert len(before) == 6
    model.last(model.normal(model(X[:3])))
    model.train_on_batch(X[:6], Y[:6])
    assert oracle.farthest(before, [home.value(each) for each in model.trainable_weights]) > 1e-4


def test_a_stateless_call(home):
    """Keras 3's `stateless_call` takes other weights than the model's: they get the gradient."""
    if not home.is_keras3:
        skips.senseless("Keras 3 only")
    keras, tf = home.keras, home.tf

    class Own(keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.net = dense(home)

        def call(self, x):
            return self.net(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.net(x) - y))
                fast = [0.5 * tf.convert_to_tensor(each) for each in self.net.trainable_variables]
                found, _ = self.net.stateless_call(fast, [], x)
                loss += tf.reduce_mean(tf.square(found + y))
            return update(self, tape, loss)

    check_class(home, Own)


def test_a_penalty_in_a_batch_of_one_slice(home):
    needs_train_step(home)
    keras, tf = home.keras, home.tf

    class Own(keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.inner, self.activity_regularizer = keras.layers.Dense(2), keras.regularizers.get("l2")

        def call(self, x):
            return self.inner(x)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(data[0], training=True) - data[1])) + tf.add_n(self.losses)
            return update(self, tape, loss)

    check_class(home, Own, size=7, run_eagerly=True)


@pytest.mark.parametrize("loss", ["dice", "mse"])
@pytest.mark.parametrize("has", ["a __call__", slow("a penalty")])
def test_what_the_models_own_call_method_does(home, has, loss):
    """Once, whatever slices do within it."""
    needs_train_step(home)
    keras = home.keras

    class Own(keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.inner = keras.layers.Dense(2)
            if has == "a penalty":
                self.activity_regularizer = keras.regularizers.get("l2")

        def __call__(self, x, *args, **kwargs):
            outputs = super(Own, self).__call__(x / 2.0 if has == "a __call__" else x, *args, **kwargs)
            return outputs * 2.0 if has == "a __call__" else outputs

        def call(self, x):
            return self.inner(x)

    def make():
        model = Own()
        model(X[:2])
        model.compile(sgd(home), loss if loss == "mse" else lambda y, p: dice(home.tf, y, p))
        return start(model), X, np.abs(Y)

    check(home, make, batch_size=7)


def test_an_activity_regularizer_that_is_a_mean(home):
    """Keras 3 up to 3.13 does not divide it by the samples."""
    if not home.is_keras3_before(3, 14):
        skips.senseless("homes that do not divide an activity_regularizer by the samples")

    def make():
        inputs = home.keras.Input((3,))
        layer = home.keras.layers.Dense(4, activity_regularizer=lambda x: home.tf.reduce_mean(home.tf.square(x)))
        model = home.keras.Model(inputs, home.keras.layers.Dense(2)(layer(inputs)))
        model.compile(sgd(home), "mse")
        return start(model), X, Y

    check(home, make, twice=False)


def test_a_gradient_of_a_gradient_under_xla(home):
    """As in a gradient penalty. XLA must know how often the loop over the slices runs."""
    needs_train_step(home)
    if home.tf_version < (2, 8):
        skips.keras_lacks("jit_compile: from TF 2.8 on")
    tf = home.tf

    class Own(home.keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.inner, self.outer = home.keras.layers.Dense(4, activation="tanh"), home.keras.layers.Dense(2)

        def call(self, x):
            return self.outer(self.inner(x))

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    outputs = self(x, training=True)
                slope = inner.gradient(outputs, x)
                loss = tf.reduce_mean(tf.square(outputs - y)) + tf.reduce_mean(tf.square(slope))
            return update(self, tape, loss)

    check_class(home, Own, jit_compile=True)


@pytest.mark.parametrize("normalizes", [False, True])
def test_a_part_that_is_frozen_during_the_forward_pass(home, normalizes):
    """As the judge of a GAN is while the maker trains. A frozen BatchNormalization takes its averages."""
    needs_train_step(home)
    tf, keras = home.tf, home.keras

    class Gan(home.keras.Model):
        def __init__(self):
            super(Gan, self).__init__()
            self.maker, self.judge = dense(home), dense(home, 1, 2)
            if normalizes:
                inputs = keras.Input((2,))
                self.judge = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.BatchNormalization()(inputs)))

        def call(self, x):
            return self.judge(self.maker(x))

        def train_step(self, data):
            x, _ = data
            self.judge.trainable = False
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.softplus(-self.judge(self.maker(x), training=True)))
            self.judge.trainable = True
            return update(self, tape, loss, self.maker.trainable_variables)

    def make():
        model = Gan()
        model(X[:2])
        model.compile(sgd(home))
        start(model)
        # A variance is no negative number.
        model.set_weights([np.abs(each) for each in model.get_weights()])
        return model, X, Y

    check(home, make, batch_size=7)


@pytest.mark.parametrize("eager", [slow(True), False], ids=["run_eagerly", "traced"])
def test_a_variable_that_is_assigned_before_the_gradient(home, eager):
    """The gradient is by the value that the forward pass has read."""
    needs_train_step(home)
    tf = home.tf

    class Annealed(home.keras.Model):
        def __init__(self):
            super(Annealed, self).__init__()
            self.inner = dense(home)
            self.heat = self.add_weight(name="heat", shape=(), initializer="ones", trainable=False)

        def call(self, x):
            return self.inner(x) / tf.convert_to_tensor(self.heat)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - y))
            self.heat.assign(self.heat * 1.25)
            return update(self, tape, loss)

    def make():
        model = Annealed()
        model(X[:2])
        model.compile(sgd(home), run_eagerly=eager)
        model.inner.set_weights(start(dense(home)).get_weights())
        return model, X, Y

    check(home, make, batch_size=7)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another output"])
@pytest.mark.parametrize("shapes", [((1, 4), (4,)), slow(((4,), (1, 4))), slow(((5, 1), ()))], ids=str)
def test_targets_that_are_broadcast_to_pairs_of_samples(home, shapes, beside):
    """As where a Flatten was forgotten: the loss compares all samples with all. Another output may fit the target."""
    if home.mode == "graph":
        skips.senseless("graph mode")
    needs_train_step(home)
    output, target = shapes
    layers, fits = home.keras.layers, beside and np.prod(output) == np.prod(target)

    def make():
        inputs = layers.Input((3,))
        hidden = layers.Dense(int(np.prod(output)), activation="tanh")(inputs)
        outputs = [layers.Reshape(output)(hidden)] + ([layers.Reshape(target)(hidden)] if fits else [])
        model = home.keras.Model(inputs, outputs if fits else outputs[0])
        model.compile(sgd(home), "mean_absolute_error")
        y = np.random.RandomState(7).randn(len(X), *target).astype("float32")
        return start(model), X, [y, y] if fits else y

    check(home, make, batch_size=5, size=2)


@pytest.mark.parametrize("recompute", [slow(None), True])
def test_batches_of_unknown_rank(home, recompute):
    """A generator's, of which a program gives the types alone."""
    if home.is_keras3:
        skips.keras_lacks("batches of unknown rank")
    if home.mode == "graph":
        skips.senseless("graph mode")
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers
    y = np.random.RandomState(7).randn(len(X), 2).astype("float32")

    def batches():
        for i in range(0, len(X), 5):
            yield X[i : i + 5], y[i : i + 5]

    def make():
        inputs = layers.Input((3,))
        model = home.keras.Model(inputs, layers.Dense(2)(layers.Dense(4, activation="tanh")(inputs)))
        model.compile(sgd(home), "mse", metrics=["mae"])
        return start(model), tf.data.Dataset.from_generator(batches, (tf.float32, tf.float32)), None

    check(home, make, size=2, recompute=recompute, twice=None)


def test_an_output_as_long_as_two_slices(home):
    """The number of steps is known only where that of the samples is."""
    if home.mode == "graph":
        skips.senseless("graph mode")
    needs_train_step(home)
    tf, layers = home.tf, home.keras.layers

    class Steps(layers.Layer):
        def call(self, x):
            return tf.reshape(x, [tf.shape(x)[0], -1, 2])

    def make():
        inputs = layers.Input((3,))
        model = home.keras.Model(inputs, Steps()(layers.Dense(12)(inputs)))
        model.compile(sgd(home), "mse")
        return start(model), X, np.random.RandomState(7).randn(len(X), 6, 2).astype("float32")

    check(home, make, size=3, twice=False)
