"""Horovod's optimizers of a Keras: what they exchange between processes is exchanged once a window, by the update.

Horovod makes a class of the optimizer's class. Each of its methods calls the optimizer's own, found by
`super(self.__class__, self)`, and exchanges gradients by `_allreduce`. In a subclass of that class these methods find
themselves, without end. So an accumulating class has the optimizer's own methods in their place.
"""

from legacyga.backend.tensors import is_sparse

NO_POLICY = (
    "on_nonfinite={!r} cannot hold with Horovod: each process decides on its own gradients, and one that makes no "
    "update leaves the others waiting. Received: {!r}. Leave it at 'propagate'."
)
TWICE = (
    "The optimizer has Horovod's own backward_passes_per_step, and wrap would accumulate on top of it. Received: {!r}. "
    "Leave that argument out."
)


def _made_by_horovod(cls):
    """The class that Horovod made of an optimizer class of a Keras, if `cls` is or extends one; else None."""
    made = [each for each in cls.__mro__ if each.__module__ == "horovod._keras" and hasattr(each, "_allreduce")]
    return made[0] if made else None


def check(optimizer, settings):
    """Raise where an optimizer of Horovod's cannot accumulate with these `settings.Settings`."""
    if _made_by_horovod(type(optimizer)) is None:
        return
    if optimizer._agg_helper is not None:
        raise ValueError(TWICE.format(optimizer))
    if settings.guards:
        raise ValueError(NO_POLICY.format(settings.on_nonfinite, optimizer))


def check_inside(optimizer):
    """Raise where an accumulating optimizer stands within one of Horovod's that accumulates by itself."""
    if getattr(optimizer, "_agg_helper", None) is not None:
        raise ValueError(TWICE.format(optimizer))


def bases_before(cls):
    """The classes to put before an optimizer's class: one where Horovod made it, none else."""
    made = _made_by_horovod(cls)
    if made is None:
        return ()
    (own,) = made.__bases__
    names = [name for name in vars(made) if hasattr(own, name) and not name.startswith("__")]
    return (type("WithoutExchange", (object,), {name: getattr(own, name) for name in names}),)


def exchanged(optimizer, pairs, rows_once=None):
    """(gradient, variable) pairs of an update, with the gradients as all processes together have them.

    Args:
        optimizer: an accumulating one.
        pairs: list; the gradient may be None.
        rows_once: function of a list of IndexedSlices, of their sum with each row once; None leaves them as they come.
    """
    if (
        not hasattr(optimizer, "_allreduce")
        or not pairs
        or _made_by_horovod(type(optimizer)._legacyga_class[0]) is None
    ):
        return pairs
    gradients, variables = zip(*pairs)
    together = optimizer._allreduce(gradients, variables)
    if rows_once is not None:
        # A row that two processes have is one row: its values are added before anything is clipped.
        together = [rows_once([each]) if is_sparse(each) else each for each in together]
    return list(zip(together, variables))
