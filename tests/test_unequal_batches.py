"""R2: in fit each batch weighs as much as it has samples, under a GradientAccumulationCallback.

test_accumulator.py and test_train_step.py have the weights of their own mini-steps.
"""

import warnings

import needs
import numpy as np
import pytest
import skips
from epochs import (
    BATCHES,
    LR,
    NO_TRAIN_STEP,
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
    if not counts(home):
        skips.we_lack(NO_TRAIN_STEP)
    size = 4 * steps
    large = [(X[i : i + size], Y[i : i + size]) for i in range(0, 14, size)]
    wanted = expected(home, 3, lambda epoch, updates: 1, "flush", large)
    weights, logs = fit(home, model_with(home, steps), [legacyga.GradientAccumulationCallback()])
    assert_as_expected(weights, logs, wanted)


@pytest.mark.slow
def test_what_does_not_weigh(home):
    """A sum, and the mini-steps before fit."""
    if not counts(home):
        skips.we_lack(NO_TRAIN_STEP)
    needs.wrap(home)
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

    by_hand()
    assert_close(model.get_weights(), weighed if home.mode == "graph" else wanted)
    model.set_weights(START)
    # What was traced without weights is traced anew.
    fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1)
    assert_close(model.get_weights(), weighed)
    by_hand()
    assert_close(model.get_weights(), weighed)
    if not home.is_keras3:
        # A loss that is all in add_loss: samples are those of the data.
        inputs = home.keras.layers.Input((3,))
        model = home.keras.models.Model(inputs, home.keras.layers.Dense(2)(inputs))
        model.add_loss(home.tf.reduce_mean(model.output**2))
        model.compile(legacyga.wrap(home.bare_sgd(lr=LR), 4), None)
        _, logs = fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1, y=None)
        assert logs["updates"] == [1] and logs["effective_batch_size"] == [14]


def test_targets_that_are_one_number(home):
    """As those of graphs, of which the rows of the input are the atoms: each batch is one sample."""
    if not home.is_keras3:
        skips.keras_lacks("targets without a dimension")
    tf = home.tf

    class Graph(home.keras.Model):
        def __init__(self):
            super(Graph, self).__init__()
            self.dense = home.keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, x):
            return tf.reduce_mean(self.dense(x), axis=0, keepdims=True)

    graphs, wanted = [X[:2], X[2:8], X[8:9]], [1.0, -2.0, 3.0]
    signature = (tf.TensorSpec((None, 3), "float32"), tf.TensorSpec((), "float32"))
    model = Graph()
    model(graphs[0])
    model.compile(legacyga.wrap(home.bare_sgd(lr=LR), 3), "mse")
    given = tf.data.Dataset.from_generator(lambda: zip(graphs, wanted), output_signature=signature)
    model.fit(given, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])
    errors = [each.mean(0).sum() - y for each, y in zip(graphs, wanted)]
    gradients = [2 * error * each.mean(0) for error, each in zip(errors, graphs)]
    assert_close([model.get_weights()[0][:, 0]], [1 - LR * np.mean(gradients, 0)])


@pytest.mark.parametrize("reduction", ["sum", slow("none")])
def test_a_loss_that_is_a_sum(home, reduction):
    """Nothing divides it: the window of batches of 4, 4, 4 and 2 is a K-th of the large batch's sum."""
    found = getattr(home.keras.losses, "MeanSquaredError", None)
    if home.mode == "graph" or not counts(home):
        skips.keras_lacks("eager mode with a train_step")

    def trained(steps, size):
        model = model_with(home, steps)
        model.compile(legacyga.wrap(home.bare_sgd(lr=0.01), steps), found(reduction=reduction))
        return fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1, batch_size=size)[0][-1]

    moved = [[w - start for w, start in zip(weights, START)] for weights in (trained(1, 14), trained(4, 4))]
    assert_close([4 * each for each in moved[1]], moved[0])


def test_where_nothing_is_weighed_the_callback_says_so(home):
    """Once, where it is told batches of different sizes; test_weights_in_graphs.py has graph mode."""
    if home.mode == "graph" or counts(home):
        skips.senseless("TF 2.0 and 2.1 in eager mode only")
    for samples, times in ((12, 0), (14, 1)):
        model = model_with(home, 4)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=2, x=X[:samples], y=Y[:samples])
        texts = [str(each.message) for each in caught if "All batches weigh alike" in str(each.message)]
        assert len(texts) == times, texts
        unweighed = expected(home, 2, lambda epoch, updates: 4, "flush", BATCHES[: -(-samples // 4)], weighs=False)
        assert_close(model.get_weights(), unweighed[-1][0])
