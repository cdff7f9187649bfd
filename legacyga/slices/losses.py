"""Record how Keras computes a batch's losses: their values, their masks, and their divisor."""

import collections
import contextlib

from legacyga.backend import features
from legacyga.backend.messages import shown
from legacyga.slices.batches import inner_model

UNEVEN = (
    "{} divides the loss of each output by what its own mask leaves, and a micro-batch has one weight. A window is the "
    "large batch only where these masks leave equally many elements. Give the outputs one mask, or end them all with a "
    "layer that takes none."
)
ONE_NUMBER = (
    "The loss {} is one number for a whole batch, and {} multiplies it by the mean of the batch's sample weights. "
    "Where these means differ within a window, its result is not the large batch's. Let the loss return a number for "
    "each sample."
)
BY_WEIGHTS = (
    "The loss {} is divided by the sum of the sample weights, and a micro-batch weighs its samples. Give the model a "
    "train_step that returns legacyga.train_step(self, data, weight=tf.reduce_sum(data[2]))."
)
SUMS = (
    "{} adds up the losses of a batch's samples. So the mean of a window's K batches is a K-th of the large batch's "
    "gradient. Let it take their mean, or call legacyga.wrap(optimizer, gradient_accumulation_steps, "
    'reduction="sum").'
)


class Given(collections.namedtuple("Given", ["loss", "losses", "output", "mask", "ignored"])):
    """One call of a loss object: its result `losses`, with the mask `ignored`, for `output`, with the mask `mask`."""


@contextlib.contextmanager
def looked_at(home, model, look):
    """In eager mode, a context that calls `look([Given, ...], y_pred, sample_weight)` once Keras has the losses."""
    name, attributes, own = features.loss_container(home), vars(model), container_of(home, model)
    if own is None:
        yield
        return
    attributes[name] = looked = _Looked(home, own, look)
    try:
        yield
    finally:
        # If another replica's object is in place, that replica began later, ends later, and restores.
        if attributes[name] is looked:
            attributes[name] = own


def container_of(home, model):
    """Return what computes a model's losses in eager mode, None if nothing does."""
    own = vars(model).get(features.loss_container(home))
    # Replicas take turns within a step, and another replica's _Looked may still be in place.
    return own._container if isinstance(own, _Looked) else own


class _Looked(object):
    """Replaces a model's loss container during a training step: passes calls on, and calls `look` after each."""

    def __init__(self, home, container, look):
        self._home, self._container, self._look = home, container, look

    def __getattr__(self, name):
        return getattr(self._container, name)

    def __call__(self, y_true, y_pred, sample_weight=None, **kwargs):
        found = features.losses_in(self._home, self._container, y_true, y_pred)
        objects, given = {id(each): each for each in found if each is not None}, []
        with contextlib.ExitStack() as entered:
            for loss in objects.values():
                entered.enter_context(_noted(loss, given))
            value = self._container(y_true, y_pred, sample_weight, **kwargs)
        self._look(given, y_pred, sample_weight)
        return value


@contextlib.contextmanager
def _noted(loss, given):
    """A context in which each call of a loss object appends a `Given` to the list `given`."""
    attributes, own = vars(loss), loss.call
    before = {name: value for name, value in attributes.items() if name == "call"}

    def call(y_true, y_pred):
        losses = own(y_true, y_pred)
        given.append(Given(loss, losses, y_pred, mask_of(y_pred), mask_of(losses)))
        return losses

    attributes["call"] = call
    try:
        yield
    finally:
        del attributes["call"]
        attributes.update(before)


def mask_of(tensor):
    """Return the mask that Keras attaches to a tensor, None if there is none."""
    return getattr(tensor, "_keras_mask", None)


def logits_of(tensor):
    """Return the logits that Keras attaches to its softmax and sigmoid, and computes crossentropies from; else None."""
    logits = getattr(tensor, "_keras_logits", None)
    # An output that is one number has logits without rows.
    return logits if logits is not None and logits.shape.ndims else None


def activation_of(tf, tensor):
    """Return TensorFlow's function for the softmax or sigmoid that made a tensor in a trace, else None."""
    # Without attached logits, Keras computes crossentropies from the input of such an operation.
    activations = {"Softmax": tf.nn.softmax, "Sigmoid": tf.sigmoid}
    return activations.get(getattr(getattr(tensor, "op", None), "type", None)) if logits_of(tensor) is None else None


def loss_of_one_number(home, given):
    """Return the first loss that gives one number for a whole batch, as the user gave it; else None. Eager mode."""
    found = (each.loss for each in given if home.tf.TensorShape(getattr(each.losses, "shape", ())).ndims == 0)
    return next((getattr(loss, "fn", loss) for loss in found), None)


def is_one_number(model, place):
    """Whether the loss at `place`, among all that are not None, is one number for a whole batch. Graph mode.

    None if the loss cannot be called a second time.
    """
    pairs = [pair for pair in zip(model.outputs, model.loss_functions) if pair[1] is not None]
    output, loss = pairs[place]
    try:
        with output.graph.as_default():
            return getattr(loss, "call", loss)(model._feed_targets[place], output).shape.ndims == 0
    except Exception:
        # The first call of ssd_keras's SSDLoss replaces its settings by tensors; a second call fails.
        return None


def loss_of_one_number_in_graph(model):
    """Return the first loss that gives one number for a whole batch, None if there is none. Graph mode."""
    model = inner_model(model)
    losses = [each for each in getattr(model, "loss_functions", None) or [] if each is not None]
    targets = getattr(model, "_feed_targets", None) or []
    found = (loss for i, loss in enumerate(losses) if len(targets) == len(losses) and is_one_number(model, i))
    return next((getattr(loss, "fn", loss) for loss in found), None)


def divisor(home, given, y_pred, sample_weight):
    """Return the divisor of a batch's loss, and the reason if the divisor is not an exact weight for a micro-batch.

    Returns:
        A pair: the number of elements that masks and ragged targets keep, 1 for a sum over the batch, or None to use
        the number of samples; and a sentence for the user, None if the weight is exact.
    """
    tf, divides = home.tf, features.divides_by_masks(home)
    outputs = tf.nest.flatten(y_pred) if divides else []
    # A loss whose dtype differs from the output's, as in mixed precision, receives a cast output, without its mask.
    are_cast = [each.mask is None and all(each.output is not output for output in outputs) for each in given]
    if any(are_cast) and len(given) < len(outputs) and any(mask_of(each) is not None for each in outputs):
        return None, UNEVEN.format(home)
    masks = {}
    for i, (each, is_cast) in enumerate(zip(given, are_cast)):
        mask = each.mask if divides else None
        if divides and is_cast:
            mask = mask_of(outputs[min(i, len(outputs) - 1)])
        found = [part for part in (mask, each.ignored) if part is not None and _is_mean(each.loss)]
        # Keras takes a mean over all elements of ragged targets.
        found += [tf.ones_like(each.losses.flat_values)] if isinstance(each.losses, tf.RaggedTensor) else []
        if loss_of_one_number(home, [each]) is not None:
            # A loss that is one number ignores masks.
            found = []
        masks[tuple(id(part) for part in found)] = found
    sums = [each.loss for each in given if not _is_mean(each.loss)]
    if sums:
        # Nothing divides a sum over the batch: its weight is 1. Beside a mean, no weight is right.
        count = tf.constant(1, tf.int64) if len(sums) == len(given) else None
        return count, SUMS.format("The loss {}".format(shown(sums[0])))
    counts = [tf.math.count_nonzero(_all_of(tf, found)) for found in masks.values() if found]
    count = sum(counts) if counts and len(counts) == len(masks) else None
    return count, UNEVEN.format(home) if len(masks) > 1 else _why_weights_matter(home, given, sample_weight)


def _is_mean(loss):
    return getattr(loss, "reduction", None) not in ("sum", "none", None)


def _why_weights_matter(home, given, sample_weight):
    """Return why a micro-batch's weight is not exact with these sample weights, None if it is."""
    if sample_weight is None:
        return None
    found = loss_of_one_number(home, given)
    if found is not None:
        return ONE_NUMBER.format(shown(found), home)
    divided = [each.loss for each in given if getattr(each.loss, "reduction", None) == "mean_with_sample_weight"]
    return BY_WEIGHTS.format(shown(divided[0])) if divided else None


def _all_of(tf, masks):
    masks = [tf.cast(each, tf.bool) for each in masks]
    return tf.logical_and(*masks) if len(masks) > 1 else masks[0]
