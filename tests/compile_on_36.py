"""Compile every file under a real Python 3.6, the oldest that is promised: ruff and vermin know it from hearsay."""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CODE = "import sys; [compile(open(p, encoding='utf-8').read(), p, 'exec') for p in sys.argv[1:]]; print(sys.version)"


def main():
    found = subprocess.run(["uv", "python", "find", "3.6"], stdout=subprocess.PIPE, universal_newlines=True)
    if found.returncode:
        sys.exit("no Python 3.6 here to compile with: install one, or run the other parts of `lint` by hand")
    files = [
        os.path.join(folder, name)
        for top in ("legacyga", "tests", "examples")
        for folder, _, names in os.walk(os.path.join(ROOT, top))
        for name in names
        if name.endswith(".py")
    ]
    print(len(files), "files under", end=" ", flush=True)
    sys.exit(subprocess.call([found.stdout.strip(), "-c", CODE] + files + [os.path.join(ROOT, "setup.py")]))


if __name__ == "__main__":
    main()
