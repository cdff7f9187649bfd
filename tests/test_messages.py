"""How errors show a value, what an accumulating optimizer is called, and the line that warnings point at."""

import functools
import linecache
import os
import re
import warnings

import kinds
import needs
import numpy as np
import pytest
import skips
from epochs import LR, START, X, Y, model_with
from test_house import modules
from test_mixed_precision import loss_scaled

import legacyga
from legacyga.backend.messages import AccumulationWarning, shown

pytestmark = pytest.mark.capability("errors")


def pytest_generate_tests(metafunc):
    if "kind" in metafunc.fixturenames:
        from conftest import home_of

        metafunc.parametrize("kind", kinds.params(kinds.of(home_of(metafunc.config))))


# How a value is shown


class Thing(object):
    def method(self):
        pass


@pytest.mark.parametrize(
    "value", [Thing(), Thing().method, lambda: None, [Thing()]], ids=str.split("object method function list")
)
def test_no_address_is_shown(value):
    assert "0x" not in shown(value)
    assert shown(value) == re.sub(" at 0x[0-9a-f]+", "", repr(value), flags=re.I)


@pytest.mark.parametrize("value", [0, "8", None, 2.5, True, [1], {"at": 1}, Thing, np.float32(2)], ids=repr)
def test_what_has_no_address_is_shown_as_it_is(value):
    assert shown(value) == repr(value)


def test_all_messages_show_values_in_the_one_way_and_warn_in_the_one_place():
    for name, path in modules():
        with open(path, encoding="utf-8") as file:
            text = file.read()
        # `shown` is what shows a value.
        assert "!r}" not in text, name
        assert name == "backend.messages" or "warnings.warn" not in text, name


def test_errors_of_objects_have_no_address(home):
    bare, model = home.bare_sgd(lr=LR), home.keras.models.Sequential()
    for call in (
        functools.partial(legacyga.flush, bare),
        functools.partial(legacyga.flush, model),
        functools.partial(legacyga.wrap, model, 2),
        functools.partial(legacyga.wrap, lambda: bare, 2),
        functools.partial(legacyga.MySGD, steps_per_update=Thing(), keras=home.keras),
        functools.partial(legacyga.MySGD, lr=Thing(), keras=home.keras),
        functools.partial(legacyga.micro_batch, model, 8),
        functools.partial(legacyga.micro_batch, model, Thing()),
        functools.partial(legacyga.train_step, model, None),
        functools.partial(legacyga.GradientAccumulationCallback, Thing()),
        functools.partial(legacyga.GradientAccumulator(), Thing()),
        functools.partial(legacyga.load_model, "no_such.h5", home.keras, custom_objects=Thing()),
        functools.partial(legacyga.custom_objects, Thing()),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert "Received: " in str(error.value) and "0x" not in str(error.value), str(error.value)


# What an optimizer is called


def test_the_repr_of_an_optimizer(home, kind):
    optimizer, its_home = kind.make(8), "tf.compat.v1.train" if kind.generation == "train" else home.name
    name = kind.cls.__name__ if kind.cls else "SGD"
    assert repr(optimizer) == "<legacyga: {} of {}, accumulating 8 steps>".format(name, its_home)
    optimizer.gradient_accumulation_steps = 3
    assert repr(optimizer) == "<legacyga: {} of {}, accumulating 3 steps>".format(name, its_home)
    assert repr(kind.make(1)) == "<legacyga: {} of {}, accumulating 1 steps>".format(name, its_home)


def test_the_repr_of_a_loss_scale_optimizer(home):
    needs.eager_only(home)
    made = legacyga.wrap(loss_scaled(home, home.bare_sgd(lr=LR)), 8)
    wanted = "<legacyga: LossScaleOptimizer of {}, accumulating 8 steps>".format(home.name)
    assert re.sub(r"LossScaleOptimizerV\d", "LossScaleOptimizer", repr(made)) == wanted


# The line that a warning points at


def assert_points_here(caught, text):
    """The one warning with the text is of our class, and points at a line of this file with the word HERE."""
    (found,) = [each for each in caught if text in str(each.message)]
    assert found.category is AccumulationWarning
    assert os.path.basename(found.filename) == "test_messages.py", found.filename
    assert "HERE" in linecache.getline(found.filename, found.lineno), found.lineno


@pytest.fixture
def caught():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def test_the_line_of_a_warning_of_wrap(home, caught):
    if home.mode != "eager" or home.tf_version >= (2, 2):
        skips.keras_lacks("a warning of wrap: TF 2.0 and 2.1 in eager mode alone have one")
    legacyga.wrap(home.keras.optimizers.SGD(LR, clipnorm=1.0), 2)  # HERE
    assert_points_here(caught, "does not clip gradients with the bare optimizer")


@pytest.mark.parametrize("traced", [False, True])
def test_the_line_of_a_warning_of_the_callback(home, caught, traced):
    model = model_with(home, 6, traced=traced)
    if home.mode == "graph":
        # No sum over the batch: else the loss tells what a batch weighs.
        mean, square = home.backend.mean, home.backend.square
        model.compile(model.optimizer, lambda y_true, y_pred: home.backend.sqrt(mean(square(y_true - y_pred))))
    callback = legacyga.GradientAccumulationCallback()
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[callback])  # HERE
    assert_points_here(caught, "an epoch has 4 batches")
    if home.mode == "graph" or home.tf_version < (2, 2):
        assert_points_here(caught, "All batches weigh alike")


def test_the_line_of_a_warning_of_several_optimizers(home, caught):
    model = model_with(home, 3, traced=False)
    model.further = legacyga.MySGD(steps_per_update=3, keras=home.keras)
    callback = legacyga.GradientAccumulationCallback(2)
    for _ in range(2):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[callback])  # HERE
        assert_points_here(caught, "optimizers that accumulate")
        del caught[:]


def own_loss(home):
    mean, square = (home.backend.mean, home.backend.square) if home.mode == "graph" else (None, None)
    if mean is None:
        return lambda y_true, y_pred: home.tf.reduce_mean(home.tf.square(y_true - y_pred), -1)
    return lambda y_true, y_pred: mean(square(y_true - y_pred), -1)


def test_the_line_of_a_warning_of_micro_batch(home, caught):
    if home.mode == "eager" and home.tf_version < (2, 2):
        skips.we_lack("micro_batch in eager mode needs TF 2.2 or newer")
    model = home.network(START)
    model.compile(loss=own_loss(home), optimizer=home.bare_sgd(lr=LR))
    legacyga.micro_batch(model, 2)
    model.train_on_batch(X[:4], Y[:4])  # HERE
    assert_points_here(caught, "computes each slice")
    assert "0x" not in str(caught[-1].message)


def test_the_line_of_a_warning_within_a_train_step_of_ones_own(home, caught):
    """Where AutoGraph has made a copy of the method the line is that of fit."""
    needs.eager_only(home, since=(2, 2))

    class Model(home.keras.Model):
        def train_step(self, data):
            return legacyga.train_step(self, data, micro_batch_size=2)  # HERE

    inputs = home.keras.layers.Input(shape=(3,))
    model = Model(inputs, home.keras.layers.Dense(2)(inputs))
    model.compile(legacyga.MySGD(LR, keras=home.keras), own_loss(home))
    model.fit(X[:4], Y[:4], batch_size=4, verbose=0)  # HERE
    assert_points_here(caught, "computes each slice")


def test_the_line_of_a_warning_in_a_traced_function(home, caught):
    """Two lists of variables that share one; the last comes in a function of the user's own."""
    needs.eager_only(home)
    optimizer, tf = legacyga.MySGD(LR, steps_per_update=4, keras=home.keras), home.tf
    one, other = home.variables([np.ones(2, "float32")] * 2)
    if home.is_keras3:
        optimizer.build([one, other])

    def steps_of(*variables):
        def step():
            optimizer.apply_gradients([(tf.ones(2), each) for each in variables])

        return tf.function(step)

    for step in (steps_of(one), steps_of(one, other)):
        step()  # HERE
        step()  # HERE
    assert_points_here(caught, "share variables")


def test_one_filter_silences_all(home, caught):
    warnings.simplefilter("error", legacyga.AccumulationWarning)
    model = model_with(home, 6, traced=False)
    with pytest.raises(legacyga.AccumulationWarning, match="an epoch has 4 batches"):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])
    warnings.simplefilter("ignore", legacyga.AccumulationWarning)
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])
    assert not [each for each in caught if "an epoch has" in str(each.message)]
