"""fit and flush under MirroredStrategy, on two replicas: as one device with the large batch."""

import homes
import numpy as np
import oracle
import pytest
import skips

RANDOM = np.random.RandomState(4)
START = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
X = RANDOM.randn(28, 3).astype("float32")
Y = RANDOM.randn(28, 2).astype("float32")
LR, MOMENTUM = 0.1, 0.9
# Of a table of eight rows the first two windows touch three and three, the last all.
TABLE = RANDOM.randn(8, 2).astype("float32")
IDS = [[0, 1, 1, 2], [2, 0, 0, 1], [3, 4, 4, 5], [5, 3, 3, 4], [0, 1, 2, 3], [4, 5, 6, 7]]

PROGRAM = """
import sys
import numpy as np
import homes
import legacyga
import test_replicas as data

home, strategy = homes.start_on_replicas(sys.argv[1])
tf = home.tf
with strategy.scope():
    model = home.network(data.START)
    optimizer = legacyga.wrap(home.bare_sgd(lr=data.LR, momentum=data.MOMENTUM), gradient_accumulation_steps=3)
    model.compile(loss="mse", optimizer=optimizer)


def batches_of_8(samples):
    return tf.data.Dataset.from_tensor_slices((data.X[:samples], data.Y[:samples])).batch(8)


model.fit(batches_of_8(24), epochs=2, verbose=0)
# Outside of the strategy's scope, with one mini-step in the window.
assert legacyga.flush(optimizer) is False
model.fit(batches_of_8(8), verbose=0)
assert legacyga.flush(optimizer) is True and legacyga.flush(optimizer) is False
np.save(sys.argv[2] + "-plain", np.concatenate([value.ravel() for value in model.get_weights()]))
with strategy.scope():
    table = home.keras.Variable(data.TABLE) if home.is_keras3 else tf.Variable(data.TABLE)
    lazy = legacyga.wrap(home.bare_sgd(lr=data.LR, momentum=data.MOMENTUM), 2)
    if home.is_keras3:
        lazy.build([table])


@tf.function
def mini_step(ids):
    def on_replica():
        mine = ids[2 * replica_number() :][:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, mine) ** 2) / 8.0
        lazy.apply_gradients(zip(tape.gradient(loss, [table]), [table]))

    run = getattr(strategy, "run", None) or strategy.experimental_run_v2
    run(on_replica)


def replica_number():
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, "int32")


for ids in data.IDS:
    mini_step(tf.constant(ids))
np.save(sys.argv[2] + "-rows", np.array(home.value(table)))
if home.tf_version < (2, 2):
    # There the last batch goes to one replica alone, and of a dataset's batches nobody is told how large they are.
    sys.exit()
# 8, 8, 8 and 4 samples: a window of 4 that the epoch's end flushes, for K is 5.
callback = legacyga.GradientAccumulationCallback(5)
history = model.fit(batches_of_8(28), epochs=2, verbose=0, callbacks=[callback]).history
assert history["updates"] == [4, 5], history
assert history["effective_batch_size"] == [28, 28], history
np.save(sys.argv[2] + "-weighed", np.concatenate([value.ravel() for value in model.get_weights()]))
history = model.fit(batches_of_8(28).unbatch().batch(4), verbose=0, callbacks=[callback]).history
assert history["effective_batch_size"] == [20], history
"""


@pytest.mark.capability("R12 replicas")
@pytest.mark.long(also=[("tf.keras", "eager", "2.0"), ("tf.keras", "eager", "2.4")], in_core=True)
def test_fit_with_the_callback(home, tmpdir):
    if home.mode == "graph":
        skips.elsewhere("several replicas in graph mode are tested on TensorFlow 1.15 alone")
    arguments = [home.name, str(tmpdir.join("weights"))]
    homes.run_program(tmpdir, PROGRAM, *arguments)
    sgd, weights = oracle.SGD(LR, MOMENTUM), [value.astype("float64") for value in START]
    for samples in (24, 24, 8):
        x, y = X[:samples].astype("float64"), Y[:samples].astype("float64")
        weights = sgd.update(weights, oracle.gradients(weights, x, y))
    np.testing.assert_allclose(np.load(str(tmpdir.join("weights-plain.npy"))), flat(weights), rtol=0, atol=4e-6)
    np.testing.assert_allclose(np.load(str(tmpdir.join("weights-rows.npy"))), by_rows(home), rtol=0, atol=4e-6)
    if home.tf_version < (2, 2):
        return
    for _ in range(2):
        weights = sgd.update(weights, oracle.gradients(weights, X.astype("float64"), Y.astype("float64")))
    np.testing.assert_allclose(np.load(str(tmpdir.join("weights-weighed.npy"))), flat(weights), rtol=0, atol=4e-6)


IN_A_GRAPH = """
import sys
import numpy as np
import tensorflow as tf
import legacyga
import test_replicas as data

config = tf.config.experimental
cpu = config.list_physical_devices("CPU")[0]
config.set_virtual_device_configuration(cpu, [config.VirtualDeviceConfiguration()] * 2)
with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
    dense = tf.keras.layers.Dense
    model = tf.keras.Sequential([dense(4, activation="tanh", input_shape=(3,)), dense(2)])
    optimizer = legacyga.wrap(tf.keras.optimizers.SGD(data.LR, momentum=data.MOMENTUM), 3)
    model.compile(optimizer, "mse")
    model.set_weights(data.START)
batches = tf.data.Dataset.from_tensor_slices((data.X[:24], data.Y[:24])).batch(8, drop_remainder=True).repeat(2)
model.fit(batches, epochs=2, steps_per_epoch=3, shuffle=False, verbose=0)
assert tf.keras.backend.get_value(optimizer.iterations) == 2
np.save(sys.argv[1], np.concatenate([value.ravel() for value in model.get_weights()]))
"""


@pytest.mark.capability("R12 replicas")
@pytest.mark.more
def test_fit_in_graph_mode(home, tmpdir):
    """TF 1.15, with a dataset."""
    if (home.name, home.mode, home.tf_version) != ("tf.keras", "graph", (1, 15)):
        skips.we_lack("replicas in graph mode are tested on TF 1.15 alone")
    homes.run_program(tmpdir, IN_A_GRAPH, str(tmpdir.join("weights.npy")))
    sgd, weights = oracle.SGD(LR, MOMENTUM), [value.astype("float64") for value in START]
    for _ in range(2):
        weights = sgd.update(weights, oracle.gradients(weights, X[:24].astype("float64"), Y[:24].astype("float64")))
    np.testing.assert_allclose(np.load(str(tmpdir.join("weights.npy"))), flat(weights), rtol=0, atol=4e-6)


TRAIN = """
import sys
import numpy as np
import homes
import legacyga
import test_replicas as data

home, strategy = homes.start_on_replicas("tf.keras")
tf, train = home.tf, home.tf.compat.v1.train
run = getattr(strategy, "run", None) or strategy.experimental_run_v2
with strategy.scope():
    variable, count = tf.Variable([1.0, 2.0]), tf.Variable(0, dtype="int64", aggregation=data.first_replica(tf))
    optimizer = legacyga.wrap(getattr(train, sys.argv[1])(0.25, 0.5), 2)


def on_replica(value):
    number = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, "float32")
    optimizer.apply_gradients([(tf.ones(2) * (value + number) / 2.0, variable)], global_step=count)


@tf.function
def step(value):
    run(on_replica, args=(value,))


for value in data.VALUES:
    step(tf.constant(value))
assert int(optimizer.iterations.numpy()) == int(count.numpy()) == 2
np.save(sys.argv[2], [each.numpy() for each in strategy.experimental_local_results(variable)])
"""
ESTIMATOR = """
import sys
import numpy as np
import tensorflow as tf
import legacyga
import test_replicas as data

v1, config = tf.compat.v1, tf.config.experimental
cpu = config.list_physical_devices("CPU")[0]
config.set_virtual_device_configuration(cpu, [config.VirtualDeviceConfiguration()] * 2)


def model_fn(features, mode):
    variable = v1.get_variable("variable", initializer=tf.constant([1.0, 2.0]))
    optimizer = legacyga.wrap(getattr(v1.train, sys.argv[1])(0.25, 0.5), 2)
    loss = tf.reduce_sum(variable) * tf.reduce_mean(features)
    step = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)


session_config = v1.ConfigProto(device_count={"CPU": 2})
strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
run = tf.estimator.RunConfig(train_distribute=strategy, session_config=session_config)
estimator = tf.estimator.Estimator(model_fn, sys.argv[2] + "-of", run)
batches = np.float32([[value + number] for value in data.VALUES for number in (0, 1)])
estimator.train(lambda: tf.data.Dataset.from_tensor_slices(batches))
assert estimator.get_variable_value("global_step") == 2
np.save(sys.argv[2], [estimator.get_variable_value("variable")] * 2)
"""
VALUES = (1.0, 3.0, 5.0, 2.0)


def first_replica(tf):
    return tf.VariableAggregation.ONLY_FIRST_REPLICA


@pytest.mark.capability("wrap: TF 1 optimizers")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["MomentumOptimizer", "AdamOptimizer"])
def test_optimizers_of_tensorflow_1(home, name, tmpdir):
    """In a function in eager mode; in graph mode in an Estimator."""
    if home.name != "tf.keras" or home.tf_version < (1, 15) or (home.mode == "graph") != (home.tf_version < (2, 0)):
        skips.senseless("each once: in TF 1.15 in an Estimator, in TF 2 in a function")
    found = str(tmpdir.join("found.npy"))
    homes.run_program(tmpdir, TRAIN if home.mode == "eager" else ESTIMATOR, name, found)
    expected = oracle.SGD(0.25, 0.5) if name == "MomentumOptimizer" else oracle.Adam(0.25, beta_1=0.5, epsilon=1e-8)
    weights = [np.float64([1.0, 2.0])]
    # The mean over two replicas and two mini-steps.
    for mean in (2.5, 4.0):
        weights = expected.update(weights, [np.full(2, mean)])
    np.testing.assert_allclose(np.load(found), [weights[0]] * 2, rtol=0, atol=4e-6)


def by_rows(home):
    """The table: the momentum of OptimizerV2 moves the rows that a window touched, that of Keras 3 every row."""
    table, velocity = TABLE.astype("float64"), np.zeros(TABLE.shape)
    for first, second in zip(IDS[::2], IDS[1::2]):
        gradient = np.zeros(TABLE.shape)
        for row in first + second:
            # Of the sum of squares over 8, in the mean of two mini-steps.
            gradient[row] += 2.0 * table[row] / 8.0 / 2.0
        touched = np.unique(first + second) if not home.is_keras3 else np.arange(len(table))
        velocity[touched] = MOMENTUM * velocity[touched] - LR * gradient[touched]
        table[touched] += velocity[touched]
    return table


def flat(weights):
    return np.concatenate([value.ravel() for value in weights])
