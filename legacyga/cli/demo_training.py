"""What each of the demo's processes does: train one way, and write down how that went."""

import json
import logging
import sys

import legacyga
from legacyga.cli import demo
from legacyga.cli.homes_here import homes_here

LEARNING_RATE, MOMENTUM = 0.02, 0.9


def train_one_way(name, home, mode, steps, epochs, path):
    """Train the way `name` of `demo.ways`; write the results to `path` + `.json` and `.npz`. The rest is `demo.run`'s.

    Returns:
        0, or 2 where nothing here can train so (then standard error says why), or `demo.LEFT_OUT` where the home has no
        such way (then standard output does).
    """
    import numpy as np

    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    way = demo.ways(steps)[name]
    try:
        found = find_home(home, mode)
    except Exception as error:
        asked = "--home {}, --mode {}".format(home or "any", mode or "any")
        return demo.cannot("{}\nInstall what is missing, or ask for what is there. Received: {}".format(error, asked))
    keras = found.module
    (x, y), test = _digits(steps)
    model = _network(keras)
    optimizer = legacyga.MySGD(lr=LEARNING_RATE, momentum=MOMENTUM, steps_per_update=way.steps_per_update, keras=keras)
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", metrics=["accuracy"])
    if way.size:
        try:
            legacyga.micro_batch(model, way.size)
        except ValueError as error:
            # Eager mode of TensorFlow 2.0 and 2.1.
            print("left out: {}".format(error))
            return demo.LEFT_OUT
    loss = [_evaluate(model, x, y)[0]]
    before = []

    class Watch(keras.callbacks.Callback):
        """Keeps the memory at the start and the loss after each epoch.

        The loss that Keras hands to callbacks will not do. It is of weights that move while it is taken, in some
        versions a running mean, and of batches of different sizes in the ways.
        """

        def on_train_begin(self, logs=None):
            before.append(_peak_memory())

        def on_epoch_end(self, epoch, logs=None):
            loss.append(_evaluate(model, x, y)[0])

    model.fit(x, y, batch_size=way.batch, epochs=epochs, shuffle=False, verbose=1, callbacks=[Watch()])
    results = {
        "running": "{!r}, in {} mode".format(found, "graph" if found.graph_mode else "eager"),
        "loss": loss,
        "memory_before": before[0],
        "memory": _peak_memory(),
        "accuracy": _evaluate(model, *test)[1],
        "updates": found.value_of(optimizer.iterations),
    }
    np.savez(path + ".npz", *model.get_weights())
    with open(path + ".json", "w") as file:
        json.dump(results, file)
    return 0


def find_home(name, mode):
    """The `Home` to train with: the first of `homes_here`."""
    return next(homes_here(name, mode))


def _digits(steps):
    """((images, labels) to train on, (images, labels) to test with), in one fixed order."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    x = (digits.images[order] / 16.0).astype("float32")[..., np.newaxis]
    y = np.eye(10, dtype="float32")[digits.target[order]]
    whole, test = demo.images_of_whole_windows(steps), demo.TRAINING_IMAGES
    return (x[:whole], y[:whole]), (x[test:], y[test:])


def _network(keras):
    """Two convolutions and a softmax on the enlarged digit, with weights that NumPy draws.

    Enlarged so that, as in networks of a useful size, what the layers compute takes more memory than their weights.
    No batch normalization: its statistics are of the micro-batch, so that accumulation does not equal the large batch.
    Smooth throughout (tanh, strides instead of maximum pooling), so that rounding stays rounding: at the kink of a
    ReLU the last bit of an input decides on the whole of a gradient.
    """
    import numpy as np

    layers = keras.layers
    inputs = layers.Input(shape=(8, 8, 1))
    x = layers.UpSampling2D((3, 3))(inputs)
    x = layers.Conv2D(64, (3, 3), padding="same", activation="tanh")(x)
    x = layers.Conv2D(16, (3, 3), strides=(3, 3), padding="same", activation="tanh")(x)
    x = layers.Flatten()(x)
    model = keras.models.Model(inputs, layers.Dense(10, activation="softmax")(x))
    random = np.random.RandomState(1)
    weights = []
    for weight in model.get_weights():
        inputs_of_one = np.prod(weight.shape[:-1])  # biases, of one axis, start at zero
        scale = inputs_of_one**-0.5 if weight.ndim > 1 else 0.0
        weights.append((scale * random.standard_normal(weight.shape)).astype("float32"))
    model.set_weights(weights)
    return model


def _evaluate(model, x, y):
    # In micro-batches in all ways: anything larger would be part of their peak memory.
    return [float(value) for value in model.evaluate(x, y, batch_size=demo.MICRO_BATCH, verbose=0)]


def _peak_memory():
    """The most memory that this process has had so far, in bytes; None where Python cannot tell (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
