"""Two replicas with gradient accumulation save a checkpoint within a window, and one device continues from it.

What it shows: a training loop for tf.distribute, from the dataset to the checkpoint. `legacyga.wrap` is the only new
line. The loss of a replica is divided by the number of samples in the global batch, as without accumulation. Two
replicas take batches of 24 of the handwritten digits of scikit-learn, 12 each. 4 of these batches make an update, as
one batch of 96 does on one device. Then a run is stopped within a window, and continues from its checkpoint without a
strategy.

    loss, accuracy  on all digits, after training
    updates         the optimizer's own count
    distance        the largest difference of any weight from the run with batches of 96, relative to how far the
                    weights of that run moved

    python examples/distributed.py                    tf.keras
    python examples/distributed.py --home tf_keras    tf_keras, beside the Keras 3 of newer TensorFlows

This example needs TensorFlow 2 in eager mode, and scikit-learn. It needs no GPU: both replicas are on the CPU.
"""

import os
import tempfile

import numpy as np
import tensorflow as tf
from _common import (
    check_needs,
    distance,
    first_weights,
    keras_of,
    parser,
    print_ending,
    print_title,
    read_digits,
)

import legacyga

K = 4
BATCH = 24
SHAPES = (64, 48), (48,), (48, 10), (10,)


def two_replicas():
    """A strategy of two logical devices of the CPU."""
    config = tf.config.experimental
    cpu = config.list_physical_devices("CPU")[0]
    config.set_virtual_device_configuration(cpu, [config.VirtualDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])


class Training(object):
    """A model, its optimizer, and the loop, under a strategy."""

    def __init__(self, keras, strategy, batch, steps):
        self.strategy, self.batch = strategy, batch
        layers = keras.layers
        with strategy.scope():
            self.model = keras.models.Sequential(
                [layers.Dense(48, activation="relu", input_shape=(64,)), layers.Dense(10)]
            )
            self.model.set_weights(first_weights(*SHAPES))
            optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
            self.optimizer = legacyga.wrap(optimizer, gradient_accumulation_steps=steps)  # <---
            if hasattr(self.optimizer, "build"):  # newer optimizers, whose variables cannot be made within a function
                self.optimizer.build(self.model.trainable_variables)
        # Where the data go on after a restore is the program's affair.
        self.done = tf.Variable(0, dtype=tf.int64)
        self.checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer, done=self.done)
        self.mini_step = tf.function(self.on_all_replicas)

    def on_all_replicas(self, x, y):
        # The new name is there from TF 2.2 on.
        run = getattr(self.strategy, "run", None) or self.strategy.experimental_run_v2
        run(self.on_replica, args=(x, y))

    def on_replica(self, x, y):
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            # The sum over this replica's samples, divided by those of all replicas. Not by K: the optimizer does that.
            loss = tf.nn.compute_average_loss(losses(self.model, x, y), global_batch_size=self.batch)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    def fit(self, images, digits, epochs, stops_after=None):
        """Train from where it is, to the end or until so many batches are done."""
        dataset = tf.data.Dataset.from_tensor_slices((images, digits)).batch(self.batch).repeat(epochs)
        dataset = dataset.take(-1 if stops_after is None else stops_after).skip(self.done)
        for x, y in self.strategy.experimental_distribute_dataset(dataset):
            self.mini_step(x, y)
            self.done.assign_add(1)


def losses(model, x, y):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x))


def main():
    args = parser(__doc__, epochs=2, small="384 digits instead of 1728").parse_args()
    check_needs(__doc__, args.home, since=(2,))
    keras = keras_of(args.home)
    replicas, one_device = two_replicas(), tf.distribute.get_strategy()
    images, digits = [each[: 384 if args.small else 1728] for each in read_digits()]
    print_title(args.home, digits=len(images), epochs=args.epochs)
    large = Training(keras, one_device, K * BATCH, 1)
    large.fit(images, digits, args.epochs)
    together = Training(keras, replicas, BATCH, K)
    together.fit(images, digits, args.epochs)
    stopped, resumed = Training(keras, replicas, BATCH, K), Training(keras, one_device, BATCH, K)
    stopped.fit(images, digits, args.epochs, stops_after=2 * K + K // 2)
    with tempfile.TemporaryDirectory() as folder:
        path = stopped.checkpoint.save(os.path.join(folder, "checkpoint"))
        resumed.checkpoint.restore(path)
        print("stopped after {} batches, {} of them in an open window".format(2 * K + K // 2, K // 2))
        resumed.fit(images, digits, args.epochs)
    row = "{:<42}  {:>7}  {:>6}  {:>8}  {:>8}".format
    print(row("", "updates", "loss", "accuracy", "distance"))
    distances = []
    for name, run in (
        ("one device, batches of {}".format(K * BATCH), large),
        ("two replicas, {} batches of {}".format(K, BATCH), together),
        ("the same, stopped, then on one device", resumed),
    ):
        weights = run.model.get_weights()
        distances.append(distance(weights, large.model.get_weights(), first_weights(*SHAPES)))
        loss = float(tf.reduce_mean(losses(run.model, images, digits)))
        accuracy = np.mean(np.argmax(run.model(images).numpy(), axis=1) == digits)
        updates = int(tf.convert_to_tensor(run.optimizer.iterations))
        print(row(name, updates, "{:.4f}".format(loss), "{:.4f}".format(accuracy), "{:.1e}".format(distances[-1])))
    print_ending(("two replicas", distances[1]), ("stopped", distances[2]))


if __name__ == "__main__":
    main()
