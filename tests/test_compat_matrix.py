"""compat_matrix.md as it is made of result files written by hand, and the kinds of skips that they count."""

import collections
import configparser
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import types

import compat_matrix
import conftest
import environments
import known_failures
import matrix_files
import pages
import pytest
import result_files
import skips
from matrix_files import CODE, DAY, NEW, NEWEST, OLD, copy_of_the_tree, row, run

pytestmark = pytest.mark.capability("house")

HERE = matrix_files.HERE


@pytest.fixture
def config():
    return matrix_files.config()


def every(thing, value):
    """Rows for all capabilities of a thing."""
    return {name.replace(" ", "__"): value for name, of in compat_matrix.CAPABILITIES.items() if of == thing}


def found(old=(), new=(), newest=()):
    return collections.OrderedDict([(OLD, list(old)), (NEW, list(new)), (NEWEST, list(newest))])


def whole_rows(text):
    """The first table, as lists of cells."""
    lines = [line for line in text.split("## The stacks")[0].splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    assert rows[0] == ["TensorFlow", "Keras", "Python", "NumPy", "mode", "tested"] + compat_matrix.THINGS
    return rows[2:]


def first_table(text):
    """{(TensorFlow, Keras, mode): {thing: cell}}."""
    return {(each[0], each[1], each[4]): dict(zip(compat_matrix.THINGS, each[6:])) for each in whole_rows(text)}


def test_the_commands_that_install_a_stack(config):
    assert (
        environments.install(OLD, "3.6.15", config)
        == 'python3.6 -m pip install legacyga tensorflow==1.8.0 keras==2.1.6 "h5py<3" six'
    )
    assert (
        environments.install(NEW, "3.10", config)
        == 'python3.10 -m pip install legacyga tensorflow-cpu==2.15.1 "h5py<3" numpy'
    )
    # What is installed without what it asks for comes after the others.
    assert environments.install(NEWEST, "3.13.0", config) == (
        'python3.13 -m pip install legacyga tensorflow-cpu==2.21.0 "keras==3.15.*" numpy'
        " && python3.13 -m pip install --no-deps tf-keras==2.21.0"
    )
    assert '"keras==3.12.*"' in environments.install(NEWEST, "3.10", config)


def wrong_pins(env, config=None):
    """What tox.ini pins for an environment that is not what its name says: sentences on what to change."""
    factors, found = environments.factors_of(env), []
    requirements, after = environments.pins(env, environments.python_of(env), config)
    tensorflow, keras, tfkeras = factors["tf"], factors.get("keras"), factors.get("tfkeras")

    def check(package, version, told):
        """That it has one pin, of this version, or none where the version is None."""
        given = [each for each in requirements + after if re.match(package + "(-cpu)?==", each)]
        fits = [(each.partition("==")[2] + ".").startswith("{}.".format(version)) for each in given]
        if fits != [True] * (version is not None):
            words = (env, ", ".join(given) or "no " + package, "one " + version if version else "none", told)
            found.append("tox.ini: `deps` gives {} {}, and should give it {}. {}".format(*words))

    check("tensorflow", tensorflow, "Add a line for tf{}.".format(tensorflow))
    if any(re.match("tensorflow.*rc", each) for each in requirements):
        check(
            "keras",
            None,
            "A release candidate brings its own: exclude it by `keras{}-!tf{}`.".format(keras, tensorflow),
        )
    else:
        told = "Add a line for keras{}, or take `-!tf{}` away: it is for a release candidate."
        check("keras", keras, told.format(keras, tensorflow))
    check("tf-keras", tfkeras, "Add a line for tfkeras{}.".format(tfkeras))
    if any(each.startswith("tf-keras==") for each in requirements):
        found.append("tox.ini: the line of UV_OVERRIDE has no tfkeras{}, for {}".format(tfkeras, env))
    return found


@pytest.mark.parametrize("env", environments.environments())
def test_the_pins_of_this_tree(env):
    """One TensorFlow of the environment's name, and its Keras."""
    assert not wrong_pins(env), "\n".join(wrong_pins(env))


PINS = """
[testenv]
deps =
    tf2.22: tensorflow-cpu==2.22.0
    keras3: keras==3.15.*
    tfkeras2.22: tf-keras==2.22.0
set_env =
    tfkeras2.22: UV_OVERRIDE = override.txt
"""


@pytest.mark.parametrize(
    "env, line, by, told",
    [
        ("py313-tf2.22-keras3", "", "", None),
        ("py313-tf2.22-tfkeras2.22", "", "", None),
        ("py313-tf2.22-keras3", "cpu==2.22.0\n    keras3:", "cpu==2.22.0rc0\n    keras3-!tf2.22:", None),
        (
            "py313-tf2.22-keras3",
            "    tf2.22: tensorflow-cpu==2.22.0\n",
            "",
            "gives {} no tensorflow, and should give it one 2.22",
        ),
        (
            "py313-tf2.22-keras3",
            "cpu==2.22.0",
            "cpu==2.21.0",
            "gives {} tensorflow-cpu==2.21.0, and should give it one 2.22",
        ),
        ("py313-tf2.22-keras3", "cpu==2.22.0", "cpu==2.22.0rc0", "exclude it by `keras3-!tf2.22`"),
        ("py313-tf2.22-keras3", "keras3:", "keras3-!tf2.22:", "take `-!tf2.22` away"),
        ("py313-tf2.22-keras3", "keras==3.15", "keras==2.15", "gives {} keras==2.15.*, and should give it one 3."),
        ("py313-tf2.22-tfkeras2.22", "keras3:", "tf2.22:", "gives {} keras==3.15.*, and should give it none"),
        ("py313-tf2.22-tfkeras2.22", "    tfkeras2.22: tf-keras==2.22.0\n", "", "Add a line for tfkeras2.22"),
        (
            "py313-tf2.22-tfkeras2.22",
            "    tfkeras2.22: UV",
            "    tfkeras2.21: UV",
            "UV_OVERRIDE has no tfkeras2.22, for {}",
        ),
    ],
)
def test_a_wrong_pin_is_named_with_what_to_change(env, line, by, told):
    config = configparser.ConfigParser(interpolation=None)
    config.read_string(PINS.replace(line, by) if line else PINS)
    found = wrong_pins(env, config)
    assert len(found) == (told is not None)
    assert told is None or told.format(env) in found[0]


def test_every_factor_of_tox_ini_stands_in_the_name_of_an_environment():
    """A pin, or an exclusion, that is left behind is of nothing that is tested."""
    idle = environments.idle_factors()
    assert not idle, "tox.ini: no environment has {} in its name: add one, or take away its lines".format(
        ", ".join(idle)
    )


def test_every_rule_of_the_contract_has_a_column():
    rules = [name.split()[0] for name in compat_matrix.CAPABILITIES if name[0] == "R"]
    assert list(collections.OrderedDict.fromkeys(rules)) == ["R{}".format(i) for i in range(1, 16)]
    assert {thing for thing in compat_matrix.CAPABILITIES.values() if thing} == set(compat_matrix.THINGS)


def test_what_another_run_of_the_environment_left_out():
    """The word is that of the run which has the tests."""

    def of_replicas(mode, found):
        return run("tf.keras", mode, "2.4.4", "2.4.0", "3.8", R12__replicas=found)

    without = of_replicas("graph", row(elsewhere={"tested in other environments of the matrix": 2}))
    kept = [of_replicas("eager", row(passed=2)), without]
    for found, words in (
        (row(elsewhere={compat_matrix.TAKES_LONG: 2}), []),
        (row(elsewhere={"no reason": 2}), ["replicas: 'yes' is kept, 'not run' was seen"]),
        (row(failed=1, elsewhere={compat_matrix.TAKES_LONG: 1}), []),
    ):
        assert compat_matrix.untrue(without, kept, [of_replicas("eager", found), without]) == words


def test_what_was_not_run_claims_nothing():
    kept, seen = [run("keras", "graph", "1.8.0", "2.1.6", "3.6", **rows) for rows in ({}, every("MySGD", row(8)))]
    assert compat_matrix.untrue(kept, [kept], [seen]) == []


def test_a_run_of_other_versions_shows_nothing():
    kept, seen = [run("keras", "graph", "1.8.0", "2.1.6", python) for python in ("3.6", "3.5")]
    assert compat_matrix.untrue(kept, [kept], [seen]) == ["it was not run with 1.8.0, keras 2.1.6, Python 3.6"]


def test_another_patch_of_python_is_the_same_stack():
    """Kept on one machine, and run on another."""
    rows = every("MySGD", row(passed=8))
    kept, seen = [run("keras", "graph", "1.8.0", "2.1.6", python, **rows) for python in ("3.6", "3.6.15")]
    assert compat_matrix.untrue(kept, [kept], [seen]) == []


# ------------------------------------------------------------------------------------------------ what was not run


def yes(home, mode, **others):
    rows = dict(every("MySGD", row(passed=1)), **every("wrap", row(passed=1)))
    return run(home, mode, "2.4.4", "2.4.0", "3.8", **dict(rows, **others))


def neighbours(*tested):
    """Of py38-tf2.7, whose neighbours are `tested`: [(environment, records)]."""
    return compat_matrix.Neighbours(dict(tested, **{"py38-tf2.7": []}))


def test_the_order_of_environments():
    """By numbers, and `keras3` is the newest."""
    names = "py36-tf1.8-keras2.1 py36-tf1.13-keras2.2 py37-tf1.13-keras2.2 py38-tf2.9 py310-tf2.9 py39-tf2.20-keras3.2 "
    names = (names + "py39-tf2.20-keras3.10 py313-tf2.20-keras3 py39-tf2.20-tfkeras2.20").split()
    assert sorted(sorted(names, reverse=True), key=environments.position) == names


@pytest.mark.parametrize(
    "env, runs",
    [
        ("py36-tf1.8-keras2.0", ["keras graph", "tf.keras graph"]),
        ("py36-tf2.0-keras2.3", ["keras graph", "tf.keras eager", "tf.keras graph"]),
        ("py38-tf2.3-keras2.4", ["tf.keras eager", "tf.keras graph"]),
        ("py36-tf1.8", ["tf.keras graph"]),
        ("py39-tf2.16-keras3.0", ["keras eager"]),
        ("tf2.21-keras3", ["keras eager"]),
        ("py311-tf2.15-tfkeras2.15", ["tf_keras eager", "tf_keras graph"]),
    ],
)
def test_the_homes_of_an_environment_by_its_name(env, runs):
    assert [" ".join(each) for each in environments.runs_of(env)] == runs


# ------------------------------------------------------------------------------------------- the code and its age


# ---------------------------------------------------------------------------------------------- the tree's own files


def test_the_core_is_a_part_of_the_matrix():
    labels = environments.labels()
    assert set(labels["core"]) <= set(labels["full"])
    assert len(set(labels["full"])) == len(labels["full"])
    assert environments.tox_ini()["tox"]["env_list"].split() and set(
        environments.tox_ini()["tox"]["env_list"].split()
    ) == set(labels["core"])


# How the tests name a run in few environments: conftest.LONG, pages.RUNS, the arguments of the marker `long`.
RUN = r'\(\s*"(keras|tf\.keras|tf_keras)",\s*"(graph|eager)",\s*"(\d+\.\d+)",?\s*\)'


def test_what_runs_in_few_environments_runs_in_the_core():
    """Else no change would be tested with it, in silence."""
    core, named = environments.runs_of_the_core(), {}
    for path in sorted(glob.glob(os.path.join(HERE, "*.py"))):
        with open(path, encoding="utf-8") as file:
            for each in re.findall(RUN, file.read()):
                named.setdefault(each, set()).add("tests/" + os.path.basename(path))
    wrong = ["{} names {}".format(", ".join(sorted(named[each])), each) for each in sorted(set(named) - set(core))]
    assert not wrong, "{}. The core has {}".format("; ".join(wrong), sorted(core))
    assert set(conftest.LONG) | set(pages.RUNS.values()) <= set(named)


def test_every_tensorflow_is_tested_or_said_not_to_be():
    """No minor version between the oldest and the newest is passed over in silence."""
    listed = environments.environments() + list(compat_matrix.cannot_be_installed())
    there = {environments.as_numbers(environments.factors_of(env)["tf"]) for env in listed}
    wanted = {(1, minor) for minor in range(4, 16)} | {(2, minor) for minor in range(max(there)[1] + 1)}
    assert sorted(wanted - there) == []


def test_what_cannot_be_installed_has_a_reason_and_no_environment():
    found = compat_matrix.cannot_be_installed()
    both = sorted(set(found) & set(environments.environments()))
    assert not both, "tests/not_installable.json has {}, and so has tox.ini: take it away from one of them".format(
        ", ".join(both)
    )
    for env, reason in found.items():
        environments.factors_of(env)
        assert len(reason.split()) >= 4, env


def check(tree):
    """(exit code, what is printed) of the check in a copy of the tree."""
    process = subprocess.Popen(
        [sys.executable, str(tree.join("tests", "compat_matrix.py")), "--check"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    printed, _ = process.communicate()
    return process.returncode, printed


@pytest.fixture(scope="module")
def first_tree(tmpdir_factory):
    """A copy in which the file is what the results say, one of them of the present code."""
    made = copy_of_the_tree(tmpdir_factory.mktemp("tree").mkdir("tree"))
    assert check(made) == (0, ""), "compat_matrix.md is not what the result files say"
    path = str(made.join("tests", "results", "py310-tf2.15-tf.keras-eager.json"))
    record = result_files.read(path)
    record.update(date=DAY, code=result_files.code_of(str(made.join("legacyga"))))
    result_files.write(path, record)
    subprocess.check_call([sys.executable, str(made.join("tests", "compat_matrix.py"))])
    assert check(made) == (0, "")
    return made


@pytest.fixture
def tree(first_tree, tmpdir):
    """A copy of it to change."""
    made = tmpdir.join("tree")
    shutil.copytree(str(first_tree), str(made))
    return made


# ---------------------------------------------------------------------------------------------- what is known to fail


def test_the_known_failures_of_this_tree():
    """Each is of an environment that there is."""
    for factors, entries in known_failures.read().items():
        assert entries, factors
        wanted = set(factors.split("-"))
        assert [env for env in environments.environments() if wanted <= set(env.split("-"))], factors


@pytest.fixture
def folder(tmpdir):
    made = tmpdir.mkdir("known")
    made.join("tf2.15.json").write(
        json.dumps([{"test": "test_a.py::test_x[*]", "mode": "graph", "reason": "a bug of 2.15"}])
    )
    made.join("py310-tf2.15.json").write(json.dumps([{"test": "test_a.py::test_y", "reason": "of this Python"}]))
    made.join("tf2.1.json").write(json.dumps([{"test": "*", "reason": "of another"}]))
    return str(made)


def test_known_failures_are_those_of_the_factors(folder):
    both = [("test_a.py::test_y", "of this Python"), ("test_a.py::test_x[*]", "a bug of 2.15")]
    assert known_failures.of("py310-tf2.15", "tf.keras", "graph", folder) == both
    assert known_failures.of("py310-tf2.15", "tf.keras", "eager", folder) == both[:1]
    assert known_failures.of("py39-tf2.15", "tf.keras", "graph", folder) == both[1:]
    assert known_failures.of("py39-tf2.10", "tf.keras", "graph", folder) == []


@pytest.mark.parametrize(
    "entry", [{"test": "*"}, {"test": "*", "reason": " "}, {"test": "*", "reason": "so", "homes": "keras"}]
)
def test_an_entry_without_a_reason(tmpdir, entry):
    tmpdir.join("tf2.15.json").write(json.dumps([entry]))
    with pytest.raises(ValueError, match="tf2.15.json: an entry has a test and a reason"):
        known_failures.read(str(tmpdir))


def test_the_patterns_of_known_failures():
    tests = ["test_a.py::test_x[1.5-a]", "test_a.py::test_x[105-a]", "test_b.py::test_y"]
    assert known_failures.assign([("test_a.py::test_x[1.5-*]", "why")], tests) == {0: "why"}
    assert known_failures.assign([("test_a.py::*", "why")], tests) == {0: "why", 1: "why"}
    for pattern in ("test_a.py::test_x[1]", "test_a.py::test_x[5*]", "test_c.py::test_z"):
        with pytest.raises(ValueError, match="fits no test"):
            known_failures.assign([(pattern, "why")], tests)
    # A run of one file says nothing of the others.
    assert known_failures.assign([("test_c.py::test_z", "why")], tests, {"test_a.py", "test_b.py"}) == {}
    with pytest.raises(ValueError, match="fits no test"):
        known_failures.assign([("test_a.py::test_z", "why")], tests, {"test_a.py"})
    assert known_failures.short_name("tests/test_a.py::test_x[a/b::c]") == "test_a.py::test_x[a/b::c]"


PLUGIN = """
import types
import conftest
conftest.installed = lambda: {"py": "3.10", "tf": "2.15.1"}
library = types.SimpleNamespace(__version__="2.15.1")
found = types.SimpleNamespace(name="tf.keras", mode="graph", version="2.15.0", tf=library, tf_version=(2, 15))
found.reset, found.is_keras3_before = lambda: None, lambda *version: False
conftest.homes.start = lambda name, mode: found
"""
KNOWN = """
import pytest
pytestmark = pytest.mark.capability("house")
@pytest.mark.parametrize("value", [1, 2])
def test_x(value): assert value == 3
def test_y(): assert fails
def test_z(): pass
"""


def run_known(tmpdir, folder, fails, *arguments):
    """(exit code, result file's record, what is printed) of a run of KNOWN in an environment py310-tf2.15."""
    return run_tests(tmpdir, KNOWN + "fails = {!r}\n".format(fails), *arguments, LEGACYGA_KNOWN_FAILURES=folder)


def run_tests(tmpdir, source, *arguments, **environ):
    """The same of a run of any test file."""
    tmpdir.join("plugin.py").write(PLUGIN)
    tmpdir.join("test_a.py").write(source)
    path = str(tmpdir.join("result.json"))
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "plugin", "-p", "no:cacheprovider"]
        + (list(arguments) or [str(tmpdir)]),
        env=dict(
            os.environ,
            PYTHONPATH=os.pathsep.join([HERE, str(tmpdir)]),
            LEGACYGA_ENV="py310-tf2.15",
            LEGACYGA_RESULT_FILE=path,
            **environ,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        cwd=str(tmpdir),
    )
    printed, _ = process.communicate()
    return process.returncode, result_files.read(path) if os.path.exists(path) else None, printed


LONG_TESTS = """
import pytest
@pytest.mark.capability("house")
@pytest.mark.long(only=[("tf.keras", "graph", "2.15")])
def test_long(): pass
@pytest.mark.capability("R1 mean")
@pytest.mark.long(only=[("tf.keras", "graph", "1.15")])
def test_long_elsewhere(home): pass
@pytest.mark.capability("R12 replicas")
@pytest.mark.long(only=[("tf.keras", "graph", "2.15")], in_core=True)
def test_long_in_core(home): pass
@pytest.mark.capability("errors")
def test_errors(home): pass
@pytest.mark.capability("R2 weights")
@pytest.mark.slow
def test_slow(home): pass
@pytest.mark.capability("R1 mean")
def test_mean(home): pass
@pytest.mark.capability("R3 nothing else moves")
def test_beside_it(home): pass
@pytest.mark.capability("R9 state")
def test_of_no_home(): pass
@pytest.mark.capability("R5 phase")
@pytest.mark.parametrize("case", range(4))
def test_cases(home, case): pass
@pytest.mark.capability("R8 change of K")
@pytest.mark.parametrize("case", range(3))
def test_few_cases(home, case): pass
"""


SHORT = {"errors": 1, "house": 1}
SHORT.update({"R1 mean": 1, "R2 weights": 1, "R3 nothing else moves": 1, "R5 phase": 3, "R8 change of K": 3})


@pytest.mark.parametrize(
    "arguments, environ, left_out, elsewhere",
    [
        ([], {}, SHORT, 1),
        ([], {"LEGACYGA_WHOLE": "1"}, {}, 1),
        # All that there is.
        (["--more"], {}, {}, 0),
    ],
)
def test_what_a_run_leaves_out(tmpdir, arguments, environ, left_out, elsewhere):
    """In a run between two others: what is long, what is no number, and what other runs have."""
    arguments = arguments + [str(tmpdir)] if arguments else []
    environ = dict({"LEGACYGA_WHOLE": ""}, **environ)
    code, record, printed = run_tests(tmpdir, LONG_TESTS, *arguments, **environ)
    assert code == 0, printed
    rows = record["capabilities"]
    assert {name: compat_matrix.left_out(row) for name, row in rows.items() if compat_matrix.left_out(row)} == left_out
    assert sum(row["passed"] for row in rows.values()) == 15 - elsewhere - sum(left_out.values())
    # It is no test that no run of the label has.
    skipped = result_files.read_skipped(str(tmpdir.join("result.json")))
    assert sorted(skipped) == ["test_a.py::test_long_elsewhere"] * elsewhere


@pytest.mark.parametrize("cases", [1, 2, 3, 4, 9, 12, 60])
def test_the_runs_beside_one_another_share_the_tests(cases):
    """What all of OptimizerV2 have is run by one of them, and so is what all of standalone Keras have."""
    has = {
        each: {
            (place, case)
            for place in range(30)
            for case in range(cases)
            if not conftest.is_another_runs(each, place, case, cases)
        }
        for each in conftest.RUNS
    }
    everything = {(place, case) for place in range(30) for case in range(cases)}
    for (home, mode, tf), own in has.items():
        share = min(cases, 3) if cases < 10 or home == "keras" else 6
        groups = {("keras", "eager"): 1, ("keras", "graph"): 3}
        functions = len(conftest.beside((home, mode, tf))) if (home, mode, tf) in conftest.BETWEEN else 2
        assert len(own) == len(everything) // max(share, groups.get((home, mode), functions))
    standalone = [has["keras", "graph", tf] for tf in ("1.8", "1.13", "1.15")]
    assert set.union(*standalone) == everything
    in_graphs = [own for each, own in has.items() if each[0] != "keras" and each[1] == "graph" and each[2] != "1.8"]
    assert set.union(*in_graphs) == everything
    between = [own for each, own in has.items() if each in conftest.BETWEEN and each[1] == "graph"]
    assert set.union(*between) == everything or cases >= 10
    # What needs a new optimizer is in no run of BETWEEN, nor in an old one.
    newest = [has["tf.keras", "eager", "2.15"], has["tf_keras", "eager", "2.21"]]
    newest += [has["tf.keras", "eager", "2.0"]] if cases > 2 else []
    assert not newest[0] & newest[1]
    assert set.union(*newest) == everything or cases >= 10


def test_a_run_with_none_beside_it_has_every_function():
    alone = ("keras", "eager", "2.21")
    assert conftest.beside(alone) == [alone]
    for cases, share in ((1, 1), (3, 3), (4, 3), (12, 3)):
        for place in range(4):
            found = [case for case in range(cases) if not conftest.is_another_runs(alone, place, case, cases)]
            assert len(found) in (cases // share, cases // share + 1) and found


def test_a_test_that_few_runs_may_have_is_in_all_of_them():
    for each in conftest.RUNS:
        assert not conftest.is_another_runs(each, None, 0, 1)


def generation_of(home, tensorflow):
    """Of its optimizers: tf.keras has those of `get_updates` up to TensorFlow 1.13."""
    if home == "keras":
        return "keras_v1" if tensorflow < [2] else "keras3"
    return "keras_v1" if tensorflow < [1, 14] else "optimizer_v2"


def test_a_run_that_has_the_numbers_alone_is_between_two_of_its_generation():
    runs = [(home, mode, list(environments.as_numbers(tf))) for home, mode, tf in environments.runs_of_the_core()]
    between = [(home, mode, list(environments.as_numbers(tf))) for home, mode, tf in conftest.BETWEEN]
    for run_of in between:
        assert run_of in runs
        home, mode, tensorflow = run_of
        whole = [each for each in runs if each not in between and each[1] == mode]
        alike = [tf for other, _, tf in whole if generation_of(other, tf) == generation_of(home, tensorflow)]
        assert min(alike) < tensorflow < max(alike), run_of


def test_a_known_failure_is_counted_as_one(tmpdir, folder):
    code, record, printed = run_known(tmpdir, folder, False)
    assert code == 0, printed
    rows = record["capabilities"]["house"]
    assert (rows["passed"], rows["failed"]) == (1, 0)
    assert rows["xfailed"] == {"a bug of 2.15": 2, "of this Python": 1}
    assert record["failing"] == []


def test_a_known_failure_that_passes_is_a_failure(tmpdir, folder):
    code, record, printed = run_known(tmpdir, folder, True)
    assert code == 1, printed
    assert (record["capabilities"]["house"]["passed"], record["capabilities"]["house"]["failed"]) == (1, 1)
    assert record["failing"] == ["test_a.py::test_y"]


def test_a_known_failure_that_fits_no_test_is_an_error(tmpdir, folder):
    with open(os.path.join(folder, "tf2.15.json"), "w") as file:
        json.dump([{"test": "test_a.py::test_w", "reason": "gone"}], file)
    code, record, printed = run_known(tmpdir, folder, False)
    assert code == 4 and record is None
    assert "known_failures: 'test_a.py::test_w' fits no test" in printed
    # One test of the file says nothing of the others there.
    code, _, printed = run_known(tmpdir, folder, False, str(tmpdir.join("test_a.py")) + "::test_z")
    assert code == 0, printed


# ---------------------------------------------------------------------------------------------- what conftest.py counts

Report = collections.namedtuple("Report", "outcome passed skipped longrepr nodeid")


def skipped(text):
    return Report("skipped", False, True, ("file", 1, text), "test_x.py::test_x")


@pytest.mark.parametrize("kind", sorted(skips.KINDS))
def test_each_kind_of_skip_is_counted_apart(kind):
    with pytest.raises(pytest.skip.Exception) as caught:
        getattr(skips, kind)("a reason: with a colon")
    results = {}
    for _ in range(2):
        conftest.record(results, "house", skipped("Skipped: " + str(caught.value)))
    conftest.record(results, "house", Report("passed", True, False, None, ""))
    assert results == {"house": dict(row(passed=1), **{kind: {"a reason: with a colon": 2}})}


def test_a_test_over_nothing_is_skipped_by_pytest_itself():
    results = {}
    conftest.record(results, "house", skipped("Skipped: got empty parameter set for (sgd)"))
    assert results["house"]["senseless"] == {"nothing of the kind to test with": 1}


@pytest.mark.parametrize("text", ["Skipped: because", "Skipped: because: it is so", "Skipped: "])
def test_a_skip_without_a_kind(text):
    assert skips.parse(text) is None
    with pytest.raises(pytest.UsageError, match="skips without saying which kind"):
        conftest.record({}, "house", skipped(text))


def test_a_run_with_a_skip_without_a_kind_is_a_usage_error(tmpdir):
    tmpdir.join("test_it.py").write(
        "import pytest, skips\n"
        "pytestmark = pytest.mark.capability('house')\n"
        "def test_one(): skips.senseless('so')\n"
        "def test_two(): pytest.skip('so')\n"
    )
    for selection, code in (("test_one", 0), ("test_two", 4)):
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", str(tmpdir), "-k", selection],
            env=dict(os.environ, PYTHONPATH=HERE, LEGACYGA_ENV="", LEGACYGA_RESULT_FILE=""),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            cwd=str(tmpdir),
        )
        printed, _ = process.communicate()
        assert process.returncode == code, printed
    assert "test_two skips without saying which kind of skip it is" in printed


@pytest.mark.parametrize("exitstatus, written", [(0, True), (1, True), (2, False), (3, False)])
def test_a_run_that_was_interrupted_is_no_result(monkeypatch, tmpdir, exitstatus, written):
    """It counts the tests up to then, and would say that there are no more."""
    path = tmpdir.join("result.json")
    monkeypatch.setenv("LEGACYGA_RESULT_FILE", str(path))
    library = types.SimpleNamespace(__version__="2.15.1")
    home = types.SimpleNamespace(name="tf.keras", mode="graph", version="2.15.0", tf=library)
    config = types.SimpleNamespace(legacyga_home=home, legacyga_results={}, legacyga_failing=["test_x.py::test_y"])
    config.legacyga_ran, config.legacyga_skipped = {"test_x.py::test_y"}, {"test_x.py::test_y", "test_x.py::test_z"}
    monkeypatch.setattr(result_files, "imported_code", lambda: CODE)
    conftest.pytest_sessionfinish(types.SimpleNamespace(config=config), exitstatus)
    assert path.exists() == written
    if written:
        record = result_files.read(str(path))
        assert record["versions"] == {
            "python": "{}.{}.{}".format(*sys.version_info),
            "tensorflow": "2.15.1",
            "keras": "2.15.0",
            "numpy": sys.modules["numpy"].__version__,
        }
        assert re.match(r"20\d\d-\d\d-\d\d$", record["date"])
        assert (record["code"], record["failing"]) == (CODE, ["test_x.py::test_y"])
        assert result_files.read_skipped(str(path)) == {"test_x.py::test_z"}


def test_a_test_that_is_skipped_in_every_run_is_seen(tmpdir):
    for mode, skipped in (("graph", ["a.py::one", "a.py::two"]), ("eager", ["a.py::two", "b.py::one"])):
        result_files.write_skipped(str(tmpdir.join(NEW + "-tf.keras-{}.json".format(mode))), skipped)
    assert compat_matrix.run_nowhere(str(tmpdir), [NEW]) == ["a.py::two"]
    with pytest.raises(SystemExit) as caught:
        compat_matrix.check_all_ran(str(tmpdir), [NEW])
    assert "skipped in every run of the label:\na.py::two" in str(caught.value)
    result_files.write_skipped(str(tmpdir.join(NEW + "-tf.keras-eager.json")), ["b.py::one"])
    compat_matrix.check_all_ran(str(tmpdir), [NEW])


# ----------------------------------------------------------------------------------------------- what is kept, the page


def kept(*records):
    """{environment: what is kept of runs of TensorFlow 2.4 and newer, in eager mode}."""
    found = collections.OrderedDict()
    for env, tensorflow, rows in records:
        record = run("tf.keras", "eager", tensorflow, tensorflow, "3.9", **rows)
        found[env] = [compat_matrix.line_of(env, record, [record])]
    return found


def first_rows(text):
    return [line for line in text.splitlines() if line.startswith("| tf.keras |")]


def test_versions_that_answer_alike_are_one_line():
    yes, lacks = every("MySGD", row(passed=2)), every("MySGD", row(passed=2, we_lack={"it is too old": 1}))
    found = kept(("py38-tf2.4", "2.4.4", lacks), ("py39-tf2.9", "2.9.3", yes), ("py39-tf2.10", "2.10.1", yes))
    lines = first_rows(compat_matrix.render(found))
    assert [line.split(" | ")[1:4] for line in lines] == [
        ["2.4", "eager", "in part [1]"],
        ["2.9 to 2.10", "eager", "yes"],
    ]
    assert "\n1. It is too old.\n" in compat_matrix.render(found)


@pytest.mark.parametrize(
    "rows, word",
    [
        (row(passed=2), "yes"),
        (row(passed=2, failed=1), "**broken**"),
        (row(passed=2, xfailed={"x": 1}), "yes, but [1]"),
        (row(passed=2, we_lack={"x": 1}), "in part [1]"),
        (row(xfailed={"x": 1}), "no [1]"),
        (row(we_lack={"x": 1}), "no [1]"),
        # A skip is never a pass.
        (row(senseless={"x": 1}), "–"),
        (row(keras_lacks={"x": 1}), "–"),
        (row(elsewhere={"x": 1}), "not run"),
        (row(), "not run"),
    ],
)
def test_the_words_of_a_cell(rows, word):
    (line,) = first_rows(compat_matrix.render(kept(("py38-tf2.4", "2.4.4", every("MySGD", rows)))))
    assert line.split(" | ")[3] == word


def test_replicas_that_were_tested_on_one_version_alone():
    rows = every("MySGD", row(passed=2))
    found = kept(("py38-tf2.4", "2.4.4", dict(rows, R12__replicas=row(passed=2))), ("py39-tf2.5", "2.5.3", rows))
    text = compat_matrix.render(found)
    (line,) = first_rows(text)
    assert line.split(" | ")[1] == "2.4 to 2.5" and "| yes [1] |" in line
    assert "\n1. Several replicas were tested on TensorFlow 2.4 alone.\n" in text


def test_a_run_that_died_is_broken():
    record = dict(run("tf.keras", "eager", "2.4.4", "2.4.0", "3.8", R1__mean=row(passed=2)), crashed="it died")
    line = compat_matrix.line_of("py38-tf2.4", record, [record])
    assert {word for word, _ in line["things"].values()} == {"broken"} and line["failed"] == 1


def test_what_is_tested_in_another_run_of_its_environment():
    without = run("tf.keras", "graph", "2.4.4", "2.4.0", "3.8", R12__replicas=row(elsewhere={"in eager mode": 2}))
    tested = run("tf.keras", "eager", "2.4.4", "2.4.0", "3.8", R12__replicas=row(passed=2))
    assert compat_matrix.verdict_on("replicas", without, [without, tested])[0] == "yes"
    assert compat_matrix.verdict_on("replicas", without, [without])[0] == compat_matrix.NOT_RUN


@pytest.mark.parametrize(
    "run_of, words",
    [
        ({}, []),
        (dict(R1__mean=row(passed=8, failed=1)), ["MySGD: 'yes' is kept, 'broken' was seen"]),
        (dict(R1__mean=row(we_lack={"x": 1})), ["MySGD: 'yes' is kept, 'no' was seen"]),
        (dict(R9__state=row(passed=2)), ["saving: 'no' is kept, 'yes' was seen"]),
        # Another reason for the same word; and what takes long was left out.
        (dict(R9__state=row(we_lack={"y": 3})), []),
        (dict(R1__mean=row(elsewhere={compat_matrix.TAKES_LONG: 8})), []),
        (
            dict(R1__mean=row(passed=6, failed=1, elsewhere={compat_matrix.TAKES_LONG: 2})),
            ["MySGD: 'yes' is kept, 'broken' was seen"],
        ),
    ],
)
def test_what_a_run_does_not_show_of_what_is_kept(run_of, words):
    rows = dict(every("MySGD", row(passed=8)), R9__state=row(we_lack={"x": 3}))
    before = run("keras", "graph", "1.8.0", "2.1.6", "3.6", **rows)
    line = compat_matrix.line_of("py36-tf1.8-keras2.1", before, [before])
    seen = run("keras", "graph", "1.8.0", "2.1.6", "3.6", **dict(rows, **run_of))
    assert compat_matrix.untrue(line, [line], [seen]) == words


def test_an_environment_that_was_not_run_is_an_error():
    with pytest.raises(SystemExit, match="no result file for py38-tf2.4"):
        compat_matrix.check_run({"py38-tf2.4": []}, {"py38-tf2.4": []})


def test_a_run_that_left_tests_out_is_not_kept(tmpdir):
    path = tmpdir.join("py38-tf2.4-tf.keras-eager.json")
    left_out = row(passed=1, elsewhere={compat_matrix.TAKES_LONG: 1})
    result_files.write(str(path), run("tf.keras", "eager", "2.4.4", "2.4.0", "3.8", R1__mean=left_out))
    with pytest.raises(SystemExit, match="left tests out"):
        compat_matrix.keep([str(path)])


def test_what_a_run_came_to_is_kept_in_the_place_of_what_was(tmpdir, monkeypatch):
    monkeypatch.setattr(compat_matrix, "KEPT", str(tmpdir.join("results.jsonl")))
    result_files.write_lines(compat_matrix.KEPT, [])
    for passed, mode in ((1, "graph"), (2, "eager"), (3, "graph")):
        path = str(tmpdir.join("py38-tf2.4-tf.keras-{}.json".format(mode)))
        result_files.write(path, run("tf.keras", mode, "2.4.4", "2.4.0", "3.8", R1__mean=row(passed=passed)))
        compat_matrix.keep([path])
    lines = result_files.read_lines(compat_matrix.KEPT)
    assert [(line["mode"], line["passed"]) for line in lines] == [("eager", 2), ("graph", 3)]


def test_the_hash_is_of_what_the_code_does(tmpdir):
    """Not of comments, docstrings and layout; and it is the same with every Python that runs this test."""
    texts = [
        'def f(x):\n    """Text."""\n    return x + 1\n',
        '"""Other."""\n\n\ndef f(\n    x\n):\n    # Why.\n    return x + 1  # So.\n',
        "def f(x):\n    return x + 2\n",
        "def f(x):\n    return 'x'\n",
        "def f(x):\n    pass\nreturn x + 1\n",
    ]
    found = []
    for text in texts:
        tmpdir.join("a.py").write(text)
        found.append(result_files.code_of(str(tmpdir)))
    assert found[0] == found[1] and len(set(found)) == 4
    assert found[0] == "6f92a33d8b3a"


def test_the_page_of_this_tree():
    """It is what the kept lines say, it is short, nothing that is kept fails, and each environment has a line."""
    with open(compat_matrix.TARGET, encoding="utf-8") as file:
        text = file.read()
    assert text == compat_matrix.present_text() and len(text.encode()) <= 20000
    assert "**broken** |" not in text
    found = compat_matrix.load()
    assert sorted(found) == sorted(environments.environments())
    # An environment of which nothing is kept would claim nothing.
    assert [env for env, records in found.items() if len(records) < len(environments.runs_of(env))] == []


def test_a_change_by_hand_is_seen(monkeypatch, tmpdir, capsys):
    changed = tmpdir.join("compat_matrix.md")
    with open(compat_matrix.TARGET, encoding="utf-8") as file:
        changed.write_text(file.read().replace("| no [1] |", "| yes |"), "utf-8")
    monkeypatch.setattr(compat_matrix, "TARGET", str(changed))
    with pytest.raises(SystemExit, match="is not what tests/results.jsonl says"):
        compat_matrix.check_text()
    assert "-| keras" in capsys.readouterr().out
