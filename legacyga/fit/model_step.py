"""Replaces the training step of an eager model with one that counts samples and can slice batches."""

import contextlib
import copy
import weakref

from legacyga.backend import features, homes, replicas
from legacyga.backend import ops as _ops
from legacyga.backend.messages import shown, warn
from legacyga.optimizers import lookup, surface
from legacyga.slices import batches, checks, fitting, losses, means, once
from legacyga.slices import recompute as slices_recompute
from legacyga.windows import mini_step


def keras_train_step(cls):
    """The `train_step` of the first Keras class among the bases of a model's class; None if this Keras has none."""
    for each in cls.__mro__:
        if each.__module__.partition(".")[0] in homes.KERAS and "train_step" in vars(each):
            return vars(each)["train_step"]
    return None


def train_step(model, data, optimizer=None, weight=None, size=None, recompute=None, own=None):
    """Run Keras's `train_step`, or the model's `own`, on the data, in slices of at most `size` samples (None: whole).

    If an `optimizer` is given, its mini-step has a weight: by default the number of samples in `data`.
    """
    home = homes.home_of(model.optimizer)
    # An own train_step may call the model with other tensors than `data`: leave it to each call whether to slice.
    is_cut = size is not None and (own is not None or batches.is_cut(home.tf, data, size))
    if is_cut:
        checks.check_strategy(home, model)
    is_twice = is_cut and means.choose(model, recompute, lambda: _doubts(home, model, data, size, own))
    run = own or keras_train_step(type(model)).__get__(model)

    def step():
        if not is_cut:
            return run(data)
        if not is_twice:
            return once.train_step(home, model, run, data, size)
        with slices_recompute.cut(home, model, size, batches.may_exceed(home.tf, data, size)):
            return run(data)

    if optimizer is None:
        return step()
    accumulation = surface.accumulation_of(optimizer)
    if weight is not None:
        with accumulation.giving(mini_step.Weight(weight, False)):
            return step()

    def look(given, y_pred, sample_weight):
        """Weigh by the number that divides the losses, where that is not the number of samples."""
        count, problem = losses.divisor(home, given, y_pred, sample_weight)
        if count is not None:
            accumulation.weights.count_anew(count)
        if problem and accumulation.steps.has_windows and not accumulation.weights.has_warned:
            accumulation.weights.has_warned = True
            warn(problem)

    with accumulation.giving(mini_step.Weight(batches.samples_in(home.tf, data), True)):
        # If slices are computed once, the loss is a mean over the samples, whose number is the weight.
        with losses.looked_at(home, model, look) if not is_cut or is_twice else contextlib.ExitStack():
            logs = step()
    is_mean = accumulation.settings.reduction == "mean"
    if is_mean and accumulation.steps.has_windows and not accumulation.weights.has_warned:
        _say_sums(home, model, accumulation.weights)
    return logs


def _say_sums(home, model, weights):
    """Warn if, in the step just made, a layer gave add_loss a number for each sample."""
    for layer in features.layers_of(model):
        for loss in features.losses_kept_by(layer):
            if home.tf.is_tensor(loss) and loss.shape.ndims != 0:
                weights.has_warned = True
                warn(losses.SUMS.format("The add_loss of {}".format(shown(layer))))
                return


def _doubts(home, model, data, size, own):
    # A Keras class such as SharpnessAwareMinimization may have a train_step of its own, too.
    if own is not None or keras_train_step(type(model)) is not home.module.Model.train_step:
        yield means.Doubt("a train_step of the model's own", is_wrong=True)
    yield from means.doubts_of_batch(home, model, data, lambda: slices_recompute.look(home, model, data, size))


class TrainStep(object):
    """Replaces a model's `train_step`: calls the one of the model's class, and counts samples or slices batches.

    It stays in place after fit, so that `train_on_batch`, and a fit without the callback, weigh batches by samples too.
    `size` is None for whole batches.
    """

    def __init__(self, model):
        self._model = weakref.ref(model)
        self.size = self.recompute = self._counts = None
        self._ops = _ops.Ops(homes.home_of(model.optimizer).tf)

    def __deepcopy__(self, memo):
        copied = memo.get(id(self._model()))
        if copied is None:
            # The model itself is not copied: the step stays with it.
            return self
        # The copy starts to count at its own fit.
        step = copy.copy(self)
        step._model, step._counts = weakref.ref(copied), None
        fitting.fitting_of(copied).set(self.size)
        return step

    def count(self):
        """Start counting for a new fit: from now on, the weight of each mini-step is its number of samples."""
        if self._counts is not None:
            with self._ops.replicas.scope_of(self._counts):
                self._counts.assign(self._ops.tf.zeros([2], "int64"))
        else:
            model, tf = self._model(), self._ops.tf
            with model.distribute_strategy.scope(), replicas.replica_local_variables(tf):
                # What `counts` returns.
                self._counts = tf.Variable(tf.zeros([2], "int64"), trainable=False, name="sample_counts/counts")
            make_anew(model)

    def cut(self, size, recompute):
        """From now on, train in slices of at most `size` samples; None for whole batches."""
        if size is not None and (size, recompute) == (self.size, self.recompute):
            return
        model = self._model()
        self.size, self.recompute = size, recompute
        if size is None and self._counts is None:
            del vars(model)["train_step"]
        make_anew(model)

    def __call__(self, data):
        model, ops = self._model(), self._ops
        # Since the step was installed, the class may have got a train_step, or the model another optimizer.
        # Bind by `__get__`: a train_step that is a tf.function has one function per instance.
        own = None if _has_keras_train_step(model) else type(model).train_step.__get__(model, type(model))
        optimizers = lookup.optimizers_in(model.optimizer)
        if own is not None or self._counts is None or not samples_are_counted(optimizers):
            return train_step(model, data, None, None, self.size, self.recompute, own)
        counts, samples = ops.replicas.local(self._counts), ops.cast(batches.samples_in(ops.tf, data), "int64")
        largest, all_of_them = ops.unstack(counts.read_value(), 2)
        counts.assign(ops.tf.stack([ops.maximum(largest, samples), all_of_them + samples]))
        return train_step(model, data, optimizers[0], None, self.size, self.recompute)

    def counts(self):
        """[samples in this fit's largest batch so far, samples in all its batches], ints over all replicas."""
        with self._ops.replicas.scope_of(self._counts):
            return [int(each) for each in self._ops.tf.convert_to_tensor(self._counts)]


def installed(model, of_any=False):
    """The `TrainStep` of a model, installed if missing.

    None if the user has set a train_step on the object or, unless `of_any`, in the class.
    """
    step = vars(model).get("train_step")
    if not (of_any or _has_keras_train_step(model)) or not isinstance(step, (TrainStep, type(None))):
        return None
    if step is None:
        # An existing training function would not call the new step.
        model.train_step = TrainStep(model)
        make_anew(model)
    return vars(model)["train_step"]


def make_anew(model):
    """Rebuild the training function with the model's present training step."""
    is_made, model.train_function = model.train_function is not None, None
    if is_made:
        # A running fit may read `train_function` again, and does not make one.
        model.make_train_function()


def samples_are_counted(optimizers):
    """Whether a batch's samples become its weight: only for a single optimizer, with reduction "mean"."""
    return len(optimizers) == 1 and surface.accumulation_of(optimizers[0]).settings.reduction == "mean"


def _has_keras_train_step(model):
    return type(model).train_step is keras_train_step(type(model))
