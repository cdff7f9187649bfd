"""Programs that nobody wrote for legacyga: their names on an optimizer, old signatures, what they replace in Keras."""

import contextlib
import inspect
import json
import os

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

pytestmark = pytest.mark.capability("R15 a quiet guest")

RANDOM = np.random.RandomState(101)
SHAPES = ((3, 2), (2,))
START = [RANDOM.randn(*shape).astype("float32") for shape in SHAPES]
FED = [[RANDOM.randn(*shape).astype("float32") for shape in SHAPES] for _ in range(10)]
RATE, MOMENTUM = 2.0**-4, 0.75


def pytest_generate_tests(metafunc):
    from conftest import home_of

    if "sgd" in metafunc.fixturenames:
        names = ("SGD", "MomentumOptimizer")
        found = [each for each in kinds.of(home_of(metafunc.config)) if each.cls and each.cls.__name__ in names]
        metafunc.parametrize("sgd", kinds.params(found))


@pytest.fixture(autouse=True)
def fresh(home):
    if home.mode == "graph":
        home.reset(plain_session=True)


def double(weights):
    return [np.asarray(weight, "float64") for weight in weights]


def assert_trained(driven, steps, scale=1.0, fed=FED):
    """As the oracle's SGD on gradients times `scale`, a flush at the end."""
    for each in fed:
        driven.step(each)
    expected = oracle.SGD(RATE, MOMENTUM)
    scaled = [[scale * gradient for gradient in each] for each in fed]
    whole = len(fed) - len(fed) % steps
    wanted = dense.applied(expected, scaled[:whole], steps, double(START))
    dense.assert_close(driven.values(), wanted)
    if whole < len(fed):
        in_graph = driven.home.mode == "graph"
        with driven.home.sessions.get_session().as_default() if in_graph else contextlib.ExitStack():
            assert legacyga.flush(driven.optimizer) is True
        wanted = dense.applied(expected, scaled[whole:], len(fed) - whole, wanted)
        dense.assert_close(driven.values(), wanted)


# ----------------------------------------------------------------------------------- names on an optimizer of a user's

NAMES = (
    "home inherit steps window windows settings weights_of ops start_accumulating copy_of end_windows inner_class "
    "reduction accumulation weight accumulators update build_window next_steps latest flush drop"
).split()


@pytest.mark.long
@pytest.mark.parametrize("held, steps", [("attributes", 1), ("attributes", 3), ("methods", 3), ("class attributes", 3)])
def test_names_that_could_be_ours(home, sgd, held, steps):
    """The optimizer reads them all in its update, and finds what it has put there."""
    values = {name: 2.0 ** -(3 + i % 5) for i, name in enumerate(NAMES)}
    base = users.scaling(sgd, home)

    class Named(base):
        def __init__(self, *args, **kwargs):
            super(Named, self).__init__(*args, **kwargs)
            if held == "attributes":
                for name, value in values.items():
                    setattr(self, name, value)

        def factor(self, variable):
            found = [getattr(self, name) for name in NAMES]
            return sum(each() for each in found) if held == "methods" else sum(found)

    for name, value in values.items():
        if held == "methods":
            setattr(Named, name, lambda self, value=value: value)
        elif held == "class attributes":
            setattr(Named, name, value)
    inner = users.make(sgd, Named, RATE, MOMENTUM)
    optimizer = legacyga.wrap(inner, steps)
    driven = homes.Fed(home, optimizer, users.variables_of(home, sgd, START))
    assert_trained(driven, steps, sum(values.values()))
    for each in (inner, optimizer):
        found = {name: getattr(each, name) for name in NAMES}
        assert {name: value() if held == "methods" else value for name, value in found.items()} == values
    assert optimizer.gradient_accumulation_steps == steps
    assert int(home.value(optimizer.iterations)) == (len(FED) + steps - 1) // steps


def test_names_of_ours_in_a_users_class(home, sgd):
    """Whatever the class has under a name that wrap adds stays the class's own, and windows are as ever."""

    class Named(sgd.cls):
        skipped_mini_steps = property(lambda self: "a property")

        def mini_step(self):
            return "a method"

        @staticmethod
        def drop_windows():
            return "a static method"

    optimizer = legacyga.wrap(users.make(sgd, Named, RATE, MOMENTUM), 3)
    found = (optimizer.mini_step(), optimizer.skipped_mini_steps, optimizer.drop_windows())
    assert found == ("a method", "a property", "a static method")
    assert_trained(homes.Fed(home, optimizer, users.variables_of(home, sgd, START)), 3)


# ---------------------------------------------------------------------------------------------------- old signatures


def test_signatures_are_those_of_the_users_class(home, sgd):
    """Of each method that we override, and of a user's that has arguments of its own."""
    calls = [name for name in ("get_updates", "apply_gradients", "apply", "build") if hasattr(sgd.cls, name)]

    def of_its_own(name):
        own = getattr(sgd.cls, name)
        return lambda self, first, *args, **kwargs: own(self, first, *args, **kwargs)

    Own = type("Own", (sgd.cls,), {name: of_its_own(name) for name in calls})
    for cls in (sgd.cls, Own):
        wrapped = type(legacyga.wrap(users.make(sgd, cls, RATE, MOMENTUM), 3))
        methods = [name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("__")]
        assert set(calls) <= set(methods)
        found = {name: inspect.signature(getattr(wrapped, name)) for name in methods}
        assert found == {name: inspect.signature(getattr(cls, name)) for name in methods}


def test_build_by_the_name_of_its_argument(home, sgd):
    """Keras 3's SGD calls it `variables`, and its Adam `var_list`."""
    if sgd.generation not in ("v3", "keras3"):
        skips.keras_lacks("these optimizers have no build(variables)")

    class Named(sgd.cls):
        def build(self, var_list):
            super(Named, self).build(var_list)

    optimizer = legacyga.wrap(users.make(sgd, Named, RATE, MOMENTUM), 3)
    variables = users.variables_of(home, sgd, START)
    optimizer.build(var_list=variables)
    assert_trained(homes.Fed(home, optimizer, variables), 3)


def v1_only(home):
    if home.mode == "eager":
        skips.senseless("the v1 API is of graph mode")


def old_sgds(home):
    """MySGD and the wrapped SGD of the v1 API, both with K = 3, and the bare one with K = 1."""
    found = [(1, home.bare_sgd(lr=RATE, momentum=MOMENTUM))]
    found.append((3, legacyga.MySGD(RATE, MOMENTUM, steps_per_update=3, keras=home.keras)))
    if any(kind.is_wrapped_v1 for kind in kinds.of(home)):
        found.append((1, legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 1)))
        found.append((3, legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3)))
    return found


CALLS = {
    "loss, params": lambda get, loss, params: get(loss, params),
    "keywords": lambda get, loss, params: get(params=params, loss=loss),
    "params, {}, loss": lambda get, loss, params: get(params, {}, loss),
    "params, [], loss": lambda get, loss, params: get(params, [], loss),
    "params, {}, loss=": lambda get, loss, params: get(params, {}, loss=loss),
    "params, constraints=, loss=": lambda get, loss, params: get(params, constraints={}, loss=loss),
    "params, loss": lambda get, loss, params: get(params, loss),
}


@pytest.mark.parametrize("call", sorted(CALLS))
def test_the_signatures_of_get_updates(home, call):
    """Those that Keras's own SGD takes, no others: standalone Keras 2.1 to 2.3 takes (params, constraints, loss)."""
    v1_only(home)
    backend, tf = home.backend, home.tf
    errors = []
    for steps, optimizer in old_sgds(home):
        weights = [backend.variable(value) for value in START]
        fed = [backend.placeholder(shape=value.shape) for value in START]
        loss = sum(tf.reduce_sum(gradient * weight) for gradient, weight in zip(fed, weights))
        try:
            updates = CALLS[call](optimizer.get_updates, loss, weights)
        except Exception as error:
            errors.append(type(error))
            continue
        errors.append(None)
        apply = backend.function(fed, [loss], updates=updates)
        for each in FED[:6]:
            apply(each)
        wanted = dense.applied(oracle.SGD(RATE, MOMENTUM), FED[:6], steps, double(START))
        dense.assert_close(backend.batch_get_value(weights), wanted)
    assert [each is None for each in errors] == [errors[0] is None] * len(errors)
    if home.name == "keras" and call in ("params, [], loss", "params, {}, loss="):
        assert errors[0] is None


@pytest.mark.parametrize("how", [slow("class"), "object"])
@pytest.mark.parametrize("loss", [slow(None), []], ids=["None", "empty"])
def test_get_updates_without_a_loss(home, loss, how):
    """A program's own get_gradients, which looks at no loss: policy gradients are made in this way."""
    v1_only(home)
    backend = home.backend
    for steps, optimizer in old_sgds(home):
        weights = [backend.variable(value) for value in START]
        fed = [backend.placeholder(shape=value.shape) for value in START]

        def given(loss, params, weights=weights, fed=fed):
            assert all(param is weight for param, weight in zip(params, weights))
            return list(fed)

        if how == "object":
            optimizer.get_gradients = given
        else:
            stock = type(home.bare_sgd(lr=RATE))

            class Given(stock):
                def get_gradients(self, loss, params, given=given):
                    return given(loss, params)

            inner = Given(lr=RATE, momentum=MOMENTUM)
            if type(optimizer) is stock:
                optimizer = inner
            elif type(optimizer).__name__ == "MySGD":
                continue
            else:
                optimizer = legacyga.wrap(inner, steps)
        updates = optimizer.get_updates(loss=loss, params=weights)
        apply = backend.function(fed, [home.tf.reduce_sum(fed[0])], updates=updates)
        for each in FED[:6]:
            apply(each)
        wanted = dense.applied(oracle.SGD(RATE, MOMENTUM), FED[:6], steps, double(START))
        dense.assert_close(backend.batch_get_value(weights), wanted)


@pytest.mark.parametrize("steps", [slow(1), 3])
def test_get_updates_of_its_own_over_a_stock_class(home, steps):
    """The stock class lists slots of its own before (TF 2.2 and newer), which this get_updates never asks for."""
    v1_only(home)
    if not any(kind.is_wrapped_v1 for kind in kinds.of(home)):
        skips.we_lack("wrap needs TF 1.11 or newer for the v1 API")
    if steps == 1 and home.tf_version >= (2, 2):
        skips.we_lack("wrap at K = 1 reads slots that the stock class lists and this get_updates never made")
    own = users.own_sgd(type(home.bare_sgd(lr=RATE)), home)
    optimizer = legacyga.wrap(own(lr=RATE, momentum=MOMENTUM), steps)
    variables = [home.backend.variable(value) for value in START]
    assert_trained(homes.Fed(home, optimizer, variables), steps)


# --------------------------------------------------------------------------------- programs that replace what Keras has

PROGRAM = """
import importlib, json, sys

data = json.loads(sys.argv[1])
import numpy as np
import tensorflow as tf

if data["mode"] == "graph" and tf.__version__ >= "2":
    tf.compat.v1.disable_eager_execution()
keras = tf.keras if data["home"] == "tf.keras" else importlib.import_module(data["home"])
Original = keras.models.Model
x, y = np.float32(data["x"]), np.float32(data["y"])
start = [np.float32(value) for value in data["start"]]


def make_model(optimizer):
    layer = keras.layers.Dense(2, input_shape=(3,))
    model = keras.models.Sequential([layer])
    model.set_weights(start)
    model.compile(optimizer=optimizer, loss="mse")
    return model


class Replacement(Original):
    pass


def replacement(*args, **kwargs):
    return Original(*args, **kwargs)


replacements = {"class": Replacement, "function": replacement}
results = {}
for i, way in enumerate(data["ways"]):
    keras.models.Model = replacements[way]
    keras.Model = replacements[way]

    import legacyga

    # What the program imports decides, where it says nothing itself.
    sgd = legacyga.MySGD(data["rate"], steps_per_update=3, **({"keras": keras} if i else {}))
    results[way] = {"bases": [cls.__module__ + "." + cls.__name__ for cls in type(sgd).__mro__]}
    made = [("MySGD", sgd)]
    if data["wraps"]:
        if data["mode"] == "graph":
            inner = [cls for cls in type(sgd).__mro__ if cls.__name__ == "SGD" and cls.__module__[:8] != "legacyga"][0]
            inner = inner(data["rate"])
        else:
            inner = keras.optimizers.SGD(data["rate"])
        made.append(("wrap", legacyga.wrap(inner, 3)))
    for name, optimizer in made:
        model = make_model(optimizer)
        callback = legacyga.GradientAccumulationCallback()
        assert isinstance(callback, keras.callbacks.Callback), type(callback).__mro__
        history = model.fit(x, y, batch_size=4, epochs=1, shuffle=False, verbose=0, callbacks=[callback]).history
        results[way][name] = [value.tolist() for value in model.get_weights()] + [history["updates"]]
print("results:" + json.dumps(results))
"""

X, Y = RANDOM.randn(16, 3).astype("float32"), RANDOM.randn(16, 2).astype("float32")
KERNEL, BIAS = RANDOM.randn(3, 2).astype("float32"), RANDOM.randn(2).astype("float32")


def linear_gradients(weights, x, y):
    error = 2.0 * (x.dot(weights[0]) + weights[1] - y) / y.size
    return [x.T.dot(error), error.sum(axis=0)]


@pytest.mark.long
def test_a_program_that_replaces_keras_models_model(home, tmpdir):
    """By a class of its own, and by a function. The home is told by something else: the same numbers as ever."""
    ways, path = ["class", "function"], tmpdir.join("program.py")
    if home.tf_version < (1, 11):
        # Keras's own Sequential of that time asks whether a layer is a Model.
        ways = ["class"]
    path.write(PROGRAM)
    arguments = dict(
        home=home.name,
        mode=home.mode,
        ways=ways,
        wraps=any(kind.cls and kind.cls.__name__ == "SGD" for kind in kinds.of(home)),
        rate=RATE,
        x=X.tolist(),
        y=Y.tolist(),
        start=[KERNEL.tolist(), BIAS.tolist()],
    )
    printed = homes.run(str(path), [json.dumps(arguments)], path=[os.path.dirname(os.path.dirname(legacyga.__file__))])
    results = json.loads([line for line in printed.splitlines() if line.startswith("results:")][0][len("results:") :])
    weights = double([KERNEL, BIAS])
    for first, last in ((0, 12), (12, 16)):
        found = [
            linear_gradients(weights, X[i : i + 4].astype("float64"), Y[i : i + 4].astype("float64"))
            for i in range(first, last, 4)
        ]
        weights = [weight - RATE * np.mean(each, axis=0) for weight, each in zip(weights, zip(*found))]
    own = type(home.bare_sgd(lr=RATE))
    for way in ways:
        assert own.__module__ + "." + own.__name__ in results[way].pop("bases")
        assert sorted(results[way]) == ["MySGD", "wrap"][: 1 + arguments["wraps"]]
        for kernel, bias, updates in results[way].values():
            assert updates == [2]
            dense.assert_close([np.array(kernel), np.array(bias)], weights)
