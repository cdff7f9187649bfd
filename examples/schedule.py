"""A batch size that grows in training: K by epoch, set by a callback, beside the same by hand.

What it shows: `legacyga.GradientAccumulationCallback({0: 1, 2: 2, 4: 4})` makes an update of every batch in the first
two epochs, of every second one in the next two, and of every fourth one from then on. By hand the same is three calls
of `fit` with batches of 16, 32 and 64. The data are scikit-learn's digits, 1440 of them: 90 batches of 16, so that at
K = 4 an epoch ends with a window of 2, which the callback applies.

    loss      of all training images, after the epoch
    distance  the largest of any weight, from the training by hand

    python schedule.py                           tf.keras
    python schedule.py --home tf_keras           or keras, for Keras 3 or for Keras up to 2.3.1
    python schedule.py --graph                   in a TensorFlow 1 graph
"""

import argparse
import importlib

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import legacyga

SCHEDULE = {0: 1, 2: 2, 4: 4}
BATCH = 16
HIDDEN = 48


def read_data(images):
    inputs, digits = load_digits(return_X_y=True)
    return (inputs[:images] / 16.0).astype("float32"), np.eye(10, dtype="float32")[digits[:images]]


def build_model(keras, steps):
    layers = keras.layers
    model = keras.models.Sequential(
        [layers.Dense(HIDDEN, activation="tanh", input_shape=(64,)), layers.Dense(10, activation="softmax")]
    )
    random = np.random.RandomState(1)
    model.set_weights([0.1 * random.randn(*shape) for shape in ((64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,))])
    optimizer = legacyga.MySGD(lr=0.1, momentum=0.9, steps_per_update=steps, keras=keras)
    model.compile(optimizer=optimizer, loss="categorical_crossentropy")
    return model


def watch(keras, data):
    """A callback that keeps the loss after each epoch, by the weights as they then are."""

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.losses.append(self.model.evaluate(data[0], data[1], batch_size=len(data[0]), verbose=0))

    made = Watch()
    made.losses = []
    return made


def by_callback(keras, data, epochs):
    """Returns: the weights, the losses, the logs by name."""
    model, losses = build_model(keras, steps=max(SCHEDULE.values())), watch(keras, data)
    callback = legacyga.GradientAccumulationCallback(SCHEDULE)  # <--
    logs = model.fit(
        data[0], data[1], BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=[callback, losses]
    ).history
    return model.get_weights(), losses.losses, logs


def by_hand(keras, data, epochs):
    """Returns: the weights, the losses."""
    model, losses = build_model(keras, steps=1), watch(keras, data)
    starts = sorted(SCHEDULE)
    for start, end in zip(starts, starts[1:] + [epochs]):
        if start < epochs:
            batch = BATCH * SCHEDULE[start]
            ends = dict(initial_epoch=start, epochs=min(end, epochs))
            model.fit(data[0], data[1], batch, shuffle=False, verbose=0, callbacks=[losses], **ends)
    return model.get_weights(), losses.losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", choices=("keras", "tf.keras", "tf_keras"), default="tf.keras")
    parser.add_argument("--graph", action="store_true", help="in graph mode")
    parser.add_argument("--epochs", type=int, default=8, help="(default: 8)")
    parser.add_argument("--images", type=int, default=1440, help="a multiple of 16, at most 1440 (default: 1440)")
    args = parser.parse_args()

    if args.graph and hasattr(tf.compat, "v1"):
        tf.compat.v1.disable_eager_execution()
    keras = tf.keras if args.home == "tf.keras" else importlib.import_module(args.home)
    data = read_data(args.images)
    print("{}, TensorFlow {}: {} images, {} epochs".format(args.home, tf.__version__, args.images, args.epochs))
    weights, losses, logs = by_callback(keras, data, args.epochs)
    wanted, wanted_losses = by_hand(keras, data, args.epochs)
    row = "{:>5}  {:>3}  {:>7}  {:>10}  {:>12}".format
    print(row("epoch", "K", "updates", "loss", "loss by hand"))
    for epoch, (loss, wanted_loss) in enumerate(zip(losses, wanted_losses)):
        steps, updates = logs["gradient_accumulation_steps"][epoch], logs["updates"][epoch]
        print(row(epoch, steps, updates, "{:.6f}".format(loss), "{:.6f}".format(wanted_loss)))
    distance = max(np.abs(one - other).max() for one, other in zip(weights, wanted))
    largest = max(np.abs(one).max() for one in wanted)
    print("distance to the large batch: {:.1e}, where the weights are up to {:.2g}".format(distance, largest))


if __name__ == "__main__":
    main()
