"""Set up a code block of the pages that is no program, and check it: `given: a_loop` in its mark calls `a_loop`.

Such a function takes the Keras of the home and returns a generator. It yields the dict of names in which the block
runs, and then asserts numbers.
"""

import functools
import importlib
import itertools
import types

import numpy as np
import oracle

import legacyga

RANDOM = np.random.RandomState(7)
X = RANDOM.randn(256, 4).astype("float32")
Y = X.sum(axis=1, keepdims=True)
CLASSES = np.eye(3, dtype="float32")[RANDOM.randint(0, 3, len(X))]


def counts(keras, optimizer):
    """Its `iterations` and `mini_step`. Keras 3, which has eager mode alone, has no `get_value`."""
    get_value = getattr(keras.backend, "get_value", lambda variable: variable.numpy())
    return int(get_value(optimizer.iterations)), int(get_value(optimizer.mini_step))


def dense(keras, units=1, activation=None):
    layer = keras.layers.Dense(units, activation=activation, kernel_initializer="zeros", input_shape=(X.shape[1],))
    return keras.models.Sequential([layer])


def in_order(model, **kwargs):
    """The model, whose fit neither shuffles nor prints."""
    model.fit = functools.partial(model.fit, shuffle=False, verbose=0, **kwargs)
    return model


def sgd(keras):
    return keras.optimizers.SGD(0.1, momentum=0.9)


def accumulating(keras):
    return legacyga.MySGD(lr=0.1, momentum=0.9, steps_per_update=4, keras=keras)


def largest_distance(weights, others):
    return oracle.farthest(weights, others)


def assert_trained(keras, model, optimizer, samples, batch_size, epochs=1, y=Y, loss="mse", most=1e-6):
    """The weights are those of a bare optimizer's training, which moved."""
    bare = dense(keras, y.shape[1], "softmax" if loss == "categorical_crossentropy" else None)
    bare.compile(loss=loss, optimizer=optimizer)
    bare.fit(X[:samples], y[:samples], batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    assert np.abs(bare.get_weights()[0]).max() > 5e-4
    distance = largest_distance(model.get_weights(), bare.get_weights())
    assert distance < most, distance


def a_regression(keras, names, samples, batch_size, bare, compiled=None):
    """Yield a model and samples, then check that it trained as `bare` does on batches of `batch_size`."""
    model = in_order(dense(keras))
    if compiled is not None:
        model.compile(loss="mse", optimizer=compiled)
    yield dict(names, model=model, x=X[:samples], y=Y[:samples])
    assert counts(keras, model.optimizer)[0] == -(-samples // batch_size)
    assert_trained(keras, model, bare, samples, batch_size)


def a_model_for_fit(keras):
    return a_regression(keras, {"keras": keras}, 64, 64, keras.optimizers.Adam(0.01))


def a_model_for_sgd(keras):
    """The same, for SGD with momentum: bare Adam has no one result on TensorFlow 1."""
    return a_regression(keras, {"keras": keras}, 64, 64, sgd(keras))


def an_epoch_of_unequal_batches(keras):
    """14 samples: batches of 4, 4, 4 and 2."""
    return a_regression(keras, {"legacyga": legacyga}, 14, 14, sgd(keras), legacyga.wrap(sgd(keras), 4))


def slices_and_windows(keras):
    """256 samples: 4 batches of 64, which make an update."""
    adam = keras.optimizers.Adam
    return a_regression(keras, {"Adam": adam, "legacyga": legacyga}, 256, 256, adam(1e-3))


def a_model_for_a_schedule(keras):
    """Five samples: an epoch of batches of 2, 2 and 1."""
    optimizer = accumulating(keras)
    yield from a_regression(keras, {"legacyga": legacyga}, 5, 4, sgd(keras), optimizer)
    assert optimizer.gradient_accumulation_steps == 2


def a_model_for_slices(keras):
    """A regression on 64 samples, and an optimizer that knows nothing of slices."""
    calls = []
    told = keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: calls.append(batch))
    model = in_order(dense(keras), callbacks=[told])
    yield {"keras": keras, "model": model, "optimizer": sgd(keras), "x": X[:64], "y": Y[:64]}
    assert calls == [0]
    assert_trained(keras, model, sgd(keras), 64, 64)


def an_old_project(keras):
    """A classifier, and its 64 samples."""
    model = in_order(dense(keras, 3, "softmax"))
    yield {"keras": keras, "model": model, "x": X[:64], "y": CLASSES[:64]}
    optimizer = model.optimizer
    # By the rate: of the README one epoch in batches of 2; of the quick start two epochs in batches of 8.
    rate = round(float(keras.backend.get_value(optimizer.lr)), 6)
    updates, batch_size, epochs = {0.001: (4, 16, 1), 0.01: (2, 64, 2)}[rate]
    assert optimizer.gradient_accumulation_steps == 8 and counts(keras, optimizer) == (updates, 0)
    bare = keras.optimizers.SGD(lr=rate, momentum=0.9, clipnorm=5.0)
    assert_trained(keras, model, bare, 64, batch_size, epochs, CLASSES, "categorical_crossentropy")


def a_project_that_keeps_its_batches(keras):
    """A classifier, and two batches of 96."""
    model = in_order(dense(keras, 3, "softmax"))
    yield {"keras": keras, "legacyga": legacyga, "model": model, "x": X[:192], "y": CLASSES[:192]}
    assert int(keras.backend.get_value(model.optimizer.iterations)) == 2
    bare = keras.optimizers.SGD(lr=0.02, momentum=0.9)
    assert_trained(keras, model, bare, 192, 96, 1, CLASSES, "categorical_crossentropy")


def a_project_with_a_generator(keras):
    """The same with a generator, and callbacks."""
    model, told = dense(keras, 3, "softmax"), []
    checkpoint = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: told.append(epoch))
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.02)
    # tf.keras of TF 1.15 takes generators, but no other iterators.
    batches = ((X[:96], CLASSES[:96]) for _ in itertools.count())
    model.fit_generator = functools.partial(model.fit_generator, verbose=0)
    yield dict(keras=keras, model=model, batches_of_96=batches, checkpoint=checkpoint, schedule=schedule)
    assert told == list(range(30)) and int(keras.backend.get_value(model.optimizer.iterations)) == 30 * 15
    bare = keras.optimizers.SGD(lr=0.02, momentum=0.9)
    assert_trained(keras, model, bare, 96, 96, 450, CLASSES, "categorical_crossentropy", most=1e-5)


def a_session(_):
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


def a_window_under_way(keras):
    """An optimizer that has taken five mini-steps at K = 4."""
    model, optimizer = dense(keras), accumulating(keras)
    model.compile(loss="mse", optimizer=optimizer)
    for begin in range(0, 20, 4):
        model.train_on_batch(X[begin : begin + 4], Y[begin : begin + 4])
    assert counts(keras, optimizer) == (1, 1)
    yield {"optimizer": optimizer}
    assert counts(keras, optimizer) == (2, 0)
    # 16 samples, and 4.
    assert_trained(keras, model, sgd(keras), 20, 16)


def a_saved_model(keras):
    """A file of a run that was stopped within its second window."""
    model = dense(keras)
    model.compile(loss="mse", optimizer=accumulating(keras))
    for _ in range(5):
        model.train_on_batch(X[:4], Y[:4])
    model.save("model.h5")
    names = {"keras": keras, "legacyga": legacyga}
    yield names
    optimizer = names["model"].optimizer
    assert optimizer.gradient_accumulation_steps == 4 and counts(keras, optimizer) == (1, 1)


def batches_of_unequal_sizes(keras):
    """The block makes a class, which then trains on batches of 4 and 3."""
    names = {"keras": keras, "legacyga": legacyga}
    yield names
    inputs = keras.Input((X.shape[1],))
    made = names.get("Model") or names["Weighted"]
    model = made(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
    model.compile(loss="mse", optimizer=legacyga.wrap(sgd(keras), 2))
    model.fit(X[:7], Y[:7], batch_size=4, shuffle=False, verbose=0)
    assert_trained(keras, model, sgd(keras), 7, 7)


def a_detectors_loss(keras):
    """The block makes a class, which then trains on batches of unequally many positives, by whose number it divides."""
    tf = importlib.import_module("tensorflow")
    names = {"keras": keras, "legacyga": legacyga, "tf": tf}
    yield names

    def loss(y_true, y_pred):
        return tf.reduce_sum(tf.square(y_true - y_pred)) / tf.reduce_sum(y_true)

    inputs, y = keras.Input((X.shape[1],)), CLASSES[:12] * np.arange(1, 13, dtype="float32")[:, None]
    model = names["Detector"](inputs, keras.layers.Dense(3, kernel_initializer="zeros")(inputs))
    model.compile(loss=loss, optimizer=legacyga.wrap(sgd(keras), 3))
    model.fit(X[:12], y, batch_size=4, shuffle=False, verbose=0)
    assert_trained(keras, model, sgd(keras), 12, 12, y=y, loss=loss)


def a_model_in_mixed_float16(keras):
    """K is 8, of the optimizer within Keras's LossScaleOptimizer. 16 samples are 4 batches."""
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


def a_loop(keras):
    """8 batches of 8, and a bare optimizer."""
    tf = importlib.import_module("tensorflow")
    model, optimizer = dense(keras), sgd(keras)
    optimizer.build(model.trainable_variables)
    names = dict(tf=tf, legacyga=legacyga, model=model, optimizer=optimizer)
    names["batches"] = [(tf.constant(X[i : i + 8]), tf.constant(Y[i : i + 8])) for i in range(0, 64, 8)]
    names["compute_loss"] = lambda output, y: tf.reduce_mean(tf.square(output - y))
    yield names
    assert int(optimizer.iterations.numpy()) == 1
    assert_trained(keras, model, sgd(keras), 64, 64)


def a_train_step(keras):
    """The second mini-step of a window: the first had a gradient of 1, and weighed 4."""
    tf = importlib.import_module("tensorflow")
    # That of Keras 3.
    variable = getattr(keras, "Variable", tf.Variable)([0.0])
    optimizer = legacyga.wrap(keras.optimizers.SGD(1.0), 2)
    optimizer.build([variable])
    with optimizer.mini_step_weight(4):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    model = types.SimpleNamespace(optimizer=optimizer, trainable_variables=[variable])
    yield {"self": model, "tf": tf, "x": X[:2], "gradients": [tf.constant([4.0])]}
    # The second weighs 2.
    assert variable.numpy().tolist() == [-(4 * 1.0 + 2 * 4.0) / 6]


def two_towers(keras):
    """Two layers, whose outputs stand side by side, and 512 pairs of inputs."""
    tf = importlib.import_module("tensorflow")
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
    assert legacyga.recomputes(model) and int(model.optimizer.iterations.numpy()) == 1
    whole.compile(sgd(keras), names["contrastive_loss"])
    whole.fit([texts, pictures], names["no_targets"], batch_size=512)
    assert largest_distance(whole.get_weights(), start) > 1e-2
    distance = largest_distance(model.get_weights(), whole.get_weights())
    assert distance < 1e-6, distance


def a_layer_to_freeze(keras):
    """What the layer is given; after it a model, which trains."""
    inputs = keras.layers.Input((X.shape[1],))
    names = {"BatchNormalization": keras.layers.BatchNormalization, "x": inputs}
    yield names
    model = keras.models.Model(inputs, keras.layers.Dense(1)(names["x"]))
    model.compile(loss="mse", optimizer=sgd(keras))
    model.fit(X[:64] + 1.0, Y[:64], batch_size=8, verbose=0)
    # Scale and offset, and the moving mean and variance.
    for weight, wanted in zip(model.layers[1].get_weights(), (1.0, 0.0, 0.0, 1.0)):
        assert weight.tolist() == [wanted] * X.shape[1]


def losses_of_a_replica(_):
    """The losses of three samples, of six on two replicas."""
    tf = importlib.import_module("tensorflow")
    names = {"tf": tf, "per_example_loss": tf.constant([1.0, 2.0, 3.0]), "global_batch_size": 6}
    yield names
    assert float(names["loss"]) == 1.0
