"""A checkpoint in mid-window, written on so many replicas and read on others: sums are merged and split."""

import homes
import needs
import numpy as np
import pytest
import skips

pytestmark = [pytest.mark.capability("R12 replicas"), pytest.mark.long]
# By mini-step the rows that each of six samples takes of a table of eight; four mini-steps are two windows.
K, IDS = 2, [[0, 0, 1, 2, 2, 3], [0, 1, 1, 4, 4, 5], [2, 2, 3, 3, 6, 6], [1, 1, 1, 0, 6, 7]]
# The samples of five mini-steps: one window, and two mini-steps of the next, whose last is one of 2.
SIZES, X, Y = [4, 4, 2, 4, 2], np.linspace(-1, 1, 48).reshape(16, 3), np.linspace(1, -2, 16).reshape(16, 1) ** 2

PROGRAM = """
import sys
import numpy as np
import homes
import kinds
import legacyga
import test_checkpoints_of_replicas as data

replicas, generation, reads, path = int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
home, strategy = homes.start_on_replicas(sys.argv[1], replicas)
tf = home.tf
run = getattr(strategy, "run", None) or strategy.experimental_run_v2
with strategy.scope():
    table, dense = home.variables([np.ones((8, 1), "float32"), np.ones(2, "float32")])
    optimizer = legacyga.wrap(kinds.classes(home)[generation]["SGD"](0.5), data.K)
    if home.is_keras3:
        optimizer.build([table, dense])
    own = [getattr(each, "_value", each) for each in (table, dense)]
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, table=own[0], dense=own[1])


@tf.function
def mini_step(ids):
    def on_replica():
        number = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, "int32")
        mine = ids[number * 6 // replicas : (number + 1) * 6 // replicas]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(own[0], mine)) / 8.0
            loss += tf.reduce_sum(tf.cast(mine, "float32")) * tf.reduce_sum(own[1]) / 64.0
        optimizer.apply_gradients(zip(tape.gradient(loss, own), [table, dense]))

    run(on_replica)


with strategy.scope():
    if reads == "write":
        mini_step(tf.constant(data.IDS[0]))
        checkpoint.write(path)
    else:
        checkpoint.read(path)
        for ids in data.IDS[1:]:
            mini_step(tf.constant(ids))
        values = [np.array(home.value(each)).ravel().tolist() for each in (table, dense)]
        print(values[0] + values[1])
"""


def test_layouts(home, tmpdir):
    """Two replicas to one and to three, one to two; each generation."""
    needs.eager_only(home)
    import kinds

    wanted = expected()
    for generation in kinds.classes(home):
        if generation in ("v1", "train"):
            continue
        for written, read in ((2, (1, 3)), (1, (2,))):
            path = str(tmpdir.join("{}-{}".format(generation, written)))
            homes.run_program(tmpdir, PROGRAM, home.name, str(written), generation, "write", path)
            for replicas in read:
                printed = homes.run_program(
                    tmpdir, PROGRAM, home.name, str(replicas), generation, "read", path
                ).splitlines()[-1]
                values = [float(each) for each in printed.strip("[]").split(",")]
                np.testing.assert_allclose(values, wanted, rtol=0, atol=1e-6, err_msg=generation)


WEIGHED = """
import sys
import numpy as np
import homes
import kinds
import legacyga
import test_checkpoints_of_replicas as data

replicas, way, generation, reads, path = int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5], sys.argv[6]
home, strategy = homes.start_on_replicas(sys.argv[1], replicas)
tf, keras = home.tf, home.keras


class Given(keras.Model):
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y)) / replicas
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        with self.optimizer.mini_step_weight(tf.shape(x)[0]):
            self.optimizer.apply_gradients(zip(gradients, variables))
        return {"loss": loss}


with strategy.scope():
    model = keras.models.Sequential([keras.layers.Dense(1, kernel_initializer="ones", input_shape=(3,))])
    if way == "given":
        model = Given(model.inputs, model.outputs)
    optimizer = legacyga.wrap(kinds.classes(home)[generation]["SGD"](0.5), 3)
    model.compile(optimizer, "mse")
    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    if reads == "read":
        checkpoint.read(path)
first = 0
for i, size in enumerate(data.SIZES):
    samples, first = slice(first, first + size), first + size
    if (i < 2) == (reads == "write"):
        batch = tf.data.Dataset.from_tensors((data.X[samples].astype("float32"), data.Y[samples].astype("float32")))
        callbacks = [legacyga.GradientAccumulationCallback(partial_window="carry")] if way == "counted" else []
        model.fit(batch, verbose=0, callbacks=callbacks)
if reads == "write":
    checkpoint.write(path)
else:
    legacyga.flush(optimizer)
    print(np.concatenate([each.ravel() for each in model.get_weights()]).tolist())
"""


@pytest.mark.parametrize("way", ["counted", "given"])
def test_weights(home, way, tmpdir):
    """Samples that are counted, or given, are those of all replicas: two to one, and one to two."""
    needs.eager_only(home, since=(2, 2))
    import kinds

    weights, first = np.array([1.0, 1.0, 1.0, 0.0]), 0
    for samples in (sum(SIZES[:3]), sum(SIZES[3:])):
        x, y = X[first : first + samples], Y[first : first + samples, 0]
        x, first = np.concatenate([x, np.ones((samples, 1))], axis=1), first + samples
        weights = weights - 0.5 * 2.0 * (x.T.dot(x.dot(weights) - y)) / samples
    for generation in kinds.classes(home):
        if generation in ("v1", "train"):
            continue
        for written, read in ((2, 1), (1, 2)):
            path = str(tmpdir.join("{}-{}".format(generation, written)))
            homes.run_program(tmpdir, WEIGHED, home.name, str(written), way, generation, "write", path)
            printed = homes.run_program(
                tmpdir, WEIGHED, home.name, str(read), way, generation, "read", path
            ).splitlines()[-1]
            values = [float(each) for each in printed.strip("[]").split(",")]
            np.testing.assert_allclose(values, weights, rtol=0, atol=1e-6, err_msg=generation)


SCALED = """
import sys
import numpy as np
import homes
import kinds
import legacyga
import test_checkpoints_of_replicas as data

replicas, generation, reads, path = int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
home, strategy = homes.start_on_replicas(sys.argv[1], replicas)
tf, keras = home.tf, home.keras
with strategy.scope():
    model = keras.models.Sequential([keras.layers.Dense(1, kernel_initializer="ones", input_shape=(3,))])
    optimizer = legacyga.wrap(kinds.classes(home)[generation]["SGD"](0.5), 2)
    model.compile(keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=1.0, dynamic=False), "mse")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    if reads == "read":
        checkpoint.read(path)
samples = slice(0, 4) if reads == "write" else slice(4, 8)
model.fit(data.X[samples], data.Y[samples], batch_size=4, shuffle=False, verbose=0)
if reads == "write":
    checkpoint.write(path)
print(np.concatenate([each.ravel() for each in model.get_weights()]).tolist())
"""


def test_gradients_that_were_added_up_before(home, tmpdir):
    """A LossScaleOptimizer round ours gives each replica the sum of all."""
    needs.eager_only(home, since=(2, 4))
    import kinds

    if home.is_keras3:
        skips.senseless("that of Keras 3 gives each replica its own")
    x = np.concatenate([X[:8], np.ones((8, 1))], axis=1)
    start = np.array([1.0, 1.0, 1.0, 0.0])
    weights = start - 0.5 * 2.0 * x.T.dot(x.dot(start) - Y[:8, 0]) / 8
    for generation in sorted(set(kinds.classes(home)) - {"v1", "train"}):
        for written, read in ((2, 1), (1, 2), (2, 2)):
            path = str(tmpdir.join("{}-{}-{}".format(generation, written, read)))
            homes.run_program(tmpdir, SCALED, home.name, str(written), generation, "write", path)
            printed = homes.run_program(tmpdir, SCALED, home.name, str(read), generation, "read", path).splitlines()[-1]
            values = [float(each) for each in printed.strip("[]").split(",")]
            np.testing.assert_allclose(values, weights, rtol=0, atol=1e-6, err_msg=str((generation, written, read)))


LOADED = """
import os
import sys
import numpy as np
import homes
import kinds
import legacyga
import test_checkpoints_of_replicas as data

home, strategy = homes.start_on_replicas(sys.argv[1], 2)
keras, cls = home.keras, kinds.classes(home)[sys.argv[3]]["SGD"]
x, y = [each[:12].astype("float32") for each in (data.X, data.Y)]
model = keras.models.Sequential([keras.layers.Dense(1, kernel_initializer="ones", input_shape=(3,))])
model.compile(legacyga.wrap(cls(0.5, momentum=0.5), 2), keras.losses.MeanSquaredError())
model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
for name in sys.argv[4:]:
    path = os.path.join(os.path.dirname(sys.argv[0]), sys.argv[3] + name)
    model.save(path)
    with strategy.scope():
        again = legacyga.load_model(path, keras)
    again.fit(x[8:], y[8:], batch_size=4, shuffle=False, verbose=0)
    print(np.concatenate([each.ravel() for each in again.get_weights()]).tolist())
model.fit(x[8:], y[8:], batch_size=4, shuffle=False, verbose=0)
print(np.concatenate([each.ravel() for each in model.get_weights()]).tolist())
"""


def test_a_model_that_is_loaded_for_replicas(home, tmpdir):
    """A file of one device, in mid-window, read within the scope of a strategy: the next batch ends the window."""
    needs.eager_only(home, since=(2, 8))
    import kinds

    takes_new_format = home.is_keras3 or home.name == "tf_keras" or home.tf_version >= (2, 12)
    for generation in sorted(set(kinds.classes(home)) - {"v1", "train"}):
        # The new format leaves out the state of an optimizer of the v2 generation, the old one that of Keras 3.
        names = [] if generation == "keras3" else ["model.h5"]
        names += ["model.keras"] if takes_new_format and generation != "v2" else []
        printed = homes.run_program(tmpdir, LOADED, home.name, "2", generation, *names).splitlines()[-1 - len(names) :]
        ends = [np.array([float(each) for each in line.strip("[]").split(",")]) for line in printed]
        for end in ends[:-1]:
            np.testing.assert_allclose(end, ends[-1], rtol=0, atol=1e-6, err_msg=generation)


def expected():
    table, dense = np.ones(8), np.ones(2)
    for ids in np.array(IDS):
        for row in ids:
            table[row] -= 0.5 / 8.0 / K
        dense -= 0.5 * ids.sum() / 64.0 / K
    return np.concatenate([table, dense])


OF_TF1 = """
import sys
import homes
import legacyga

home, strategy = homes.start_on_replicas(sys.argv[1])
tf = home.tf
run = getattr(strategy, "run", None) or strategy.experimental_run_v2


def make():
    with strategy.scope():
        variable = tf.Variable([0.0])
        optimizer = legacyga.wrap(tf.compat.v1.train.GradientDescentOptimizer(1.0), 3)

    @tf.function
    def step(x):
        def on_replica():
            number = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, "float32")
            optimizer.apply_gradients([((x + number) * tf.ones(1) / 2.0, variable)])

        run(on_replica)

    return variable, tf.train.Checkpoint(variable=variable, optimizer=optimizer), step


variable, checkpoint, step = make()
step(tf.constant(1.0))
step(tf.constant(3.0))
path = checkpoint.write(sys.argv[2])
again, restored, go_on = make()
getattr(restored, "read", restored.restore)(path)
for each in (step, go_on):
    each(tf.constant(4.0))
print("ends", float(variable.numpy()[0]), float(again.numpy()[0]))
"""


def test_an_optimizer_of_tf_1(home, tmpdir):
    """Each replica gets its share of a restored sum: the mean of 1.5, 3.5 and 4.5 on both sides."""
    needs.eager_only(home)
    if home.tf_version < (2, 15):
        skips.elsewhere("tested on TF 2.15 and newer")
    if home.is_keras3:
        skips.elsewhere("it is that of tf.compat.v1.train in every home")
    printed = homes.run_program(tmpdir, OF_TF1, home.name, str(tmpdir.join("x")))
    (line,) = [each for each in printed.splitlines() if "ends" in each]
    np.testing.assert_allclose([float(each) for each in line.split()[1:]], -19 / 6.0, rtol=0, atol=4e-6)
