"""What errors and warnings have in common: how a value is shown, the class of warnings, and the line they point at."""

import re
import sys
import traceback
import warnings

# The first parts of the names of modules that a warning does not point at.
NOT_THE_USERS = ("legacyga", "keras", "tf_keras", "tensorflow", "tensorflow_core", "tensorflow_estimator")
NOT_THE_USERS += ("contextlib", "functools", "threading")
_ADDRESS = re.compile(" at 0x[0-9A-Fa-f]+")


class AccumulationWarning(UserWarning):
    """The class of all warnings of legacyga, so that one filter silences them, or turns them into errors.

    A warning points at the line of your program that led to it, even from within `fit` or a traced function.

    Examples:
        >>> import warnings
        >>> import legacyga
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("ignore", legacyga.AccumulationWarning)
        ...     warnings.warn("All batches weigh alike", legacyga.AccumulationWarning)
        >>> len(caught)
        0
    """


def shown(value):
    """Return the repr of a value for a message, without addresses: they tell a user nothing, and differ by run."""
    return _ADDRESS.sub("", repr(value))


def warn(text):
    """Warn at the user's line: the innermost one outside of legacyga, Keras and TensorFlow, if there is one."""
    # `warnings.warn` has `skip_file_prefixes` only from Python 3.12 on.
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    frame = next((each for each in frames if _is_users(each)), frames[0])
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__")
    warnings.warn_explicit(text, AccumulationWarning, frame.f_code.co_filename, frame.f_lineno, module, registry)


def _is_users(frame):
    # AutoGraph's copy of a user's function is in a file that the user never sees.
    code = frame.f_code
    is_copy = "ag__" in code.co_names + code.co_freevars + code.co_cellvars
    return not is_copy and str(frame.f_globals.get("__name__")).partition(".")[0] not in NOT_THE_USERS
