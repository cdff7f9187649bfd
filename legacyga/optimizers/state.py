"""Checks a whole list of arrays against an optimizer's variables before any of them is written."""

from legacyga.backend import homes
from legacyga.backend.messages import shown
from legacyga.backend.tensors import variable_key
from legacyga.windows.window import Kept


def variables_of(optimizer):
    """All variables of an optimizer, in the order in which Keras saves them: a list."""
    # OptimizerV2 and the v1 API have `weights`. In TensorFlow 1 the `variables` of Horovod's optimizers are arrays.
    has_weights = hasattr(optimizer, "weights") and homes.generation_of(type(optimizer)) not in ("v3", "keras3")
    listed = optimizer.weights if has_weights else optimizer.variables
    return list(listed() if callable(listed) else listed)


def fitting(optimizer, accumulation, values):
    """A value for each variable of a built optimizer, from the arrays of a program or file: a list.

    If the arrays are only the bare optimizer's, a new window starts. If they do not match, raises the error, and keeps
    it in `accumulation.refused`, because Keras only logs it.
    """
    variables, values = [(variable_key(each), each) for each in variables_of(optimizer)], list(values)
    registry = accumulation.registry()
    counts, windows = registry.state()
    accumulation.refused = None
    # How many values stand ahead of a file's windows: `unlisted`, K, `made_with`, `skipped`. 0 if `variables` has them.
    settings = 0 if windows else len(registry.unlisted) + 3
    values = values[: len(variables)] + _without_empty_windows(values[len(variables) :], settings)
    wanted = _layout_of(len(values), variables, windows)
    # The file of an unbuilt optimizer has only `iterations`, 0, and a learning rate that is a variable: keep our state.
    are_of_an_unbuilt = bool(values) and not any(map(_shape_of, values)) and not _int_of(values[0])
    if are_of_an_unbuilt and len(values) < len(wanted):
        if not accumulation.home.value_of(optimizer.iterations) and not registry.mini_steps_under_way:
            return accumulation.home.values_of([each for _, each in variables])
    accumulation.refused = _misfit(optimizer, wanted, values)
    if accumulation.refused is not None:
        raise accumulation.refused
    # A file may hand over h5py datasets, which a strategy's variables do not take.
    values = [value[()] if hasattr(value, "shape") else value for value in values]
    given = {key: value for (key, _), value in zip(wanted, values)}
    # Variables without a value keep theirs, but the counts of their windows become 0: none of these stays open.
    present = zip(variables, accumulation.home.values_of([each for _, each in variables]))
    return [given[key] if key in given else 0 * value if key in counts else value for (key, _), value in present]


def _layout_of(number, variables, windows):
    """The variables that `number` values fit: all, all but those of the latest windows, else the inner optimizer's."""
    for there in range(len(windows), -1, -1):
        later = set().union(*windows[there:]).difference(*windows[:there])
        wanted = [each for each in variables if each[0] not in later]
        if len(wanted) == number:
            break
    return wanted


def _without_empty_windows(values, settings):
    """Remove leading windows without a mini-step, which hold nothing to lose, and the settings ahead of them.

    `values` are a file's values beyond this optimizer's variables: `settings` numbers, then windows, each of them a
    `window.Kept` and two arrays for each of its variables.
    """
    rest, size = values[settings:], len(Kept._fields)
    while len(rest) >= size:
        kept = Kept(*rest[:size])
        if any(map(_shape_of, kept.counts)) or len(_shape_of(kept.held)) != 1 or _int_of(kept.mini_step):
            break
        values = rest = rest[size + 2 * _shape_of(kept.held)[0] :]
    return values


def _int_of(value):
    return int(value[()] if hasattr(value, "shape") else value)


def _misfit(optimizer, wanted, values):
    """The error if the values do not match, else None."""
    if len(values) != len(wanted):
        return ValueError(
            "{} has {} variables, {} of them the inner optimizer's. Received: {} values. They come from "
            "another optimizer or another model, or from before a layer was frozen, or they hold an open window that "
            "this optimizer does not have, or this optimizer must be built first. Nothing was written.".format(
                shown(optimizer), len(variables_of(optimizer)), len(wanted), len(values)
            )
        )
    for (_, variable), value in zip(wanted, values):
        shape, received = _shape_of(variable), _shape_of(value)
        if shape != received:
            return ValueError(
                "The optimizer's variable {} has the shape {}. Received: a value of the shape {}. It comes from "
                "another optimizer or another model. Nothing was written.".format(variable.name, shape, received)
            )


def _shape_of(value):
    return tuple(int(size) for size in getattr(value, "shape", ()))
