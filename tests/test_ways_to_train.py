"""fit, train_on_batch, loops of one's own, run eagerly, in functions, compiled by XLA, several steps an execution."""

import inspect

import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
import tf1
from dense import BATCHES, RATE, START, assert_close, compiled, error_of, fit, make, trained
from fixture_cases import BATCHES as FIXTURE_BATCHES
from fixture_cases import EXPECTED, MAX_NORM, MINI_STEPS, distance, mysgd, of_home, some_cases
from fixture_cases import START as FIXTURE_START
from make_fixtures import BATCH, flat, name_of
from needs import eager_only

import legacyga

pytestmark = pytest.mark.capability("ways to train")


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "adam", "Adam")


@pytest.fixture
def fresh(home):
    needs.wrap(home)
    home.reset(plain_session=True)


# MySGD, against the fixtures


def compiled_case(home, case, **kwargs):
    model = home.network(FIXTURE_START, MAX_NORM if case["max_norm"] else None)
    model.compile(optimizer=mysgd(home, of_home(home, case)), loss="mse", **kwargs)
    return model


def assert_trained(model, home, case):
    assert distance(flat(model.get_weights()), EXPECTED[name_of(of_home(home, case))][-1]) <= 4e-6
    assert int(home.value(model.optimizer.iterations)) == MINI_STEPS // case["steps"]


@some_cases
def test_fit(home, case):
    model = compiled_case(home, case)
    x, y = np.concatenate(EXPECTED["x"]), np.concatenate(EXPECTED["y"])
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    assert_trained(model, home, case)


@some_cases
def test_train_on_batch(home, case):
    model = compiled_case(home, case)
    for i, (x, y) in enumerate(FIXTURE_BATCHES):
        model.train_on_batch(x, y)
        assert distance(flat(model.get_weights()), EXPECTED[name_of(of_home(home, case))][i]) <= 4e-6
    assert_trained(model, home, case)


@some_cases
def test_run_eagerly_of_mysgd(home, case):
    eager_only(home)
    model = compiled_case(home, case, run_eagerly=True)
    x, y = np.concatenate(EXPECTED["x"]), np.concatenate(EXPECTED["y"])
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    assert_trained(model, home, case)


@some_cases
@pytest.mark.long
def test_steps_per_execution_of_mysgd(home, case):
    eager_only(home, since=(2, 4))
    # 5 divides neither the 24 mini-steps nor a window.
    model = compiled_case(home, case, steps_per_execution=5)
    x, y = np.concatenate(EXPECTED["x"]), np.concatenate(EXPECTED["y"])
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    assert_trained(model, home, case)


@pytest.mark.parametrize("loop", ["a call a batch", "the loop inside"])
@some_cases
@pytest.mark.long
def test_custom_loop_in_tf_function(home, case, loop):
    eager_only(home)
    tf, case = home.tf, of_home(home, case)
    model = home.network(FIXTURE_START, MAX_NORM if case["max_norm"] else None)
    optimizer = mysgd(home, case)
    if home.is_keras3:
        optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    if loop == "a call a batch":
        traced = tf.function(step)
        for x, y in FIXTURE_BATCHES:
            traced(tf.constant(x), tf.constant(y))
    else:
        dataset = tf.data.Dataset.from_tensor_slices((EXPECTED["x"], EXPECTED["y"]))

        @tf.function
        def epoch():
            for x, y in dataset:
                step(x, y)

        epoch()
    assert distance(flat(model.get_weights()), EXPECTED[name_of(case)][-1]) <= 4e-6
    assert int(optimizer.iterations) == MINI_STEPS // case["steps"]


# wrap


def jit(home, function):
    """`function` compiled by XLA; skips where this TensorFlow has no name for that."""
    arguments = inspect.signature(home.tf.function).parameters
    for name in ("jit_compile", "experimental_compile"):
        if name in arguments:
            return home.tf.function(function, **{name: True})
    skips.keras_lacks("tf.function compiles with XLA from TF 2.1 on")


@pytest.mark.usefixtures("fresh")
def test_jit_compile_in_a_custom_loop(home, adam):
    eager_only(home)
    bare = jit(home, home.step(home.network(START), make(home, adam), traced=False))
    error = error_of(bare, *BATCHES[0])
    if error:
        skips.keras_lacks("XLA does not compile the bare optimizer in that version: {}".format(error[0].__name__))
    model = home.network(START)
    step = jit(home, home.step(model, legacyga.wrap(make(home, adam), 3), traced=False))
    for x, y in BATCHES:
        step(home.tf.constant(x), home.tf.constant(y))
    assert_close(model.get_weights(), trained(BATCHES, 3))


@pytest.mark.usefixtures("fresh")
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


@pytest.mark.usefixtures("fresh")
def test_run_eagerly(home, adam):
    eager_only(home)
    model = compiled(home, legacyga.wrap(make(home, adam), 3), run_eagerly=True)
    fit(model, BATCHES)
    assert_close(model.get_weights(), trained(BATCHES, 3))


@pytest.mark.usefixtures("fresh")
def test_steps_per_execution(home, adam):
    """4 mini-steps an execution, more than K and then, with K set anew, fewer; and no multiple of it."""
    eager_only(home, since=(2, 4))
    model = compiled(home, legacyga.wrap(make(home, adam), 3), steps_per_execution=4)
    expected = oracle.Adam(RATE)
    fit(model, BATCHES)
    half = trained(BATCHES, 3, expected)
    assert_close(model.get_weights(), half)
    assert int(model.optimizer.iterations) == 4
    model.optimizer.gradient_accumulation_steps = 6
    fit(model, BATCHES)
    assert_close(model.get_weights(), trained(BATCHES, 6, expected, half))
    assert int(model.optimizer.iterations) == 4 + 2


@pytest.mark.usefixtures("fresh")
def test_the_loop_over_a_dataset_in_one_function(home, adam):
    eager_only(home)
    tf = home.tf
    model = home.network(START)
    optimizer = legacyga.wrap(make(home, adam), 3)
    step = home.step(model, optimizer, traced=False)
    dataset = tf.data.Dataset.from_tensor_slices(tuple(np.stack(each) for each in zip(*BATCHES)))

    @tf.function
    def epoch():
        for x, y in dataset:
            step(x, y)

    epoch()
    assert_close(model.get_weights(), trained(BATCHES, 3))


def test_fit_of_tf_keras_with_a_tf_train_optimizer(home):
    """compile puts a cover of its own on such an optimizer."""
    tf1.graph_only(home)
    if home.name == "keras":
        skips.keras_lacks("standalone Keras takes no optimizer of tf.train")
    weights = []
    for steps, batch in ((1, 12), (3, 4)):
        home.reset()
        model = home.network(
            [np.random.RandomState(i).randn(*s).astype("float32") for i, s in enumerate(((5, 4), (4,), (4, 2), (2,)))]
        )
        optimizer = tf1.make(home, "AdamOptimizer")
        model.compile(loss="mse", optimizer=legacyga.wrap(optimizer, steps) if steps > 1 else optimizer)
        start = model.get_weights()
        model.fit(tf1.X, tf1.Y, batch_size=batch, epochs=3, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for now, wanted, before in zip(weights[1], weights[0], start):
        assert np.max(np.abs(now - wanted)) <= 2e-6 * np.max(np.abs(wanted - before))
