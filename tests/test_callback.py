"""GradientAccumulationCallback in fit: against the NumPy oracle, epochs of 4, 4, 4 and 2 samples."""

import copy
import importlib.util
import sys
import warnings

import numpy as np
import pytest
import skips
from epochs import (
    BATCHES,
    LR,
    MOMENTUM,
    X,
    Y,
    assert_as_expected,
    assert_close,
    counts,
    expected,
    fit,
    model_with,
    recorder,
)
from slow import slow

import legacyga
from legacyga.backend import homes

pytestmark = pytest.mark.capability("callback")


@pytest.fixture(autouse=True)
def start_anew(home):
    home.reset(plain_session=True)


def test_the_optimizer_can_be_copied_after_fit(home):
    if home.mode == "graph":
        skips.senseless("eager mode only")
    model = model_with(home, 3, traced=False)
    fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1)
    copied = copy.deepcopy(model.optimizer)
    assert copied is not model.optimizer and copied.gradient_accumulation_steps == 3


def test_a_loop_of_the_programs_own(home):
    """It calls the callback itself, and tells it nothing of the fit."""
    model, callback = model_with(home, 3), legacyga.GradientAccumulationCallback()
    callback.set_model(model)
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    for x, y in BATCHES[:2]:
        model.train_on_batch(x, y)
    callback.on_epoch_end(0, {})
    callback.on_train_end()
    wanted = expected(home, 1, lambda epoch, updates: 3, "flush", BATCHES[:2])
    assert_close(model.get_weights(), wanted[0][0])


def test_a_model_of_keras_3_that_is_not_compiled(home):
    """It has no `optimizer`. Its own attribute holds one, whose last window is ended."""
    if not home.is_keras3:
        skips.keras_lacks("models without the attribute optimizer")

    class Agent(home.keras.Model):
        def __init__(self):
            super(Agent, self).__init__()
            self.net = home.keras.layers.Dense(2)
            self.own = legacyga.wrap(home.bare_sgd(lr=LR), 3)

        def call(self, x):
            return self.net(x)

    agent, callback = Agent(), legacyga.GradientAccumulationCallback()
    agent(X[:2])
    callback.set_model(agent)
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    agent.own.apply([home.tf.ones(each.shape) for each in agent.trainable_variables], agent.trainable_variables)
    callback.on_epoch_end(0, {})
    callback.on_train_end()
    assert (int(agent.own.iterations), int(agent.own.mini_step)) == (1, 0)
    np.testing.assert_allclose(agent.get_weights()[1], -LR, rtol=0, atol=1e-6)


@pytest.mark.parametrize("partial_window", [slow("flush"), "carry"])
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


@pytest.mark.parametrize("partial_window", ["flush", slow("carry"), slow("drop")])
def test_a_function_of_the_updates(home, partial_window, monkeypatch):
    """K = 1, 2, 3, 1, 2, 3 ...; the counters are read at windows' ends, and not on every batch."""
    reads = []
    read = homes.Home.value_of
    monkeypatch.setattr(homes.Home, "value_of", lambda *args: reads.append(1) or read(*args))

    def schedule(updates):
        return 1 + updates % 3 if updates < 5 else 4

    wanted = expected(home, 4, lambda epoch, updates: schedule(updates), partial_window)
    model = model_with(home, 2)
    weights, logs = fit(home, model, [legacyga.GradientAccumulationCallback(schedule, partial_window)], epochs=4)
    assert_as_expected(weights, logs, wanted)
    if partial_window == "carry":
        # Two at the start and at each update, and for the logs one an epoch.
        assert 0 < len(reads) <= 2 * (1 + wanted[-1][1]) + 4 < 2 * 4 * len(BATCHES)


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


@pytest.mark.parametrize("steps", [slow("int"), "loop"])
def test_a_schedule_that_begins_at_1_in_several_fits(home, steps):
    """A fit for each epoch, or one that is resumed: the first has the later K in view."""
    if home.mode == "graph":
        skips.senseless("a graph of K = 1 has no accumulators, and Keras builds it before any callback is called")
    wanted = expected(home, 3, lambda epoch, updates: 1 if epoch < 2 else 3, "flush")
    model, callback = model_with(home, 1, traced=False), legacyga.GradientAccumulationCallback({0: 1, 2: 3})
    for begin, end in [(0, 2), (2, 3)] if steps == "int" else [(0, 1), (1, 2), (2, 3)]:
        weights, logs = fit(home, model, [callback], epochs=end, initial_epoch=begin)
        assert_as_expected(weights, logs, wanted[begin:end])


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


def bar_has_our_logs(home):
    if home.is_standalone_before(2, 4) or home.tf_version < (1, 12):
        return False
    return not (2, 3) <= home.tf_version < (2, 8) or home.mode == "graph" and home.tf_version >= (2, 6)


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
    assert columns["effective_batch_size"] == ("12", "12")
    # What the terminal is left with, once the bar has been drawn over itself.
    printed = capsys.readouterr().out
    if bar_has_our_logs(home):
        assert "updates: 2" in printed and "updates: 4" in printed and "gradient_accumulation_steps: 3" in printed
        assert "effective_batch_size: 12" in printed
    if not has_board or (2, 3) <= home.tf_version < (2, 6):
        return
    events = b"".join(each.read_bytes() for each in tmp_path.glob("**/*tfevents*"))
    assert b"updates" in events and b"gradient_accumulation_steps" in events


def test_the_effective_batch_size_is_that_of_this_fit(home):
    model = model_with(home, 3, traced=False)
    for batch_size in (7, 2, 4):
        fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1, batch_size=14)
        _, logs = fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=2, batch_size=batch_size)
        # An epoch has 14 samples.
        assert logs["effective_batch_size"] == [min(3 * batch_size, 14)] * 2


@pytest.mark.parametrize(
    "steps, samples, effective", [slow(100, 12, 12), (100, 11, 11), slow(2, 11, 8), slow(3, 14, 12)]
)
@pytest.mark.parametrize("partial_window", [slow("flush"), "carry"])
def test_a_window_larger_than_the_epoch(home, steps, samples, effective, partial_window):
    """What was trained, and no K-fold of it: with "carry" the window goes on to K batches."""
    model = model_with(home, steps)
    x, y = (np.concatenate(each)[:samples] for each in zip(*BATCHES))
    callback = legacyga.GradientAccumulationCallback(partial_window=partial_window)
    logs = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[callback]).history
    if partial_window == "carry":
        effective = 4 * steps
    assert logs["effective_batch_size"] == [effective] * 2


def test_nothing_is_said_where_no_batch_needs_a_weight(home, recwarn):
    """At K = 1, and of a K that a function replaces before the first batch."""
    model = model_with(home, 1, traced=False)
    fit(home, model, [legacyga.GradientAccumulationCallback()], epochs=1)
    assert not [each for each in recwarn.list if issubclass(each.category, legacyga.AccumulationWarning)]
    model = model_with(home, 64, traced=False)
    fit(home, model, [legacyga.GradientAccumulationCallback(lambda updates: 2)], epochs=1)
    assert not [each for each in recwarn.list if "an epoch has" in str(each.message)]


@pytest.mark.slow
def test_the_effective_batch_size_of_a_generator(home):
    """Of 4 batches, 14 samples; in graph mode tf.keras calls the number of its batches `samples`."""
    if not (home.mode == "graph" or home.tf_version < (2, 1) or counts(home)):
        skips.keras_lacks("nothing tells the sizes of its batches")
    train = "fit" if home.is_keras3 or home.tf_version >= (2, 2) and home.mode == "eager" else "fit_generator"
    model, callback = model_with(home, 4), legacyga.GradientAccumulationCallback()
    logs = getattr(model, train)(endless(BATCHES), steps_per_epoch=4, epochs=2, verbose=0, callbacks=[callback]).history
    assert logs["effective_batch_size"] == [14, 14]


def endless(batches):
    while True:
        for batch in batches:
            yield batch


def test_generators(home):
    """Up to TF 2.0 fit_generator has a loop of its own, which tells callbacks each batch's size."""
    knows = home.mode == "graph" or home.tf_version < (2, 1) or counts(home)
    wanted = expected(home, 2, lambda epoch, updates: 3, "carry")
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


def test_tf_data(home):
    """A dataset whose length Keras does not know; the epoch's end is found without it."""
    if home.mode == "graph":
        skips.senseless("tf.data of unknown length trains in eager mode")
    shapes = ((None, 3), (None, 2))
    data = home.tf.data.Dataset.from_generator(lambda: iter(BATCHES), ("float32", "float32"), shapes)
    wanted = expected(home, 3, lambda epoch, updates: 3, "flush")
    early, model = recorder(home), model_with(home, 3)
    callback = legacyga.GradientAccumulationCallback()
    # In one kind: TF 2.0 and 2.1 want a batch size for arrays beside a dataset.
    validation = home.tf.data.Dataset.from_tensors((X, Y))
    weights, logs = fit(home, model, [early, callback], x=data, y=None, validation_data=validation)
    assert_as_expected(weights, logs, wanted)
    assert_as_expected(early.weights, logs, wanted)


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


@pytest.mark.slow
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


def test_several_optimizers_and_covers_are_found(home):
    one, other = [legacyga.MySGD(steps_per_update=3, keras=home.keras) for _ in range(2)]
    model = model_with(home, 3, one, traced=False)
    model.further, called = other, repr(one)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(home, model, [legacyga.GradientAccumulationCallback(2)], epochs=1)
    (message,) = [str(each.message) for each in caught if "optimizers that accumulate" in str(each.message)]
    assert message.startswith("The model has 2 optimizers that accumulate.") and called in message
    reasons = [str(each.message) for each in caught if "weigh alike" in str(each.message)]
    if home.mode == "eager" and hasattr(model, "train_step"):
        # It has no train_step of its own.
        assert reasons and all("The model has several optimizers, and nothing counts" in each for each in reasons)
    with pytest.raises(ValueError, match="flush takes one optimizer that accumulates, and 2 are within this"):
        legacyga.flush([one, other])
    assert (one.gradient_accumulation_steps, other.gradient_accumulation_steps) == (2, 2)


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


def test_it_is_a_callback_of_the_models_home(home):
    callback = legacyga.GradientAccumulationCallback()
    if home.keras is homes.find_home().module or home.name != "tf.keras":
        assert isinstance(callback, home.keras.callbacks.Callback)
    fit(home, model_with(home, 3, traced=False), [callback], epochs=1)
    assert isinstance(callback, home.keras.callbacks.Callback)


def test_a_model_of_another_keras_than_was_to_be_expected(home, monkeypatch):
    """Made for a Keras that this process has imported, given to a model of another."""
    others = [name for name in ("keras", "tf_keras") if name in sys.modules and sys.modules[name] is not home.keras]
    others = [name for name in others if homes.Home(sys.modules[name]).root != homes.Home(home.keras).root]
    if not others:
        skips.senseless("no other Keras is imported here")
    other = homes.Home(sys.modules[others[0]])
    monkeypatch.setattr(sys.modules["legacyga.fit.callback"], "_likely_home", lambda: other)
    callback = legacyga.GradientAccumulationCallback()
    assert not isinstance(callback, home.keras.callbacks.Callback)
    weights, logs = fit(home, model_with(home, 3, traced=False), [callback], epochs=1)
    assert_as_expected(weights, logs, expected(home, 1, lambda epoch, updates: 3, "flush"))
    assert isinstance(callback, home.keras.callbacks.Callback)


@pytest.mark.slow
def test_a_tf_train_optimizer_beside_another_keras(home, monkeypatch):
    """Its own home is TensorFlow; the callback is one of the model's Keras."""
    v1 = home.tf.compat.v1 if hasattr(home.tf, "compat") and hasattr(home.tf.compat, "v1") else home.tf
    others = [name for name in ("keras", "tf_keras") if name in sys.modules and sys.modules[name] is not home.keras]
    others = [name for name in others if homes.Home(sys.modules[name]).root != homes.Home(home.keras).root]
    if home.mode != "graph" or home.is_standalone or not others:
        skips.senseless("a tf.train optimizer in graph mode of tf.keras, where another Keras is imported")
    other = homes.Home(sys.modules[others[0]])
    monkeypatch.setattr(sys.modules["legacyga.fit.callback"], "_likely_home", lambda: other)
    optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(0.1), 3)
    model = home.keras.Sequential([home.keras.layers.Dense(1, input_shape=(3,))])
    model.compile(optimizer, "mse")
    callback = legacyga.GradientAccumulationCallback()
    logs = model.fit(X, Y[:, :1], batch_size=4, epochs=1, verbose=0, callbacks=[callback]).history
    assert isinstance(callback, home.keras.callbacks.Callback) and logs["updates"] == [2]


def test_an_epoch_that_grows(home):
    """A Sequence of one batch, then of three, where Keras looks again: the last window of each epoch is ended, too."""
    if not hasattr(home.keras.utils, "Sequence") or home.mode == "graph":
        skips.keras_lacks("no Sequence in this mode")

    class Growing(home.keras.utils.Sequence):
        length = 1

        def __len__(self):
            return self.length

        def __getitem__(self, i):
            return X[4 * i : 4 * i + 4], Y[4 * i : 4 * i + 4]

        def on_epoch_end(self):
            self.length = 3

    model, trained = model_with(home, 2), []
    seen = home.keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: trained.append(batch))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit(home, model, [legacyga.GradientAccumulationCallback(), seen], epochs=2, x=Growing(), y=None)
    assert int(home.value(model.optimizer.mini_step)) == 0
    if len(trained) == 2:
        skips.keras_lacks("this Keras keeps the length of the first epoch")
    # One of one batch; then the first batch is ended alone, and the other two are a window.
    assert int(home.value(model.optimizer.iterations)) == 3
    assert any("An epoch of 1 batches went on" in str(each.message) for each in said)


def test_a_model_with_a_table_of_words(home):
    """Up to tf_keras the table is among the model's weights, and is no variable."""
    layers = home.keras.layers
    if home.mode == "graph" or not hasattr(layers, "StringLookup"):
        skips.keras_lacks("TF 2.6 and newer, in eager mode")
    words, y = np.array([["a"], ["b"], ["c"], ["a"]] * 3), np.arange(12, dtype="float32")[:, None]
    ends = []
    for steps in (1, 3):
        inputs = layers.Input((1,), dtype="string")
        lookup = layers.StringLookup(output_mode="one_hot")
        lookup.adapt(words)
        model = home.keras.Model(inputs, layers.Dense(1, kernel_initializer="zeros")(lookup(inputs)))
        model.compile(legacyga.wrap(home.bare_sgd(lr=0.1), steps), "mse")
        callback = legacyga.GradientAccumulationCallback()
        model.fit(home.tf.constant(words), y, batch_size=12 // steps, shuffle=False, verbose=0, callbacks=[callback])
        ends.append(np.concatenate([each.ravel() for each in model.get_weights()[-2:]]))
    assert abs(ends[0]).max() > 0.1
    np.testing.assert_allclose(ends[1], ends[0], atol=4e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_numbers_for_each_sample_that_a_layer_adds(home, reduction):
    """As keras.io's CTC layer. Keras adds their gradients up: so must a window, and one that takes the mean says so."""
    if home.mode == "graph" or home.tf_version < (2, 4):
        skips.senseless("layers of TF 2.4 and newer, in eager mode")

    class Adding(home.keras.layers.Layer):
        def call(self, x):
            self.add_loss(home.tf.reduce_sum(home.tf.square(x), -1))
            return x

    ends, x = [], np.random.RandomState(5).randn(12, 3).astype("float32")
    for steps in (1, 3):
        inputs = home.keras.layers.Input((3,))
        outputs = Adding()(home.keras.layers.Dense(2, kernel_initializer="ones")(inputs))
        model = home.keras.Model(inputs, outputs)
        model.compile(legacyga.wrap(home.bare_sgd(lr=0.01), steps, reduction))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            callback = legacyga.GradientAccumulationCallback()
            model.fit(x, None, batch_size=12 // steps, shuffle=False, verbose=0, callbacks=[callback])
        ends.append(model.get_weights()[0])
    said = [each for each in caught if "The add_loss of " in str(each.message)]
    assert len(said) == (reduction == "mean")
    moved = ends[0] - 1.0
    assert abs(moved).max() > 0.1
    np.testing.assert_allclose((ends[1] - 1.0) * (3.0 if reduction == "mean" else 1.0), moved, atol=4e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("of_loss", ["sum", slow("none")])
def test_sums_that_a_loss_takes(home, of_loss, reduction):
    """Keras adds the samples up: so must a window, and one that takes the mean says so."""
    if home.mode == "graph" or home.tf_version < (2, 4):
        skips.senseless("Keras's train_step of TF 2.4 and newer, in eager mode")
    ends, x = [], np.random.RandomState(6).randn(12, 3).astype("float32")
    for steps in (1, 3):
        inputs = home.keras.layers.Input((3,))
        model = home.keras.Model(inputs, home.keras.layers.Dense(2, kernel_initializer="ones")(inputs))
        loss = home.keras.losses.MeanSquaredError(reduction=of_loss)
        model.compile(legacyga.wrap(home.bare_sgd(lr=0.01), steps, reduction), loss)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            callback = legacyga.GradientAccumulationCallback()
            model.fit(x, x[:, :2], batch_size=12 // steps, shuffle=False, verbose=0, callbacks=[callback])
        ends.append(model.get_weights()[0])
    said = [each for each in caught if "adds up the losses" in str(each.message)]
    assert len(said) == (reduction == "mean")
    moved = ends[0] - 1.0
    assert abs(moved).max() > 0.1
    np.testing.assert_allclose((ends[1] - 1.0) * (3.0 if reduction == "mean" else 1.0), moved, atol=4e-6)


@pytest.mark.parametrize("place", [0, 1])
def test_a_compile_within_fit(home, place):
    """The new optimizer's windows are none of those that this fit began with."""
    if home.mode == "graph" or not hasattr(home.keras.Model, "make_train_function"):
        skips.keras_lacks("a training function that a callback can make anew")

    class Anew(home.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.compile(legacyga.MySGD(LR, steps_per_update=3, keras=home.keras), "mse", run_eagerly=True)
                self.model.make_train_function()

    model = model_with(home, 3, traced=False)
    callbacks = [Anew()]
    callbacks.insert(place, legacyga.GradientAccumulationCallback())
    with pytest.raises(ValueError, match="A callback has compiled the model anew within fit"):
        fit(home, model, callbacks, epochs=2)
    assert int(home.value(model.optimizer.iterations)) == 0


@pytest.mark.filterwarnings("ignore:All batches weigh alike")
def test_a_part_of_the_model_that_is_not_built(home):
    """As a head that is trained later. Keras 2 cannot list such a model's variables."""
    if home.mode == "graph" or not hasattr(home.keras.Model, "train_step"):
        skips.keras_lacks("a train_step")
    keras, tf = home.keras, home.tf

    class Own(keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.inner = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
            self.later = keras.Sequential([keras.layers.Dense(10)])

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.inner(x, training=True) - y))
            variables = self.inner.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return {"loss": loss}

    def end(optimizer, size, callbacks=()):
        model = Own()
        model.compile(optimizer=optimizer, run_eagerly=True)
        given = dict(batch_size=size, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
        model.fit(X[:12], Y[:12, :1], **given)
        return model.inner.get_weights()[0]

    try:
        large = end(home.bare_sgd(lr=LR), 12)
    except ValueError:
        skips.keras_lacks("fit, with its newer optimizers, of a model that is not built as a whole")
    assert abs(large).max() > 0.01
    # Each epoch ends in a window of 3 of 4 mini-steps.
    ended = end(legacyga.wrap(home.bare_sgd(lr=LR), 4), 4, [legacyga.GradientAccumulationCallback()])
    np.testing.assert_allclose(ended, large, atol=4e-6)
