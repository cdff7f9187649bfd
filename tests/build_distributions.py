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
COPIED = ("legacyga", "tests", "setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")


def main():
    (target,) = sys.argv[1:]
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            source, copy = os.path.join(ROOT, name), os.path.join(folder, name)
            if os.path.isdir(source):
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy)
        sys.exit(
            subprocess.call(
                [sys.executable, "-m", "build", "--no-isolation", "--outdir", os.path.abspath(target), folder]
            )
        )


if __name__ == "__main__":
    main()
