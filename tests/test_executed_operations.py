"""What a graph executes: on a mini-step that ends no window no operation of the update (R3), and no search for rows."""

import homes
import kinds
import needs
import numpy as np
import pytest
import skips
from dense import RATE, make
from homes import v1_of

import legacyga

# Adam's own, one of which is in every generation's update.
OF_THE_UPDATE = {"Sqrt", "ApplyAdam", "ResourceApplyAdam"}


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "adam", "Adam")


def executed(home, fed, *gradient):
    """The types of all operations that a step executes."""
    v1 = v1_of(home.tf)
    options, metadata = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), v1.RunMetadata()
    session = home.sessions.get_session()
    session.run(fed.updates, dict(zip(fed.placeholders, gradient)), options=options, run_metadata=metadata)
    nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
    # "name = Type(inputs)"
    return {node.timeline_label.split(" = ")[-1].split("(")[0] for node in nodes}


def fed_with_updates(home, optimizer):
    home.reset(plain_session=True)
    return homes.Fed(home, optimizer(), [np.ones((3, 2), "float32")])


def check(home, optimizer):
    fed = fed_with_updates(home, optimizer)
    gradient = np.full((3, 2), 0.5, "float32")
    for number in range(1, 7):
        found = executed(home, fed, gradient) & OF_THE_UPDATE
        assert bool(found) == (number % 3 == 0), (number, found)


@pytest.mark.capability("wrap: every optimizer")
def test_of_a_keras(home, adam):
    if home.mode == "eager":
        skips.senseless("what a session executes")
    needs.wrap(home)
    check(home, lambda: legacyga.wrap(make(home, adam), 3))


@pytest.mark.capability("wrap: TF 1 optimizers")
def test_of_tensorflow_1(home):
    if home.mode == "eager" or home.name == "keras":
        skips.senseless("sessions of TensorFlow's own Keras")
    check(home, lambda: legacyga.wrap(v1_of(home.tf).train.AdamOptimizer(RATE), 3))


@pytest.mark.capability("R10 sparse stays sparse")
def test_rows_are_looked_for_once_a_window(home):
    """In the mini-step that ends it: looking costs a pass over one number a row of the table. An executed `Where`."""
    if home.mode == "eager":
        skips.senseless("what a session executes")
    for optimizer in kinds.made_by_name(home, "SGD", RATE):
        home.reset(plain_session=True)
        fed = homes.Fed(home, legacyga.wrap(optimizer(), 3), [np.ones((20, 2), "float32")], sparse=True)
        rows = np.ones((2, 2), "float32")
        found = ["Where" in executed(home, fed, np.array([number, 7]), rows) for number in range(1, 7)]
        assert found == [False, False, True] * 2
