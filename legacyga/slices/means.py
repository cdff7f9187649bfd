"""Decide whether a batch's loss is known to be a mean over its samples: if so, each slice is computed only once."""

import collections
import weakref

from legacyga.backend import features
from legacyga.backend.messages import shown, warn
from legacyga.slices.batches import inner_model

WRONG = "recompute=False is for a loss that is a mean over the samples. Received: {}. Leave recompute out."
TWICE = (
    "micro_batch computes each slice of {} twice, for {}. If the loss is a mean over the samples nevertheless, pass "
    "recompute=False to compute each slice once. recompute=True silences this warning."
)

# Parts of the names of Keras's losses that read an output's last dimension as classes, and take no mean over it.
OVER_CLASSES = ("categorical", "kl", "kullback", "cosine")
# Keras's losses that take a label 0 for -1 if all labels of the batch are 0 or 1.
OF_LABELS = ("hinge", "squared_hinge", "squaredhinge")

# {model: whether its last batch in slices computed them twice}
_CHOSEN = weakref.WeakKeyDictionary()
# The models for which `TWICE` was shown.
_WARNED = weakref.WeakSet()


def check_recompute(recompute):
    if recompute is not None and not isinstance(recompute, bool):
        raise ValueError("recompute must be True, False or None. Received: {}".format(shown(recompute)))
    return recompute


class Doubt(collections.namedtuple("Doubt", ["text", "is_wrong"])):
    """Why a loss may not be a mean over the samples. `is_wrong`: it is none, and `recompute=False` an error."""


def recomputes(model):
    """Whether the slices of a model's last batch were computed twice.

    Args:
        model: a model.

    Returns:
        True or False. None before the first batch in slices.

    Examples:
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


def choose(model, recompute, find_doubts):
    """Decide whether to compute a model's slices twice, and warn once if a doubt is the reason.

    Args:
        find_doubts: a function without arguments that yields each `Doubt`.

    Raises:
        ValueError: `recompute` is False, and the loss is certain not to be a mean over the samples.
    """
    if recompute is False:
        wrong = next((each for each in find_doubts() if each.is_wrong), None)
        if wrong is not None:
            raise ValueError(WRONG.format(wrong.text))
    doubt = next(iter(find_doubts()), None) if recompute is None else None
    _CHOSEN[model] = bool(recompute or doubt)
    if doubt and model not in _WARNED:
        _WARNED.add(model)
        warn(TWICE.format(shown(model), doubt.text))
    return _CHOSEN[model]


def doubts_of_batch(home, model, data, look):
    """Yield each `Doubt` about a model's loss for a batch, in eager mode. `look()` returns the `recompute.Seen`."""
    parts = data if isinstance(data, (tuple, list)) else (data,)
    weighted = len(parts) > 2 and parts[2] is not None
    targets = home.tf.nest.flatten(parts[1]) if len(parts) > 1 else []
    if any(isinstance(each, home.tf.RaggedTensor) for each in targets):
        yield Doubt("ragged targets", True)
    yield from doubts_of_compiled(home, model, weighted)
    if not home.is_its_own(type(model).__call__) or getattr(model, "activity_regularizer", None) is not None:
        yield Doubt("a __call__ or an activity_regularizer of the model's own", False)
    seen = look()
    if seen.masked and features.divides_by_masks(home):
        yield Doubt("an output with a mask, by which the loss is divided", True)
    if any(shape.ndims is not None and shape.ndims < 2 for shape in seen.shapes):
        if weighted and given_losses(model):
            yield Doubt("sample weights for an output of one dimension, whose loss is one number", True)
        loss = next((each for each in given_losses(model) if any(part in _name(each) for part in OVER_CLASSES)), None)
        if loss is not None:
            yield Doubt("the loss {}, for which an output of one dimension is one sample".format(shown(loss)), False)
    shapes = [home.tf.TensorShape(getattr(each, "shape", None)) for each in targets]
    # Lists of one length are in one order. Else any of the outputs may be that of a target.
    is_paired = len(targets) == len(seen.shapes) and not isinstance(parts[1], dict)
    outputs = [[each] for each in seen.shapes] if is_paired else [seen.shapes] * len(targets)
    pairs = zip(shapes, outputs)
    unlike = next((each for each, found in pairs if not any(_fit(model, each, output) for output in found)), None)
    if unlike is not None:
        yield Doubt("targets of shape {}, which are broadcast to outputs of another rank".format(unlike), False)
    if seen.adds_rows:
        yield Doubt("what add_loss is given, which has a number for each sample", True)


def _fit(model, target, output):
    """Whether Keras compares a target with an output sample by sample, not broadcast to all pairs of samples."""
    if target.ndims is None or output.ndims is None or target.ndims == output.ndims:
        return True
    if output.ndims == target.ndims + 1:
        return output[-1] in (1, None) or any("sparse" in _name(each) for each in given_losses(model))
    return target.ndims == output.ndims + 1 and target[-1] in (1, None)


def doubts_of_compiled(home, model, weighted):
    """Yield each `Doubt` about the losses that a model was compiled with."""
    for loss in given_losses(model):
        reduction = getattr(loss, "reduction", "sum_over_batch_size")
        # In graph mode Keras takes the mean of an unreduced loss itself.
        if reduction == "sum" or reduction in (None, "none") and not home.graph_mode:
            yield Doubt("the loss {} with reduction={}".format(shown(loss), shown(reduction)), True)
        if weighted and reduction == "mean_with_sample_weight":
            yield Doubt("the loss {} with reduction={}, and sample weights".format(shown(loss), shown(reduction)), True)
        ignored = _argument(loss, "ignore_class")
        if ignored is not None and not home.graph_mode:
            yield Doubt("the loss {} with ignore_class={}".format(shown(loss), ignored), True)
        if _joins_samples(loss):
            yield Doubt("the loss {}, which takes all samples of a batch together".format(shown(loss)), True)
        if _name(loss) in OF_LABELS and features.looks_at_all_labels(home):
            yield Doubt("the loss {}, which looks at all labels of a batch".format(shown(loss)), False)
        if not _is_homes(home, loss):
            yield Doubt("the loss {}, which Keras does not know".format(shown(loss)), False)
    is_own = "compute_loss" in vars(model) or not _is_of_keras_model(home, model, "compute_loss")
    if is_own and not home.graph_mode:
        yield Doubt("a compute_loss of the model's own", True)


def is_trained_by_keras(home, model):
    """Whether a model has neither a `train_step` nor a `compute_loss` of its own."""
    return all(_is_of_keras_model(home, model, name) for name in ("train_step", "compute_loss"))


def _is_of_keras_model(home, model, name):
    """Whether a method of a model is that of Keras's `Model`, if this has one. Keras's own Distiller has another."""
    method = getattr(home.module.models.Model, name, None)
    return method is None or getattr(type(model), name) is method


def _is_homes(home, given):
    """Whether a loss is Keras's own, given as a name, a function or an object."""
    if isinstance(given, str):
        try:
            given = home.module.losses.get(given)
        except ValueError:
            # The program registered the name only while it compiled the model.
            return False
    parts = [given] + [getattr(given, name, None) for name in ("fn", "_fn")]
    return all(home.is_its_own(each) for each in parts if each is not None)


def _argument(loss, name):
    """Return an argument that a loss was made with, None if it was not given."""
    # A loss object stores the arguments of its function; a functools.partial has `keywords`.
    kept = [getattr(loss, each, None) or {} for each in ("_fn_kwargs", "keywords")]
    found = [each.get(name) for each in kept] + [getattr(loss, name, None)]
    return next((each for each in found if each is not None), None)


def _joins_samples(loss):
    """Whether a loss combines samples: over an `axis` that may be the batch's, in sums over the batch, or in pairs."""
    axes = _argument(loss, "axis")
    if axes is None:
        return _name(loss) in ("dice", "tversky", "circle")
    # In an output of two dimensions, -2 is the axis of the samples.
    return any(axis == 0 or axis < -1 for axis in (axes if isinstance(axes, (list, tuple)) else (axes,)))


def _name(loss):
    return (loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)).lower()


def given_losses(model):
    """Return the losses that a model was compiled with, without the None of outputs that have none."""
    return [each for each in leaves(getattr(model, "loss", None)) if each is not None]


def leaves(value):
    """Return the leaves of nested lists, tuples and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, (list, tuple)) else [value]
