"""What cannot be trained in slices: several replicas, losses that are no means over the samples. Each is an error."""

import contextlib
import importlib

from legacyga.slices import losses as _losses

SUMMED = (
    "A batch can be cut into slices where its loss is a mean over the samples. Received: the loss {!r} with "
    "reduction={!r}. Give it the reduction that it has by default."
)
REPLICAS = (
    "A batch cannot be cut into slices under a strategy: what layers exchange between replicas cannot stand in a loop. "
    "Received: {!r} of {} replicas. Give fit batches of a slice's size, and compile the model with "
    "legacyga.wrap(optimizer, gradient_accumulation_steps)."
)
MASKED = (
    "{} divides a loss by the time steps that a mask leaves, and slices leave numbers of their own. Received: {!r}, "
    "whose output has a mask. End it with a layer that takes no mask, and weigh the time steps by sample_weight."
)
IGNORED = (
    "A batch can be cut into slices where its loss is a mean over the samples. {!r} divides one by the elements that "
    "ignore_class={!r} leaves. Leave it out, and weigh what is to be ignored by a sample_weight of 0."
)
JOINT = (
    "A batch can be cut into slices where its loss is a mean over the samples. Received: {!r}, which takes all samples "
    "of a batch together. Give it the axes of one sample where it has an axis (Dice(axis=(1, 2, 3))), or take another."
)
ONE_NUMBER = (
    "A batch can be cut into slices where its loss is a mean over the samples. Received: {!r}, one number for a whole "
    "batch, which {} multiplies by the mean of the sample weights. Let the loss return a number for each sample; that "
    "of an output of one dimension does where this has a last dimension of 1, such as keras.layers.Reshape((1,))."
)
RAGGED = (
    "A batch can be cut into slices where its loss is a mean over the samples. That of ragged targets is one over "
    "all their elements. Received: {!r}. Make them dense, and weigh what is padded by a sample_weight of 0."
)
ADDED = (
    "A batch can be cut into slices where what add_loss is given is one number. {} takes the sum of what has one for "
    "each sample. Received: {!r}. Give add_loss the mean over the samples."
)
ACTIVITY = (
    "A batch can be cut into slices where its loss is a mean over the samples. {} adds up an activity_regularizer over "
    "them. Received: the layer {!r} with {!r}. Leave it out, or add its mean to the loss with add_loss."
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
    check_losses(home, model, False)
    check_activities(home, model)
    if home.graph_mode:
        if hasattr(model.optimizer, "get_unscaled_gradients"):
            raise ValueError(LOSS_SCALE.format(model.optimizer, size))
        if is_divided_by_masks(home, model):
            raise ValueError(MASKED.format(home, model))
        check_added(home, [getattr(model, "total_loss", None)])


def check_model(model, tf):
    """Raise where a model trains under a strategy of several replicas."""
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is not None:
        with strategy.scope():
            check_strategy(tf)


def check_strategy(tf):
    """Raise under a strategy of which a step is more than the function that one replica runs."""
    distribute = getattr(tf, "distribute", None)
    if not hasattr(distribute, "has_strategy") or not distribute.has_strategy():
        return
    strategy = distribute.get_strategy()
    if not isinstance(strategy, distribute.OneDeviceStrategy):
        raise ValueError(REPLICAS.format(strategy, strategy.num_replicas_in_sync))


def check_losses(home, model, weighted):
    """Raise where a loss says that it is no mean over the samples, of a batch with sample weights or without."""
    for loss in _leaves(getattr(model, "loss", None)):
        reduction = getattr(loss, "reduction", "sum_over_batch_size")
        # In graph mode Keras itself takes the mean of what is not reduced.
        is_sum = reduction == "sum" or reduction in (None, "none") and not home.graph_mode
        if is_sum or weighted and reduction == "mean_with_sample_weight":
            raise ValueError(SUMMED.format(loss, reduction))
        ignored = _ignored_class(loss)
        if ignored is not None and not home.graph_mode:
            raise ValueError(IGNORED.format(loss, ignored))
        if _joins_samples(home, loss):
            raise ValueError(JOINT.format(loss))


def check_added(home, losses):
    """Raise where a loss has more than one element."""
    for each in losses:
        dims = getattr(getattr(each, "shape", None), "dims", None) or ()
        # In TF 1 a dimension is an object.
        if any(getattr(dim, "value", dim) != 1 for dim in dims):
            raise ValueError(ADDED.format(home, each))


def check_targets(tf, data):
    """Raise where a batch's targets are ragged."""
    targets = data[1] if isinstance(data, (tuple, list)) and len(data) > 1 else None
    for each in tf.nest.flatten(targets):
        if isinstance(each, tf.RaggedTensor):
            raise ValueError(RAGGED.format(each))


def _ignored_class(loss):
    """The class that a loss of Keras leaves out of its mean, None where there is none."""
    # A loss object keeps the arguments of its function; or it is a functools.partial of one.
    kept = [getattr(loss, name, None) or {} for name in ("_fn_kwargs", "keywords")]
    found = [each.get("ignore_class") for each in kept] + [getattr(loss, "ignore_class", None)]
    return next((each for each in found if each is not None), None)


def _joins_samples(home, loss):
    """Whether a loss is one of Keras 3 that is made of the sums over a whole batch, or of its pairs."""
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    if not home.is_keras3 or name.lower() not in ("dice", "tversky", "circle"):
        return False
    axis = getattr(loss, "axis", None)
    return _is_homes(home, loss) and (axis is None or 0 in (axis if isinstance(axis, (list, tuple)) else (axis,)))


def _is_homes(home, loss):
    return isinstance(loss, str) or (getattr(loss, "__module__", None) or "").startswith(home.root + ".")


def given_losses(model):
    """The losses that a model was compiled with, without the places that have none."""
    return [each for each in _leaves(getattr(model, "loss", None)) if each is not None]


def _leaves(value):
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in _leaves(each)] if isinstance(value, (list, tuple)) else [value]


def check_activities(home, model):
    """Raise where what a layer gives is penalized by a sum over the batch."""
    if not _sums_activities(home, model):
        return
    layers = list(model.layers)
    for layer in layers:
        layers.extend(getattr(layer, "layers", ()))
        if getattr(layer, "activity_regularizer", None) is not None:
            raise ValueError(ACTIVITY.format(home, layer, layer.activity_regularizer))


def _sums_activities(home, model):
    """Whether an activity_regularizer is: in standalone Keras, up to TF 1.12, and in Keras 3 up to 3.13."""
    if home.graph_mode or not home.is_keras3:
        return home.is_standalone or hasattr(model, "stateful_metric_names")
    if (home.root, "activities") not in _DIVIDES:
        # A training step's trace may be under way, and a regularizer makes a tensor of its factor.
        with home.tf.init_scope():
            layer = home.module.layers.Activation("linear", activity_regularizer=home.module.regularizers.L1(1.0))
            layer(home.tf.ones([2, 1]))
            _DIVIDES[home.root, "activities"] = float(sum(layer.losses)) == 1.0
    return not _DIVIDES[home.root, "activities"]


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
        masks = _leaves(model.compute_mask(inputs, None))
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


def check_given(home, model, given, y_pred, sample_weight):
    """Raise, in eager mode, where what a slice's losses gave is no mean over its samples."""
    if _losses.divides_by_masks(home):
        if any(_losses.mask_of(leaf) is not None for leaf in home.tf.nest.flatten(y_pred)):
            raise ValueError(MASKED.format(home, model))
    found = None if sample_weight is None else _losses.one_number(home, given)
    if found is not None:
        raise ValueError(ONE_NUMBER.format(found, home))
