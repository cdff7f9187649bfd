"""What is there before a block of the pages that is no program, and what must hold after it.

Each is a generator. It is given the home's name in pages.RUNS, yields the names that the block finds, and then asserts
numbers. The names that the block makes are in the same dict.
"""

import functools
import importlib
import types

import numpy as np

import legacyga

RANDOM = np.random.RandomState(7)
X = RANDOM.randn(256, 4).astype("float32")
Y = X.sum(axis=1, keepdims=True)
CLASSES = np.eye(3, dtype="float32")[RANDOM.randint(0, 3, len(X))]


def keras_of(label):
    if label in ("keras2", "keras3", "tf_keras"):
        return importlib.import_module(label.rstrip("23"))
    return importlib.import_module("tensorflow").keras


def value(label, variable):
    """What a variable holds, in graph mode too."""
    return keras_of(label).backend.get_value(variable) if label in ("keras2", "tf1") else variable.numpy()


def dense(keras, units=1, activation=None):
    layer = keras.layers.Dense(units, activation=activation, kernel_initializer="zeros", input_shape=(X.shape[1],))
    return keras.models.Sequential([layer])


def classifier(keras):
    return dense(keras, 3, "softmax")


def in_order(model, **kwargs):
    """The model, whose fit neither shuffles nor prints."""
    model.fit = functools.partial(model.fit, shuffle=False, verbose=0, **kwargs)
    return model


def sgd(keras):
    return keras.optimizers.SGD(0.1, momentum=0.9)


def accumulating(keras, steps):
    return legacyga.MySGD(lr=0.1, momentum=0.9, steps_per_update=steps, keras=keras)


def assert_trained(model, bare, optimizer, samples, batch_size, epochs=1, y=Y, loss="mse", most=1e-6):
    """The model's weights are those of a bare optimizer's training of the model `bare`, which moved."""
    bare.compile(loss=loss, optimizer=optimizer)
    bare.fit(X[:samples], y[:samples], batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    assert np.abs(bare.get_weights()[0]).max() > 5e-4
    distance = max(np.abs(one - other).max() for one, other in zip(model.get_weights(), bare.get_weights()))
    assert distance < most, distance


def an_old_project(label):
    """A classifier, and its 64 samples."""
    keras = keras_of(label)
    model = in_order(classifier(keras))
    yield {"keras": keras, "model": model, "x": X[:64], "y": CLASSES[:64]}
    optimizer = model.optimizer
    assert optimizer.gradient_accumulation_steps == 8 and int(value(label, optimizer.mini_step)) == 0
    # By the rate: of the README one epoch in batches of 2; of the quick start two epochs in batches of 8.
    rate = round(float(value(label, optimizer.lr)), 6)
    updates, batch_size, epochs = {0.001: (4, 16, 1), 0.01: (2, 64, 2)}[rate]
    assert int(value(label, optimizer.iterations)) == updates
    bare = keras.optimizers.SGD(lr=rate, momentum=0.9, clipnorm=5.0)
    loss = "categorical_crossentropy"
    assert_trained(model, classifier(keras), bare, 64, batch_size, epochs, CLASSES, loss)


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
    yield {"keras": keras, "model": model, "x": X[:64], "y": Y[:64]}
    assert int(value(label, model.optimizer.iterations)) == 1
    assert_trained(model, dense(keras), keras.optimizers.Adam(0.01), 64, 64)


def a_model_for_sgd(label):
    """The same, for SGD with momentum: bare Adam has no one result on TensorFlow 1."""
    keras = keras_of(label)
    model = in_order(dense(keras))
    yield {"keras": keras, "model": model, "x": X[:64], "y": Y[:64]}
    assert int(value(label, model.optimizer.iterations)) == 1
    assert_trained(model, dense(keras), sgd(keras), 64, 64)


def a_model_for_slices(label):
    """A regression on 64 samples, and an optimizer that knows nothing of slices."""
    keras = keras_of(label)
    calls = []

    class Told(keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            calls.append(batch)

    model = in_order(dense(keras), callbacks=[Told()])
    yield {"keras": keras, "model": model, "optimizer": sgd(keras), "x": X[:64], "y": Y[:64]}
    assert calls == [0]
    assert_trained(model, dense(keras), sgd(keras), 64, 64)


def a_window_under_way(label):
    """An optimizer that has taken five mini-steps at K = 4."""
    keras = keras_of(label)
    model, optimizer = dense(keras), accumulating(keras, 4)
    model.compile(loss="mse", optimizer=optimizer)
    for begin in range(0, 20, 4):
        model.train_on_batch(X[begin : begin + 4], Y[begin : begin + 4])
    assert (int(value(label, optimizer.iterations)), int(value(label, optimizer.mini_step))) == (1, 1)
    yield {"optimizer": optimizer}
    assert (int(value(label, optimizer.iterations)), int(value(label, optimizer.mini_step))) == (2, 0)
    # 16 samples, and 4.
    assert_trained(model, dense(keras), sgd(keras), 20, 16)


def a_model_for_a_schedule(label):
    """Five samples: an epoch of batches of 2, 2 and 1."""
    keras = keras_of(label)
    model = in_order(dense(keras))
    model.compile(loss="mse", optimizer=accumulating(keras, 4))
    yield {"legacyga": legacyga, "model": model, "x": X[:5], "y": Y[:5]}
    optimizer = model.optimizer
    found = [optimizer.gradient_accumulation_steps, int(value(label, optimizer.iterations))]
    assert found == [2, 2], found
    assert_trained(model, dense(keras), sgd(keras), 5, 4)


def batches_of_unequal_sizes(label):
    """The block makes a class, which then trains on batches of 4 and 3."""
    keras = keras_of(label)
    names = {"keras": keras, "legacyga": legacyga}
    yield names
    inputs = keras.Input((X.shape[1],))
    made = names.get("Model") or names["Weighted"]
    model = made(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
    model.compile(loss="mse", optimizer=legacyga.wrap(sgd(keras), 2))
    model.fit(X[:7], Y[:7], batch_size=4, shuffle=False, verbose=0)
    assert_trained(model, dense(keras), sgd(keras), 7, 7)


def a_detectors_loss(label):
    """The block makes a class, which then trains on batches of unequally many positives, by whose number it divides."""
    keras, tf = keras_of(label), importlib.import_module("tensorflow")
    names = {"keras": keras, "legacyga": legacyga, "tf": tf}
    yield names

    def loss(y_true, y_pred):
        return tf.reduce_sum(tf.square(y_true - y_pred)) / tf.reduce_sum(y_true)

    inputs, y = keras.Input((X.shape[1],)), CLASSES[:12] * np.arange(1, 13, dtype="float32")[:, None]
    model = names["Detector"](inputs, keras.layers.Dense(3, kernel_initializer="zeros")(inputs))
    model.compile(loss=loss, optimizer=legacyga.wrap(sgd(keras), 3))
    model.fit(X[:12], y, batch_size=4, shuffle=False, verbose=0)
    assert_trained(model, dense(keras, 3), sgd(keras), 12, 12, y=y, loss=loss)


def an_epoch_of_unequal_batches(label):
    """14 samples: batches of 4, 4, 4 and 2."""
    keras = keras_of(label)
    model = in_order(dense(keras))
    model.compile(loss="mse", optimizer=legacyga.wrap(sgd(keras), 4))
    yield {"legacyga": legacyga, "model": model, "x": X[:14], "y": Y[:14]}
    assert_trained(model, dense(keras), sgd(keras), 14, 14)


def a_model_in_mixed_float16(label):
    """K is 8, of the optimizer within Keras's LossScaleOptimizer. 16 samples are 4 batches."""
    keras = keras_of(label)
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = in_order(dense(keras))
    optimizer = legacyga.wrap(keras.optimizers.SGD(0.5), 8)
    model.compile(loss="mse", optimizer=optimizer)
    keras.mixed_precision.set_global_policy(before)
    # It raises nothing, and changes nothing.
    model.optimizer.gradient_accumulation_steps = 2
    assert model.optimizer is not optimizer and optimizer.gradient_accumulation_steps == 8
    yield {"model": model}
    # So small that no batch overflows under the first loss scale.
    small = Y[:16] / 1024.0
    model.fit(X[:16], small, batch_size=4)
    assert optimizer.gradient_accumulation_steps == 4 and int(optimizer.iterations.numpy()) == 1
    gradient = -2.0 * np.mean(X[:16] * small, axis=0)
    # float16 has 11 bits.
    np.testing.assert_allclose(model.get_weights()[0][:, 0], -0.5 * gradient, rtol=2e-3, atol=2e-6)


def a_loop(label):
    """8 batches of 8, and a bare optimizer."""
    keras, tf = keras_of(label), importlib.import_module("tensorflow")
    model, optimizer = dense(keras), sgd(keras)
    optimizer.build(model.trainable_variables)
    batches = [(tf.constant(X[i : i + 8]), tf.constant(Y[i : i + 8])) for i in range(0, 64, 8)]

    def compute_loss(output, y):
        return tf.reduce_mean(tf.square(output - y))

    names = dict(tf=tf, legacyga=legacyga, model=model, optimizer=optimizer, batches=batches)
    yield dict(names, compute_loss=compute_loss)
    assert int(optimizer.iterations.numpy()) == 1
    assert_trained(model, dense(keras), sgd(keras), 64, 64)


def a_train_step(label):
    """The second mini-step of a window: the first had a gradient of 1, and weighed 4."""
    keras, tf = keras_of(label), importlib.import_module("tensorflow")
    variable = (keras if label == "keras3" else tf).Variable([0.0])
    optimizer = legacyga.wrap(keras.optimizers.SGD(1.0), 2)
    optimizer.build([variable])
    with optimizer.mini_step_weight(4):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    model = types.SimpleNamespace(optimizer=optimizer, trainable_variables=[variable])
    yield {"self": model, "tf": tf, "x": X[:2], "gradients": [tf.constant([4.0])]}
    # The second weighs 2.
    assert variable.numpy().tolist() == [-(4 * 1.0 + 2 * 4.0) / 6]


def slices_and_windows(label):
    """256 samples: 4 batches of 64, which make an update."""
    keras = keras_of(label)
    model = in_order(dense(keras))
    yield {"Adam": keras.optimizers.Adam, "legacyga": legacyga, "model": model, "x": X, "y": Y}
    assert int(value(label, model.optimizer.iterations)) == 1
    assert_trained(model, dense(keras), keras.optimizers.Adam(1e-3), 256, 256)


def two_towers(label):
    """Two layers, whose outputs stand side by side, and 512 pairs of inputs."""
    keras, tf = keras_of(label), importlib.import_module("tensorflow")
    inputs, start = [keras.layers.Input((X.shape[1],)) for _ in range(2)], RANDOM.randn(2, X.shape[1], 3)

    def towers():
        outputs = [keras.layers.Dense(3, use_bias=False)(each) for each in inputs]
        model = keras.models.Model(inputs, keras.layers.Concatenate()(outputs))
        model.set_weights(list(start))
        return in_order(model)

    texts, pictures = np.concatenate([X, -X[::-1]]), np.concatenate([X**2, X])
    names = dict(tf=tf, legacyga=legacyga, model=towers(), texts=texts, pictures=pictures)
    names.update(optimizer=sgd(keras), no_targets=np.zeros((512, 1), "float32"))
    yield names
    model, whole = names["model"], towers()
    assert legacyga.recomputes(model) and int(value(label, model.optimizer.iterations)) == 1
    whole.compile(sgd(keras), names["contrastive_loss"])
    whole.fit([texts, pictures], names["no_targets"], batch_size=512)
    assert max(np.abs(one - other).max() for one, other in zip(whole.get_weights(), start)) > 1e-2
    distance = max(np.abs(one - other).max() for one, other in zip(model.get_weights(), whole.get_weights()))
    assert distance < 1e-6, distance


def a_project_that_keeps_its_batches(label):
    """A classifier, and two batches of 96."""
    keras = keras_of(label)
    model = in_order(classifier(keras))
    yield {"keras": keras, "legacyga": legacyga, "model": model, "x": X[:192], "y": CLASSES[:192]}
    assert int(value(label, model.optimizer.iterations)) == 2
    bare = keras.optimizers.SGD(lr=0.02, momentum=0.9)
    assert_trained(model, classifier(keras), bare, 192, 96, 1, CLASSES, "categorical_crossentropy")


def a_project_with_a_generator(label):
    """The same with a generator, and callbacks."""
    keras = keras_of(label)
    model, told = classifier(keras), []

    def batches():
        while True:
            yield X[:96], CLASSES[:96]

    class Checkpoint(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            told.append(epoch)

    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.02)
    model.fit_generator = functools.partial(model.fit_generator, verbose=0)
    yield dict(keras=keras, model=model, batches_of_96=batches(), checkpoint=Checkpoint(), schedule=schedule)
    assert told == list(range(30)) and int(value(label, model.optimizer.iterations)) == 30 * 15
    bare = keras.optimizers.SGD(lr=0.02, momentum=0.9)
    assert_trained(model, classifier(keras), bare, 96, 96, 450, CLASSES, "categorical_crossentropy", most=1e-5)


def a_saved_model(label):
    """A file of a run that was stopped within its second window."""
    keras = keras_of(label)
    model = dense(keras)
    model.compile(loss="mse", optimizer=accumulating(keras, 4))
    for _ in range(5):
        model.train_on_batch(X[:4], Y[:4])
    model.save("model.h5")
    names = {"keras": keras, "legacyga": legacyga}
    yield names
    optimizer = names["model"].optimizer
    assert optimizer.gradient_accumulation_steps == 4
    assert (int(value(label, optimizer.iterations)), int(value(label, optimizer.mini_step))) == (1, 1)


def a_layer_to_freeze(label):
    """What the layer is given; after it a model, which trains."""
    keras = keras_of(label)
    inputs = keras.layers.Input((X.shape[1],))
    names = {"BatchNormalization": keras.layers.BatchNormalization, "x": inputs}
    yield names
    model = keras.models.Model(inputs, keras.layers.Dense(1)(names["x"]))
    model.compile(loss="mse", optimizer=sgd(keras))
    model.fit(X[:64] + 1.0, Y[:64], batch_size=8, verbose=0)
    # Scale and offset, and the moving mean and variance.
    for weight, wanted in zip(model.layers[1].get_weights(), (1.0, 0.0, 0.0, 1.0)):
        assert weight.tolist() == [wanted] * X.shape[1]


def losses_of_a_replica(label):
    """The losses of three samples, of six on two replicas."""
    tf = importlib.import_module("tensorflow")
    names = {"tf": tf, "per_example_loss": tf.constant([1.0, 2.0, 3.0]), "global_batch_size": 6}
    yield names
    assert float(names["loss"]) == 1.0
