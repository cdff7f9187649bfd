"""A mini-step is taken whole or not at all, whatever ends it half-way: a row that is not there, a Ctrl-C."""

import functools
import itertools
import os
import signal
import sys
import threading

import kinds
import needs
import numpy as np
import pytest
import skips
import users
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R8 partial windows")
NUMBERS = (1, 4, 1)
START = [np.zeros((4, 2), "float32"), np.zeros(3, "float32")]


def pytest_generate_tests(metafunc):
    from conftest import home_of

    if "kind" in metafunc.fixturenames:
        found = [each for each in kinds.of(home_of(metafunc.config)) if not each.is_adam]
        metafunc.parametrize("kind", kinds.params(found))


@pytest.fixture(autouse=True)
def eager(home):
    needs.eager_only(home)


def gradients(home, number, rows=(0, 3)):
    """Of an embedding, whose rows these are, and of a variable that comes before it in the list."""
    tf = home.tf
    slices = tf.IndexedSlices(tf.fill([len(rows), 2], float(number)), tf.constant(rows), tf.constant([4, 2], "int64"))
    return [tf.fill([3], float(number)), slices]


def program(home, kind):
    """A function of a number that returns the mini-step with it, to be called; the weights; the optimizer."""
    optimizer, (table, dense) = kind.make(3), users.variables_of(home, kind, START)
    variables = [dense, table]
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    def step(number, **kwargs):
        return functools.partial(optimizer.apply_gradients, list(zip(gradients(home, number, **kwargs), variables)))

    return step, variables, optimizer


def ends_as_one_of_means(home, kind, variables, mean):
    """Whether the weights are those after one update with this mean in all elements that have a gradient."""
    rate = kinds.RATE
    dense, table = [np.array(home.value(each)) for each in variables]
    wanted = np.zeros((4, 2))
    wanted[[0, 3]] = -rate * mean
    return np.abs(dense + rate * mean).max() <= 4e-6 and np.abs(table - wanted).max() <= 4e-6


@pytest.mark.parametrize("row", [slow(4), -1])
def test_a_row_that_is_not_there(home, kind, row):
    step, variables, optimizer = program(home, kind)
    step(1)()
    with pytest.raises(home.tf.errors.InvalidArgumentError, match="the row {} .*Nothing was".format(row)):
        step(32, rows=(0, row))()
    assert int(optimizer.mini_step) == 1
    step(4)()
    step(1)()
    assert ends_as_one_of_means(home, kind, variables, 2.0)


@pytest.fixture
def interrupted():
    """A function that calls another, and has a Ctrl-C come after so many calls within it; whether it came."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def call(function, number):
        count = itertools.count()

        def profile(frame, event, argument):
            if event == "call" and next(count) == number:
                sys.setprofile(None)
                os.kill(os.getpid(), signal.SIGINT)

        try:
            sys.setprofile(profile)
            function()
        except BaseException:
            # TensorFlow makes another error of one that comes while it makes a tensor.
            return True
        finally:
            sys.setprofile(None)
        return next(count) <= number and None

    yield call
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_a_mini_step_that_is_interrupted(home, kind, interrupted):
    """At any of its calls: of a mini-step in mid-window, and of the last, whose update is made whole, too."""
    for place in (1, 2):
        number = 0
        while True:
            step, variables, optimizer = program(home, kind)
            for each in NUMBERS[:place]:
                step(each)()
            came = interrupted(step(NUMBERS[place]), number)
            if came is None:
                break
            taken = place if int(optimizer.mini_step) == place else place + 1
            for each in NUMBERS[taken:]:
                step(each)()
            assert int(optimizer.iterations) == 1 and ends_as_one_of_means(home, kind, variables, 2.0), number
            number += 1 + number // 3
        assert number > 20


@pytest.mark.slow
def test_a_call_of_an_accumulator_that_is_interrupted(home, interrupted):
    number = 0
    while True:
        accumulator = legacyga.GradientAccumulator("sum")
        accumulator(gradients(home, 1))
        came = interrupted(functools.partial(accumulator, gradients(home, 4)), number)
        if came is None:
            break
        if int(accumulator.step) == 1:
            accumulator(gradients(home, 4))
        dense, table = accumulator.gradients
        assert dense.numpy().tolist() == [5.0] * 3 and table.values.numpy().tolist() == [[5.0, 5.0]] * 2, number
        number += 1 + number // 3
    assert number > 20


@pytest.mark.slow
def test_a_reset_that_is_interrupted(home, interrupted):
    """The sum of the weights goes with the number of mini-steps."""
    number, one = 0, home.tf.constant([1.0])
    while True:
        accumulator = legacyga.GradientAccumulator()
        for _ in range(3):
            accumulator([one])
        came = interrupted(accumulator.reset, number)
        if came is None:
            break
        accumulator([one])
        assert int(accumulator.step) in (1, 4) and accumulator.gradients[0].numpy().tolist() == [1.0], number
        number += 1
    assert number > 5


@pytest.mark.parametrize("called", ["apply_gradients", "apply"])
def test_threads_that_share_an_optimizer(home, kind, called):
    """As in asynchronous reinforcement learning: every gradient is 1, and so is the mean of each window."""
    if called == "apply" and kind.generation != "keras3":
        skips.keras_lacks("a method `apply`")
    tf = home.tf
    variable = (home.keras.Variable if kind.generation == "keras3" else tf.Variable)([0.0])
    optimizer = kind.make(4)
    switch = sys.getswitchinterval()

    def work():
        for _ in range(20):
            if called == "apply":
                optimizer.apply([tf.constant([1.0])], [variable])
            else:
                optimizer.apply_gradients([(tf.constant([1.0]), variable)])

    # The first mini-step makes the variables.
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    threads = [threading.Thread(target=work) for _ in range(4)]
    sys.setswitchinterval(1e-5)
    try:
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(switch)
    assert (int(home.value(optimizer.iterations)), int(home.value(optimizer.mini_step))) == (20, 1)


def test_the_first_mini_steps_of_several_threads(home, kind):
    """They make the window, which they share."""
    (variable,) = users.variables_of(home, kind, [np.zeros(2, "float32")])
    optimizer, begin = kind.make(80), threading.Barrier(4)
    if hasattr(optimizer, "build") and kind.generation != "keras3":
        optimizer.build([variable])
    switch = sys.getswitchinterval()

    def work():
        begin.wait()
        for _ in range(20):
            optimizer.apply_gradients([(home.tf.ones(2), variable)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert [int(optimizer.iterations), int(optimizer.mini_step)] == [1, 0]
    assert np.abs(home.value(variable) + kinds.RATE).max() <= 4e-6


@pytest.mark.capability("R2 weights")
def test_each_thread_gives_its_own_weights(home, kind):
    (variable,) = users.variables_of(home, kind, [np.zeros(1, "float32")])
    optimizer = kind.make(3)
    if hasattr(optimizer, "build"):
        optimizer.build([variable])

    def give(value):
        optimizer.apply_gradients([(home.tf.constant([value]), variable)])

    first_is_in, second_is_in, first_is_out = [threading.Event() for _ in range(3)]

    def first():
        with optimizer.mini_step_weight(4):
            first_is_in.set()
            second_is_in.wait()
            give(1.0)
        first_is_out.set()

    def second():
        first_is_in.wait()
        with optimizer.mini_step_weight(2):
            second_is_in.set()
            first_is_out.wait()
            give(10.0)

    give(1.0)
    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    formula = kind.oracle()
    expected = formula.update([np.zeros(1)], [np.float64([(1.0 + 4 * 1.0 + 2 * 10.0) / 7])])
    assert np.abs(home.value(variable) - expected[0]).max() <= 4e-6
    for value in (2.0, 2.0, 5.0):
        give(value)
    expected = formula.update(expected, [np.float64([3.0])])
    assert np.abs(home.value(variable) - expected[0]).max() <= 8e-6
