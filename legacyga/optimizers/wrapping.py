"""wrap: adds gradient accumulation to an optimizer of any generation."""

import functools
import inspect

from legacyga.backend import features, homes
from legacyga.backend.messages import shown
from legacyga.optimizers import config, copying, horovod, surface
from legacyga.windows import settings as _settings


def _refusing_other_names(wrap):
    known = list(inspect.signature(wrap).parameters)

    @functools.wraps(wrap)
    def with_known_arguments(*args, **kwargs):
        if "steps_per_update" in kwargs:
            raise TypeError(
                "wrap has no argument steps_per_update: it is MySGD's. Received: steps_per_update={}. Call it "
                "gradient_accumulation_steps.".format(shown(kwargs["steps_per_update"]))
            )
        for name in kwargs:
            if name not in known:
                raise TypeError(
                    "wrap() got an unexpected keyword argument '{0}'. Received: {0}={1}. Its arguments are {2}; K is "
                    "the second.".format(name, shown(kwargs[name]), ", ".join(known))
                )
        return wrap(*args, **kwargs)

    return with_known_arguments


@_refusing_other_names
def wrap(optimizer, gradient_accumulation_steps, reduction="mean", on_nonfinite="propagate"):
    """Copy an optimizer; the copy makes one update per K calls, with the mean of their gradients.

    Training with the copy on K small batches (micro-batches) gives the same result as training with `optimizer` on one
    batch K times larger. The optimizer's own step runs once per window (the K calls, or mini-steps, of one update),
    with the mean gradient. So schedules, decay, bias correction, weight decay, moving averages and constraints advance
    once per update, and clipping acts on the mean.

    Args:
        optimizer: an optimizer object of standalone Keras, tf.keras, tf_keras, Keras 3 or tf.compat.v1.train, including
            an object of your own class. `wrap` does not change it. The copy takes over its state, if any. In graph mode
            an optimizer of tf.compat.v1.train must not have trained.
        gradient_accumulation_steps: K, the number of micro-batches per update, an int of at least 1. At 1 the copy
            behaves like `optimizer`, except for `on_nonfinite`.
        reduction: `"mean"` (default) or `"sum"` of the window's gradients.
        on_nonfinite: what to do about gradients that are not finite (NaN, inf). `"propagate"` (default): the same as
            `optimizer`. `"skip_mini_step"`: the mini-step counts in the window, but the mean excludes it.
            `"skip_window"`: the window ends without an update, and the optimizer's state does not change. `"raise"`:
            like `"skip_window"`, but then raises a `tf.errors.InvalidArgumentError` that names the variables. Under
            tf.distribute, all replicas decide together. All policies except `"propagate"` need accumulators even at K =
            1.

    Returns:
        An optimizer whose class is a subclass of `optimizer`'s class. It adds `gradient_accumulation_steps`,
        `mini_step`, `iterations`, `skipped_mini_steps`, `mini_step_weight`, `end_windows` and `drop_windows`; the
        docstring of its class describes them.

    Raises:
        ValueError: an argument is out of range; `optimizer` is not an optimizer, or cannot train with this TensorFlow
            and mode; or it, or an optimizer inside it, already accumulates through `wrap`, `MySGD` or Keras 3's own
            `gradient_accumulation_steps`. With `on_nonfinite="raise"`, a function compiled by XLA (`jit_compile=True`)
            also raises it, because XLA drops assertions.

    Examples:
        >>> from tensorflow import keras
        >>> import legacyga
        >>> optimizer = legacyga.wrap(keras.optimizers.Adam(1e-3), gradient_accumulation_steps=8)
        >>> isinstance(optimizer, keras.optimizers.Adam), optimizer.gradient_accumulation_steps
        (True, 8)
    """
    settings = _settings.Settings.checked(gradient_accumulation_steps, reduction, on_nonfinite)
    _check_is_optimizer(optimizer, settings.steps)
    generation = homes.generation_of(type(optimizer))
    home = homes.TensorFlow() if generation == "train" else homes.home_of(optimizer)
    if home is None:
        raise ValueError(NO_OPTIMIZER.format(shown(optimizer)))
    horovod.check(optimizer, settings)
    is_scaling = generation == "train" and hasattr(type(optimizer), "_unscale_grads")
    if settings.guards and is_scaling and features.has_dynamic_scale(optimizer):
        raise ValueError(NO_SCALE.format(shown(optimizer), shown(settings.on_nonfinite)))
    wrapped = surface.wrapped(optimizer, home, settings)
    if generation != "train":
        config.register(home)
    return wrapped


EXAMPLE = "wrap takes an optimizer object, such as wrap(Adam(1e-3), 8). Received: {}"
NO_OPTIMIZER = EXAMPLE + ", which is no optimizer of a Keras or of tf.compat.v1.train."
NO_SCALE = (
    "{} halves its loss scale when it is given gradients that are not finite, and on_nonfinite={} would keep them from "
    "it. Leave on_nonfinite at 'propagate': it then leaves out the update of such a window by itself."
)
AROUND_TRAIN = (
    "{0} calls an optimizer of another generation. Received: {1}. Wrap the optimizer in it, and put it around what "
    "wrap returns: {0}(wrap({2}, {3}))."
)
AROUND_ANOTHER = (
    "{0} calls an optimizer of another generation. Received: {1}. Train in slices of a batch, with {0} as it is: "
    "legacyga.micro_batch(model, size) after compile."
)


def _check_is_optimizer(optimizer, steps):
    """Raise if `optimizer` is not an optimizer, or is one that must not be wrapped."""
    if isinstance(optimizer, type):
        raise ValueError(EXAMPLE.format(shown(optimizer)) + ", a class. Call it.")
    if isinstance(optimizer, str):
        raise ValueError(EXAMPLE.format(shown(optimizer)) + ", a string. Make the optimizer that it names.")
    if isinstance(optimizer, surface.AccumulatingOptimizer):
        raise ValueError(
            "This optimizer accumulates already, over {} mini-steps. Received: {}. Wrap the optimizer that it was "
            "made of, or set its gradient_accumulation_steps.".format(
                optimizer.gradient_accumulation_steps, shown(optimizer)
            )
        )
    generation = homes.generation_of(type(optimizer))
    if generation is None:
        raise ValueError(NO_OPTIMIZER.format(shown(optimizer)))
    within = copying.optimizers_within(optimizer)
    for each in within:
        if isinstance(each, surface.AccumulatingOptimizer) or getattr(each, "gradient_accumulation_steps", None):
            raise ValueError(
                "An optimizer within this one accumulates already, over {} mini-steps. Received: {}, in {}. Put "
                "one there that does not.".format(each.gradient_accumulation_steps, shown(each), shown(optimizer))
            )
    if generation == "train" and hasattr(optimizer, "get_chief_queue_runner"):
        raise ValueError(
            "SyncReplicasOptimizer collects the workers' gradients in queues of its own, and cannot accumulate. "
            "Received: {}. Wrap the optimizer in it, and leave it out: the mini-steps of all workers go into one "
            "window.".format(shown(optimizer))
        )
    others = [each for each in within if homes.generation_of(type(each)) != generation]
    if others:
        # Keras's TFOptimizer, around a `train` optimizer, passes gradients on unchanged. Other classes may not.
        is_known = homes.generation_of(type(others[0])) == "train"
        message = AROUND_TRAIN if is_known else AROUND_ANOTHER
        raise ValueError(message.format(type(optimizer).__name__, shown(optimizer), type(others[0]).__name__, steps))
    inner = copying.wrapped_by(optimizer)
    if inner is not None:
        _check_is_optimizer(inner, steps)
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise ValueError(
            "The optimizer has Keras's own gradient_accumulation_steps={}, and wrap would accumulate on top of it. "
            "Received: {}. Leave that argument out.".format(optimizer.gradient_accumulation_steps, shown(optimizer))
        )
