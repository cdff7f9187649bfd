"""What Keras's fit tells its callbacks, and how many samples its batches have, in every home."""

import importlib
import warnings
import weakref

from legacyga import _accumulates, _compat, _ops

# Of whose Keras a class is, by the first part of its module's name.
KERAS = ("keras", "tensorflow", "tf_keras")

# A float32 counts no further.
LARGEST_COUNT = 2.0**24


def callbacks_of(home):
    """The home's own `keras.callbacks`, internal classes included."""
    return importlib.import_module(home.root + ".callbacks")


def has_raw_logs(home):
    """Whether callbacks may ask for logs as they are on the device: TF 2.3 and newer, but not Keras 3."""
    return hasattr(callbacks_of(home).Callback(), "_supports_tf_logs")


def has_two_dicts(home):
    """Whether callbacks that ask for raw logs are given another dict than those that do not: TF 2.3 to 2.5."""
    return has_raw_logs(home) and not hasattr(callbacks_of(home).CallbackList, "_process_logs")


def bar_is_first(home):
    """Whether the progress bar has its hooks before the user's callbacks: eager mode of TF 2.4 to 2.7."""
    if home.graph_mode or not has_raw_logs(home):
        return False
    callbacks = callbacks_of(home)
    listed = callbacks.CallbackList([callbacks.Callback()], add_progbar=True).callbacks
    return isinstance(listed[0], callbacks.ProgbarLogger)


def bar_lacks_our_logs(home):
    """Whether the progress bar's last line of an epoch is made without what our `on_epoch_end` puts into its logs."""
    if home.is_keras3:
        return False
    # Standalone Keras, and tf.keras of TF 1.8 to 1.11, draw it before.
    drawn_before = not hasattr(callbacks_of(home), "configure_callbacks")
    return drawn_before or has_two_dicts(home) or bar_is_first(home)


def optimizers_in(value):
    """The optimizers that accumulate in a value, each once: itself, in a list, or covered by another optimizer."""
    if isinstance(value, _accumulates.Accumulates):
        return [value]
    covered = []
    if isinstance(value, (list, tuple)):
        covered = value
    elif _compat.generation_of(type(value)) is not None:
        # LossScaleOptimizer of Keras 3 and of TF 2.4 on, of TF 2.0 to 2.3, and TFOptimizer.
        covered = [getattr(value, name, None) for name in ("inner_optimizer", "_optimizer", "optimizer", "optimizers")]
    distinct = []
    for found in [found for each in covered if each is not value for found in optimizers_in(each)]:
        if not any(found is each for each in distinct):
            distinct.append(found)
    return distinct


def optimizers_of(model):
    """The optimizers of a model that accumulate: its `optimizer`, what that one covers, and those in its attributes."""
    attributes = getattr(model, "__dict__", {})
    return optimizers_in([getattr(model, "optimizer", None)] + [attributes[name] for name in sorted(attributes)])


def homes_train_step(cls):
    """The `train_step` of the first of Keras's own classes that a model's class is made of, None if none has it."""
    for each in cls.__mro__:
        if each.__module__.partition(".")[0] in KERAS and "train_step" in vars(each):
            return vars(each)["train_step"]
    return None


class BatchWeights(object):
    """The samples of the batches that fit trains a model on, as the weights of its optimizer's mini-steps.

    No Keras tells an optimizer how many samples a batch has. From TF 2.2 on a model counts them itself, for the mean
    of the loss that it reports, and has counted a batch when its gradients reach the optimizer: what the count has
    grown by since the last mini-step is the batch's. TF 2.0 and 2.1 tell callbacks, before each batch of arrays.

    Args:
        model: the model, of which only a weak reference is kept.
        optimizer: its optimizer.
    """

    def __init__(self, model, optimizer):
        tf = optimizer.home.tf
        self._tf, self._ops = tf, optimizer._accumulation.ops
        self._model = weakref.ref(model)
        self.counts = homes_train_step(type(model)) is not None
        # A LossScaleOptimizer does not hand over every batch.
        self.covered = model.optimizer is not optimizer
        with self._strategy().scope(), _ops.replica_local_variables(tf):
            self._active = tf.Variable(False, trainable=False, name="batch_weights/active")
            self._seen = tf.Variable(0.0, trainable=False, name="batch_weights/seen")
            self._weight = tf.Variable(1.0, trainable=False, name="batch_weights/weight")
            self._largest = tf.Variable(0.0, trainable=False, name="batch_weights/largest")

    def __deepcopy__(self, memo):
        # They are the model's, of which a copy of the optimizer is no copy.
        return self

    @classmethod
    def for_fit(cls, model, optimizers):
        """Those of a model that is about to be trained, None where its batches' sizes are not known.

        They are put in place for its training function, which is traced with them: anew, if it was without.
        """
        if len(optimizers) != 1 or optimizers[0].home.graph_mode:
            return None
        (optimizer,) = optimizers
        accumulation, homes_own = optimizer._accumulation, homes_train_step(type(model))
        # A train_step of the user's own need not count, nor call the optimizer once a batch.
        if getattr(getattr(model, "train_step", None), "__func__", None) is not homes_own:
            return None
        if accumulation.reduction != "mean" or optimizers_in(model.optimizer) != [optimizer]:
            return None
        weights = accumulation.batch_weights.get(model)
        if weights is None and homes_own is None and accumulation.windows:
            warnings.warn(
                "This model was trained before without a GradientAccumulationCallback, and TensorFlow {} keeps its "
                "training function, in which every batch weighs the same. Compile the model again for batches that "
                "weigh as much as they have samples.".format(optimizer.home.tf_version),
                stacklevel=3,
            )
            return None
        if weights is None:
            weights = accumulation.batch_weights[model] = cls(model, optimizer)
            if homes_own is not None:
                # The `force` of this method is there from TF 2.4 on.
                model.train_function = None
                model.make_train_function()
        accumulation.batch_weight = weights
        return weights

    def begin_epoch(self):
        """The batches to come are those of an epoch of fit."""
        self._on_all_replicas(lambda: [self._see(), self._ops.local(self._active).assign(True)])

    def begin_batch(self, size):
        """A batch is to come, of which a callback was told this size, if any."""
        if not self.counts:
            self._on_all_replicas(lambda: self._ops.local(self._weight).assign(float(size or 1)))
        elif self.covered:
            self._on_all_replicas(self._see)

    def end_fit(self):
        """From here on nobody says where an epoch begins, and mini-steps weigh 1."""
        self._on_all_replicas(
            lambda: [self._ops.local(self._active).assign(False), self._ops.local(self._weight).assign(1.0)]
        )

    def largest(self):
        """The samples of the largest batch so far, on all replicas; 0 where it is not known."""
        with self._strategy().scope():
            return int(self._tf.convert_to_tensor(self._largest))

    def __call__(self):
        """The weight of the mini-step that a replica is about to take, a scalar tensor."""
        ops, tf, weight = self._ops, self._tf, self._ops.local(self._weight)
        if not self.counts:
            return weight.read_value()
        before = ops.local(self._seen).read_value()
        total = self._see()
        known = tf.logical_and(total > before, total < LARGEST_COUNT)
        known = tf.logical_and(known, ops.local(self._active).read_value())
        new = tf.where(known, total - before, weight.read_value())
        weight.assign(new)
        largest = ops.local(self._largest)
        largest.assign(tf.where(known, tf.maximum(largest.read_value(), new), largest.read_value()))
        return new

    def _see(self):
        """Take note of the count as it is on this replica; the count."""
        count = self._count()
        # A loss that is all in add_loss is not counted.
        total = self._tf.constant(0.0) if count is None else self._tf.cast(self._tf.convert_to_tensor(count), "float32")
        self._ops.local(self._seen).assign(total)
        return total

    def _count(self):
        # Before the first batch there are no metrics to be asked for.
        metrics = getattr(self._model(), "metrics", ()) if self.counts else ()
        means = [metric for metric in metrics if metric.name == "loss" and hasattr(metric, "count")]
        return means[0].count if means else None

    def _on_all_replicas(self, function):
        with self._strategy().scope():
            self._ops.on_all_replicas(lambda run: run(function, ()), ())

    def _strategy(self):
        # Models have it from TF 2.2 on.
        return getattr(self._model(), "distribute_strategy", None) or self._tf.distribute.get_strategy()
