"""R5: updates fall on the mini-steps K, 2K, ... and on no others."""

import numpy as np
import pytest
from fixture_cases import START, ends_window, every_case, run
from make_fixtures import flat

pytestmark = pytest.mark.capability("R5 phase")


@every_case
def test_every_window_ends_in_an_update_that_moves(home, case):
    history, _, mini_step = run(home, case)
    before = np.concatenate([[flat(START)], history[:-1]])
    np.testing.assert_array_equal((history != before).any(axis=1), ends_window(case))
    assert mini_step == 0
