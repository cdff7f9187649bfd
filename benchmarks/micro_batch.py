"""What a batch in slices costs: peak memory and time of `micro_batch`, beside the batch, small batches and windows.

    python benchmarks/micro_batch.py [--home tf.keras] [--mode graph] [--models dense convolutional] [--width 2048]
        [--batch 64] [--sizes 32 16 8 4 1] [--rounds 10] [--repeats 1] [--hand] [--json FILE] [--picture FILE.png]

Each model trains by `fit` with SGD and momentum, the same samples each way: in whole batches; in batches in slices of
at most so many samples; in small batches of as many; and in windows of `legacyga.wrap` over these. With --hand also in
slices that the model's own train_step cuts: what slices cost if they must be right for this model only.

Memory: each way has a process of its own. What is told is its peak less the peak of the same process before it
trained, with the model built, compiled, and asked for one sample's prediction. So what is left out is TensorFlow, the
data and the model's weights, and what is told is what training takes: activations, gradients, the optimizer's moments,
and the graph of the training step. Tensors that are freed are given back at once (glibc alone can be told so, and
TensorFlow without oneDNN): else the peak is of what the allocator keeps as well, and differs from run to run by copies
of the parameters. With --repeats it is the median of so many processes.

Time: CPU time, that of all threads of the process, which the load of other processes changes least. The ways of one
size take turns in one process, each beginning as often as the others. A ratio is that of one round; told are the
median over the rounds, and the quartiles.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time

from _shared import GIVEN_BACK, figure, keep, markdown, save, spread

# This process imports neither TensorFlow nor NumPy: on Linux a process's peak counts from what had started it.
MARK, MIB = "micro_batch.py: ", 2.0**20
BATCHES = 3  # of whole batches, for fit itself to weigh little
PICTURE = 48
# At most: copies of the parameters above small batches; the time of a window.
COPIES, TIMES = 1.1, 1.05


def network(keras, name, width):
    """(functional model, shape of a sample)."""
    layers = keras.layers
    if name == "dense":
        shape = (width,)
        inputs = hidden = layers.Input(shape)
        for _ in range(3):
            hidden = layers.Dense(width, activation="tanh")(hidden)
    else:
        shape = (PICTURE, PICTURE, 3)
        inputs = layers.Input(shape)
        hidden = layers.Conv2D(32, (3, 3), padding="same", activation="tanh")(inputs)
        hidden = layers.Conv2D(32, (3, 3), padding="same", activation="tanh")(hidden)
        hidden = layers.Conv2D(64, (3, 3), strides=(4, 4), padding="same", activation="tanh")(hidden)
        hidden = layers.Dense(width // 2, activation="tanh")(layers.Flatten()(hidden))
    return keras.models.Model(inputs, layers.Dense(10)(hidden)), shape


def by_hand(keras, model, size):
    """The model with slices of its own, in eager mode: they divide a batch, and the loss is the mean squared error."""
    import tensorflow as tf

    class ByHand(keras.models.Model):
        def train_step(self, data):
            x, y = data
            variables = [each if isinstance(each, tf.Variable) else each.value for each in self.trainable_variables]
            slices = tf.shape(x)[0] // size

            def add(i, total, sums):
                part = slice(i * size, (i + 1) * size)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(self(x[part], training=True) - y[part]))
                gradients = tape.gradient(loss, variables)
                return i + 1, total + loss, [one + another for one, another in zip(sums, gradients)]

            zeros = [tf.zeros_like(each) for each in variables]
            _, total, sums = tf.while_loop(lambda i, *_: i < slices, add, (0, 0.0, zeros), parallel_iterations=1)
            means = [each / tf.cast(slices, each.dtype) for each in sums]
            self.optimizer.apply_gradients(zip(means, self.trainable_variables))
            return {"loss": total / tf.cast(slices, total.dtype)}

    return ByHand(model.inputs, model.outputs)


class Training(object):
    """A model of its own, and how it is trained.

    Args:
        options: those of the command line, with one model.
        keras: the home.
        way: "batch", "slices", "hand", "small" or "windows".
        size: the samples of a slice, or of a small batch.
    """

    def __init__(self, options, keras, way, size):
        import numpy as np

        import legacyga

        self.model, shape = network(keras, options.models[0], options.width)
        random, samples = np.random.RandomState(0), BATCHES * options.batch
        self.x = random.randn(samples, *shape).astype("float32")
        self.y = random.randn(samples, 10).astype("float32")
        self.batch_size = options.batch if way in ("batch", "slices", "hand") else size
        if way == "hand":
            self.model = by_hand(keras, self.model, size)
        optimizer = sgd(keras, options.mode)
        if way == "windows":
            optimizer = windows(legacyga, keras, optimizer, options.batch // size)
        self.model.compile(optimizer, "mse")
        if way == "slices":
            legacyga.micro_batch(self.model, size)

    def run(self):
        """The seconds of one epoch."""
        began = time.process_time()
        self.model.fit(self.x, self.y, batch_size=self.batch_size, epochs=1, shuffle=False, verbose=0)
        return time.process_time() - began


def sgd(keras, mode):
    # In graph mode of TF 2.11 and newer the legacy ones alone train.
    optimizers = getattr(keras.optimizers, "legacy", keras.optimizers) if mode == "graph" else keras.optimizers
    return optimizers.SGD(1e-3, momentum=0.9)


def windows(legacyga, keras, optimizer, steps):
    try:
        return legacyga.wrap(optimizer, steps)
    except ValueError:
        # Before TF 1.11 Keras's optimizers cannot be wrapped.
        return legacyga.MySGD(1e-3, momentum=0.9, steps_per_update=steps, keras=keras)


def peak():
    """The most memory that this process has had so far, in bytes."""
    import resource

    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024


def home_of(options):
    """The Keras that was asked for; `options.mode` is then the mode that it has."""
    import tensorflow as tf

    if options.mode == "graph" and hasattr(tf.compat, "v1"):
        tf.compat.v1.disable_eager_execution()
    eager = tf.__version__ >= "2" and tf.executing_eagerly()
    if options.mode == "eager" and not eager:
        sys.exit("TensorFlow {} starts in graph mode: leave --mode out.".format(tf.__version__))
    options.mode = "eager" if eager else "graph"
    return tf.keras if options.home == "tf.keras" else importlib.import_module(options.home)


def memory(options, keras):
    """What the process of one way does for its memory."""
    training = Training(options, keras, options.way, options.sizes[0])
    training.model.predict(training.x[:1])
    before = peak()
    for _ in range(2):
        training.run()
    parameters = 4 * sum(int(each.size) for each in training.model.get_weights())
    return dict(bytes=peak() - before, idle=before, parameters=parameters)


def times(options, keras):
    """What the process of one size does: {way: seconds of each round}."""
    ways = ("slices", "windows", "batch")
    trainings = [(way, Training(options, keras, way, options.sizes[0])) for way in ways]
    found = {way: [] for way in ways}
    for number in range(-2, options.rounds):
        first = number % len(ways)
        for way, training in trainings[first:] + trainings[:first]:
            seconds = training.run()
            # The first two build what is computed.
            if number >= 0:
                found[way].append(seconds)
    return found


def work(options):
    """What a process that is started does: it prints a line of JSON."""
    import tensorflow as tf

    import legacyga

    keras = home_of(options)
    found = dict(found=memory(options, keras) if options.way else times(options, keras), mode=options.mode)
    found["versions"] = dict(tensorflow=tf.__version__, legacyga=legacyga.__version__)
    found["versions"]["python"] = "{}.{}".format(*sys.version_info)
    if options.home != "tf.keras":
        found["versions"][options.home] = keras.__version__
    print("\n" + MARK + json.dumps(found), flush=True)


def process(options, model, size, way=None):
    """What a process of its own found."""
    command = [sys.executable, os.path.abspath(__file__), "--work", "--models", model, "--sizes", str(size)]
    for name in ("home", "batch", "rounds", "width"):
        command += ["--" + name, str(getattr(options, name))]
    command += (["--mode", options.mode] if options.mode else []) + (["--way", way] if way else [])
    # On the CPU, whose memory is measured.
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1")
    environment.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    if way:
        environment.update(GIVEN_BACK)
    printed = subprocess.check_output(command, env=environment, universal_newlines=True)
    return json.loads([line for line in printed.splitlines() if line.startswith(MARK)][-1][len(MARK) :])


def measure(options):
    """All that is written to the file."""
    found = {name: getattr(options, name) for name in ("home", "width", "batch", "rounds", "repeats", "hand")}
    found.update(cores=os.cpu_count(), load=round(os.getloadavg()[0], 1), models={})
    for model in options.models:

        def one(size, way, model=model):
            runs = [process(options, model, size, way) for _ in range(options.repeats)]
            return runs[0], spread([run["found"]["bytes"] for run in runs])

        first, batch = one(options.batch, "batch")
        found.update(mode=first["mode"], versions=first["versions"])
        rows = []
        for size in options.sizes:
            ways = ("slices", "small", "windows") + (("hand",) if options.hand else ())
            row = dict(size=size, memory={way: one(size, way)[1] for way in ways})
            seconds = process(options, model, size)["found"]
            row["seconds"] = {way: spread(values) for way, values in seconds.items()}
            row["ratios"] = {
                way: spread([ours / theirs for ours, theirs in zip(seconds["slices"], seconds[way])])
                for way in ("windows", "batch")
            }
            rows.append(row)
        parameters = first["found"]["parameters"]
        found["models"][model] = dict(parameters=parameters, idle=first["found"]["idle"], batch=batch, rows=rows)
    return found


def copies(of_model, row):
    """By how much slices are above small batches, in copies of the parameters."""
    return (row["memory"]["slices"][0] - row["memory"]["small"][0]) / float(of_model["parameters"])


def against(value, bar):
    return "{:.2f}{}".format(value, "" if value <= bar else " (over {})".format(bar))


def memory_table(found):
    head = ["model", "slices of", "the whole batch, MiB", "`micro_batch`", "small batches", "windows of `wrap`"]
    hand = found["hand"]
    head += ["slices by hand"] if hand else []
    rows, form = [], lambda value: "{:.0f}".format(value[0] / MIB)
    for model, of_model in found["models"].items():
        for row in of_model["rows"]:
            cells = [form(row["memory"][way]) for way in ("slices", "small", "windows") + (("hand",) if hand else ())]
            cells.append(against(copies(of_model, row), COPIES))
            rows.append([model, row["size"], form(of_model["batch"])] + cells)
    return markdown(head + ["above small batches, in copies of the parameters: bar {}".format(COPIES)], rows)


def time_table(found):
    head = ["model", "slices of", "a batch in slices, CPU s", "over a window: bar {}".format(TIMES), "its quartiles"]
    rows = []
    for model, of_model in found["models"].items():
        for row in of_model["rows"]:
            ratio, low, high = row["ratios"]["windows"]
            cells = ["{:.3f}".format(row["seconds"]["slices"][0] / BATCHES), against(ratio, TIMES)]
            cells.append("{:.2f} to {:.2f}".format(low, high))
            rows.append([model, row["size"]] + cells + ["{:.2f}".format(row["ratios"]["batch"][0])])
    return markdown(head + ["over the whole batch"], rows)


def draw(found, path):
    """Memory and time against the size of the slices, a place for each model and one for the ratios."""
    picture, places = figure(len(found["models"]) + 1)
    for place, (model, of_model) in zip(places, found["models"].items()):
        sizes = [row["size"] for row in of_model["rows"]]
        for way, title in (("slices", "micro_batch"), ("windows", "windows"), ("small", "small batches")):
            memory_of_way = [row["memory"][way][0] / MIB for row in of_model["rows"]]
            place.plot(sizes, memory_of_way, marker="o", markersize=4, label=title)
        place.axhline(of_model["batch"][0] / MIB, color="grey", linestyle=":", label="the whole batch")
        place.set_ylabel("peak above the idle model, MiB")
        place.set_title(model + ": memory, by the size of the slices", fontsize=10)
        ratios = [row["ratios"]["windows"][0] for row in of_model["rows"]]
        places[-1].plot(sizes, ratios, marker="o", markersize=4, label=model)
    places[-1].axhline(TIMES, color="grey", linestyle=":", label="the bar")
    places[-1].set_ylabel("time over a window of as many samples")
    places[-1].set_title("time: 1 is as long as a window of wrap", fontsize=10)
    for place in places:
        place.set_ylim(bottom=0)
        place.set_xlabel("samples of a slice")
        place.legend(fontsize=8)
    save(picture, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("keras", "tf.keras", "tf_keras")
    parser.add_argument("--home", choices=names, default="tf.keras", help="your Keras (default: %(default)s)")
    parser.add_argument("--mode", choices=("graph", "eager"), help="if your Keras has both modes (default: its own)")
    parser.add_argument("--models", nargs="+", choices=("dense", "convolutional"), default=["dense", "convolutional"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 16, 8, 4, 1])
    for name, default in (("batch", 64), ("width", 2048), ("rounds", 10), ("repeats", 1)):
        parser.add_argument("--" + name, type=int, default=default, help="(default: %(default)s)")
    parser.add_argument("--hand", action="store_true", help="in eager mode, also the memory of slices written by hand")
    parser.add_argument("--json")
    parser.add_argument("--picture")
    parser.add_argument("--kept", metavar="FILE", help="what --json has written: measure nothing, and draw that")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hand and options.mode == "graph":
        parser.error("--hand is for eager mode. Received: --mode graph")
    if any(options.batch % size for size in options.sizes):
        parser.error("--sizes must divide --batch, for whole windows. Received: {}".format(options.sizes))
    if options.work:
        work(options)
        return
    if options.kept:
        with open(options.kept) as file:
            draw(json.load(file), options.picture)
        return
    found = measure(options)
    told = "{home} in {mode} mode, TensorFlow {0}, batches of {batch}, {cores} cores with a load of {load} before, "
    print((told + "{rounds} rounds, processes for each: {repeats}").format(found["versions"]["tensorflow"], **found))
    for model, of_model in found["models"].items():
        numbers = [of_model[name] / MIB for name in ("parameters", "idle")]
        print("{}: parameters of {:.1f} MiB; the idle model's process had {:.0f} MiB".format(model, *numbers))
    for title, made in (("Memory, peak above the idle model", memory_table(found)), ("Time", time_table(found))):
        print("\n".join(["", title + ":", ""] + made))
    keep(found, options.json)
    if options.picture:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
