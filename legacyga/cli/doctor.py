"""`python -m legacyga doctor`: is accumulation exact with the optimizer, the TensorFlow and the Keras that are here?

A dense network trains on a few numbers in several ways that must come out alike. One of them is NumPy's, so that a
Keras that something has changed is found, too.
"""

import collections
import importlib
import json
import logging
import os
import sys
import time
import types

from legacyga import _compat
from legacyga.cli import demo_training, versions

# float32 that is computed in another order: of each weight, and of those below 1 of 1.
BOUND = 4e-6
MICRO_BATCH, WINDOWS = 4, 3
RATE, MOMENTUM = 0.05, 0.9
SHAPES = ((5, 4), (4,), (4, 3), (3,))
EXACT, DRIFT, CANNOT = 0, 1, 2

# drift: the largest difference; `bound`: the most that is exact; `remedy`: what to do beyond it.
Check = collections.namedtuple("Check", "name drift bound remedy")


def run(optimizer="mysgd", steps=4, home=None, mode=None, path=None):
    """Check, and print what was found.

    Args:
        optimizer: `"mysgd"`, a name that the home knows ("adam"), or `"module:object"`: an optimizer of your own, its
            class, or a function without arguments that makes one. The module is imported, with all that it changes.
        steps: K. Default 4.
        home: `"keras"`, `"tf.keras"`, `"tf_keras"`, or None: the first that can train.
        mode: `"graph"`, `"eager"`, or None: the one that the home starts in.
        path: where to write the same as JSON, "-" for standard output in place of the text. Default: nowhere.

    Returns:
        The exit code: 0 all is exact, 1 something drifts, 2 it could not be found out.
    """
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    tell = _Teller(sys.stdout if path != "-" else sys.stderr)
    began, found = time.time(), collections.OrderedDict(optimizer=optimizer, steps=steps)
    try:
        patient = _Patient(demo_training.find_home(home, mode), optimizer, steps)
        found.update(patient.described())
        tell.lines("{} {}".format(name, value) for name, value in found["versions"].items())
        tell.lines(["", "{}, in {} mode: {} with K = {}".format(found["home"], found["mode"], optimizer, steps), ""])
        checks = list(tell.progress(patient.checks, patient))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        found.update(verdict="cannot be checked", error="{}: {}".format(type(error).__name__, error))
        _write(found, path)
        sys.stderr.write("legacyga doctor: {}\n".format(error))
        return CANNOT
    wrong = [each for each in checks if not each.drift <= each.bound]
    found.update(checks=[each._asdict() for each in checks], changed=patient.changes())
    found.update(verdict="drift" if wrong else "exact", seconds=round(time.time() - began, 1))
    tell.lines(_report(checks, wrong, found["changed"]))
    _write(found, path)
    return DRIFT if wrong else EXACT


class _Patient(object):
    """What is looked at.

    Args:
        home: a `_compat.Home`.
        optimizer, steps: as of `run`.
    """

    def __init__(self, home, optimizer, steps):
        import numpy as np

        self.home, self.name, self.steps = home, optimizer, steps
        random, samples = np.random.RandomState(3), MICRO_BATCH * steps * WINDOWS
        self.start = [random.randn(*shape).astype("float32") for shape in SHAPES]
        self.x = random.randn(samples, SHAPES[0][0]).astype("float32")
        self.y = random.randn(samples, SHAPES[-1][0]).astype("float32")
        self._made = None if self.is_mysgd else _made_by(home, optimizer)
        # It raises here what it has to say of the optimizer.
        self.accumulating(steps)

    @property
    def is_mysgd(self):
        return self.name.lower() == "mysgd"

    @property
    def checks(self):
        # In graphs of TF 1 a bare optimizer of Keras may write a weight before the other gradients have read it: Adam
        # of Keras 2.2.4 on TF 1.13 ended 5e-4 off.
        return [each for each in CHECKS if not (self.home.graph_mode and each is _check_bare)]

    def described(self):
        """What was found here, by name."""
        names = ("legacyga",) + versions.NAMES
        numbers = collections.OrderedDict(python="{}.{}.{}".format(*sys.version_info))
        numbers.update((name, _compat.installed_version(name)) for name in names)
        mode = "graph" if self.home.graph_mode else "eager"
        return [("versions", numbers), ("home", repr(self.home)), ("mode", mode)]

    def bare(self):
        """A new optimizer that does not accumulate."""
        import legacyga

        if self.is_mysgd:
            return legacyga.MySGD(RATE, momentum=MOMENTUM, steps_per_update=1, keras=self.home.module)
        return type(self._made).from_config(self._made.get_config())

    def accumulating(self, steps):
        """A new one that accumulates over `steps`."""
        import legacyga

        if self.is_mysgd:
            return legacyga.MySGD(RATE, momentum=MOMENTUM, steps_per_update=steps, keras=self.home.module)
        return legacyga.wrap(self._made, steps)

    def reference(self):
        """What a window's update must equal, on the large batch."""
        return self.accumulating(1) if self.home.graph_mode else self.bare()

    def model(self, optimizer):
        """A compiled model, at the start."""
        layers = self.home.module.layers
        model = self.home.module.models.Sequential()
        model.add(layers.Dense(SHAPES[1][0], activation="tanh", input_shape=(SHAPES[0][0],)))
        model.add(layers.Dense(SHAPES[3][0]))
        model.compile(optimizer, "mse")
        model.set_weights(self.start)
        return model

    def trained(self, optimizer, batch, samples=None, callbacks=()):
        """The weights after `fit` on the first `samples`, all of them if None."""
        model = self.model(optimizer)
        x, y = self.x[:samples], self.y[:samples]
        model.fit(x, y, batch_size=batch, epochs=1, shuffle=False, verbose=0, callbacks=list(callbacks))
        return model.get_weights()

    def changes(self):
        """What other packages have put into the home's classes: a list of "class.attribute of module"."""
        inner = self.home.v1_optimizers.SGD if self.is_mysgd and self.home.graph_mode else type(self._made)
        inner = self.home.eager_optimizers.SGD if self.is_mysgd and not self.home.graph_mode else inner
        module = self.home.module
        classes = [cls for top in (inner, module.models.Model, module.layers.Dense) for cls in top.__mro__]
        found = []
        for cls in classes:
            if cls.__module__.partition(".")[0] not in _compat.KERAS:
                continue
            for name, value in vars(cls).items():
                function = getattr(value, "__func__", value)
                of = getattr(function, "__module__", None) or ""
                if isinstance(function, types.FunctionType) and of.partition(".")[0] not in _compat.KERAS + NO_CHANGE:
                    found.append("{}.{} is of {}".format(cls.__name__, name, of))
        return sorted(set(found))


# Whose functions stand in Keras's own classes.
NO_CHANGE = ("legacyga", "abc", "contextlib", "functools", "six", "typing", "collections", "builtins", "wrapt")


def _made_by(home, text):
    """An optimizer, by a home's name of it or by "module:object"."""
    module, is_object, name = text.partition(":")
    if not is_object:
        try:
            return home.module.optimizers.get(text)
        except ValueError as error:
            raise ValueError(
                "--optimizer must be mysgd, a name that {!r} knows, or module:object. Received: {!r} ({})".format(
                    home, text, str(error).strip().split("\n")[0]
                )
            )
    made = importlib.import_module(module)
    for part in name.split("."):
        made = getattr(made, part)
    made = made() if callable(made) and not hasattr(made, "get_config") or isinstance(made, type) else made
    if _compat.generation_of(type(made)) is None:
        raise ValueError("--optimizer {} must be, or make, an optimizer. Received: {!r}".format(text, made))
    return made


# The checks: functions of a `_Patient`. In each docstring stands what is checked.


def _check_keras(patient):
    """This Keras's layers, loss and gradients, and an update, are NumPy's"""
    import legacyga

    optimizer = legacyga.MySGD(RATE, momentum=MOMENTUM, steps_per_update=1, keras=patient.home.module)
    batch = MICRO_BATCH * patient.steps
    drift = _differ(patient.trained(optimizer, batch), _by_numpy(patient, batch))
    return drift, BOUND, "something in this process changes Keras itself: see below what, or start without it"


def _check_bare(patient):
    """K = 1 is the optimizer as it is"""
    batch = MICRO_BATCH * patient.steps
    drift = _differ(patient.trained(patient.accumulating(1), batch), patient.trained(patient.bare(), batch))
    return drift, BOUND, REPORT


def _check_windows(patient):
    """K batches are one batch K times as large"""
    small = patient.trained(patient.accumulating(patient.steps), MICRO_BATCH)
    if patient.is_mysgd:
        wanted = _by_numpy(patient, MICRO_BATCH * patient.steps)
    else:
        wanted = patient.trained(patient.reference(), MICRO_BATCH * patient.steps)
    return _differ(small, wanted), BOUND, REPORT


def _check_between(patient):
    """Nothing moves before the window is full, and then it does"""
    optimizer = patient.accumulating(patient.steps)
    model, worst = patient.model(optimizer), 0.0
    for i in range(patient.steps):
        before = model.get_weights()
        part = slice(i * MICRO_BATCH, (i + 1) * MICRO_BATCH)
        model.train_on_batch(patient.x[part], patient.y[part])
        moved = _differ(model.get_weights(), before)
        if i + 1 < patient.steps:
            worst = max(worst, moved)
        elif not moved:
            worst = 1.0
    return worst, 0.0, REPORT


def _check_count(patient):
    """`iterations` counts updates"""
    optimizer = patient.accumulating(patient.steps)
    model = patient.model(optimizer)
    model.fit(patient.x, patient.y, batch_size=MICRO_BATCH, epochs=1, shuffle=False, verbose=0)
    return abs(patient.home.value_of(optimizer.iterations) - WINDOWS), 0, REPORT


def _check_rest(patient):
    """What does not fill a window is an update of its own, by the callback"""
    import legacyga

    whole, rest = MICRO_BATCH * patient.steps, MICRO_BATCH
    samples = min(whole + rest, len(patient.x))
    callback = legacyga.GradientAccumulationCallback()
    small = patient.trained(patient.accumulating(patient.steps), MICRO_BATCH, samples, [callback])
    large = patient.trained(patient.reference(), whole, samples)
    return _differ(small, large), BOUND, REPORT


CHECKS = (_check_keras, _check_bare, _check_windows, _check_between, _check_count, _check_rest)
REPORT = (
    "something else here takes part: start without the other packages that touch training. If it stays, report it with "
    "what --json writes"
)


def _differ(weights, wanted):
    import numpy as np

    each = [np.abs(now - then) / np.maximum(1.0, np.abs(then)) for now, then in zip(weights, wanted)]
    return float(max(np.max(one.astype("float64")) for one in each))


def _by_numpy(patient, batch):
    """The weights after SGD with momentum, in float64. The form of momentum is Keras's (Sutskever et al. 2013)."""
    import numpy as np

    weights = [each.astype("float64") for each in patient.start]
    velocities = [np.zeros_like(each) for each in weights]
    for begin in range(0, len(patient.x), batch):
        x, y = patient.x[begin : begin + batch], patient.y[begin : begin + batch]
        hidden = np.tanh(x.dot(weights[0]) + weights[1])
        error = 2.0 * (hidden.dot(weights[2]) + weights[3] - y) / y.size
        inner = error.dot(weights[2].T) * (1.0 - hidden**2)
        gradients = [x.T.dot(inner), inner.sum(axis=0), hidden.T.dot(error), error.sum(axis=0)]
        for i, gradient in enumerate(gradients):
            velocities[i] = MOMENTUM * velocities[i] - RATE * gradient
            weights[i] = weights[i] + velocities[i]
    return weights


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


def _report(checks, wrong, changed):
    """The lines that end the text."""
    yield ""
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
