"""Let tox-uv find the Pythons that pyenv has installed but not selected: its shims for those exit with 127.

tox loads this file by its name. uv is told to look into pyenv's real folders first, and never to download a Python,
which without a network costs every environment its time-out.
"""
import glob
import os


def _search_path():
    root = os.environ.get("PYENV_ROOT") or os.path.join(os.path.expanduser("~"), ".pyenv")
    shims = os.path.join(root, "shims")
    real = sorted(glob.glob(os.path.join(root, "versions", "*", "bin")))
    return real + [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder != shims]


os.environ.setdefault("UV_PYTHON_SEARCH_PATH", os.pathsep.join(_search_path()))
os.environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
