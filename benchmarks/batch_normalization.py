"""What accumulation does not give batch normalization, measured: the tables of docs/batch_normalization.md.

A small network (two convolutions and two dense layers, a normalization after each of the first three) learns
scikit-learn's digits with batches of K * n images and with micro-batches of n accumulated over K, from the same start
on the same images in the same order: without normalization, with BatchNormalization, with its statistics frozen, and
with group normalization. SGD without momentum, so that nothing but the weights carries over from update to update.

With `--slices 8 32 128` instead: batches of 512 of the same network in slices of so many, by `legacyga.micro_batch`,
for docs/micro_batch.md.

One thread, so that a run gives the same bits again. Needs eager mode: TensorFlow 2, tf_keras or Keras 3.

    python benchmarks/batch_normalization.py                    tf.keras
    python benchmarks/batch_normalization.py --home tf_keras    (where tf.keras is Keras 3, that is measured by default)
"""

import argparse
import collections
import importlib
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import legacyga
from legacyga.backend import homes

K = 8
MOMENTA = (0.99, 0.9)  # Keras's default, and one that is often chosen
TRAINING_IMAGES = 1408  # of the 1797, whole windows of 64
TEST_IMAGES = 357
LEARNING_RATE = 0.1
SLICED = 512  # samples of a batch that trains in slices
OTHER_ORDER = 1000  # added to a seed, for the order alone
NORMALIZATIONS = ("none", "BatchNorm", "BatchNorm, frozen", "GroupNorm")


def group_normalization(keras):
    """The class of a layer that normalizes each sample's channels in groups, for a Keras that has none."""

    class GroupNormalization(keras.layers.Layer):
        def __init__(self, groups, epsilon=1e-3, **kwargs):
            super(GroupNormalization, self).__init__(**kwargs)
            self.groups, self.epsilon = groups, epsilon

        def build(self, input_shape):
            self.gamma = self.add_weight(name="gamma", shape=(input_shape[-1],), initializer="ones")
            self.beta = self.add_weight(name="beta", shape=(input_shape[-1],), initializer="zeros")
            super(GroupNormalization, self).build(input_shape)

        def call(self, inputs):
            shape = list(inputs.shape[1:])
            grouped = tf.reshape(inputs, [-1, int(np.prod(shape[:-1])), self.groups, shape[-1] // self.groups])
            mean, variance = tf.nn.moments(grouped, [1, 3], keepdims=True)
            normal = (grouped - mean) * tf.math.rsqrt(variance + self.epsilon)
            return tf.reshape(normal, [-1] + shape) * self.gamma + self.beta

    return GroupNormalization


def network(keras, normalization, momentum=MOMENTA[0]):
    """The network.

    Smooth throughout (tanh), so that rounding stays rounding: at the kink of a ReLU the last bit of an input decides
    on the whole of a gradient.

    Args:
        keras: the Keras module.
        normalization: one of `NORMALIZATIONS`.
        momentum: of BatchNormalization's moving averages.
    """
    layers = keras.layers

    def normalize(x):
        if normalization == "none":
            return x
        if normalization == "GroupNorm":
            return group_normalization(keras)(groups=4)(x)
        if normalization == "BatchNorm, frozen":
            # Both: versions differ in which one freezes.
            return layers.BatchNormalization(trainable=False)(x, training=False)
        return layers.BatchNormalization(momentum=momentum)(x)

    bias = normalization == "none"  # else beta is the bias
    x = inputs = layers.Input(shape=(8, 8, 1))
    x = layers.Conv2D(8, (3, 3), padding="same", use_bias=bias)(x)
    x = layers.Activation("tanh")(normalize(x))
    x = layers.Conv2D(16, (3, 3), strides=(2, 2), padding="same", use_bias=bias)(x)
    x = layers.Activation("tanh")(normalize(x))
    x = layers.Flatten()(x)
    x = layers.Dense(32, use_bias=bias)(x)
    x = layers.Activation("tanh")(normalize(x))
    return keras.models.Model(inputs, layers.Dense(10)(x))


def digits():
    """((images, labels) to train on, (images, labels) to test with), in one fixed order."""
    found = load_digits()
    order = np.random.RandomState(0).permutation(len(found.target))
    x = (found.images[order] / 16.0).astype("float32")[..., np.newaxis]
    y = found.target[order].astype("int32")
    return (x[:TRAINING_IMAGES], y[:TRAINING_IMAGES]), (x[-TEST_IMAGES:], y[-TEST_IMAGES:])


def order_of(seed, epochs):
    """The order in which a run sees the training images, a new one for each epoch."""
    random = np.random.RandomState(seed)
    return np.concatenate([random.permutation(TRAINING_IMAGES) for _ in range(epochs)]).astype("int32")


class Run(object):
    """A network, and an optimizer that updates it once in `steps` mini-steps, both to be used for several seeds."""

    def __init__(self, keras, data, normalization, steps=1, momentum=MOMENTA[0]):
        self.data, self.normalization = data, normalization
        self.model = network(keras, normalization, momentum)
        # What comes into each normalization.
        self.insides = [keras.models.Model(self.model.inputs, layer.input) for layer in self.batch_normalizations]
        self.start = self.model.get_weights()  # of which the gammas, betas and moving averages are used
        self.optimizer = keras.optimizers.SGD(LEARNING_RATE)
        if steps > 1:
            self.optimizer = legacyga.wrap(self.optimizer, gradient_accumulation_steps=steps)
        if hasattr(self.optimizer, "build"):
            self.optimizer.build(self.model.trainable_variables)
        # Only the loops are Python that TensorFlow has to read: reading all else, too, takes longer than training.
        self.step = tf.autograph.experimental.do_not_convert(self._step)
        self.train = tf.function(self._train)
        self.look = tf.function(self._look)
        self.gradient = tf.function(self._gradient, autograph=False)

    @property
    def batch_normalizations(self):
        return [layer for layer in self.model.layers if hasattr(layer, "moving_mean")]

    def begin(self, seed):
        """Start again, with kernels that NumPy draws; frozen statistics are those of all training images."""
        random = np.random.RandomState(seed)
        weights = []
        for weight in self.start:
            if weight.ndim > 1:
                weight = random.standard_normal(weight.shape) * np.prod(weight.shape[:-1]) ** -0.5
            weights.append(weight.astype("float32"))
        self.model.set_weights(weights)
        if self.normalization == "BatchNorm, frozen":
            self.take_statistics()

    def take_statistics(self):
        """Put the mean and variance of all training images, at these weights, in the moving averages' place."""
        x = tf.constant(self.data[0])
        for layer, inside in zip(self.batch_normalizations, self.insides):
            # The layers before it normalize with what they were given just now.
            inside = inside(x, training=False).numpy().astype("float64")
            axes = tuple(range(inside.ndim - 1))
            layer.moving_mean.assign(inside.mean(axis=axes))
            layer.moving_variance.assign(inside.var(axis=axes))

    def statistics(self):
        """[(moving mean, moving variance)] of each BatchNormalization."""
        return [(layer.moving_mean.numpy(), layer.moving_variance.numpy()) for layer in self.batch_normalizations]

    def flat_gradient(self, rows):
        """The gradient of one batch, in one array."""
        return np.concatenate([gradient.numpy().ravel().astype("float64") for gradient in self.gradient(rows)])

    def _loss(self, rows):
        x, y = (tf.gather(values, rows) for values in self.data)
        logits = self.model(x, training=True)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))

    def _gradient(self, rows):
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._loss(rows)
        return tape.gradient(loss, variables)

    def _train(self, batches):
        """Train on `batches`, of which each row says which images one batch has."""
        for rows in batches:
            self.step(rows)

    def _step(self, rows):
        self.optimizer.apply_gradients(zip(self._gradient(rows), self.model.trainable_variables))

    def _look(self, batches):
        """As `_train`, with the weights left as they are: only the moving averages move."""
        for rows in batches:
            self.model(tf.gather(self.data[0], rows), training=True)

    def weights(self):
        """All trainable weights, in one array."""
        return np.concatenate([variable.numpy().ravel() for variable in self.model.trainable_variables])

    def evaluate(self, x, y):
        """(loss, accuracy), as after training: with the moving averages."""
        logits = self.model(tf.constant(x), training=False)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        return float(loss), float(np.mean(np.argmax(logits.numpy(), axis=1) == y))


def relative(one, other, start=0.0):
    """How far `one` is from `other`, as a part of how far that is from `start`."""
    one, other = one.astype("float64"), other.astype("float64")
    return float(np.linalg.norm(one - other) / np.linalg.norm(other - start))


def distance(values):
    """Distances of several seeds, as text: their mean, or that all of them are rounding."""
    return "< 1e-05" if max(values) < 1e-5 else "{:.2f}".format(np.mean(values))


def spread(values, form="{:.3f} \u00b1 {:.3f}"):
    """The mean and the standard deviation over the seeds, as text."""
    return form.format(np.mean(values), np.std(values, ddof=1))


def percent(values):
    return spread([100 * value for value in values], "{:.1f} \u00b1 {:.1f}")


def momenta(n):
    """(batch, momentum, the momentum as text) of the large batch, and of micro-batches with each of two momenta."""
    for momentum in MOMENTA:
        yield K * n, momentum, str(momentum)
        yield n, momentum, str(momentum)
        yield n, momentum ** (1.0 / K), "{}^(1/{})".format(momentum, K)


def title(n, batch):
    return "{} x {}".format(K, n) if batch == n else str(batch)


def time_constants():
    """What is left of the start in a moving average: arithmetic."""
    rows = []
    for batch, momentum, name in momenta(1):
        mini_steps = K if batch == 1 else 1
        an_update = momentum**mini_steps
        updates = int(np.ceil(round(np.log(0.01) / np.log(an_update), 6)))
        rows.append([name, str(mini_steps), "{:.5f}".format(momentum), "{:.2f}".format(an_update), str(updates)])
    print("\nMoving averages: what one update keeps of them.")
    table(
        ["momentum", "mini-steps per update", "a mini-step keeps", "an update keeps", "updates until < 1 % is left"],
        rows,
    )


def gradients(keras, data, micro_batches, seeds):
    """The mean of K micro-batches' gradients beside the gradient of all of them as one batch, at the first weights."""
    rows = []
    for normalization in NORMALIZATIONS:
        run, row = Run(keras, data, normalization), [normalization]
        for n in micro_batches:
            distances = []
            for seed in range(seeds):
                run.begin(seed)
                images = order_of(seed, 1)[: K * n]
                parts = [run.flat_gradient(part) for part in images.reshape(K, n)]
                distances.append(relative(np.mean(parts, axis=0), run.flat_gradient(images)))
            row.append(distance(distances))
        rows.append(row)
    print("\nOne update at the first weights: distance of the gradient, as a part of the large batch's.")
    table(["normalization"] + ["{} against {}".format(title(n, n), K * n) for n in micro_batches], rows)


def moving_averages(keras, data, micro_batches, seeds):
    """The moving averages at fixed weights, beside the statistics of all training images."""
    rows = []
    for n in micro_batches:
        for batch, momentum, name in list(momenta(n))[3:]:
            run = Run(keras, data, "BatchNorm", momentum=momentum)
            errors, ratios = [], []
            for seed in range(seeds):
                run.begin(seed)
                run.take_statistics()
                exact = run.statistics()
                run.look(order_of(seed, 3).reshape(-1, batch))
                for (mean, variance), (true_mean, true_variance) in zip(run.statistics(), exact):
                    errors.append(np.mean((mean - true_mean) ** 2 / true_variance))
                    ratios.append(np.mean(variance / true_variance))
            layers = len(run.batch_normalizations)
            measured = [np.mean(errors) ** 0.5, np.mean(ratios[::layers]), np.mean(ratios[layers - 1 :: layers])]
            rows.append([title(n, batch), name] + ["{:.2f}".format(value) for value in measured])
    print("\nMoving averages at fixed weights, beside the statistics of all training images.")
    table(["batch", "momentum", "mean off by", "variance, first layer", "variance, dense layer"], rows)


End = collections.namedtuple("End", "start weights as_trained measured_anew")


def train(run, test, batch, seeds, epochs, other_order=0):
    """An `End` for each seed: weights at the start and at the end, and the quality, (training loss, test accuracy),
    with the moving averages as they are and with the statistics of all training images in their place.
    """

    def quality():
        return run.evaluate(*run.data)[0], run.evaluate(*test)[1]

    ends = []
    for seed in range(seeds):
        run.begin(seed)
        start = run.weights()
        run.train(order_of(seed + other_order, epochs).reshape(-1, batch))
        as_trained = quality()
        if run.normalization == "BatchNorm":
            run.take_statistics()
        ends.append(End(start, run.weights(), as_trained, quality()))
    return ends


def trainings(keras, data, test, micro_batches, seeds, epochs):
    """Whole trainings: the weights with each normalization, then BatchNormalization by momentum."""
    rows, by_momentum, same_bits = [], [], True
    for n in micro_batches:
        for normalization in NORMALIZATIONS:
            runs = {K * n: Run(keras, data, normalization), n: Run(keras, data, normalization, K)}
            large, accumulated = [train(runs[batch], test, batch, seeds, epochs) for batch in (K * n, n)]
            reordered = train(runs[K * n], test, K * n, seeds, epochs, OTHER_ORDER)
            rows.append([normalization, title(n, n)])
            for ends in (accumulated, reordered):
                off = [relative(end.weights, to.weights, to.start) for end, to in zip(ends, large)]
                rows[-1].append(distance(off))
            for i, text in ((0, spread), (1, percent)):
                rows[-1] += [text([end.measured_anew[i] for end in ends]) for ends in (large, accumulated)]
            if normalization != "BatchNorm" or n != micro_batches[0]:
                continue
            for batch, momentum, name in momenta(n):
                first = accumulated if batch == n else large
                ends = first
                if momentum != MOMENTA[0]:
                    run = Run(keras, data, normalization, K if batch == n else 1, momentum)
                    ends = train(run, test, batch, seeds, epochs)
                same_bits = same_bits and all(np.array_equal(a.weights, b.weights) for a, b in zip(ends, first))
                losses, accuracies = zip(*[end.as_trained for end in ends])
                by_momentum.append([title(n, batch), name, spread(losses), percent(accuracies)])
    print("\nWhole trainings, {} epochs, {} seeds: accumulated beside the large batch.".format(epochs, seeds))
    head = ["normalization", "batch", "weights off by", "another order", "loss, large", "loss, accumulated"]
    table(head + ["test %, large", "test %, accumulated"], rows)
    print("\nThe same trainings with BatchNorm, with the moving averages as they are.")
    table(["batch", "momentum", "training loss", "test %"], by_momentum)
    print("\nThe trained weights are the same bits with each momentum: {}.".format("yes" if same_bits else "NO"))


class Sliced(Run):
    """A network that trains on batches in slices of `size` samples, or on whole ones where `size` is None."""

    def __init__(self, keras, data, normalization, size):
        super(Sliced, self).__init__(keras, data, normalization)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(keras.optimizers.SGD(LEARNING_RATE), loss)
        if size:
            legacyga.micro_batch(self.model, size)
        self.train = self._train_by_keras

    def _train_by_keras(self, batches):
        for rows in batches:
            self.model.train_on_batch(self.data[0][rows], self.data[1][rows])


def in_slices(keras, data, test, sizes, seeds, epochs):
    """Whole trainings on batches of `SLICED`, in slices of each size and whole."""
    rows = []
    for normalization in ("none", "BatchNorm"):
        whole = Sliced(keras, data, normalization, None)
        large = train(whole, test, SLICED, seeds, epochs)
        for size in [None] + sizes[::-1]:
            if size:
                ends = train(Sliced(keras, data, normalization, size), test, SLICED, seeds, epochs)
            else:
                ends = train(whole, test, SLICED, seeds, epochs, OTHER_ORDER)
            off = distance([relative(end.weights, to.weights, to.start) for end, to in zip(ends, large)])
            row = [normalization, size or "whole, another order", off]
            for i, text in ((0, spread), (1, percent)):
                row += [text([end.measured_anew[i] for end in each]) for each in (large, ends)]
            rows.append([str(each) for each in row])
    updates = epochs * TRAINING_IMAGES // SLICED
    print("\nBatches of {}, {} updates, {} seeds: in slices beside whole.".format(SLICED, updates, seeds))
    head = ["normalization", "slices of", "weights off by", "loss, whole", "loss, slices"]
    table(head + ["test %, whole", "test %, slices"], rows)


def table(head, rows):
    print("\n| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("keras", "tf.keras", "tf_keras")
    parser.add_argument("--home", choices=names, default="tf.keras", help="your Keras (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=4, help="at least 2 (default: 4)")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the training images (default: 3)")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[4, 8], help="n (default: 4 and 8)")
    parser.add_argument("--slices", type=int, nargs="+", metavar="SIZE", help="of batches of 512, 8 epochs, instead")
    args = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.get_logger().setLevel("ERROR")  # of the functions traced: one for each network here, and that is meant
    keras = tf.keras if args.home == "tf.keras" else importlib.import_module(args.home)
    print("{}; K = {}".format(homes.find_home(keras), K))
    data, test = digits()
    if args.slices:
        in_slices(keras, data, test, args.slices, args.seeds, 8)
        return
    time_constants()
    gradients(keras, data, args.micro_batches, args.seeds)
    moving_averages(keras, data, args.micro_batches, args.seeds)
    trainings(keras, data, test, args.micro_batches, args.seeds, args.epochs)


if __name__ == "__main__":
    main()
