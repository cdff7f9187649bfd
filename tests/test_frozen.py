"""Whose windows the callback ends: those of the variables that its model trains, and no others."""

import dense
import kinds
import numpy as np
import oracle
import pytest
import skips
import users
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("callback")

RANDOM = np.random.RandomState(83)
START = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
OTHER = [RANDOM.randn(*value.shape).astype("float32") for value in START]
X, Y = RANDOM.randn(20, 3).astype("float32"), RANDOM.randn(20, 2).astype("float32")
# Equal ones, so that it does not matter what weighs.
BATCHES = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 20, 4)]
RATE, K = 2.0**-4, 3


def pytest_generate_tests(metafunc):
    from conftest import home_of

    if "kind" in metafunc.fixturenames:
        found = [each for each in kinds.of(home_of(metafunc.config)) if each.cls is None or each.cls.__name__ == "SGD"]
        metafunc.parametrize("kind", kinds.params(found))


@pytest.fixture(autouse=True)
def fresh(home):
    if home.mode == "graph":
        home.reset(plain_session=True)


def make(kind):
    """Without momentum: what an optimizer keeps of it over a new compile is not the question here."""
    if kind.cls is None:
        return legacyga.MySGD(RATE, steps_per_update=K, keras=kind.home.keras)
    return legacyga.wrap(users.make(kind, kind.cls, RATE), K)


def compiled(home, optimizer, start=START):
    model = home.network(start)
    model.compile(optimizer=optimizer, loss="mse", **({"run_eagerly": True} if home.mode == "eager" else {}))
    return model


def fit(model, batches, partial_window, *callbacks):
    x, y = (np.concatenate(each) for each in zip(*batches))
    callbacks = [legacyga.GradientAccumulationCallback(partial_window=partial_window)] + list(callbacks)
    model.fit(x, y, batch_size=4, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)


def trained(weights, batches, which=(0, 1, 2, 3)):
    """float64 weights after updates in windows of K batches, the last of which may be smaller."""
    weights = [np.asarray(weight, "float64") for weight in weights]
    for i in range(0, len(batches), K):
        found = [oracle.gradients(weights, x.astype("float64"), y.astype("float64")) for x, y in batches[i : i + K]]
        means = [np.mean(each, axis=0) for each in zip(*found)]
        weights = [w - RATE * g if n in which else w for n, (w, g) in enumerate(zip(weights, means))]
    return weights


class InterruptionError(Exception):
    pass


def interruption(home, after):
    class Interrupting(home.keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            if batch == after - 1:
                raise InterruptionError()

        # The name that fit calls from TF 1.13 on; it calls one of the two.
        on_train_batch_end = on_batch_end

    return Interrupting()


def leave_open(home, model, how):
    """Four batches: an update, and a window with one mini-step that is left open."""
    if how == "carry":
        return fit(model, BATCHES[:4], "carry")
    with pytest.raises(InterruptionError):
        fit(model, BATCHES, "flush", interruption(home, 4))


@pytest.mark.long
@pytest.mark.parametrize("how, frozen", [("carry", 0), ("interrupted", 1)])
def test_a_layer_that_is_frozen_with_a_window_open(home, kind, how, frozen):
    model = compiled(home, make(kind))
    leave_open(home, model, how)
    assert int(home.value(model.optimizer.mini_step)) == 1
    half = model.get_weights()
    dense.assert_close(half, trained(START, BATCHES[:3]))
    model.layers[frozen].trainable = False
    model.compile(optimizer=model.optimizer, loss="mse", **({"run_eagerly": True} if home.mode == "eager" else {}))
    # A window of three and one of two, which the epoch's end flushes.
    fit(model, BATCHES, "flush")
    which = (2, 3) if frozen == 0 else (0, 1)
    now = model.get_weights()
    for i in range(4):
        if i not in which:
            np.testing.assert_array_equal(now[i], half[i])
    left = [np.asarray(value, "float64") for value in half]
    dense.assert_close(now, trained(left, BATCHES, which))


@pytest.mark.long
def test_a_layer_that_is_made_trainable_with_a_window_open(home, kind):
    """The first layer's window has not begun; the second's mini-step in the window of the second alone is not its."""
    if kind.generation in ("v3", "keras3"):
        skips.keras_lacks("optimizers of this generation train the variables that they were built with")
    model = home.network(START)
    model.layers[0].trainable = False
    model.compile(optimizer=make(kind), loss="mse", **({"run_eagerly": True} if home.mode == "eager" else {}))
    leave_open(home, model, "carry")
    half = model.get_weights()
    dense.assert_close(half, trained(START, BATCHES[:3], (2, 3)))
    model.layers[0].trainable = True
    model.compile(optimizer=model.optimizer, loss="mse", **({"run_eagerly": True} if home.mode == "eager" else {}))
    fit(model, BATCHES, "flush")
    dense.assert_close(model.get_weights(), trained(half, BATCHES))


@pytest.mark.parametrize("partial_window", ["flush", "drop"])
@pytest.mark.long
def test_two_models_of_one_optimizer(home, kind, partial_window):
    """The callback of one leaves the window of the other as it is, which goes on where it was."""
    optimizer = make(kind)
    first, second = home.network(START), home.network(OTHER)
    if kind.generation in ("v3", "keras3"):
        # They train the variables that they were built with, and no others.
        optimizer.build(first.trainable_variables + second.trainable_variables)
    for model in (first, second):
        model.compile(optimizer=optimizer, loss="mse", **({"run_eagerly": True} if home.mode == "eager" else {}))
    fit(first, BATCHES[:2], "carry")
    dense.assert_bits(first.get_weights(), START)
    fit(second, BATCHES, partial_window)
    dense.assert_bits(first.get_weights(), START)
    whole = BATCHES if partial_window == "flush" else BATCHES[:3]
    dense.assert_close(second.get_weights(), trained(OTHER, whole))
    half = second.get_weights()
    fit(first, BATCHES[2:4], "carry")
    dense.assert_close(first.get_weights(), trained(START, BATCHES[:3]))
    fit(first, BATCHES[4:], "flush")
    dense.assert_close(first.get_weights(), trained(START, BATCHES))
    dense.assert_bits(second.get_weights(), half)


@pytest.mark.parametrize("partial_window", [slow("flush"), "drop"])
def test_a_variable_that_the_model_does_not_know(home, kind, partial_window):
    """A train_step of the user's own trains it with the model's: it is in their window, and ends with them."""
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.keras_lacks("Keras calls train_step from TF 2.2 on, in eager mode")
    tf = home.tf
    extra = users.variables_of(home, kind, [np.float32([0.5, -0.25])])

    class WithShift(home.keras.models.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) + extra[0] - y))
            variables = self.trainable_variables + extra
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return {"loss": loss}

    plain = home.network(START)
    model = WithShift(plain.layers)
    model.build((None, 3))
    model.set_weights(START)
    optimizer = make(kind)
    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables + extra)
    model.compile(optimizer=optimizer, loss="mse", run_eagerly=True)
    fit(model, BATCHES, partial_window)
    # A shift of the last bias: the sum of the two is what the oracle's network has there, moved twice as fast.
    weights = [np.asarray(value, "float64") for value in START]
    shift = np.float64([0.5, -0.25])
    for window in (BATCHES[:3], BATCHES[3:]) if partial_window == "flush" else (BATCHES[:3],):
        shifted = weights[:3] + [weights[3] + shift]
        found = [oracle.gradients(shifted, x.astype("float64"), y.astype("float64")) for x, y in window]
        means = [np.mean(each, axis=0) for each in zip(*found)]
        weights = [weight - RATE * mean for weight, mean in zip(weights, means)]
        shift = shift - RATE * means[3]
    dense.assert_close(model.get_weights(), weights)
    dense.assert_close([home.value(extra[0])], [shift])
    assert int(home.value(optimizer.mini_step)) == 0


def test_a_layer_that_is_frozen_without_a_new_compile(home, kind):
    """Keras goes on training it, by the training function that it has."""
    model = home.network(START)
    model.compile(optimizer=make(kind), loss="mse")
    fit(model, BATCHES, "flush")
    model.layers[0].trainable = False
    for partial_window in ("carry", "flush"):
        fit(model, BATCHES, partial_window)
    # Carried, the window of the fourth and fifth goes on in the next epoch, which ends it with its first batch.
    wanted = trained(trained(START, BATCHES), BATCHES + BATCHES)
    dense.assert_close(model.get_weights(), wanted)
    assert int(home.value(model.optimizer.mini_step)) == 0


def train_step_only(home):
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.keras_lacks("Keras calls train_step from TF 2.2 on, in eager mode")


def gan(home, kind, freezes, in_a_dict):
    """A GAN, compiled, whose train_step sets the critic's `trainable` or leaves it alone.

    Its optimizers are attributes, or in one that is a dict.
    """
    tf, layers = home.tf, home.keras.layers

    class GAN(home.keras.models.Model):
        def __init__(self):
            super(GAN, self).__init__()
            self.generator = home.keras.models.Sequential([layers.Dense(3, input_shape=(3,))])
            self.critic = home.network(START)

        def call(self, x):
            return self.critic(self.generator(x))

        def loss_of(self, losses, variables, optimizer):
            with tf.GradientTape() as tape:
                loss = sum(tf.reduce_mean(tf.square(each)) for each in losses())
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return loss

        def train_step(self, data):
            x, y = data
            if freezes:
                self.critic.trainable = True
            variables = self.critic.trainable_variables
            critics, generators = optimizers_of(self)
            loss = self.loss_of(lambda: [self.critic(x) - y, self(x)], variables, critics)
            if freezes:
                self.critic.trainable = False
            self.loss_of(lambda: [self(x) - y], self.generator.trainable_variables, generators)
            return {"loss": loss}

    model = GAN()
    model(X[:1])
    model.generator.set_weights([np.eye(3, dtype="float32"), np.zeros(3, "float32")])
    made = {"critics": make(kind), "generators": make(kind)}
    for name, part in (("critics", model.critic), ("generators", model.generator)):
        if hasattr(made[name], "build"):
            made[name].build(part.trainable_variables)
    if in_a_dict:
        model.made = made
    else:
        model.critics, model.generators = made["critics"], made["generators"]
    return model


def optimizers_of(model):
    """Of the critic, and of the generator."""
    made = getattr(model, "made", None) or vars(model)
    return made["critics"], made["generators"]


@pytest.mark.parametrize("partial_window, in_a_dict", [("flush", False), ("drop", False), ("flush", True)])
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The model has 2 optimizers")
def test_a_gan_that_freezes_its_critic_on_its_way(home, kind, partial_window, in_a_dict):
    """To the bit as one that freezes nothing, and both parts make as many updates."""
    train_step_only(home)
    found = []
    for freezes in (False, True):
        model = gan(home, kind, freezes, in_a_dict)
        # Keras 3 would compile it by XLA, which has other roundings.
        model.compile(**({"jit_compile": False} if home.is_keras3 else {}))
        # A window, and two mini-steps; then one that is left open; then a window whose last mini-step leaves one again.
        fit(model, BATCHES, partial_window)
        with pytest.raises(InterruptionError):
            fit(model, BATCHES, partial_window, interruption(home, 1))
        fit(model, BATCHES[:3], partial_window)
        optimizers = optimizers_of(model)
        assert [int(home.value(each.mini_step)) for each in optimizers] == [0, 0]
        updates = {"flush": 4, "drop": 2}[partial_window]
        assert [int(home.value(each.iterations)) for each in optimizers] == [updates, updates]
        found.append(model.get_weights())
    dense.assert_bits(sorted(found[1], key=np.size), sorted(found[0], key=np.size))


@pytest.mark.parametrize("partial_window", [slow("flush"), "drop"])
def test_two_lists_of_variables(home, kind, partial_window):
    """As with `end_windows` or `drop_windows` by hand, which know no model."""
    train_step_only(home)
    tf = home.tf

    class Twice(home.keras.models.Sequential):
        def train_step(self, data):
            x, y = data
            for variables in (self.trainable_variables, self.layers[1].trainable_variables):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(self(x) - y))
                self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return {"loss": loss}

    found = []
    for by_hand in (True, False):
        model = Twice(home.network(START).layers)
        model.build((None, 3))
        model.set_weights(START)
        optimizer = make(kind)
        if hasattr(optimizer, "build"):
            optimizer.build(model.trainable_variables)
        model.compile(optimizer=optimizer, loss="mse", run_eagerly=True)
        for batches in (BATCHES, BATCHES[:4]):
            fit(model, batches, "carry" if by_hand else partial_window)
            if by_hand:
                optimizer.end_windows() if partial_window == "flush" else optimizer.drop_windows()
        assert optimizer.end_windows() is False
        found.append(model.get_weights())
    dense.assert_bits(*found)
