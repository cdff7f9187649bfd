"""`python -m legacyga doctor`: is accumulation exact with the optimizer, the TensorFlow and the Keras that are here?

A dense network trains on a few numbers in several ways that must come out alike. One of them is NumPy's, so that a
Keras that something has changed is found, too.
"""

import collections
import contextlib
import json
import logging
import os
import sys
import time

from legacyga.cli import demo_training
from legacyga.cli.doctor_checks import BOUND, Patient

CODES = {"exact": 0, "drift": 1, "cannot be checked": 2}

# drift: the largest difference; `bound`: the most that is exact; `remedy`: what to do beyond it.
Check = collections.namedtuple("Check", "name drift bound remedy")


def run(optimizer="mysgd", steps=4, home=None, mode=None, path=None):
    """Check, and print what was found, on the CPU: some GPUs multiply float32 in fewer bits than it has.

    Args:
        optimizer: `"mysgd"`, a name that the home knows ("adam"), or `"module:object"`: an optimizer of your own, its
            class, or a function without arguments that makes one. The module is imported, with all that it changes.
        steps: K. Default 4.
        home: `"keras"`, `"tf.keras"`, `"tf_keras"`, or None: that of an optimizer of your own, else each that is
            installed and can train, standalone Keras first.
        mode: `"graph"`, `"eager"`, or None: the one that the home starts in.
        path: where to write the same as JSON, "-" for standard output in place of the text. Default: nowhere. Of
            several Keras it is the worst, with the others in its "others".

    Returns:
        The exit code, the worst of all Keras: 0 all is exact, 1 something drifts, 2 it could not be found out.
    """
    tell = _Teller(sys.stdout if path != "-" else sys.stderr)
    try:
        # Asked before the training rather than found out after it.
        _write({}, None if path == "-" else path)
    except OSError as error:
        sys.stderr.write("legacyga doctor: --json must name a file that can be written: {}\n".format(error))
        return CODES["cannot be checked"]
    with _quietly_on_the_cpu():
        # An optimizer of the user's own is of one Keras, beside which none is imported.
        is_own, names = ":" in optimizer, demo_training.HOMES
        homes = demo_training.homes_here(home, mode, names[::-1] if is_own else names)
        every = [_examined(optimizer, steps, homes, home is not None, tell)]
        while not is_own and every[-1] is not None:
            every.append(_examined(optimizer, steps, homes, home is not None, tell))
    every = sorted(filter(None, every), key=lambda each: -CODES[each["verdict"]])
    worst = every[0]
    worst.update(others=every[1:]) if every[1:] else None
    _write(worst, path)
    return CODES[worst["verdict"]]


def _examined(optimizer, steps, homes, is_told, tell):
    """What is found of the next of the homes, a dict, None where there is no other."""
    began, found = time.time(), collections.OrderedDict(optimizer=optimizer, steps=steps)
    try:
        patient = Patient(next(homes), optimizer, steps, is_told)
        found.update(patient.described())
        tell.lines("{} {}".format(name, value) for name, value in found["versions"].items())
        tell.lines(["", "{home}, in {mode} mode: {optimizer} with K = {steps}".format(**found), ""])
        checks, changed = list(tell.progress(patient.checks, patient)), patient.changes()
    except StopIteration:
        return None
    # Whatever a module of the user's, a Keras or TensorFlow raises.
    except Exception as error:
        found.update(verdict="cannot be checked", error="{}: {}".format(type(error).__name__, error))
        sys.stderr.write("legacyga doctor: {error}\n".format(**found))
        return found
    wrong = [each for each in checks if not each.drift <= each.bound]
    found.update(checks=[each._asdict() for each in checks], changed=changed, unchecked=patient.unchecked)
    found.update(verdict="drift" if wrong else "exact", seconds=round(time.time() - began, 1))
    tell.lines(_report(checks, wrong, changed, patient.unchecked))
    return found


@contextlib.contextmanager
def _quietly_on_the_cpu():
    logger, before = logging.getLogger("tensorflow"), dict(os.environ)
    level = logger.level
    logger.setLevel(logging.ERROR)
    os.environ.update(CUDA_VISIBLE_DEVICES="-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in ("CUDA_VISIBLE_DEVICES", "TF_CPP_MIN_LOG_LEVEL"):
            os.environ.pop(name, None)
            os.environ.update({name: before[name]} if name in before else {})


class _Teller(object):
    """Prints what is found, and how far it is."""

    def __init__(self, stream):
        self._stream = stream

    def lines(self, lines):
        for line in lines:
            self._stream.write(line + "\n")
        self._stream.flush()

    def progress(self, checks, patient):
        """Yield a `Check` for each of the checks."""
        for i, check in enumerate(checks):
            name, bar = check.__doc__.strip(), "#" * i + "." * (len(checks) - i)
            if self._stream.isatty():
                self._stream.write("\r[{}] {:<72}".format(bar, name))
                self._stream.flush()
            drift, bound, remedy = check(patient)
            found = Check(name, drift, bound, remedy)
            start = "\r" if self._stream.isatty() else ""
            self.lines([start + "{:<8}{:<72}{:.1e}".format("exact" if drift <= bound else "DRIFT", name, drift)])
            yield found


def _report(checks, wrong, changed, unchecked):
    """The lines that end the text."""
    yield ""
    for each in unchecked:
        yield "not checked: {}.".format(each)
    for each in changed:
        yield "changed: {}".format(each)
    for each in wrong:
        yield "{}: {:.1e}, at most {:.1e}. What to do: {}.".format(each.name, each.drift, each.bound, each.remedy)
    if not wrong:
        yield "All {} are exact (float32: {:.0e}).".format(len(checks), BOUND)


def _write(found, path):
    if path == "-":
        print(json.dumps(found, indent=1))
    elif path:
        with open(path, "w") as file:
            json.dump(found, file, indent=1)
