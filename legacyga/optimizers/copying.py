"""A copy of an optimizer that copies its own state, and nothing that it merely refers to."""

import collections.abc
import copy
import types

from legacyga.backend import homes
from legacyga.backend.tensors import is_variable

PLAIN = (bool, int, float, str, type(None), types.FunctionType)
CONTAINERS = (list, tuple, set, frozenset, collections.abc.Mapping)


def copy_attributes(optimizer, copied, own, new_variable, kept=()):
    """Give `copied` copies of the attributes of `optimizer`.

    Copied are the optimizer's own variables, an optimizer within a wrapper, the methods of either, and the containers
    that hold one of these or are Keras's own. All else stays the same object: variables that were given, dicts keyed by
    them, schedules, the objects of other methods.

    Args:
        optimizer: any optimizer.
        copied: an object of its class, or of a subclass.
        own: function of an optimizer, of the list of its own variables.
        new_variable: function of a variable, of a new one with its value.
        kept: names of Keras's own attributes.

    Returns:
        A list of pairs, of an optimizer within it and the copy of that.
    """
    pins = _Pins(own, new_variable, kept)
    pins.know([optimizer] + optimizers_within(optimizer))
    pins.add(optimizer, copied)
    for each in _kept_beside(optimizer):
        pins.memo.pop(id(each), None)
    for each, copied_each in [(optimizer, copied)] + pins.inner:
        vars(copied_each).update(copy.deepcopy(vars(each), pins.memo))
    return pins.inner


def values_in(values):
    """What nested containers hold, the containers among it, each once: a list. Numbers and texts are left out."""
    found, seen, stack = [], set(), list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        found.append(value)
        if isinstance(value, collections.abc.Mapping):
            stack.extend(value.keys())
            stack.extend(value.values())
        elif isinstance(value, CONTAINERS):
            stack.extend(value)
    return found


def optimizers_within(optimizer):
    """The optimizers in another one's attributes, or in their containers, and the optimizers within these: a list."""
    found, values = [], values_in(vars(optimizer).values())
    for value in values:
        # Most of the others are variables.
        is_known = hasattr(value, "read_value") or isinstance(value, CONTAINERS)
        if is_known or homes.generation_of(type(value)) is None:
            continue
        if value is not optimizer and not any(value is each for each in found):
            found.append(value)
            values.extend(values_in(vars(value).values()))
    return found


class _Pins(object):
    """What a deepcopy is told, by its memo, not to copy in its own ways."""

    def __init__(self, own, new_variable, kept):
        self._own, self._new_variable, self._kept = own, new_variable, kept
        # By id, what is copied: variables and optimizers.
        self._copied = {}
        self.memo, self.inner = {}, []

    def know(self, values):
        """These are copied wherever they are found."""
        self._copied.update((id(value), value) for value in values)

    def add(self, optimizer, copied):
        """An optimizer, whose copy is `copied`."""
        self.memo[id(optimizer)] = copied
        beside = _kept_beside(optimizer)
        for variable in list(getattr(beside[0], "_weights", {}).values()) if beside else self._own(optimizer):
            if id(variable) not in self._copied:
                self.know([variable])
                self.memo[id(variable)] = self._new_variable(variable)
        tracker = vars(optimizer).get("_tracker")
        if tracker is not None:
            # Keras 3 takes in what it does not know by its id, at the end of the list: also what a container is given
            # while it is copied.
            self.memo[id(tracker.stored_ids)] = {
                name: {id(self.memo[each]) if each in self.memo else each for each in ids}
                for name, ids in tracker.stored_ids.items()
            }
        for name, value in list(vars(optimizer).items()):
            if isinstance(value, PLAIN):
                continue
            is_container = isinstance(value, CONTAINERS)
            inside = values_in([value]) if is_container else [value]
            # An empty container of Keras 3 is one optimizer's own, and may yet be given its variables.
            is_empty = is_container and not value and hasattr(value, "tracker")
            if name in self._kept or is_empty or any(map(self._is_copied, inside)):
                self._pin(inside)
            elif "deferred" in name or "restor" in name:
                # What a checkpoint has for variables that are yet to be made. Its reader has no copy.
                self.memo[id(value)] = _with_containers_copied(value)
            elif "dependenc" not in name and value is not tracker:
                # What is in it, too: TensorFlow tracks the containers that Keras 3 has put into those of its own.
                self._pin(inside)
                self.memo.setdefault(id(value), value)
        # How TensorFlow and Keras track the object is copied by their own ways.

    def _is_copied(self, value):
        return id(value.__self__ if isinstance(value, types.MethodType) else value) in self._copied

    def _pin(self, values):
        """Say how to copy each of these values that is no container."""
        for value in reversed(values):
            if id(value) in self.memo or isinstance(value, CONTAINERS):
                continue
            if not self._is_copied(value):
                self.memo[id(value)] = value
            elif not isinstance(value, types.MethodType):
                # Methods are bound to the copy by deepcopy.
                copied = object.__new__(type(value))
                # TensorFlow looks at it when it makes containers of it, before it has its own.
                vars(copied).update(vars(value))
                self.inner.append((value, copied))
                self.add(value, copied)


def _with_containers_copied(value):
    if isinstance(value, dict):
        copied = copy.copy(value)
        copied.update((key, _with_containers_copied(each)) for key, each in value.items())
        return copied
    return [_with_containers_copied(each) for each in value] if isinstance(value, list) else value


def inner_optimizer(optimizer):
    """The optimizer that a wrapper of the v1 API keeps, None of all others."""
    attributes = vars(optimizer) if homes.generation_of(type(optimizer)) == "v1" else {}
    inner = attributes.get("optimizer", attributes.get("_optimizer"))
    return inner if homes.generation_of(type(inner)) else None


def keeper_of(optimizer):
    """The optimizer that has the state: the one in a LossScaleOptimizer of tf.keras or tf_keras, else `optimizer`."""
    return vars(optimizer)["_optimizer"] if hasattr(type(optimizer), "get_unscaled_gradients") else optimizer


def _kept_beside(optimizer):
    """What a LossScaleOptimizer keeps beside its keeper: its scale, and what files of TF 2.2 are restored by."""
    keeper = keeper_of(optimizer)
    if keeper is optimizer:
        return []
    tracked = getattr(keeper, "_self_unconditional_dependency_names", {})
    return [vars(optimizer)["_loss_scale"], tracked.get("base_optimizer")]


def attributes_that_are_variables(optimizer):
    """{name: variable} of an optimizer's attributes."""
    values = vars(optimizer).items()
    return {name: value for name, value in values if hasattr(value, "assign_add") and is_variable(value)}
