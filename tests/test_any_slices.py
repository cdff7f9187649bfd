"""Whatever model, losses, metrics and weights hypothesis thinks of, in slices: all as on whole batches. The long run:

LEGACYGA_EXAMPLES=1000 python -m pytest --more --home HOME --mode MODE test_any_slices.py
"""

import os

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from test_micro_batch import start_anew  # noqa: F401
from test_recompute import check, start

import legacyga

pytestmark = [pytest.mark.capability("micro_batch"), pytest.mark.long]
EXAMPLES = int(os.environ.get("LEGACYGA_EXAMPLES", 12))

# Keras's losses: {name: (the activation that an output needs, a function that makes targets of normal numbers)}.
STOCK = {
    "mse": (None, lambda y: y),
    "mae": (None, lambda y: y),
    "hinge": (None, np.sign),
    "poisson": ("softplus", np.exp),
    "binary_crossentropy": ("sigmoid", lambda y: y > 0),
    "categorical_crossentropy": ("softmax", lambda y: y == y.max(-1, keepdims=True)),
    "sparse_categorical_crossentropy": ("softmax", lambda y: y.argmax(-1)[..., None]),
}


class Own(object):
    """Losses and metrics of a user's own, by name."""

    def __init__(self, tf):
        self.tf = tf

    def rows(self, y_true, y_pred):
        return self.tf.reduce_mean(self.tf.abs(y_true - y_pred) + self.tf.square(y_pred), -1)

    def number(self, y_true, y_pred):
        return self.tf.reduce_mean(self.tf.square(y_true - y_pred))

    def total(self, y_true, y_pred):
        return 0.05 * self.tf.reduce_sum(self.tf.square(y_true - y_pred))

    def root(self, y_true, y_pred):
        return self.tf.sqrt(1e-3 + self.number(y_true, y_pred))

    def of_positives(self, y_true, y_pred):
        positive = self.tf.cast(y_true > 0.5, y_pred.dtype)
        errors = self.tf.reduce_sum(positive * self.tf.square(y_true - y_pred))
        return errors / self.tf.maximum(1.0, self.tf.reduce_sum(positive))

    def largest(self, y_true, y_pred):
        return 0.1 * self.tf.reduce_max(self.tf.square(y_true - y_pred)) + self.tf.reduce_mean(self.tf.square(y_pred))

    def dice(self, y_true, y_pred):
        found, wanted = self.tf.sigmoid(y_pred), self.tf.cast(y_true > 0, y_pred.dtype)
        both, all_of_them = [self.tf.reduce_sum(each) for each in (found * wanted, found + wanted)]
        return 1 - (2 * both + 1) / (all_of_them + 1)

    def pairs(self, y_true, y_pred):
        """A softmax over the batch, of how much the outputs of two samples and their targets resemble each other."""
        tf = self.tf
        wanted, found = [tf.reshape(each, [tf.shape(each)[0], -1]) for each in (y_true, y_pred)]
        wanted, found = [tf.nn.l2_normalize(each, -1, epsilon=1e-3) for each in (wanted, found)]
        wanted, found = [tf.matmul(each, each, transpose_b=True) for each in (wanted, found)]
        return -tf.reduce_mean(tf.reduce_sum(tf.nn.softmax(wanted) * tf.nn.log_softmax(found), -1))

    def correlation(self, y_true, y_pred):
        tf = self.tf
        wanted, found = [each - tf.reduce_mean(each) for each in (y_true, y_pred)]
        squares = tf.reduce_sum(tf.square(wanted)) * tf.reduce_sum(tf.square(found))
        return 1 - tf.reduce_sum(wanted * found) / tf.sqrt(1e-3 + squares)


OWN = [name for name in vars(Own) if not name.startswith("_")]


class Program(object):
    """A model and its data, chosen by a `random.Random`; `said` is what was chosen."""

    def __init__(self, home, random):
        self.home, self.layers, self.own, self.said = home, home.keras.layers, Own(home.tf), []
        self._random, self._numbers = random, np.random.RandomState(7)
        self.samples, self.batch, self.size = self.choose(13, 17, 21), self.choose(5, 7, 8), self.choose(1, 2, 3, 4)
        self.input = self.choose("numbers", "words", "sequence", "image")
        self.network = self.choose(*NETWORKS[self.input])
        self.mask_zero = self.choose(True, False)
        self.hidden = [self.choose("dense", "twice", "sum", "penalty", "activity") for _ in range(self.choose(0, 1, 2))]
        self.heads = [self.head() for _ in range(self.choose(1, 1, 2, 3))]
        self.loss_weights = self.choose(None, [0.5, 2.0, 1.0][: len(self.heads)])
        self.metrics = self.choose(None, ["mae"], ["correlation"], ["mae", "largest"])
        self.weights = self.choose("none", "none", "random", "some 0")
        if any(len(shape) > 1 for shape, _, _, _ in self.heads):
            # Not all Kerases take a weight of a sample for a loss with several numbers for it.
            self.weights = "none"
        self.recompute = self.choose(None, None, True)
        self.compiled = {}
        if home.mode == "eager":
            self.compiled["run_eagerly"] = self.choose(False, False, True)
        self.optimizer = self.choose({}, {"clipnorm": 0.5}, {"nesterov": True}, {"steps_per_update": 2})

    def choose(self, *options):
        self.said.append(self._random.choice(options))
        return self.said[-1]

    def head(self):
        """(shape of the targets, loss, activation, targets) of an output."""
        # A sequence of words keeps its mask.
        shape = self.choose((3,), (1,), (5, 3) if self.network == "each word" else (4, 3))
        loss = self.choose(*sorted(STOCK) + OWN)
        activation, target = STOCK.get(loss, (None, lambda y: y))
        if loss in ("categorical_crossentropy", "sparse_categorical_crossentropy") and shape == (1,):
            loss, activation, target = ("binary_crossentropy",) + STOCK["binary_crossentropy"]
        y = self._numbers.randn(self.samples, *shape)
        return shape, loss, activation, target(y).astype("float32")

    def x(self):
        numbers = np.random.RandomState(9)
        if self.input == "words":
            words = numbers.randint(1, 7, (self.samples, 5))
            for row in words:
                row[numbers.randint(1, 6) :] = 0
            return words
        shape = {"numbers": (3,), "sequence": (4, 2), "image": (4, 4, 2)}[self.input]
        return numbers.randn(self.samples, *shape).astype("float32")

    def model(self):
        layers, x = self.layers, self.x()
        inputs = layers.Input(x.shape[1:])
        words = layers.Embedding(7, 3, mask_zero=self.mask_zero)(inputs) if self.input == "words" else inputs
        hidden = words if self.network == "each word" else NETWORKS[self.input][self.network](layers)(words)
        if len(hidden.shape) > 2 and self.network != "each word":
            hidden = layers.Flatten()(hidden)
        hidden = layers.Dense(4, activation="tanh")(hidden)
        for each in self.hidden:
            options = {"penalty": {"kernel_regularizer": "l2"}, "activity": {"activity_regularizer": "l2"}}
            layer = layers.Dense(4, activation="tanh", **options.get(each, {}))
            once = layer(hidden)
            hidden = layer(once) if each == "twice" else layers.add([hidden, once]) if each == "sum" else once
        outputs = []
        for shape, _, activation, _ in self.heads:
            if self.network == "each word" and len(shape) == 1:
                pooled = layers.Lambda(lambda each: each[:, 0], output_shape=(4,))(hidden)
                outputs.append(layers.Dense(shape[0], activation=activation)(pooled))
            elif len(shape) == 1 or self.network == "each word":
                outputs.append(layers.Dense(shape[-1], activation=activation)(hidden))
            else:
                reshaped = layers.Reshape(shape)(layers.Dense(shape[0] * shape[1])(hidden))
                outputs.append(layers.Activation(activation or "linear")(reshaped))
        return start(self.home.keras.models.Model(inputs, outputs if len(outputs) > 1 else outputs[0]))

    def make(self):
        model = self.model()
        losses = [getattr(self.own, loss, loss) for _, loss, _, _ in self.heads]
        metrics = self.metrics and [getattr(self.own, each, each) for each in self.metrics]
        if self.home.is_keras3 and metrics and len(losses) > 1:
            metrics = [metrics] * len(losses)
        optimizer = legacyga.MySGD(0.05, 0.9, keras=self.home.keras, **dict({"steps_per_update": 1}, **self.optimizer))
        one = len(losses) == 1
        model.compile(
            optimizer,
            losses[0] if one else losses,
            metrics=metrics,
            loss_weights=self.loss_weights,
            **self.compiled,
        )
        y = [target for _, _, _, target in self.heads]
        return model, self.x(), y[0] if one else y

    def sample_weights(self):
        if self.weights == "none":
            return None
        numbers = np.random.RandomState(5)
        weights = [numbers.rand(self.samples) * (numbers.rand(self.samples) > 0.3) for _ in self.heads]
        if self.weights == "random":
            weights = [each + 0.25 for each in weights]
        weights = [each.astype("float32") for each in weights]
        return weights if len(weights) > 1 else weights[0]


NETWORKS = {
    "numbers": {"dense": lambda layers: layers.Dense(4)},
    "words": {
        "each word": None,
        "LSTM": lambda layers: layers.LSTM(3),
        "GRU": lambda layers: layers.GRU(3),
        "mean": lambda layers: layers.GlobalAveragePooling1D(),
    },
    "sequence": {
        "LSTM": lambda layers: layers.LSTM(3),
        "both ways": lambda layers: layers.Bidirectional(layers.LSTM(2)),
        "convolution": lambda layers: layers.Conv1D(3, 2, activation="tanh"),
        "each step": lambda layers: layers.TimeDistributed(layers.Dense(2)),
    },
    "image": {
        "convolution": lambda layers: layers.Conv2D(3, 2, activation="tanh"),
        "separable": lambda layers: layers.SeparableConv2D(2, 2),
        "largest": lambda layers: layers.MaxPooling2D(),
    },
}


def test_any_slices(home):
    # Shrinking would train a hundred models more: the choices are told instead.
    phases = [each for each in hypothesis.Phase if each.name in ("explicit", "generate")]

    @hypothesis.settings(
        max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES < 1000, database=None, phases=phases
    )
    @hypothesis.given(st.randoms(use_true_random=False))
    def run(random):
        program = Program(home, random)
        hypothesis.note(str(program.said))
        arguments = dict(batch_size=program.batch, sample_weight=program.sample_weights())
        check(home, program.make, program.size, program.recompute, twice=None, moves=0, **arguments)

    run()
