"""The public surface of accumulating optimizers, and the factory of their classes: subclasses of the user's class.

Where the user's class has one of `PUBLIC_NAMES`, or its objects an attribute `mini_step` or `skipped_mini_steps`, the
user's wins.
"""

import collections
import inspect
import types
import weakref

from legacyga.backend import autograph, features, homes
from legacyga.backend.messages import shown
from legacyga.optimizers import horovod
from legacyga.optimizers.accumulation import Accumulation
from legacyga.windows import mini_step
from legacyga.windows import settings as _settings

# Weak: a user's class made in a function may hold large objects, and must go with its last optimizer.
_CLASSES = weakref.WeakValueDictionary()
# One name for all classes, so that one custom object lets Keras load them all. The config names the inner class.
NAME = "AccumulatingOptimizer"
# {generation: [(condition, optimizer class, inner class)]}, from `register`.
_GENERATIONS = collections.defaultdict(list)
WRAPPED = "{0} with gradient accumulation. {1}\n\nThe inner class, {0}:\n\n{2}"


PATCHED = (
    "{0} has a method {1} that a program has set on the object, and that would be called in place of the one that "
    "accumulates. Define it in a subclass, and wrap that."
)


def register(generation, optimizer_class, inner_class, condition=lambda cls: True):
    """Register bases of accumulating classes, ahead of earlier ones, for user's classes that meet the condition."""
    _GENERATIONS[generation].insert(0, (condition, optimizer_class, inner_class))


def class_for(cls, home, form=(), inner_form=(), **attributes):
    """The accumulating subclass of the optimizer class `cls`, cached, so that two wrapped Adams have the same class.

    `form` and `inner_form` are MySGD's bases, ahead of all others of the class and of its `inner.Inner`.
    """
    _, optimizers, inners = zip(*[each for each in _GENERATIONS[homes.generation_of(cls)] if each[0](cls)])
    bases, inners = form + optimizers, inner_form + tuple(dict.fromkeys(inners))
    key = bases, cls, home.root
    found = _CLASSES.get(key)
    if found is None:
        name = attributes.pop("__name__", NAME)
        attributes.setdefault("__qualname__", "Accumulating" + cls.__name__)
        attributes.update(_legacyga_class=(cls, home), _legacyga_type=type("Inner", inners, {}))
        attributes.update(autograph.methods_as_written(home.tf, bases, cls, optimizers[0]._legacyga_calls))
        # Attributes of the user's class win.
        attributes.update({name: inspect.getattr_static(cls, name) for name in PUBLIC_NAMES if hasattr(cls, name)})
        docs = [inspect.getdoc(each) or "" for each in (AccumulatingOptimizer, cls)]
        attributes.setdefault("__doc__", WRAPPED.format(cls.__name__, *docs))
        found = _CLASSES[key] = type(name, bases + horovod.bases_before(cls) + (cls,), attributes)
        _keep_signatures(found, cls)
        for name in found._legacyga_methods:
            if hasattr(cls, name):
                setattr(found, name, _step_of(found, name, getattr(cls, name)))
    return found


def _keep_signatures(made, cls):
    """Give `made` copies of our methods with the signatures of the user's `cls`, which Keras and programs read."""
    for name in dir(cls):
        own, ours = inspect.getattr_static(cls, name), inspect.getattr_static(made, name)
        if ours is own or not inspect.isfunction(own) or not inspect.isfunction(ours) or name.startswith("__"):
            continue
        copied = types.FunctionType(ours.__code__, ours.__globals__, name, ours.__defaults__, ours.__closure__)
        copied.__kwdefaults__ = ours.__kwdefaults__
        vars(copied).update(vars(ours), __signature__=inspect.signature(own))
        setattr(made, name, copied)


def _step_of(made, name, own):
    """Make the method `name` of `made`: `Inner.step` decides whether `own`, the user's update of one variable, runs."""

    def step(self, gradient, *args, **kwargs):
        inner, method = self._legacyga.inner, getattr(super(made, self), name)
        if not inner.steps.has_windows:
            return method(gradient, *args, **kwargs)
        variable = args[0] if args else kwargs.get("var", kwargs.get("variable"))
        return inner.step(name, variable, lambda: method(gradient, *args, **kwargs))

    step.__name__, step.__doc__ = name, own.__doc__
    # OptimizerV2 passes the precomputed rate and bias correction only to methods with an argument `apply_state`.
    # `own` may be a tf.function, whose signature is on its Python function.
    step.__signature__ = inspect.signature(getattr(own, "python_function", own))
    return step


def accumulation_of(optimizer):
    """The `Accumulation` of an optimizer; None if it does not accumulate."""
    return vars(optimizer).get("_legacyga") if isinstance(optimizer, AccumulatingOptimizer) else None


def home_of(optimizer):
    return type(optimizer)._legacyga_class[1]


def start(optimizer, settings):
    """Give a new optimizer of an accumulating class its `Accumulation`."""
    inner_class = type(optimizer)._legacyga_type
    vars(optimizer)["_legacyga"] = Accumulation(optimizer, home_of(optimizer), settings, inner_class)


def as_inner(optimizer):
    """An object of the inner class with the same state, so that the inner class's errors name that class."""
    inner = object.__new__(type(optimizer)._legacyga_class[0])
    vars(inner).update(vars(optimizer))
    return inner


class _ReadOnly(object):
    """A property, but an attribute of this name that the user's class sets on the object comes first."""

    def __init__(self, get):
        self._get, self.__doc__ = get, get.__doc__

    def __get__(self, instance, owner):
        return self if instance is None else self._get(instance)


class AccumulatingOptimizer(object):
    """Makes an update once in K mini-steps: a step of the inner class with the mean (or sum) of their gradients.

    A mini-step is one call with the gradients of one small batch (micro-batch). A window is the K mini-steps of one
    update. The inner class is the class of your optimizer; this subclass adds:

        gradient_accumulation_steps   K of the next window, an int: can be read and set
        mini_step                     the number of mini-steps in the current window, 0 to K - 1: a variable
        iterations                    the number of updates made: a variable
        skipped_mini_steps            the number of mini-steps that `on_nonfinite` has left out: a variable
        mini_step_weight(weight)      a context that gives mini-steps this weight in the mean
        end_windows()                 makes an update from each partial window
        drop_windows()                discards all partial windows

    Examples:
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

    # All of our data: an `Accumulation`.
    _legacyga = None
    # The names of the methods that take gradients.
    _legacyga_calls = ("apply_gradients",)
    # The names of the inner class's methods that update a single variable.
    _legacyga_methods = ()

    # Keras prints this in errors.
    def __repr__(self):
        cls, home = type(self)._legacyga_class
        steps = self._legacyga.steps.now if self._legacyga is not None else "?"
        return "<legacyga: {} of {}, accumulating {} steps>".format(cls.__name__, home.name, steps)

    def __setattr__(self, name, value):
        # The user's own optimizer may have an attribute of this name.
        if name == "steps_per_update" and not hasattr(self, name):
            raise AttributeError(
                "steps_per_update is an argument of MySGD, and sets nothing later. Received: {}. Set "
                "optimizer.gradient_accumulation_steps.".format(shown(value))
            )
        super(AccumulatingOptimizer, self).__setattr__(name, value)

    def __copy__(self):
        # A shallow copy: own attributes, but the original's variables and windows.
        copied = object.__new__(type(self))
        vars(copied).update(vars(self), _legacyga=self._legacyga.shared_with(copied))
        return copied

    @property
    def gradient_accumulation_steps(self):
        """K of the next window. Set it to an int of at least 1. The current window keeps its K.

        Setting it raises ValueError if the value is no such int; if it is above 1 and there are no accumulators because
        K was 1 at the first mini-step; or, for a tf.compat.v1.train optimizer in graph mode, without a default session.
        """
        return self._legacyga.next_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value):
        self._legacyga.set_steps(_settings.check_steps("gradient_accumulation_steps", value))

    @_ReadOnly
    def mini_step(self):
        """The number of mini-steps in the current window, 0 to K - 1: a variable.

        Of several windows, the one of the last mini-step made. A `tf.function` makes its mini-steps when it is traced.
        Until the optimizer is built, and without accumulators, it is a constant: 0, or the value from a restored
        checkpoint.
        """
        registry = self._legacyga.registry()
        return registry.constant_to_come("mini_step") if registry.latest is None else registry.latest.kept.mini_step

    @_ReadOnly
    def skipped_mini_steps(self):
        """The number of mini-steps that `on_nonfinite` has skipped, including all of a skipped window.

        A variable, or a constant in the same cases as `mini_step`.
        """
        registry = self._legacyga.registry()
        return registry.constant_to_come("skipped_mini_steps") if registry.skipped is None else registry.skipped

    def _gather_saveables_for_checkpoint(self):
        saveables = super(AccumulatingOptimizer, self)._gather_saveables_for_checkpoint()
        registry = self._legacyga.registry()
        if registry.state_is_to_come:
            # A save calls this function, and so raises: it would lose that state. A restore's status does not call it.
            saveables = dict(saveables, legacyga=lambda name: registry.check_all_is_here("a checkpoint"))
        return saveables

    def mini_step_weight(self, weight):
        """A context manager that gives mini-steps a weight: those made in it, or in graph mode those *built* in it.

        Outside this context, the weight of a mini-step is 1. But if its window counts the samples of others, it weighs
        as much as the first of these. If K is 1 from the start, weights have no effect.

        Args:
            weight: a finite number or scalar tensor of at least 0, such as the number of samples or tokens in the
                batch.

        Raises:
            ValueError: `weight` is out of range; in graph mode, no mini-step was built in the context; in eager mode,
                the context surrounds the call of a `tf.function`: use it inside the function instead.
            tf.errors.InvalidArgumentError: `weight` is out of range, which is known only when the graph or
                `tf.function` runs. XLA (`jit_compile=True`) drops assertions, so the update is NaN instead.
        """
        return self._legacyga.giving(mini_step.Weight(weight, False))

    # The name until 0.1.
    mini_steps_weigh = mini_step_weight

    def end_windows(self):
        """Make an update from each partial window, with the mean (or sum) of the gradients accumulated so far.

        Returns:
            True if there was an update, else False. Inside a `tf.function`, a boolean tensor.

        Raises:
            ValueError: this is a tf.compat.v1.train optimizer in graph mode, and there is no default session; a
                restored state still waits for its variables; or an argument of the mini-steps was a function's tensor.
            tf.errors.InvalidArgumentError: a gradient is not finite, with `on_nonfinite="raise"`.
        """
        return self._legacyga.registry().end()

    def drop_windows(self):
        """Discard the mini-steps of all partial windows. Raises ValueError if `end_windows` would lack a session."""
        self._legacyga.registry().drop()


PUBLIC_NAMES = (
    "mini_step_weight",
    "mini_steps_weigh",
    "end_windows",
    "drop_windows",
    "mini_step",
    "skipped_mini_steps",
)


def wrapped(optimizer, home, settings):
    """The accumulating copy of an optimizer of any generation. Raises if the optimizer cannot train in this mode."""
    _check_can_train(optimizer, homes.generation_of(type(optimizer)), home)
    cls = class_for(type(optimizer), home)
    patched = [name for name in cls._legacyga_calls + ("get_updates",) if name in vars(optimizer)]
    if patched:
        raise ValueError(PATCHED.format(shown(optimizer), patched[0]))
    copied = object.__new__(cls)
    start(copied, settings)
    copied._legacyga.inner.inherit(optimizer)
    return copied


def _check_can_train(optimizer, generation, home):
    home.check_can_train()
    if generation == "v3" and home.graph_mode:
        raise ValueError(
            "{} trains in eager mode only, and this is graph mode. Take one of {}.optimizers.legacy.".format(
                shown(optimizer), home.name
            )
        )
    if generation == "v1" and not home.graph_mode:
        raise ValueError(
            "{} is an optimizer of the v1 API, which trains in graph mode only, and this is eager mode. Take one of "
            "tf.keras.optimizers, or call tf.compat.v1.disable_eager_execution() first.".format(shown(optimizer))
        )
    if generation == "v1" and not features.has_variable_creators(home.tf):
        raise ValueError(
            "wrap needs TensorFlow 1.11 or newer for optimizers of the v1 API. Received: TensorFlow {}. "
            "legacyga.MySGD works there.".format(home.tf_version)
        )
