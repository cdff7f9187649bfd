"""Tests that are known to fail in some environments, each with a reason: the files in the folder known_failures.

A file is named by the factors that an environment must have: `tf2.7.json`, `py36-tf1.13.json`. It holds a list of
{"home", "mode", "test", "reason"}. `home` and `mode` may be left out. `test` is "test_file.py::test_name[case]", where
a `*` stands for anything. Such a test must fail: one that passes is a failure.
"""

import fnmatch
import json
import pathlib


def read():
    """{factors that an environment must have: [entries]}."""
    paths = pathlib.Path(__file__).with_suffix("").glob("*.json")
    return {path.stem: json.loads(path.read_text()) for path in sorted(paths)}


def of(env):
    """The entries for an environment."""
    factors = set((env or "").split("-"))
    return [entry for name, entries in read().items() if set(name.split("-")) <= factors for entry in entries]


def matches(pattern, nodeid):
    """Whether a pattern fits a test, in whatever folder its file is; brackets stand for themselves."""
    pattern = pattern.replace("[", "[[]")
    return any(fnmatch.fnmatchcase(nodeid, each) for each in (pattern, "*/" + pattern))
