"""compat_matrix.md: what it says of runs, what its checks refuse, and the lists of this tree that it is made of."""

import json
import os
import re
import types

import compat_matrix
import conftest
import environments
import known_failures
import pages
import pytest

pytestmark = pytest.mark.capability("house")
# Of environments (the second is the first on another Python): a capability, is it known to fail, why it is not run.
LEFT_OUT = [
    ("py39-tf2.6", "micro_batch", False, None),
    ("py39-tf2.6", "micro_batch", True, None),
    ("py36-tf2.6", "micro_batch", False, compat_matrix.ELSEWHERE),
    ("py36-tf2.6", "micro_batch", True, compat_matrix.ELSEWHERE),
    ("py36-tf2.6", "R1 mean", True, None),
]


def run_of(env="py38-tf2.4", passed=2, failed=0, tensorflow="2.4.4", crashed=False, **reasons):
    """The result file of a run in eager mode in which all that is said of MySGD came to this."""
    row = dict(dict.fromkeys(["xfailed"] + compat_matrix.KINDS, {}), passed=passed, failed=failed, **reasons)
    versions = dict(python="3.8.20", tensorflow=tensorflow, keras="2.4.0", numpy="1.19.5")
    made = dict(env=env, home="tf.keras", mode="eager", date="2026-11-20", versions=versions, code="0", crashed=crashed)
    return dict(made, capabilities=dict.fromkeys(compat_matrix.THINGS["MySGD"], row))


@pytest.fixture
def kept(tmpdir, monkeypatch):
    """Keep runs, in the place of what is kept in this tree, and show what the page says of MySGD."""
    monkeypatch.setattr(compat_matrix, "KEPT", str(tmpdir.join("results.jsonl").ensure()))

    def keep(*records):
        compat_matrix.keep(records)
        rows = [line.split(" | ") for line in compat_matrix.first_table(compat_matrix.load())[0].splitlines()[2:]]
        return [(row[1], row[3]) for row in rows]

    return keep


def test_a_cell_says_yes_of_what_passed_alone(kept):
    for word, run in (
        ("yes", run_of()),
        ("**broken**", run_of(failed=1)),
        ("**broken**", run_of(crashed=True)),
        ("yes, but [1]", run_of(xfailed={"x": 1})),
        ("in part [1]", run_of(we_lack={"x": 1})),
        ("no [1]", run_of(passed=0, we_lack={"x": 1})),
        ("no [1]", run_of(passed=0, xfailed={"x": 1})),
        ("–", run_of(passed=0, senseless={"x": 1}, keras_lacks={"x": 1})),
        ("not run", run_of(passed=0, elsewhere={"x": 1})),
        ("not run", run_of(passed=0)),
    ):
        assert kept(run) == [("2.4", word)]
    with pytest.raises(SystemExit, match="left tests out"):
        kept(run_of(elsewhere={compat_matrix.TAKES_LONG: 1}))


def test_the_package_has_the_first_table(kept):
    """Every version that was tested, with the cells of its row; and the check reads both files."""
    kept(run_of(we_lack={"x": 1}), run_of("py39-tf2.6", tensorflow="2.6.1"), run_of("py39-tf2.7", tensorflow="2.7.1"))
    older, newer = json.loads(compat_matrix.data(compat_matrix.load()))
    assert (older["tested"], newer["tested"]) == ([[[2, 4]]], [[[2, 6]], [[2, 7]]])
    assert (older["keras"], older["tensorflow"], newer["tensorflow"]) == ("tf.keras", "2.4", "2.6 to 2.7")
    assert (older["things"][0], newer["things"][0]) == (["MySGD", ["in part", ["x"]]], ["MySGD", ["yes", []]])


def test_the_check_reads_what_the_package_has(tmpdir, monkeypatch):
    compat_matrix.check_text()
    for name in ("DATA", "TARGET"):
        changed = tmpdir.join(name + ".txt")
        with open(getattr(compat_matrix, name), encoding="utf-8") as file:
            changed.write_text(file.read() + " ", "utf-8")
        with monkeypatch.context() as patch:
            patch.setattr(compat_matrix, name, str(changed))
            with pytest.raises(SystemExit, match="{}.txt is not what tests/results.jsonl says".format(name)):
                compat_matrix.check_text()


def test_versions_that_answer_alike_are_one_row(kept):
    newer = [run_of("py39-tf2.{}".format(i), tensorflow="2.{}.1".format(i)) for i in (6, 7, 10)]
    assert kept(run_of(we_lack={"x": 1}), *newer) == [("2.4", "in part [1]"), ("2.6 to 2.10", "yes")]


def test_a_twin_says_nothing_against_its_original(kept):
    """An environment on another Python runs a part of the tests: what it leaves out, replicas too, is "not run"."""
    assert kept(run_of(), run_of("py36-tf2.4", passed=0, elsewhere={"x": 1})) == [("2.4", "yes")]
    original, twin, newer = compat_matrix.load() + [dict(versions=dict(tensorflow="2.6.1"), mode="eager", things={})]
    original["things"]["replicas"], twin["things"]["replicas"] = ["yes", []], ["not run", []]
    assert compat_matrix.reasons_for("replicas", [], [original, twin]) == []
    alone = "several replicas were tested on TensorFlow 2.4 alone"
    assert compat_matrix.reasons_for("replicas", [], [original, twin, newer]) == [alone]


@pytest.mark.parametrize("env, capability, known, reason", LEFT_OUT)
def test_what_a_run_leaves_out(monkeypatch, env, capability, known, reason):
    """Of a test that is not slow: what is known to fail is run outside of the core, but where a twin runs numbers."""
    monkeypatch.setenv("LEGACYGA_ENV", env)
    monkeypatch.setenv("LEGACYGA_RESULT_FILE", "result.json")
    monkeypatch.delenv("LEGACYGA_WHOLE", raising=False)
    home = types.SimpleNamespace(name="tf.keras", mode="eager", tf_version=(2, 6))
    monkeypatch.setattr(conftest, "home_of", lambda config: home)
    markers = dict(capability=types.SimpleNamespace(args=[capability]), xfail=known or None)
    config = types.SimpleNamespace(getoption=lambda name: False)
    item = types.SimpleNamespace(get_closest_marker=markers.get, fixturenames=["home"])
    assert conftest.reason_to_leave_out(config, item) == reason


def test_a_run_of_the_core_refutes_what_it_has_broken(kept, monkeypatch, capsys):
    part = {compat_matrix.TAKES_LONG: 1}
    monkeypatch.setattr(environments, "runs", lambda label="": [("py38-tf2.4", "tf.keras", "eager")])
    for before, now, told in (
        (run_of(), run_of(passed=1, elsewhere=part), None),
        (run_of(passed=0, we_lack={"x": 1}), run_of(passed=0, we_lack={"x": 1}), None),
        (run_of(), run_of(failed=1), "MySGD: 'yes' is kept, 'broken' was seen"),
        (run_of(), run_of(passed=0, we_lack={"x": 1}), "MySGD: 'yes' is kept, 'no' was seen"),
        (run_of(xfailed={"x": 1}), run_of(failed=1, elsewhere=part), "MySGD: 'yes, but' is kept, 'broken' was seen"),
        # Mended.
        (run_of(failed=1), run_of(), None),
        (run_of(passed=0, we_lack={"x": 1}), run_of(), None),
    ):
        kept(before)
        if told is None:
            compat_matrix.check_run([now])
        else:
            with pytest.raises(SystemExit, match=told):
                compat_matrix.check_run([now])
    with pytest.raises(SystemExit, match="no result file for py38-tf2.4, tf.keras in eager mode"):
        compat_matrix.check_run([])
    with pytest.raises(SystemExit, match="1"):
        compat_matrix.print_counts([])
    assert "not run: py38-tf2.4, tf.keras in eager mode\n0 passed, 0 failed" in capsys.readouterr().out


def test_the_hash_is_of_what_the_code_does(tmpdir):
    """Not of comments, docstrings and layout; and it is the same with every Python that runs this test."""
    code, found = "def f(x):\n    return x + 1\n", []
    commented = '"""Other."""\n\n\ndef f(\n    x\n):\n    """Text."""\n    # Why.\n    return x + 1  # So.\n'
    for text in (code, commented, code.replace("1", "2")):
        tmpdir.join("a.py").write(text)
        found.append(compat_matrix.code_of(str(tmpdir)))
    assert found[0] == found[1] == "6f92a33d8b3a" != found[2]


def test_the_page_of_this_tree(tmpdir, monkeypatch):
    """It is what is kept of each run, it is short, and nothing in it fails. A change by hand is seen."""
    text = compat_matrix.present_texts()[compat_matrix.TARGET]
    assert len(text.encode()) <= 20000 and "**broken** |" not in text
    assert [compat_matrix.run_of(line) for line in compat_matrix.load()] == environments.runs()
    compat_matrix.check_text()
    monkeypatch.setattr(compat_matrix, "TARGET", str(tmpdir.join("page.md")))
    tmpdir.join("page.md").write_text(text.replace("| no [1] |", "| yes |"), "utf-8")
    with pytest.raises(SystemExit, match="is not what tests/results.jsonl says"):
        compat_matrix.check_text()


def test_the_lists_of_this_tree():
    """No TensorFlow is passed over in silence, and what is named for few runs, or known to fail, is there."""
    full, core, absent = (
        environments.labels()["full"],
        environments.runs_of_the_core(),
        compat_matrix.cannot_be_installed(),
    )
    there = {environments.as_numbers(environments.factors_of(env)["tf"]) for env in full + list(absent)}
    assert {(1, i) for i in range(4, 16)} | {(2, i) for i in range(max(there)[1] + 1)} <= there
    assert set(core.values()) <= set(full) and not set(absent) & set(full)
    assert set(conftest.LONG) | set(pages.RUNS.values()) <= set(core)
    for factors, entries in known_failures.read().items():
        assert [env for env in full if set(factors.split("-")) <= set(env.split("-"))], factors
        for entry in entries:
            name, _, function = re.match(r"(\w+\.py)(::)?(\w*)", entry["test"]).groups()
            with open(os.path.join(compat_matrix.HERE, name)) as file:
                assert "def {}(".format(function) in file.read() and entry["reason"].strip(), entry


def test_the_runs_between_two_of_their_generation_and_mode():
    between = "keras graph 1.13, tf.keras graph 1.13, tf.keras graph 2.0, tf.keras eager 2.4, tf.keras graph 2.4, "
    between += "tf.keras eager 2.10, tf.keras graph 2.10, tf.keras graph 2.15"
    assert ", ".join(map(" ".join, conftest.NUMBERS_ALONE)) == between


def test_the_environments_on_another_python():
    pairs = ("py310-tf2.15", "py39-tf2.15"), ("py37-tf1.15-keras2.3", "py36-tf1.15-keras2.2")
    found = [environments.is_on_another_python(env) for pair in pairs for env in pair]
    assert found == [False, True, False, False]
