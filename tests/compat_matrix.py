"""Make compat_matrix.md from the result files of test runs: `python tests/compat_matrix.py [--check]`.

A result file is written by a run of the tests (run_homes.py), one for every environment, home and mode, into
.tox/results. Those of the last full run are kept in tests/results: `--results .tox/results --keep` puts them there.
With --check nothing is written: it ends with 1 if compat_matrix.md is not what the kept files say; or, with --results,
if an environment of tox.ini was not run, or a kept file says anything else than this run does. An environment of which
nothing is kept stands in the table as not run.
"""

import argparse
import collections
import configparser
import difflib
import glob
import json
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
KEPT = os.path.join(HERE, "results")
TARGET = os.path.join(ROOT, "compat_matrix.md")
HEAD = """# What works where

Made by `python tests/compat_matrix.py` from the result files of test runs: `python -m tox run-parallel -m core` writes
them, `python tests/compat_matrix.py --results .tox/results --keep` keeps them in `tests/results`. A check in
`tox -e lint` fails when the two differ. Every cell is a number of tests:

- **17**: passed.
- **absent**: the thing is not there in that version; the reasons stand below the table.
- **xfail**: known to fail; the reasons stand below the table.
- **failed**: it is broken.
- **not run**: nothing was tested, and nothing is claimed.
"""


def environments():
    """The test environments of tox.ini, in its order."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(os.path.join(ROOT, "tox.ini"))
    return config["tox"]["env_list"].split()


def load(folder):
    """{environment: [records of its runs]}."""
    found = collections.OrderedDict((env, []) for env in environments())
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        name = os.path.basename(path)
        env = next((env for env in found if name.startswith(env + "-")), None)
        if env is None:
            sys.exit("{} belongs to no environment of tox.ini".format(name))
        with open(path) as file:
            found[env].append(json.load(file))
    return found


def cell(row, note):
    """The text of one capability in one run; `note` gives a reason its number."""
    if row is None:
        return "not run"
    parts = [str(row["passed"])] if row["passed"] else []
    if row["failed"]:
        parts.append("**{} failed**".format(row["failed"]))
    for word, reasons in (("xfail", row["xfailed"]), ("absent", row["absent"])):
        parts += ["{} {} [{}]".format(count, word, note(reason)) for reason, count in sorted(reasons.items())]
    return ", ".join(parts) or "not run"


def minor(version):
    return ".".join(version.split(".")[:2])


def render(found):
    """The text of compat_matrix.md."""
    runs = [(env, record) for env, records in found.items() for record in records]
    names = list(collections.OrderedDict.fromkeys(name for _, record in runs for name in record["capabilities"]))
    notes = []

    def note(reason):
        if reason not in notes:
            notes.append(reason)
        return notes.index(reason) + 1

    lines = [
        HEAD,
        "| environment | Python | Keras | mode | " + " | ".join(names) + " |",
        "|" + " --- |" * (4 + len(names)),
    ]
    for env, record in runs:
        versions = record["versions"]
        keras = "{} {}".format(record["home"], minor(versions["keras"]))
        start = [env, minor(versions["python"]), keras, record["mode"]]
        cells = [cell(record["capabilities"].get(name), note) for name in names]
        lines.append("| " + " | ".join(start + cells) + " |")
    for env in [env for env, records in found.items() if not records]:
        lines.append("| " + " | ".join([env, "", "", ""] + ["not run"] * len(names)) + " |")
    if notes:
        lines += [""] + ["{}. {}".format(i, reason) for i, reason in enumerate(notes, 1)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", default=KEPT, help="the folder of the result files (default: those that are kept)")
    parser.add_argument("--keep", action="store_true", help="copy the files of --results over those that are kept")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--counts", action="store_true", help="only print what each run passed, and the sum")
    args = parser.parse_args()
    found = load(args.results)
    if args.counts:
        passed = failed = 0
        for env, records in found.items():
            for record in records:
                rows = record["capabilities"].values()
                counts = [sum(row[name] for row in rows) for name in ("passed", "failed")]
                passed, failed = passed + counts[0], failed + counts[1]
                print("{}, {} in {} mode: {} passed, {} failed".format(env, record["home"], record["mode"], *counts))
        missing = [env for env, records in found.items() if not records]
        print("not run: {}".format(", ".join(missing) or "none"))
        print("{} passed, {} failed".format(passed, failed))
        sys.exit(1 if failed or missing else 0)
    if args.keep:
        for path in glob.glob(os.path.join(args.results, "*.json")):
            shutil.copy(path, KEPT)
        found = load(KEPT)
    text = render(found)
    if not args.check:
        with open(TARGET, "w") as file:
            file.write(text)
        return
    if args.results != KEPT:
        return check_run(found, load(KEPT))
    with open(TARGET) as file:
        kept = file.read()
    if kept != text:
        sys.stdout.writelines(
            difflib.unified_diff(kept.splitlines(True), text.splitlines(True), "compat_matrix.md", "results")
        )
        sys.exit("compat_matrix.md is not what the result files say: run python tests/compat_matrix.py and look")


def check_run(found, kept):
    """Exit with 1 if an environment was not run, or one of the kept records is not among those of the run."""
    missing = [env for env, records in found.items() if not records]
    if missing:
        sys.exit("no result file for " + ", ".join(missing))
    wrong = []
    for env, records in kept.items():
        if not records:
            print("{}: nothing is kept of it to compare with".format(env))
        for record in records:
            if record not in found[env]:
                wrong.append("{}, {} in {} mode".format(env, record["home"], record["mode"]))
    if wrong:
        sys.stdout.writelines(
            difflib.unified_diff(
                render(kept).splitlines(True), render(found).splitlines(True), "tests/results", "this run"
            )
        )
        sys.exit("this run is not what tests/results says: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
