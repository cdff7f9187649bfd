"""Make compat_matrix.md from the result files of test runs: `python tests/compat_matrix.py [--check]`.

A result file is written by a run of the tests (run_homes.py), one for every environment, home and mode, into
.tox/results. Those of the last full run are kept in tests/results: `--results .tox/results --keep` puts them there.
With --check nothing is written: it ends with 1 if compat_matrix.md is not what the kept files say; or, with --results,
if an environment of tox.ini was not run, or a kept file claims what this run does not show. An environment of which
nothing is kept stands in the table as not run.
"""

import argparse
import collections
import configparser
import difflib
import glob
import json
import operator
import os
import re
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
KEPT = os.path.join(HERE, "results")
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
COUNTS = [("passed", "passed"), ("failed", "failed"), ("xfailed", "known to fail")] + list(KINDS.items())
NO_SUCH_THING, NOT_RUN = "there is no such thing", "not run"

HEAD = """# Does it work on mine?

Find your line. A cell says whether the thing works there, as the tests of that stack have it:

- **yes**: tested, every number against an oracle.
- **no**: legacyga does not do it there; the note says why.
- **there is no such thing**: that TensorFlow or Keras has nothing of the kind.
- **not run**: nothing was tested, and nothing is claimed.
- **broken**: a test fails.

Each stack has a section below: how to install it, what to write, and what is not possible.
"""
FOOT = """Made by `python tests/compat_matrix.py` from result files of test runs. `python -m tox run-parallel -m core`
writes those, and `python tests/compat_matrix.py --results .tox/results --keep` keeps them in `tests/results`.
A check in `tox -e lint` fails when the two differ.
"""


def tox_ini():
    config = configparser.ConfigParser(interpolation=None)
    config.read(os.path.join(ROOT, "tox.ini"))
    return config


def environments():
    """The test environments of tox.ini, by their TensorFlow."""

    def version(env):
        return [int(part) for part in re.search(r"tf(\d+)\.(\d+)", env).groups()]

    return sorted(tox_ini()["tox"]["env_list"].split(), key=lambda env: (version(env), env))


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


# ----------------------------------------------------------------------------------------------- how to install a stack


def conditional(lines, env):
    """The lines of a setting of tox.ini that a condition on factors adds for `env`, as [(factors, what they add)]."""
    factors, found = set(env.split("-")), []
    for line in lines.strip().splitlines():
        condition, colon, value = line.strip().partition(": ")
        if not colon or not re.match(r"^[\w.!, -]+$", condition):
            continue
        for each in condition.split(","):
            names = each.strip().split("-")
            if all((name[1:] not in factors) if name.startswith("!") else (name in factors) for name in names):
                found.append((names, value.strip()))
                break
    return found


def holds(marker, python):
    """Whether an environment marker on python_version holds for a Python such as "3.10"."""
    compare, version = re.match(r"python_version\s*(<=|>=|==|<|>)\s*[\"']([\d.]+)[\"']$", marker.strip()).groups()
    by_name = {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt}
    one, other = (tuple(int(part) for part in each.split(".")) for each in (python, version))
    return by_name[compare](one, other)


def pins(env, python, config=None):
    """What pip is given for an environment: ([requirements], [those to install after them, without dependencies])."""
    config = config or tox_ini()
    alone = set()
    for names, value in conditional(config["testenv"].get("set_env", ""), env):
        # The override takes away what a package asks for.
        if value.startswith("UV_OVERRIDE"):
            alone.update(names)
    found, after = [], []
    for names, requirement in conditional(config["testenv"]["deps"], env):
        requirement, semicolon, marker = requirement.partition(";")
        if not semicolon or holds(marker, python):
            (after if alone & set(names) else found).append(requirement.strip())
    return found, after


def install(env, python, config=None):
    """The commands that make a stack, in a fresh environment of that Python."""
    found, after = pins(env, python, config)

    def command(options, requirements):
        quoted = ['"{}"'.format(each) if re.search("[<>*]", each) else each for each in requirements]
        return "python{} -m pip install {}".format(python, " ".join(options + quoted))

    return [command([], ["legacyga"] + found)] + ([command(["--no-deps"], after)] if after else [])


# ------------------------------------------------------------------------------------------ what a result file comes to


def minor(version):
    return ".".join(version.split(".")[:2])


def as_numbers(version):
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def verdict(row):
    """What one capability's row says: (a word, the reasons for it)."""
    if row is None:
        return NOT_RUN, []
    if row["failed"]:
        return "broken", []
    if row["passed"]:
        return "yes", []
    if row["xfailed"]:
        return "no", sorted(row["xfailed"])
    if row["we_lack"]:
        return "no", sorted(row["we_lack"])
    if row["elsewhere"]:
        return "elsewhere", sorted(row["elsewhere"])
    return (NO_SUCH_THING, []) if row["keras_lacks"] or row["senseless"] else (NOT_RUN, [])


# Of the capabilities of one thing the first of these that there is decides.
WORST_FIRST = ["broken", "no", "yes", "elsewhere", NO_SUCH_THING, NOT_RUN]


def verdict_on(thing, record, siblings=()):
    """What the capabilities of a thing together say: (a word, the reasons).

    Args:
        thing: one of `THINGS`.
        record: of a run.
        siblings: the records of the same environment, of which one may have what is tested there.
    """
    rows = [record["capabilities"].get(name) for name, of in CAPABILITIES.items() if of == thing]
    verdicts = [verdict(row) for row in rows]
    worst = min((word for word, _ in verdicts), key=WORST_FIRST.index)
    reasons = sorted({reason for word, found in verdicts for reason in found if word == worst})
    if worst != "elsewhere":
        return worst, reasons
    others = [verdict_on(thing, each)[0] for each in siblings if each is not record]
    return ("yes", reasons) if "yes" in others else (NOT_RUN, [])


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
    """[TensorFlow, Keras, Python, mode] of a run."""
    versions = record["versions"]
    # TensorFlow's own Keras says no more about itself than TensorFlow does.
    keras = record["home"] if record["home"] == "tf.keras" else "{} {}".format(record["home"], versions["keras"])
    return [versions["tensorflow"], keras, versions["python"], record["mode"]]


def title_of(record):
    tensorflow, keras, python, mode = stack_of(record)
    return "TensorFlow {}, {}, Python {}, {} mode".format(tensorflow, keras, python, mode)


def asked_for(env):
    """[TensorFlow, Keras, Python] that the name of an environment asks for."""
    factors = dict(re.match(r"([a-z]+)(.*)", factor).groups() for factor in env.split("-"))
    keras = "keras {}".format(factors["keras"]) if "keras" in factors else "tf.keras"
    keras = "tf_keras {}".format(factors["tfkeras"]) if "tfkeras" in factors else keras
    python = factors.get("py", "")
    return [factors["tf"], keras, "{}.{}".format(python[0], python[1:]) if python else "newest"]


# ------------------------------------------------------------------------------------------------------------- the text


def what_to_write(record, words):
    """Lines of a program for this stack, of those things that work there."""
    tensorflow, mode = as_numbers(record["versions"]["tensorflow"]), record["mode"]
    lines = ["import legacyga"]
    if mode == "graph":
        lines.append("import tensorflow as tf")
    home = {"keras": "import keras", "tf.keras": "from tensorflow import keras", "tf_keras": "import tf_keras as keras"}
    lines += [home[record["home"]], ""]
    if mode == "graph" and tensorflow >= (2, 0):
        lines += ["tf.compat.v1.disable_eager_execution()"]
    # From TF 2.11 on the optimizers of a graph are these.
    optimizers = "keras.optimizers.legacy" if mode == "graph" and tensorflow >= (2, 11) else "keras.optimizers"
    if words["MySGD"] == "yes":
        lines.append("optimizer = legacyga.MySGD(lr=0.01, momentum=0.9, steps_per_update=8)")
    if words["wrap"] == "yes":
        lines += ["# Or, of any other optimizer:"]
        lines.append("optimizer = legacyga.wrap({}.Adam(), gradient_accumulation_steps=8)".format(optimizers))
    lines.append('model.compile(optimizer=optimizer, loss="mse")')
    if words["fit and callback"] == "yes":
        lines.append("model.fit(x, y, batch_size=4, callbacks=[legacyga.GradientAccumulationCallback()])")
    if words["tf.train"] == "yes" and mode == "graph":
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
    is_code = first == "wrap" or re.search(r"[._]", first)
    return (reason if is_code else reason[0].upper() + reason[1:]) + ("" if reason.endswith(".") else ".")


def section(env, record, siblings, config=None):
    """The lines on one stack."""
    found = collections.OrderedDict((thing, verdict_on(thing, record, siblings)) for thing in THINGS)
    words = {thing: word for thing, (word, _) in found.items()}
    works = [thing for thing in THINGS if words[thing] == "yes"]
    commands = install(env, record["versions"]["python"], config)
    lines = ["### " + title_of(record), ""]
    lines += ["To install it, in a fresh environment:", "", "```"] + commands + ["```", ""]
    if len(commands) > 1:
        lines += ["The second asks for the full `tensorflow`, beside which `tensorflow-cpu` must not stand.", ""]
    lines += ["To write:", "", "```python"] + what_to_write(record, words) + ["```", ""]
    lines.append("Tested here: {}.".format(listed(works)) if works else "Nothing works here.")
    broken = [thing for thing in THINGS if words[thing] == "broken"]
    if broken:
        lines.append("Broken here: {}.".format(listed(broken)))
    missing = [thing for thing in THINGS if words[thing] == NO_SUCH_THING]
    if missing:
        lines.append("There is no such thing here: {}.".format(listed(missing)))
    untested = [thing for thing in THINGS if words[thing] == NOT_RUN]
    if untested:
        lines.append("Not run, and nothing claimed: {}.".format(listed(untested)))
    lacking = reasons_of(record, "we_lack") + reasons_of(record, "xfailed")
    for title, reasons in (
        ("What legacyga does not do here:", lacking),
        ("What this TensorFlow or Keras does not have:", reasons_of(record, "keras_lacks")),
        ("What was tested in another run:", reasons_of(record, "elsewhere")),
    ):
        if reasons:
            lines += ["", title, ""] + ["- " + sentence(reason) for reason in reasons]
    return lines + [""] + counts(record) + [""]


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


def render(found, config=None):
    """The text of compat_matrix.md.

    Args:
        found: {environment: [records of its runs]}.
        config: a ConfigParser over tox.ini, by default that of this tree.
    """
    notes, rows = Notes(), []
    for env, records in found.items():
        for record in records:
            cells = []
            for thing in THINGS:
                word, reasons = verdict_on(thing, record, records)
                cells.append(("**broken**" if word == "broken" else word) + notes.mark(reasons))
            rows.append(stack_of(record) + cells)
        if not records:
            rows.append(asked_for(env) + [""] + [NOT_RUN] * len(THINGS))
    lines = [HEAD] + table(["TensorFlow", "Keras", "Python", "mode"] + THINGS, rows)
    if notes.reasons:
        lines += [""] + ["{}. {}".format(i, sentence(reason)) for i, reason in enumerate(notes.reasons, 1)]
    lines += ["", "## The stacks", ""]
    for env, records in found.items():
        for record in records:
            lines += section(env, record, records, config)
    return "\n".join(lines + [FOOT])


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
        if not os.path.isdir(KEPT):
            os.makedirs(KEPT)
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


def untrue(record, siblings, run):
    """What a kept record claims and a run of its environment does not show: a list of sentences.

    Args:
        record: that is kept.
        siblings: the kept records of the same environment.
        run: those of the run.
    """
    same = [each for each in run if stack_of(each) == stack_of(record)]
    if not same:
        return ["it was not run with " + ", ".join(stack_of(record)[:3])]
    found = []
    for thing in THINGS:
        words = [verdict_on(thing, each, of)[0] for each, of in ((record, siblings), (same[0], run))]
        # What was not run claims nothing.
        if words[0] != words[1] and words[0] != NOT_RUN:
            found.append("{}: {!r} is kept, {!r} was seen".format(thing, *words))
    for name, row in record["capabilities"].items():
        passed = same[0]["capabilities"].get(name, {"passed": 0})["passed"]
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
    if any(record not in found[env] for env, records in kept.items() for record in records):
        print("This run shows all that tests/results says, and more: --keep would take it.")


if __name__ == "__main__":
    main()
