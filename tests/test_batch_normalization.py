"""What docs/batch_normalization.md says: how to freeze the layer, how its moving averages move, and its figures."""

import importlib.util
import os
import re

import numpy as np
import oracle
import pytest
import skips
import test_examples
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("demo and examples")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
K, N = 4, 3  # mini-steps of a window, samples of a micro-batch
WINDOWS = 6


def batches(windows=WINDOWS):
    random = np.random.RandomState(0)
    x = (2 * random.standard_normal((windows * K * N, 3)) + 1).astype("float32")
    return x, np.tanh(x[:, :1] * x[:, 1:2])


def batch_normalization(home, momentum=0.99, way="live"):
    """A model that normalizes its inputs, multiplies and adds, and the layer that normalizes, frozen in a `way`."""
    layers = home.keras.layers
    inputs = layers.Input(shape=(3,))
    layer = layers.BatchNormalization(momentum=momentum, trainable=way not in ("both", "trainable=False"))
    normal = layer(inputs, training=False) if way in ("both", "training=False") else layer(inputs)
    model = home.keras.models.Model(inputs, layers.Dense(1)(normal))
    if way == "trainable=False later":
        layer.trainable = False
    return model, layer


def fit(home, model, steps, size, data):
    """Train `model` on `data` in batches of `size`; its weights at the end."""
    optimizer = legacyga.MySGD(lr=0.05, momentum=0.9, steps_per_update=steps, keras=home.keras)
    model.compile(loss="mse", optimizer=optimizer)
    x, y = data
    for i in range(0, len(x), size):
        model.train_on_batch(x[i : i + size], y[i : i + size])
    return model.get_weights()


@pytest.mark.parametrize("way", ["both", "trainable=False", "trainable=False later", "training=False", "live"])
@pytest.mark.long
def test_statistics_are_frozen_and_accumulation_is_exact(home, way):
    """The page's table: what freezes the layer in which Keras, and that accumulation is exact where it does."""
    averages_move = (
        way == "live"
        or way == "training=False"
        and home.is_keras3
        or "trainable=False" in way
        and home.is_standalone_before(2, 1)
    )
    uses_batch = (
        averages_move
        or way == "trainable=False"
        and home.tf_version < (2,)
        or way == "trainable=False later"
        and home.mode == "graph"
    )
    home.reset()
    start = [np.ones(3), np.zeros(3), np.full(3, 0.8), np.full(3, 3.5)]  # gamma, beta, moving mean and variance
    start = [value.astype("float32") for value in start]
    ends = []
    for steps, size in ((1, K * N), (K, N)):
        model, layer = batch_normalization(home, way=way)
        layer.set_weights(start)
        model.layers[-1].set_weights([np.array([[0.5], [-0.3], [0.2]], "float32"), np.zeros(1, "float32")])
        begin = model.get_weights()
        ends.append(fit(home, model, steps, size, batches()))
        gamma, beta, mean, variance = layer.get_weights()
        assert averages_move != (np.array_equal(mean, start[2]) and np.array_equal(variance, start[3]))
        assert ("trainable=False" in way or way == "both") == np.array_equal(gamma, start[0])
    moved = oracle.farthest(ends[0], begin)
    off = oracle.farthest(*ends)
    assert moved > 0.05
    assert off > 0.01 * moved if uses_batch else off < 4e-6 * moved


@pytest.mark.parametrize("momentum", [slow(0.9), 0.9 ** (1.0 / K)])
def test_moving_averages_move_once_a_mini_step(home, momentum):
    """The page's formula: K times an update, each time with the statistics of n samples, not of K * n."""
    home.reset()
    model, layer = batch_normalization(home, momentum)
    x, y = batches(windows=2)
    fit(home, model, K, N, (x, y))
    # Keras 2.0 does as tf.keras.
    standalone = home.name == "keras" and home.mode == "graph" and not home.is_standalone_before(2, 1)
    # Standalone Keras corrects the variance, with an epsilon of its own in it; the others take it as it is.
    correction = N / (N - (1 + layer.epsilon)) if standalone else 1.0
    # Before 2.3 it has no start in its averages either: they begin at zero and are divided by what has come in.
    no_start = standalone and home.version < "2.3"
    mean, variance, start_left = np.zeros(3), np.zeros(3) if no_start else np.ones(3), 1.0
    for micro_batch in x.astype("float64").reshape(-1, N, 3):
        mean = momentum * mean + (1 - momentum) * micro_batch.mean(axis=0)
        variance = momentum * variance + (1 - momentum) * correction * micro_batch.var(axis=0)
        start_left *= momentum
    if no_start:
        mean, variance = mean / (1 - start_left), variance / (1 - start_left)
    found_mean, found_variance = layer.get_weights()[2:]
    assert np.abs(found_mean - mean).max() < 2e-6
    assert np.abs(found_variance - variance).max() < 1e-5


def needs_eager(home):
    if home.mode == "graph":
        skips.senseless("benchmarks/batch_normalization.py needs eager mode")


def tables(text):
    """The Markdown tables in `text`: lists of rows, the head first, of cells."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in block.splitlines()]
        found.append([row for row in rows if set("".join(row)) != {"-"}])
    return found


@pytest.mark.slow
def test_the_program(home):
    """At a small size it finds what the page says of it, and its tables have the form of the page's."""
    needs_eager(home)
    if (home.name, home.tf_version) != ("tf.keras", (2, 10)):
        skips.elsewhere("the program is tested with tf.keras 2.10")
    program = os.path.join(os.pardir, "benchmarks", "batch_normalization.py")
    sizes = ["--seeds", "2", "--epochs", "1", "--micro-batches", "8"]
    printed = test_examples.run_alone(program, "--home", home.name, *sizes)
    found = tables(printed)
    assert len(found) == 5, printed
    kept, gradients, averages, trainings, momenta = found

    gradients = dict(gradients)
    trainings_of = {row[0]: row for row in trainings}
    assert set(gradients) == set(trainings_of) and len(gradients) == 5, printed
    for normalization in ("none", "BatchNorm, frozen", "GroupNorm"):
        assert gradients[normalization] == "< 1e-05", printed
        off, other_order, loss, accumulated_loss, accuracy, accumulated_accuracy = trainings_of[normalization][2:]
        assert off == "< 1e-05" and float(other_order) > 0.01, printed
        assert (loss, accuracy) == (accumulated_loss, accumulated_accuracy), printed
    assert float(gradients["BatchNorm"]) > 0.1 and float(trainings_of["BatchNorm"][2]) > 0.05, printed

    # (n - 1) / n of the variance where each sample has one value, whatever the momentum.
    assert [row[:2] for row in averages[1:]] == [["64", "0.9"], ["8 x 8", "0.9"], ["8 x 8", "0.9^(1/8)"]]
    for row, expected in zip(averages[1:], (63 / 64.0, 7 / 8.0, 7 / 8.0)):
        assert abs(float(row[4]) - expected) < 0.03, printed
    assert float(averages[2][2]) > 2 * float(averages[3][2]), printed
    assert len(momenta) == 7
    ending = "The trained weights are the same bits with each momentum: yes.\n"
    assert printed.endswith(ending)

    with open(os.path.join(ROOT, "docs", "batch_normalization.md"), encoding="utf-8") as file:
        page = file.read()
    in_page = tables(page)
    assert kept in in_page
    for table in (averages, trainings, momenta):
        assert table[0] in [each[0] for each in in_page], table[0]


def test_the_program_s_group_normalization_is_the_home_s(home):
    needs_eager(home)
    if not hasattr(home.keras.layers, "GroupNormalization"):
        skips.keras_lacks("layers.GroupNormalization is not there in that version")
    spec = importlib.util.spec_from_file_location(
        "benchmark", os.path.join(ROOT, "benchmarks", "batch_normalization.py")
    )
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    random = np.random.RandomState(0)
    for shape in ((5, 4, 3, 8), (5, 8)):
        x = (3 * random.standard_normal(shape) + 1).astype("float32")
        ours = benchmark.group_normalization(home.keras)(groups=4)
        theirs = home.keras.layers.GroupNormalization(groups=4, epsilon=1e-3)
        ours(x), theirs(x)
        scales = [random.standard_normal(8).astype("float32") for _ in range(2)]
        ours.set_weights(scales)
        theirs.set_weights(scales)
        assert np.abs(np.asarray(ours(x)) - np.asarray(theirs(x))).max() < 1e-5
