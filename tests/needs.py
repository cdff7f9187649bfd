"""What a test asks of the home, with a skip where it is not so."""

import pytest


def wrap(home):
    if home.tf_version < (1, 11):
        pytest.skip("wrap needs TF 1.11 or newer for the v1 API")


def eager_only(home, since=(2, 0)):
    if home.mode == "graph":
        pytest.skip("eager mode only")
    if home.tf_version < since:
        pytest.skip("from TF {}.{} on".format(*since))


def graph_only(home):
    if home.mode == "eager":
        pytest.skip("graph mode only")
