"""Gradient accumulation with Horovod, each way to nest the two: how far from one process, and how much is exchanged.

Two processes of gloo, on this machine, train a small model of tf.keras with K = 8, for 12 windows. They are compared
with one process that takes batches 16 times as large.

    distance    the largest of any weight from the one process, relative to how far that one went
    allreduces  of one variable in a window, counted in the timeline that Horovod's core writes
    iterations  the optimizer's own count, after 12 windows

    python benchmarks/horovod_nestings.py

It needs Horovod: docs/distributed.md says how it is built.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

K, WINDOWS, BATCH, PROCESSES = 8, 12, 4, 2
WAYS = (
    "`wrap(hvd.DistributedOptimizer(o), K)`",
    "`hvd.DistributedOptimizer(wrap(o, K))`",
    "`hvd.DistributedOptimizer(o, backward_passes_per_step=K)`",
    "the same with `average_aggregated_gradients=True`",
)


def work(folder):
    """What each of the processes does."""
    import horovod.tensorflow.keras as hvd
    import numpy as np
    import tensorflow as tf

    import legacyga

    keras = tf.keras
    hvd.init()
    random = np.random.RandomState(5)
    start = [random.randn(*shape).astype("float32") / 4 for shape in ((8, 16), (16,), (16, 1), (1,))]
    # By window, process and sample.
    x = random.randn(WINDOWS, PROCESSES, K * BATCH, 8).astype("float32")
    y = np.sin(x.sum(axis=-1, keepdims=True))

    def train(optimizer, x, y, batch):
        layers = keras.layers
        model = keras.Sequential([layers.Dense(16, activation="tanh", input_shape=(8,)), layers.Dense(1)])
        model.set_weights(start)
        model.compile(loss="mse", optimizer=optimizer)
        x, y = x.reshape(-1, 8), y.reshape(-1, 1)
        model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
        iterations = int(keras.backend.get_value(model.optimizer.iterations))
        return model.get_weights(), iterations

    makers = (
        lambda o: legacyga.wrap(hvd.DistributedOptimizer(o), K),
        lambda o: hvd.DistributedOptimizer(legacyga.wrap(o, K)),
        lambda o: hvd.DistributedOptimizer(o, backward_passes_per_step=K),
        lambda o: hvd.DistributedOptimizer(o, backward_passes_per_step=K, average_aggregated_gradients=True),
    )
    optimizers = {
        "SGD, momentum": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
        "Adam": lambda: keras.optimizers.Adam(0.01),
    }
    rows = []
    for name, make in optimizers.items():
        large, _ = train(make(), x, y, PROCESSES * K * BATCH)
        way = max(np.max(np.abs(weight - first)) for weight, first in zip(large, start))
        for i, distribute in enumerate(makers):
            # Tells in the timeline where this run begins.
            hvd.broadcast(0.0, 0, name="run{}".format(len(rows)))
            weights, iterations = train(distribute(make()), x[:, hvd.rank()], y[:, hvd.rank()], BATCH)
            distance = max(np.max(np.abs(weight - each)) for weight, each in zip(weights, large)) / way
            rows.append((name, i, float(distance), iterations, len(start)))
    if hvd.rank() == 0:
        with open(os.path.join(folder, "rows.json"), "w") as file:
            json.dump(rows, file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args.worker)
    with tempfile.TemporaryDirectory() as folder:
        timeline = os.path.join(folder, "timeline.json")
        launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(PROCESSES), "--gloo"]
        command = launcher + [sys.executable, os.path.abspath(__file__), "--worker", folder]
        subprocess.check_call(command, env=dict(os.environ, HOROVOD_TIMELINE=timeline))
        with open(timeline) as file:
            events = re.findall(r'"ph": "B", "name": "(ALLREDUCE|BROADCAST)"', file.read())
        with open(os.path.join(folder, "rows.json")) as file:
            rows = json.load(file)
    counts = [part.count("ALLREDUCE") for part in " ".join(events).split("BROADCAST")[1:]]
    print("| optimizer `o` | | distance | allreduces | iterations |")
    print("| --- | --- | --- | --- | --- |")
    for (name, i, distance, iterations, variables), count in zip(rows, counts):
        allreduces = count / float(WINDOWS * variables)
        print("| {} | {} | {:.1e} | {:g} | {} |".format(name, WAYS[i], distance, allreduces, iterations))


if __name__ == "__main__":
    main()
