"""`python -m legacyga doctor`: it finds nothing where all is well, and finds what is not."""

import json
import logging
import os
import re
import sys
import types

import homes
import needs
import pytest
from conftest import TWO
from test_demo import command_line

from legacyga.backend import homes as _homes
from legacyga.cli import tested
from legacyga.cli.main import main

pytestmark = pytest.mark.capability("demo and examples")


@pytest.fixture(autouse=True)
def fresh(home, monkeypatch):
    """What the command changes, it changes for the life of a process."""
    home.reset()
    for name in ("CUDA_VISIBLE_DEVICES", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, os.environ.get(name, "2"))
    logger = logging.getLogger("tensorflow")
    level = logger.level
    yield
    logger.setLevel(level)


def examined(home, tmp_path, *arguments):
    """(exit code, what it wrote) of the command, in this process."""
    path = str(tmp_path / "found.json")
    code = main(["doctor", "--home", home.name, "--steps", "3", "--json", path] + list(arguments))
    with open(path) as file:
        return code, json.load(file)


def drifts(found):
    return {check["name"]: check["drift"] for check in found["checks"]}


def test_mysgd_is_exact(home, tmp_path, capsys):
    code, found = examined(home, tmp_path)
    assert code == 0 and found["verdict"] == "exact", found
    assert found["mode"] == home.mode and found["versions"]["tensorflow"] == home.tf.__version__
    # In graphs the bare optimizer is none to compare with.
    number = 6 - (home.mode == "graph")
    assert len(found["checks"]) == number
    assert all(check["drift"] <= check["bound"] <= 4e-6 for check in found["checks"])
    printed = capsys.readouterr().out
    assert printed.count("\nexact ") == number and "All {} are exact".format(number) in printed


@pytest.mark.slow
def test_the_line_of_the_matrix(home, tmp_path, capsys):
    """That of the versions at hand, as the page has it."""
    _, found = examined(home, tmp_path)
    line = found["matrix"]
    assert line["nearest"] is None and (line["mode"], line["family"] == "keras3") == (home.mode, home.is_keras3)
    cells = [re.sub(r" \[\d+\]", "", each) for each in row_of_the_page(line)[3:]]
    words = [word.replace("there is no such thing", "–") for _, (word, _) in line["things"]]
    assert cells == words and len(words) > 7
    printed = capsys.readouterr().out
    assert "compat_matrix.md says of {keras} on TensorFlow {tensorflow} in {mode} mode:\n".format(**line) in printed
    assert "was not tested" not in printed and printed.index("compat_matrix.md") < printed.index("exact ")
    for thing, (word, reasons) in line["things"]:
        assert re.search("^    {} +{}$".format(thing, re.escape(": ".join([word] + reasons))), printed, re.MULTILINE)


def row_of_the_page(line):
    """The cells of a line in compat_matrix.md."""
    with open(os.path.join(os.path.dirname(os.path.dirname(__file__)), "compat_matrix.md"), encoding="utf-8") as file:
        (found,) = [each for each in file if each.startswith("| {keras} | {tensorflow} | {mode} |".format(**line))]
    return found.strip("| \n").split(" | ")


@pytest.mark.parametrize(
    "name, versions, mode, nearest",
    [
        ("tf.keras", ("2.13.1",), "eager", None),
        ("tf.keras", ("2.16.0-rc1",), "graph", ["2.15"]),
        ("keras", ("1.13.2", "2.3.1"), "graph", ["1.13", "2.2"]),
        ("keras3", ("2.99.0", "3.99.1"), "eager", ["2.22", "3.16"]),
        ("keras", ("2.0.4", "2.3.1"), "eager", []),
    ],
)
def test_versions_that_were_not_tested(name, versions, mode, nearest):
    modules = [types.SimpleNamespace(__version__=each) for each in versions]
    home = types.SimpleNamespace(
        name=name.replace("3", ""), is_keras3=name == "keras3", tf=modules[0], module=modules[-1]
    )
    line = tested.line_of(home, mode)
    text = tested.text_of("that Keras", mode, line)
    if nearest == []:
        assert line is None and text == "that Keras was not tested in eager mode, in no version."
        return
    assert line["nearest"] == nearest and line["family"] == name and "says of " + line["keras"] in text
    told = "that Keras was not tested. The nearest that was is TensorFlow {}.\n"
    assert text.startswith(told.format(", Keras ".join(nearest)) if nearest else "compat_matrix.md says")


@pytest.mark.long(only=TWO)
def test_an_optimizer_by_its_name(home, tmp_path):
    needs.wrap(home)
    code, found = examined(home, tmp_path, "--optimizer", "adam")
    assert code == 0 and found["verdict"] == "exact", found


@pytest.mark.long(only=TWO)
def test_a_class_of_ones_own(home, tmp_path, monkeypatch):
    needs.wrap(home)
    imported = {
        "keras": "import keras",
        "tf.keras": "from tensorflow import keras",
        "tf_keras": "import tf_keras as keras",
    }
    # In graph mode of TF 2.11 and newer the legacy ones alone train.
    of = "keras.optimizers" if home.is_keras3 else 'getattr(keras.optimizers, "legacy", keras.optimizers)'
    written = "{}\n\n\nclass Mine({}.Adagrad):\n    pass\n\n\ndef made():\n    return Mine(0.02)\n"
    (tmp_path / "mine_for_doctor.py").write_text(written.format(imported[home.name], of))
    monkeypatch.syspath_prepend(str(tmp_path))
    code, found = examined(home, tmp_path, "--optimizer", "mine_for_doctor:made")
    assert code == 0 and found["verdict"] == "exact", found


@pytest.mark.long(only=TWO)
def test_a_changed_keras_is_found(home, tmp_path, monkeypatch, capsys):
    """A layer of which something has changed what it computes: windows are right, and it all is not Keras."""
    dense = home.keras.layers.Dense
    original = dense.call

    def call(self, inputs):
        return original(self, inputs) * 1.001

    monkeypatch.setattr(dense, "call", call)
    code, found = examined(home, tmp_path)
    assert code == 1 and found["verdict"] == "drift"
    first = found["checks"][0]
    assert first["drift"] > 1e-4 and "start without it" in first["remedy"]
    assert "\nDRIFT " in capsys.readouterr().out


def test_every_keras_that_is_here(home, tmp_path, monkeypatch, capsys):
    """Standalone Keras first, though tf.keras is exact; the exit code is that of the worst."""
    names = [name for name, mode in homes.available() if mode == home.mode]
    if names == ["tf_keras"] and home.tf_version < (2, 16):
        names = ["tf.keras", "tf_keras"]
    elif names == ["tf_keras"] and home.mode == "eager":
        names = ["keras", "tf_keras"]
    if home.tf_version == (2, 5):
        # The package `keras` there is another implementation of tf.keras.
        names = ["tf.keras", "tf.keras"]
    path = str(tmp_path / "found.json")

    def examined():
        code = main(["doctor", "--steps", "2", "--mode", home.mode, "--json", path])
        with open(path) as file:
            found = json.load(file)
        return code, [each["home"].split()[0] for each in [found] + found.get("others", [])], found["verdict"]

    assert examined() == (0, names, "exact")
    assert capsys.readouterr().out.count("are exact (float32") == len(names)
    original = home.keras.layers.Dense.call
    monkeypatch.setattr(home.keras.layers.Dense, "call", lambda self, inputs: original(self, inputs) * 1.001)
    code, found, verdict = examined()
    assert (code, verdict) == (1, "drift") and found[0] == home.name and sorted(found) == sorted(names)


def test_the_cause_is_told_and_not_what_follows_from_it(monkeypatch):
    """Keras 3 with a backend that is not installed; tf.keras then says that Keras is not installed."""
    module = sys.modules["legacyga.cli.homes_here"]

    def import_module(name):
        raise ModuleNotFoundError("No module named 'x'", name={"keras": "jax"}.get(name, name))

    def find_home(keras):
        raise ImportError("Keras cannot be imported.")

    monkeypatch.setattr(module, "importlib", types.SimpleNamespace(import_module=import_module))
    monkeypatch.setattr(module.homes, "find_home", find_home)
    with pytest.raises(ImportError) as error:
        list(module.homes_here(None, "eager"))
    assert error.value.name == "jax"


def test_what_cannot_be_checked(home, tmp_path, monkeypatch, capsys):
    code, found = examined(home, tmp_path, "--optimizer", "no_such_thing")
    assert code == 2 and found["verdict"] == "cannot be checked"
    assert "mysgd, a name that" in capsys.readouterr().err
    code, found = examined(home, tmp_path, "--optimizer", "json:loads.__name__")
    assert code == 2 and "must be, or make, an optimizer. Received: 'loads'" in found["error"]
    code, found = examined(home, tmp_path, "--optimizer", "no_such_module:thing")
    assert code == 2 and "no_such_module" in found["error"]


OWN = """
import legacyga
from legacyga.backend import homes as _homes

home = _homes.find_home({!r} and __import__({!r}, fromlist=["x"]))
optimizers = getattr(home.module.optimizers, "legacy", home.module.optimizers)
optimizers = home.module.optimizers if home.is_keras3 else optimizers


def zero():
    return optimizers.SGD(0.0)


def fails():
    raise KeyError("rate")


def diverges():
    return optimizers.SGD(float("nan"))


class Forgetful(optimizers.SGD):
    def __init__(self, rate, **kwargs):
        super(Forgetful, self).__init__(rate, **kwargs)


def forgetful():
    return Forgetful(0.3)


class Scaling(optimizers.SGD):
    def __init__(self, learning_rate=0.05, scale=1.0, **kwargs):
        super(Scaling, self).__init__(learning_rate, **kwargs)
        self.scale = scale

    def get_gradients(self, loss, params):
        return [each * self.scale for each in super(Scaling, self).get_gradients(loss, params)]

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        pairs = [(each * self.scale, variable) for each, variable in grads_and_vars]
        return super(Scaling, self).apply_gradients(pairs, *args, **kwargs)


scaling = Scaling(scale=0.25)
plain = Scaling()


def same():
    return scaling
"""


@pytest.mark.long(only=TWO)
def test_optimizers_of_ones_own(home, tmp_path, monkeypatch):
    """A rate that begins at 0 moves nothing, nor need it; a function is called for each optimizer, and may fail."""
    needs.wrap(home)
    module = {"keras": "keras", "tf.keras": "tensorflow.keras", "tf_keras": "tf_keras"}[home.name]
    (tmp_path / "own_for_doctor.py").write_text(OWN.format(module, module))
    monkeypatch.syspath_prepend(str(tmp_path))
    code, found = examined(home, tmp_path, "--optimizer", "own_for_doctor:zero")
    assert code == 0 and found["verdict"] == "exact", found
    code, found = examined(home, tmp_path, "--optimizer", "own_for_doctor:forgetful")
    assert code == 0 and found["verdict"] == "exact", found
    code, found = examined(home, tmp_path, "--optimizer", "own_for_doctor:fails")
    assert code == 2 and found["error"] == "KeyError: 'rate'"
    code, found = examined(home, tmp_path, "--optimizer", "own_for_doctor:diverges")
    assert code == 2 and "diverges on the doctor's numbers" in found["error"]


@pytest.mark.long(only=TWO)
@pytest.mark.parametrize("name", ["scaling", "same", "plain"])
def test_an_optimizer_that_its_config_does_not_hold(home, tmp_path, monkeypatch, capsys, name):
    """It is compared with itself at K = 1, and with one by its config where that holds all; its home is its own."""
    needs.wrap(home)
    module = {"keras": "keras", "tf.keras": "tensorflow.keras", "tf_keras": "tf_keras"}[home.name]
    (tmp_path / "held_for_doctor.py").write_text(OWN.format(module, module))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "held_for_doctor", raising=False)
    its_home = repr(_homes.find_home(home.keras))
    path, told = str(tmp_path / "found.json"), ["--optimizer", "held_for_doctor:" + name]
    code = main(["doctor", "--steps", "3", "--json", path, "--mode", home.mode] + told)
    with open(path) as file:
        found = json.load(file)
    assert code == 0 and found["verdict"] == "exact" and found["home"] == its_home, found
    is_compared = home.mode == "eager" and name == "plain"
    assert ("K = 1 is the optimizer as it is" in drifts(found)) == is_compared
    assert len(found["unchecked"]) == (home.mode == "eager" and name != "plain")
    printed = capsys.readouterr().out
    assert ("not checked: " in printed) == bool(found["unchecked"])
    for other, mode in homes.available():
        if other != home.name and mode == home.mode:
            code, found = examined(home, tmp_path, *(told + ["--home", other]))
            assert code == 2 and "Leave --home out" in found["error"], found


def test_a_file_that_cannot_be_written(home, tmp_path, capsys):
    assert main(["doctor", "--home", home.name, "--json", str(tmp_path / "no" / "such.json")]) == 2
    assert "--json must name a file that can be written" in capsys.readouterr().err


def test_without_tensorflow(tmp_path, capsys, monkeypatch):
    from legacyga.backend import homes as _homes

    def missing():
        raise ImportError("No module named tensorflow. Install the tensorflow, and the Keras, that the project uses.")

    monkeypatch.setattr(_homes, "_tensorflow", missing)
    assert main(["doctor"]) == 2
    assert "Install the tensorflow" in capsys.readouterr().err


@pytest.mark.long(only=TWO)
def test_the_command(home, once_in_an_environment, tmp_path):
    code, printed, errors = command_line(["doctor", "--home", home.name, "--mode", home.mode, "--json", "-"], tmp_path)
    assert code == 0, printed + errors
    found = json.loads(printed)
    assert found["verdict"] == "exact" and found["steps"] == 4 and max(drifts(found).values()) <= 4e-6
    assert "exact " in errors
