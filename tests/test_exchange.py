"""What replicas exchange: once a window, and rows that several of them have once, on three replicas."""

import homes
import needs
import numpy as np
import pytest
import skips

pytestmark = [pytest.mark.capability("R12 replicas"), pytest.mark.long]
K, STEPS, REPLICAS, TABLE_ROWS = 3, 9, 3, 7
RANDOM = np.random.RandomState(31)
DENSE = RANDOM.randn(STEPS, REPLICAS, 3, 2).astype("float32")
IDS = RANDOM.randint(0, TABLE_ROWS, (STEPS, REPLICAS, 4))
VALUES = RANDOM.randn(STEPS, REPLICAS, 4, 2).astype("float32")
START = RANDOM.randn(3, 2).astype("float32"), RANDOM.randn(TABLE_ROWS, 2).astype("float32")
CASES = [
    ("SGD", dict(momentum=0.875)),
    ("SGD", dict(momentum=0.875, clipvalue=0.25)),
    ("Adam", dict(clipnorm=0.5)),
    ("Adam", dict(global_clipnorm=0.5)),
    ("AdamW", dict(clipnorm=0.5)),
]


def mean_of_window(first):
    """The gradients of the large batch: a dense one, and rows with their indices."""
    ids, values = IDS[first : first + K].ravel(), VALUES[first : first + K].astype("float64").reshape(-1, 2)
    rows = np.unique(ids)
    values = np.array([values[ids == row].sum(0) for row in rows]) / K
    return DENSE[first : first + K].astype("float64").sum((0, 1)) / K, values, rows


PROGRAM = """
import sys
import numpy as np
import homes
import kinds
import legacyga
import test_exchange as data

home, strategy = homes.start_on_replicas(sys.argv[1], data.REPLICAS)
tf = home.tf
run = getattr(strategy, "run", None) or strategy.experimental_run_v2
dense, ids, values = tf.constant(data.DENSE), tf.constant(data.IDS), tf.constant(data.VALUES)
shape, worst = tf.constant(data.START[1].shape, "int64"), 0.0


def is_taken(cls, options):
    try:
        with strategy.scope():
            cls(0.125, **options)
    except (TypeError, ValueError):
        # global_clipnorm is there from TF 2.4 on. TF 2.2 and 2.3 do not clip under a strategy.
        return False
    return True


def built(optimizer, variables):
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    return optimizer


def trained(cls, options):
    with strategy.scope():
        variables = home.variables(data.START)
        optimizer = built(legacyga.wrap(cls(0.125, **options), data.K), variables)

    def mini_step(step):
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, "int32")
        rows = tf.IndexedSlices(values[step, replica], ids[step, replica], shape)
        optimizer.apply_gradients(zip([dense[step, replica], rows], variables))

    @tf.function
    def loop():
        for step in tf.range(data.STEPS):
            run(mini_step, args=(step,))

    loop()
    return [
        [part.numpy() for part in strategy.experimental_local_results(getattr(var, "_value", var))]
        for var in variables
    ]


def wanted(cls, options):
    variables, clip = home.variables(data.START), lambda each: each
    if home.tf_version < (2, 4):
        # There the bare optimizer clips in minimize alone, which takes no gradients.
        norm, value = options.get("clipnorm"), options.get("clipvalue")
        options = {name: each for name, each in options.items() if "clip" not in name}
        if norm or value:
            clip = lambda each: tf.clip_by_norm(each, norm) if norm else tf.clip_by_value(each, -value, value)
    optimizer = built(cls(0.125, **options), variables)
    for first in range(0, data.STEPS, data.K):
        mean, values, rows = data.mean_of_window(first)
        mean, values = [clip(tf.constant(each, "float32")) for each in (mean, values)]
        optimizer.apply_gradients(zip([mean, tf.IndexedSlices(values, tf.constant(rows), shape)], variables))
    return [np.array(home.value(each)) for each in variables]


tried = 0
for generation, found in kinds.classes(home).items():
    for name, options in data.CASES:
        if generation in ("v1", "train") or name not in found or not is_taken(found[name], options):
            continue
        tried += 1
        for parts, right in zip(trained(found[name], options), wanted(found[name], options)):
            assert all(np.array_equal(part, parts[0]) for part in parts), (generation, name, options)
            worst = max(worst, abs(parts[0] - right).max())
print(tried, worst)
"""


# TF 2.0 and 2.1 are the only ones where the sum over the replicas is clipped here.
@pytest.mark.long(also=[("tf.keras", "eager", "2.0")])
def test_rows_that_replicas_share(home, tmpdir):
    """In a loop, with rows that are others each time; clipped is the sum over the replicas, each row once."""
    needs.eager_only(home)
    printed = homes.run_program(tmpdir, PROGRAM, home.name)
    tried, worst = printed.splitlines()[-1].split()
    assert int(tried) >= 1
    assert float(worst) <= 5e-7


COUNT = """
import sys
import numpy as np
import homes
import kinds
import legacyga
import test_exchange as data

import tensorflow as tf


class Counting(tf.distribute.ReductionToOneDevice):
    exchanges = 0

    def batch_reduce(self, *args, **kwargs):
        Counting.exchanges += 1
        return super(Counting, self).batch_reduce(*args, **kwargs)

    def reduce(self, *args, **kwargs):
        Counting.exchanges += 1
        return super(Counting, self).reduce(*args, **kwargs)


home, strategy = homes.start_on_replicas(sys.argv[1], 2, cross_device_ops=Counting())
run = getattr(strategy, "run", None) or strategy.experimental_run_v2
for generation, found in kinds.classes(home).items():
    for steps in (1, 4, 8) if generation not in ("v1", "train") else ():
        with strategy.scope():
            variables = home.variables(data.START)
            optimizer = legacyga.wrap(found["Adam"](0.125), steps)
            if hasattr(optimizer, "build"):
                optimizer.build(variables)
        gradients = [tf.constant(each) for each in data.START]
        # Its variables are made, which takes an exchange of its own.
        for _ in range(steps):
            run(lambda: optimizer.apply_gradients(zip(gradients, variables)))
        Counting.exchanges, counts = 0, []
        for _ in range(8):
            # Eagerly, so that each exchange is one that was made, not traced.
            run(lambda: optimizer.apply_gradients(zip(gradients, variables)))
            counts.append(Counting.exchanges)
        print(generation, steps, *counts)
"""


def test_one_exchange_a_window(home, tmpdir):
    """What the cross-device operations of the strategy are asked for in eight mini-steps, K = 1, 4 and 8."""
    needs.eager_only(home)
    printed = homes.run_program(tmpdir, COUNT, home.name)
    lines = [line.split() for line in printed.splitlines() if line.split()[0] in ("v2", "v3", "keras3")]
    assert lines
    for _, steps, *counts in lines:
        each = 1 if steps != "1" else int(counts[0])
        assert [int(count) for count in counts] == [(i + 1) // int(steps) * each for i in range(8)], lines


REFUSED = """
import sys
import numpy as np
import homes
import legacyga
import tensorflow as tf

home, _ = homes.start_on_replicas(sys.argv[1], 2)
strategy = tf.distribute.experimental.CentralStorageStrategy(["/cpu:0", "/cpu:1"], "/cpu:0")
with strategy.scope():
    (variable,) = home.variables([np.ones(2, "float32")])
    optimizer = legacyga.wrap(home.bare_sgd(lr=1.0), 2)
try:
    strategy.run(lambda: optimizer.apply_gradients([(tf.ones(2), variable)]))
except ValueError as error:
    print("refused: {}".format(error))
print(variable.numpy().tolist())
accumulator = legacyga.GradientAccumulator()
for _ in range(2):
    try:
        strategy.run(lambda: accumulator([tf.ones(2)]))
    except ValueError as error:
        print("refused: {}".format(error))
"""


def test_one_variable_for_all_replicas(home, tmpdir):
    """CentralStorageStrategy has no place for the sums of each replica."""
    needs.eager_only(home, since=(2, 4))
    if home.is_keras3:
        skips.keras_lacks("Keras 3 does not train under CentralStorageStrategy")
    lines = homes.run_program(tmpdir, REFUSED, home.name).splitlines()
    assert lines[-3] == "[1.0, 1.0]"
    # The accumulator is refused again at its second call.
    for line in lines[-4], lines[-2], lines[-1]:
        assert line.startswith("refused: Each replica accumulates gradients in variables of its own")
        assert line.endswith("Use tf.distribute.MirroredStrategy.")


OWN = """
import sys
import numpy as np
import homes
import kinds
import legacyga

home, strategy = homes.start_on_replicas(sys.argv[1], 2)
tf = home.tf
run = getattr(strategy, "run", None) or strategy.experimental_run_v2
for generation, found in kinds.classes(home).items():
    if generation not in ("v2", "v3"):
        continue
    sgd = found["SGD"]

    class Mean(sgd):
        def aggregate_gradients(self, grads_and_vars):
            gradients, variables = zip(*grads_and_vars)
            means = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
            return list(zip(means, variables))

        _aggregate_gradients = aggregate_gradients

    class Clipped(sgd):
        def _transform_unaggregated_gradients(self, grads_and_vars):
            return [(tf.clip_by_norm(gradient, 1.0), variable) for gradient, variable in grads_and_vars]

    cases = {"mean": Mean, "clipped": Clipped}
    cases["mean in a LossScaleOptimizer"] = lambda rate: home.keras.mixed_precision.LossScaleOptimizer(
        Mean(rate), dynamic=False, initial_scale=1.0
    )
    for name, make in cases.items():
        if generation == "v3" and name == "clipped":
            continue
        with strategy.scope():
            (variable,) = home.variables([np.zeros(1, "float32")])
            optimizer = legacyga.wrap(make(1.0), 2)

        def on_replica():
            number = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, "float32")
            optimizer.apply_gradients([(tf.reshape(4.0 + 2.0 * number, [1]), variable)])

        for _ in range(2):
            run(on_replica)
        print("{}: {}".format(name, variable.numpy().tolist()))
"""


SUMMED = """
import sys
import numpy as np
import homes
import kinds
import legacyga

home, strategy = homes.start_on_replicas(sys.argv[1], 3)
for generation, found in kinds.classes(home).items():
    if generation not in ("v2", "v3"):
        continue
    given = dict(experimental_aggregate_gradients=False)
    if generation == "v3":
        given = dict(skip_gradients_aggregation=True)
    with strategy.scope():
        (variable,) = home.variables([np.zeros(1)])
        optimizer = legacyga.wrap(found["SGD"](1.0), 2)

    def on_replica():
        # 0.7, the same on each replica, as from an all_reduce of one's own.
        gradient = home.tf.constant([0.7], "float64")
        optimizer.apply_gradients([(gradient, variable)], **given)

    for _ in range(2):
        strategy.run(on_replica)
    print(float(variable.numpy()[0]))
"""


def test_sums_of_ones_own_in_float64(home, tmpdir):
    """Each of three replicas keeps a third of what it is handed, which is no number of float32."""
    if home.mode == "graph" or home.tf_version < (2, 2) or home.is_keras3:
        skips.keras_lacks("gradients that are aggregated are handed over in eager mode, from TF 2.2 on")
    lines = homes.run_program(tmpdir, SUMMED, home.name).splitlines()
    found = [float(line) for line in lines if line.startswith("-")]
    assert found
    np.testing.assert_allclose(found, -0.7, rtol=4e-16)


def test_a_class_that_adds_up_in_its_own_way(home, tmpdir):
    """Replicas' gradients of 4 and 6: their mean, or the sum of each clipped to 1."""
    needs.eager_only(home, since=(2, 4))
    if home.is_keras3:
        skips.keras_lacks("Keras 3 has no such methods")
    lines = homes.run_program(tmpdir, OWN, home.name).splitlines()
    found = [line.split(": ") for line in lines if line.startswith(("mean", "clipped"))]
    assert len(found) >= 3
    for name, value in found:
        assert value == ("[-2.0]" if name == "clipped" else "[-5.0]"), lines
