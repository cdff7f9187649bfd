"""Rules of the tree itself, read from its files: no TensorFlow is needed to test them."""

import ast
import os
import re
import subprocess
import sys

import pytest
import skips

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE = os.path.join(ROOT, "legacyga")
pytestmark = pytest.mark.capability("house")

# What a module may import of the package. The public modules may import everything below them.
BELOW = {
    "_compat": set(),
    "_ops": set(),
    "_totals": set(),
    "_window": {"_totals"},
    "_accumulates": {"_ops", "_window"},
    "_fit": {"_accumulates", "_compat", "_ops"},
    "_schedule": {"_window"},
    "_gradients": {"_ops"},
}
GENERATIONS = ["keras_v1", "tf1_train", "optimizer_v2", "optimizer_v3", "keras3"]
FOREIGN = {"tensorflow", "keras", "tf_keras", "numpy", "horovod", "h5py", "pickle", "marshal", "shelve", "socket"}


def modules():
    for folder, _, names in os.walk(PACKAGE):
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                yield os.path.relpath(path, PACKAGE)[:-3].replace(os.sep, "."), path


def imports(path):
    """The modules of the package that the file imports, by their last name, and the others by their first."""
    own, foreign = set(), set()
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative import in {}".format(path)
            within = node.module in ("legacyga", "legacyga.generations")
            names = [node.module + "." + alias.name for alias in node.names] if within else [node.module]
        else:
            continue
        for name in names:
            (own if name.startswith("legacyga") else foreign).add(name)
    return {name.split(".")[-1] for name in own}, {name.split(".")[0] for name in foreign}


@pytest.mark.parametrize("name, path", list(modules()), ids=lambda value: value if "." not in value else None)
def test_imports_go_one_way(name, path):
    own, _ = imports(path)
    last = name.split(".")[-1]
    if last in BELOW:
        allowed = BELOW[last]
    elif name.startswith("generations."):
        allowed = set(BELOW)
    elif last == "__init__":
        return
    else:
        allowed = None
    if allowed is not None:
        assert own <= allowed, "{} imports {}".format(name, own - allowed)
    if last in GENERATIONS:
        assert not own & set(GENERATIONS), "{} imports another generation".format(name)


@pytest.mark.parametrize("name, path", list(modules()), ids=lambda value: value if "." not in value else None)
def test_no_module_imports_tensorflow_pickle_or_the_network_at_its_top(name, path):
    if name in ("demo", "__main__"):
        skips.senseless("a program: what it needs it says")
    _, foreign = imports(path)
    assert not foreign & FOREIGN


def test_versions_are_looked_at_in_compat_alone():
    for name, path in modules():
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if name not in ("_compat", "_version", "__init__"):
            assert not re.search(r"__version__|\bVERSION\b", text), name


def test_every_generation_has_the_same_names():
    for name, path in modules():
        if name.startswith("generations.") and not name.endswith("__init__"):
            with open(path, encoding="utf-8") as file:
                names = {node.name for node in ast.parse(file.read()).body if hasattr(node, "name")}
            assert {"Accumulating", "accumulating"} <= names, name


def test_import_is_quiet():
    """R15: no TensorFlow, no Keras, nothing patched, and nothing but the package and the standard library."""
    code = (
        "import sys; before = set(sys.modules); import legacyga; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(new & {'tensorflow', 'keras', 'tf_keras', 'numpy', 'sklearn', 'matplotlib'}))"
    )
    output = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, universal_newlines=True)
    assert output.strip() == ""


def test_the_fixtures_are_what_the_oracle_says():
    script = os.path.join(ROOT, "tests", "fixtures", "make_fixtures.py")
    assert subprocess.call([sys.executable, script, "--check"]) == 0


def test_the_guard_refuses_what_was_not_asked_for():
    import conftest

    found = {"py": "3.7", "tf": "1.15.5", "keras": "2.3.1"}
    assert conftest.check_factors("py37-tf1.15-keras2.3", found) == ""
    assert "names no TensorFlow" in conftest.check_factors("py37-keras2.3", found)
    assert "asks for tf 1.13, and 1.15.5" in conftest.check_factors("py37-tf1.13-keras2.3", found)
    assert "asks for tf 115" in conftest.check_factors("py37-tf115-keras2.3", found)
    assert "'tensorflow1.15' is no factor" in conftest.check_factors("py37-tensorflow1.15-keras2.3", found)
    assert "asks for py 3.6" in conftest.check_factors("py36-tf1.15-keras2.3", found)
    assert "does not name the keras" in conftest.check_factors("py37-tf1.15", found)
    assert "asks for tfkeras 2.21, and none" in conftest.check_factors("py37-tf1.15-tfkeras2.21", found)
    # 1.1 must not match 1.15, nor 2.2 match 2.21.
    assert "asks for tf 1.1," in conftest.check_factors("py37-tf1.1-keras2.3", found)


def test_every_environment_names_factors_that_exist():
    import compat_matrix

    envs = compat_matrix.environments()
    assert len(envs) >= 9 and len(set(envs)) == len(envs)
    for env in envs:
        for factor in env.split("-"):
            assert re.match(r"(py3\d+|tf\d+\.\d+|keras\d+(\.\d+)?|tfkeras\d+\.\d+)$", factor), env
