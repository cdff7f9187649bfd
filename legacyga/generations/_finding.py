"""The accumulating optimizers of a model, and which windows are the model's."""

from legacyga import _compat, _ops
from legacyga.generations import _surface


def optimizers_in(value):
    """The optimizers that accumulate in a value, each once: itself, in a list, or inside of a wrapper."""
    if isinstance(value, _surface.AccumulatingOptimizer):
        return [value]
    inner = []
    if isinstance(value, (list, tuple)):
        inner = value
    elif _compat.generation_of(type(value)) is not None:
        # LossScaleOptimizer of Keras 3 and of TF 2.4 on, of TF 2.0 to 2.3, and TFOptimizer.
        inner = [getattr(value, name, None) for name in ("inner_optimizer", "_optimizer", "optimizer", "optimizers")]
    distinct = []
    for found in [found for each in inner if each is not value for found in optimizers_in(each)]:
        if not any(found is each for each in distinct):
            distinct.append(found)
    return distinct


def optimizers_of(model):
    """The optimizers of a model that accumulate: its `optimizer`, the one inside of that, those in its attributes."""
    attributes = getattr(model, "__dict__", {})
    return optimizers_in([getattr(model, "optimizer", None)] + [attributes[name] for name in sorted(attributes)])


def windows_of(model):
    """A function that picks, of the keys of an optimizer's windows, those of what the model trains now.

    It is the window of all its trainable variables. Others that the model does not know, such as a loss's, may be in
    it. Where there is none, as in a GAN, it is the windows of some of these variables. It is never the window of a
    variable that is frozen now, or of another model.
    """
    # What a graph trains is settled by `compile`.
    trained = getattr(model, "_collected_trainable_weights", None) or model.trainable_weights
    trained, known = _keys(trained), _keys(model.weights)

    def pick(keys):
        whole = [key for key in keys if trained <= set(key) and not (set(key) - trained) & known]
        return whole or [key for key in keys if set(key) <= trained]

    return pick


def _keys(variables):
    return {_ops.variable_key(variable) for variable in variables}
