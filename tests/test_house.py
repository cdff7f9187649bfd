"""Rules of the tree itself, read from its files: no TensorFlow is needed to test them."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE = os.path.join(ROOT, "legacyga")
pytestmark = pytest.mark.capability("house")

# A file imports from its own folder, and from those before it.
ORDER = ["backend", "windows", "optimizers", "slices", "fit", "cli"]
GENERATIONS = ["v1", "train", "v2", "v3", "keras3"]
# Stands before `v2`, and imports it as little as the others do.
VARIANT = "v2_before_tf24"
# What the bases that Keras's classes are put beside take from those: the class factory makes the whole.
FROM_KERAS = {
    "_Callback": {"model", "params", "set_params"},
    "_MySGD": {"_decay_argument", "_legacyga", "gradient_accumulation_steps"},
    "_GraphSGD": {"decay"},
    "_EagerSGD": {"_initial_decay"},
    "_Keras3SGD": {"_iterations", "_legacyga"},
    "AccumulatingOptimizer": {"_iterations", "built", "inner_optimizer"},
}
FOREIGN = {"tensorflow", "keras", "tf_keras", "numpy", "horovod", "h5py", "pickle", "marshal", "shelve", "socket"}


def modules():
    for folder, _, names in os.walk(PACKAGE):
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                yield os.path.relpath(path, PACKAGE)[:-3].replace(os.sep, "."), path


def imports(path):
    """The modules of the package that the file imports, with their folders, and the others by their first name."""
    own, foreign = set(), set()
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative import in {}".format(path)
            names = [node.module + "." + alias.name for alias in node.names]
        else:
            continue
        for name in names:
            (own if name.startswith("legacyga.") else foreign).add(name)
    return {name[len("legacyga.") :] for name in own}, {name.split(".")[0] for name in foreign}


@pytest.mark.parametrize("name, path", list(modules()), ids=lambda value: value if "." not in value else None)
def test_imports_go_one_way(name, path):
    own, _ = imports(path)
    folder, _, last = name.rpartition(".")
    if not folder:
        assert last in ("__init__", "__main__", "_version"), "{} stands in no folder".format(name)
        return
    above = ORDER[ORDER.index(folder) + 1 :]
    assert not [each for each in own if each.split(".")[0] in above], "{} imports {}".format(name, own)
    if last in GENERATIONS + [VARIANT]:
        others = {"optimizers." + each for each in GENERATIONS + [VARIANT]}
        assert not [each for each in own if each in others], "{} imports another generation".format(name)


@pytest.mark.parametrize("name, path", list(modules()), ids=lambda value: value if "." not in value else None)
def test_no_module_imports_tensorflow_pickle_or_the_network(name, path):
    _, foreign = imports(path)
    # Within their functions the demo and the doctor work on arrays.
    assert not foreign & (FOREIGN - {"numpy"} if name.startswith("cli.d") else FOREIGN)


def test_versions_are_looked_at_in_one_place():
    for name, path in modules():
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if name not in ("backend.features", "backend.homes", "_version", "__init__"):
            assert not re.search(r"__version__|\bVERSION\b", text), name


def comments():
    """(path, text) of each block of comment lines in the package."""
    for _, path in modules():
        block = []
        with open(path, encoding="utf-8") as file:
            for line in list(file) + [""]:
                if line.lstrip().startswith("#"):
                    block.append(line.strip().lstrip("# "))
                elif block:
                    yield path, " ".join(block)
                    block = []


def test_a_comment_that_names_a_version_says_with_which_it_goes():
    named = [(path, text) for path, text in comments() if re.search(r"\b(TF|Keras) \d+\.\d", text)]
    assert len(named) > 20
    assert [each for each in named if not re.search(r"[Dd]elete (it |that )?with (TF|Keras) \d", each[1])] == []


def methods_of(module, name):
    """{method: (its decorators, its docstring)} of the class `name` of a module of `optimizers`."""
    with open(os.path.join(PACKAGE, "optimizers", module + ".py"), encoding="utf-8") as file:
        (found,) = [each for each in ast.parse(file.read()).body if getattr(each, "name", "") == name]
    return {
        each.name: ([getattr(d, "id", "") for d in each.decorator_list], ast.get_docstring(each) or "")
        for each in found.body
        if isinstance(each, ast.FunctionDef)
    }


def test_the_hooks_are_declared_with_their_context():
    declared = {name: text for name, (marks, text) in methods_of("inner", "Inner").items() if "hook" in marks}
    assert len(declared) == 4
    for name, text in declared.items():
        assert "Called" in text and "eturns" in text, name


def names_of(node):
    """The names that a class gives itself: methods, attributes of the class, and what its methods set on self."""
    found = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    for each in ast.walk(node):
        if (
            isinstance(each, ast.Attribute)
            and isinstance(each.ctx, ast.Store)
            and getattr(each.value, "id", "") == "self"
        ):
            found.add(each.attr)
        if isinstance(each, ast.Assign) and each in node.body:
            found |= {target.id for target in each.targets if isinstance(target, ast.Name)}
    return found


def test_no_class_takes_names_from_its_own_subclasses():
    """A class of ours whose bases are ours too uses no name of `self` that none of them has."""
    classes = {}
    for _, path in modules():
        with open(path, encoding="utf-8") as file:
            found = [each for each in ast.walk(ast.parse(file.read())) if isinstance(each, ast.ClassDef)]
        for node in found:
            bases = [getattr(base, "attr", getattr(base, "id", "")) for base in node.bases]
            classes.setdefault(node.name, []).append((node, bases, path))

    def known_to(name, seen):
        found = set()
        for node, bases, _ in classes.get(name, ()):
            if node not in seen:
                found |= names_of(node).union(*[known_to(base, seen | {node}) for base in bases])
        return found

    for name, found in classes.items():
        for node, bases, path in found:
            if any(base not in classes for base in bases if base != "object"):
                continue
            used = {
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute) and getattr(each.value, "id", "") == "self"
            }
            known = names_of(node).union(*[known_to(base, {node}) for base in bases])
            missing = {each for each in used - known if not each.startswith("__")}
            assert not missing - FROM_KERAS.get(name, set()), (path, name)


@pytest.mark.parametrize("module", GENERATIONS)
def test_a_generation_supplies_every_hook_and_no_other(module):
    base, own = methods_of("inner", "Inner"), methods_of(module, "Inner")
    hooks = {name for name, (marks, _) in base.items() if "hook" in marks}
    assert hooks <= set(own)
    taken = methods_of(module, "AccumulatingOptimizer")
    shared = set(methods_of("surface", "AccumulatingOptimizer")) | {"get_config", "from_config"}
    # Keras 3 has a K of its own, which must not see ours.
    assert set(taken) & shared <= ({"gradient_accumulation_steps", "get_config"} if module == "keras3" else set())


def test_the_architecture_page_names_files_that_there_are():
    with open(os.path.join(ROOT, "docs", "design.md"), encoding="utf-8") as file:
        page = file.read()
    table, files = page.split("## Where is it?")[1].split("## Files")
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert len(rows) > 20
    for behaviour, where, tests in rows:
        for folder, cell in ((PACKAGE, where), (os.path.join(ROOT, "tests"), tests)):
            found = re.findall(r"`([\w/]+\.py)`", cell)
            assert found and all(os.path.exists(os.path.join(folder, each)) for each in found), behaviour
    # Each module has a line of its own.
    said = re.findall(r"`([a-z]+/\w+)\.py`", files.split("| elsewhere |")[0])
    modules_there = {name.replace(".", "/") for name, _ in modules() if "." in name and not name.endswith("__init__")}
    assert set(said) == modules_there


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
    with_horovod = dict(found, horovod="0.28.1")
    assert conftest.check_factors("py37-tf1.15-keras2.3-horovod0.28", with_horovod) == ""
    assert "asks for horovod 0.27" in conftest.check_factors("py37-tf1.15-keras2.3-horovod0.27", with_horovod)
    assert "asks for horovod 0.28, and none" in conftest.check_factors("py37-tf1.15-keras2.3-horovod0.28", found)
    assert conftest.check_factors("py37-tf1.15-keras2.3-others", found) == ""
    # 1.1 must not match 1.15, nor 2.2 match 2.21.
    assert "asks for tf 1.1," in conftest.check_factors("py37-tf1.1-keras2.3", found)


def test_every_environment_names_factors_that_exist():
    import environments

    envs = environments.environments()
    assert len(envs) >= 9 and len(set(envs)) == len(envs)
    for env in envs:
        for factor in env.split("-"):
            assert re.match(r"(py3\d+|tf\d+\.\d+|keras\d+(\.\d+)?|tfkeras\d+\.\d+)$", factor), env


def test_the_environments_of_horovod_are_those_of_the_core_with_it():
    """So that their pins are tested without it too, and their results are not taken for those of the matrix."""
    import environments

    labels = environments.labels()
    core, envs = labels["core"], labels["horovod"]
    assert len(envs) == 2
    for env in envs:
        without, _, added = env.rpartition("-")
        assert added == "horovod0.28"
        assert without in core and env not in core + environments.environments()
        # The requirements of one environment that the other has not.
        ours, theirs = [environments.pins(each)[0] for each in (env, without)]
        assert set(theirs) <= set(ours)


def test_the_environments_of_other_packages_are_those_of_the_matrix_with_them():
    import environments

    labels = environments.labels()
    for env in labels["others"]:
        without, _, added = env.rpartition("-")
        assert added == "others" and without in environments.environments() and env not in environments.environments()
        # The requirements of one environment that the other has not.
        ours, theirs = [environments.pins(each)[0] for each in (env, without)]
        assert set(theirs) < set(ours)


def test_the_stub_says_what_there_is(monkeypatch):
    """`__init__.pyi`: the public names, and the arguments of each with those that have defaults."""
    monkeypatch.syspath_prepend(ROOT)
    legacyga = importlib.import_module("legacyga")
    with open(os.path.join(PACKAGE, "__init__.pyi")) as file:
        tree = ast.parse(file.read())
    said = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    (names,) = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    assert names == legacyga.__all__
    assert {name for name in said if not name.startswith("_")} == set(names) - {"__version__"}

    def arguments(node):
        given = [each.arg for each in node.args.args]
        return given, given[len(given) - len(node.args.defaults) :], node.args.kwarg and node.args.kwarg.arg

    def there(function):
        named = inspect.signature(function).parameters.values()
        given = [each for each in named if each.kind is each.POSITIONAL_OR_KEYWORD]
        rest = [each.name for each in named if each.kind is each.VAR_KEYWORD]
        with_defaults = [each.name for each in given if each.default is not each.empty]
        return [each.name for each in given], with_defaults, rest[0] if rest else None

    for name in sorted(set(said) & set(names)):
        made, node = getattr(legacyga, name), said[name]
        if isinstance(node, ast.FunctionDef):
            assert arguments(node) == there(made), name
            continue
        for method in [each for each in node.body if isinstance(each, ast.FunctionDef)]:
            found = vars(made)[method.name]
            assert arguments(method) == there(getattr(found, "fget", None) or found), (name, method.name)
