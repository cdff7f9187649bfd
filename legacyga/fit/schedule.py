"""Validates the callback's `schedule`, evaluates it, and sets K on the optimizers."""

import operator

from legacyga.backend.messages import shown, warn
from legacyga.optimizers import surface
from legacyga.windows import settings

LARGE_WINDOW = 'gradient_accumulation_steps is to be {0}, and an epoch has {1} batches. With partial_window="{2}" '
EFFECTS = {
    "flush": "each such epoch ends in one update, on the mean of its {1} batches.",
    "carry": "a window goes on through several epochs, with an update every {0} batches.",
    "drop": "such an epoch makes no update at all: nothing is learned in it.",
}


def check(value):
    """Validate a schedule: None, a K, a dict {epoch: K} or a function of the number of updates. Returns it."""
    if value is None or (callable(value) and not isinstance(value, type)):
        return value
    if isinstance(value, dict):
        if not value:
            raise ValueError("schedule must name at least one epoch, such as {0: 4}. Received: {}")
        return {
            _check_epoch(epoch): settings.check_steps("schedule[{}]".format(epoch), steps)
            for epoch, steps in value.items()
        }
    try:
        return settings.check_steps("schedule", value)
    except ValueError:
        raise ValueError(
            "schedule must be None, an integer of at least 1, a dict {{epoch: K}} or a function of the number of "
            "updates. Received: {}".format(shown(value))
        )


def _check_epoch(value):
    try:
        epoch = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        epoch = -1
    if epoch < 0:
        raise ValueError(
            "The keys of schedule must be epochs, integers of at least 0. Received: {}".format(shown(value))
        )
    return epoch


def steps_at(schedule, epoch):
    """The K of a dict for an epoch; None before its first key."""
    begun = [key for key in schedule if key <= epoch]
    return schedule[max(begun)] if begun else None


def check_steps_to_come(optimizers, schedule, epochs, batches, partial_window):
    """Raise if a later K lacks accumulators; warn of one larger than an epoch. `epochs` and `batches` may be None."""
    by_epoch = schedule if isinstance(schedule, dict) else {0: schedule} if isinstance(schedule, int) else {}
    to_come = [steps for epoch, steps in by_epoch.items() if not epochs or epoch < epochs]
    # A later fit may go on with the epochs that this one leaves out, and a function may return any K.
    most = max(list(by_epoch.values()) + [2 if callable(schedule) else 1])
    for optimizer in optimizers:
        accumulation = surface.accumulation_of(optimizer)
        if not accumulation.registry().has_no_accumulators:
            # Let a graph that begins at K = 1 be built with accumulators.
            accumulation.steps.expect(most)
        elif max(to_come + [1]) > 1:
            raise ValueError(settings.NO_ACCUMULATORS.format(max(to_come)))
    # The present K holds without a schedule, and before the first epoch of a dict.
    keeps_present = 0 not in by_epoch and not callable(schedule)
    largest = max(to_come + ([optimizers[0].gradient_accumulation_steps] if keeps_present else [0]))
    if batches and largest > batches:
        message = LARGE_WINDOW + EFFECTS[partial_window]
        warn(message.format(largest, batches, partial_window))


def set_steps(home, optimizers, steps):
    """Set K of the optimizers' next windows to `steps`, an int for all, or a list; None keeps a K."""
    steps = steps if isinstance(steps, list) else [steps] * len(optimizers)
    with home.default_session():
        for optimizer, each in zip(optimizers, steps):
            # Before K is in variables, set even an unchanged K: it must win over a checkpoint restored into them later.
            # Bypass the optimizer's property: TensorFlow ignores setting an attribute to its present value.
            accumulation = surface.accumulation_of(optimizer)
            if each is not None and (not accumulation.registry().windows or accumulation.next_steps != each):
                accumulation.set_steps(each)


def ask(home, optimizers, schedule):
    """Call a schedule function for each optimizer whose next mini-step begins a window, and set the K it returns."""
    steps = []
    with home.default_session():
        for optimizer in optimizers:
            under_way = surface.accumulation_of(optimizer).registry().mini_steps_under_way
            updates = None if under_way else home.value_of(optimizer.iterations)
            name = "schedule({})".format(updates)
            steps.append(None if under_way else settings.check_steps(name, schedule(updates)))
    set_steps(home, optimizers, steps)
