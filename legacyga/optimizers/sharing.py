"""Warns, once, if windows whose lists of variables overlap are open at the same time."""

import itertools

from legacyga.backend.messages import warn

DIVIDED = (
    "For each list of variables an optimizer that accumulates has a window of its own, with K mini-steps of its own. "
    "Received: two lists that share variables, of {} and of {} variables, whose windows have both begun and not "
    "ended. {} If you freeze variables during a window, first call legacyga.flush(optimizer) or "
    "optimizer.drop_windows()."
)
TURNS = "If lists take turns, give all variables each time, in one order, with None for those that have no gradient."
TURNS_WITH_LOSS_SCALE = (
    "Keras's LossScaleOptimizer leaves out the variables that have no gradient before it calls the optimizer in it: "
    "put it inside, legacyga.wrap(LossScaleOptimizer(...), {}), or give zeros: "
    "tape.gradient(..., unconnected_gradients=tf.UnconnectedGradients.ZERO)."
)


class Sharing(object):
    """The pairs of a registry's windows that share variables."""

    def __init__(self):
        self._pairs, self._is_said = [], False

    def learn(self, keys):
        """Find the pairs among the windows' keys, tuples of variable keys."""
        self._pairs = [pair for pair in itertools.combinations(keys, 2) if set(pair[0]) & set(pair[1])]

    def look(self, open_keys, accumulation):
        """Warn, once, if both windows of a pair are open; `open_keys()` reads the keys of the open windows."""
        if not self._pairs or self._is_said:
            return
        try:
            keys = open_keys()
        except accumulation.home.tf.errors.FailedPreconditionError:
            # A window made in a function that is still being traced is not initialized yet.
            return
        found = [sorted(map(len, pair)) for pair in self._pairs if keys.issuperset(pair)]
        if found:
            self._is_said = True
            turns = TURNS_WITH_LOSS_SCALE.format(accumulation.steps.made_with) if accumulation.is_handed_sums else TURNS
            warn(DIVIDED.format(found[0][0], found[0][1], turns))
