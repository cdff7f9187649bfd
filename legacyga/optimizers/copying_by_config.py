"""How an optimizer of Keras 3 is copied: by its config, and then all that its config does not have."""

import collections
import contextlib
import types

from legacyga.optimizers import copying

PLAIN = (bool, int, float, str, type(None), types.FunctionType)


def knowing(optimizer):
    """Who knows what it was built with: before Keras 3.10 not a LossScaleOptimizer, but the optimizer in it."""
    while not optimizer._trainable_variables and hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def within(optimizer, optimizers):
    """{place: optimizer} of those within another: in an attribute, or in a list or dict that is one."""
    return {
        (name, place): each
        for name, value in vars(optimizer).items()
        for place, each in _items_of(value)
        if isinstance(each, optimizers.Optimizer)
    }


def _items_of(value):
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value if isinstance(value, (list, tuple)) else [value]))


def give_optimizers_within(copied, optimizer, optimizers):
    """Give a copy those of the optimizers within another that its config has made otherwise, or has not made."""
    copies, made, given = {}, within(copied, optimizers), within(optimizer, optimizers)

    def copy_of(each):
        if not isinstance(each, optimizers.Optimizer):
            return each
        if id(each) not in copies:
            copies[id(each)] = alone = from_config(each)
            give_optimizers_within(alone, each, optimizers)
        return copies[id(each)]

    for name in collections.OrderedDict.fromkeys(name for name, _ in given):
        here, there = [{at: each for at, each in found.items() if at[0] == name} for found in (given, made)]
        if set(here) == set(there) and all(_is_alike(here[at], there[at]) for at in here):
            continue
        setattr(copied, name, _changed(vars(optimizer)[name], copy_of))


def _changed(value, change):
    """`change` of a value, or of each in a container."""
    if isinstance(value, dict):
        return {key: change(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return (tuple if isinstance(value, tuple) else list)(change(each) for each in value)
    return change(value)


def _is_alike(one, other):
    """Whether an optimizer is what another one's config makes."""
    rates = [each._learning_rate for each in (one, other)]
    if type(one) is not type(other) or any(map(callable, rates)) and rates[0] is not rates[1]:
        return False
    try:
        return _config_of(one) == _config_of(other)
    except ValueError:
        # An array is among them.
        return False


def _config_of(optimizer):
    return (_without_its_rate(optimizer) if callable(optimizer._learning_rate) else optimizer).get_config()


def copy_what_no_config_has(optimizer, copied, optimizers):
    """Give a copy the attributes that its config did not have; `optimizers` is the module of Keras's own."""
    names, made = _names_to_copy(optimizer, optimizers), within(copied, optimizers)
    known = [(each, made[place]) for place, each in within(optimizer, optimizers).items() if place in made]
    copying.copy_attributes(optimizer, copied, lambda each: [], None, names=names, known=known)


def _names_to_copy(optimizer, optimizers):
    """The names of the attributes that a config does not have, and that are not Keras's own."""
    # With a name, for without one Keras counts it in the names to come.
    own, kept = [id(each) for each in optimizer.variables], set(vars(optimizers.SGD(name="sgd")))
    # What a MultiOptimizer of newer versions finds its optimizers by.
    within = optimizers.Optimizer, getattr(optimizers, "OptimizerMap", ())

    def is_of_the_copy(value):
        # Slots, which build makes anew, and optimizers within a wrapper, which its config has made.
        return id(value) in own or isinstance(value, within)

    return {
        name
        for name, value in vars(optimizer).items()
        if (isinstance(value, PLAIN) and name != "built") or not (name in kept or copying.holds(value, is_of_the_copy))
    }


def build_alike(copied, optimizer):
    """Build a copy for the variables that the optimizer was built for, if it was, with its state."""
    if optimizer.built:
        copied.build(knowing(optimizer)._trainable_variables)
        take_over(copied, optimizer)


def complete_within(copied, optimizer, optimizers):
    """Give the optimizers within a copy what no config has, and their state."""
    given = within(optimizer, optimizers)
    for place, each in within(copied, optimizers).items():
        if each is not given.get(place, each):
            copy_what_no_config_has(given[place], each, optimizers)
            build_alike(each, given[place])
            complete_within(each, given[place], optimizers)


def take_over(copied, optimizer):
    """Give a copy the values of the optimizer's variables."""
    for variable, value in zip(copied.variables, optimizer.variables):
        variable.assign(value)


def _without_its_rate(optimizer):
    """The same optimizer, all of its state included, with another rate: from Keras 3.16 on no config takes a method."""
    alike = object.__new__(type(optimizer))
    # Keras 3.5 asks a variable for its number, and knows no number; deletable with it.
    object.__setattr__(alike, "__dict__", dict(vars(optimizer), _learning_rate=optimizer.iterations))
    return alike


def from_config(optimizer):
    """A copy of a bare optimizer by its config, without its state."""
    rate = optimizer._learning_rate
    try:
        copied = _made(type(optimizer), _config_of(optimizer), rate)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "{!r} cannot be copied, for its from_config does not take what its get_config gives ({}). Give its class a "
            "get_config with all arguments; in place of a MultiOptimizer over functions wrap each of the optimizers in "
            "it.".format(optimizer, error)
        )
    if callable(rate):
        copied.learning_rate = rate
    return copied


def _made(cls, config, rate):
    if callable(rate):
        # A number's variable would have to be taken out of a list that no checkpoint takes from then on.
        with contextlib.suppress(TypeError, ValueError):
            return cls.from_config(dict(config, learning_rate=rate))
        # The class makes a schedule of a number.
        config = dict(config, learning_rate=0.0)
    return cls.from_config(config)
