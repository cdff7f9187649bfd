"""Graph mode: run a batch's slices, then Keras's loss and metrics of the whole batch.

A session accepts a feed for any tensor. So we feed the slices' joined outputs as the outputs of the model, and Keras's
own graph computes the loss and the metrics of the whole batch, without the layers.
"""

import sys

from legacyga.backend import graph
from legacyga.backend.messages import shown
from legacyga.slices import batches, checks
from legacyga.slices.calls import ROWS
from legacyga.slices.recompute import RANDOM, is_random


class Passes(object):
    """A training function in slices: one pass over them, or two (`is_twice`).

    One pass computes the gradients of each slice's loss along with its outputs. Two passes compute the outputs first,
    then the loss of the whole batch, then each slice again with its part of the outputs' gradient.

    Args:
        function: Keras's own training function, without an update.
        step: its `graph_update.TrainingStep`.

    Raises:
        ValueError: there are two passes, and the outputs depend on random numbers that cannot be drawn a second time,
            or no output has a row for each sample.
    """

    def __init__(self, home, model, function, step, is_twice):
        self._home, self._model, self._is_twice = home, model, is_twice
        self._inputs, self._outputs = list(function.inputs), list(function.outputs)
        fed = list(model._feed_targets) + list(model._feed_sample_weights)
        of_loss = graph.descendants([graph.operation_of(each) for each in fed + variables_of_metrics(model)])
        of_inputs = graph.descendants([graph.operation_of(each) for each in model._feed_inputs])
        of_batch = of_loss | of_inputs
        # An update may depend on the batch by a control edge alone, as moving averages of TF 1 do. A control edge from
        # the outputs says nothing: Keras adds one to each update that is a pair (variable, value).
        ends = {each.op for each in self._outputs}
        updates = [each for each in graph.grouped(function.updates_op) if each not in ends]
        updates = [(each, graph.ancestors([each], of_batch | ends) - ends) for each in updates]
        # Updates that read targets, sample weights or metric variables run with the loss. Those that read the inputs
        # alone, such as moving averages, run in each slice's last pass. Those that read no batch run once, at the end,
        # because layers may read what they write.
        at_loss = [each for each, needs in updates if needs & of_loss]
        of_no_batch = [each for each, needs in updates if not needs & of_batch]
        of_layers = [each for each, needs in updates if needs & of_inputs and not needs & of_loss]
        first, second, late, written = of_layers + step.operations, [], [], set()
        with step.loss.graph.as_default():
            self._cut, body = self._find_cut(at_loss)
            if is_twice and not body:
                # The message shows a slice of 2 samples as an example.
                raise ValueError(ROWS.format(shown(model.outputs[0]), 2, shown(model)))
            # The divisor may need layers, as that of a loss from add_loss. Do not run them on the whole batch. A batch
            # of one slice takes the divisor from this slice, a larger batch weighs by its samples.
            cut = {each.op for each in self._cut}
            needs_layers = graph.ancestors([each.op for each in step.divisor], cut) & (body - cut)
            self._divisor, of_slice = (step.divisor, []) if not needs_layers else ([], step.divisor)
            if is_twice:
                # The second pass would draw other numbers.
                drawn = graph.ancestors([each.op for each in self._cut])
                random = graph.operation_with(step.loss.graph, drawn, _draws)
                if random:
                    raise ValueError(RANDOM.format(shown(model), shown(random)))
                upstream, gradients, by_cut, others = self._gradients_of(step)
                # Batch normalization does not read its moving averages in training. Another layer may read what it
                # updates, so these updates wait for all gradients.
                averages = averages_of(home, model)
                late = [each for each in of_layers if not _uses(each, averages, drawn)]
                first, second = [], [each for each in of_layers if each not in late] + by_cut
                written = graph.written_by(drawn)
            else:
                upstream, gradients, others = [], [], []
            self._first = self._keras_function([step.share], self._cut + of_slice, first)
            # The program's own fetches, an argument of compile, run once a batch.
            fetches = (getattr(model, "_function_kwargs", None) or {}).get("fetches", [])
            fetches = fetches if isinstance(fetches, (list, tuple)) else [fetches]
            told = self._divisor + self._outputs + gradients
            self._whole = self._keras_function(self._cut, told, at_loss + others + list(fetches))
            self._second = self._keras_function(upstream, [], second)
            self._late = self._keras_function([], [], late) if late else None
            self._last = self._keras_function([], [], of_no_batch) if of_no_batch else None
            # The variables that layers write in their call, as by a control dependency.
            self._written = [each for each in home.v1.global_variables() if graph.operation_of(each) in written]
            # The shapes of the cut tensors, for `_check_rows`. None after one check, which is enough.
            self._shapes = self._keras_function([], [self._home.tf.shape(each) for each in self._cut], [])

    def _find_cut(self, at_loss):
        """Return (the tensors of the layers that the loss and the metrics read, the layers' operations).

        Most of the tensors are the model's outputs. With one pass, some may be single numbers, such as a loss of
        `add_loss`: each counts as a mean over the samples.
        """
        model, given = self._model, {each.op for each in self._inputs}
        ends = [each for each in model.outputs if self._has_rows(each) or not self._is_twice]
        ends += [] if self._is_twice else [each for each in getattr(model, "losses", ()) if hasattr(each, "op")]
        body = graph.ancestors([each.op for each in ends])
        body &= graph.descendants([each.op for each in model._feed_inputs]) - given
        # Go back from the losses and metrics to the first operations of layers: their results are cut.
        found = graph.ancestors([each.op for each in self._outputs] + at_loss, body)
        read = self._outputs + [each for operation in found - body for each in operation.inputs]
        return list({id(each): each for each in read if each.op in body}.values()), body

    def _has_rows(self, tensor):
        """Whether a tensor may have a row for each sample: its first dimension is unknown, or equals the inputs'."""
        shapes = [each.get_shape() for each in (tensor, self._model._feed_inputs[0])]
        size, of_batch = [[None] if each.ndims is None else each.as_list()[:1] for each in shapes]
        return size in ([None], of_batch)

    def _gradients_of(self, step):
        """Return (placeholders, the cut tensors' gradients to feed, mini-steps that read them, other mini-steps)."""
        tf, loss, params = self._home.tf, step.loss, step.params
        at = [each for each in self._cut if each.dtype.is_floating]
        by_cut = tf.gradients(loss, at, stop_gradients=at) if at else []
        at = [(each, gradient) for each, gradient in zip(at, by_cut) if gradient is not None]
        # Gradients that do not pass through the cut, such as those of regularizers.
        others = step.take(tf.gradients(loss, params, stop_gradients=self._cut))
        upstream = [self._home.v1.placeholder(each.dtype, each.shape) for each, _ in at]
        by_params = tf.gradients([each for each, _ in at], params, upstream) if at else []
        return upstream, [tf.convert_to_tensor(gradient) for _, gradient in at], step.take(by_params), others

    def _keras_function(self, more, outputs, updates):
        """Return a function of Keras that is fed the training function's inputs and `more`, and returns `outputs`."""
        tf, kwargs = self._home.tf, getattr(self._model, "_function_kwargs", None) or {}
        options = {name: each for name, each in kwargs.items() if name != "fetches"}
        # Keras wants at least one output, and a session does not fetch what it is fed.
        outputs = [tf.constant(0)] + [tf.identity(each) for each in outputs]
        found = self._home.backend.function(self._inputs + more, outputs, updates, **options)
        return lambda values: found(values)[1:]

    def __call__(self, fed, parts):
        """Accumulate a batch's gradients, and return the outputs of the training function and the batch's weight."""
        samples = fed[0].shape[0]
        sizes = [len(range(samples or 1)[part]) for part in parts]
        cut = [[batches.part_of(each, samples, part) for each in fed] for part in parts]
        backend = self._home.backend
        before = backend.batch_get_value(self._written)
        taken = [self._first(given + [float(size) / sum(sizes)]) for given, size in zip(cut, sizes)]
        # The second pass then writes what the first one has.
        backend.batch_set_value(list(zip(self._written, before)))
        self._check_rows(taken[0], fed, samples, sizes[0])
        joined = [self._of_batch(each, values, sizes) for each, values in zip(self._cut, zip(*taken))]
        told = self._whole(fed + joined)
        of_slice = taken[0][len(self._cut) :] if len(parts) == 1 else []
        weight = told.pop(0) if self._divisor else of_slice[0] if of_slice else [samples, samples]
        count = len(self._outputs)
        for given, part in zip(cut, parts if self._is_twice else ()):
            self._second(given + [each[part] for each in told[count:]])
        for given in cut if self._late else ():
            self._late(given)
        if self._last:
            self._last(cut[0])
        return told[:count], weight

    def _check_rows(self, values, fed, samples, size):
        """Raise if one more sample makes another dimension longer, too, as in a matrix of all pairs of samples."""
        if samples <= size:
            return
        if self._shapes and any(_may_grow(*pair, size=size) for pair in zip(self._cut, values)):
            shapes = self._shapes([batches.part_of(each, samples, slice(size + 1)) for each in fed])
            for tensor, value, shape in zip(self._cut, values, shapes):
                if any(pair == (size, size + 1) for pair in zip(value.shape[1:], shape[1:])):
                    raise ValueError(ROWS.format(shown(tensor), size + 1, shown(self._model)))
        self._shapes = None

    def _of_batch(self, tensor, values, sizes):
        """Return a tensor's value for the batch: its slices' rows, or with one pass the mean of their numbers."""
        if not self._has_rows(tensor) and tensor.dtype.is_floating and not self._is_twice:
            total = sum(value * size for value, size in zip(values, sizes))
            return (total / float(sum(sizes))).astype(values[0].dtype)
        for value, size in zip(values, sizes):
            if not self._has_rows(tensor) or not value.shape or len(value) != size:
                raise ValueError(ROWS.format(shown(tensor), size, shown(self._model)))
        # TensorFlow has imported NumPy.
        return sys.modules["numpy"].concatenate(values)


def _may_grow(tensor, value, size):
    """Whether a dimension after the first has the length `size` in this value, and no static length."""
    shape = tensor.get_shape()
    known = [None] * len(value.shape) if shape.ndims is None else shape.as_list()
    return (None, size) in list(zip(known, value.shape))[1:]


def averages_of(home, model):
    """Return the operations of the moving averages in a model: those that its layers only write in training."""
    layers = [each for each in checks.layers_within(model) if isinstance(each, home.module.layers.BatchNormalization)]
    # Renormalization reads them.
    layers = [each for each in layers if not getattr(each, "renorm", False)]
    return {graph.operation_of(each) for layer in layers for each in (layer.moving_mean, layer.moving_variance)}


def _uses(update, variables, forward):
    """Whether an update has an operation, beside those of the forward pass, that takes one of these variables."""
    own = graph.ancestors([update], forward) - forward
    return any(tensor.op in variables for each in own for tensor in each.inputs)


def _draws(kind, name):
    """Whether an operation draws random numbers, also from a tf.random.Generator, whose state nothing here restores."""
    of_state = ("StatefulUniform", "StatefulStandardNormal", "StatefulTruncatedNormal", "StatefulRandom", "Rng")
    return is_random(kind, name) or kind.startswith(of_state)


def variables_of_metrics(model):
    """Return the variables of a model's metrics. In an old Keras, metrics have none."""
    metrics = list(getattr(model, "metrics", None) or []) + list(getattr(model, "_output_loss_metrics", None) or [])
    return [value for each in metrics for value in getattr(each, "weights", ())]
