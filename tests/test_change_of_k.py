"""R8: a change of K takes effect at the next window."""

import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
import tf1
from dense import BATCHES, RATE, START, assert_close, gradients_by_hand, make
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R8 change of K")


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "adam", "Adam")


def test_a_change_of_k_waits_for_the_next_window(home, adam):
    """3, set to 2 in the middle: updates after 3, 5, 7; set to 1 in the next: 9, 10, 11."""
    needs.wrap(home)
    home.reset(plain_session=True)
    model = home.network(START)
    optimizer = legacyga.wrap(make(home, adam), 3)
    step = home.step(model, optimizer)
    expected, weights, window, ends = oracle.Adam(RATE), oracle.double(START), [], (3, 5, 7, 9, 10, 11)
    for i, (x, y) in enumerate(BATCHES[:11], 1):
        window.append(oracle.gradients(weights, x, y))
        step(x, y)
        if i in (1, 8):
            optimizer.gradient_accumulation_steps = 2 if i == 1 else 1
            assert optimizer.gradient_accumulation_steps == (2 if i == 1 else 1)
        if i in ends:
            weights = expected.update(weights, [np.mean(each, axis=0) for each in zip(*window)], range(4))
            del window[:]
        assert_close(model.get_weights(), weights)
    assert int(home.value(optimizer.iterations)) == len(ends)


def test_a_change_of_mysgds_k(home):
    home.reset()
    model = home.network(START)
    optimizer = legacyga.MySGD(lr=0.1, momentum=0.9, steps_per_update=4, keras=home.keras)
    step = home.step(model, optimizer)
    sgd = oracle.SGD(lr=0.1, momentum=0.9)
    weights, window = [w.astype("float64") for w in START], []
    # K as it is set before each mini-step, and where windows end: 4, then 2, 2 (set within the first), 1, 3.
    setting = {2: 2, 8: 1, 9: 3}
    ends = [3, 5, 7, 8, 11]
    for i, (x, y) in enumerate(BATCHES):
        if i in setting:
            optimizer.gradient_accumulation_steps = setting[i]
            assert optimizer.gradient_accumulation_steps == setting[i]
        step(x, y)
        window.append(oracle.gradients(weights, x, y))
        if i in ends:
            weights, window = sgd.update(weights, [np.mean(g, axis=0) for g in zip(*window)]), []
        assert_close(model.get_weights(), weights)
    assert int(home.value(optimizer.iterations)) == len(ends)


def test_a_change_of_k_of_an_optimizer_of_tensorflow_1(home):
    tf1.graph_only(home)
    with tf1.graph_of_its_own(home) as (v1, session):
        weight = v1.get_variable("w", initializer=np.float32(0))
        fed = v1.placeholder("float32", ())
        optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(1.0), 2)
        train = optimizer.minimize(fed * weight)
        at_one = legacyga.wrap(v1.train.GradientDescentOptimizer(1.0), 1)
        at_one.minimize(fed * weight)
        session.run(v1.global_variables_initializer())
        v1.get_default_graph().finalize()
        seen = []
        for i, steps in enumerate((None, 4, None, None, 1, None, None, None)):
            if steps:
                optimizer.gradient_accumulation_steps = steps
            session.run(train, {fed: 2.0**i})
            seen.append(float(session.run(weight)))
        with pytest.raises(ValueError, match="accumulation_steps was 1 at .* Received: 2"):
            at_one.gradient_accumulation_steps = 2
    assert seen == [0, -1.5, -1.5, -1.5, -1.5, -16.5, -80.5, -208.5]
    with pytest.raises(ValueError, match="accumulation_steps to 5 in graph mode needs a default .* Received: None"):
        optimizer.gradient_accumulation_steps = 5


@pytest.mark.parametrize("sparse", [slow(False), True], ids=["dense", "rows"])
def test_what_a_window_left_is_gone_after_updates_at_1(home, adam, sparse):
    """K = 3, 1, 2: at K = 1 nothing is stored, and a variable without gradient then and next must not find old sums."""
    needs.eager_only(home)
    tf, random = home.tf, np.random.RandomState(12)
    start = [random.randn(4, 2).astype("float32"), random.randn(3).astype("float32")]
    optimizer = legacyga.wrap(make(home, adam), 3)
    variables = home.variables(start)
    if home.is_keras3:
        optimizer.build(variables)

    def step(rows, vector):
        given = None if rows is None else tf.constant(rows)
        if rows is not None and sparse:
            given = tf.IndexedSlices(tf.constant(rows), tf.range(4), tf.constant([4, 2]))
        optimizer.apply_gradients(zip([given, tf.constant(vector)], variables))

    expected, weights = oracle.Adam(RATE), oracle.double(start)
    for steps, blanks in ((3, ()), (1, (0,)), (2, (0,)), (2, (1,)), (1, ()), (3, (0, 1))):
        optimizer.gradient_accumulation_steps = steps
        given = [[random.randn(*value.shape).astype("float32") for value in start] for _ in range(steps)]
        for i in blanks:
            given[i][0] = None
        for each in given:
            step(*each)
        sums = [
            sum([each[i] for each in given if each[i] is not None], np.zeros(value.shape))
            for i, value in enumerate(start)
        ]
        places = [i for i in range(2) if any(each[i] is not None for each in given)]
        means = [sums[i] / steps for i in places]
        for i, value in zip(places, expected.update([weights[i] for i in places], means, places)):
            weights[i] = value
        assert_close([home.value(each) for each in variables], weights)


def test_k_is_raised_after_a_build_at_one(home, adam):
    """As a schedule does where fit builds the optimizer first."""
    needs.wrap(home)
    optimizer = legacyga.wrap(make(home, adam), 1)
    build = getattr(optimizer, "build", None) or getattr(optimizer, "_create_all_weights", None)
    if home.mode == "graph" or build is None:
        skips.keras_lacks("optimizers that nobody builds before they train")
    variables = home.variables(START)
    build(variables)
    optimizer.gradient_accumulation_steps = 2
    fed = gradients_by_hand(4)
    weights, expected = oracle.double(START), oracle.Adam(RATE)
    for window in (fed[:2], fed[2:]):
        weights = expected.update(weights, [np.mean(each, axis=0) for each in zip(*window)], range(4))
    assert_close(home.apply_to(variables, optimizer, fed)[-1], weights)


@pytest.mark.capability("R4 per update")
def test_clipping_where_k_was_raised_from_1(home):
    """Before training: clipping acts on the mean, as where K was larger from the start."""
    needs.wrap(home)
    ends = []
    for begun_with in (1, 2):
        home.reset()
        optimizer = legacyga.wrap(home.bare_sgd(lr=1.0, clipvalue=1.0), begun_with)
        optimizer.gradient_accumulation_steps = 2
        inputs = home.keras.layers.Input((1,))
        outputs = home.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs)
        model = home.keras.models.Model(inputs, outputs)
        model.compile(optimizer, "mse")
        model.fit(np.ones((2, 1)), np.array([[3.0], [-2.0]]), batch_size=1, shuffle=False, verbose=0)
        ends.append(float(model.get_weights()[0][0, 0]))
    # Gradients of -6 and 4, whose mean is -1.
    assert ends == [1.0, 1.0]
