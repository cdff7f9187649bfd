"""GradientAccumulationCallback in fit: against the NumPy oracle, epochs of 4, 4, 4 and 2 samples."""

import copy
import doctest
import importlib.util
import sys
import warnings

import numpy as np
import oracle
import pytest
import skips

import legacyga
from legacyga import _compat

RANDOM = np.random.RandomState(3)
START = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
X = RANDOM.randn(14, 3).astype("float32")
Y = RANDOM.randn(14, 2).astype("float32")
BATCHES = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 14, 4)]
LR, MOMENTUM = 0.1, 0.9

GRAPH_MODE = "graph mode: no optimizer is told how many samples a batch has"


def expected(home, epochs, steps, partial_window, batches=BATCHES, initial_epoch=0, weighs=True):
    """What the oracle makes of it: in eager mode each batch weighs as much as it has samples.

    Args:
        home: the home.
        epochs: how many.
        steps: function of (epoch, updates made before): the K of a window that begins there.
        partial_window: as the callback's.
        batches: one epoch's.
        initial_epoch: the number of the first.
        weighs: whether Keras tells, in eager mode, how many samples a batch has.

    Returns:
        For each epoch (weights after its end, updates made).
    """
    sgd = oracle.SGD(LR, MOMENTUM)
    weights, window, size, history = [w.astype("float64") for w in START], [], None, []

    def update(weights):
        samples, gradients = zip(*window)
        return sgd.update(weights, [np.average(g, axis=0, weights=samples) for g in zip(*gradients)])

    for epoch in range(initial_epoch, initial_epoch + epochs):
        for x, y in batches:
            if not window:
                size = steps(epoch, sgd.iterations)
            samples = len(x) if weighs and home.mode == "eager" else 1
            window.append((samples, oracle.gradients(weights, x.astype("float64"), y.astype("float64"))))
            if len(window) == size:
                weights, window = update(weights), []
        if window and partial_window == "flush":
            weights = update(weights)
        if partial_window != "carry":
            window = []
        history.append((weights, sgd.iterations))
    return history


def model_with(home, steps, optimizer=None, traced=True, **kwargs):
    if not traced and home.mode == "eager":
        # Tracing is where the time of so small a fit goes.
        kwargs["run_eagerly"] = True
    model = home.network(START)
    optimizer = optimizer or legacyga.MySGD(LR, MOMENTUM, steps_per_update=steps, keras=home.keras)
    model.compile(loss="mse", optimizer=optimizer, **kwargs)
    return model


def recorder(home):
    """A callback that keeps the weights as they are at each epoch's end."""

    class Recorder(home.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.weights.append(self.model.get_weights())

    made = Recorder()
    made.weights = []
    return made


def fit(home, model, callbacks, epochs=3, x=X, y=Y, batch_size=4, **kwargs):
    """fit without shuffling; the weights after each epoch, and the History's dict."""
    record = recorder(home)
    kwargs.setdefault("verbose", 0)
    if y is not None:
        kwargs.update(y=y, batch_size=batch_size)
    history = model.fit(x, epochs=epochs, shuffle=False, callbacks=callbacks + [record], **kwargs)
    return record.weights, history.history


def assert_as_expected(weights, logs, wanted):
    assert logs["updates"] == [updates for _, updates in wanted]
    assert all(isinstance(value, int) for name in logs for value in logs[name] if name in ("updates", "K"))
    for now, (then, _) in zip(weights, wanted):
        assert_close(now, then)
    assert len(weights) == len(wanted)


def counts(home):
    """Whether the home's models count the samples that they are trained on."""
    return home.mode == "eager" and home.tf_version >= (2, 2)


def assert_close(weights, wanted):
    for a, b in zip(weights, wanted):
        np.testing.assert_allclose(a, b, rtol=0, atol=4e-6)


@pytest.fixture(autouse=True)
def start_anew(home):
    home.reset(plain_session=True)


@pytest.mark.capability("R8 partial windows")
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


@pytest.mark.capability("R2 weights")
@pytest.mark.parametrize("steps", [2, 4])
def test_a_smaller_last_batch_equals_the_large_batch(home, steps):
    """Windows of 4 + 4 and 4 + 2 samples, or of all 14, in plain fit are batches of as many."""
    if home.mode == "graph":
        skips.we_lack(GRAPH_MODE)
    size = 4 * steps
    large = [(X[i : i + size], Y[i : i + size]) for i in range(0, 14, size)]
    wanted = expected(home, 3, lambda epoch, updates: 1, "flush", large)
    weights, logs = fit(home, model_with(home, steps), [legacyga.GradientAccumulationCallback()])
    assert_as_expected(weights, logs, wanted)


@pytest.mark.capability("R2 weights")
def test_what_does_not_weigh(home):
    """A sum; the mini-steps before fit and after it; those of a train_step of the user's own."""
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
    assert_close(model.get_weights(), wanted)
    if counts(home) and not home.is_keras3:
        # A loss that is all in add_loss is counted once a batch, however large.
        inputs = home.keras.layers.Input((3,))
        model = home.keras.models.Model(inputs, home.keras.layers.Dense(2)(inputs))
        model.add_loss(home.tf.reduce_mean(model.output**2))
        model.compile(optimizer=legacyga.wrap(home.bare_sgd(lr=LR), 4))
        _, logs = fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1, y=None)
        assert logs["updates"] == [1] and "effective_batch_size" not in logs


@pytest.mark.capability("callback")
def test_the_optimizer_can_be_copied_after_fit(home):
    if home.mode == "graph":
        skips.senseless("eager mode only")
    model = model_with(home, 3, traced=False)
    fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1)
    copied = copy.deepcopy(model.optimizer)
    assert copied is not model.optimizer and copied.gradient_accumulation_steps == 3


@pytest.mark.capability("R2 weights")
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


@pytest.mark.capability("callback")
@pytest.mark.parametrize("partial_window", ["flush", "carry"])
def test_a_dict_changes_k_at_the_next_window(home, partial_window):
    """Carried, the window of 3 that epoch 1 leaves with one mini-step goes on with 3 in epoch 2, where K is 2."""

    def steps(epoch, updates):
        return {1: 3, 2: 2}[min(epoch, 2)]

    wanted = expected(home, 3, steps, partial_window, initial_epoch=1)
    assert [updates for _, updates in wanted] == {"flush": [2, 4, 6], "carry": [1, 3, 5]}[partial_window]
    model = model_with(home, 4)
    callback = legacyga.GradientAccumulationCallback({7: 9, 0: 3, 2: 2}, partial_window)
    weights, logs = fit(home, model, [callback], epochs=4, initial_epoch=1)
    assert_as_expected(weights, logs, wanted)
    assert logs["gradient_accumulation_steps"] == [3, 2, 2]


@pytest.mark.capability("callback")
@pytest.mark.parametrize("partial_window", ["flush", "carry", "drop"])
def test_a_function_of_the_updates(home, partial_window, monkeypatch):
    """K = 1, 2, 3, 1, 2, 3 ...; the counters are read at windows' ends, and not on every batch."""
    reads = []
    read = _compat.Home.value_of
    monkeypatch.setattr(_compat.Home, "value_of", lambda *args: reads.append(1) or read(*args))

    def schedule(updates):
        return 1 + updates % 3 if updates < 5 else 4

    wanted = expected(home, 4, lambda epoch, updates: schedule(updates), partial_window)
    model = model_with(home, 2)
    weights, logs = fit(home, model, [legacyga.GradientAccumulationCallback(schedule, partial_window)], epochs=4)
    assert_as_expected(weights, logs, wanted)
    if partial_window == "carry":
        # Two at the start and at each update, and for the logs one an epoch (two in TF 2.3 to 2.5).
        assert len(reads) <= 2 * (1 + wanted[-1][1]) + 8 < 2 * 4 * len(BATCHES)


@pytest.mark.capability("callback")
def test_a_function_in_training_that_goes_on(home):
    """Each fit begins within a window, and its function is asked when that one ends."""

    def schedule(updates):
        return (3, 4, 2, 1, 3, 1)[updates]

    wanted = expected(home, 3, lambda epoch, updates: schedule(updates), "carry")
    model = model_with(home, 3)
    for epoch in range(3):
        callback = legacyga.GradientAccumulationCallback(schedule, "carry")
        weights, logs = fit(home, model, [callback], epochs=1)
        assert_as_expected(weights, logs, wanted[epoch : epoch + 1])


@pytest.mark.capability("callback")
def test_a_schedule_that_begins_at_1(home):
    wanted = expected(home, 3, lambda epoch, updates: 1 if epoch < 1 else 3, "flush")
    weights, logs = fit(home, model_with(home, 3), [legacyga.GradientAccumulationCallback({0: 1, 1: 3})])
    assert_as_expected(weights, logs, wanted)
    assert logs["gradient_accumulation_steps"] == [1, 3, 3]
    if home.mode == "eager":
        # Graph mode builds its graph before any callback is called, and one of K = 1 has no accumulators.
        model = model_with(home, 1, traced=False)
        weights, logs = fit(home, model, [legacyga.GradientAccumulationCallback({0: 1, 1: 3})])
        assert_as_expected(weights, logs, wanted)


@pytest.mark.capability("callback")
def test_an_int_is_k_from_the_start_and_carries_on_in_the_next_fit(home):
    """Two fits of an epoch each, with a callback each, are one of two epochs."""
    wanted = expected(home, 2, lambda epoch, updates: 3, "carry")
    model = model_with(home, 2)
    for epoch in range(2):
        weights, logs = fit(home, model, [legacyga.GradientAccumulationCallback(3, "carry")], epochs=1)
        assert_as_expected(weights, logs, wanted[epoch : epoch + 1])
    assert int(home.value(model.optimizer.mini_step)) == 2
    # And what is there is flushed by the epoch that ends next, though its K is 1.
    fit(home, model, [legacyga.GradientAccumulationCallback(partial_window="drop")], epochs=1)
    assert int(home.value(model.optimizer.mini_step)) == 0


@pytest.mark.capability("R8 partial windows")
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


@pytest.mark.capability("callback")
def test_the_logs_reach_the_other_callbacks(home, tmp_path, capsys):
    callbacks = home.keras.callbacks
    path = str(tmp_path / "log.csv")
    model = model_with(home, 3)
    others = [callbacks.CSVLogger(path)]
    # In graph mode, and before TF 2.0, it needs no package of its own.
    has_board = home.mode == "graph" or importlib.util.find_spec("tensorboard")
    if has_board:
        others.append(callbacks.TensorBoard(str(tmp_path)))
    fit(home, model, [legacyga.GradientAccumulationCallback()] + others, epochs=2, verbose=1)
    with open(path) as file:
        rows = [line.strip().split(",") for line in file]
    columns = dict(zip(rows[0], zip(*rows[1:])))
    assert columns["updates"] == ("2", "4") and columns["gradient_accumulation_steps"] == ("3", "3")
    # What the terminal is left with, once the bar has been drawn over itself.
    printed = capsys.readouterr().out
    assert "updates: 2" in printed and "updates: 4" in printed and "gradient_accumulation_steps: 3" in printed
    assert columns["effective_batch_size"] == ("12", "12") and "effective_batch_size: 12" in printed
    if not has_board:
        return
    events = b"".join(each.read_bytes() for each in tmp_path.glob("**/*tfevents*"))
    assert b"updates" in events and b"gradient_accumulation_steps" in events


def endless(batches):
    while True:
        for batch in batches:
            yield batch


@pytest.mark.capability("callback")
def test_generators(home):
    """Up to TF 2.0 fit_generator has a loop of its own, which tells callbacks each batch's size."""
    knows = home.mode == "graph" or home.tf_version < (2, 1) or counts(home)
    wanted = expected(home, 2, lambda epoch, updates: 3, "carry", weighs=knows)
    model = model_with(home, 3)
    record = recorder(home)
    train = model.fit if home.is_keras3 or home.tf_version >= (2, 2) and home.mode == "eager" else model.fit_generator
    logs = train(
        endless(BATCHES),
        steps_per_epoch=4,
        epochs=2,
        verbose=0,
        callbacks=[legacyga.GradientAccumulationCallback(partial_window="carry"), record],
    ).history
    assert_as_expected(record.weights, logs, wanted)
    assert logs.get("effective_batch_size") == ([12, 12] if knows else None)


@pytest.mark.capability("callback")
def test_tf_data(home):
    """A dataset whose length Keras does not know; the epoch's end is found without it."""
    if home.mode == "graph":
        skips.senseless("tf.data of unknown length trains in eager mode")
    shapes = ((None, 3), (None, 2))
    data = home.tf.data.Dataset.from_generator(lambda: iter(BATCHES), ("float32", "float32"), shapes)
    wanted = expected(home, 3, lambda epoch, updates: 3, "flush", weighs=counts(home))
    early, model = recorder(home), model_with(home, 3)
    callback = legacyga.GradientAccumulationCallback()
    # In one kind: TF 2.0 and 2.1 want a batch size for arrays beside a dataset.
    validation = home.tf.data.Dataset.from_tensors((X, Y))
    weights, logs = fit(home, model, [early, callback], x=data, y=None, validation_data=validation)
    assert_as_expected(weights, logs, wanted)
    assert_as_expected(early.weights, logs, wanted)


@pytest.mark.capability("callback")
def test_steps_per_execution(home):
    """Four batches in executions of 2: the function is asked after every second one."""
    if home.mode == "graph" or home.tf_version < (2, 4):
        skips.keras_lacks("steps_per_execution: TF 2.4 or newer, in eager mode")
    wanted = expected(home, 2, lambda epoch, updates: 3, "flush")
    model = model_with(home, 3, steps_per_execution=2)
    weights, logs = fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=2)
    assert_as_expected(weights, logs, wanted)

    def schedule(updates):
        return {0: 2, 1: 4}.get(updates, 1)

    # A window of 2, which is the first execution; one of 4, into the second epoch; and two of 1 in the last execution.
    model = model_with(home, 3, steps_per_execution=2)
    weights, logs = fit(home, model, [legacyga.GradientAccumulationCallback(schedule, "carry")], epochs=2)
    assert logs["updates"] == [1, 4]
    assert_as_expected(weights, logs, expected(home, 2, lambda epoch, updates: schedule(updates), "carry"))


def stopper(home, error=None):
    """A callback that ends training after the second batch of an epoch."""

    class Stopper(home.keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            if batch == 1:
                if error:
                    raise error
                self.model.stop_training = True

    return Stopper()


@pytest.mark.capability("R8 partial windows")
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


@pytest.mark.capability("R8 partial windows")
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


@pytest.mark.capability("R8 partial windows")
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
    for now, then in zip(model.get_weights(), expected(home, best + 1, lambda epoch, updates: 3, "flush")[best][0]):
        np.testing.assert_allclose(now, then, rtol=0, atol=4e-6)


@pytest.mark.capability("errors")
def test_arguments():
    make = legacyga.GradientAccumulationCallback
    for value in (0, -1, True, 2.0, "2", [1], int):
        with pytest.raises(ValueError) as error:
            make(value)
        assert str(error.value) == (
            "schedule must be None, an integer of at least 1, a dict {{epoch: K}} or a function of the number of "
            "updates. Received: {!r}".format(value)
        )
    for value in (-1, True, 1.0, "1"):
        with pytest.raises(ValueError) as error:
            make({value: 2})
        wanted = "The keys of schedule must be epochs, integers of at least 0. Received: {!r}".format(value)
        assert str(error.value) == wanted
    with pytest.raises(ValueError) as error:
        make({0: 2, 3: 0})
    assert str(error.value) == "schedule[3] must be an integer of at least 1. Received: 0"
    with pytest.raises(ValueError, match=r"schedule must name at least one epoch, such as {0: 4}. Received: {}"):
        make({})
    for value in ("keep", None, True):
        with pytest.raises(ValueError) as error:
            make(partial_window=value)
        assert str(error.value) == 'partial_window must be "flush", "carry" or "drop". Received: {!r}'.format(value)


@pytest.mark.capability("errors")
def test_what_is_found_out_when_training_starts(home):
    make = legacyga.GradientAccumulationCallback
    with pytest.raises(ValueError, match="needs a model whose optimizer accumulates. Received: .*Compile the model"):
        fit(home, model_with(home, 1, home.bare_sgd(lr=LR), traced=False), [make()])
    with pytest.raises(ValueError, match=r"schedule\(0\) must be an integer of at least 1. Received: 1.5"):
        fit(home, model_with(home, 2, traced=False), [make(lambda updates: 1.5)])
    # A graph without accumulators: said before the first epoch, not in the fifth.
    model = model_with(home, 1)
    fit(home, model, [], epochs=1)
    with pytest.raises(ValueError, match="1 when this optimizer's training graph was built.*Received: 6. Make the"):
        fit(home, model, [make({5: 6})], epochs=9)
    assert int(home.value(model.optimizer.iterations)) == 4


@pytest.mark.capability("callback")
def test_windows_larger_than_an_epoch(home):
    """One warning says what will happen, and that is what happens."""
    for partial_window, says, updates in (
        ("flush", "each such epoch ends in one update, on the mean of its 4 batches", [1, 2, 3]),
        ("carry", "goes on through several epochs, with an update every 6 batches", [0, 1, 2]),
        ("drop", "such an epoch makes no update at all", [0, 0, 0]),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = model_with(home, 6, traced=False)
            weights, logs = fit(home, model, [legacyga.GradientAccumulationCallback(6, partial_window)])
        (message,) = [str(each.message) for each in caught if "an epoch has" in str(each.message)]
        assert message.startswith("gradient_accumulation_steps is to be 6, and an epoch has 4 batches. With partial")
        assert says in message and logs["updates"] == updates
        assert_as_expected(weights, logs, expected(home, 3, lambda epoch, updates: 6, partial_window))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(home, model_with(home, 4, traced=False), [legacyga.GradientAccumulationCallback(4)], epochs=1)
    assert not [each for each in caught if "an epoch has" in str(each.message)]


@pytest.mark.capability("callback")
def test_several_optimizers_and_covers_are_found(home):
    one, other = [legacyga.MySGD(steps_per_update=3, keras=home.keras) for _ in range(2)]
    model = model_with(home, 3, one, traced=False)
    model.further = other
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(home, model, [legacyga.GradientAccumulationCallback(2)], epochs=1)
    (message,) = [str(each.message) for each in caught if "optimizers that accumulate" in str(each.message)]
    assert message.startswith("The model has 2 optimizers that accumulate.") and repr(one) in message
    assert (one.gradient_accumulation_steps, other.gradient_accumulation_steps) == (2, 2)


@pytest.mark.capability("callback")
def test_within_a_loss_scale_optimizer(home):
    found = getattr(getattr(home.keras, "mixed_precision", None), "LossScaleOptimizer", None)
    if found is None or home.mode == "graph":
        skips.keras_lacks("mixed_precision.LossScaleOptimizer: TF 2.4 or newer, in eager mode")
    inner = legacyga.MySGD(LR, MOMENTUM, steps_per_update=3, keras=home.keras)
    arguments = dict(initial_scale=8.0) if home.is_keras3 else dict(dynamic=False, initial_scale=8.0)
    nestings = [found(inner, **arguments)]
    if home.is_keras3:
        nestings.append(legacyga.wrap(found(home.bare_sgd(lr=LR, momentum=MOMENTUM), **arguments), 3))
    for optimizer in nestings:
        model = model_with(home, 3, optimizer)
        weights, logs = fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=2)
        assert_as_expected(weights, logs, expected(home, 2, lambda epoch, updates: 3, "flush"))
    # A batch that overflows is not handed over, nor are its samples counted as the next one's.
    model = model_with(home, 3, found(legacyga.MySGD(LR, MOMENTUM, steps_per_update=3, keras=home.keras)))
    overflows = np.where(np.arange(14)[:, None] // 4 == 1, np.float32(1e38), Y)
    fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1, y=overflows)
    without = [BATCHES[0]] + BATCHES[2:]
    assert_close(model.get_weights(), expected(home, 1, lambda epoch, updates: 3, "flush", without)[0][0])


@pytest.mark.capability("callback")
def test_it_is_a_callback_of_the_models_home(home):
    callback = legacyga.GradientAccumulationCallback()
    if home.keras is _compat.find_home().module or home.name != "tf.keras":
        assert isinstance(callback, home.keras.callbacks.Callback)
    fit(home, model_with(home, 3, traced=False), [callback], epochs=1)
    assert isinstance(callback, home.keras.callbacks.Callback)


@pytest.mark.capability("callback")
def test_a_model_of_another_keras_than_was_to_be_expected(home, monkeypatch):
    """Made for a Keras that this process has imported, given to a model of another."""
    others = [name for name in ("keras", "tf_keras") if name in sys.modules and sys.modules[name] is not home.keras]
    others = [name for name in others if _compat.Home(sys.modules[name]).root != _compat.Home(home.keras).root]
    if not others:
        skips.senseless("no other Keras is imported here")
    other = _compat.Home(sys.modules[others[0]])
    monkeypatch.setattr(sys.modules["legacyga.callback"], "_likely_home", lambda: other)
    callback = legacyga.GradientAccumulationCallback()
    assert not isinstance(callback, home.keras.callbacks.Callback)
    weights, logs = fit(home, model_with(home, 3, traced=False), [callback], epochs=1)
    assert_as_expected(weights, logs, expected(home, 1, lambda epoch, updates: 3, "flush"))
    assert isinstance(callback, home.keras.callbacks.Callback)


@pytest.mark.capability("callback")
def test_the_docstrings_example(home):
    result = doctest.testmod(sys.modules["legacyga.callback"])
    assert (result.attempted, result.failed) == (3, 0)
