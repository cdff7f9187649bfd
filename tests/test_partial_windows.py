"""R8: the callback ends the window that an epoch leaves; without it the window is carried. test_flush.py has flush."""

import inspect
import warnings

import numpy as np
import oracle
import pytest
import skips
from epochs import (
    BATCHES,
    START,
    X,
    Y,
    assert_as_expected,
    assert_close,
    expected,
    fit,
    model_with,
    recorder,
    stopper,
)

import legacyga

pytestmark = pytest.mark.capability("R8 partial windows")


@pytest.fixture(autouse=True)
def start_anew(home):
    home.reset(plain_session=True)


@pytest.mark.parametrize("partial_window", ["flush", "carry", "drop"])
def test_windows_that_do_not_divide_the_epoch(home, partial_window):
    """K = 3 in epochs of 4 mini-steps, the last of 2 samples."""
    wanted = expected(home, 3, lambda epoch, updates: 3, partial_window)
    assert [updates for _, updates in wanted] == {"flush": [2, 4, 6], "carry": [1, 2, 4], "drop": [1, 2, 3]}[
        partial_window
    ]
    model = model_with(home, 3)
    weights, logs = fit(home, model, [legacyga.GradientAccumulationCallback(partial_window=partial_window)])
    assert_as_expected(weights, logs, wanted)
    assert logs["gradient_accumulation_steps"] == [3, 3, 3]
    assert logs["effective_batch_size"] == [12, 12, 12]
    assert int(home.value(model.optimizer.mini_step)) == 0


def test_an_epoch_that_ends_before_its_window(home):
    """Without the callback, where Keras tells its optimizer of a fit's end: once, and only where nothing is learned."""
    sgd = home.keras.optimizers.SGD
    if home.mode == "graph" or not hasattr(sgd, "finalize_variable_values"):
        skips.keras_lacks("an optimizer that is told of the end of a fit")
    model = home.network(START)
    for fits, callbacks, said in ((2, [], 1), (1, [legacyga.GradientAccumulationCallback()], 0)):
        model.compile(optimizer=legacyga.wrap(sgd(0.1), 100), loss="mse")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(fits):
                fit(home, model, callbacks, epochs=1)
        texts = [str(each.message) for each in caught if "nothing is learned yet" in str(each.message)]
        assert len(texts) == said
        assert not texts or "has 4 mini-steps, and gradient_accumulation_steps is 100. Give fit a legacyga." in texts[0]


def test_validation_and_callbacks_see_the_epochs_last_update(home):
    """val_loss is that of the weights after the flush, and a callback before ours in the list finds them too."""
    wanted = expected(home, 2, lambda epoch, updates: 4, "flush")
    early = recorder(home)
    callback = legacyga.GradientAccumulationCallback()
    weights, logs = fit(home, model_with(home, 4), [early, callback], epochs=2, validation_data=(X, Y))
    assert_as_expected(weights, logs, wanted)
    losses = [oracle.loss(weights, X.astype("float64"), Y.astype("float64")) for weights, _ in wanted]
    np.testing.assert_allclose(logs["val_loss"], losses, rtol=1e-5)
    assert_as_expected(early.weights, logs, wanted)


@pytest.mark.slow
def test_training_that_is_stopped_within_an_epoch(home):
    """The epoch ends as any other, after as many batches as that Keras takes."""
    for partial_window, wanted_updates in (("flush", (1, 2)), ("drop", (0, 1)), ("carry", (0, 1))):
        model = model_with(home, 3, traced=False)
        fit(home, model, [legacyga.GradientAccumulationCallback(None, partial_window), stopper(home)], epochs=9)
        updates = int(home.value(model.optimizer.iterations))
        # 2 batches, or 4 where Keras looks at stop_training once an epoch.
        assert updates in wanted_updates
        left = 2 if updates == wanted_updates[0] else 1
        assert int(home.value(model.optimizer.mini_step)) == (left if partial_window == "carry" else 0)


def test_an_exception_within_an_epoch_leaves_the_window_as_it_is(home):
    model = model_with(home, 4, traced=False)
    callback = legacyga.GradientAccumulationCallback()
    try:
        raise OSError("another exception, handled while fit is called")
    except OSError:
        with pytest.raises(KeyboardInterrupt):
            fit(home, model, [callback, stopper(home, KeyboardInterrupt())])
    assert int(home.value(model.optimizer.mini_step)) == 2
    for now, start in zip(model.get_weights(), START):
        np.testing.assert_array_equal(now, start)
    # Training goes on: those two and the next epoch's four, K = 4: the last two are flushed.
    wanted = expected(home, 1, lambda epoch, updates: 4, "flush", BATCHES[:2] + BATCHES)
    try:
        raise OSError("and once more")
    except OSError:
        weights, logs = fit(home, model, [callback], epochs=1)
    assert_as_expected(weights, logs, wanted)


def test_evaluate_after_an_exception_leaves_the_window_as_it_is(home):
    """Within fit the start of a validation ends the epoch. This one is in no fit."""
    if "callbacks" not in inspect.signature(home.keras.models.Model.evaluate).parameters:
        skips.keras_lacks("evaluate takes no callbacks in that version")
    model = model_with(home, 4, traced=False)
    callback = legacyga.GradientAccumulationCallback()
    with pytest.raises(KeyboardInterrupt):
        fit(home, model, [callback, stopper(home, KeyboardInterrupt())])
    model.evaluate(X, Y, verbose=0, callbacks=[callback])
    assert int(home.value(model.optimizer.mini_step)) == 2
    for now, start in zip(model.get_weights(), START):
        np.testing.assert_array_equal(now, start)


def test_early_stopping_has_the_last_word(home):
    """It restores the first epoch's weights, before our `on_epoch_end`, and nothing is flushed onto them."""
    arguments = dict(monitor="loss", mode="max", patience=1, restore_best_weights=True)
    try:
        stopping = home.keras.callbacks.EarlyStopping(**arguments)
    except TypeError:
        skips.keras_lacks("EarlyStopping has no restore_best_weights in that version")
    model = model_with(home, 3, traced=False)
    weights, logs = fit(home, model, [stopping, legacyga.GradientAccumulationCallback()], epochs=9)
    best = int(np.argmax(logs["loss"]))
    assert len(weights) < 9
    assert_close(model.get_weights(), expected(home, best + 1, lambda epoch, updates: 3, "flush")[best][0])


def test_a_partial_window_is_carried_into_the_next_epoch(home):
    model = model_with(home, 3)
    weights, _ = fit(home, model, [], epochs=2)
    wanted = expected(home, 2, lambda epoch, updates: 3, "carry", weighs=home.mode == "graph")
    assert [updates for _, updates in wanted] == [1, 2]
    assert len(weights) == len(wanted)
    for now, (then, _) in zip(weights, wanted):
        assert_close(now, then)
    assert int(home.value(model.optimizer.mini_step)) == 2
