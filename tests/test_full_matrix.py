"""full_matrix.py: which environments it runs, what it makes of them, and a whole run with a tox that only pretends."""

import os
import signal
import subprocess
import sys
import time

import compat_matrix
import environments
import full_matrix
import matrix_files
import pytest
import result_files
from matrix_files import CODE, HERE, copy_of_the_tree, row, run

pytestmark = pytest.mark.capability("house")
# It stands for tox: it "builds" a wheel, and "tests" by writing result files, as its name for an environment has it.
FAKE = """
import json, os, sys, time
sys.path.insert(0, os.path.join(os.getcwd(), "tests"))
import environments, result_files
arguments = sys.argv[1:]
env = arguments[arguments.index("-e") + 1]
if "--pkg-only" in arguments:
    # Else it would install all that the tests of this environment need.
    assert env == "wheel", env
    os.makedirs(".tox/.pkg/dist")
    open(".tox/.pkg/dist/legacyga-1-py3-none-any.whl", "w").close()
    sys.exit()
assert os.path.exists(arguments[arguments.index("--installpkg") + 1])
assert os.environ["LEGACYGA_WHOLE"] == "1"
behaves = json.loads(os.environ["BEHAVES"]).get(env, "")
os.makedirs(".tox/" + env, exist_ok=True)
with open("order.txt", "a") as file:
    file.write(env + "\\n")
if behaves == "no wheel":
    sys.exit("error: No solution found: no wheel")
if behaves == "waits":
    print("== tf.keras in eager mode")
    print("...... [ 45%]", flush=True)
    time.sleep(100)
os.makedirs(".tox/results", exist_ok=True)
for home, mode in environments.runs_of(env):
    rows = dict(passed=3, failed=int(behaves == "fails"), xfailed={}, keras_lacks={}, we_lack={})
    rows.update(elsewhere={}, senseless={})
    record = dict(home=home, mode=mode, date="2026-11-20", code=result_files.present_code(), failing=[],
                  versions=dict(python="3.8.1", tensorflow="2.4.4", keras="2.4.0", numpy="1.19.5"),
                  capabilities={"R1 mean": rows})
    result_files.write(".tox/results/{}-{}-{}.json".format(env, home, mode), record)
sys.exit(1 if behaves == "fails" else 0)
"""


def write(folder, env, home, mode, code=CODE, **kwargs):
    record = run(home, mode, "2.4.4", "2.4.0", "3.8", R1__mean=row(passed=2))
    path = os.path.join(str(folder), "{}-{}-{}.json".format(env, home, mode))
    result_files.write(path, dict(record, code=code, **kwargs))
    return path


def test_an_environment_is_done_when_all_of_it_is_of_the_present_code():
    eager, graph = [dict(home="tf.keras", mode=mode, code=CODE) for mode in ("eager", "graph")]
    assert full_matrix.is_done("py38-tf2.4", [eager, graph], CODE)
    assert not full_matrix.is_done("py38-tf2.4", [], CODE)
    assert not full_matrix.is_done("py38-tf2.4", [eager], CODE)
    assert not full_matrix.is_done("py38-tf2.4", [eager, graph], "ffffffffffff")
    assert not full_matrix.is_done("py38-tf2.4", [eager, dict(graph, code=None)], CODE)


def test_what_is_chosen():
    old, done, newest = "py36-tf1.8-keras2.1", "py310-tf2.15", "tf2.21-tfkeras2.21"
    kept = {old: [], newest: [], done: 2 * [dict(code=CODE)]}
    for patterns, again, expected in (
        (None, False, ([old, newest], [done])),
        (None, True, ([old, done, newest], [])),
        (["py310-*", "*tfkeras*"], False, ([newest], [done])),
        (["py39-*"], False, ([], [])),
    ):
        assert full_matrix.chosen(patterns, again, kept, CODE, config=matrix_files.config()) == expected


def test_what_an_environment_came_to(tmpdir):
    def outcome(exit_code=0, log=""):
        words, passed, failed, paths = full_matrix.outcome("py38-tf2.4", CODE, str(tmpdir), exit_code, log)
        return words, passed, failed, len(paths)

    log = "py38-tf2.4: install_deps\n  error: no wheel for this Python\npy38-tf2.4: FAIL\n"
    assert outcome(1, log) == ("not tested: error: no wheel for this Python", 0, 0, 0)
    assert outcome(7) == ("not tested: tox ended with 7", 0, 0, 0)
    write(tmpdir, "py38-tf2.4", "tf.keras", "eager")
    # The other one never ended: what there is is kept.
    assert outcome(1) == ("tests only 1 of its homes and modes", 2, 0, 1)
    write(tmpdir, "py38-tf2.4", "tf.keras", "graph")
    assert outcome() == ("passed", 4, 0, 2)
    assert outcome(1) == ("tests fail", 4, 0, 2)
    write(tmpdir, "py38-tf2.4", "tf.keras", "graph", crashed="pytest ended with -11", capabilities={})
    assert outcome(1) == ("died: pytest ended with -11", 2, 0, 2)
    write(tmpdir, "py38-tf2.4", "tf.keras", "graph", capabilities={"R1 mean": row(passed=1, failed=2)})
    assert outcome(1) == ("tests fail", 3, 2, 2)
    # A wheel of other code says nothing of this tree.
    write(tmpdir, "py38-tf2.4", "tf.keras", "graph", code="ffffffffffff")
    assert outcome() == ("tested other code than that of this tree", 0, 0, 0)


def test_how_far_a_run_is():
    assert full_matrix.progress("py38-tf2.4: install_deps> uv\n") == "is being installed"
    log = "== tf.keras in graph mode\n..... [  9%]\n..... [ 98%]\n... [100%]\n== tf.keras in eager mode\n"
    assert full_matrix.progress(log) == "tf.keras in eager mode 0%"
    assert full_matrix.progress(log + ".... [ 33%]\n..") == "tf.keras in eager mode 33%"


@pytest.fixture
def tree(tmpdir):
    """A tree with a small matrix, of which nothing is kept."""
    made = copy_of_the_tree(tmpdir.mkdir("tree"))
    path = made.join("tox.ini")
    before, _, after = path.read().partition("    # All of compat_matrix.md")
    after = after[after.index("    # They build Horovod") :]
    path.write(before + "    full = py38-tf2.4, py39-tf2.10, py310-tf2.15, py37-tf2.0\n" + after)
    made.join("tests", "full_matrix.py").write(open(os.path.join(HERE, "full_matrix.py")).read())
    made.join("tests", "not_installable.json").write("{}\n")
    made.join("tests", "results.jsonl").write("")
    fake = tmpdir.mkdir("fake").mkdir("tox")
    fake.join("__init__.py").write("")
    fake.join("__main__.py").write(FAKE)
    return made


def start(tree, behaves, *arguments):
    fake = os.path.join(os.path.dirname(str(tree)), "fake")
    return subprocess.Popen(
        [sys.executable, os.path.join("tests", "full_matrix.py")] + list(arguments),
        env=dict(os.environ, PYTHONPATH=fake, BEHAVES=behaves, PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        cwd=str(tree),
    )


def kept(tree):
    lines = result_files.read_lines(str(tree.join("tests", "results.jsonl")))
    return sorted((line["env"], line["mode"]) for line in lines)


def test_a_run_goes_on_where_it_stopped(tree):
    process = start(tree, '{"py310-tf2.15": "no wheel", "py39-tf2.10": "fails"}')
    printed, _ = process.communicate()
    assert process.returncode == 1, printed
    assert "0 environments are done with the present code" in printed and "4 are to be run" in printed
    table = printed.split("\n\n")[1].splitlines()
    found = {line.split()[0]: " ".join(line.split()[1:5] + line.split()[7:]) for line in table[:4]}
    assert found == {
        "py38-tf2.4": "6 passed 0 failed passed",
        "py39-tf2.10": "6 passed 2 failed tests fail",
        "py310-tf2.15": "0 passed 0 failed not tested: error: No solution found: no wheel",
        "py37-tf2.0": "6 passed 0 failed passed",
    }
    names = ["py37-tf2.0", "py38-tf2.4", "py39-tf2.10"]
    assert kept(tree) == [(name, mode) for name in names for mode in ("eager", "graph")]
    # The file was made anew, and what was installed is gone.
    text = tree.join("compat_matrix.md").read()
    assert "\n4 environments, 8 runs: 6 tested, 2 not.\n" in text and "| **broken** |" in text
    assert not tree.join(".tox", "py38-tf2.4").exists()
    # What failed to install is to do; what was tested is done, whatever became of it.
    process = start(tree, "{}")
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    assert "3 environments are done" in printed and "1 are to be run" in printed
    assert tree.join("order.txt").read().split()[4:] == ["py310-tf2.15"]
    process = start(tree, "{}", "--only", "py39-*", "--again", "--jobs", "1")
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    assert tree.join("order.txt").read().split()[5:] == ["py39-tf2.10"]
    assert "| **broken** |" not in tree.join("compat_matrix.md").read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_what_has_ended(tree, number):
    process = start(tree, '{"py39-tf2.10": "waits"}', "--jobs", "1")
    deadline = time.time() + 60
    while "py39" not in (tree.join("order.txt").read() if tree.join("order.txt").exists() else ""):
        assert time.time() < deadline
        time.sleep(0.1)
    process.send_signal(number)
    printed, _ = process.communicate()
    assert process.returncode == 1, printed
    assert "interrupted: 1 of 4 were run, and are kept" in printed
    assert kept(tree) == [("py38-tf2.4", "eager"), ("py38-tf2.4", "graph")]
    process = start(tree, "{}", "--list")
    printed, _ = process.communicate()
    assert "\ndone  py38-tf2.4\nto do py39-tf2.10\nto do py310-tf2.15\nto do py37-tf2.0\n" in printed


def test_an_unknown_environment_is_an_error(tree):
    process = start(tree, "{}", "--only", "py99-*")
    printed, _ = process.communicate()
    assert process.returncode == 2 and "no environment of the label `full` of tox.ini is py99-*" in printed


def test_what_it_runs_is_the_matrix():
    assert sorted(full_matrix.chosen(None, True, compat_matrix.load(), CODE)[0]) == sorted(environments.environments())
