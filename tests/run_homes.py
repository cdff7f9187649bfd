"""Run the tests once for every home and mode of this environment, each in a process of its own.

    python run_homes.py [arguments of pytest]

Ends with 1 when one of them fails, or when nothing was tested. Under tox each run writes its result file into
`.tox/results`; compat_matrix.py makes compat_matrix.md from such files.
"""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import environments  # noqa: E402
import homes  # noqa: E402
import result_files  # noqa: E402

# The environments `lint` and `release` run these: they need no TensorFlow.
LINTED = (
    "test_house.py",
    "test_compat_matrix.py",
    "test_full_matrix.py",
    "test_claims.py",
    "test_release.py",
    "test_pages.py",
    "test_scale.py",
)
RELEASED = ("test_distributions.py",)
WITHOUT = ["--ignore=" + os.path.join(HERE, name) for name in LINTED + RELEASED]


def record_crash(path, home, mode, code):
    """Write the result file of a run that died on the way: what it had tested is lost."""
    import tensorflow as tf

    keras = homes.version("keras" if home == "tf.keras" else home) or "of TensorFlow"
    written = result_files.start_record(home, mode, tf.__version__, keras)
    written["crashed"] = "pytest ended with {}".format(code)
    written["capabilities"] = {}
    result_files.write(path, written)


def main():
    env = os.environ.get("LEGACYGA_ENV")
    folder = os.path.join(os.path.dirname(HERE), ".tox", "results")
    failed, counts = [], []
    # compat_matrix.md lists what an environment should hold by its name.
    if env and sorted(homes.available()) != sorted(environments.runs_of(env)):
        sys.exit("{} should hold {}, and holds {}".format(env, environments.runs_of(env), homes.available()))
    for home, mode in homes.available():
        print("== {} in {} mode".format(home, mode), flush=True)
        path = os.path.join(folder, "{}-{}-{}.json".format(env, home, mode))
        environ = dict(os.environ)
        # A run of a part of the tests is no result of the environment, and leaves that of the whole.
        if env and not sys.argv[1:]:
            os.makedirs(folder, exist_ok=True)
            if os.path.exists(path):
                os.remove(path)
            environ["LEGACYGA_RESULT_FILE"] = path
        command = [sys.executable, "-m", "pytest", "-q", "--home", home, "--mode", mode, HERE] + WITHOUT + sys.argv[1:]
        code = subprocess.call(command, env=environ)
        if code:
            failed.append("{} in {} mode".format(home, mode))
            # 1 is a test that failed, 2 somebody who interrupted.
            if "LEGACYGA_RESULT_FILE" in environ and code not in (1, 2):
                record_crash(path, home, mode, code)
        elif "LEGACYGA_RESULT_FILE" in environ:
            rows = result_files.read(path)["capabilities"].values()
            counts.append("{} in {} mode: {} passed".format(home, mode, sum(row["passed"] for row in rows)))
    for line in counts:
        print("{}: {}".format(env, line))
    if failed or not homes.available():
        sys.exit("{}: failed: {}".format(env, ", ".join(failed) or "no home found"))


if __name__ == "__main__":
    main()
