"""Slices under MirroredStrategy: each replica cuts its own part of a batch, and ends as without slices."""

import json

import homes
import needs
import numpy as np
import pytest
import skips

pytestmark = [pytest.mark.capability("micro_batch"), pytest.mark.long]
RANDOM = np.random.RandomState(0)
X, Y = [RANDOM.randn(16, size).astype("float32") for size in (3, 2)]
LABELS = RANDOM.randint(0, 3, (16, 1)).astype("float32")
START = [(0.5 * RANDOM.randn(*shape)).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]

PROGRAM = """
import sys
import numpy as np
import json

import homes
import legacyga
import test_recompute
import test_slices_of_replicas as data

home, strategy = homes.start_on_replicas(sys.argv[1])
tf, keras = home.tf, home.keras
exchanges = []


def recorded(exchange):
    def record(*args, **kwargs):
        # The function that it is traced in: a loop over slices has functions of its own.
        if not tf.executing_eagerly():
            exchanges.append(getattr(tf.compat.v1.get_default_graph(), "name", "").rstrip("0123456789"))
        return exchange(*args, **kwargs)

    return record


for name in ("_batch_reduce_to", "_reduce_to"):
    setattr(strategy.extended, name, recorded(getattr(strategy.extended, name)))


def joins(y_true, y_pred):
    return test_recompute.supervised_contrastive(tf, y_true, y_pred)


def in_windows():
    return legacyga.wrap(keras.optimizers.Adam(0.05), gradient_accumulation_steps=2)


def trained(loss, y, optimizer, size, recompute):
    with strategy.scope():
        model = home.network(data.START)
        model.compile(optimizer(), loss, metrics=["mae"])
    if size is not None:
        legacyga.micro_batch(model, size, recompute=recompute)
    batches, before = tf.data.Dataset.from_tensor_slices((data.X, y)).batch(16), len(exchanges)
    history = model.fit(batches, epochs=4, verbose=0).history
    made.append(exchanges[before:])
    return [value.ravel() for value in model.get_weights()] + [np.array(history[name]) for name in ("loss", "mae")]


def sgd():
    return home.bare_sgd(lr=0.1)


for name, *case, recompute in (
    ("mean", "mse", data.Y, sgd, None),
    ("joins", joins, data.LABELS, sgd, None),
    ("windows", joins, data.LABELS, in_windows, True),
    ("mean in windows", "mse", data.Y, in_windows, True),
):
    made = []
    ends = [np.concatenate(trained(*case, size, recompute)) for size in (None, 3)]
    np.save(sys.argv[2] + name, ends)
    assert made[0] and made[1] == made[0], made
"""


def test_each_replica_cuts_its_part(home, tmpdir):
    """A mean is that of the whole batch; one that joins samples is each replica's own, with or without slices.

    Replicas exchange as often as without slices, and never within the loop over them.
    """
    if home.mode == "graph" or home.tf_version < (2, 4):
        skips.senseless("eager mode of TF 2.4 and newer")
    path = str(tmpdir.join("end-"))
    homes.run_program(tmpdir, PROGRAM, home.name, path)
    start = np.concatenate([each.ravel() for each in START])
    for case in ("mean", "joins", "windows", "mean in windows"):
        whole, slices = np.load(path + case + ".npy")
        assert np.abs(whole[: len(start)] - start).max() > 1e-2
        assert np.abs(slices - whole).max() <= 4e-6


AFTER_THE_UPDATE = """
import sys
import json

import homes
import legacyga
import test_slices_of_replicas as data

home, strategy = homes.start_on_replicas(sys.argv[1])
tf, keras = home.tf, home.keras


class Own(keras.Model):
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y)) / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return tf.reduce_mean(tf.square(self(x, training=True) - y))


def losses(size):
    with strategy.scope():
        inputs = keras.Input((3,))
        normalized = keras.layers.BatchNormalization()(inputs)
        model = Own(inputs, keras.layers.Dense(2, kernel_initializer="ones")(normalized))
        model.compile(home.bare_sgd(lr=0.1))
    legacyga.micro_batch(model, size)
    step = tf.function(lambda: strategy.run(model.train_step, ((tf.constant(data.X), tf.constant(data.Y)),)))
    return [float(each) for each in strategy.experimental_local_results(step())]


print("losses", [losses(size) for size in (3, None)])
"""


def test_a_call_after_the_update_is_cut_on_each_replica(home, tmpdir):
    """With the same samples on each, batch normalization of slices gives each the same loss."""
    if home.mode == "graph" or home.tf_version < (2, 4):
        skips.senseless("eager mode of TF 2.4 and newer")
    printed = homes.run_program(tmpdir, AFTER_THE_UPDATE, home.name)
    losses, of_whole = json.loads(printed.partition("losses ")[2])
    assert len(losses) > 1 and len(set(losses)) == len(set(of_whole)) == 1
    assert abs(losses[0] - of_whole[0]) > 1e-3


EAGERLY = """
import sys
import numpy as np
import homes
import legacyga
import tensorflow as tf

home, strategy = homes.start_on_replicas(sys.argv[1], 2)
layers = home.keras.layers
data = tf.data.Dataset.from_tensor_slices((np.ones((8, 1), "float32"), np.zeros((8, 1), "float32"))).batch(8)
with strategy.scope():
    inputs = layers.Input((1,))
    norm = layers.BatchNormalization(momentum=0.5)
    model = home.keras.models.Model(inputs, layers.Dense(1)(norm(inputs)))
    model.compile(home.keras.optimizers.SGD(0.0), "mse", run_eagerly=True)
legacyga.micro_batch(model, 2, recompute=True)
model.fit(data, verbose=0)
print(float(np.array(home.value(norm.moving_mean))[0]))
"""


def test_moving_averages_of_each_replica_move_once(home, tmpdir):
    """Two slices of ones on each: 0, 0.5, 0.75. The second pass of a replica must undo its own, not the first one's."""
    needs.eager_only(home, since=(2, 4))
    assert homes.run_program(tmpdir, EAGERLY, home.name).splitlines()[-1] == "0.75"
