"""Two workers, each a process of its own, on the loopback interface: as one device with the large batch."""

import json
import os
import subprocess
import sys

import homes
import needs
import numpy as np
import oracle
import pytest
import skips

HERE = os.path.dirname(os.path.abspath(__file__))
pytestmark = [pytest.mark.capability("R12 replicas"), pytest.mark.long]
RANDOM = np.random.RandomState(41)
START = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
X, Y = RANDOM.randn(15, 3).astype("float32"), RANDOM.randn(15, 2).astype("float32")
# By worker: gradients and weights of four mini-steps.
FED = [[0.0625, 0.125, 0.25, 0.5], [1.0, 2.0, 4.0, 8.0]]
WEIGHTS = [[2.0, 1.0, 1.0, 0.0], [1.0, 3.0, 1.0, 4.0]]
IDS = [[[0, 1, 1], [1, 2, 2], [3, 3, 4], [0, 0, 0]], [[1, 1, 5], [0, 5, 5], [3, 2, 2], [3, 3, 1]]]

PROGRAM = """
import sys
import numpy as np
import homes
import legacyga
import test_workers as data

home = homes.start(sys.argv[1], "eager")
tf, worker = home.tf, int(sys.argv[3])
# A strategy of its own from TF 2.4 on.
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = home.network(data.START)
    optimizer = legacyga.wrap(home.bare_sgd(lr=0.1, momentum=0.9), 4)
    model.compile(loss="mse", optimizer=optimizer)
batches = tf.data.Dataset.from_tensor_slices((data.X, data.Y)).batch(4)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
# Of the last batch one worker has two samples and the other one.
callback = legacyga.GradientAccumulationCallback()
model.fit(batches.with_options(options), epochs=1, verbose=0, callbacks=[callback])
values = [each.ravel() for each in model.get_weights()]

with strategy.scope():
    variable, other, table = tf.Variable([0.0]), tf.Variable([0.0]), tf.Variable(tf.ones([6, 1]))
    eagerly = legacyga.wrap(home.bare_sgd(lr=1.0), 2)
    by_hand = legacyga.wrap(home.bare_sgd(lr=1.0), 2)
    by_rows = legacyga.wrap(home.bare_sgd(lr=1.0), 2)


def weighed(step):
    with by_hand.mini_step_weight(tf.constant(data.WEIGHTS[worker])[step]):
        by_hand.apply_gradients([(tf.constant(data.FED[worker])[step][None], variable)])


def weighed_eagerly(step):
    # Of the two workers' numbers one may be a constant 1.
    with eagerly.mini_step_weight(data.WEIGHTS[worker][step]):
        eagerly.apply_gradients([(tf.constant([data.FED[worker][step]]), other)])


def of_rows(step):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, tf.constant(data.IDS[worker])[step])) / 8.0
    by_rows.apply_gradients([(tape.gradient(loss, table), table)])


@tf.function
def loop():
    for step in tf.range(4):
        strategy.run(weighed, args=(step,))


@tf.function
def one(step):
    strategy.run(of_rows, args=(step,))


loop()
for step in range(4):
    one(tf.constant(step))
    strategy.run(weighed_eagerly, args=(step,))
one(tf.constant(0))
assert legacyga.flush(by_rows) is True and legacyga.flush(eagerly) is False
values += [variable.numpy(), other.numpy(), table.numpy().ravel()]
np.save(sys.argv[2] + str(worker) + ".npy", np.concatenate(values))
"""


def test_uneven_workers(home, tmpdir):
    """fit with the callback, weights by hand, and rows of an embedding that both workers have."""
    needs.eager_only(home, since=(2, 4))
    if home.is_keras3:
        skips.keras_lacks("Keras 3 has no MultiWorkerMirroredStrategy")
    tmpdir.join("program.py").write(PROGRAM)
    addresses = ["127.0.0.1:{}".format(port) for port in homes.free_ports(2)]
    paths = [HERE] + sys.path + [each for each in [os.environ.get("PYTHONPATH")] if each]
    processes = []
    for worker in (0, 1):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(tmpdir.join("program.py")), home.name, str(tmpdir.join("values")), str(worker)],
                env=dict(os.environ, TF_CONFIG=json.dumps(task), PYTHONPATH=os.pathsep.join(paths)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                universal_newlines=True,
            )
        )
    try:
        printed = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(printed)
    found = [np.load(str(tmpdir.join("values{}.npy".format(worker)))) for worker in (0, 1)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], expected(), rtol=0, atol=4e-6)


def expected():
    sgd, weights = oracle.SGD(0.1, 0.9), [value.astype("float64") for value in START]
    weights = sgd.update(weights, oracle.gradients(weights, X.astype("float64"), Y.astype("float64")))
    variable, table = 0.0, np.ones(6)
    for window in ((0, 1), (2, 3)):
        given = [(WEIGHTS[worker][step], FED[worker][step]) for worker in (0, 1) for step in window]
        # The mean of the replicas' weights is what a mini-step weighs, and gradients are added up over replicas.
        variable -= sum(weight * each for weight, each in given) / (sum(weight for weight, _ in given) / 2.0)
        for worker in (0, 1):
            for step in window:
                for row in IDS[worker][step]:
                    table[row] -= 1.0 / 8.0 / 2.0
    for row in IDS[0][0] + IDS[1][0]:
        table[row] -= 1.0 / 8.0
    return np.concatenate([value.ravel() for value in weights] + [[variable, variable], table])
