"""The package as pip sees it: wheel and sdist, installed offline by the pip that this Python itself brings."""

import os
import shutil
import subprocess
import sys

import pytest
import skips

pytestmark = [pytest.mark.capability("package"), pytest.mark.usefixtures("once_in_an_environment")]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VERSION = "python{}.{}".format(*sys.version_info)
# What a fresh environment has of its own (easy_install: with the setuptools of TF 1.9 to 1.11), and what is installed.
OWN = ("legacyga", "pip", "setuptools", "wheel", "pkg_resources", "easy_install", "_distutils", "distutils")
OWN += ("_virtualenv", "__")


def run(*command, **kwargs):
    # Without the machine's own settings of pip and Python.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    environ.update(PIP_CONFIG_FILE=os.devnull, PIP_DISABLE_PIP_VERSION_CHECK="1")
    return subprocess.check_output(command, env=environ, universal_newlines=True, **kwargs)


@pytest.fixture(scope="module")
def fresh_python(tmp_path_factory):
    """A fresh environment of the stock Python, with its own pip, that has this one's TensorFlow and all else."""
    folder = str(tmp_path_factory.mktemp("fresh"))
    run(os.path.join(sys.base_prefix, "bin", VERSION), "-m", "venv", folder)
    packages = os.path.join(folder, "lib", VERSION, "site-packages")
    for here in [path for path in sys.path if path.endswith("site-packages")]:
        for name in os.listdir(here):
            if not name.startswith(OWN) and not name.endswith(".pth"):
                os.symlink(os.path.join(here, name), os.path.join(packages, name))
    return os.path.join(folder, "bin", "python")


@pytest.fixture
def python(once_in_an_environment, request):
    # Not an argument: pytest would make it before it skips.
    return request.getfixturevalue("fresh_python")


@pytest.fixture
def source(tmp_path):
    """A copy of what is packed, so that building leaves nothing behind."""
    folder = str(tmp_path / "source")
    os.mkdir(folder)
    for name in ("setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(os.path.join(ROOT, name), folder)
    shutil.copytree(os.path.join(ROOT, "legacyga"), os.path.join(folder, "legacyga"))
    return folder


def freeze(python):
    return set(run(python, "-m", "pip", "freeze", "--all").splitlines())


def install_and_check(python, package, cwd):
    before = freeze(python)
    assert any(line.lower().startswith("tensorflow") for line in before), "there must be something to leave alone"
    run(python, "-m", "pip", "install", "-q", "--no-index", package)
    after = freeze(python)
    assert not before - after, "packages that were changed or removed"
    assert [line.split("==")[0].split(" @")[0] for line in after - before] == ["legacyga"]
    code = (
        "import legacyga, os, sys; legacyga.MySGD; assert 'tensorflow' not in sys.modules; "
        "import legacyga.optimizers.v1, legacyga.cli.demo; print(os.path.dirname(legacyga.__file__))"
    )
    where = run(python, "-c", code, cwd=cwd).strip()
    assert os.path.realpath(where).startswith(os.path.realpath(os.path.dirname(os.path.dirname(python))))
    # For type checkers.
    assert {"py.typed", "__init__.pyi"} <= set(os.listdir(where))
    # The next package finds the environment as this one did.
    run(python, "-m", "pip", "uninstall", "-q", "-y", "legacyga")
    assert freeze(python) == before


@pytest.mark.slow
def test_the_wheel(python, tmp_path):
    wheel = os.environ.get("TOX_PACKAGE")
    if not wheel:
        skips.elsewhere("the wheel is built by tox")
    assert wheel.endswith("-py3-none-any.whl")
    install_and_check(python, wheel, str(tmp_path))


@pytest.mark.long
def test_the_sdist(python, source, tmp_path):
    if sys.version_info >= (3, 11):
        skips.senseless("The pip that Pythons from 3.11 on bring builds with nothing but what an index has")
    run(python, "setup.py", "-q", "sdist", "-d", str(tmp_path), cwd=source)
    sdist = [name for name in os.listdir(str(tmp_path)) if name.endswith(".tar.gz")]
    install_and_check(python, str(tmp_path / sdist[0]), str(tmp_path))


def test_the_metadata(python, source, tmp_path):
    if sys.version_info >= (3, 12):
        skips.senseless("Pythons from 3.12 on bring no setuptools to build with offline")
    run(python, "setup.py", "-q", "egg_info", "-e", str(tmp_path), cwd=source)
    with open(str(tmp_path / "legacyga.egg-info" / "PKG-INFO")) as file:
        lines = file.read().splitlines()
    assert "Name: legacyga" in lines and "Requires-Python: >=3.6" in lines
    with open(str(tmp_path / "legacyga.egg-info" / "requires.txt")) as file:
        requirements = file.read().split("[", 1)
    assert requirements[0].strip() == "", "install_requires must be empty"
