"""`python -m legacyga demo`: compare accumulation and slices with a large batch, one process each to measure memory."""

import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile

import legacyga
from legacyga.cli.homes_here import homes_here

MICRO_BATCH = 8
TRAINING_IMAGES = 1440  # of 1797; the test uses the others
LEARNING_RATE, MOMENTUM = 0.02, 0.9
PICTURE_FORMATS = (".png", ".pdf", ".svg")
LEGEND = """
final loss: over all training images, after the last epoch
largest difference: of any weight from the {}
peak memory: of the process that trains in this way; TensorFlow itself takes most of it
in training: by how much the peak rose after the first batch began
"""
# The accumulated and sliced curves lie on the large batch's: keep all visible.
STYLES = {
    "small": dict(color="tab:gray", linewidth=1.5, marker="o", markersize=4),
    "accumulated": dict(color="tab:blue", linewidth=1.5, linestyle="--", marker="o", markersize=4),
    "sliced": dict(color="tab:green", linestyle="none", marker="x", markersize=9),
    "large": dict(color="tab:orange", linewidth=6, alpha=0.6, marker="o", markersize=9, zorder=1),
}


def ways(steps):
    """Return {name: (title, batch size, K, size of slices or None)} for the four ways to train."""
    small, large = "batch of {}".format(MICRO_BATCH), "batch of {}".format(MICRO_BATCH * steps)
    return {
        "small": (small, MICRO_BATCH, 1, None),
        "accumulated": ("{}, K = {}".format(small, steps), MICRO_BATCH, steps, None),
        "sliced": ("{}, slices of {}".format(large, MICRO_BATCH), MICRO_BATCH * steps, 1, MICRO_BATCH),
        "large": (large, MICRO_BATCH * steps, 1, None),
    }


def images_of_whole_windows(steps):
    return TRAINING_IMAGES // (MICRO_BATCH * steps) * MICRO_BATCH * steps


def run(home, steps, epochs, out, mode):
    """Train the four ways, print the table and draw the picture. `--help` describes the arguments and exit codes."""
    out = os.path.abspath(out)
    problem = _problem(steps, out)
    if problem:
        return _cannot(problem)
    images = images_of_whole_windows(steps)
    print("scikit-learn's digits: {} images to train on, in whole windows, {} times over".format(images, epochs))
    results = _train_all(home, mode, steps, epochs)
    if results is None:
        return 2
    code = report(results, steps)
    draw(results, steps, out)
    print("\nloss curves: {}".format(out))
    return code


def _problem(steps, out):
    """Return what would stop the demo, or None."""
    if any(importlib.util.find_spec(name) is None for name in ("sklearn", "matplotlib")):
        return "the demo needs scikit-learn and matplotlib. Run: pip install scikit-learn matplotlib"
    if not images_of_whole_windows(steps):
        return "--steps must be at most {}. Received: {}".format(TRAINING_IMAGES // MICRO_BATCH, steps)
    if os.path.splitext(out)[1].lower() not in PICTURE_FORMATS:
        return "--out must end in {}. Received: {}".format(", ".join(PICTURE_FORMATS), out)
    if not os.path.isdir(os.path.dirname(out)):
        return "--out is in a folder that does not exist. Make it first. Received: {}".format(out)
    if os.path.isdir(out) or not os.access(os.path.dirname(out), os.W_OK):
        return "--out must be a file that can be written. Received: {}".format(out)


def _cannot(problem):
    sys.stderr.write("legacyga demo: {}\n".format(problem))
    return 2


def _train_all(home, mode, steps, epochs):
    """Train in each way that this Keras has, each in its own process. Return {name: results}; None if one failed."""
    # No GPU: the demo measures the CPU's memory, and some GPUs multiply float32 with fewer bits.
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="-1")
    environment.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    options = ["--steps", str(steps), "--epochs", str(epochs)]
    options += (["--home", home] if home else []) + (["--mode", mode] if mode else [])
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (title, _, _, _) in ways(steps).items():
            print("training: {}".format(title), flush=True)
            path = os.path.join(folder, name)
            command = [sys.executable, "-m", "legacyga", "demo", "--way", name, "--results", path]
            code = _call_quietly(command + options, environment)
            if code:
                _cannot("the process of the {} ended with exit code {}, and says why above".format(title, code))
                return None
            # A way that this Keras lacks writes no file.
            if os.path.exists(path):
                with open(path) as file:
                    results[name] = json.load(file)
    return results


def _call_quietly(command, environment):
    """Run the command and return its exit code. Only a command that fails shows what it wrote to standard error."""
    # TensorFlow writes lines about CUDA at any log level. A user who has set the level reads them all.
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return subprocess.call(command, env=environment)
    with tempfile.TemporaryFile() as errors:
        code = subprocess.call(command, env=environment, stderr=errors)
        if code:
            errors.seek(0)
            sys.stderr.write(errors.read().decode("utf-8", "replace"))
    return code


def train_one_way(name, home, mode, steps, epochs, path):
    """Train the way `name` in this process, write its results to `path` as JSON, and return the exit code."""
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        found = next(homes_here(home, mode))
    except Exception as error:
        asked = "--home {}, --mode {}".format(home or "any", mode or "any")
        return _cannot(
            "{}\nInstall the missing package, or ask for a Keras that is installed. Received: {}".format(error, asked)
        )
    keras, (_, batch, k, size) = found.module, ways(steps)[name]
    (x, y), test = _digits(steps)
    model = _network(keras)
    optimizer = legacyga.MySGD(lr=LEARNING_RATE, momentum=MOMENTUM, steps_per_update=k, keras=keras)
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", metrics=["accuracy"])
    if size:
        try:
            legacyga.micro_batch(model, size)
        except ValueError as error:
            # Eager mode of TensorFlow 2.0 and 2.1. Delete with TF 2.1.
            print("left out: {}".format(error))
            return 0
    # Evaluate again after each epoch: Keras averages the loss in the logs over batches, while the weights still change.
    loss, memory = [_evaluate(model, x, y)[0]], []
    watch = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: memory.append(_peak_memory()),
        on_epoch_end=lambda epoch, logs: loss.append(_evaluate(model, x, y)[0]),
    )
    model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=[watch])
    results = {
        "running": "{}, in {} mode".format(found, "graph" if found.graph_mode else "eager"),
        "loss": loss,
        "memory": memory + [_peak_memory()],
        "accuracy": _evaluate(model, *test)[1],
        "updates": found.value_of(optimizer.iterations),
        "weights": [weight.tolist() for weight in model.get_weights()],
    }
    with open(path, "w") as file:
        json.dump(results, file)
    return 0


def _digits(steps):
    """Return ((training images, labels), (test images, labels)), in one fixed order."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    x = (digits.images[order] / 16.0).astype("float32")[..., np.newaxis]
    y = np.eye(10, dtype="float32")[digits.target[order]]
    whole = images_of_whole_windows(steps)
    return (x[:whole], y[:whole]), (x[TRAINING_IMAGES:], y[TRAINING_IMAGES:])


def _network(keras):
    """Return two convolutions and a softmax on the enlarged digit, with NumPy's weights: the same in each process."""
    import numpy as np

    layers = keras.layers
    inputs = layers.Input(shape=(8, 8, 1))
    # Enlarged, the activations take more memory than the weights, as in networks of a useful size.
    x = layers.UpSampling2D((3, 3))(inputs)
    # tanh, because at the kink of a ReLU a rounding error in the last bit can switch a whole gradient.
    x = layers.Conv2D(64, (3, 3), padding="same", activation="tanh")(x)
    x = layers.Conv2D(16, (3, 3), strides=(3, 3), padding="same", activation="tanh")(x)
    x = layers.Flatten()(x)
    model = keras.models.Model(inputs, layers.Dense(10, activation="softmax")(x))
    random, shapes = np.random.RandomState(1), [weight.shape for weight in model.get_weights()]
    # Scale by the number of inputs to one output. Biases have one axis, and start at zero.
    scales = [np.prod(shape[:-1]) ** -0.5 if len(shape) > 1 else 0.0 for shape in shapes]
    model.set_weights([scale * random.standard_normal(shape) for scale, shape in zip(scales, shapes)])
    return model


def _evaluate(model, x, y):
    # Every way evaluates in micro-batches: larger batches would add to its peak memory.
    return [float(value) for value in model.evaluate(x, y, batch_size=MICRO_BATCH, verbose=0)]


def _peak_memory():
    """Return the peak memory of this process so far, in MiB; None if Python cannot tell (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2.0**20 if sys.platform == "darwin" else 2.0**10)


def largest_difference(weights, reference):
    """Return the largest difference of any weight; NaN if a weight is NaN."""
    # Import NumPy only after the training: on Linux the peak memory of a new process starts at its parent's.
    import numpy as np

    return float(np.max([np.max(np.abs(np.subtract(*pair, dtype="float64"))) for pair in zip(weights, reference)]))


def rounding_bound(reference, updates):
    """Return the largest difference from the weights `reference` that float32 rounding explains.

    Each update moves two runs that compute the same in another order apart, up or down, by about a unit in the last
    place: at most 2 ** -23 of the largest weight. Such a random walk gets as far as the square root of its steps. Our
    runs end at most 0.74 of this distance apart (0.25 with the default arguments). The factor 4 leaves room for other
    processors. Batches of 8 without accumulation end 10 ** 5 bounds away.
    """
    import numpy as np

    return 4 * updates**0.5 * 2.0**-23 * max(float(np.max(np.abs(weight))) for weight in reference)


def report(results, steps):
    """Print the table and the verdicts for the results by name, and return the exit code."""
    titles, large = {name: way[0] for name, way in ways(steps).items()}, results["large"]
    differences = {name: largest_difference(each["weights"], large["weights"]) for name, each in results.items()}
    row = "{:<26}{:>10}{:>15}{:>9}{:>20}{:>14}{:>14}"
    print("\n{}\n".format(large["running"]))
    print(row.format("", "final loss", "test accuracy", "updates", "largest difference", "peak memory", "in training"))
    for name, each in results.items():
        before, peak = each["memory"]
        memory = ["not measured"] * 2
        if peak is not None:
            memory = ["{:.0f} MiB".format(peak), "+{:.0f} MiB".format(peak - before)]
        loss, accuracy = ["{:.4f}".format(value) for value in (each["loss"][-1], each["accuracy"])]
        difference = "{:.2e}".format(differences[name])
        print(row.format(titles[name], loss, accuracy, each["updates"], difference, *memory))
    print(LEGEND.format(titles["large"]))
    bound, code = rounding_bound(large["weights"], large["updates"]), 0
    for name, title in (("accumulated", "Accumulation"), ("sliced", "Slices")):
        if name in differences:
            # NaN counts as too large.
            is_within = differences[name] <= bound
            code = code if is_within else 1
            verdict = "are one training: {:.2e} is within" if is_within else "DIFFER: {:.2e} is NOT within"
            told = title + " and the large batch " + verdict + " float32 rounding, {:.1e} after {} updates."
            print(told.format(differences[name], bound, large["updates"]))
    return code


def draw(results, steps, out):
    """Draw the loss after each epoch of each way, by the updates made until then, to the path `out`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.8))
    FigureCanvasAgg(figure)  # works without a display, and leaves the caller's pyplot alone
    axes = figure.add_subplot(1, 1, 1)
    for name, result in results.items():
        # Before the first update all have the same loss, and a logarithmic axis has no zero.
        loss = result["loss"][1:]
        updates = [result["updates"] * (epoch + 1) / len(loss) for epoch in range(len(loss))]
        label = "{}: {} updates".format(ways(steps)[name][0], result["updates"])
        axes.plot(updates, loss, label=label, **STYLES[name])
    # "must lie", because the curves of a failed run differ.
    title = "Batches of {0} with K = {1}, and slices of {0}, must lie on the curve of the batch of {2}.\n"
    title += "Batches of {0} alone make {1} times as many updates."
    axes.set_title(title.format(MICRO_BATCH, steps, MICRO_BATCH * steps), fontsize=11)
    axes.set(xscale="log", yscale="log", ylabel="mean cross-entropy of the training images, nats")
    axes.set_xlabel(
        "updates (logarithmic), a mark after each epoch of {} images".format(images_of_whole_windows(steps))
    )
    ends = sorted({end for line in axes.lines for end in (line.get_xdata()[0], line.get_xdata()[-1])})
    axes.set_xticks(ends)
    axes.set_xticklabels(["{:.0f}".format(end) for end in ends])
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3, which="both")
    axes.legend(title=results["large"]["running"], loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2, fontsize=9)
    figure.savefig(out, dpi=100, bbox_inches="tight")
