"""wrap copies the optimizer's own state. What the optimizer merely refers to stays the object that it was."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import weakref

import dense
import homes
import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
import users
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R15 a quiet guest")

RANDOM = np.random.RandomState(71)
SHAPES = ((3, 2), (2,))
START = [RANDOM.randn(*shape).astype("float32") for shape in SHAPES]
FED = [[RANDOM.randn(*shape).astype("float32") for shape in SHAPES] for _ in range(24)]
RATE, MOMENTUM = 2.0**-4, 0.75


def pytest_generate_tests(metafunc):
    from conftest import home_of

    for argument, names in (("sgd", ("SGD", "MomentumOptimizer")), ("adam", ("Adam", "AdamOptimizer"))):
        if argument in metafunc.fixturenames:
            found = [each for each in kinds.of(home_of(metafunc.config)) if each.cls and each.cls.__name__ in names]
            metafunc.parametrize(argument, kinds.params(found))
    if "key" in metafunc.fixturenames:
        # In eager mode a variable is no key of a dict.
        metafunc.parametrize("key", ["variable" if home_of(metafunc.config).mode == "graph" else "reference", "name"])


@pytest.fixture(autouse=True)
def fresh(home):
    if home.mode == "graph":
        home.reset(plain_session=True)


def double(weights):
    return [np.asarray(weight, "float64") for weight in weights]


class Multiplied(oracle.SGD):
    """The oracle's SGD over gradients times a number each."""

    factors = (1.0, 1.0)

    def update(self, weights, gradients, names=None):
        scaled = [factor * gradient for factor, gradient in zip(self.factors, gradients)]
        return super(Multiplied, self).update(weights, scaled, names)


class Trial(object):
    """An optimizer that is wrapped, before it has trained or after two updates of its own.

    Args:
        home, sgd: the home, and the kind of optimizer.
        inner: the optimizer to wrap.
        expected: the oracle's.
        steps: K.
        has_state: whether it trains on its own before.
    """

    def __init__(self, home, kind, inner, expected, steps, has_state, variables=None):
        if has_state and home.mode == "graph" and homes.generation_of(type(inner)) == "train":
            skips.senseless("refused in a graph, as test_a_trained_optimizer_is_not_wrapped_in_a_graph asserts")
        self.home, self.steps, self.expected = home, steps, expected
        self.inner = inner
        self.variables = users.variables_of(home, kind, START) if variables is None else variables
        self.wanted = double(START)
        self.left = list(FED)
        if has_state:
            first = homes.Fed(home, inner, self.variables)
            for each in self.left[:2]:
                first.step(each)
            self.wanted = dense.applied(expected, self.left[:2], 1, self.wanted)
            del self.left[:2]
        self.kept = home.optimizer_weights(inner)
        self.optimizer = legacyga.wrap(inner, steps)
        self.driven = homes.Fed(home, self.optimizer, self.variables)

    def check_windows(self, windows=2):
        """Some windows, against the oracle; the optimizer that was given keeps its bits."""
        fed, self.left = self.left[: windows * self.steps], self.left[windows * self.steps :]
        assert len(fed) == windows * self.steps
        for each in fed:
            self.driven.step(each)
        self.wanted = dense.applied(self.expected, fed, self.steps, self.wanted)
        dense.assert_close(self.driven.values(), self.wanted)
        dense.assert_bits(self.home.optimizer_weights(self.inner), self.kept)


def each_time(function):
    """The test at K = 1 and above, with an optimizer that is new and one that has trained."""
    cases = [slow(1, True), slow(3, False), (3, True)]
    ids = ["1-trained", "3-new", "3-trained"]
    return pytest.mark.parametrize("steps, has_state", cases, ids=ids)(function)


KEYS = {
    "variable": users.as_seen,
    "reference": users.reference_to,
    "name": lambda variable: users.as_seen(variable).name,
}


@each_time
@pytest.mark.long
def test_a_dict_by_variable(home, sgd, key, steps, has_state):
    """Multipliers of the rate, one for each variable; one that is not in the dict has 1."""

    class Multiplying(users.scaling(sgd, home)):
        def factor(self, variable):
            return self.what.get(KEYS[key](variable), 1.0)

    variables = users.variables_of(home, sgd, START)
    multipliers = {KEYS[key](variables[1]): 0.25}
    expected = Multiplied(RATE, MOMENTUM)
    expected.factors = (1.0, 0.25)
    inner = users.make(sgd, Multiplying, RATE, MOMENTUM, what=multipliers)
    trial = Trial(home, sgd, inner, expected, steps, has_state, variables)
    trial.check_windows()
    assert trial.optimizer.what is trial.inner.what
    if home.mode == "eager":
        # A graph has the numbers in it.
        trial.inner.what[KEYS[key](variables[0])] = 8.0
        expected.factors = (8.0, 0.25)
        trial.check_windows()


class Helper(object):
    """Something of the user's that an optimizer asks."""

    def __init__(self, home, value):
        self.variable = users.own_variable(home, value)

    def now(self, *step):
        return self.variable * 1.0


@each_time
@pytest.mark.parametrize("held", ["a variable", "a helper", "a method of a helper"])
@pytest.mark.long
def test_an_attribute(home, sgd, held, steps, has_state):
    class Asking(users.scaling(sgd, home)):
        def factor(self, variable):
            return self.what * 1.0 if held == "a variable" else self.what.now() if held == "a helper" else self.what()

    helper = Helper(home, 0.5)
    what = {"a variable": helper.variable, "a helper": helper}.get(held, helper.now)
    expected = Multiplied(RATE, MOMENTUM)
    expected.factors = (0.5, 0.5)
    inner = users.make(sgd, Asking, RATE, MOMENTUM, what=what)
    trial = Trial(home, sgd, inner, expected, steps, has_state)
    trial.check_windows()
    users.assign(home, helper.variable, 4.0)
    expected.factors = (4.0, 4.0)
    trial.check_windows()
    assert float(home.value(helper.variable)) == 4.0


@pytest.mark.long
@each_time
def test_a_method_of_the_optimizer_itself(home, sgd, steps, has_state):
    """It is the copy's own in the copy."""

    class Ruled(users.scaling(sgd, home)):
        def __init__(self, *args, **kwargs):
            super(Ruled, self).__init__(*args, **kwargs)
            self.strength = 0.5
            self.rule = self.weaken

        def weaken(self):
            return self.strength

        def factor(self, variable):
            return self.rule()

    expected = Multiplied(RATE, MOMENTUM)
    expected.factors = (0.5, 0.5)
    inner = users.make(sgd, Ruled, RATE, MOMENTUM)
    trial = Trial(home, sgd, inner, expected, steps, has_state)
    assert trial.optimizer.rule.__self__ is trial.optimizer and inner.rule.__self__ is inner
    trial.check_windows()
    if home.mode == "eager":
        trial.optimizer.strength = 2.0
        expected.factors = (2.0, 2.0)
        trial.check_windows()
    assert inner.strength == 0.5


@pytest.mark.long
@each_time
def test_a_rate_that_is_a_variable(home, sgd, steps, has_state):
    if sgd.generation in ("v3", "keras3"):
        skips.keras_lacks("optimizers of this generation make a variable of their own of a rate")
    rate = users.own_variable(home, 0.5)
    expected = oracle.SGD(0.5)
    if sgd.generation == "v1":
        # Those of Keras make a variable of their own of what they are given; a user's class need not.
        class Rated(users.scaling(sgd, home)):
            def __init__(self, held, **kwargs):
                super(Rated, self).__init__(**kwargs)
                self.rate = held

            def factor(self, variable):
                return self.rate * 1.0

        inner = users.make(sgd, Rated, 1.0, held=rate)
    else:
        inner = users.make(sgd, sgd.cls, rate)
    trial = Trial(home, sgd, inner, expected, steps, has_state)
    trial.check_windows()
    users.assign(home, rate, 0.125)
    expected.lr = 0.125
    trial.check_windows()
    users.assign(home, rate, 1.0)
    expected.lr = 1.0
    trial.check_windows(1)


def test_a_rate_of_another_optimizer(home, sgd):
    """Two optimizers share a rate as before, though an optimizer has made its variable."""
    if sgd.generation != "v2" or home.mode == "graph":
        skips.keras_lacks("optimizers of this generation make a variable of their own of a rate")
    first = sgd.cls(0.5)
    second = legacyga.wrap(sgd.cls(first.learning_rate), 2)
    first.learning_rate.assign(0.125)
    variable = home.tf.Variable(1.0)
    for _ in range(2):
        second.apply_gradients([(home.tf.constant(2.0), variable)])
    assert float(variable.numpy()) == 0.75


def test_a_deep_copy_that_is_wrapped(home, sgd):
    """It counts its own updates, though TF up to 2.4 copies a variable without how it is aggregated."""
    if sgd.generation != "v2" or home.mode == "graph":
        skips.senseless("one generation tells its own variables by their aggregation")
    bare, variable = sgd.cls(0.5), home.tf.Variable(1.0)
    bare.apply_gradients([(home.tf.constant(2.0), variable)])
    copied = copy.deepcopy(bare)
    ours = legacyga.wrap(copied, 1)
    ours.apply_gradients([(home.tf.constant(2.0), variable)])
    assert [int(each.iterations.numpy()) for each in (bare, copied, ours)] == [1, 1, 2]


@each_time
def test_another_hyperparameter_that_is_a_variable(home, sgd, adam, steps, has_state):
    """Momentum in tf.compat.v1.train; Adam's beta_1 in OptimizerV2, whose SGD asks at once whether momentum is 0."""
    if sgd.generation not in ("v2", "train"):
        skips.keras_lacks("optimizers of this generation take a number there")
    if sgd.generation != adam.generation:
        skips.senseless("one generation at a time")
    if sgd.generation == "v2" and home.tf_version < (1, 15):
        skips.keras_lacks("a hyperparameter that stays the variable it is given as: TF 1.15 or newer")
    value = users.own_variable(home, 0.875)
    if sgd.generation == "train":
        name, expected, inner = "momentum", oracle.SGD(RATE, 0.875), users.make(sgd, sgd.cls, RATE, value)
    else:
        name, expected = "beta_1", oracle.Adam(RATE, beta_1=0.875, epsilon=2.0**-8)
        inner = adam.cls(RATE, beta_1=value, epsilon=2.0**-8)
    trial = Trial(home, sgd, inner, expected, steps, has_state)
    trial.check_windows()
    users.assign(home, value, 0.5)
    setattr(expected, name, 0.5)
    trial.check_windows()


@each_time
def test_a_schedule_that_holds_a_variable(home, sgd, steps, has_state):
    schedules = getattr(home.keras.optimizers, "schedules", None)
    base = getattr(schedules, "LearningRateSchedule", None)
    if base is None or sgd.generation in ("v1", "train"):
        skips.keras_lacks("optimizers of this generation take no schedule objects")

    class Held(base):
        def __init__(self, helper):
            self.helper = helper

        def __call__(self, step):
            return self.helper.now(step)

        def get_config(self):
            return {}

    schedule = Held(Helper(home, 0.5))
    expected = oracle.SGD(0.5)
    trial = Trial(home, sgd, users.make(sgd, sgd.cls, schedule), expected, steps, has_state)
    trial.check_windows()
    users.assign(home, schedule.helper.variable, 0.125)
    expected.lr = 0.125
    trial.check_windows()


@each_time
def test_a_rate_that_is_a_method_of_another_object(home, sgd, steps, has_state):
    if sgd.generation in ("v1", "v3"):
        skips.keras_lacks("optimizers of this generation take no function for a rate")
    helper = Helper(home, 0.5)
    expected = oracle.SGD(0.5)
    trial = Trial(home, sgd, users.make(sgd, sgd.cls, helper.now), expected, steps, has_state)
    trial.check_windows()
    users.assign(home, helper.variable, 0.125)
    expected.lr = 0.125
    trial.check_windows()


@pytest.mark.parametrize("kind", [slow("a schedule"), "a function"])
def test_a_copy_has_the_variables_of_its_class(home, kind):
    """And no rate of its own beside the one that it shares: lists of values go by their order."""
    if not home.is_keras3:
        skips.senseless("the others keep a rate that is no number among the hyperparameters")
    optimizers = home.keras.optimizers
    rate = optimizers.schedules.ExponentialDecay(0.25, 2, 0.5) if kind == "a schedule" else lambda: 0.125
    gradients = [[np.full((), value, "float32")] for value in (1.0, -0.5, 0.25, 2.0)]

    bare, variable = optimizers.Adam(rate), home.keras.Variable(1.0)

    def trained(optimizer, part):
        for gradient in part:
            optimizer.apply(gradient, [variable])
        return variable.numpy()

    before = trained(bare, gradients[:2])
    wrapped = legacyga.wrap(bare, 1)
    names = [each.path.partition("/")[2] for each in bare.variables]
    assert [each.path.partition("/")[2] for each in wrapped.variables] == names
    expected = trained(bare, gradients[2:])
    variable.assign(before)
    np.testing.assert_array_equal(trained(wrapped, gradients[2:]), expected)


def test_a_class_that_makes_its_schedule_of_a_number(home):
    if not home.is_keras3:
        skips.senseless("the others keep a rate that is no number among the hyperparameters")
    optimizers = home.keras.optimizers

    class Halved(optimizers.SGD):
        def __init__(self, learning_rate=0.5, **kwargs):
            rate = optimizers.schedules.PiecewiseConstantDecay([100], [learning_rate * 0.5, 0.0])
            super(Halved, self).__init__(rate, **kwargs)

    wrapped, variable = legacyga.wrap(Halved(0.5), 1), home.keras.Variable(1.0)
    wrapped.apply([np.float32(1.0)], [variable])
    assert float(variable.numpy()) == 0.75


@each_time
def test_its_own_numbers_are_its_own(home, sgd, steps, has_state):
    """A rate that is a number: each of the two has its own, to be set apart."""
    if sgd.generation == "train":
        skips.keras_lacks("the rate of an optimizer of tf.compat.v1.train is no variable of it")
    expected = oracle.SGD(0.5)
    trial = Trial(home, sgd, users.make(sgd, sgd.cls, 0.5), expected, steps, has_state)
    trial.check_windows()
    name = "lr" if sgd.generation == "v1" else "learning_rate"
    for optimizer, value in ((trial.optimizer, 0.125), (trial.inner, 4.0)):
        if home.mode == "graph" and sgd.generation == "v1":
            home.backend.set_value(getattr(optimizer, name), value)
        else:
            setattr(optimizer, name, value)
    expected.lr = 0.125
    trial.kept = home.optimizer_weights(trial.inner)
    trial.check_windows()
    assert float(home.value(getattr(trial.optimizer, name))) == 0.125
    assert float(home.value(getattr(trial.inner, name))) == 4.0


def test_the_numbers_of_a_class_of_the_users_own(home, sgd):
    """A whole optimizer of the v1 API: what its __init__ makes of its arguments is each copy's own."""
    if sgd.generation != "v1":
        skips.senseless("get_updates is of the v1 API")
    base = next(each for each in sgd.cls.__mro__ if each.__name__ in ("Optimizer", "OptimizerV1"))
    inner = users.own_sgd(base, home)(lr=RATE, momentum=MOMENTUM)
    # That of the program.
    inner.global_step = homes.v1_of(home.tf).train.get_or_create_global_step()
    first, second = legacyga.wrap(inner, 2), legacyga.wrap(inner, 2)
    home.backend.set_value(first.learning_rate, 2.0)
    home.backend.set_value(second.momentum, 0.5)
    rates, momenta = [
        [float(home.value(getattr(each, name))) for each in (inner, first, second)]
        for name in ("learning_rate", "momentum")
    ]
    assert (rates, momenta) == ([RATE, 2.0, RATE], [MOMENTUM, MOMENTUM, 0.5])
    assert first.global_step is inner.global_step


@pytest.mark.parametrize("holder", ["attribute", slow("list"), slow("tuple"), slow("dict")])
@pytest.mark.parametrize("given", [slow("SGD"), slow("Adam"), slow("schedule"), "nested"])
@pytest.mark.parametrize("has_trained", [slow(False), True])
def test_an_optimizer_that_no_config_holds(home, holder, given, has_trained):
    """A class of the user's with an optimizer of its own by default, and without a get_config."""
    if not home.is_keras3:
        skips.senseless("test_wrappers.py has wrappers of the others")
    optimizers, one = home.keras.optimizers, home.tf.constant([0.25, 0.5, 1.0])

    class Centralized(optimizers.Optimizer):
        def __init__(self, inner=None, learning_rate=1.0, **kwargs):
            super(Centralized, self).__init__(learning_rate=learning_rate, **kwargs)
            # One with a schedule differs from another in the schedule alone.
            inner = inner or optimizers.SGD(optimizers.schedules.InverseTimeDecay(0.01, 1, 1.0))
            # A method of another optimizer.
            self.update_of_first = inner.update_step
            self.inner = {"list": [inner], "tuple": (inner, 1), "dict": {"first": inner}}.get(holder, inner)

        @property
        def first(self):
            return self.inner if holder == "attribute" else self.inner["first" if holder == "dict" else 0]

        def build(self, variables):
            if not self.built:
                super(Centralized, self).build(variables)
                self.first.build(variables)

        def update_step(self, gradient, variable, learning_rate):
            self.update_of_first(gradient - home.keras.ops.mean(gradient), variable, self.first.learning_rate)

    def make():
        if given == "nested":
            inner = Centralized(optimizers.RMSprop(0.25))
            inner.first.factor = 2
            return Centralized(inner)
        if given == "schedule":
            return Centralized(optimizers.SGD(optimizers.schedules.InverseTimeDecay(0.5, 1, 1.0)))
        return Centralized(optimizers.SGD(0.5, momentum=0.5) if given == "SGD" else optimizers.Adam(0.25))

    (first,), (second,) = home.variables([np.zeros(3, "float32")]), home.variables([np.zeros(3, "float32")])
    bare, inner = make(), make()
    for optimizer, variable in ((bare, first), (inner, second)):
        if has_trained:
            optimizer.build([variable])
            optimizer.apply([one], [variable])
    wrapped = legacyga.wrap(inner, 2)
    assert wrapped.first is not inner.first and type(wrapped.first) is type(inner.first)
    if given == "nested":
        assert wrapped.first.first.factor == 2 and wrapped.first.first is not inner.first.first
    bare.build([first])
    for factor in (1.0, -2.0, 3.0):
        bare.apply([factor * one], [first])
        for part in (0.5, 1.5):
            wrapped.apply([part * factor * one], [second])
        dense.assert_bits([home.value(second)], [home.value(first)])
    assert float(np.abs(home.value(first)).max()) > 0.1


class Refusing(object):
    """Before an optimizer class: it can be described, and not made again of what describes it."""

    def __init__(self, needed, **kwargs):
        super(Refusing, self).__init__(**kwargs)
        self.slots, self.needed = {}, needed

    def build(self, variables):
        if self.built:
            return
        super(Refusing, self).build(variables)
        for variable in variables:
            self.slots[variable.path] = self.add_variable_from_reference(variable, name="sum")
        # Keras takes these in as the optimizer's own, which they are not.
        self.models = list(variables)

    def update_step(self, gradient, variable, learning_rate):
        total = self.slots[self.models[self._get_variable_index(variable)].path]
        self.assign_add(total, gradient)
        self.assign_sub(variable, learning_rate * total)


@pytest.mark.parametrize("is_built", [False, True])
def test_what_a_class_fills_when_it_is_built(home, is_built):
    """Two copies and the one that was given have each their own; the model's variables are the model's."""
    if not home.is_keras3:
        skips.senseless("the others have no containers that take in an optimizer's variables")

    class Summing(Refusing, home.keras.optimizers.Optimizer):
        pass

    given = Summing(1, learning_rate=0.5)
    variable = home.keras.Variable([0.0, 0.0], name="kernel")
    if is_built:
        given.build([variable])
    number, names = len(given.variables), [each.path for each in given.variables]
    both = [legacyga.wrap(given, 2) for _ in range(2)]
    assert [[each.path for each in copied.variables] for copied in both] == [names, names]
    for copied in both:
        variable.assign([0.0, 0.0])
        for value in (1.0, 3.0, 4.0, 0.0):
            copied.apply([home.tf.fill([2], value)], [variable])
        # The sums are 2 and 4, of which half is taken each time.
        assert variable.numpy().tolist() == [-3.0, -3.0]
        assert copied.models[0] is variable
        assert any(each is copied.slots["kernel"] for each in copied.variables)
    assert len(given.variables) == number and len(given.slots) == is_built
    assert all(not np.any(each.numpy()) for each in given.slots.values())
    assert both[0].slots["kernel"] is not both[1].slots["kernel"]


@pytest.mark.parametrize("kept_in", ["list", slow("dict")])
def test_what_an_optimizer_of_tf_keras_fills_when_it_is_built(home, kept_in):
    """A list or a dict that is empty when it is wrapped: each copy fills its own."""
    base = getattr(home.keras.optimizers, "Optimizer", object)
    if homes.generation_of(base) != "v3" or home.mode == "graph":
        skips.senseless("optimizers of tf.keras from 2.11 on, and of tf_keras")

    class Summing(base):
        def __init__(self):
            super(Summing, self).__init__(name="Summing")
            self._learning_rate = self._build_learning_rate(0.5)
            self.kept = {} if kept_in == "dict" else []

        def build(self, var_list):
            super(Summing, self).build(var_list)
            if not getattr(self, "_built", False):
                sums = [self.add_variable_from_reference(each, "sum") for each in var_list]
                self.kept.update(sum=sums[0]) if kept_in == "dict" else self.kept.extend(sums)
                self._built = True

        def update_step(self, gradient, variable):
            total = self.kept["sum" if kept_in == "dict" else 0]
            total.assign_add(gradient)
            variable.assign_sub(self.learning_rate * total)

        def get_config(self):
            return {}

    given = Summing()
    for _ in range(2):
        variable, copied = home.tf.Variable([0.0, 0.0]), legacyga.wrap(given, 2)
        for value in (1.0, 3.0, 4.0, 0.0):
            copied.apply_gradients([(home.tf.fill([2], value), variable)])
        # The sums are 2 and 4, of which half is taken each time.
        assert variable.numpy().tolist() == [-3.0, -3.0]
    assert not given.kept


def test_an_object_with_a_method_of_an_optimizer(home, sgd):
    """A helper that the user hangs on an optimizer, which has an `update_step` of its own: it is shared."""
    needs.wrap(home)

    class Warmup(object):
        def update_step(self):
            return 1

    given = users.make(sgd, sgd.cls, RATE, MOMENTUM)
    given.warmup = Warmup()
    copied = legacyga.wrap(given, 2)
    assert copied.warmup is given.warmup and copied.gradient_accumulation_steps == 2


def test_a_class_that_nobody_has_any_more(home, sgd):
    """A class made in a function, and what it refers to, goes with its last optimizer, as with the bare one."""

    def alive(make):
        class Large(object):
            pass

        large = Large()

        class Own(sgd.cls):
            def refer(self):
                return large

        first, second = make(Own(RATE, MOMENTUM)), make(Own(RATE, MOMENTUM))
        assert type(first) is type(second) and first.refer() is large
        return weakref.ref(large), weakref.ref(Own)

    for make in (lambda optimizer: optimizer, lambda optimizer: legacyga.wrap(optimizer, 2)):
        references = alive(make)
        # One goes with the class that is wrapped, the next with the one it wraps.
        gc.collect()
        gc.collect()
        assert [each() for each in references] == [None, None]


def test_a_session_that_is_given_after_wrap(home, sgd):
    """Old programs give Keras a session of their own after `compile`: until then wrap opens none."""
    if sgd.generation != "v1":
        skips.senseless("another generation reads no values of a graph when it is copied")
    home.keras.backend.clear_session()
    model = home.keras.models.Sequential()
    model.add(home.keras.layers.Dense(2, input_shape=(3,), kernel_initializer="ones", use_bias=False))
    model.compile(legacyga.wrap(sgd.cls(lr=RATE), 2), "mse")
    home.sessions.set_session(homes.v1_of(home.tf).Session())
    x, y = RANDOM.randn(4, 3).astype("float32"), RANDOM.randn(4, 2).astype("float32")
    for half in (slice(0, 2), slice(2, 4)):
        model.train_on_batch(x[half], y[half])
    weights = np.ones((3, 2))
    dense.assert_close(model.get_weights(), [weights - RATE * 2 * x.T.dot(x.dot(weights) - y) / y.size])


def test_in_a_graph_that_keras_has_no_session_of(home, sgd):
    """As `model_to_estimator` makes optimizers: up to TF 1.13 Keras's session is then of the graph before."""
    if sgd.generation != "v1":
        skips.senseless("another generation reads no values of a graph when it is copied")
    # So there is a session, of this graph.
    home.sessions.get_session()
    v1 = homes.v1_of(home.tf)
    with home.tf.Graph().as_default() as graph:
        wrapped = legacyga.wrap(sgd.cls(RATE, momentum=MOMENTUM), 2)
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            assert session.run([wrapped.lr, wrapped.momentum]) == [RATE, MOMENTUM]


@pytest.mark.parametrize("steps", [slow(1), 2])
def test_weights_that_are_created_before_the_first_batch(home, steps):
    """In graph mode, by `_create_all_weights`: those of a trained optimizer start at its values."""
    if home.mode == "eager" or home.is_standalone or home.tf_version < (1, 14):
        skips.keras_lacks("_create_all_weights in graph mode")
    ends, x, y = [], np.eye(3), np.ones((3, 2))
    for creates in (False, True):
        home.reset(plain_session=True)
        inputs = home.keras.layers.Input((3,))
        model = home.keras.models.Model(inputs, home.keras.layers.Dense(2, kernel_initializer="ones")(inputs))
        model.compile(home.bare_sgd(lr=RATE, momentum=MOMENTUM), "mse")
        for _ in range(3):
            model.train_on_batch(x, 3 * y)
        wrapped = legacyga.wrap(model.optimizer, steps)
        model.compile(wrapped, "mse")
        if not hasattr(wrapped, "_create_all_weights"):
            skips.keras_lacks("_create_all_weights")
        if creates:
            wrapped._create_all_weights(model.trainable_weights)
        for _ in range(steps):
            model.train_on_batch(x, y)
        ends.append(model.get_weights()[0])
    assert np.max(np.abs(ends[0] - 1)) > 1e-2
    np.testing.assert_allclose(ends[1], ends[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", ["wrap", slow("MySGD")])
def test_a_config_read_in_another_graph(home, make):
    """As `model_to_estimator` and `export_saved_model` read it, in graph mode: the model keeps what it has learned."""
    if home.mode == "eager":
        skips.senseless("graph mode")
    if home.is_standalone:
        skips.keras_lacks("a config that can be read in another graph")
    if make == "wrap":
        needs.wrap(home)
    home.reset(plain_session=True)
    inputs = home.keras.layers.Input((3,))
    model = home.keras.models.Model(inputs, home.keras.layers.Dense(2)(inputs))
    optimizer = legacyga.MySGD(RATE, steps_per_update=2, keras=home.keras)
    model.compile(legacyga.wrap(home.bare_sgd(lr=RATE), 2) if make == "wrap" else optimizer, "mse")
    x, y = np.ones((4, 3)), np.ones((4, 2))
    for _ in range(2):
        model.train_on_batch(x, y)
    trained = model.get_weights()
    with home.tf.Graph().as_default():
        assert model.optimizer.gradient_accumulation_steps == 2
        model.optimizer.get_config()
    np.testing.assert_array_equal(model.get_weights()[0], trained[0])
    for _ in range(2):
        model.train_on_batch(x, y)
    assert np.max(np.abs(model.get_weights()[0] - trained[0])) > 1e-3


UNPICKLE = """
import pickle, sys
optimizer = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(pickle.dumps(optimizer.get_config()))
"""


@pytest.mark.parametrize("make", ["wrap", slow("MySGD")])
def test_pickle_of_an_optimizer(home, make):
    """Here, and to a process that has imported nothing: as Keras 3's own, by its config, without its state."""
    if not home.is_keras3:
        skips.keras_lacks("the bare optimizers of the others cannot be pickled")
    rate = home.keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)
    inner = home.keras.optimizers.SGD(rate, momentum=MOMENTUM)
    optimizer = legacyga.wrap(inner, 3, on_nonfinite="raise")
    if make == "MySGD":
        optimizer = legacyga.MySGD(0.5, decay=0.25, keras=home.keras)
    optimizer.gradient_accumulation_steps = 5
    config = optimizer.get_config()
    pickled = pickle.dumps(optimizer)
    copied = pickle.loads(pickled)
    assert type(copied) is type(optimizer) and copied.get_config() == config
    path = os.path.dirname(os.path.dirname(legacyga.__file__))
    found = subprocess.run(
        [sys.executable, "-c", UNPICKLE], input=pickled, stdout=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=path)
    )
    assert pickle.loads(found.stdout) == config


def schedule(updates):
    return 2


@pytest.mark.parametrize("given", [slow(None), slow(3), {0: 1, 4: 2}, slow(schedule)], ids=repr)
def test_copies_of_the_callback(home, given):
    callback = legacyga.GradientAccumulationCallback(given, "carry")
    for copied in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert type(copied) is type(callback)
        assert (copied.schedule, copied.partial_window) == (given, "carry")


@pytest.mark.parametrize("rate", [slow("number"), "schedule"])
def test_a_mysgd_of_eager_mode_that_is_made_again_in_a_graph(home, rate):
    """As `model_to_estimator` makes the optimizer of a model: of the same class, with the same numbers."""
    if home.mode == "graph" or home.is_keras3:
        skips.senseless("eager mode, of a Keras that trains in graphs, too")
    tf, v1 = home.tf, homes.v1_of(home.tf)
    lr = RATE if rate == "number" else home.keras.optimizers.schedules.ExponentialDecay(RATE, 1, 0.5)
    optimizer = legacyga.MySGD(lr, MOMENTUM, steps_per_update=2, keras=home.keras, name="Own")
    expected, gradients = oracle.SGD(RATE, momentum=MOMENTUM), [np.float64([x, 0.25]) for x in (0.0, 0.5, 2.0, -1.0)]
    weights = [np.float64([1.0, 2.0])]
    for first, second in (gradients[:2], gradients[2:]):
        weights = expected.update(weights, [(first + second) / 2.0])
        expected.lr *= 1.0 if rate == "number" else 0.5
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        again = type(optimizer).from_config(optimizer.get_config())
        assert type(again) is type(optimizer) and again.get_config() == optimizer.get_config()
        variable, fed = tf.Variable([1.0, 2.0]), v1.placeholder("float32", [2])
        step = again.apply_gradients([(fed, variable)])
        session.run(v1.global_variables_initializer())
        for gradient in gradients:
            session.run(step, {fed: gradient})
        np.testing.assert_allclose(session.run(variable), weights[0], rtol=0, atol=4e-7)


def test_a_shallow_copy_has_a_k_of_its_own_until_it_trains(home, sgd):
    optimizer = sgd.make(4)
    copied = copy.copy(optimizer)
    copied.gradient_accumulation_steps = 2
    assert (optimizer.gradient_accumulation_steps, copied.gradient_accumulation_steps) == (4, 2)
