"""MySGD in every case of fixtures/mysgd.npz, driven once for the tests of all rules."""

import make_fixtures
import numpy as np
import pytest
from make_fixtures import CASES, LIMITS, LR, MAX_NORM, MINI_STEPS, name_of

import legacyga

FILE = np.load(make_fixtures.PATH)
EXPECTED = {name: FILE[name] for name in FILE.files}
START = [EXPECTED["start_{}".format(i)] for i in range(4)]
BATCHES = list(zip(EXPECTED["x"], EXPECTED["y"]))
# By name; of one process, as the home is.
RESULTS = {}

# The smaller K have one of everything, those above have all of it together.
every_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name_of(case), marks=[pytest.mark.slow] if case["steps"] > 3 else [])
        for case in CASES
        if case["clip"] != "all"
    ],
)
# One of everything, and all of it together, for the slower ways to train.
some_cases = pytest.mark.parametrize(
    "case",
    [
        dict(steps=3, momentum=0.0, nesterov=False, decay=0.0, clip="none", max_norm=False),
        dict(steps=2, momentum=0.9, nesterov=False, decay=0.1, clip="each", max_norm=True),
        dict(steps=4, momentum=0.9, nesterov=True, decay=0.1, clip="value", max_norm=True),
        dict(steps=1, momentum=0.9, nesterov=True, decay=0.1, clip="each", max_norm=True),
    ],
    ids=name_of,
)


def of_home(home, case):
    """A case with `clipnorm` in this home's meaning of it."""
    return dict(case, clip=home.clipnorm_means) if case["clip"] == "each" else case


def expected(home, case):
    """The weights after every mini-step."""
    return EXPECTED[name_of(of_home(home, case))]


def mysgd(home, case):
    kwargs = {name: case[name] for name in ("momentum", "nesterov", "decay")}
    if case["clip"] != "none":
        kwargs["clipvalue" if case["clip"] == "value" else "clipnorm"] = LIMITS[case["clip"]]
    return legacyga.MySGD(lr=LR, steps_per_update=case["steps"], keras=home.keras, **kwargs)


def distance(weights, expected):
    """The largest distance, relative where a weight is larger than 1."""
    return np.max(np.abs(weights - expected) / np.maximum(1.0, np.abs(expected)))


def ends_window(case):
    """For each mini-step whether it is the last of its window."""
    return np.arange(1, MINI_STEPS + 1) % case["steps"] == 0


def run(home, case):
    """The weights after every mini-step, `iterations` and `mini_step` at the end, of a case that was run or now is."""
    case = of_home(home, case)
    if name_of(case) not in RESULTS:
        home.reset(plain_session=True)
        model, optimizer = home.network(START, MAX_NORM if case["max_norm"] else None), mysgd(home, case)
        # Trace some cases: those of K = 4 with momentum.
        step, history = home.step(model, optimizer, traced=case["steps"] == 4 and case["momentum"] > 0), []
        for batch in BATCHES:
            step(*batch)
            history.append(make_fixtures.flat(model.get_weights()))
        counters = [int(home.value(counter)) for counter in (optimizer.iterations, optimizer.mini_step)]
        RESULTS[name_of(case)] = [np.stack(history)] + counters
    return RESULTS[name_of(case)]
