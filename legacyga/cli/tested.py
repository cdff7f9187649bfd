"""Find what the tests found with a Keras and a TensorFlow: their line of the first table in compat_matrix.md."""

import json
import pkgutil

from legacyga.backend.features import version_of

# An installed package has no compat_matrix.md. tests/compat_matrix.py writes both.
FILE = "tested.json"


def line_of(home, mode):
    """Return the line for a `homes.Home` in a mode, else the nearest versions' line, as a dict; None if neither exists.

    Its `nearest` is the versions of TensorFlow and Keras that were tested; None if these are the ones at hand.
    """
    family = "keras3" if home.is_keras3 else home.name
    # tf.keras is a part of its TensorFlow, and some have no version of their own.
    modules = [home.tf] if family == "tf.keras" else [home.tf, home.module]
    here = [list(version_of(each)[:2]) for each in modules]
    found = []
    for line in json.loads(pkgutil.get_data("legacyga.cli", FILE).decode("utf-8")):
        for there in line.pop("tested") if (line["family"], line["mode"]) == (family, mode) else ():
            found.append(([[abs(a - b) for a, b in zip(*pair)] for pair in zip(here, there)], there, line))
    if not found:
        return None
    _, there, line = min(found, key=lambda each: each[0])
    return dict(line, nearest=None if there == here else ["{}.{}".format(*each) for each in there])


def text_of(home, mode, line):
    """Return what the doctor says about a `line` from `line_of`; None means that this Keras was not tested."""
    if line is None:
        return "{} was not tested in {} mode, in no version.".format(home, mode)
    told = ["compat_matrix.md says of {keras} on TensorFlow {tensorflow} in {mode} mode:".format(**line)]
    if line["nearest"]:
        versions = ", Keras ".join(line["nearest"])
        told.insert(0, "{} was not tested. The nearest that was is TensorFlow {}.".format(home, versions))
    for thing, (word, reasons) in line["things"]:
        told.append("    {:<20}{}".format(thing, ": ".join([word] + reasons)))
    return "\n".join(told)
