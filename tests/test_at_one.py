"""R6: K = 1 is the bare optimizer, to the bit, at no cost in memory."""

import fixture_cases
import lines
import numpy as np
import pytest
from fixture_cases import BATCHES, LR
from lines import ROWS, drive, line, make, train, weights_of, wrap
from make_fixtures import flat
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R6 K = 1 is the bare optimizer")


def pytest_generate_tests(metafunc):
    lines.parametrize(metafunc)


@pytest.fixture
def fresh(home):
    home.reset(plain_session=True)


@pytest.mark.parametrize(
    "kwargs",
    [
        slow({}),
        slow(dict(momentum=0.9)),
        dict(momentum=0.9, nesterov=True),
        slow(dict(clipvalue=0.1)),
        dict(clipnorm=0.5),
    ],
    ids=str,
)
def test_one_step_is_the_bare_sgd_to_the_bit(home, kwargs):
    """Without decay: there the bare v1 optimizer races on `iterations`, and has no one result to be equal to."""
    bare = home.bare_sgd(lr=LR, **kwargs)
    expected = [flat(weights) for weights in home.bare_steps(home.network(fixture_cases.START), bare, BATCHES)]
    ways = [home.bare_steps]
    # Clipped in the call that computes it, a gradient has another last bit on TensorFlow 1.14 with some processors, for
    # the bare optimizer too: that version's graph optimizer rewrites the clip.
    if "clipnorm" not in kwargs:
        ways.append(home.mini_steps)
    for way in ways:
        ours = legacyga.MySGD(lr=LR, steps_per_update=1, keras=home.keras, **kwargs)
        found = [flat(weights) for weights in way(home.network(fixture_cases.START), ours, BATCHES)]
        np.testing.assert_array_equal(found, expected)
        assert len(home.optimizer_weights(ours)) == len(home.optimizer_weights(bare)), "K = 1 must cost no memory"


@pytest.mark.parametrize("name", [slow("Adam"), "RMSprop"])
@pytest.mark.usefixtures("fresh")
def test_at_one_it_is_the_bare_optimizer_to_the_bit(home, generation, name):
    """The model's weights and the optimizer's, after each of three updates; and not a variable more."""
    wrapped, bare = wrap(home, generation, 1, name, clipvalue=0.5), make(home, generation, name, clipvalue=0.5)
    for now, then in zip(drive(home, wrapped, ROWS[:3]), drive(home, bare, ROWS[:3])):
        for a, b in zip(now, then):
            np.testing.assert_array_equal(a, b)
    state, bare_state = weights_of(home, wrapped), weights_of(home, bare)
    assert len(state) == len(bare_state)
    for a, b in zip(state, bare_state):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("fresh")
def test_at_one_training_is_the_bare_ones_to_the_bit(home, generation):
    """As fit drives it, clipping included: in eager mode of TF 2.0 and 2.1 that is none."""
    kwargs = dict(momentum=0.5, nesterov=True, clipnorm=2.0)
    models = [
        line(home, optimizer) for optimizer in (wrap(home, generation, 1, **kwargs), make(home, generation, **kwargs))
    ]
    for now, then in zip(*[train(model, ROWS[:6]) for model in models]):
        for a, b in zip(now, then):
            np.testing.assert_array_equal(a, b)
