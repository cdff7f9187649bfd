"""Support for `wrap` around Horovod's Keras optimizers: processes exchange gradients once per window, in the update.

Horovod subclasses the optimizer's class. Its methods exchange gradients with `_allreduce` and call the original ones
through `super(self.__class__, self)`, which recurses without end in any further subclass. So an accumulating class
bypasses them with the optimizer's original methods, and each update calls `_allreduce` itself.
"""

import inspect

from legacyga.backend.messages import shown
from legacyga.backend.tensors import is_sparse

NO_POLICY = (
    "on_nonfinite={} cannot hold with Horovod: each process decides on its own gradients, and one that makes no "
    "update leaves the others waiting. Received: {}. Leave it at 'propagate'."
)
TOO_OLD = (
    "wrap needs Horovod 0.21.3 or newer, in which an optimizer has a method `_allreduce(gradients, variables)`. "
    "Received: {}, of an older Horovod. Upgrade Horovod, or accumulate with legacyga.GradientAccumulator and exchange "
    "what it returns."
)
TWICE = (
    "The optimizer has Horovod's own backward_passes_per_step, and wrap would accumulate on top of it. Received: {}. "
    "Leave that argument out."
)


def _made_by_horovod(cls):
    """The class that Horovod made of a Keras optimizer class, if `cls` is or extends one; else None."""
    made = [each for each in cls.__mro__ if each.__module__ == "horovod._keras"]
    return made[0] if made else None


def check(optimizer, settings):
    """Raise if a Horovod optimizer cannot accumulate with these `settings.Settings`."""
    made = _made_by_horovod(type(optimizer))
    if made is None:
        return
    if not hasattr(made, "_allreduce") or len(inspect.signature(made._allreduce).parameters) < 3:
        raise ValueError(TOO_OLD.format(shown(optimizer)))
    check_does_not_accumulate(optimizer)
    if settings.guards:
        raise ValueError(NO_POLICY.format(shown(settings.on_nonfinite), shown(optimizer)))


def check_does_not_accumulate(optimizer):
    """Raise if Horovod itself accumulates in this optimizer, by its `backward_passes_per_step`."""
    if getattr(optimizer, "_agg_helper", None) is not None:
        raise ValueError(TWICE.format(shown(optimizer)))


def bases_before(cls):
    """Bases to put before the class `cls`: if Horovod made it, one that restores the original methods; else none."""
    made = _made_by_horovod(cls)
    if made is None:
        return ()
    (own,) = made.__bases__
    names = [name for name in vars(made) if hasattr(own, name) and not name.startswith("__")]
    return (type("WithoutExchange", (object,), {name: getattr(own, name) for name in names}),)


def exchanged(optimizer, pairs, rows_once):
    """An update's (gradient, variable) pairs, reduced over all processes if Horovod made the wrapped class.

    `rows_once` sums a list of IndexedSlices, each row once; None leaves repeated rows as they are.
    """
    is_horovods = hasattr(optimizer, "_allreduce") and _made_by_horovod(type(optimizer)._legacyga_class[0])
    if not is_horovods or not pairs:
        return pairs
    gradients, variables = zip(*pairs)
    together = optimizer._allreduce(gradients, variables)
    if rows_once is not None:
        # Several processes may have the same row: add it up before Keras clips.
        together = [rows_once([each]) if is_sparse(each) else each for each in together]
    return list(zip(together, variables))
