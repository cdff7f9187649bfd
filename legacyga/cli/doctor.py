"""`python -m legacyga doctor`: check that accumulation is exact, by training a network in ways that must agree."""

import functools
import importlib
import json
import logging
import os
import sys
import time

import legacyga
from legacyga.backend import homes
from legacyga.backend.messages import shown
from legacyga.cli import tested
from legacyga.cli.homes_here import HOMES, homes_here
from legacyga.cli.versions import versions

CODES = {"exact": 0, "drift": 1, "cannot be checked": 2}
# The tolerance for float32 computed in another order: relative to each weight, and absolute for weights below 1.
BOUND = 4e-6
MICRO_BATCH, WINDOWS = 4, 3
RATE, MOMENTUM = 0.05, 0.9
SHAPES = ((5, 4), (4,), (4, 3), (3,))
IS_BARE = "K = 1 is the optimizer as it is"
RESTART = "something in this process changes Keras itself: start without it"
REPORT = (
    "another package here may change the training: start without such packages. If the difference stays, report it "
    "with what --json writes"
)


def run(optimizer, steps, home, mode, path):
    """Check with the arguments of `--help` (`path` is `--json`), print the findings, and return the worst exit code."""
    tell = functools.partial(print, file=sys.stderr if path == "-" else sys.stdout, flush=True)
    try:
        # Fail before the training if the file cannot be written.
        _write({}, None if path == "-" else path)
    except OSError as error:
        sys.stderr.write("legacyga doctor: --json must name a file that can be written: {}\n".format(error))
        return CODES["cannot be checked"]
    # Some GPUs multiply float32 with fewer bits.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    # A user's own optimizer belongs to one Keras. Begin with tf.keras, and import no other.
    is_own = ":" in optimizer
    homes_left = homes_here(home, mode, HOMES[::-1] if is_own else HOMES)
    examine_next = functools.partial(_examined, optimizer, steps, homes_left, home is not None, tell)
    every = [examine_next()] if is_own else list(iter(examine_next, None))
    worst, *others = sorted(every, key=lambda each: -CODES[each["verdict"]])
    if others:
        worst["others"] = others
    _write(worst, path)
    return CODES[worst["verdict"]]


def _write(found, path):
    if path == "-":
        print(json.dumps(found, indent=1))
    elif path:
        with open(path, "w") as file:
            json.dump(found, file, indent=1)


def _examined(optimizer, steps, homes_left, is_home_given, tell):
    """Return the findings for the next Keras as a dict, or None if there is none left."""
    began, found = time.time(), dict(optimizer=optimizer, steps=steps)
    try:
        home = next(homes_left, None)
        if home is None:
            return None
        patient = Patient(home, optimizer, steps, is_home_given)
        mode = "graph" if patient.home.graph_mode else "eager"
        found.update(versions=versions(), home=repr(patient.home), mode=mode, checks=[])
        for name, version in found["versions"].items():
            tell(name, version)
        found["matrix"] = tested.line_of(patient.home, mode)
        tell("\n" + tested.text_of(patient.home, mode, found["matrix"]))
        tell("\n{home}, in {mode} mode: {optimizer} with K = {steps}\n".format(**found))
        for name, drift, bound, remedy in patient.checks():
            # NaN counts as drift.
            tell("{:<8}{:<72}{:.1e}".format("exact" if drift <= bound else "DRIFT", name, drift))
            found["checks"].append(dict(name=name, drift=drift, bound=bound, remedy=remedy))
    # The user's module, a Keras or TensorFlow may raise anything.
    except Exception as error:
        found.update(verdict="cannot be checked", error="{}: {}".format(type(error).__name__, error))
        sys.stderr.write("legacyga doctor: {error}\n".format(**found))
        return found
    wrong = [each for each in found["checks"] if not each["drift"] <= each["bound"]]
    found.update(unchecked=patient.unchecked, verdict="drift" if wrong else "exact")
    found.update(seconds=round(time.time() - began, 1))
    tell()
    for each in patient.unchecked:
        tell("not checked: {}.".format(each))
    for each in wrong:
        tell("{name}: {drift:.1e}, at most {bound:.1e}. What to do: {remedy}.".format(**each))
    if not wrong:
        tell("All {} are exact (float32: {:.0e}).".format(len(found["checks"]), BOUND))
    return found


class Patient(object):
    """An optimizer under examination, and the data and start weights of the small network that it trains."""

    def __init__(self, home, optimizer, steps, is_home_given):
        import numpy as np

        self.steps, self.is_mysgd, self.unchecked = steps, optimizer.lower() == "mysgd", []
        self.accumulating, self._bare, self.home = _made_by(home, optimizer)
        if is_home_given and self.home.root != home.root:
            raise ValueError(
                "--optimizer {} is of {}. Received: --home {}. Leave --home out".format(optimizer, self.home, home.name)
            )
        self.home.check_can_train()
        if self.home.graph_mode:
            # In a graph a bare optimizer may write a weight before other gradients read it. Delete with TF 1.15.
            self._bare = None
        elif self._bare is None:
            self.unchecked.append(
                '"{}": the config of {} does not describe it completely, or it has trained. So the other checks '
                "compare it with itself at K = 1. Give a function that makes the optimizer".format(IS_BARE, optimizer)
            )
        # Let errors about the optimizer surface here.
        self.accumulating(steps)
        random, samples = np.random.RandomState(3), MICRO_BATCH * steps * WINDOWS
        self.start = [random.randn(*shape).astype("float32") for shape in SHAPES]
        self.x = random.randn(samples, SHAPES[0][0]).astype("float32")
        self.y = random.randn(samples, SHAPES[-1][0]).astype("float32")

    def checks(self):
        """Yield (the check's name, the largest difference, the largest that counts as exact, a remedy)."""
        batch = MICRO_BATCH * self.steps
        by_numpy = self._by_numpy(batch)
        drift = _largest_difference(self._trained(_mysgd(self.home, 1), batch), by_numpy)
        yield "Layers, loss, gradients and an update of this Keras agree with NumPy", drift, BOUND, RESTART
        wanted = self._wanted(batch)
        if self._bare:
            yield IS_BARE, _largest_difference(self._trained(self.accumulating(1), batch), wanted), BOUND, REPORT
        optimizer = self.accumulating(self.steps)
        drift = _largest_difference(self._trained(optimizer, MICRO_BATCH), by_numpy if self.is_mysgd else wanted)
        yield "K batches give the result of one batch K times as large", drift, BOUND, REPORT
        drift = self._moved_too_soon(batch)
        yield "The weights change at the end of a window, and never before", drift, 0.0, REPORT
        yield "`iterations` counts updates", abs(self.home.value_of(optimizer.iterations) - WINDOWS), 0, REPORT
        samples, callback = batch + MICRO_BATCH, legacyga.GradientAccumulationCallback()
        weights = self._trained(self.accumulating(self.steps), MICRO_BATCH, samples, [callback])
        drift = _largest_difference(weights, self._wanted(batch, samples))
        yield "The callback makes an update from a window that is not full", drift, BOUND, REPORT

    def _moved_too_soon(self, batch):
        """Return how far the weights moved within a window; 1 if they should move at its end, and do not."""
        model, moved = self._model(self.accumulating(self.steps)), []
        for begin in range(0, batch, MICRO_BATCH):
            before, part = model.get_weights(), slice(begin, begin + MICRO_BATCH)
            model.train_on_batch(self.x[part], self.y[part])
            moved.append(_largest_difference(model.get_weights(), before))
        # A learning rate may start at 0.
        is_to_move = _largest_difference(self._wanted(batch, batch), self.start) > BOUND
        return 1.0 if is_to_move and not moved[-1] else max(moved[:-1] + [0.0])

    def _wanted(self, batch, samples=None):
        """Return the weights that windows of `batch` samples must reach, as in `_trained`."""
        weights = self._trained(self._bare() if self._bare else self.accumulating(1), batch, samples)
        # NaN is not below infinity either.
        if not all(abs(each).max() < float("inf") for each in weights):
            raise ValueError("it diverges on the doctor's numbers, also without accumulation. Make its rate smaller")
        return weights

    def _trained(self, optimizer, batch, samples=None, callbacks=()):
        """Return the weights after `fit` on the first `samples` samples, on all if None."""
        model, x, y = self._model(optimizer), self.x[:samples], self.y[:samples]
        model.fit(x, y, batch_size=batch, epochs=1, shuffle=False, verbose=0, callbacks=list(callbacks))
        return model.get_weights()

    def _model(self, optimizer):
        """Return a compiled model with the start weights."""
        keras = self.home.module
        inputs = keras.layers.Input(shape=SHAPES[0][:1])
        hidden = keras.layers.Dense(SHAPES[1][0], activation="tanh")(inputs)
        model = keras.models.Model(inputs, keras.layers.Dense(SHAPES[3][0])(hidden))
        model.compile(optimizer, "mse")
        model.set_weights(self.start)
        return model

    def _by_numpy(self, batch):
        """Return the weights after SGD with momentum in float64, in Keras's form (Sutskever et al. 2013)."""
        import numpy as np

        weights = [each.astype("float64") for each in self.start]
        velocities = [0.0] * len(weights)
        for begin in range(0, len(self.x), batch):
            x, y = self.x[begin : begin + batch], self.y[begin : begin + batch]
            hidden = np.tanh(x.dot(weights[0]) + weights[1])
            error = 2.0 * (hidden.dot(weights[2]) + weights[3] - y) / y.size
            inner = error.dot(weights[2].T) * (1.0 - hidden**2)
            gradients = [x.T.dot(inner), inner.sum(axis=0), hidden.T.dot(error), error.sum(axis=0)]
            velocities = [MOMENTUM * each - RATE * gradient for each, gradient in zip(velocities, gradients)]
            weights = [each + velocity for each, velocity in zip(weights, velocities)]
        return weights


def _largest_difference(weights, wanted):
    import numpy as np

    # Python's max can miss a NaN.
    return float(np.max([np.max(abs(now - then) / abs(then).clip(1.0)) for now, then in zip(weights, wanted)]))


def _mysgd(home, steps):
    return legacyga.MySGD(RATE, momentum=MOMENTUM, steps_per_update=steps, keras=home.module)


def _made_by(home, text):
    """Resolve `--optimizer` for a Keras.

    Returns a function of K that makes the accumulating optimizer, a function that makes the bare optimizer or None, and
    their `Home`.
    """
    if text.lower() == "mysgd":
        return functools.partial(_mysgd, home), lambda: home.eager_optimizers.SGD(RATE, momentum=MOMENTUM), home
    module, is_object, name = text.partition(":")
    if not is_object:
        make = functools.partial(home.module.optimizers.get, text)
        try:
            make()
        except ValueError as error:
            raise ValueError(
                "--optimizer must be mysgd, a name that {} knows, or module:object. Received: {} ({})".format(
                    home, shown(text), str(error).strip().split("\n")[0]
                )
            )
        return lambda steps: legacyga.wrap(make(), steps), make, home
    given = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    is_made = callable(given) and homes.generation_of(type(given)) is None
    made = given() if is_made else given
    if homes.generation_of(type(made)) is None:
        raise ValueError("--optimizer {} must be, or make, an optimizer. Received: {}".format(text, shown(made)))
    home = homes.home_of(made) or home
    # A function may return an existing optimizer.
    if is_made and given() is not made:
        return lambda steps: legacyga.wrap(given(), steps), given, home
    copy = functools.partial(_copied_by_config, made)
    try:
        has_whole_config = _parts(copy()) == _parts(made)
    # The user's class may raise anything.
    except Exception:
        has_whole_config = False
    return lambda steps: legacyga.wrap(made, steps), copy if has_whole_config else None, home


def _copied_by_config(optimizer):
    return type(optimizer).from_config(optimizer.get_config())


def _parts(value):
    """Return what a copy must share: the numbers and texts within an optimizer, and the class of all else."""
    if homes.generation_of(type(value)) is not None:
        # Attributes that begin with _self_ are Keras's bookkeeping for checkpoints.
        value = {name: each for name, each in vars(value).items() if not name.startswith("_self_")}
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, (list, tuple)):
        return [_parts(each) for each in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else type(value)
