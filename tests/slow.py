"""A case of a test that CI leaves out, since another case of it holds the same rule."""

import pytest


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)
