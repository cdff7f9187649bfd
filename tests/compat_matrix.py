"""Make compat_matrix.md from the result files of test runs: `python tests/compat_matrix.py [--check]`.

A result file is written by a run of the tests (run_homes.py), one for every environment, home and mode, into
.tox/results. Those of the last runs are kept in tests/results: full_matrix.py puts them there, and so does
`--results .tox/results --keep`. With --check nothing is written: it ends with 1 if compat_matrix.md is not what the
kept files say; or, with --results, if an environment of the label was not run, or a kept file claims what this run
does not show. An environment of which nothing is kept stands in the table as not run.
"""

import argparse
import collections
import difflib
import glob
import os
import re
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import environments  # noqa: E402
import result_files  # noqa: E402
from environments import as_numbers, minor  # noqa: E402

ROOT = os.path.dirname(HERE)
KEPT = os.path.join(HERE, "results")
NOT_INSTALLABLE = os.path.join(HERE, "not_installable.json")
TARGET = os.path.join(ROOT, "compat_matrix.md")

# What a test may be marked with, in the order of the tables: a rule of the contract or a part of the surface; and the
# thing that a user calls of which it says whether it works. Where it is none, its numbers stand in the counts alone.
CAPABILITIES = collections.OrderedDict(
    [
        ("R1 mean", "MySGD"),
        ("R2 weights", "unequal batches"),
        ("R3 nothing else moves", "MySGD"),
        ("R4 per update", None),
        ("R5 phase", None),
        ("R6 K = 1 is the bare optimizer", "MySGD"),
        ("R7 one result", None),
        ("R8 change of K", None),
        ("R8 partial windows", "fit and callback"),
        ("R9 state", "saving"),
        ("R10 sparse stays sparse", None),
        ("R11 no gradient", None),
        ("R12 replicas", "replicas"),
        ("R13 dtype", None),
        ("R14 trouble", None),
        ("R15 a quiet guest", None),
        ("ways to train", None),
        ("callback", "fit and callback"),
        ("GradientAccumulator", "own loop"),
        ("train_step", "own loop"),
        ("micro_batch", "batches in slices"),
        ("wrap: every optimizer", "wrap"),
        ("wrap: NumPy oracle", "wrap"),
        ("wrap: TF 1 optimizers", "tf.train"),
        ("wrap: properties", "wrap"),
        ("wrap: surface", None),
        ("surface", "MySGD"),
        ("errors", None),
        ("demo and examples", None),
        ("package", None),
        ("house", None),
    ]
)
THINGS = [
    "MySGD",
    "wrap",
    "tf.train",
    "fit and callback",
    "unequal batches",
    "own loop",
    "batches in slices",
    "replicas",
    "saving",
]
# The kinds of tests that are not run (skips.py), and their columns.
KINDS = collections.OrderedDict(
    [
        ("keras_lacks", "not in this TensorFlow or Keras"),
        ("we_lack", "not done by legacyga"),
        ("elsewhere", "tested in another run"),
        ("senseless", "makes no sense here"),
    ]
)
# What a test says that the core run leaves out, and a run of the full matrix does not.
TAKES_LONG = "takes long: tests/full_matrix.py runs it"
COUNTS = [("passed", "passed"), ("failed", "failed"), ("xfailed", "known to fail")] + list(KINDS.items())
NO_SUCH_THING, NOT_RUN = "there is no such thing", "not run"
BETWEEN = "not run; between two that pass"

HEAD = """# Does it work on mine?

Find your line. A cell says whether the thing works there, as the tests of that stack have it:

- **yes**: tested, every number against an oracle.
- **yes, but**: tested, and a test is known to fail there; the note says why.
- **in part**: tested, and legacyga does not do all of it there; the note says what is missing.
- **no**: legacyga does not do it there; the note says why.
- **there is no such thing**: that TensorFlow or Keras has nothing of the kind.
- **not run; between two that pass**: nothing was tested there. The nearest tested stacks with an older and with a newer
  TensorFlow, of the same Keras and mode, say yes; the note names them.
- **not run**: nothing was tested, and nothing is claimed.
- **broken**: a test fails.

The column "tested" has the day of the run. "Earlier code" says that `legacyga/` has changed since then.
Each stack has a section below: how to install it, what to write, and what is not possible.
What cannot be installed, or does not work at all, is listed at the end.
"""
FOOT = """Made by `python tests/compat_matrix.py` from the result files in `tests/results`. A run of every environment,
`python tests/full_matrix.py`, keeps what it finds there. A check in `tox -e lint` fails when the two differ.
"""


def load(folder, config=None):
    """{environment: [records of its runs]}, for all of the label `full`, in the order of the table."""
    found = collections.OrderedDict((env, {}) for env in environments.environments(config=config))
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        name = os.path.basename(path)
        match = re.match(environments.RUN_FILE, name)
        env, run = match and match.group(1), match and match.groups()[1:]
        if env not in found or run not in environments.runs_of(env):
            sys.exit("{} belongs to no environment of tox.ini".format(name))
        record = result_files.read(path)
        if (record["home"], record["mode"]) != run:
            sys.exit("{} holds the run of {} in {} mode".format(name, record["home"], record["mode"]))
        found[env][run] = record
    return collections.OrderedDict(
        (env, [records[run] for run in environments.runs_of(env) if run in records]) for env, records in found.items()
    )


# ------------------------------------------------------------------------------------------ what a result file comes to


def verdict(row):
    """What one capability's row says: (a word, the reasons for it)."""
    if row is None:
        return NOT_RUN, []
    if row["failed"]:
        return "broken", []
    if row["passed"]:
        word = "in part" if row["we_lack"] else "yes, but" if row["xfailed"] else "yes"
        return word, sorted(set(row["we_lack"]) | set(row["xfailed"]))
    if row["xfailed"]:
        return "no", sorted(row["xfailed"])
    if row["we_lack"]:
        return "no", sorted(row["we_lack"])
    if row["elsewhere"]:
        return "elsewhere", sorted(row["elsewhere"])
    return (NO_SUCH_THING, []) if row["keras_lacks"] or row["senseless"] else (NOT_RUN, [])


# A reason that begins with the name of a call is about that call, in whatever test it stands.
SUBJECTS = {"wrap": "wrap", "micro_batch": "batches in slices"}


def left_out(row):
    """How many of a capability's tests a run left out because they take long."""
    return row.get("elsewhere", {}).get(TAKES_LONG, 0)


def without_others(thing, row):
    """A row without the tests of other things that legacyga does not do, if something else was tested too."""
    own = {why: n for why, n in row["we_lack"].items() if SUBJECTS.get(why.split()[0], thing) == thing}
    return dict(row, we_lack=own) if row["passed"] else row


# Of the capabilities of one thing the first of these that there is decides.
WORST_FIRST = ["broken", "no", "in part", "yes, but", "yes", "elsewhere", NO_SUCH_THING, NOT_RUN]


def verdict_on(thing, record, siblings=()):
    """What the capabilities of a thing together say: (a word, the reasons).

    Args:
        thing: one of `THINGS`.
        record: of a run.
        siblings: the records of the same environment, of which one may have what is tested there.
    """
    if record.get("crashed"):
        return "broken", []
    rows = [record["capabilities"].get(name) for name, of in CAPABILITIES.items() if of == thing]
    verdicts = [verdict(row and without_others(thing, row)) for row in rows]
    worst = min((word for word, _ in verdicts), key=WORST_FIRST.index)
    reasons = sorted({reason for word, found in verdicts for reason in found if word == worst})
    if worst != "elsewhere":
        return worst, reasons
    others = [verdict_on(thing, each)[0] for each in siblings if each is not record]
    return ("yes", reasons) if "yes" in others else (NOT_RUN, [])


def works(word):
    return word in ("yes", "yes, but")


class Neighbours(object):
    """What was tested on both sides of an environment that was not run.

    Args:
        found: {environment: [records of its runs]}.
    """

    def __init__(self, found):
        self._tested = collections.OrderedDict()
        for at, env in sorted((environments.position(env), env) for env in found):
            for record in found[env]:
                of = environments.family_of(env, record["home"]), record["mode"]
                words = {thing: verdict_on(thing, record, found[env])[0] for thing in THINGS}
                self._tested.setdefault(of, []).append((at, env, words))

    def of(self, env, home, mode):
        """The nearest tested environments before and after `env`: [(name, {thing: word})], two where there are two."""
        tested, own = self._tested.get((environments.family_of(env, home), mode), []), environments.position(env)
        before = [(name, words) for at, name, words in tested if at < own]
        after = [(name, words) for at, name, words in tested if at > own]
        return before[-1:] + after[:1]

    def verdict(self, thing, env, home, mode):
        """(what a cell of an environment that was not run says, the reasons)."""
        both = self.of(env, home, mode)
        if len(both) < 2 or any(words[thing] != "yes" for _, words in both):
            return NOT_RUN, []
        return BETWEEN, ["nothing was tested here; it passes in {} and in {}".format(*[name for name, _ in both])]


class Notes(object):
    """Reasons, each with a number."""

    def __init__(self):
        self.reasons = []

    def number(self, reason):
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason) + 1

    def mark(self, reasons):
        return "".join(" [{}]".format(self.number(reason)) for reason in reasons)


def table(head, rows):
    return ["| " + " | ".join(each) + " |" for each in [head, ["---"] * len(head)] + rows]


def stack_of(record):
    """[TensorFlow, Keras, Python, NumPy, mode] of a run."""
    versions = record["versions"]
    # TensorFlow's own Keras says no more about itself than TensorFlow does.
    keras = record["home"] if record["home"] == "tf.keras" else "{} {}".format(record["home"], versions["keras"])
    # Of a release candidate it says 2.22.0-rc0, and pip and tox.ini say 2.22.0rc0.
    tensorflow = versions["tensorflow"].replace("-rc", "rc")
    return [tensorflow, keras, versions["python"], versions.get("numpy", ""), record["mode"]]


def same_stack(one, other):
    """Whether two runs are of one stack: another patch of Python, and another NumPy, make no other."""

    def of(record):
        tensorflow, keras, python, _, mode = stack_of(record)
        return tensorflow, keras, minor(python), mode

    return of(one) == of(other)


def tested_on(record, code):
    """The cell that says when a run was, and whether of the present code, whose hash is `code`."""
    if not record.get("code") or not record.get("date"):
        return "earlier code, day not recorded"
    return record["date"] + ("" if record["code"] == code else ", earlier code")


# ------------------------------------------------------------------------------------------------------------- the text


def what_to_write(record, words):
    """Lines of a program for this stack, of those things that work there."""
    tensorflow, mode = as_numbers(record["versions"]["tensorflow"])[:2], record["mode"]
    lines = ["import legacyga"]
    if mode == "graph":
        lines.append("import tensorflow as tf")
    home = {"keras": "import keras", "tf.keras": "from tensorflow import keras", "tf_keras": "import tf_keras as keras"}
    lines += [home[record["home"]], ""]
    if mode == "graph" and tensorflow >= (2, 0):
        lines += ["tf.compat.v1.disable_eager_execution()"]
    # From TF 2.11 on the optimizers of a graph are these.
    optimizers = "keras.optimizers.legacy" if mode == "graph" and tensorflow >= (2, 11) else "keras.optimizers"
    if works(words["MySGD"]):
        lines.append("optimizer = legacyga.MySGD(lr=0.01, momentum=0.9, steps_per_update=8)")
    if works(words["wrap"]):
        lines += ["# Or, of any other optimizer:"]
        lines.append("optimizer = legacyga.wrap({}.Adam(), gradient_accumulation_steps=8)".format(optimizers))
    lines.append('model.compile(optimizer=optimizer, loss="mse")')
    if works(words["fit and callback"]):
        lines.append("model.fit(x, y, batch_size=4, callbacks=[legacyga.GradientAccumulationCallback()])")
    if works(words["tf.train"]) and mode == "graph":
        train = "tf.compat.v1.train" if tensorflow >= (1, 13) else "tf.train"
        lines += ["# Or, in a session of your own:"]
        lines.append(
            "train = legacyga.wrap({}.AdamOptimizer(), gradient_accumulation_steps=8).minimize(loss)".format(train)
        )
    return lines


def listed(words):
    """The words as a sentence has them."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def reasons_of(record, kind):
    """Every reason of a kind, once."""
    rows = record["capabilities"].values()
    return sorted({reason for row in rows for reason in row[kind]})


def sentence(reason):
    # What begins with a name in code begins with it as it is.
    first = reason.split()[0]
    is_code = first in ("wrap", "tf-keras") or re.search(r"[._]", first)
    return (reason if is_code else reason[0].upper() + reason[1:]) + ("" if reason.endswith(".") else ".")


def section_of_run(record, siblings, code):
    """The lines on one home and mode of a stack."""
    words = {thing: verdict_on(thing, record, siblings)[0] for thing in THINGS}
    tensorflow, _, python, numpy, mode = stack_of(record)
    ran_on = ["TensorFlow " + tensorflow, "Keras " + record["versions"]["keras"], "Python " + python]
    lines = ["#### {}, {} mode".format(record["home"], mode), ""]
    lines.append("Tested with {}.".format(listed(ran_on + (["NumPy " + numpy] if numpy else []))))
    lines.append(
        "Tested: {}. Hash of the code: {}.".format(tested_on(record, code), record.get("code") or "not recorded")
    )
    if record.get("crashed"):
        return lines + ["Broken here: the run did not end, {}.".format(record["crashed"]), ""]
    lines += ["", "To write:", "", "```python"] + what_to_write(record, words) + ["```", ""]
    working = [thing for thing in THINGS if works(words[thing])]
    lines.append("Tested here: {}.".format(listed(working)) if working else "Nothing works here.")
    for title, word in (
        ("Broken here", "broken"),
        ("There is no such thing here", NO_SUCH_THING),
        ("Not run, and nothing claimed", NOT_RUN),
    ):
        things = [thing for thing in THINGS if words[thing] == word]
        if things:
            lines.append("{}: {}.".format(title, listed(things)))
    for title, reasons in (
        ("What legacyga does not do here:", reasons_of(record, "we_lack")),
        ("Tests that are known to fail here:", reasons_of(record, "xfailed")),
        ("What this TensorFlow or Keras does not have:", reasons_of(record, "keras_lacks")),
        ("What was tested in another run:", reasons_of(record, "elsewhere")),
    ):
        if reasons:
            lines += ["", title, ""] + ["- " + sentence(reason) for reason in reasons]
    if record.get("failing"):
        lines += ["", "Tests that fail here:", ""] + ["- `{}`".format(name) for name in record["failing"]]
    return lines + [""] + counts(record) + [""]


def section(env, records, neighbours, code, config=None):
    """The lines on one stack."""
    python = records[0]["versions"]["python"] if records else environments.python_of(env)
    command = environments.install(env, python, config)
    lines = ["### " + env, "", "To install it, in a fresh environment:", "", "```", command, "```", ""]
    if "--no-deps" in command:
        lines += ["The second asks for the full `tensorflow`, beside which `tensorflow-cpu` must not stand.", ""]
    for home, mode in environments.runs_of(env):
        found = [record for record in records if (record["home"], record["mode"]) == (home, mode)]
        if found:
            lines += section_of_run(found[0], records, code)
            continue
        both = [name for name, _ in neighbours.of(env, home, mode)]
        nearest = "The nearest that were: {}.".format(listed(both)) if both else "Nothing near it was."
        lines += ["#### {}, {} mode".format(home, mode), "", "Not run. " + nearest, ""]
    return lines


def counts(record):
    """The tests by rule, folded away."""
    rows = []
    for name in list(CAPABILITIES) + [name for name in record["capabilities"] if name not in CAPABILITIES]:
        row = record["capabilities"].get(name)
        if row is None:
            rows.append([name, NOT_RUN] + [""] * (len(COUNTS) - 1))
            continue
        numbers = [row[key] if key in ("passed", "failed") else sum(row[key].values()) for key, _ in COUNTS]
        rows.append([name] + [str(number) if number else "" for number in numbers])
    passed = sum(row["passed"] for row in record["capabilities"].values())
    head = ["rule"] + [words for _, words in COUNTS]
    summary = "<details><summary>{} tests passed: the counts by rule</summary>".format(passed)
    return [summary, ""] + table(head, rows) + ["", "</details>"]


def rows_of(found, code, config=None):
    """The rows of the first table: [(the stack's cells, {thing: (word, reasons)})]."""
    neighbours = Neighbours(found)
    for env, records in found.items():
        by_run = {(record["home"], record["mode"]): record for record in records}
        for home, mode in environments.runs_of(env):
            record = by_run.get((home, mode))
            if record:
                stack = stack_of(record) + [tested_on(record, code)]
                yield stack, {thing: verdict_on(thing, record, records) for thing in THINGS}
            else:
                tensorflow, keras, python = environments.asked_for(env, home, config)
                words = {thing: neighbours.verdict(thing, env, home, mode) for thing in THINGS}
                yield [tensorflow, keras, python, "", mode, NOT_RUN], words


def summary(found, code):
    """How much of the table was tested, and with which code."""
    records = [record for each in found.values() for record in each]
    rows = sum(len(environments.runs_of(env)) for env in found)
    present = [record for record in records if record.get("code") == code]
    lines = [
        "{} environments, {} lines: {} tested, {} not.".format(len(found), rows, len(records), rows - len(records))
    ]
    if present:
        lines.append("{} lines were tested with the present code, whose hash is {}.".format(len(present), code))
    if len(records) > len(present):
        days = sorted(record["date"] for record in records if record not in present and record.get("date"))
        oldest = "the oldest on {}".format(days[0]) if days else "on days that were not recorded"
        lines.append("{} were tested with earlier code, {}.".format(len(records) - len(present), oldest))
    return lines


def cannot_be_installed():
    """{environment: why there is none}, sorted."""
    found = result_files.read(NOT_INSTALLABLE)
    return collections.OrderedDict((env, found[env]) for env in sorted(found, key=environments.position))


def not_installable_lines(reasons):
    """The table of what cannot be installed, or does not start."""
    rows = []
    for env, reason in reasons.items():
        factors = environments.factors_of(env)
        keras = [
            home + " " + factors[kind]
            for kind, home in (("keras", "keras"), ("tfkeras", "tf_keras"))
            if kind in factors
        ]
        rows.append([factors["tf"], keras[0] if keras else "tf.keras", factors.get("py", "any"), sentence(reason)])
    return (
        ["## What cannot be installed, or does not work at all", ""]
        + table(["TensorFlow", "Keras", "Python", "why"], rows)
        + [""]
    )


def render(found, config=None, code=None, not_installable=()):
    """The text of compat_matrix.md.

    Args:
        found: {environment: [records of its runs]}.
        config: a ConfigParser over tox.ini, by default that of this tree.
        code: the hash of the present code.
        not_installable: {environment: why there is none}.
    """
    notes, rows, config = Notes(), [], config or environments.tox_ini()
    for stack, words in rows_of(found, code, config):
        shown = {"broken": "**broken**"}
        rows.append(stack + [shown.get(word, word) + notes.mark(why) for word, why in (words[each] for each in THINGS)])
    lines = [HEAD] + summary(found, code) + [""]
    lines += table(["TensorFlow", "Keras", "Python", "NumPy", "mode", "tested"] + THINGS, rows)
    if notes.reasons:
        lines += [""] + ["{}. {}".format(i, sentence(reason)) for i, reason in enumerate(notes.reasons, 1)]
    lines += ["", "## The stacks", ""]
    neighbours = Neighbours(found)
    for env, records in found.items():
        lines += section(env, records, neighbours, code, config)
    if not_installable:
        lines += not_installable_lines(not_installable)
    return "\n".join(lines + [FOOT])


def present_text():
    """compat_matrix.md as the kept files have it."""
    return render(load(KEPT), code=result_files.present_code(), not_installable=cannot_be_installed())


def keep(paths):
    """Copy result files over those that are kept: of whole runs, which left out nothing."""
    for path in paths:
        if any(left_out(row) for row in result_files.read(path)["capabilities"].values()):
            sys.exit("{} is of a run that left tests out. Run it with LEGACYGA_WHOLE=1.".format(os.path.basename(path)))
    if not os.path.isdir(KEPT):
        os.makedirs(KEPT)
    for path in paths:
        shutil.copy(path, KEPT)


def write():
    text = present_text()
    with open(TARGET, "w") as file:
        file.write(text)


def check_text():
    """Exit with 1 if compat_matrix.md is not what the kept files say."""
    text = present_text()
    with open(TARGET) as file:
        kept = file.read()
    if kept != text:
        sys.stdout.writelines(
            difflib.unified_diff(kept.splitlines(True), text.splitlines(True), "compat_matrix.md", "results")
        )
        sys.exit("compat_matrix.md is not what the result files say: run python tests/compat_matrix.py and look")


def print_counts(found):
    """Print what each run passed, and the sum; exit with 1 if a test failed or an environment was not run."""
    passed = failed = 0
    for env, records in found.items():
        for record in records:
            rows = record["capabilities"].values()
            counts = [sum(row[name] for row in rows) for name in ("passed", "failed")]
            counts[1] += bool(record.get("crashed"))
            passed, failed = passed + counts[0], failed + counts[1]
            print("{}, {} in {} mode: {} passed, {} failed".format(env, record["home"], record["mode"], *counts))
    missing = [env for env, records in found.items() if not records]
    print("not run: {}".format(", ".join(missing) or "none"))
    print("{} passed, {} failed".format(passed, failed))
    sys.exit(1 if failed or missing else 0)


def run_nowhere(folder, envs):
    """The test functions that were skipped in every run of these environments, sorted."""
    paths = [
        os.path.join(folder, "{}-{}-{}.json".format(env, *run)) for env in envs for run in environments.runs_of(env)
    ]
    return sorted(set.intersection(*[result_files.read_skipped(path) for path in paths]))


def check_all_ran(folder, envs):
    """Exit with 1 if a test was not run anywhere: "tested in another run" would be no more than said."""
    found = run_nowhere(folder, envs)
    if found:
        sys.exit("these tests were skipped in every run of the label:\n" + "\n".join(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", default=KEPT, help="the folder of the result files (default: those that are kept)")
    parser.add_argument("--label", default="core", help="of tox.ini: what --counts and --check --results look at")
    parser.add_argument("--keep", action="store_true", help="copy the files of --results over those that are kept")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--counts", action="store_true", help="only print what each run passed, and the sum")
    args = parser.parse_args()

    def of_label(folder):
        found = load(folder)
        return collections.OrderedDict((env, found[env]) for env in environments.environments(args.label))

    if args.counts:
        print_counts(of_label(args.results))
    if args.check and args.results != KEPT:
        check_run(of_label(args.results), of_label(KEPT))
        return check_all_ran(args.results, environments.environments(args.label))
    if args.check:
        return check_text()
    if args.keep:
        load(args.results)
        keep(glob.glob(os.path.join(args.results, "*.json")))
    write()


def untrue(record, siblings, run):
    """What a kept record claims and a run of its environment does not show: a list of sentences.

    Args:
        record: that is kept.
        siblings: the kept records of the same environment.
        run: those of the run.
    """
    same = [each for each in run if same_stack(each, record)]
    if not same:
        return ["it was not run with {}, {}, Python {}".format(*stack_of(record)[:3])]
    found = []
    rows = same[0]["capabilities"]
    # In any of its runs, for one may have the word of another.
    in_part = {CAPABILITIES[name] for each in run for name, row in each["capabilities"].items() if left_out(row)}
    for thing in THINGS:
        words = [verdict_on(thing, each, of)[0] for each, of in ((record, siblings), (same[0], run))]
        # What was not run claims nothing. Of what was run in part it is seen whether it is broken.
        if words[0] not in (words[1], NOT_RUN) and (thing not in in_part or words[1] == "broken"):
            found.append("{}: {!r} is kept, {!r} was seen".format(thing, *words))
    for name, row in record["capabilities"].items():
        shown = rows.get(name, {"passed": 0})
        # Those that were left out would have been skipped, or have passed.
        passed = shown["passed"] + left_out(shown)
        # A test that is new makes no kept word untrue.
        if passed < row["passed"]:
            found.append("{}: {} tests are kept as passed, {} were".format(name, row["passed"], passed))
    return found


def check_run(found, kept):
    """Exit with 1 if an environment was not run, or did not show all that the kept records claim."""
    missing = [env for env, records in found.items() if not records]
    if missing:
        sys.exit("no result file for " + ", ".join(missing))
    wrong = []
    for env, records in kept.items():
        if not records:
            print("{}: nothing is kept of it to compare with".format(env))
        for record in records:
            claims = untrue(record, records, found[env])
            wrong += ["{}, {} in {} mode: {}".format(env, record["home"], record["mode"], claim) for claim in claims]
    if wrong:
        sys.exit("this run does not show what tests/results says:\n" + "\n".join(wrong))
    shown = [[each["capabilities"] for each in records] for records in found.values()]
    whole = not any(left_out(row) for of in shown for rows in of for row in rows.values())
    more = any(record["capabilities"] not in of for of, records in zip(shown, kept.values()) for record in records)
    # Of a run that left something out --keep takes nothing.
    if more and whole:
        print("This run shows all that tests/results says, and more: --keep would take it.")


if __name__ == "__main__":
    main()
