"""Tests that are known to fail in some environments, each with a reason: the files in the folder known_failures.

A file is named by the factors that an environment must have: `tf2.7.json`, `py36-tf1.13.json`. It holds a list of
{"home", "mode", "test", "reason"}. `home` and `mode` may be left out. `test` is "test_file.py::test_name[case]", where
a `*` stands for anything. Such a test must fail: one that passes is a failure, and an entry that fits no test an error.
"""

import glob
import json
import os
import re

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "known_failures")
KEYS = ({"test", "reason"}, {"home", "mode"})


def entries_of(path):
    """The entries of a file, each checked."""
    with open(path) as file:
        entries = json.load(file)
    for entry in entries:
        missing, unknown = KEYS[0] - set(entry), set(entry) - KEYS[0] - KEYS[1]
        if missing or unknown or not all(isinstance(value, str) and value.strip() for value in entry.values()):
            raise ValueError("{}: an entry has a test and a reason. Received: {}".format(os.path.basename(path), entry))
    return entries


def read(folder=None):
    """{factors that an environment must have: [entries]}."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder or FOLDER, "*.json"))):
        found[os.path.basename(path)[: -len(".json")]] = entries_of(path)
    return found


def of(env, home, mode, folder=None):
    """[(pattern, reason)] of what is known to fail in the run of a home and mode of an environment."""
    factors = set(env.split("-"))
    return [
        (entry["test"], entry["reason"])
        for name, entries in read(folder).items()
        for entry in entries
        if set(name.split("-")) <= factors and entry.get("home", home) == home and entry.get("mode", mode) == mode
    ]


def matches(pattern, test):
    """Whether a pattern fits a test's name; brackets stand for themselves."""
    return re.match(".*".join(re.escape(part) for part in pattern.split("*")) + "$", test) is not None


def short_name(nodeid):
    """A test's name without the folders that its file is in."""
    path, colons, name = nodeid.partition("::")
    return path.replace("\\", "/").split("/")[-1] + colons + name


def assign(known, tests, whole_files=None):
    """{index in `tests`: reason}.

    Args:
        known: see `of`.
        tests: names of the tests that were collected.
        whole_files: the names of the test files that were collected whole; None: all there are. A pattern for one of
            these that fits no test is an error.
    """
    found = {}
    for pattern, reason in known:
        fitting = [i for i, test in enumerate(tests) if matches(pattern, test)]
        if not fitting and (whole_files is None or pattern.partition("::")[0] in whole_files):
            raise ValueError("known_failures: {!r} fits no test".format(pattern))
        found.update((i, reason) for i in fitting)
    return found
