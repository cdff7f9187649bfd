"""What cannot be trained in slices, which is an error; and, in graph mode, what no slice's loss alone is right for."""

import contextlib
import importlib

from legacyga.slices import losses as _losses
from legacyga.slices import means

REPLICAS = (
    "A batch cannot be cut into slices under a strategy: what layers exchange between replicas cannot stand in a loop. "
    "Received: {!r} of {} replicas. Give fit batches of a slice's size, and compile the model with "
    "legacyga.wrap(optimizer, gradient_accumulation_steps)."
)
LOSS_SCALE = (
    "In graph mode a batch cannot be cut for an optimizer that scales the loss. Received: {!r}. Give fit batches of {} "
    "samples, and compile the model with legacyga.wrap(optimizer, gradient_accumulation_steps)."
)

_DIVIDES = {}


def check_compiled(home, model, size):
    """Raise where a compiled model cannot train in slices."""
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is not None:
        with strategy.scope():
            check_strategy(home.tf)
    if home.graph_mode and hasattr(model.optimizer, "get_unscaled_gradients"):
        raise ValueError(LOSS_SCALE.format(model.optimizer, size))


def check_strategy(tf):
    """Raise under a strategy of which a step is more than the function that one replica runs."""
    distribute = getattr(tf, "distribute", None)
    if not hasattr(distribute, "has_strategy") or not distribute.has_strategy():
        return
    strategy = distribute.get_strategy()
    if not isinstance(strategy, distribute.OneDeviceStrategy):
        raise ValueError(REPLICAS.format(strategy, strategy.num_replicas_in_sync))


def doubt_in_graph(home, model, loss):
    """The `means.Doubt` about what a model of graph mode computes of each batch, None without one.

    Args:
        loss: the model's, a tensor.
    """
    if is_divided_by_masks(home, model):
        return means.Doubt("an output with a mask, by which the loss is divided", True)
    # In TF 1 a dimension is an object.
    if any(getattr(each, "value", each) != 1 for each in loss.shape.dims or ()):
        return means.Doubt("what add_loss is given, which has a number for each sample", True)
    # Standalone Keras, and tf.keras up to TF 1.12.
    sums_up = home.is_standalone or hasattr(model, "stateful_metric_names")
    if sums_up and any(getattr(each, "activity_regularizer", None) is not None for each in _all_layers(model)):
        return means.Doubt("an activity_regularizer, which is a sum over the batch", True)
    return means.doubt_of_compiled(home, model, False)


def _all_layers(model):
    layers = list(model.layers)
    for layer in layers:
        layers.extend(getattr(layer, "layers", ()))
    return layers


def is_divided_by_masks(home, model):
    """Whether, in graph mode, an output's loss is divided by what its mask leaves."""
    if not getattr(model, "inputs", None):
        return False
    # In TF 1.13 that of a loss function is, and that of an object is not.
    functions = [each for each in getattr(model, "loss_functions", None) or [] if not hasattr(each, "reduction")]
    masks = []
    if functions and divides_by_mask(home):
        # These Kerases keep what it returns, and have called it in compile. A Sequential takes no list.
        inputs = model.inputs if len(model.inputs) > 1 else model.inputs[0]
        masks = means.leaves(model.compute_mask(inputs, None))
    elif _losses.divides_by_masks(home):
        # Here it would call the layers once more, and count their losses twice.
        masks = [_losses.mask_of(each) for each in model.outputs]
    return any(each is not None for each in masks)


def divides_by_weights(home):
    """Whether, in graph mode, a loss function's weighted values are divided by the sum of their weights.

    Else it is by how many weights are not 0. Deletable with TF 1.13, as `divides_by_mask` is.
    """
    return _weighs_to_one(home, "weights", [1.0, 1.0], [0.5, 0.0])


def divides_by_mask(home):
    """Whether, in graph mode, a loss function's values are divided by what a mask leaves."""
    return _weighs_to_one(home, "mask", [[1.0, 1.0]], [[0.5, 0.0]])


def _weighs_to_one(home, name, losses, values):
    """Whether this Keras makes 1 of a function's losses with `values` for the argument `name`."""
    if (home.root, name) not in _DIVIDES:
        weighted = _weighted_objective(home, lambda y_true, y_pred: y_pred)
        if weighted is None:
            return False
        with home.tf.Graph().as_default(), home.v1.Session() as session:
            # A mask is made floatx, and so are a model's losses.
            losses, values = [home.tf.constant(each, home.backend.floatx()) for each in (losses, values)]
            given = dict(dict(weights=None, mask=None), **{name: values})
            _DIVIDES[home.root, name] = bool(session.run(weighted(losses, losses, **given)) == 1.0)
    return _DIVIDES[home.root, name]


def _weighted_objective(home, loss):
    """A loss function with arguments for weights and a mask, as this Keras makes it; None from TF 1.14 on."""
    for name in (".engine.training_utils", ".engine.training"):
        with contextlib.suppress(ImportError):
            attributes = vars(importlib.import_module(home.root + name))
            for each in ("weighted_masked_objective", "_weighted_masked_objective"):
                if each in attributes:
                    return attributes[each](loss)
    return None
