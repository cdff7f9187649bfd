"""The home under test, the guard against testing another one than was asked for, and the result file of a run."""

import collections
import importlib.util
import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "fixtures")]

import environments  # noqa: E402
import homes  # noqa: E402
import known_failures  # noqa: E402
import result_files  # noqa: E402
import skips  # noqa: E402
from compat_matrix import CAPABILITIES, TAKES_LONG  # noqa: E402

# So that its assertions show their numbers.
pytest.register_assert_rewrite("users")

# What a row of a result file says with reasons, {reason: tests}.
REASONS = ["xfailed"] + list(skips.KINDS)


# The only tests that need packages beside TensorFlow and Keras, which the environments of the labels `horovod` and
# `others` have.
NEEDED = {
    "test_horovod.py": ["horovod"],
    "test_third_party.py": ["transformers"],
    "test_third_party_v1.py": ["bert4keras", "keras_lookahead", "keras_lr_multiplier", "keras_radam", "rl"],
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
# The core run leaves out what is marked `long` or `slow`. Of these runs, which have an older and a newer TensorFlow of
# their generation beside them, it has the numbers of the contract alone.
BETWEEN = [
    ("tf.keras", "graph", "1.13"),
    ("tf.keras", "graph", "2.0"),
    ("tf.keras", "graph", "2.4"),
    ("tf.keras", "graph", "2.10"),
    ("tf.keras", "graph", "2.15"),
    ("tf.keras", "eager", "2.4"),
    ("tf.keras", "eager", "2.10"),
]
NUMBERS = [
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
RUNS = list(environments.runs_of_the_core())
# Of so many cases and more a short run has one of six.
MANY = 10


def beside(run):
    """The runs of the core that share their tests with one of them: of its mode, standalone Keras and BETWEEN apart."""

    def group(run):
        return run[0] == "keras", run[1], run in BETWEEN

    return [each for each in RUNS if group(each) == group(run)] or [run]


def first_case(run):
    """The case a short run begins at, each at another: those in BETWEEN go on where the others of their mode end."""
    others = [each for each in RUNS if each[0] != "keras" and each[1] == run[1] and each not in BETWEEN]
    return beside(run).index(run) + (len(others) if run in BETWEEN else 0)


def is_another_runs(run, place, case, cases):
    """Whether a short run leaves a test to those beside it.

    Each has one case of three; where there are many one of six, for which standalone Keras has too few runs. A test
    without cases is one run's of those in BETWEEN, one's of the three with standalone Keras, and else that of one run
    of two, for the older ones lack much. A run with none beside it has all of these.

    Args:
        run: as in `LONG`.
        place: the place of its function in its file, None where all runs that may have it are to have it.
        case: its place among the function's cases.
        cases: their number.
    """
    runs, standalone = beside(run), run[0] == "keras"
    of_cases = 6 if cases >= MANY and not standalone else min(cases, 3)
    of_functions = len(runs) if run in BETWEEN or standalone else 2
    share = of_cases if place is None else max(of_cases, of_functions)
    return (case + (place or 0) + first_case(run)) % share != 0


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
    config.addinivalue_line("markers", "slow: run in every environment, and left out by the core run")
    env = os.environ.get("LEGACYGA_ENV")
    if env:
        wrong = check_factors(env, installed())
        if wrong:
            raise pytest.UsageError("refusing to test: " + wrong)
    config.legacyga_results = collections.OrderedDict()
    config.legacyga_failing = []
    # Test functions: those that ran with any of their arguments, and those that were skipped with any.
    config.legacyga_ran, config.legacyga_skipped = set(), set()


def expect_known_failures(config, items):
    """Mark those of the tests that are known to fail here."""
    env, folder = os.environ.get("LEGACYGA_ENV"), os.environ.get("LEGACYGA_KNOWN_FAILURES")
    if not env or not known_failures.read(folder):
        return
    home = home_of(config)
    tests = [known_failures.short_name(item.nodeid) for item in items]
    selected = [os.path.abspath(argument) for argument in config.args]
    # A test that was picked out of its file says nothing of the others there.
    files = {test.partition("::")[0] for test in tests if not any("::" in argument for argument in selected)}
    try:
        known = known_failures.of(env, home.name, home.mode, folder)
        found = known_failures.assign(known, tests, None if HERE in selected else files)
    except ValueError as error:
        raise pytest.UsageError(str(error))
    for i, reason in found.items():
        items[i].add_marker(pytest.mark.xfail(reason=reason, strict=True))


def pytest_collection_modifyitems(config, items):
    expect_known_failures(config, items)
    if not config.getoption("--more"):
        left_out = [item for item in items if item.get_closest_marker("more")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        marker = item.get_closest_marker("capability")
        if marker is None or marker.args[0] not in CAPABILITIES:
            raise pytest.UsageError("{} names no capability of conftest.CAPABILITIES".format(item.nodeid))
    leave_out(config, items)


def leave_out(config, items):
    """Count those of the tests that this run is not to have, and take them out. A skip takes its time."""
    functions = collections.defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    places, left_out = collections.Counter(), []
    for function, cases in functions.items():
        file = function.partition("::")[0]
        for case, item in enumerate(cases):
            reason = reason_to_leave_out(config, item, places[file], case, len(cases))
            if reason:
                count(config.legacyga_results, item.get_closest_marker("capability").args[0], "elsewhere", reason)
                note_function(config, item, skipped=reason != TAKES_LONG)
                left_out.append(item)
        places[file] += 1
    config.hook.pytest_deselected(items=left_out)
    left_out = set(left_out)
    items[:] = [item for item in items if item not in left_out]


def reason_to_leave_out(config, item, file_place, case, cases):
    """Why this run is not to have a test: it is marked `long` and not run here, or a short run leaves it out."""
    marker = item.get_closest_marker("long")
    # Some tests need no TensorFlow.
    if config.getoption("--more") or not (marker or "home" in item.fixturenames):
        return None
    home = home_of(config)
    run = home.name, home.mode, "{}.{}".format(*home.tf_version)
    if marker and run not in marker.kwargs.get("only", LONG) + marker.kwargs.get("also", []):
        return "tested in other environments of the matrix"
    # An environment of tox is to leave out what takes long, where nobody has picked the tests.
    if not os.environ.get("LEGACYGA_RESULT_FILE") or os.environ.get("LEGACYGA_WHOLE"):
        return None
    slow = item.get_closest_marker("slow") or (marker and not marker.kwargs.get("in_core"))
    other = run in BETWEEN and not marker and item.get_closest_marker("capability").args[0] not in NUMBERS
    another_runs = is_another_runs(run, None if marker else file_place, case, cases)
    return TAKES_LONG if slow or other or another_runs else None


def row_of(results, capability):
    """The row of a capability in `results`, made when it is first asked for."""
    rows = [("passed", 0), ("failed", 0)] + [(kind, {}) for kind in REASONS]
    return results.setdefault(capability, collections.OrderedDict(rows))


def count(results, capability, kind, reason):
    """Count a test that did not run, or is known to fail; `kind` and `reason` as in a result file."""
    row = row_of(results, capability)
    row[kind][reason] = row[kind].get(reason, 0) + 1


def record(results, capability, report):
    """Count what became of one test in `results`, {capability: row of a result file}."""
    if hasattr(report, "wasxfail"):
        if report.passed:
            row_of(results, capability)["failed"] += 1
        else:
            count(results, capability, "xfailed", report.wasxfail)
    elif report.skipped:
        found = skips.parse(report.longrepr[2])
        if found is None:
            raise pytest.UsageError(
                "{} skips without saying which kind of skip it is. Call one of tests/skips.py. Received: {!r}".format(
                    report.nodeid, report.longrepr[2]
                )
            )
        count(results, capability, *found)
    else:
        row_of(results, capability)[report.outcome] += 1


def note_function(config, item, skipped):
    """Note that a test's function ran, or did not, with some of its arguments."""
    function = known_failures.short_name(item.nodeid).partition("[")[0]
    (config.legacyga_skipped if skipped else config.legacyga_ran).add(function)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" or report.outcome != "passed":
        record(item.config.legacyga_results, item.get_closest_marker("capability").args[0], report)
        note_function(item.config, item, report.skipped)
    if report.outcome == "failed":
        item.config.legacyga_failing.append(known_failures.short_name(item.nodeid))


def pytest_sessionfinish(session, exitstatus):
    path = os.environ.get("LEGACYGA_RESULT_FILE")
    if not path or not hasattr(session.config, "legacyga_home"):
        return
    # What was interrupted counts fewer tests than there are, and would say that they passed.
    if exitstatus not in (0, 1):
        return
    home = session.config.legacyga_home
    results = session.config.legacyga_results
    written = result_files.start_record(home.name, home.mode, home.tf.__version__, home.version)
    written["failing"] = session.config.legacyga_failing
    written["capabilities"] = collections.OrderedDict((name, results[name]) for name in CAPABILITIES if name in results)
    result_files.write(path, written)
    result_files.write_skipped(path, session.config.legacyga_skipped - session.config.legacyga_ran)


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
    """For tests in processes of their own, to which the home of this one is nothing."""
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
        printed = subprocess.Popen([sys.executable] + command, **run).communicate()[0]
        found = re.findall(r"^\S+::(legacyga\S*) (PASSED|FAILED|ERROR|SKIPPED)", printed, re.MULTILINE)
        request.config.legacyga_doctests = dict(found, printed=printed)
    return request.config.legacyga_doctests
