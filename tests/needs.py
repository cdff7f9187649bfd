"""What a test asks of the home, with a skip where it is not so."""

import skips


def wrap(home):
    if home.tf_version < (1, 11):
        skips.we_lack("wrap needs TF 1.11 or newer for the v1 API")


def eager_only(home, since=(2, 0)):
    if home.mode == "graph":
        skips.senseless("eager mode only")
    if home.tf_version < since:
        skips.keras_lacks("from TF {}.{} on".format(*since))


def graph_only(home):
    if home.mode == "eager":
        skips.senseless("graph mode only")
