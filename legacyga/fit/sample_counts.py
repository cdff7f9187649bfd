"""How many samples a micro-batch has: in the batch itself, as the training step gets it."""

import warnings

from legacyga.backend import features, homes
from legacyga.fit import hooks, model_step
from legacyga.optimizers import lookup, surface
from legacyga.slices import checks, losses

MASKED = (
    "{} divides a loss by the time steps that a mask leaves, and in graph mode batches weigh alike. A window is "
    "the large batch only where they leave equally many. End the model with a layer that takes no mask, and weigh "
    "the time steps by sample_weight."
)
ONE_NUMBER = (
    "The loss {!r} is one number for a whole batch. With sample_weight or class_weight {} multiplies it by the mean of "
    "the batch's weights, and where these means differ a window is not the large batch. Let the loss return a number "
    "for each sample. Without them nothing is wrong."
)


class ToldSizes(object):
    """The sizes of batches, told before each, for fit of TF 2.0 and 2.1 in eager mode; deletable with 2.1.

    No Keras of these calls a `train_step`. They tell callbacks the size of a batch of arrays.
    """

    def __init__(self, tf):
        self._tf = tf
        self._size = tf.Variable(0.0, trainable=False, name="sample_counts/size")
        self._first = tf.Variable(0.0, trainable=False, name="sample_counts/first")

    def __deepcopy__(self, memo):
        return self

    def tell(self, size):
        """The batch to come has so many samples, 0 where it is not known."""
        self._size.assign(float(size))
        if size and not self._first.numpy():
            self._first.assign(float(size))

    def __call__(self):
        """The weight of the mini-step that is about to be taken: the size in units of the first, told once."""
        size = self._size.read_value()
        with self._tf.control_dependencies([size]):
            self._size.assign(0.0)
        return self._tf.where(size > 0, size / self._tf.maximum(self._first.read_value(), 1.0), 1.0)


def start_fit(model, optimizers):
    """See to it that the batches of a fit that is about to begin are weighed.

    The training step is put in place for the model's training function, which is made anew if it was without.

    Returns:
        A `model_step.TrainStep`, a `ToldSizes`, or None where nothing is weighed.
    """
    if not model_step.are_counted(optimizers) or lookup.optimizers_in(model.optimizer) != optimizers:
        return None
    home, homes_own = surface.home_of(optimizers[0]), hooks.homes_train_step(type(model))
    if home.graph_mode:
        _say_unequal(homes.home_of(model.optimizer), model, surface.accumulation_of(optimizers[0]))
        return None
    if homes_own is None:
        # A model of Keras 2.3 has made its training function before any callback is told of the fit.
        is_told = hooks.is_of_tensorflow(type(model))
        return _told_sizes(home, surface.accumulation_of(optimizers[0])) if is_told else None
    step = model_step.installed(model)
    # A train_step of the user's own need not count, nor call the optimizer once a batch.
    if step is None:
        return None
    step.count()
    return step


def say_unweighed(optimizers, reason):
    """Say, once of an optimizer, that its mini-steps weigh alike, unless something else has given them weights."""
    for optimizer in optimizers:
        accumulation = surface.accumulation_of(optimizer)
        if not accumulation.weights.knows and accumulation.settings.reduction == "mean":
            accumulation.weights.knows = True
            warnings.warn(
                "All batches weigh alike, whatever their sizes. {} Batches of one size are exact as they are.".format(
                    reason
                ),
                stacklevel=5,
            )


def _say_unequal(home, model, accumulation):
    """Say, once of an optimizer in graph mode, why its mini-steps would need weights that nothing tells here."""
    if accumulation.weights.has_warned or not accumulation.steps.has_windows:
        return
    text = MASKED.format(home) if checks.is_divided_by_masks(home, model) else None
    if not text and features.multiplies_one_number(home) and not accumulation.weights.knows_losses:
        accumulation.weights.knows_losses = True
        found = losses.number_in_graph(model)
        text = None if found is None else ONE_NUMBER.format(found, home)
    if text:
        accumulation.weights.has_warned = True
        warnings.warn(text, stacklevel=4)


def _told_sizes(home, accumulation):
    if home.tf.distribute.has_strategy() or accumulation.told is None and accumulation.registry().windows:
        if not home.tf.distribute.has_strategy():
            warnings.warn(
                "This model was trained before without a GradientAccumulationCallback, and TensorFlow {} keeps its "
                "training function, in which every batch weighs the same. Compile the model again for batches that "
                "weigh as much as they have samples.".format(home.tf_version),
                stacklevel=4,
            )
        return None
    if accumulation.told is None:
        accumulation.told = ToldSizes(home.tf)
    return accumulation.told
