"""Your own training loop, as a whole within one tf.function, with gradient accumulation.

What it shows: three lines (marked with an arrow below) make a loop over small batches give the same result as a loop
over batches four times as large. The loop takes two epochs over the handwritten digits of scikit-learn, in batches of
24, and 4 of them make an update. Each epoch ends with a partial window of 24, 24 and 21 samples, which also makes an
update. The weight of each batch is its number of samples. Without this weight the last batch counts too much, and the
result differs: see the last row of the table.

    loss, accuracy  on all digits, after training
    updates         the optimizer's own count
    distance        the largest difference of any weight from the loop over batches of 96, relative to how far the
                    weights of that loop moved

    python examples/custom_loop.py                    tf.keras
    python examples/custom_loop.py --home tf_keras    tf_keras, beside the Keras 3 of newer TensorFlows

This example needs TensorFlow 2 in eager mode, and scikit-learn. In a TensorFlow 1 graph take legacyga.wrap or
legacyga.MySGD: mysgd_vs_snippet.py shows how.
"""

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


def train(keras, images, digits, batch, steps, epochs, weighted=True):
    """Train from `first_weights` on; the model and the optimizer."""
    layers = keras.layers
    model = keras.models.Sequential([layers.Dense(48, activation="relu", input_shape=(64,)), layers.Dense(10)])
    model.set_weights(first_weights(*SHAPES))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    variables = model.trainable_variables
    if hasattr(optimizer, "build"):  # newer optimizers, whose variables cannot be made within a function
        optimizer.build(variables)
    dataset = tf.data.Dataset.from_tensor_slices((images, digits)).batch(batch)
    accumulator = legacyga.GradientAccumulator()

    def update():
        # The mean over what is there, each batch by its samples.
        optimizer.apply_gradients(zip(accumulator.gradients, variables))
        accumulator.reset()

    @tf.function
    def run():
        for _ in tf.range(epochs):
            for x, y in dataset:
                with tf.GradientTape() as tape:
                    loss = mean_loss(model, x, y)
                gradients = tape.gradient(loss, variables)
                if steps == 1:
                    optimizer.apply_gradients(zip(gradients, variables))
                    continue
                accumulator(gradients, weight=tf.shape(x)[0] if weighted else 1)  # <---
                if accumulator.step == steps:  # <---
                    update()
            if steps > 1 and accumulator.step > 0:  # <--- the epoch's last window is a partial one
                update()

    run()
    return model, optimizer


def mean_loss(model, x, y):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x)))


def main():
    args = parser(__doc__, epochs=2, small="450 digits instead of 1797").parse_args()
    check_needs(__doc__, args.home, since=(2,))
    keras = keras_of(args.home)
    images, digits = [each[: 450 if args.small else None] for each in read_digits()]
    print_title(args.home, digits=len(images), epochs=args.epochs)
    row = "{:<34}  {:>7}  {:>6}  {:>8}  {:>8}".format
    print(row("loop over", "updates", "loss", "accuracy", "distance"))
    large, distances = None, []
    for name, batch, steps, weighted in (
        ("batches of {}".format(K * BATCH), K * BATCH, 1, True),
        ("{} batches of {}, weight=samples".format(K, BATCH), BATCH, K, True),
        ("{} batches of {}, weight=1".format(K, BATCH), BATCH, K, False),
    ):
        model, optimizer = train(keras, images, digits, batch, steps, args.epochs, weighted)
        weights = model.get_weights()
        large = large or weights
        distances.append(distance(weights, large, first_weights(*SHAPES)))
        loss = float(mean_loss(model, images, digits))
        accuracy = np.mean(np.argmax(model(images).numpy(), axis=1) == digits)
        updates = int(np.asarray(optimizer.iterations))
        print(
            row(name, updates, "{:.4f}".format(loss), "{:.4f}".format(accuracy), "{:.1e}".format(distances[-1])),
            flush=True,
        )
    print_ending(("with weights", distances[1]), ("without", distances[2]))


if __name__ == "__main__":
    main()
