"""What an accumulating optimizer is: an object of a subclass of the user's optimizer class.

All that we know of it stands in one object, its `_base.Accumulation`, so that no name of ours meets one of the user's.
"""

import contextlib
import inspect

from legacyga import _autograph, _compat, _window
from legacyga.generations import _copying, _horovod, _restoring

_CLASSES = {}
# The name of all of them, so that Keras's loaders need one object to load any. It says itself what it was made of.
NAME = "AccumulatingOptimizer"
# By generation, a function of an optimizer class: the `AccumulatingOptimizer` to put before it.
BASES = {}
WRAPPED = "{0} with gradient accumulation. {1}\n\nThe inner class, {0}:\n\n{2}"


def class_for(bases, cls, home, **attributes):
    """The accumulating subclass of the optimizer class `cls`: one for one class, so that two wrapped Adams are alike.

    Args:
        bases: the classes to put before it, the generation's `AccumulatingOptimizer` the last.
        cls: the optimizer class.
        home: its `_compat.Home`.
        attributes: more of the class, `__name__` included.
    """
    key = bases, cls, home.root
    if key not in _CLASSES:
        name = attributes.pop("__name__", NAME)
        attributes.setdefault("__qualname__", "Accumulating" + cls.__name__)
        attributes.update(_legacyga_class=(cls, home))
        attributes.update(_autograph.methods_as_written(home.tf, bases, cls))
        # Where the user's class has a method of the same name, that one is kept.
        attributes.update({name: getattr(cls, name) for name in PUBLIC_METHODS if hasattr(cls, name)})
        docs = [inspect.getdoc(each) or "" for each in (AccumulatingOptimizer, cls)]
        attributes.setdefault("__doc__", WRAPPED.format(cls.__name__, *docs))
        _CLASSES[key] = type(name, bases + _horovod.bases_before(cls) + (cls,), attributes)
    return _CLASSES[key]


def accumulation_of(optimizer):
    """The `Accumulation` of an optimizer, None of one that does not accumulate."""
    return vars(optimizer).get("_legacyga") if isinstance(optimizer, AccumulatingOptimizer) else None


def home_of(optimizer):
    """The `_compat.Home` of an accumulating optimizer."""
    return type(optimizer)._legacyga_class[1]


def start(optimizer, settings):
    """Make a new optimizer of an accumulating class accumulate."""
    vars(optimizer)["_legacyga"] = type(optimizer)._legacyga_type(optimizer, home_of(optimizer), settings)


def copy_of(cls, optimizer, settings):
    """An optimizer of the accumulating class `cls` that is a copy of `optimizer`, of the inner class."""
    copied = object.__new__(cls)
    start(copied, settings)
    accumulation_of(copied).inherit(optimizer)
    return copied


class AccumulatingOptimizer(object):
    """Updates once in K mini-steps, by one step of the inner class on the mean (or the sum) of their gradients.

    A mini-step is a call with the gradients of one batch. K of them are a window. Beside what the inner class has,
    there are

        gradient_accumulation_steps   K of the next window: an int, to be read and set
        mini_step                     the mini-steps in the window under way, 0 to K - 1: a variable
        iterations                    the updates made: a variable
        skipped_mini_steps            the mini-steps that `on_nonfinite` has left out: a variable
        mini_step_weight(weight)      a context in which mini-steps have this weight in the mean
        end_windows()                 an update for each window that is not full
        drop_windows()                forgets the windows that are not full

    Example:
        >>> import tensorflow as tf
        >>> import legacyga
        >>> variable, optimizer = tf.Variable(1.0), legacyga.wrap(tf.keras.optimizers.SGD(1.0), 3)
        >>> for gradient, samples in ((0.25, 4), (1.0, 2)):
        ...     with optimizer.mini_step_weight(samples):
        ...         done = optimizer.apply_gradients([(tf.constant(gradient), variable)])
        >>> int(optimizer.mini_step), int(optimizer.iterations), optimizer.end_windows(), float(variable.numpy())
        (2, 0, True, 0.5)
        >>> optimizer.gradient_accumulation_steps = 4
        >>> done = optimizer.apply_gradients([(tf.constant(0.25), variable)])
        >>> optimizer.drop_windows()
        >>> int(optimizer.mini_step), int(optimizer.iterations), optimizer.gradient_accumulation_steps
        (0, 1, 4)
        >>> int(optimizer.skipped_mini_steps)
        0
    """

    _legacyga = None

    def __copy__(self):
        # The copy's own attributes, and with the original's the state that it refers to.
        copied = object.__new__(type(self))
        vars(copied).update(vars(self), _legacyga=self._legacyga.shared_with(copied))
        return copied

    @property
    def gradient_accumulation_steps(self):
        """K of the next window, an int of at least 1; else a ValueError. A window under way keeps its own."""
        return self._legacyga.next_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value):
        self._legacyga.set_steps(_window.check_steps("gradient_accumulation_steps", value))

    @property
    def mini_step(self):
        """The mini-steps in the latest window, 0 to K - 1: a variable; without one, and at K = 1, a constant 0."""
        latest = self._legacyga.latest
        return self._legacyga.ops.constant(0, "int64") if latest is None else latest.mini_step

    @property
    def skipped_mini_steps(self):
        """The mini-steps that `on_nonfinite` has left out, those of windows without update too: as `mini_step`."""
        skipped = self._legacyga.registry().skipped
        return self._legacyga.ops.constant(0, "int64") if skipped is None else skipped

    def mini_step_weight(self, weight):
        """A context: mini-steps in it have this weight. In graph mode those that are *made* in it have it.

        Without it a mini-step weighs 1, or as much as the first in its window whose samples were counted. At K = 1 a
        weight changes nothing.

        Args:
            weight: a finite number or scalar tensor of at least 0, such as the samples or tokens of the batch.

        Raises:
            ValueError: a weight out of its range; in graph mode a context in which no mini-step was made; in eager mode
                one around the call of a function that is traced, or was: enter it in the function.
            tf.errors.InvalidArgumentError: known only when a graph or `tf.function` runs, it is out of its range.
        """
        return self._legacyga.weighing(_window.Weight(weight, False))

    # Its name until 0.1.
    mini_steps_weigh = mini_step_weight

    def end_windows(self):
        """Make an update for each window that is under way, on the mean of the gradients that are there.

        Returns:
            True where there was an update, else False. Within a `tf.function` a boolean tensor.

        Raises:
            ValueError: an optimizer of tf.compat.v1.train in graph mode has no default session.
        """
        return self._legacyga.registry().end()

    def drop_windows(self):
        """Forget the mini-steps of the windows that are under way. Raises what `end_windows` does."""
        self._legacyga.registry().drop()


PUBLIC_METHODS = ("mini_step_weight", "mini_steps_weigh", "end_windows", "drop_windows")


def wrapped(optimizer, home, settings):
    """The accumulating copy of an optimizer of any generation."""
    cls = type(optimizer)
    return copy_of(class_for((BASES[_compat.generation_of(cls)](cls),), cls, home), optimizer, settings)


def from_config(home, config, custom_objects=None):
    """The optimizer of a home that `ConfiguredOptimizer.get_config` described."""
    options = dict(config)
    try:
        inner = options.pop("optimizer")
        generation, name, inner_config = inner["generation"], inner["class_name"], inner["config"]
        settings = _window.Settings.checked(options.pop("gradient_accumulation_steps"), **options)
    except (KeyError, TypeError):
        raise ValueError("This is no config of an optimizer that legacyga.wrap returned. Received: {!r}".format(config))
    with _known(home, custom_objects or {}):
        cls = home.optimizer_class(generation, name, inner.get("module"))
        return wrapped(cls.from_config(inner_config), home, settings)


@contextlib.contextmanager
def _known(home, objects):
    """A context in which the home finds these custom objects, a dict by name, beside those that it knows."""
    # Not in a scope: one of Keras 3 hides those around it.
    registered = home.module.utils.get_custom_objects()
    added = {name: each for name, each in objects.items() if name not in registered}
    registered.update(added)
    try:
        yield
    finally:
        for name in added:
            registered.pop(name, None)


LOADERS = {NAME: from_config}


def loaders(home):
    """{name: an object with a `from_config`} for the loaders of a home, of all classes of optimizers that accumulate.

    `LOADERS` has their functions of (home, config, custom objects).
    """

    def loader(name, load):
        def from_config(cls, config, custom_objects=None):
            return load(home, config, custom_objects)

        return type(name, (object,), {"from_config": classmethod(from_config)})

    return {name: loader(name, load) for name, load in LOADERS.items()}


def register(home):
    """Tell the home's own loaders of them, unless the program has given them others of these names."""
    for name, loader in loaders(home).items():
        home.module.utils.get_custom_objects().setdefault(name, loader)


def is_own(cls):
    """Whether `class_for` made this class, and nobody has extended it."""
    return "_legacyga_class" in vars(cls)


class ConfiguredOptimizer(AccumulatingOptimizer):
    """`AccumulatingOptimizer` for the optimizers of a Keras, which can be described, and saved."""

    def get_config(self):
        """What `from_config` makes this optimizer of again: the inner optimizer's config, K, and the options."""
        cls, home = type(self)._legacyga_class
        inner = super(ConfiguredOptimizer, self).get_config()
        described = {
            "class_name": home.registered_name(cls),
            "config": inner,
            "generation": _compat.generation_of(cls),
            "module": cls.__module__,
        }
        settings = self._legacyga.settings._asdict()
        settings.pop("steps")
        return dict(settings, optimizer=described, gradient_accumulation_steps=self._legacyga.next_steps)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The optimizer that `get_config` described."""
        inner, home = cls._legacyga_class
        with _known(home, {home.registered_name(inner): inner}):
            made = from_config(home, config, custom_objects)
        if is_own(cls):
            return made
        # Horovod extends the class, and has what its methods need from an `__init__` that this call comes by.
        extended = super(AccumulatingOptimizer, cls).from_config(config["optimizer"]["config"])
        start(extended, accumulation_of(made).settings)
        return extended

    def set_weights(self, weights):
        """Set all variables of the optimizer, or those that the bare one has: then no window is open.

        Args:
            weights: list of arrays, in the order of `weights` (`variables` in newer versions).

        Raises:
            ValueError: one array too few or too many, or of another shape. Nothing is written then.
        """
        if _is_built(self):
            weights = _restoring.fitting(self, self._legacyga, weights)
        if not _is_built(self) or not _takes_itself_to_be_unbuilt(self):
            super(ConfiguredOptimizer, self).set_weights(weights)
            return
        for variable, value in zip(_restoring.variables_of(self), weights):
            variable.assign(value)

    def save_own_variables(self, store):
        """Put all variables into the store of a `.keras` or `.weights.h5` file."""
        values = type(self)._legacyga_class[1].values_of(_restoring.variables_of(self))
        for i, value in enumerate(values):
            store[str(i)] = value

    def load_own_variables(self, store):
        """Take all variables out of the store of a `.keras` or `.weights.h5` file, as `set_weights` does."""
        if not _is_built(self):
            # Keras's own warning is of an optimizer that must be built first.
            super(ConfiguredOptimizer, self).load_own_variables(store)
            return
        self.set_weights([store[str(i)] for i in range(len(store.keys()))])


def _takes_itself_to_be_unbuilt(optimizer):
    # The LossScaleOptimizer of TF 2.11 and newer, for ever.
    return hasattr(optimizer, "update_step") and _copying.keeper_of(optimizer) is not optimizer


def _is_built(optimizer):
    keeper = _copying.keeper_of(optimizer)
    # Those of the v1 API and of OptimizerV2 have no such thing. The others of tf.keras have it once they are built.
    return getattr(keeper, "built", getattr(keeper, "_built", not hasattr(keeper, "update_step")))
