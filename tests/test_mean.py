"""R1: a window's update is the inner optimizer's, once, on the mean of its gradients; MySGD against the files."""

import numpy as np
import oracle
import pytest
from fixture_cases import BATCHES, START, distance, every_case, expected, run
from make_fixtures import flat
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R1 mean")


@every_case
def test_weights_equal_the_oracle_after_every_mini_step(home, case):
    history, _, _ = run(home, case)
    assert distance(history, expected(home, case)) <= 4e-6


@pytest.mark.parametrize("steps", [slow(1), 3])
def test_float64_to_1e_13(home, steps):
    """With hyperparameters that float32 holds exactly: OptimizerV2 keeps them in float32 whatever floatx is."""
    sgd = dict(lr=0.0625, momentum=0.875, nesterov=True, decay=0.125)
    home.reset()
    home.set_floatx("float64")
    try:
        model = home.network([weight.astype("float64") for weight in START])
        optimizer = legacyga.MySGD(steps_per_update=steps, clipnorm=0.5, keras=home.keras, **sgd)
        batches = [(x.astype("float64"), y.astype("float64")) for x, y in BATCHES]
        history = [flat(weights) for weights in home.mini_steps(model, optimizer, batches)]
    finally:
        home.set_floatx("float32")
        home.reset()
    bare = oracle.SGD(clip=home.clipnorm_means, limit=0.5, **sgd)
    wanted = oracle.train([weight.astype("float64") for weight in START], batches, steps, bare)
    assert distance(np.stack(history), np.stack([flat(weights) for weights in wanted])) <= 1e-13
