"""Optimizers of other packages for standalone Keras, wrapped, against themselves on the means of the windows.

By themselves most race on `iterations`: what steps of bare optimizers write here is written after all is computed.
"""

import needs
import numpy as np
import oracle
import pytest
import skips
from dense import RATE, START, gradients_by_hand

import legacyga

pytestmark = pytest.mark.capability("wrap: every optimizer")

STEPS, UPDATES = 4, 6


@pytest.fixture(autouse=True)
def fresh(home):
    needs.graph_only(home)
    if home.name != "keras":
        skips.elsewhere("these packages are of the Keras that stands alone, unless TF_KERAS is set")
    home.reset(plain_session=True)
    functions = {name: getattr(home.backend, name) for name in ("update", "update_add", "update_sub")}
    yield
    # keras-lookahead leaves them replaced after an error.
    vars(home.backend).update(functions)


def sgd(home, **kwargs):
    rate = "lr" if home.keras.__version__ < "2.3" else "learning_rate"
    return home.keras.optimizers.SGD(**dict({rate: RATE}, **kwargs))


def extended(home, name, base="SGD", **kwargs):
    from bert4keras import optimizers

    extend = getattr(optimizers, "extend_with_" + name)
    rate = "lr" if home.keras.__version__ < "2.3" else "learning_rate"
    return extend(getattr(home.keras.optimizers, base))(**dict(kwargs, **{rate: RATE}))


def ada_factor(home):
    from bert4keras.optimizers import AdaFactor

    return AdaFactor(learning_rate=RATE, beta1=0.9)


def lookahead(home):
    from keras_lookahead import Lookahead

    return Lookahead(sgd(home), sync_period=2)


def multiplied(home, inner):
    from keras_lr_multiplier import LRMultiplier

    return LRMultiplier(inner, {"Variable": 0.5, "Variable_1": 2.0})


def rectified(home):
    from keras_radam import RAdam

    optimizer = RAdam(learning_rate=RATE)
    # Its get_updates reads `lr`, which Keras 2.3 alone has beside `learning_rate`.
    if not hasattr(optimizer, "lr"):
        optimizer.lr = optimizer.learning_rate
    return optimizer


MAKERS = {
    "weight decay": lambda home: extended(home, "weight_decay", weight_decay_rate=0.1),
    "layer adaptation": lambda home: extended(home, "layer_adaptation"),
    "a rate for each": lambda home: extended(home, "parameter_wise_lr", paramwise_lr_schedule={"Variable_1": 2.0}),
    "clipped in a wrapper": lambda home: multiplied(home, sgd(home, momentum=0.9, clipnorm=0.5)),
    "piecewise rate": lambda home: extended(home, "piecewise_linear_lr", lr_schedule={2: 1, 6: 0.1}),
    "lookahead of Adam": lambda home: extended(home, "lookahead", "Adam", steps_per_slow_update=2),
    "AdaFactor": ada_factor,
    "RAdam": rectified,
}


def means_of(fed, steps=STEPS):
    windows = [fed[i : i + steps] for i in range(0, len(fed), steps)]
    return [[np.mean(each, axis=0, dtype="float64").astype("float32") for each in zip(*window)] for window in windows]


def apply_to(home, variables, optimizer, fed):
    backend = home.backend
    given = [backend.placeholder(value.shape) for value in START]
    loss = sum(backend.sum(variable * each) for variable, each in zip(variables, given))
    step = backend.function(given, [loss], updates=optimizer.get_updates(params=variables, loss=loss))
    for gradients in fed:
        step(list(gradients))
    return backend.batch_get_value(variables)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_equals_itself_on_the_means(home, name):
    fed = gradients_by_hand(STEPS * UPDATES)
    found = home.apply_to(START, legacyga.wrap(MAKERS[name](home), STEPS), fed)
    home.reset(plain_session=True)
    bare = MAKERS[name](home)
    # It lists its last updates alone, and races.
    bare = legacyga.wrap(bare, 1) if name == "lookahead of Adam" else bare
    wanted = home.apply_to(START, bare, means_of(fed))
    for i, values in enumerate(wanted):
        for now, then in zip(found[STEPS * i + STEPS - 1], values):
            np.testing.assert_allclose(now, then, rtol=1e-5, atol=4e-6)
    assert any(np.any(now != start) for now, start in zip(wanted[-1], START))


def test_radam_by_its_formula(home):
    fed = gradients_by_hand(STEPS * UPDATES)
    found = home.apply_to(START, legacyga.wrap(rectified(home), STEPS), fed)
    weights = oracle.double(START)
    ms, vs = [[0.0 * each for each in weights] for _ in range(2)]
    most = 2 / (1 - 0.999) - 1
    for i, means in enumerate(means_of(fed)):
        t = i + 1
        length = most - 2 * t * 0.999**t / (1 - 0.999**t)
        for place, mean in enumerate(oracle.double(means)):
            ms[place] = 0.9 * ms[place] + 0.1 * mean
            vs[place] = 0.999 * vs[place] + 0.001 * mean**2
            step = ms[place] / (1 - 0.9**t)
            if length >= 5:
                part = (length - 4) / (most - 4) * (length - 2) / (most - 2) * most / length
                step = np.sqrt(part) * step / (np.sqrt(vs[place] / (1 - 0.999**t)) + 1e-7)
            weights[place] = weights[place] - RATE * step
        for now, then in zip(found[STEPS * i + STEPS - 1], weights):
            np.testing.assert_allclose(now, then, rtol=2e-5, atol=2e-5)


def test_additional_updates(home):
    """keras-rl's: target networks follow once an update, and see the weights as they were before it."""
    from rl.util import AdditionalUpdatesOptimizer

    backend, fed = home.backend, gradients_by_hand(STEPS * UPDATES)
    variables = [backend.variable(value) for value in START]
    targets = [backend.variable(0.0 * value) for value in START]
    follow = [(target, 0.9 * target + 0.1 * variable) for target, variable in zip(targets, variables)]
    optimizer = legacyga.wrap(AdditionalUpdatesOptimizer(sgd(home), follow), STEPS)
    apply_to(home, variables, optimizer, fed)
    weights = oracle.double(START)
    slow = [0.0 * each for each in weights]
    for means in means_of(fed):
        slow = [0.9 * each + 0.1 * weight for each, weight in zip(slow, weights)]
        weights = [weight - RATE * mean for weight, mean in zip(weights, means)]
    for now, then in zip(backend.batch_get_value(variables + targets), weights + slow):
        np.testing.assert_allclose(now, then, rtol=4e-6, atol=4e-6)
    assert int(home.value(optimizer.iterations)) == UPDATES


def test_a_multiplier_around_the_accumulating_optimizer(home):
    fed = gradients_by_hand(STEPS * UPDATES)
    variables = [home.backend.variable(value) for value in START]
    factors = [2.0 if variable.name.startswith("Variable_1") else 0.5 for variable in variables]
    assert sorted(set(factors)) == [0.5, 2.0]
    found = apply_to(home, variables, multiplied(home, legacyga.wrap(sgd(home, momentum=0.9), STEPS)), fed)
    weights = oracle.double(START)
    moments = [0.0 * each for each in weights]
    for means in means_of(fed):
        moments = [0.9 * each - RATE * by * mean for each, by, mean in zip(moments, factors, means)]
        weights = [weight + each for weight, each in zip(weights, moments)]
    for now, then in zip(found, weights):
        np.testing.assert_allclose(now, then, rtol=4e-6, atol=4e-6)


@pytest.mark.capability("errors")
@pytest.mark.parametrize(
    "name, make",
    [("Lookahead", lookahead), ("NewOptimizer", lambda home: extended(home, "exponential_moving_average"))],
)
def test_a_session_within_get_updates(home, name, make):
    text = r"{}\.get_updates runs a session .*Leave wrap out, .*legacyga\.micro_batch\(model, size\) after compile"
    text = text.format(name)
    with pytest.raises(ValueError, match=text):
        home.apply_to(START, legacyga.wrap(make(home), STEPS), [])


@pytest.mark.capability("errors")
def test_updates_around_the_accumulating_optimizer(home):
    from keras_lookahead import Lookahead
    from rl.util import AdditionalUpdatesOptimizer

    text = r"AdditionalUpdatesOptimizer\.get_updates adds .* wrap\(AdditionalUpdatesOptimizer\(SGD\(\)\), 4\), not"
    with pytest.raises(ValueError, match=text):
        home.apply_to(START, AdditionalUpdatesOptimizer(legacyga.wrap(sgd(home), STEPS), []), [])
    text = r"K\.update was replaced .*keras-lookahead.*Received: \('update_add', .*Start Python anew, .*micro_batch"
    with pytest.raises(ValueError, match=text):
        home.apply_to(START, Lookahead(legacyga.wrap(sgd(home), STEPS)), [])


def test_lookahead_in_slices(home):
    """What wrap refuses, exact in slices: the slow weights are taken over at every second update."""
    model = home.network(START)
    model.compile(lookahead(home), "mse")
    legacyga.micro_batch(model, 2)
    random = np.random.RandomState(3)
    weights = oracle.double(START)
    slow = [1.0 * each for each in weights]
    for i in range(UPDATES):
        x, y = random.randn(8, 5).astype("float32"), random.randn(8, 3).astype("float32")
        model.train_on_batch(x, y)
        weights = [weight - RATE * by for weight, by in zip(weights, oracle.gradients(weights, x, y))]
        if i % 2:
            slow = weights = [each + 0.5 * (weight - each) for each, weight in zip(slow, weights)]
    for now, then in zip(model.get_weights(), weights):
        np.testing.assert_allclose(now, then, rtol=4e-6, atol=4e-6)
