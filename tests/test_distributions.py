"""The wheel and the sdist of a release. tox's environment `release` builds them, and runs this: docs/releasing.md."""

import email
import glob
import os
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DIST = os.environ.get("LEGACYGA_DIST", os.path.join(ROOT, "dist"))
pytestmark = pytest.mark.capability("package")
# In an sdist beside the package.
BESIDE = {"setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE"}
# What setuptools writes into an sdist.
WRITTEN = {"PKG-INFO", "setup.cfg"}


def read(*path):
    with open(os.path.join(ROOT, *path), "rb") as file:
        return file.read()


VERSION = re.search('__version__ = "(.+)"', read("legacyga", "_version.py").decode()).group(1)
STEM = "legacyga-" + VERSION


def of_the_package():
    """The paths of the package's files in the tree."""
    found = set()
    for folder, folders, names in os.walk(os.path.join(ROOT, "legacyga")):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found |= {os.path.relpath(os.path.join(folder, name), ROOT).replace(os.sep, "/") for name in names}
    assert "legacyga/py.typed" in found and "legacyga/__init__.pyi" in found and len(found) > 40
    return found


def contents(wheel):
    """{path: bytes} of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def wheel():
    (path,) = glob.glob(os.path.join(DIST, "*.whl"))
    assert os.path.basename(path) == STEM + "-py3-none-any.whl"
    return contents(path)


@pytest.fixture(scope="module")
def sdist():
    (path,) = glob.glob(os.path.join(DIST, "*.tar.gz"))
    assert os.path.basename(path) == STEM + ".tar.gz"
    with tarfile.open(path) as archive:
        members = [each for each in archive.getmembers() if each.isfile()]
        return {each.name[len(STEM) + 1 :]: archive.extractfile(each).read() for each in members}


@pytest.fixture(scope="module")
def metadata(wheel):
    return email.message_from_bytes(wheel[STEM + ".dist-info/METADATA"])


def test_the_wheel_is_the_package_and_nothing_else(wheel):
    package = {name for name in wheel if not name.startswith(STEM + ".dist-info/")}
    assert package == of_the_package()
    for name in package:
        assert wheel[name] == read(name), name


def test_the_sdist_is_what_the_wheel_is_made_of_and_nothing_else(sdist):
    kept = {name for name in sdist if not name.startswith("legacyga.egg-info/")} - WRITTEN
    assert kept == of_the_package() | BESIDE
    for name in kept:
        assert sdist[name] == read(name), name


def test_the_licence_is_in_both(wheel, sdist):
    folder = STEM + ".dist-info/"
    (found,) = [name for name in wheel if name.startswith(folder) and name.endswith("/LICENSE")]
    assert wheel[found] == sdist["LICENSE"] == read("LICENSE")


def test_the_metadata(metadata, sdist):
    assert metadata["Name"] == "legacyga" and metadata["Version"] == VERSION
    assert metadata["Requires-Python"] == ">=3.6"
    assert metadata["License"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    # Without the address of a repository there are none.
    repository = os.environ.get("LEGACYGA_REPOSITORY")
    urls = metadata.get_all("Project-URL", [])
    assert (urls[:1] == ["Source, " + repository.rstrip("/")]) if repository else urls == []
    shown, text = metadata.get_payload(), read("README.md").decode("ascii")
    last = re.sub(r"\[(.+?)\]\((.+?)\)", r"\1 (`\2`)", text.strip().splitlines()[-1])
    assert shown.startswith("# legacyga") and shown.strip().splitlines()[-1] == last
    assert text.count("\n![") == 1 and "![" not in shown
    assert not re.search(r"\]\((?!https://)", shown) and "Architecture (`docs/design.md`)" in shown
    also = email.message_from_bytes(sdist["PKG-INFO"])
    assert sorted(also.items()) == sorted(metadata.items())


def test_nothing_is_required_but_by_an_extra(metadata):
    required = metadata.get_all("Requires-Dist")
    assert len(required) == 6
    for each in required:
        assert re.search(r'; extra == "(demo|test)"$', each), each


def test_the_sdist_builds_the_same_wheel(sdist, wheel, tmp_path):
    source = tmp_path / "source"
    for name in sorted(sdist):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sdist[name])
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.check_output(command, stderr=subprocess.STDOUT)
    (built,) = glob.glob(str(tmp_path / "*.whl"))
    assert contents(built) == wheel


def test_the_readme_stands_alone(metadata):
    """An index of packages shows it, beside none of the repository's files."""
    from readme_renderer import markdown

    html, text = markdown.render(metadata.get_payload()), read("README.md").decode("ascii")
    tables, blocks = len(re.findall(r"^\| --- ", text, re.MULTILINE)), len(re.findall("^```", text, re.MULTILINE)) // 2
    assert html.count("<table") == tables >= 2 and html.count("<pre") == blocks >= 5
    for link in re.findall(r'(?:href|src)="([^"]*)"', html):
        assert re.match(r"https://|#", link), link
