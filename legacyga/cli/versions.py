"""Tell the versions of everything that takes part, for a bug report."""

import platform
import sys

from legacyga.backend import homes

NAMES = ("tensorflow", "keras", "tf_keras", "numpy", "h5py")


def versions():
    """Return {name: version} of legacyga, Python and the packages that take part. It imports them to ask them."""
    found = {"legacyga": homes.installed_version("legacyga")}
    found["python"] = " ".join([platform.python_version(), sys.platform, platform.machine()])
    found.update((name, homes.installed_version(name)) for name in NAMES)
    return found


def show_versions():
    """Print the versions of legacyga, Python, TensorFlow, the Keras homes, NumPy and h5py, a line each.

    It imports the packages to ask them.

    Example:
        >>> import legacyga
        >>> legacyga.show_versions()  # doctest: +ELLIPSIS
        legacyga ...
        python ...
        tensorflow ...
    """
    for name, version in versions().items():
        print(name, version)
