"""What workers send each other: bytes on the loopback interface and time, for each window.

    python benchmarks/exchange.py [--workers 1 2 3] [--steps 1 4 8] [--rounds 30] [--json FILE] [--picture FILE.png]

Starts so many processes under MultiWorkerMirroredStrategy, which train two models: a dense one, and an embedding with a
dense layer. Each with `wrap` for each K, and with the bare optimizer, which exchanges gradients every mini-step. In
each round a window of every K and as many mini-steps of the bare optimizer take turns. Prints what went over the
loopback interface in a window, its time, and both over the bare optimizer's: medians over the rounds, with the ratios'
quartiles. One worker has nothing to send: `scale.py` takes from it what a mini-step and an update cost alone. Other
programs that use the interface meanwhile are counted too.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from _shared import figure, keep, markdown, save, spread

BATCH, WIDTH, TABLE, IDS = 8, 512, (20000, 64), 64
# In seconds, for one number of workers: one that fails leaves the others waiting for it.
LIMIT = 240
BYTES, SECONDS = "{:,.0f}".format, "{:.4f}".format


def received():
    """Bytes that the loopback interface has received."""
    with open("/proc/net/dev") as file:
        line = next(line for line in file if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def models(tf):
    """{name: function that makes (variables, function of the loss of a batch)}."""

    def dense():
        kernels = [tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], [i, 0]) * 0.01) for i in range(4)]

        def loss(x, ids):
            for kernel in kernels:
                x = tf.nn.relu(tf.matmul(x, kernel))
            return tf.reduce_mean(x)

        return kernels, loss

    def embedding():
        table = tf.Variable(tf.random.stateless_normal(TABLE, [0, 1]))
        kernel = tf.Variable(tf.random.stateless_normal([TABLE[1], 8], [0, 2]))
        return [table, kernel], lambda x, ids: tf.reduce_mean(tf.matmul(tf.gather(table, ids), kernel))

    return {"dense": dense, "embedding": embedding}


class Program(object):
    """A model of its own and its mini-steps.

    Args:
        make: one of `models`.
        sgd: the class of the bare optimizer; None for the forward and the backward pass alone.
        steps: K of `wrap`; None for the bare optimizer.
    """

    def __init__(self, tf, strategy, make, sgd, steps=None):
        import legacyga

        with strategy.scope():
            self.variables, loss = make()
            optimizer = sgd and sgd(1e-3, momentum=0.9)
            optimizer = legacyga.wrap(optimizer, steps) if steps else optimizer

        def on_replica(x, ids):
            with tf.GradientTape() as tape:
                value = loss(x, ids)
            gradients = tape.gradient(value, self.variables)
            if optimizer is None:
                # What nobody gets would not be computed.
                return gradients
            optimizer.apply_gradients(zip(gradients, self.variables))

        self.steps = steps
        self.mini_step = tf.function(lambda x, ids: strategy.run(on_replica, args=(x, ids)))

    def run(self, batches, mini_steps):
        """(bytes, seconds) of so many mini-steps."""
        bytes_before, began = received(), time.perf_counter()
        for i in range(mini_steps):
            self.mini_step(*batches[i % len(batches)])
        seconds = time.perf_counter() - began
        return received() - bytes_before, seconds


def measure_model(options, batches, program):
    """What one model's windows and mini-steps are, medians over the rounds.

    Args:
        options: those of the command line.
        batches: list of (x, ids).
        program: function of (has optimizer, K) that makes a `Program`.
    """
    wrapped = [program(True, steps) for steps in options.steps]
    bare, alone = program(True, None), program(False, None)
    for each in wrapped + [bare, alone]:
        each.run(batches, 2 * (each.steps or 1))
    found, forward_backward = {each: [] for each in wrapped}, []
    for number in range(options.rounds):
        for each in wrapped:
            pair = [each, bare][:: -1 if number % 2 else 1]
            turn = {one: one.run(batches, each.steps) for one in pair}
            found[each].append(turn[each] + turn[bare])
        mini_steps = max(options.steps)
        forward_backward.append(alone.run(batches, mini_steps)[1] / mini_steps)
    rows = []
    for each in wrapped:
        row = dict(steps=each.steps)
        for name, of_window, of_bare in zip(("bytes", "seconds"), (0, 1), (2, 3)):
            row[name] = {"window": spread([one[of_window] for one in found[each]])}
            row[name]["bare"] = spread([one[of_bare] for one in found[each]])
            row[name]["ratio"] = spread([one[of_window] / max(one[of_bare], 1e-9) for one in found[each]])
        rows.append(row)
    size = 4 * sum(int(variable.shape.num_elements()) for variable in bare.variables)
    return dict(parameters=size, forward_backward=spread(forward_backward), windows=rows)


def work(options):
    """What one worker does; the first prints a line of JSON."""
    import numpy as np
    import tensorflow as tf

    try:
        import tf_keras as keras
    except ImportError:
        from tensorflow import keras

    import legacyga

    # So that a mini-step takes as long beside another worker as it does alone.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    sgd = getattr(keras.optimizers, "legacy", keras.optimizers).SGD
    random, found = np.random.RandomState(options.worker), {}
    x = tf.constant(random.randn(BATCH, WIDTH).astype("float32"))
    batches = [(x, tf.constant(random.randint(0, TABLE[0], IDS))) for _ in range(8)]
    for name, make in models(tf).items():

        def program(optimizes, steps, make=make):
            return Program(tf, strategy, make, sgd if optimizes else None, steps)

        found[name] = measure_model(options, batches, program)
    if options.worker == 0:
        versions = dict(
            python="{}.{}".format(*sys.version_info), tensorflow=tf.__version__, legacyga=legacyga.__version__
        )
        print(json.dumps(dict(versions=versions, models=found)), flush=True)


def free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def measure(options, workers):
    """What the first of so many workers found."""
    addresses = ["127.0.0.1:{}".format(port) for port in free_ports(workers)]
    processes, ends = [], time.time() + LIMIT
    try:
        for number in range(workers):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": number}}
            command = [sys.executable, os.path.abspath(__file__), "--worker", str(number)]
            command += ["--rounds", str(options.rounds), "--steps"] + [str(each) for each in options.steps]
            environment = dict(os.environ, TF_CONFIG=json.dumps(task))
            processes.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, universal_newlines=True)
            )
        printed = [process.communicate(timeout=max(1, ends - time.time()))[0] for process in processes]
        if any(process.returncode for process in processes):
            sys.exit("a worker failed")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return json.loads(printed[0].splitlines()[-1])


def table(found, name, form):
    """The lines of a table of bytes or of seconds: a row for each number of workers, model and K."""
    head = [
        "workers",
        "model",
        "K",
        "a window of `wrap`",
        "K mini-steps of the bare optimizer",
        "ratio",
        "its quartiles",
    ]
    rows = []
    for workers, by_model in found["workers"].items():
        for model, of_model in by_model.items():
            for row in of_model["windows"] if name == "seconds" or int(workers) > 1 else []:
                ratio, low, high = ["{:.3f}".format(each) for each in row[name]["ratio"]]
                cells = [form(row[name][which][0]) for which in ("window", "bare")] + [ratio, low + " to " + high]
                rows.append([workers, model, row["steps"]] + cells)
    return markdown(head, rows)


def draw(found, path):
    """The two ratios against K, a line for each model and number of workers."""
    picture, places = figure(2)
    titles = "Bytes: dense gradients fall as 1 / K", "Time: a window exchanges once, not K times"
    for place, name, title in zip(places, ("bytes", "seconds"), titles):
        steps = []
        for workers, by_model in found["workers"].items():
            for (model, of_model), color in zip(by_model.items(), ("C0", "C1")):
                if int(workers) == 1:
                    continue
                steps = [row["steps"] for row in of_model["windows"]]
                ratios = list(zip(*[row[name]["ratio"] for row in of_model["windows"]]))
                style = dict(color=color, linestyle="-" if workers == "2" else "--", marker="o", markersize=4)
                place.plot(steps, ratios[0], label="{}, {} workers".format(model, workers), **style)
                place.fill_between(steps, ratios[1], ratios[2], color=color, alpha=0.15, linewidth=0)
        place.plot(steps, [1.0 / each for each in steps], color="grey", linestyle=":", label="1 / K")
        place.set_xticks(steps)
        place.set_ylim(bottom=0)
        place.set_xlabel("K")
        place.set_ylabel("{} of a window over K bare mini-steps".format("bytes" if name == "bytes" else "time"))
        place.set_title(title, fontsize=10)
    places[0].legend(fontsize=8)
    save(picture, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json")
    parser.add_argument("--picture")
    parser.add_argument("--kept", metavar="FILE", help="what --json has written: measure nothing, and draw that")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options)
        return
    if options.kept:
        with open(options.kept) as file:
            draw(json.load(file), options.picture)
        return
    load = os.getloadavg()[0]
    measured = [measure(options, workers) for workers in options.workers]
    found = dict(versions=measured[0]["versions"], cores=os.cpu_count(), load=round(load, 1), rounds=options.rounds)
    found["workers"] = {str(workers): each["models"] for workers, each in zip(options.workers, measured)}
    print(
        "TensorFlow {}, {cores} cores with a load of {load} before, {rounds} rounds".format(
            found["versions"]["tensorflow"], **found
        )
    )
    for title, name, form in (("Bytes", "bytes", BYTES), ("Seconds", "seconds", SECONDS)):
        print("\n".join(["", title + ":", ""] + table(found, name, form)))
    keep(found, options.json)
    if options.picture:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
