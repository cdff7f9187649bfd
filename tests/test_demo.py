"""`python -m legacyga demo`: it runs, it says what it promises, and its comparison can fail."""

import json
import logging
import os
import re
import subprocess
import sys

import homes
import numpy as np
import pytest
import skips
from conftest import TWO

import legacyga
from legacyga.cli import demo
from legacyga.cli.main import main

pytestmark = pytest.mark.capability("demo and examples")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROW = r"^{} +(\S+) +(\S+) +(\d+) +(\S+) +\d+ MiB +\+\d+ MiB$"


def command_line(arguments, folder):
    """(exit code, standard output, standard error) of `python -m legacyga`, run in `folder` as a user would run it."""
    env = dict(os.environ)
    # Where the tests run on the source, so does what they start; else both have the legacyga that is installed.
    if os.path.abspath(legacyga.__file__).startswith(os.path.join(ROOT, "legacyga", "")):
        env["PYTHONPATH"] = os.pathsep.join([ROOT] + [path for path in [env.get("PYTHONPATH")] if path])
    env["PYTHONIOENCODING"] = "utf-8"  # Keras 3 draws its progress bars with it
    process = subprocess.Popen(
        [sys.executable, "-m", "legacyga"] + arguments,
        cwd=str(folder),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    printed, errors = process.communicate()
    return process.returncode, printed.decode("utf-8"), errors.decode("utf-8", "replace")


def results(off=0.0, way="accumulated"):
    """What four trainings could have given, one `way` of them `off` in one weight."""
    weights = [np.linspace(-1, 1, 12).reshape(3, 4).astype("float32"), np.ones(4, "float32")]
    that_is_off = [weight.copy() for weight in weights]
    that_is_off[0][1, 2] += off
    told = dict(running="a Keras", loss=[2.3, 0.1], accuracy=0.9, memory=[290.0, 300.0])
    return {
        name: dict(told, updates=updates, weights=found)
        for name, updates, found in (
            ("small", 880, [weight + 0.1 for weight in weights]),
            ("accumulated", 110, that_is_off if way == "accumulated" else weights),
            ("sliced", 110, that_is_off if way == "sliced" else weights),
            ("large", 110, weights),
        )
    }


def cuts(home):
    """Whether the home has slices: in eager mode of TF 2.0 and 2.1 there is no training step to cut."""
    return home.mode == "graph" or home.tf_version >= (2, 2)


@pytest.mark.long(only=TWO)
def test_the_command(home, once_in_an_environment, monkeypatch, tmp_path):
    arguments = ["demo", "--home", home.name, "--mode", home.mode, "--epochs", "1"]
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    code, printed, errors = command_line(arguments, tmp_path)
    assert code == 0, printed + errors
    # A line a training, then the table: no bars, and no lines of TensorFlow's about this machine.
    assert printed.count("\ntraining: ") == 4 and len(printed.splitlines()) < 25 and errors == ""
    assert "in {} mode\n".format(home.mode) in printed
    rows, sliced = {}, "batch of 64, slices of 8"
    assert cuts(home) == ("left out: " not in printed)
    for way in ["batch of 8", "batch of 8, K = 8"] + [sliced] * cuts(home) + ["batch of 64"]:
        found = re.findall(ROW.format(re.escape(way)), printed.replace("\r", ""), re.MULTILINE)
        assert len(found) == 1, (way, printed)
        loss, accuracy, updates, difference = found[0]
        rows[way] = float(loss), float(accuracy), int(updates), float(difference)
    assert [row[2] for row in rows.values()] == [176] + [22] * (len(rows) - 1)
    assert rows["batch of 8, K = 8"][:2] == rows["batch of 64"][:2] and rows["batch of 64"][3] == 0
    assert rows.get(sliced, rows["batch of 64"])[:2] == rows["batch of 64"][:2]
    for loss, accuracy, _, _ in rows.values():
        assert loss < 0.7 and accuracy > 0.8  # from 2.4 and 0.1
    # The bound lies well between what is right and what is not.
    bounds = re.findall(r"are one training: \S+ is within float32 rounding, (\S+) after 22 updates", printed)
    assert len(bounds) == 1 + cuts(home)
    bound = float(bounds[0])
    assert rows["batch of 8, K = 8"][3] <= bound < rows["batch of 8"][3] / 1000
    picture = tmp_path / "legacyga-demo.png"
    assert "loss curves: {}".format(os.path.join(os.path.realpath(str(tmp_path)), picture.name)) in printed
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.long(only=TWO)
def test_the_ways_in_this_home(home, monkeypatch, capsys, tmp_path):
    """What the command's processes do, in this one, on fewer images: 24 updates of K = 8, and 3."""
    digits = demo._digits

    def fewer(steps):
        (x, y), (test_x, test_y) = digits(steps)
        return (x[:192], y[:192]), (test_x[:64], test_y[:64])

    monkeypatch.setattr(demo, "_digits", fewer)
    logger, found = logging.getLogger("tensorflow"), {}
    level = logger.level
    for way in demo.ways(8):
        home.reset()
        path = str(tmp_path / way)
        assert demo.train_one_way(way, home.name, home.mode, 8, 1, path) == 0
        assert os.path.exists(path) == (way != "sliced" or cuts(home))
        if os.path.exists(path):
            with open(path) as file:
                found[way] = json.load(file)
    # It is raised for the life of a process.
    logger.setLevel(level)
    capsys.readouterr()
    assert demo.report(found, 8) == 0
    assert "in {} mode\n".format(home.mode) in capsys.readouterr().out
    assert [found[way]["updates"] for way in ("small", "accumulated", "large")] == [24, 3, 3]
    large = found["large"]["weights"]
    bound = demo.rounding_bound(large, 3)
    # The bound lies well between what is right and what is not.
    for way in set(found) & {"accumulated", "sliced"}:
        assert found[way]["updates"] == 3
        assert demo.largest_difference(found[way]["weights"], large) <= bound
    assert demo.largest_difference(found["small"]["weights"], large) > 1000 * bound
    for result in found.values():
        assert result["loss"][-1] < result["loss"][0]


@pytest.mark.long(only=[("tf.keras", "graph", "2.15")])
def test_graph_mode_can_be_asked_for(home):
    """In a process of its own, for there is no way back; else eager mode is what the home starts in."""
    if home.mode == "eager" or home.tf_version < (2,):
        skips.senseless("graph mode is asked for from TF 2.0 on")
    code = "import sys; from legacyga.cli.homes_here import homes_here; "
    code += "print(next(homes_here(sys.argv[1], 'graph')).graph_mode)"
    folder = os.path.dirname(os.path.dirname(os.path.abspath(legacyga.__file__)))
    printed = subprocess.check_output([sys.executable, "-c", code, home.name], cwd=folder, universal_newlines=True)
    assert printed.splitlines()[-1] == "True"


def test_a_home_that_cannot_train_is_exit_code_2(home, monkeypatch, capsys, tmp_path):
    """The first of the command's processes says so, and the command passes it on; in this process, without more."""
    arguments, expected = ["--home", "tf_keras"], "No module named 'tf_keras'"
    if homes.version("tf_keras"):
        if home.mode == "eager":
            skips.elsewhere("asking for graph mode would switch this process to it")
        if home.tf_version < (2, 16):
            skips.senseless("tf.keras and tf_keras both train in graph mode")
        arguments, expected = ["--home", "tf.keras", "--mode", "graph"], "cannot train in graph mode"
    level = logging.getLogger("tensorflow").level
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo.subprocess, "call", lambda command, **kwargs: main(command[3:]))
    assert main(["demo"] + arguments) == 2
    logging.getLogger("tensorflow").setLevel(level)
    errors = capsys.readouterr().err
    assert expected in errors and "ended with exit code 2, and says why above" in errors
    assert os.listdir(str(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", ["accumulated", "sliced"])
@pytest.mark.parametrize(
    "off, code", [(0.0, 0), (1e-6, 0), (1e-5, 1), (-1e-2, 1), (float("nan"), 1), (float("inf"), 1)]
)
def test_the_comparison_can_fail(once_in_an_environment, way, off, code, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(demo, "_train_all", lambda home, mode, steps, epochs: results(off, way))
    picture = tmp_path / "curves.pdf"
    assert main(["demo", "--out", str(picture)]) == code
    printed = capsys.readouterr().out
    assert ("DIFFER" in printed) == bool(code) == ("NOT within float32 rounding" in printed)
    assert printed.count("are one training") == 2 - code
    assert picture.read_bytes()[:4] == b"%PDF"


def test_a_way_that_a_home_lacks_is_left_out(once_in_an_environment, monkeypatch, capsys, tmp_path):
    """The process of it says so, and the others are compared."""

    def call(command, **kwargs):
        way, path = command[command.index("--way") + 1], command[command.index("--results") + 1]
        if way != "sliced":
            result = results()[way]
            result["weights"] = [weight.tolist() for weight in result["weights"]]
            with open(path, "w") as file:
                json.dump(result, file)
        return 0

    monkeypatch.setattr(demo.subprocess, "call", call)
    assert main(["demo", "--out", str(tmp_path / "curves.svg")]) == 0
    printed = capsys.readouterr().out
    assert "Accumulation and the large batch are one training" in printed and "Slices and" not in printed


@pytest.mark.parametrize("level, code", [(None, 0), (None, 3), ("0", 0)])
def test_what_a_training_says_of_itself_is_shown_where_it_fails(level, code, monkeypatch, capfd):
    """Or where the user has asked for it, by TensorFlow's own variable."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if level:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    program = "import sys; sys.stderr.write('why'); sys.exit({})".format(code)
    assert demo._call_quietly([sys.executable, "-c", program], dict(os.environ)) == code
    assert capfd.readouterr().err == ("why" if code or level else "")


def test_the_bound_grows_as_rounding_does():
    weights = [np.array([0.5, -2.0], "float32")]
    assert demo.rounding_bound(weights, 1) == 4 * 2.0**-22
    assert demo.rounding_bound(weights, 100) == 10 * demo.rounding_bound(weights, 1)
    assert demo.largest_difference([np.array([0.5, 2.0], "float32")], weights) == 4.0


def test_memory_that_cannot_be_measured_is_said_so(capsys):
    found = results()
    for result in found.values():
        result.update(memory=[None, None])
    assert demo.report(found, 8) == 0
    assert capsys.readouterr().out.count("not measured") == 8


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--steps", "181"], "--steps must be at most 180"),
        (["--out", "curves.bmp"], "--out must end in .png, .pdf, .svg"),
        (["--out", os.path.join("nowhere", "curves.png")], "a folder that does not exist"),
    ],
)
def test_what_cannot_be_done_is_said_before_the_training(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["demo"] + arguments) == 2
    assert message in capsys.readouterr().err


def test_missing_packages_come_with_the_remedy(monkeypatch, capsys):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    assert main(["demo"]) == 2
    errors = capsys.readouterr().err
    assert errors == (
        "legacyga demo: the demo needs scikit-learn and matplotlib. Run: pip install scikit-learn matplotlib\n"
    )


@pytest.mark.parametrize("arguments", [[], ["demo", "--steps", "0"], ["demo", "--home", "theano"], ["nurse"]])
def test_wrong_arguments_are_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: python -m legacyga" in capsys.readouterr().err


def test_versions(capsys):
    assert main(["versions"]) == 0
    assert "legacyga " + legacyga.__version__ in capsys.readouterr().out


def test_importing_the_demo_imports_no_tensorflow():
    code = (
        "import sys; before = set(sys.modules); import legacyga.__main__; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(new & {'tensorflow', 'keras', 'tf_keras', 'numpy', 'sklearn', 'matplotlib'}))"
    )
    folder = os.path.dirname(os.path.dirname(os.path.abspath(legacyga.__file__)))
    assert subprocess.check_output([sys.executable, "-c", code], cwd=folder, universal_newlines=True).strip() == ""
