"""legacyga.train_step: epochs of 4, 4, 4 and 2 samples against the home's own large batches, and against NumPy."""

import numpy as np
import oracle
import pytest
import skips
from slow import slow, slow_but

import legacyga
from legacyga.slices import batches

RANDOM = np.random.RandomState(4)
X = RANDOM.randn(14, 3).astype("float32")
OTHER = RANDOM.randn(14, 2).astype("float32")
Y = RANDOM.randn(14, 2).astype("float32")
LABELS = RANDOM.randint(0, 2, (14, 1))
# The smaller batch is of other samples than the rest: weighting all batches alike shows.
X[12:] *= 3
WEIGHTS = RANDOM.rand(14).astype("float32") + 0.25
BATCH, EPOCHS = 4, 3
START = [(0.5 * RANDOM.randn(*shape)).astype("float32") for shape in ((3, 5), (5,), (5, 2), (2,))]


def trained_by_train_step(home):
    if not hasattr(home.keras.models.Model, "train_step") or home.mode == "graph":
        skips.keras_lacks("Keras calls train_step from TF 2.2 on, in eager mode")


def classes(home):
    """keras.Model, and a subclass that a user would write."""
    Model = home.keras.models.Model

    class Weighted(Model):
        def train_step(self, data):
            return legacyga.train_step(self, data)

    return Model, Weighted


def plain(home, base, **layer):
    layers = home.keras.layers
    inputs = home.keras.Input((3,))
    hidden = layers.Dense(5, activation="tanh", **layer)(inputs)
    model = base(inputs, layers.Dense(2)(hidden))
    model.set_weights(START)
    return model, dict(loss="mse", metrics=["mae"])


def regularized(home, base):
    regularizers = home.keras.regularizers
    # Before Keras 3.14 that of what a layer gives is no mean over the samples.
    of_what_it_gives = None if home.is_keras3_before(3, 14) else regularizers.l2(0.2)
    return plain(home, base, kernel_regularizer=regularizers.l2(0.3), activity_regularizer=of_what_it_gives)


def classifier(home, base):
    model, _ = plain(home, base)
    loss = home.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, dict(loss=loss, metrics=["accuracy"])


def two_outputs(home, base):
    """Inputs and targets by name; of the second input nothing but its size is like the first's."""
    layers, random = home.keras.layers, np.random.RandomState(6)
    inputs = {name: home.keras.Input((size,), name=name) for name, size in (("left", 3), ("right", 2))}
    hidden = layers.Concatenate()([inputs["left"], inputs["right"]])
    hidden = layers.Dense(4, activation="tanh", kernel_regularizer=home.keras.regularizers.l2(0.1))(hidden)
    outputs = [layers.Dense(2, name="value")(hidden), layers.Dense(2, activation="softmax", name="kind")(hidden)]
    model = base([inputs["left"], inputs["right"]], outputs)
    model.set_weights([(0.5 * random.randn(*weight.shape)).astype("float32") for weight in model.get_weights()])
    return model, dict(
        loss={"value": "mae", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"value": 0.7, "kind": 1.6},
        metrics={"value": ["mse"], "kind": ["accuracy"]},
    )


TWO = dict(x={"left": X, "right": OTHER}, y={"value": Y, "kind": LABELS})
CASES = {
    "plain": (plain, dict(x=X, y=Y)),
    "sample_weight": (plain, dict(x=X, y=Y, sample_weight=WEIGHTS)),
    "class_weight": (classifier, dict(x=X, y=LABELS, class_weight={0: 0.5, 1: 3.0})),
    "regularizers": (regularized, dict(x=X, y=Y)),
    "two outputs": (two_outputs, TWO),
}


def sgd(home):
    return home.keras.optimizers.SGD(0.05, momentum=0.9)


def fit(home, make, data, optimizer, batch, flushed=None, **kwargs):
    """Train a new model: the weights before and after, and what `fit` reports of the last epoch."""
    model, compiled = make
    model.compile(optimizer, **dict(compiled, **kwargs))
    start = model.get_weights()
    callbacks = []
    if flushed is not None:
        callbacks = [home.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: legacyga.flush(flushed))]
    history = model.fit(batch_size=batch, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks, **data)
    return start, model.get_weights(), {name: values[-1] for name, values in history.history.items()}


def off(start, weights, wanted):
    """The largest distance of two lists of weights, relative to the way that the wanted ones went."""
    assert len(start) == len(weights) == len(wanted)
    way = oracle.farthest(wanted, start)
    assert way > 0.05
    return oracle.farthest(weights, wanted) / way


def assert_reports(home, reported, wanted):
    assert set(reported) == set(wanted) and "loss" in wanted
    for name in wanted:
        if home.is_keras3 and name.endswith("_loss"):
            # The losses of single outputs are, in Keras 3's own train_step, means over batches, not over samples.
            continue
        assert abs(reported[name] - wanted[name]) <= 4e-6 * max(1, abs(wanted[name])), (name, reported, wanted)


@pytest.mark.capability("train_step")
@pytest.mark.parametrize("name", slow_but(["class_weight", "plain", "sample_weight"], sorted(CASES)))
@pytest.mark.parametrize("steps", [slow(2), 4])
def test_equals_the_large_batch(home, name, steps):
    """Weights, loss and metrics of `fit`, with a last window that is not full, or whose batches are unequal."""
    trained_by_train_step(home)
    home.reset()
    make, data = CASES[name]
    Model, Weighted = classes(home)
    start, wanted, logs = fit(home, make(home, Model), data, sgd(home), steps * BATCH)
    optimizer = legacyga.wrap(sgd(home), steps)
    _, weights, reported = fit(home, make(home, Weighted), data, optimizer, BATCH, flushed=optimizer)
    assert off(start, weights, wanted) <= 4e-6
    assert_reports(home, reported, logs)
    assert int(home.value(optimizer.iterations)) == EPOCHS * (4 // steps)


@pytest.mark.capability("R2 weights")
@pytest.mark.parametrize("steps", (slow(2), 3))
def test_equals_numpy(home, steps):
    """MySGD, windows of 4+4, 4+2 samples and of 4+4+4, 2; and plain `fit` on the same is elsewhere."""
    trained_by_train_step(home)
    home.reset()
    Model, Weighted = classes(home)
    exact, plainest = oracle.SGD(0.05, momentum=0.9), oracle.SGD(0.05, momentum=0.9)
    wanted = unweighted = [weight.astype("float64") for weight in START]
    for _ in range(EPOCHS):
        for i in range(0, 14, steps * BATCH):
            x, y = [v[i : i + steps * BATCH].astype("float64") for v in (X, Y)]
            wanted = exact.update(wanted, oracle.gradients(wanted, x, y))
            each = [oracle.gradients(unweighted, x[j : j + BATCH], y[j : j + BATCH]) for j in range(0, len(x), BATCH)]
            unweighted = plainest.update(unweighted, [np.mean(g, axis=0) for g in zip(*each)])
    for cls, expected in ((Weighted, wanted), (Model, unweighted)):
        optimizer = legacyga.MySGD(0.05, momentum=0.9, steps_per_update=steps, keras=home.keras)
        _, weights, _ = fit(home, plain(home, cls), dict(x=X, y=Y), optimizer, BATCH, flushed=optimizer)
        assert off(START, weights, expected) <= 4e-6
    assert steps == 3 or off(START, unweighted, wanted) > 1e-2


@pytest.mark.capability("train_step")
def test_one_mini_step_a_window(home):
    """K = 1 is the bare optimizer, bit for bit, weighted or not."""
    trained_by_train_step(home)
    home.reset()
    Model, Weighted = classes(home)
    _, wanted, logs = fit(home, plain(home, Model), dict(x=X, y=Y), sgd(home), BATCH)
    _, weights, reported = fit(home, plain(home, Weighted), dict(x=X, y=Y), legacyga.wrap(sgd(home), 1), BATCH)
    for weight, bare in zip(weights, wanted):
        np.testing.assert_array_equal(weight, bare)
    assert reported == logs


@pytest.mark.capability("train_step")
def test_in_a_loss_scale_optimizer(home):
    """Ours inside of it is found, and the scale goes out of the gradients."""
    trained_by_train_step(home)
    home.reset()
    Model, Weighted = classes(home)
    optimizer = legacyga.wrap(sgd(home), 4)
    precision = home.keras.mixed_precision
    if home.is_keras3:
        scaled = precision.LossScaleOptimizer(optimizer, initial_scale=8.0)
    elif hasattr(precision, "LossScaleOptimizer"):
        scaled = precision.LossScaleOptimizer(optimizer, dynamic=False, initial_scale=8.0)
    else:
        scaled = precision.experimental.LossScaleOptimizer(optimizer, 8.0)
    data = dict(x=X, y=Y)
    start, wanted, _ = fit(home, plain(home, Model), data, sgd(home), 14)
    _, weights, _ = fit(home, plain(home, Weighted), data, scaled, BATCH, flushed=optimizer)
    assert off(start, weights, wanted) <= 4e-6


@pytest.mark.capability("train_step")
def test_a_subclass_of_two_that_override(home):
    """Run step by step, in a model without inputs of its own, whose train_step is one more override down."""
    trained_by_train_step(home)
    home.reset()
    Model, Weighted = classes(home)
    layers = home.keras.layers

    def subclass_of(base):
        class Network(base):
            def __init__(self):
                super(Network, self).__init__()
                self.first, self.second = layers.Dense(5, activation="tanh"), layers.Dense(2)

            def call(self, inputs):
                return self.second(self.first(inputs))

            def train_step(self, data):
                return super(Network, self).train_step(data)

        model = Network()
        model(X)
        model.set_weights(START)
        return model, dict(loss="mse")

    data = dict(x=X, y=Y)
    _, wanted, _ = fit(home, subclass_of(Model), data, sgd(home), 14)
    optimizer = legacyga.wrap(sgd(home), 4)
    _, weights, _ = fit(home, subclass_of(Weighted), data, optimizer, BATCH, flushed=optimizer, run_eagerly=True)
    assert off(START, weights, wanted) <= 4e-6


@pytest.mark.capability("R2 weights")
def test_a_weight_of_the_users(home):
    """Batches that all weigh the same are plain fit; with a loss that divides by the weights, their sum is right."""
    trained_by_train_step(home)
    home.reset()
    Model, has_weighted_means = home.keras.models.Model, home.is_keras3 and not home.is_keras3_before(3, 7)

    class Alike(Model):
        def train_step(self, data):
            return legacyga.train_step(self, data, weight=3.0)

    class ByWeights(Model):
        def train_step(self, data):
            return legacyga.train_step(self, data, weight=home.tf.reduce_sum(data[2]))

    def mean_of_the_weights(base):
        model, _ = plain(home, base)
        if has_weighted_means:
            return model, dict(loss=home.keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
        # Such a loss in the others: the weights are in the targets, and it is one number a batch.
        tf = home.tf

        def loss(y, predicted):
            each = tf.reduce_mean(tf.square(predicted - y[:, :2]), axis=-1)
            return tf.reduce_sum(each * y[:, 2]) / tf.reduce_sum(y[:, 2])

        return model, dict(loss=loss)

    optimizers = [legacyga.wrap(sgd(home), 4) for _ in range(3)]
    _, wanted, _ = fit(home, plain(home, Model), dict(x=X, y=Y), optimizers[0], BATCH, flushed=optimizers[0])
    _, weights, _ = fit(home, plain(home, Alike), dict(x=X, y=Y), optimizers[1], BATCH, flushed=optimizers[1])
    assert off(START, weights, wanted) <= 4e-6

    data = dict(x=X, y=Y, sample_weight=WEIGHTS)
    if not has_weighted_means:
        data = dict(x=X, y=np.concatenate([Y, WEIGHTS[:, None]], axis=1))
        ByWeights.train_step = lambda self, data: legacyga.train_step(
            self, data, weight=home.tf.reduce_sum(data[1][:, 2])
        )
    _, wanted, _ = fit(home, mean_of_the_weights(Model), data, sgd(home), 14)
    _, weights, _ = fit(home, mean_of_the_weights(ByWeights), data, optimizers[2], BATCH, flushed=optimizers[2])
    assert off(START, weights, wanted) <= 4e-6


@pytest.mark.capability("R2 weights")
def test_samples_of_any_input(home):
    """The first dimension of the first target, else input: dense, ragged or sparse, however it is nested."""
    trained_by_train_step(home)
    tf = home.tf
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0], []])
    sparse = tf.sparse.from_dense(np.eye(5, 4))
    for data, samples in (
        (X, 14),
        ((X, Y), 14),
        (({"b": X[:4], "a": X[:4, None]}, Y[:4], WEIGHTS[:4]), 4),
        (((None, [X[:2]]), Y[:2]), 2),
        ((ragged, Y[:3]), 3),
        ((sparse, Y[:5]), 5),
        ((sparse, None), 5),
        ((X, {"b": np.float32(1.0), "c": ragged}), 3),
    ):
        assert int(batches.samples_in(tf, data)) == samples


@pytest.mark.capability("errors")
def test_what_cannot_be_trained(home):
    home.reset()
    model = home.network(START)
    with pytest.raises(ValueError, match="optimizer accumulates. Received: .* Compile it with legacyga.wrap"):
        legacyga.train_step(model, (X, Y))
    model.compile(loss="mse", optimizer="sgd")
    with pytest.raises(ValueError, match="with the optimizer .*SGD.*Compile it with legacyga.wrap"):
        legacyga.train_step(model, (X, Y))
    if hasattr(home.keras.models.Model, "train_step") and home.mode == "eager":
        return
    model.compile(loss="mse", optimizer=legacyga.MySGD(0.1, keras=home.keras))
    with pytest.raises(ValueError, match="from TensorFlow 2.2 on, in eager mode. Received.*on batches of one size"):
        legacyga.train_step(model, (X, Y))


@pytest.mark.capability("train_step")
def test_a_train_step_that_comes_after_a_fit_with_the_callback(home):
    """The counting one that stays in the model gives way to one that its class is given, or that a new class has."""
    trained_by_train_step(home)

    class First(home.keras.Model):
        pass

    called = []

    def own(self, data):
        called.append(type(self).__name__)
        return super(First, self).train_step(data)

    class Second(First):
        train_step = own

    inputs = home.keras.layers.Input((3,))
    model = First(inputs, home.keras.layers.Dense(2)(inputs))
    optimizer = legacyga.wrap(home.keras.optimizers.SGD(0.1), 2)
    for cls, wanted in ((First, []), (Second, ["Second"])):
        model.__class__ = cls
        model.compile(optimizer, "mse", run_eagerly=True)
        model.fit(X[:4], Y[:4], batch_size=4, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])
        assert called == wanted
    First.train_step = own
    model.__class__ = First
    model.fit(X[:4], Y[:4], batch_size=4, verbose=0)
    assert called == ["Second", "First"]
