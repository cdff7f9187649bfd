"""Tell the versions of everything that takes part, for a bug report."""

import platform
import sys

from legacyga.backend import homes

NAMES = ("tensorflow", "keras", "tf_keras", "numpy", "h5py")


def versions():
    found = {"legacyga": homes.installed_version("legacyga")}
    found["python"] = " ".join([platform.python_version(), sys.platform, platform.machine()])
    found.update((name, homes.installed_version(name)) for name in NAMES)
    return found


def show_versions():
    """Import legacyga, TensorFlow, each Keras, NumPy and h5py, and print their versions and Python's, a line each.

    After it `MySGD` may find two Kerases, and then needs `keras=`: call it in a process of its own.

    Examples:
        >>> import legacyga
        >>> legacyga.show_versions()  # doctest: +ELLIPSIS
        legacyga ...
        python ...
        tensorflow ...
    """
    for name, version in versions().items():
        print(name, version)
