"""A result file: what a run of the tests of one environment, home and mode found, and what it ran on."""

import collections
import datetime
import hashlib
import importlib.util
import json
import os
import sys
import tokenize

MEANINGLESS = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
MARKS = {tokenize.INDENT: "<indent>", tokenize.DEDENT: "<dedent>"}
BEGINNINGS = (";", "<indent>", "<dedent>")
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "legacyga")


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
    return code_of(PACKAGE)


def imported_code():
    """The hash of the package that `import legacyga` finds, None where it finds none."""
    spec = importlib.util.find_spec("legacyga")
    return spec and code_of(os.path.dirname(spec.origin))


def start_record(home, mode, tensorflow, keras):
    """What every result file begins with."""
    import numpy

    python = "{}.{}.{}".format(*sys.version_info)
    return collections.OrderedDict(
        home=home,
        mode=mode,
        date=datetime.date.today().isoformat(),
        versions=collections.OrderedDict(python=python, tensorflow=tensorflow, keras=keras, numpy=numpy.__version__),
        code=imported_code(),
    )


def write(path, record):
    with open(path, "w") as file:
        json.dump(record, file, indent=1)
        file.write("\n")


def skipped_beside(path):
    """The path of the list that a run leaves beside its result file: the test functions that it did not run."""
    return path[: -len(".json")] + ".skipped"


def write_skipped(path, functions):
    with open(skipped_beside(path), "w") as file:
        file.writelines(name + "\n" for name in sorted(functions))


def read_skipped(path):
    """The functions, a set."""
    with open(skipped_beside(path)) as file:
        return set(file.read().split())


def read(path):
    with open(path) as file:
        return json.load(file, object_pairs_hook=collections.OrderedDict)


def read_lines(path):
    """The records of a file that has one a line."""
    with open(path) as file:
        return [json.loads(line, object_pairs_hook=collections.OrderedDict) for line in file]


def write_lines(path, records):
    with open(path, "w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
