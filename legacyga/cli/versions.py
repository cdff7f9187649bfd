"""What to put into a report: the versions of everything that takes part."""

import platform
import sys

from legacyga.backend import homes

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
    print("legacyga", homes.installed_version("legacyga"))
    print("python", platform.python_version(), sys.platform, platform.machine())
    for name in NAMES:
        print(name, homes.installed_version(name))
