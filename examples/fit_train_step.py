"""Batches of unequal sizes: plain `fit`, and `fit` with `legacyga.train_step`, beside the large batches they stand for.

A mean over K micro-batches is the mean over their samples if all of them are of one size. Where they are not, each has
to weigh as much as it has samples, and the size is known to a `train_step` only.

This script trains a small network on scikit-learn's digits with momentum, over batches that are cut in two ways:

    each     every window has batches of 4, 4, 4 and 2 images; what is left over is a window that is not full
    last     all batches have 32 images but the last of the epoch, which has 16

in windows of K = 4, ended by `legacyga.flush` after each epoch, and on the windows as batches. It prints how far the
weights end from those of the large batches, relative to the way that these went.

    python fit_train_step.py                      tf.keras
    python fit_train_step.py --home tf_keras      or keras, for Keras 3 (and, with --graph, for Keras up to 2.3.1)
    python fit_train_step.py --graph              what plain `fit` does in graph mode, where there is no train_step
"""

import argparse
import importlib

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import legacyga

K = 4  # batches of one update
LR, MOMENTUM = 0.05, 0.9
HIDDEN = 32


def read_data(images):
    inputs, labels = load_digits(return_X_y=True)
    return (inputs[:images] / 16.0).astype("float32"), labels[:images]


def cut(images, sizes):
    """Where batches of these sizes, over and over, begin and end."""
    ends = np.cumsum(np.resize(sizes, images))
    ends = np.append(ends[ends < images], images)
    return list(zip(np.append(0, ends[:-1]), ends))


def windows(batches):
    """The batches of K batches each."""
    return [(batches[i][0], batches[i : i + K][-1][1]) for i in range(0, len(batches), K)]


def network(keras, cls):
    inputs = keras.layers.Input((64,))
    hidden = keras.layers.Dense(HIDDEN, activation="tanh")(inputs)
    model = cls(inputs, keras.layers.Dense(10, activation="softmax")(hidden))
    random = np.random.RandomState(0)
    shapes = (64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)
    model.set_weights([0.1 * random.randn(*shape) for shape in shapes])
    return model


def train(keras, cls, steps, data, batches, epochs):
    """The weights before and after, flat, and the accuracy that `fit` reports of the last epoch."""

    def stream():
        while True:
            for begin, end in batches:
                yield data[0][begin:end], data[1][begin:end]

    model = network(keras, cls)
    optimizer = legacyga.MySGD(LR, momentum=MOMENTUM, steps_per_update=steps, keras=keras)
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    before = model.get_weights()
    # Keras up to 2.2 takes no generator in fit; the newer ones warn of fit_generator.
    fit = model.fit if hasattr(model, "train_step") else model.fit_generator
    flush = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: legacyga.flush(optimizer))
    logs = fit(stream(), steps_per_epoch=len(batches), epochs=epochs, verbose=0, callbacks=[flush]).history
    weights = [np.concatenate([weight.ravel() for weight in each]) for each in (before, model.get_weights())]
    return weights, logs.get("accuracy", logs.get("acc"))[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", choices=("keras", "tf.keras", "tf_keras"), default="tf.keras")
    parser.add_argument("--graph", action="store_true", help="in graph mode, which has no train_step")
    parser.add_argument("--epochs", type=int, default=5, help="(default: 5)")
    parser.add_argument("--images", type=int, default=1520, help="at most 1797 (default: 1520)")
    args = parser.parse_args()

    if args.graph and hasattr(tf.compat, "v1"):
        tf.compat.v1.disable_eager_execution()
    keras = tf.keras if args.home == "tf.keras" else importlib.import_module(args.home)
    Model = keras.models.Model

    class Weighted(Model):
        def train_step(self, data):
            return legacyga.train_step(self, data)

    ways = [("plain fit", Model)] + ([] if args.graph else [("train_step", Weighted)])
    data = read_data(args.images)
    mode = "graph" if args.graph else "eager"
    print(
        "{} ({}), TensorFlow {}: {} images, {} epochs".format(
            args.home, mode, tf.__version__, *[len(data[0]), args.epochs]
        )
    )
    row = "{:<6}  {:<22}  {:>8}  {:>9}  {:>9}".format
    print(row("cut", "trained by", "updates", "accuracy", "distance"))
    endings = []
    for name, sizes in (("each", [4, 4, 4, 2]), ("last", [32])):
        batches = cut(args.images, sizes)
        large = windows(batches)
        (before, wanted), accuracy = train(keras, Model, 1, data, large, args.epochs)
        print(row(name, "the large batches", len(large) * args.epochs, "{:.4f}".format(accuracy), ""), flush=True)
        for way, cls in ways:
            (_, weights), accuracy = train(keras, cls, K, data, batches, args.epochs)
            distance = "{:.1e}".format(np.abs(weights - wanted).max() / np.abs(wanted - before).max())
            print(row(name, way, len(large) * args.epochs, "{:.4f}".format(accuracy), distance), flush=True)
            endings.append("{}, {}: {}".format(name, way, distance))
    print("distance to the large batch: " + "; ".join(endings))


if __name__ == "__main__":
    main()
