"""The examples of the callback run, and print what they promise."""

import os
import re

import homes
import pytest
import skips
import test_examples

pytestmark = [pytest.mark.capability("demo and examples"), pytest.mark.usefixtures("once_in_an_environment")]


def options_for(home):
    return ["--home", home.name] + (["--graph"] if home.mode == "graph" else [])


def test_old_keras_project(home):
    graph_homes = [name for name, mode in homes.available() if mode == "graph"]
    if not graph_homes:
        skips.keras_lacks("no Keras with a graph mode is installed, and get_updates needs one")
    name = home.name if home.name in graph_homes else graph_homes[0]
    printed = test_examples.run("old_keras_project.py", "--home", name, "--epochs", "2", "--images", "240")
    rows = re.findall(r"^batches of (\d+)(, K = 4)? +(\d+) +(\d\.\d+) *(\S*)$", printed, re.MULTILINE)
    # 240 are 15 batches of 16: 3 windows of 4, and one of 3; 4 epochs.
    assert [row[:3] for row in rows] == [("64", "", "16"), ("16", ", K = 4", "16"), ("16", "", "60")], printed
    assert rows[0][3] == rows[1][3] != rows[2][3], printed
    assert test_examples.distances_of(printed)["K = 4"] < 4e-6 and float(rows[2][4]) > 1e-2, printed


def test_schedule(home):
    printed = test_examples.run("schedule.py", *options_for(home) + ["--epochs", "6", "--images", "240"])
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
    assert test_examples.distances_of(printed)["by the callback"] < 4e-6, printed


def test_partial_windows(home, tmp_path):
    out = str(tmp_path / "picture.png")
    # Two processes of TensorFlow, not five.
    small = ["--ways", "flush", "--epochs", "2", "--images", "288", "--out", out]
    printed = test_examples.run("partial_windows.py", *options_for(home) + small)
    rows = re.findall(r"^(\S.*?)  +(\d+)  +(\d\.\d+)  +(\d+\.\d)  +(\d+|-)  +(\S+)$", printed, re.MULTILINE)
    # 288 are 9 batches of 32: 2 windows of 4, and one batch.
    assert [row[:2] for row in rows] == [("batches of 128", "6"), ("K = 4, flush", "6")], printed
    assert rows[0][2] == rows[1][2] and test_examples.distances_of(printed)["K = 4, flush"] < 4e-6, printed
    if "picture: " in printed:
        assert os.path.getsize(out) > 1000
