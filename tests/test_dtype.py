"""R13: accumulators are at least float32."""

import lines
import numpy as np
import pytest
import skips
from lines import NOT_THERE, weights_of, wrap
from slow import slow


def pytest_generate_tests(metafunc):
    lines.parametrize(metafunc)


@pytest.fixture(autouse=True)
def fresh(home):
    home.reset(plain_session=True)


# A sum of these in the type itself loses the ones beside the first; their mean is exact.
HALVES = {"float16": [2048, 1, 1, 1, 1, 1, 1, 2], "bfloat16": [256, 1, 1, 1, 1, 1, 1, 2]}


@pytest.mark.capability("R13 dtype")
@pytest.mark.parametrize("dtype", [slow("bfloat16"), "float16"])
def test_half_precision_is_summed_in_float32(home, generation, dtype):
    tf = home.tf
    if home.mode == "graph" and dtype == "bfloat16":
        skips.keras_lacks(NOT_THERE.format("bfloat16 as a floatx"))
    home.set_floatx("float16" if home.mode == "graph" else "float32")
    try:
        optimizer = wrap(home, generation, 8, lr=1.0)
        if home.mode == "graph":
            variables = [np.zeros([2], dtype)]
            gradients = [[np.full([2], number, dtype)] for number in HALVES[dtype]]
        else:
            variables = home.variables([tf.zeros([2], dtype)])
            gradients = [[tf.fill([2], tf.cast(number, dtype))] for number in HALVES[dtype]]
        last = home.apply_to(variables, optimizer, gradients)[-1][0]
    finally:
        home.set_floatx("float32")
    assert str(last.dtype) == dtype
    np.testing.assert_array_equal(last.astype("float32"), [-sum(HALVES[dtype]) / 8.0] * 2)
    # SGD of the v1 API always has a slot, before ours; after the sum, of two elements, stands which rows were touched.
    assert [str(value.dtype) for value in weights_of(home, optimizer) if value.shape == (2,)][-2:] == [
        "float32",
        "float32",
    ]
