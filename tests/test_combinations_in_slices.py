"""Slices of programs that join two things: each of them has a test of its own, the two together have one here."""

import numpy as np
import oracle
import pytest
import skips
import test_micro_batch_auto
import test_recompute
from kinds import RATE
from slow import slow
from test_micro_batch import start_anew  # noqa: F401
from test_recompute import BATCH, LABELS, SIZE, X, check, embedded, sequences, sgd, start, supervised_contrastive

import legacyga

pytestmark = pytest.mark.capability("micro_batch")
RANDOM = np.random.RandomState(23)
WEIGHTS = np.linspace(0.1, 2, 21).astype("float32")


@pytest.mark.parametrize("recompute", [None, slow(True)])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_masks_of_several_outputs(home, recompute, weighted):
    def make():
        model, x, y = sequences(home, 2, 2)
        model.compile(sgd(home), ["mse"] * 2, loss_weights=[0.3, 2.0])
        return model, x, y

    more = {}
    if weighted:
        # Keras 3 multiplies them with a mask of (samples, steps).
        weights = WEIGHTS[:, None] if home.is_keras3 else WEIGHTS
        more = dict(sample_weight=[weights, weights[::-1].copy()])
    # Keras divides by the unmasked steps, or by all of them: then the loss is a mean, and each slice is computed once.
    check(home, make, recompute=recompute, twice=None, **more)


@pytest.mark.parametrize("recompute", [None, slow(True)])
def test_a_dictionary_within_a_dictionary(home, recompute):
    if home.mode == "graph" or home.tf_version < (2, 4):
        skips.keras_lacks("nested data in graph mode")
    tf, layers = home.tf, home.keras.layers

    class Towers(home.keras.Model):
        def __init__(self):
            super(Towers, self).__init__()
            self.one, self.two = layers.Dense(2), layers.Dense(2)

        def call(self, inputs):
            return tf.concat([self.one(inputs["image"]["pixels"]), self.two(inputs["words"][0])], -1)

    def make():
        model = Towers()
        model({"image": {"pixels": X[:2]}, "words": (X[:2],)})
        start(model)
        model.compile(sgd(home), lambda y_true, y_pred: supervised_contrastive(tf, y_true, y_pred))
        data = tf.data.Dataset.from_tensor_slices(({"image": {"pixels": X}, "words": (X[::-1],)}, LABELS))
        return model, data.batch(BATCH), None

    check(home, make, recompute=recompute, batch_size=None)


@pytest.mark.parametrize("recompute", [None, True])
def test_a_loss_that_is_not_reduced(home, recompute):
    """Batches of one size."""
    test_recompute.has_objects(home)

    def make():
        model = embedded(home, penalty=None)
        model.compile(sgd(home), home.keras.losses.MeanSquaredError(reduction="none"))
        return model, X[:16], X[:16, :2]

    if not test_recompute.keras_trains(home, make):
        skips.keras_lacks("a loss that is not reduced")
    check(home, make, recompute=recompute, twice=None)


@pytest.mark.parametrize("recompute", [None, slow(True)])
def test_a_subclassed_model(home, recompute):
    if not hasattr(home.keras, "Model"):
        skips.keras_lacks("classes of models")
    layers, tf = home.keras.layers, home.tf

    class Own(home.keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.one, self.two = layers.Dense(4, activation="tanh"), layers.Dense(4)

        def call(self, inputs):
            return self.two(self.one(inputs))

    def make():
        model = Own()
        model.compile(sgd(home), lambda y_true, y_pred: supervised_contrastive(tf, y_true, y_pred))
        # The first batch builds it, with a gradient of zeros.
        model.train_on_batch(X[:1], LABELS[:1])
        return start(model), X, LABELS

    if not test_recompute.keras_trains(home, make):
        skips.keras_lacks("such a class")
    check(home, make, recompute=recompute)


RANDOM_LAYERS = {
    "recurrent": lambda layers: [layers.Reshape((2, 2)), layers.LSTM(4, dropout=0.3, recurrent_dropout=0.4, seed=3)],
    "noise": lambda layers: [layers.GaussianNoise(0.5, seed=3), layers.GaussianDropout(0.5, seed=4)],
    "alpha": lambda layers: [layers.AlphaDropout(0.5, seed=3)],
    "spatial": lambda layers: [layers.Reshape((2, 2)), layers.SpatialDropout1D(0.5, seed=3), layers.Flatten()],
}


@pytest.mark.parametrize("name", sorted(RANDOM_LAYERS))
def test_layers_that_draw(home, name):
    """Keras 3's put their states back: those of slices by hand."""
    if not home.is_keras3:
        skips.keras_lacks("a state of random numbers in each layer")
    tf = home.tf

    def loss(y_true, y_pred):
        return supervised_contrastive(tf, y_true, y_pred)

    def make():
        home.reset()
        model = embedded(home, 4, RANDOM_LAYERS[name](home.keras.layers))
        model.compile(home.bare_sgd(lr=RATE), loss)
        return model

    sliced, wanted = make(), make()
    legacyga.micro_batch(sliced, SIZE, recompute=True)
    for _ in range(2):
        sliced.train_on_batch(X[:8], LABELS[:8])
        test_recompute.by_hand(home, wanted, loss, X[:8], LABELS[:8])
    for now, then in zip(sliced.variables, wanted.variables):
        now, then = [np.array(home.value(each)) for each in (now, then)]
        assert np.abs(now.astype("float64") - then).max() <= 4e-6


def test_mixed_precision_in_a_train_step(home):
    """That scales the loss and its gradients by hand, as the guide of Keras 2 has it."""
    if home.mode == "graph" or home.is_keras3 or home.tf_version < (2, 4):
        skips.keras_lacks("get_scaled_loss")
    tf, keras = home.tf, home.keras
    policy = keras.mixed_precision.set_global_policy

    class Own(keras.Model):
        def train_step(self, data):
            x, y = data[:2]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(supervised_contrastive(tf, y, tf.cast(self(x, training=True), "float32")))
                scaled = self.optimizer.get_scaled_loss(loss)
            gradients = self.optimizer.get_unscaled_gradients(tape.gradient(scaled, self.trainable_variables))
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    def make():
        policy("mixed_float16")
        try:
            network = embedded(home, 4)
            model = Own(network.inputs, network.outputs)
        finally:
            # Not "float32": later tests set floatx.
            policy(None)
        model.compile(keras.mixed_precision.LossScaleOptimizer(home.bare_sgd(lr=RATE)))
        return model, X, LABELS

    test_recompute.check_loosely(home, make)


@pytest.mark.parametrize("recompute", [slow(None), True])
def test_train_step_in_windows(home, recompute):
    """Two batches of 8 and one of 5 weigh 8 and 8 and 5, each in slices whose loss joins samples."""
    if home.mode == "graph" or home.tf_version < (2, 4):
        skips.keras_lacks("train_step in graph mode")
    tf = home.tf

    class Weighted(home.keras.Model):
        size = None

        def train_step(self, data):
            return legacyga.train_step(self, data, micro_batch_size=self.size, recompute=recompute)

    ends = []
    for size in (None, SIZE):
        network = embedded(home, 4)
        model = Weighted(network.inputs, network.outputs)
        model.size = size
        optimizer = legacyga.MySGD(RATE, 0.9, steps_per_update=3, keras=home.keras)
        model.compile(optimizer, lambda y_true, y_pred: supervised_contrastive(tf, y_true, y_pred))
        history = model.fit(X, LABELS, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
        ends.append(model.get_weights() + [np.array(history["loss"])])
        assert home.value(optimizer.iterations) == 2
    assert oracle.farthest(ends[0][:-1], embedded(home, 4).get_weights()) > 1e-3
    assert oracle.farthest(*ends) <= 4e-6


def test_auto_for_the_second_time(home):
    """The size that was found is where it begins."""
    layers, sizes = home.keras.layers, []
    inputs = layers.Input((3,))
    failing = test_micro_batch_auto.layer_that_fails(home, lambda samples: samples > 3)
    model = home.keras.models.Model(inputs, layers.Dense(2)(failing(inputs)))
    model.compile(sgd(home), "mse", **({"jit_compile": False} if home.is_keras3 else {}))
    for _ in range(2):
        legacyga.micro_batch(model, "auto")
        model.fit(X, X[:, :2], batch_size=BATCH, epochs=1, verbose=0)
        sizes.append(legacyga.micro_batch_size(model))
    assert sizes == [2, 2]
