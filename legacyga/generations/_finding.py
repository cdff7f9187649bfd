"""The accumulating optimizers of a model, and which windows are the model's."""

from legacyga import _compat, _ops
from legacyga.generations import _base


def optimizers_in(value):
    """The optimizers that accumulate in a value, each once: itself, in a list, or inside of a wrapper."""
    if isinstance(value, _base.AccumulatingOptimizer):
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


def is_windows_of(model):
    """A function of the keys of a window's variables: whether it is a window of what the model trains now.

    Those are the windows of its trainable variables, or of some, or of all of them and of others that it does not know
    (of a loss with variables of its own). Not those of a variable that is frozen now, nor another model's.
    """
    # What a graph trains is settled by `compile`.
    trained = getattr(model, "_collected_trainable_weights", None) or model.trainable_weights
    trained, known = _keys(trained), _keys(model.weights)

    def of(key):
        others = set(key) - trained
        return not others or (trained <= set(key) and not others & known)

    return of


def _keys(variables):
    return {_ops.variable_key(variable) for variable in variables}
