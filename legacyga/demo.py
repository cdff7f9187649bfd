"""`python -m legacyga demo`: accumulation beside the large batch that it stands for, on real data.

A small convolutional network learns scikit-learn's digits three ways, from the same start and in the same order:
micro-batches of 8, micro-batches of 8 with K of them to an update, and batches of 8 * K. Each way has a process of
its own, so that its peak memory is its own. All of it runs on the CPU: that is whose memory is measured, and some
GPUs multiply float32 in fewer bits than float32 has.
"""
import collections
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

HOMES = ("tf.keras", "tf_keras", "keras")
MICRO_BATCH = 8
TRAINING_IMAGES = 1440  # of the 1797; the others are for the test
LEARNING_RATE, MOMENTUM = 0.02, 0.9
PICTURE_FORMATS = (".png", ".pdf", ".svg")

Way = collections.namedtuple("Way", "title batch steps_per_update")


def ways(steps):
    """The three ways to train, by name, for windows of `steps` micro-batches."""
    return collections.OrderedDict(
        [
            ("small", Way("batch of {}".format(MICRO_BATCH), MICRO_BATCH, 1)),
            ("accumulated", Way("batch of {}, K = {}".format(MICRO_BATCH, steps), MICRO_BATCH, steps)),
            ("large", Way("batch of {}".format(MICRO_BATCH * steps), MICRO_BATCH * steps, 1)),
        ]
    )


def run(home=None, steps=8, epochs=10, out="legacyga-demo.png", mode=None):
    """Train the three ways, print the table and draw the picture.

    Args:
        home: `"keras"`, `"tf.keras"`, `"tf_keras"`, or None: the first that can train of tf.keras, tf_keras, keras.
        steps: K, the micro-batches of an update. Default 8; the large batch has 8 * K images.
        epochs: the passes over the training images. Default 10.
        out: the path of the picture, .png, .pdf or .svg. Default `legacyga-demo.png` in the current folder.
        mode: `"graph"`, `"eager"`, or None: the one that the home starts in.

    Returns:
        The exit code: 0, or 1 where accumulation and the large batch differ by more than float32 rounding, or 2
        where the demo could not be run (then standard error says why, and what to do).
    """
    images = TRAINING_IMAGES // (MICRO_BATCH * steps) * MICRO_BATCH * steps
    out = os.path.abspath(out)
    problem = _missing_packages()
    if not problem and not images:
        problem = "--steps must be at most {}, for there are {} training images. Received: {}".format(
            TRAINING_IMAGES // MICRO_BATCH, TRAINING_IMAGES, steps
        )
    # Asked before the training rather than found out after it.
    if not problem and os.path.splitext(out)[1].lower() not in PICTURE_FORMATS:
        problem = "--out must end in {}. Received: {}".format(", ".join(PICTURE_FORMATS), out)
    if not problem and not os.path.isdir(os.path.dirname(out)):
        problem = "--out is in a folder that does not exist. Make it first. Received: {}".format(out)
    if problem:
        return _cannot(problem)

    print(
        "scikit-learn's digits: {} images to train on ({} left out, for whole windows of {}), the same {} times over".format(
            images, TRAINING_IMAGES - images, MICRO_BATCH * steps, epochs
        )
    )
    results = _train_all(home, mode, steps, epochs)
    if results is None:
        return 2
    code = report(results, steps)
    draw(results, steps, images, out)
    print("\nloss curves: {}".format(out))
    return code


def _missing_packages():
    missing = [name for name in ("sklearn", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        return 'the demo needs scikit-learn and matplotlib. Not installed: {}. Run: pip install "legacyga[demo]"'.format(
            ", ".join(missing).replace("sklearn", "scikit-learn")
        )


def _cannot(problem):
    sys.stderr.write("legacyga demo: {}\n".format(problem))
    return 2


def _train_all(home, mode, steps, epochs):
    """The results of the ways, by name; None if one could not be run, which has then said why."""
    import numpy as np

    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1")
    # TensorFlow 1's own imports warn about its use of NumPy, in hundreds of lines.
    environment.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    results = {}
    # This process stays small until they are done (no NumPy, no matplotlib): on Linux the peak that a process is told
    # of begins at that of the process which started it.
    with tempfile.TemporaryDirectory() as folder:
        for name, way in ways(steps).items():
            print("\n--- {} ---".format(way.title))
            sys.stdout.flush()
            path = os.path.join(folder, name)
            command = [sys.executable, "-m", "legacyga", "demo", "--way", name, "--results", path]
            command += ["--steps", str(steps), "--epochs", str(epochs)]
            command += (["--home", home] if home else []) + (["--mode", mode] if mode else [])
            code = subprocess.call(command, env=environment)
            if code:
                _cannot("training with a {} ended with exit code {}, see above".format(way.title, code))
                return None
            with open(path + ".json") as file:
                results[name] = json.load(file)
            with np.load(path + ".npz") as file:
                results[name]["weights"] = [file["arr_{}".format(i)] for i in range(len(file.files))]
            home = results[name]["home"]
    return results


def train_one_way(name, home, mode, steps, epochs, path):
    """What one of the three processes does: train and write the results to `path` + `.json` and `.npz`.

    Args:
        name: the way, a key of `ways`.
        home, mode, steps, epochs: as in `run`.
        path: where to write, without a suffix.

    Returns:
        0, or 2 where nothing here can train so (then standard error says why).
    """
    import numpy as np

    import legacyga

    way = ways(steps)[name]
    try:
        found = _find_home(home, mode)
    except (ImportError, ValueError) as error:
        return _cannot(error)
    keras = found.module
    (x, y), test = _digits(steps)
    model = _network(keras)
    optimizer = legacyga.MySGD(lr=LEARNING_RATE, momentum=MOMENTUM, steps_per_update=way.steps_per_update, keras=keras)
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", metrics=["accuracy"])
    loss = [_evaluate(model, x, y)[0]]
    before = []

    class Watch(keras.callbacks.Callback):
        """Keeps the memory at the start and the loss after each epoch.

        The loss that Keras hands to callbacks will not do: it is of weights that move while it is taken, in some
        versions a running mean, and of batches of different sizes in the three ways.
        """

        def on_train_begin(self, logs=None):
            before.append(_peak_memory())

        def on_epoch_end(self, epoch, logs=None):
            loss.append(_evaluate(model, x, y)[0])

    model.fit(x, y, batch_size=way.batch, epochs=epochs, shuffle=False, verbose=1, callbacks=[Watch()])
    results = {
        "home": home or found.name,
        "running": "{!r} on TensorFlow {}, in {} mode".format(
            found, found.tf.__version__, "graph" if found.graph_mode else "eager"
        ),
        "loss": loss,
        "memory_before": before[0],
        "memory": _peak_memory(),
        "accuracy": _evaluate(model, *test)[1],
        "updates": _value(found, optimizer.iterations),
    }
    np.savez(path + ".npz", *model.get_weights())
    with open(path + ".json", "w") as file:
        json.dump(results, file)
    return 0


def _find_home(name, mode):
    """The `Home` to train with; an ImportError or a ValueError if there is none."""
    from legacyga import _compat

    tf = _compat._tensorflow()
    if mode == "graph" and tf.executing_eagerly():
        tf.compat.v1.disable_eager_execution()
    first_problem = None
    for candidate in (name,) if name else HOMES:
        try:
            home = _compat.find_home(tf.keras if candidate == "tf.keras" else importlib.import_module(candidate))
            home.check_can_train()
            if mode == "eager" and home.graph_mode:
                raise ValueError("{!r} on TensorFlow {} has no eager mode to train in".format(home, tf.__version__))
            return home
        except (ImportError, ValueError) as problem:
            first_problem = first_problem or problem
    raise first_problem


def _digits(steps):
    """((images, labels) to train on, (images, labels) to test with), in one fixed order."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    x = (digits.images[order] / 16.0).astype("float32")[..., np.newaxis]
    y = np.eye(10, dtype="float32")[digits.target[order]]
    whole = TRAINING_IMAGES // (MICRO_BATCH * steps) * MICRO_BATCH * steps
    return (x[:whole], y[:whole]), (x[TRAINING_IMAGES:], y[TRAINING_IMAGES:])


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
        scale = inputs_of_one ** -0.5 if weight.ndim > 1 else 0.0
        weights.append((scale * random.standard_normal(weight.shape)).astype("float32"))
    model.set_weights(weights)
    return model


def _evaluate(model, x, y):
    # In micro-batches in all three ways: anything larger would be part of their peak memory.
    return [float(value) for value in model.evaluate(x, y, batch_size=MICRO_BATCH, verbose=0)]


def _value(home, variable):
    return int(home.backend.get_value(variable) if home.graph_mode else variable.numpy())


def _peak_memory():
    """The most memory that this process has had so far, in bytes; None where Python cannot tell (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def largest_difference(weights, reference):
    """The largest difference of any weight, a float (not a number if one of them is not).

    Args:
        weights, reference: lists of arrays, in the same order.
    """
    import numpy as np

    return max(float(np.max(np.abs(one.astype("float64") - other))) for one, other in zip(weights, reference))


def rounding(reference, updates):
    return 1.0
