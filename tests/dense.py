"""Dense networks and their data, trained in a home and by the oracle: what the tests of wrap's ways have in common."""

import re

import numpy as np
import oracle
from homes import generation_of

RANDOM = np.random.RandomState(23)
RATE = 0.03
BATCH = 4
SHAPES = ((5, 4), (4,), (4, 3), (3,))
START = [RANDOM.randn(*shape).astype("float32") for shape in SHAPES]
BATCHES = [(RANDOM.randn(BATCH, 5).astype("float32"), RANDOM.randn(BATCH, 3).astype("float32")) for _ in range(12)]


def make(home, cls, rate=RATE, **kwargs):
    """An optimizer of a stock class, or of a subclass of one."""
    if "Adam" in [each.__name__ for each in cls.__mro__]:
        # Keras 2.0 has another one by itself.
        kwargs.setdefault("epsilon", 1e-7)
    kwargs["lr" if generation_of(cls) == "v1" else "learning_rate"] = rate
    return cls(**kwargs)


def trained(batches, steps, optimizer=None, start=START, trainable=range(4)):
    """START after `batches`, in windows of `steps`; the weights at these places train."""

    def gradients(weights, x, y):
        return [each * (place in trainable) for place, each in enumerate(oracle.gradients(weights, x, y))]

    return oracle.train(oracle.double(start), batches, steps, optimizer or oracle.Adam(RATE), gradients)[-1]


def gradients_by_hand(number):
    random = np.random.RandomState(5)
    return [[random.randn(*shape).astype("float32") for shape in SHAPES] for _ in range(number)]


def applied(optimizer, fed, steps, start=START):
    fed = [(each, None) for each in fed]
    return oracle.train(oracle.double(start), fed, steps, optimizer, lambda weights, given, _: given)[-1]


def assert_close(weights, wanted):
    assert len(weights) == len(wanted)
    for now, expected in zip(weights, wanted):
        assert np.max(np.abs(now - expected) / np.maximum(1.0, np.abs(expected))) <= 4e-6


def assert_bits(weights, wanted):
    assert len(weights) == len(wanted)
    for now, expected in zip(weights, wanted):
        np.testing.assert_array_equal(now, expected)


def compiled(home, optimizer, start=START, **kwargs):
    model = home.network(start)
    model.compile(optimizer=optimizer, loss="mse", **kwargs)
    return model


def train(model, batches):
    for x, y in batches:
        model.train_on_batch(x, y)


def joined(batches):
    return tuple(np.concatenate(each) for each in zip(*batches))


def fit(model, batches, batch_size=BATCH):
    x, y = joined(batches)
    model.fit(x, y, batch_size=batch_size, epochs=1, shuffle=False, verbose=0)


def error_of(function, *args):
    """What `function` raises, as (type, message); None if it does not."""
    try:
        function(*args)
    except Exception as error:
        first = error
        # AutoGraph raises an error anew for each function of the way that it has rewritten, in types of its own.
        while hasattr(first.__context__, "ag_error_metadata"):
            first = first.__context__
        return type(first), str(error)
    return None


NO_TEXT = "numpy() is only available when eager execution is enabled."


def assert_alike_errors(ours, bare):
    """Errors as of `error_of`. Keras 3.10 to 3.12 fail at the text of theirs within a function."""
    assert ours is not None and bare is not None
    if bare[1] == NO_TEXT:
        bare = ValueError, bare[1]
    assert ours[0] is bare[0], (ours, bare)


def without_numbers(message):
    """A message without what differs from one variable to the next."""
    return re.sub(r"_\d+|0x[0-9a-f]+", "", message).replace("Accumulating", "")


def refuses_new_variables(cls):
    """Whether optimizers of this class train the variables that they were built with and no others."""
    return generation_of(cls) in ("v3", "keras3")
