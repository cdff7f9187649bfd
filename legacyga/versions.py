"""What to put into a report: the versions of everything that takes part."""

import importlib
import platform
import sys

from legacyga._version import __version__

NAMES = ("tensorflow", "keras", "tf_keras", "numpy", "h5py")


def show_versions():
    """Print the versions of legacyga, Python, TensorFlow, the Keras homes, NumPy and h5py, a line each.

    Imports TensorFlow, to ask it.

    Example:
        >>> import legacyga
        >>> legacyga.show_versions()  # doctest: +ELLIPSIS
        legacyga 0.1.0
        python ...
    """
    print("legacyga", __version__)
    print("python", platform.python_version(), sys.platform, platform.machine())
    for name in NAMES:
        try:
            print(name, getattr(importlib.import_module(name), "__version__", "(no version)"))
        except ImportError:
            print(name, "not installed")
