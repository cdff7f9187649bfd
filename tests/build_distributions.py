"""Build the sdist from a copy of the tree, and the wheel from the sdist: `python tests/build_distributions.py DIR`.

The copy keeps the tree clean, and old files out of the build. It needs `build`, `setuptools` and `wheel`.
"""

import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# With the tests, so that what keeps them out of the sdist has something to keep out.
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "site")

if __name__ == "__main__":
    target = os.path.abspath(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = shutil.copytree(ROOT, os.path.join(folder, "tree"), ignore=NOT_COPIED)
        sys.exit(subprocess.call([sys.executable, "-m", "build", "--no-isolation", "--outdir", target, tree]))
