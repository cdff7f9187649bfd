"""fit on two replicas: a train_step of one's own, what ends an epoch, a schedule of K, several steps an execution."""

import homes
import needs
import numpy as np
import oracle
import pytest
import skips

pytestmark = [pytest.mark.capability("R12 replicas"), pytest.mark.long]
RANDOM = np.random.RandomState(47)
START = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
X, Y = RANDOM.randn(28, 3).astype("float32"), RANDOM.randn(28, 2).astype("float32")
RATE, MOMENTUM, EPOCHS, SCHEDULE = 0.125, 0.875, 3, {0: 2, 1: 3}
# (train_step, partial_window, steps_per_execution); seven batches an epoch.
CASES = [
    ("own", None, 5),
    ("ours", None, 5),
    ("home's", "carry", 1),
    ("home's", "drop", 5),
    ("home's", "flush", 5),
]

PROGRAM = """
import sys
import numpy as np
import homes
import legacyga
import test_fit_of_replicas as data

home, strategy = homes.start_on_replicas(sys.argv[1])
tf, keras = home.tf, home.keras


class Own(keras.Model):
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y)) / 2.0
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


class Ours(keras.Model):
    def train_step(self, batch):
        return legacyga.train_step(self, batch)


def trained(way, partial_window, execution):
    with strategy.scope():
        model = home.network(data.START)
        if way != "home's":
            model = {"own": Own, "ours": Ours}[way](model.inputs, model.outputs)
        optimizer = legacyga.wrap(keras.optimizers.SGD(data.RATE, momentum=data.MOMENTUM), 3)
        model.compile(loss="mse", optimizer=optimizer, steps_per_execution=execution)
    samples = data.samples(way)
    batches = tf.data.Dataset.from_tensor_slices((data.X[:samples], data.Y[:samples])).batch(4)
    callbacks = [legacyga.GradientAccumulationCallback(data.SCHEDULE, partial_window)] if partial_window else []
    model.fit(batches, epochs=data.EPOCHS, verbose=0, callbacks=callbacks)
    parts = []
    for number in (0, 1):
        variables = [getattr(each, "value", each) if home.is_keras3 else each for each in model.trainable_variables]
        values = [strategy.experimental_local_results(each)[number].numpy().ravel() for each in variables]
        parts.append(np.concatenate(values))
    counts = [int(home.value(each)) for each in (optimizer.iterations, optimizer.mini_step)]
    return np.concatenate(parts), counts


for i, (way, partial_window, execution) in enumerate(data.CASES):
    # Keras 3.15 cannot run several steps in one execution on replicas, with a bare optimizer neither.
    values, counts = trained(way, partial_window, 1 if home.is_keras3 else execution)
    np.savez("{}{}.npz".format(sys.argv[2], i), values, counts)
"""


def samples(way):
    """Where they are counted the last batch has parts of two and one."""
    return 28 if way == "own" else 27


def test_fit(home, tmpdir):
    needs.eager_only(home, since=(2, 4))
    homes.run_program(tmpdir, PROGRAM, home.name, str(tmpdir.join("end")))
    wrong = []
    for i, case in enumerate(CASES):
        with np.load(str(tmpdir.join("end{}.npz".format(i)))) as file:
            (first, second), counts = np.split(file["arr_0"], 2), file["arr_1"].tolist()
        weights, wanted_counts = expected(*case)
        distance = np.abs(first - np.concatenate([value.ravel() for value in weights])).max()
        if not (np.array_equal(first, second) and counts == wanted_counts and distance <= 4e-6):
            wrong.append((case, counts, wanted_counts, distance, np.abs(first - second).max()))
    assert not wrong, wrong


AVERAGES = """
import sys
import numpy as np
import homes
import legacyga
import test_fit_of_replicas as data

home, strategy = homes.start_on_replicas(sys.argv[1])
keras = home.keras
with strategy.scope():
    model = home.network(data.START)
    model.compile(legacyga.wrap(keras.optimizers.SGD(data.RATE, use_ema=True), 8), "mse")
swap = keras.callbacks.SwapEMAWeights()
given = dict(batch_size=4, verbose=0, validation_data=(data.X, data.Y), callbacks=[swap])
told = model.fit(data.X, data.Y, **given).history["val_loss"]
print(told[0], int(home.value(model.optimizer.iterations)))
"""


def test_moving_averages_before_an_update(home, tmpdir):
    """Keras 3 validates with them: they are the weights."""
    needs.eager_only(home)
    if not home.is_keras3:
        skips.keras_lacks("SwapEMAWeights is Keras 3's")
    printed = homes.run_program(tmpdir, AVERAGES, home.name)
    told, updates = printed.split()[-2:]
    assert updates == "0"
    np.testing.assert_allclose(float(told), oracle.loss(oracle.double(START), X, Y), rtol=1e-6)


def expected(way, partial_window, _):
    """The weights, and [`iterations`, `mini_step`]."""
    sgd, weights, window, updates = oracle.SGD(RATE, MOMENTUM), oracle.double(START), [], 0
    for epoch in range(EPOCHS):
        for begin in range(0, samples(way), 4):
            if not window:
                steps = SCHEDULE[min(epoch, 1)] if partial_window else 3
            part = slice(begin, min(begin + 4, samples(way)))
            x, y = X[part].astype("float64"), Y[part].astype("float64")
            window.append((len(x), oracle.gradients(weights, x, y)))
            is_last = begin + 4 >= samples(way)
            if len(window) == steps or is_last and partial_window == "flush":
                sizes, gradients = zip(*window)
                means = [np.average(each, axis=0, weights=sizes) for each in zip(*gradients)]
                weights, window, updates = sgd.update(weights, means), [], updates + 1
        if partial_window == "drop":
            window = []
    return weights, [updates, len(window)]


UNUSED = """
import sys
import numpy as np
import homes
import legacyga

home = homes.start(sys.argv[1], "eager")
tf, keras = home.tf, home.keras
strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
x = np.arange(32, dtype="float32").reshape(16, 2) / 8


class Own(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        return super().apply_gradients(pairs, *args, **kwargs)


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.used, self.unused = [keras.layers.Dense(1, kernel_initializer="ones") for _ in range(2)]

    def call(self, x):
        return self.used(x)


for wrapped in (lambda: Own(0.125), lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.125))):
    ends = []
    for steps in (1, 4):
        with strategy.scope():
            model = Model()
            model(x[:2]), model.unused(x[:2])
            optimizer = wrapped() if steps == 1 else legacyga.wrap(wrapped(), steps)
            model.compile(optimizer, "mse")
        model.fit(x, x[:, :1], batch_size=8 // steps, shuffle=False, verbose=0)
        ends.append(np.concatenate([each.ravel() for each in model.get_weights()]))
    print("distance", np.abs(ends[0] - ends[1]).max(), "way", np.abs(ends[0] - 1).max())
"""


@pytest.mark.slow
def test_a_layer_without_a_gradient_on_one_device(home, tmpdir):
    """An update that asks whether there is a gradient, by a conditional, which cannot hold what replicas exchange."""
    if home.mode == "graph" or home.tf_version < (2, 4) or home.is_keras3_before(3, 10):
        skips.senseless("eager mode of TF 2.4 and newer")
    lines = [each.split() for each in homes.run_program(tmpdir, UNUSED, home.name).splitlines() if "distance" in each]
    assert len(lines) == 2
    for _, distance, _, way in lines:
        assert float(way) > 1e-2 and float(distance) <= 4e-6


ONE = """
import sys
import numpy as np
import homes
import legacyga

home = homes.start(sys.argv[1], "eager")
tf, keras = home.tf, home.keras
strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
ends = []
for scope in (strategy.scope(), tf.init_scope()):
    with scope:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        optimizer = legacyga.wrap(keras.optimizers.SGD(0.125), 4)
        model.compile(optimizer, "mse", run_eagerly=sys.argv[2] == "eager")
    x = np.arange(20, dtype="float32").reshape(10, 2) / 8
    model.fit(x, x[:, :1], batch_size=2, shuffle=False, verbose=0)
    flushed = legacyga.flush(optimizer)
    ends.append([flushed] + [each.tolist() for each in model.get_weights()])
print("alike", ends[0] == ends[1], ends[0][0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("eager", ["eager", "traced"])
def test_a_strategy_of_one_device(home, tmpdir, eager):
    """Its replica is a thread of its own, which updates while the caller waits."""
    if home.mode == "graph" or home.tf_version < (2, 4) or home.is_keras3_before(3, 10):
        skips.senseless("eager mode of TF 2.4 and newer")
    assert "alike True True" in homes.run_program(tmpdir, ONE, home.name, eager)


BUILT_OUTSIDE = """
import sys
import homes
import legacyga

home, strategy = homes.start_on_replicas(sys.argv[1])
tf = home.tf
run = getattr(strategy, "run", None) or strategy.experimental_run_v2
for where in ("within", "outside"):
    with strategy.scope():
        variable = home.variables([[1.0]])[0]
        optimizer = legacyga.wrap(home.keras.optimizers.SGD(1.0), 2)
        if where == "within":
            optimizer.build([variable])
    if where == "outside":
        optimizer.build([variable])
    try:
        for _ in range(2):
            run(lambda: optimizer.apply_gradients([(tf.constant([0.25]), variable)]))
        print(where, home.value(variable))
    except ValueError as error:
        print(where, error)
"""


def test_an_optimizer_that_is_built_outside_of_the_scope(home, tmpdir):
    """All replicas would share its sums."""
    if home.mode == "graph" or home.tf_version < (2, 11) or home.is_keras3_before(3, 10):
        skips.keras_lacks("build of an optimizer, on replicas")
    within, outside = homes.run_program(tmpdir, BUILT_OUTSIDE, home.name).splitlines()[-2:]
    assert within == "within [0.5]" and "build the optimizer in its scope" in outside


IN_A_GRAPH = """
import sys
import numpy as np
import homes
import legacyga
import test_fit_of_replicas as data

home = homes.start(sys.argv[1], "graph")
tf, keras = home.tf, home.keras
config = tf.config.experimental
cpu = config.list_physical_devices("CPU")[0]
config.set_virtual_device_configuration(cpu, [config.VirtualDeviceConfiguration()] * 2)
with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
    model = keras.Sequential([keras.layers.Dense(2, input_shape=(3,), use_bias=False)])
    optimizer = legacyga.wrap(keras.optimizers.SGD(data.RATE), 4)
    model.compile(optimizer, "mse")
    model.set_weights([data.START[0][:, :2]])
batches = tf.data.Dataset.from_tensor_slices((data.X[:24], data.Y[:24])).batch(8, drop_remainder=True)
model.fit(batches.take(2), steps_per_epoch=2, verbose=0)
assert legacyga.flush(optimizer)
optimizer.gradient_accumulation_steps = 3
model.fit(batches, steps_per_epoch=3, verbose=0)
np.save(sys.argv[2], model.get_weights()[0])
"""


def test_flush_and_k_in_a_graph(home, tmpdir):
    """Outside of the strategy's scope: an update of 16 samples, then one of 24."""
    if (home.name, home.mode, home.tf_version) != ("tf.keras", "graph", (1, 15)):
        skips.elsewhere("in graph mode fit on replicas is tested on TF 1.15")
    homes.run_program(tmpdir, IN_A_GRAPH, home.name, str(tmpdir.join("weights.npy")))
    weights = START[0][:, :2].astype("float64")
    for samples in (16, 24):
        x, y = X[:samples], Y[:samples]
        weights = weights - RATE * 2 * x.T.dot(x.dot(weights) - y) / y.size
    np.testing.assert_allclose(np.load(str(tmpdir.join("weights.npy"))), weights, rtol=0, atol=4e-6)
