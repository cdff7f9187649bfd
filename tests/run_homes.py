"""Run the tests once for every home and mode of this environment, each in a process of its own.

    python run_homes.py [arguments of pytest]

Ends with 1 when one of them fails, or when nothing was tested. Under tox each run writes its result file into
`.tox/results`; compat_matrix.py reads such files.
"""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import environments  # noqa: E402
import homes  # noqa: E402

# The environments `lint` and `release` run these: they need no TensorFlow.
LINTED = ["house", "compat_matrix", "full_matrix", "claims", "release", "pages", "scale"]
WITHOUT = ["--ignore={}".format(os.path.join(HERE, "test_{}.py".format(name))) for name in LINTED + ["distributions"]]
RESULTS = os.path.join(environments.ROOT, ".tox", "results")


def main():
    env, failed = os.environ.get("LEGACYGA_ENV"), []
    # compat_matrix.md lists what an environment should hold by its name.
    if env and sorted(homes.available()) != sorted(environments.runs_of(env)):
        sys.exit("{} should hold {}, and holds {}".format(env, environments.runs_of(env), homes.available()))
    for home, mode in homes.available():
        print("== {} in {} mode".format(home, mode), flush=True)
        environ, path = dict(os.environ), os.path.join(RESULTS, "{}-{}-{}.json".format(env, home, mode))
        # A run of a part of the tests is no result of the environment, and leaves that of the whole.
        if env and not sys.argv[1:]:
            os.makedirs(RESULTS, exist_ok=True)
            if os.path.exists(path):
                os.remove(path)
            environ["LEGACYGA_RESULT_FILE"] = path
        command = [sys.executable, "-m", "pytest", "-q", "--home", home, "--mode", mode, HERE] + WITHOUT + sys.argv[1:]
        if subprocess.call(command, env=environ):
            failed.append("{} in {} mode".format(home, mode))
    if failed or not homes.available():
        sys.exit("{}: failed: {}".format(env, ", ".join(failed) or "no home found"))


if __name__ == "__main__":
    main()
