"""The optimizer that the doctor is asked about, and another one like it."""

import importlib

from legacyga.backend import homes


def copied_by_config(given):
    """A new optimizer by the config of the one given, None where that does not hold all of it."""
    try:
        copied = type(given).from_config(given.get_config())
    # Whatever a class of the user's raises.
    except Exception:
        return None
    return copied if _is_like(copied, given) else None


def _is_like(copied, given):
    """Whether a copy by its config has what an optimizer, and the optimizers within it, have."""
    for name, value in vars(given).items():
        other = vars(copied).get(name)
        if homes.generation_of(type(value)) is not None:
            is_like = type(other) is type(value) and _is_like(other, value)
        elif _is_plain(value):
            # What Keras counts for checkpoints begins with _self_.
            is_like = name.startswith("_self_") or other == value
        else:
            # Variables, schedules, functions.
            is_like = type(other) is type(value)
        if not is_like:
            return False
    return True


def _is_plain(value):
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(each) for each in value)
    return isinstance(value, (bool, int, float, str, type(None)))


def made_by(home, text):
    """(function that makes an optimizer, None, its home), or (None, an optimizer, its home).

    By a home's name of it, or "module:object".
    """
    module, is_object, name = text.partition(":")
    if not is_object:
        try:
            home.module.optimizers.get(text)
        except ValueError as error:
            raise ValueError(
                "--optimizer must be mysgd, a name that {!r} knows, or module:object. Received: {!r} ({})".format(
                    home, text, str(error).strip().split("\n")[0]
                )
            )
        return lambda: home.module.optimizers.get(text), None, home
    given = importlib.import_module(module)
    for part in name.split("."):
        given = getattr(given, part)
    is_made = callable(given) and (isinstance(given, type) or not hasattr(given, "get_config"))
    made = given() if is_made else given
    if homes.generation_of(type(made)) is None:
        raise ValueError("--optimizer {} must be, or make, an optimizer. Received: {!r}".format(text, made))
    its_home = homes.home_of(made) or home
    # A function may hand over one that there is.
    return (given, None, its_home) if is_made and given() is not made else (None, made, its_home)
