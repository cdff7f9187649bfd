"""Graph mode: run a batch's slices, then Keras's loss and metrics of the whole batch.

A session accepts a feed for any tensor. So we feed the slices' joined outputs as the outputs of the model, and Keras's
own graph computes the loss and the metrics of the whole batch, without the layers.
"""

from legacyga.backend import graph
from legacyga.slices import batches
from legacyga.slices.recompute import RANDOM, ROWS, is_random


class Passes(object):
    """A training function in slices: one pass over them, or two.

    One pass takes the gradients of each slice's loss along with its outputs. Two passes compute the outputs first, then
    the loss of the whole batch, then each slice again with its part of the gradient by the outputs.

    Args:
        home: a `homes.Home`.
        model: the model.
        function: Keras's own training function, without an update.
        mini_step: its `graph_update.MiniStep`.
        is_twice: whether there are two passes.

    Raises:
        ValueError: two passes, and the outputs depend on random numbers that cannot be drawn a second time.
    """

    def __init__(self, home, model, function, mini_step, is_twice):
        self._home, self._model, self._function, self._mini_step = home, model, function, mini_step
        self._is_twice = is_twice
        kwargs = getattr(model, "_function_kwargs", None) or {}
        self._options = {name: kwargs[name] for name in ("options", "run_metadata") if name in kwargs}
        updates, of_loss = _grouped(function.updates_op), _of_loss(model)
        # Updates that depend on targets, sample weights or metric variables run with the loss. The others, such as
        # moving averages of layers, run with each slice. Keras orders some after its results, so look at their inputs.
        at_loss = [each for each in updates if any(graph.reaches(value.op, of_loss) for value in each.inputs)]
        self._of_slice = [each for each in updates if each not in at_loss]
        self._cut = self._find_cut(at_loss)
        self._first, self._upstream, gradients, others = self._of_slice + [mini_step.operation], [], [], []
        if is_twice:
            self._check_random()
            with mini_step.loss.graph.as_default():
                gradients, others = self._build_second_pass()
        self._whole = [list(function.outputs), gradients, at_loss + others]

    def _find_cut(self, at_loss):
        """Return the tensors at which the loss and the metrics are cut off from the layers.

        They are the model's outputs, and what else the loss and the metrics read of the layers. In one pass each loss
        of `add_loss` is taken as it is, a mean over the samples; in two its inputs are.
        """
        model = self._model
        outputs = [each for each in model.outputs if _has_rows(each) or not self._is_twice]
        outputs += [] if self._is_twice else [each for each in getattr(model, "losses", ()) if hasattr(each, "op")]
        given = {each.op for each in self._function.inputs}
        layers = graph.descendants([each.op for each in model._feed_inputs]) - given
        body = graph.ancestors([each.op for each in outputs]) & layers
        found, seen, stack = {}, set(), list(at_loss)
        tensors = list(self._function.outputs)
        while tensors or stack:
            for each in tensors:
                if each.op in body:
                    found[id(each)] = each
                else:
                    stack.append(each.op)
            operation, tensors = stack.pop() if stack else None, []
            if operation is not None and operation not in seen:
                seen.add(operation)
                tensors = list(operation.inputs)
                stack.extend(each for each in operation.control_inputs if each not in body)
        return list(found.values())

    def _check_random(self):
        found = graph.ancestors([each.op for each in self._cut])
        name = next((each.name for each in found if is_random(each.type, each.name)), None)
        name = name or graph.function_with(self._mini_step.loss.graph, found, is_random)
        if name:
            raise ValueError(RANDOM.format(self._model, name))

    def _build_second_pass(self):
        """Return the gradients by the cut, and [the mini-step with what does not go through it] or []."""
        tf, step = self._home.tf, self._mini_step
        at = [each for each in self._cut if each.dtype.is_floating]
        by_cut = tf.gradients(step.loss, at, stop_gradients=at) if at else []
        at = [(each, gradient) for each, gradient in zip(at, by_cut) if gradient is not None]
        others = step.take(tf.gradients(step.loss, step.params, stop_gradients=self._cut))
        self._upstream = [self._home.v1.placeholder(each.dtype, each.shape) for each, _ in at]
        by_params = tf.gradients([each for each, _ in at], step.params, self._upstream) if at else []
        self._first, self._second = [], step.take(by_params) + self._of_slice
        return [tf.convert_to_tensor(gradient) for _, gradient in at], others

    def __call__(self, session, fed, parts):
        """Accumulate the gradients of a batch, and return the outputs of the training function for it.

        Args:
            fed: the arrays fed to the training function.
            parts: the slices of the batch, as Python slices.

        Raises:
            ValueError: what the loss needs of the layers does not have one row per sample.
        """
        samples = fed[0].shape[0]
        sizes = [len(range(samples or 1)[part]) for part in parts]
        of_parts = [self._feeds([batches.part_of(each, samples, part) for each in fed]) for part in parts]
        taken = []
        for feeds, size in zip(of_parts, sizes):
            feeds[self._mini_step.share] = float(size) / sum(sizes)
            taken.append(session.run([self._cut, self._first], feeds, **self._options)[0])
        feeds = self._feeds(fed)
        for tensor, values in zip(self._cut, zip(*taken)):
            feeds[tensor] = self._of_batch(tensor, values, sizes)
        told, gradients, _ = session.run(self._whole, feeds, **self._options)
        for feeds, part in zip(of_parts, parts if self._is_twice else ()):
            feeds.update((place, gradient[part]) for place, gradient in zip(self._upstream, gradients))
            session.run(self._second, feeds, **self._options)
        return told

    def _of_batch(self, tensor, values, sizes):
        """Return the value of a tensor for the batch: the slices' rows, or in one pass the mean of their numbers."""
        if not _has_rows(tensor) and tensor.dtype.is_floating and not self._is_twice:
            mean = sum(value * size for value, size in zip(values, sizes)) / float(sum(sizes))
            return mean.astype(values[0].dtype)
        for value, size in zip(values, sizes):
            if not value.shape or len(value) != size:
                raise ValueError(ROWS.format(tensor, size, self._model))
        return batches.joined(values)

    def _feeds(self, values):
        """Return {placeholder: value} for a session."""
        # In TF 1.13 missing weights are None and have a default. Delete with TF 1.13.
        return {key: _sparse(each) for key, each in zip(self._function.inputs, values) if each is not None}


def _has_rows(tensor):
    """Whether the first dimension of a tensor is unknown until a batch is fed."""
    dims = tensor.shape.dims
    return dims is None or bool(dims) and tensor.shape.as_list()[0] is None


def variables_of_metrics(model):
    """Return the variables of a model's metrics. In old Kerases metrics have no variables."""
    metrics = list(getattr(model, "metrics", None) or []) + list(getattr(model, "_output_loss_metrics", None) or [])
    return [value for each in metrics for value in getattr(each, "weights", ())]


def _of_loss(model):
    """Return the operations that only the loss and the metrics need: targets, sample weights, metrics' variables."""
    fed = [each.op for each in model._feed_targets + list(model._feed_sample_weights)]
    return fed + [graph.operation_of(each) for each in variables_of_metrics(model)]


def _sparse(value):
    """Return a scipy matrix in the form that a session accepts; any other value unchanged."""
    if not hasattr(value, "tocoo"):
        return value
    value = value.tocoo()
    return [list(zip(value.row, value.col)), value.data, value.shape]


def _grouped(operation):
    """Return the operations of a group, with nested groups flattened."""
    if operation.type != "NoOp":
        return [operation]
    return [each for inner in operation.control_inputs for each in _grouped(inner)]
