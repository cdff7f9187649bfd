"""compat_matrix.md as it is made of result files written by hand, and the kinds of skips that they count."""

import collections
import configparser
import os
import subprocess
import sys
import types

import compat_matrix
import conftest
import pytest
import skips

pytestmark = pytest.mark.capability("house")

TOX = """
[tox]
env_list =
    py36-tf1.8-keras2.1
    py310-tf2.15
    tf2.21-tfkeras2.21
[testenv]
deps =
    pytest
    tf1.8: tensorflow==1.8.0
    # A comment.
    tf2.15: tensorflow-cpu==2.15.1
    tf2.21: tensorflow-cpu==2.21.0
    keras2.1: keras==2.1.6
    tfkeras2.21: tf-keras==2.21.0
    tf2.21: keras==3.15.*; python_version >= "3.11"
    tf2.21: keras==3.12.*; python_version < "3.11"
    tf1.8, tf2.15: h5py<3
    py36-tf1.8: six
    !tf1.8: numpy
set_env =
    LEGACYGA_ENV = {env_name}
    tfkeras2.21: UV_OVERRIDE = override.txt
"""
OLD, NEW, NEWEST = "py36-tf1.8-keras2.1", "py310-tf2.15", "tf2.21-tfkeras2.21"


@pytest.fixture
def config():
    made = configparser.ConfigParser(interpolation=None)
    made.read_string(TOX)
    return made


def row(passed=0, failed=0, **reasons):
    found = {name: {} for name in conftest.REASONS}
    return dict(found, passed=passed, failed=failed, **reasons)


def run(home, mode, tensorflow, keras, python, **capabilities):
    """A result file's record; `capabilities` by names in which __ stands for a space."""
    return dict(
        home=home,
        mode=mode,
        versions=dict(python=python, tensorflow=tensorflow, keras=keras),
        capabilities={name.replace("__", " "): value for name, value in capabilities.items()},
    )


def every(thing, value):
    """Rows for all capabilities of a thing."""
    return {name.replace(" ", "__"): value for name, of in compat_matrix.CAPABILITIES.items() if of == thing}


def found(old=(), new=(), newest=()):
    return collections.OrderedDict([(OLD, list(old)), (NEW, list(new)), (NEWEST, list(newest))])


def first_table(text):
    """{(TensorFlow, Keras, mode): {thing: cell}}."""
    lines = [line for line in text.split("## The stacks")[0].splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows[0] == ["TensorFlow", "Keras", "Python", "mode"] + compat_matrix.THINGS
    return {(each[0], each[1], each[3]): dict(zip(rows[0][4:], each[4:])) for each in rows[2:]}


def test_the_words_of_the_first_table(config):
    lacking = row(we_lack={"it needs more": 3}, senseless={"not here": 1})
    new = run(
        "tf.keras",
        "eager",
        "2.15.1",
        "2.15.0",
        "3.10",
        **dict(
            every("MySGD", row(passed=4, we_lack={"a corner": 1})),
            **dict(
                every("wrap", row(passed=2)),
                R2__weights=row(passed=7, failed=1),
                callback=lacking,
                R8__partial__windows=row(passed=9),
                R12__replicas=row(senseless={"one device": 2}),
                train_step=row(keras_lacks={"no train_step": 5}),
                GradientAccumulator=row(passed=1),
                R9__state=row(xfailed={"a bug of Keras": 2}),
            ),
        ),
    )
    text = compat_matrix.render(found(new=[new]), config)
    cells = first_table(text)
    assert cells["2.15.1", "tf.keras", "eager"] == {
        "MySGD": "yes",
        "wrap": "yes",
        "tf.train": "not run",
        "fit and callback": "no [1]",
        "unequal batches": "**broken**",
        "own loop": "yes",
        "batches in slices": "not run",
        "replicas": "there is no such thing",
        "saving": "no [2]",
    }
    assert "\n1. It needs more.\n2. A bug of Keras.\n" in text
    # An environment that was not run stands there with what its name asks for.
    assert set(cells["1.8", "keras 2.1", ""].values()) == {"not run"}
    assert set(cells["2.21", "tf_keras 2.21", ""].values()) == {"not run"}


@pytest.mark.parametrize("there", [True, False])
def test_what_is_tested_in_another_run(config, there):
    """It is a yes where that run passed, and else nothing is known."""
    reason = "tested in the run of tf.keras"
    tested_there = {"wrap: TF 1 optimizers": row(elsewhere={reason: 24})}
    here = run("keras", "graph", "1.8.0", "2.1.6", "3.6", **tested_there)
    other = run("tf.keras", "graph", "1.8.0", "2.1.6", "3.6", **{"wrap: TF 1 optimizers": row(passed=24)})
    cells = first_table(compat_matrix.render(found(old=[here] + [other] * there), config))
    assert cells["1.8.0", "keras 2.1.6", "graph"]["tf.train"] == ("yes [1]" if there else "not run")


def test_one_missing_capability_does_not_hide_behind_another(config):
    """A thing is as good as the worst of what is known of it."""
    for word, value in (
        ("yes", None),
        ("yes", row(senseless={"no": 1})),
        ("no", row(we_lack={"not yet": 1})),
        ("broken", row(passed=3, failed=1)),
    ):
        rows = {"wrap: every optimizer": row(passed=5)}
        if value is not None:
            rows["wrap: properties"] = value
        assert compat_matrix.verdict_on("wrap", run("tf.keras", "eager", "2.15.1", "", "3.10", **rows))[0] == word


def test_the_commands_that_install_a_stack(config):
    assert compat_matrix.install(OLD, "3.6", config) == [
        'python3.6 -m pip install legacyga tensorflow==1.8.0 keras==2.1.6 "h5py<3" six'
    ]
    assert compat_matrix.install(NEW, "3.10", config) == [
        'python3.10 -m pip install legacyga tensorflow-cpu==2.15.1 "h5py<3" numpy'
    ]
    # What is installed without what it asks for comes after the others.
    assert compat_matrix.install(NEWEST, "3.13", config) == [
        'python3.13 -m pip install legacyga tensorflow-cpu==2.21.0 "keras==3.15.*" numpy',
        "python3.13 -m pip install --no-deps tf-keras==2.21.0",
    ]
    assert '"keras==3.12.*"' in compat_matrix.install(NEWEST, "3.10", config)[0]


def test_the_pins_of_this_tree():
    """Every environment of tox.ini pins a TensorFlow."""
    for env in compat_matrix.environments():
        requirements, after = compat_matrix.pins(env, "3.12")
        assert [each for each in requirements if each.startswith("tensorflow")], env
        assert bool(after) == ("tfkeras" in env)


def test_a_section(config):
    record = run(
        "tf.keras",
        "graph",
        "2.15.1",
        "2.15.0",
        "3.10",
        **dict(
            every("MySGD", row(passed=4)),
            **dict(
                every("wrap", row(passed=2)),
                R2__weights=row(we_lack={"nobody counts samples": 3}, keras_lacks={"no train_step": 1}),
                house=row(passed=1, senseless={"a program": 2}, elsewhere={"a wheel": 1}),
            ),
        ),
    )
    text = compat_matrix.render(found(new=[record]), config)
    section = text.split("### ")[1]
    for wanted in (
        "TensorFlow 2.15.1, tf.keras, Python 3.10, graph mode\n",
        "tf.compat.v1.disable_eager_execution()\n",
        "legacyga.MySGD(",
        "legacyga.wrap(keras.optimizers.legacy.Adam(), gradient_accumulation_steps=8)",
        "Tested here: MySGD and wrap.\n",
        "Not run, and nothing claimed: tf.train, fit and callback, own loop, batches in slices, replicas and saving.\n",
        "What legacyga does not do here:\n\n- Nobody counts samples.\n",
        "What this TensorFlow or Keras does not have:\n\n- No train_step.\n",
        "What was tested in another run:\n\n- A wheel.\n",
        "<details><summary>23 tests passed: the counts by rule</summary>\n",
        "| house | 1 |  |  |  |  | 1 | 2 |\n",
        "| R2 weights |  |  |  | 1 | 3 |  |  |\n",
        "| R14 trouble | not run |  |  |  |  |  |  |\n",
    ):
        assert wanted in section, wanted
    assert "GradientAccumulationCallback" not in section
    assert "disable_eager_execution" not in "".join(
        compat_matrix.what_to_write(dict(record, mode="eager"), dict.fromkeys(compat_matrix.THINGS, "yes"))
    )


def test_every_rule_of_the_contract_has_a_column():
    rules = [name.split()[0] for name in compat_matrix.CAPABILITIES if name[0] == "R"]
    assert list(collections.OrderedDict.fromkeys(rules)) == ["R{}".format(i) for i in range(1, 16)]
    assert {thing for thing in compat_matrix.CAPABILITIES.values() if thing} == set(compat_matrix.THINGS)


@pytest.mark.parametrize(
    "run_of, words",
    [
        ({}, []),
        # A test that is new, and a reason that no longer is one.
        (dict(R1__mean=row(passed=9, elsewhere={})), []),
        (dict(R5__phase=row(passed=4)), []),
        (dict(R1__mean=row(passed=7)), ["R1 mean: 8 tests are kept as passed, 7 were"]),
        (
            dict(R1__mean=row(passed=8, failed=1)),
            ["MySGD: 'yes' is kept, 'broken' was seen"],
        ),
        (dict(R9__state=row(passed=2)), ["saving: 'no' is kept, 'yes' was seen"]),
        # Another reason for the same word.
        (dict(R9__state=row(we_lack={"y": 3})), []),
    ],
)
def test_what_a_run_does_not_show_of_what_is_kept(run_of, words):
    rows = dict(every("MySGD", row(passed=8, elsewhere={"z": 1})), R9__state=row(we_lack={"x": 3}))
    kept = run("keras", "graph", "1.8.0", "2.1.6", "3.6", **rows)
    seen = run("keras", "graph", "1.8.0", "2.1.6", "3.6", **dict(rows, **run_of))
    assert compat_matrix.untrue(kept, [kept], [seen]) == words


def test_what_was_not_run_claims_nothing():
    kept, seen = [run("keras", "graph", "1.8.0", "2.1.6", "3.6", **rows) for rows in ({}, every("MySGD", row(8)))]
    assert compat_matrix.untrue(kept, [kept], [seen]) == []


def test_a_run_of_other_versions_shows_nothing():
    kept, seen = [run("keras", "graph", "1.8.0", "2.1.6", python) for python in ("3.6", "3.5")]
    assert compat_matrix.untrue(kept, [kept], [seen]) == ["it was not run with 1.8.0, keras 2.1.6, 3.6"]


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
    here = os.path.dirname(os.path.abspath(__file__))
    for selection, code in (("test_one", 0), ("test_two", 4)):
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", str(tmpdir), "-k", selection],
            env=dict(os.environ, PYTHONPATH=here, LEGACYGA_ENV="", LEGACYGA_RESULT_FILE=""),
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
    config = types.SimpleNamespace(legacyga_home=home, legacyga_results={})
    conftest.pytest_sessionfinish(types.SimpleNamespace(config=config), exitstatus)
    assert path.exists() == written
