"""Which Pythons tox may use: all that this machine has, those included that pyenv has installed but not selected.

tox loads this file by its name. pyenv's shims exit with 127 for a Python that is not selected, and uv stops there; so
uv is shown pyenv's real folders in place of its shims. tox-uv looks for the first Python of a `base_python` list alone;
so the newest one is looked for here. Nothing is downloaded: without a network each environment would wait for it.
"""

import glob
import os
import sys

NEWEST = ("3.13", "3.12", "3.11", "3.10")


def search_path():
    """The folders that hold Pythons: of PATH, of pyenv, and of the Python that runs tox."""
    path = os.environ.get("PATH", "").split(os.pathsep)
    shims = [folder for folder in path if os.path.isdir(os.path.join(os.path.dirname(folder), "versions"))]
    roots = [os.path.dirname(folder) for folder in shims if os.path.basename(folder) == "shims"]
    roots += [os.environ.get("PYENV_ROOT") or os.path.join(os.path.expanduser("~"), ".pyenv")]
    folders = [folder for root in roots for folder in sorted(glob.glob(os.path.join(root, "versions", "*", "bin")))]
    folders += [folder for folder in path if os.path.join(os.path.dirname(folder), "shims") not in shims]
    own = getattr(sys, "_base_executable", None) or sys.executable
    return list(dict.fromkeys(folders + [os.path.dirname(own)]))


def newest(folders):
    """The newest Python that the newest TensorFlow runs on, the wanted one where there is none."""
    for version in NEWEST:
        if any(os.access(os.path.join(folder, "python" + version), os.X_OK) for folder in folders):
            return "python" + version
        if "{}.{}".format(*sys.version_info) == version:
            return "python" + version
    return "python" + NEWEST[0]


os.environ.setdefault("UV_PYTHON_SEARCH_PATH", os.pathsep.join(search_path()))
os.environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
os.environ.setdefault("NEWEST_PYTHON", newest(os.environ["UV_PYTHON_SEARCH_PATH"].split(os.pathsep)))
