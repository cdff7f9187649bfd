"""What to put into a report: the versions of everything that takes part."""

import importlib
import platform
import sys

NAMES = ("tensorflow", "keras", "tf_keras", "numpy", "h5py")


def show_versions():
    """Print the versions of legacyga, Python, TensorFlow, the Keras homes, NumPy and h5py, a line each.

    It imports them, to ask them.

    Example:
        >>> import legacyga
        >>> legacyga.show_versions()  # doctest: +ELLIPSIS
        legacyga ...
        python ...
        tensorflow ...
    """
    print("legacyga", installed_version("legacyga"))
    print("python", platform.python_version(), sys.platform, platform.machine())
    for name in NAMES:
        print(name, installed_version(name))


def installed_version(name):
    """The version of the package `name`, which is imported to ask it, or that there is none: a str."""
    try:
        return getattr(importlib.import_module(name), "__version__", "(no version)")
    except ImportError:
        return "not installed"
