"""What the callback's `schedule` may be, and which K it names."""

import operator

from legacyga import _window


def check(value):
    """`value`, or a ValueError: None, a K, a dict {epoch: K} or a function of the number of updates."""
    if value is None or (callable(value) and not isinstance(value, type)):
        return value
    if isinstance(value, dict):
        if not value:
            raise ValueError("schedule must name at least one epoch, such as {0: 4}. Received: {}")
        return {
            _check_epoch(epoch): _window.check_steps("schedule[{!r}]".format(epoch), steps)
            for epoch, steps in value.items()
        }
    try:
        return _window.check_steps("schedule", value)
    except ValueError:
        raise ValueError(
            "schedule must be None, an integer of at least 1, a dict {{epoch: K}} or a function of the number of "
            "updates. Received: {!r}".format(value)
        )


def _check_epoch(value):
    try:
        epoch = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        epoch = -1
    if epoch < 0:
        raise ValueError("The keys of schedule must be epochs, integers of at least 0. Received: {!r}".format(value))
    return epoch


def steps_at(schedule, epoch):
    """The K that a dict names for an epoch, None before the first that it names."""
    begun = [key for key in schedule if key <= epoch]
    return schedule[max(begun)] if begun else None


def steps_to_come(schedule, epochs):
    """The Ks that a schedule is known to name in so many epochs. How large a function's will be nobody knows."""
    if isinstance(schedule, dict):
        return [steps for epoch, steps in schedule.items() if epoch < epochs]
    return [schedule] if isinstance(schedule, int) else []
