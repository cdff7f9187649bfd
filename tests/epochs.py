"""fit over epochs of 4, 4, 4 and 2 samples, with a GradientAccumulationCallback, in a home and by the oracle."""

import numpy as np
import oracle

import legacyga

RANDOM = np.random.RandomState(3)
START = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
X = RANDOM.randn(14, 3).astype("float32")
Y = RANDOM.randn(14, 2).astype("float32")
BATCHES = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 14, 4)]
LR, MOMENTUM = 0.1, 0.9
NO_TRAIN_STEP = "TF 2.0 and 2.1: Keras has no train_step that could count the samples of a batch"


def expected(home, epochs, steps, partial_window, batches=BATCHES, initial_epoch=0, weighs=True):
    """[(the weights after an epoch, the updates made)] by the oracle.

    Args:
        steps: function of (epoch, updates made before): the K of a window that begins there.
        partial_window: as the callback's.
        batches: one epoch's.
        weighs: whether a batch weighs as much as it has samples, where these can be counted.
    """
    sgd = oracle.SGD(LR, MOMENTUM)
    accumulated, weights, history = oracle.Accumulated(sgd, None), oracle.double(START), []
    for epoch in range(initial_epoch, initial_epoch + epochs):
        for x, y in batches:
            if not accumulated.windows:
                accumulated.steps = steps(epoch, sgd.iterations)
            size = len(x) if weighs and counts(home) else None
            weights = accumulated.mini_step(weights, oracle.gradients(weights, x, y), size=size)
        if partial_window == "flush":
            weights = accumulated.flush(weights)
        if partial_window != "carry":
            accumulated.windows.clear()
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
        weights = []

        def on_epoch_end(self, epoch, logs=None):
            self.weights.append(self.model.get_weights())

    return Recorder()


def fit(home, model, callbacks, epochs=3, x=X, y=Y, batch_size=4, **kwargs):
    """fit without shuffling; the weights after each epoch, and the History's dict."""
    record = recorder(home)
    kwargs.setdefault("verbose", 0)
    if y is not None:
        kwargs.update(y=y, batch_size=batch_size)
    history = model.fit(x, epochs=epochs, shuffle=False, callbacks=callbacks + [record], **kwargs)
    return record.weights, history.history


# Of the logs; the others are losses and metrics.
COUNTS = ("updates", "gradient_accumulation_steps", "effective_batch_size")


def assert_as_expected(weights, logs, wanted):
    assert logs["updates"] == [updates for _, updates in wanted]
    assert all(isinstance(value, int) for name in logs for value in logs[name] if name in COUNTS)
    for now, (then, _) in zip(weights, wanted):
        assert_close(now, then)
    assert len(weights) == len(wanted)


def counts(home):
    """Whether samples are counted: in graph mode always, in eager mode by the callback."""
    return home.mode == "graph" or home.tf_version >= (2, 2)


def assert_close(weights, wanted):
    assert len(weights) == len(wanted)
    for a, b in zip(weights, wanted):
        np.testing.assert_allclose(a, b, rtol=0, atol=4e-6)


def stopper(home, error=None):
    """A callback that ends training after the second batch of an epoch."""

    class Stopper(home.keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            if batch == 1:
                if error:
                    raise error
                self.model.stop_training = True

    return Stopper()
