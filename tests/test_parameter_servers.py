"""ParameterServerStrategy of TF 2, in one process: one server, two workers, which take mini-steps when they like."""

import homes
import needs
import pytest

pytestmark = [pytest.mark.capability("R12 replicas"), pytest.mark.long]

PROGRAM = """
import os
import sys
import numpy as np
import homes
import kinds
import legacyga

home = homes.start(sys.argv[1], "eager")
tf = home.tf
tf.config.threading.set_inter_op_parallelism_threads(8)
addresses = ["127.0.0.1:{}".format(port) for port in homes.free_ports(3)]
cluster = tf.train.ClusterSpec({"worker": addresses[:2], "ps": addresses[2:]})
config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=8)
jobs = (("worker", 0), ("worker", 1), ("ps", 0))
servers = [tf.distribute.Server(cluster, job, number, protocol="grpc", config=config) for job, number in jobs]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)


def run(apply):
    "Twelve mini-steps, whichever worker is free taking the next."

    @tf.function
    def mini_step():
        strategy.run(apply)

    for _ in range(12):
        coordinator.schedule(mini_step)
    coordinator.join()


def optimizer_of(cls, steps, variable, where):
    with strategy.scope():
        optimizer = legacyga.wrap(cls(1.0), steps)
        if where == "inside" and hasattr(optimizer, "build"):
            optimizer.build([variable])
    if where == "outside" and hasattr(optimizer, "build"):
        optimizer.build([variable])
    return optimizer


def loop(cls, steps, where):
    with strategy.scope():
        (variable,) = home.variables([np.zeros(5, "float32")])
    optimizer = optimizer_of(cls, steps, variable, where)
    run(lambda: optimizer.apply_gradients([(tf.ones(5), variable)]))
    return np.array(variable.numpy())


def fit(cls):
    with strategy.scope():
        model = home.keras.models.Sequential([home.keras.layers.Dense(1, use_bias=False, input_shape=(2,))])
        model.compile(loss="mse", optimizer=legacyga.wrap(cls(1.0), 3))

    def batches(context):
        return tf.data.Dataset.from_tensor_slices((np.ones((4, 2)), np.ones((4, 1)))).repeat().batch(2)

    model.fit(home.keras.utils.experimental.DatasetCreator(batches), epochs=1, steps_per_epoch=6, verbose=0)


def accumulator():
    with strategy.scope():
        gradients = legacyga.GradientAccumulator()
    run(lambda: gradients([tf.ones(5)]))


def refused(name, function, *args):
    try:
        function(*args)
    except ValueError as error:
        print("{}: {}".format(name, str(error).replace(chr(10), " ")))
    else:
        print("{}: taken".format(name))


for generation, found in kinds.classes(home).items():
    if generation in ("v1", "train"):
        continue
    sgd = found["SGD"]
    for where in ("inside", "outside", "lazily"):
        if not (home.is_keras3 and where == "lazily"):
            refused("loop", loop, sgd, 3, where)
    # No window at K = 1, and nothing to refuse.
    print("alone: {}".format(loop(sgd, 1, "inside").tolist()))
    if hasattr(getattr(home.keras.utils, "experimental", None), "DatasetCreator"):
        refused("fit", fit, sgd)
refused("accumulator", accumulator)
sys.stdout.flush()
# The servers know no end.
os._exit(0)
"""


def test_a_window_for_workers_that_do_not_wait(home, tmpdir):
    """Refused before the first mini-step: two workers that count one window at a time lose mini-steps."""
    needs.eager_only(home, since=(2, 4))
    lines = homes.run_program(tmpdir, PROGRAM, home.name).splitlines()
    found = [line.split(": ", 1) for line in lines if line.startswith(("loop: ", "alone: ", "fit: ", "accumulator: "))]
    assert {name for name, _ in found} >= {"loop", "alone", "accumulator"}
    assert home.is_keras3 or home.tf_version < (2, 5) or "fit" in {name for name, _ in found}
    for name, said in found:
        if name == "alone":
            assert said == str([-12.0] * 5), lines
        else:
            assert "ParameterServerStrategy" in said and "MultiWorkerMirroredStrategy" in said, (name, said)
