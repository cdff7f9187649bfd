"""A copy of an optimizer that copies its own state, and nothing that it merely refers to."""

import copy
import types

from legacyga import _compat, _ops


def copy_attributes(optimizer, copied, own, new_variable, names=None):
    """Give `copied` copies of the attributes of `optimizer`.

    Containers are copied, and what is in them again: the optimizer's own variables, by `new_variable`, an optimizer
    within a wrapper, and the methods of either. All else stays the same object: variables that were given, schedules,
    the objects of other methods.

    Args:
        optimizer: any optimizer.
        copied: an object of its class, or of a subclass.
        own: function of an optimizer, of the list of its own variables.
        new_variable: function of a variable, of a new one with its value.
        names: those of the attributes. Default: all.
    """
    memo, inner = {}, []
    _pin_optimizer(optimizer, copied, own, new_variable, memo, inner)
    state = {name: value for name, value in vars(optimizer).items() if names is None or name in names}
    vars(copied).update(copy.deepcopy(state, memo))
    for each, copied_each in inner:
        vars(copied_each).update(copy.deepcopy(vars(each), memo))


def holds(value, wanted, seen=()):
    """Whether `wanted` says True for a value, or for one in its containers."""
    if wanted(value):
        return True
    if id(value) in seen or not _is_container(value):
        return False
    return any(holds(each, wanted, tuple(seen) + (id(value),)) for each in _items(value))


def _pin_optimizer(optimizer, copied, own, new_variable, memo, inner):
    """Tell a deepcopy, by its memo, what is not to be copied by its own ways."""
    memo[id(optimizer)] = copied
    for variable in own(optimizer):
        if id(variable) not in memo:
            memo[id(variable)] = new_variable(variable)
    _pin(vars(optimizer), own, new_variable, memo, inner, set())


def _pin(value, own, new_variable, memo, inner, seen):
    if id(value) in memo or id(value) in seen:
        return
    seen.add(id(value))
    if _is_container(value):
        for each in _items(value):
            _pin(each, own, new_variable, memo, inner, seen)
    elif isinstance(value, types.MethodType) and id(value.__self__) in memo:
        # deepcopy binds it to the copy.
        return
    elif _compat.generation_of(type(value)) is not None:
        copied = object.__new__(type(value))
        inner.append((value, copied))
        _pin_optimizer(value, copied, own, new_variable, memo, inner)
    else:
        memo[id(value)] = value


def _is_container(value):
    return isinstance(value, (list, tuple, dict, set, frozenset))


def _items(value):
    return list(value.keys()) + list(value.values()) if isinstance(value, dict) else list(value)


def attributes_that_are_variables(optimizer):
    """{name: variable} of an optimizer's attributes."""
    return {name: value for name, value in vars(optimizer).items() if _ops.is_variable(value)}
