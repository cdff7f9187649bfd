"""Wrappers in the manner of Lookahead, which call the inner optimizer's hooks: around what accumulates, and wrapped."""

import dense
import homes
import kinds
import numpy as np
import oracle
import pytest
import skips
import users
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("wrap: every optimizer")

RANDOM = np.random.RandomState(47)
SHAPES = ((3, 2), (2,))
START = [RANDOM.randn(*shape).astype("float32") for shape in SHAPES]
FED = [[RANDOM.randn(*shape).astype("float32") for shape in SHAPES] for _ in range(24)]
RATE, MOMENTUM = 2.0**-4, 0.75
PERIOD, SLOW = 2, 0.25


def pytest_generate_tests(metafunc):
    from conftest import home_of

    if "sgd" in metafunc.fixturenames:
        names = ("SGD", "MomentumOptimizer")
        found = [each for each in kinds.of(home_of(metafunc.config)) if each.cls and each.cls.__name__ in names]
        # An optimizer of the v1 API has one hook, get_updates.
        found = [each for each in found if each.generation != "v1"]
        metafunc.parametrize("sgd", kinds.params(found))


@pytest.fixture(autouse=True)
def fresh(home):
    if home.mode == "graph":
        home.reset(plain_session=True)


def test_an_optimizer_of_keras_3_that_builds_another_alone(home):
    """It knows no variables itself."""
    if not home.is_keras3:
        skips.keras_lacks("build and apply of Keras 3")
    optimizers, ends = home.keras.optimizers, []

    class Outer(optimizers.Optimizer):
        def __init__(self, inner):
            super(Outer, self).__init__(learning_rate=0.0)
            self.inner = inner

        def build(self, variables):
            self.inner.build(variables)
            self.built = True

        def apply(self, grads, trainable_variables=None):
            self.inner.apply(grads, trainable_variables)
            self._iterations.assign_add(1)

    x, y = [np.random.RandomState(i).randn(12, 3).astype("float32") for i in range(2)]
    for steps in (1, 3):
        model = home.keras.Sequential([home.keras.Input((3,)), home.keras.layers.Dense(3, kernel_initializer="ones")])
        optimizer = Outer(optimizers.SGD(0.1, momentum=0.9))
        model.compile(legacyga.wrap(optimizer, 3) if steps == 3 else optimizer, "mse")
        model.fit(x, y, batch_size=6 // steps, epochs=2, shuffle=False, verbose=0)
        ends.append(model.get_weights()[0])
    assert np.max(np.abs(ends[0] - 1)) > 0.1
    np.testing.assert_allclose(ends[1], ends[0], rtol=0, atol=4e-6)


class Lookahead(object):
    """Zhang et al. 2019, algorithm 1: every PERIOD updates the slow weights go part of the way, all others there."""

    def __init__(self, fast):
        self.fast, self.slow = fast, None

    def update(self, weights, gradients, names=None):
        self.slow = weights if self.slow is None else self.slow
        weights = self.fast.update(weights, gradients)
        if self.fast.iterations % PERIOD == 0:
            self.slow = weights = [slow + SLOW * (fast - slow) for slow, fast in zip(self.slow, weights)]
        return weights


def lookahead_of(home, sgd, inner):
    """`inner` in a wrapper of its generation: OptimizerV2's hooks are `_resource_apply_dense` and `_sparse`, with
    slots; those of the optimizers of 2.11 and newer `update_step`, those of tf.compat.v1.train the first and
    `_apply_dense`.
    """
    makers = {"v2": lookahead_v2, "train": lookahead_train}
    return makers.get(sgd.generation, lookahead_v3)(home, base_of(sgd.cls), inner)


def base_of(cls):
    """The class that the optimizers of its generation are made of."""
    return [each for each in cls.__mro__[1:] if each.__name__ in ("Optimizer", "OptimizerV2")][0]


def described(optimizer):
    return {"class": type(optimizer), "config": optimizer.get_config()}


def made_of(description):
    return description["class"].from_config(description["config"])


def lookahead_v2(home, base, inner):
    tf = home.tf

    class LookaheadV2(base):
        def __init__(self, optimizer, name="Lookahead", **kwargs):
            super(LookaheadV2, self).__init__(name, **kwargs)
            self._optimizer = optimizer

        def _prepare(self, var_list):
            return self._optimizer._prepare(var_list)

        def _create_hypers(self):
            self._optimizer._create_hypers()

        def _create_slots(self, var_list):
            self._optimizer._create_slots(var_list)
            for var in var_list:
                self.add_slot(var, "slow", initializer=tf.constant_initializer(home.value(var)))

        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            self._optimizer._iterations = self.iterations
            return super(LookaheadV2, self).apply_gradients(grads_and_vars, *args, **kwargs)

        def _look_ahead(self, var, after):
            with tf.control_dependencies([after]):
                slow = self.get_slot(var, "slow")
                now = tf.cast(tf.equal((self.iterations + 1) % PERIOD, 0), var.dtype.base_dtype)
                reached = slow + SLOW * (var - slow)
                moved = slow.assign(now * reached + (1.0 - now) * slow)
                with tf.control_dependencies([moved]):
                    return var.assign(now * slow + (1.0 - now) * var)

        def _resource_apply_dense(self, grad, var, *args, **kwargs):
            return self._look_ahead(var, tf.group(self._optimizer._resource_apply_dense(grad, var, *args, **kwargs)))

        def _resource_apply_sparse(self, grad, var, indices, *args, **kwargs):
            done = self._optimizer._resource_apply_sparse(grad, var, indices, *args, **kwargs)
            return self._look_ahead(var, tf.group(done))

        def get_config(self):
            return {"optimizer": described(self._optimizer), "name": self._name}

        @classmethod
        def from_config(cls, config, custom_objects=None):
            return cls(made_of(config["optimizer"]), config["name"])

    return LookaheadV2(inner)


def lookahead_v3(home, base, inner):
    tf = home.tf

    class LookaheadV3(base):
        def __init__(self, optimizer, name="lookahead"):
            # Keras 3 wants one, and asks the inner optimizer for none.
            super(LookaheadV3, self).__init__(name=name, **({"learning_rate": 1.0} if home.is_keras3 else {}))
            if not home.is_keras3:
                self._learning_rate = self._build_learning_rate(1.0)
            self._optimizer = optimizer

        def build(self, variables):
            super(LookaheadV3, self).build(variables)
            self._optimizer.build(variables)
            if not hasattr(self, "slows"):
                self.slows = [self.add_variable_from_reference(variable, "slow") for variable in variables]
                for slow, variable in zip(self.slows, variables):
                    slow.assign(variable)
            if not home.is_keras3:
                self._built = True

        def update_step(self, gradient, variable, *args):
            # In Keras 3 the rate is an argument: here the inner optimizer's.
            self._optimizer.update_step(gradient, variable, *[self._optimizer.learning_rate for _ in args])
            if home.is_keras3:
                slow = self.slows[self._get_variable_index(variable)]
            else:
                slow = self.slows[self._index_dict[self._var_key(variable)]]
            step = tf.cast(tf.convert_to_tensor(self.iterations), "int64") + 1
            now = tf.cast(tf.equal(step % PERIOD, 0), variable.dtype)
            slow.assign(now * (slow + SLOW * (variable - slow)) + (1.0 - now) * slow)
            variable.assign(now * slow + (1.0 - now) * variable)

        def get_config(self):
            return {"optimizer": described(self._optimizer), "name": self.name}

        @classmethod
        def from_config(cls, config, custom_objects=None):
            return cls(made_of(config["optimizer"]), config["name"])

    return LookaheadV3(inner)


def lookahead_train(home, base, inner):
    tf, v1 = home.tf, home.v1

    class LookaheadTrain(base):
        def __init__(self, optimizer):
            super(LookaheadTrain, self).__init__(use_locking=False, name="Lookahead")
            self._optimizer = optimizer

        def _prepare(self):
            self._optimizer._prepare()

        def _create_slots(self, var_list):
            self._optimizer._create_slots(var_list)
            for var in var_list:
                start = tf.constant(home.value(var))
                self._get_or_make_slot(var, start, "slow", "slow")
                self._get_or_make_slot(var, tf.zeros_like(start), "count", "count")

        def _look_ahead(self, var, after):
            with tf.control_dependencies([after]):
                slow, count = self.get_slot(var, "slow"), self.get_slot(var, "count")
                counted = v1.assign_add(count, tf.ones_like(count))
                now = tf.cast(tf.equal(counted % float(PERIOD), 0.0), "float32")
                value, past = var.read_value(), slow.read_value()
                moved = v1.assign(slow, now * (past + SLOW * (value - past)) + (1.0 - now) * past)
                with tf.control_dependencies([moved]):
                    return tf.group(v1.assign(var, now * moved + (1.0 - now) * value))

        def _apply_dense(self, grad, var):
            return self._look_ahead(var, tf.group(self._optimizer._apply_dense(grad, var)))

        def _resource_apply_dense(self, grad, var):
            return self._look_ahead(var, tf.group(self._optimizer._resource_apply_dense(grad, var)))

        def variables(self):
            return super(LookaheadTrain, self).variables() + self._optimizer.variables()

    return LookaheadTrain(inner)


def bare(sgd):
    return users.make(sgd, sgd.cls, RATE, MOMENTUM)


def assert_looks_ahead(driven, steps, fed=FED):
    expected = Lookahead(oracle.SGD(RATE, MOMENTUM))
    wanted = [value.astype("float64") for value in START]
    for i in range(0, len(fed) - len(fed) % steps, steps):
        before = driven.values()
        for each in fed[i : i + steps]:
            dense.assert_bits(driven.values(), before)
            driven.step(each)
        wanted = dense.applied(expected, fed[i : i + steps], steps, wanted)
        dense.assert_close(driven.values(), wanted)


@pytest.mark.parametrize("steps", [slow(1), 5])
def test_wrap_of_a_lookahead(home, sgd, steps):
    """The slow weights count updates. The original, and the optimizer within it, keep their bits."""
    inner = bare(sgd)
    outer = lookahead_of(home, sgd, inner)
    kept = home.optimizer_weights(inner), home.optimizer_weights(outer)
    optimizer = legacyga.wrap(outer, steps)
    assert isinstance(optimizer, type(outer)) and optimizer.gradient_accumulation_steps == steps
    driven = homes.Fed(home, optimizer, users.variables_of(home, sgd, START))
    assert_looks_ahead(driven, steps)
    for each, values in zip((inner, outer), kept):
        dense.assert_bits(home.optimizer_weights(each), values)


def test_wrap_of_a_lookahead_that_has_trained(home, sgd):
    """Two updates of its own, and the window's; what it was before stays."""
    inner = bare(sgd)
    outer = lookahead_of(home, sgd, inner)
    variables = users.variables_of(home, sgd, START)
    first = homes.Fed(home, outer, variables)
    expected = Lookahead(oracle.SGD(RATE, MOMENTUM))
    wanted = [value.astype("float64") for value in START]
    for each in FED[:3]:
        first.step(each)
    wanted = dense.applied(expected, FED[:3], 1, wanted)
    dense.assert_close(first.values(), wanted)
    kept = home.optimizer_weights(inner), home.optimizer_weights(outer)
    if sgd.generation == "train" and home.mode == "graph":
        with pytest.raises(
            ValueError, match="tf.compat.v1.train cannot be copied.*Wrap it before it is given gradients"
        ):
            legacyga.wrap(outer, 3)
        return
    driven = homes.Fed(home, legacyga.wrap(outer, 3), variables)
    for each in FED[3:15]:
        driven.step(each)
    dense.assert_close(driven.values(), dense.applied(expected, FED[3:15], 3, wanted))
    for each, values in zip((inner, outer), kept):
        dense.assert_bits(home.optimizer_weights(each), values)


def test_a_lookahead_around_what_accumulates(home, sgd):
    """Its hooks are called for every micro-batch, and know of no window: an error before anything moves."""
    outer = lookahead_of(home, sgd, legacyga.wrap(bare(sgd), 4))
    variables = users.variables_of(home, sgd, START)
    with pytest.raises(ValueError, match="apply_gradients"):
        # In graph mode as soon as the mini-step is made.
        homes.Fed(home, outer, variables).step(FED[0])
    dense.assert_bits([home.value(variable) for variable in variables], START)


def test_a_lookahead_around_k_of_1(home, sgd):
    outer = lookahead_of(home, sgd, legacyga.wrap(bare(sgd), 1))
    assert_looks_ahead(homes.Fed(home, outer, users.variables_of(home, sgd, START)), 1, FED[:7])


def test_a_lookahead_of_the_bare_optimizer(home, sgd):
    """That the wrappers of this file are right on their own."""
    outer = lookahead_of(home, sgd, bare(sgd))
    assert_looks_ahead(homes.Fed(home, outer, users.variables_of(home, sgd, START)), 1, FED[:7])


@pytest.mark.parametrize("rows", [slow(False), True], ids=["dense", "rows"])
def test_an_optimizers_hook_called_by_hand(home, sgd, rows):
    """What a wrapper calls, called once, on K = 3 and on K = 1."""
    tf = home.tf
    if home.mode == "graph":
        skips.senseless("eager mode only")
    ids = np.array([0, 2], "int64")
    gradient = FED[0][0][:2] if rows else FED[0][0]

    def call(optimizer, variable):
        if hasattr(optimizer, "build"):
            optimizer.build([variable])
        var = users.as_seen(variable)
        if sgd.generation in ("v3", "keras3"):
            given = tf.IndexedSlices(tf.constant(gradient), tf.constant(ids), (3, 2)) if rows else tf.constant(gradient)
            rate = [optimizer.learning_rate] if sgd.generation == "keras3" else []
            return optimizer.update_step(given, var, *rate)
        if sgd.generation == "train":
            optimizer._create_slots([var])
            optimizer._prepare()
        else:
            optimizer._create_hypers()
            optimizer._create_slots([var])
            optimizer._prepare([var])
        if rows:
            return optimizer._resource_apply_sparse(tf.constant(gradient), var, tf.constant(ids))
        return optimizer._resource_apply_dense(tf.constant(gradient), var)

    variable = users.variables_of(home, sgd, START[:1])[0]
    with pytest.raises(ValueError, match="apply_gradients"):
        call(legacyga.wrap(bare(sgd), 3), variable)
    dense.assert_bits([home.value(variable)], START[:1])
    call(legacyga.wrap(bare(sgd), 1), variable)
    moved = np.zeros_like(START[0], "float64")
    moved[ids if rows else slice(None)] = RATE * gradient
    dense.assert_close([home.value(variable)], [START[0] - moved])


# ------------------------------------------------------------------------------------- several optimizers, by variable


@pytest.fixture
def optimizers(home):
    if not hasattr(home.keras.optimizers, "OptimizerMap"):
        skips.keras_lacks("MultiOptimizer: the newest Keras 3 has it")
    return home.keras.optimizers


def multi_optimizer(optimizers):
    """SGD, but for what ends in bias: Adam."""
    by_pattern = {".*bias": optimizers.Adam(RATE, beta_1=0.5, beta_2=0.75, epsilon=2.0**-8)}
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD(RATE, MOMENTUM), by_pattern))


@pytest.mark.parametrize("updates", [slow(0), 2])
def test_wrap_of_a_multi_optimizer(home, optimizers, updates):
    """It has copies of the optimizers, with their state. Those that were given keep their bits."""
    given = multi_optimizer(optimizers)
    variables = [home.keras.Variable(value, name=name) for value, name in zip(START, ("kernel", "bias"))]
    both = [oracle.SGD(RATE, MOMENTUM), oracle.Adam(RATE, beta_1=0.5, beta_2=0.75, epsilon=2.0**-8)]
    wanted = [value.astype("float64") for value in START]

    def train(optimizer, fed, steps):
        for each in fed:
            optimizer.apply([home.tf.constant(value) for value in each], variables)
        return [
            dense.applied(one, [[each[i]] for each in fed], steps, [weights])[0]
            for i, (one, weights) in enumerate(zip(both, wanted))
        ]

    if updates:
        wanted = train(given, FED[:updates], 1)
    kept = [each.numpy() for each in given.variables]
    wrapped = legacyga.wrap(given, 3)
    assert [type(each).__name__ for each in wrapped.optimizers] == ["Adam", "SGD"]
    assert not any(mine is theirs for mine in wrapped.optimizers for theirs in given.optimizers)
    wanted = train(wrapped, FED[2:14], 3)
    # The rates of the copies are those that count.
    for optimizer, reference in zip(wrapped.optimizers, both[::-1]):
        optimizer.learning_rate = reference.lr = RATE / 8
    wanted = train(wrapped, FED[14:20], 3)
    dense.assert_close([each.numpy() for each in variables], wanted)
    dense.assert_bits([each.numpy() for each in given.variables], kept)


def test_a_multi_optimizer_is_saved_in_mid_window(home, optimizers, tmp_path):
    """The loaded model ends with the bits of the one that went on."""
    model = home.keras.Sequential([home.keras.Input((3,)), home.keras.layers.Dense(2)])
    model.compile(legacyga.wrap(multi_optimizer(optimizers), 4), "mse")
    x, y = RANDOM.randn(32, 3).astype("float32"), RANDOM.randn(32, 2).astype("float32")
    model.fit(x[:24], y[:24], batch_size=4, shuffle=False, verbose=0)
    model.save(str(tmp_path / "model.keras"))
    loaded = legacyga.load_model(str(tmp_path / "model.keras"), keras=home.keras)
    assert int(loaded.optimizer.mini_step) == 2
    for each in (model, loaded):
        each.fit(x[24:], y[24:], batch_size=4, shuffle=False, verbose=0)
    assert int(loaded.optimizer.mini_step) == 0
    dense.assert_bits(loaded.get_weights(), model.get_weights())


def test_a_multi_optimizer_with_one_for_two_patterns(home, optimizers):
    """It is one in the copy, too, and clips by the norm of both."""

    def make():
        one = optimizers.SGD(1.0, global_clipnorm=1.0)
        return optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD(), {"a.*": one, "b.*": one}))

    given = make()
    wrapped = legacyga.wrap(given, 2)
    assert len(wrapped.optimizers) == 2 and wrapped.optimizers[0] is not given.optimizers[0]
    variables = [home.keras.Variable([1.0, 2.0], name=name) for name in "ab"]
    for _ in range(2):
        wrapped.apply([home.tf.constant([3.0, 0.0]), home.tf.constant([0.0, 4.0])], variables)
    dense.assert_close([each.numpy() for each in variables], np.float64([[0.4, 2.0], [1.0, 1.2]]))


def test_a_multi_optimizer_of_one_for_all(home, optimizers):
    """Its map has no entries; two copies of it have each their own optimizer, and so has the one that was given."""
    default = optimizers.SGD(RATE, MOMENTUM)
    given = optimizers.MultiOptimizer(optimizers.OptimizerMap(default))
    for _ in range(2):
        variables = [home.keras.Variable(value) for value in START]
        wrapped = legacyga.wrap(given, 2)
        for each in FED[:4]:
            wrapped.apply([home.tf.constant(value) for value in each], variables)
        wanted = dense.applied(oracle.SGD(RATE, MOMENTUM), FED[:4], 2, [value.astype("float64") for value in START])
        dense.assert_close([each.numpy() for each in variables], wanted)
        assert not any(each is default for each in wrapped.optimizers)
    assert not default.built


def test_a_multi_optimizer_over_a_function(home, optimizers):
    """Once it is built it has all optimizers; before that the copy would share those that the function returns."""
    one = optimizers.SGD(RATE, MOMENTUM)
    given = optimizers.MultiOptimizer(lambda variable: one)
    with pytest.raises(ValueError, match="asks its function for optimizers when it is built.*Call its build"):
        legacyga.wrap(given, 2)
    variables = [home.keras.Variable(value) for value in START]
    given.build(variables)
    wrapped = legacyga.wrap(given, 2)
    assert wrapped.optimizers[0] is not one
    kept = [each.numpy() for each in given.variables]
    for each in FED[:4]:
        wrapped.apply([home.tf.constant(value) for value in each], variables)
    wanted = dense.applied(oracle.SGD(RATE, MOMENTUM), FED[:4], 2, [value.astype("float64") for value in START])
    dense.assert_close([each.numpy() for each in variables], wanted)
    dense.assert_bits([each.numpy() for each in given.variables], kept)
