"""The examples run, and print what they promise."""

import contextlib
import io
import os
import re
import runpy
import sys

import homes
import pytest
import skips

import legacyga

pytestmark = [pytest.mark.capability("demo and examples"), pytest.mark.long]


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
    if "picture: " in printed:
        assert os.path.getsize(out) > 1000


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


@pytest.mark.parametrize("name", ["custom_loop.py", "embeddings.py"])
def test_on_tensorflow_1_they_say_what_they_need(home, name):
    if home.tf_version >= (2,):
        skips.senseless("TensorFlow 1 only")
    with pytest.raises(SystemExit, match="needs TensorFlow 2. Received: TensorFlow 1.*Take legacyga.wrap"):
        run(home, name)


# train_step


TRAIN_STEP_ROW = re.compile(
    r"^(each|last) +(no weights|the callback|train_step) +(\d+) +(\d\.\d+) +(\S+)$", re.MULTILINE
)


def test_fit_train_step(home):
    options = ["--graph"] if home.mode == "graph" else []
    if home.mode == "eager" and home.tf_version < (2, 2):
        skips.keras_lacks("Keras calls train_step from TF 2.2 on, in eager mode")
    printed = run(home, "fit_train_step.py", "--home", home.name, "--epochs", "3", "--images", "240", *options)
    rows = {(row[0], row[1]): row[2:] for row in TRAIN_STEP_ROW.findall(printed)}
    assert len(rows) == (2 if options else 6), printed
    ending = distances_of(printed)
    for (cut, way), (updates, _, distance) in rows.items():
        # 240 are 17 times 4 + 4 + 4 + 2, and 2; and 7 times 32, and 16.
        assert int(updates) == 3 * {"each": 18, "last": 2}[cut], printed
        assert ending["{}, {}".format(cut, way)] == float(distance), printed
        if way == "no weights":
            assert float(distance) > 1e-3, printed
        else:
            assert float(distance) < 4e-6, printed
