"""What cannot be trained in slices, which is an error; and, in graph mode, what no slice's loss alone is right for."""

from legacyga.backend import features
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
    # A dimension is an object in TensorFlow 1.
    if any(getattr(each, "value", each) != 1 for each in loss.shape.dims or ()):
        return means.Doubt("what add_loss is given, which has a number for each sample", True)
    # Standalone Keras does, and tf.keras up to TF 1.12. Delete with TF 1.12.
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
    # The values of loss functions are, up to TF 1.13; those of loss objects are not. Delete with TF 1.13.
    functions = [each for each in getattr(model, "loss_functions", None) or [] if not hasattr(each, "reduction")]
    masks = []
    if functions and features.divides_functions_by_masks(home):
        # These Kerases keep what it returns, and have called it in compile. A Sequential takes no list.
        inputs = model.inputs if len(model.inputs) > 1 else model.inputs[0]
        masks = means.leaves(model.compute_mask(inputs, None))
    elif features.divides_by_masks(home):
        # Here it would call the layers once more, and count their losses twice.
        masks = [_losses.mask_of(each) for each in model.outputs]
    return any(each is not None for each in masks)
