"""Result files and trees that the tests of the matrix itself write."""

import configparser
import os
import shutil

import skips

HERE = os.path.dirname(os.path.abspath(__file__))
TOX = """
[tox]
labels =
    core = py310-tf2.15
    full = \\
        # Why it stands here.
        py36-tf1.8-keras2.1, \\
        py310-tf2.15, tf2.21-tfkeras2.21
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
    tfkeras2.20, tfkeras2.21: \\
        UV_OVERRIDE = override.txt
"""
OLD, NEW, NEWEST = "py36-tf1.8-keras2.1", "py310-tf2.15", "tf2.21-tfkeras2.21"
DAY, CODE = "2026-11-20", "0123456789ab"


def config():
    """A tox.ini with three environments."""
    made = configparser.ConfigParser(interpolation=None)
    made.read_string(TOX)
    return made


def row(passed=0, failed=0, **reasons):
    found = {name: {} for name in ["xfailed"] + list(skips.KINDS)}
    return dict(found, passed=passed, failed=failed, **reasons)


def run(home, mode, tensorflow, keras, python, **capabilities):
    """A result file's record; `capabilities` by names in which __ stands for a space."""
    return dict(
        home=home,
        mode=mode,
        date=DAY,
        code=CODE,
        versions=dict(python=python, tensorflow=tensorflow, keras=keras, numpy="1.26.4"),
        capabilities={name.replace("__", " "): value for name, value in capabilities.items()},
    )


def copy_of_the_tree(tmpdir):
    """What the check reads, in a folder of its own."""
    root = os.path.dirname(HERE)
    for name in ("tox.ini", "toxfile.py", "compat_matrix.md"):
        shutil.copy(os.path.join(root, name), str(tmpdir))
    shutil.copytree(os.path.join(root, "legacyga"), str(tmpdir.join("legacyga")))
    tests = tmpdir.mkdir("tests")
    for name in ("compat_matrix.py", "environments.py", "result_files.py", "not_installable.json", "results.jsonl"):
        shutil.copy(os.path.join(HERE, name), str(tests))
    return tmpdir
