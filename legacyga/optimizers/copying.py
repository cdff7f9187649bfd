"""Copies an optimizer with its own state, and shares objects that it merely refers to."""

import collections.abc
import copy
import types

from legacyga.backend import homes
from legacyga.backend.tensors import is_variable

PLAIN = (bool, int, float, str, type(None), types.FunctionType)
CONTAINERS = (list, tuple, set, frozenset, collections.abc.Mapping)


def copy_attributes(optimizer, copied, own, new_variable, kept=()):
    """Copy the attributes of `optimizer` to `copied`; return a list of (inner optimizer, its copy) pairs.

    Copies the variables that `own(optimizer)` lists, by `new_variable(variable)`; optimizers within; bound methods of
    these; containers that hold any of these, or to which Keras writes (attributes named in `kept`). Shares what the
    user passed in: variables, dicts keyed by them, schedules, methods bound to other objects.
    """
    pins = _Pins(own, new_variable, kept)
    pins.mark([optimizer] + optimizers_within(optimizer))
    pins.add(optimizer, copied)
    # Leave these to deepcopy.
    for each in _beside_keeper(optimizer):
        pins.memo.pop(id(each), None)
    pairs = [(optimizer, copied)] + pins.within
    for tracker in [vars(each)["_tracker"] for each, _ in pairs if "_tracker" in vars(each)]:
        # As deepcopy fills a container, Keras 3's tracker would list each item once more: tell it the copies' ids.
        pins.memo[id(tracker.stored_ids)] = {
            name: {id(pins.memo[key]) if key in pins.memo else key for key in ids}
            for name, ids in tracker.stored_ids.items()
        }
    for each, copied_each in pairs:
        vars(copied_each).update(copy.deepcopy(vars(each), pins.memo))
    return pins.within


def values_in(values):
    """The distinct values in nested containers, including the containers, without those of `PLAIN` types: a list."""
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
            if not isinstance(value, dict):
                # Keras 3's OptimizerMap keeps its default optimizer in an attribute.
                stack.extend(getattr(value, "__dict__", {}).values())
        elif isinstance(value, CONTAINERS):
            stack.extend(value)
    return found


def _attributes(optimizer):
    # TensorFlow's own lists of these attributes have "dependenc" in their names.
    return values_in([value for name, value in vars(optimizer).items() if "dependenc" not in name])


def optimizers_within(optimizer):
    """All optimizers in an optimizer's attributes, directly, in containers or in another optimizer: a list."""
    found, values = [], _attributes(optimizer)
    for value in values:
        # For speed, skip most values without the lookups of `generation_of`.
        is_known = hasattr(value, "read_value") or isinstance(value, CONTAINERS)
        if is_known or homes.generation_of(type(value)) is None:
            continue
        if value is not optimizer and not any(value is each for each in found):
            found.append(value)
            values.extend(_attributes(value))
    return found


class _Pins(object):
    """Builds the memo of a deepcopy, {id of an object: what the copy has in its place}: a copy made here, or itself."""

    def __init__(self, own, new_variable, kept):
        self._own, self._new_variable, self._kept = own, new_variable, kept
        # {id: a variable or optimizer to copy}.
        self._to_copy = {}
        self.memo, self.within = {}, []

    def mark(self, values):
        """Mark these values as to be copied, wherever they are found."""
        self._to_copy.update((id(value), value) for value in values)

    def add(self, optimizer, copied):
        """Put `copied` in the place of `optimizer`, and share or copy each of its variables and attributes."""
        self.memo[id(optimizer)] = copied
        beside = _beside_keeper(optimizer)
        # A LossScaleOptimizer's own variables are those of its loss scale.
        for variable in list(getattr(beside[0], "_weights", {}).values()) if beside else self._own(optimizer):
            if id(variable) not in self._to_copy:
                self.mark([variable])
                self.memo[id(variable)] = self._new_variable(variable)
        for name, value in list(vars(optimizer).items()):
            if isinstance(value, PLAIN):
                continue
            is_container = isinstance(value, CONTAINERS)
            inside = values_in([value]) if is_container else [value]
            # Copy an empty container that Keras or TensorFlow wrapped: a build may put variables into it.
            is_tracked = hasattr(value, "tracker") or hasattr(value, "_setattr_tracking")
            is_empty = is_container and not value and is_tracked
            if name in self._kept or is_empty or any(map(self._is_to_copy, inside)):
                self._pin(inside)
            elif "deferred" in name or "restor" in name:
                # Restored values that wait for their variables. They hold a checkpoint reader, which cannot be copied.
                self.memo[id(value)] = _with_containers_copied(value)
            # deepcopy itself copies the tracking attributes of TensorFlow and Keras.
            elif "dependenc" not in name and name != "_tracker":
                # Share its contents too: for a Keras 3 container TensorFlow tracks a second one, which deepcopy copies.
                self._pin(inside)
                self.memo.setdefault(id(value), value)

    def _is_to_copy(self, value):
        return id(value.__self__ if isinstance(value, types.MethodType) else value) in self._to_copy

    def _pin(self, values):
        """Share or copy each of these values; leave containers to deepcopy."""
        for value in reversed(values):
            if id(value) in self.memo or isinstance(value, CONTAINERS):
                continue
            if not self._is_to_copy(value):
                self.memo[id(value)] = value
            elif not isinstance(value, types.MethodType):
                # deepcopy itself binds methods to the copy.
                copied = object.__new__(type(value))
                # TensorFlow reads attributes when it wraps containers: lend these until the copy has its own.
                vars(copied).update(vars(value))
                self.within.append((value, copied))
                self.add(value, copied)


def _with_containers_copied(value):
    if isinstance(value, dict):
        copied = copy.copy(value)
        copied.update((key, _with_containers_copied(each)) for key, each in value.items())
        return copied
    return [_with_containers_copied(each) for each in value] if isinstance(value, list) else value


def wrapped_by(optimizer):
    """The optimizer inside a v1 wrapper; None for any other optimizer."""
    attributes = vars(optimizer) if homes.generation_of(type(optimizer)) == "v1" else {}
    inner = attributes.get("optimizer", attributes.get("_optimizer"))
    return inner if homes.generation_of(type(inner)) else None


def keeper_of(optimizer):
    """The optimizer with the state: the one in a LossScaleOptimizer of tf.keras or tf_keras, else `optimizer`."""
    return vars(optimizer)["_optimizer"] if hasattr(type(optimizer), "get_unscaled_gradients") else optimizer


def _beside_keeper(optimizer):
    """What deepcopy may copy of a LossScaleOptimizer: [its scale, what restores TF 2.2 files or None]; else []."""
    keeper = keeper_of(optimizer)
    if keeper is optimizer:
        return []
    tracked = getattr(keeper, "_self_unconditional_dependency_names", {})
    return [vars(optimizer)["_loss_scale"], tracked.get("base_optimizer")]


def attributes_that_are_variables(optimizer):
    """An optimizer's attributes that are variables, as {name: variable}."""
    values = vars(optimizer).items()
    # The first condition is for speed.
    return {name: value for name, value in values if hasattr(value, "assign_add") and is_variable(value)}
