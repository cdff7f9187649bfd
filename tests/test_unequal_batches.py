"""R2: in fit each batch weighs as much as it has samples, under a GradientAccumulationCallback.

test_accumulator.py and test_train_step.py have the weights of their own mini-steps.
"""

import pytest
import skips
from epochs import (
    BATCHES,
    GRAPH_MODE,
    LR,
    START,
    X,
    Y,
    assert_as_expected,
    assert_close,
    counts,
    expected,
    fit,
    model_with,
)
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R2 weights")


@pytest.fixture(autouse=True)
def start_anew(home):
    home.reset(plain_session=True)


@pytest.mark.parametrize("steps", [slow(2), 4])
def test_a_smaller_last_batch_equals_the_large_batch(home, steps):
    """Windows of 4 + 4 and 4 + 2 samples, or of all 14, in plain fit are batches of as many."""
    if home.mode == "graph":
        skips.we_lack(GRAPH_MODE)
    size = 4 * steps
    large = [(X[i : i + size], Y[i : i + size]) for i in range(0, 14, size)]
    wanted = expected(home, 3, lambda epoch, updates: 1, "flush", large)
    weights, logs = fit(home, model_with(home, steps), [legacyga.GradientAccumulationCallback()])
    assert_as_expected(weights, logs, wanted)


def test_what_does_not_weigh(home):
    """A sum; the mini-steps before fit, and, where Keras has no train_step to leave in place, those after it."""
    if home.mode == "graph":
        skips.we_lack(GRAPH_MODE)
    ((wanted, _),) = expected(home, 1, lambda epoch, updates: 4, "flush", weighs=False)
    steps = [w - start for w, start in zip(wanted, START)]
    model = model_with(home, 4, legacyga.wrap(home.bare_sgd(lr=LR), 4, reduction="sum"))
    fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1)
    assert_close(model.get_weights(), [start + 4 * step for start, step in zip(START, steps)])

    model = model_with(home, 4, legacyga.wrap(home.bare_sgd(lr=LR), 4))
    weighed = expected(home, 1, lambda epoch, updates: 4, "flush")[0][0]

    def by_hand():
        model.set_weights(START)
        for x, y in BATCHES:
            model.train_on_batch(x, y)

    if counts(home):
        by_hand()
        assert_close(model.get_weights(), wanted)
        model.set_weights(START)
    # What was traced without weights is traced anew.
    fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1)
    assert_close(model.get_weights(), weighed)
    by_hand()
    assert_close(model.get_weights(), weighed if counts(home) else wanted)
    if counts(home) and not home.is_keras3:
        # A loss that is all in add_loss: samples are those of the data.
        inputs = home.keras.layers.Input((3,))
        model = home.keras.models.Model(inputs, home.keras.layers.Dense(2)(inputs))
        model.add_loss(home.tf.reduce_mean(model.output**2))
        model.compile(optimizer=legacyga.wrap(home.bare_sgd(lr=LR), 4))
        _, logs = fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1, y=None)
        assert logs["updates"] == [1] and logs["effective_batch_size"] == [14]


def test_a_training_function_that_cannot_be_traced_anew(home):
    if home.mode == "graph" or counts(home):
        skips.senseless("TF 2.0 and 2.1 in eager mode only")
    model = model_with(home, 4, legacyga.wrap(home.bare_sgd(lr=LR), 4))
    fit(home, model, [], epochs=1)
    model.set_weights(START)
    with pytest.warns(UserWarning, match="trained before without a GradientAccumulationCallback.*Compile the model"):
        fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1)
    unweighed = expected(home, 1, lambda epoch, updates: 4, "flush", weighs=False)[0][0]
    assert_close(model.get_weights(), unweighed)
