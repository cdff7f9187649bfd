"""The examples of the docstrings."""

import doctest
import sys

import pytest
import skips
from test_train_step import trained_by_train_step

import legacyga
from legacyga import training


@pytest.mark.capability("surface")
def test_mysgd_and_show_versions(home):
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    for module in (legacyga.mysgd, legacyga.cli.versions):
        result = doctest.testmod(module, optionflags=flags)
        assert result.attempted > 0 and result.failed == 0


@pytest.mark.capability("wrap: surface")
def test_wrap(home, doctests):
    assert doctests["legacyga.wrapping"] == [4, 2 if home.tf_version < (1, 11) else 0], doctests["printed"]


@pytest.mark.capability("callback")
def test_the_callback(home):
    result = doctest.testmod(sys.modules["legacyga.callback"])
    assert (result.attempted, result.failed) == (3, 0)


@pytest.mark.capability("GradientAccumulator")
def test_gradient_accumulator(home, doctests):
    if home.tf_version < (2,):
        skips.senseless("eager execution is TensorFlow's default from 2.0 on")
    assert doctests["legacyga.accumulator"] == [9, 0], doctests["printed"]


@pytest.mark.capability("surface")
def test_train_step(home):
    trained_by_train_step(home)
    result = doctest.testmod(training)
    assert result.attempted == 9 and result.failed == 0
