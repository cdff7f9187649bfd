"""Recompute in graph mode, for any loss: outputs of all slices first, then the loss, then each slice a second time.

A session accepts a feed for any tensor. So we feed the slices' joined outputs as the outputs of the model, and Keras's
own graph computes the loss and the metrics of the whole batch.
"""

from legacyga.backend import graph
from legacyga.backend import ops as _ops
from legacyga.backend.tensors import is_sparse
from legacyga.slices import batches
from legacyga.slices.recompute import RANDOM, ROWS, is_random


class Twice(object):
    """A training function that computes each slice twice.

    Args:
        home: a `homes.Home`.
        model: the model.
        function: Keras's own training function, with a mini-step in place of the update.
        mini_step: this mini-step, a `graph_update.MiniStep`.

    Raises:
        ValueError: the outputs depend on random numbers that cannot be drawn a second time.
    """

    def __init__(self, home, model, function, mini_step):
        self._home, self._model, self._function = home, model, function
        self._ops, tf = _ops.Ops(home.tf), home.tf
        given = [each.op for each in function.inputs]
        self._outputs = list({each.op: each for each in model.outputs if each.op not in given}.values())
        self._check_random()
        at = [each.op for each in self._outputs]
        fed = [each.op for each in model._feed_targets + list(model._feed_sample_weights)]
        with at[0].graph.as_default():
            updates = [each for each in _grouped(function.updates_op) if each is not mini_step.operation]
            # Updates that depend on outputs, targets, sample weights or metric variables run with the loss. The others,
            # such as moving averages of layers, run with each slice.
            of_loss = [each for each in updates if graph.reaches(each, set(at + fed + _variables_of_metrics(model)))]
            by_outputs = tf.gradients(mini_step.loss, self._outputs, stop_gradients=self._outputs)
            others = tf.gradients(mini_step.loss, mini_step.params, stop_gradients=self._outputs)
            self._upstream = [self._home.v1.placeholder(each.dtype, each.shape) for each in self._outputs]
            self._at = at = [i for i, each in enumerate(by_outputs) if each is not None]
            gradients = [None] * len(mini_step.params)
            if at:
                given = [self._upstream[i] for i in at]
                gradients = tf.gradients([self._outputs[i] for i in at], mini_step.params, grad_ys=given)
            # The accumulator takes a mean. If both kinds of gradient exist, `others` weighs as much as all slices
            # together, so multiply each kind by the number of kinds to get the sum.
            self._kinds = sum(any(each is not None for each in found) for found in (others, gradients))
            taken = _take(mini_step, [each if each is None else _times(tf, each, self._kinds) for each in others])
            self._told = [list(function.outputs), [tf.convert_to_tensor(by_outputs[i]) for i in at], of_loss + taken]
            self._slice = _take(mini_step, gradients) + [each for each in updates if each not in of_loss]

    def _check_random(self):
        found = graph.ancestors([each.op for each in self._outputs])
        name = next((each.name for each in found if is_random(each.type, each.name)), None)
        name = name or graph.function_with(self._outputs[0].graph, found, is_random)
        if name:
            raise ValueError(RANDOM.format(self._model, name))

    def __call__(self, session, fed, parts):
        """Accumulate the gradients of a batch, and return the outputs of the training function for it.

        Args:
            fed: the arrays fed to the training function.
            parts: the slices of the batch, as Python slices.

        Raises:
            ValueError: an output does not have one row per sample.
        """
        samples = fed[0].shape[0]
        cut = [self._feeds([batches.part_of(each, samples, part) for each in fed]) for part in parts]
        given = [session.run(self._outputs, feeds) for feeds in cut]
        feeds = self._feeds(fed)
        for output, values in zip(self._outputs, zip(*given)):
            for value, part in zip(values, parts):
                if not value.shape or len(value) != len(range(samples)[part]):
                    raise ValueError(ROWS.format(output, len(range(samples)[part]), self._model))
            feeds[output] = batches.joined(values)
        told, by_outputs, _ = session.run(self._told, feeds)
        whole = samples * float(self._kinds)
        for feeds, part in zip(cut, parts):
            share = whole / len(range(samples)[part])
            for i, gradient in zip(self._at, by_outputs):
                feeds[self._upstream[i]] = (gradient[part] * share).astype(gradient.dtype)
            session.run(self._slice, feeds)
        return told

    def _feeds(self, values):
        """Return {placeholder: value} for a session."""
        # In TF 1.13 missing weights are None and have a default. Delete with TF 1.13.
        return {key: _sparse(each) for key, each in zip(self._function.inputs, values) if each is not None}


def _variables_of_metrics(model):
    """Return the operations of the variables of a model's metrics. In old Kerases metrics have no variables."""
    metrics = list(getattr(model, "metrics", None) or []) + list(getattr(model, "_output_loss_metrics", None) or [])
    variables = [value for each in metrics for value in getattr(each, "weights", ())]
    return [getattr(getattr(each, "handle", None), "op", each.op) for each in variables]


def _sparse(value):
    """Return a scipy matrix in the form that a session accepts; any other value unchanged."""
    if not hasattr(value, "tocoo"):
        return value
    value = value.tocoo()
    return [list(zip(value.row, value.col)), value.data, value.shape]


def _take(mini_step, gradients):
    """Return a list with the operation of a mini-step that takes `gradients`; [] if all are None."""
    return [mini_step.take(gradients).op] if any(each is not None for each in gradients) else []


def _times(tf, gradient, factor):
    if is_sparse(gradient):
        return tf.IndexedSlices(factor * gradient.values, gradient.indices, gradient.dense_shape)
    return factor * gradient


def _grouped(operation):
    """Return the operations of a group, with nested groups flattened."""
    if operation.type != "NoOp":
        return [operation]
    return [each for inner in operation.control_inputs for each in _grouped(inner)]
