"""Install the wheel and the sdist with old and new pips, on every Python that is there, and print a table.

    python tests/install_with_pips.py --dist DIR

In DIR are the wheel and the sdist. Each cell is an environment of its own, which has an old NumPy (on Python 3.6 all of
TensorFlow 1.8), one pip and, in turn, several setuptools. A cell says yes where the wheel and the sdist were installed,
no other package came, went or changed its version, legacyga could be imported, and uninstalling it left what there was.
Ends with 1 where that is not so. It needs uv, and the package registry for what is there beforehand.
"""

import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile
from multiprocessing import pool

PYTHONS = ["3.{}".format(minor) for minor in range(6, 14)]
# Of each year one; the last is the newest that the Python can have.
PIPS = ["18.1", "19.3.1", "20.3.4", "21.3.1", "22.3.1", "23.3.2", "24.3.1", "25.3", ""]
# The oldest NumPy that has a wheel for the Python. TensorFlow 1.8 takes 1.13.3 and newer.
THERE = {
    "3.6": ["tensorflow==1.8.0", "keras==2.1.6", "numpy==1.13.3", "h5py==2.10.0", "protobuf==3.6.1"],
    "3.7": ["numpy==1.14.6"],
    "3.8": ["numpy==1.17.5"],
    "3.9": ["numpy==1.19.5"],
    "3.10": ["numpy==1.21.6"],
    "3.11": ["numpy==1.23.5"],
    "3.12": ["numpy==1.26.4"],
    "3.13": ["numpy==2.1.3"],
}
# What builds the sdist: the setuptools that the Python came with, and no wheel; the newest of both that it can have;
# none, whereupon newer pips make an environment to build in. Pythons from 3.12 on came with none.
BUILDS_APART = (23, 1)
CAME_WITH = {
    "3.6": "setuptools==40.6.2",
    "3.7": "setuptools==47.1.0",
    "3.8": "setuptools==56.0.0",
    "3.9": "setuptools==58.1.0",
    "3.10": "setuptools==65.5.0",
    "3.11": "setuptools==65.5.0",
}
NEWEST = ["setuptools", "wheel"]
CODE = (
    "import legacyga, os, sys; legacyga.MySGD, legacyga.wrap; assert 'tensorflow' not in sys.modules; "
    "there = os.listdir(os.path.dirname(legacyga.__file__)); assert 'py.typed' in there and '__init__.pyi' in there"
)
NOT_FOR = "-"
DOES_NOT_START = "pip fails"


class InstallationError(Exception):
    """What an installation did that it must not do."""


def run(*command, **kwargs):
    """(exit code, what it printed) of a command, without what this process's environment says of Python's paths."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # `pip freeze` prints it.
    environ.pop("PIP_FIND_LINKS", None)
    environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, **kwargs
    )
    printed, _ = process.communicate()
    return process.returncode, printed


def uv(*arguments):
    """(whether it did it, what it printed) of uv."""
    code, printed = run("uv", "--quiet", *arguments)
    return code == 0, printed


class Environment(object):
    """A fresh environment of a Python, with one pip."""

    def __init__(self, folder, version, pip):
        self.version, self.folder = version, folder
        self.python = os.path.join(folder, "bin", "python")
        self._uv("venv", "--python", version, folder)
        self.has_pip = self._installs(["pip" + ("==" + pip if pip else "")])
        if self.has_pip:
            self._uv("pip", "install", "--python", self.python, *THERE[version])
        # Some tell their version on a Python on which they do nothing else.
        works = run(self.python, "-m", "pip", "freeze")[0] == 0
        self.pip_version = run(self.python, "-m", "pip", "--version")[1].split()[1] if works else None

    def have(self, packages):
        """Have these packages to build with, and no others. False where this Python cannot have them."""
        uv("pip", "uninstall", "--python", self.python, "setuptools", "wheel")
        return not packages or self._installs(packages)

    def install_and_check(self, *arguments):
        """Install legacyga with pip, look at what else has changed, and take it away again."""
        before = self._there()
        self._pip("install", *arguments)
        told = [line for line in self._pip("freeze").splitlines() if re.match("legacyga(==| @ )", line)]
        if len(told) != 1:
            raise InstallationError("pip freeze does not tell of legacyga")
        after = self._there()
        new = {re.split(r"[-.]", name)[0] for name in after - before}
        if before - after or new != {"legacyga"}:
            raise InstallationError("went: {}; came: {}".format(sorted(before - after), sorted(after - before)))
        code, printed = run(self.python, "-c", CODE, cwd=self.folder)
        if code:
            raise InstallationError(printed)
        self._pip("uninstall", "-y", "legacyga")
        if self._there() != before:
            raise InstallationError("uninstalling left {} of {}".format(sorted(self._there()), sorted(before)))

    def _there(self):
        """What is in site-packages: each package, and its name and version."""
        (packages,) = glob.glob(os.path.join(self.folder, "lib", "python*", "site-packages"))
        return set(os.listdir(packages)) - {"__pycache__"}

    def _pip(self, *arguments):
        code, printed = run(self.python, "-m", "pip", *arguments, cwd=self.folder)
        if code:
            raise InstallationError("pip {}:\n{}".format(" ".join(arguments), printed))
        return printed

    def _installs(self, packages):
        return uv("pip", "install", "--python", self.python, *packages)[0]

    def _uv(self, *arguments):
        done, printed = uv(*arguments)
        if not done:
            raise InstallationError("uv {}:\n{}".format(" ".join(arguments), printed))


def ways(version, pip):
    """(what is told, packages to build with) of a Python and a pip, for each way to build the sdist."""
    found = [("that the Python came with", [CAME_WITH[version]])] if version in CAME_WITH else []
    found.append(("newest", NEWEST))
    if tuple(int(part) for part in pip.split(".")[:2]) >= BUILDS_APART:
        found.append(("none", []))
    return found


def cell(version, pip, wheel, sdist):
    """The cell of a Python and a pip, and a list of what failed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(os.path.join(folder, "env"), version, pip)
        if not environment.has_pip:
            return NOT_FOR, []
        if environment.pip_version is None:
            return DOES_NOT_START, []
        tried = [("wheel", ["--no-index", wheel], [])]
        for name, packages in ways(version, environment.pip_version):
            tried.append(("sdist, setuptools: " + name, [sdist], packages))
        failed = []
        for name, arguments, packages in tried:
            try:
                if not environment.have(packages):
                    raise InstallationError("{} cannot be installed".format(packages))
                environment.install_and_check(*arguments)
            except InstallationError as error:
                failed.append("Python {}, pip {}, {}: {}".format(version, pip or "newest", name, error))
        return ("**no**" if failed else "yes") + ("" if pip else " ({})".format(environment.pip_version)), failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", required=True, help="the folder of the wheel and of the sdist")
    parser.add_argument("--pythons", nargs="*", default=PYTHONS)
    parser.add_argument("--pips", nargs="*", default=PIPS)
    parser.add_argument("--jobs", type=int, default=2, help="how many installations at a time (default: 2)")
    args = parser.parse_args()
    (wheel,), (sdist,) = [glob.glob(os.path.join(os.path.abspath(args.dist), "*" + end)) for end in (".whl", ".tar.gz")]
    pythons = [version for version in args.pythons if uv("python", "find", version)[0]]

    def fill(place):
        found = cell(place[0], place[1], wheel, sdist)
        sys.stderr.write("Python {}, pip {}: {}\n".format(place[0], place[1] or "newest", found[0]))
        return found

    places = [(version, pip) for version in pythons for pip in args.pips]
    cells = dict(zip(places, pool.ThreadPool(args.jobs).map(fill, places, chunksize=1)))
    rows = [[version] + [cells[version, pip][0] for pip in args.pips] for version in pythons]
    head = ["Python"] + ["pip " + (pip or "newest") for pip in args.pips]
    for row in [head, ["---"] * len(head)] + rows:
        print("| {} |".format(" | ".join(row)))
    for version in set(args.pythons) - set(pythons):
        print("There is no Python {} here.".format(version))
    failed = [line for _, lines in cells.values() for line in lines]
    if failed or not rows:
        sys.exit("\n".join(failed) or "no Python was found")


if __name__ == "__main__":
    main()
