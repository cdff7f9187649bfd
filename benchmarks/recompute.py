"""What slices that are computed twice cost, for a loss that is no mean over the samples: time and peak memory.

    python benchmarks/recompute.py [--home tf.keras] [--model convolutional] [--width 256] [--batch 64]
        [--sizes 8] [--rounds 8] [--repeats 3] [--json FILE]

A network trains by `fit` in eager mode, the same batches in four ways: whole; in slices that are computed once
(`recompute=False`); in slices that are computed twice (`recompute=True`); and in those of a loop by hand. That one is
GradCache in plain TensorFlow: the outputs of all slices without a tape, the gradient of the loss by the outputs, and
each slice again under a tape with its part of it. The loss is the mean squared error, for all ways take that one.

Time: CPU time, that of all threads of the process, which the load of other processes changes least. The ways of one
size take turns in one process, each beginning as often as the others. A ratio is that of one round; told are the
median over the rounds, and the quartiles.

Memory: each way has a process of its own. What is told is its peak less the peak of the same process before it
trained, with the model built, compiled, and asked for one sample's prediction: as in benchmarks/micro_batch.py. With
--repeats it is the median of so many processes, which take turns.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from _shared import GIVEN_BACK, keep, markdown, spread
from micro_batch import BATCHES, MARK, MIB, against, home_of, network, peak

# This process imports neither TensorFlow nor NumPy: on Linux a process's peak counts from what had started it.
WAYS = ("whole", "once", "twice", "hand")
BAR = 1.4  # of the time of a convolutional network, twice over once


def by_hand(keras, model, size):
    """The model with a GradCache loop for a train_step; `size` divides its batches."""
    import tensorflow as tf

    class GradCache(keras.models.Model):
        def train_step(self, data):
            x, y = data
            variables = [each if isinstance(each, tf.Variable) else each.value for each in self.trainable_variables]
            slices = tf.shape(x)[0] // size

            def look(i, outputs):
                return i + 1, outputs.write(i, self(x[i * size : (i + 1) * size], training=True))

            outputs = tf.TensorArray(tf.float32, slices, element_shape=(size, 10))
            _, outputs = tf.while_loop(lambda i, _: i < slices, look, (0, outputs), parallel_iterations=1)
            outputs = outputs.concat()
            with tf.GradientTape() as tape:
                tape.watch(outputs)
                loss = tf.reduce_mean(tf.square(outputs - y))
            upstream = tape.gradient(loss, outputs)

            def add(i, sums):
                part = slice(i * size, (i + 1) * size)
                with tf.GradientTape() as tape:
                    outputs = self(x[part], training=True)
                gradients = tape.gradient(outputs, variables, output_gradients=upstream[part])
                return i + 1, [one + another for one, another in zip(sums, gradients)]

            zeros = [tf.zeros_like(each) for each in variables]
            _, sums = tf.while_loop(lambda i, _: i < slices, add, (0, zeros), parallel_iterations=1)
            self.optimizer.apply_gradients(zip(sums, self.trainable_variables))
            return {"loss": loss}

    return GradCache(model.inputs, model.outputs)


class Training(object):
    """A model of its own, and how it is trained: in one of `WAYS`, in slices of `size` samples."""

    def __init__(self, options, keras, way, size):
        import numpy as np

        import legacyga

        self.model, shape = network(keras, options.model, options.width)
        random, samples = np.random.RandomState(0), BATCHES * options.batch
        self.model.set_weights([0.05 * random.randn(*each.shape) for each in self.model.get_weights()])
        self.x = random.randn(samples, *shape).astype("float32")
        self.y = random.randn(samples, 10).astype("float32")
        self.batch_size = options.batch
        if way == "hand":
            self.model = by_hand(keras, self.model, size)
        self.model.compile(keras.optimizers.SGD(1e-2, momentum=0.9), "mse")
        if way in ("once", "twice"):
            legacyga.micro_batch(self.model, size, recompute=way == "twice")

    def run(self):
        """The CPU time of one epoch, in seconds."""
        began = time.process_time()
        self.model.fit(self.x, self.y, batch_size=self.batch_size, epochs=1, shuffle=False, verbose=0)
        return time.process_time() - began


def memory(options, keras):
    """What the process of one way does for its memory."""
    training = Training(options, keras, options.way, options.sizes[0])
    training.model.predict(training.x[:1], verbose=0)
    before = peak()
    for _ in range(2):
        training.run()
    return peak() - before


def times(options, keras):
    """What the process of one size does: {way: CPU seconds of each round}, and that all ways have trained alike."""
    import numpy as np

    trainings = [(way, Training(options, keras, way, options.sizes[0])) for way in WAYS]
    found = {way: [] for way in WAYS}
    for number in range(-2, options.rounds):
        first = number % len(WAYS)
        for way, training in trainings[first:] + trainings[:first]:
            seconds = training.run()
            # The first two build what is computed.
            if number >= 0:
                found[way].append(seconds)
    whole = trainings[0][1].model.get_weights()
    for way, training in trainings:
        for one, other in zip(training.model.get_weights(), whole):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4, err_msg=way)
    return found


def work(options):
    """What a process that is started does: it prints a line of JSON."""
    import tensorflow as tf

    options.mode = "eager"
    keras = home_of(options)
    found = dict(found=memory(options, keras) if options.way else times(options, keras), tensorflow=tf.__version__)
    print("\n" + MARK + json.dumps(found), flush=True)


def process(options, size, way=None):
    """What a process of its own found."""
    command = [sys.executable, os.path.abspath(__file__), "--work", "--sizes", str(size)]
    for name in ("home", "model", "batch", "rounds", "width"):
        command += ["--" + name, str(getattr(options, name))]
    # On the CPU, whose memory is measured.
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1")
    if way:
        command += ["--way", way]
        environment.update(GIVEN_BACK)
    printed = subprocess.check_output(command, env=environment, universal_newlines=True)
    return json.loads([line for line in printed.splitlines() if line.startswith(MARK)][-1][len(MARK) :])


def measure(options):
    """All that is written to the file."""
    found = {name: getattr(options, name) for name in ("home", "model", "width", "batch", "rounds", "repeats")}
    found.update(cores=os.cpu_count(), load=round(os.getloadavg()[0], 1), rows=[])
    for size in options.sizes:
        bytes_of = {way: [] for way in WAYS}
        for _ in range(options.repeats):
            for way in WAYS:
                bytes_of[way].append(process(options, size, way)["found"])
        timed = process(options, size)
        found["tensorflow"], seconds = timed["tensorflow"], timed["found"]
        row = dict(size=size, memory={way: spread(each) for way, each in bytes_of.items()})
        row["seconds"] = {way: spread(each) for way, each in seconds.items()}
        row["ratios"] = {
            way: spread([ours / theirs for ours, theirs in zip(seconds["twice"], seconds[way])])
            for way in WAYS
            if way != "twice"
        }
        found["rows"].append(row)
    return found


def tables(found):
    """The lines of both tables."""
    head = ["slices of", "the whole batch, MiB", "computed once", "computed twice", "by hand"]
    rows = [[row["size"]] + ["{:.0f}".format(row["memory"][way][0] / MIB) for way in WAYS] for row in found["rows"]]
    lines = ["Memory, peak above the idle model:", ""] + markdown(head, rows)
    bar = BAR if found["model"] == "convolutional" else float("inf")
    head = ["slices of", "over slices computed once" + (": bar {}".format(BAR) if bar == BAR else ""), "its quartiles"]
    rows = []
    for row in found["rows"]:
        ratio, low, high = row["ratios"]["once"]
        others = ["{:.2f}".format(row["ratios"][way][0]) for way in ("hand", "whole")]
        rows.append([row["size"], against(ratio, bar), "{:.2f} to {:.2f}".format(low, high)] + others)
    return (
        lines
        + ["", "CPU time of slices computed twice:", ""]
        + markdown(head + ["over the loop by hand", "over the whole batch"], rows)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("keras", "tf.keras", "tf_keras")
    parser.add_argument("--home", choices=names, default="tf.keras", help="your Keras (default: %(default)s)")
    parser.add_argument("--model", choices=("dense", "convolutional"), default="convolutional")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8])
    for name, default in (("batch", 64), ("width", 256), ("rounds", 8), ("repeats", 3)):
        parser.add_argument("--" + name, type=int, default=default, help="(default: %(default)s)")
    parser.add_argument("--json")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if any(options.batch % size for size in options.sizes):
        parser.error("--sizes must divide --batch, for the loop by hand. Received: {}".format(options.sizes))
    if options.work:
        work(options)
        return
    found = measure(options)
    told = "{home}, TensorFlow {tensorflow}, {model}, batches of {batch}, {cores} cores with a load of {load} before, "
    print((told + "{rounds} rounds, processes for each: {repeats}\n").format(**found))
    print("\n".join(tables(found)))
    keep(found, options.json)


if __name__ == "__main__":
    main()
