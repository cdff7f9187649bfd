"""Why a test is not run here: four reasons that compat_matrix.md tells apart. A test skips in no other way."""

import pytest
from compat_matrix import KINDS


def keras_lacks(reason):
    """Skip: this TensorFlow or Keras has no such thing."""
    pytest.skip("keras_lacks: " + reason)


def we_lack(reason):
    """Skip: legacyga does not do it here. Users read the reason."""
    pytest.skip("we_lack: " + reason)


def elsewhere(reason):
    """Skip: it is tested in another run of the matrix."""
    pytest.skip("elsewhere: " + reason)


def senseless(reason):
    """Skip: it makes no sense in this combination."""
    pytest.skip("senseless: " + reason)


def parse(text):
    """(kind, reason) of what pytest says of a skip, None where no function of this file made it."""
    text = text.replace("Skipped: ", "", 1)
    if text.startswith("got empty parameter set"):
        # pytest's own, of a test that is parametrised over what a home has, where it has none.
        return "senseless", "nothing of the kind to test with"
    kind, colon, reason = text.partition(": ")
    return (kind, reason) if colon and kind in KINDS else None
