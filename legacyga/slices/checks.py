"""Raise errors for what cannot train in slices; find losses that graph mode must compute over the whole batch."""

from legacyga.backend import features
from legacyga.backend import ops as _ops
from legacyga.backend.messages import shown
from legacyga.optimizers import loss_divisor
from legacyga.slices import losses as _losses
from legacyga.slices import means

REPLICAS = (
    "A batch cannot be cut into slices under a strategy, except under MirroredStrategy in eager mode. Received: {} of "
    "{} replicas. Give fit batches of a slice's size, and compile the model with "
    "legacyga.wrap(optimizer, gradient_accumulation_steps)."
)
EXCHANGES = (
    "A layer that exchanges values between replicas in its call cannot stand in the loop over a batch's slices. "
    "Received: {}. Give it synchronized=False, or take BatchNormalization."
)
AUTO_ON_REPLICAS = (
    'size="auto" takes a batch again on one device, not on replicas. Received: {}. Give micro_batch a number.'
)
# Attributes of an optimizer that scales the loss, of Keras or of tf.compat.v1.train.
SCALES = ("get_unscaled_gradients", "_unscale_grads", "_loss_scale")
LOSS_SCALE = (
    "In graph mode a batch cannot be cut for an optimizer that scales the loss. Received: {}. Give fit batches of a "
    "slice's size, and compile the model with legacyga.wrap(optimizer, gradient_accumulation_steps)."
)


def check_compiled(home, model, size):
    """Raise ValueError if a compiled model cannot train in slices."""
    strategy = features.strategy_of_model(model)
    if strategy is not None:
        with strategy.scope():
            check_strategy(home, model, size)
    # Keras puts an optimizer of tf.compat.v1.train into one of its own.
    given = (model.optimizer, getattr(model.optimizer, "optimizer", None))
    if home.graph_mode and any(hasattr(each, name) for each in given for name in SCALES):
        raise ValueError(LOSS_SCALE.format(shown(model.optimizer)))


def check_strategy(home, model, size=None):
    """Raise ValueError under a strategy on which a model cannot train in slices of this `size`."""
    strategy = _ops.Ops(home.tf).replicas.entered_strategy
    # In graph mode Keras trains even a model under a OneDeviceStrategy in a loop that does not call a `SlicedFunction`.
    if strategy is None or (isinstance(strategy, home.tf.distribute.OneDeviceStrategy) and not home.graph_mode):
        return
    if home.graph_mode or type(strategy) is not home.tf.distribute.MirroredStrategy:
        raise ValueError(REPLICAS.format(shown(strategy), strategy.num_replicas_in_sync))
    if size == "auto":
        raise ValueError(AUTO_ON_REPLICAS.format(shown(strategy)))
    for layer in features.layers_of(model):
        if type(layer).__name__ == "SyncBatchNormalization" or getattr(layer, "synchronized", False):
            raise ValueError(EXCHANGES.format(shown(layer)))


def doubts_in_graph(home, model, loss, params):
    """Yield each `means.Doubt` about the tensor `loss` of a graph-mode model, which trains the variables `params`."""
    if any(each is not None for each in dividing_masks(home, model)):
        yield means.Doubt("an output with a mask, by which the loss is divided", True)
    # In TensorFlow 1 a dimension is an object with a `value`.
    if any(getattr(each, "value", each) != 1 for each in loss.shape.dims or ()):
        yield means.Doubt("what add_loss is given, which has a number for each sample", True)
    # Standalone Keras and tf.keras up to TF 1.12 sum activity regularizers over the batch. Delete with TF 1.12.
    sums_up = home.is_standalone or hasattr(model, "stateful_metric_names")
    if sums_up and any(getattr(each, "activity_regularizer", None) is not None for each in layers_within(model)):
        yield means.Doubt("an activity_regularizer, which is a sum over the batch", True)
    for each in getattr(model, "losses", ()):
        # If a loss has a row for each sample, the shape of `loss` has shown it above, or Keras takes its mean.
        if not hasattr(each, "op") or each.shape.ndims and each.shape.as_list()[0] is None:
            continue
        is_mean = None
        if each.shape.ndims is not None:
            number = home.tf.reshape(each, []) if each.shape.ndims and each.shape.num_elements() == 1 else each
            is_mean = number.shape.ndims == 0 and loss_divisor.is_mean(_ops.Ops(home.tf), number, params)
        if not is_mean:
            yield means.Doubt("the number {} of add_loss".format(shown(each)), is_mean is False)
    yield from means.doubts_of_compiled(home, model, False)


def layers_within(model):
    """Return a graph-mode model and the layers within it, also within models and wrappers such as TimeDistributed."""
    found, stack = {}, [model]
    while stack:
        layer = stack.pop()
        if id(layer) not in found:
            found[id(layer)] = layer
            # A layer of the program's own may call a number or itself so.
            inner = getattr(layer, "layers", None)
            stack.extend(inner if isinstance(inner, (list, tuple)) else [])
            stack.extend([layer.layer] if hasattr(layer, "layer") else [])
    return list(found.values())


def dividing_masks(home, model):
    """Return [the mask or None of each output] if graph mode divides losses by what masks keep, else []."""
    if not getattr(model, "inputs", None):
        return []
    # Up to TF 1.13 masks divide the losses of functions, not those of loss objects. Delete with TF 1.13.
    functions = [each for each in getattr(model, "loss_functions", None) or [] if not hasattr(each, "reduction")]
    if functions and features.finds_masks_by_call(home):
        # A Sequential accepts no list.
        inputs = model.inputs if len(model.inputs) > 1 else model.inputs[0]
        return means.leaves(model.compute_mask(inputs, None))
    if functions and features.divides_functions_by_masks(home) or features.divides_by_masks(home):
        # Here compute_mask would call the layers again, and their losses and updates would count twice.
        return [_losses.mask_of(each) for each in model.outputs]
    return []
