"""Batches of unequal sizes: `fit` without weights, with the callback, and with `legacyga.train_step`.

The mean of the gradients of K micro-batches is the mean over their samples only if all micro-batches have one size. If
sizes differ, the weight of each micro-batch must be its number of samples. `legacyga.GradientAccumulationCallback` and
`legacyga.train_step` count the samples.

This script trains a small network on scikit-learn's digits with momentum. It cuts the data in two ways:

    each     every window has batches of 4, 4, 4 and 2 images; the images left over make a partial window
    last     all batches have 32 images but the last of the epoch, which has 16

It accumulates over windows of K = 4, and flushes the last window of an epoch. For comparison, it also trains with each
window as one large batch. It prints how far the weights end from those of the large batches, relative to how far the
weights moved with the large batches.

    python fit_train_step.py                      tf.keras
    python fit_train_step.py --home tf_keras      or keras, for Keras 3 (and, with --graph, for Keras up to 2.3.1)
    python fit_train_step.py --graph              in graph mode, where the loss tells the sizes

This example needs scikit-learn, and TensorFlow 2.2 or newer in eager mode; with --graph any TensorFlow from 1.7 on.
"""

import numpy as np
from _common import check_needs, distance, first_weights, keras_of, parser, print_ending, print_title, read_digits

import legacyga

K = 4  # batches of one update
LR, MOMENTUM = 0.05, 0.9
HIDDEN = 32


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
    model.set_weights(first_weights((64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)))
    return model


def train(keras, cls, steps, data, batches, epochs, weighs=False):
    """The weights before and after, and the accuracy that `fit` reports of the last epoch.

    With `weighs` by the callback, which flushes too.
    """

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
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: legacyga.flush(optimizer))
    if weighs:
        callback = legacyga.GradientAccumulationCallback()
    logs = fit(stream(), steps_per_epoch=len(batches), epochs=epochs, verbose=0, callbacks=[callback]).history
    return before, model.get_weights(), logs.get("accuracy", logs.get("acc"))[-1]


def main():
    args = parser(__doc__, epochs=5, images=1520, graph=True).parse_args()
    check_needs(__doc__, args.home, since=(1, 7) if args.graph else (2, 2))
    keras = keras_of(args.home, args.graph)
    Model = keras.models.Model

    class Weighted(Model):
        def train_step(self, data):
            return legacyga.train_step(self, data)

    ways = [("no weights", Model, False), ("the callback", Model, True), ("train_step", Weighted, False)]
    if args.graph:
        ways = [("no callback", Model, False), ("the callback", Model, True)]
    data = [each[: args.images] for each in read_digits()]
    print_title(args.home + (" (graph)" if args.graph else ""), images=len(data[0]), epochs=args.epochs)
    row = "{:<6}  {:<22}  {:>8}  {:>9}  {:>9}".format
    print(row("cut", "trained by", "updates", "accuracy", "distance"))
    endings = []
    for name, sizes in (("each", [4, 4, 4, 2]), ("last", [32])):
        batches = cut(args.images, sizes)
        large = windows(batches)
        before, wanted, accuracy = train(keras, Model, 1, data, large, args.epochs)
        print(row(name, "the large batches", len(large) * args.epochs, "{:.4f}".format(accuracy), ""), flush=True)
        for way, cls, weighs in ways:
            _, weights, accuracy = train(keras, cls, K, data, batches, args.epochs, weighs)
            off = distance(weights, wanted, before)
            print(row(name, way, len(large) * args.epochs, "{:.4f}".format(accuracy), "{:.1e}".format(off)), flush=True)
            endings.append(("{}, {}".format(name, way), off))
    print_ending(*endings)


if __name__ == "__main__":
    main()
