"""R8: legacyga.flush against the NumPy oracle: MySGD, and SGD with momentum and Adam, wrapped, in every generation."""

import gc
import itertools
import weakref

import homes
import kinds
import numpy as np
import pytest
import skips
from kinds import K
from needs import eager_only
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R8 partial windows")

RANDOM = np.random.RandomState(17)
SHAPES = ((3, 4), (5,))
# The error is divided by the distance moved: let the gradients lean to one side.
START = [RANDOM.randn(*shape).astype("float32") for shape in SHAPES]
GRADIENTS = [[(0.75 + RANDOM.randn(*shape)).astype("float32") for shape in SHAPES] for _ in range(24)]
TABLE = RANDOM.randn(9, 2).astype("float32")


def pytest_generate_tests(metafunc):
    for argument in {"kind", "sgd"} & set(metafunc.fixturenames):
        from conftest import home_of

        found = [each for each in kinds.of(home_of(metafunc.config)) if argument == "kind" or not each.is_adam]
        metafunc.parametrize(argument, kinds.params(found))


@pytest.fixture(autouse=True)
def fresh(home):
    home.reset(plain_session=True)
    if home.mode == "eager":
        yield
    else:
        # Those of tf.compat.v1.train flush in the default session.
        with home.sessions.get_session().graph.as_default(), home.sessions.get_session().as_default():
            yield


class Training(homes.Fed):
    """An optimizer that is given gradients, beside the oracle."""

    def __init__(self, kind, optimizer, start=START):
        super(Training, self).__init__(kind.home, optimizer, start)
        self.kind, self.oracle, self.window = kind, kind.oracle(), []
        self.gradients = itertools.cycle(GRADIENTS)
        self.expected = self.start = [value.astype("float64") for value in start]

    def take(self, number):
        """Mini-steps of one window."""
        for _ in range(number):
            self.window.append(next(self.gradients))
            self.step(self.window[-1])

    def assert_updated(self, weights=None, scale=1):
        """The window was ended, with `scale` times the average of its gradients: the oracle's weights and slots."""
        reduced = [scale * np.average(each, axis=0, weights=weights) for each in zip(*self.window)]
        self.expected, self.window = self.oracle.update(self.expected, reduced), []
        values, state, (_, mini_step) = self.read()
        for now, wanted, start in zip(values, self.expected, self.start):
            moved = np.max(np.abs(wanted - start))
            assert moved > 0.01 and np.max(np.abs(now - wanted)) <= 4e-6 * moved
        for slot in self.kind.slots(self.oracle):
            nearest = min(np.max(np.abs(each - slot)) for each in state if each.shape == slot.shape)
            assert nearest <= 4e-6 * np.max(np.abs(slot))
        assert mini_step == 0

    def assert_nothing_to_flush(self, flush=legacyga.flush):
        before = sum(self.read(), [])
        assert not flush(self.optimizer)
        for now, was in zip(sum(self.read(), []), before):
            np.testing.assert_array_equal(now, was)


def test_an_update_of_what_is_there(kind):
    """Windows of 1 to K - 1 mini-steps, a full one, one after a full one; after each a flush of nothing."""
    training = Training(kind, kind.make())
    training.assert_nothing_to_flush()
    for number in (1, 3, K, 2, K, 0, 1):
        training.take(number)
        if number:
            assert legacyga.flush(training.optimizer) is (number < K)
            training.assert_updated()
        assert legacyga.flush(training.optimizer) is False
        training.assert_nothing_to_flush()
    assert training.read()[2] == [6, 0]


def test_the_sum(sgd):
    sgd.cls or skips.senseless("MySGD takes the mean")
    training = Training(sgd, sgd.make(reduction="sum"))
    for number in (2, 3):
        training.take(number)
        assert legacyga.flush(training.optimizer) is True
        training.assert_updated(scale=number)


def test_the_optimizers_variables_are_listed_as_before(kind):
    training = Training(kind, kind.make())
    training.take(1)
    before = [id(each) for each in homes.variables_of(training.optimizer)]
    assert legacyga.flush(training.optimizer) is True
    assert [id(each) for each in homes.variables_of(training.optimizer)] == before


def test_at_k_1_there_is_nothing(sgd):
    training = Training(sgd, sgd.make(1))
    for number in (0, 1):
        training.take(number)
        training.assert_nothing_to_flush()
    training.assert_updated()


def test_after_a_change_of_k_in_mid_window(sgd):
    training = Training(sgd, sgd.make())
    # 2 of 4; 2 of the 2 that were set in the first window; 1 of the 3 that were set in the second.
    for number, steps, flushed in ((2, 2, True), (2, 3, False), (1, 3, True)):
        training.take(1)
        training.optimizer.gradient_accumulation_steps = steps
        training.take(number - 1)
        assert legacyga.flush(training.optimizer) is flushed
        training.assert_updated()
        training.assert_nothing_to_flush()


def test_weighted_mini_steps(home, kind):
    eager_only(home)
    training = Training(kind, kind.make())
    for weights in ([3.0, 1.0, 0.5], [1.0, 1.0]):
        for weight in weights:
            with training.optimizer.mini_steps_weigh(weight):
                training.take(1)
        assert legacyga.flush(training.optimizer) is True
        training.assert_updated(weights)


def test_within_a_function(home, kind):
    eager_only(home)
    training, traced = Training(kind, kind.make()), []
    training.take(2)

    @home.tf.function
    def flush():
        traced.append(legacyga.flush(training.optimizer))
        return traced[-1]

    assert bool(flush()) is True
    training.assert_updated()
    training.assert_nothing_to_flush(lambda optimizer: flush())
    assert len(traced) == 1 and home.tf.is_tensor(traced[0]) and traced[0].dtype == home.tf.bool


def test_two_models_with_one_optimizer(sgd):
    """Each has a window of its own, and both are flushed; the count of updates is one."""
    sgd.takes_more_models or skips.keras_lacks("optimizers of this generation have the variables they were built with")
    optimizer = sgd.make()
    trainings = [Training(sgd, optimizer, start) for start in (START, [-value for value in START])]
    for number, training in zip((2, 1), trainings):
        training.take(number)
    assert legacyga.flush(optimizer) is True
    for training in trainings:
        training.assert_updated()
        training.assert_nothing_to_flush()
    assert training.read()[2] == [2, 0]


@pytest.mark.parametrize("gone", [2, 1], ids=["model", "layer"])
@pytest.mark.long
def test_a_model_or_a_layer_that_is_no_more(home, sgd, gone):
    """Nothing of the model is left to be updated, and its window is dropped; of a layer less the others are updated."""
    if home.mode == "graph" or sgd.generation == "keras3":
        skips.senseless("a graph, and an optimizer of Keras 3, keep the variables that were trained")
    training = Training(sgd, sgd.make())
    training.take(2)
    going = [weakref.ref(variable) for variable in training.variables[:gone]]
    del training.variables[:gone], training.expected[:gone], training.start[:gone]
    gc.collect()
    assert not any(variable() for variable in going)
    assert legacyga.flush(training.optimizer) is (gone < 2)
    training.window = [gradients[gone:] for gradients in training.window]
    training.assert_updated()
    training.assert_nothing_to_flush()
    if sgd.takes_more_models:
        other = Training(sgd, training.optimizer)
        other.take(3)
        assert legacyga.flush(training.optimizer) is True
        other.assert_updated()
        assert other.read()[2] == [3 - gone, 0]


def test_sparse_gradients(home, kind):
    """Rows that only a partial window has, twice, then others: as the bare optimizer, given the sum of each row."""
    wrapped, bare = [homes.Fed(home, make(), [TABLE], sparse=True) for make in (kind.make, kind.bare)]
    random = np.random.RandomState(2)
    for number, rows in ((2, (0, 1, 5)), (3, (2, 5, 6)), (K, (6, 7))):
        ids = random.choice(rows, (number, 4)).astype("int64")
        gradients = (0.75 + random.randn(number, 4, 2)).astype("float32")
        for each in zip(ids, gradients):
            wrapped.step(each)
        assert legacyga.flush(wrapped.optimizer) is (number < K)
        total = np.zeros_like(TABLE)
        np.add.at(total, ids.ravel(), gradients.reshape(-1, 2) / number)
        bare.step([np.unique(ids), total[np.unique(ids)]])
        now, wanted = wrapped.read()[0][0], bare.read()[0][0]
        assert np.max(np.abs(now - wanted)) <= 4e-6 * np.max(np.abs(wanted - TABLE))
        np.testing.assert_array_equal(now[8], TABLE[8])


@pytest.mark.parametrize("value", [slow(None), slow("sgd"), legacyga.MySGD], ids=repr)
def test_what_is_no_optimizer_of_ours(value):
    with pytest.raises(ValueError, match="that legacyga.wrap or legacyga.MySGD returned. Received: .*(None|sgd|SGD)"):
        legacyga.flush(value)


def test_in_a_loss_scale_optimizer(home, sgd):
    """Flushed is the optimizer in it, which is given gradients that the scale has left."""
    eager_only(home)
    cover = getattr(getattr(home.keras, "mixed_precision", None), "LossScaleOptimizer", None)
    if cover is None or sgd.generation == "train":
        skips.keras_lacks("Keras has it from TF 2.4 on, for optimizers of its own")
    training = Training(sgd, sgd.make())
    inner, dynamic = training.optimizer, {} if home.is_keras3 else dict(dynamic=False)
    training.optimizer = cover(inner, initial_scale=8.0, **dynamic)
    training.take(2)
    assert legacyga.flush(training.optimizer) is True and legacyga.flush(inner) is False
    training.optimizer = inner
    # The others leave it to their user to take the scale out.
    training.assert_updated(scale=1 / 8.0 if home.is_keras3 else 1)


@pytest.mark.parametrize("way", [slow("keyword"), "position"])
def test_an_argument_that_is_a_tensor_of_a_function(home, sgd, way):
    """Outside of the function it has no value: an error that loses nothing. Within it a flush is made with it."""
    eager_only(home)
    if sgd.generation == "train" or sgd.cls is None:
        skips.senseless("a class of the user's own, of a Keras")
    tf = home.tf

    class Scaling(sgd.cls):
        def apply_gradients(self, grads_and_vars, scale=1.0):
            return super(Scaling, self).apply_gradients([(each * scale, variable) for each, variable in grads_and_vars])

    optimizer = legacyga.wrap(Scaling(1.0), 4)
    variables = home.variables([np.zeros(1, "float32")])
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    @tf.function
    def step(gradient, scale, flushes=False):
        given = {"scale": scale} if way == "keyword" else {}
        optimizer.apply_gradients([(gradient, variables[0])], *([] if given else [scale]), **given)
        return optimizer.end_windows() if flushes else False

    step(tf.constant([1.0]), tf.constant(2.0))
    with pytest.raises(ValueError, match="an argument that is a tensor of a function.* Received: .*Tensor"):
        legacyga.flush(optimizer)
    assert int(optimizer.mini_step) == 1 and not home.value(variables[0]).any()
    assert bool(step(tf.constant([2.0]), tf.constant(2.0), True)) is True
    np.testing.assert_array_equal(home.value(variables[0]), [-3.0])
    optimizer.apply_gradients([(tf.constant([1.0]), variables[0])], tf.constant(4.0))
    assert legacyga.flush(optimizer) is True
    np.testing.assert_array_equal(home.value(variables[0]), [-7.0])
