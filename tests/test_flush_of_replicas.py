"""flush, and the callback's epoch end, under MirroredStrategy: an update made as its mini-steps came."""

import homes
import numpy as np
import pytest
import skips
import test_weights
from kinds import MOMENTUM, RATE

pytestmark = [pytest.mark.capability("R12 replicas"), pytest.mark.long]

PROGRAM = """
import sys
import numpy as np
import homes
import legacyga
import kinds
import test_flush_of_replicas as cases
import test_weights

home, strategy = homes.start_on_replicas(sys.argv[1])
tf = home.tf


def save(name, kind, model):
    "What the variables hold on the first replica, and on the other."
    variables = [variable.value if home.is_keras3 else variable for variable in model.trainable_variables]
    for number in (0, 1):
        values = [strategy.experimental_local_results(variable)[number].numpy() for variable in variables]
        flat = np.concatenate([value.ravel() for value in values])
        np.save("{}-{}-{}-{}.npy".format(sys.argv[2], name, kind.id, number), flat)


def scaled(kind):
    "fit in a LossScaleOptimizer: 5 + 3 batches of 4 samples, K = 3: the callback's epoch end, and flush."
    with strategy.scope():
        model = test_weights.network(home)
        optimizer = home.keras.mixed_precision.LossScaleOptimizer(kind.make(3), initial_scale=8.0)
        model.compile(loss="mse", optimizer=optimizer)
    x, y = cases.data()
    data = tf.data.Dataset.from_tensor_slices((x[:20], y[:20])).batch(4)
    model.fit(data, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])
    data = tf.data.Dataset.from_tensor_slices((x[20:36], y[20:36])).batch(4)
    model.fit(data, verbose=0)
    assert legacyga.flush(optimizer) is True and legacyga.flush(optimizer) is False
    save("scaled", kind, model)


def aggregated(kind):
    "A loop that adds the gradients over the replicas itself, and says so: windows of 3, 3 and 2."
    with strategy.scope():
        model, optimizer = test_weights.network(home), kind.make(3)
    name = "skip_gradients_aggregation" if kind.generation == "v3" else "experimental_aggregate_gradients"
    value = kind.generation == "v3"
    by_place = kind.generation == "v3" or home.tf_version < (2, 11)
    args, kwargs = ((None, value), {}) if by_place else ((), {name: value})
    variables = model.trainable_variables

    @tf.function
    def step(x, y):
        def on_replica(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y)) / 2.0
            gradients = tape.gradient(loss, variables)
            gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            optimizer.apply_gradients(zip(gradients, variables), *args, **kwargs)

        run = getattr(strategy, "run", None) or strategy.experimental_run_v2
        run(on_replica, args=(x, y))

    x, y = cases.data()
    data = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices((x[:32], y[:32])).batch(4)
    )
    for batch in data:
        step(*batch)
    assert legacyga.flush(optimizer) is True and legacyga.flush(optimizer) is False
    save("aggregated", kind, model)


for kind in [each for each in kinds.of(home) if each.cls and not each.is_adam and each.generation != "train"]:
    for name in sys.argv[3:]:
        globals()[name](kind)
"""


def data():
    return test_weights.batches_of([40], seed=61)[0]


def test_an_update_as_its_mini_steps_came(home, tmpdir):
    """Each variable is, on both replicas, what one device makes of the large batches."""
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.keras_lacks("gradients that are aggregated are handed over in eager mode, from TF 2.2 on")
    # Keras 3 takes none by hand; LossScaleOptimizer is that of mixed_precision from TF 2.4 on.
    ways = ["scaled"] * (home.tf_version >= (2, 4)) + ["aggregated"] * (not home.is_keras3)
    homes.run_program(tmpdir, PROGRAM, home.name, str(tmpdir.join("weights")), *ways)
    x, y = data()
    wrong = []
    for way in ways:
        ends = [12, 20, 32, 36] if way == "scaled" else [12, 24, 32]
        large = [(x[begin:end], y[begin:end]) for begin, end in zip([0] + ends, ends)]
        sgd = test_weights.oracle.SGD(RATE, MOMENTUM)
        wanted = test_weights.expected(test_weights.known(large), 1, sgd)
        paths = tmpdir.listdir("weights-{}-*.npy".format(way))
        assert paths and len(paths) % 2 == 0
        for path in paths:
            flat, ends = np.load(str(path)), np.cumsum([value.size for value in wanted])
            weights = [part.reshape(w.shape) for part, w in zip(np.split(flat, ends[:-1]), wanted)]
            distance = test_weights.off(weights, wanted)
            if not distance <= 4e-6:
                wrong.append((path.basename, distance))
    assert not wrong, wrong
