"""Optimizers of the user's own: subclasses of stock ones, and whole ones, in each generation."""

import copy
import functools

import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
from dense import RATE, START, applied, assert_close, gradients_by_hand, make
from homes import generation_of, v1_of
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("wrap: every optimizer")


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "adam", "Adam")
    kinds.parametrize(metafunc, "sgd", "SGD")


@pytest.fixture(autouse=True)
def fresh(home):
    needs.wrap(home)
    home.reset(plain_session=True)


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
        self.rate, self.last = rate, [0.0] * len(START)

    def update(self, weights, gradients, names=None):
        before, self.last = self.last, gradients
        return [w - self.rate * (g + 0.5 * last) for w, g, last in zip(weights, gradients, before)]


def base_class(cls):
    """The class that the stock optimizers of its generation are made of."""
    names = ("Optimizer", "OptimizerV2")
    return next(each for each in cls.__mro__[1:] if each.__name__ in names)


def test_a_subclass_of_a_stock_optimizer(home, adam):
    """It overrides the hook of its generation, and is called through it once a trace or an update."""
    own = own_adam(home, adam)
    fed = gradients_by_hand(6)
    halved = [[0.5 * gradient for gradient in each] for each in fed]
    for steps in (1, 3):
        optimizer = legacyga.wrap(make(home, own, factor=0.5), steps)
        assert isinstance(optimizer, own) and isinstance(optimizer, adam)
        assert optimizer.factor == 0.5 and optimizer.get_config()["optimizer"]["config"]["factor"] == 0.5
        assert_close(home.apply_to(START, optimizer, fed)[-1], applied(oracle.Adam(RATE), halved, steps))
        assert optimizer.calls
        again = type(optimizer).from_config(optimizer.get_config())
        assert again.get_config() == optimizer.get_config() and again.factor == 0.5


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


@pytest.mark.capability("wrap: surface")
def test_a_subclass_keeps_its_own_argument(home, sgd):
    """Which it does not put into `get_config`, as many do not."""

    class Mine(sgd):
        def __init__(self, own_argument=1.0, **kwargs):
            super(Mine, self).__init__(**kwargs)
            self.own_argument = own_argument

    assert legacyga.wrap(Mine(own_argument=3.0), 4).own_argument == 3.0


def clipping_sgd(home, sgd):
    """A subclass that clips, in its own apply_gradients, and counts its calls."""
    if generation_of(sgd) == "v1":
        skips.keras_lacks("optimizers of this generation have no apply_gradients")

    class Clipping(sgd):
        calls = 0

        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            self.calls += 1
            grads, variables = zip(*grads_and_vars)
            grads = home.tf.clip_by_global_norm(grads, 1.0)[0]
            return super(Clipping, self).apply_gradients(list(zip(grads, variables)), *args, **kwargs)

    return Clipping


def test_an_apply_gradients_of_its_own(home, sgd):
    """It is called once an update, with the means."""
    fed = gradients_by_hand(7)
    ours = legacyga.wrap(clipping_sgd(home, sgd)(RATE), 3)
    expected, weights = oracle.SGD(RATE), [np.float64(start) for start in START]
    after = home.apply_to(START if home.mode == "graph" else home.variables(START), ours, fed)[-1]
    for window in (fed[:3], fed[3:6]):
        means = [np.mean(each, axis=0, dtype="float64") for each in zip(*window)]
        norm = np.sqrt(sum(np.sum(mean**2) for mean in means))
        weights = expected.update(weights, [mean / max(norm, 1.0) for mean in means])
    assert_close(after, weights)
    if home.mode == "eager":
        assert ours.calls == 2


def test_an_apply_gradients_of_its_own_ends_a_restored_window(home, sgd, tmpdir):
    """A flush calls it before the first mini-step after a restore, too."""
    if home.mode == "graph":
        skips.senseless("a flush runs the operations of the update that `fit` made")
    (fed,) = gradients_by_hand(1)

    def begin():
        variables, ours = home.variables(START), legacyga.wrap(clipping_sgd(home, sgd)(RATE), 3)
        values = [each.value if home.is_keras3 else each for each in variables]
        return variables, ours, home.tf.train.Checkpoint(optimizer=ours, **dict(zip("abcdefgh", values)))

    variables, ours, checkpoint = begin()
    ours.apply_gradients([(home.tf.constant(10.0 * each), var) for each, var in zip(fed, variables)])
    path = checkpoint.save(str(tmpdir.join("checkpoint")))
    variables, ours, checkpoint = begin()
    ours.build(variables) if hasattr(ours, "build") else ours._create_all_weights(variables)
    checkpoint.restore(path)
    assert legacyga.flush(ours) is True and ours.calls == 1
    norm = np.sqrt(sum(np.sum((10.0 * each) ** 2) for each in fed))
    clipped = [10.0 * each / norm for each in fed]
    assert_close(
        [home.tf.convert_to_tensor(each).numpy() for each in variables], oracle.SGD(RATE).update(START, clipped)
    )


@pytest.mark.parametrize("name", [slow("apply_gradients"), "apply"])
def test_an_argument_of_ones_own(home, sgd, name):
    """Of the method that is called with the gradients: an update has it, a flush the last mini-step's."""
    if home.mode == "graph" or not hasattr(sgd, name):
        skips.keras_lacks("no method of this name here that is called in eager mode")

    def apply_gradients(self, grads_and_vars, factor=1.0, through=1.0):
        pairs = [(factor * through * gradient, variable) for gradient, variable in grads_and_vars]
        return super(Own, self).apply_gradients(pairs)

    def apply(self, grads, trainable_variables=None, factor=1.0, through=1.0):
        return super(Own, self).apply([factor * through * gradient for gradient in grads], trainable_variables)

    Own = type("Own", (sgd,), {name: apply_gradients if name == "apply_gradients" else apply})
    ours, variable = legacyga.wrap(Own(0.25), 2), home.variables([np.zeros(2, "float32")])[0]
    expected = [0.0, -0.25 * 3.0 * 2.0, -0.25 * 3.0 * 2.0, -0.25 * (3.0 * 2.0 + 5.0 * 2.0)]
    for factor, value in zip((3.0, 3.0, 5.0), expected):
        gradient = home.tf.constant([1.0, 1.0])
        if name == "apply":
            ours.apply([gradient], [variable], factor=factor, through=2.0)
        else:
            ours.apply_gradients([(gradient, variable)], factor=factor, through=2.0)
        np.testing.assert_array_equal(home.tf.convert_to_tensor(variable), [value] * 2)
    assert legacyga.flush(ours) is True
    np.testing.assert_array_equal(home.tf.convert_to_tensor(variable), [expected[-1]] * 2)


@pytest.mark.slow
def test_a_shallow_copy_has_attributes_of_its_own(home, adam):
    Halving = own_adam(home, adam)
    name = "lr" if generation_of(adam) == "v1" else "learning_rate"
    ours = legacyga.wrap(Halving(beta_1=0.875, epsilon=0.125, **{name: RATE}), 2)
    copied = copy.copy(ours)
    copied.factor = 1.0
    fed = gradients_by_hand(4)
    start = START if home.mode == "graph" else home.variables(START)
    after = home.apply_to(start, copied, fed)[-1]
    assert_close(after, applied(oracle.Adam(RATE, beta_1=0.875, epsilon=0.125), fed, 2))
    assert type(copied) is type(ours) and ours.factor == 0.5 and copied.gradient_accumulation_steps == 2


def test_a_step_that_was_given(home, adam):
    """It stays the same object, and counts updates."""
    if home.mode == "graph" or generation_of(adam) == "keras3":
        skips.keras_lacks("no `iterations` to be set, or no value of it here")
    step, optimizer = home.tf.Variable(0, dtype="int64", trainable=False), make(home, adam)
    optimizer.iterations = step
    ours = legacyga.wrap(optimizer, 2)
    home.apply_to(home.variables(START), ours, gradients_by_hand(4))
    assert ours.iterations is step and int(step.numpy()) == 2


def test_slots_that_get_updates_does_not_list(home, sgd):
    """A flush finds them, or says that it cannot; and nothing of it is silent."""
    if generation_of(sgd) != "v1":
        skips.keras_lacks("optimizers of this generation have no get_updates")
    backend = home.backend

    class Own(home.v1_optimizers.Optimizer):
        def __init__(self, rate=0.25, **kwargs):
            super(Own, self).__init__(**kwargs)
            self.rate, self.iterations = rate, backend.variable(0, dtype="int64", name="iterations")

        def get_updates(self, loss, params):
            moments = [backend.zeros(backend.int_shape(param)) for param in params]
            self.updates = [backend.update_add(self.iterations, 1)]
            for param, moment, gradient in zip(params, moments, self.get_gradients(loss, params)):
                velocity = 0.5 * moment + gradient
                self.updates += [backend.update(moment, velocity), backend.update(param, param - self.rate * velocity)]
            return self.updates

        def get_config(self):
            return {}

    param = backend.variable(np.zeros(2, "float32"), name="param")
    ours = legacyga.wrap(Own(), 2)
    loss = backend.sum(param)
    train = backend.function([], [loss], updates=ours.get_updates(loss=loss, params=[param]))
    for _ in range(3):
        train([])
    try:
        assert legacyga.flush(ours) is True
    except ValueError as error:
        assert "makes variables that it does not put into self.weights" in str(error) and "Received" in str(error)
        return
    np.testing.assert_array_equal(backend.get_value(param), [-0.25 * (1.0 + 1.5)] * 2)


def test_variables_that_are_initialized_later(home, sgd):
    """K.manual_variable_initialization(True), of programs with a session of their own."""
    if generation_of(sgd) != "v1":
        skips.senseless("of graph mode")
    backend, v1 = home.backend, v1_of(home.tf)
    backend.manual_variable_initialization(True)
    try:
        session = v1.Session()
        home.sessions.set_session(session)
        optimizer = legacyga.wrap(sgd(0.25), 2)
        param = backend.variable(np.zeros(2), name="param")
        updates = optimizer.get_updates(loss=backend.sum(param), params=[param])
        session.run(v1.global_variables_initializer())
        for _ in range(2):
            session.run([getattr(each, "op", each) for each in updates])
        np.testing.assert_array_equal(session.run(param), [-0.25, -0.25])
    finally:
        backend.manual_variable_initialization(False)
        home.reset()


def lookahead(home, base):
    """Lookahead over a v1 optimizer, as programs write it there: every second update the weights go half the way back.

    Its writes are ordered by its author, and what they write is a conditional's result.
    """
    backend, tf = home.backend, home.tf

    class Ahead(base):
        def get_updates(self, loss, params):
            updates = super(Ahead, self).get_updates(loss=loss, params=params)
            slow = [backend.zeros(backend.int_shape(param)) for param in params]
            self.weights = list(self.weights) + slow
            updates = [backend.update(*each) if isinstance(each, tuple) else each for each in updates]
            with tf.control_dependencies([getattr(each, "op", each) for each in updates]):
                turn = tf.equal(self.iterations % 2, 0)
                back = [
                    backend.update(
                        each, backend.switch(turn, lambda e=each, p=param: e + 0.5 * (p - e), lambda e=each: e + 0.0)
                    )
                    for each, param in zip(slow, params)
                ]
                with tf.control_dependencies([getattr(each, "op", each) for each in back]):
                    return [
                        backend.update(param, backend.switch(turn, lambda e=each: e + 0.0, lambda p=param: p + 0.0))
                        for each, param in zip(slow, params)
                    ]

    return Ahead


@pytest.mark.parametrize("steps", [slow(1), 2])
def test_updates_by_conditionals(home, sgd, steps):
    if generation_of(sgd) != "v1":
        skips.senseless("get_updates is of the v1 API")
    fed = gradients_by_hand(6 * steps)
    optimizer = legacyga.wrap(lookahead(home, sgd)(lr=RATE), steps)
    found = home.apply_to(START, optimizer, fed)[steps - 1 :: steps]
    weights, slow = oracle.double(START), [0.0 * each for each in oracle.double(START)]
    for i in range(6):
        means = [np.mean(each, axis=0) for each in zip(*fed[i * steps : (i + 1) * steps])]
        weights = [weight - RATE * mean for weight, mean in zip(weights, means)]
        if (i + 1) % 2 == 0:
            slow = [each + 0.5 * (weight - each) for each, weight in zip(slow, weights)]
            weights = [1.0 * each for each in slow]
        for now, then in zip(found[i], weights):
            assert np.max(np.abs(now - then)) <= 4e-6
    assert int(home.value(optimizer.iterations)) == 6


def test_a_rate_for_each_group_of_weights(home, sgd):
    """In the manner of keras-lr-multiplier: a wrapper that changes `lr` round calls of get_updates. And a flush."""
    needs.graph_only(home)
    if generation_of(sgd) != "v1":
        skips.senseless("get_updates is of the v1 API")

    # In Keras 2.3 `lr` cannot be set.
    name = "lr" if "lr" in vars(sgd(lr=RATE)) else "learning_rate"

    class Multiplied(sgd):
        def __init__(self, inner, multipliers):
            super(Multiplied, self).__init__()
            self.inner, self.multipliers = inner, multipliers

        def get_updates(self, loss, params):
            rate, self.updates = getattr(self.inner, name), []
            for param, multiplier in zip(params, self.multipliers):
                setattr(self.inner, name, rate * multiplier)
                self.updates += self.inner.get_updates(loss, [param])
            setattr(self.inner, name, rate)
            return self.updates

    multipliers, fed = (0.5, 2.0), gradients_by_hand(6)
    for optimizer in (
        legacyga.wrap(sgd(lr=RATE), 4),
        legacyga.MySGD(lr=RATE, steps_per_update=4, keras=home.keras),
    ):
        weights = oracle.double(START)
        variables, step = steps_of(home, Multiplied(optimizer, multipliers), fed)
        for i in range(6):
            step(i)
        optimizer.clipnorm = 1e-3  # What is set later the training function does not obey.
        assert legacyga.flush(optimizer) is True
        for window in (fed[:4], fed[4:]):
            means = [np.mean(each, axis=0, dtype="float64") for each in zip(*window)]
            weights = [weight - RATE * by * mean for weight, by, mean in zip(weights, multipliers, means)]
        for now, then in zip(home.backend.batch_get_value(variables), weights):
            assert np.max(np.abs(now - then)) <= 4e-6


def steps_of(home, optimizer, fed):
    """In a graph: variables that start at START, and a function that takes a mini-step with those gradients."""
    backend = home.backend
    variables = [backend.variable(value) for value in START]
    given = [backend.placeholder(value.shape) for value in START]
    loss = sum(backend.sum(variable * each) for variable, each in zip(variables, given))
    train = backend.function(given, [loss], updates=optimizer.get_updates(loss, variables))
    return variables, lambda i: train(list(fed[i]))


def test_updates_that_are_kept(home, sgd):
    """A get_updates that returns what it returned before: a flush is an update all the same."""
    needs.graph_only(home)
    if generation_of(sgd) != "v1":
        skips.senseless("get_updates is of the v1 API")

    class Keeping(sgd):
        def get_updates(self, loss, params):
            if getattr(self, "updates", None):
                return self.updates
            return super(Keeping, self).get_updates(loss, params)

    fed, optimizer = gradients_by_hand(3), legacyga.wrap(Keeping(lr=RATE), 2)
    variables, step = steps_of(home, optimizer, fed)
    for i in range(3):
        step(i)
    assert legacyga.flush(optimizer) is True
    assert [int(home.value(each)) for each in (optimizer.iterations, optimizer.mini_step)] == [2, 0]
    weights = oracle.double(START)
    for window in (fed[:2], fed[2:]):
        means = [np.mean(each, axis=0, dtype="float64") for each in zip(*window)]
        weights = [weight - RATE * mean for weight, mean in zip(weights, means)]
    for now, then in zip(home.backend.batch_get_value(variables), weights):
        assert np.max(np.abs(now - then)) <= 4e-6


def test_updates_that_were_made_before(home, sgd):
    needs.graph_only(home)
    if generation_of(sgd) != "v1":
        skips.senseless("get_updates is of the v1 API")

    class Counting(sgd):
        def __init__(self, **kwargs):
            super(Counting, self).__init__(**kwargs)
            self.counted = home.backend.update_add(home.backend.variable(0.0), 1.0)

        def get_updates(self, loss, params):
            return super(Counting, self).get_updates(loss, params) + [self.counted]

    with pytest.raises(ValueError, match="made elsewhere, and would run with each mini-step"):
        steps_of(home, legacyga.wrap(Counting(lr=RATE), 2), [])


def test_what_an_update_stores(home, sgd):
    """On the optimizer itself, in an update that a flush makes: an average of the weights, say."""
    needs.eager_only(home)

    class Averaging(sgd):
        calls, average = 0, None

        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            pairs = list(grads_and_vars)
            done = super(Averaging, self).apply_gradients(pairs, *args, **kwargs)
            self.calls += 1
            self.average = [home.value(variable) for _, variable in pairs]
            return done

    variables, optimizer = home.variables(START), legacyga.wrap(Averaging(RATE), 4)
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    fed = gradients_by_hand(3)
    for gradients in fed:
        optimizer.apply_gradients(list(zip([home.tf.constant(each) for each in gradients], variables)))
    assert legacyga.flush(optimizer) is True
    assert optimizer.calls == 1
    means = [np.mean(each, axis=0, dtype="float64") for each in zip(*fed)]
    for found, start, mean in zip(optimizer.average, START, means):
        assert np.max(np.abs(found - (start - RATE * mean))) <= 4e-6


def test_updates_that_are_appended(home, sgd):
    """To the list that the optimizer's __init__ made, as old optimizers do."""
    needs.graph_only(home)
    if generation_of(sgd) != "v1":
        skips.senseless("get_updates is of the v1 API")

    class Appending(sgd):
        def get_updates(self, loss, params):
            for param, gradient in zip(params, self.get_gradients(loss, params)):
                self.updates.append(home.backend.update(param, param - self.lr * gradient))
            self.updates.append(home.backend.update_add(self.iterations, 1))
            return self.updates

    fed, optimizer = gradients_by_hand(3), legacyga.wrap(Appending(lr=RATE), 2)
    variables, step = steps_of(home, optimizer, fed)
    for i in range(3):
        step(i)
    assert legacyga.flush(optimizer) is True
    weights = oracle.double(START)
    for window in (fed[:2], fed[2:]):
        means = [np.mean(each, axis=0, dtype="float64") for each in zip(*window)]
        weights = [weight - RATE * mean for weight, mean in zip(weights, means)]
    for now, then in zip(home.backend.batch_get_value(variables), weights):
        assert np.max(np.abs(now - then)) <= 4e-6


def reading_apply_state(adam):
    """AdamWeightDecay as BERT programs have it: it decays by the rate that Keras has computed for the update."""

    class AdamWeightDecay(adam):
        def decayed(self, var, apply_state):
            rate = apply_state[var.device, var.dtype.base_dtype]["lr_t"]
            return var.assign_sub(0.25 * rate * var.read_value())

        def _resource_apply_dense(self, grad, var, apply_state=None):
            decayed = self.decayed(var, apply_state)
            with self.control_dependencies([decayed]):
                return super(AdamWeightDecay, self)._resource_apply_dense(grad, var, apply_state=apply_state)

        def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
            decayed = self.decayed(var, apply_state)
            with self.control_dependencies([decayed]):
                return super(AdamWeightDecay, self)._resource_apply_sparse(grad, var, indices, apply_state=apply_state)

    return AdamWeightDecay


@pytest.mark.parametrize("steps", (slow(1), 3))
@pytest.mark.parametrize("sparse", (slow(False), True), ids=["dense", "sparse"])
def test_a_step_that_reads_what_keras_has_computed(home, adam, steps, sparse):
    """Keras hands `apply_state` to the methods that name it: of the update's own step, whose decay is a schedule's."""
    needs.eager_only(home)
    if generation_of(adam) != "v2":
        skips.senseless("apply_state is OptimizerV2's")
    tf, own = home.tf, reading_apply_state(adam)
    own.control_dependencies = staticmethod(tf.control_dependencies)
    fed = gradients_by_hand(6)

    def run(optimizer, gradients, traced):
        variables = home.variables(START[:1])

        def step(gradient):
            if sparse:
                gradient = tf.IndexedSlices(gradient, tf.range(START[0].shape[0]), tf.constant(START[0].shape, "int64"))
            optimizer.apply_gradients([(gradient, variables[0])])

        step = tf.function(step) if traced else step
        for each in gradients:
            step(tf.constant(each[0]))
        return [each.numpy() for each in variables]

    def bare():
        return own(home.keras.optimizers.schedules.ExponentialDecay(0.125, 1, 0.5), epsilon=1e-7)

    means = [[np.mean(each, axis=0) for each in zip(*fed[i : i + steps])] for i in range(0, 6, steps)]
    for traced in (False, True):
        assert_close(run(legacyga.wrap(bare(), steps), fed, traced), run(bare(), means, traced))


@pytest.mark.slow
def test_the_operations_of_an_update(home, adam):
    """What an update of 40 variables adds to the bare optimizer's is the sums' own, whatever the optimizer."""
    needs.eager_only(home)
    tf, schedule = home.tf, home.keras.optimizers.schedules.ExponentialDecay(0.125, 1, 0.5)

    def operations(optimizer):
        variables = home.variables([np.ones(3, "float32")] * 40)
        if hasattr(optimizer, "build"):
            optimizer.build(variables)

        @tf.function
        def step():
            optimizer.apply_gradients([(tf.ones(3), variable) for variable in variables])

        graph = step.get_concrete_function().graph
        functions = graph.as_graph_def().library.function
        return len(graph.get_operations()) + sum(len(each.node_def) for each in functions)

    def make(cls, rate):
        return cls(rate, epsilon=1e-7) if cls is adam else cls(rate)

    bare = operations(make(adam, schedule))
    # The optimizers of TF 2.11 and newer return what they count.
    assert operations(legacyga.wrap(make(adam, schedule), 1)) <= bare + 2
    # The sums' own are those of an SGD's windows.
    (sgd,) = [each for each in kinds.classes(home)[generation_of(adam)].values() if each.__name__ == "SGD"]
    sums = operations(legacyga.wrap(make(sgd, 0.125), 4)) - operations(make(sgd, 0.125))
    assert operations(legacyga.wrap(make(adam, schedule), 4)) - sums <= 1.1 * bare


def following(sgd):
    """A class in the manner of keras-rl's AdditionalUpdatesOptimizer: around an optimizer, with updates of its own."""

    class Following(sgd.__bases__[0]):
        def __init__(self, optimizer, targets, reads=None):
            super(Following, self).__init__()
            self.optimizer, self.targets, self.reads = optimizer, targets, reads

        def get_updates(self, loss, params):
            for param in params if self.reads else ():
                self.reads(param)
            updates = self.optimizer.get_updates(loss=loss, params=params)
            # Not 0.5 twice: TensorFlow may compute 0.5 * (target + param) instead, after param is written (limits.md).
            updates += [(target, 0.25 * target + 0.75 * param) for target, param in zip(self.targets, params)]
            self.updates = updates
            return updates

    return Following


@pytest.mark.parametrize("steps", [slow(1), 2])
def test_a_wrapper_of_the_v1_api(home, sgd, steps):
    """Its optimizer clips the mean, its own updates are made once a window, and a flush is one more."""
    needs.graph_only(home)
    if generation_of(sgd) != "v1":
        skips.senseless("get_updates is of the v1 API")
    targets = [home.backend.variable(0.0 * value) for value in START]
    inner, fed = sgd(lr=RATE, clipvalue=0.5), gradients_by_hand(2 * steps + 1)
    optimizer = legacyga.wrap(following(sgd)(inner, targets), steps)
    assert optimizer.optimizer is not inner and optimizer.targets[0] is targets[0]
    variables, step = steps_of(home, optimizer, fed)
    for i in range(len(fed)):
        step(i)
    if steps > 1:
        assert legacyga.flush(optimizer) is True
    weights, slow, updates = oracle.double(START), [0.0 * each for each in oracle.double(START)], 0
    for window in [fed[i : i + steps] for i in range(0, len(fed), steps)]:
        means = [np.clip(np.mean(each, axis=0, dtype="float64"), -0.5, 0.5) for each in zip(*window)]
        slow = [0.25 * each + 0.75 * weight for each, weight in zip(slow, weights)]
        weights = [weight - RATE * mean for weight, mean in zip(weights, means)]
        updates += 1
    for now, then in zip(home.backend.batch_get_value(variables + targets), weights + slow):
        assert np.max(np.abs(now - then)) <= 4e-6
    assert int(home.value(optimizer.iterations)) == updates and int(home.value(inner.iterations)) == 0


def joining(sgd, way):
    class Joining(sgd):
        def __init__(self, optimizer):
            super(Joining, self).__init__(lr=RATE)
            self.optimizer = optimizer

        def get_updates(self, loss, params):
            updates, own = self.optimizer.get_updates(loss=loss, params=params), [0.0 * params[0]]
            if way == "unpacked":
                return [*updates, *own]
            if way == "added to":
                return own + updates
            if way == "added to nothing":
                return [] + updates + own
            return list(updates) + own

    return Joining


@pytest.mark.slow
@pytest.mark.capability("errors")
def test_what_a_wrapper_of_the_v1_api_may_not(home, sgd):
    needs.graph_only(home)
    if generation_of(sgd) != "v1":
        skips.senseless("get_updates is of the v1 API")
    Following, fed = following(sgd), gradients_by_hand(1)
    targets = [home.backend.variable(0.0 * value) for value in START]
    text = r"Following\.get_updates adds updates of its own .*Wrap the optimizer that adds them: wrap\(Following\("
    for accumulating in (legacyga.wrap(sgd(lr=RATE), 3), legacyga.MySGD(lr=RATE, keras=home.keras)):
        with pytest.raises(ValueError, match=text):
            steps_of(home, Following(accumulating, targets), fed)
        for way in ("unpacked", "added to", "added to nothing", "copied"):
            with pytest.raises(ValueError, match=r"Joining\.get_updates adds updates of its own"):
                steps_of(home, joining(sgd, way)(accumulating), fed)
    # At K = 1 each mini-step is an update.
    variables, step = steps_of(home, Following(legacyga.wrap(sgd(lr=RATE), 1), targets), fed)
    with pytest.raises(ValueError, match="within this one accumulates already, over 3 mini-steps"):
        legacyga.wrap(Following(legacyga.wrap(sgd(lr=RATE), 3), targets), 2)
    text = r"Following\.get_updates runs a session .* cannot stand in the branch .*legacyga\.micro_batch\(model, size\)"
    made = lambda value: home.backend.eval(home.backend.square(value))  # noqa: E731
    with pytest.raises(ValueError, match=text):
        steps_of(home, legacyga.wrap(Following(sgd(lr=RATE), targets, made), 2), fed)
    # At K = 1 there is no branch. The session must not need what feeds the gradients.
    variables, step = steps_of(home, legacyga.wrap(Following(sgd(lr=RATE), targets, made), 1), fed)
    step(0)
    wanted = [value - RATE * gradient for value, gradient in zip(START, fed[0])]
    assert_close(home.values(variables), wanted)


def test_a_step_that_is_a_function_of_tensorflow(home, sgd):
    needs.eager_only(home)
    if generation_of(sgd) != "v2":
        skips.senseless("apply_state is OptimizerV2's")

    class Traced(sgd):
        @home.tf.function
        def _resource_apply_dense(self, grad, var, apply_state):
            return var.assign_sub(apply_state[(var.device, var.dtype.base_dtype)]["lr_t"] * grad)

    (variable,) = home.variables([np.zeros(2, "float32")])
    optimizer = legacyga.wrap(Traced(learning_rate=0.25), 2)
    for each in (1.0, 3.0, 2.0, 2.0):
        optimizer.apply_gradients([(home.tf.fill([2], each), variable)])
    assert variable.numpy().tolist() == [-1.0, -1.0]


def test_moving_averages_of_plain_variables(home, sgd):
    """Keras 3 trains variables that are TensorFlow's own, too."""
    if not home.is_keras3:
        skips.senseless("other Kerases have no variables of their own")
    variable = home.tf.Variable([1.0, 2.0])
    optimizer = legacyga.wrap(sgd(learning_rate=0.5, use_ema=True, ema_momentum=0.5), 2)
    for each in (1.0, 3.0):
        optimizer.apply_gradients([(home.tf.fill([2], each), variable)])
    assert variable.numpy().tolist() == [0.0, 1.0]
    # Keras's average is what the first update makes of the weights.
    assert optimizer._model_variables_moving_average[0].numpy().tolist() == [0.0, 1.0]


def test_gradients_of_a_part_of_the_params(home, sgd):
    """A get_updates may ask for the gradients of some params at a time, in any order."""
    needs.graph_only(home)
    if generation_of(sgd) != "v1":
        skips.senseless("get_updates is of the v1 API")
    backend = home.backend

    class InTurns(sgd):
        def get_updates(self, loss, params):
            updates = [backend.update_add(self.iterations, 1)]
            for param in reversed(params):
                (gradient,) = self.get_gradients(loss, [param])
                updates.append(backend.update(param, param - self.lr * gradient))
            self.updates = updates
            return updates

    fed = gradients_by_hand(4)
    variables, step = steps_of(home, legacyga.wrap(InTurns(lr=RATE), 2), fed)
    for i in range(4):
        step(i)
    assert_close(home.values(variables), applied(oracle.SGD(RATE), fed, 2))


@pytest.mark.capability("R11 no gradient")
def test_no_variables(home, sgd):
    """As the bare optimizer: it makes nothing, or raises its own error."""
    told = []
    for steps in (None, 1, 2):
        optimizer = make(home, sgd) if steps is None else legacyga.wrap(make(home, sgd), steps)
        try:
            if home.mode == "graph":
                optimizer.get_updates(home.backend.constant(1.0), [])
            else:
                optimizer.apply_gradients([])
            told.append(None)
        except Exception as error:
            told.append((type(error), str(error)))
    assert told[1:] == told[:1] * 2


@pytest.mark.capability("wrap: surface")
def test_attributes_with_our_names(home, sgd):
    """A class of the user's may count its own mini-steps: its attribute is its own."""

    class Counting(sgd):
        def __init__(self, *args, **kwargs):
            super(Counting, self).__init__(*args, **kwargs)
            vars(self)["mini_step"] = 5

    optimizer = legacyga.wrap(make(home, Counting), 3)
    assert optimizer.mini_step == 5
    optimizer.mini_step += 1
    assert optimizer.mini_step == 6 and optimizer.gradient_accumulation_steps == 3
    assert int(home.value(legacyga.wrap(make(home, sgd), 3).mini_step)) == 0


@pytest.mark.capability("R8 partial windows")
def test_a_traced_flush_without_windows(home, sgd):
    needs.eager_only(home)
    tf = home.tf
    for steps in (1, 3):
        optimizer = legacyga.wrap(make(home, sgd), steps)
        flush = functools.partial(legacyga.flush, optimizer)
        ended = tf.function(lambda flush=flush: tf.cond(flush(), lambda: 1.0, lambda: 2.0))()
        assert float(ended) == 2.0 and legacyga.flush(optimizer) is False


@pytest.mark.capability("wrap: surface")
def test_the_moments_of_a_trained_optimizer_in_a_graph(home, adam):
    """After freezing a layer they begin anew, as those of the bare optimizer in a new compile. Updates count on."""
    needs.graph_only(home)
    if home.races:
        skips.keras_lacks("a bare Adam without races, to compare with")
    layers, weights = home.keras.layers, [np.eye(4, dtype="float32") * factor for factor in (1.0, 0.5, 2.0)]
    x, y = np.float32(np.eye(4)), np.float32(np.ones((4, 4)))

    def trained(optimizer, is_trainable):
        inputs = layers.Input((4,))
        hidden = [layers.Dense(4, use_bias=False) for _ in weights]
        outputs = inputs
        for layer in hidden:
            outputs = layer(outputs)
        model = home.keras.models.Model(inputs, outputs)
        model.set_weights(weights)
        hidden[0].trainable = is_trainable
        model.compile(optimizer, "mse")
        model.train_on_batch(x, y)
        return model.get_weights()

    ends = []
    for wrap in (lambda bare: bare, lambda bare: legacyga.wrap(bare, 1)):
        bare = make(home, adam)
        trained(bare, True)
        ends.append(trained(wrap(bare), False))
    for one, other in zip(*ends):
        np.testing.assert_allclose(one, other, atol=4e-6)


@pytest.mark.capability("wrap: surface")
def test_an_old_apply_gradients_at_1(home, sgd):
    """Keras passes `experimental_aggregate_gradients` only to optimizers that say that they take it."""
    if home.mode == "graph" or generation_of(sgd) != "v2" or home.tf_version < (2, 2):
        skips.senseless("fit in eager mode with an OptimizerV2")

    class Own(sgd.__bases__[0]):
        _HAS_AGGREGATE_GRAD = False

        def __init__(self, name="Own", **kwargs):
            super(Own, self).__init__(name, **kwargs)

        def apply_gradients(self, grads_and_vars, name=None):
            return super(Own, self).apply_gradients(grads_and_vars, name)

        def _resource_apply_dense(self, grad, var, apply_state=None):
            return var.assign_sub(0.25 * grad)

        def get_config(self):
            return super(Own, self).get_config()

    ends = []
    for wrap in (lambda own: own, lambda own: legacyga.wrap(own, 1), lambda own: legacyga.wrap(own, 2)):
        home.reset()
        model = home.keras.Sequential([home.keras.layers.Dense(1, input_shape=(1,), kernel_initializer="zeros")])
        model.compile(wrap(Own()), "mse")
        model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, epochs=2 if len(ends) == 2 else 1)
        ends.append(float(model.get_weights()[0][0, 0]))
    assert ends == [0.5, 0.5, 0.5]


@pytest.mark.capability("errors")
def test_optimizers_of_another_generation_in_a_list(home):
    """As tensorflow-recommenders's CompositeOptimizer, an OptimizerV2, with the Adam of TF 2.11."""
    stock = {generation_of(each): each for _, each in home.optimizer_classes() if each.__name__ == "SGD"}
    if not {"v2", "v3"} <= set(stock):
        skips.senseless("one generation of Keras alone")

    class Composite(stock["v2"]):
        def __init__(self, parts):
            super(Composite, self).__init__(0.1)
            self.parts = parts

    with pytest.raises(ValueError, match="Composite calls an optimizer of another generation.* Train in slices of a"):
        legacyga.wrap(Composite([(stock["v3"](0.1), lambda: [])]), 3)
