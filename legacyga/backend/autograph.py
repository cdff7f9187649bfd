"""Keep AutoGraph off our methods in a `tf.function`: rewriting takes seconds, and no `if` in them tests a tensor."""

import sys

from legacyga.backend import features, homes


def as_written(tf, function):
    """Return `function`, marked so that AutoGraph rewrites only the user's code in it, such as a layer's `call`."""
    return _as_written(function) if features.has_autograph(tf) else function


def _as_written(function):
    # Do not use importlib: in a tf.function AutoGraph rewrites this code, and warns that it cannot rewrite importlib.
    api, core = [sys.modules["tensorflow.python.autograph." + name] for name in ("impl.api", "core.ag_ctx")]
    # The public do_not_convert would also stop AutoGraph in the user's layers, metrics and datasets.
    unspecified = core.ControlStatusCtx(status=core.Status.UNSPECIFIED)
    return api.tf_convert(function, unspecified, convert_by_default=False)


def methods_as_written(tf, bases, cls, calls):
    """Return {name: method of `bases`, as written} for `calls`, which take gradients, and ENDS; `cls` is the user's."""
    if not features.has_autograph(tf):
        return {}
    # If the user overrides a method, leave ours out: AutoGraph reaches the user's only by rewriting ours, its caller.
    own = [name for name in calls if _is_users(getattr(cls, name, None))]
    # Then leave out ENDS, too: a flush calls the user's methods.
    names = [name for name in calls if name not in own] + ENDS * (not own)
    methods = {name: getattr(each, name) for each in reversed(bases) for name in names if hasattr(each, name)}
    return {name: _as_written(method) for name, method in methods.items()}


ENDS = ["end_windows", "drop_windows"]


def _is_users(function):
    """Whether a method is the user's, not Keras's or None."""
    # A function made by `exec` may have None as its module.
    return function is not None and (getattr(function, "__module__", None) or "").partition(".")[0] not in homes.KERAS
