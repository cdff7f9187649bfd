"""Install the wheel and the sdist with old and new pips, on every Python that is there, and print a table.

    python tests/install_with_pips.py --dist DIR

In DIR are the wheel and the sdist. Each cell is an environment of its own, which has an old NumPy (on Python 3.6 all of
TensorFlow 1.8), one pip and, in turn, several setuptools. A cell says yes where the wheel and the sdist were installed,
no other package came, went or changed its version, legacyga could be imported, and uninstalling it left what there was.
Ends with 1 where that is not so. It needs uv, and the package registry for what is there beforehand.
"""

import argparse
import functools
import glob
import itertools
import os
import re
import subprocess
import sys
import tempfile
from multiprocessing import pool

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
PYTHONS = list(THERE)
# What builds the sdist: the setuptools that the Python came with, and no wheel; the newest of both that it can have;
# or none: pip from BUILDS_APART on builds in an environment apart. Pythons from 3.12 on came with none.
BUILDS_APART = (23, 1)
CAME_WITH = {
    "3.6": "setuptools==40.6.2",
    "3.7": "setuptools==47.1.0",
    "3.8": "setuptools==56.0.0",
    "3.9": "setuptools==58.1.0",
    "3.10": "setuptools==65.5.0",
    "3.11": "setuptools==65.5.0",
}
CODE = (
    "import legacyga, os, sys; legacyga.MySGD, legacyga.wrap; assert 'tensorflow' not in sys.modules; "
    "there = os.listdir(os.path.dirname(legacyga.__file__)); assert 'py.typed' in there and '__init__.pyi' in there"
)


def run(*command, check=True, **kwargs):
    """The process of a command, without what this process's environment says of Python's paths, and what it printed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # `pip freeze` prints it.
    environ.pop("PIP_FIND_LINKS", None)
    environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    kwargs.update(env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    return subprocess.run(command, check=check, **kwargs)


def uv_pip(what, python, *packages):
    return run("uv", "--quiet", "pip", what, "--python", python, *packages, check=False)


def install_and_check(python, *arguments):
    """Install legacyga with pip, look at what else has changed, and take it away again."""
    folder = os.path.dirname(os.path.dirname(python))
    (packages,) = glob.glob(os.path.join(folder, "lib", "python*", "site-packages"))
    pip = functools.partial(run, python, "-m", "pip", cwd=folder)

    def there():
        """Each package, and its name and version."""
        return set(os.listdir(packages)) - {"__pycache__"}

    before = there()
    pip("install", *arguments)
    told = re.findall("^legacyga(?:==| @ )", pip("freeze").stdout, re.M)
    assert len(told) == 1, "pip freeze does not tell of legacyga"
    went, came = before - there(), there() - before
    new = {re.split(r"[-.]", name)[0] for name in came}
    assert not went and new == {"legacyga"}, "went: {}; came: {}".format(sorted(went), sorted(came))
    run(python, "-c", CODE, cwd=folder)
    pip("uninstall", "-y", "legacyga")
    assert there() == before, "uninstalling left {} of {}".format(sorted(there()), sorted(before))


def ways(version, pip):
    """(what is told, packages to build with) of a Python and a pip, for each way to build the sdist."""
    found = [("that the Python came with", [CAME_WITH[version]])] if version in CAME_WITH else []
    found.append(("newest", ["setuptools", "wheel"]))
    if tuple(int(part) for part in pip.split(".")[:2]) >= BUILDS_APART:
        found.append(("none", []))
    return found


def cell(wheel, sdist, version, pip):
    """The cell of a Python and a pip, and a list of what failed."""
    with tempfile.TemporaryDirectory() as folder:
        python = os.path.join(folder, "env", "bin", "python")
        run("uv", "--quiet", "venv", "--python", version, os.path.join(folder, "env"))
        if uv_pip("install", python, "pip" + ("==" + pip if pip else "")).returncode:
            return "-", []
        uv_pip("install", python, *THERE[version]).check_returncode()
        # Some tell their version on a Python on which they do nothing else.
        if run(python, "-m", "pip", "freeze", check=False).returncode:
            return "pip fails", []
        number = run(python, "-m", "pip", "--version").stdout.split()[1]
        tried = [("wheel", ["--no-index", wheel], [])]
        tried += [("sdist, setuptools: " + name, [sdist], packages) for name, packages in ways(version, number)]
        failed = []
        for name, arguments, packages in tried:
            try:
                uv_pip("uninstall", python, "setuptools", "wheel")
                if packages:
                    uv_pip("install", python, *packages).check_returncode()
                install_and_check(python, *arguments)
            except (AssertionError, subprocess.CalledProcessError) as error:
                told = "Python {}, pip {}, {}: {}\n{}"
                failed.append(told.format(version, number, name, error, getattr(error, "output", "")))
        return ("**no**" if failed else "yes") + ("" if pip else " ({})".format(number)), failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", required=True, help="the folder of the wheel and of the sdist")
    parser.add_argument("--pythons", nargs="*", default=PYTHONS)
    parser.add_argument("--pips", nargs="*", default=PIPS)
    parser.add_argument("--jobs", type=int, default=2, help="how many installations at a time (default: 2)")
    args = parser.parse_args()
    (wheel,), (sdist,) = [glob.glob(os.path.join(os.path.abspath(args.dist), "*" + end)) for end in (".whl", ".tar.gz")]
    pythons = [version for version in args.pythons if not run("uv", "python", "find", version, check=False).returncode]
    places = itertools.product(pythons, args.pips)
    found = pool.ThreadPool(args.jobs).starmap(functools.partial(cell, wheel, sdist), places, chunksize=1)
    names = ["Python"] + ["pip " + (pip or "newest") for pip in args.pips]
    rows = [names, ["---"] * len(names)]
    for i, version in enumerate(pythons):
        rows.append([version] + [word for word, _ in found[i * len(args.pips) :][: len(args.pips)]])
    print("\n".join("| {} |".format(" | ".join(row)) for row in rows))
    for version in set(args.pythons) - set(pythons):
        print("There is no Python {} here.".format(version))
    failed = [line for _, lines in found for line in lines]
    if failed or not found:
        sys.exit("\n".join(failed) or "no Python was found")


if __name__ == "__main__":
    main()
