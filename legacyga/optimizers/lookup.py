"""The accumulating optimizers of a model, and which windows are its fit's."""

from legacyga.backend import homes
from legacyga.backend.tensors import variable_key
from legacyga.optimizers import surface


def optimizers_in(value):
    """The optimizers that accumulate in a value, each once: itself, in a list or a dict, or inside of a wrapper."""
    if isinstance(value, surface.AccumulatingOptimizer):
        return [value]
    inner = []
    if isinstance(value, (list, tuple, dict)):
        inner = list(value.values()) if isinstance(value, dict) else value
    elif homes.generation_of(type(value)) is not None:
        # The names that LossScaleOptimizer has for the one in it, by version, and TFOptimizer.
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


class WindowsOfFit(object):
    """Which windows of an optimizer are a fit's: those of what its model trains now, and those it was seen to train.

    The flags `trainable` alone do not tell. A train_step may set them on its way, or train several lists of variables,
    and a training function that was made before goes on with what is frozen now. A window that was open before the fit
    and that takes no mini-step in it is another's: of variables that were frozen since, or of another model.

    Args:
        model: the model, whose fit is about to begin.
        optimizer: one of its optimizers that accumulate.
    """

    def __init__(self, model, optimizer):
        self._model, self._accumulation = model, surface.accumulation_of(optimizer)
        self._untouched = self._registry.under_way()

    @property
    def _registry(self):
        return self._accumulation.registry()

    def look(self):
        """See which windows that were open before have taken mini-steps: K of them later all counts are the same."""
        if self._untouched:
            self._untouched &= self._registry.under_way()

    def end(self):
        """End the fit's windows with an update each."""
        self._registry.end(self._pick)

    def drop(self):
        """Forget what is in the fit's windows."""
        self._registry.drop(self._pick)

    def _pick(self, keys):
        """Those of the keys of the optimizer's windows that are the fit's."""
        self.look()
        seen = {key for key, _ in self._registry.under_way() - self._untouched}
        now = _trained_now(self._model, keys)
        return [key for key in keys if key in seen or key in now]


def _trained_now(model, keys):
    """Those of the keys of an optimizer's windows that are of what the model trains now.

    It is the window of all its trainable variables. Others that the model does not know, such as a loss's, may be in
    it. Where there is none, as in a GAN, it is the windows of some of these variables. It is never the window of a
    variable that is frozen now, or of another model.
    """
    # What a graph trains is settled by `compile`.
    trained = getattr(model, "_collected_trainable_weights", None) or model.trainable_weights
    trained, known = _keys(trained), _keys(model.weights)
    whole = [key for key in keys if trained <= set(key) and not (set(key) - trained) & known]
    return whole or [key for key in keys if set(key) <= trained]


def _keys(variables):
    return {variable_key(variable) for variable in variables}
