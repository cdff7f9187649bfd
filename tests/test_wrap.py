"""wrap: every stock optimizer of the home against its own bare self, fed the mean gradients one update at a time."""

import importlib
import inspect

import kinds
import needs
import numpy as np
import pytest
import skips
from homes import generation_of

import legacyga

pytestmark = pytest.mark.capability("wrap: every optimizer")


RANDOM = np.random.RandomState(11)
SHAPES = ((3, 4), (4,), (2, 2, 3))
START = [RANDOM.randn(*shape).astype("float32") for shape in SHAPES]
# K, and of how many mini-steps: whole windows. 3 has a first mini-step, one between, and a last.
RUNS = [pytest.param(1, 5, marks=pytest.mark.long), (3, 12)]
GRADIENTS = [[RANDOM.randn(*shape).astype("float32") for shape in SHAPES] for _ in range(20)]
# By class name: the arguments that are tried beside the defaults.
VARIANTS = {
    "SGD": [{}, dict(momentum=0.9), dict(momentum=0.9, nesterov=True)],
    "RMSprop": [{}, dict(centered=True), dict(momentum=0.5)],
    "Adam": [{}, dict(amsgrad=True)],
    "AdamW": [dict(weight_decay=0.01)],
    "Adafactor": [dict(relative_step=False)],
}
IN_V1 = dict(VARIANTS, RMSprop=[{}])


def stock(home):
    """[(id, function that makes the optimizer)] for every stock optimizer of the home, in every generation."""
    generations = kinds.classes(home)
    return [
        pytest.param(
            cls,
            kwargs,
            id="{}-{}-{}".format(generation, cls.__name__, kwargs),
            marks=kinds.marks(generation_of(cls), generations),
        )
        for generation, cls in home.optimizer_classes()
        for kwargs in (IN_V1 if generation == "v1" else VARIANTS).get(cls.__name__, [{}])
        # Keras 2.0 has no amsgrad.
        if "amsgrad" not in kwargs or "amsgrad" in inspect.signature(cls.__init__).parameters
    ]


def pytest_generate_tests(metafunc):
    if "cls" in metafunc.fixturenames:
        from conftest import home_of

        metafunc.parametrize("cls, kwargs", stock(home_of(metafunc.config)))


def means(steps, reduction="mean", mini_steps=len(GRADIENTS)):
    reduce = np.mean if reduction == "mean" else np.sum
    return [
        [reduce(window, axis=0).astype("float32") for window in zip(*GRADIENTS[i : i + steps])]
        for i in range(0, mini_steps, steps)
    ]


def make(home, cls, kwargs):
    rate = "lr" if home.mode == "graph" and not hasattr(cls, "_resource_apply_dense") else "learning_rate"
    return cls(**dict(kwargs, **{rate: 0.03}))


def assert_same(history, bare, steps):
    """After every window as the bare optimizer after its update, relative to the distance moved; between: bits."""
    assert len(history) == steps * len(bare)
    history = [START] + history
    for i, weights in enumerate(history[1:], 1):
        if i % steps:
            for now, before in zip(weights, history[i - 1]):
                np.testing.assert_array_equal(now, before)
            continue
        for now, wanted, start in zip(weights, bare[i // steps - 1], START):
            # RMSprop of TF 2.10's `experimental` takes, centered, the root of a negative number.
            np.testing.assert_array_equal(np.isnan(now), np.isnan(wanted))
            moved = np.max(np.nan_to_num(np.abs(wanted - start)))
            assert np.max(np.nan_to_num(np.abs(now - wanted))) <= 2e-6 * moved


@pytest.mark.parametrize("steps, mini_steps", RUNS)
def test_equals_the_bare_optimizer_on_means(home, cls, kwargs, steps, mini_steps):
    needs.wrap(home)
    home.reset(plain_session=True)
    bare, wrapped = make(home, cls, kwargs), legacyga.wrap(make(home, cls, kwargs), steps)
    wanted = home.apply_to(START, bare, means(steps, mini_steps=mini_steps))
    assert_same(home.apply_to(START, wrapped, GRADIENTS[:mini_steps]), wanted, steps)
    assert isinstance(wrapped, cls)
    assert int(home.value(wrapped.iterations)) == mini_steps // steps


def adam(home, **kwargs):
    """A stock Adam of the home, in graph mode of the v1 API."""
    return make(home, next(cls for _, cls in home.optimizer_classes() if cls.__name__ == "Adam"), kwargs)


def test_reduction_sum(home):
    needs.wrap(home)
    home.reset()
    bare = home.apply_to(START, adam(home), means(5, "sum"))
    assert_same(home.apply_to(START, legacyga.wrap(adam(home), 5, reduction="sum"), GRADIENTS), bare, 5)


def test_clipping_acts_on_the_mean(home):
    needs.wrap(home)
    home.reset()
    bare = home.apply_to(START, adam(home), [[np.clip(g, -0.125, 0.125) for g in each] for each in means(5)])
    assert_same(home.apply_to(START, legacyga.wrap(adam(home, clipvalue=0.125), 5), GRADIENTS), bare, 5)


def loss_scale_optimizer(home, make_optimizer):
    mixed_precision = getattr(home.keras, "mixed_precision", None)
    cls = getattr(home.keras.optimizers if home.is_keras3 else mixed_precision, "LossScaleOptimizer", None)
    if cls is None or home.mode == "graph":
        skips.keras_lacks("LossScaleOptimizer: TF 2.4 or newer, in eager mode")
    return cls(make_optimizer(home))


def test_within_a_loss_scale_optimizer(home):
    """Its scale, dynamic as it is by default, lies outside of the accumulation, and is a power of two."""
    covered = loss_scale_optimizer(home, lambda home: legacyga.wrap(adam(home), 5))
    variables, history = home.variables(START), []
    for each in GRADIENTS:
        if home.is_keras3:
            scaled = [home.tf.constant(g) * covered.scale_loss(1.0) for g in each]
        else:
            scaled = [home.tf.constant(g) * covered.get_scaled_loss(home.tf.constant(1.0)) for g in each]
            scaled = covered.get_unscaled_gradients(scaled)
        covered.apply_gradients(list(zip(scaled, variables)))
        history.append([np.array(v.numpy()) for v in variables])
    assert_same(history, home.apply_to(START, adam(home), means(5)), 5)


def test_what_a_float8_layer_hands_over_is_refused(home):
    if not home.is_keras3:
        skips.senseless("Keras 3 only")
    scale, kernel = home.variables([np.float32([1, 1]), np.float32([5, 5])])
    scale.overwrite_with_gradient = True
    optimizer = legacyga.wrap(home.keras.optimizers.SGD(1.0), 3)
    with pytest.raises(ValueError, match="overwrites this variable with its gradient.*gradient_accumulation_steps=1"):
        optimizer.build([scale, kernel])
    np.testing.assert_array_equal(scale.numpy(), [1, 1])
    bare = legacyga.wrap(home.keras.optimizers.SGD(1.0), 1)
    bare.apply([home.tf.constant([2.0, 1.0]), home.tf.constant([1.0, 0.0])], [scale, kernel])
    np.testing.assert_array_equal(scale.numpy(), [2, 1])
    np.testing.assert_array_equal(kernel.numpy(), [4, 5])


@pytest.mark.parametrize("made_by", ["MySGD", "wrap"])
def test_the_package_keras(home, made_by):
    """Below Keras 3, `import keras` gives the names of tf.keras or others: in TF 2.5 it is even a copy of tf.keras."""
    if home.name != "tf.keras" or not (2, 5) <= home.tf_version < (2, 16):
        skips.senseless("tf.keras from TF 2.5 to 2.15 alone")
    keras = importlib.import_module("keras")
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(1,))
    model = keras.models.Sequential([dense])
    optimizer = keras.optimizers.get({"class_name": "SGD", "config": {"learning_rate": 0.25}})
    made = {
        "MySGD": lambda: legacyga.MySGD(0.25, steps_per_update=2, keras=keras),
        "wrap": lambda: legacyga.wrap(optimizer, 2),
    }
    model.compile(made[made_by](), "mse")
    model.fit(np.ones((2, 1)), np.array([[1.0], [3.0]]), batch_size=1, shuffle=False, verbose=0)
    # Half the sum of -2 and -6, times the rate.
    assert model.get_weights()[0].tolist() == [[1.0]]


@pytest.mark.parametrize("members", [{}, {"_allreduce": lambda self, gradients: gradients}])
def test_an_old_horovod_is_refused(home, members):
    """Its optimizers cannot be extended: up to 0.18 nothing has `_allreduce`, up to 0.21 it takes no variables."""
    needs.wrap(home)
    made = type("SGD", (home.keras.optimizers.SGD,), dict(members, __module__="horovod._keras"))
    with pytest.raises(ValueError, match="wrap needs Horovod 0.21.3 or newer.*Received: <"):
        legacyga.wrap(made(0.1), 2)
