"""A batch size that grows in training: the callback sets K by epoch, beside larger batches set by hand.

What it shows: `legacyga.GradientAccumulationCallback({0: 1, 2: 2, 4: 4})` makes an update from every batch in the first
two epochs, from every second batch in the next two, and from every fourth batch after that. For comparison, the script
calls `fit` three times by hand, with batches of 16, 32 and 64. The data are 1440 of scikit-learn's digits: 90 batches
of 16. So at K = 4 an epoch ends with a window of 2 batches, from which the callback also makes an update.

    loss      of all training images, after the epoch
    distance  the largest difference of any weight from the training by hand, relative to how far the weights of that
              training moved

    python schedule.py                           tf.keras
    python schedule.py --home tf_keras           or keras, for Keras 3 or for Keras up to 2.3.1
    python schedule.py --graph                   in a TensorFlow 1 graph

This example needs scikit-learn, and TensorFlow 1.7 or newer.
"""

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

SCHEDULE = {0: 1, 2: 2, 4: 4}
BATCH = 16
HIDDEN = 48
SHAPES = (64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)


def build_model(keras, steps):
    layers = keras.layers
    model = keras.models.Sequential(
        [layers.Dense(HIDDEN, activation="tanh", input_shape=(64,)), layers.Dense(10, activation="softmax")]
    )
    model.set_weights(first_weights(*SHAPES))
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
    args = parser(__doc__, epochs=8, images=1440, graph=True).parse_args()
    check_needs(__doc__, args.home)
    keras = keras_of(args.home, args.graph)
    inputs, digits = read_digits()
    data = inputs[: args.images], one_hot(digits[: args.images])
    print_title(args.home, images=len(data[0]), epochs=args.epochs)
    weights, losses, logs = by_callback(keras, data, args.epochs)
    wanted, wanted_losses = by_hand(keras, data, args.epochs)
    row = "{:>5}  {:>3}  {:>7}  {:>10}  {:>12}".format
    print(row("epoch", "K", "updates", "loss", "loss by hand"))
    for epoch, (loss, wanted_loss) in enumerate(zip(losses, wanted_losses)):
        steps, updates = logs["gradient_accumulation_steps"][epoch], logs["updates"][epoch]
        print(row(epoch, steps, updates, "{:.6f}".format(loss), "{:.6f}".format(wanted_loss)))
    print_ending(("by the callback", distance(weights, wanted, first_weights(*SHAPES))))


if __name__ == "__main__":
    main()
