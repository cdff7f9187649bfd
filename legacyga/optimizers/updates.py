"""The list that an accumulating `get_updates` returns, which raises if another optimizer adds its own updates to it."""

import sys

from legacyga.backend import homes
from legacyga.backend.messages import shown

AROUND = (
    "{0}.get_updates adds updates of its own to those of an optimizer that accumulates: they would be made on every "
    "mini-step. Received: {1}. Wrap the optimizer that adds them: wrap({0}(SGD()), {2}), not {0}(wrap(SGD(), {2})); "
    "or, where wrap refuses it, train in slices of a batch: legacyga.micro_batch(model, size) after compile."
)


class Updates(list):
    """The updates of a mini-step. Keras and programs may add to the list, another optimizer may not."""

    _accumulation = None

    def __init__(self, *updates):
        # Sessions up to TF 1.11 return a list of values as `type(fetches)(*values)`. Delete with TF 1.11.
        super(Updates, self).__init__(updates)

    def __iadd__(self, others):
        if not isinstance(others, Updates):
            self._check(sys._getframe(1))
        return super(Updates, self).__iadd__(others)

    def __radd__(self, others):
        # Keep the guard when the list is added to another one, as keras-lr-multiplier does.
        if others and not isinstance(others, Updates):
            self._check(sys._getframe(1))
        return guarded(list.__add__(list(others), self), self._accumulation)

    def _check(self, caller):
        """Raise if the frame `caller` is another optimizer's get_updates."""
        other, accumulation = caller.f_locals.get("self"), self._accumulation
        if accumulation is None:
            return
        is_optimizer = other is not accumulation.optimizer and homes.generation_of(type(other)) is not None
        if is_optimizer and caller.f_code.co_name == "get_updates":
            raise ValueError(AROUND.format(type(other).__name__, shown(other), accumulation.next_steps))


def _checked(method):
    def checked(self, *args):
        self._check(sys._getframe(1))
        return method(self, *args)

    return checked


# `__iter__` is for [*updates, another].
for _name in ("__add__", "__iter__", "append", "extend"):
    setattr(Updates, _name, _checked(getattr(list, _name)))


def guarded(updates, accumulation):
    """The list of updates, as `Updates` if the optimizer has windows."""
    if not accumulation.steps.has_windows:
        return updates
    made = Updates(*updates)
    made._accumulation = accumulation
    return made
