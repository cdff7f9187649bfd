"""Contrastive training of two towers, with a batch of 512 in the memory of slices of 32.

What it shows: `legacyga.micro_batch(model, 32)` (marked with an arrow below) cuts each batch of 512 pairs into slices,
and the loss still compares each pair with the other 511. A pair is one of scikit-learn's handwritten digits and a copy
of it with noise. A *tower* is a network that turns one of the two into 32 numbers. The contrastive loss is the one of
CLIP (InfoNCE in both directions). It is a plain function of this file, without any code for slices. Gradient
accumulation cannot replace slices here: K = 16 batches of 32 make as many updates from as many samples, but each pair
is compared with 31 others only.

    accuracy  the share of test images whose nearest noisy copy is their own, and the share of noisy copies whose
              nearest image is their own: the mean of both, over the last ten epochs
    distance  the largest difference of any weight from training on batches of 512, relative to how far the weights of
              that training moved: after its first 20 updates, and at the end

This example needs TensorFlow 2.2 or newer in eager mode, with tf.keras, tf_keras or Keras 3, and scikit-learn; for
--picture matplotlib, too.

    python contrastive.py                           tf.keras
    python contrastive.py --home tf_keras           or keras, for Keras 3
    python contrastive.py --picture contrastive.png     the accuracy by updates and by epochs; needs matplotlib

With Adam's default epsilon, slices end 2.6e-05 away after 20 updates, and 1.6e-14 away in float64. So the distance is
rounding, which Adam enlarges where a gradient is tiny. On TensorFlow 2.15, by

    python contrastive.py --epochs 10 --epsilon 1e-7 --floatx float64       or float32
"""

import collections

import numpy as np
import tensorflow as tf
from _common import check_needs, distance, keras_of, parser, print_ending, print_title, read_digits, start_scaled

import legacyga

BATCH, SLICE = 512, 32
TRAINED, TESTED = 1024, 773  # of the 1797 digits
NOISE = 0.3
TEMPERATURE = 0.1
WAYS = collections.OrderedDict()  # by name: batch size, K, slices
WAYS["batches of 512"] = BATCH, 1, None
WAYS["in slices of 32"] = BATCH, 1, SLICE
WAYS["batches of 32, K = 16"] = SLICE, BATCH // SLICE, None
WAYS["batches of 32"] = SLICE, 1, None


def similarities(embeddings):
    """The cosine of each first half with each second half of the rows, a matrix."""
    one, other = [tf.math.l2_normalize(half, axis=1) for half in tf.split(embeddings, 2, axis=1)]
    return tf.matmul(one, other, transpose_b=True)


def contrastive_loss(_, embeddings):
    """That of CLIP: each row's partner is to be found among all of the batch, in both directions."""
    logits = similarities(embeddings) / TEMPERATURE
    partners = tf.range(tf.shape(logits)[0])
    there, back = [
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=partners, logits=each)
        for each in (logits, tf.transpose(logits))
    ]
    return (there + back) / 2.0


def build_model(keras):
    """Two towers, whose outputs stand side by side; without dropout and batch normalization, which see slices."""
    layers, inputs, outputs = keras.layers, [], []
    for _ in range(2):
        inputs.append(layers.Input((64,)))
        hidden = layers.Dense(128, activation="tanh")(inputs[-1])
        hidden = layers.Dense(128, activation="tanh")(hidden)
        outputs.append(layers.Dense(32)(hidden))
    model = keras.models.Model(inputs, layers.Concatenate()(outputs))
    start_scaled(model)
    return model


def pairs(images, seed):
    """[images, the same with noise on them], in an order of their own."""
    random = np.random.RandomState(seed)
    images = images[random.permutation(len(images))]
    return [images, (images + NOISE * random.randn(*images.shape)).astype(images.dtype)]


def accuracy(model, test):
    found = similarities(tf.constant(model.predict(test, batch_size=SLICE, verbose=0))).numpy()
    right = np.arange(len(found))
    return float(np.mean([found.argmax(axis) == right for axis in (0, 1)]))


def train(keras, args, images, batch, steps, size):
    """Train in one way; what was seen after each epoch, with the weights after 20 updates of 512 and at the end."""
    model = build_model(keras)
    # Adam divides a gradient by its own size, also one that is hardly more than rounding. A larger epsilon does not.
    optimizer = keras.optimizers.Adam(args.rate, epsilon=args.epsilon)
    model.compile(legacyga.wrap(optimizer, steps) if steps > 1 else optimizer, contrastive_loss)
    if size:
        legacyga.micro_batch(model, size, recompute=True)  # <--- True: it need not say that it takes the second way
    seen = {"accuracy": [], "updates": [], "weights": [model.get_weights()]}
    no_targets = np.zeros((TRAINED, 1), "float32")
    test = pairs(images[TRAINED:], seed=1000000)
    for epoch in range(args.epochs):
        x = pairs(images[:TRAINED], seed=epoch)
        model.fit(x, no_targets, batch_size=batch, shuffle=False, verbose=0)
        seen["accuracy"].append(accuracy(model, test))
        seen["updates"].append(int(np.asarray(model.optimizer.iterations)))
        if (epoch + 1) * TRAINED == 20 * BATCH:
            seen["weights"].append(model.get_weights())
    seen["weights"].append(model.get_weights())
    return seen


def draw(results, path):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4))
    FigureCanvasAgg(figure)  # needs no display
    titles = (
        "By updates: slices of 32 lie on batches of 512.\nK = 16 does not: it compares with 31 others, not 511.",
        "By samples seen: batches of 32 alone\nmake 16 times as many updates.",
    )
    for number, title in enumerate(titles):
        axes = figure.add_subplot(1, 2, number + 1)
        for name, seen in results.items():
            line = dict(linewidth=6, alpha=0.35) if name == "batches of 512" else dict(linewidth=1.5)
            x = range(1, len(seen["accuracy"]) + 1) if number else seen["updates"]
            axes.plot(x, seen["accuracy"], label="{} ({} updates)".format(name, seen["updates"][-1]), **line)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epochs of {} pairs".format(TRAINED) if number else "updates")
        axes.set_ylabel("share of {} test pairs that are found".format(TESTED))
        axes.legend(loc="lower right", fontsize=8)
    # The left one shows the updates that batches of 512 make, of sixteen times as many that batches of 32 make.
    figure.axes[0].set_xlim(0, results["batches of 512"]["updates"][-1])
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main():
    arguments = parser(__doc__, epochs=80)
    arguments.add_argument("--rate", type=float, default=0.002, help="Adam's learning rate (default: %(default)s)")
    arguments.add_argument("--epsilon", type=float, default=1e-4, help="Adam's epsilon (default: %(default)s)")
    arguments.add_argument(
        "--floatx", choices=("float32", "float64"), default="float32", help="the model's dtype (default: %(default)s)"
    )
    arguments.add_argument("--picture", metavar="FILE.png", help="the file to draw the curves in")
    args = arguments.parse_args()
    if args.epochs < 10:
        arguments.error("20 updates of 512 are 10 epochs. Received: --epochs {}".format(args.epochs))
    packages = ["sklearn"] + ["matplotlib"] * bool(args.picture)
    check_needs(__doc__, args.home, since=(2, 2), packages=packages)
    keras = keras_of(args.home)
    keras.backend.set_floatx(args.floatx)
    images = read_digits(shuffled=True)[0].astype(args.floatx)
    print_title(args.home, pairs=TRAINED, epochs=args.epochs)
    row = "{:<22}  {:>7}  {:>8}  {:>10}  {:>11}".format
    print(row("", "updates", "accuracy", "20 updates", "at the end"))
    results, endings = collections.OrderedDict(), []
    for name, how in WAYS.items():
        seen = results[name] = train(keras, args, images, *how)
        whole = results["batches of 512"]["weights"]
        off = [distance(one, other, whole[0]) for one, other in list(zip(seen["weights"], whole))[1:]]
        endings.append((name, off[0]))
        told = "{:.3f}".format(np.mean(seen["accuracy"][-10:]))
        print(row(name, seen["updates"][-1], told, *["{:.1e}".format(each) for each in off]), flush=True)
    if args.picture:
        draw(results, args.picture)
    print_ending(*endings[1:])


if __name__ == "__main__":
    main()
