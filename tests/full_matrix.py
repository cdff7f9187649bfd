"""Run every environment of the matrix, and keep what each one found: `python tests/full_matrix.py`.

It runs tox, some environments at a time. Then tests/results.jsonl keeps what they came to, and compat_matrix.md is made
anew. An environment whose kept lines are all of the present code is done, so a run that was interrupted goes on where
it stopped. tox lists those that cannot be installed, or in which tests fail, at the end; its logs are in .tox/*/log.
"""

import argparse
import fnmatch
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import compat_matrix  # noqa: E402
import environments  # noqa: E402

RESULTS = os.path.join(environments.ROOT, ".tox", "results")


def chosen(patterns, again, things=()):
    """(the environments to run, those that are done with the present code), in the order of tox.ini."""
    code = compat_matrix.present_code()

    def is_done(line):
        anew = line.get("anew", {})
        return line["code"] == code or things and all(anew.get(thing, [None])[-1] == code for thing in things)

    done = {compat_matrix.run_of(line) for line in compat_matrix.load() if is_done(line) and not again}
    named = [env for env in environments.labels()["full"] if any(fnmatch.fnmatchcase(env, each) for each in patterns)]
    todo = [env for env in named if any((env,) + run not in done for run in environments.runs_of(env))]
    return todo, [env for env in named if env not in todo]


def run(envs, jobs, things=()):
    """Run environments, whole or the tests of some columns, and keep what they come to. Returns tox's exit code."""
    for path, record in compat_matrix.read_all(RESULTS).items():
        if record["env"] in envs:
            os.remove(path)
    command = [sys.executable, "-m", "tox", "run-parallel", "--parallel", str(jobs), "-e", ",".join(envs)]
    environ = dict(
        os.environ, TOX_SKIP_MISSING_INTERPRETERS="false", LEGACYGA_WHOLE="1", LEGACYGA_THINGS=", ".join(things)
    )
    process, interrupted = subprocess.Popen(command, cwd=environments.ROOT, env=environ), False
    try:
        process.wait()
    except KeyboardInterrupt:
        # The terminal has told tox too.
        interrupted = process.wait() or True
    code = compat_matrix.present_code()
    # A wheel of other code says nothing of this tree, and a run that was interrupted looks as if it had died.
    found = [each for each in compat_matrix.read_all(RESULTS).values() if each["env"] in envs and each["code"] == code]
    compat_matrix.keep([each for each in found if not (interrupted and each.get("crashed"))])
    compat_matrix.write()
    return process.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="such as 'py39-*' 'tf2.21-*'")
    parser.add_argument("--jobs", type=int, default=2, help="environments at a time (default: 2)")
    parser.add_argument("--again", action="store_true", help="also those that are done")
    parser.add_argument("--list", action="store_true", help="only say which are done, and which are not")
    parser.add_argument(
        "--things",
        nargs="+",
        default=[],
        choices=list(compat_matrix.THINGS),
        metavar="COLUMN",
        help="the tests of these columns of compat_matrix.md alone, such as 'unequal batches'",
    )
    args = parser.parse_args()
    todo, done = chosen(args.only, args.again, args.things)
    if not todo and not done:
        parser.error("no environment of the label `full` of tox.ini is {}".format(" or ".join(args.only)))
    print("\n".join(["done  " + env for env in done] + ["to do " + env for env in todo]), flush=True)
    if todo and not args.list:
        sys.exit(run(todo, args.jobs, args.things))


if __name__ == "__main__":
    main()
