"""micro_batch(model, "auto"): the size that fits is found, and the numbers are to the bit those of that size."""

import collections

import numpy as np
import pytest
import skips
import test_micro_batch
from kinds import MOMENTUM, RATE
from slow import slow
from test_micro_batch import BATCH, START, X, Y

import legacyga

pytestmark = pytest.mark.capability("micro_batch")
start_anew = test_micro_batch.start_anew


def layer_that_fails(home, fails):
    """A layer that changes nothing, and exhausts the memory where `fails(samples)`."""
    tf = home.tf
    v1 = getattr(getattr(tf, "compat", None), "v1", tf)

    def check(samples):
        if fails(int(samples)):
            raise MemoryError("{} samples".format(samples))
        return np.int32(0)

    class Failing(home.keras.layers.Layer):
        def call(self, inputs):
            with tf.control_dependencies([v1.py_func(check, [tf.shape(inputs)[0]], tf.int32)]):
                return tf.identity(inputs)

        def compute_output_shape(self, shape):
            return shape

    return Failing()


def test_numbers_drawn_by_numpy_are_drawn_again(home):
    """A batch that is taken again is that of the size from the start, with the same numbers."""
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.senseless("a graph draws them once")

    class Noise(home.keras.layers.Layer):
        def call(self, inputs):
            return inputs * np.random.rand(1, 3).astype("float32")

        def compute_output_shape(self, shape):
            return shape

    ends, before = [], np.random.get_state()
    for size in (2, "auto"):
        layers = home.keras.layers
        inputs = layers.Input((3,))
        hidden = layer_that_fails(home, lambda samples: samples > 2)(Noise()(inputs))
        model = home.keras.models.Model(inputs, layers.Dense(2, use_bias=False)(hidden))
        model.compile(legacyga.MySGD(RATE, keras=home.keras, steps_per_update=1), "mse", run_eagerly=True)
        model.set_weights([np.ones((3, 2), "float32")])
        legacyga.micro_batch(model, size)
        np.random.seed(5)
        for _ in range(2):
            model.train_on_batch(X[:8], Y[:8])
        ends.append(model.get_weights())
    np.random.set_state(before)
    assert legacyga.micro_batch_size(model) == 2
    np.testing.assert_array_equal(*[each[0] for each in ends])


def constraint_that_fails(home, fails):
    """A constraint that changes nothing, called by the optimizer, which exhausts the memory where `fails(0)`."""
    tf = home.tf
    v1 = getattr(getattr(tf, "compat", None), "v1", tf)

    def check(value):
        if fails(0):
            raise MemoryError("in the optimizer")
        return np.int32(0)

    def constraint(weights):
        weights = tf.convert_to_tensor(weights)
        with tf.control_dependencies([v1.py_func(check, [v1.zeros([])], tf.int32)]):
            return tf.identity(weights)

    if not home.is_keras3:
        return constraint

    # Keras 3.5 takes no function.
    class Constraint(home.keras.constraints.Constraint):
        def __call__(self, weights):
            return constraint(weights)

    return Constraint()


def made(home, fails=lambda samples: False, fails_in_update=lambda samples: False, **compiled):
    """A compiled model with normalization, which exhausts the memory where it is told to."""
    home.reset(plain_session=True)
    keras, options = home.keras, {"jit_compile": False} if home.is_keras3 else {}
    inputs = keras.layers.Input((3,))
    hidden = layer_that_fails(home, fails)(inputs)
    hidden = keras.layers.Dense(4, activation="tanh")(hidden)
    hidden = keras.layers.BatchNormalization()(hidden)
    constraint = constraint_that_fails(home, fails_in_update)
    model = keras.models.Model(inputs, keras.layers.Dense(2, kernel_constraint=constraint)(hidden))
    weights = model.get_weights()
    weights[0], weights[-2] = START[0], START[2]
    model.set_weights(weights)
    optimizer = legacyga.MySGD(RATE, MOMENTUM, steps_per_update=1, keras=keras)
    model.compile(optimizer=optimizer, loss="mse", **dict(dict(options, metrics=["mae"]), **compiled))
    return model


def trained(home, size, way="fit", **fails):
    """(model, all weights, history) after an epoch of batches of 8, 8 and 5."""
    model = made(home, **fails)
    legacyga.micro_batch(model, size)
    if way == "fit":
        told = model.fit(X, Y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0).history
    else:
        told = {"told": [model.train_on_batch(X[i : i + BATCH], Y[i : i + BATCH]) for i in (0, 8)]}
    return model, model.get_weights(), told


def trained_in_sizes(home, sizes):
    """All weights after batches of 8, 8 and 5, each in slices of a size of its own from the start."""
    model = made(home)
    for i, size in zip((0, 8, 16), sizes):
        legacyga.micro_batch(model, size)
        model.train_on_batch(X[i : i + BATCH], Y[i : i + BATCH])
    return model.get_weights()


def once_at(number):
    """A function that says True the `number`-th time that it is called, counted from 1."""
    calls = []

    def fails(samples):
        calls.append(samples)
        return len(calls) == number

    return fails


def assert_same(found, wanted):
    assert any(np.abs(now - start).max() > 0.01 for now, start in zip(found[1][:1], START))
    for now, then in zip(found[1], wanted[1]):
        np.testing.assert_array_equal(now, then)
    assert sorted(found[2]) == sorted(wanted[2])
    for name, values in found[2].items():
        np.testing.assert_array_equal(values, wanted[2][name])


@pytest.mark.parametrize("way", ["fit", slow("train_on_batch")])
def test_the_size_that_fits_is_found(home, way):
    """Slices of 8 and of 4 do not fit, those of 2 do."""
    with pytest.warns(UserWarning, match="found slices of 2 samples.*legacyga.micro_batch.model, 2."):
        found = trained(home, "auto", way, fails=lambda samples: samples > 3)
    assert legacyga.micro_batch_size(found[0]) == 2
    assert_same(found, trained(home, 2, way))


# The allocator of newer TensorFlows tries for 10 seconds.
@pytest.mark.slow
@pytest.mark.parametrize("way", ["fit", "generator", "dataset"])
def test_a_tensor_that_no_memory_holds(home, way):
    """TensorFlow's allocator refuses 2**46 numbers, which the layer makes of more than 3 samples."""
    tf = home.tf
    if way == "dataset" and home.mode == "graph":
        skips.senseless("a dataset, which a graph feeds by itself")

    class Large(home.keras.layers.Layer):
        def call(self, inputs):
            copies = 1 + 2**46 * tf.cast(tf.shape(inputs)[0] > 3, "int64")
            # TensorFlow computes no tensor that is multiplied by 0.
            return inputs + 1e-30 * tf.reduce_sum(tf.square(tf.tile(inputs[:1, 0], tf.stack([copies]))))

        def compute_output_shape(self, shape):
            return shape

    def end(size):
        home.reset(plain_session=True)
        layers, options = home.keras.layers, {"jit_compile": False} if home.is_keras3 else {}
        inputs = layers.Input((3,))
        model = home.keras.models.Model(inputs, layers.Dense(2, use_bias=False)(Large()(inputs)))
        model.compile(legacyga.MySGD(RATE, MOMENTUM, steps_per_update=1, keras=home.keras), "mse", **options)
        model.set_weights([np.ones((3, 2), "float32")])
        legacyga.micro_batch(model, size)
        if way == "fit":
            model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
        elif way == "dataset":
            model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH), verbose=0)
        else:
            fit = model.fit_generator if home.mode == "graph" else model.fit
            parts = ((X[i : i + BATCH], Y[i : i + BATCH]) for i in (0, 8))
            fit(parts, steps_per_epoch=2, verbose=0)
        return model, model.get_weights()

    with pytest.warns(UserWarning, match="found slices of 2 samples") as caught:
        model, found = end("auto")
    assert len([each for each in caught if "found slices of" in str(each.message)]) == 1
    assert legacyga.micro_batch_size(model) == 2
    np.testing.assert_array_equal(found[0], end(2)[1][0])


@pytest.mark.parametrize("data", ["a named tuple", "None from a generator", slow("None within an input")])
def test_a_batch_as_keras_gives_it(home, data):
    """The training step has the same structure as without slices."""
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.keras_lacks("train_step in graph mode")
    if "None" in data and not (home.is_keras3 and not home.is_keras3_before(3, 12)):
        skips.keras_lacks("None in the parts of a generator")
    tf, Batch = home.tf, collections.namedtuple("Batch", "image label")

    class Own(home.keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.dense = home.keras.layers.Dense(2, use_bias=False)
            self.failing = layer_that_fails(home, lambda samples: samples > 2)

        def call(self, x):
            return self.dense(self.failing(x))

        def train_step(self, given):
            if data == "a named tuple":
                x, y = given.image, given.label
            elif data == "None from a generator":
                (x, y, nothing), nothing_more = given[:3], given[3:]
                assert nothing is None and not nothing_more
            else:
                x, y = given[0]["x"], given[1]
                assert given[0]["nothing"] is None
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    def batches():
        for i in (0, 8):
            x, y = X[i : i + 8], Y[i : i + 8]
            yield (x, y, None) if data == "None from a generator" else ({"x": x, "nothing": None}, y)

    ends = []
    for size in ("auto", 2):
        model = Own()
        model(X[:2])
        model.set_weights([np.ones((3, 2), "float32")])
        optimizer = legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras)
        model.compile(optimizer, **({"jit_compile": False} if home.is_keras3 else {}))
        legacyga.micro_batch(model, size)
        given = batches()
        if data == "a named tuple":
            given = tf.data.Dataset.from_tensor_slices(Batch(X[:16], Y[:16])).batch(8)
        model.fit(given, epochs=1, verbose=0)
        ends.append(model.get_weights()[0])
    assert legacyga.micro_batch_size(model) == 2
    assert np.abs(ends[0] - 1).max() > 0.01
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("place", [slow("first slice"), "later slice", slow("optimizer")])
def test_a_batch_begins_again_from_its_own_state(home, place):
    """The second batch fails once: in slices of 4 it goes on from where it began."""
    if place == "optimizer":
        found = trained(home, "auto", fails_in_update=once_at(2))
    else:
        # The whole of the first batch fails, and then a slice of the second of its two slices of 4.
        calls = []

        def fails(samples):
            calls.append(samples)
            whole = len(calls) == 1
            return whole or samples > 2 and len(calls) == (4 if place == "first slice" else 5)

        found = trained(home, "auto", fails=fails)
    # In the optimizer the second batch fails whole: the first has trained so.
    sizes = [BATCH, 4, 4] if place == "optimizer" else [4, 2, 2]
    assert legacyga.micro_batch_size(found[0]) == sizes[-1]
    for now, then in zip(found[1], trained_in_sizes(home, sizes)):
        np.testing.assert_allclose(now, then, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["slices", "optimizer"])
@pytest.mark.parametrize("recompute", [slow(False), True])
@pytest.mark.parametrize("seed", [1, slow(2)])
def test_an_allocator_that_fails_at_random(home, place, recompute, seed):
    """Each batch ends, and tells, as in slices of the size that was found for it: in a slice of either pass, or at the
    optimizer's call.
    """
    random, failures, sizes = np.random.RandomState(seed), [], []

    def fails(samples):
        # A slice of one sample always fits, and so does one of two in the end.
        failed = samples != 1 and len(failures) < 3 and random.rand() < (0.2 if place == "slices" else 0.5)
        failures.extend([samples] * failed)
        return failed

    def train(model, size=None):
        told = []
        for number, i in enumerate((0, 8, 16)):
            if size is not None:
                legacyga.micro_batch(model, sizes[number], recompute=recompute)
            told.append(np.ravel(model.train_on_batch(X[i : i + BATCH], Y[i : i + BATCH])))
            if size is None:
                sizes.append(legacyga.micro_batch_size(model) or BATCH)
        return told, model.get_weights()

    model = made(home, **{"fails" if place == "slices" else "fails_in_update": fails})
    legacyga.micro_batch(model, "auto", recompute=recompute)
    found = train(model)
    assert failures and sizes[-1] < BATCH
    wanted = train(made(home), sizes)
    for now, then in zip(found[0] + found[1], wanted[0] + wanted[1]):
        np.testing.assert_allclose(now, then, rtol=0, atol=1e-6)


def test_nothing_fits(home):
    """One sample is too much: an error that says what helps, and all is as before."""
    home.reset(plain_session=True)
    keras, options = home.keras, {"jit_compile": False} if home.is_keras3 else {}
    inputs = keras.layers.Input((3,))
    hidden = layer_that_fails(home, lambda samples: True)(keras.layers.Dense(2)(inputs))
    model = keras.models.Model(inputs, hidden)
    model.compile(optimizer=legacyga.MySGD(RATE, steps_per_update=1, keras=keras), loss="mse", **options)
    legacyga.micro_batch(model, "auto")
    before = model.get_weights()
    with pytest.raises(home.tf.errors.ResourceExhaustedError, match="A slice of one sample exhausts the memory"):
        model.train_on_batch(X[:8], Y[:8])
    for now, then in zip(model.get_weights(), before):
        np.testing.assert_array_equal(now, then)


def test_a_metric_of_tensorflow_counts_a_batch_once(home):
    """Its variables are local ones, which a program initializes itself."""
    if home.mode == "eager":
        skips.senseless("graph mode")

    def total(y_true, y_pred):
        value, update = home.v1.metrics.mean(home.tf.ones_like(y_pred))
        metrics.append(home.v1.get_collection(home.v1.GraphKeys.LOCAL_VARIABLES)[-2:])
        home.backend.get_session().run(home.v1.local_variables_initializer())
        return update

    metrics = []
    model = made(home, fails_in_update=once_at(1), metrics=[total])
    legacyga.micro_batch(model, "auto")
    model.train_on_batch(X[:8], Y[:8])
    assert legacyga.micro_batch_size(model) == 4
    assert sorted(map(home.value, metrics[-1])) == [16.0, 16.0]


@pytest.mark.slow
def test_what_fits_trains_whole(home):
    found = trained(home, "auto")
    assert legacyga.micro_batch_size(found[0]) is None
    wanted = trained(home, 1000)
    for now, then in zip(found[1], wanted[1]):
        np.testing.assert_allclose(now, then, rtol=0, atol=1e-6)


@pytest.mark.parametrize("most", [100, slow(3)])
def test_several_steps_of_one_execution(home, most):
    if home.mode == "graph" or home.tf_version < (2, 4):
        skips.keras_lacks("steps_per_execution")
    if home.is_keras3_before(3, 7):
        skips.keras_lacks("a last execution of fewer steps")

    def run(size, fails, steps):
        model, calls = made(home, fails, steps_per_execution=steps), []
        legacyga.micro_batch(model, size)
        tell = home.keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: calls.append(batch))
        history = model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[tell]).history
        return legacyga.micro_batch_size(model), calls, model.get_weights(), history

    size, calls, weights, history = run("auto", lambda samples: samples > most, 2)
    assert size == (None if most == 100 else 2)
    # Of three batches an epoch, the second execution has one.
    assert calls == run(size, lambda samples: False, 2)[1]
    _, _, wanted, wanted_history = run(size, lambda samples: False, 1)
    for now, then in zip(weights, wanted):
        np.testing.assert_allclose(now, then, rtol=0, atol=0 if size else 1e-6)
    for name in history:
        np.testing.assert_allclose(history[name], wanted_history[name], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_step_of_two_optimizers(home, call):
    """A GAN that exhausts the memory in that call of its step: the last two come after the first update."""
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.keras_lacks("train_step in graph mode")
    tf, layers = home.tf, home.keras.layers

    class Gan(home.keras.Model):
        def __init__(self, fails):
            super(Gan, self).__init__()
            self.maker = home.keras.Sequential([layers.Dense(2, input_shape=(3,)), layer_that_fails(home, fails)])
            self.judge = home.keras.Sequential([layers.Dense(1, input_shape=(2,)), layer_that_fails(home, fails)])
            self.other = legacyga.MySGD(RATE, MOMENTUM, steps_per_update=1, keras=home.keras)

        def call(self, x):
            return self.judge(self.maker(x))

        def train_step(self, data):
            x, y = data
            told = {}
            for name, model, optimizer in (("judge", self.judge, self.optimizer), ("maker", self.maker, self.other)):
                with tf.GradientTape() as tape:
                    judged = self.judge(self.maker(x))
                    told[name] = tf.reduce_mean(tf.square(judged - float(name == "maker")))
                variables = model.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(told[name], variables), variables))
            return told

    def train(size, fails=lambda samples: False):
        home.reset()
        model = Gan(fails)
        model(X[:2])
        for each, number in ((model.maker, 0), (model.judge, 1)):
            random = np.random.RandomState(number)
            each.set_weights([np.asarray(random.randn(*one.shape), "float32") for one in each.get_weights()])
        optimizer = legacyga.MySGD(RATE, MOMENTUM, steps_per_update=1, keras=home.keras)
        model.compile(optimizer, **({"jit_compile": False} if home.is_keras3 else {}))
        legacyga.micro_batch(model, size)
        told = model.fit(X[:16], Y[:16], batch_size=8, epochs=1, shuffle=False, verbose=0).history
        return model, model.get_weights(), told

    calls = []

    def fails(samples):
        calls.append(samples)
        # Calling the model to build it counted twice.
        return len(calls) == call + 2

    found = train("auto", fails)
    assert legacyga.micro_batch_size(found[0]) == 4
    wanted = train(4)
    for now, then in zip(found[1], wanted[1]):
        np.testing.assert_array_equal(now, then)
    assert found[2] == wanted[2]
