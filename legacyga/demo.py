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
import logging
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


def run(home=None, steps=8, epochs=5, out="legacyga-demo.png", mode=None):
    """Train the three ways, print the table and draw the picture.

    Args:
        home: `"keras"`, `"tf.keras"`, `"tf_keras"`, or None: the first that can train of tf.keras, tf_keras, keras.
        steps: K, the micro-batches of an update. Default 8; the large batch has 8 * K images.
        epochs: the passes over the training images. Default 5.
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
        "scikit-learn's digits: {} images to train on ({} left out, for whole windows of {}), {} times over".format(
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
        return (
            'the demo needs scikit-learn and matplotlib. Not installed: {}. Run: pip install "legacyga[demo]"'.format(
                ", ".join(missing).replace("sklearn", "scikit-learn")
            )
        )


def _cannot(problem):
    sys.stderr.write("legacyga demo: {}\n".format(problem))
    return 2


def _train_all(home, mode, steps, epochs):
    """The results of the three ways, by name; None if one could not be run, which has then said why."""
    # 2: TensorFlow's errors only. Its version 1 warns of NumPy's future as well, in dozens of lines.
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1")
    environment.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    options = ["--steps", str(steps), "--epochs", str(epochs)]
    options += (["--home", home] if home else []) + (["--mode", mode] if mode else [])
    with tempfile.TemporaryDirectory() as folder:
        for name, way in ways(steps).items():
            print("\n--- {} ---".format(way.title))
            sys.stdout.flush()
            command = [sys.executable, "-m", "legacyga", "demo", "--way", name, "--results", os.path.join(folder, name)]
            code = subprocess.call(command + options, env=environment)
            if code:
                _cannot("the process of the {} ended with exit code {}, and says why above".format(way.title, code))
                return None
        return {name: _read(os.path.join(folder, name)) for name in ways(steps)}


def _read(path):
    # Imported after the training: on Linux the peak of a process counts from what the one that started it had.
    import numpy as np

    with open(path + ".json") as file:
        results = json.load(file)
    with np.load(path + ".npz") as file:
        results["weights"] = [file["arr_{}".format(i)] for i in range(len(file.files))]
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

    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    way = ways(steps)[name]
    try:
        found = _find_home(home, mode)
    except (ImportError, ValueError) as error:
        asked = "--home {}, --mode {}".format(home or "any", mode or "any")
        return _cannot("{}\nInstall what is missing, or ask for what is there. Received: {}".format(error, asked))
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
        "running": "{!r}, in {} mode".format(found, "graph" if found.graph_mode else "eager"),
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
                raise ValueError("{!r} has no eager mode to train in".format(home))
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
        scale = inputs_of_one**-0.5 if weight.ndim > 1 else 0.0
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
    """The largest difference of any weight, a float; not a number if a weight is not one.

    Args:
        weights, reference: lists of arrays of the same shapes, in the same order.
    """
    import numpy as np

    return float(np.max([np.max(np.abs(one.astype("float64") - other)) for one, other in zip(weights, reference)]))


def rounding_bound(reference, updates):
    """The largest difference of any weight that float32 rounding explains.

    Two runs that compute the same in another order part by about half a unit in the last place (2 ** -23 of the
    largest weight, at most) per update, now up and now down: a random walk, which gets as far as the square root of
    its steps. Measured in such units times that root: at most 0.25 with the default arguments, in every home from
    TensorFlow 1.8 to 2.21; at most 0.74 for K = 2 to 180 and 1 to 40 epochs, on 1.13, 2.10 and 2.21. 4 leaves room
    for other processors and libraries. Batches of 8 without accumulation end 10 ** 5 times this bound away.

    Args:
        reference: list of arrays, the weights of the large batch.
        updates: the updates that led to them.
    """
    import numpy as np

    return 4 * updates**0.5 * 2.0**-23 * max(float(np.max(np.abs(weight))) for weight in reference)


def report(results, steps):
    """Print the table and what follows from it.

    Args:
        results: by the names of `ways`, dicts of `running`, `loss` (a list, the last the final one), `accuracy`,
            `updates`, `weights` (list of arrays), and `memory` and `memory_before` (bytes, or None).
        steps: K.

    Returns:
        0, or 1 where accumulation and the large batch differ by more than float32 rounding.
    """
    reference = results["large"]["weights"]
    titles = ways(steps)
    differences = {name: largest_difference(result["weights"], reference) for name, result in results.items()}
    row = "{:<20}{:>10}{:>15}{:>9}{:>20}{:>14}{:>14}"
    print("\n{}\n".format(results["large"]["running"]))
    print(row.format("", "final loss", "test accuracy", "updates", "largest difference", "peak memory", "in training"))
    for name, result in results.items():
        before, peak = result["memory_before"], result["memory"]
        print(
            row.format(
                titles[name].title,
                "{:.4f}".format(result["loss"][-1]),
                "{:.4f}".format(result["accuracy"]),
                result["updates"],
                "{:.2e}".format(differences[name]),
                "not measured" if peak is None else "{:.0f} MiB".format(peak / 2.0**20),
                "not measured" if peak is None else "+{:.0f} MiB".format((peak - before) / 2.0**20),
            )
        )
    print("\nfinal loss: over all training images, after the last epoch")
    print("largest difference: of any weight, to the {}".format(titles["large"].title))
    print("peak memory: of the way's own process, most of it TensorFlow itself")
    print("in training: by how much the peak rose after the first batch began")

    bound = rounding_bound(reference, results["large"]["updates"])
    difference = differences["accumulated"]
    # Written so that a difference that is not a number is too large.
    same = difference <= bound
    print(
        "\nAccumulation and the large batch {}: {:.2e} is {} float32 rounding, {:.1e} after {} updates.".format(
            "are one training" if same else "DIFFER",
            difference,
            "within" if same else "NOT within",
            bound,
            results["large"]["updates"],
        )
    )
    return 0 if same else 1


def draw(results, steps, images, out):
    """Draw the loss after each epoch of the three ways.

    Args:
        results: as in `report`.
        steps: K.
        images: the number of training images.
        out: the picture's path.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # The accumulated curve lies on that of the large batch: dashed and thin on a broad one, both are seen.
    styles = {
        "small": dict(color="tab:gray", linewidth=1.5, marker="o", markersize=4),
        "large": dict(color="tab:orange", linewidth=6, alpha=0.6, solid_capstyle="round"),
        "accumulated": dict(color="tab:blue", linewidth=1.5, linestyle="--", marker="o", markersize=4),
    }
    figure = Figure(figsize=(7, 4.5))
    FigureCanvasAgg(figure)  # needs no display, and leaves a pyplot of the caller alone
    axes = figure.add_subplot(1, 1, 1)
    for name in ("small", "large", "accumulated"):
        loss, updates = results[name]["loss"], results[name]["updates"]
        label = "{} ({} updates)".format(ways(steps)[name].title, updates)
        axes.plot(range(len(loss)), loss, label=label, **styles[name])
    axes.set_yscale("log")
    axes.set_xlabel("epochs (passes over {} images)".format(images))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("loss over all training images")
    axes.set_title(results["large"]["running"], fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(out, dpi=150)
