"""How many samples a micro-batch has: in the batch itself, as the training step gets it."""

import types
import warnings
import weakref

from legacyga import _fit_hooks, _ops, _replicas, _window
from legacyga.generations import _finding, _surface


def samples_in(tf, data):
    """The number of samples in a batch, a scalar tensor: the first dimension of the first of its tensors."""
    first = next(leaf for leaf in tf.nest.flatten(data) if leaf is not None)
    if isinstance(first, tf.RaggedTensor):
        return first.nrows()
    return first.dense_shape[0] if isinstance(first, tf.SparseTensor) else tf.shape(first)[0]


def train_step(model, optimizer, data, weight=None):
    """The home's own `train_step`, whose mini-step has a weight: by default the samples of `data`."""
    tf = _surface.home_of(optimizer).tf
    counted = _window.Weight(samples_in(tf, data), True) if weight is None else _window.Weight(weight, False)
    with _surface.accumulation_of(optimizer).weighing(counted):
        return _fit_hooks.homes_train_step(type(model))(model, data)


class CountingTrainStep(object):
    """Stands in a model's attribute `train_step`: the home's own, in which each mini-step weighs its samples.

    It stays there after fit, as the training function does that was traced with it. So `train_on_batch`, and a fit
    without the callback, count alike.

    Args:
        model: the model, of which only a weak reference is kept.
        optimizer: its optimizer, of whose Keras it is.
    """

    def __init__(self, model, optimizer):
        self._model = weakref.ref(model)
        self._ops = _ops.Ops(_surface.home_of(optimizer).tf)
        tf = self._ops.tf
        with model.distribute_strategy.scope(), _replicas.replica_local_variables(tf):
            self._largest = tf.Variable(tf.constant(0, "int64"), trainable=False, name="sample_counts/largest")

    def __deepcopy__(self, memo):
        copied = memo.get(id(self._model()))
        return self if copied is None else types.MethodType(type(copied).train_step, copied)

    def __call__(self, data):
        model, ops = self._model(), self._ops
        optimizers = _finding.optimizers_in(model.optimizer)
        if not _are_counted(optimizers) or not _trains_as_home(model):
            # The model was compiled again, with another optimizer, or its class was given a train_step since.
            return type(model).train_step(model, data)
        largest = ops.local(self._largest)
        largest.assign(ops.maximum(largest.read_value(), ops.cast(samples_in(ops.tf, data), "int64")))
        return train_step(model, optimizers[0], data)

    def largest(self):
        """The samples of the largest batch so far, on all replicas: an int."""
        with self._ops.strategy_scope(self._largest):
            return int(self._ops.tf.convert_to_tensor(self._largest))


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
        A `CountingTrainStep`, a `ToldSizes`, or None where nothing is weighed.
    """
    if not _are_counted(optimizers) or _finding.optimizers_in(model.optimizer) != optimizers:
        return None
    home, homes_own = _surface.home_of(optimizers[0]), _fit_hooks.homes_train_step(type(model))
    if home.graph_mode:
        return None
    if homes_own is None:
        return _told_sizes(home, _surface.accumulation_of(optimizers[0]))
    step = vars(model).get("train_step")
    # A train_step of the user's own need not count, nor call the optimizer once a batch.
    if not _trains_as_home(model) or not isinstance(step, (CountingTrainStep, type(None))):
        return None
    if step is not None:
        return step
    model.train_step = step = CountingTrainStep(model, optimizers[0])
    model.train_function = None
    return step


def say_unweighed(optimizers, reason):
    """Say, once of an optimizer, that its mini-steps weigh alike, unless something else has given them weights."""
    for optimizer in optimizers:
        accumulation = _surface.accumulation_of(optimizer)
        if not accumulation.knows_weights and accumulation.settings.reduction == "mean":
            accumulation.knows_weights = True
            warnings.warn(
                "All batches weigh alike, whatever their sizes. {} Batches of one size are exact as they are.".format(
                    reason
                ),
                stacklevel=5,
            )


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


def _trains_as_home(model):
    return type(model).train_step is _fit_hooks.homes_train_step(type(model))


def _are_counted(optimizers):
    """Whether mini-steps can be weighed: one optimizer, and a mean."""
    return len(optimizers) == 1 and _surface.accumulation_of(optimizers[0]).settings.reduction == "mean"
