"""The examples run, and print what they promise."""

import argparse
import ast
import contextlib
import importlib
import importlib.util
import io
import os
import re
import runpy
import subprocess
import sys

import homes
import numpy as np
import oracle
import pytest
import skips
from conftest import TWO

import legacyga

pytestmark = [pytest.mark.capability("demo and examples"), pytest.mark.long(only=TWO)]
# What stands for an old project.
OLD = pytest.mark.long(only=[("keras", "graph", "1.13")])


ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NUMBER = r"([-+.\w]+)"  # also inf and nan
ROW = re.compile(r"^ +(\d\.\d)  (\S.*?)  +([.X]+) +(\d+) +{0} +(\d+) of (\d+)$".format(NUMBER), re.MULTILINE)
ENDING = re.compile(r"^momentum (\d\.\d): weights move by up to {0}; off by: (.+)$".format(NUMBER), re.MULTILINE)


EXAMPLES = os.path.join(ROOT, "examples")


def run(home, name, *arguments):
    """What the example `name` prints, run in this process, which has the home and the mode that it asks for.

    In one of its own most of the time would be TensorFlow's import. The demo's tests run programs as a user does.
    """
    printed, argv, path = io.StringIO(), sys.argv, list(sys.path)
    home.reset()
    sys.argv, sys.path[:0] = [name] + list(arguments), [EXAMPLES]
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(os.path.join(EXAMPLES, name), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path
        home.reset()
    return printed.getvalue()


def run_alone(name, *arguments):
    """The same in a process of its own, with the legacyga of this one."""
    ours = os.path.abspath(legacyga.__file__).startswith(os.path.join(ROOT, "legacyga", ""))
    return homes.run(os.path.join(EXAMPLES, name), arguments, [ROOT] if ours else [])


def graph_run_only(home):
    """Skip where this process cannot run what needs get_updates."""
    if home.mode == "graph":
        return
    if not any(mode == "graph" for _, mode in homes.available()):
        skips.keras_lacks("no Keras with a graph mode is installed, and get_updates needs one")
    skips.elsewhere("tested in another run of this environment")


def distances_of(printed):
    """The last line: the distances to the large batch, by what they are of."""
    told, _, distances = printed.splitlines()[-1].partition(": ")
    assert told == "distance to the large batch, relative to how far that one went", printed
    return {name: float(value) for name, value in (each.rsplit(" ", 1) for each in distances.split("; "))}


def options_for(home):
    return ["--home", home.name] + (["--graph"] if home.mode == "graph" else [])


@OLD
def test_mysgd_vs_snippet(home):
    graph_run_only(home)
    printed = run(home, "mysgd_vs_snippet.py", "--home", home.name, "--runs", "3")

    rows = {(row[0], row[1]): row[2:] for row in ROW.findall(printed)}
    endings = {ending[0]: ending[1:] for ending in ENDING.findall(printed)}
    assert len(rows) == 6 and sorted(endings) == ["0.0", "0.9"], printed
    for momentum, (way, distances) in endings.items():
        way = float(way)
        assert way > 0.05, printed  # else a small distance would say nothing

        moved, iterations, distance, results, runs = rows[momentum, "legacyga.MySGD"]
        assert (moved, iterations, results, runs) == ("...X" * 6, "6", "1", "3"), printed
        assert float(distance) < 4e-6 * way, printed
        assert distances.endswith("legacyga.MySGD " + distance), printed

        # How many results the snippet gives, and how far it goes (to NaN, where nothing moves), is chance. This is not.
        moved, iterations, distance, _, _ = rows[momentum, "snippet"]
        assert moved.startswith("X" * 8) and iterations == "24", printed
        assert not float(distance) < 0.1 * way, printed  # "not", for it can be nan


# The callback


@OLD
def test_old_keras_project(home):
    graph_run_only(home)
    printed = run(home, "old_keras_project.py", "--home", home.name, "--epochs", "2", "--images", "240")
    rows = re.findall(r"^batches of (\d+)(, K = 4)? +(\d+) +(\d\.\d+) *(\S*)$", printed, re.MULTILINE)
    # 240 are 15 batches of 16: 3 windows of 4, and one of 3; 4 epochs.
    assert [row[:3] for row in rows] == [("64", "", "16"), ("16", ", K = 4", "16"), ("16", "", "60")], printed
    assert rows[0][3] == rows[1][3] != rows[2][3], printed
    assert distances_of(printed)["K = 4"] < 4e-6 and float(rows[2][4]) > 1e-2, printed


@pytest.mark.usefixtures("once_in_an_environment")
def test_schedule(home):
    printed = run(home, "schedule.py", *options_for(home) + ["--epochs", "6", "--images", "240"])
    rows = [line.split() for line in printed.splitlines()[2:-1]]
    assert [row[:3] for row in rows] == [
        ["0", "1", "15"],
        ["1", "1", "30"],
        ["2", "2", "38"],
        ["3", "2", "46"],
        ["4", "4", "50"],
        ["5", "4", "54"],
    ], printed
    for row in rows:
        assert float(row[3]) == pytest.approx(float(row[4]), abs=2e-5), printed
    assert float(rows[0][3]) > 1.2 * float(rows[-1][3]), printed
    assert distances_of(printed)["by the callback"] < 4e-6, printed


@pytest.mark.usefixtures("once_in_an_environment")
def test_partial_windows(home, tmp_path):
    out = str(tmp_path / "picture.png")
    # It measures the memory of processes that it starts: two of TensorFlow, not five.
    small = ["--ways", "flush", "--epochs", "2", "--images", "288", "--out", out]
    printed = run_alone("partial_windows.py", *options_for(home) + small)
    rows = re.findall(r"^(\S.*?)  +(\d+)  +(\d\.\d+)  +(\d+\.\d)  +(\d+|-)  +(\S+)$", printed, re.MULTILINE)
    # 288 are 9 batches of 32: 2 windows of 4, and one batch.
    assert [row[:2] for row in rows] == [("batches of 128", "6"), ("K = 4, flush", "6")], printed
    assert rows[0][2] == rows[1][2] and distances_of(printed)["K = 4, flush"] < 4e-6, printed
    assert "picture: " in printed and os.path.getsize(out) > 1000


# The old detector


# The stacks that it is for: an old project's, and the newest TensorFlow.
DETECTOR = pytest.mark.long(only=[("keras", "graph", "1.13"), ("tf_keras", "eager", "2.21")])


@pytest.fixture
def detector(monkeypatch):
    """The example as a module."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("old_detector")


def no_keras3(home):
    if home.is_keras3:
        skips.senseless("a project that was written for Keras 2")


@DETECTOR
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_old_detector(home, dtype, tmp_path):
    no_keras3(home)
    options = options_for(home) + ["--quick", "--pictures", str(tmp_path)]
    if dtype == "float64":
        if home.tf_version < (2,):
            skips.keras_lacks("batch normalization takes no float64")
        options.append("--float64")
    try:
        printed = run(home, "old_detector.py", *options)
    finally:
        home.set_floatx("float32")
    rows = re.findall(r"^ *(\S.*?)  +(\d+)  +(\d+\.\d+)  +(\d\.\d+)  +(\S+)  +(\S+)  +(\S+)$", printed, re.MULTILINE)
    # 96 are 6 batches of 16 and 48 of 2; 3 epochs.
    names = "batches of 16", "in another order", "batches of 2, K = 8", "batches of 2"
    assert [row[:2] for row in rows] == list(zip(names, ("18", "18", "18", "144"))), printed
    assert rows[0][2:4] == rows[1][2:4] == rows[2][2:4] and rows[0][2] != rows[3][2], printed
    exact = 4e-6 if dtype == "float32" else 1e-13
    for row in rows[1:3]:
        assert all(0 < float(off) < exact for off in row[4:]), printed
    assert all(float(off) > 0.1 for off in rows[3][4:]), printed
    # Keras 2.0 numbers its checkpoints from 0: there the example goes on from the end of epoch 3.
    if not home.is_standalone_before(2, 1):
        assert "K = 8, resumed after epoch 2: no weight differs by more than 0.0e+00" in printed.splitlines(), printed
    found = distances_of(printed)
    assert [found[name] for name in names[1:]] == [float(row[6]) for row in rows[1:]], printed
    for name in ("curves", "detections"):
        assert 1000 < os.path.getsize(str(tmp_path / "old_detector_{}.png".format(name))) < 150000


@DETECTOR
def test_old_detector_goes_on_within_a_window(home, detector, tmp_path):
    no_keras3(home)
    if home.is_standalone_before(2, 1):
        skips.keras_lacks("checkpoints that are numbered from 1: Keras 2.1 or newer")
    args = argparse.Namespace(images=24, heads=1, epochs=4)
    detector.train_backbone(home.keras, str(tmp_path / "backbone.h5"), images=32, epochs=1)
    whole, seen = detector.train(home.keras, args, str(tmp_path), 2, 8)
    ended, updates = seen["weights"], seen["updates"]
    # An epoch is 12 batches, a window and a half: one update of the heads; 36 batches of all layers are four.
    assert updates == 5
    home.reset()
    path = str(tmp_path / "detector_02.h5")
    resumed = legacyga.load_model(path, home.keras, custom_objects={"detection_loss": detector.detection_loss})
    assert int(home.value(resumed.optimizer.mini_step)) == 4
    home.reset()
    _, seen = detector.train(home.keras, args, str(tmp_path), 2, 8, resume=2)
    assert len(seen["weights"]) == 3
    for one, other in zip(seen["weights"][-1], ended[-1]):
        np.testing.assert_array_equal(one, other)
    # Not for nothing was moved.
    assert oracle.farthest(ended[2], ended[4]) > 1e-3


@DETECTOR
def test_the_detectors_precision_by_hand(detector):
    a, b, c = [0, 0, 10, 10], [20, 20, 30, 30], [5, 5, 15, 25]
    truths = [np.array([[0] + a, [0] + b, [1] + a], float), np.array([[0] + c], float)]
    found = [
        # The first is right. The second finds the same shape again. The last covers just half of a.
        np.array([[0, 0.9] + a, [0, 0.8, 1, 0, 11, 10], [1, 0.3, 0, 0, 10, 5]], float),
        # Right, in the wrong place, and of a class that is nowhere.
        np.array([[0, 0.7] + c, [0, 0.6, 40, 40, 50, 50], [2, 0.9] + c], float),
    ]
    # Class 0 is right, wrong, right, wrong, of three: a third at precision 1, a third at 2 / 3, and a third is missed.
    assert detector.mean_average_precision(found, truths) == pytest.approx((5 / 9.0 + 1) / 2, abs=1e-15)
    assert detector.mean_average_precision(found, truths, overlap=0.51) == pytest.approx(5 / 9.0 / 2, abs=1e-15)
    assert detector.mean_average_precision([np.zeros((0, 6))] * 2, truths) == 0
    # 10 by 10 and 10 by 20 share 5 by 5.
    np.testing.assert_allclose(detector.overlaps(np.array(a, float), np.array([a, b, c], float)), [1, 0, 25 / 275.0])
    boxes = np.array([a, [0, 0, 10, 9], b, [0, 0, 10, 4]], float)
    assert detector.suppress(boxes, np.array([0.5, 0.9, 0.4, 0.3])) == [1, 2, 3]


@DETECTOR
def test_the_detector_decodes_what_it_encodes(detector):
    pictures, truths = detector.draw_many(5, 20)
    assert sum(map(len, truths)) > 20
    for picture, shapes in list(zip(pictures, truths)) + [detector.mirror(*one) for one in zip(pictures, truths)]:
        cells = detector.encode(shapes)
        # Surer than the network ever is: logits of what it tells as probabilities.
        share = np.clip(cells[..., :3], 1e-9, 1 - 1e-9)
        cells[..., :3], cells[..., 5:] = np.log(share / (1 - share)), 50 * cells[..., 5:]
        found = detector.decode(cells)
        assert np.all(found[:, 1] > 0.99) and picture.shape == (64, 64, 3)
        found = np.delete(found, 1, axis=1)
        order, wanted = np.lexsort(found.T), np.lexsort(shapes.T)
        np.testing.assert_allclose(found[order], shapes[wanted], atol=1e-5)


# Batches in slices


@pytest.mark.usefixtures("once_in_an_environment")
def test_keep_batch_size(home):
    if home.mode == "eager" and home.tf_version < (2, 2):
        skips.we_lack("micro_batch in eager mode needs TF 2.2 or newer")
    # It measures the memory of processes that it starts.
    printed = run_alone("keep_batch_size.py", *options_for(home) + ["--epochs", "2", "--images", "480"])
    rows = re.findall(r"^(\S.*?)  +(\d+)  +(\d\.\d+)  +(\d+|-)  +(\S+)$", printed, re.MULTILINE)
    # 480 are 3 batches of at most 192; 4 epochs.
    assert [row[:2] for row in rows] == [("batches of 192", "12"), ("in slices of 8", "12")], printed
    assert rows[0][2] == rows[1][2] and distances_of(printed)["in slices of 8"] < 4e-6, printed


def test_contrastive(home, tmp_path):
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.senseless("eager mode from TF 2.2 on")
    picture = str(tmp_path / "picture.png")
    printed = run(home, "contrastive.py", "--home", home.name, "--epochs", "10", "--picture", picture)
    rows = re.findall(r"^(\S.*?)  +(\d+)  +(\d\.\d+)  +(\S+)  +(\S+)$", printed, re.MULTILINE)
    # 1024 pairs are 2 batches of 512, and 32 of 32; 10 epochs.
    names = "batches of 512", "in slices of 32", "batches of 32, K = 16", "batches of 32"
    assert [row[:2] for row in rows] == list(zip(names, ("20", "20", "20", "320"))), printed
    found = distances_of(printed)
    assert found["in slices of 32"] < 4e-6 and found["batches of 32, K = 16"] > 0.1, printed
    # A guess is right once in 773 times. 31 negatives teach less than 511.
    accuracies = [float(row[2]) for row in rows]
    assert accuracies[0] == accuracies[1] > accuracies[2] > 0.1, printed
    assert os.path.getsize(picture) > 1000


# Loops of one's own


def arguments(home):
    if home.mode != "eager":
        skips.senseless("graph mode: the loops of these examples are eager TensorFlow 2")
    return ["--small", "--home", home.name]


def test_custom_loop(home):
    printed = run(home, "custom_loop.py", *arguments(home))
    distances = distances_of(printed)
    assert distances["with weights"] <= 4e-6 and distances["without"] > 1e-3, printed
    # 450 samples in batches of 96, twice over.
    assert re.findall(r"^\S.*  +(\d+)  +\d\.\d+  +\d\.\d+ ", printed, re.MULTILINE) == ["10"] * 3, printed


def test_embeddings(home):
    printed = run(home, "embeddings.py", *arguments(home))
    assert distances_of(printed)["K = 4"] <= 4e-6, printed
    rows = re.findall(r"  (\d+) of (\d+)  +([.\d]+) ", printed)
    # The same rows, a fraction of all; and a guess is right once in 16 times.
    assert len(rows) == 2 and rows[0] == rows[1], printed
    assert 0 < int(rows[0][0]) < int(rows[0][1]) / 2 and float(rows[0][2]) > 0.2, printed


def test_distributed(home):
    arguments(home)
    # In a process of its own, for its devices are of the CPU's whole life.
    printed = run_alone("distributed.py", "--home", home.name if home.name == "tf_keras" else "tf.keras", "--small")
    found = distances_of(printed)
    assert found["two replicas"] <= 4e-6 and found["stopped"] <= 4e-6, printed
    assert re.findall(r"^\S.*  +(\d+)  +\d\.\d+  +\d\.\d+ ", printed, re.MULTILINE) == ["8"] * 3, printed


# What they need


def needs_of(name):
    """The paragraph of an example's docstring that says what it needs, in one line."""
    with open(os.path.join(EXAMPLES, name), encoding="utf-8") as file:
        text = ast.get_docstring(ast.parse(file.read()))
    (found,) = [each for each in text.split("\n\n") if "needs" in each and each.startswith("This example ")]
    return " ".join(found.split())


def refuses(home, name, received, *arguments):
    """That an example ends at once with what its docstring says that it needs, and what is here."""
    with pytest.raises(SystemExit) as error:
        run(home, name, *arguments)
    assert str(error.value) == "{} Received: {}.".format(needs_of(name), received)


# {example: what makes it use scikit-learn or matplotlib in this process, and which of them}
PACKAGES = {
    "contrastive.py": ([], "scikit-learn"),
    "custom_loop.py": ([], "scikit-learn"),
    "distributed.py": ([], "scikit-learn"),
    "fit_train_step.py": ([], "scikit-learn"),
    "keep_batch_size.py": (["--way", "whole"], "scikit-learn"),
    "mysgd_vs_snippet.py": ([], "scikit-learn"),
    "old_detector.py": (["--pictures", "."], "matplotlib"),
    "old_keras_project.py": ([], "scikit-learn"),
    "partial_windows.py": (["--way", "large"], "scikit-learn"),
    "schedule.py": ([], "scikit-learn"),
}


def test_every_example_says_what_it_needs():
    names = [name for name in os.listdir(EXAMPLES) if name.endswith(".py") and not name.startswith("_")]
    assert sorted(names) == sorted(list(PACKAGES) + ["embeddings.py"])
    assert all(needs_of(name).startswith("This example needs ") for name in names)


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_without_a_package(home, name, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("sklearn", "matplotlib") else find(name)
    )
    arguments, package = PACKAGES[name]
    if name in ("contrastive.py", "custom_loop.py", "distributed.py") and home.mode == "graph":
        package += " and TensorFlow {} in graph mode".format(home.tf.__version__)
    graph = ["--graph"] if home.mode == "graph" and name == "fit_train_step.py" else []
    refuses(home, name, "no " + package, "--home", home.name, *(arguments + graph))


@pytest.mark.parametrize(
    "name", ["contrastive.py", "custom_loop.py", "distributed.py", "embeddings.py", "fit_train_step.py"]
)
def test_on_tensorflow_1(home, name):
    if home.mode == "eager":
        skips.senseless("graph mode only")
    refuses(home, name, "TensorFlow {} in graph mode".format(home.tf.__version__), "--home", home.name)


@pytest.mark.parametrize("name", ["mysgd_vs_snippet.py", "old_detector.py", "old_keras_project.py"])
def test_on_keras_3(home, name):
    if not home.is_keras3:
        skips.senseless("Keras 3 only")
    refuses(home, name, "Keras " + home.keras.__version__, "--home", home.name)


@pytest.mark.usefixtures("once_in_an_environment")
def test_the_process_of_one_way_ends_the_example(home, tmp_path):
    """Its own text is the last that is printed, and no traceback."""
    home_that_is_not = "keras" if importlib.util.find_spec("keras") is None else "tf_keras"
    if importlib.util.find_spec(home_that_is_not):
        skips.senseless("every Keras is here")
    for name in ("partial_windows.py", "keep_batch_size.py"):
        command = [sys.executable, os.path.join(EXAMPLES, name), "--home", home_that_is_not]
        environ = dict(os.environ, PYTHONPATH=ROOT)
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=str(tmp_path))
        told = done.stderr.decode().strip()
        assert done.returncode == 1 and "Traceback" not in told
        assert told.endswith("{} Received: no {}.".format(needs_of(name), home_that_is_not)), told


# train_step


TRAIN_STEP_ROW = re.compile(
    r"^(each|last) +(no weights|no callback|the callback|train_step) +(\d+) +(\d\.\d+) +(\S+)$", re.MULTILINE
)


def test_fit_train_step(home):
    options = ["--graph"] if home.mode == "graph" else []
    if home.mode == "eager" and home.tf_version < (2, 2):
        skips.keras_lacks("Keras calls train_step from TF 2.2 on, in eager mode")
    printed = run(home, "fit_train_step.py", "--home", home.name, "--epochs", "3", "--images", "240", *options)
    rows = {(row[0], row[1]): row[2:] for row in TRAIN_STEP_ROW.findall(printed)}
    assert len(rows) == (4 if options else 6), printed
    ending = distances_of(printed)
    for (cut, way), (updates, _, distance) in rows.items():
        # 240 are 17 times 4 + 4 + 4 + 2, and 2; and 7 times 32, and 16.
        assert int(updates) == 3 * {"each": 18, "last": 2}[cut], printed
        assert ending["{}, {}".format(cut, way)] == float(distance), printed
        if way == "no weights":
            assert float(distance) > 1e-3, printed
        else:
            assert float(distance) < 4e-6, printed
