"""Whether a batch's loss is known to be the mean over its samples, so that each slice is differentiated at once."""

import collections
import warnings
import weakref

from legacyga.backend import features
from legacyga.slices.batches import inner_model

WRONG = (
    "Slices that are each differentiated at once (recompute=False) are for a loss that is a mean over the samples. "
    "Received: {}. Leave recompute out."
)
TWICE = (
    "micro_batch computes each slice of {!r} twice, for {}. Where the loss is a mean over the samples all the same, "
    "and so are the metrics, recompute=False computes it once. recompute=True says nothing."
)

# {model: whether its slices are computed twice}, as they were last.
_CHOSEN = weakref.WeakKeyDictionary()


def check_recompute(recompute):
    """`recompute`; raise where it is none of its values."""
    if recompute not in (None, True, False):
        raise ValueError("recompute must be True, False or None. Received: {!r}".format(recompute))
    return recompute


class Doubt(collections.namedtuple("Doubt", ["text", "is_wrong"])):
    """Why a loss or metric is not known to be a mean over the samples, and whether it is known to be none."""


def recomputes(model):
    """Whether the slices of a model, set by `micro_batch`, are computed twice: the answer is that of its last batch.

    Args:
        model: a model.

    Returns:
        True, False, or None where it has trained on no batch of several slices.

    Example:
        >>> import numpy as np
        >>> from tensorflow import keras
        >>> import legacyga
        >>> inputs = keras.Input((1,))
        >>> model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        >>> model.compile("sgd", "mse")
        >>> legacyga.micro_batch(model, 2)
        >>> _ = model.fit(np.ones((3, 1)), np.ones((3, 1)), batch_size=3, verbose=0)
        >>> legacyga.recomputes(model), int(model.optimizer.iterations.numpy())  # squares: a mean over the samples
        (False, 1)
    """
    return _CHOSEN.get(inner_model(model))


def choose(model, recompute, find_doubt):
    """Whether a model's slices are computed twice; told once where they are without being asked for.

    Args:
        recompute: as `micro_batch` takes it.
        find_doubt: a function without arguments that returns a `Doubt`, or None.
    """
    doubt = None if recompute else find_doubt()
    if recompute is False and doubt is not None and doubt.is_wrong:
        raise ValueError(WRONG.format(doubt.text))
    is_new = model not in _CHOSEN
    _CHOSEN[model] = bool(recompute or recompute is None and doubt)
    if recompute is None and doubt and is_new:
        warnings.warn(TWICE.format(model, doubt.text), stacklevel=2)
    return _CHOSEN[model]


def doubt_of_batch(home, model, data, look):
    """The `Doubt` about what a model computes of a batch in eager mode, None without one.

    Args:
        look: a function without arguments that returns what a call of the model does, a `recompute.Seen`.
    """
    parts = data if isinstance(data, (tuple, list)) else (data,)
    weighted = len(parts) > 2 and parts[2] is not None
    targets = home.tf.nest.flatten(parts[1]) if len(parts) > 1 else []
    if any(isinstance(each, home.tf.RaggedTensor) for each in targets):
        return Doubt("ragged targets", True)
    found = doubt_of_compiled(home, model, weighted)
    if found:
        return found
    seen = look()
    if seen.masked and features.divides_by_masks(home):
        return Doubt("an output with a mask, by which the loss is divided", True)
    if weighted and given_losses(model) and any(rank is not None and rank < 2 for rank in seen.ranks):
        return Doubt("sample weights for an output of one dimension, whose loss is one number", True)
    if seen.adds_rows:
        return Doubt("what add_loss is given, which has a number for each sample", True)
    return None


def doubt_of_compiled(home, model, weighted):
    """The `Doubt` about the losses and metrics that a model was compiled with, None without one."""
    for loss in given_losses(model):
        reduction = getattr(loss, "reduction", "sum_over_batch_size")
        # In graph mode Keras itself takes the mean of what is not reduced.
        if reduction == "sum" or reduction in (None, "none") and not home.graph_mode:
            return Doubt("the loss {!r} with reduction={!r}".format(loss, reduction), True)
        if weighted and reduction == "mean_with_sample_weight":
            return Doubt("the loss {!r} with reduction={!r}, and sample weights".format(loss, reduction), True)
        ignored = _ignored_class(loss)
        if ignored is not None and not home.graph_mode:
            return Doubt("the loss {!r} with ignore_class={!r}".format(loss, ignored), True)
        if _joins_samples(home, loss):
            return Doubt("the loss {!r}, which takes all samples of a batch together".format(loss), True)
        if not _is_homes(home, loss, home.module.losses):
            return Doubt("the loss {!r}, which Keras does not know".format(loss), False)
    if not _is_homes_method(home, model, "compute_loss"):
        return Doubt("a compute_loss of the model's own", False)
    for metric in _given_metrics(model):
        if not _is_homes(home, metric, home.module.metrics):
            return Doubt("the metric {!r}, which Keras does not know".format(metric), False)
    return None


def _is_homes_method(home, model, name):
    method = getattr(type(model), name, None)
    return method is None or method.__module__.startswith(home.root + ".")


def _is_homes(home, given, module):
    """Whether a loss or metric is Keras's own: its name, its function, or an object of one."""
    if isinstance(given, str):
        try:
            given = module.get(given)
        except ValueError:
            # "accuracy" is one that only a compiled model knows.
            return True
    parts = [given] + [getattr(given, name, None) for name in ("fn", "_fn")]
    modules = [getattr(each, "__module__", None) or "" for each in parts if each is not None]
    return all(each.startswith(home.root + ".") for each in modules)


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
    return axis is None or 0 in (axis if isinstance(axis, (list, tuple)) else (axis,))


def given_losses(model):
    """The losses that a model was compiled with, without the places that have none."""
    return [each for each in leaves(getattr(model, "loss", None)) if each is not None]


def _given_metrics(model):
    """The metrics that a model was compiled with."""
    found = []
    # Eager mode of TensorFlow's Kerases and of Keras 3, then graph mode, of old Kerases too.
    for kept in (getattr(model, "compiled_metrics", None), getattr(model, "_compile_metrics", None)):
        found += [getattr(kept, name, None) for name in ("_user_metrics", "_user_weighted_metrics")]
    for name in ("_compile_metrics", "_compile_weighted_metrics", "metrics", "weighted_metrics"):
        kept = vars(model).get(name)
        found.append(kept if isinstance(kept, (dict, list, tuple)) else None)
    return [each for each in leaves(found) if each is not None]


def leaves(value):
    """The elements of nested lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, (list, tuple)) else [value]
