"""Two workers, each a process of its own, on the loopback interface: as one device with the large batch."""

import needs
import numpy as np
import oracle
import pytest
import skips
import two_workers

# Where `fit` is run beside those of conftest.LONG.
ALSO = [("tf.keras", "eager", "2.4"), ("tf.keras", "eager", "2.10"), ("tf_keras", "eager", "2.21")]
pytestmark = pytest.mark.capability("R12 replicas")
RANDOM = np.random.RandomState(41)
START = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
POLICIES = ["skip_mini_step", "skip_window"]
X, Y = RANDOM.randn(15, 3).astype("float32"), RANDOM.randn(15, 2).astype("float32")
# By worker: gradients and weights of four mini-steps.
FED = [[0.0625, 0.125, 0.25, 0.5], [1.0, 2.0, 4.0, 8.0]]
WEIGHTS = [[2.0, 1.0, 1.0, 0.0], [1.0, 3.0, 1.0, 4.0]]
IDS = [[[0, 1, 1], [1, 2, 2], [3, 3, 4], [0, 0, 0]], [[1, 1, 5], [0, 5, 5], [3, 2, 2], [3, 3, 1]]]
# The same, with what is not finite on one worker alone: left out are mini-steps 1 and 4.
BAD = [[1.0, 2.0, 4.0, 8.0, np.inf, 32.0], [0.5, np.nan, 0.25, 0.125, 0.0625, 0.5]]

STARTED = """
import sys
import numpy as np
import homes
import legacyga
import test_workers as data

home = homes.start(sys.argv[1], "eager")
tf, worker = home.tf, int(sys.argv[-1])
# A strategy of its own from TF 2.4 on.
strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""

FIT = """

def trained(x, epochs, partial_window, **settings):
    with strategy.scope():
        model = home.network(data.START)
        optimizer = legacyga.wrap(home.bare_sgd(lr=0.1, momentum=0.9), **settings)
        model.compile(loss="mse", optimizer=optimizer)
    batches = tf.data.Dataset.from_tensor_slices((x, data.Y)).batch(4)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    callback = legacyga.GradientAccumulationCallback(partial_window=partial_window)
    model.fit(batches.with_options(options), epochs=epochs, verbose=0, callbacks=[callback])
    counts = [float(each.numpy()) for each in (optimizer.iterations, optimizer.mini_step, optimizer.skipped_mini_steps)]
    return np.concatenate([each.ravel() for each in model.get_weights()] + [counts])


values = {}
if sys.argv[3] == "uneven":
    # Of the last batch one worker has two samples and the other one.
    values["uneven"] = trained(data.X, 1, "flush", gradient_accumulation_steps=4)
else:
    x = data.X.copy()
    x[7] = np.nan
    for policy in data.POLICIES:
        settings = dict(gradient_accumulation_steps=3, on_nonfinite=policy)
        values[policy] = trained(x, 2, "drop", **settings)
np.savez("{}{}.npz".format(sys.argv[2], worker), **values)
"""

BY_HAND = """
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
values = dict(weighed=variable.numpy(), eagerly=other.numpy(), rows=table.numpy().ravel())


def with_bad(policy):
    with strategy.scope():
        variable = tf.Variable([0.0])
        optimizer = legacyga.wrap(home.bare_sgd(lr=1.0), 2, on_nonfinite=policy)

    def mini_step(step):
        optimizer.apply_gradients([(tf.constant(data.BAD[worker], "float32")[step][None], variable)])

    @tf.function
    def loop():
        for step in tf.range(6):
            strategy.run(mini_step, args=(step,))

    loop()
    counts = [optimizer.iterations, optimizer.skipped_mini_steps]
    return np.concatenate([variable.numpy()] + [[float(each.numpy())] for each in counts])


for policy in data.POLICIES:
    values[policy] = with_bad(policy)
np.savez("{}{}.npz".format(sys.argv[2], worker), **values)
"""


@pytest.mark.long(also=ALSO)
def test_fit_with_uneven_workers(home, tmpdir):
    """fit with the callback: of the last batch one worker has less."""
    found = run(home, tmpdir, FIT, "uneven")
    sgd, weights = oracle.SGD(0.1, 0.9), oracle.double(START)
    weights = sgd.update(weights, oracle.gradients(weights, X.astype("float64"), Y.astype("float64")))
    check(found["uneven"], flat(weights, 1, 0, 0))


@pytest.mark.long
def test_fit_with_a_nan_on_one_worker(home, tmpdir):
    """Batches of 4, 4, 4 and 3 samples at K = 3: the second has a NaN, the fourth is dropped, twice."""
    found = run(home, tmpdir, FIT, "bad")
    sgd, weights = oracle.SGD(0.1, 0.9), oracle.double(START)
    without = [np.delete(each[:12].astype("float64"), slice(4, 8), 0) for each in (X, Y)]
    for _ in range(2):
        weights = sgd.update(weights, oracle.gradients(weights, *without))
    check(found["skip_mini_step"], flat(weights, 2, 0, 2))
    check(found["skip_window"], flat(START, 0, 0, 6))


@pytest.mark.long
def test_by_hand(home, tmpdir):
    """Weights by hand, rows of an embedding that both workers have, and what is not finite on one of them."""
    found, expected = run(home, tmpdir, BY_HAND), by_hand()
    assert set(found) == set(expected)
    for name, values in found.items():
        check(values, expected[name])


def run(home, tmpdir, program, *arguments):
    """What a program has saved: the same on both workers."""
    needs.eager_only(home, since=(2, 4))
    if home.is_keras3:
        skips.keras_lacks("Keras 3 has no MultiWorkerMirroredStrategy")
    tmpdir.join("program.py").write(STARTED + program)
    two_workers.run(tmpdir.join("program.py"), [home.name, str(tmpdir.join("values"))] + list(arguments), tmpdir)
    found = []
    for worker in (0, 1):
        with np.load(str(tmpdir.join("values{}.npz".format(worker)))) as file:
            found.append({name: file[name] for name in file.files})
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name], err_msg=name)
    return found[0]


def check(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=4e-6)


def flat(weights, *counts):
    """A model's weights, and the optimizer's `iterations`, `mini_step` and `skipped_mini_steps`."""
    return np.concatenate([value.ravel() for value in weights] + [counts])


def by_hand():
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
    sums = np.sum(BAD, 0)
    left = -sums[0] - (sums[2] + sums[3]) / 2.0 - sums[5]
    # Then `iterations`, and the mini-steps that were left out.
    bad = dict(skip_mini_step=[left, 3, 2], skip_window=[-(sums[2] + sums[3]) / 2.0, 1, 4])
    return dict(bad, weighed=[variable], eagerly=[variable], rows=table)
