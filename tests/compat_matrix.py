"""Make compat_matrix.md from what runs of the tests found: `python tests/compat_matrix.py [--check]`.

run_homes.py writes a result file for every environment, home and mode, into .tox/results. tests/results.jsonl keeps
what the last whole runs came to, a line a run: full_matrix.py puts it there, and so does `--results .tox/results
--keep`. With --check it ends with 1 if compat_matrix.md is not what the kept lines say; or, with --results, if a run of
the core is missing, or has broken what a kept line claims.
"""

import argparse
import collections
import glob
import hashlib
import json
import os
import re
import sys
import tokenize

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import environments  # noqa: E402
from environments import as_numbers, minor  # noqa: E402

KEPT = os.path.join(HERE, "results.jsonl")
NOT_INSTALLABLE = os.path.join(HERE, "not_installable.json")
TEMPLATE = os.path.join(HERE, "compat_matrix_template.md")
TARGET = os.path.join(environments.ROOT, "compat_matrix.md")
# What the doctor reads of the first table, in the package.
DATA = os.path.join(environments.ROOT, "legacyga", "cli", "tested.json")

# What a user calls, and the capabilities that say whether it works: rules of the contract and parts of the surface. A
# test is marked with one of these, or of those behind nothing that is called.
THINGS = {
    "MySGD": ["R1 mean", "R3 nothing else moves", "R6 K = 1 is the bare optimizer", "surface"],
    "wrap": ["wrap: every optimizer", "wrap: NumPy oracle", "wrap: properties"],
    "tf.train": ["wrap: TF 1 optimizers"],
    "fit and callback": ["R8 partial windows", "callback"],
    "unequal batches": ["R2 weights"],
    "own loop": ["GradientAccumulator", "train_step"],
    "batches in slices": ["micro_batch"],
    "replicas": ["R12 replicas"],
    "saving": ["R9 state"],
}
BEHIND_NOTHING = [
    "R4 per update",
    "R5 phase",
    "R7 one result",
    "R8 change of K",
    "R10 sparse stays sparse",
    "R11 no gradient",
    "R13 dtype",
    "R14 trouble",
    "R15 a quiet guest",
    "ways to train",
    "wrap: surface",
    "errors",
    "demo and examples",
    "package",
    "house",
]
CAPABILITIES = set(BEHIND_NOTHING).union(*THINGS.values())
# The kinds of tests that are not run (skips.py): not in this TensorFlow or Keras, not done by legacyga, tested in
# another run, and without a meaning here.
KINDS = ["keras_lacks", "we_lack", "elsewhere", "senseless"]
# Why CI leaves a test out in the core, where full_matrix.py runs it; and why other environments leave one out.
TAKES_LONG = "takes long: tests/full_matrix.py runs it"
ELSEWHERE = "tested in other environments of the matrix"
REPLICAS_IN_GRAPHS = "in graph mode several replicas were tested on TensorFlow 1.15 alone: docs/distributed.md says how"
NO_SUCH_THING, NOT_RUN = "there is no such thing", "not run"
SHOWN = {"broken": "**broken**", NO_SUCH_THING: "–"}

# A reason that begins with the name of a call is about that call, in whatever test it stands.
SUBJECTS = {"wrap": "wrap", "micro_batch": "batches in slices"}
# Of the capabilities of one thing, and of the runs of one line, the first of these that there is decides.
WORST_FIRST = ["broken", "no", "in part", "yes, but", "yes", "elsewhere", NO_SUCH_THING, NOT_RUN]


# What the hash of the code leaves out, and how it writes what Pythons name in different ways.
MEANINGLESS = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
MARKS = {tokenize.INDENT: "<indent>", tokenize.DEDENT: "<dedent>"}
BEGINNINGS = (";", "<indent>", "<dedent>")


def code_of(folder):
    """What tells one state of the package's code from another: a hash of its .py files, 12 hex digits.

    Comments, docstrings and the layout of lines are not in it: they change nothing that a test could see.
    """
    found = hashlib.sha256()
    paths = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(".py")]
    for name, path in sorted((os.path.relpath(path, folder).replace(os.sep, "/"), path) for path in paths):
        found.update("{}\n{}\n".format(name, " ".join(words_of(path))).encode())
    return found.hexdigest()[:12]


def words_of(path):
    """The words of a Python file that mean something, the same with every Python: a list."""
    words = [";"]
    with open(path, "rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in MEANINGLESS:
                continue
            is_end = token.type == tokenize.NEWLINE
            if is_end and len(words) > 1 and words[-2] in BEGINNINGS and words[-1][-1] in "'\"":
                # The line was a string alone: a docstring.
                words.pop()
            elif token.type in MARKS or is_end:
                words.append(MARKS.get(token.type, ";"))
            else:
                words.append(token.string)
    return words


def present_code():
    """The hash of the package in this tree."""
    return code_of(os.path.join(environments.ROOT, "legacyga"))


def read(path):
    with open(path) as file:
        return json.load(file)


def read_all(folder):
    """{path: what it holds} of the result files."""
    return {path: read(path) for path in sorted(glob.glob(os.path.join(folder, "*.json")))}


def run_of(record):
    return record["env"], record["home"], record["mode"]


def load():
    """What is kept of the runs of the label `full`, in the order of the table."""
    with open(KEPT) as file:
        kept = {run_of(line): line for line in map(json.loads, file)}
    return [kept[run] for run in environments.runs() if run in kept]


def keep(records):
    """Replace the kept lines of whole runs, which left out no test; of a run of some columns, only these cells."""
    kept = {run_of(line): line for line in load()}
    for record in records:
        if any(TAKES_LONG in row["elsewhere"] for row in record["capabilities"].values()):
            sys.exit("the run of {} left tests out: run it with LEGACYGA_WHOLE=1".format(record["env"]))
        alone = record.get("alone")
        found = {thing: verdict_on(thing, record, records) for thing in alone or THINGS}
        if alone:
            line = kept[run_of(record)]
            line["things"].update(found)
            line.setdefault("anew", {}).update({thing: [record["date"], record["code"]] for thing in alone})
            continue
        line = {name: record[name] for name in ("env", "home", "mode", "date", "versions", "code")}
        line["passed"], line["failed"] = counts_of(record)
        kept[run_of(record)] = dict(line, things=found)
    with open(KEPT, "w") as file:
        file.writelines(json.dumps(kept[run]) + "\n" for run in environments.runs() if run in kept)


def counts_of(record):
    """(passed, failed). A run that died is a failure."""
    passed, failed = [sum(row[name] for row in record["capabilities"].values()) for name in ("passed", "failed")]
    return passed, failed + bool(record.get("crashed"))


def verdict(row):
    """What one capability's row says: (a word, the reasons for it). A skip is never a pass."""
    if row["failed"]:
        return "broken", []
    if row["passed"]:
        word = "in part" if row["we_lack"] else "yes, but" if row["xfailed"] else "yes"
        return word, sorted(set(row["we_lack"]) | set(row["xfailed"]))
    for kind, word in (("xfailed", "no"), ("we_lack", "no"), ("elsewhere", "elsewhere")):
        if row[kind]:
            return word, sorted(row[kind])
    return NO_SUCH_THING if row["keras_lacks"] or row["senseless"] else NOT_RUN, []


def without_others(thing, row):
    """Return a row without `we_lack` reasons that concern other things than `thing`, if any test passed."""
    own = {why: n for why, n in row["we_lack"].items() if SUBJECTS.get(why.split()[0], thing) == thing}
    return dict(row, we_lack=own) if row["passed"] else row


def worst(verdicts):
    """The worst word, and all reasons for it."""
    word = min([word for word, _ in verdicts] or [NOT_RUN], key=WORST_FIRST.index)
    return word, sorted({reason for other, reasons in verdicts for reason in reasons if other == word})


def verdict_on(thing, record, records=()):
    """What a run found of one of `THINGS`: (a word, the reasons). `records` may have others of its environment."""
    if record.get("crashed"):
        return "broken", []
    rows = [row for name, row in record["capabilities"].items() if name in THINGS[thing]]
    word, reasons = worst([verdict(without_others(thing, row)) for row in rows])
    if word != "elsewhere":
        return word, reasons
    others = [each for each in records if each["env"] == record["env"] and each is not record]
    if thing == "replicas":
        # What they do in eager mode says nothing of graph mode.
        others = [each for each in others if each["mode"] == record["mode"]]
    return ("yes", reasons) if "yes" in [verdict_on(thing, each)[0] for each in others] else (NOT_RUN, [])


def kept_word(thing, line):
    return line["things"].get(thing, [NOT_RUN])[0]


def works(thing, line):
    """Whether a thing works, by a kept line."""
    return kept_word(thing, line) in ("yes", "yes, but")


def table(head, rows):
    return "\n".join("| " + " | ".join(each) + " |" for each in [head, ["---"] * len(head)] + rows)


def sentence(reason):
    # What begins with a name in code begins with it as it is.
    first = reason.split()[0]
    is_code = first in ("wrap", "tf-keras") or re.search(r"[._]", first)
    return (reason if is_code else reason[0].upper() + reason[1:]) + ("" if reason.endswith(".") else ".")


def minors(lines, name):
    """The minor versions of what runs were on, from the oldest."""
    return sorted({minor(line["versions"][name]) for line in lines}, key=as_numbers)


def span(lines, name):
    """Their range, such as "1.8 to 1.12"."""
    found = minors(lines, name)
    return found[0] if len(found) == 1 else "{} to {}".format(found[0], found[-1])


def answer(lines):
    """{thing: (word, reasons)} of some runs together. What was not run says nothing beside what was."""
    found = {}
    for thing in THINGS:
        verdicts = [line["things"].get(thing, [NOT_RUN, []]) for line in lines]
        found[thing] = worst([each for each in verdicts if each[0] not in (NOT_RUN, NO_SUCH_THING)] or verdicts)
    return found


def are_alike(one, other):
    """Whether two answers are the same. A version without tests of replicas agrees with any answer on them."""
    silent = "replicas" if NOT_RUN in (one["replicas"][0], other["replicas"][0]) else None
    return all(one[thing] == other[thing] for thing in THINGS if thing != silent)


def ranges(lines):
    """The rows of the first table: (Keras, mode, [what is kept of versions that answer alike])."""
    groups = collections.defaultdict(dict)
    for line in lines:
        versions = minor(line["versions"]["tensorflow"]), minor(line["versions"]["keras"])
        groups[environments.family_of(line), line["mode"]].setdefault(versions, []).append(line)
    order = ["keras", "tf.keras", "tf_keras", "keras3"]
    for family, mode in sorted(groups, key=lambda group: (order.index(group[0]), group[1])):
        alike = []
        for each in groups[family, mode].values():
            if alike and are_alike(answer(alike[-1]), answer(each)):
                alike[-1] += each
            else:
                alike.append(list(each))
        for each in alike:
            yield family, mode, each


def reasons_for(thing, why, lines):
    """The reasons for a cell, and which versions replicas were tested on where these are not all."""
    tested = [line for line in lines if works(thing, line)]
    if thing == "replicas" and lines[0]["mode"] == "graph":
        return why + [REPLICAS_IN_GRAPHS]
    versions = minors(tested, "tensorflow")
    if thing != "replicas" or not tested or versions == minors(lines, "tensorflow"):
        return why
    return why + ["several replicas were tested on TensorFlow {} alone".format(" and ".join(versions))]


def known_as(family, lines):
    """A Keras and the range of its versions. tf.keras has that of its TensorFlow."""
    return "tf.keras" if family == "tf.keras" else family.replace("keras3", "keras") + " " + span(lines, "keras")


def data(lines):
    """The first table for `legacyga/cli/tested.py`: JSON, with a line for each row."""
    rows = []
    for family, mode, alike in ranges(lines):
        names = ["tensorflow"] if family == "tf.keras" else ["tensorflow", "keras"]
        versions = [[list(as_numbers(minor(line["versions"][name]))) for name in names] for line in alike]
        row = dict(family=family, mode=mode, keras=known_as(family, alike), tensorflow=span(alike, "tensorflow"))
        row["tested"] = sorted(each for i, each in enumerate(versions) if each not in versions[:i])
        things = answer(alike).items()
        row["things"] = [[thing, [word, reasons_for(thing, why, alike)]] for thing, (word, why) in things]
        rows.append(json.dumps(row, sort_keys=True))
    return "[\n{}\n]\n".format(",\n".join(rows))


def first_table(lines):
    """(its text, the notes below it)."""
    rows, notes = [], []
    for family, mode, alike in ranges(lines):
        row = [known_as(family, alike), span(alike, "tensorflow"), mode]
        for thing, (word, why) in answer(alike).items():
            why = reasons_for(thing, why, alike)
            notes += [reason for reason in why if reason not in notes]
            row.append(SHOWN.get(word, word) + "".join(" [{}]".format(notes.index(reason) + 1) for reason in why))
        rows.append(row)
    return table(["Keras", "TensorFlow", "mode"] + list(THINGS), rows), notes


def summary(lines, code):
    """How much was tested, and with which code."""
    counts = [len(environments.environments()), len(environments.runs()), len(lines)]
    told = "{} environments, {} runs: {} tested, {} not.".format(*counts, counts[1] - counts[2])
    days = sorted(line["date"] for line in lines if line["code"] != code)
    if days:
        told += "\n{} were tested with earlier code, the oldest on {}.".format(len(days), days[0])
    for thing in THINGS:
        days = sorted(line["anew"][thing][0] for line in lines if thing in line.get("anew", ()))
        if days:
            told += "\nThe column `{}` was tested again in {} of the runs, from {} on.".format(
                thing, len(days), days[0]
            )
    return told


def installs():
    """The table of how to install each TensorFlow, with the newest Python that it was tested on."""
    newest = {}
    for env in environments.environments():
        factors = environments.factors_of(env)
        kind = "tfkeras" if "tfkeras" in factors else "keras " + factors.get("keras", "")[:1]
        newest[factors["tf"], kind] = env
    rows = []
    for (tensorflow, _), env in newest.items():
        wanted, after = environments.pins(env)
        cell = " ".join('"{}"'.format(each) if re.search("[<>*]", each) else each for each in wanted)
        rows.append([tensorflow, environments.python_of(env), "`{}`".format(cell), " ".join(after)])
    return table(["TensorFlow", "Python", "`pip install legacyga` and", "then with `--no-deps`"], rows)


def cannot_be_installed():
    """{environment: why there is none}, sorted."""
    found = read(NOT_INSTALLABLE)
    return {env: found[env] for env in sorted(found, key=environments.position)}


def render(lines, code):
    """The text of compat_matrix.md: of what is kept, and the hash of the present code."""
    text, notes = first_table(lines)
    absent = ["- `{}`: {}".format(env, sentence(why)) for env, why in cannot_be_installed().items()]
    with open(TEMPLATE, encoding="utf-8") as file:
        return file.read().format(
            summary=summary(lines, code),
            table=text,
            notes="\n".join("{}. {}".format(i, sentence(reason)) for i, reason in enumerate(notes, 1)),
            installs=installs(),
            not_installable="\n".join(absent),
        )


def present_texts():
    """{path: text} of what is made of the kept lines."""
    return {DATA: data(load()), TARGET: render(load(), present_code())}


def write():
    for path, text in present_texts().items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def check_text():
    """Exit with 1 if compat_matrix.md, or what the package has of it, is not what the kept lines say."""
    for path, text in present_texts().items():
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                told = "{} is not what tests/results.jsonl says: run python tests/compat_matrix.py"
                sys.exit(told.format(os.path.basename(path)))


def missing(records):
    """The runs of the core that have no result file, in words."""
    there = {run_of(record) for record in records}
    return ["{}, {} in {} mode".format(*run) for run in environments.runs("core") if run not in there]


def check_run(records):
    """Exit with 1 if a run of the core is missing, or has broken what a kept line claims.

    A run of the core has a part of the tests. What it finds better than what is kept was mended.
    """
    wrong = ["there is no result file for " + run for run in missing(records)]
    kept = {run_of(line): line for line in load()}
    for record in [record for record in records if run_of(record) in kept]:
        for thing in THINGS:
            claimed, word = kept_word(thing, kept[run_of(record)]), verdict_on(thing, record, records)[0]
            if word == "broken" or (claimed == "yes" and word in ("no", "in part", "yes, but")):
                told = "{}, {} in {} mode: {}: {!r} is kept, {!r} was seen"
                wrong.append(told.format(*run_of(record), thing, claimed, word))
    if wrong:
        sys.exit("\n".join(wrong))


def print_counts(records):
    """Print what each run passed, and the sum; exit with 1 if a test failed or a run of the core is missing."""
    counts = [counts_of(record) for record in records]
    for record, each in zip(records, counts):
        print("{}, {} in {} mode: {} passed, {} failed".format(*run_of(record) + each))
    passed, failed = [sum(each) for each in zip((0, 0), *counts)]
    print("not run: {}\n{} passed, {} failed".format("; ".join(missing(records)) or "none", passed, failed))
    sys.exit(1 if failed or missing(records) else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", help="a folder of result files: what to keep, to compare or to count")
    parser.add_argument("--keep", action="store_true", help="keep what the files of --results came to")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--counts", action="store_true", help="print what each run of --results passed, and the sum")
    args = parser.parse_args()
    records = list(read_all(args.results).values()) if args.results else []
    if args.counts:
        print_counts(records)
    elif args.check:
        check_run(records) if args.results else check_text()
    else:
        if args.keep:
            keep(records)
        write()


if __name__ == "__main__":
    main()
