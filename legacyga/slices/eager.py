"""Eager mode: sum the gradients of a batch's slices in one training step, then call the optimizer once."""

import contextlib

from legacyga.backend import features, homes
from legacyga.backend import ops as _ops
from legacyga.slices import batches, checks, means
from legacyga.slices import losses as _losses
from legacyga.slices.gradient_sums import GradientSums

NOT_ONCE = "A batch in slices needs a train_step that calls the optimizer once. Received: {} calls by that of {!r}."


def is_cut(model, data, size):
    """Whether a batch may need more than one slice of at most `size` samples. True if its size is not static."""
    tf = homes.home_of(model.optimizer).tf
    checks.check_strategy(tf)
    samples = batches.number_in(tf, data)
    # A model without trainable weights has no gradients and does not call the optimizer.
    is_frozen = model.built and not model.trainable_weights
    return not is_frozen and not (isinstance(samples, int) and samples <= size)


def train_step(model, own, data, size):
    """Run `own(model, data)` in slices of at most `size` samples, then call the model's optimizer once.

    The first slice takes the remainder, so the loop over the others has slices of exactly `size` samples.

    Args:
        model: a compiled model.
        own: the `train_step` of the model's home.
        data: a batch, as `own` takes it.
        size: an int of at least 1.

    Returns:
        The logs that `own` returns for the last slice, with the loss metrics of the whole batch.
    """
    step = _Step(model, own, size)
    with step.metrics_put_back():
        return step.run(data, batches.number_in(step.ops.tf, data))


class _Step(object):
    """One training step of a model."""

    def __init__(self, model, own, size):
        self.model, self.own, self.size = model, own, size
        self.optimizer = model.optimizer
        self.home = homes.home_of(self.optimizer)
        self.ops = _ops.Ops(self.home.tf)
        self.means = _Means(model, self.home, self.ops)

    @contextlib.contextmanager
    def metrics_put_back(self):
        """A context that restores the metrics if a slice raises. It does nothing in a traced function."""
        metrics = self.model.metrics if self.ops.tf.executing_eagerly() else []
        before = [[variable + 0 for variable in each.variables] for each in metrics]
        try:
            yield
        except BaseException:
            # The first batch makes some metrics, which have no earlier value: reset these.
            for each in [each for each in self.model.metrics if metrics and each not in metrics]:
                _reset(each)
            for each, values in zip(metrics, before):
                for variable, value in zip(each.variables, values):
                    variable.assign(value)
            raise

    def run(self, data, samples):
        ops, tf, size = self.ops, self.ops.tf, self.size
        with ops.after(batches.checked(tf, data, samples)):
            full = (samples - 1) // size if isinstance(samples, int) else tf.maximum((samples - 1) // size, 0)
        rest = samples - full * size
        logs, pairs, call = self._take(data, 0, rest)
        # Weights count in full slices. A batch of one slice has weight 1, so its values stay as they are.
        is_alone, one = ops.equal(full, 0), tf.ones([], "float64")
        part = ops.where(is_alone, one, ops.cast(rest, "float64") / size)
        whole = ops.where(is_alone, one, ops.cast(samples, "float64") / size)
        # Places of the variables that have a gradient.
        at = [i for i, (each, _) in enumerate(pairs) if each is not None]
        self.sums = GradientSums(ops, [var for _, var in pairs], full + 1)
        sums = [self.sums.begun(i, pairs[i][0], part) for i in at]
        losses = [(ops.weighted(each, part, each.dtype), count) for each, count in self.means.taken]
        sums, losses, flat = self._loop(data, rest, full, at, (sums, losses, _flat(tf, logs)))
        gradients = [each for each, _ in pairs]
        for i, total in zip(at, sums):
            gradients[i] = self.sums.result(i, total, gradients[i], whole)
        if call is not None:
            self._apply([(each, var) for each, (_, var) in zip(gradients, pairs)], *call)
        losses = [(total / ops.cast(whole, total.dtype), sizes) for total, sizes in losses]
        return self.means.tell(losses, samples, tf.nest.pack_sequence_as(logs, flat))

    def _loop(self, data, rest, full, at, first):
        """Add the `full` slices that follow the first `rest` samples, and return the sums, losses and logs.

        Args:
            at: the places of the pairs that have a gradient.
            first: the sums, losses and logs of the first slice.
        """
        ops, tf = self.ops, self.ops.tf

        def ready(number, sums, losses, flat):
            # The next slice waits for this one, so that memory never holds the activations of both.
            with ops.after([total[0] for total in sums if len(total) == 1], losses, flat):
                return ops.identity(number), sums, losses, flat

        def body(number, sums, losses, _):
            logs, found, _ = self._take(data, rest + number * self.size, self.size)
            sums = [self.sums.added(i, total, found[i][0], number + 1) for i, total in zip(at, sums)]
            losses = [(total + each, sizes + count) for (total, sizes), (each, count) in zip(losses, self.means.taken)]
            return ready(number + 1, sums, losses, _flat(tf, logs))

        first = ready(tf.constant(0), *first)
        return tf.while_loop(lambda number, *_: number < full, body, first, parallel_iterations=1)[1:]

    def _take(self, data, begin, length):
        """Run one slice. Return its logs, its (gradient, variable) pairs, and the optimizer's other arguments.

        The other arguments are None if the optimizer was not called.
        """
        recorded, attributes = [], vars(self.model)
        part = self.ops.tf.nest.map_structure(lambda leaf: batches.slice_of(self.ops.tf, leaf, begin, length), data)
        attributes["optimizer"] = _recorder(self.optimizer, recorded)
        try:
            with self.means.apart(), _losses.looked_at(self.home, self.model, self._check_given):
                logs = self.own(self.model, part)
        finally:
            attributes["optimizer"] = self.optimizer
        if not recorded and not self.model.trainable_weights:
            # This slice built a model without trainable weights, so Keras does not call the optimizer.
            return logs, [], None
        if len(recorded) != 1:
            raise ValueError(NOT_ONCE.format(len(recorded), self.model))
        pairs, args, kwargs = recorded[0]
        return logs, pairs, (args, kwargs)

    def _check_given(self, given, y_pred, sample_weight):
        """Raise ValueError if the loss of a slice is not a mean over its samples."""
        is_masked = any(_losses.mask_of(leaf) is not None for leaf in self.ops.tf.nest.flatten(y_pred))
        if is_masked and features.divides_by_masks(self.home):
            raise ValueError(means.WRONG.format("an output with a mask, by which the loss is divided"))
        found = None if sample_weight is None else _losses.one_number(self.home, given)
        if found is not None:
            raise ValueError(means.WRONG.format("{!r}, one number for a whole batch, and sample weights".format(found)))

    def _apply(self, pairs, args, kwargs):
        optimizer = self.optimizer
        if _clips_before(optimizer):
            gradients = iter(optimizer._clip_gradients([each for each, _ in pairs if each is not None]))
            pairs = [(None if each is None else next(gradients), var) for each, var in pairs]
        optimizer.apply_gradients(pairs, *args, **kwargs)


def _flat(tf, logs):
    """Return the logs of a train_step as a list of tensors."""
    return [tf.convert_to_tensor(each) for each in tf.nest.flatten(logs)]


class _Means(object):
    """Loss metrics that average over batches, not samples: each batch must update them once, not once per slice.

    This class collects what each slice would give them. Keras 3 has such metrics; in TensorFlow's Keras only a model
    whose losses all come from `add_loss` does. All other metrics weigh the loss of a slice by its samples.
    """

    def __init__(self, model, home, ops):
        self._model, self._home, self._ops = model, home, ops
        # (mean, its weight) of each metric, from the last slice.
        self.taken = []

    def _metrics(self):
        model = self._model
        if self._home.is_keras3:
            return [model._loss_tracker] + list(getattr(model._compile_loss, "metrics", ()))
        return [] if means.given_losses(model) else list(model.compiled_loss.metrics)

    @contextlib.contextmanager
    def apart(self):
        """A context that collects the metrics' updates in `taken` and then restores the metrics."""
        metrics = self._metrics()
        before = [[variable + 0 for variable in each.variables] for each in metrics]
        for each in metrics:
            _reset(each)
        yield
        self.taken = [(each.result() + 0, each.count + 0) for each in self._metrics()]
        for each, values in zip(metrics, before):
            for variable, value in zip(each.variables, values):
                variable.assign(value)
        # The first batch makes some metrics: reset these.
        for each in self._metrics()[len(metrics) :]:
            _reset(each)

    def tell(self, losses, samples, logs):
        """Update the metrics with the losses of the batch, and return the logs with their new results.

        Args:
            losses: for each metric the mean over the batch, and the sum of its weights over the slices.
            samples: the number of samples in the batch, an int if it is static.
            logs: the logs of the last slice.
        """
        is_keras3 = self._home.is_keras3
        for i, (each, (loss, sizes)) in enumerate(zip(self._metrics(), losses)):
            size = self._ops.cast(samples, sizes.dtype)
            # Keras 3 weighs the loss of an output by its samples if their number is static; tf.keras never does.
            weighs = self._ops.equal(sizes, size) if is_keras3 and not i else is_keras3 and isinstance(samples, int)
            each.update_state(loss, sample_weight=self._ops.where(weighs, size, self._ops.ones_like(size)))
            if each.name in logs:
                logs[each.name] = each.result()
        return logs


def _reset(metric):
    # Up to TF 2.4 the name is `reset_states`. Delete with TF 2.4.
    (getattr(metric, "reset_state", None) or metric.reset_states)()


def _clips_before(optimizer):
    """Whether `fit` clips gradients before `apply_gradients`, as in TF 2.2 and 2.3. Delete with TF 2.3."""
    return hasattr(optimizer, "_aggregate_gradients") and not hasattr(optimizer, "_transform_gradients")


def _recorder(optimizer, recorded):
    """Return an optimizer that shares all state with `optimizer` but only appends its arguments to `recorded`."""

    class Recorder(type(optimizer)):
        """Receives the calls of Keras's fit and changes no variable."""

        # In TF 2.2 and 2.3 fit uses these two to exchange gradients and to clip. Delete with TF 2.3.
        _HAS_AGGREGATE_GRAD = False

        def _clip_gradients(self, grads):
            return grads

        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            recorded.append((list(grads_and_vars), args, kwargs))

        def apply(self, grads, trainable_variables=None):
            variables = self._trainable_variables if trainable_variables is None else trainable_variables
            recorded.append((list(zip(grads, variables)), (), {}))

    made = object.__new__(Recorder)
    object.__setattr__(made, "__dict__", vars(optimizer))
    return made
