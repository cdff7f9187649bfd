"""MySGD: a correct version of the well-known get_updates/K.switch accumulating SGD, for graph and eager mode."""

import numbers
import re

from legacyga.backend import homes
from legacyga.backend.messages import shown
from legacyga.optimizers import config as _config
from legacyga.optimizers import inner, surface, v1
from legacyga.windows import settings as _settings

# Defaults of the arguments with two names: `is` tells them from equal numbers that a program passes.
_LR, _STEPS = type("float", (float,), {})(0.01), type("int", (int,), {})(2)

UNKNOWN_ARGUMENT = (
    "{}. Received: {}={}. MySGD's own arguments are lr, momentum, decay, nesterov, steps_per_update (K), keras and "
    "on_nonfinite; all others are those of your Keras's SGD."
)


def MySGD(
    lr=_LR,
    momentum=0.0,
    decay=0.0,
    nesterov=False,
    steps_per_update=_STEPS,
    keras=None,
    on_nonfinite="propagate",
    **kwargs,
):
    """SGD with momentum that updates the weights once every `steps_per_update` batches, with their mean gradient.

    Training with batches of n samples gives the same result as `SGD(lr, momentum, decay, nesterov)` with batches of
    `n * steps_per_update` samples. With g the mean gradient of these batches (clipped if you pass `clipnorm` or
    `clipvalue`) and t the number of earlier updates, an update is

        lr_t = lr / (1 + decay * t)
        v    = momentum * v - lr_t * g
        w    = w + v                              (w + momentum * v - lr_t * g with nesterov)

    In eager mode of Keras 2, only the rows of an embedding that are in the batch move.

    The formulas are those of `keras.optimizers.SGD`. Nesterov momentum has the look-ahead form of Sutskever et al., "On
    the importance of initialization and momentum in deep learning", 2013, section 2.

    Args:
        lr: the learning rate of an update, a number of at least 0. Default 0.01. In eager mode it can also be your
            Keras's LearningRateSchedule, or the config of one. `learning_rate=` is another name for this argument.
        momentum: a number from 0 to 1. Default 0.
        decay: the decay of the learning rate per update, a number of at least 0. Default 0.
        nesterov: whether to use Nesterov momentum. Default False.
        steps_per_update: K, the number of batches per update, an int of at least 1. Default 2. At 1, MySGD equals your
            Keras's SGD. `gradient_accumulation_steps=` is another name for this argument.
        keras: the model's Keras module: `keras`, `tf.keras` or `tf_keras`. Default: standalone `keras` (below 2.4) or
            `tf_keras` if your program has imported it, else `tf.keras`.
        on_nonfinite: what to do about gradients that are not finite, as in `legacyga.wrap`: `"propagate"` (default),
            `"skip_mini_step"`, `"skip_window"` or `"raise"`.
        **kwargs: other arguments of your Keras's SGD: `clipnorm`, `clipvalue`, `name`, ... In standalone Keras below
            2.4, and before TF 1.10, `clipnorm` limits the norm of all gradients together; otherwise it limits the norm
            of each variable's gradient.

    Returns:
        An optimizer whose class is a subclass of your Keras's SGD: `legacy.SGD` of TF 2.11 to 2.15 and tf_keras. In
        graph mode it has the v1 API (`get_updates`), in eager mode it works with `tf.function`. Both have `lr`,
        `learning_rate`, and everything that `wrap` adds.

    Raises:
        ValueError: an argument is out of range or is passed under both names; your program has imported more than one
            Keras, and `keras=` does not say which to use, or is no Keras module; or your Keras cannot train in this
            mode. If your Keras's SGD does not know an argument: a ValueError or TypeError, as Keras raises.

    Examples:
        >>> import legacyga
        >>> optimizer = legacyga.MySGD(lr=0.001, momentum=0.9, steps_per_update=8, clipnorm=5.0)
        >>> optimizer.gradient_accumulation_steps
        8
    """
    home = homes.find_home(keras)
    home.check_can_train()
    _config.register(home)
    return _made(_class_for(home), lr, momentum, decay, nesterov, steps_per_update, on_nonfinite, **kwargs)


def _made(
    cls, lr=_LR, momentum=0.0, decay=0.0, nesterov=False, steps_per_update=_STEPS, on_nonfinite="propagate", **kwargs
):
    _, lr = _of_two_names("lr", lr, _LR, "learning_rate", kwargs)
    name, steps = _of_two_names("steps_per_update", steps_per_update, _STEPS, "gradient_accumulation_steps", kwargs)
    settings = _settings.Settings.checked(steps, on_nonfinite=on_nonfinite, name=name)
    lr = _schedule_of(cls, lr)
    if not (callable(lr) and _takes_schedules(cls)):
        lr = _check_number("lr", lr)
    momentum = _check_number("momentum", momentum, most=1)
    decay = _check_number("decay", decay)
    try:
        optimizer = cls(lr=lr, momentum=momentum, decay=decay, nesterov=bool(nesterov), **kwargs)
    except (TypeError, ValueError) as error:
        unknown = [name for name in kwargs if re.search(r"(nexpected|recogni).*\b{}\b".format(name), str(error))]
        if not unknown:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(UNKNOWN_ARGUMENT.format(str(error).rstrip("."), unknown[0], shown(kwargs[unknown[0]])))
    surface.start(optimizer, settings)
    return optimizer


def _of_two_names(name, value, default, other, kwargs):
    """(name, value) of an argument with two names; removes the `other` name from `kwargs`."""
    if other not in kwargs:
        return name, value
    if value is not default:
        raise ValueError(
            "{0} and {1} are two names of one argument. Received: {0}={2} and {1}={3}. Leave one out.".format(
                name, other, shown(value), shown(kwargs[other])
            )
        )
    return other, kwargs.pop(other)


def _check_number(name, value, most=None):
    inside = isinstance(value, numbers.Real) and not isinstance(value, bool) and value >= 0
    if not inside or (most is not None and value > most):
        wanted = "at least 0" if most is None else "0 to {}".format(most)
        raise ValueError("{} must be a number of {}. Received: {}".format(name, wanted, shown(value)))
    return float(value)


def _takes_schedules(cls):
    return not issubclass(cls, v1.AccumulatingOptimizer)


def _schedule_of(cls, lr, custom_objects=None):
    """The LearningRateSchedule if `lr` is the config of one, else `lr` itself."""
    if isinstance(lr, dict) and _takes_schedules(cls):
        schedules = cls._legacyga_class[1].module.optimizers.schedules
        return schedules.deserialize(lr, custom_objects=custom_objects)
    return lr


class _MySGD(object):
    """What MySGD has in every Keras and mode."""

    # `compile` of another Keras raises "Could not interpret optimizer identifier: <this text>": say why.
    def __str__(self):
        return "<MySGD for {} in {} mode. A model of another Keras needs legacyga.MySGD(..., keras=that_keras)>".format(
            surface.home_of(self), "graph" if isinstance(self, v1.AccumulatingOptimizer) else "eager"
        )

    def get_config(self):
        """MySGD's arguments but `keras`: `legacyga.MySGD(keras=..., **config)` recreates this optimizer."""
        config = super(_MySGD, self).get_config()["optimizer"]["config"]
        config.pop("gradient_accumulation_steps", None)
        if "lr" not in config:
            config["lr"] = config.pop("learning_rate")
        config.update(decay=self._decay_argument(), steps_per_update=self.gradient_accumulation_steps)
        config.update(self._legacyga.settings.options)
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """An optimizer of this class in any mode: `model_to_estimator` recreates an eager mode optimizer in a graph."""
        found = dict(config)
        if "learning_rate" in found:
            found["lr"] = found.pop("learning_rate")
        if "lr" in found:
            found["lr"] = _schedule_of(cls, found["lr"], custom_objects)
        found.pop("is_legacy_optimizer", None)
        if not _takes_schedules(cls):
            # A config from eager mode has a name, which the v1 SGD does not take.
            found.pop("name", None)
        return _made(cls, **found)


def _from_config(home, config, custom_objects=None):
    home.check_can_train()
    return _class_for(home).from_config(config, custom_objects)


_config.LOADERS["MySGD"] = _from_config


class _GraphSGD(_MySGD):
    """MySGD for graph mode, on the v1 API."""

    def _decay_argument(self):
        return float(surface.home_of(self).values_of([self.decay])[0])

    # Both names in every Keras: some have only `lr`, others `learning_rate` and a read-only `lr`.
    @property
    def learning_rate(self):
        """The learning rate: a variable. Setting a number assigns it to the variable."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
        if isinstance(value, numbers.Real):
            surface.home_of(self).backend.set_value(self._learning_rate, value)
        else:
            self._learning_rate = value

    lr = learning_rate


class _GraphInner(v1.Inner):
    """Makes slots and updates: Keras's get_updates makes slots in a branch, and TF up to 1.10 cannot lift these."""

    def create_weights(self, params):
        backend = self.home.backend
        slots = [backend.zeros(backend.int_shape(param), dtype=param.dtype.base_dtype.name) for param in params]
        return [self.optimizer.iterations] + slots

    def make_update(self, gradients, params, weights):
        optimizer, ops = self.optimizer, self.ops

        def get_updates():
            lr = optimizer.lr
            if optimizer.initial_decay > 0:
                iterations = ops.cast(optimizer.iterations, optimizer.decay.dtype.base_dtype)
                lr = lr * (1.0 / (1.0 + optimizer.decay * iterations))
            updates = [(optimizer.iterations, optimizer.iterations + 1)]
            for param, gradient, moment in zip(params, gradients, weights[1:]):
                velocity = optimizer.momentum * moment - lr * gradient
                if optimizer.nesterov:
                    new_param = param + optimizer.momentum * velocity - lr * gradient
                else:
                    new_param = param + velocity
                if getattr(param, "constraint", None) is not None:
                    new_param = param.constraint(new_param)
                updates += [(moment, velocity), (param, new_param)]
            return updates

        return self.ordered(get_updates, gradients)


class _EagerInner(inner.Inner):
    # Read only by `v2_before_tf24`. Delete with TF 2.3.
    clips_always = True


class _EagerSGD(_MySGD):
    """MySGD for eager mode on OptimizerV2, which has `decay` and `lr`."""

    def __init__(self, lr, momentum, decay, nesterov, name="MySGD", **kwargs):
        super(_EagerSGD, self).__init__(
            learning_rate=lr, momentum=momentum, decay=decay, nesterov=nesterov, name=name, **kwargs
        )

    def _decay_argument(self):
        return self._initial_decay


class _Keras3SGD(_MySGD):
    """MySGD for Keras 3, whose optimizers have neither `decay` nor `lr`."""

    def __init__(self, lr, momentum, decay, nesterov, name="MySGD", **kwargs):
        super(_Keras3SGD, self).__init__(learning_rate=lr, momentum=momentum, nesterov=nesterov, name=name, **kwargs)
        self.decay = decay

    def _decay_argument(self):
        return self.decay

    @property
    def lr(self):
        """The learning rate."""
        return self.learning_rate

    @lr.setter
    def lr(self, value):
        self.learning_rate = value

    def update_step(self, gradient, variable, learning_rate):
        if self.decay > 0:
            ops = self._legacyga.ops
            dtype = ops.accumulator_dtype(variable.dtype)
            iterations = ops.cast(self._iterations.value, dtype)
            learning_rate = ops.cast(learning_rate, dtype) / (1.0 + self.decay * iterations)
        return super(_Keras3SGD, self).update_step(gradient, variable, learning_rate)


# {generation of Keras's SGD: (bases ahead of the SGD class, bases ahead of its `inner.Inner`)}.
_FORMS = {"v1": ((_GraphSGD,), (_GraphInner,)), "v2": ((_EagerSGD,), (_EagerInner,)), "keras3": ((_Keras3SGD,), ())}


def _class_for(home):
    cls = (home.v1_optimizers if home.graph_mode else home.eager_optimizers).SGD
    form, inner_form = _FORMS[homes.generation_of(cls)]
    named = {"__name__": "MySGD", "__qualname__": "MySGD", "__doc__": MySGD.__doc__}
    return surface.class_for(cls, home, form, inner_form, **named)
