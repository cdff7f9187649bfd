"""full_matrix.py, with a tox that only pretends."""

import json
import subprocess
import sys

import compat_matrix
import environments
import full_matrix
import pytest
from test_compat_matrix import run_of

pytestmark = pytest.mark.capability("house")


def test_a_run_keeps_what_it_finds_and_goes_on_where_it_stopped(tmpdir, monkeypatch, capsys):
    code = compat_matrix.present_code()
    found = {"py38-tf2.4": run_of(), "py39-tf2.6": run_of("py39-tf2.6", failed=1)}

    def tox(command, **kwargs):
        """It cannot install py39-tf2.5, and in py39-tf2.6 tests fail."""
        for env in set(found) & set(command[-1].split(",")):
            tmpdir.join("results", env + "-tf.keras-eager.json").write(json.dumps(dict(found[env], code=code)))
        return process([sys.executable, "-c", "exit({})".format("py39-tf2.5" in command[-1])])

    process = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", tox)
    monkeypatch.setattr(full_matrix, "RESULTS", str(tmpdir.mkdir("results")))
    monkeypatch.setattr(compat_matrix, "KEPT", str(tmpdir.join("results.jsonl").ensure()))
    monkeypatch.setattr(compat_matrix, "TARGET", str(tmpdir.join("compat_matrix.md")))
    monkeypatch.setattr(compat_matrix, "DATA", str(tmpdir.join("tested.json")))
    monkeypatch.setattr(environments, "labels", lambda: {"full": ["py38-tf2.4", "py39-tf2.5", "py39-tf2.6"]})
    monkeypatch.setattr(environments, "runs_of", lambda env: [("tf.keras", "eager")])
    assert full_matrix.chosen(["*"], again=False) == (["py38-tf2.4", "py39-tf2.5", "py39-tf2.6"], [])
    assert full_matrix.run(["py38-tf2.4", "py39-tf2.5", "py39-tf2.6"], 2) == 1
    assert [line["env"] for line in compat_matrix.load()] == ["py38-tf2.4", "py39-tf2.6"]
    text = tmpdir.join("compat_matrix.md").read_text("utf-8")
    assert "3 runs: 2 tested, 1 not" in text and "| **broken** |" in text
    assert full_matrix.chosen(["*"], again=False) == (["py39-tf2.5"], ["py38-tf2.4", "py39-tf2.6"])
    assert full_matrix.chosen(["*2.6"], again=True) == (["py39-tf2.6"], [])
    found["py39-tf2.6"] = dict(run_of("py39-tf2.6"))
    assert full_matrix.run(["py39-tf2.6"], 2) == 0
    assert "| **broken** |" not in tmpdir.join("compat_matrix.md").read_text("utf-8")
    monkeypatch.setattr(compat_matrix, "present_code", lambda: "newer")
    assert full_matrix.chosen(["*2.6"], again=False) == (["py39-tf2.6"], [])


def test_a_column_alone_changes_its_cells(tmpdir, monkeypatch):
    code = compat_matrix.present_code()
    monkeypatch.setattr(compat_matrix, "KEPT", str(tmpdir.join("results.jsonl").ensure()))

    def weighed(**found):
        run = run_of(**found)
        return dict(run, capabilities={"R2 weights": run["capabilities"]["R1 mean"]})

    compat_matrix.keep([weighed(failed=1)])
    anew = dict(weighed(), alone=["unequal batches"], code=code, date="2030-01-02")
    (before,) = compat_matrix.load()
    compat_matrix.keep([anew])
    (line,) = compat_matrix.load()
    things = dict(before["things"], **{"unequal batches": ["yes", []]})
    assert before["things"]["unequal batches"] == ["broken", []]
    assert line == dict(before, things=things, anew={"unequal batches": ["2030-01-02", code]})
    told = compat_matrix.summary([line], code)
    assert "column `unequal batches` was tested again in 1 of the runs, from 2030-01-02 on" in told
    only = ["py38-tf2.4"]
    monkeypatch.setattr(environments, "runs_of", lambda env: [("tf.keras", "eager")])
    assert full_matrix.chosen(only, False, ["unequal batches"]) == ([], only)
    assert full_matrix.chosen(only, False, ["unequal batches", "saving"]) == (only, [])
    assert full_matrix.chosen(only, False) == (only, [])
