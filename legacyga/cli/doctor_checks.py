"""What the doctor looks at: a small network, trained in ways that must come out alike."""

import collections
import sys
import types

from legacyga.backend import homes
from legacyga.cli import doctor_optimizers, versions

# float32 that is computed in another order: of each weight, and of those below 1 of 1.
BOUND = 4e-6
MICRO_BATCH, WINDOWS = 4, 3
RATE, MOMENTUM = 0.05, 0.9
SHAPES = ((5, 4), (4,), (4, 3), (3,))


class Patient(object):
    """What is looked at.

    Args:
        home: a `homes.Home`.
        optimizer, steps: as of `run`.
        is_told: whether the user has named the home. Else it is that of an optimizer of the user's own.
    """

    def __init__(self, home, optimizer, steps, is_told=True):
        import numpy as np

        self.home, self.name, self.steps = home, optimizer, steps
        random, samples = np.random.RandomState(3), MICRO_BATCH * steps * WINDOWS
        self.start = [random.randn(*shape).astype("float32") for shape in SHAPES]
        self.x = random.randn(samples, SHAPES[0][0]).astype("float32")
        self.y = random.randn(samples, SHAPES[-1][0]).astype("float32")
        self._make = self._given = None
        if not self.is_mysgd:
            self._make, self._given, its_home = doctor_optimizers.made_by(home, optimizer)
            if is_told and its_home.root != home.root:
                raise ValueError(
                    "--optimizer {} is of {!r}. Received: --home {}. Leave --home out".format(
                        self.name, its_home, home.name
                    )
                )
            self.home = its_home
            self.home.check_can_train()
        # Another optimizer than ours to compare with.
        self._knows_bare = not self.home.graph_mode and (self._given is None or self.bare() is not None)
        # It raises here what it has to say of the optimizer.
        self.accumulating(steps)

    @property
    def is_mysgd(self):
        return self.name.lower() == "mysgd"

    @property
    def checks(self):
        # In graphs of TF 1 a bare optimizer of Keras may write a weight before the other gradients have read it: Adam
        # of Keras 2.2.4 on TF 1.13 ended 5e-4 off.
        return [each for each in CHECKS if self._knows_bare or each is not _check_bare]

    @property
    def unchecked(self):
        """What could not be checked, and why: a list of sentences."""
        if self._knows_bare or self.home.graph_mode:
            return []
        return [NO_OTHER.format(_check_bare.__doc__, self.name)]

    def described(self):
        """What was found here, by name."""
        names = ("legacyga",) + versions.NAMES
        numbers = collections.OrderedDict(python="{}.{}.{}".format(*sys.version_info))
        numbers.update((name, homes.installed_version(name)) for name in names)
        mode = "graph" if self.home.graph_mode else "eager"
        return [("versions", numbers), ("home", repr(self.home)), ("mode", mode)]

    def bare(self):
        """A new optimizer that does not accumulate, of another make than ours."""
        if self.is_mysgd:
            return self.home.eager_optimizers.SGD(RATE, momentum=MOMENTUM)
        if self._given is None:
            return self._make()
        return doctor_optimizers.copied_by_config(self._given)

    def accumulating(self, steps):
        """A new one that accumulates over `steps`."""
        import legacyga

        if self.is_mysgd:
            return legacyga.MySGD(RATE, momentum=MOMENTUM, steps_per_update=steps, keras=self.home.module)
        return legacyga.wrap(self._make() if self._given is None else self._given, steps)

    def wanted(self, batch, samples=None):
        """The weights that windows of `batch` samples must end at: see `trained`."""
        import numpy as np

        # In graphs of TF 1 a bare optimizer of Keras is none to compare with: see `checks`.
        weights = self.trained(self.bare() if self._knows_bare else self.accumulating(1), batch, samples)
        if not all(np.all(np.isfinite(each)) for each in weights):
            raise ValueError("it diverges on the doctor's numbers, also without accumulation. Make its rate smaller")
        return weights

    def model(self, optimizer):
        """A compiled model, at the start."""
        layers = self.home.module.layers
        model, told = self.home.module.models.Sequential(), dict(input_shape=(SHAPES[0][0],))
        if self.home.is_keras3:
            # It warns of that argument, which the others need.
            model.add(layers.Input(told.pop("input_shape")))
        model.add(layers.Dense(SHAPES[1][0], activation="tanh", **told))
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
        module = self.home.module
        tops = (type(self.accumulating(self.steps)), module.models.Model, module.layers.Dense)
        classes = {cls for top in tops for cls in top.__mro__ if _root_of(cls) in homes.KERAS}
        found = [(cls, name, getattr(value, "__func__", value)) for cls in classes for name, value in vars(cls).items()]
        known = homes.KERAS + NO_CHANGE
        return sorted(
            "{}.{} is of {}".format(cls.__name__, name, function.__module__)
            for cls, name, function in found
            if isinstance(function, types.FunctionType) and _root_of(function) not in known
        )


def _root_of(made):
    return (made.__module__ or "").partition(".")[0]


# Whose functions stand in Keras's own classes.
NO_CHANGE = ("legacyga", "abc", "contextlib", "functools", "six", "typing", "collections", "builtins", "wrapt", "")


# The checks: functions of a `Patient`. In each docstring stands what is checked.


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
    wanted = patient.wanted(batch)
    return _differ(patient.trained(patient.accumulating(1), batch), wanted), BOUND, REPORT


def _check_windows(patient):
    """K batches are one batch K times as large"""
    batch = MICRO_BATCH * patient.steps
    wanted = _by_numpy(patient, batch) if patient.is_mysgd else patient.wanted(batch)
    return _differ(patient.trained(patient.accumulating(patient.steps), MICRO_BATCH), wanted), BOUND, REPORT


def _check_between(patient):
    """Nothing moves before the window is full, and then what is to move does"""
    optimizer = patient.accumulating(patient.steps)
    model, worst = patient.model(optimizer), 0.0
    for i in range(patient.steps):
        before = model.get_weights()
        part = slice(i * MICRO_BATCH, (i + 1) * MICRO_BATCH)
        model.train_on_batch(patient.x[part], patient.y[part])
        moved = _differ(model.get_weights(), before)
        if i + 1 < patient.steps:
            worst = max(worst, moved)
    # A rate may begin at 0.
    batch = MICRO_BATCH * patient.steps
    is_to_move = _differ(patient.wanted(batch, batch), patient.start) > BOUND
    return 1.0 if is_to_move and not moved else worst, 0.0, REPORT


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
    return _differ(small, patient.wanted(whole, samples)), BOUND, REPORT


NO_OTHER = (
    '"{}": the config of {} does not hold all that it is, or it has trained. The yardstick of the other checks is '
    "itself with K = 1. Give a function that makes the optimizer"
)
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
