"""Slices in eager mode for a loss that is a mean over the samples: each slice is computed and differentiated once.

The slices run before Keras's own training step, which gets their outputs and gradients when it calls the model. So
Keras itself computes the loss and the metrics of the whole batch, and calls the optimizer.
"""

import inspect

from legacyga.backend import autograph, features
from legacyga.backend import ops as _ops
from legacyga.backend.messages import shown
from legacyga.slices import batches, losses, means
from legacyga.slices.calls import SlicedCall, again, arguments, replaced, uncut, without_penalty


def train_step(home, model, own, data, size):
    """Return the logs of `own(data)`, Keras's bound `train_step`, computed in slices of at most `size` samples."""
    tf, samples = home.tf, batches.number_in(home.tf, data)
    with _ops.Ops(tf).after(batches.checked(tf, data, samples)):
        samples = samples if isinstance(samples, int) else tf.identity(samples)
    call = _Once(home, model, features.as_trained_on(home, data), samples, size)
    to_come = [call.run()]

    def outputs(*args, **kwargs):
        if not to_come:
            # A later call, as in compute_metrics or a function given to add_loss, may have other arguments or weights.
            with uncut([model]), without_penalty(model):
                return again(home, model)(*args, **kwargs)
        joined, gradients = to_come.pop()
        # The slices' gradients are already those of the loss: ignore the upstream gradient.
        return call.recorded(joined, [], lambda upstream: gradients)

    def check(given, y_pred, sample_weight):
        is_weighted = sample_weight is not None or any(each.mask is not None for each in given)
        found = losses.loss_of_one_number(home, given) if is_weighted else None
        if found is not None:
            raise ValueError(
                means.WRONG.format("{}, one number for a whole batch, and sample weights or masks".format(shown(found)))
            )

    outputs = autograph.as_written(tf, outputs)
    # Keras inspects the signature.
    outputs.__signature__ = inspect.signature(model.call)
    with replaced(model, outputs), losses.looked_at(home, model, check):
        return own(data)


class _Once(SlicedCall):
    """A call in which each slice is computed and differentiated once."""

    joins_numbers = True

    def __init__(self, home, model, data, samples, size):
        parts = data if isinstance(data, tuple) else (data,)
        x, self._y, self._weights = (parts + (None, None))[:3]
        super(_Once, self).__init__(home, model, arguments(model, x), samples, size)
        self._container = losses.container_of(home, model)

    def run(self):
        """Return the flat list of the whole batch, and the gradients of the trainable variables."""
        found = self.loop.run(self._take)
        outputs = len(found) - len(self.variables())
        return found[:outputs], found[outputs:]

    def _take(self, begin, length):
        given, y, weights = self.part((self.given, self._y, self._weights), begin, length)
        with self.tf.GradientTape() as tape:
            outputs, added = self.call(given)
            # Only now: the first call of a model may make them.
            variables = self.variables()
            sources = [raw for _, raw in variables]
            with self.tf.GradientTape(watch_accessed_variables=False) as tape_of_loss:
                tape_of_loss.watch(sources)
                loss = self._loss(y, outputs, weights, added, length)
        gradients = [None] * len(variables)
        if loss is not None:
            # Keras's tape adds the gradient of what the loss itself reads, such as a kernel for a penalty: subtract it.
            direct = tape_of_loss.gradient(loss, sources)
            gradients = [
                each if by_loss is None else self.ops.dense(each) - self.ops.dense(by_loss)
                for each, by_loss in zip(tape.gradient(loss, sources), direct)
            ]
        pairs = self.joins(self.tensors_of(outputs, added, length), length)
        kinds = [self.joins_gradient(variable, each) for (variable, _), each in zip(variables, gradients)]
        return pairs + list(zip(kinds, gradients))

    def _build(self, *args):
        """Let the loss container make its losses and metrics, in a trace that never runs."""
        call = autograph.as_written(self.tf, lambda: self._container(*args))
        self.tf.function(call, autograph=False).get_concrete_function()

    def _loss(self, y, outputs, weights, added, length):
        """Return a slice's part of the loss, None without one. Keras's own tape records the regularizers of weights."""
        container = features.without_metrics(self.home, self._container, lambda: self._build(y, outputs, weights))
        share = self.loop.share(length, "float64")
        if features.takes_added_losses(self.home):
            # None of these losses is a sum, and the container brings them to one dtype.
            found = [(container(y, outputs, weights, regularization_losses=[loss for loss, _, _ in added]), share)]
        else:
            found = [(None if container is None else container(y, outputs, weights), share)]
            found += [
                (features.added_loss(self.home, self.model, loss), 1 if is_sum else share) for loss, is_sum, _ in added
            ]
        found = [loss * self.ops.cast(part, loss.dtype) for loss, part in found if loss is not None]
        return features.scaled_loss(self.model.optimizer, sum(found[1:], found[0])) if found else None
