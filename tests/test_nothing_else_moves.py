"""R3: on the other K - 1 mini-steps every weight keeps its bits."""

import numpy as np
import pytest
from fixture_cases import START, ends_window, every_case, run
from make_fixtures import flat

pytestmark = pytest.mark.capability("R3 nothing else moves")


@every_case
def test_weights_keep_their_bits_between_updates(home, case):
    history, _, _ = run(home, case)
    before = np.concatenate([[flat(START)], history[:-1]])
    np.testing.assert_array_equal(history[~ends_window(case)], before[~ends_window(case)])
