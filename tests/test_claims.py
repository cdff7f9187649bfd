"""What README.md, CONTRIBUTING.md, setup.py and pages claim of versions, compared with tox.ini and what was tested."""

import os
import re

import compat_matrix
import environments
import install_with_pips
import pages
import pytest
from environments import as_numbers, minor

pytestmark = pytest.mark.capability("house")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORDS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()


def text_of(name):
    """A file's text, in one line."""
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return re.sub(r"\s+", " ", file.read())


def check(name, sentence, *versions):
    """That a file has a sentence, with these versions in its gaps."""
    text, wanted = text_of(name), sentence.format(*versions)
    found = re.search(re.escape(sentence.partition("{}")[0]) + r".*?[.:,](?= |$)", text)
    told = "It says: " + found.group() if found else "It has no sentence that begins so."
    assert wanted in text, "{} should say: {}\n{}".format(name, wanted.strip(), told)


def released():
    """What is kept of the runs on what is released."""
    return [line for line in compat_matrix.load() if "rc" not in line["versions"]["tensorflow"]]


def span(versions):
    """The oldest and the newest, to the minor version."""
    found = sorted({minor(version) for version in versions}, key=as_numbers)
    return found[0], found[-1]


def promise(keras, oldest, tf_keras, keras3):
    """How a page names the ends of what works: the oldest versions, and the newest TensorFlow of each newest Keras."""
    newest = "tf-keras and Keras 3 on TensorFlow " + keras3
    # tf-keras may be released later.
    if tf_keras != keras3:
        newest = "tf-keras on TensorFlow {} and Keras 3 on TensorFlow {}".format(tf_keras, keras3)
    return "Keras {} on TensorFlow {} to {}".format(keras, oldest, newest)


def test_the_two_forms_of_the_promise():
    same = "Keras 2.1 on TensorFlow 1.8 to tf-keras and Keras 3 on TensorFlow 2.21"
    assert promise("2.1", "1.8", "2.21", "2.21") == same
    other = "Keras 2.1 on TensorFlow 1.8 to tf-keras on TensorFlow 2.21 and Keras 3 on TensorFlow 2.22"
    assert promise("2.1", "1.8", "2.21", "2.22") == other


@pytest.mark.parametrize(
    "name, sentence", [("README.md", "works from {}. "), ("docs/index.md", "That works from {}. ")]
)
def test_the_promise(name, sentence):
    """Its ends are the ends of what was tested and works."""
    families = {}
    for line in released():
        if compat_matrix.works("MySGD", line):
            families.setdefault(environments.family_of(line), []).append(line["versions"])
    keras = span(each["keras"] for each in families["keras"])[0]
    oldest = span(each["tensorflow"] for found in families.values() for each in found)[0]
    newest = [span(each["tensorflow"] for each in families[family])[1] for family in ("tf_keras", "keras3")]
    check(name, sentence, promise(keras, oldest, *newest))


def test_the_ends_of_the_core():
    """Where it is named, and what goes along with its newest TensorFlow."""
    core = environments.environments("core")
    oldest, newest = span(environments.factors_of(env)["tf"] for env in core)
    number = WORDS[len(core)]
    check("README.md", "core matrix, {} environments from TensorFlow {} to {}:", number, oldest, newest)
    check("docs/releasing.md", "with the wheel, TensorFlow {} and its types installed", newest)
    (pinned,) = {
        value for _, value in environments.conditional(environments.tox_ini()["testenv"]["deps"], "tf" + newest)
    }
    types = environments.tox_ini()["testenv:release-types"]["deps"].split()
    assert pinned in types, "tox.ini: {} should stand under [testenv:release-types]. There is {}".format(pinned, types)


def test_the_versions_that_run_what_a_page_says():
    core = environments.runs_of_the_core()
    assert set(pages.RUNS.values()) <= set(core), "RUNS in tests/pages.py names what is no run of the core"
    oldest, newest, tf_keras = [core[pages.RUNS[label]] for label in ("keras2", "keras3", "tf_keras")]
    oldest, newest, tf_keras = [environments.factors_of(env) for env in (oldest, newest, tf_keras)]
    check(
        "docs/upgrading.md",
        "prints the same from Keras {} on TensorFlow {} to Keras 3 on TensorFlow {}:",
        *[oldest["keras"], oldest["tf"], newest["tf"]],
    )
    check("docs/examples.md", "The same file runs on tf_keras {} (", tf_keras["tfkeras"])


# A row of the table of docs/limits.md, and what compat_matrix.md calls it.
ROWS = {
    "`MySGD`": "MySGD",
    "`wrap` of Keras's optimizers": "wrap",
    "`wrap` of `tf.compat.v1.train`'s": "tf.train",
    "`micro_batch`": "batches in slices",
}


def oldest_that_works(mode, thing):
    """The oldest TensorFlow with a run in this mode that does the thing; and all newer ones do it, at least in part."""
    found = {}
    for line in released():
        if line["mode"] == mode:
            word = compat_matrix.kept_word(thing, line)
            if word == compat_matrix.NOT_RUN:
                # An environment that has the packages of another runs a part of the tests.
                continue
            # In part is less than `wrap` is on TF 1.10, and all that slices are where one case of them is refused.
            good = word in ("yes", "yes, but") or word == "in part" and thing == "batches in slices"
            found.setdefault(as_numbers(minor(line["versions"]["tensorflow"])), []).append(good)
    first = min(version for version, good in found.items() if all(good))
    assert all(all(good) for version, good in found.items() if version >= first), (mode, thing)
    return "{}.{}".format(*first)


def test_from_which_versions():
    """The one table of docs/limits.md says what the runs say."""
    section = pages.read("docs/limits.md").split("### From which versions")[1].split("###")[0]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:1] == "|"]
    assert table[0] == ["", "in graph mode", "in eager mode"] and [row[0] for row in table[2:]] == list(ROWS)
    for name, *claimed in table[2:]:
        wanted = ["TensorFlow " + oldest_that_works(mode, ROWS[name]) for mode in ("graph", "eager")]
        assert claimed == wanted, "docs/limits.md should say of {}: {}".format(name, wanted)


CALL = r"`(?:legacyga\.)?(?:MySGD|wrap|micro_batch)\b[^`]*`"
SINCE = r"(?:from (?:TensorFlow |TF )?\d\.\d+ on|below (?:TensorFlow|TF) \d|(?:TensorFlow|TF) \d\.\d+ or newer)"


def says_since_when(text):
    """The sentences that give a call, and not a thing that it does, its oldest version."""
    return re.findall(r"[^.|]*{}[^.|,;:()]* (?:works?|takes?|needs?) [^|;:()]*?{}".format(CALL, SINCE), text)


def test_no_other_page_says_from_which_versions():
    """What an error says of the version that it wants is the error's own text, a heading."""
    assert says_since_when("Old: `wrap` takes Keras's optimizers from 1.11 on")
    assert says_since_when("`micro_batch` needs TensorFlow 2.2 or newer.")
    for name in pages.names():
        lines = [line for line in pages.read(name).splitlines() if not line.startswith("#")]
        found = says_since_when(re.sub(r"\s+", " ", " ".join(lines)))
        assert not found, "{} should link to docs/limits.md#from-which-versions: {}".format(name, found)
    for name in ("README.md", "docs/quickstart/old_keras.md", "docs/micro_batch.md", "docs/troubleshooting.md"):
        assert "limits.md#from-which-versions" in pages.read(name), name


def test_the_oldest_keras_3():
    """That of docs/limits.md is the oldest which has an environment."""
    factors = [environments.factors_of(env).get("keras", "") for env in environments.environments()]
    oldest = min((each for each in factors if each.startswith("3.")), key=as_numbers)
    check("docs/limits.md", "Keras 3 needs to be {} or newer", oldest)


def test_the_pythons_of_setup_py():
    """Each has an environment, and was tested, or lies between two that were."""
    with open(os.path.join(ROOT, "setup.py")) as file:
        text = file.read()
    first, end = [int(each) for each in re.search(r"for minor in range\((\d+), (\d+)\)", text).groups()]
    pythons = ["3.{}".format(each) for each in range(first, end)]
    assert 'python_requires=">={}"'.format(pythons[0]) in text
    assert '"Programming Language :: Python :: 3.{}".format(minor)' in text
    named = sorted({environments.python_of(env) for env in environments.environments()}, key=as_numbers)
    assert pythons == named, "setup.py has the Pythons {}, and the environments of tox.ini {}".format(pythons, named)
    assert environments.NEWEST_PYTHON == pythons[-1], "NEWEST_PYTHON in tests/environments.py should be " + pythons[-1]
    assert install_with_pips.PYTHONS == pythons, "PYTHONS in tests/install_with_pips.py should be {}".format(pythons)
    found = [line["versions"]["python"] for line in released() if compat_matrix.works("MySGD", line)]
    assert span(found) == (pythons[0], pythons[-1]), "setup.py has Python {} to {}, and tested were {} to {}".format(
        *[pythons[0], pythons[-1]] + list(span(found))
    )
    for name, sentence in (
        ("CONTRIBUTING.md", "The package runs on Python {} to {}."),
        ("CONTRIBUTING.md", "pyenv, from {} to {}, and downloads none"),
        ("docs/releasing.md", "on every Python from {} to {} that is installed"),
    ):
        check(name, sentence, pythons[0], pythons[-1])


def test_the_pythons_of_the_newest_tensorflow(monkeypatch):
    """Where the README and toxfile.py name them, they are those of the environments of it."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.syspath_prepend(ROOT)
    import toxfile

    newest = sorted(toxfile.NEWEST, key=as_numbers)
    ends = newest[0], newest[-1]
    check("CONTRIBUTING.md", "One Python of {} to {} is enough for the newest TensorFlow", *ends)
    check("README.md", "**in a fresh environment** of Python {} to {}, in a clone of the repository", *ends)
    assert environments.NEWEST_PYTHON == newest[-1], (
        "NEWEST in toxfile.py should begin with " + environments.NEWEST_PYTHON
    )
    # The environments that name no Python.
    for env in [env for env in environments.environments("core") if "py" not in environments.factors_of(env)]:
        tensorflow = "tf" + environments.factors_of(env)["tf"]
        base = [value for _, value in environments.conditional(environments.tox_ini()["testenv"]["base_python"], env)]
        assert base == ["{env:NEWEST_PYTHON}"], (
            "tox.ini: `base_python` needs the line {}: {{env:NEWEST_PYTHON}}".format(tensorflow)
        )
        of_it = [each for each in environments.environments() if tensorflow in each.split("-")]
        pythons = span(environments.python_of(each) for each in of_it)
        told = "toxfile.py has Python {} to {} for {}, and the environments of {} in tox.ini have {} to {}"
        assert pythons == ends, told.format(*ends + (env, tensorflow) + pythons)
