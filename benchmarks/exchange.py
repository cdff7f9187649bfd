"""What workers send each other: bytes on the loopback interface and time, for each window.

    python benchmarks/exchange.py [--workers 2] [--steps 1 4 8] [--windows 20] [--json FILE]

Starts so many processes under MultiWorkerMirroredStrategy, which train two models: a dense one, and an embedding with a
dense layer. Each with the bare optimizer, which exchanges gradients every mini-step, and with `wrap` for each K. Prints
the bytes that went over the loopback interface, and the seconds, for a window of K mini-steps; "every" is the bare
optimizer over as many. Other programs that use the interface meanwhile are counted too.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

BATCH, WIDTH, TABLE, IDS = 8, 512, (20000, 64), 64


def received():
    """Bytes that the loopback interface has received."""
    with open("/proc/net/dev") as file:
        line = next(line for line in file if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def models(tf, keras):
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


def work(options):
    """What one worker does; the first prints a line of JSON."""
    import numpy as np
    import tensorflow as tf

    try:
        import tf_keras as keras
    except ImportError:
        from tensorflow import keras

    import legacyga

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    sgd = getattr(keras.optimizers, "legacy", keras.optimizers).SGD
    random, found = np.random.RandomState(options.worker), []
    for name, make in models(tf, keras).items():
        for steps in [None] + options.steps:
            with strategy.scope():
                variables, loss = make()
                optimizer = sgd(1e-3, momentum=0.9)
                optimizer = optimizer if steps is None else legacyga.wrap(optimizer, steps)

            def on_replica(x, ids, variables=variables, loss=loss, optimizer=optimizer):
                with tf.GradientTape() as tape:
                    value = loss(x, ids)
                optimizer.apply_gradients(zip(tape.gradient(value, variables), variables))

            mini_step = tf.function(lambda x, ids, run=on_replica: strategy.run(run, args=(x, ids)))
            x = tf.constant(random.randn(BATCH, WIDTH).astype("float32"))
            batches = [tf.constant(random.randint(0, TABLE[0], IDS)) for _ in range(8)]
            mini_steps = (steps or 1) * options.windows
            for i in range(2 * (steps or 1)):
                mini_step(x, batches[i % 8])
            began, bytes_before = time.time(), received()
            for i in range(mini_steps):
                mini_step(x, batches[i % 8])
            variables[0].read_value()
            seconds = (time.time() - began) / options.windows
            sent = (received() - bytes_before) / options.windows
            size = sum(int(np.prod(each.shape)) for each in variables) * 4
            found.append(dict(model=name, steps=steps, bytes=sent, seconds=seconds, parameters=size))
    if options.worker == 0:
        print(json.dumps(found), flush=True)


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
    processes = []
    for number in range(workers):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": number}}
        command = [
            sys.executable,
            os.path.abspath(__file__),
            "--worker",
            str(number),
            "--windows",
            str(options.windows),
        ]
        command += ["--steps"] + [str(each) for each in options.steps]
        environment = dict(os.environ, TF_CONFIG=json.dumps(task))
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, universal_newlines=True))
    printed = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("a worker failed")
    return json.loads(printed[0].splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--json")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options)
        return
    found = {workers: measure(options, workers) for workers in options.workers}
    row = "{:>7}  {:<9}  {:>3}  {:>12}  {:>12}  {:>6}  {:>8}  {:>8}  {:>6}".format
    print(row("workers", "model", "K", "bytes", "every", "ratio", "seconds", "every", "ratio"))
    for workers, results in found.items():
        every = {each["model"]: each for each in results if each["steps"] is None}
        for each in results:
            if each["steps"] is None:
                continue
            sent, seconds = [every[each["model"]][name] * each["steps"] for name in ("bytes", "seconds")]
            ratios = ["{:.3f}".format(each["bytes"] / sent), "{:.3f}".format(each["seconds"] / seconds)]
            told = ["{:.0f}".format(each["bytes"]), "{:.0f}".format(sent), ratios[0]]
            told += ["{:.4f}".format(each["seconds"]), "{:.4f}".format(seconds), ratios[1]]
            print(row(workers, each["model"], each["steps"], *told))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
