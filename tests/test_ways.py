"""Ways of using a wrapped optimizer: several in one training, several models with one, frozen layers, missing
gradients, XLA, optimizers of the user's own, copies and the surface. Every home, every generation it has.
"""

import collections
import contextlib
import copy
import inspect
import logging
import re
import warnings

import numpy as np
import pytest
import skips

import legacyga

RANDOM = np.random.RandomState(23)
RATE = 0.03
BATCH = 4
SHAPES = ((5, 4), (4,), (4, 3), (3,))
START = [RANDOM.randn(*shape).astype("float32") for shape in SHAPES]
BATCHES = [(RANDOM.randn(BATCH, 5).astype("float32"), RANDOM.randn(BATCH, 3).astype("float32")) for _ in range(12)]


@pytest.fixture(autouse=True)
def fresh(home):
    if home.tf_version < (1, 11):
        skips.we_lack("wrap needs TF 1.11 or newer for the v1 API")
    home.reset(plain_session=True)


def classes(home, name):
    """The home's optimizer classes of this name, the first of each generation that it has, by generation."""
    found = collections.OrderedDict()
    for _, cls in home.optimizer_classes():
        if cls.__name__ == name:
            found.setdefault(generation_of(cls), cls)
    return found


def pytest_generate_tests(metafunc):
    for argument, name in (("adam", "Adam"), ("sgd", "SGD")):
        if argument in metafunc.fixturenames:
            from conftest import home_of

            found = classes(home_of(metafunc.config), name)
            metafunc.parametrize(argument, list(found.values()), ids=list(found))


def generation_of(cls):
    from legacyga import _compat

    return _compat.generation_of(cls)


def make(home, cls, rate=RATE, **kwargs):
    kwargs["lr" if generation_of(cls) == "v1" else "learning_rate"] = rate
    return cls(**kwargs)


# ---------------------------------------------------------------------------------------------- the expected numbers


def double(weights):
    return [np.asarray(weight, "float64") for weight in weights]


def gradients(weights, x, y):
    """The gradients of the mean squared error of dense layers with tanh between them, by the chain rule."""
    inputs = [np.asarray(x, "float64")]
    for i in range(0, len(weights) - 2, 2):
        inputs.append(np.tanh(inputs[-1].dot(weights[i]) + weights[i + 1]))
    error = 2.0 * (inputs[-1].dot(weights[-2]) + weights[-1] - y) / y.size
    found = []
    for i in range(len(weights) - 2, -1, -2):
        found = [inputs[i // 2].T.dot(error), error.sum(axis=0)] + found
        error = error.dot(weights[i].T) * (1.0 - inputs[i // 2] ** 2)
    return found


class Adam(object):
    """Kingma and Ba 2015, section 2, in the order of computation at its end, epsilon as every Keras has it."""

    def __init__(self, rate=RATE):
        self.rate, self.iterations, self.moments = rate, 0, {}

    def update(self, weights, gradients, names):
        self.iterations += 1
        t = self.iterations
        rate = self.rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        updated = []
        for weight, gradient, name in zip(weights, gradients, names):
            m, v = self.moments.get(name, (0.0, 0.0))
            m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
            self.moments[name] = m, v
            updated.append(weight - rate * m / (np.sqrt(v) + 1e-7))
        return updated


class Momentum(object):
    """Sutskever et al. 2013, section 2."""

    def __init__(self, rate=RATE, momentum=0.9):
        self.rate, self.momentum, self.iterations, self.velocities = rate, momentum, 0, {}

    def update(self, weights, gradients, names):
        self.iterations += 1
        for gradient, name in zip(gradients, names):
            self.velocities[name] = self.momentum * self.velocities.get(name, 0.0) - self.rate * gradient
        return [weight + self.velocities[name] for weight, name in zip(weights, names)]


class Accumulated(object):
    """An optimizer that updates once in `steps` mini-steps, with the mean; a window for each set of variables."""

    def __init__(self, optimizer, steps):
        self.optimizer, self.steps, self.windows = optimizer, steps, {}

    def mini_step(self, weights, gradients, names):
        window = self.windows.setdefault(tuple(names), [])
        window.append(gradients)
        if len(window) < self.steps:
            return weights
        means = [np.mean(each, axis=0) for each in zip(*window)]
        del window[:]
        return self.optimizer.update(weights, means, names)


def trained(batches, steps, optimizer=None, start=START, trainable=None):
    """START after `batches`, in windows of `steps`.

    Args:
        trainable: the places of the weights that train, all of them if None.
    """
    accumulated = Accumulated(Adam() if optimizer is None else optimizer, steps)
    weights = double(start)
    names = list(range(len(weights))) if trainable is None else list(trainable)
    for x, y in batches:
        found = gradients(weights, x, y)
        updated = accumulated.mini_step([weights[i] for i in names], [found[i] for i in names], names)
        for i, weight in zip(names, updated):
            weights[i] = weight
    return weights


def assert_close(weights, wanted):
    assert len(weights) == len(wanted)
    for now, expected in zip(weights, wanted):
        assert np.max(np.abs(now - expected) / np.maximum(1.0, np.abs(expected))) <= 4e-6


def assert_bits(weights, wanted):
    assert len(weights) == len(wanted)
    for now, expected in zip(weights, wanted):
        np.testing.assert_array_equal(now, expected)


# ------------------------------------------------------------------------------------------------------- the drivers


def network(home, weights, tanh_at_the_end=False, names=None):
    """Dense layers with tanh between them, `weights` as weights."""
    model = home.keras.models.Sequential()
    for i in range(0, len(weights), 2):
        kwargs = dict(name=names[i // 2]) if names else {}
        if i == 0:
            kwargs["input_shape"] = (weights[0].shape[0],)
        activation = "tanh" if tanh_at_the_end or i + 2 < len(weights) else None
        model.add(home.keras.layers.Dense(weights[i].shape[1], activation=activation, **kwargs))
    model.set_weights(weights)
    return model


def compiled(home, optimizer, start=START, **kwargs):
    model = network(home, start)
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


def eager_only(home, since=(2, 0)):
    if home.mode == "graph":
        skips.senseless("eager mode only")
    if home.tf_version < since:
        skips.keras_lacks("from TF {}.{} on".format(*since))


def graph_only(home):
    if home.mode == "eager":
        skips.senseless("graph mode only")


def error_of(function, *args):
    """What `function` raises, as (type, message); None if it does not."""
    try:
        function(*args)
    except Exception as error:
        return type(error), str(error)
    return None


def variables_of(optimizer):
    """An optimizer's variables, as a user of its home asks for them."""
    found = getattr(optimizer, "weights", None)
    found = optimizer.variables if found is None else found
    return list(found() if callable(found) else found)


def all_variables(optimizer):
    """The variables that are an optimizer's weights, and those that are on it by a name alone."""
    weights = variables_of(optimizer)
    named = [each for each in vars(optimizer).values() if hasattr(each, "assign") and hasattr(each, "read_value")]
    return weights + [each for each in named if all(each is not weight for weight in weights)]


def without_numbers(message):
    """A message without what differs from one variable to the next."""
    return re.sub(r"_\d+|0x[0-9a-f]+", "", message).replace("Accumulating", "")


# ------------------------------------------------------------------------------------- two optimizers, or two models

NOISE = [RANDOM.randn(BATCH, 2).astype("float32") for _ in range(12)]
REAL = [RANDOM.randn(BATCH, 5).astype("float32") for _ in range(12)]
ONES, ZEROS = np.ones((BATCH, 1), "float32"), np.zeros((BATCH, 1), "float32")
GENERATOR = [RANDOM.randn(*shape).astype("float32") for shape in ((2, 5), (5,))]
CRITIC = [RANDOM.randn(*shape).astype("float32") for shape in ((5, 4), (4,), (4, 1), (1,))]


def expected_gan():
    """12 rounds of a critic's mini-step (Adam, K = 2) and a generator's (momentum, K = 3), squared errors."""
    generator, critic = double(GENERATOR), double(CRITIC)
    with_critic, with_generator = Accumulated(Adam(), 2), Accumulated(Momentum(), 3)
    for noise, real in zip(NOISE, REAL):
        fake = np.tanh(noise.dot(generator[0]) + generator[1])
        found = gradients(critic, np.concatenate([real, fake]), np.concatenate([ONES, ZEROS]))
        critic = with_critic.mini_step(critic, found, range(4))
        found = gradients(generator + critic, noise, ONES)[:2]
        generator = with_generator.mini_step(generator, found, range(2))
    return generator, critic


def make_gan(home, adam, sgd):
    """A generator and its optimizer, with K = 3; a critic and its optimizer, with K = 2."""
    if generation_of(adam) != generation_of(sgd):
        skips.senseless("one generation at a time")
    generator = network(home, GENERATOR, tanh_at_the_end=True)
    critic = network(home, CRITIC)
    with_critic = legacyga.wrap(make(home, adam), 2)
    return generator, legacyga.wrap(make(home, sgd, momentum=0.9), 3), critic, with_critic


@pytest.mark.capability("ways to train")
def test_gan_of_two_compiled_models(home, adam, sgd):
    """The old way, as in the Keras examples: the critic is frozen within the model that trains the generator."""
    graph_only(home)
    generator, with_generator, critic, with_critic = make_gan(home, adam, sgd)
    critic.compile(optimizer=with_critic, loss="mse")
    critic.trainable = False
    both = home.keras.models.Sequential([generator, critic])
    both.compile(optimizer=with_generator, loss="mse")
    for noise, real in zip(NOISE, REAL):
        critic.train_on_batch(np.concatenate([real, generator.predict(noise)]), np.concatenate([ONES, ZEROS]))
        both.train_on_batch(noise, ONES)
    wanted = expected_gan()
    assert_close(generator.get_weights(), wanted[0])
    assert_close(critic.get_weights(), wanted[1])
    assert int(home.value(with_critic.iterations)) == 6
    assert int(home.value(with_generator.iterations)) == 4


@pytest.mark.capability("ways to train")
@pytest.mark.parametrize("traced", [True, False], ids=["tf.function", "eager"])
def test_gan_with_two_tapes(home, adam, sgd, traced):
    eager_only(home)
    tf = home.tf
    generator, with_generator, critic, with_critic = make_gan(home, adam, sgd)
    if home.is_keras3:
        with_critic.build(critic.trainable_variables)
        with_generator.build(generator.trainable_variables)

    def step(noise, real):
        with tf.GradientTape() as tape:
            answers = critic(tf.concat([real, generator(noise)], 0))
            loss = tf.reduce_mean(tf.square(answers - np.concatenate([ONES, ZEROS])))
        variables = critic.trainable_variables
        with_critic.apply_gradients(zip(tape.gradient(loss, variables), variables))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(critic(generator(noise)) - ONES))
        variables = generator.trainable_variables
        with_generator.apply_gradients(zip(tape.gradient(loss, variables), variables))

    step = tf.function(step) if traced else step
    for noise, real in zip(NOISE, REAL):
        step(tf.constant(noise), tf.constant(real))
    wanted = expected_gan()
    assert_close(generator.get_weights(), wanted[0])
    assert_close(critic.get_weights(), wanted[1])
    assert int(with_critic.iterations) == 6 and int(with_generator.iterations) == 4


def half_step(home, model, optimizer, layer):
    """A function of (x, y): a mini-step of `optimizer` on one layer of the model."""
    variables = model.layers[layer].trainable_weights
    if home.mode == "graph":
        backend = home.backend
        target = backend.placeholder(shape=(None, 3))
        loss = backend.mean(backend.square(model.outputs[0] - target))
        updates = optimizer.get_updates(loss=loss, params=variables)
        function = backend.function([model.inputs[0], target], [loss], updates=updates)
        return lambda x, y: function([x, y])
    tf = home.tf
    if home.is_keras3:
        optimizer.build(variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    return lambda x, y: step(tf.constant(x), tf.constant(y))


@pytest.mark.capability("ways to train")
def test_two_optimizers_in_one_model(home, adam, sgd):
    """The first layer by momentum with K = 2, the second by Adam with K = 3, in turns."""
    if generation_of(adam) != generation_of(sgd):
        skips.senseless("one generation at a time")
    model = network(home, START)
    optimizers = legacyga.wrap(make(home, sgd, momentum=0.9), 2), legacyga.wrap(make(home, adam), 3)
    steps = [half_step(home, model, optimizer, layer) for layer, optimizer in enumerate(optimizers)]
    weights = double(START)
    wanted = Accumulated(Momentum(), 2), Accumulated(Adam(), 3)
    for x, y in BATCHES:
        for i, names in enumerate(([0, 1], [2, 3])):
            steps[i](x, y)
            found = gradients(weights, x, y)[2 * i : 2 * i + 2]
            weights[2 * i : 2 * i + 2] = wanted[i].mini_step(weights[2 * i : 2 * i + 2], found, names)
    assert_close(model.get_weights(), weights)
    assert [int(home.value(each.iterations)) for each in optimizers] == [6, 4]


def refuses_new_variables(cls):
    """Whether optimizers of this class train the variables that they were built with and no others."""
    return generation_of(cls) in ("v3", "keras3")


@pytest.mark.capability("ways to train")
def test_one_optimizer_for_two_models(home, adam):
    """The second begins in the middle of a window of the first, which goes on afterwards: a window each, and one
    count of updates, as the bare optimizer has one.
    """
    if refuses_new_variables(adam):
        skips.keras_lacks("optimizers of this generation train the variables that they were built with")
    optimizer = legacyga.wrap(make(home, adam), 3)
    other = [weight[::-1].copy() for weight in START]
    first = compiled(home, optimizer)
    train(first, BATCHES[:5])
    second = compiled(home, optimizer, other)
    train(second, BATCHES[5:9])
    train(first, BATCHES[9:])
    train(second, BATCHES[:2])
    expected = Accumulated(Adam(), 3)
    weights = {"a": double(START), "b": double(other)}
    for name, batches in (("a", BATCHES[:5]), ("b", BATCHES[5:9]), ("a", BATCHES[9:]), ("b", BATCHES[:2])):
        for x, y in batches:
            found = gradients(weights[name], x, y)
            weights[name] = expected.mini_step(weights[name], found, [name + str(i) for i in range(4)])
    assert_close(first.get_weights(), weights["a"])
    assert_close(second.get_weights(), weights["b"])
    assert int(home.value(optimizer.iterations)) == 4


@pytest.mark.capability("errors")
@pytest.mark.parametrize("way", ["train_on_batch", "by hand"])
def test_variables_that_the_bare_optimizer_refuses(home, adam, way):
    """The same error, at the same mini-step, and no variables made for them."""
    if not refuses_new_variables(adam):
        skips.senseless("optimizers of this generation train any variables")

    def error(optimizer):
        train(compiled(home, optimizer), BATCHES[:2])
        before = len(variables_of(optimizer))
        start = [weight[:, :2] for weight in START[2:3]] + [START[3][:2]]
        model = network(home, start, names=["other"])
        x, y = BATCHES[0][0][:, :4], BATCHES[0][1][:, :2]
        if way == "train_on_batch":
            model.compile(optimizer=optimizer, loss="mse")
            return error_of(model.train_on_batch, x, y)
        variables = model.trainable_variables
        pairs = [(home.tf.ones(variable.shape), variable) for variable in variables]
        found = error_of(optimizer.apply_gradients, pairs)
        assert len(variables_of(optimizer)) == before
        return found

    bare = error(make(home, adam))
    assert bare is not None
    for steps in (1, 3):
        ours = error(legacyga.wrap(make(home, adam), steps))
        assert ours is not None and ours[0] is bare[0]
        # The rest is the lines of code that led there, and the variable, with or without its value.
        assert ours[1].replace("Accumulating", "")[-60:] == bare[1][-60:]


# ------------------------------------------------------------------------------------------------------ frozen layers


@pytest.mark.capability("ways to train")
def test_a_frozen_layer_and_one_made_trainable_with_a_new_optimizer(home, adam):
    model = network(home, START)
    model.layers[0].trainable = False
    model.compile(optimizer=legacyga.wrap(make(home, adam), 3), loss="mse")
    fit(model, BATCHES[:8])
    half = trained(BATCHES[:8], 3, trainable=[2, 3])
    weights = model.get_weights()
    assert_bits(weights[:2], START[:2])
    assert_close(weights, half)
    model.layers[0].trainable = True
    model.compile(optimizer=legacyga.wrap(make(home, adam), 2), loss="mse")
    fit(model, BATCHES[8:])
    assert_close(model.get_weights(), trained(BATCHES[8:], 2, start=half))


@pytest.mark.capability("ways to train")
def test_a_layer_made_trainable_with_the_same_optimizer(home, adam):
    """What the bare optimizer keeps: v1 the count of updates alone, v2 the moments of the layer that trained before."""

    def thaw(optimizer):
        model = network(home, START)
        model.layers[0].trainable = False
        model.compile(optimizer=optimizer, loss="mse")
        train(model, BATCHES[:6])
        model.layers[0].trainable = True
        model.compile(optimizer=optimizer, loss="mse")
        return model

    if refuses_new_variables(adam):
        bare = error_of(train, thaw(make(home, adam)), BATCHES[6:])
        ours = error_of(train, thaw(legacyga.wrap(make(home, adam), 3)), BATCHES[6:])
        assert bare is not None and ours is not None and ours[0] is bare[0]
        return
    model = thaw(legacyga.wrap(make(home, adam), 3))
    train(model, BATCHES[6:])
    expected = Adam()
    half = trained(BATCHES[:6], 3, optimizer=expected, trainable=[2, 3])
    if generation_of(adam) == "v1":
        expected.moments.clear()
    assert_close(model.get_weights(), trained(BATCHES[6:], 3, optimizer=expected, start=half))
    assert int(home.value(model.optimizer.iterations)) == 4


# --------------------------------------------------------------------------------------------------- R11 no gradient


@contextlib.contextmanager
def messages():
    """What is logged and warned of within, a list that fills."""
    found = []

    class Handler(logging.Handler):
        def emit(self, record):
            found.append(record.getMessage())

    handler = Handler()
    loggers = [logging.getLogger(name) for name in (None, "tensorflow", "absl")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield found
            found.extend(str(each.message) for each in caught)
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def of_gradients(found):
    """Those that speak of missing gradients, each once."""
    return sorted({message for message in found if "radient" in message})


@pytest.mark.capability("R11 no gradient")
@pytest.mark.parametrize("traced", [True, False], ids=["tf.function", "eager"])
def test_a_variable_without_gradient(home, adam, traced):
    eager_only(home)
    tf = home.tf
    # A gradient of zeros in place of none would be seen in this.
    kwargs = dict(weight_decay=0.5) if "weight_decay" in make(home, adam).get_config() else {}
    fed = [[RANDOM.randn(*each.shape).astype("float32") for each in START] for _ in range(6)]
    means = [[np.mean(each, axis=0) for each in zip(*fed[i : i + 3])] for i in (0, 3)]

    def run(optimizer, updates):
        variables = home.variables(START)
        if hasattr(optimizer, "build"):
            # As fit of Keras 3 does: nothing is known of the gradients yet.
            optimizer.build(variables)

        def step(*gradients):
            pairs = list(zip(gradients, variables))
            optimizer.apply_gradients([pairs[0], (None, variables[1])] + pairs[2:])

        step = tf.function(step) if traced else step
        with messages() as found:
            for each in updates:
                step(*[tf.constant(gradient) for gradient in each])
        return [variable.numpy() for variable in variables], of_gradients(found)

    bare, said = run(make(home, adam, **kwargs), means)
    for steps, updates in ((1, means), (3, fed)):
        ours, said_by_ours = run(legacyga.wrap(make(home, adam, **kwargs), steps), updates)
        assert_bits(ours[1:2], START[1:2])
        assert_close(ours, bare)
        assert said and [without_numbers(each) for each in said_by_ours] == [without_numbers(each) for each in said]


@pytest.mark.capability("R11 no gradient")
@pytest.mark.parametrize("steps", [1, 3])
def test_no_gradient_at_all(home, adam, steps):
    """The bare optimizer's error, or, in Keras 3, its warning."""
    eager_only(home)

    def run(optimizer):
        variables = home.variables(START[:2])
        if home.is_keras3:
            optimizer.build(variables)
        with messages() as found:
            error = error_of(optimizer.apply_gradients, [(None, variable) for variable in variables])
        assert_bits([variable.numpy() for variable in variables], START[:2])
        return error and (error[0], without_numbers(error[1])), [without_numbers(each) for each in of_gradients(found)]

    bare = run(make(home, adam))
    assert bare != (None, [])
    assert run(legacyga.wrap(make(home, adam), steps)) == bare


@pytest.mark.capability("R11 no gradient")
def test_a_gradient_that_is_missing_in_some_mini_steps(home, adam):
    """It adds nothing to the sum and counts in the divisor, as in the large batch; the phase is everybody's."""
    eager_only(home)
    tf = home.tf
    fed = [[RANDOM.randn(*each.shape).astype("float32") for each in START] for _ in range(9)]
    # The second variable's: missing at the begin of a window, in its middle, at its end.
    missing = (0, 4, 8)
    optimizer = legacyga.wrap(make(home, adam), 3)
    variables = home.variables(START)
    if hasattr(optimizer, "build"):
        # Else optimizers of these generations know only the variables of the first mini-step, and bare ones too.
        optimizer.build(variables)
    expected, wanted, history = Adam(), double(START), []
    for i, each in enumerate(fed):
        pairs = [(tf.constant(gradient), variable) for gradient, variable in zip(each, variables)]
        if i in missing:
            pairs[1] = None, variables[1]
            each[1] = np.zeros_like(each[1])
        optimizer.apply_gradients(pairs)
        history.append(each)
        if len(history) == 3:
            wanted = expected.update(wanted, [np.mean(gradient, axis=0) for gradient in zip(*history)], range(4))
            del history[:]
        assert_close([variable.numpy() for variable in variables], wanted)
    assert int(optimizer.iterations) == 3


@pytest.mark.capability("R11 no gradient")
@pytest.mark.parametrize("steps", [1, 3])
def test_a_variable_without_gradient_in_a_graph(home, adam, steps):
    """The v1 API refuses it, in the home's own words; OptimizerV2 leaves the variable alone, with a warning."""
    graph_only(home)
    backend = home.backend

    def run(optimizer):
        used, unused = backend.variable(START[0]), backend.variable(START[1])
        loss = home.tf.reduce_sum(used * used)
        with messages() as found:
            error = error_of(lambda: optimizer.get_updates(loss=loss, params=[used, unused]))
        return error, of_gradients(found)

    bare = run(make(home, adam))
    assert bare[0] is not None or bare[1]
    ours = run(legacyga.wrap(make(home, adam), steps))
    if bare[0] is not None:
        assert "None" in bare[0][1]
        assert ours[0][0] is bare[0][0] and without_numbers(ours[0][1]) == without_numbers(bare[0][1])
    else:
        assert ours[0] is None and len(ours[1]) == len(bare[1])


# ------------------------------------------------------------------------------------- ways in which a step is executed


def jit(home, function):
    """`function` compiled by XLA; skips where this TensorFlow has no name for that."""
    arguments = inspect.signature(home.tf.function).parameters
    for name in ("jit_compile", "experimental_compile"):
        if name in arguments:
            return home.tf.function(function, **{name: True})
    skips.keras_lacks("tf.function compiles with XLA from TF 2.1 on")


def custom_step(home, model, optimizer):
    tf = home.tf
    variables = model.trainable_variables
    if home.is_keras3:
        optimizer.build(variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    return step


@pytest.mark.capability("ways to train")
def test_jit_compile_in_a_custom_loop(home, adam):
    eager_only(home)
    bare = jit(home, custom_step(home, network(home, START), make(home, adam)))
    error = error_of(bare, *BATCHES[0])
    if error:
        skips.keras_lacks("XLA does not compile the bare optimizer in that version: {}".format(error[0].__name__))
    model = network(home, START)
    step = jit(home, custom_step(home, model, legacyga.wrap(make(home, adam), 3)))
    for x, y in BATCHES:
        step(home.tf.constant(x), home.tf.constant(y))
    assert_close(model.get_weights(), trained(BATCHES, 3))


@pytest.mark.capability("ways to train")
def test_jit_compile_in_compile(home, adam):
    eager_only(home)
    if "jit_compile" not in inspect.signature(home.keras.Model.compile).parameters:
        skips.keras_lacks("compile has no jit_compile in that version")
    error = error_of(fit, compiled(home, make(home, adam), jit_compile=True), BATCHES)
    if error:
        skips.keras_lacks("XLA does not compile the bare optimizer in that version: {}".format(error[0].__name__))
    model = compiled(home, legacyga.wrap(make(home, adam), 3), jit_compile=True)
    fit(model, BATCHES)
    assert_close(model.get_weights(), trained(BATCHES, 3))


@pytest.mark.capability("ways to train")
def test_run_eagerly(home, adam):
    eager_only(home)
    model = compiled(home, legacyga.wrap(make(home, adam), 3), run_eagerly=True)
    fit(model, BATCHES)
    assert_close(model.get_weights(), trained(BATCHES, 3))


@pytest.mark.capability("ways to train")
def test_steps_per_execution(home, adam):
    """4 mini-steps an execution, more than K and then, with K set anew, fewer; and no multiple of it."""
    eager_only(home, since=(2, 4))
    model = compiled(home, legacyga.wrap(make(home, adam), 3), steps_per_execution=4)
    expected = Adam()
    fit(model, BATCHES)
    half = trained(BATCHES, 3, expected)
    assert_close(model.get_weights(), half)
    assert int(model.optimizer.iterations) == 4
    model.optimizer.gradient_accumulation_steps = 6
    fit(model, BATCHES)
    assert_close(model.get_weights(), trained(BATCHES, 6, expected, half))
    assert int(model.optimizer.iterations) == 4 + 2


@pytest.mark.capability("ways to train")
def test_the_loop_over_a_dataset_in_one_function(home, adam):
    eager_only(home)
    tf = home.tf
    model = network(home, START)
    optimizer = legacyga.wrap(make(home, adam), 3)
    step = custom_step(home, model, optimizer)
    dataset = tf.data.Dataset.from_tensor_slices(tuple(np.stack(each) for each in zip(*BATCHES)))

    @tf.function
    def epoch():
        for x, y in dataset:
            step(x, y)

    epoch()
    assert_close(model.get_weights(), trained(BATCHES, 3))


# --------------------------------------------------------------------------------------------------------- embeddings

ROWS = 20
IDS = [RANDOM.randint(0, 8, (BATCH, 3)) for _ in range(6)]  # duplicates in every batch, rows 8 and up never
TABLE = RANDOM.randn(ROWS, 2).astype("float32")
HEAD = [RANDOM.randn(6, 2).astype("float32"), RANDOM.randn(2).astype("float32")]
TARGETS = [RANDOM.randn(BATCH, 2).astype("float32") for _ in range(6)]


def embedding_model(home, optimizer):
    layers = home.keras.layers
    ids = layers.Input((3,), dtype="int32")
    out = layers.Dense(2)(layers.Flatten()(layers.Embedding(ROWS, 2)(ids)))
    model = home.keras.models.Model(ids, out)
    model.set_weights([TABLE] + HEAD)
    model.compile(optimizer=optimizer, loss="mse")
    return model


def trained_embedding(optimizer, steps):
    weights = double([TABLE] + HEAD)
    accumulated = Accumulated(optimizer, steps)
    for ids, y in zip(IDS, TARGETS):
        table, kernel, bias = weights
        rows = table[ids].reshape(BATCH, 6)
        error = 2.0 * (rows.dot(kernel) + bias - y) / y.size
        by_row = np.zeros_like(table)
        np.add.at(by_row, ids, error.dot(kernel.T).reshape(BATCH, 3, 2))
        found = [by_row, rows.T.dot(error), error.sum(axis=0)]
        weights = accumulated.mini_step(weights, found, range(3))
    return weights


@pytest.mark.capability("R1 mean")
def test_fit_of_an_embedding(home, adam):
    """Adam moves every row in every home: the moments of a row that no id named go on decaying."""
    model = embedding_model(home, legacyga.wrap(make(home, adam), 3))
    fit(model, list(zip(IDS, TARGETS)))
    wanted = trained_embedding(Adam(), 3)
    assert_close(model.get_weights(), wanted)
    assert_bits(model.get_weights()[0][8:], TABLE[8:])


@pytest.mark.capability("R1 mean")
def test_fit_of_an_embedding_with_momentum(home, sgd):
    """As the home's own optimizer on the large batch: OptimizerV2 moves the rows that the batch names, and no others.

    v1 has the same momentum for all rows, and its bare optimizer races.
    """
    optimizer = legacyga.wrap(make(home, sgd, momentum=0.9), 3)
    batches = list(zip(IDS, TARGETS))
    model = embedding_model(home, optimizer)
    fit(model, batches)
    if generation_of(sgd) == "v1":
        return assert_close(model.get_weights(), trained_embedding(Momentum(), 3))
    bare = embedding_model(home, make(home, sgd, momentum=0.9))
    fit(bare, batches, batch_size=3 * BATCH)
    assert_close(model.get_weights(), bare.get_weights())


# -------------------------------------------------------------------------------------- optimizers of the user's own


def own_adam(home, stock):
    """A subclass that halves its gradients, in the hook that users of the generation take, with a config of its own."""

    class Halving(stock):
        def __init__(self, factor=0.5, **kwargs):
            super(Halving, self).__init__(**kwargs)
            self.factor = factor
            self.calls = 0

        def get_config(self):
            return dict(super(Halving, self).get_config(), factor=self.factor)

    generation = generation_of(stock)
    if generation == "v1":

        def get_gradients(self, loss, params):
            self.calls += 1
            return [self.factor * gradient for gradient in super(Halving, self).get_gradients(loss, params)]

        Halving.get_gradients = get_gradients
    elif generation == "v2":

        def resource_apply_dense(self, grad, var, apply_state=None):
            self.calls += 1
            args = () if apply_state is None else (apply_state,)
            return super(Halving, self)._resource_apply_dense(self.factor * grad, var, *args)

        Halving._resource_apply_dense = resource_apply_dense
    else:

        def update_step(self, gradient, *args):
            self.calls += 1
            return super(Halving, self).update_step(self.factor * gradient, *args)

        Halving.update_step = update_step
    return Halving


def own_from_scratch(home, base):
    """An optimizer with all of its mathematics of its own: p -= rate * (g + 0.5 * the last update's g)."""
    backend = None if home.is_keras3 else home.backend
    generation = generation_of(base)
    if generation == "v1":

        class Own(base):
            def __init__(self, lr=RATE, **kwargs):
                super(Own, self).__init__(**kwargs)
                self.iterations = backend.variable(0, dtype="int64", name="iterations")
                self.rate = backend.variable(lr, name="rate")

            def get_updates(self, loss, params):
                found = self.get_gradients(loss, params)
                last = [backend.zeros(backend.int_shape(param)) for param in params]
                self.weights = [self.iterations] + last
                self.updates = [backend.update_add(self.iterations, 1)]
                for gradient, before, param in zip(found, last, params):
                    self.updates.append(backend.update(param, param - self.rate * (gradient + 0.5 * before)))
                    self.updates.append(backend.update(before, gradient))
                return self.updates

            def get_config(self):
                return dict(super(Own, self).get_config(), lr=float(backend.get_value(self.rate)))

    elif generation == "v2":

        class Own(base):
            def __init__(self, learning_rate=RATE, name="Own", **kwargs):
                super(Own, self).__init__(name, **kwargs)
                self._set_hyper("learning_rate", learning_rate)

            def _create_slots(self, var_list):
                for var in var_list:
                    self.add_slot(var, "last")

            def _resource_apply_dense(self, grad, var, apply_state=None):
                last = self.get_slot(var, "last")
                rate = self._get_hyper("learning_rate", var.dtype.base_dtype)
                moved = var.assign_sub(rate * (grad + 0.5 * last), use_locking=True)
                with home.tf.control_dependencies([moved]):
                    return last.assign(grad, use_locking=True)

            def get_config(self):
                rate = self._serialize_hyperparameter("learning_rate")
                return dict(super(Own, self).get_config(), learning_rate=rate)

    elif generation == "v3":

        class Own(base):
            def __init__(self, learning_rate=RATE, name="Own", **kwargs):
                super(Own, self).__init__(name=name, **kwargs)
                self._learning_rate = self._build_learning_rate(learning_rate)

            def build(self, var_list):
                super(Own, self).build(var_list)
                if not hasattr(self, "lasts"):
                    self.lasts = [self.add_variable_from_reference(var, "last") for var in var_list]
                self._built = True

            def update_step(self, gradient, variable):
                last = self.lasts[self._index_dict[self._var_key(variable)]]
                variable.assign_sub(self.learning_rate * (gradient + 0.5 * last))
                last.assign(gradient)

            def get_config(self):
                rate = self._serialize_hyperparameter(self._learning_rate)
                return dict(super(Own, self).get_config(), learning_rate=rate)

    else:

        class Own(base):
            def __init__(self, learning_rate=RATE, name="own", **kwargs):
                super(Own, self).__init__(learning_rate=learning_rate, name=name, **kwargs)

            def build(self, variables):
                if not self.built:
                    super(Own, self).build(variables)
                    self.lasts = [self.add_variable_from_reference(var, name="last") for var in variables]

            def update_step(self, gradient, variable, learning_rate):
                last = self.lasts[self._get_variable_index(variable)]
                self.assign_sub(variable, learning_rate * (gradient + 0.5 * last))
                self.assign(last, gradient)

    return Own


class OwnExpected(object):
    def __init__(self, rate=RATE):
        self.rate, self.last = rate, {}

    def update(self, weights, gradients, names):
        updated = [
            weight - self.rate * (gradient + 0.5 * self.last.get(name, 0.0))
            for weight, gradient, name in zip(weights, gradients, names)
        ]
        self.last.update(zip(names, gradients))
        return updated


def base_class(cls):
    """The class that the stock optimizers of its generation are made of."""
    names = ("Optimizer", "OptimizerV2")
    return next(each for each in cls.__mro__[1:] if each.__name__ in names)


@pytest.mark.capability("wrap: every optimizer")
def test_a_subclass_of_a_stock_optimizer(home, adam):
    """It overrides the hook of its generation, and is called through it once a trace or an update."""
    own = own_adam(home, adam)
    fed = gradients_by_hand(6)
    halved = [[0.5 * gradient for gradient in each] for each in fed]
    for steps in (1, 3):
        optimizer = legacyga.wrap(make(home, own, factor=0.5), steps)
        assert isinstance(optimizer, own) and isinstance(optimizer, adam)
        assert optimizer.factor == 0.5 and optimizer.get_config()["factor"] == 0.5
        assert_close(home.apply_to(START, optimizer, fed)[-1], applied(Adam(), halved, steps))
        assert optimizer.calls
        again = type(optimizer).from_config(optimizer.get_config())
        assert again.get_config() == optimizer.get_config() and again.factor == 0.5


def gradients_by_hand(number):
    random = np.random.RandomState(5)
    return [[random.randn(*shape).astype("float32") for shape in SHAPES] for _ in range(number)]


def applied(optimizer, fed, steps, start=START):
    accumulated, weights = Accumulated(optimizer, steps), double(start)
    for each in fed:
        weights = accumulated.mini_step(weights, each, range(len(weights)))
    return weights


@pytest.mark.capability("wrap: every optimizer")
def test_an_optimizer_of_the_users_own(home, adam):
    own = own_from_scratch(home, base_class(adam))
    fed = gradients_by_hand(6)
    for steps in (1, 3):
        inner = own()
        optimizer = legacyga.wrap(inner, steps)
        assert isinstance(optimizer, own)
        assert_close(home.apply_to(START, optimizer, fed)[-1], applied(OwnExpected(), fed, steps))
        again = type(optimizer).from_config(optimizer.get_config())
        assert again.get_config() == optimizer.get_config()


# ------------------------------------------------------------------------------------------- the optimizer passed in


def state_of(home, optimizer):
    """The values of an optimizer's variables, its config, and the names on the object."""
    return (
        [np.array(home.value(each)) for each in variables_of(optimizer)],
        optimizer.get_config(),
        sorted(vars(optimizer)),
    )


@pytest.mark.capability("wrap: surface")
@pytest.mark.parametrize("steps", [1, 3])
def test_wrapping_an_optimizer_that_has_trained(home, adam, steps):
    """It goes on from the state, in a model of its own; the one passed in keeps its bits, its config and its names."""
    inner = make(home, adam)
    fed = gradients_by_hand(2 + 2 * steps)
    if home.mode == "graph":
        half = home.apply_to(START, inner, fed[:2])[-1]
    else:
        half = home.variables(START)
        home.apply_to(half, inner, fed[:2])
    values, config, names = state_of(home, inner)
    optimizer = legacyga.wrap(inner, steps)
    after = home.apply_to(half, optimizer, fed[2:])[-1]
    assert int(home.value(optimizer.iterations)) == 4
    values_after, config_after, names_after = state_of(home, inner)
    assert_bits(values_after, values)
    assert (config_after, names_after) == (config, names)
    expected = Adam()
    weights = expected.update(double(START), fed[0], range(4))
    weights = expected.update(weights, fed[1], range(4))
    assert_close(after, applied(expected, fed[2:], steps, weights))


# ------------------------------------------------------------------------------------------------------ R7 one result


@pytest.mark.capability("R7 one result")
def test_sixty_runs_of_every_v1_optimizer_have_one_result(home):
    """Their bare selves race: on `iterations`, and between the reads and the writes of slots and parameters."""
    graph_only(home)
    random = np.random.RandomState(3)
    shapes = (40, 200), (200,), (200, 60), (60,)
    start = [random.randn(*shape).astype("float32") for shape in shapes]
    batches = [(random.randn(8, 40).astype("float32"), random.randn(8, 60).astype("float32")) for _ in range(4)]
    pairs = []
    for generation, cls in home.optimizer_classes():
        if generation == "v1":
            kwargs = dict(momentum=0.9) if cls.__name__ == "SGD" else {}
            if cls.__name__ != "Nadam":
                kwargs["decay"] = 0.1
            pairs.append((network(home, start), legacyga.wrap(make(home, cls, **kwargs), 2)))
    assert len(pairs) == 7
    step = home._graph_step(pairs)
    # Up to Keras 2.2 the schedule of Nadam is no weight of it.
    state = [[(each, home.value(each)) for each in all_variables(optimizer)] for _, optimizer in pairs]
    results = [set() for _ in pairs]
    for _ in range(60):
        for (model, _), values in zip(pairs, state):
            model.set_weights(start)
            home.backend.batch_set_value(values)
        for x, y in batches:
            step(x, y)
        for found, (model, _) in zip(results, pairs):
            found.add(b"".join(weight.tobytes() for weight in model.get_weights()))
    assert {type(optimizer).__name__: len(found) for (_, optimizer), found in zip(pairs, results)} == {
        type(optimizer).__name__: 1 for _, optimizer in pairs
    }


# ------------------------------------------------------------------------------------------------------- the surface


def set_rate(home, optimizer, name, value):
    """As users of the home set it: by a plain attribute; in graph mode, where it is a variable, in the backend."""
    current = getattr(optimizer, name)
    if home.mode == "graph" and (hasattr(current, "assign") or hasattr(current, "initializer")):
        home.backend.set_value(current, value)
    else:
        setattr(optimizer, name, value)


@pytest.mark.capability("wrap: surface")
def test_the_rate_is_read_and_written_as_on_the_bare_optimizer(home, adam):
    """Written in the middle of a window it takes effect at the update, as between two large batches."""
    fed = gradients_by_hand(6)
    names = [name for name in ("lr", "learning_rate") if hasattr(make(home, adam), name)]
    assert names
    for name in names:
        bare, ours = make(home, adam), legacyga.wrap(make(home, adam), 3)
        assert float(home.value(getattr(ours, name))) == float(home.value(getattr(bare, name))) == np.float32(RATE)
        start = START if home.mode == "graph" else home.variables(START)
        if home.mode == "graph":
            set_rate(home, ours, name, 0.0625)
            assert float(home.value(getattr(ours, name))) == 0.0625
            wanted = applied(Adam(0.0625), fed[:3], 3)
            assert_close(home.apply_to(start, ours, fed[:3])[-1], wanted)
            continue
        home.apply_to(start, ours, fed[:4])
        set_rate(home, ours, name, 0.0625)
        assert float(home.value(getattr(ours, name))) == 0.0625
        expected = Adam()
        weights = applied(expected, fed[:3], 3)
        expected.rate = 0.0625
        assert_close(home.apply_to(start, ours, fed[4:])[-1], applied(expected, fed[3:], 3, weights))


@pytest.mark.capability("wrap: surface")
def test_hyperparameters_read_as_on_the_bare_optimizer(home, adam):
    """And `name`, a sane `repr`, and a config that is the bare one's and two entries."""
    kwargs = dict(beta_1=0.75, beta_2=0.875, epsilon=0.125)
    bare = make(home, adam, **kwargs)
    ours = legacyga.wrap(bare, 3)
    config = ours.get_config()
    assert (config.pop("gradient_accumulation_steps"), config.pop("reduction")) == (3, "mean")
    wanted = bare.get_config()
    wanted.pop("gradient_accumulation_steps", None)
    assert config == wanted
    for name, value in kwargs.items():
        read = [getattr(each, name) for each in (ours, bare)]
        assert [float(each if isinstance(each, float) else home.value(each)) for each in read] == [value, value]
    for name in ("name", "_name", "clipnorm", "clipvalue", "amsgrad"):
        assert getattr(ours, name, "none") == getattr(bare, name, "none")
    assert "AccumulatingAdam" in repr(ours) and "AccumulatingAdam" in str(ours)
    if not home.is_keras3:
        assert home.keras.optimizers.get(ours) is ours
    assert ours.gradient_accumulation_steps == 3 and int(home.value(ours.mini_step)) == 0


@pytest.mark.capability("wrap: surface")
def test_weights_are_the_bare_ones_and_ours_after_them(home, adam):
    fed = gradients_by_hand(5)
    bare = make(home, adam)
    home.apply_to(START, bare, [[np.mean(each, axis=0) for each in zip(*fed[:3])]])
    ours = legacyga.wrap(make(home, adam), 3)
    home.apply_to(START, ours, fed)
    theirs, mine = variables_of(bare), variables_of(ours)
    for variable, wanted in zip(mine, theirs):
        assert tuple(variable.shape) == tuple(wanted.shape) and variable.dtype == wanted.dtype
        assert without_numbers(variable.name).split("/")[-1] == without_numbers(wanted.name).split("/")[-1]
        assert_close([home.value(variable)], [home.value(wanted)])
    # mini_step, weight, steps, the next window's steps, and an accumulator for each variable.
    assert_bits(
        [home.value(each) for each in mine[len(theirs) :]], [2, 2, 3, 3] + [a + b for a, b in zip(fed[3], fed[4])]
    )
    if not home.is_keras3 and not hasattr(bare, "get_weights"):
        return
    weights = home.optimizer_weights(ours)
    assert_bits(weights, [home.value(each) for each in mine])
    home.set_optimizer_weights(ours, [weight + 1 for weight in weights])
    assert_bits([home.value(each) for each in mine], [weight + 1 for weight in weights])


def goes_on(home, one, other, fed):
    """The weights that two optimizers of one state lead to."""
    return [home.apply_to(START, each, fed)[-1] for each in (one, other)]


@pytest.mark.capability("wrap: surface")
@pytest.mark.parametrize("way", ["from_config", "serialize"])
def test_a_config_is_enough_to_train_the_same(home, adam, way):
    fed = gradients_by_hand(6)
    ours = legacyga.wrap(make(home, adam, beta_1=0.75, clipvalue=0.5), 3, reduction="sum")
    if way == "from_config":
        again = type(ours).from_config(ours.get_config())
    else:
        optimizers = home.keras.optimizers
        described = optimizers.serialize(ours)
        again = optimizers.deserialize(described, custom_objects={"AccumulatingAdam": type(ours)})
    assert type(again) is type(ours) and again.get_config() == ours.get_config()
    one, other = goes_on(home, ours, again, fed)
    assert_bits(one, other)
    assert np.max(np.abs(one[0] - START[0])) > RATE


@pytest.mark.capability("wrap: surface")
def test_deepcopy_as_of_the_bare_optimizer(home, adam):
    """In mid-window, where the bare one's copy is of any use: it goes on alone, to the same weights."""
    fed = gradients_by_hand(6)

    def halfway(optimizer, number):
        start = START if home.mode == "graph" else home.variables(START)
        home.apply_to(start, optimizer, fed[:number])
        return optimizer, start

    bare, variables = halfway(make(home, adam), 2)
    error = error_of(copy.deepcopy, bare)
    ours, variables = halfway(legacyga.wrap(make(home, adam), 3), 2)
    if error:
        # In graph mode, and where the optimizer holds a strategy's threads.
        assert error_of(copy.deepcopy, ours) is not None
        return
    copied = copy.deepcopy(ours)
    assert type(copied) is type(ours) and copied.get_config() == ours.get_config()
    kept = [np.array(home.value(each)) for each in variables_of(ours)]
    if int(home.value(copy.deepcopy(bare).iterations)) == 0:
        # Keras 3 copies an optimizer by its config.
        assert int(home.value(copied.iterations)) == 0 and int(home.value(copied.mini_step)) == 0
        after = home.apply_to(home.variables(START), copied, fed[:3])[-1]
        assert_close(after, applied(Adam(), fed[:3], 3))
    else:
        after = home.apply_to(variables, copied, fed[2:])[-1]
        assert_close(after, applied(Adam(), fed, 3))
    assert_bits([home.value(each) for each in variables_of(ours)], kept)


@pytest.mark.capability("R8 change of K")
def test_a_change_of_k_waits_for_the_next_window(home, adam):
    """3, set to 2 in the middle: updates after 3, 5, 7; set to 1 in the next: 9, 10, 11."""
    model = network(home, START)
    optimizer = legacyga.wrap(make(home, adam), 3)
    step = home.step(model, optimizer)
    expected, weights, window, ends = Adam(), double(START), [], (3, 5, 7, 9, 10, 11)
    for i, (x, y) in enumerate(BATCHES[:11], 1):
        window.append(gradients(weights, x, y))
        step(x, y)
        if i in (1, 8):
            optimizer.gradient_accumulation_steps = 2 if i == 1 else 1
            assert optimizer.gradient_accumulation_steps == (2 if i == 1 else 1)
        if i in ends:
            weights = expected.update(weights, [np.mean(each, axis=0) for each in zip(*window)], range(4))
            del window[:]
        assert_close(model.get_weights(), weights)
    assert int(home.value(optimizer.iterations)) == len(ends)
