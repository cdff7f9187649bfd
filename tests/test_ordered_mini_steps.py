"""Several mini-steps that one run of a TensorFlow 1 graph takes: one after the other, each counted, none lost."""

import kinds
import numpy as np
import pytest
import skips
import users

import legacyga

pytestmark = pytest.mark.capability("R5 phase")

RUNS = 20
# Wide enough for two mini-steps that nothing orders to meet, and many.
SHAPE, NUMBER = (64, 64), 4
# By K: what is fed in each run to the first loss and to the second. The gradients are these, everywhere.
# Which of a run's two comes first is open: where a window ends between them they are alike.
FED = {2: [(2.0, 8.0), (4.0, 16.0), (1.0, 32.0)], 3: [(3.0, 6.0), (9.0, 9.0), (15.0, 3.0)]}
RATE = 0.5


def sgds(home):
    """MySGD and a wrapped SGD of each generation, without momentum, by functions of K."""
    found = [("MySGD", lambda steps: legacyga.MySGD(RATE, steps_per_update=steps, keras=home.keras))]
    for kind in kinds.of(home):
        if kind.cls and kind.cls.__name__ in ("SGD", "MomentumOptimizer"):
            found.append((kind.id, lambda steps, kind=kind: legacyga.wrap(users.make(kind, kind.cls, RATE), steps)))
    return found


def pytest_generate_tests(metafunc):
    if "sgd" in metafunc.fixturenames:
        from conftest import home_of

        home = home_of(metafunc.config)
        found = dict(sgds(home))
        chosen = kinds.params([each for each in kinds.of(home) if each.id in found])
        metafunc.parametrize("sgd", [pytest.param(found[each.id], id=each.id, marks=each.marks) for each in chosen])


@pytest.fixture(autouse=True)
def in_a_graph(home):
    if home.mode == "eager":
        skips.senseless("sessions are of graph mode")
    # Not `plain_session`: what is optimized is what programs run.
    home.reset()


class Graph(object):
    """Weights, and two mini-steps of one optimizer on losses that are linear in them."""

    def __init__(self, home, optimizer, apart=False):
        backend, tf = home.backend, home.tf
        self.backend, self.optimizer = backend, optimizer
        self.weights = [backend.variable(np.zeros(SHAPE, "float32")) for _ in range(NUMBER)]
        self.fed = [backend.placeholder(shape=()) for _ in range(2)]
        self.losses = [fed * sum(tf.reduce_sum(weight) for weight in self.weights) for fed in self.fed]
        if hasattr(optimizer, "get_updates"):
            self.steps = [optimizer.get_updates(loss=loss, params=self.weights) for loss in self.losses]
        elif apart:
            pairs = [optimizer.compute_gradients(loss, self.weights) for loss in self.losses]
            self.steps = [[optimizer.apply_gradients(each)] for each in pairs]
        else:
            self.steps = [[optimizer.minimize(loss, var_list=self.weights)] for loss in self.losses]
        if not hasattr(optimizer, "get_updates"):
            # As programs do it.
            self.steps.append([tf.group(*[op for step in self.steps for op in step])])
            backend.get_session().run(home.v1.variables_initializer(optimizer.variables()))
        else:
            self.steps.append(self.steps[0] + self.steps[1])
        self.functions = [backend.function(self.fed, [self.losses[0]], updates=step) for step in self.steps]

    def run(self, which, pairs):
        """0 and 1 are the mini-steps, 2 is both."""
        for pair in pairs:
            self.functions[which](list(pair))

    def read(self):
        """What the weights hold, one number for each, and the counters."""
        values = self.backend.batch_get_value(self.weights)
        assert all(np.all(value == value.flat[0]) for value in values)
        counters = [getattr(self.optimizer, name) for name in ("iterations", "mini_step")]
        counted = [int(self.backend.get_value(each)) if hasattr(each, "assign") else 0 for each in counters]
        return sorted({float(value.flat[0]) for value in values}), counted


def moved(gradients, steps):
    """Where a weight is after these gradients, in windows of `steps`."""
    value = 0.0
    for i in range(0, len(gradients) - len(gradients) % steps, steps):
        value -= RATE * sum(gradients[i : i + steps]) / steps
    return value


@pytest.mark.long
@pytest.mark.parametrize("steps", sorted(FED))
def test_both_in_one_run(home, sgd, steps):
    graph = Graph(home, sgd(steps))
    flat = [gradient for pair in FED[steps] for gradient in pair]
    seen = set()
    for run in range(RUNS):
        for weight in graph.weights:
            home.backend.set_value(weight, np.zeros(SHAPE, "float32"))
        graph.run(2, FED[steps])
        values, (iterations, mini_step) = graph.read()
        seen.add((tuple(values), iterations - run * len(flat) // steps, mini_step))
    assert seen == {((moved(flat, steps),), len(flat) // steps, 0)}


def is_v1(optimizer):
    return hasattr(optimizer, "get_updates") and not hasattr(optimizer, "apply_gradients")


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.long
def test_each_of_them_alone(home, sgd, steps):
    """It takes its own mini-step, and the other takes none; then both, in the window that is open."""
    optimizer = sgd(steps)
    unlifted = home.name == "tf.keras" and home.tf_version < (1, 14)
    if steps == 1 and unlifted and type(optimizer).__name__ != "MySGD" and is_v1(optimizer):
        skips.we_lack("at K = 1 wrap of a v1 optimizer of tf.keras 1.11 to 1.13 takes one get_updates")
    graph = Graph(home, optimizer)
    fed = []
    for which in (1, 0, 0, 1, 1):
        graph.run(which, [(6.0, 96.0)])
        fed.append((6.0, 96.0)[which])
        assert graph.read() == ([moved(fed, steps)], [len(fed) // steps, len(fed) % steps])
    if steps == 1:
        # The bare optimizer's: two of its steps in one run tear each other.
        return
    graph.run(2, [(12.0, 24.0)])
    # Nothing in a graph orders two operations of one run, each of which may be run alone.
    either = [moved(fed + [12.0, 24.0], steps), moved(fed + [24.0, 12.0], steps)]
    (value,), counts = graph.read()
    assert value in either and counts == [7 // steps, 7 % steps]


def test_gradients_computed_before_either_is_applied(home, sgd):
    if not hasattr(sgd(2), "minimize") or hasattr(sgd(2), "get_updates"):
        skips.senseless("optimizers of tf.compat.v1.train only")
    seen = set()
    graph = Graph(home, sgd(2), apart=True)
    for run in range(RUNS):
        for weight in graph.weights:
            home.backend.set_value(weight, np.zeros(SHAPE, "float32"))
        graph.run(2, FED[2])
        values, (iterations, mini_step) = graph.read()
        seen.add((tuple(values), iterations - 3 * run, mini_step))
    assert seen == {((moved([2.0, 8.0, 4.0, 16.0, 1.0, 32.0], 2),), 3, 0)}


def test_on_different_weights(home, sgd):
    """Each loss has weights, and a window, of its own."""
    backend, tf = home.backend, home.tf
    optimizer = sgd(2)
    weights = [backend.variable(np.zeros(SHAPE, "float32")) for _ in range(2)]
    fed = [backend.placeholder(shape=()) for _ in range(2)]
    losses = [each * tf.reduce_sum(weight) for each, weight in zip(fed, weights)]
    updates = []
    for loss, weight in zip(losses, weights):
        if hasattr(optimizer, "get_updates"):
            updates += optimizer.get_updates(loss=loss, params=[weight])
        else:
            updates.append(optimizer.minimize(loss, var_list=[weight]))
    if not hasattr(optimizer, "get_updates"):
        backend.get_session().run(home.v1.variables_initializer(optimizer.variables()))
    both = backend.function(fed, losses, updates=updates)
    for pair in FED[2][:2]:
        both(list(pair))
    values = [np.unique(value).tolist() for value in backend.batch_get_value(weights)]
    assert values == [[-RATE * 3.0], [-RATE * 12.0]]
    assert int(backend.get_value(optimizer.iterations)) == 2


def test_the_updates_in_a_list_of_fetches(home):
    """As `session.run([loss] + optimizer.get_updates(...))`: sessions up to TF 1.11 return a list of the same type."""
    backend, v1 = home.backend, home.v1
    param = backend.variable(np.zeros(2))
    loss = backend.sum(param)
    updates = legacyga.MySGD(0.25, steps_per_update=2, keras=home.keras).get_updates(loss=loss, params=[param])
    session = home.sessions.get_session()
    session.run(v1.global_variables_initializer())
    for fetches in ([loss] + updates, updates):
        assert len(session.run(fetches)) == len(fetches)
    np.testing.assert_array_equal(session.run(param), [-0.25, -0.25])
