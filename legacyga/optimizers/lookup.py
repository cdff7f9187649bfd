"""Finds the accumulating optimizers of a model and the windows that belong to its fit; defines flush."""

from legacyga.backend import features, homes
from legacyga.backend.messages import shown
from legacyga.backend.tensors import variable_key
from legacyga.optimizers import surface

SEVERAL = "flush takes one optimizer that accumulates, and {} are within this. Received: {}. Flush each of them."


def optimizers_in(value):
    """The distinct accumulating optimizers in a value: itself, in a list or dict, or inside a wrapper."""
    if isinstance(value, surface.AccumulatingOptimizer):
        return [value]
    inner = []
    if isinstance(value, (list, tuple, dict)):
        inner = list(value.values()) if isinstance(value, dict) else value
    elif homes.generation_of(type(value)) is not None:
        # Where LossScaleOptimizer (by version), TFOptimizer and MultiOptimizer have their inner optimizers.
        inner = [getattr(value, name, None) for name in ("inner_optimizer", "_optimizer", "optimizer", "optimizers")]
    distinct = []
    for found in [found for each in inner if each is not value for found in optimizers_in(each)]:
        if not any(found is each for each in distinct):
            distinct.append(found)
    return distinct


def optimizers_of(model):
    """The accumulating optimizers of a model: its `optimizer`, or one inside it, and those in other attributes."""
    attributes = getattr(model, "__dict__", {})
    return optimizers_in([getattr(model, "optimizer", None)] + [attributes[name] for name in sorted(attributes)])


def flush(optimizer):
    """Update now, with the mean (or sum) of the gradients accumulated since the last update.

    Call it if training ends with fewer than K batches since the last update. If there are none, it does nothing.

    Args:
        optimizer: an optimizer from `MySGD` or `wrap`, or a LossScaleOptimizer around one.

    Returns:
        True if there was an update, else False. Inside a `tf.function`, a boolean tensor.

    Raises:
        ValueError: `optimizer` does not accumulate, or holds several that do; it is a tf.compat.v1.train optimizer in
            graph mode and there is no default session; a restored state still waits for its variables; or an argument
            of the mini-steps was a function's tensor.
        tf.errors.InvalidArgumentError: a gradient is not finite, with `on_nonfinite="raise"`.

    Examples:
        >>> from tensorflow import keras
        >>> import legacyga
        >>> legacyga.flush(legacyga.wrap(keras.optimizers.Adam(1e-3), gradient_accumulation_steps=8))
        False
    """
    found = optimizers_in(optimizer)
    if len(found) > 1:
        raise ValueError(SEVERAL.format(len(found), shown(optimizer)))
    if not found:
        raise ValueError(
            "flush takes an optimizer that legacyga.wrap or legacyga.MySGD returned. Received: {}. Give it the one "
            "that the model was compiled with, model.optimizer. If that is a bare optimizer, it updates with every "
            "batch and has nothing to flush: leave flush out, or compile the model with "
            "legacyga.wrap(optimizer, gradient_accumulation_steps).".format(shown(optimizer))
        )
    return surface.accumulation_of(found[0]).registry().end()


class WindowsOfFit(object):
    """The windows of an optimizer that a fit may end: those with a mini-step of this fit, or of variables trained now.

    Other open windows are of frozen variables, or of another model. The `trainable` flags alone do not tell: a
    train_step may change them or train several lists of variables, and an existing training function still trains
    variables frozen since.
    """

    def __init__(self, model, optimizer):
        self._model, self._find_registry = model, surface.accumulation_of(optimizer).registry
        self._untouched = self._find_registry().under_way()

    def look(self):
        """Note which earlier windows this fit continues. Call before its K-th mini-step: K leave counts unchanged."""
        if self._untouched:
            self._untouched &= self._find_registry().under_way()

    def end(self):
        self._find_registry().end(self._pick)

    def drop(self):
        self._find_registry().drop(self._pick)

    def _pick(self, keys):
        """Select the keys of the fit's windows."""
        self.look()
        touched = {key for key, _ in self._find_registry().under_way() - self._untouched}
        now = _trained_now(self._model, keys)
        return [key for key in keys if key in touched or key in now]


def _trained_now(model, keys):
    """Select from `keys` the windows of the variables that the model trains now.

    Usually one window has them all, and perhaps variables outside of the model, such as a loss's. If none has, as in a
    GAN, select each window of some of them. Never select a window with a frozen variable of the model.
    """
    # In graph mode `compile` fixes the trained variables.
    trained = getattr(model, "_collected_trainable_weights", None) or features.trainable_variables_of(model)
    trained, in_model = _keys(trained), _keys(features.variables_of(model))
    whole = [key for key in keys if trained <= set(key) and not (set(key) - trained) & in_model]
    return whole or [key for key in keys if set(key) <= trained]


def _keys(variables):
    # The weights of a StringLookup include its table, which is no variable and has no name. Delete with tf_keras.
    return {variable_key(variable) for variable in variables if hasattr(variable, "name")}
