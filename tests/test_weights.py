"""What a mini-step weighs, in eager mode: its samples, whatever else happens to the model, in one unit.

Every batch is of another size, or of other samples, than the rest: where the sizes are not seen, it shows.
"""

import warnings

import homes
import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
from kinds import MOMENTUM, RATE
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R2 weights")

SHAPES = ((3, 4), (4,), (4, 2), (2,))
START = [(0.5 * np.random.RandomState(11).randn(*shape)).astype("float32") for shape in SHAPES]


def pytest_generate_tests(metafunc):
    from conftest import home_of

    home = home_of(metafunc.config)
    found = kinds.of(home) if home.mode == "eager" else []
    choices = {
        "kind": found,
        "sgd": [each for each in found if not each.is_adam],
        # Those that a model is compiled with; MySGD is one of them.
        "trainer": [each for each in found if each.cls and not each.is_adam and each.generation != "train"],
    }
    for argument in set(choices) & set(metafunc.fixturenames):
        metafunc.parametrize(argument, kinds.params(choices[argument]))


@pytest.fixture(autouse=True, scope="module")
def start_anew(home):
    if home.mode == "graph":
        skips.elsewhere("tests/test_weights_in_graphs.py is of graph mode")
    home.reset()


@pytest.fixture
def has_train_step(home):
    """Whether the home's models are trained by a `train_step`."""
    if home.tf_version < (2, 2):
        skips.keras_lacks("train_step: TF 2.2 or newer")


# ----------------------------------------------------------------------------------------------- data, and the oracle


def batches_of(sizes, seed=0):
    """(x, y) for each size; every batch has targets of its own."""
    random = np.random.RandomState(seed)
    made = [(random.randn(n, 3), random.randn(n, 2) + 1.5 * (i % 3)) for i, n in enumerate(sizes)]
    return [(x.astype("float32"), y.astype("float32")) for x, y in made]


def known(batches):
    """Mini-steps that weigh their samples: (weight, x, y)."""
    return [(len(x), x, y) for x, y in batches]


def expected(mini_steps, steps, sgd=None, weights=START):
    """The weights after windows of `steps` of these (weight, x, y), of which the last is ended, full or not."""
    sgd, weights = sgd or oracle.SGD(RATE, MOMENTUM), [w.astype("float64") for w in weights]
    for i in range(0, len(mini_steps), steps):
        window = mini_steps[i : i + steps]
        found = [oracle.gradients(weights, x.astype("float64"), y.astype("float64")) for _, x, y in window]
        each = [weight for weight, _, _ in window]
        weights = sgd.update(weights, [np.average(g, axis=0, weights=each) for g in zip(*found)])
    return weights


def off(weights, wanted, start=START):
    """The distance to the wanted weights, relative to the way that these went."""
    way = oracle.farthest(wanted, start)
    assert way > 0.05
    return oracle.farthest(weights, wanted) / way


def assert_trained(model, mini_steps, steps, sgd=None, bar=4e-6):
    """The model's weights are the oracle's, which equal weights would not give."""
    wanted, weights = expected(mini_steps, steps, sgd), [weight for weight, _, _ in mini_steps]
    if any(len(set(weights[i : i + steps])) > 1 for i in range(0, len(weights), steps)):
        assert off(expected([(1, x, y) for _, x, y in mini_steps], steps), wanted) > 1e-2
    distance = off(model.get_weights(), wanted)
    assert distance <= bar, distance


# ------------------------------------------------------------------------------------------------- models, and callers


def model_with(home, optimizer, base=None, **kwargs):
    kwargs.setdefault("run_eagerly", True)
    return compiled(home, network(home, base), optimizer, **kwargs)


def network(home, base=None, weights=START):
    inputs = home.keras.Input((3,))
    hidden = home.keras.layers.Dense(4, activation="tanh")(inputs)
    model = (base or home.keras.models.Model)(inputs, home.keras.layers.Dense(2)(hidden))
    model.set_weights(weights)
    return model


def compiled(home, model, optimizer, **kwargs):
    if kwargs.get("run_eagerly") and kwargs.get("steps_per_execution"):
        kwargs["run_eagerly"] = False
    model.compile(optimizer=optimizer, loss="mse", **kwargs)
    return model


def dataset(home, batches):
    x, y = [home.tf.constant(np.concatenate(each)) for each in zip(*batches)]
    ends = np.cumsum([len(x) for x, _ in batches])
    parts = home.tf.data.Dataset.from_tensor_slices((np.append(0, ends[:-1]), ends))
    return parts.map(lambda begin, end: (x[begin:end], y[begin:end]))


def ours(partial_window="carry", schedule=None):
    return legacyga.GradientAccumulationCallback(schedule, partial_window)


def fit(home, model, batches, *callbacks, **kwargs):
    """fit on batches of any sizes, with our callback unless others are given."""
    kwargs.setdefault("verbose", 0)
    return model.fit(dataset(home, batches), callbacks=list(callbacks or [ours()]), **kwargs)


def fit_plainly(home, model, batches, **kwargs):
    return model.fit(dataset(home, batches), verbose=0, **kwargs)


def by_hand(home, model, batch, optimizer=None):
    """A mini-step of a loop, of whose samples nobody is told."""
    home.step(model, optimizer or model.optimizer, traced=False)(*batch)


def after_batch(home, number, function):
    """A callback that calls `function(model)` after the batch of this number of each epoch."""

    class Event(home.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == number:
                function(self.model)

    return Event()


# --------------------------------------------------------------------------------------------------- whatever happens

OTHER = batches_of([9, 4, 3], seed=31)


def evaluate(home, model):
    fitted = [np.concatenate(each) for each in zip(*OTHER)]
    model.evaluate(fitted[0], fitted[1], batch_size=5, verbose=0)


def evaluate_a_batch(home, model):
    model.test_on_batch(*OTHER[0])


def reset_metrics(home, model):
    model.reset_metrics()


def several(home, model):
    model.test_on_batch(*OTHER[1])
    model.reset_metrics()
    evaluate(home, model)


EVENTS = [evaluate, evaluate_a_batch, reset_metrics, several]
SIZES = [5, 2, 4, 1, 3, 6]


@pytest.mark.parametrize("event, steps", zip(EVENTS, (2, 4, 3, 4)), ids=lambda value: getattr(value, "__name__", value))
def test_what_happens_to_the_model_within_an_epoch(home, has_train_step, event, steps):
    """After the second batch of each of two epochs; a window of 4 goes on into the second epoch."""
    batches = batches_of(SIZES, seed=steps)
    model = model_with(home, legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), steps))
    fit(home, model, batches, ours(), after_batch(home, 1, lambda model: event(home, model)), epochs=2)
    assert_trained(model, known(2 * batches), steps)


@pytest.mark.parametrize("execution", [slow(1), 2])
def test_in_traced_training(home, trainer, has_train_step, execution):
    """As above, in a training function, or several steps in one."""
    kwargs = dict(run_eagerly=False)
    data = batches_of(SIZES, seed=5)
    if execution > 1:
        if home.tf_version < (2, 4):
            skips.keras_lacks("steps_per_execution: TF 2.4 or newer")
        kwargs["steps_per_execution"] = execution
    model = model_with(home, trainer.make(3), **kwargs)
    # Bare Keras has no test_on_batch of a model with several steps in one execution.
    happens = evaluate if execution > 1 else several
    fit(home, model, data, ours(), after_batch(home, 3, lambda model: happens(home, model)), epochs=2)
    assert_trained(model, known(2 * data), 3)


@pytest.mark.parametrize("callbacks", [slow([]), [ours]], ids=["plain", "with the callback"])
def test_a_fit_within_a_fit(home, has_train_step, callbacks):
    """Of the model itself: its mini-steps come between those of the outer one."""
    batches, inner = batches_of(SIZES, seed=7), batches_of([5, 5], seed=8)
    model = model_with(home, legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 4))

    def nested(model):
        model.fit(dataset(home, inner), callbacks=[make() for make in callbacks], verbose=0)

    fit(home, model, batches, ours(), after_batch(home, 0, nested))
    # The first mini-step of the window is of 5 samples, as those of the inner fit are.
    assert_trained(model, known(batches[:1] + inner + batches[1:]), 4)


def test_a_fit_of_another_model_within_a_fit(home, has_train_step):
    """With an optimizer of its own: the two have nothing in common but that they take turns."""
    data, others = batches_of(SIZES, seed=9), batches_of([2, 6, 1], seed=10)
    models = [model_with(home, legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3)) for _ in range(2)]
    fit(home, models[0], data, ours(), after_batch(home, 1, lambda model: fit(home, models[1], others)))
    assert_trained(models[0], known(data), 3)
    assert_trained(models[1], known(others), 3)


def test_an_exception_within_an_epoch_and_the_fit_after_it(home, has_train_step):
    """3 + 1 samples before it; afterwards the window goes on, in a fit on other sizes."""
    first, second = batches_of([3, 1, 4], seed=12), batches_of([6, 2, 5, 1], seed=13)
    model = model_with(home, legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3))

    def interrupt(model):
        model.test_on_batch(*OTHER[0])
        raise KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        fit(home, model, first, ours(), after_batch(home, 1, interrupt))
    fit(home, model, second)
    assert_trained(model, known(first[:2] + second), 3)


def test_a_second_model_with_the_same_optimizer(home, has_train_step):
    """Two models of the same layers take mini-steps of one window, in fits of either, one within the other, too."""
    optimizer = legacyga.wrap(home.keras.optimizers.SGD(RATE, momentum=MOMENTUM), 3)
    one = network(home)
    other = home.keras.models.Model(one.inputs, one.outputs)
    for model in (one, other):
        compiled(home, model, optimizer, run_eagerly=True)
    parts = [batches_of(sizes, seed) for seed, sizes in enumerate(([4, 1], [2, 5], [3, 7], [6, 1, 2]), 14)]
    fit(home, one, parts[0])
    fit(home, other, parts[1])
    fit(home, one, parts[2])
    # Of the last part the second is the inner one's.
    fit(home, other, [parts[3][0], parts[3][2]], ours(), after_batch(home, 0, lambda _: fit(home, one, parts[3][1:2])))
    assert_trained(one, known(sum(parts, [])), 3)


def test_two_models_of_layers_of_their_own_with_the_same_optimizer(home, trainer, has_train_step):
    """Each has a window of its own."""
    if not trainer.takes_more_models:
        skips.keras_lacks("optimizers of this generation have the variables they were built with")
    optimizer, data = trainer.make(2), [batches_of([4, 1, 2, 5], seed) for seed in (18, 19)]
    models = [model_with(home, optimizer) for _ in range(2)]
    for i in (0, 2):
        for model, each in zip(models, data):
            fit(home, model, each[i : i + 1])
        for model, each in zip(models, data):
            fit(home, model, each[i + 1 : i + 2])
    for model, each in zip(models, data):
        assert_trained(model, known(each), 2)


def test_compiled_again(home, has_train_step):
    """Trained without the callback, with it, and compiled again with the same optimizer, in either order."""
    optimizer = legacyga.wrap(home.keras.optimizers.SGD(RATE, momentum=MOMENTUM), 3)
    model, data = model_with(home, optimizer, run_eagerly=False), batches_of([4, 1, 2, 6, 3, 5, 2, 2, 7], seed=20)
    fit_plainly(home, model, data[:1])
    fit(home, model, data[1:4])
    compiled(home, model, optimizer)
    fit(home, model, data[4:7])
    compiled(home, model, optimizer, run_eagerly=True)
    fit(home, model, data[7:])
    # The first is as large as the first of known size: 1 sample.
    assert_trained(model, [(1,) + data[0]] + known(data[1:]), 3)


# ------------------------------------------------------------------------------------------------------- any data


@pytest.mark.parametrize("name", [slow("class_weight"), slow("sample_weight"), "two outputs"])
def test_weighted_samples_and_inputs_by_name(home, has_train_step, name):
    """Epochs of 4, 4, 4 and 2, metrics reset on the way, against the home's own batches of 14."""
    import test_train_step as cases

    make, data = cases.CASES[name]
    weights = []
    for optimizer, batch, callbacks in (
        (cases.sgd(home), 14, []),
        (legacyga.wrap(cases.sgd(home), 4), 4, [ours(), after_batch(home, 2, lambda m: m.reset_metrics())]),
    ):
        model, settings = make(home, home.keras.models.Model)
        start = model.get_weights()
        model.compile(optimizer, run_eagerly=True, **settings)
        model.fit(batch_size=batch, epochs=3, shuffle=False, verbose=0, callbacks=callbacks, **data)
        weights.append(model.get_weights())
    assert off(weights[1], weights[0], start) <= 4e-6


def test_ragged_inputs(home, has_train_step):
    """Rows of 1 to 5 values, in batches of 4, 1, 3 and 2."""
    tf, random, sizes = home.tf, np.random.RandomState(21), [4, 1, 3, 2]

    class Sums(home.keras.models.Model):
        def __init__(self):
            super(Sums, self).__init__()
            self.dense = home.keras.layers.Dense(2)

        def call(self, inputs):
            return self.dense(tf.reduce_sum(inputs, axis=1)[:, None])

    rows = [random.randn(random.randint(1, 6)).astype("float32") for _ in range(sum(sizes))]
    targets = (random.randn(sum(sizes), 2) + np.repeat(range(4), sizes)[:, None]).astype("float32")
    ragged = tf.RaggedTensor.from_row_lengths(np.concatenate(rows), [len(row) for row in rows])
    ends = np.cumsum(sizes)
    parts = tf.data.Dataset.from_tensor_slices((ends - sizes, ends))
    data = parts.map(lambda begin, end: (ragged[begin:end], tf.constant(targets)[begin:end]))
    model, start = Sums(), [random.randn(1, 2).astype("float32"), np.zeros(2, "float32")]
    model.dense.build((None, 1))
    model.dense.set_weights(start)
    model.compile(legacyga.wrap(home.keras.optimizers.SGD(RATE), 2), "mse", run_eagerly=True)
    model.fit(data, verbose=0, callbacks=[ours(), after_batch(home, 0, lambda model: model.reset_metrics())])
    kernel, bias = [each.astype("float64") for each in start]
    sums = np.array([[row.sum(dtype="float64")] for row in rows])
    for begin, end in ((0, 5), (5, 10)):
        # The mean weighted by the samples is the gradient of them all.
        error = 2 * (sums[begin:end].dot(kernel) + bias - targets[begin:end]) / (2 * 5)
        kernel, bias = kernel - RATE * sums[begin:end].T.dot(error), bias - RATE * error.sum(axis=0)
    assert off(model.dense.get_weights(), [kernel, bias], start) <= 4e-6


def test_inputs_with_rows_of_their_own(home, has_train_step):
    """Batches of bags: an input has a row for each part of one, the loss is a mean over the bags."""
    tf, random, sizes = home.tf, np.random.RandomState(23), [2, 2, 1]
    parts = random.randint(1, 9, sum(sizes))
    rows, targets = random.randn(parts.sum(), 3).astype("float32"), random.randn(sum(sizes), 2).astype("float32")

    class Bags(home.keras.models.Model):
        def __init__(self):
            super(Bags, self).__init__()
            self.dense = home.keras.layers.Dense(2, use_bias=False)

        def call(self, inputs):
            # Up to TF 2.5 Keras makes columns of vectors.
            of = tf.reshape(inputs[1], [-1])
            return self.dense(tf.math.unsorted_segment_sum(inputs[0], of, tf.shape(inputs[2])[0]))

    def data():
        bag = 0
        for size in sizes:
            first, last = parts[:bag].sum(), parts[: bag + size].sum()
            of = np.repeat(np.arange(size), parts[bag : bag + size]).astype("int32")
            yield (rows[first:last], of, np.zeros(size, "float32")), targets[bag : bag + size]
            bag += size

    types = (tf.float32, tf.int32, tf.float32), tf.float32
    shapes = (tf.TensorShape([None, 3]), tf.TensorShape([None]), tf.TensorShape([None])), tf.TensorShape([None, 2])
    signature = tf.nest.map_structure(lambda shape, dtype: tf.TensorSpec(shape, dtype), shapes[0], types[0])
    if home.tf_version >= (2, 4):
        kwargs = dict(output_signature=(signature, tf.TensorSpec(shapes[1], types[1])))
    else:
        kwargs = dict(output_types=types, output_shapes=shapes)
    model, start = Bags(), [random.randn(3, 2).astype("float32")]
    model.dense.build((None, 3))
    model.dense.set_weights(start)
    model.compile(legacyga.wrap(home.keras.optimizers.SGD(RATE), 3), "mse", run_eagerly=True)
    model.fit(tf.data.Dataset.from_generator(data, **kwargs), verbose=0, callbacks=[ours()])
    kernel, ends = start[0].astype("float64"), np.cumsum(parts)
    sums = np.array([rows[end - n : end].sum(axis=0, dtype="float64") for n, end in zip(parts, ends)])
    kernel = kernel - RATE * sums.T.dot(2 * (sums.dot(kernel) - targets) / targets.size)
    assert off(model.dense.get_weights(), [kernel], start) <= 4e-6


def test_compiled_by_xla(home, has_train_step):
    """Dense gradients; the last batch of an epoch is smaller, and metrics are reset within it."""
    if home.tf_version < (2, 8):
        skips.keras_lacks("jit_compile in compile: TF 2.8 or newer")
    x, y = [np.concatenate(each) for each in zip(*batches_of([4, 4, 3], seed=22))]
    model = model_with(home, legacyga.wrap(home.keras.optimizers.SGD(RATE, momentum=MOMENTUM), 3))
    compiled(home, model, model.optimizer, jit_compile=True)
    event = after_batch(home, 1, lambda model: model.reset_metrics())
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[ours(), event])
    assert_trained(model, 2 * [(len(x[i : i + 4]), x[i : i + 4], y[i : i + 4]) for i in (0, 4, 8)], 3)


def test_a_model_that_overrides_metrics(home, has_train_step):
    """What it lists has no count, or another one than Keras's."""

    class Own(home.keras.models.Model):
        @property
        def metrics(self):
            return [self.own]

    Own.own = home.keras.metrics.Mean(name="own")
    data = batches_of([4, 1, 3, 6, 2, 2], seed=23)
    model = model_with(home, legacyga.wrap(home.keras.optimizers.SGD(RATE, momentum=MOMENTUM), 3), base=Own)
    fit(home, model, data)
    assert_trained(model, known(data), 3)


def test_floatx_float16(home, has_train_step):
    """After 2049 samples a float16 that counts them counts in twos; batches of 5 and of 3 are still of 5 and of 3."""
    layers, keras = home.keras.layers, home.keras
    before = keras.backend.floatx()
    data = batches_of([2049, 7, 5, 2, 5, 3], seed=24)
    data = [(x.astype("float16").astype("float32"), y.astype("float16").astype("float32")) for x, y in data]
    home.set_floatx("float16")
    try:
        inputs = keras.Input((3,), dtype="float32")
        hidden = layers.Dense(4, activation="tanh", dtype="float32")(inputs)
        model = keras.models.Model(inputs, layers.Dense(2, dtype="float32")(hidden))
        model.set_weights(START)
        optimizer = legacyga.wrap(keras.optimizers.SGD(RATE, momentum=MOMENTUM), 2)
        fit(home, compiled(home, model, optimizer, run_eagerly=True), data)
    finally:
        home.set_floatx(before)
    # Targets are float16 for Keras; the network and its gradients are float32, but for the loss's own last step.
    assert_trained(model, known(data), 2, bar=2e-3 if home.is_keras3 else 4e-6)


def test_a_batch_that_a_loss_scale_optimizer_skips(home, has_train_step):
    """Several steps in one execution; the second batch overflows, and the third weighs its own samples."""
    if home.tf_version < (2, 4):
        skips.keras_lacks("LossScaleOptimizer and steps_per_execution: TF 2.4 or newer")
    data = batches_of([4, 6, 1, 3, 2, 5, 1], seed=25)
    data[1] = (data[1][0], np.full_like(data[1][1], 1e38))
    inner = legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 2)
    optimizer = home.keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=8.0)
    model = model_with(home, optimizer, steps_per_execution=3)
    fit(home, model, data)
    assert_trained(model, known(data[:1] + data[2:]), 2)


# ------------------------------------------------------------------------------------------------------- one unit

WAYS = {
    "f": lambda home, model, batch: fit(home, model, [batch]),
    "p": lambda home, model, batch: fit_plainly(home, model, [batch]),
    "t": lambda home, model, batch: model.train_on_batch(*batch),
    "h": by_hand,
}


@pytest.mark.parametrize("ways", [slow("ef"), slow("fe"), slow("eft"), "efe"])
def test_a_weight_that_is_given_is_of_samples(home, has_train_step, ways):
    """Before a batch that is counted, and after it: by hand with the number of its samples."""
    sizes = [4, 6, 4, 6][: len(ways)]
    data = batches_of(sizes, seed=29)
    model = model_with(home, legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), len(ways)))
    for way, batch in zip(ways, data):
        if way == "e":
            with model.optimizer.mini_step_weight(len(batch[0])):
                by_hand(home, model, batch)
        else:
            WAYS[way](home, model, batch)
    assert_trained(model, known(data), len(ways))


@pytest.mark.parametrize("ways, size, steps", [slow("ftphftph", 4, 4), slow("tfhphhft", 9, 3), ("hphfptff", 5, 4)])
def test_batches_of_one_size_weigh_alike_whoever_hands_them_over(home, has_train_step, ways, size, steps):
    """fit with the callback, train_on_batch, fit without, a loop: two windows of 4, or of 3 and a flush of the rest."""
    data = batches_of([size] * len(ways), seed=size)
    model = model_with(home, legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), steps))
    for way, batch in zip(ways, data):
        WAYS[way](home, model, batch)
    assert legacyga.flush(model.optimizer) is (steps == 3)
    assert_trained(model, known(data), steps)


def test_one_unit_in_traced_training(home, trainer, has_train_step):
    """Functions traced before the first callback, with it, and after it."""
    data = batches_of([6] * 9, seed=26)
    model = model_with(home, trainer.make(3), run_eagerly=False)
    for batch in data[:2]:
        model.train_on_batch(*batch)
    fit(home, model, data[2:4])
    model.train_on_batch(*data[4])
    fit_plainly(home, model, data[5:7])
    fit(home, model, data[7:])
    assert_trained(model, known(data), 3)


@pytest.mark.parametrize(
    "ways, weights", [slow("ffh", [4, 2, 4]), slow("hff", [5, 5, 2]), slow("fhf", [2, 2, 5]), ("hhf", [3] * 3)]
)
def test_a_plain_mini_step_weighs_as_the_windows_first_known_one(home, has_train_step, ways, weights):
    """In each of two windows, of other sizes; the plain batches have sizes of their own, which nobody knows."""
    model, mini_steps = model_with(home, legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3)), []
    for window in range(2):
        unit = [weight + 3 * window for weight in weights]
        sizes = [n if way == "f" else n + 3 for way, n in zip(ways, unit)]
        data = batches_of(sizes, seed=27 + window)
        for way, batch in zip(ways, data):
            WAYS[way](home, model, batch)
        mini_steps += [(weight,) + batch for weight, batch in zip(unit, data)]
    assert_trained(model, mini_steps, 3)


def test_a_window_that_is_all_plain_takes_no_unit_of_another(home, has_train_step):
    """After a fit on batches of 8 and 3 a window of plain mini-steps is a plain mean, and so is a flushed one."""
    model = model_with(home, legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3))
    data = batches_of([8, 3, 5, 2, 7, 4, 1, 6], seed=29)
    fit(home, model, data[:3])
    for batch in data[3:]:
        by_hand(home, model, batch)
    assert legacyga.flush(model.optimizer) is True
    assert_trained(model, known(data[:3]) + [(1,) + batch for batch in data[3:]], 3)


def test_plain_batches_after_an_interrupted_fit(home, has_train_step):
    """Of 5 and 3 samples before, of 5 in a loop and in a fit after it."""
    data = batches_of([5, 3, 4, 5, 2, 5, 5], seed=30)
    model = model_with(home, legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3))

    def interrupt(model):
        raise KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        fit(home, model, data[:3], ours(), after_batch(home, 1, interrupt))
    by_hand(home, model, data[3])
    fit(home, model, data[4:5])
    by_hand(home, model, data[5])
    fit(home, model, data[6:])
    weighed = [(5, 0), (3, 1), (5, 3), (2, 4), (2, 5), (5, 6)]
    assert_trained(model, [(weight,) + data[i] for weight, i in weighed], 3)


def test_train_step_and_a_loop_in_one_window(home, has_train_step):
    """legacyga.train_step knows its samples as fit with the callback does."""

    class Weighted(home.keras.models.Model):
        def train_step(self, data):
            return legacyga.train_step(self, data)

    data = batches_of([4, 9, 2, 1, 6, 3], seed=32)
    model = model_with(home, legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3), base=Weighted)
    for way, batch in zip("thtttt", data):
        WAYS[way](home, model, batch)
    assert_trained(model, [(n,) + batch for n, batch in zip([4, 4, 2, 1, 6, 3], data)], 3)


def test_a_train_step_of_the_users_own_that_gives_no_weight_is_told_so(home, has_train_step):
    """Once, of batches of different sizes, which weigh alike; one that weighs its mini-steps is told nothing."""
    tf = home.tf

    class Plain(home.keras.models.Model):
        def train_step(self, data):
            by_hand(home, self, data)
            return {"loss": tf.constant(0.0)}

    class Literal(Plain):
        def train_step(self, data):
            with self.optimizer.mini_step_weight(tf.square(tf.cast(tf.shape(data[0])[0], "float32"))):
                return super(Literal, self).train_step(data)

    class Samples(home.keras.models.Model):
        def train_step(self, data):
            return legacyga.train_step(self, data)

    data = batches_of([4, 1, 5], seed=39)
    for base, power, times in ((Plain, 0, 1), (Literal, 2, 0), (Samples, 1, 0)):
        optimizer = legacyga.wrap(home.keras.optimizers.SGD(RATE, momentum=MOMENTUM), 3)
        model = model_with(home, optimizer, base=base)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(home, model, data, epochs=2)
        said = [str(each.message) for each in caught if "alike" in str(each.message)]
        assert len(said) == times, said
        assert_trained(model, 2 * [(len(x) ** power, x, y) for x, y in data], 3)


def test_a_weight_of_the_users_is_literal(home, sgd):
    """Among mini-steps that no one has counted, which weigh 1."""
    gradients = [[np.random.RandomState(i).randn(3, 2).astype("float32") + 1] for i in range(8)]
    for weights in ([3.0, None, None, 0.5], [None, 7, 1e-3, 2.5]):
        fed, inner = homes.Fed(home, sgd.make(4), [START[0][:, :2]]), sgd.oracle()
        values = [START[0][:, :2].astype("float64")]
        for i in (0, 4):
            for weight, gradient in zip(weights, gradients[i : i + 4]):
                if weight is None:
                    fed.step(gradient)
                    continue
                with fed.optimizer.mini_step_weight(weight):
                    fed.step(gradient)
            each = [1 if weight is None else weight for weight in weights]
            means = [np.average(g, axis=0, weights=each) for g in zip(*gradients[i : i + 4])]
            values = inner.update(values, [np.float64(mean) for mean in means])
        assert off(fed.read()[0], values, [START[0][:, :2]]) <= 4e-6


# ------------------------------------------------------------------------------------------- nothing weighs anything


def assert_updates(kind, windows, steps, bar=4e-6, dtype="float32"):
    """Windows of (weight, gradient): the oracle given the weighted mean, and given zero where all weigh 0."""
    start = [np.random.RandomState(33).randn(3, 4).astype(dtype), np.random.RandomState(34).randn(5).astype(dtype)]
    fed, inner, values = homes.Fed(kind.home, kind.make(steps), start), kind.oracle(), [w.astype("f8") for w in start]
    for window in windows:
        for weight, gradients in window:
            with fed.optimizer.mini_step_weight(weight):
                fed.step(gradients)
        if len(window) < steps:
            assert legacyga.flush(fed.optimizer) is True
        weights = [float(weight) for weight, _ in window]
        total = sum(weights)
        counted = [(w, g) for w, (_, g) in zip(weights, window) if w]
        means = [sum((w / total * g[i].astype("f8") for w, g in counted), np.zeros(start[i].shape)) for i in range(2)]
        values = inner.update(values, means)
        distance = off(fed.read()[0], values, start)
        assert distance <= bar, (distance, weights)


def random_gradients(number, seed, dtype="float32"):
    random = np.random.RandomState(seed)
    return [[(1 + random.randn(*shape)).astype(dtype) for shape in ((3, 4), (5,))] for _ in range(number)]


@pytest.mark.parametrize("steps", [slow(2), 3])
def test_a_window_whose_weights_are_all_0(home, kind, steps):
    """It is one of zero gradients: momentum and moments decay. Full, and flushed, and between others."""
    weights = [[1.0, 3.0, 0.0], [0.0] * 3, [0.0, 2.0, 1.0], [0] * 3, [0.0] * (steps - 1), [5, 0.5, 0]]
    gradients = random_gradients(3 * len(weights), seed=steps)
    windows = [list(zip(each[:steps], gradients[3 * i : 3 * i + steps])) for i, each in enumerate(weights)]
    assert_updates(kind, windows, steps)


def test_a_mini_step_of_weight_0_adds_nothing_whatever_its_gradients(home, sgd):
    """The mean over no samples is NaN."""
    gradients = random_gradients(6, seed=35)
    for i in (1, 3):
        gradients[i] = [np.full_like(gradients[i][0], np.nan), np.full_like(gradients[i][1], np.inf)]
    windows = [list(zip(weights, gradients[i : i + 3])) for i, weights in ((0, [2.0, 0.0, 1.0]), (3, [0.0, 4.0, 3.0]))]
    assert_updates(sgd, windows, 3)


@pytest.mark.parametrize("weights", [slow([0.1, 0.2, 0.3]), slow([0.7, 0.05, 1.3, 0.011, 2.9]), [4.0, 0.5]], ids=repr)
def test_weights_of_a_float64_model(home, sgd, weights):
    """Their sum is as wide as the gradients."""
    steps = len(weights)
    gradients = random_gradients(3 * steps, seed=36, dtype="float64")
    windows = [list(zip(weights, gradients[i : i + steps])) for i in range(0, 3 * steps, steps)]
    assert_updates(sgd, windows, steps, bar=1e-13, dtype="float64")


@pytest.mark.parametrize("weights", [slow([0.1, 0.2, 0.3]), [0.7, 0.05, 1.3, 0.011, 2.9]], ids=repr)
def test_weights_of_float64_gradients_in_an_accumulator(home, weights):
    tf, accumulator = home.tf, legacyga.GradientAccumulator()
    gradients = random_gradients(len(weights), seed=37, dtype="float64")
    for weight, each in zip(weights, gradients):
        accumulator([tf.constant(gradient) for gradient in each], weight=weight)
    for found, wanted in zip(accumulator.gradients, zip(*gradients)):
        mean = np.average(wanted, axis=0, weights=weights)
        assert np.abs(found.numpy() - mean).max() <= 1e-13 * np.abs(mean).max()


def built_sgd(home, variables, steps):
    """SGD of rate 1, wrapped, with its state: what a function traces of it later is all of a mini-step."""
    optimizer = legacyga.wrap(home.bare_sgd(lr=1.0), steps)
    optimizer.build(variables) if hasattr(optimizer, "build") else optimizer._create_all_weights(variables)
    return optimizer


@pytest.mark.parametrize("first", [slow("in a context"), "without one"])
def test_around_a_function_that_is_traced(home, first):
    """It would keep the weight of its first trace: an error, and nothing is taken with another weight in silence."""
    needs.eager_only(home)
    variables = home.variables([np.ones(2, "float32")])
    optimizer = built_sgd(home, variables, 2)

    @home.tf.function
    def step():
        optimizer.apply_gradients([(home.tf.ones(2), variables[0])])

    if first == "without one":
        step()
        with pytest.raises(ValueError, match="no mini-step was made in this context. Received: 3.0"):
            with optimizer.mini_step_weight(3.0):
                step()
        assert int(home.value(optimizer.iterations)) == 1
    else:
        with pytest.raises(ValueError, match=r"keeps the weight of its first trace. Received: mini_step_weight"):
            with optimizer.mini_step_weight(3.0):
                step()
        assert int(home.value(optimizer.mini_step)) == 0


@pytest.mark.parametrize("loop", [slow("Python"), slow("range"), "data"])
def test_around_a_function_within_a_function(home, loop):
    """The inner function is traced once for all calls of it: with a weight of the outer one it would keep the first."""
    needs.eager_only(home)
    tf, (variable,) = home.tf, home.variables([np.zeros(1, "float32")])
    optimizer = built_sgd(home, [variable], 2)

    @tf.function
    def inner(gradient):
        optimizer.apply_gradients([(gradient, variable)])

    @tf.function
    def outer(gradients, weights):
        for i in {"Python": (0, 1), "range": tf.range(2), "data": tf.data.Dataset.range(2)}[loop]:
            with optimizer.mini_step_weight(weights[i]):
                inner(gradients[i])

    with pytest.raises(ValueError, match=r"keeps the weight of its first trace. Received: mini_step_weight"):
        outer(tf.constant([[1.0], [5.0]]), tf.constant([1.0, 3.0]))
    assert int(home.value(optimizer.mini_step)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["branch", "while_loop", "range", "data", "reduce"])
def test_around_a_loop_or_a_branch_of_the_function_that_is_traced(home, way):
    """It is traced anew with its function, and has the weight of each trace: also one that AutoGraph makes."""
    needs.eager_only(home)
    tf, (variable,) = home.tf, home.variables([np.zeros(1, "float32")])
    optimizer = built_sgd(home, [variable], 4)

    def mini_step(gradient):
        optimizer.apply_gradients([(gradient, variable)])
        return gradient

    def three(gradient):
        if way == "branch":
            for _ in range(3):
                tf.cond(gradient[0] > 0, lambda: mini_step(gradient), lambda: mini_step(gradient))
        elif way == "while_loop":
            tf.while_loop(lambda i: i < 3, lambda i: [i + 1 + 0 * int_of(mini_step(gradient))], [tf.constant(0)])
        elif way == "range":
            for _ in tf.range(3):
                mini_step(gradient)
        elif way == "data":
            for _ in tf.data.Dataset.range(3):
                mini_step(gradient)
        else:
            tf.data.Dataset.range(3).reduce(0, lambda i, _: i + 1 + 0 * int_of(mini_step(gradient)))

    def int_of(gradient):
        return tf.cast(gradient[0], "int32")

    @tf.function
    def window(gradients, weights):
        with optimizer.mini_step_weight(weights[0]):
            three(gradients[0])
        with optimizer.mini_step_weight(weights[1]):
            mini_step(gradients[1])

    expected = 0.0
    # Weights of another shape are another trace.
    for gradients, weights in (([1.0, 5.0], [1.0, 3.0]), ([2.0, 1.0], [0.5, 4.0]), ([4.0, 3.0], [2.0, 1.0, 9.0])):
        window(tf.constant(gradients)[:, None], tf.constant(weights))
        expected -= np.average(gradients, weights=[3 * weights[0], weights[1]])
        assert np.abs(home.value(variable) - expected).max() <= 1e-6 * abs(expected)


@pytest.mark.slow
@pytest.mark.parametrize("mini_steps", [1, 2])
@pytest.mark.parametrize("window", [0, 1])
def test_around_a_function_that_was_traced_before(home, sgd, window, mini_steps):
    """In either window of an optimizer that has two, and in eager mode as in another function: an error.

    Where the function takes a whole window the counters of the windows are as they were.
    """
    needs.eager_only(home)
    tf = home.tf
    if sgd.generation == "train":
        variables = [tf.Variable(np.zeros(1, "float32")) for _ in range(2)]
    else:
        variables = home.variables([np.zeros(1, "float32")] * 2)
    optimizer = sgd.make(2)
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    def stepping(variable):
        def steps(gradient):
            for _ in range(mini_steps):
                optimizer.apply_gradients([(gradient, variable)])

        return tf.function(steps)

    functions = [stepping(variable) for variable in variables]
    for function in functions:
        function(tf.constant([1.0]))

    def weighed(gradient):
        with optimizer.mini_step_weight(3.0):
            functions[window](gradient)

    @tf.function
    def weighed_in_a_loop(gradient):
        for _ in tf.range(2):
            weighed(gradient)

    # Up to TF 2.4 a function is traced a second time where the first trace has made variables.
    errors = "no mini-step was made in this context. Received: 3.0|keeps the weight of its first trace"
    for call in (weighed, tf.function(weighed), weighed_in_a_loop):
        with pytest.raises(ValueError, match=errors):
            call(tf.constant([1.0]))
    # Nor does it matter what is read in the context.
    with optimizer.mini_step_weight(3.0):
        optimizer.mini_step.read_value()


def test_weights_while_every_number_is_checked(home, sgd):
    """tf.debugging.enable_check_numerics raises at an operation that gives NaN or infinity, a constant's too."""
    needs.eager_only(home, since=(2, 2))
    tf, summed = home.tf, legacyga.GradientAccumulator()
    fed = homes.Fed(home, sgd.make(2), [np.float32([1.0, 2.0])])

    @tf.function
    def step(gradient, weight):
        with fed.optimizer.mini_step_weight(weight):
            fed.optimizer.apply_gradients([(gradient, fed.variables[0])])
        summed([gradient], weight)

    tf.debugging.enable_check_numerics()
    try:
        for each in (1.0, 3.0):
            step(tf.constant([each, 0.5]), tf.constant(each))
    finally:
        tf.debugging.disable_check_numerics()
    (weights,) = sgd.oracle().update(oracle.double([np.float32([1.0, 2.0])]), [np.array([2.5, 0.5])])
    assert np.max(np.abs(home.value(fed.variables[0]) - weights)) <= 4e-6
    assert summed.gradients[0].numpy().tolist() == [2.5, 0.5]


@pytest.mark.parametrize("weight", [slow(-3.0), slow(np.inf), np.nan])
def test_a_weight_out_of_range_under_xla(home, sgd, weight):
    """XLA drops assertions. What it trains shows it, in the next window it is forgotten."""
    needs.eager_only(home, since=(2, 5))
    if sgd.generation == "train" and home.is_keras3:
        skips.elsewhere("it is that of tf.compat.v1.train in every home")
    tf, summed = home.tf, legacyga.GradientAccumulator()
    fed = homes.Fed(home, sgd.make(2), [np.float32([1.0, 2.0])])

    @tf.function(jit_compile=True)
    def step(gradient, weight):
        with fed.optimizer.mini_step_weight(weight):
            fed.optimizer.apply_gradients([(gradient, fed.variables[0])])

    @tf.function(jit_compile=True)
    def add(gradient, weight):
        summed([gradient], weight)

    expected, weights = sgd.oracle(), oracle.double([np.float32([1.0, 2.0])])
    for given in ([1.0, 3.0], [1.0, weight]):
        for each in given:
            step(tf.constant([each, 0.5]), tf.constant(each))
            add(tf.constant([each, 0.5]), tf.constant(each))
        weights = expected.update(weights, [np.array([2.5, 0.5])])
        found = [home.value(fed.variables[0]), summed.gradients[0].numpy()]
        if given[1] == 3.0:
            assert np.max(np.abs(found[0] - weights[0])) <= 4e-6 and found[1].tolist() == [2.5, 0.5]
        summed.reset()
    assert np.isnan(found).all()
    step(tf.constant([1.0, 0.5]), tf.constant(1.0))
    add(tf.constant([1.0, 0.5]), tf.constant(1.0))
    assert int(home.value(fed.optimizer.mini_step)) == 1 and summed.gradients[0].numpy().tolist() == [1.0, 0.5]
