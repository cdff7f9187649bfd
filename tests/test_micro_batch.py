"""micro_batch: what trains in slices ends as what trains on whole batches, in every home and mode."""

import kinds
import numpy as np
import oracle
import pytest
import skips
from kinds import MOMENTUM, RATE
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("micro_batch")

RANDOM = np.random.RandomState(47)
SHAPES = ((3, 4), (4,), (4, 2), (2,))
START = [(0.5 * RANDOM.randn(*shape)).astype("float32") for shape in SHAPES]
X, Y = [RANDOM.randn(21, size).astype("float32") for size in (3, 2)]
# The last batch is smaller, and no multiple of a slice.
BATCH = 8
WHOLE = 1000


def pytest_generate_tests(metafunc):
    from conftest import home_of

    if "kind" in metafunc.fixturenames:
        found = [each for each in kinds.of(home_of(metafunc.config)) if each.generation != "train"]
        metafunc.parametrize("kind", kinds.params(found))


@pytest.fixture(autouse=True)
def start_anew(home):
    if home.mode == "eager" and home.tf_version < (2, 2):
        skips.we_lack("micro_batch in eager mode needs TF 2.2 or newer")
    home.reset(plain_session=True)


def batches(x=X, y=Y, size=BATCH):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def expected(optimizer, epochs=1, steps=1):
    weights, accumulated = oracle.double(START), oracle.Accumulated(optimizer, steps)
    for x, y in epochs * batches():
        weights = accumulated.mini_step(weights, oracle.gradients(weights, x, y), range(len(weights)))
    return weights


def assert_close(weights, wanted, bar=4e-6):
    way = oracle.farthest(wanted, START)
    assert way > 0.05
    distance = oracle.farthest(weights, wanted)
    assert distance <= bar, distance


def compiled(home, optimizer, **kwargs):
    model = home.network(START)
    model.compile(optimizer=optimizer, loss="mse", **kwargs)
    return model


def fit(model, **kwargs):
    # Sequential models of Keras 2.0 make ten epochs by themselves.
    return model.fit(X, Y, **dict(dict(batch_size=BATCH, epochs=1, shuffle=False, verbose=0), **kwargs))


def sgd(home, **kwargs):
    return home.bare_sgd(**dict(dict(lr=RATE, momentum=MOMENTUM), **kwargs))


# ----------------------------------------------------------------------------------------------- equal to whole batches


@pytest.mark.parametrize("size", [3, slow(8)])
def test_equals_the_oracle(home, kind, size):
    """Two epochs of batches of 8, 8 and 5, in slices, with an optimizer that knows nothing of it."""
    optimizer = kind.bare()
    model = compiled(home, optimizer)
    legacyga.micro_batch(model, size)
    fit(model, epochs=2)
    assert_close(model.get_weights(), expected(kind.oracle(), epochs=2))
    assert home.value(optimizer.iterations) == 6
    assert model.optimizer is optimizer and "_legacyga" not in vars(optimizer)


@pytest.mark.slow
def test_slices_of_one(home):
    model = compiled(home, sgd(home))
    legacyga.micro_batch(model, 1)
    fit(model)
    assert_close(model.get_weights(), expected(oracle.SGD(RATE, MOMENTUM)))


@pytest.mark.slow
def test_a_batch_of_one_slice_is_as_it_is(home):
    """To the bit, where the home's own optimizer has no race in it."""
    ends = []
    for size in (None, WHOLE):
        home.reset()
        model = compiled(home, legacyga.MySGD(RATE, MOMENTUM, steps_per_update=1, keras=home.keras))
        legacyga.micro_batch(model, size)
        fit(model)
        ends.append(model.get_weights())
    for one, other in zip(*ends):
        if home.mode == "eager":
            np.testing.assert_array_equal(one, other)
        else:
            assert np.abs(one - other).max() <= 1e-6


def test_in_windows(home):
    """A batch in slices is one mini-step of an optimizer that accumulates. In graph mode it weighs its samples."""
    model = compiled(home, legacyga.MySGD(RATE, MOMENTUM, steps_per_update=3, keras=home.keras))
    legacyga.micro_batch(model, 3)
    fit(model, epochs=2)
    wanted = expected(oracle.SGD(RATE, MOMENTUM), epochs=2, steps=3)
    if home.mode == "graph":
        optimizer, wanted = oracle.SGD(RATE, MOMENTUM), oracle.double(START)
        for _ in range(2):
            wanted = optimizer.update(wanted, oracle.gradients(wanted, X, Y))
    assert_close(model.get_weights(), wanted)
    assert home.value(model.optimizer.iterations) == 2


@pytest.mark.slow
def test_in_windows_that_weigh(home):
    """With the callback the last batch, of 5, weighs 5 of 21; what it is told of is the batch."""
    if home.mode == "graph":
        skips.senseless("in graph mode the optimizer weighs, without the callback")
    model = compiled(home, legacyga.MySGD(RATE, MOMENTUM, steps_per_update=3, keras=home.keras))
    legacyga.micro_batch(model, 3)
    history = fit(model, epochs=2, callbacks=[legacyga.GradientAccumulationCallback()]).history
    weights, optimizer = oracle.double(START), oracle.SGD(RATE, MOMENTUM)
    for _ in range(2):
        weights = optimizer.update(weights, oracle.gradients(weights, X, Y))
    assert_close(model.get_weights(), weights)
    # An epoch has 21.
    assert history["effective_batch_size"] == [21, 21]
    legacyga.micro_batch(model, None)
    fit(model, callbacks=[legacyga.GradientAccumulationCallback()])
    assert_close(model.get_weights(), optimizer.update(weights, oracle.gradients(weights, X, Y)))


def test_train_on_batch(home):
    """Batches of any size, one that a function was made for before among them."""
    model = compiled(home, sgd(home))
    if home.races:
        legacyga.micro_batch(model, WHOLE)
    model.train_on_batch(X[:8], Y[:8])
    legacyga.micro_batch(model, 3)
    losses = [model.train_on_batch(X[8:16], Y[8:16]), model.train_on_batch(X[16:], Y[16:])]
    assert_close(model.get_weights(), expected(oracle.SGD(RATE, MOMENTUM)))
    weights, optimizer = oracle.double(START), oracle.SGD(RATE, MOMENTUM)
    weights = optimizer.update(weights, oracle.gradients(weights, X[:8], Y[:8]))
    wanted = oracle.loss(weights, X[8:16], Y[8:16])
    if home.is_keras3_before(3, 13):
        # It tells the mean over all batches that there were.
        wanted = (oracle.loss(oracle.double(START), X[:8], Y[:8]) + wanted) / 2
    assert abs(losses[0] - wanted) <= 1e-5


def test_generators(home):
    def forever():
        while True:
            for batch in batches():
                yield batch

    model = compiled(home, sgd(home))
    legacyga.micro_batch(model, 3)
    # Its own method up to Keras 2.3 and TF 2.0.
    named = dict(steps_per_epoch=3, epochs=2, verbose=0)
    (model.fit_generator if home.mode == "graph" else model.fit)(forever(), **named)
    assert_close(model.get_weights(), expected(oracle.SGD(RATE, MOMENTUM), epochs=2))


def samples_seen(y_true, y_pred):
    """A metric: the mean over the samples of how many there were with them."""
    import tensorflow as tf

    return tf.zeros_like(y_pred[:, 0]) + tf.cast(tf.shape(y_pred)[0], y_pred.dtype)


@pytest.mark.slow
def test_taken_off_and_compiled_again(home):
    """It holds for what is compiled later, until it is taken off."""

    def optimizer():
        # In graph mode the home's own may race.
        return legacyga.MySGD(RATE, MOMENTUM, steps_per_update=1, keras=home.keras)

    model = compiled(home, optimizer(), metrics=[samples_seen])
    legacyga.micro_batch(model, 3, recompute=False)
    seen = [fit(model).history["samples_seen"][0]]
    model.compile(optimizer=optimizer(), loss="mse", metrics=[samples_seen])
    if "model" in vars(model):
        # A Sequential of Keras 2.1 makes its inner model anew.
        legacyga.micro_batch(model, 3, recompute=False)
    seen.append(fit(model).history["samples_seen"][0])
    legacyga.micro_batch(model, None)
    seen.append(fit(model).history["samples_seen"][0])
    # The metric has the whole batches, in slices or not.
    np.testing.assert_allclose(seen, 3 * [(64 + 64 + 25) / 21.0], rtol=1e-5)
    weights = oracle.double(START)
    for optimizer, epochs in ((oracle.SGD(RATE, MOMENTUM), 1), (oracle.SGD(RATE, MOMENTUM), 2)):
        for x, y in epochs * batches():
            weights = optimizer.update(weights, oracle.gradients(weights, x, y))
    assert_close(model.get_weights(), weights)


# ------------------------------------------------------------------------------------- what models and data there are


def sums_activities(home):
    """Whether an activity_regularizer is a sum over the batch."""
    if home.is_keras3:
        return home.is_keras3_before(3, 14)
    return home.name == "keras" and home.mode == "graph" or home.tf_version < (1, 13)


class Task(object):
    """Two inputs, one an embedding's, two outputs, a penalty on weights and on what a layer gives, weights of samples
    of which many are 0, metrics of the batch and over all of them.
    """

    def __init__(self, home=None, named=False):
        random = np.random.RandomState(3)
        self.x = [random.randint(0, 9, (21, 2)), random.randn(21, 3).astype("float32")]
        self.y = [random.randn(21, 2).astype("float32"), (random.rand(21, 1) > 0.5).astype("float32")]
        self.weights = [random.rand(21).astype("float32"), (random.rand(21) > 0.6).astype("float32")]
        # A slice of which the second output has no sample that counts, in a batch that has some.
        self.weights[1][2:5], self.weights[1][[7, 15, 20]] = 0, 1
        self.losses, self.loss_weights = ["mse", "binary_crossentropy"], [0.5, 2.0]
        if home is not None and home.tf_version == (1, 13) and home.name == "tf.keras":
            self.losses = ["mse", home.keras.losses.BinaryCrossentropy()]
        if named:
            outputs = ("first", "second")
            self.x = dict(zip(("ids", "floats"), self.x))
            for name in ("y", "weights", "losses", "loss_weights"):
                setattr(self, name, dict(zip(outputs, getattr(self, name))))

    def model(self, home, optimizer):
        layers, keras = home.keras.layers, home.keras
        inputs = [layers.Input((2,), name="ids"), layers.Input((3,), name="floats")]
        joined = layers.concatenate([layers.Flatten()(layers.Embedding(9, 2)(inputs[0])), inputs[1]])
        # TF 2.2 and 2.3 take none in a loop.
        has_none = sums_activities(home) or home.mode == "eager" and home.tf_version < (2, 4)
        activity = None if has_none else "l2"
        hidden = layers.Dense(4, activation="tanh", kernel_regularizer="l2", activity_regularizer=activity)(joined)
        outputs = [layers.Dense(2, name="first")(hidden), layers.Dense(1, activation="sigmoid", name="second")(hidden)]
        if isinstance(self.y, dict) and home.is_keras3:
            # Keras 3.5 takes inputs by name by the order of the names.
            inputs, outputs = dict(zip(("ids", "floats"), inputs)), dict(zip(("first", "second"), outputs))
        model = keras.models.Model(inputs, outputs)
        random = np.random.RandomState(5)
        model.set_weights([random.randn(*value.shape).astype("float32") for value in model.get_weights()])
        model.compile(
            optimizer,
            loss=self.losses,
            loss_weights=self.loss_weights,
            metrics={"first": "mae", "second": "accuracy"},
        )
        return model


def trained(home, task, size, optimizer=None, **kwargs):
    """(weights, history) of a model after two epochs."""
    home.reset()
    # Ours at K = 1: the stock optimizers of old graphs race.
    made = legacyga.MySGD(RATE, MOMENTUM, steps_per_update=1, keras=home.keras) if optimizer is None else optimizer()
    model = task.model(home, made)
    if size is not None:
        legacyga.micro_batch(model, size)
    fitted = dict(batch_size=BATCH, epochs=2, shuffle=False, verbose=0, sample_weight=task.weights)
    history = model.fit(task.x, task.y, **dict(fitted, **kwargs)).history
    return model.get_weights(), {name: np.array(values) for name, values in history.items()}


def assert_alike(found, wanted, bar=2e-5):
    for now, then in zip(found[0], wanted[0]):
        assert np.abs(now - then).max() <= bar
    assert sorted(found[1]) == sorted(wanted[1])
    for name in found[1]:
        np.testing.assert_allclose(found[1][name], wanted[1][name], rtol=1e-4, err_msg=name)


def test_an_activity_regularizer_that_adds_up(home):
    if not sums_activities(home) or home.is_keras3:
        skips.senseless("it is a mean here, or added up by its layer: Task has one")
    model = home.keras.models.Sequential()
    model.add(home.keras.layers.Dense(2, input_shape=(3,), activity_regularizer="l2"))
    model.compile(home.bare_sgd(lr=RATE), "mse")
    legacyga.micro_batch(model, 2, recompute=False)
    with pytest.raises(ValueError, match="Received: an activity_regularizer, which is a sum over the batch"):
        model.train_on_batch(X, Y)


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True], ids=["lists", "dicts"])
def test_several_inputs_and_outputs(home, named):
    task = Task(home, named)
    assert_alike(trained(home, task, 3), trained(home, task, None))


def test_losses_that_are_divided_by_the_weights(home):
    """In TF 1.11 to 1.13 the loss of a function is, and a slice has a sum of its own."""
    if home.name != "tf.keras" or not (1, 11) <= home.tf_version < (1, 14):
        skips.senseless("tf.keras of TF 1.11 to 1.13 alone")
    task = Task()
    task.losses = ["mse", "binary_crossentropy"]
    assert_alike(trained(home, task, 3), trained(home, task, None))
    task.weights = [np.full(21, each, "float32") for each in (0.25, 0.5)]
    assert_alike(trained(home, task, 3), trained(home, task, None))


@pytest.mark.slow
def test_class_weights(home):
    y = (Y[:, :1] > 0).astype("float32")
    ends = []
    for size in (None, 3):
        home.reset()
        model = home.network([START[0], START[1], START[2][:, :1], START[3][:1]])
        model.compile(legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras), "mse", metrics=["mae"])
        legacyga.micro_batch(model, size)
        history = model.fit(
            X, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, class_weight={0: 0.5, 1: 3.0}
        ).history
        ends.append((model.get_weights(), history))
    assert_alike(ends[1], ends[0])


def test_a_penalty_on_the_batch(home):
    """add_loss of a mean over the samples is the batch's."""
    if not hasattr(home.keras.models.Model, "add_loss") or home.is_keras3 or home.name == "keras":
        skips.keras_lacks("add_loss of a tensor, by the model")
    ends = []
    for size in (None, 3):
        home.reset()
        model = home.network(START)
        model = home.keras.models.Model(model.inputs, model.outputs)
        model.add_loss(home.tf.reduce_mean(home.tf.square(model.outputs[0])))
        model.compile(optimizer=legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras), loss="mse")
        legacyga.micro_batch(model, size)
        fit(model)
        ends.append((model.get_weights(), {}))
    assert_alike(ends[1], ends[0])


@pytest.mark.parametrize("by", ["rows", slow("share")])
def test_a_mean_over_chosen_samples(home, by):
    """add_loss of a mean over those samples that a condition keeps: unequal numbers of them in the slices."""
    if home.mode == "eager":
        skips.senseless("graph mode: in eager mode what a layer adds is one number a slice")
    tf, backend = home.tf, home.backend

    def chosen(tensors):
        inputs, outputs = tensors
        loss, kept = backend.mean(backend.square(outputs), -1), inputs[:, 0] > 0.5
        if by == "rows":
            return tf.reduce_mean(tf.boolean_mask(loss, kept))
        kept = backend.cast(kept, "float32")
        return backend.mean(loss * kept) / backend.mean(kept)

    ends = []
    for size in (None, 3):
        home.reset()
        model = home.network(START)
        model = home.keras.models.Model(model.inputs, model.outputs)
        added = home.keras.layers.Lambda(chosen, output_shape=())([model.inputs[0], model.outputs[0]])
        model.add_loss(added)
        model.compile(optimizer=legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras), loss="mse")
        legacyga.micro_batch(model, size)
        fit(model)
        assert legacyga.recomputes(model) == (None if size is None else True)
        ends.append((model.get_weights(), {}))
    assert_alike(ends[1], ends[0])


# --------------------------------------------------------------------------------------------------- ways to train


@pytest.mark.slow
@pytest.mark.parametrize("way", ["run_eagerly", "steps_per_execution", "jit_compile"])
def test_ways_to_train(home, way):
    if home.mode == "graph":
        skips.senseless("graph mode")
    since = {"run_eagerly": (2, 2), "steps_per_execution": (2, 4), "jit_compile": (2, 8)}[way]
    if home.tf_version < since:
        skips.keras_lacks("{}: from TF {}.{} on".format(way, *since))
    if way == "steps_per_execution" and home.is_keras3_before(3, 10):
        skips.keras_lacks("steps_per_execution that leaves a rest: Keras 3.5 takes steps of it twice")
    model = compiled(home, sgd(home), **{way: 2 if way == "steps_per_execution" else True})
    legacyga.micro_batch(model, 3)
    fit(model, epochs=2)
    assert_close(model.get_weights(), expected(oracle.SGD(RATE, MOMENTUM), epochs=2))


def test_arrays_of_numpy(home):
    """Which `train_on_batch` hands on as they are, where nothing is a tf.function."""
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.senseless("run_eagerly: from TF 2.2 on")
    model = compiled(home, sgd(home), run_eagerly=True)
    legacyga.micro_batch(model, 3)
    for x, y in batches():
        model.train_on_batch(x, y)
    assert_close(model.get_weights(), expected(oracle.SGD(RATE, MOMENTUM)))


@pytest.mark.parametrize("size", [slow(4), slow(5), 8])
def test_xla_knows_how_long_a_slice_is(home, size):
    """Of a slice whose length is no constant, XLA's `divide_no_nan` makes one as long as the batch."""
    if home.mode == "graph" or home.tf_version < (2, 8):
        skips.keras_lacks("jit_compile: from TF 2.8 on")
    tf, x = home.tf, np.arange(1, 17, dtype="float32")[:, None] / 16

    def loss(target, output):
        return tf.reduce_mean(tf.math.divide_no_nan(tf.abs(target - output), 2.0), -1)

    layer = home.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(1,))
    model = home.keras.models.Sequential([layer])
    model.compile(home.bare_sgd(lr=1.0), loss, jit_compile=True)
    legacyga.micro_batch(model, size)
    logs = model.fit(x, 3 * x, batch_size=16, verbose=0).history
    # The mean of 3 x / 2, and of its derivative.
    assert (model.get_weights()[0].item(), logs["loss"][0]) == pytest.approx((0.265625, 0.796875), rel=1e-6)


@pytest.mark.parametrize("recompute", [slow(False), True])
def test_xla_and_a_batch_smaller_than_a_slice(home, recompute):
    """The last one, of 5: XLA compiles the loop over further slices of 6, which never runs."""
    if home.mode == "graph" or home.tf_version < (2, 8):
        skips.keras_lacks("jit_compile: from TF 2.8 on")
    model = compiled(home, sgd(home), jit_compile=True)
    legacyga.micro_batch(model, 6, recompute=recompute)
    fit(model, epochs=2)
    assert_close(model.get_weights(), expected(oracle.SGD(RATE, MOMENTUM), epochs=2))


def test_one_trace(home):
    """The training function is traced once, for batches of all sizes, and though the size is given again."""
    if home.mode == "graph":
        skips.senseless("graph mode")
    model = compiled(home, sgd(home))
    dataset = home.tf.data.Dataset.from_generator(
        lambda: iter(batches()), (np.float32, np.float32), ((None, 3), (None, 2))
    )
    functions, traces = [], []
    for _ in range(3):
        legacyga.micro_batch(model, 3)
        model.fit(dataset, verbose=0)
        functions.append(model.train_function)
        function = getattr(functions[-1], "__wrapped__", functions[-1])
        traces.append(getattr(function, "experimental_get_tracing_count", lambda: 1)())
    assert functions[0] is functions[2] and traces[0] == traces[2]
    assert_close(model.get_weights(), expected(oracle.SGD(RATE, MOMENTUM), epochs=3))


def test_a_train_step_of_ones_own(home):
    if home.mode == "graph":
        skips.keras_lacks("train_step in graph mode")

    class Model(home.keras.Model):
        def train_step(self, data):
            return legacyga.train_step(self, data, micro_batch_size=3)

    inputs = home.keras.layers.Input((3,))
    hidden = home.keras.layers.Dense(4, activation="tanh")(inputs)
    model = Model(inputs, home.keras.layers.Dense(2)(hidden))
    model.set_weights(START)
    model.compile(sgd(home), "mse")
    fit(model, epochs=2)
    assert_close(model.get_weights(), expected(oracle.SGD(RATE, MOMENTUM), epochs=2))
    with pytest.raises(ValueError, match="whose train_step is its own. Leave recompute out, or call legacyga.train_s"):
        legacyga.micro_batch(model, 3, recompute=False)
    model.train_step = lambda data: {"loss": home.tf.constant(0.0)}
    with pytest.raises(ValueError, match="cannot replace one that was set on the object"):
        legacyga.micro_batch(model, 3)


@pytest.mark.slow
def test_mixed_precision(home):
    """A loss scale that overflows in one slice drops the batch, and is halved once."""
    if home.mode == "graph" or home.tf_version < (2, 4):
        skips.keras_lacks("mixed precision of TF 2.4 and newer, in eager mode")
    ends = []
    for size in (None, 3):
        home.reset()
        keras = home.keras
        inner = keras.optimizers.SGD(2.0**-4)
        optimizer = keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=2.0**20, dynamic_growth_steps=100)
        model = home.network(START)
        model.compile(optimizer, "mse")
        legacyga.micro_batch(model, size)
        told = []
        for number, (x, y) in enumerate(2 * batches()):
            # The loss of the last sample alone is too large for the scale.
            y = np.concatenate([y[:-1], np.full((1, 2), 1e34 if number == 2 else 0.5, "float32")])
            model.train_on_batch(x, y)
            told.append(float(home.value(optimizer.dynamic_scale if home.is_keras3 else optimizer.loss_scale)))
        ends.append((model.get_weights(), {"scale": np.array(told)}))
    assert ends[0][1]["scale"][2] == ends[0][1]["scale"][0] / 2
    assert_alike(ends[1], ends[0])


@pytest.mark.parametrize("form", [slow("ragged"), "sparse"])
def test_inputs_that_are_not_dense(home, form):
    if home.mode == "graph" or home.is_keras3 or home.tf_version < (2, 4):
        skips.senseless("tf.keras and tf_keras, in eager mode")
    tf, layers, ends = home.tf, home.keras.layers, []
    random = np.random.RandomState(7)
    x = random.randint(0, 9, (21, 3)).astype("float32") * (random.rand(21, 3) > 0.4)
    for size in (None, 3):
        home.reset()
        if form == "ragged":
            given = tf.RaggedTensor.from_row_lengths(tf.constant(x.ravel()), np.full(21, 3))
            inputs = layers.Input((None,), ragged=True)
            rows = layers.Lambda(lambda value: tf.reshape(value.to_tensor(shape=[None, 3]), [-1, 3]))(inputs)
        else:
            given = tf.sparse.from_dense(x)
            inputs = layers.Input((3,), sparse=True)
            rows = layers.Lambda(tf.sparse.to_dense)(inputs)
        rows = layers.Lambda(lambda value: tf.ensure_shape(value, [None, 3]))(rows)
        model = home.keras.Model(inputs, layers.Dense(2)(layers.Dense(4, activation="tanh")(rows)))
        model.set_weights(START)
        model.compile(sgd(home), "mse")
        legacyga.micro_batch(model, size)
        dataset = tf.data.Dataset.from_tensor_slices((given, Y)).batch(BATCH)
        model.fit(dataset, epochs=2, verbose=0)
        ends.append((model.get_weights(), {}))
    assert_alike(ends[1], ends[0])


# ------------------------------------------------------------------------------------------------ nothing else moves


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 5])
def test_dropout_alone_draws_anew(home, seed):
    """With a rate of 0 nothing differs; with another each slice has numbers of its own."""
    seen = []
    for size in (None, 3):
        home.reset()
        layers = home.keras.layers
        model = home.keras.models.Sequential(
            [layers.Dropout(0.0, input_shape=(3,)), layers.Dense(4, activation="tanh"), layers.Dense(2)]
        )
        model.set_weights(START)
        model.compile(legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras), "mse")
        legacyga.micro_batch(model, size)
        fit(model)
        seen.append(model.get_weights())
    assert oracle.farthest(seen[0], seen[1]) <= 4e-6
    home.reset()
    if home.mode == "eager":
        home.tf.random.set_seed(seed)
    width = 64
    dense = layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = home.keras.models.Sequential([layers.Dropout(0.5, input_shape=(width,)), dense])
    model.compile(legacyga.MySGD(1.0, steps_per_update=1, keras=home.keras), "mse")
    legacyga.micro_batch(model, 1)
    model.train_on_batch(np.ones((2, width), "float32"), np.full((2, 1), -0.5, "float32"))
    # The gradient of a weight is the number of samples, of two, in which its input was kept. Equal draws give no 1.
    assert set(np.round(np.abs(model.get_weights()[0].ravel()), 5)) == {0.0, 1.0, 2.0}


def test_the_optimizer_has_what_it_has_without(home, tmpdir):
    """Its variables, by number, shape and value, and so has the file of the model."""
    found, path = [], str(tmpdir.join("model.keras" if home.is_keras3 else "model.h5"))
    for size in (None, 3):
        home.reset()
        model = compiled(home, home.bare_sgd(lr=RATE, momentum=MOMENTUM))
        legacyga.micro_batch(model, size)
        fit(model)
        found.append(home.optimizer_weights(model.optimizer))
    assert len(found[0]) == len(found[1]) > 1
    for one, other in zip(*found):
        # In graph mode the bare one races.
        bar = 0.1 if home.mode == "graph" else 4e-6
        assert np.shape(one) == np.shape(other) and np.abs(np.asarray(one) - np.asarray(other)).max() <= bar
    model.save(path)
    weights = model.get_weights()
    home.reset()
    loaded = home.keras.models.load_model(path)
    assert type(loaded.optimizer).__name__ == "SGD" and loaded.optimizer.__module__.startswith(home.root)
    for one, other in zip(loaded.get_weights(), weights):
        np.testing.assert_array_equal(one, other)


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("size", [0, slow(-1), slow(2.5), slow("8"), slow(True)])
def test_a_size_that_is_none(home, size):
    with pytest.raises(ValueError, match="size must be an integer of at least 1. Received: "):
        legacyga.micro_batch(compiled(home, sgd(home)), size)


def test_a_model_that_is_not_compiled(home):
    with pytest.raises(ValueError, match="takes a compiled model.*Received.*Call model.compile first"):
        legacyga.micro_batch(home.network(START), 3)


def test_parts_of_other_sizes(home):
    """What has not one first dimension cannot be cut."""
    if home.mode == "graph":
        skips.senseless("Keras refuses them in graph mode")
    dataset = home.tf.data.Dataset.from_tensors(((X[:8], Y[:6]), Y[:8]))
    inputs = [home.keras.layers.Input((3,)), home.keras.layers.Input((2,))]
    joined = home.keras.layers.concatenate([home.network(START)(inputs[0]), inputs[1]])
    model = home.keras.models.Model(inputs, joined)
    model.compile(sgd(home), "mse", run_eagerly=True)
    legacyga.micro_batch(model, 3)
    with pytest.raises(ValueError, match="must have the same first dimension. Received: 6 and 8 samples"):
        model.fit(dataset, verbose=0)
