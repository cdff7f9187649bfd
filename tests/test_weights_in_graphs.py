"""What a mini-step weighs in graph mode: what `mini_step_weight` says when it is made, or what divides its loss.

test_loss_divisor.py has the latter. Where nothing divides it, a word is said, once.
"""

import warnings

import kinds
import numpy as np
import oracle
import pytest
import skips
import test_weights
from slow import slow

import legacyga
from legacyga.backend import homes

pytestmark = pytest.mark.capability("R2 weights")

SHAPES = ((3, 4), (5,))
START = [np.random.RandomState(41).randn(*shape) for shape in SHAPES]


def pytest_generate_tests(metafunc):
    from conftest import home_of

    home = home_of(metafunc.config)
    found = kinds.of(home) if home.mode == "graph" else []
    for argument in {"kind", "sgd"} & set(metafunc.fixturenames):
        chosen = [each for each in found if argument == "kind" or not each.is_adam]
        metafunc.parametrize(argument, kinds.params(chosen))


@pytest.fixture(autouse=True)
def in_a_graph(home):
    if home.mode == "eager":
        skips.senseless("graph mode only")
    home.reset(plain_session=True)
    with home.sessions.get_session().graph.as_default(), home.sessions.get_session().as_default():
        yield


@pytest.fixture
def float64(home):
    """The home's default dtype: its v1 optimizers make their hyperparameters of it."""
    before = home.keras.backend.floatx()
    home.set_floatx("float64")
    yield
    home.set_floatx(before)


class Training(object):
    """An optimizer that is given gradients, and the operations of its mini-steps, each made under a weight.

    Args:
        kind: a `kinds.Kind`.
        steps: K.
        dtype: of variables and gradients.
    """

    def __init__(self, kind, steps, dtype="float32"):
        backend = kind.home.backend
        self.kind, self.home, self.dtype = kind, kind.home, dtype
        self.optimizer, self.oracle = kind.make(steps), kind.oracle()
        self.start = [value.astype(dtype) for value in START]
        self.variables = [backend.variable(value, dtype=dtype) for value in self.start]
        self.expected = [value.astype("float64") for value in self.start]

    def make(self, weight, *further):
        """A function of (gradients, values for the placeholders `further`): a mini-step made under this weight."""
        if weight is None:
            return self._make()
        with self.optimizer.mini_step_weight(weight):
            return self._make(*further)

    def _make(self, *further):
        backend, tf = self.home.backend, self.home.tf
        fed = [backend.placeholder(shape=shape, dtype=self.dtype) for shape in SHAPES]
        loss = sum(tf.reduce_sum(gradient * variable) for gradient, variable in zip(fed, self.variables))
        if hasattr(self.optimizer, "get_updates"):
            updates = self.optimizer.get_updates(loss=loss, params=self.variables)
        else:
            v1 = homes.TensorFlow().v1
            updates = [self.optimizer.minimize(loss, var_list=self.variables)]
            fresh = [
                each for each in self.optimizer.variables() if not backend.get_session().run(is_initialized(v1, each))
            ]
            backend.get_session().run(v1.variables_initializer(fresh))
        function = backend.function(fed + list(further), [loss], updates=list(updates))
        return lambda gradients, *values: function(list(gradients) + list(values))

    def placeholder(self, dtype=None):
        return self.home.backend.placeholder(shape=(), dtype=dtype or self.dtype)

    def assert_updated(self, weights, gradients, bar=4e-6):
        """A window of these gradients was ended: by their weighted mean, by zero where all weigh 0."""
        total = float(sum(weights)) or 1.0
        means = [sum(w / total * g.astype("float64") for w, g in zip(weights, each)) for each in zip(*gradients)]
        self.expected = self.oracle.update(self.expected, means)
        found = self.home.backend.batch_get_value(self.variables)
        distance = test_weights.off(found, self.expected, self.start)
        assert distance <= bar, (distance, weights)


def is_initialized(v1, variable):
    return v1.is_variable_initialized(variable)


def random_gradients(number, seed, dtype="float32"):
    random = np.random.RandomState(seed)
    return [[(1 + random.randn(*shape)).astype(dtype) for shape in SHAPES] for _ in range(number)]


WEIGHTS = [[3.0, 1.0, 0.5], [1.0, 1.0, 9.0], [0.0, 2.0, 0.0], [0.25, 4.0, 7.0]]


def test_a_placeholder(kind, steps=3):
    """One mini-step's operation, fed another weight each time."""
    training, gradients = Training(kind, steps), random_gradients(12, seed=steps)
    weight = training.placeholder()
    step = training.make(weight, weight)
    for i, weights in enumerate(WEIGHTS):
        window = gradients[3 * i : 3 * i + steps]
        for each, value in zip(window, weights):
            step(each, np.float32(value))
        training.assert_updated(weights[:steps], window)


@pytest.mark.long
def test_all_of_a_window_weigh_0(kind):
    """As zero gradients: full, and flushed."""
    training, gradients = Training(kind, 2), random_gradients(8, seed=42)
    weight = training.placeholder()
    step = training.make(weight, weight)
    for weights in ([2.0, 1.0], [0.0, 0.0], [0.0, 3.0], [0.0]):
        window = [gradients.pop() for _ in weights]
        for each, value in zip(window, weights):
            step(each, np.float32(value))
        assert legacyga.flush(training.optimizer) is (len(weights) == 1)
        training.assert_updated(weights, window)


@pytest.mark.long
def test_numbers_and_mini_steps_of_several_weights(kind):
    """Three operations of one window, in changing order: made under 3, under 0.5, and under none, which is 1."""
    training, gradients = Training(kind, 3), random_gradients(9, seed=43)
    made = {weight: training.make(weight) for weight in (3, None, 0.5)}
    for weights in ([3, None, 0.5], [None, None, 3], [0.5, 3, 3]):
        window = [gradients.pop() for _ in weights]
        for weight, each in zip(weights, window):
            made[weight](each)
        training.assert_updated([1 if weight is None else weight for weight in weights], window)


def test_float64(float64, sgd):
    """The weights' sum is as wide as the gradients."""
    training, gradients = Training(sgd, 3, "float64"), random_gradients(9, seed=44, dtype="float64")
    weight = training.placeholder()
    step = training.make(weight, weight)
    for i, weights in enumerate(([0.1, 0.2, 0.3], [1.7, 0.011, 0.3], [4.0, 0.5, 2.0])):
        window = gradients[3 * i : 3 * i + 3]
        for each, value in zip(window, weights):
            step(each, np.float64(value))
        training.assert_updated(weights, window, bar=1e-13)


def test_at_k_1_a_weight_changes_nothing(sgd):
    training, gradients = Training(sgd, 1), random_gradients(2, seed=45)
    step = training.make(5.0)
    for each in gradients:
        step(each)
        training.assert_updated([1], [each])


def test_a_context_without_a_mini_step(sgd):
    """Where the mini-steps were made before, a weight can no longer be given, and it is not passed over in silence."""
    training = Training(sgd, 2)
    with pytest.raises(ValueError, match="no mini-step"):
        with training.optimizer.mini_step_weight(2.0):
            pass
    step = training.make(None)
    with pytest.raises(ValueError, match="no mini-step"):
        with training.optimizer.mini_step_weight(2.0):
            step(random_gradients(1, seed=46)[0])
    with pytest.raises(OSError, match="the program's own"):
        with training.optimizer.mini_step_weight(2.0):
            raise OSError("the program's own")


def test_around_the_training_of_a_model(home):
    """Keras makes the mini-step when it first trains; afterwards it is too late."""
    model = home.network(test_weights.START)
    optimizer = legacyga.MySGD(kinds.RATE, kinds.MOMENTUM, steps_per_update=2, keras=home.keras)
    model.compile(optimizer=optimizer, loss="mse")
    data = test_weights.batches_of([4, 4], seed=47)
    with optimizer.mini_step_weight(3.0):
        model.train_on_batch(*data[0])
    model.train_on_batch(*data[1])
    test_weights.assert_trained(model, [(3,) + batch for batch in data], 2)
    with pytest.raises(ValueError, match="no mini-step"):
        with optimizer.mini_step_weight(3.0):
            model.train_on_batch(*data[0])


def said(caught):
    return [str(each.message) for each in caught if "alike" in str(each.message)]


def mean(backend):
    return lambda y_true, y_pred: backend.mean(backend.square(y_true - y_pred))


def no_sum(backend):
    """The root of the squared distance is no sum over the samples."""
    return lambda y_true, y_pred: backend.sqrt(backend.mean(backend.square(y_true - y_pred)))


@pytest.mark.parametrize("way", [slow("arrays"), "generator", slow("plain")])
def test_fit(home, way):
    """With the callback and without it batches weigh their samples."""
    data = test_weights.batches_of([4, 4, 2], seed=48)
    model = home.network(test_weights.START)
    model.compile(legacyga.MySGD(kinds.RATE, kinds.MOMENTUM, steps_per_update=3, keras=home.keras), "mse")
    callbacks = [] if way == "plain" else [legacyga.GradientAccumulationCallback()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, data, way, callbacks)
    assert not said(caught)
    test_weights.assert_trained(model, test_weights.known(2 * data), 3)


def fit(model, data, way, callbacks):
    kwargs = dict(epochs=2, verbose=0, callbacks=callbacks)
    if way == "generator":
        model.fit_generator((batch for batch in 2 * data), steps_per_epoch=3, max_queue_size=1, **kwargs)
    else:
        x, y = [np.concatenate(each) for each in zip(*data)]
        model.fit(x, y, batch_size=4, shuffle=False, **kwargs)


@pytest.mark.parametrize("make", [slow(mean), no_sum])
def test_the_callback_says_that_batches_weigh_alike(home, make):
    """Once, and only where it is told batches of different sizes, whose loss shows no number that divides it."""
    for sizes, times in (([4, 4, 4], 0), ([4, 4, 2], int(make is no_sum))):
        model = home.network(test_weights.START)
        optimizer = legacyga.MySGD(kinds.RATE, kinds.MOMENTUM, steps_per_update=3, keras=home.keras)
        model.compile(optimizer=optimizer, loss=make(home.backend))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data = test_weights.batches_of(sizes, seed=48)
            fit(model, data, "arrays", [legacyga.GradientAccumulationCallback()])
        assert len(said(caught)) == times, said(caught)
        assert "no sum over a batch" in "".join(said(caught)) or not times


@pytest.mark.parametrize("embeddings", [slow(0), slow(1), 2])
def test_masks_of_outputs_are_told_of_once(home, embeddings):
    """Outputs whose losses are divided by what masks of their own leave: no one weight is right for both."""
    import test_loss_divisor

    make = test_loss_divisor.masked if embeddings else test_loss_divisor.dense
    model = make(home, embeddings, 2) if embeddings else make(home, 2)
    model.compile(legacyga.MySGD(0.1, steps_per_update=2, keras=home.keras), "mse")
    data = test_loss_divisor.sequences([8]) if embeddings else test_weights.batches_of([8])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            callbacks = [legacyga.GradientAccumulationCallback()]
            model.fit(data[0][0], [data[0][1]] * 2, batch_size=2, verbose=0, callbacks=callbacks)
    found = [each for each in caught if "divides the loss of each output" in str(each.message)]
    by_functions = home.is_standalone_before(2, 3) or home.name == "tf.keras" and home.tf_version < (1, 13)
    assert len(found) == int(embeddings == 2 and (by_functions or home.tf_version >= (2, 11)))


def test_a_loss_that_can_be_called_once(home):
    """As ssd_keras's SSDLoss, which replaces its settings by tensors."""
    model, calls = home.network(test_weights.START), []

    def loss(y_true, y_pred):
        calls.append(1)
        if len(calls) > 1:
            raise TypeError
        return home.backend.mean(home.backend.square(y_true - y_pred), axis=-1)

    model.compile(legacyga.MySGD(0.1, steps_per_update=2, keras=home.keras), loss)
    x, y = test_weights.batches_of([8], seed=1)[0]
    before = model.get_weights()
    callbacks = [legacyga.GradientAccumulationCallback()]
    model.fit(x, y, batch_size=4, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
    bare = home.network(test_weights.START)
    bare.compile(legacyga.MySGD(0.1, steps_per_update=1, keras=home.keras), "mse")
    bare.train_on_batch(x, y)
    assert oracle.farthest(bare.get_weights(), before) > 1e-3
    assert oracle.farthest(model.get_weights(), bare.get_weights()) <= 4e-6


@pytest.mark.parametrize("axis", [slow(None), -1])
def test_a_loss_of_one_number_is_told_of_once(home, axis):
    """A callback does not see here whether it meets sample weights, with which no window is exact."""
    backend = home.backend
    model = home.network(test_weights.START)

    def loss(y_true, y_pred):
        return backend.mean(backend.square(y_true - y_pred), axis=axis)

    model.compile(legacyga.MySGD(0.1, steps_per_update=2, keras=home.keras), loss)
    x, y = test_weights.batches_of([8], seed=1)[0]
    given, is_refused = dict(batch_size=2, verbose=0, sample_weight=np.arange(8.0)), False
    try:
        model.train_on_batch(x, y, sample_weight=given["sample_weight"])
    except home.tf.errors.InvalidArgumentError:
        is_refused = True
        del given["sample_weight"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            model.fit(x, y, callbacks=[legacyga.GradientAccumulationCallback()], **given)
    found = [str(each.message) for each in caught if "is one number for a whole batch" in str(each.message)]
    assert len(found) == int(axis is None and not is_refused) and all(
        each.startswith("The loss <function ") for each in found
    )


def test_looking_at_a_loss_leaves_the_graph_as_it_is(home):
    """A program that calls fit for each epoch has no larger graph after the hundredth."""
    backend = home.backend
    model = home.network(test_weights.START)

    def loss(y_true, y_pred):
        return backend.mean(backend.square(y_true - y_pred), axis=-1)

    model.compile(legacyga.MySGD(0.1, steps_per_update=2, keras=home.keras), loss)
    x, y = test_weights.batches_of([8], seed=1)[0]
    graph, sizes = model.outputs[0].graph, []
    for _ in range(4):
        model.fit(x, y, batch_size=2, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])
        sizes.append(len([each for each in graph.get_operations() if each.type == "Mean"]))
    assert sizes[1:] == sizes[:1] * 3
