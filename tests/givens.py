"""What is there before a block of the pages that is no program, and what must hold after it.

Each is a generator. It is given the home's name in pages.RUNS, yields the names that the block finds, and then asserts
numbers. The block's own names are in the same dict.
"""

import functools
import importlib

import numpy as np

import legacyga

RANDOM = np.random.RandomState(7)
X = RANDOM.randn(64, 4).astype("float32")
Y = X.sum(axis=1, keepdims=True)
CLASSES = np.eye(3, dtype="float32")[RANDOM.randint(0, 3, 64)]


def keras_of(label):
    if label in ("keras2", "keras3", "tf_keras"):
        return importlib.import_module(label.rstrip("23"))
    return importlib.import_module("tensorflow").keras


def value(label, variable):
    """What a variable holds, in graph mode too."""
    return keras_of(label).backend.get_value(variable) if label in ("keras2", "tf1") else variable.numpy()


def dense(keras, inputs=4, units=1, activation=None):
    layer = keras.layers.Dense(units, activation=activation, kernel_initializer="zeros", input_shape=(inputs,))
    return keras.models.Sequential([layer])


def assert_close(weights, wanted, most=1e-6):
    assert max(np.abs(one - other).max() for one, other in zip(weights, wanted)) < most


def trained(keras, optimizer, y, batch_size, epochs, units, loss, activation=None):
    """The weights that a bare optimizer trains."""
    model = dense(keras, 4, units, activation)
    model.compile(loss=loss, optimizer=optimizer)
    model.fit(X, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    return model.get_weights()


def in_order(model, **kwargs):
    """The model, whose fit neither shuffles nor prints."""
    model.fit = functools.partial(model.fit, shuffle=False, verbose=0, **kwargs)
    return model


def an_old_project(label):
    """A classifier, and its 64 samples: an update each epoch, where K = 8 and batches have 8."""
    keras = keras_of(label)
    model = in_order(dense(keras, 4, 3, "softmax"))
    yield {"keras": keras, "model": model, "x": X, "y": CLASSES}
    optimizer = model.optimizer
    updates = int(value(label, optimizer.iterations))
    batches = int(value(label, optimizer.mini_step)) + updates * optimizer.gradient_accumulation_steps
    # Of the README's project: one epoch of 32 batches of 2; of the quick start's: two of 8 batches of 8.
    assert (updates, batches) in ((4, 32), (2, 16))
    assert optimizer.gradient_accumulation_steps == 8
    rate = {4: 0.001, 2: 0.01}[updates]
    arguments = {"learning_rate" if label in ("tf2", "tf_keras", "keras3") else "lr": rate}
    bare = keras.optimizers.SGD(momentum=0.9, clipnorm=5.0, **arguments)
    wanted = trained(
        keras, bare, CLASSES, {4: 16, 2: 64}[updates], {4: 1, 2: 2}[updates], 3, "categorical_crossentropy", "softmax"
    )
    assert np.abs(wanted[0]).max() > 1e-3
    assert_close(model.get_weights(), wanted)


def a_session(label):
    """A loss, and TensorFlow 1's names."""
    tf = importlib.import_module("tensorflow")
    tf1 = tf.compat.v1
    tf1.disable_eager_execution()
    variable = tf1.get_variable("variable", [], initializer=tf1.zeros_initializer())
    names = {"tf1": tf1, "legacyga": legacyga, "loss": tf.square(variable - 1.0)}
    names["global_step"] = tf1.train.get_or_create_global_step()
    yield names
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        moved = []
        for _ in range(16):
            session.run(names["train"])
            moved.append(round(float(session.run(variable)), 3))
        # Adam's first steps are as long as its rate.
        assert moved == [0.0] * 7 + [0.05] * 8 + [0.1]
        assert session.run(names["global_step"]) == 2


def a_model_for_fit(label):
    """A regression on 64 samples: 8 batches of 8."""
    keras = keras_of(label)
    model = in_order(dense(keras))
    yield {"keras": keras, "model": model, "x": X, "y": Y}
    assert int(value(label, model.optimizer.iterations)) == 1
    assert_close(model.get_weights(), trained(keras, keras.optimizers.Adam(0.01), Y, 64, 1, 1, "mse"))


def a_model_for_slices(label):
    """A regression on 64 samples, and an optimizer that knows nothing of slices."""
    keras = keras_of(label)
    calls = []

    class Told(keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            calls.append(batch)

    model = in_order(dense(keras), callbacks=[Told()])
    names = {"keras": keras, "model": model, "optimizer": keras.optimizers.SGD(0.1, momentum=0.9), "x": X, "y": Y}
    yield names
    assert calls == [0]
    assert_close(model.get_weights(), trained(keras, keras.optimizers.SGD(0.1, momentum=0.9), Y, 64, 1, 1, "mse"))


def a_model_for_sgd(label):
    """The same, for SGD with momentum: bare Adam has no one result on TensorFlow 1."""
    keras = keras_of(label)
    model = in_order(dense(keras))
    yield {"keras": keras, "model": model, "x": X, "y": Y}
    assert int(value(label, model.optimizer.iterations)) == 1
    bare = keras.optimizers.SGD(0.1, momentum=0.9)
    assert_close(model.get_weights(), trained(keras, bare, Y, 64, 1, 1, "mse"))
