"""R11: a variable without a gradient is left as the bare optimizer leaves it, with the same warning."""

import contextlib
import logging
import warnings

import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
import tf1
from dense import RATE, START, assert_bits, assert_close, error_of, make, without_numbers
from homes import v1_of
from needs import eager_only, graph_only
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R11 no gradient")
RANDOM = np.random.RandomState(23)


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "adam", "Adam")


@pytest.fixture(autouse=True)
def fresh(home):
    needs.wrap(home)
    home.reset(plain_session=True)


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


def without_second(home, optimizer, variables, traced):
    """A step that takes a gradient for each variable, and gives the optimizer None for the second one."""

    def step(*gradients):
        pairs = list(zip(gradients, variables))
        optimizer.apply_gradients([pairs[0], (None, variables[1])] + pairs[2:])

    return home.tf.function(step) if traced else step


@pytest.mark.parametrize("traced", [True, slow(False)], ids=["tf.function", "eager"])
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

        step = without_second(home, optimizer, variables, traced)
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


@pytest.mark.parametrize("traced", [True, slow(False)], ids=["tf.function", "eager"])
@pytest.mark.parametrize("by", ["apply_gradients", "apply", "_backend_update_step"])
def test_an_update_of_ones_own_that_treats_none_apart(home, adam, by, traced):
    """A class whose method decays the variables with a gradient, and divides the gradients by their number.

    Keras 3's `_backend_update_step` may give all variables to one `update_step`.
    """
    eager_only(home)
    tf, stock = home.tf, type(make(home, adam))
    if not hasattr(stock, by):
        skips.keras_lacks(by)
    fed = [[RANDOM.randn(*each.shape).astype("float32") for each in START] for _ in range(4)]
    means = [[np.mean(each, axis=0) for each in zip(*fed[i : i + 2])] for i in (0, 2)]

    def decayed(pairs):
        pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        for _, variable in pairs:
            variable.assign_sub(0.1 * variable)
        return [(gradient / len(pairs), variable) for gradient, variable in pairs]

    class Own(stock):
        if by == "apply_gradients":

            def apply_gradients(self, grads_and_vars, *args, **kwargs):
                return super(Own, self).apply_gradients(decayed(grads_and_vars), *args, **kwargs)

        elif by == "apply":

            def apply(self, grads, trainable_variables=None, **kwargs):
                grads, variables = zip(*decayed(zip(grads, trainable_variables)))
                return super(Own, self).apply(list(grads), list(variables), **kwargs)

        else:

            def _backend_update_step(self, grads, trainable_variables, learning_rate):
                self.update_step(grads, trainable_variables, learning_rate)

            def update_step(self, gradient, variable, learning_rate):
                for each in decayed(zip(gradient, variable)):
                    super(Own, self).update_step(each[0], each[1], learning_rate)

    def run(optimizer, updates):
        variables = home.variables(START)
        if hasattr(optimizer, "build"):
            optimizer.build(variables)

        step = without_second(home, optimizer, variables, traced)
        for each in updates:
            step(*[tf.constant(gradient) for gradient in each])
        return [variable.numpy() for variable in variables]

    bare = run(Own.from_config(make(home, adam).get_config()), means)
    ours = run(legacyga.wrap(Own.from_config(make(home, adam).get_config()), 2), fed)
    assert_bits(ours[1], START[1])
    assert_close(ours, bare)


def test_an_update_of_ones_own_in_tensorflow_1(home):
    """The same for a subclass of an optimizer of tf.compat.v1.train, traced."""
    eager_only(home)
    tf, stock = home.tf, home.v1.train.GradientDescentOptimizer
    if home.name == "keras":
        skips.senseless("tested with tf.keras")

    class Decays(stock):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
            for _, variable in pairs:
                variable.assign_sub(0.5 * variable)
            return super(Decays, self).apply_gradients(pairs, global_step, name)

    used, unused = tf.Variable([4.0]), tf.Variable([4.0])
    optimizer = legacyga.wrap(Decays(0.5), 2)
    step = tf.function(lambda: optimizer.apply_gradients([(tf.constant([2.0]), used), (None, unused)]))
    step(), step()
    assert (used.numpy(), unused.numpy()) == (1.0, 4.0)


@pytest.mark.parametrize("steps", [slow(1), 3])
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
    expected, wanted, history = oracle.Adam(RATE), oracle.double(START), []
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


@pytest.mark.parametrize("steps", [slow(1), 3])
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
        assert ours[0][0] is bare[0][0]
        told, words = without_numbers(ours[0][1]), without_numbers(bare[0][1])
        # Keras 2.0 leaves it to TensorFlow, which names the operation's argument too, where it has one.
        assert told == words or home.is_standalone_before(2, 1) and told.endswith("Error: " + words)
    else:
        assert ours[0] is None and len(ours[1]) == len(bare[1])


def test_variables_without_gradient_in_an_optimizer_of_tensorflow_1(home):
    tf1.in_the_run_of_tf_keras(home)

    def train(wrapped):
        tf = home.tf
        if home.mode == "eager":
            used, unused = tf.Variable(tf1.START[1]), tf.Variable(tf1.START[1])
            optimizer = tf1.make(home, "AdamOptimizer")
            optimizer = legacyga.wrap(optimizer, 2) if wrapped else optimizer
            for each in tf1.GRADIENTS[:4] if wrapped else tf1.means(2)[:2]:
                optimizer.apply_gradients([(tf.constant(each[1]), used), (None, unused)])
            return [used.numpy(), unused.numpy()]
        with tf1.graph_of_its_own(home) as (v1, session):
            used, unused = (
                v1.get_variable("used", initializer=tf1.START[1]),
                v1.get_variable("unused", initializer=tf1.START[1]),
            )
            fed = v1.placeholder("float32", (4,))
            optimizer = tf1.make(home, "AdamOptimizer")
            optimizer = legacyga.wrap(optimizer, 2) if wrapped else optimizer
            step = optimizer.minimize(tf.reduce_sum(fed * used))
            session.run(v1.global_variables_initializer())
            for each in tf1.GRADIENTS[:4] if wrapped else tf1.means(2)[:2]:
                session.run(step, {fed: each[1]})
            return session.run([used, unused])

    for now, wanted in zip(train(True), train(False)):
        np.testing.assert_allclose(now, wanted, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(train(True)[1], tf1.START[1])
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer = legacyga.wrap(tf1.make(home, "AdamOptimizer"), 2)
        with home.tf.Graph().as_default() if home.mode == "graph" else home.tf.init_scope():
            optimizer.apply_gradients([(None, v1_of(home.tf).Variable(tf1.START[1]))])


DIVIDED = (
    "For each list of variables an optimizer that accumulates has a window of its own, with K mini-steps of its own. "
    "Received: two lists that share variables, of {} and of {} variables, whose windows have both begun and not ended. "
    "If lists take turns, give all variables each time, in one order, with None for those that have no gradient. If "
    "you freeze variables during a window, first call legacyga.flush(optimizer) or optimizer.drop_windows()."
)


def lists_of(case, variables):
    """Two lists that take turns, without those that have no gradient."""
    first, second = variables[:2], [variables[0], variables[2]]
    if case == "another order":
        second = first[::-1]
    elif case == "nothing shared":
        first, second = [variables[0]], variables[1:]
    return first, second


@pytest.mark.parametrize("traced", [slow(False), True], ids=["eager", "traced"])
@pytest.mark.parametrize("case", [slow("filtered"), slow("another order"), slow("nothing shared"), "None is given"])
def test_lists_that_take_turns(home, adam, case, traced):
    """Each list is a window: where two share variables it is said, once. All variables, with None, are one list."""
    eager_only(home)
    tf, start = home.tf, [np.zeros(2, "float32")] * 3
    optimizer = legacyga.wrap(make(home, adam), 3)
    is_train = kinds.generation_of(adam) == "train"
    variables = [tf.Variable(each) for each in start] if is_train else home.variables(start)
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    def step_of(task):
        mine = lists_of(case, variables)[task]

        def step(gradient):
            if case == "None is given":
                given = zip((gradient, None, gradient) if task else (gradient, gradient, None), variables)
            else:
                given = [(gradient, each) for each in mine]
            optimizer.apply_gradients(given)

        return tf.function(step) if traced else step

    steps = [step_of(0), step_of(1)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(8):
            steps[i % 2](tf.constant([1.0, 2.0 + i]))
    found = [str(each.message) for each in caught if "a window of its own" in str(each.message)]
    assert found == ([DIVIDED.format(2, 2)] if case in ("filtered", "another order") else [])


def test_a_list_that_is_shortened_with_a_window_open(home, adam):
    """As by freezing a layer: said once; not where the window was ended or dropped before, and not in later windows."""
    eager_only(home)
    for ends in ("end_windows", "drop_windows", None):
        optimizer = legacyga.wrap(make(home, adam), 3)
        start = [np.zeros(2, "float32")] * 3
        is_train = kinds.generation_of(adam) == "train"
        variables = [home.tf.Variable(each) for each in start] if is_train else home.variables(start)
        if hasattr(optimizer, "build"):
            optimizer.build(variables)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for i in range(9):
                if i == 4 and ends:
                    getattr(optimizer, ends)()
                optimizer.apply_gradients([(home.tf.ones(2), each) for each in variables[: 3 if i < 4 else 2]])
        found = [str(each.message) for each in caught if "a window of its own" in str(each.message)]
        assert found == ([] if ends else [DIVIDED.format(2, 3)])
