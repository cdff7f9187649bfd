"""What an accumulating optimizer is: an object of a subclass of the user's optimizer class.

All that we know of it stands in one object, its `Accumulation`, so that no name of ours meets one of the user's.
"""

import collections
import inspect
import weakref

from legacyga.backend import autograph, features, homes
from legacyga.optimizers import horovod
from legacyga.optimizers.accumulation import Accumulation
from legacyga.windows import mini_step
from legacyga.windows import settings as _settings

# A class goes with its last optimizer: that of a user may be made in a function, and refer to what is large.
_CLASSES = weakref.WeakValueDictionary()
# The name of all of them, so that Keras's loaders need one object to load any. It says itself what it was made of.
NAME = "AccumulatingOptimizer"
# By generation, what `register` was given: [(condition, optimizer class, inner class)].
_GENERATIONS = collections.defaultdict(list)
WRAPPED = "{0} with gradient accumulation. {1}\n\nThe inner class, {0}:\n\n{2}"


def register(generation, optimizer_class, inner_class, condition=lambda cls: True):
    """Say what makes an optimizer of a generation accumulate.

    Args:
        optimizer_class: an `AccumulatingOptimizer`, to be put before the user's class.
        inner_class: an `inner.Inner`.
        condition: function of the user's class: whether it is to have these two, before those that were registered
            earlier.
    """
    _GENERATIONS[generation].insert(0, (condition, optimizer_class, inner_class))


def class_for(cls, home, form=(), inner_form=(), **attributes):
    """The accumulating subclass of the optimizer class `cls`: one for one class, so that two wrapped Adams are alike.

    Args:
        cls: the optimizer class.
        home: its `homes.Home`.
        form: classes to put before all others.
        inner_form: subclasses of `inner.Inner` to put before the generation's.
        attributes: more of the class, `__name__` included.
    """
    _, optimizers, inners = zip(*[each for each in _GENERATIONS[homes.generation_of(cls)] if each[0](cls)])
    bases, inners = form + optimizers, inner_form + tuple(dict.fromkeys(inners))
    key = bases, cls, home.root
    found = _CLASSES.get(key)
    if found is None:
        name = attributes.pop("__name__", NAME)
        attributes.setdefault("__qualname__", "Accumulating" + cls.__name__)
        attributes.update(_legacyga_class=(cls, home), _legacyga_type=type("Inner", inners, {}))
        attributes.update(autograph.methods_as_written(home.tf, bases, cls))
        # Where the user's class has a method of the same name, that one is kept.
        attributes.update({name: getattr(cls, name) for name in PUBLIC_METHODS if hasattr(cls, name)})
        docs = [inspect.getdoc(each) or "" for each in (AccumulatingOptimizer, cls)]
        attributes.setdefault("__doc__", WRAPPED.format(cls.__name__, *docs))
        found = _CLASSES[key] = type(name, bases + horovod.bases_before(cls) + (cls,), attributes)
        for name in found._legacyga_steps:
            if hasattr(cls, name):
                setattr(found, name, _step_of(found, name, getattr(cls, name)))
    return found


def _step_of(made, name, own):
    """The method `name` of the accumulating class `made`, which updates one variable as `own` of the user's class does.

    It has the signature of that method: OptimizerV2 computes the rate and the bias correction once, and hands them to
    the methods that name the argument `apply_state`.
    """

    def step(self, gradient, *args, **kwargs):
        inner, method = self._legacyga.inner, getattr(super(made, self), name)
        if not inner.steps.has_windows:
            return method(gradient, *args, **kwargs)
        variable = args[0] if args else kwargs.get("var", kwargs.get("variable"))
        return inner.step(name, variable, lambda: method(gradient, *args, **kwargs))

    step.__name__, step.__doc__ = name, own.__doc__
    # A tf.function has the signature of its Python function.
    step.__signature__ = inspect.signature(getattr(own, "python_function", own))
    return step


def accumulation_of(optimizer):
    """The `Accumulation` of an optimizer, None of one that does not accumulate."""
    return vars(optimizer).get("_legacyga") if isinstance(optimizer, AccumulatingOptimizer) else None


def home_of(optimizer):
    """The `homes.Home` of an accumulating optimizer."""
    return type(optimizer)._legacyga_class[1]


def start(optimizer, settings):
    """Make a new optimizer of an accumulating class accumulate."""
    made = Accumulation(optimizer, home_of(optimizer), settings, type(optimizer)._legacyga_type)
    vars(optimizer)["_legacyga"] = made


def as_inner(optimizer):
    """An object of the inner class with the same state, for that class's own errors, which name it."""
    inner = object.__new__(type(optimizer)._legacyga_class[0])
    vars(inner).update(vars(optimizer))
    return inner


def copy_of(cls, optimizer, settings):
    """An optimizer of the accumulating class `cls` that is a copy of `optimizer`, of the inner class."""
    copied = object.__new__(cls)
    start(copied, settings)
    accumulation_of(copied).inner.inherit(optimizer)
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
    # The `inner.Inner` of the generation.
    _legacyga_type = None
    # The methods of the inner class that update one variable each.
    _legacyga_steps = ()

    # Keras prints it in its own errors, as in that of an optimizer of another Keras.
    def __repr__(self):
        cls, home = type(self)._legacyga_class
        steps = self._legacyga.steps.now if self._legacyga is not None else "?"
        return "<legacyga: {} of {}, accumulating {} steps>".format(cls.__name__, home.name, steps)

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
        self._legacyga.set_steps(_settings.check_steps("gradient_accumulation_steps", value))

    @property
    def mini_step(self):
        """The mini-steps in the latest window, 0 to K - 1: a variable; without one, and at K = 1, a constant.

        It is 0, but for a checkpoint that was restored and waits for the variables.
        """
        registry = self._legacyga.registry()
        return registry.constant_to_come("mini_step") if registry.latest is None else registry.latest.kept.mini_step

    @property
    def skipped_mini_steps(self):
        """The mini-steps that `on_nonfinite` has left out, those of windows without update too: as `mini_step`."""
        registry = self._legacyga.registry()
        return registry.constant_to_come("skipped_mini_steps") if registry.skipped is None else registry.skipped

    def _gather_saveables_for_checkpoint(self):
        # tf.train.Checkpoint asks it where it saves.
        if not features.restores_as_it_saves(self._legacyga.home.tf):
            self._legacyga.registry().check_all_is_here("a checkpoint")
        return super(AccumulatingOptimizer, self)._gather_saveables_for_checkpoint()

    def mini_step_weight(self, weight):
        """A context: mini-steps in it have this weight. In graph mode those that are *made* in it have it.

        Without it a mini-step weighs 1, or as much as the first in its window whose samples were counted. At K = 1 a
        weight changes nothing.

        Args:
            weight: a finite number or scalar tensor of at least 0, such as the samples or tokens of the batch.

        Raises:
            ValueError: a weight out of its range; in graph mode a context in which no mini-step was made; in eager mode
                one around the call of a function that is traced, or was, also from another: enter it in the function.
            tf.errors.InvalidArgumentError: known only when a graph or `tf.function` runs, it is out of its range. XLA
                (`jit_compile=True`) drops assertions: there the update is NaN.
        """
        return self._legacyga.giving(mini_step.Weight(weight, False))

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
    """The accumulating copy of an optimizer of any generation, which must be able to train here."""
    cls = type(optimizer)
    generation = homes.generation_of(cls)
    _check_can_train(optimizer, generation, home)
    return copy_of(class_for(cls, home), optimizer, settings)


def _check_can_train(optimizer, generation, home):
    """Raise where an optimizer of this generation cannot train here, in our own words before Keras's obscure ones."""
    home.check_can_train()
    if generation == "v3" and home.graph_mode:
        raise ValueError(
            "{!r} trains in eager mode only, and this is graph mode. Take one of {}.optimizers.legacy.".format(
                optimizer, home.name
            )
        )
    if generation == "v1" and not home.graph_mode:
        raise ValueError(
            "{!r} is an optimizer of the v1 API, which trains in graph mode only, and this is eager mode. Take one of "
            "tf.keras.optimizers, or call tf.compat.v1.disable_eager_execution() first.".format(optimizer)
        )
    if generation == "v1" and not features.has_variable_creators(home.tf):
        raise ValueError(
            "wrap needs TensorFlow 1.11 or newer for optimizers of the v1 API. Received: TensorFlow {}. "
            "legacyga.MySGD works there.".format(home.tf_version)
        )


def is_own(cls):
    """Whether `class_for` made this class, and nobody has extended it."""
    return "_legacyga_class" in vars(cls)
