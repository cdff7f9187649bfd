"""Make compat_matrix.md from what runs of the tests found: `python tests/compat_matrix.py [--check]`.

A run of the tests (run_homes.py) writes a result file for every environment, home and mode, into .tox/results. What the
last whole runs came to is kept in tests/results.jsonl, a line a run: full_matrix.py puts it there, and so does
`--results .tox/results --keep`. With --check nothing is written: it ends with 1 if compat_matrix.md is not what the
kept lines say; or, with --results, if an environment of the label was not run, or a kept line claims what this run does
not show.
"""

import argparse
import collections
import difflib
import glob
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import environments  # noqa: E402
import result_files  # noqa: E402
from environments import as_numbers, minor  # noqa: E402

ROOT = os.path.dirname(HERE)
KEPT = os.path.join(HERE, "results.jsonl")
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
# The kinds of tests that are not run (skips.py): not in this TensorFlow or Keras, not done by legacyga, tested in
# another run, and without a meaning here.
KINDS = ["keras_lacks", "we_lack", "elsewhere", "senseless"]
# What a test says that the core run leaves out, and a run of the full matrix does not.
TAKES_LONG = "takes long: tests/full_matrix.py runs it"
NO_SUCH_THING, NOT_RUN = "there is no such thing", "not run"
SHOWN = {"broken": "**broken**", NO_SUCH_THING: "–"}

HEAD = """# Does it work on mine?

Find your Keras and your TensorFlow. A cell says what the tests of these versions have found:

- **yes**: tested, every number against an oracle.
- **yes, but**: tested, and a test is known to fail there. The note says why.
- **in part**: tested, and legacyga does not do all of it there. The note says what is missing.
- **no**: legacyga does not do it there. The note says why.
- **–**: that TensorFlow or Keras has nothing of the kind.
- **not run**: nothing was tested, and nothing is claimed.
- **broken**: a test fails.

After each change CI runs a part of these tests in the environments of tox's label `core`.
"""
FOOT = """Made by `python tests/compat_matrix.py` from `tests/results.jsonl`. `python tests/full_matrix.py` runs every
environment and keeps what it finds there. A check in `tox -e lint` fails when the two differ.
"""
# What to write: (where, a program).
PROGRAMS = [
    (
        "Graph mode: standalone Keras up to 2.3, TensorFlow 1, TensorFlow 2 after `disable_eager_execution()`",
        """import keras  # or: from tensorflow import keras
import legacyga

optimizer = legacyga.MySGD(lr=0.01, momentum=0.9, steps_per_update=8)
# Or, from TensorFlow 1.11 on, of any other optimizer; from 2.11 on of keras.optimizers.legacy:
optimizer = legacyga.wrap(keras.optimizers.Adam(), gradient_accumulation_steps=8)
model.compile(optimizer=optimizer, loss="mse")
model.fit(x, y, batch_size=4, callbacks=[legacyga.GradientAccumulationCallback()])""",
    ),
    (
        "A session of your own: `tf.compat.v1.train`, before TensorFlow 1.13 `tf.train`",
        """train = legacyga.wrap(tf.compat.v1.train.AdamOptimizer(), gradient_accumulation_steps=8).minimize(loss)""",
    ),
    (
        "Eager mode: tf.keras of TensorFlow 2, tf_keras, Keras 3",
        """from tensorflow import keras  # or: import tf_keras as keras
import legacyga

optimizer = legacyga.wrap(keras.optimizers.Adam(), gradient_accumulation_steps=8)
model.compile(optimizer=optimizer, loss="mse")
model.fit(x, y, batch_size=4, callbacks=[legacyga.GradientAccumulationCallback()])""",
    ),
]


# --------------------------------------------------------------------------------------- result files, and what is kept


def load_run(folder, config=None):
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


def load(config=None):
    """{environment: [what is kept of its runs]}, for all of the label `full`, in the order of the table."""
    found = collections.OrderedDict((env, {}) for env in environments.environments(config=config))
    for record in result_files.read_lines(KEPT):
        run = record["home"], record["mode"]
        if record["env"] not in found or run not in environments.runs_of(record["env"]):
            sys.exit("{}, {} in {} mode is no run of tox.ini".format(record["env"], *run))
        found[record["env"]][run] = record
    return collections.OrderedDict(
        (env, [records[run] for run in environments.runs_of(env) if run in records]) for env, records in found.items()
    )


def line_of(env, record, siblings):
    """What is kept of a run: an OrderedDict, in which what users call has its verdict and the reasons."""
    rows = record["capabilities"].values()
    line = collections.OrderedDict(env=env)
    line.update((name, record[name]) for name in ("home", "mode", "date", "versions", "code"))
    line.update((name, sum(row[name] for row in rows)) for name in ("passed", "failed"))
    line["failed"] += bool(record.get("crashed"))
    line["things"] = collections.OrderedDict((thing, list(verdict_on(thing, record, siblings))) for thing in THINGS)
    return line


# ----------------------------------------------------------------------------------------- what a result file comes to


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
        record: of a run, or what is kept of one.
        siblings: the records of the same environment, of which one may have what is tested there.
    """
    if "things" in record:
        return tuple(record["things"].get(thing, (NOT_RUN, [])))
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


def stack_of(record):
    """[TensorFlow, Keras, Python, mode] of a run."""
    versions = record["versions"]
    # TensorFlow's own Keras says no more about itself than TensorFlow does.
    keras = record["home"] if record["home"] == "tf.keras" else "{} {}".format(record["home"], versions["keras"])
    # Of a release candidate it says 2.22.0-rc0, and pip and tox.ini say 2.22.0rc0.
    tensorflow = versions["tensorflow"].replace("-rc", "rc")
    return [tensorflow, keras, versions["python"], record["mode"]]


def same_stack(one, other):
    """Whether two runs are of one stack: another patch of Python, and another NumPy, make no other."""

    def of(record):
        tensorflow, keras, python, mode = stack_of(record)
        return tensorflow, keras, minor(python), mode

    return of(one) == of(other)


# ------------------------------------------------------------------------------------------------------------ the text


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


def sentence(reason):
    # What begins with a name in code begins with it as it is.
    first = reason.split()[0]
    is_code = first in ("wrap", "tf-keras") or re.search(r"[._]", first)
    return (reason if is_code else reason[0].upper() + reason[1:]) + ("" if reason.endswith(".") else ".")


def span(versions):
    """A range of versions, to the minor one, such as "1.8 to 1.12"."""
    found = sorted({minor(version) for version in versions}, key=as_numbers)
    return found[0] if len(found) == 1 else "{} to {}".format(found[0], found[-1])


def worst_of(records):
    """{thing: (word, reasons)} of some runs together. What was not run says nothing beside what was."""
    found = collections.OrderedDict()
    for thing in THINGS:
        verdicts = [verdict_on(thing, record) for record in records]
        run = [each for each in verdicts if each[0] not in (NOT_RUN, NO_SUCH_THING)] or verdicts
        worst = min((word for word, _ in run), key=WORST_FIRST.index)
        reasons = {why for word, reasons in run if word == worst for why in reasons}
        found[thing] = worst, tuple(sorted(reasons))
    return found


def are_alike(one, other):
    """Whether two such answers are one. Replicas were tested on some versions, and these speak for those between."""
    silent = (NOT_RUN, NO_SUCH_THING)
    return all(
        one[thing] == other[thing] or (thing == "replicas" and silent[0] in (one[thing][0], other[thing][0]))
        for thing in THINGS
    )


def ranges(found):
    """The lines of the first table: [(Keras, mode, [records of versions that answer alike])]."""
    groups = collections.OrderedDict()
    for env, records in found.items():
        for record in records:
            groups.setdefault((environments.family_of(env, record["home"]), record["mode"]), []).append(record)
    order = ["keras", "tf.keras", "tf_keras", "keras3"]
    for family, mode in sorted(groups, key=lambda group: (order.index(group[0]), group[1])):
        by_versions = collections.OrderedDict()
        for record in groups[family, mode]:
            versions = record["versions"]
            by_versions.setdefault((minor(versions["tensorflow"]), minor(versions["keras"])), []).append(record)
        lines = []
        for records in by_versions.values():
            if lines and are_alike(worst_of(lines[-1]), worst_of(records)):
                lines[-1].extend(records)
            else:
                lines.append(list(records))
        for records in lines:
            yield family, mode, records


def replicas_note(records):
    """Where several replicas work, and were tested on a part of these versions alone: [which]."""
    tested = [each for each in records if works(verdict_on("replicas", each)[0])]
    if not tested or len(tested) == len(records):
        return []
    versions = sorted({minor(each["versions"]["tensorflow"]) for each in tested}, key=as_numbers)
    return ["several replicas were tested on TensorFlow {} alone".format(" and ".join(versions))]


def first_table(found, notes):
    """Its lines."""
    rows = []
    for family, mode, records in ranges(found):
        tensorflow, keras = [span(record["versions"][name] for record in records) for name in ("tensorflow", "keras")]
        known = "" if family == "tf.keras" else " " + keras
        row = [family.replace("keras3", "keras") + known, tensorflow, mode]
        for thing, (word, why) in worst_of(records).items():
            if thing == "replicas":
                why = list(why) + replicas_note(records)
            row.append(SHOWN.get(word, word) + notes.mark(why))
        rows.append(row)
    return table(["Keras", "TensorFlow", "mode"] + THINGS, rows)


def summary(found, code):
    """How much was tested, and with which code."""
    records = [record for each in found.values() for record in each]
    runs = sum(len(environments.runs_of(env)) for env in found)
    old = [record for record in records if record["code"] != code]
    lines = ["{} environments, {} runs: {} tested, {} not.".format(len(found), runs, len(records), runs - len(records))]
    if old:
        days = sorted(record["date"] for record in old)
        lines.append("{} were tested with earlier code, the oldest on {}.".format(len(old), days[0]))
    return lines


def installs(found, config=None):
    """The table of how to install each TensorFlow, with the newest Python that it was tested on."""
    rows = collections.OrderedDict()
    for env in found:
        factors = environments.factors_of(env)
        kind = next((each for each in ("keras", "tfkeras") if each in factors), "")
        line = "keras 2" if kind == "keras" and as_numbers(factors[kind])[0] < 3 else kind
        rows[as_numbers(factors["tf"])[:2], line] = env
    lines = []
    for (_, _), env in rows.items():
        python = environments.python_of(env)
        wanted, after = environments.pins(env, python, config)
        cell = " ".join('"{}"'.format(each) if re.search("[<>*]", each) else each for each in wanted)
        lines.append([environments.factors_of(env)["tf"], python, "`{}`".format(cell), " ".join(after)])
    return table(["TensorFlow", "Python", "`pip install legacyga` and", "then with `--no-deps`"], lines)


def cannot_be_installed():
    """{environment: why there is none}, sorted."""
    found = result_files.read(NOT_INSTALLABLE)
    return collections.OrderedDict((env, found[env]) for env in sorted(found, key=environments.position))


def render(found, config=None, code=None, not_installable=()):
    """The text of compat_matrix.md.

    Args:
        found: {environment: [what is kept of its runs]}.
        config: a ConfigParser over tox.ini, by default that of this tree.
        code: the hash of the present code.
        not_installable: {environment: why there is none}.
    """
    notes = Notes()
    lines = [HEAD] + summary(found, code) + [""] + first_table(found, notes) + [""]
    lines += ["{}. {}".format(i, sentence(reason)) for i, reason in enumerate(notes.reasons, 1)]
    lines += ["", "## To install it", "", "In a fresh environment of that Python:", ""] + installs(found, config)
    lines += ["", "## To write", ""]
    for title, program in PROGRAMS:
        lines += [title + ":", "", "```python", program, "```", ""]
    if not_installable:
        lines += ["## What cannot be installed, or does not work at all", ""]
        lines += ["- `{}`: {}".format(env, sentence(reason)) for env, reason in not_installable.items()] + [""]
    return "\n".join(lines + [FOOT])


def present_text():
    """compat_matrix.md as the kept lines have it."""
    return render(load(), code=result_files.present_code(), not_installable=cannot_be_installed())


def keep(paths):
    """Put what result files came to in the place of what is kept: of whole runs, which left out nothing."""
    found = collections.OrderedDict()
    for path in paths:
        record = result_files.read(path)
        if any(left_out(row) for row in record["capabilities"].values()):
            sys.exit("{} is of a run that left tests out. Run it with LEGACYGA_WHOLE=1.".format(os.path.basename(path)))
        env = re.match(environments.RUN_FILE, os.path.basename(path)).group(1)
        found.setdefault(env, []).append(record)
    lines = load()
    for env, records in found.items():
        news = [line_of(env, record, records) for record in records]
        runs = [(each["home"], each["mode"]) for each in news]
        lines[env] = [each for each in lines[env] if (each["home"], each["mode"]) not in runs] + news
    result_files.write_lines(KEPT, [record for env in lines for record in lines[env]])


def write():
    with open(TARGET, "w", encoding="utf-8") as file:
        file.write(present_text())


def check_text():
    """Exit with 1 if compat_matrix.md is not what the kept lines say."""
    text = present_text()
    with open(TARGET, encoding="utf-8") as file:
        kept = file.read()
    if kept != text:
        sys.stdout.writelines(
            difflib.unified_diff(kept.splitlines(True), text.splitlines(True), "compat_matrix.md", "results.jsonl")
        )
        sys.exit("compat_matrix.md is not what tests/results.jsonl says: run python tests/compat_matrix.py and look")


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
    # In any of its runs, for one may have the word of another.
    in_part = {CAPABILITIES[name] for each in run for name, row in each["capabilities"].items() if left_out(row)}
    for thing in THINGS:
        words = [verdict_on(thing, each, of)[0] for each, of in ((record, siblings), (same[0], run))]
        # What was not run claims nothing. Of what was run in part it is seen whether it is broken.
        if words[0] not in (words[1], NOT_RUN) and (thing not in in_part or words[1] == "broken"):
            found.append("{}: {!r} is kept, {!r} was seen".format(thing, *words))
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
        sys.exit("this run does not show what tests/results.jsonl says:\n" + "\n".join(wrong))


def print_counts(found):
    """Print what each run passed, and the sum; exit with 1 if a test failed or an environment was not run."""
    passed = failed = 0
    for env, records in found.items():
        for record in records:
            # What is kept has the sums, a result file the counts.
            rows = record["capabilities"].values() if "capabilities" in record else [record]
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
    parser.add_argument("--results", help="a folder of result files, in place of what is kept")
    parser.add_argument("--label", default="core", help="of tox.ini: what --counts and --check --results look at")
    parser.add_argument("--keep", action="store_true", help="keep what the files of --results came to")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--counts", action="store_true", help="only print what each run passed, and the sum")
    args = parser.parse_args()

    def of_label(found):
        return collections.OrderedDict((env, found[env]) for env in environments.environments(args.label))

    if args.keep and not args.results:
        parser.error("--keep needs --results: the folder of the files to keep")
    if args.counts:
        print_counts(of_label(load_run(args.results) if args.results else load()))
    if args.check and args.results:
        check_run(of_label(load_run(args.results)), of_label(load()))
        return check_all_ran(args.results, environments.environments(args.label))
    if args.check:
        return check_text()
    if args.keep:
        keep(sorted(glob.glob(os.path.join(args.results, "*.json"))))
    write()


if __name__ == "__main__":
    main()
