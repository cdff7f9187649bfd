"""What AutoGraph is to leave as it is in a `tf.function` of the user's: our methods, as it leaves Keras's own.

They are written without tensors in Python's `if`, and to rewrite a mini-step takes seconds: on TF 2.10 the first step
of two dense layers took 5 seconds, and takes 0.7 (docs/cost.md).
"""

import sys

from legacyga.backend import features, homes


def as_written(tf, function):
    """The function, which AutoGraph does not rewrite. What Keras asks it to rewrite in there it does, as in `fit`."""
    return _as_written(function) if features.has_autograph(tf) else function


def _as_written(function):
    # Not by importlib: this, too, is called in what AutoGraph rewrites, which warns that it cannot rewrite that.
    api, core = [sys.modules["tensorflow.python.autograph." + name] for name in ("impl.api", "core.ag_ctx")]
    # The public do_not_convert would keep it from the user's layers, metrics and datasets as well.
    unspecified = core.ControlStatusCtx(status=core.Status.UNSPECIFIED)
    return api.tf_convert(function, unspecified, convert_by_default=False)


def methods_as_written(tf, bases, cls):
    """{name: method} of what a user's function calls of the classes `bases`, before the optimizer class `cls`.

    Not of what is the user's own in `cls`: ours calls that, and it is to be rewritten.
    """
    if not features.has_autograph(tf):
        return {}
    own = [name for name in ("apply_gradients", "apply") if not _leaves(getattr(cls, name, None))]
    names = [name for name in ("apply_gradients", "apply") if name not in own] + ENDS * (not own)
    methods = {name: getattr(each, name) for each in reversed(bases) for name in names if hasattr(each, name)}
    return {name: _as_written(method) for name, method in methods.items()}


ENDS = ["end_windows", "drop_windows"]


def _leaves(function):
    # A function that `exec` has made has None for a module.
    module = "" if function is None else getattr(function, "__module__", None) or "of the user's"
    return not module or module.partition(".")[0] in homes.KERAS
