"""A copy of an optimizer that copies its own state, and nothing that it merely refers to."""

import copy
import types

from legacyga import _compat, _ops


def copy_attributes(optimizer, copied, own, new_variable, kept=(), names=None):
    """Give `copied` copies of the attributes of `optimizer`.

    The optimizer's own variables are copied, by `new_variable`, an optimizer within a wrapper, the methods of either, and
    the containers that hold one of these or are Keras's own. All else stays the same object: variables that were given,
    dicts keyed by them, schedules, the objects of other methods.

    Args:
        optimizer: any optimizer.
        copied: an object of its class, or of a subclass.
        own: function of an optimizer, of the list of its own variables.
        kept: names of Keras's own attributes.
        new_variable: function of a variable, of a new one with its value.
        names: those of the attributes. Default: all.

    Returns:
        The list of the copies of optimizers within it.
    """
    memo, inner = {}, []
    _pin_optimizer(optimizer, copied, own, new_variable, kept, memo, inner)
    state = {name: value for name, value in vars(optimizer).items() if names is None or name in names}
    vars(copied).update(copy.deepcopy(state, memo))
    for each, copied_each in inner:
        vars(copied_each).update(copy.deepcopy(vars(each), memo))
    return [copied_each for _, copied_each in inner]


def holds(value, wanted, seen=()):
    """Whether `wanted` says True for a value, or for one in its containers."""
    if wanted(value):
        return True
    if id(value) in seen or not _is_container(value):
        return False
    return any(holds(each, wanted, tuple(seen) + (id(value),)) for each in _items(value))


def _pin_optimizer(optimizer, copied, own, new_variable, kept, memo, inner):
    """Tell a deepcopy, by its memo, what is not to be copied by its own ways."""
    memo[id(optimizer)] = copied
    variables = {id(variable): variable for variable in own(optimizer)}
    memo.update((key, new_variable(variable)) for key, variable in variables.items() if key not in memo)

    def is_copied(value):
        value = value.__self__ if isinstance(value, types.MethodType) else value
        return id(value) in variables or _compat.generation_of(type(value)) is not None

    def pin(value, seen):
        if id(value) in memo or id(value) in seen:
            return
        if _is_container(value):
            for each in _items(value):
                pin(each, seen + (id(value),))
        elif isinstance(value, types.MethodType) and is_copied(value):
            # deepcopy binds it to the copy.
            return
        elif is_copied(value):
            copied_value = object.__new__(type(value))
            inner.append((value, copied_value))
            _pin_optimizer(value, copied_value, own, new_variable, kept, memo, inner)
        else:
            memo.setdefault(id(value), value)

    for name, value in list(vars(optimizer).items()):
        if name in kept or holds(value, is_copied):
            pin(value, ())
        elif "dependenc" not in name and "restor" not in name:
            memo.setdefault(id(value), value)
    # How TensorFlow tracks the object, and what it is still to restore, is copied by its own ways.


def _is_container(value):
    return isinstance(value, (list, tuple, dict, set, frozenset))


def _items(value):
    return list(value.keys()) + list(value.values()) if isinstance(value, dict) else list(value)


def attributes_that_are_variables(optimizer):
    """{name: variable} of an optimizer's attributes."""
    return {name: value for name, value in vars(optimizer).items() if _ops.is_variable(value)}
