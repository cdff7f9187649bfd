"""What AutoGraph is to leave as it is in a `tf.function` of the user's: our methods, as it leaves Keras's own.

They are written without tensors in Python's `if`, and to rewrite a mini-step takes seconds: TF 2.10 took 11 seconds for
the first step of a small model with Adam, and takes 1.4.
"""

from legacyga import _compat


def as_written(tf, function):
    """The function, which AutoGraph is not to rewrite, nor anything that it calls."""
    # TF 1.14 has another decorator of this name, and eager execution is for TF 2.
    if _compat.version_of(tf) < (2,):
        return function
    return tf.autograph.experimental.do_not_convert(function)


def methods_as_written(tf, classes, names):
    """{name: method}: those of these names that the classes have, of the first that has it, as written."""
    methods = {name: getattr(each, name) for each in reversed(classes) for name in names if hasattr(each, name)}
    return {name: as_written(tf, method) for name, method in methods.items()}


def leaves(function):
    """Whether AutoGraph leaves a function, or None, as it is: what TensorFlow or a Keras has written."""
    return getattr(function, "__module__", "").partition(".")[0] in _compat.KERAS
