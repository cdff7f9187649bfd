"""wrap: every stock optimizer of the home against its own bare self, fed the mean gradients one update at a time."""

import numpy as np
import pytest
import skips

import legacyga

RANDOM = np.random.RandomState(11)
SHAPES = ((3, 4), (4,), (2, 2, 3))
START = [RANDOM.randn(*shape).astype("float32") for shape in SHAPES]
# K, and of how many mini-steps: whole windows. 3 has a first mini-step, one between, and a last.
RUNS = [(1, 5), (3, 12)]
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
    return [
        pytest.param(cls, kwargs, id="{}-{}-{}".format(generation, cls.__name__, kwargs))
        for generation, cls in home.optimizer_classes()
        for kwargs in (IN_V1 if generation == "v1" else VARIANTS).get(cls.__name__, [{}])
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


def wrap_or_skip(home):
    if home.tf_version < (1, 11):
        skips.we_lack("wrap needs TF 1.11 or newer for the v1 API")


@pytest.fixture(scope="module")
def run(home):
    """A function of (class, its arguments, K, mini-steps): the bare optimizer's history on means, the wrapped one's,
    the wrapped one's class, and its `iterations` at the end. In graph mode it runs all optimizers side by side.
    """
    done = {}

    def key(cls, kwargs, steps):
        return cls, str(kwargs), steps

    def drive(cases, steps, mini_steps):
        wrapped = [legacyga.wrap(make(home, cls, kwargs), steps) for cls, kwargs in cases]
        bare = [make(home, cls, kwargs) for cls, kwargs in cases]
        wanted = home.apply_all_to(START, bare, means(steps, mini_steps=mini_steps))
        found = home.apply_all_to(START, wrapped, GRADIENTS[:mini_steps])
        counts = [int(home.value(optimizer.iterations)) for optimizer in wrapped]
        for (cls, kwargs), *result in zip(cases, wanted, found, map(type, wrapped), counts):
            done[key(cls, kwargs, steps)] = result

    def of_case(cls, kwargs, steps, mini_steps):
        if key(cls, kwargs, steps) not in done:
            home.reset(plain_session=True)
            cases = [each.values for each in stock(home)] if home.mode == "graph" else [(cls, kwargs)]
            drive(cases, steps, mini_steps)
        return done[key(cls, kwargs, steps)]

    return of_case


@pytest.mark.capability("wrap: every optimizer")
@pytest.mark.parametrize("steps, mini_steps", RUNS)
def test_equals_the_bare_optimizer_on_means(home, run, cls, kwargs, steps, mini_steps):
    wrap_or_skip(home)
    bare, history, wrapped, iterations = run(cls, kwargs, steps, mini_steps)
    assert issubclass(wrapped, cls)
    assert_same(history, bare, steps)
    assert iterations == mini_steps // steps


def adam(home, **kwargs):
    """A stock Adam of the home, in graph mode of the v1 API."""
    return make(home, next(cls for _, cls in home.optimizer_classes() if cls.__name__ == "Adam"), kwargs)


@pytest.mark.capability("wrap: every optimizer")
def test_reduction_sum(home):
    wrap_or_skip(home)
    home.reset()
    bare = home.apply_to(START, adam(home), means(5, "sum"))
    assert_same(home.apply_to(START, legacyga.wrap(adam(home), 5, reduction="sum"), GRADIENTS), bare, 5)


@pytest.mark.capability("wrap: every optimizer")
def test_clipping_acts_on_the_mean(home):
    wrap_or_skip(home)
    home.reset()
    bare = home.apply_to(START, adam(home), [[np.clip(g, -0.125, 0.125) for g in each] for each in means(5)])
    assert_same(home.apply_to(START, legacyga.wrap(adam(home, clipvalue=0.125), 5), GRADIENTS), bare, 5)


@pytest.mark.capability("wrap: surface")
def test_the_optimizer_given_is_not_changed_and_its_state_is_kept(home):
    """Four updates at once, and two, a wrap, and two more: the same; and the two of the original stay two."""
    wrap_or_skip(home)
    home.reset()
    inner = adam(home)
    half = home.apply_to(START, inner, means(5)[:2])[-1] if home.mode == "graph" else None
    if home.mode == "graph":
        wrapped = legacyga.wrap(inner, 5)
        after = home.apply_to(half, wrapped, GRADIENTS[10:])[-1]
    else:
        variables = home.variables(START)
        home.apply_to(variables, inner, means(5)[:2])
        wrapped = legacyga.wrap(inner, 5)
        after = home.apply_to(variables, wrapped, GRADIENTS[10:])[-1]
    whole = home.apply_to(START, adam(home), means(5))[-1]
    for now, wanted, start in zip(after, whole, START):
        assert np.max(np.abs(now - wanted)) <= 2e-6 * np.max(np.abs(wanted - start))
    assert int(home.value(inner.iterations)) == 2
    assert int(home.value(wrapped.iterations)) == 4


@pytest.mark.capability("wrap: surface")
def test_class_and_config(home):
    wrap_or_skip(home)
    inner = adam(home)
    wrapped = legacyga.wrap(inner, 3, reduction="sum")
    assert isinstance(wrapped, type(inner)) and type(wrapped) is type(legacyga.wrap(adam(home), 2))
    config = wrapped.get_config()
    assert (config["gradient_accumulation_steps"], config["reduction"]) == (3, "sum")
    again = type(wrapped).from_config(config)
    assert again.get_config() == config and again.gradient_accumulation_steps == 3


@pytest.mark.capability("wrap: surface")
def test_the_docstrings_example(home, doctests):
    assert doctests["legacyga.wrapping"] == [4, 2 if home.tf_version < (1, 11) else 0], doctests["printed"]


@pytest.mark.capability("errors")
def test_what_cannot_be_wrapped(home):
    wrap_or_skip(home)
    inner = adam(home)
    for value, wanted in (
        (type(inner), "a class. Call it."),
        ("adam", "a string. Make the optimizer that it names."),
        (None, "which is no optimizer of a Keras or of tf.compat.v1.train."),
        (home.keras.models.Sequential(), "which is no optimizer of a Keras or of tf.compat.v1.train."),
    ):
        with pytest.raises(ValueError) as error:
            legacyga.wrap(value, 2)
        assert str(error.value).startswith("wrap takes an optimizer object") and str(error.value).endswith(wanted)
    with pytest.raises(ValueError, match="This optimizer accumulates already, over 2 mini-steps"):
        legacyga.wrap(legacyga.wrap(inner, 2), 3)
    with pytest.raises(ValueError, match="gradient_accumulation_steps must be an integer of at least 1. Received: 0"):
        legacyga.wrap(inner, 0)
    with pytest.raises(ValueError, match='reduction must be "mean" or "sum". Received: \'max\''):
        legacyga.wrap(inner, 2, reduction="max")


def loss_scale_optimizer(home, make_optimizer):
    mixed_precision = getattr(home.keras, "mixed_precision", None)
    cls = getattr(home.keras.optimizers if home.is_keras3 else mixed_precision, "LossScaleOptimizer", None)
    if cls is None or home.mode == "graph":
        skips.keras_lacks("LossScaleOptimizer: TF 2.4 or newer, in eager mode")
    return cls(make_optimizer(home))


@pytest.mark.capability("wrap: every optimizer")
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


@pytest.mark.capability("errors")
def test_around_a_loss_scale_optimizer(home):
    """Keras 3's can be wrapped; of the others wrap says to put them outside."""
    covered = loss_scale_optimizer(home, adam)
    if home.is_keras3:
        bare = home.apply_to(START, covered, means(5))
        return assert_same(home.apply_to(START, legacyga.wrap(loss_scale_optimizer(home, adam), 5), GRADIENTS), bare, 5)
    with pytest.raises(ValueError, match=r"a cover of another optimizer.*LossScaleOptimizer.*\(wrap\(Adam, 5\)\)"):
        legacyga.wrap(covered, 5)


@pytest.mark.capability("errors")
def test_the_accumulation_of_keras_3_below_ours(home):
    if not home.is_keras3:
        skips.senseless("Keras 3 only")
    with pytest.raises(ValueError, match="has Keras's own gradient_accumulation_steps=4.*Leave that argument out"):
        legacyga.wrap(home.keras.optimizers.Adam(gradient_accumulation_steps=4), 2)


@pytest.mark.capability("errors")
def test_wrap_on_the_oldest_tensorflow(home):
    if home.tf_version >= (1, 11):
        skips.senseless("TF 1.8 to 1.10 only")
    with pytest.raises(ValueError, match="wrap needs TensorFlow 1.11 or newer for optimizers of the v1 API"):
        legacyga.wrap(adam(home), 2)


@pytest.mark.capability("wrap: every optimizer")
def test_what_a_float8_layer_hands_over_is_not_averaged(home):
    if not home.is_keras3:
        skips.senseless("Keras 3 only")
    scale, kernel = home.variables([np.float32([1, 1]), np.float32([5, 5])])
    scale.overwrite_with_gradient = True
    optimizer = legacyga.wrap(home.keras.optimizers.SGD(1.0), 3)
    optimizer.build([scale, kernel])
    for new_scale, gradient in (([2, 1], [1, 0]), ([4, 2], [2, 0]), ([3, 7], [3, 3])):
        np.testing.assert_array_equal(scale.numpy(), [1, 1])
        optimizer.apply([home.tf.constant(value, "float32") for value in (new_scale, gradient)], [scale, kernel])
    np.testing.assert_array_equal(scale.numpy(), [4, 7])
    np.testing.assert_array_equal(kernel.numpy(), [3, 4])
