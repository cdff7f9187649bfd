"""A case of a test that CI leaves out, since another case of it holds the same rule."""

import pytest


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_but(kept, values):
    """Return the values, of which CI has those in `kept`."""
    return [each if each in kept else slow(each) for each in values]
