"""In graph mode the update of one parameter goes after another's, where none reads what the other writes."""

import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
from dense import RATE, START, gradients_by_hand
from homes import generation_of
from slow import slow

import legacyga
from legacyga.backend import graph as _graph
from legacyga.backend import update_order

pytestmark = pytest.mark.capability("R7 one result")

RUNS = 5


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "sgd", "SGD")
    kinds.parametrize(metafunc, "adam", "Adam")


@pytest.fixture(autouse=True)
def fresh(home):
    needs.wrap(home)
    needs.graph_only(home)
    home.reset(plain_session=True)


def tells_what_conditionals_read(home):
    if (2, 0) <= home.tf_version < (2, 2):
        skips.we_lack("a conditional of TF 2.0 and 2.1 does not tell what it only reads")


def of_v1(stock):
    if generation_of(stock) != "v1":
        skips.senseless("get_updates is of the v1 API")


def steps_of(home, make):
    """Variables that start at START, and a function of the gradients, for an optimizer that `make` makes of them."""
    backend = home.backend
    variables = [backend.variable(value) for value in START]
    given = [backend.placeholder(value.shape) for value in START]
    loss = sum(backend.sum(variable * each) for variable, each in zip(variables, given))
    train = backend.function(given, [loss], updates=make(variables).get_updates(loss, variables))
    return variables, lambda gradients: train(list(gradients))


def assert_has(home, variables, weights):
    for now, then in zip(home.backend.batch_get_value(variables), weights):
        assert np.max(np.abs(now - then)) <= 4e-6


def test_a_value_that_reads_all_parameters(home, sgd):
    """Each parameter is pulled to the mean of all: as they were before the update, whichever is written first."""
    of_v1(sgd)
    backend = home.backend

    class Pulled(sgd):
        def get_updates(self, loss, params):
            gradients = self.get_gradients(loss, params)
            self.updates = []
            for param, gradient in zip(params, gradients):
                mean = sum(backend.mean(each) for each in params) / len(params)
                self.updates.append(backend.update(param, param - RATE * gradient - 0.5 * (param - mean)))
            return self.updates

    for _ in range(RUNS):
        home.reset(plain_session=True)
        fed = gradients_by_hand(8)
        variables, step = steps_of(home, lambda variables: legacyga.wrap(Pulled(), 2))
        weights = oracle.double(START)
        for i, gradients in enumerate(fed):
            step(gradients)
            if i % 2:
                means = [np.mean(each, axis=0, dtype="float64") for each in zip(*fed[i - 1 : i + 1])]
                mean = sum(np.mean(each) for each in weights) / len(weights)
                weights = [each - RATE * by - 0.5 * (each - mean) for each, by in zip(weights, means)]
        assert_has(home, variables, weights)


def test_a_read_of_what_a_write_hands_on(home, sgd):
    """A write of a reference variable hands on its memory: a later write waits until that has been read."""
    of_v1(sgd)
    backend, made = home.backend, {}

    class Reading(sgd):
        def get_updates(self, loss, params):
            (gradient,) = self.get_gradients(loss, params)
            read = 1.0 * backend.update_sub(params[0], RATE * gradient)
            made.update(read=read.op, last=backend.update_sub(params[0], 0.25 * gradient))
            return [backend.update(other, read), made["last"]]

    param, other = [backend.variable(START[0]) for _ in range(2)]
    fed = backend.placeholder(START[0].shape)
    updates = legacyga.wrap(Reading(lr=RATE), 1).get_updates(loss=backend.sum(param * fed), params=[param])
    train = backend.function([fed], [backend.sum(param)], updates=updates)
    seen, stack = set(), [getattr(made["last"], "op", made["last"])]
    while stack:
        each = stack.pop()
        if each not in seen:
            seen.add(each)
            stack.extend([tensor.op for tensor in each.inputs] + list(each.control_inputs))
    assert made["read"] in seen
    gradient = gradients_by_hand(1)[0][0]
    train([gradient])
    assert_has(home, [param, other], [START[0] - (RATE + 0.25) * gradient, START[0] - RATE * gradient])


@pytest.mark.parametrize("steps", [slow(1), 2])
def test_a_parameter_that_is_written_twice(home, sgd, steps):
    """Weight decay after what the stock optimizer does, as many wrote it: both writes are made, in their order."""
    of_v1(sgd)
    backend = home.backend

    class Decaying(sgd):
        def get_updates(self, loss, params):
            updates = super(Decaying, self).get_updates(loss, params)
            return list(updates) + [backend.update_sub(param, 0.125 * param) for param in params]

    for _ in range(RUNS):
        home.reset(plain_session=True)
        fed = gradients_by_hand(8)
        variables, step = steps_of(home, lambda variables: legacyga.wrap(Decaying(lr=RATE), steps))
        for gradients in fed:
            step(gradients)
        weights = oracle.double(START)
        for i in range(0, len(fed), steps):
            means = [np.mean(each, axis=0, dtype="float64") for each in zip(*fed[i : i + steps])]
            weights = [0.875 * each - RATE * mean for each, mean in zip(weights, means)]
        assert_has(home, variables, weights)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_what_is_read_after_an_unlisted_write(home, sgd, steps, decay):
    """bert4keras's extend_with_lookahead: what `super().get_updates()` writes is not listed, and so written where it
    was made. Read after that are `iterations`, by the decay too, and the parameters."""
    of_v1(sgd)
    backend = home.backend

    class Ahead(sgd):
        def get_updates(self, loss, params):
            updates = super(Ahead, self).get_updates(loss, params)
            syncs = backend.cast(backend.equal(self.iterations % 2, 0), "float32")
            slow = [backend.zeros(backend.int_shape(param)) for param in params]
            with home.tf.control_dependencies(updates):
                steps = [backend.update(q, q + 0.5 * syncs * (p - q)) for p, q in zip(params, slow)]
                with home.tf.control_dependencies(steps):
                    return [backend.update(p, p + syncs * (q - p)) for p, q in zip(params, slow)]

    fed, results = gradients_by_hand(6 * steps), set()
    for _ in range(RUNS):
        home.reset(plain_session=True)
        variables, step = steps_of(home, lambda variables: legacyga.wrap(Ahead(lr=RATE, decay=decay), steps))
        for gradients in fed:
            step(gradients)
        results.add(b"".join(value.tobytes() for value in home.backend.batch_get_value(variables)))
    weights, slow = oracle.double(START), [0.0 * each for each in oracle.double(START)]
    for i in range(6):
        rate = RATE / (1 + decay * (i + 1))
        means = [np.mean(each, axis=0, dtype="float64") for each in zip(*fed[i * steps : (i + 1) * steps])]
        weights = [weight - rate * mean for weight, mean in zip(weights, means)]
        if (i + 1) % 2 == 0:
            slow = [each + 0.5 * (weight - each) for each, weight in zip(slow, weights)]
            weights = slow
    assert len(results) == 1
    assert_has(home, variables, weights)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
def test_what_is_read_before_an_unlisted_write(home, sgd, steps):
    """A counter that is written on the way, twice: each value is computed of what it was where it was made, and a
    parameter that is written at the end is read as it was, whatever was made in between."""
    of_v1(sgd)
    backend = home.backend

    class Counting(sgd):
        def __init__(self, **kwargs):
            super(Counting, self).__init__(**kwargs)
            self.count = backend.variable(0.0, name="count")

        def get_updates(self, loss, params):
            gradients = self.get_gradients(loss, params)
            before = 1.0 * self.count
            listed = [backend.update(p, p - RATE * g - 0.01 * before) for p, g in zip(params[:1], gradients)]
            with home.tf.control_dependencies([backend.update_add(self.count, 1.0)]):
                between = 10.0 * self.count
            with home.tf.control_dependencies([backend.update_add(self.count, 2.0)]):
                after = 100.0 * self.count
            total = before + between + after + backend.mean(params[0])
            return listed + [backend.update(p, p - RATE * g - 1e-3 * total) for p, g in zip(params[1:], gradients[1:])]

    fed, results = gradients_by_hand(6 * steps), set()
    for _ in range(RUNS):
        home.reset(plain_session=True)
        variables, step = steps_of(home, lambda variables: legacyga.wrap(Counting(lr=RATE), steps))
        for gradients in fed:
            step(gradients)
        results.add(b"".join(value.tobytes() for value in home.backend.batch_get_value(variables)))
    weights = oracle.double(START)
    for i in range(6):
        count = 3.0 * i
        means = [np.mean(each, axis=0, dtype="float64") for each in zip(*fed[i * steps : (i + 1) * steps])]
        total = count + 10 * (count + 1) + 100 * (count + 3) + np.mean(weights[0])
        pulls = [0.01 * count] + [1e-3 * total] * (len(weights) - 1)
        weights = [weight - RATE * mean - pull for weight, mean, pull in zip(weights, means, pulls)]
    assert len(results) == 1
    for now, then in zip(backend.batch_get_value(variables), weights):
        np.testing.assert_allclose(now, then, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("steps", [slow(1), 4])
def test_a_write_between_two_others_that_is_not_always_made(home, sgd, steps):
    """Each third parameter is halved between its step and its decay: in this order, whether it is halved or not."""
    of_v1(sgd)
    backend, tf = home.backend, home.tf

    class Halving(sgd):
        def get_updates(self, loss, params):
            third = backend.equal(self.iterations % 3, 2)
            updates = list(super(Halving, self).get_updates(loss, params))
            updates += [tf.cond(third, lambda p=p: tf.group(backend.update(p, 0.5 * p)), tf.no_op) for p in params]
            return updates + [backend.update_sub(p, 0.125 * p) for p in params]

    now, weight = wide_runs(home, lambda: legacyga.wrap(Halving(lr=RATE), steps), 6 * steps), 1.0
    for i in range(6):
        weight = (weight - RATE * 0.5) * (0.5 if i % 3 == 2 else 1.0) - 0.125 * weight
    assert_all(now, [weight, weight])


def returned(home, first, mean, p):
    return [home.tf.cond(first, lambda: home.backend.update(mean, p), lambda: averaged(home, mean, p))]


def grouped(home, first, mean, p):
    tf, new = home.tf, home.backend.update
    return [tf.cond(first, lambda: tf.group(new(mean, 1.0 * p)), lambda: tf.group(averaged(home, mean, p)))]


def one_branch(home, first, mean, p):
    tf, more = home.tf, home.backend.cast(first, "float32") * 0.75
    return [tf.cond(more >= 0, lambda: tf.group(averaged(home, mean, p, more)), lambda: tf.no_op())]


def with_another_output(home, first, mean, p):
    backend = home.backend
    return home.tf.cond(
        first,
        lambda: [backend.constant(0.0), backend.identity(backend.update(mean, 1.0 * p))],
        lambda: [backend.constant(1.0), backend.identity(averaged(home, mean, p))],
    )


def averaged(home, mean, p, more=0.0):
    return home.backend.update(mean, (0.75 - more) * mean + (0.25 + more) * p)


@pytest.mark.parametrize("steps", [slow(1), 4])
@pytest.mark.parametrize("average", [slow(returned), slow(grouped), slow(one_branch), with_another_output])
def test_a_listed_conditional_reads_what_was_there_before(home, sgd, average, steps):
    """An average of the parameters that begins with the first of them: of the old ones, as without a conditional."""
    of_v1(sgd)
    tells_what_conditionals_read(home)
    backend = home.backend

    class Averaging(sgd):
        def get_updates(self, loss, params):
            first = backend.equal(self.iterations, 0)
            updates = list(super(Averaging, self).get_updates(loss, params))
            self.means = [backend.zeros(backend.int_shape(each)) for each in params]
            for p, mean in zip(params, self.means):
                updates += average(home, first, mean, p)
            return updates

    now = wide_runs(home, lambda: legacyga.wrap(Averaging(lr=RATE), steps), 4 * steps)
    weight, mean = 1.0, None
    for _ in range(4):
        mean = weight if mean is None else 0.75 * mean + 0.25 * weight
        weight -= RATE * 0.5
    assert_all(now, [weight, weight, mean, mean])


def test_a_parameter_is_written_after_the_conditional_that_reads_it(home, sgd):
    """What ends it: of reference variables too, where it is a RefMerge."""
    of_v1(sgd)
    tells_what_conditionals_read(home)
    backend = home.backend
    p, mean = backend.variable(np.ones(2)), backend.variable(np.zeros(2))

    class Averaging(sgd):
        def get_updates(self, loss, params):
            first = backend.equal(self.iterations, 0)
            updates = list(super(Averaging, self).get_updates(loss, params))
            return updates + returned(home, first, mean, params[0])

    before = set(p.graph.get_operations())
    legacyga.wrap(Averaging(lr=RATE), 1).get_updates(backend.sum(p), [p])
    made = [each for each in p.graph.get_operations() if each not in before]
    (write,) = [each for each in made if each.type.startswith("Assign") and each.inputs[0].op.name == p.op.name]
    (end,) = [each for each in made if each.type in ("Merge", "RefMerge", "If")]
    assert _graph.reaches(write, {end})


@pytest.mark.parametrize("steps", [slow(1), 2])
def test_a_copy_of_what_is_written_before_it_in_the_list(home, sgd, steps):
    """Of the value before the update."""
    of_v1(sgd)
    backend = home.backend

    class Keeping(sgd):
        def get_updates(self, loss, params):
            updates = list(super(Keeping, self).get_updates(loss, params))
            self.means = [backend.zeros(backend.int_shape(each)) for each in params]
            return updates + [backend.update(kept, p) for kept, p in zip(self.means, params)]

    now = wide_runs(home, lambda: legacyga.wrap(Keeping(lr=RATE), steps), 2 * steps)
    assert_all(now, [1 - RATE, 1 - RATE, 1 - RATE * 0.5, 1 - RATE * 0.5])


def wide_runs(home, make, mini_steps):
    """The values of two wide parameters and of the optimizer's `means`, all equal within, that start at 1 and 0, after
    mini-steps whose gradients are 0.5: of many runs."""
    backend, found = home.backend, []
    start, given = np.ones((300, 300), "float32"), [backend.placeholder((300, 300)) for _ in range(2)]
    variables, optimizer = [backend.variable(start) for _ in given], make()
    loss = sum(backend.sum(variable * each) for variable, each in zip(variables, given))
    step = backend.function(given, [loss], updates=optimizer.get_updates(loss, variables))
    inner = getattr(optimizer, "means", [])
    state = [(each, backend.get_value(each)) for each in list(optimizer.weights) + list(inner)]
    for _ in range(3 * RUNS):
        backend.batch_set_value(state + [(each, start) for each in variables])
        for _ in range(mini_steps):
            step([0.5 * start] * 2)
        found.append([np.unique(value) for value in backend.batch_get_value(variables + list(inner))])
    return found


def assert_all(found, wanted):
    for values in found:
        assert [len(each) for each in values] == [1] * len(wanted)
        np.testing.assert_allclose(np.ravel(values), wanted, rtol=4e-6)


def test_what_was_computed_before_of_a_parameter(home, sgd):
    """A tensor of all parameters that was made outside of get_updates: of what they were before the update too."""
    of_v1(sgd)
    backend = home.backend

    class Shrinking(sgd):
        norms = None

        def get_updates(self, loss, params):
            gradients = self.get_gradients(loss, params)
            self.updates = [
                backend.update(param, param - RATE * gradient - 1e-3 * sum(self.norms) * param)
                for param, gradient in zip(params, gradients)
            ]
            return self.updates

    def make(variables):
        inner = Shrinking()
        inner.norms = [backend.sum(backend.square(each)) for each in variables]
        return legacyga.wrap(inner, 2)

    for _ in range(RUNS):
        home.reset(plain_session=True)
        fed = gradients_by_hand(8)
        variables, step = steps_of(home, make)
        weights = oracle.double(START)
        for i, gradients in enumerate(fed):
            step(gradients)
            if i % 2:
                means = [np.mean(each, axis=0, dtype="float64") for each in zip(*fed[i - 1 : i + 1])]
                norm = sum(np.sum(np.square(each)) for each in weights)
                weights = [each - RATE * by - 1e-3 * norm * each for each, by in zip(weights, means)]
        assert_has(home, variables, weights)


def test_new_values_wait(home, adam, monkeypatch):
    """The new values of a parameter are made when another's are written; the rate that all share is not."""
    of_v1(adam)
    found, ordered = [], update_order.ordered

    def noting(get_updates, *args, **kwargs):
        def noted():
            found[:] = get_updates()
            return found

        return ordered(noted, *args, **kwargs)

    monkeypatch.setattr(update_order, "ordered", noting)
    steps_of(home, lambda variables: legacyga.wrap(adam(clipnorm=1.0), 2))
    writes = [getattr(each, "op", each) for each in found]
    # Two slots and the parameter. tf.keras writes `iterations` ahead of everything, Keras lists it first.
    assert len(writes) - 3 * len(START) in (0, 1)
    parts = [writes[place : place + 3] for place in range(len(writes) - 3 * len(START), len(writes), 3)]
    for part, after in zip(parts, parts[1:]):
        for write in after:
            value = write.inputs[1].op
            assert _graph.reaches(write, set(part)) and _graph.reaches(value, set(part))
        assert not any(_graph.reaches(each, set(after)) for each in part)


def test_slots_are_no_constants_of_the_graph(home, adam):
    """A graph holds each constant whole: slots of 4 MB each were of a model of 2 GB the end."""
    of_v1(adam)
    backend = home.backend
    variable = backend.variable(np.ones((1000, 1000), "float32"))
    before = len(home.tf.Graph.as_graph_def(variable.graph).SerializeToString())
    optimizer = legacyga.wrap(adam(), 2)
    optimizer.get_updates(backend.sum(variable), [variable])
    after = len(home.tf.Graph.as_graph_def(variable.graph).SerializeToString())
    assert len(optimizer.weights) > 2 and after - before < 1e6


def test_an_update_that_is_listed_twice(home, sgd):
    of_v1(sgd)

    class Twice(sgd):
        def get_updates(self, loss, params):
            updates = super(Twice, self).get_updates(loss, params)
            return updates + updates[:2]

    variables, step = steps_of(home, lambda variables: legacyga.wrap(Twice(lr=RATE), 2))
    fed = gradients_by_hand(2)
    for gradients in fed:
        step(gradients)
    means = [np.mean(each, axis=0, dtype="float64") for each in zip(*fed)]
    assert_has(home, variables, [weight - RATE * mean for weight, mean in zip(oracle.double(START), means)])


@pytest.mark.parametrize("steps", [slow(1), 2])
def test_an_update_needs_no_other(home, adam, steps):
    """Two mini-steps of one optimizer, each to be run by itself: what the first makes the second needs not."""
    of_v1(adam)
    backend = home.backend
    variables = [backend.variable(value) for value in START]
    graph, optimizer, taken, made = variables[0].graph, legacyga.wrap(adam(), steps), [], []
    if steps == 1 and home.name == "tf.keras" and home.tf_version < (1, 14):
        skips.we_lack("at K = 1 wrap of a v1 optimizer of tf.keras 1.11 to 1.13 takes one get_updates")
    for _ in range(2):
        before = set(graph.get_operations())
        loss = sum(backend.sum(variable * variable) for variable in variables)
        taken.append(optimizer.get_updates(loss=loss, params=variables))
        made.append(set(graph.get_operations()) - before)
    writes = {each for each in made[0] if each.type.startswith("Assign")}
    assert len(writes) > 3 * len(START)
    assert not any(_graph.reaches(getattr(each, "op", each), writes) for each in taken[1])
