"""R4: constraints and clipping act once per update, and clipping on the mean."""

import warnings

import lines
import numpy as np
import oracle
import pytest
import skips
from lines import (
    NOT_THERE,
    ROWS,
    SIZES,
    START,
    K,
    accumulating,
    assert_history,
    expected,
    line,
    mean_rows,
    skip_without,
    train,
    wrap,
)

pytestmark = pytest.mark.capability("R4 per update")


def pytest_generate_tests(metafunc):
    lines.parametrize(metafunc)


@pytest.fixture(autouse=True)
def fresh(home):
    home.reset(plain_session=True)


def test_a_constraint_is_applied_once_per_update(home, form):
    """This one is not idempotent: applied on every mini-step it would leave a sixteenth of a weight, not a half."""
    if form == "v3" and home.tf_version < (2, 11):
        skips.keras_lacks(NOT_THERE.format("constraints in the experimental optimizers of TF 2.10"))

    class Halve(home.keras.constraints.Constraint):
        def __call__(self, w):
            return 0.5 * w

    model = line(home, accumulating(home, form, K), Halve())
    halve = dict.fromkeys(range(len(SIZES)), lambda w: 0.5 * w)
    assert_history(train(model, ROWS), expected(ROWS, oracle.SGD(lr=0.125, constraints=halve)))


def assert_clips_the_mean(home, form, argument, limit, meaning):
    """The mean is clipped, and clipping each micro-batch is something else; in train_on_batch, thus as in fit."""
    sgd = oracle.SGD(lr=0.125, clip=meaning, limit=limit)
    wanted = expected(ROWS, sgd)
    clip, sgd = oracle.CLIPS[meaning], oracle.SGD(lr=0.125)
    each = [clip([column.astype("float64") for column in row], limit) for row in ROWS]
    wrong = expected(each, sgd)
    unclipped = expected(ROWS, oracle.SGD(lr=0.125))
    for other in (wrong, unclipped):
        assert all(np.max(np.abs(a - b)) > 0.05 for a, b in zip(wanted[-1], other[-1]))
    assert_history(train(line(home, accumulating(home, form, K, **{argument: limit})), ROWS), wanted)


def test_clipnorm_acts_on_the_mean(home, form):
    assert_clips_the_mean(home, form, "clipnorm", 2.0, home.clipnorm_means)


def test_clipvalue_acts_on_the_mean(home, generation):
    assert_clips_the_mean(home, generation, "clipvalue", 1.5, "value")


def test_global_clipnorm_acts_on_the_mean(home, generation):
    if generation == "v1" or home.tf_version < (2, 4):
        skips.keras_lacks(NOT_THERE.format("global_clipnorm in v1, and before TF 2.4"))
    assert_clips_the_mean(home, generation, "global_clipnorm", 2.0, "all")


def test_clipping_where_fit_never_clips_is_said_once(home, generation):
    if home.mode != "eager" or home.tf_version >= (2, 2):
        skips.keras_lacks(NOT_THERE.format("a fit that never clips: TF 2.0 and 2.1 in eager mode alone have one"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrap(home, generation, 1, clipnorm=2.0)
        wrap(home, generation, K)
        assert not [each for each in caught if "clip" in str(each.message)]
        model = line(home, wrap(home, generation, K, clipnorm=2.0))
        train(model, ROWS[: 2 * K])
    assert len([each for each in caught if "clip" in str(each.message)]) == 1


def test_gradient_transformers_see_one_mean_per_update(home, generation):
    skip_without(home, generation, "gradient_transformers")
    tf = home.tf
    calls = tf.Variable(0.0, trainable=False)
    if home.mode == "graph":
        home.sessions.get_session().run(calls.initializer)

    def square(grads_and_vars):
        with tf.control_dependencies([calls.assign_add(1.0)]):
            return [(tf.identity(gradient * gradient), variable) for gradient, variable in grads_and_vars]

    model = line(home, wrap(home, generation, K, gradient_transformers=[square]))
    history, weights = [], oracle.double(START)
    for row in mean_rows(ROWS):
        history += [weights] * (K - 1)
        weights = [w - 0.125 * g**2 for w, g in zip(weights, row)]
        history.append(weights)
    assert_history(train(model, ROWS), history)
    assert float(home.value(calls)) == 6
