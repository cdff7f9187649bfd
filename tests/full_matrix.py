"""Run every environment of the matrix, and keep what each one found: `python tests/full_matrix.py`.

It runs tox, some environments at a time, from a wheel that is built once. As soon as one has ended, tests/results.jsonl
keeps what it came to, and compat_matrix.md is made anew. An environment whose kept lines are all of the present code is
done, so a run that was interrupted goes on where it stopped. One that cannot be installed, or in which tests fail, is
listed at the end, and the others go on.
"""

import argparse
import collections
import concurrent.futures
import fnmatch
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import compat_matrix  # noqa: E402
import environments  # noqa: E402
import result_files  # noqa: E402

ROOT = os.path.dirname(HERE)
WORK = os.path.join(ROOT, ".tox", "full_matrix")
RESULTS = os.path.join(ROOT, ".tox", "results")
TOX = [sys.executable, "-m", "tox"]
# Seconds between two lines that say how far it is.
SECONDS = 60
# Seconds that what was interrupted has to end.
PATIENCE = 60

Ended = collections.namedtuple("Ended", "env words passed failed minutes")


def is_done(env, records, code):
    """Whether lines of all homes and modes of an environment are kept, and of this code."""
    return len(records) == len(environments.runs_of(env)) and all(each["code"] == code for each in records)


def result_path(folder, env, run):
    return os.path.join(folder, "{}-{}-{}.json".format(env, *run))


def chosen(patterns, again, kept, code, label="full", config=None):
    """(the environments to run, those that are done), in the order of tox.ini; `kept`: of `compat_matrix.load`."""
    named = [
        env
        for env in environments.labels(config)[label]
        if not patterns or any(fnmatch.fnmatchcase(env, pattern) for pattern in patterns)
    ]
    done = [env for env in named if not again and is_done(env, kept[env], code)]
    return [env for env in named if env not in done], done


def outcome(env, code, folder, exit_code, log):
    """What an environment came to: (words, passed, failed, paths of its new result files).

    Args:
        env: its name.
        code: the hash of the code that was to be tested.
        folder: where its run wrote result files.
        exit_code: of tox.
        log: what tox printed.
    """
    paths = [result_path(folder, env, run) for run in environments.runs_of(env)]
    paths = [path for path in paths if os.path.exists(path)]
    records = [result_files.read(path) for path in paths]
    if any(record.get("code") != code for record in records):
        return "tested other code than that of this tree", 0, 0, []
    rows = [row for record in records for row in record["capabilities"].values()]
    passed, failed = [sum(row[name] for row in rows) for name in ("passed", "failed")]
    crashed = [record["crashed"] for record in records if record.get("crashed")]
    if not records:
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        told = [line for line in lines if re.search(r"error|refusing|not find|should hold|×|╰|No solution", line)]
        return "not tested: " + ((told or lines or ["tox ended with {}".format(exit_code)])[-1])[:200], 0, 0, []
    if len(records) < len(environments.runs_of(env)):
        return "tests only {} of its homes and modes".format(len(records)), passed, failed, paths
    if crashed:
        return "died: " + crashed[0], passed, failed, paths
    if failed or exit_code:
        return "tests fail", passed, failed, paths
    return "passed", passed, failed, paths


def progress(log):
    """How far a run of tests is, by what it has printed."""
    under_way = re.findall(r"^== (.+)$", log, re.MULTILINE)
    if not under_way:
        return "is being installed"
    percent = re.findall(r"\[ *(\d+%)\]", log.rpartition("== " + under_way[-1])[2])
    return "{} {}".format(under_way[-1], percent[-1] if percent else "0%")


def table(ended):
    """Lines of what was run, and how it went."""
    width = max(len(each.env) for each in ended)
    return [
        "{:{}}  {:>6} passed {:>4} failed  {:>5.0f} min  {}".format(
            each.env, width, each.passed, each.failed, each.minutes, each.words
        )
        for each in ended
    ]


def read(path):
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


class Matrix(object):
    """The run of some environments.

    Args:
        envs: their names.
        code: the hash of the present code.
        keep_venvs: whether what tox installs stays on the disk.
    """

    def __init__(self, envs, code, keep_venvs=False):
        self._code, self._keep_venvs = code, keep_venvs
        self._waiting, self._running, self.ended = list(envs), {}, []
        self._lock, self._stopped = threading.Lock(), False
        self._wheel = None

    def build(self):
        """Build the wheel that every environment gets."""
        at = os.path.join(ROOT, ".tox", ".pkg", "dist")
        for folder in (at, os.path.join(WORK, "dist")):
            shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.join(WORK, "dist"), exist_ok=True)
        # In an environment that needs nothing: one of the matrix would first install all that is its own.
        subprocess.check_call(TOX + ["-q", "run", "--pkg-only", "-e", "wheel"], cwd=ROOT)
        (built,) = glob.glob(os.path.join(at, "*.whl"))
        self._wheel = shutil.copy(built, os.path.join(WORK, "dist"))

    def run(self, jobs):
        """Run them all, `jobs` at a time."""
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            waiting = [pool.submit(self._run_one, env) for env in self._waiting]
            try:
                while True:
                    done, left = concurrent.futures.wait(waiting, SECONDS, concurrent.futures.FIRST_EXCEPTION)
                    for each in done:
                        each.result()
                    if not left:
                        return
                    self._say_how_far()
            except BaseException:
                self._stopped = True
                for each in waiting:
                    each.cancel()
                self._stop()
                raise

    def _run_one(self, env):
        if self._stopped:
            return
        started, folder = time.time(), os.path.join(ROOT, ".tox", env)
        log, was_there = os.path.join(WORK, env + ".log"), os.path.exists(folder)
        for run in environments.runs_of(env):
            if os.path.exists(result_path(RESULTS, env, run)):
                os.remove(result_path(RESULTS, env, run))
        with open(log, "w") as file:
            # A group of its own: an interruption reaches it once, by _stop.
            process = subprocess.Popen(
                TOX + ["run", "--installpkg", self._wheel, "-e", env],
                cwd=ROOT,
                env=dict(os.environ, TOX_SKIP_MISSING_INTERPRETERS="false", LEGACYGA_WHOLE="1"),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            with self._lock:
                self._running[env] = process
            exit_code = process.wait()
        with self._lock:
            del self._running[env]
            if self._stopped:
                return
            found = outcome(env, self._code, RESULTS, exit_code, read(log))
            self._end(Ended(env, *(found[:3] + ((time.time() - started) / 60,))), found[3])
        if not self._keep_venvs and not was_there:
            shutil.rmtree(folder, ignore_errors=True)

    def _end(self, ended, paths):
        compat_matrix.keep(paths)
        compat_matrix.write()
        self.ended.append(ended)
        print("[{}/{}] {}".format(len(self.ended), len(self._waiting), table([ended])[0]), flush=True)

    def _say_how_far(self):
        with self._lock:
            for env in self._running:
                print("        {}: {}".format(env, progress(read(os.path.join(WORK, env + ".log")))), flush=True)

    def _stop(self):
        with self._lock:
            running = list(self._running.values())
        # As the terminal does it: tox, and all that it runs.
        for process in running:
            self._signal(process, signal.SIGINT)
        for process in running:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._signal(process, signal.SIGKILL)
                process.wait()

    @staticmethod
    def _signal(process, number):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="environments to run, such as 'py39-*' 'tf2.21-*'")
    parser.add_argument("--jobs", type=int, default=2, help="environments at a time (default: 2)")
    parser.add_argument("--again", action="store_true", help="also those that are done")
    parser.add_argument("--list", action="store_true", help="only say which are done, and which are not")
    parser.add_argument("--keep-venvs", action="store_true", help="leave on the disk what was installed")
    args = parser.parse_args()
    # Whatever ends it ends what it has started, also where a shell has it ignore interruptions.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    code = result_files.present_code()
    todo, done = chosen(args.only, args.again, compat_matrix.load(), code)
    if not todo and not done:
        parser.error("no environment of the label `full` of tox.ini is {}".format(" or ".join(args.only)))
    print("{} environments are done with the present code ({}), {} are to be run".format(len(done), code, len(todo)))
    if args.list:
        print("\n".join(["done  " + env for env in done] + ["to do " + env for env in todo]))
    if args.list or not todo:
        return
    matrix = Matrix(todo, code, args.keep_venvs)
    matrix.build()
    interrupted = False
    try:
        matrix.run(args.jobs)
    except KeyboardInterrupt:
        interrupted = True
    if matrix.ended:
        print("\n".join([""] + table(matrix.ended)))
    if interrupted:
        sys.exit("interrupted: {} of {} were run, and are kept".format(len(matrix.ended), len(todo)))
    print("The logs are in {}".format(os.path.relpath(WORK)))
    if any(each.words != "passed" for each in matrix.ended):
        sys.exit(1)


if __name__ == "__main__":
    main()
