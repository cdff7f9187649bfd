"""R7: the same run gives the same bits, in TensorFlow 1 graphs with default threading too."""

import needs
import numpy as np
import oracle
import pytest
import skips
import tf1
from dense import make
from fixture_cases import BATCHES, EXPECTED, MAX_NORM, START, mysgd
from homes import variables_of
from make_fixtures import BATCH, flat
from needs import graph_only
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R7 one result")


@pytest.mark.parametrize("way", ["by hand", "fit"])
@pytest.mark.long
def test_a_hundred_runs_have_one_result(home, way):
    """100 runs of 24 mini-steps with all that could race: decay, momentum, the norm of all gradients, a constraint."""
    case = dict(steps=2, momentum=0.9, nesterov=True, decay=0.1, clip=home.clipnorm_means, max_norm=True)
    home.reset()
    if way == "by hand":
        model = home.network(START, MAX_NORM)
        optimizer = mysgd(home, case)
        step = home.step(model, optimizer)

        def train():
            for x, y in BATCHES:
                step(x, y)
    else:
        model = home.network(START, MAX_NORM)
        optimizer = mysgd(home, case)
        model.compile(optimizer=optimizer, loss="mse")
        x, y = np.concatenate(EXPECTED["x"]), np.concatenate(EXPECTED["y"])

        def train():
            model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)

    train()
    state = home.optimizer_weights(optimizer)
    results = set()
    for _ in range(100):
        model.set_weights(START)
        home.set_optimizer_weights(optimizer, state)
        train()
        results.add(flat(model.get_weights()).tobytes())
    assert len(results) == 1 and results != {flat(START).tobytes()}


def all_variables(optimizer):
    """The variables that are an optimizer's weights, and those that are on it by a name alone.

    Nadam of TF 1.14 keeps an assignment, too: to read it is to make it.
    """
    weights = variables_of(optimizer)
    named = [each for each in vars(optimizer).values() if hasattr(each, "assign") and hasattr(each, "read_value")]
    named = [each for each in named if type(each).__name__ != "_UnreadVariable"]
    return weights + [each for each in named if all(each is not weight for weight in weights)]


@pytest.mark.long
def test_sixty_runs_of_every_v1_optimizer_have_one_result(home):
    """Their bare selves race: on `iterations`, and between the reads and the writes of slots and parameters."""
    graph_only(home)
    needs.wrap(home)
    home.reset(plain_session=True)
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
            pairs.append((home.network(start), legacyga.wrap(make(home, cls, **kwargs), 2)))
    assert len(pairs) == 7
    step = home.graph_step(pairs)
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
    at_start = b"".join(weight.tobytes() for weight in start)
    assert not any(at_start in found for found in results)
    assert {type(optimizer).__name__: len(found) for (_, optimizer), found in zip(pairs, results)} == {
        type(optimizer).__name__: 1 for _, optimizer in pairs
    }


def decaying(home, stock):
    """A subclass whose decay of a variable waits for no gradient, as that of contrib's MomentumWOptimizer."""

    def with_decay(name):
        def apply(self, grad, var, *args, **kwargs):
            with home.tf.control_dependencies([var.assign_sub(0.05 * var)]):
                return getattr(super(Decaying, self), name)(grad, var, *args, **kwargs)

        return apply

    Decaying = type("Decaying", (stock,), {})
    for name in ("_apply_dense", "_resource_apply_dense"):
        if hasattr(stock, name):
            setattr(Decaying, name, with_decay(name))
    return Decaying


@pytest.mark.parametrize("steps", (slow(1), 3))
def test_a_decay_that_needs_no_gradient(home, steps):
    """OptimizerV2 in graph mode: the forward pass and the gradients read each variable before it decays."""
    graph_only(home)
    stock = [cls for generation, cls in home.optimizer_classes() if generation == "v2" and cls.__name__ == "SGD"]
    if not stock:
        skips.keras_lacks("an OptimizerV2")
    random = np.random.RandomState(5)
    start = [random.randn(*shape).astype("float32") for shape in ((64, 64), (64,), (64, 64), (64,))]
    x, y = [random.randn(8, 64).astype("float32") for _ in range(2)]
    home.reset(plain_session=True)
    model = home.network(start)
    step, results = (
        home.graph_step([(model, legacyga.wrap(decaying(home, stock[0])(learning_rate=0.03), steps))]),
        set(),
    )
    for _ in range(30):
        model.set_weights(start)
        for _ in range(2 * steps):
            step(x, y)
        results.add(b"".join(weight.tobytes() for weight in model.get_weights()))
    weights = oracle.double(start)
    for _ in range(2):
        weights = [0.95 * each - 0.03 * by for each, by in zip(weights, oracle.gradients(weights, x, y))]
    assert len(results) == 1
    for now, then in zip(model.get_weights(), weights):
        np.testing.assert_allclose(now, then, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("kind", ("AdamOptimizer", "decay"))
@pytest.mark.parametrize("steps", (1, 3))
def test_thirty_runs_give_one_result(home, steps, kind):
    tf1.graph_only(home)
    random = np.random.RandomState(5)
    wide = [random.randn(64, 64).astype("float32") for _ in range(4)]
    with tf1.graph_of_its_own(home) as (v1, session):
        hidden = fed = v1.placeholder("float32", (None, 64))
        for i, value in enumerate(wide):
            hidden = home.tf.tanh(home.tf.matmul(hidden, v1.get_variable("w{}".format(i), initializer=value)))
        cls = v1.train.AdamOptimizer if kind == "AdamOptimizer" else decaying(home, v1.train.MomentumOptimizer)
        optimizer = legacyga.wrap(cls(0.01, 0.9), steps)
        train = optimizer.minimize(home.tf.reduce_mean(home.tf.square(hidden - fed)))
        variables, initializer, results = v1.trainable_variables(), v1.global_variables_initializer(), set()
        for _ in range(30):
            session.run(initializer)
            for i in range(2 * steps):
                session.run(train, {fed: wide[i % 4][:8]})
            results.add(b"".join(value.tobytes() for value in session.run(variables)))
    assert len(results) == 1 and results != {b"".join(value.tobytes() for value in wide)}
