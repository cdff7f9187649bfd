"""What README.md, CONTRIBUTING.md and setup.py claim of versions, compared with tox.ini and with what was tested."""

import os
import re

import compat_matrix
import environments
import pytest
from environments import as_numbers, minor

pytestmark = pytest.mark.capability("house")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORDS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()


def text_of(name):
    """A file's text, in one line."""
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return re.sub(r"\s+", " ", file.read())


def claimed(name, pattern):
    """What a file says where it has this sentence."""
    match = re.search(pattern, text_of(name))
    assert match, "{} has no sentence of the form {!r}".format(name, pattern)
    return match.groups()


def verdicts_on(thing):
    """[(environment, record, word)] of what was tested and is released."""
    found = compat_matrix.load(compat_matrix.KEPT)
    return [
        (env, record, compat_matrix.verdict_on(thing, record, records)[0])
        for env, records in found.items()
        for record in records
        if "rc" not in record["versions"]["tensorflow"]
    ]


def span(versions):
    """The oldest and the newest, to the minor version."""
    found = sorted({minor(version) for version in versions}, key=as_numbers)
    return found[0], found[-1]


def test_the_promise_of_the_readme():
    """Its ends are the ends of what was tested and works."""
    keras, oldest, newest = claimed(
        "README.md",
        r"This holds from Keras ([\d.]+\d) on TensorFlow ([\d.]+\d) to tf-keras and Keras 3 on TensorFlow ([\d.]+\d)\.",
    )
    working = [(env, record) for env, record, word in verdicts_on("MySGD") if compat_matrix.works(word)]
    assert (oldest, newest) == span(record["versions"]["tensorflow"] for _, record in working)
    families = {}
    for env, record in working:
        families.setdefault(environments.family_of(env, record["home"]), []).append(record["versions"])
    assert keras == span(each["keras"] for each in families["keras"])[0]
    for family in ("tf_keras", "keras3"):
        assert span(each["tensorflow"] for each in families[family])[1] == newest, family


def test_the_core_as_the_readme_has_it():
    number, oldest, newest = claimed(
        "README.md", r"core matrix, (\w+) environments from TensorFlow ([\d.]+\d) to ([\d.]+\d)"
    )
    core = environments.environments("core")
    assert WORDS.index(number) == len(core)
    assert (oldest, newest) == span(environments.factors_of(env)["tf"] for env in core)


def test_where_wrap_takes_the_optimizers_of_keras():
    """Below the version that the README names wrap is not all there, from it on it is."""
    oldest, last, first = claimed(
        "README.md",
        r"On TensorFlow ([\d.]+\d) to ([\d.]+\d) `MySGD` and `tf.compat.v1.train` work; "
        r"`wrap` takes Keras's optimizers from ([\d.]+\d) on",
    )
    found = verdicts_on("wrap")
    assert oldest == span(record["versions"]["tensorflow"] for _, record, _ in found)[0]
    assert as_numbers(last)[1] + 1 == as_numbers(first)[1]
    for env, record, word in found:
        newer = as_numbers(record["versions"]["tensorflow"])[:2] >= as_numbers(first)
        assert compat_matrix.works(word) == newer, env


def test_the_oldest_keras_3():
    """That of the README is the oldest which has an environment."""
    (oldest,) = claimed("README.md", r"Keras 3 needs to be ([\d.]+\d) or newer")
    factors = [environments.factors_of(env).get("keras", "") for env in environments.environments()]
    assert oldest == min((each for each in factors if each.startswith("3.")), key=as_numbers)


def test_the_pythons_of_setup_py():
    """Each has an environment, and was tested, or lies between two that were."""
    with open(os.path.join(ROOT, "setup.py")) as file:
        text = file.read()
    first, end = [int(each) for each in re.search(r"for minor in range\((\d+), (\d+)\)", text).groups()]
    pythons = ["3.{}".format(each) for each in range(first, end)]
    assert 'python_requires=">={}"'.format(pythons[0]) in text
    assert '"Programming Language :: Python :: 3.{}".format(minor)' in text
    assert {environments.python_of(env) for env in environments.environments()} == set(pythons)
    assert environments.NEWEST_PYTHON == pythons[-1]
    found = [record["versions"]["python"] for _, record, word in verdicts_on("MySGD") if compat_matrix.works(word)]
    assert span(found) == (pythons[0], pythons[-1])
    for name, pattern in (
        ("CONTRIBUTING.md", r"The package runs on Python ([\d.]+\d) to ([\d.]+\d)\."),
        ("CONTRIBUTING.md", r"pyenv, from ([\d.]+\d) to ([\d.]+\d), and downloads none"),
    ):
        assert claimed(name, pattern) == (pythons[0], pythons[-1])


def test_the_pythons_of_the_newest_tensorflow(monkeypatch):
    """Where the README and toxfile.py name them, they are those of the environments of it."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.syspath_prepend(ROOT)
    import toxfile

    newest = sorted(toxfile.NEWEST, key=as_numbers)
    for pattern in (
        r"One Python of ([\d.]+\d) to ([\d.]+\d) is enough for the newest TensorFlow",
        r"of Python ([\d.]+\d) to ([\d.]+\d), in a clone of the repository, for it installs TensorFlow",
    ):
        assert claimed("README.md", pattern) == (newest[0], newest[-1])
    # The environments that name no Python.
    (tensorflow,) = {environments.factors_of(env)["tf"] for env in environments.environments("core") if "py" not in env}
    pythons = [env for env in environments.environments() if "tf" + tensorflow in env.split("-")]
    assert span(environments.python_of(env) for env in pythons) == (newest[0], newest[-1])
    assert environments.NEWEST_PYTHON == newest[-1]
