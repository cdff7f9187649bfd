"""An old Keras project, in a TensorFlow 1 graph, whose batches do not fit in memory: one of its lines is changed.

What it shows: `compile(optimizer=SGD(...))` becomes `compile(optimizer=legacyga.MySGD(..., steps_per_update=4))`, and
the batches become four times smaller. Everything else stays: a metric, `fit` on arrays and then `fit_generator` on
images of changing brightness, validation, and callbacks that set the learning rate, stop early and write a log. The
1440 images of scikit-learn's digits are 90 batches of 16, or 22 of 64 and one of 32. So an epoch does not end with a
full window, and the callback of the last line makes an update from the batches that are left.

The large batches train with MySGD too, at `steps_per_update=1`, which is the SGD of that Keras in a fixed order. In
Keras 2.2, the reads and writes of Keras's own SGD race, so it gives another result on every run.

    updates   the optimizer's own count
    distance  the largest difference of any weight from the large batches, relative to how far the weights moved with
              the large batches

    python old_keras_project.py --home keras       standalone Keras, up to 2.3.1
    python old_keras_project.py                    tf.keras, in graph mode
    python old_keras_project.py --home tf_keras    where tf.keras is Keras 3, which has no graph mode

This example needs scikit-learn, and a Keras that has graph mode: any but Keras 3.
"""

import csv
import os
import tempfile

from _common import (
    check_needs,
    distance,
    first_weights,
    keras_of,
    one_hot,
    parser,
    print_ending,
    print_title,
    read_digits,
)

import legacyga

K = 4  # batches of one update
BATCH = 16
HIDDEN = 48
SHAPES = (64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)


def brightened(inputs, digits, batch):
    """Endless batches of images, brighter in one epoch and darker in the next."""
    factor = 1.2
    while True:
        for i in range(0, len(inputs), batch):
            yield factor * inputs[i : i + batch], digits[i : i + batch]
        factor = 2.0 - factor


def build_model(keras):
    layers = keras.layers
    model = keras.models.Sequential()
    model.add(layers.Dense(HIDDEN, activation="tanh", input_shape=(64,)))
    model.add(layers.Dense(10, activation="softmax"))
    model.set_weights(first_weights(*SHAPES))
    return model


def train(keras, batch, steps, images, epochs):
    """Returns: the weights, the updates made, the accuracy on the test images."""
    inputs, digits = read_digits(shuffled=True)
    x, y, test = inputs[:images], one_hot(digits[:images]), (inputs[1440:], one_hot(digits[1440:]))
    model = build_model(keras)
    optimizer = legacyga.MySGD(lr=0.2, momentum=0.9, decay=1e-4, steps_per_update=steps, keras=keras)  # <--
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", metrics=["accuracy"])

    with tempfile.TemporaryDirectory() as folder:

        def callbacks(name):
            return [
                legacyga.GradientAccumulationCallback(),  # <-- first, so that the others see the epoch's last update
                keras.callbacks.LearningRateScheduler(lambda epoch: 0.2 if epoch < 2 else 0.1),
                keras.callbacks.EarlyStopping(monitor="val_loss", patience=3),
                keras.callbacks.CSVLogger(os.path.join(folder, name)),
            ]

        model.fit(
            x, y, batch, epochs, verbose=0, callbacks=callbacks("arrays.csv"), validation_data=test, shuffle=False
        )
        model.fit_generator(
            brightened(x, y, batch),
            steps_per_epoch=-(-len(x) // batch),
            initial_epoch=epochs,
            epochs=2 * epochs,
            verbose=0,
            callbacks=callbacks("generator.csv"),
            validation_data=test,
        )
        with open(os.path.join(folder, "generator.csv")) as file:
            updates = int(list(csv.DictReader(file))[-1]["updates"])
    return model.get_weights(), updates, model.evaluate(test[0], test[1], verbose=0)[1]


def main():
    args = parser(__doc__, epochs=5, images=1440).parse_args()
    check_needs(__doc__, args.home, keras_3=False)
    keras = keras_of(args.home, graph=True)
    print_title(args.home, images=args.images, epochs=2 * args.epochs)
    row = "{:<22}  {:>7}  {:>8}  {:>8}".format
    print(row("", "updates", "accuracy", "distance"))
    large, off = BATCH * K, []
    wanted, updates, accuracy = train(keras, large, 1, args.images, args.epochs)
    print(row("batches of {}".format(large), updates, "{:.4f}".format(accuracy), ""), flush=True)
    for name, steps in (("batches of {}, K = {}".format(BATCH, K), K), ("batches of {}".format(BATCH), 1)):
        weights, updates, accuracy = train(keras, BATCH, steps, args.images, args.epochs)
        off.append(distance(weights, wanted, first_weights(*SHAPES)))
        print(row(name, updates, "{:.4f}".format(accuracy), "{:.1e}".format(off[-1])), flush=True)
    print_ending(("K = {}".format(K), off[0]), ("without", off[1]))


if __name__ == "__main__":
    main()
