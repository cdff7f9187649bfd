"""The training step of an eager model that stands in the place of Keras's own: it counts samples, and cuts slices."""

import copy
import types
import warnings
import weakref

from legacyga.backend import homes, replicas
from legacyga.backend import ops as _ops
from legacyga.fit import hooks
from legacyga.optimizers import lookup, surface
from legacyga.slices import batches, eager, losses, means
from legacyga.slices import recompute as slices_recompute
from legacyga.windows import window


def train_step(model, data, optimizer=None, weight=None, size=None, recompute=None, own=None):
    """The home's own `train_step`, in slices of at most `size` samples where there is a size.

    Where an `optimizer` is given its mini-step has a weight: by default the samples of `data`.

    Args:
        recompute: as `micro_batch` takes it.
        own: the `train_step`, a function of the model and the data, where that is not the home's.
    """
    home = homes.home_of(model.optimizer)
    homes_own = hooks.homes_train_step(type(model))
    is_cut = size is not None and eager.is_cut(model, data, size)
    is_twice = is_cut and means.choose(model, recompute, lambda: _doubt(home, model, data, size, own))
    own = own or homes_own

    def step():
        if not is_cut:
            return own(model, data)
        if not is_twice:
            return eager.train_step(model, own, data, size)
        with slices_recompute.cut(home, model, size):
            return own(model, data)

    if optimizer is None:
        return step()
    accumulation = surface.accumulation_of(optimizer)
    if weight is not None:
        with accumulation.weighing(window.Weight(weight, False)):
            return step()

    def look(given, y_pred, sample_weight):
        count, problem = losses.divisor(home, given, y_pred, sample_weight)
        if count is not None:
            accumulation.weigh_anew(count)
        if problem and accumulation.has_windows and not accumulation.has_warned:
            accumulation.has_warned = True
            warnings.warn(problem, stacklevel=2)

    with accumulation.weighing(window.Weight(batches.samples_in(home.tf, data), True)):
        if is_cut and not is_twice:
            return step()
        with losses.looked_at(home, model, look):
            return step()


def _doubt(home, model, data, size, own):
    if own is not None:
        return means.Doubt("a train_step of the model's own", False)
    return means.doubt_of_batch(home, model, data, lambda: slices_recompute.look(home, model, data, size))


class TrainStep(object):
    """Stands in a model's attribute `train_step`: the home's own, counted or in slices.

    It stays there after fit, as the training function does that was traced with it. So `train_on_batch`, and a fit
    without the callback, count alike.

    Args:
        model: the model, of which only a weak reference is kept.

    Attributes:
        size: the most samples of a slice, None for batches as they are.
        recompute: as `micro_batch` takes it.
    """

    def __init__(self, model):
        self._model = weakref.ref(model)
        self.size = self.recompute = self._counts = None
        self._ops = _ops.Ops(homes.home_of(model.optimizer).tf)

    def __deepcopy__(self, memo):
        copied = memo.get(id(self._model()))
        if copied is None:
            return self
        if self.size is None:
            return types.MethodType(type(copied).train_step, copied)
        # Counting begins with the copy's own fit.
        step = copy.copy(self)
        step._model, step._counts = weakref.ref(copied), None
        return step

    def count(self):
        """From now on, the begin of a fit, let each mini-step weigh its samples."""
        if self._counts is not None:
            with self._ops.strategy_scope(self._counts):
                self._counts.assign(self._ops.tf.zeros([2], "int64"))
        else:
            model, tf = self._model(), self._ops.tf
            with model.distribute_strategy.scope(), replicas.replica_local_variables(tf):
                # Of the largest batch of the fit, and of all of them.
                self._counts = tf.Variable(tf.zeros([2], "int64"), trainable=False, name="sample_counts/counts")
            _make_anew(model)

    def cut(self, size, recompute):
        """From now on train in slices of at most `size` samples, None for batches as they are."""
        if size is not None and (size, recompute) == (self.size, self.recompute):
            return
        model = self._model()
        self.size, self.recompute = size, recompute
        if size is None and self._counts is None:
            del vars(model)["train_step"]
        _make_anew(model)

    def __call__(self, data):
        model, ops = self._model(), self._ops
        if not _trains_as_home(model):
            own = type(model).train_step
            if self.size is None:
                # Its class was given a train_step since.
                return own(model, data)
            return train_step(model, data, None, None, self.size, self.recompute, own)
        optimizers = lookup.optimizers_in(model.optimizer)
        if self._counts is None or not are_counted(optimizers):
            # The model may have been compiled again, with another optimizer.
            return train_step(model, data, None, None, self.size, self.recompute)
        counts, samples = ops.local(self._counts), ops.cast(batches.samples_in(ops.tf, data), "int64")
        largest, all_of_them = ops.unstack(counts.read_value(), 2)
        counts.assign(ops.tf.stack([ops.maximum(largest, samples), all_of_them + samples]))
        return train_step(model, data, optimizers[0], None, self.size, self.recompute)

    def counts(self):
        """The samples of the largest batch of this fit so far, and of all its batches, on all replicas: ints."""
        with self._ops.strategy_scope(self._counts):
            return [int(each) for each in self._ops.tf.convert_to_tensor(self._counts)]


def installed(model, of_any=False):
    """The `TrainStep` of a model, put there if need be; None where the model has a train_step of the user's own.

    Where it may be `of_any`, the class may have one.
    """
    step = vars(model).get("train_step")
    if not (of_any or _trains_as_home(model)) or not isinstance(step, (TrainStep, type(None))):
        return None
    if step is None:
        # The training function was made without it.
        model.train_step = TrainStep(model)
        _make_anew(model)
    return vars(model)["train_step"]


def _make_anew(model):
    """Let the training function be made with the training step that there is now."""
    is_made, model.train_function = model.train_function is not None, None
    if is_made:
        # A fit that is under way calls what it has made.
        model.make_train_function()


def are_counted(optimizers):
    """Whether mini-steps can be weighed: one optimizer, and a mean."""
    return len(optimizers) == 1 and surface.accumulation_of(optimizers[0]).settings.reduction == "mean"


def _trains_as_home(model):
    return type(model).train_step is hooks.homes_train_step(type(model))
