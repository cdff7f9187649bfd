"""Graph mode: sum the gradients of slices, and pass the sum to the optimizer in place of the gradient of a loss."""

import contextlib
import functools

from legacyga.backend import graph, update_order
from legacyga.backend import ops as _ops
from legacyga.backend.messages import shown
from legacyga.optimizers import lookup, surface
from legacyga.windows.gradient_accumulator import GradientAccumulator

TWO_UPDATES = (
    "In graph mode a model whose training function calls get_updates more than once, such as WideDeepModel, cannot be "
    "cut. Received: calls with {} and with {}. Give fit batches of a slice's size, and compile the model with "
    "legacyga.wrap(optimizer, gradient_accumulation_steps)."
)


class TrainingStep(object):
    """The operations of one training step in slices: mini-steps of an accumulator, and the update.

    Attributes:
        share: a placeholder for a slice's share of the batch's samples.
        divisor: [the batch's weight in a window, as from `loss_divisor.find`], [] if it is unknown or not needed.
        weight: a placeholder for the value of `divisor` in a run.
        operations: [the mini-step with the gradients of a slice's loss, times `share`].
        update: a tensor: the optimizer's update, then the accumulator's reset. None if no variable has a gradient.
        variables: the accumulator's variables.
    """

    def __init__(self, tf, optimizer, loss, params):
        self._ops, self._accumulator = _ops.Ops(tf), GradientAccumulator(reduction="sum")
        self.loss, self.params, self.variables = loss, params, []
        self.share, self.weight = self._ops.v1.placeholder("float64", []), self._ops.v1.placeholder("float64", [2])
        self.divisor = []
        self.operations = self.take(tf.gradients(loss, params), self.share)
        self.update = self._make_update(optimizer) if self.operations else None

    def take(self, gradients, weight=1.0):
        """Return [the mini-step with these gradients], [] if there are none."""
        if all(each is None for each in gradients):
            return []
        v1 = self._ops.v1
        known = v1.get_collection_ref(v1.GraphKeys.GLOBAL_VARIABLES)
        count = len(known)
        taken = self._accumulator(gradients, weight)
        # Make the new variables local, so that neither a Saver nor Keras saves them.
        for each in known[count:]:
            v1.add_to_collection(v1.GraphKeys.LOCAL_VARIABLES, each)
        self.variables.extend(known[count:])
        del known[count:]
        return [taken.op]

    def _make_update(self, optimizer):
        ops, gradients, params = self._ops, self._accumulator.gradients, self.params

        def updates():
            # get_updates needs a loss: build one that has these gradients.
            terms = [graph.term_of(ops, each, param) for each, param in zip(gradients, params) if each is not None]
            with contextlib.ExitStack() as entered:
                for each in map(surface.accumulation_of, lookup.optimizers_in(optimizer)):
                    divisor = each.divisor_of(self.loss, params)
                    self.divisor = [] if divisor is None else [divisor]
                    entered.enter_context(each.weights.of_loss(divisor if divisor is None else self.weight))
                return optimizer.get_updates(loss=ops.tf.add_n(terms), params=params)

        # An accumulating optimizer orders its update itself.
        update = updates() if lookup.optimizers_in(optimizer) else update_order.ordered(updates, ops, gradients)
        with ops.after(update):
            return self._accumulator.reset()


def recorder(optimizer, home, made):
    """Return an optimizer with the state of `optimizer`; its `get_updates` only puts a `TrainingStep` in `made`."""

    def get_updates(self, loss, params):
        step = TrainingStep(home.tf, optimizer, loss, params) if params else None
        if step is None or not step.operations:
            # Nothing is trainable or has a gradient: do as without slices.
            return optimizer.get_updates(loss=loss, params=params)
        if made:
            raise ValueError(TWO_UPDATES.format(shown(made[0].params), shown(params)))
        made[:] = [step]
        # `SlicedFunction` runs the update.
        return []

    # A property takes precedence over a `get_updates` that a program has set on the object.
    found = property(lambda self: functools.partial(get_updates, self))
    recorder = object.__new__(type(type(optimizer).__name__, (type(optimizer),), dict(get_updates=found)))
    object.__setattr__(recorder, "__dict__", vars(optimizer))
    return recorder
