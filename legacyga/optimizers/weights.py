"""Keeps the weights of an optimizer's mini-steps, given by the program or counted as samples."""

import contextlib
import threading

from legacyga.backend.messages import shown
from legacyga.windows import checks
from legacyga.windows.mini_step import Weight

AROUND_FUNCTION = (
    "A function that is traced keeps the weight of its first trace. Received: mini_step_weight({}) around the call "
    "of such a function. Enter the context inside it, around apply_gradients, or give the model a train_step that does."
)
NOTHING_MADE = (
    "In a graph, or a function that was traced, a mini-step has the weight that it was made with, and no mini-step was "
    "made in this context. Received: {}. Make the mini-step in it, with a tensor as its weight."
)


class Weights(object):
    """The weights of an optimizer's mini-steps.

    Attributes:
        needs_no_warning: whether a weight was ever given, or the user was warned that all batches weigh alike.
        has_warned: whether the user was warned that a loss leaves batches without an exact weight.
        made: the number of mini-steps made. A traced function makes one when it is traced, not when it runs.
        are_traced: whether any mini-step was made in a traced function.
        knows_losses: in graph mode, whether losses were inspected: once only, because this adds operations.
    """

    def __init__(self, ops):
        self._ops = ops
        self.needs_no_warning = self.has_warned = self.knows_losses = False
        # {`_here` of a replica or thread: its `Weight`}. Replicas are threads, and their contexts overlap.
        self._given = {}
        # In graph mode, the `Weight` of mini-steps that are given none: a loss's divisor.
        self._of_loss = None
        self.made, self.are_traced = 0, False

    @property
    def _here(self):
        """The running code's key in `_given`: its replica's number, an int; outside of replicas its thread's name."""
        number = self._ops.replicas.number
        return "thread {}".format(threading.get_ident()) if number is None else number

    def here(self):
        """The `Weight` of a mini-step on this replica; None if it weighs one unit (`window.Kept.unit`)."""
        here = self._here
        weight = self._given.get(here)
        if weight is None and isinstance(here, int):
            # A weight given outside of replicas, around `strategy.run`, applies to each of them.
            weight = next((each for key, each in self._given.items() if not isinstance(key, int)), None)
        weight = weight or self._of_loss
        if weight is None:
            return None
        if not weight.is_sample_count and not self._ops.is_made_with(weight.given_in):
            raise ValueError(AROUND_FUNCTION.format(shown(weight.value)))
        # Workers exchange the weight, so its dtype must be the same everywhere.
        return weight._replace(value=self._ops.cast(weight.value, "float64"))

    @contextlib.contextmanager
    def giving(self, weight, count, is_graph):
        """A context that gives this replica's mini-steps this `Weight`. `is_graph`: graph mode.

        Raises at the end if no mini-step was made in it: always in graph mode; in eager mode if the values of `count()`
        have changed, because a function traced earlier has taken mini-steps, with the weight of its trace.
        """
        ops, given = self._ops, weight.value
        if not weight.is_sample_count:
            weight = weight._replace(value=checks.check_weight(ops, given), given_in=ops.graph_here())
        watched = self.are_traced and not weight.is_sample_count and not is_graph
        counted = count() if watched else None
        number, made = self._here, self.made
        before, self._given[number] = self._given.get(number), weight
        self.needs_no_warning = True
        try:
            yield
        finally:
            self._given[number] = before
            if before is None:
                del self._given[number]
        if self.made == made and (is_graph or watched and count() != counted):
            raise ValueError(NOTHING_MADE.format(shown(given)))

    @contextlib.contextmanager
    def of_loss(self, divisor):
        """In graph mode, a context in which a loss's divisor is the weight of mini-steps that are given none.

        `divisor` is as from `loss_divisor.find`; None changes nothing.
        """
        before = self._of_loss
        if divisor is not None and not self._given:
            value, counted = self._ops.unstack(divisor, 2)
            self._of_loss, self.needs_no_warning = Weight(value, True, counted=counted), True
        try:
            yield
        finally:
            self._of_loss = before

    def count_anew(self, value):
        """Within `giving`, replace the weight of the coming mini-step by a count found in its losses."""
        number = self._here
        self._given[number] = self._given[number]._replace(value=value)
