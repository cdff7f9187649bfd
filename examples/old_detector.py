"""An object detector of 2018, whose batches of 16 no longer fit in memory: two of its lines are changed.

What it shows: a detector of circles, squares and triangles, made and trained as in those years. A backbone is first
trained as a classifier, and saved. The detector loads the backbone by the names of its layers, keeps its batch
normalization frozen, and has its own loss. A generator shuffles and mirrors the pictures. The program calls `compile`
twice: for the heads on the frozen backbone, then for all layers at a lower rate. Gradients are clipped. Callbacks set
the rate, measure the mean average precision, write a log and save the model after each epoch.

The memory now holds batches of 2. These are the two lines:

    +import legacyga
    -optimizer=keras.optimizers.SGD(lr=rate, momentum=0.9, clipnorm=CLIP)
    +optimizer=legacyga.MySGD(lr=rate, momentum=0.9, clipnorm=CLIP, steps_per_update=8)

A stopped training continues from its checkpoint with `legacyga.load_model` in place of `keras.models.load_model`.

The script trains three times on the same pictures in the same order: with batches of 16, with batches of 2 at K = 8,
and with batches of 2 alone. It also resumes the second training from its checkpoint in the middle of the second stage,
and the resumed training must end with the same weights. The large batches train with MySGD too, at
`steps_per_update=1`, which is the SGD of that Keras in a fixed order. In Keras 2.2, the reads and writes of Keras's own
SGD race, so it gives another result on every run.

    updates    the optimizer's own count, of both stages
    mAP        mean average precision on the test pictures, at an overlap of one half
    distance   the largest difference of any weight from the large batches, relative to how far the weights moved with
               the large batches: after the first epoch, after the stage of the heads, and at the end

The distance of K = 8 is rounding, which grows with the number of updates. The second row shows how large rounding can
be: large batches again, with the pictures within each batch in the opposite order. `--float64` has 1e-15 in place of
1e-7.

    python old_detector.py --home keras               standalone Keras, up to 2.3.1
    python old_detector.py                            tf.keras; with --graph in a TensorFlow 1 graph
    python old_detector.py --home tf_keras            on the newest TensorFlow
    python old_detector.py --pictures docs            writes curves and detections there

This example needs a Keras before Keras 3, or tf_keras; for --pictures matplotlib, too.
"""

import collections
import os
import tempfile

import numpy as np
import tensorflow as tf
from _common import check_needs, distance, keras_of, parser, print_ending, print_title

import legacyga  # <--

SIDE, CELLS = 64, 8  # pixels of a picture, cells of the detector's grid
STRIDE = SIDE // CELLS
ANCHOR = 18.0  # pixels: the size of a box from which the network tells the logarithm of its own
CLASSES = "circle", "square", "triangle"
MOMENTUM, CLIP = 0.9, 20.0
RATES = 0.003, 0.004  # of the heads alone, of all layers


# ------------------------------------------------------------------------------------------------------------ pictures


def draw(random, most):
    """A noisy picture with 1 to `most` shapes in it, and a row for each: class, left, top, right, bottom."""
    picture = random.normal(random.uniform(-0.4, 0.4, 3), 0.15, (SIDE, SIDE, 3))
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    shapes = []
    for kind in random.randint(len(CLASSES), size=random.randint(1, most + 1)):
        width, height = random.uniform(12, 28, 2)
        left, top = random.uniform(0, SIDE - width), random.uniform(0, SIDE - height)
        box = np.array([left, top, left + width, top + height])
        if shapes and overlaps(box, np.array(shapes)[:, 1:]).max() > 0.05:
            continue
        across, down = (x - left) / width - 0.5, (y - top) / height - 0.5  # -0.5 to 0.5 in the box
        inside = [
            across**2 + down**2 < 0.25,
            np.maximum(abs(across), abs(down)) < 0.5,
            (abs(across) < (down + 0.5) / 2) & (down < 0.5),
        ][kind]
        picture[inside] += random.choice([-1, 1]) * random.uniform(0.3, 1.0, 3)
        shapes.append(np.concatenate([[kind], box]))
    return picture, np.array(shapes)


def draw_many(seed, number, most=3):
    random = np.random.RandomState(seed)
    drawn = [draw(random, most) for _ in range(number)]
    return np.array([picture for picture, _ in drawn]), [shapes for _, shapes in drawn]


def encode(shapes):
    """What the network is to say of a picture: in each cell 1 where a shape has its centre, where in the cell that is,
    the logarithms of width and height, and the class.
    """
    grid = np.zeros((CELLS, CELLS, 5 + len(CLASSES)))
    for kind, left, top, right, bottom in shapes:
        x, y = (left + right) / 2 / STRIDE, (top + bottom) / 2 / STRIDE
        cell = grid[int(y), int(x)]
        cell[:5] = 1, x % 1, y % 1, np.log((right - left) / ANCHOR), np.log((bottom - top) / ANCHOR)
        cell[5 + int(kind)] = 1
    return grid


def mirror(picture, shapes):
    mirrored = shapes.copy()
    mirrored[:, 1], mirrored[:, 3] = SIDE - shapes[:, 3], SIDE - shapes[:, 1]
    return picture[:, ::-1], mirrored


def batches(pictures, truths, size, epoch, dtype, backwards=False):
    """Endless batches, from those of `epoch` on. Each epoch has its order, and mirrors another half of the pictures.
    Those of a batch can come backwards.
    """
    while True:
        random = np.random.RandomState(epoch)
        order, mirrored = random.permutation(len(pictures)), random.rand(len(pictures)) < 0.5
        for start in range(0, len(pictures), size):
            chosen = [(pictures[i], truths[i]) for i in order[start : start + size]]
            chosen = [mirror(*one) if turn else one for one, turn in zip(chosen, mirrored[start : start + size])]
            chosen = chosen[:: -1 if backwards else 1]
            yield np.array([x for x, _ in chosen], dtype), np.array([encode(shapes) for _, shapes in chosen], dtype)
        epoch += 1


# ------------------------------------------------------------------------------------------------------------- network


def backbone(keras, picture, frozen):
    """64 by 64 pixels to 8 by 8 cells. Frozen batch normalization looks at no batch: docs/batch_normalization.md."""
    x, layers = picture, keras.layers
    for number, (filters, stride) in enumerate([(16, 2), (32, 2), (48, 2), (48, 1)]):
        convolution = layers.Conv2D(filters, (3, 3), strides=stride, padding="same", name="backbone{}".format(number))
        if frozen:
            x = layers.BatchNormalization(trainable=False, name="bn{}".format(number))(convolution(x), training=False)
        else:
            x = layers.BatchNormalization(momentum=0.9, name="bn{}".format(number))(convolution(x))
        x = layers.ELU()(x)
    return x


def build_detector(keras):
    layers = keras.layers
    picture = layers.Input(shape=(SIDE, SIDE, 3))
    x = layers.Conv2D(48, (3, 3), padding="same", name="head0")(backbone(keras, picture, frozen=True))
    cells = layers.Conv2D(5 + len(CLASSES), (1, 1), name="head1")(layers.ELU()(x))
    return start(keras.models.Model(picture, cells))


def build_classifier(keras):
    layers = keras.layers
    picture = layers.Input(shape=(SIDE, SIDE, 3))
    x = layers.GlobalAveragePooling2D()(backbone(keras, picture, frozen=False))
    return start(keras.models.Model(picture, layers.Dense(len(CLASSES), activation="softmax", name="classes")(x)))


def start(model):
    """The same random weights in every process."""
    random = np.random.RandomState(1)
    for layer in model.layers:
        # In a convolution's or a dense layer's kernel the last axis is what comes out.
        layer.set_weights(
            [random.randn(*w.shape) * np.prod(w.shape[:-1]) ** -0.5 if w.ndim > 1 else w for w in layer.get_weights()]
        )
    return model


def detection_loss(truth, predicted):
    """A picture's loss: is there a shape in the cell; and where there is one, its place, its size and its class.

    It is a sum over a picture's cells, and so the loss of a batch is the mean of its pictures'. What is divided by the
    number of shapes in the batch, as some detectors do, is no such mean: K batches are not the large one then.
    """
    there = truth[..., 0]
    objectness = tf.nn.sigmoid_cross_entropy_with_logits(labels=there, logits=predicted[..., 0])
    places = tf.reduce_sum(tf.square(truth[..., 1:3] - tf.sigmoid(predicted[..., 1:3])), -1)
    sizes = tf.reduce_sum(tf.square(truth[..., 3:5] - predicted[..., 3:5]), -1)
    classes = -tf.reduce_sum(truth[..., 5:] * tf.nn.log_softmax(predicted[..., 5:]), -1)
    return tf.reduce_sum(objectness + there * (5.0 * (places + sizes) + classes), [1, 2])


# ---------------------------------------------------------------------------------------------------------- detections


def overlaps(box, boxes):
    """Of a box with each of others: intersection over union."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    both = np.prod(np.maximum(sides, 0), axis=1)
    return both / (np.prod(box[2:] - box[:2]) + np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) - both)


def suppress(boxes, scores, overlap=0.45):
    """Non-maximum suppression. Returns: the indices of those that stay, the best first."""
    order, kept = list(np.argsort(-scores, kind="mergesort")), []
    while order:
        kept.append(order.pop(0))
        if order:
            same = overlaps(boxes[kept[-1]], boxes[order]) > overlap
            order = [each for each, is_same in zip(order, same) if not is_same]
    return kept


def decode(cells, least=0.05):
    """What the network says of a picture, as rows of class, score, left, top, right, bottom. Each class is suppressed
    by itself.
    """
    cells = np.asarray(cells, "float64")
    rows, columns = np.mgrid[:CELLS, :CELLS]
    there, across, down = 1 / (1 + np.exp(-np.moveaxis(cells[..., :3], -1, 0)))
    x, y = (columns + across) * STRIDE, (rows + down) * STRIDE
    width, height = np.moveaxis(ANCHOR * np.exp(np.minimum(cells[..., 3:5], 3)), -1, 0)
    boxes = np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=-1).reshape(-1, 4)
    classes = np.exp(cells[..., 5:] - cells[..., 5:].max(-1, keepdims=True))
    scores = (there[..., None] * classes / classes.sum(-1, keepdims=True)).reshape(-1, len(CLASSES))
    found = []
    for kind in range(len(CLASSES)):
        likely = np.flatnonzero(scores[:, kind] >= least)
        for i in likely[suppress(boxes[likely], scores[likely, kind])]:
            found.append(np.concatenate([[kind, scores[i, kind]], boxes[i]]))
    return np.array(found).reshape(-1, 6)


def average_precision(found, truths, overlap):
    """Of one class. found: a picture's rows of score, left, top, right, bottom; truths: of left, top, right, bottom."""
    ranked = sorted(
        ((row[0], number, row[1:]) for number, rows in enumerate(found) for row in rows), key=lambda one: -one[0]
    )
    open_boxes, hits = [list(boxes) for boxes in truths], []
    for _, number, box in ranked:
        boxes = open_boxes[number]
        each = overlaps(box, np.array(boxes)) if boxes else np.zeros(1)
        hits.append(each.max() >= overlap)
        if hits[-1]:
            boxes.pop(int(each.argmax()))  # each shape is found once
    right = np.cumsum(hits)
    recall, precision = right / float(sum(map(len, truths))), right / (1.0 + np.arange(len(hits)))
    # The area under the curve, at each recall with the best precision of that recall or more.
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(np.concatenate([[0.0], recall])) * best))


def mean_average_precision(found, truths, overlap=0.5):
    """Over the classes that there are. found: for each picture what `decode` returns; truths: what `draw` does."""
    return np.mean(
        [
            average_precision(
                [rows[rows[:, 0] == kind][:, 1:] for rows in found],
                [rows[rows[:, 0] == kind][:, 1:] for rows in truths],
                overlap,
            )
            for kind in sorted(set(np.concatenate(truths)[:, 0]))
        ]
    )


# ------------------------------------------------------------------------------------------------------------ training


def train_backbone(keras, path, images, epochs):
    """Train the backbone as a classifier of pictures with one shape, and save it."""
    pictures, truths = draw_many(1, images, most=1)
    classes = np.eye(len(CLASSES))[[int(shapes[0, 0]) for shapes in truths]]
    model = build_classifier(keras)
    optimizer = legacyga.MySGD(lr=0.05, momentum=MOMENTUM, steps_per_update=1, keras=keras)
    model.compile(optimizer=optimizer, loss="categorical_crossentropy")
    model.fit(pictures, classes, batch_size=32, epochs=epochs, shuffle=False, verbose=0)
    model.save(path)


def train(keras, args, folder, batch_size, steps, resume=0, backwards=False):
    """Train the detector in two stages.

    Args:
        folder: where `backbone.h5` is, and where checkpoints and the log are written.
        batch_size, steps: of a batch, and the batches of one update.
        resume: the epochs that are done. Their checkpoint is in the folder.
        backwards: whether the pictures of each batch come in the opposite order, which changes nothing but rounding.

    Returns: the model, and what is known of it: its weights after each epoch, its losses and mAP, its updates.
    """
    (pictures, truths), (test_pictures, test_truths) = draw_many(2, args.images), draw_many(3, args.images // 4)
    dtype = keras.backend.floatx()
    test = np.array(test_pictures, dtype), np.array([encode(shapes) for shapes in test_truths], dtype)
    checkpoint = os.path.join(folder, "detector_{epoch:02d}.h5")

    if resume:
        model = legacyga.load_model(
            checkpoint.format(epoch=resume), keras=keras, custom_objects={"detection_loss": detection_loss}
        )
    else:
        model = build_detector(keras)
        model.load_weights(os.path.join(folder, "backbone.h5"), by_name=True)
    seen = {"weights": [weights_of(model)], "loss": [], "mAP": [], "updates": 0}

    def look(epoch, logs):
        logs["mAP"] = mean_average_precision(
            [decode(cells) for cells in model.predict(test[0], verbose=0)], test_truths
        )
        seen["mAP"].append(logs["mAP"])
        # Not `val_loss`: tf.keras 1.15 takes the mean of batches, of unequal sizes, as large as those of the training.
        seen["loss"].append(model.evaluate(test[0], test[1], batch_size=32, verbose=0))
        seen["weights"].append(weights_of(model))

    def stage(first, last, rate):
        """The epochs from `first` to `last`, or what is left of them."""
        if first >= resume:
            for layer in model.layers:
                layer.trainable = layer.name.startswith("head") or (first > 0 and not layer.name.startswith("bn"))
            model.compile(
                optimizer=legacyga.MySGD(  # <--
                    lr=rate, momentum=MOMENTUM, clipnorm=CLIP, steps_per_update=steps, keras=keras
                ),
                loss=detection_loss,
            )
        if last > resume:
            begin = max(first, resume)
            # Keras has had fit for generators as well since TF 2.1, and no other since Keras 3.
            getattr(model, "fit_generator", model.fit)(
                batches(pictures, truths, batch_size, begin, dtype, backwards),
                steps_per_epoch=len(pictures) // batch_size,
                initial_epoch=begin,
                epochs=last,
                validation_data=test,
                verbose=0,
                callbacks=[
                    keras.callbacks.LearningRateScheduler(lambda epoch: rate * 0.85 ** (epoch - first)),
                    keras.callbacks.LambdaCallback(on_epoch_end=look),
                    keras.callbacks.CSVLogger(os.path.join(folder, "log.csv"), append=begin > 0),
                    keras.callbacks.ModelCheckpoint(checkpoint),
                    keras.callbacks.TerminateOnNaN(),
                ],
            )
            seen["updates"] += updates_of(keras, model)

    stage(0, args.heads, RATES[0])
    stage(args.heads, args.epochs, RATES[1])
    return model, seen


def weights_of(model):
    """In the order of the layers, which `trainable` does not change."""
    return [weight for layer in model.layers for weight in layer.get_weights()]


def updates_of(keras, model):
    count = model.optimizer.iterations
    return int(keras.backend.get_value(count) if hasattr(keras.backend, "get_value") else count.numpy())


# ---------------------------------------------------------------------------------------------------------- comparison


def compare(keras, args, folder):
    """Train in all ways, and print a row of each.

    Returns: what is known of each, by its name; test pictures, with what is in them and what the detector of the small
    batches with K found.
    """
    large, small, K = args.batch_size * args.steps, args.batch_size, args.steps
    results = collections.OrderedDict()
    row = "{:<20}  {:>7}  {:>5}  {:>5}  {:>11}  {:>7}  {:>7}".format
    print(row("", "updates", "loss", "mAP", "first epoch", "heads", "all"))

    def run(name, *how, **options):
        keras.backend.clear_session()
        model, seen = train(keras, args, folder, *how, **options)
        wanted = results.setdefault("batches of {}".format(large), seen)["weights"]
        seen["distances"] = [distance(seen["weights"][n], wanted[n], wanted[0]) for n in (1, args.heads, args.epochs)]
        results[name] = seen
        told = ["{:.2f}".format(seen["loss"][-1]), "{:.3f}".format(seen["mAP"][-1])]
        print(row(name, seen["updates"], *told + ["{:.1e}".format(each) for each in seen["distances"]]), flush=True)
        return model

    run("batches of {}".format(large), large, 1)
    run("  in another order", large, 1, backwards=True)
    model = run("batches of {}, K = {}".format(small, K), small, K)
    pictures, truths = draw_many(4, 8)
    detections = list(zip(pictures, truths, [decode(cells, least=0.4) for cells in model.predict(pictures, verbose=0)]))

    keras.backend.clear_session()
    half = (args.heads + args.epochs) // 2  # of the second stage
    resumed, ended = train(keras, args, folder, small, K, resume=half)[1], list(results.values())[-1]
    off = max(np.abs(one - other).max() for one, other in zip(resumed["weights"][-1], ended["weights"][-1]))

    run("batches of {}".format(small), small, 1)
    print("K = {}, resumed after epoch {}: no weight differs by more than {:.1e}".format(K, half, off))
    return results, detections


def draw_curves(results, args, path):
    """The loss and the mAP on the test pictures after each epoch, by the updates made until then."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4))
    FigureCanvasAgg(figure)  # needs no display
    for number, (name, title) in enumerate([("loss", "loss on the test pictures"), ("mAP", "mean average precision")]):
        axes = figure.add_subplot(1, 2, number + 1)
        for way, seen in results.items():
            if way.startswith(" "):
                continue
            epochs = range(1, len(seen[name]) + 1)
            line = dict(linewidth=6, alpha=0.35) if way == list(results)[0] else dict(marker="o", markersize=3)
            updates = [seen["updates"] // len(epochs) * epoch for epoch in epochs]
            axes.plot(updates, seen[name], label="{} ({} updates)".format(way, seen["updates"]), **line)
        axes.set_xscale("log")
        ends = sorted({updates for line in axes.lines for updates in (line.get_xdata()[0], line.get_xdata()[-1])})
        axes.set_xticks([], minor=True)
        axes.set_xticks(ends)
        axes.set_xticklabels(ends)
        axes.set_xlabel("updates (logarithmic), a mark each epoch")
        axes.set_ylabel(title)
    lines = figure.axes[0].lines
    figure.legend(lines, [line.get_label() for line in lines], loc="lower center", ncol=3, fontsize=9)
    told = "K = {1} over batches of {0} is the batch of {2}: the curves lie on each other. "
    told += "Batches of {0} alone make {1} times as many updates."
    figure.suptitle(told.format(args.batch_size, args.steps, args.batch_size * args.steps), fontsize=10)
    figure.tight_layout(rect=(0, 0.08, 1, 0.94))
    figure.savefig(path, dpi=80)


def draw_detections(detections, args, path):
    """Test pictures, with a white frame around what is there, and a coloured one around what was found."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.3))
    FigureCanvasAgg(figure)
    for number, (picture, shapes, found) in enumerate(detections):
        axes = figure.add_subplot(2, len(detections) // 2, number + 1)
        colors = np.round(8 * np.clip(0.5 + picture / 3, 0, 1)) / 8  # few, so that the file is small
        axes.imshow(colors, extent=(0, SIDE, SIDE, 0), interpolation="nearest")
        for left, top, right, bottom in shapes[:, 1:]:
            axes.plot([left, right, right, left, left], [top, top, bottom, bottom, top], "w:", linewidth=1.5)
        for kind, score, left, top, right, bottom in found:
            color = ("yellow", "cyan", "magenta")[int(kind)]
            axes.plot([left, right, right, left, left], [top, top, bottom, bottom, top], color=color, linewidth=1.5)
            told = "{} {:.2f}".format(CLASSES[int(kind)], score)
            axes.text(max(left, 0), max(top - 1, 5), told, color=color, fontsize=7, weight="bold")
        axes.set_xlim(0, SIDE)
        axes.set_ylim(SIDE, 0)
        axes.axis("off")
    told = "Test pictures, after batches of {} with K = {}. "
    told += "Dotted: what is there. In colour: what was found, and how surely."
    figure.suptitle(told.format(args.batch_size, args.steps), fontsize=10)
    figure.subplots_adjust(0.005, 0.005, 0.995, 0.93, 0.02, 0.02)
    figure.savefig(path, dpi=80)


def read_arguments():
    arguments = parser(__doc__, epochs=12, images=480, graph=True)
    arguments.add_argument("--batch-size", type=int, default=2, help="the images that fit (default: %(default)s)")
    arguments.add_argument(
        "--steps", type=int, default=8, metavar="K", help="batches of an update (default: %(default)s)"
    )
    arguments.add_argument("--float64", action="store_true", help="train in double precision")
    arguments.add_argument("--pictures", metavar="DIR", help="the folder to write curves and detections to")
    arguments.add_argument("--quick", action="store_true", help="3 epochs of 96 images, which learn little")
    args = arguments.parse_args()
    if args.quick:
        args.epochs, args.images = 3, 96
    args.heads = -(-args.epochs // 4)  # the epochs of the first stage
    large = args.batch_size * args.steps
    if args.epochs < 3 or args.images % large:
        arguments.error("it takes 3 epochs or more, and images that are whole batches of {}".format(large))
    return args


def main():
    args = read_arguments()
    check_needs(__doc__, args.home, keras_3=False, packages=["matplotlib"] if args.pictures else [])
    keras = keras_of(args.home, args.graph)
    if args.float64:
        if tf.__version__ < "2":
            raise SystemExit("Batch normalization takes float64 from TensorFlow 2 on. Received: " + tf.__version__)
        keras.backend.set_floatx("float64")
    print_title(args.home, images=args.images, epochs=args.epochs)
    with tempfile.TemporaryDirectory() as folder:
        train_backbone(keras, os.path.join(folder, "backbone.h5"), args.images, args.epochs)
        results, detections = compare(keras, args, folder)
    if args.pictures:
        draw_curves(results, args, os.path.join(args.pictures, "old_detector_curves.png"))
        draw_detections(detections, args, os.path.join(args.pictures, "old_detector_detections.png"))
    endings = [(name.strip(), seen["distances"][-1]) for name, seen in list(results.items())[1:]]
    print_ending(*endings)


if __name__ == "__main__":
    main()
