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


def test_the_words_of_the_first_table(config):
    lacking = row(we_lack={"it needs more": 3}, senseless={"not here": 1})
    new = run(
        "tf.keras",
        "eager",
        "2.15.1",
        "2.15.0",
        "3.10",
        **dict(
            every("MySGD", row(passed=4, we_lack={"wrap needs a newer one": 1})),
            **dict(
                every("wrap", row(passed=2, we_lack={"wrap needs a newer one": 1})),
                R2__weights=row(passed=7, failed=1),
                callback=lacking,
                R8__partial__windows=row(passed=9),
                R12__replicas=row(senseless={"one device": 2}),
                train_step=row(keras_lacks={"no train_step": 5}),
                GradientAccumulator=row(passed=1),
                R9__state=row(xfailed={"a bug of Keras": 2}),
                **every("tf.train", row(passed=3, xfailed={"a race of TensorFlow": 1})),
            ),
        ),
    )
    text = compat_matrix.render(found(new=[new]), config)
    cells = first_table(text)
    assert cells["2.15.1", "tf.keras", "eager"] == {
        "MySGD": "yes",
        "wrap": "in part [1]",
        "tf.train": "yes, but [2]",
        "fit and callback": "no [3]",
        "unequal batches": "**broken**",
        "own loop": "yes",
        "batches in slices": "not run",
        "replicas": "there is no such thing",
        "saving": "no [4]",
    }
    assert ("\n1. wrap needs a newer one.\n2. A race of TensorFlow.\n3. It needs more.\n4. A bug of Keras.\n") in text
    # An environment that was not run stands there with what its name asks for.
    assert set(cells["1.8.0", "keras 2.1.6", "graph"].values()) == {"not run"}
    assert set(cells["2.21.0", "tf_keras 2.21.0", "eager"].values()) == {"not run"}


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


def test_a_section(config):
    record = run(
        "tf.keras",
        "graph",
        "2.15.1",
        "2.15.0",
        "3.10.13",
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
    section = text.split("\n### ")[2]
    for wanted in (
        "py310-tf2.15\n\nTo install it, in a fresh environment:\n\n```\npython3.10 -m pip install legacyga tensorflow",
        "#### tf.keras, eager mode\n\nNot run. Nothing near it was.\n",
        "#### tf.keras, graph mode\n\nTested with TensorFlow 2.15.1, Keras 2.15.0, Python 3.10.13 and NumPy 1.26.4.\n"
        "Tested: 2026-11-20, earlier code. Hash of the code: 0123456789ab.\n",
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
        # What takes long was left out.
        (dict(R1__mean=row(passed=6, elsewhere={compat_matrix.TAKES_LONG: 2})), []),
        (dict(R1__mean=row(elsewhere={compat_matrix.TAKES_LONG: 8})), []),
        (
            dict(R1__mean=row(passed=6, elsewhere={compat_matrix.TAKES_LONG: 1})),
            ["R1 mean: 8 tests are kept as passed, 7 were"],
        ),
        (
            dict(R1__mean=row(passed=6, failed=1, elsewhere={compat_matrix.TAKES_LONG: 2})),
            ["MySGD: 'yes' is kept, 'broken' was seen"],
        ),
    ],
)
def test_what_a_run_does_not_show_of_what_is_kept(run_of, words):
    rows = dict(every("MySGD", row(passed=8, elsewhere={"z": 1})), R9__state=row(we_lack={"x": 3}))
    kept = run("keras", "graph", "1.8.0", "2.1.6", "3.6", **rows)
    seen = run("keras", "graph", "1.8.0", "2.1.6", "3.6", **dict(rows, **run_of))
    assert compat_matrix.untrue(kept, [kept], [seen]) == words


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


def test_a_run_that_left_tests_out_is_not_kept(tmpdir, monkeypatch):
    monkeypatch.setattr(compat_matrix, "KEPT", str(tmpdir.join("kept")))
    short = run("keras", "graph", "1.8.0", "2.1.6", "3.6", R1__mean=row(8, elsewhere={compat_matrix.TAKES_LONG: 1}))
    path = str(tmpdir.join("py36-tf1.8-keras2.1-keras-graph.json"))
    result_files.write(path, short)
    with pytest.raises(SystemExit, match="LEGACYGA_WHOLE=1"):
        compat_matrix.keep([path])
    assert not tmpdir.join("kept").check()


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


def test_between_two_that_pass():
    older, newer = [yes("tf.keras", "eager") for _ in range(2)]
    found = neighbours(("py38-tf2.4", [older]), ("py39-tf2.10", [newer]), ("py310-tf2.15", []))
    word, (reason,) = found.verdict("MySGD", "py38-tf2.7", "tf.keras", "eager")
    assert word == "not run; between two that pass"
    assert reason == "nothing was tested here; it passes in py38-tf2.4 and in py39-tf2.10"
    # The thing that neither of them has, and the mode in which neither was run.
    assert found.verdict("saving", "py38-tf2.7", "tf.keras", "eager") == ("not run", [])
    assert found.verdict("MySGD", "py38-tf2.7", "tf.keras", "graph") == ("not run", [])


@pytest.mark.parametrize(
    "newer",
    [
        yes("tf.keras", "eager", R1__mean=row(passed=1, failed=1)),
        yes("tf.keras", "eager", R1__mean=row(passed=1, we_lack={"a part": 1})),
        yes("tf.keras", "eager", R1__mean=row(passed=1, xfailed={"known": 1})),
        yes("tf.keras", "graph"),
        yes("tf_keras", "eager"),
    ],
)
def test_not_between_two_that_pass(newer):
    """The nearest tested one counts, though one behind it passes: if it is of this home and mode."""
    behind = ("py310-tf2.15", [yes("tf.keras", "eager")] * (newer["home"], newer["mode"]).count("tf.keras"))
    behind = behind if newer["mode"] == "eager" and newer["home"] == "tf.keras" else ("py310-tf2.15", [])
    found = neighbours(("py38-tf2.4", [yes("tf.keras", "eager")]), ("py39-tf2.10", [newer]), behind)
    assert found.verdict("MySGD", "py38-tf2.7", "tf.keras", "eager") == ("not run", [])


def test_nothing_is_said_beyond_the_last_that_was_tested():
    found = compat_matrix.Neighbours({"py38-tf2.4": [yes("tf.keras", "eager")], "py39-tf2.10": []})
    assert found.verdict("MySGD", "py39-tf2.10", "tf.keras", "eager") == ("not run", [])
    assert [name for name, _ in found.of("py39-tf2.10", "tf.keras", "eager")] == ["py38-tf2.4"]


def test_keras_3_is_no_neighbour_of_the_keras_before_it():
    old, new = yes("keras", "graph"), yes("keras", "eager")
    found = compat_matrix.Neighbours({"py37-tf1.15-keras2.3": [old], "py312-tf2.18-keras3": [new]})
    assert [name for name, _ in found.of("py37-tf2.2-keras2.3", "keras", "graph")] == ["py37-tf1.15-keras2.3"]
    assert [name for name, _ in found.of("py312-tf2.16-keras3", "keras", "eager")] == ["py312-tf2.18-keras3"]
    assert environments.family_of("py37-tf2.2-keras2.3", "keras") == "keras"
    assert environments.family_of("py312-tf2.18-keras3", "keras") == "keras3"


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


def test_the_hash_tells_one_state_of_the_code_from_another(tmpdir):
    for name, text in (("a.py", "1\n"), ("sub/b.py", "2\n"), ("sub/c.txt", "3\n")):
        tmpdir.join(name).write(text, ensure=True)
    first = result_files.code_of(str(tmpdir))
    assert re.match("[0-9a-f]{12}$", first)
    # What is no code, and what a checkout on another system makes of it.
    tmpdir.join("sub/c.txt").write("4\n")
    tmpdir.join("a.py").write_binary(b"1\r\n")
    assert result_files.code_of(str(tmpdir)) == first
    tmpdir.join("sub/b.py").write("3\n")
    changed = result_files.code_of(str(tmpdir))
    tmpdir.join("sub/b.py").rename(tmpdir.join("sub/d.py"))
    assert len({first, changed, result_files.code_of(str(tmpdir))}) == 3


def test_the_age_of_what_was_tested(config):
    record = run("tf.keras", "eager", "2.15.1", "2.15.0", "3.10.13", **every("MySGD", row(passed=4)))
    old = dict(run("tf.keras", "graph", "2.15.1", "2.15.0", "3.10"), date="2026-10-01", code="ba9876543210")
    before = {name: value for name, value in old.items() if name not in ("date", "code")}
    for other, tested, line in (
        (old, "2026-10-01, earlier code", "1 were tested with earlier code, the oldest on 2026-10-01."),
        (before, "earlier code, day not recorded", "1 were tested with earlier code, on days that were not recorded."),
    ):
        text = compat_matrix.render(found(new=[record, other]), config, CODE)
        assert [each[5] for each in whole_rows(text)][2:4] == ["2026-11-20", tested]
        assert "\n3 environments, 6 lines: 2 tested, 4 not.\n" in text
        assert "\n1 lines were tested with the present code, whose hash is 0123456789ab.\n" in text
        assert line in text
    # The day on which legacyga/ changes, the text says so.
    text = compat_matrix.render(found(new=[record, old]), config, "ffffffffffff")
    assert [each[5] for each in whole_rows(text)][2] == "2026-11-20, earlier code"
    assert "present code, whose" not in text


def test_the_exact_versions_are_shown(config):
    record = run("tf.keras", "eager", "2.15.1", "2.15.0", "3.10.13")
    text = compat_matrix.render(found(new=[record]), config, CODE)
    assert whole_rows(text)[2][:6] == ["2.15.1", "tf.keras", "3.10.13", "1.26.4", "eager", "2026-11-20"]


def test_a_release_candidate_has_the_version_of_its_pin(config):
    """TensorFlow says 2.15.2-rc0 of itself: the line is the same before the run and after it."""
    record = run("tf.keras", "eager", "2.15.2-rc0", "2.15.0", "3.10.13", **every("MySGD", row(passed=4)))
    text = compat_matrix.render(found(new=[record]), config, CODE)
    assert whole_rows(text)[2][0] == "2.15.2rc0"
    assert "Tested with TensorFlow 2.15.2rc0, Keras 2.15.0, " in text


def test_what_fails_is_named(config):
    record = run("tf.keras", "eager", "2.15.1", "2.15.0", "3.10.13", **every("MySGD", row(passed=4, failed=1)))
    text = compat_matrix.render(found(new=[dict(record, failing=["test_x.py::test_y[a]"])]), config, CODE)
    assert "Broken here: MySGD.\n" in text
    assert "\nTests that fail here:\n\n- `test_x.py::test_y[a]`\n" in text
    crashed = dict(run("tf.keras", "eager", "2.15.1", "2.15.0", "3.10.13"), crashed="pytest ended with -11")
    text = compat_matrix.render(found(new=[crashed]), config, CODE)
    assert set(first_table(text)["2.15.1", "tf.keras", "eager"].values()) == {"**broken**"}
    assert "\nBroken here: the run did not end, pytest ended with -11.\n" in text


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


def test_nothing_that_is_kept_fails():
    failing = []
    for env, records in compat_matrix.load(compat_matrix.KEPT).items():
        for record in records:
            rows = record["capabilities"].items()
            names = record.get("failing") or [name for name, row in rows if row["failed"]]
            names = [record["crashed"]] if record.get("crashed") else names
            if names:
                failing.append("{}, {} in {} mode: {}".format(env, record["home"], record["mode"], ", ".join(names)))
    assert not failing, "{}. Steps 7 and 8 of CONTRIBUTING.md say what to do".format("; ".join(failing))


def test_the_rows_are_the_environments_of_tox():
    """Each home and mode of each environment of the label `full` has its row, in that order, and no other has one."""
    with open(compat_matrix.TARGET) as file:
        text = file.read()
    expected = []
    for env in environments.environments():
        for home, mode in environments.runs_of(env):
            pinned = environments.asked_for(env, home)
            expected.append((pinned[0], pinned[1].partition(" ")[0], mode))
    rows = [(row[0], row[1].partition(" ")[0], row[4]) for row in whole_rows(text)]
    assert rows == expected
    sections = re.findall("^### (.+)$", text, re.MULTILINE)
    assert sections == environments.environments()


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


@pytest.mark.parametrize(
    "pattern, by",
    [
        # A cell.
        (r"(\n\| 2\.15\.1 \|.*eager \| 2026-11-20 \|) yes", r"\1 no"),
        (r"not run; between two that pass", "yes"),
        # A count.
        (r"(\| R1 mean \| )(\d+)", r"\g<1>1\2"),
        (r"(<summary>)(\d+) tests", r"\g<1>1\2 tests"),
        (r"(\n\d+ environments, )(\d+)", r"\g<1>1\2"),
        # A version, a day, a hash, a pin.
        (r"\n\| 2\.15\.1 \|", "\n| 2.15.2 |"),
        (r"2026-11-20", "2026-11-21"),
        (r"(Hash of the code: )\w{12}", r"\1ffffffffffff"),
        (r"tensorflow==1\.8\.0", "tensorflow==1.8.1"),
    ],
)
def test_a_change_by_hand_is_seen(tree, pattern, by):
    path = tree.join("compat_matrix.md")
    text, changes = re.subn(pattern, by, path.read(), count=1)
    assert changes == 1
    path.write(text)
    code, printed = check(tree)
    assert code == 1 and "compat_matrix.md is not what the result files say" in printed


def test_a_change_of_the_package_is_seen(tree):
    tree.join("legacyga", "_window.py").write("\n", mode="a")
    code, printed = check(tree)
    assert code == 1
    of_the_present = "lines were tested with the present code"
    assert re.findall(r"\n([-+])\d+ " + of_the_present, printed) == ["-"]
    assert "2026-11-20, earlier code" in printed


def test_a_change_of_the_environments_is_seen(tree):
    path = tree.join("tox.ini")
    path.write(
        path.read()
        .replace("        py36-tf1.9-keras2.1,", "        py36-tf1.9,")
        .replace(" py36-tf1.9-keras2.1,", " py36-tf1.9,")
    )
    assert check(tree)[0] == 1
    # One that results are kept of is gone.
    path.write(path.read().replace("py310-tf2.15, ", ""))
    code, printed = check(tree)
    assert code == 1 and "belongs to no environment of tox.ini" in printed


def test_a_result_file_of_another_run_is_seen(tree):
    results = tree.join("tests", "results")
    results.join("py310-tf2.15-tf.keras-eager.json").copy(results.join("py310-tf2.15-tf.keras-graph.json"))
    code, printed = check(tree)
    assert code == 1 and "holds the run of tf.keras in eager mode" in printed


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
