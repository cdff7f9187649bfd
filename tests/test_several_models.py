"""Several optimizers in one training, several models with one optimizer, and variables that come later."""

import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
from dense import (
    BATCH,
    BATCHES,
    NO_TEXT,
    RATE,
    START,
    assert_alike_errors,
    assert_close,
    compiled,
    error_of,
    make,
    refuses_new_variables,
    train,
)
from homes import generation_of, variables_of
from needs import eager_only, graph_only
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("ways to train")
RANDOM = np.random.RandomState(23)


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "adam", "Adam")
    kinds.parametrize(metafunc, "sgd", "SGD")


@pytest.fixture
def fresh(home):
    needs.wrap(home)
    home.reset(plain_session=True)


NOISE = [RANDOM.randn(BATCH, 2).astype("float32") for _ in range(12)]
REAL = [RANDOM.randn(BATCH, 5).astype("float32") for _ in range(12)]
ONES, ZEROS = np.ones((BATCH, 1), "float32"), np.zeros((BATCH, 1), "float32")
GENERATOR = [RANDOM.randn(*shape).astype("float32") for shape in ((2, 5), (5,))]
CRITIC = [RANDOM.randn(*shape).astype("float32") for shape in ((5, 4), (4,), (4, 1), (1,))]


def expected_gan():
    """12 rounds of a critic's mini-step (Adam, K = 2) and a generator's (momentum, K = 3), squared errors."""
    generator, critic = oracle.double(GENERATOR), oracle.double(CRITIC)
    with_critic = oracle.Accumulated(oracle.Adam(RATE), 2)
    with_generator = oracle.Accumulated(oracle.SGD(RATE, momentum=0.9), 3)
    for noise, real in zip(NOISE, REAL):
        fake = np.tanh(noise.dot(generator[0]) + generator[1])
        found = oracle.gradients(critic, np.concatenate([real, fake]), np.concatenate([ONES, ZEROS]))
        critic = with_critic.mini_step(critic, found, range(4))
        found = oracle.gradients(generator + critic, noise, ONES)[:2]
        generator = with_generator.mini_step(generator, found, range(2))
    return generator, critic


def make_gan(home, adam, sgd):
    """A generator and its optimizer, with K = 3; a critic and its optimizer, with K = 2."""
    if generation_of(adam) != generation_of(sgd):
        skips.senseless("one generation at a time")
    generator = home.network(GENERATOR, tanh_at_the_end=True)
    critic = home.network(CRITIC)
    with_critic = legacyga.wrap(make(home, adam), 2)
    return generator, legacyga.wrap(make(home, sgd, momentum=0.9), 3), critic, with_critic


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
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


@pytest.mark.parametrize("traced", [True, False], ids=["tf.function", "eager"])
@pytest.mark.usefixtures("fresh")
@pytest.mark.long
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


@pytest.mark.usefixtures("fresh")
@pytest.mark.long
def test_two_optimizers_in_one_model(home, adam, sgd):
    """The first layer by momentum with K = 2, the second by Adam with K = 3, in turns."""
    if generation_of(adam) != generation_of(sgd):
        skips.senseless("one generation at a time")
    model = home.network(START)
    optimizers = legacyga.wrap(make(home, sgd, momentum=0.9), 2), legacyga.wrap(make(home, adam), 3)
    steps = [half_step(home, model, optimizer, layer) for layer, optimizer in enumerate(optimizers)]
    weights = oracle.double(START)
    wanted = oracle.Accumulated(oracle.SGD(RATE, momentum=0.9), 2), oracle.Accumulated(oracle.Adam(RATE), 3)
    for x, y in BATCHES:
        for i, names in enumerate(([0, 1], [2, 3])):
            steps[i](x, y)
            found = oracle.gradients(weights, x, y)[2 * i : 2 * i + 2]
            weights[2 * i : 2 * i + 2] = wanted[i].mini_step(weights[2 * i : 2 * i + 2], found, names)
    assert_close(model.get_weights(), weights)
    assert [int(home.value(each.iterations)) for each in optimizers] == [6, 4]


@pytest.mark.usefixtures("fresh")
@pytest.mark.long
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
    expected = oracle.Accumulated(oracle.Adam(RATE), 3)
    weights = {"a": oracle.double(START), "b": oracle.double(other)}
    for name, batches in (("a", BATCHES[:5]), ("b", BATCHES[5:9]), ("a", BATCHES[9:]), ("b", BATCHES[:2])):
        for x, y in batches:
            found = oracle.gradients(weights[name], x, y)
            weights[name] = expected.mini_step(weights[name], found, [name + str(i) for i in range(4)])
    assert_close(first.get_weights(), weights["a"])
    assert_close(second.get_weights(), weights["b"])
    assert int(home.value(optimizer.iterations)) == 4


@pytest.mark.capability("errors")
@pytest.mark.parametrize("way", [slow("train_on_batch"), "by hand"])
@pytest.mark.usefixtures("fresh")
def test_variables_that_the_bare_optimizer_refuses(home, adam, way):
    """The same error, at the same mini-step, and no variables made for them."""
    if not refuses_new_variables(adam):
        skips.senseless("optimizers of this generation train any variables")

    def error(optimizer):
        train(compiled(home, optimizer), BATCHES[:2])
        before = len(variables_of(optimizer))
        start = [weight[:, :2] for weight in START[2:3]] + [START[3][:2]]
        model = home.network(start, names=["other"])
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
        assert_alike_errors(ours, bare)
        # The rest is the lines of code that led there, and the variable, with or without its value.
        if bare[1] != NO_TEXT:
            assert ours[1].replace("AccumulatingOptimizer", "Adam")[-60:] == bare[1][-60:]


def test_two_models_with_an_optimizer_each(home):
    starts = [START, [0.5 * w for w in START]]
    pairs = [
        (home.network(start), legacyga.MySGD(lr=0.1, momentum=0.9, steps_per_update=steps, keras=home.keras))
        for start, steps in zip(starts, (2, 5))
    ]
    taken = [home.graph_step(pairs)] if home.mode == "graph" else [home.step(*pair, traced=False) for pair in pairs]
    for i, batch in enumerate(BATCHES):
        for step in taken:
            step(*batch)
        for (model, _), start, steps in zip(pairs, starts, (2, 5)):
            sgd = oracle.SGD(lr=0.1, momentum=0.9)
            assert_close(model.get_weights(), oracle.train(oracle.double(start), BATCHES, steps, sgd)[i])
