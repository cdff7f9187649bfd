"""An epoch whose batches do not fill the last window: what happens to this window, and what accumulation costs.

What it shows: 1440 images of scikit-learn's digits are 45 batches of 32. With K = 4, these are 11 windows and one
batch left over. `GradientAccumulationCallback(partial_window="flush")` makes an update from this batch. So an epoch
equals an epoch of batches of 128, whose last one also has 32 images. With "drop" the batch is discarded, and with
"carry" it goes into the next epoch's first window.

The script trains a small convolutional network in each of these ways, each in its own process, so that the peak memory
of each can be measured.

    time      of the training, in seconds, without the first batch, in which TensorFlow builds its functions or graph
    memory    by how much the peak of the process rose in training, in MiB (not measured on Windows)
    distance  the largest difference of any weight from the batches of 128, relative to how far the weights moved with
              these

    python partial_windows.py                        tf.keras; the picture is partial_windows.png in this folder
    python partial_windows.py --home tf_keras        or keras, for Keras 3 or for Keras up to 2.3.1
    python partial_windows.py --graph                in a TensorFlow 1 graph
    python partial_windows.py --ways flush carry drop small         with "carry", too

This example needs scikit-learn, and TensorFlow 1.7 or newer. Without matplotlib there is no picture.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time

from _common import check_needs, distance, flat, keras_of, parser, peak_memory, pictures, print_ending, start_scaled

BATCH, K = 32, 4
WAYS = {  # by name: title, batch size, K, what becomes of a partial window
    "large": ("batches of 128", BATCH * K, 1, "flush"),
    "flush": ("K = 4, flush", BATCH, K, "flush"),
    "carry": ("K = 4, carry", BATCH, K, "carry"),
    "drop": ("K = 4, drop", BATCH, K, "drop"),
    "small": ("batches of 32", BATCH, 1, "flush"),
}


def train(args):
    """What the process of one way does: train, and write the results to a file."""
    import tensorflow as tf

    import legacyga

    check_needs(__doc__, args.home)
    keras = keras_of(args.home, args.graph)
    (x, y), test = pictures(args.images)

    layers = keras.layers
    picture = layers.Input(shape=(8, 8, 1))
    hidden = layers.UpSampling2D((3, 3))(picture)
    hidden = layers.Conv2D(48, (3, 3), padding="same", activation="tanh")(hidden)
    hidden = layers.Conv2D(16, (3, 3), strides=(3, 3), padding="same", activation="tanh")(hidden)
    model = keras.models.Model(picture, layers.Dense(10, activation="softmax")(layers.Flatten()(hidden)))
    start_scaled(model)

    _, batch, steps, partial_window = WAYS[args.way]
    optimizer = legacyga.MySGD(lr=0.02, momentum=0.9, steps_per_update=steps, keras=keras)
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", metrics=["accuracy"])
    callback = legacyga.GradientAccumulationCallback(partial_window=partial_window)  # <--
    seen = {"accuracies": [], "updates": [], "start": flat(model)}

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen["memory"] = peak_memory()

        def on_batch_end(self, number, logs=None):
            seen.setdefault("began", time.time())

        def on_epoch_end(self, epoch, logs=None):
            before = time.time()
            seen["accuracies"].append(float(self.model.evaluate(test[0], test[1], batch_size=BATCH, verbose=0)[1]))
            seen["updates"].append(int(logs["updates"]))
            # What watching takes is not the training's.
            seen["began"] += time.time() - before

    model.fit(x, y, batch, epochs=args.epochs, shuffle=False, verbose=0, callbacks=[callback, Watch()])
    seen["time"] = time.time() - seen.pop("began")
    seen["memory"] = None if seen["memory"] is None else peak_memory() - seen["memory"]
    seen["weights"] = flat(model)
    seen["running"] = "{}, TensorFlow {}".format(args.home, tf.__version__)
    with open(args.results, "w") as file:
        json.dump(seen, file)


def draw(results, out):
    """The accuracy after each epoch by the updates made until then, and the memory that each way took."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4))
    FigureCanvasAgg(figure)  # needs no display
    curves, bars = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    for name, result in results.items():
        accuracies = result["accuracies"]
        line = dict(linewidth=6, alpha=0.4) if name == "large" else dict(marker="o", markersize=3)
        updates = result["updates"]
        curves.plot(updates, accuracies, label="{} ({} updates)".format(WAYS[name][0], updates[-1]), **line)
    curves.set_title('With "flush" K = 4 lies on batches of 128', fontsize=10)
    curves.set_xscale("log")
    curves.set_xlabel("updates (logarithmic), a mark each epoch")
    curves.set_ylabel("accuracy on the test images")
    curves.legend(fontsize=8)
    titles = [WAYS[name][0] for name in results]
    bars.barh(range(len(titles)), [result["memory"] or 0 for result in results.values()], tick_label=titles)
    bars.set_title("Batches of 32 need less memory, also with K = 4", fontsize=10)
    bars.set_xlabel("rise of the peak memory in training, MiB")
    figure.tight_layout()
    figure.savefig(out)


def main():
    arguments = parser(__doc__, epochs=4, images=1440, graph=True)
    arguments.add_argument(
        "--out", default="partial_windows.png", help="the picture's path (default: partial_windows.png)"
    )
    arguments.add_argument(
        "--ways",
        nargs="*",
        choices=list(WAYS),
        default=["flush", "drop", "small"],
        help="beside the large batches (default: flush drop small)",
    )
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
        for name in ["large", "flush"] + [name for name in args.ways if name not in ("large", "flush")]:
            if subprocess.call([sys.executable] + sys.argv + ["--way", name, "--results", path], env=environment):
                raise SystemExit(1)  # it has said why
            with open(path) as file:
                results[name] = json.load(file)

    print("{}: {} images, {} epochs".format(results["large"]["running"], args.images, args.epochs))
    row = "{:<16}  {:>7}  {:>8}  {:>6}  {:>8}  {:>8}".format
    print(row("", "updates", "accuracy", "time", "memory", "distance"))
    large = results["large"]
    for name, result in results.items():
        result["distance"] = distance(result["weights"], large["weights"], large["start"])
        memory = "-" if result["memory"] is None else "{:.0f}".format(result["memory"])
        accuracy, off = "{:.4f}".format(result["accuracies"][-1]), "{:.1e}".format(result["distance"])
        print(row(WAYS[name][0], result["updates"][-1], accuracy, "{:.1f}".format(result["time"]), memory, off))
    try:
        draw(results, args.out)
        print("picture: {}".format(args.out))
    except ImportError:
        print("no picture: matplotlib is not installed")
    print_ending(*[(WAYS[name][0], result["distance"]) for name, result in results.items() if name != "large"])


if __name__ == "__main__":
    main()
