"""The home under test, the guard against testing another one than was asked for, and the result file of a run."""

import collections
import datetime
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "fixtures")]
# The tree's legacyga, where none is installed.
sys.path.append(os.path.dirname(HERE))

import environments  # noqa: E402
import homes  # noqa: E402
import known_failures  # noqa: E402
import skips  # noqa: E402
from compat_matrix import CAPABILITIES, ELSEWHERE, KINDS, TAKES_LONG, THINGS, code_of  # noqa: E402

# So that its assertions show their numbers.
pytest.register_assert_rewrite("dense")

# The only tests that need packages beside TensorFlow and Keras, which the environments of the labels `horovod` and
# `others` have, and the environment `site`.
NEEDED = {
    "test_horovod.py": ["horovod"],
    "test_site.py": ["selenium"],
    "test_third_party.py": ["transformers"],
    "test_third_party_v1.py": ["bert4keras", "keras_gradient_accumulation", "keras_lookahead", "keras_radam", "rl"],
}
collect_ignore = [name for name in sorted(NEEDED) if not all(map(importlib.util.find_spec, NEEDED[name]))]

# Where the matrix runs what takes long, (home, mode, TensorFlow): each generation of optimizers in each of its modes.
# TF 2.15 has two of them, v2 and v3.
LONG = [
    ("keras", "graph", "1.13"),
    ("tf.keras", "graph", "1.15"),
    ("tf.keras", "eager", "2.15"),
    ("keras", "eager", "2.21"),
]
# And what is of no generation: in graph mode and in eager mode. Each is the last run of its environment.
TWO = [("tf.keras", "graph", "1.15"), ("keras", "eager", "2.21")]
# CI runs every test that is not marked `slow` on the oldest and the newest stack of each generation and mode, and the
# contract's tests on those between. These are its numbers.
CONTRACT = [
    "R1 mean",
    "R2 weights",
    "R3 nothing else moves",
    "R4 per update",
    "R5 phase",
    "R6 K = 1 is the bare optimizer",
    "R8 change of K",
    "R8 partial windows",
    "wrap: NumPy oracle",
]


def generations(home, mode, tensorflow):
    """The generations of Keras's optimizers that a run is there for: tf.keras has a new one from TF 2.11 on."""
    tensorflow = environments.as_numbers(tensorflow)
    if home == "keras":
        return ["keras3" if mode == "eager" else "v1"]
    if tensorflow < (1, 14):
        return ["v1"]
    return ["v2", "v3"] if mode == "eager" and tensorflow >= (2, 11) else ["v2"]


def between():
    """The runs of the core, as in `LONG`, on no oldest and no newest stack of a generation and mode."""
    core, stacks = environments.runs_of_the_core(), collections.defaultdict(list)
    for run, env in core.items():
        for generation in generations(*run):
            stacks[generation, run[1]].append(env)
    inside = {(group, env) for group, envs in stacks.items() for env in set(envs) - {envs[0], envs[-1]}}
    return [run for run, env in core.items() if all(((each, run[1]), env) in inside for each in generations(*run))]


NUMBERS_ALONE = between()
# The columns of compat_matrix.md that this run is for: full_matrix.py --things.
THINGS_ALONE = [each for each in os.environ.get("LEGACYGA_THINGS", "").split(", ") if each]


def pytest_addoption(parser):
    parser.addoption("--home", default=None, help="keras, tf.keras or tf_keras; default: the first that is installed")
    parser.addoption("--mode", default=None, choices=("graph", "eager"), help="default: eager where there is eager")
    parser.addoption(
        "--more", action="store_true", help="also what the matrix leaves out: see the markers `more` and `long`"
    )


def installed():
    """What a tox factor can ask for: {"py": "3.9", "tf": "2.10.1", "keras": ..., "tfkeras": ...}."""
    import tensorflow as tf

    found = {"py": "{}.{}".format(*sys.version_info), "tf": tf.__version__}
    for factor, name in (("keras", "keras"), ("tfkeras", "tf_keras"), ("horovod", "horovod")):
        version = homes.version(name)
        # TF 2.5 to 2.15 bring their own keras, which no factor names.
        if version and not (factor == "keras" and re.match(r"2\.([5-9]|1\d)\.", version)):
            found[factor] = version
    return found


def check_factors(env, found):
    """What is wrong with the environment `env`, "" if it is what its name says.

    Args:
        env: a name as in tox.ini, such as "py37-tf1.15-keras2.3".
        found: see `installed`.
    """
    try:
        asked = environments.factors_of(env)
    except ValueError as error:
        return str(error)
    if "tf" not in asked:
        return "{} names no TensorFlow".format(env)
    for kind, version in asked.items():
        if kind not in found or not (found[kind] + ".").startswith(version + "."):
            return "{} asks for {} {}, and {} is installed".format(env, kind, version, found.get(kind, "none"))
    if "keras" in found and "keras" not in asked and "tfkeras" not in asked:
        return "{} does not name the keras {} that is installed".format(env, found["keras"])
    return ""


def pytest_configure(config):
    config.addinivalue_line("markers", "capability(name): what the test shows, a column of compat_matrix.md")
    config.addinivalue_line("markers", "more: run with --more alone; no part of the matrix")
    config.addinivalue_line(
        "markers",
        "long(also=[], only=LONG, in_core=False): run in these alone, and with --more; in_core: also when short",
    )
    config.addinivalue_line("markers", "slow: run in the core alone, and left out by CI")
    env = os.environ.get("LEGACYGA_ENV")
    if env:
        wrong = check_factors(env, installed())
        if wrong:
            raise pytest.UsageError("refusing to test: " + wrong)
    config.legacyga_results = {}


def expect_known_failures(config, items):
    """Mark those of the tests that are known to fail here."""
    for entry in known_failures.of(os.environ.get("LEGACYGA_ENV")):
        home = home_of(config)
        if entry.get("home", home.name) == home.name and entry.get("mode", home.mode) == home.mode:
            for item in items:
                if known_failures.matches(entry["test"], item.nodeid):
                    item.add_marker(pytest.mark.xfail(reason=entry["reason"], strict=True))


def reason_to_leave_out(config, item):
    """Why this run is not to have a test, None where it is."""
    if config.getoption("--more"):
        return None
    if THINGS_ALONE and item.get_closest_marker("capability").args[0] not in sum(map(THINGS.get, THINGS_ALONE), []):
        return "tested in whole runs"
    marker = item.get_closest_marker("long")
    # Some tests need no TensorFlow.
    if not (marker or "home" in item.fixturenames):
        return None
    home = home_of(config)
    run = home.name, home.mode, "{}.{}".format(*home.tf_version)
    if marker and run not in marker.kwargs.get("only", LONG) + marker.kwargs.get("also", []):
        return ELSEWHERE
    # An environment of tox is to leave out what takes long, where nobody has picked the tests.
    env = os.environ.get("LEGACYGA_ENV")
    in_core = env in environments.labels()["core"]
    if not os.environ.get("LEGACYGA_RESULT_FILE") or in_core and os.environ.get("LEGACYGA_WHOLE"):
        return None
    slow = item.get_closest_marker("slow") or (marker and not marker.kwargs.get("in_core"))
    numbers_alone = run in NUMBERS_ALONE if in_core else environments.is_on_another_python(env)
    other = numbers_alone and not marker and item.get_closest_marker("capability").args[0] not in CONTRACT
    if not in_core and not other and item.get_closest_marker("xfail"):
        # compat_matrix.md names what is known to fail.
        return None
    return (TAKES_LONG if in_core else ELSEWHERE) if slow or other else None


def pytest_collection_modifyitems(config, items):
    expect_known_failures(config, items)
    left_out = []
    for item in items:
        marker = item.get_closest_marker("capability")
        if marker is None or marker.args[0] not in CAPABILITIES:
            raise pytest.UsageError("{} names no capability of compat_matrix.CAPABILITIES".format(item.nodeid))
        reason = reason_to_leave_out(config, item)
        if reason:
            count(config.legacyga_results, marker.args[0], "elsewhere", reason)
        # A skip takes its time.
        if reason or (item.get_closest_marker("more") and not config.getoption("--more")):
            left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


def count(results, capability, outcome, reason=None):
    """Count a test in `results`, {capability: row of a result file}: a reason where it neither passed nor failed."""
    row = results.setdefault(capability, dict({kind: {} for kind in ["xfailed"] + KINDS}, passed=0, failed=0))
    if reason:
        row[outcome][reason] = row[outcome].get(reason, 0) + 1
    else:
        row[outcome] += 1


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.when != "call" and report.outcome == "passed":
        return
    found = (report.outcome,)
    if hasattr(report, "wasxfail"):
        found = ("failed",) if report.passed else ("xfailed", report.wasxfail)
    elif report.skipped:
        found = skips.parse(report.longrepr[2])
        if found is None:
            raise pytest.UsageError("{} skips by none of tests/skips.py: {}".format(item.nodeid, report.longrepr[2]))
    count(item.config.legacyga_results, item.get_closest_marker("capability").args[0], *found)


def write_results(config, **found):
    """Write the result file of this run, where one is asked for."""
    path = os.environ.get("LEGACYGA_RESULT_FILE")
    if path and hasattr(config, "legacyga_home"):
        home = config.legacyga_home
        versions = dict(python="{}.{}.{}".format(*sys.version_info), tensorflow=home.tf.__version__, keras=home.version)
        versions["numpy"] = importlib.import_module("numpy").__version__
        record = dict(env=os.environ.get("LEGACYGA_ENV"), home=home.name, mode=home.mode, versions=versions)
        # Of the package that `import legacyga` finds.
        code = code_of(os.path.dirname(importlib.util.find_spec("legacyga").origin))
        record.update(date=datetime.date.today().isoformat(), code=code, alone=THINGS_ALONE, **found)
        with open(path, "w") as file:
            json.dump(record, file, indent=1)


def pytest_collection_finish(session):
    # What a run that dies leaves behind.
    write_results(session.config, crashed=True, capabilities={})


def pytest_sessionfinish(session, exitstatus):
    # What was interrupted counts fewer tests than there are, and would say that they passed.
    if exitstatus in (0, 1):
        write_results(session.config, capabilities=session.config.legacyga_results)
    elif exitstatus == 2 and os.path.exists(os.environ.get("LEGACYGA_RESULT_FILE", "")):
        os.remove(os.environ["LEGACYGA_RESULT_FILE"])


def home_of(config):
    """The `homes.Home` that this process tests."""
    if not hasattr(config, "legacyga_home"):
        config.legacyga_home = homes.start(config.getoption("--home"), config.getoption("--mode"))
    return config.legacyga_home


@pytest.fixture(scope="session")
def home(request):
    """The `homes.Home` that this process tests."""
    return home_of(request.config)


@pytest.fixture(autouse=True)
def empty_graph(request):
    """In graph mode, an empty graph: a session looks through all that is in it for every new function."""
    # Some tests need no TensorFlow.
    if "home" in request.fixturenames and home_of(request.config).mode == "graph":
        home_of(request.config).reset()


@pytest.fixture(autouse=True)
def replicas_that_there_are(request):
    """Skip what is of several replicas before Keras 3.10, whose variables are none of a replica's own."""
    if request.node.get_closest_marker("capability").args[0] != "R12 replicas":
        return
    home = home_of(request.config)
    if home.is_keras3_before(3, 10):
        skips.we_lack("several replicas need Keras 3.10 or newer")


@pytest.fixture
def once_in_an_environment(home):
    """Run a test only in an environment's last run: it starts processes of its own."""
    if (home.name, home.mode) != homes.available()[-1]:
        skips.elsewhere("tested in another run of this environment")


@pytest.fixture
def doctests(once_in_an_environment, request):
    """{docstring: "PASSED" or "FAILED"} of `python -m pytest --doctest-modules legacyga`, in a process of its own. They
    take the Keras of TensorFlow in its default mode. What it printed is at "printed".
    """
    if not hasattr(request.config, "legacyga_doctests"):
        import legacyga

        command = "-m pytest --doctest-modules legacyga -v -p no:cacheprovider".split()
        folder = os.path.dirname(os.path.dirname(legacyga.__file__))
        run = dict(cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        printed = subprocess.run([sys.executable] + command, **run).stdout
        found = re.findall(r"^\S+::(legacyga\S*) (PASSED|FAILED|ERROR|SKIPPED)", printed, re.MULTILINE)
        request.config.legacyga_doctests = dict(found, printed=printed)
    return request.config.legacyga_doctests
