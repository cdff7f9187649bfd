"""An old Keras project that must keep its batch size, on a machine with too little memory: two lines are added.

What it shows: one line is `import legacyga`; the other is `legacyga.micro_batch(model, 8)`, once after the first
`compile`. The batches still have 192 images, and whatever counts batches or updates does not change: the generator and
its `steps_per_epoch`, the schedule of the learning rate, and the checkpoint of the best epoch. The second `compile`
does not change either: it starts a second stage from that epoch, with a smaller rate. Each batch trains in slices of 8,
one after the other, and ends in one update.

The script trains the project with the second line and without it, each in its own process, so that the peak memory of
each can be measured. In slices the project trains with Keras's own SGD. On whole batches it trains with MySGD at
`steps_per_update=1`, which is the SGD of the same Keras with its operations in a fixed order. In the graphs of old
Keras, the reads and writes of Keras's own SGD race, so its results change from run to run.

    updates   the optimizer's own count, of both stages
    memory    by how much the peak of the process rose in training, in MiB (not measured on Windows)
    distance  the largest difference of any weight from training on whole batches, relative to how far the weights of
              that training moved

    python keep_batch_size.py --home keras         standalone Keras up to 2.3.1; Keras 3
    python keep_batch_size.py                      tf.keras
    python keep_batch_size.py --graph              in a TensorFlow 1 graph
    python keep_batch_size.py --home tf_keras

This example needs scikit-learn, and a TensorFlow 1 graph (--graph from TensorFlow 2 on) or TensorFlow 2.2 or newer.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

from _common import check_needs, distance, flat, keras_of, parser, peak_memory, pictures, print_ending, start_scaled

import legacyga  # <--

BATCH, SLICE = 192, 8
RATE, MOMENTUM = 0.05, 0.9
WAYS = collections.OrderedDict([("whole", "batches of {}".format(BATCH)), ("slices", "in slices of {}".format(SLICE))])


def brightened(images, digits):
    """Endless batches of images, each batch as bright as chance has it."""
    import numpy as np

    random = np.random.RandomState(2)
    while True:
        for i in range(0, len(images), BATCH):
            yield random.uniform(0.8, 1.2) * images[i : i + BATCH], digits[i : i + BATCH]


def build_model(keras):
    """Without dropout and batch normalization, which see the slices: with them the two trainings would rightly part."""
    layers = keras.layers
    picture = layers.Input(shape=(8, 8, 1))
    hidden = layers.UpSampling2D((3, 3))(picture)
    hidden = layers.Conv2D(64, (3, 3), padding="same", activation="tanh")(hidden)
    hidden = layers.Conv2D(16, (3, 3), strides=(3, 3), padding="same", activation="tanh")(hidden)
    model = keras.models.Model(picture, layers.Dense(10, activation="softmax")(layers.Flatten()(hidden)))
    start_scaled(model)
    return model


def sgd(keras, args, rate):
    """The SGD of the project."""
    if args.way == "whole":
        return legacyga.MySGD(rate, momentum=MOMENTUM, steps_per_update=1, keras=keras)
    # The one that trains in graph mode, from TF 2.11 on.
    stock = getattr(keras.optimizers, "legacy", keras.optimizers) if args.graph else keras.optimizers
    return stock.SGD(rate, momentum=MOMENTUM)


def updates_of(keras, model):
    count = model.optimizer.iterations
    return int(keras.backend.get_value(count) if hasattr(keras.backend, "get_value") else count.numpy())


def train(args):
    """What the process of one way does: train, and write the results to a file."""
    import tensorflow as tf

    check_needs(__doc__, args.home, since=(2, 2) if tf.__version__ >= "2" and not args.graph else (1, 7))
    keras = keras_of(args.home, args.graph)
    (x, y), test = pictures(args.images)
    model = build_model(keras)
    seen = {"start": flat(model), "updates": 0}

    model.compile(optimizer=sgd(keras, args, RATE), loss="categorical_crossentropy", metrics=["accuracy"])
    if args.way == "slices":
        legacyga.micro_batch(model, SLICE)  # <--
    # Keras has had fit for generators as well since TF 2.1, and no other since Keras 3.
    fit_generator = getattr(model, "fit_generator", model.fit)
    # Builds what evaluates, so that what follows is training's.
    model.evaluate(test[0], test[1], batch_size=SLICE, verbose=0)
    before = peak_memory()

    with tempfile.TemporaryDirectory() as folder:
        best = os.path.join(folder, "best.weights.h5")

        def stage(first, last, factor):
            fit_generator(
                brightened(x, y),
                steps_per_epoch=-(-len(x) // BATCH),
                initial_epoch=first,
                epochs=last,
                verbose=0,
                callbacks=[
                    keras.callbacks.LearningRateScheduler(lambda epoch: factor * RATE * 0.8 ** (epoch - first)),
                    keras.callbacks.ModelCheckpoint(best, "loss", save_best_only=True, save_weights_only=True),
                ],
            )
            seen["updates"] += updates_of(keras, model)

        stage(0, args.epochs, 1.0)
        model.load_weights(best)
        model.compile(optimizer=sgd(keras, args, 0.1 * RATE), loss="categorical_crossentropy", metrics=["accuracy"])
        stage(args.epochs, 2 * args.epochs, 0.1)

    seen["memory"] = None if before is None else peak_memory() - before
    seen["accuracy"] = float(model.evaluate(test[0], test[1], batch_size=SLICE, verbose=0)[1])
    seen["weights"] = flat(model)
    seen["running"] = "{}, TensorFlow {}".format(args.home, tf.__version__)
    with open(args.results, "w") as file:
        json.dump(seen, file)


def main():
    arguments = parser(__doc__, epochs=3, images=1440, graph=True)
    arguments.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    arguments.add_argument("--results", help=argparse.SUPPRESS)
    args = arguments.parse_args()
    if args.way:
        return train(args)

    results = collections.OrderedDict()
    # On the CPU, whose memory is measured.
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.json")
        for name in WAYS:
            if subprocess.call([sys.executable] + sys.argv + ["--way", name, "--results", path], env=environment):
                raise SystemExit(1)  # it has said why
            with open(path) as file:
                results[name] = json.load(file)

    whole = results["whole"]
    print("{}: {} images, {} epochs".format(whole["running"], args.images, 2 * args.epochs))
    row = "{:<16}  {:>7}  {:>8}  {:>6}  {:>8}".format
    print(row("", "updates", "accuracy", "memory", "distance"))
    for name, result in results.items():
        result["distance"] = distance(result["weights"], whole["weights"], whole["start"])
        memory = "-" if result["memory"] is None else "{:.0f}".format(result["memory"])
        accuracy, off = "{:.4f}".format(result["accuracy"]), "{:.1e}".format(result["distance"])
        print(row(WAYS[name], result["updates"], accuracy, memory, off))
    told = [(WAYS[name], result["distance"]) for name, result in results.items() if name != "whole"]
    print_ending(*told)


if __name__ == "__main__":
    main()
