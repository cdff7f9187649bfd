"""What a mini-step weighs where its loss is divided by another number than its samples: what a mask leaves of them."""

import pickle
import warnings

import kinds
import numpy as np
import oracle
import pytest
import skips
from kinds import MOMENTUM, RATE
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R2 weights")

STEPS, IDS, PENALTY = 6, 9, 0.05
START = [0.7 * np.random.RandomState(3).randn(*shape) for shape in ((IDS, 4), (4, 2), (2,))]
SIZES = (5, 2, 4, 1, 3, 6)
# How the warnings begin.
OURS = "(.* divides the loss of each output|The loss .* is (one number|divided by))"


def pytest_generate_tests(metafunc):
    from conftest import home_of

    home = home_of(metafunc.config)
    found = kinds.of(home) if home.mode == "eager" else []
    if "trainer" in metafunc.fixturenames:
        chosen = [each for each in found if each.cls and not each.is_adam and each.generation != "train"]
        metafunc.parametrize("trainer", kinds.params(chosen))


@pytest.fixture(autouse=True)
def start_anew(home):
    if home.mode == "graph":
        skips.elsewhere("in graph mode nothing is weighed: tests/test_weights_in_graphs.py")
    if home.tf_version < (2, 2):
        skips.keras_lacks("train_step: TF 2.2 or newer")
    home.reset()


def divides(home):
    """Whether the home divides by what an output's mask leaves, and not by all."""
    return home.tf_version >= (2, 11)


def batches_of(sizes, seed=0):
    """[(ids, targets, weights of the steps)]: sequences of 1 to 6 steps, with zeros after them."""
    random, made = np.random.RandomState(seed), []
    for i, size in enumerate(sizes):
        ids = random.randint(1, IDS, (size, STEPS))
        for row in ids:
            row[random.randint(1, STEPS + 1) :] = 0
        made.append((ids, random.randn(size, STEPS, 2) + i % 3, random.rand(size, STEPS)))
    return made


def dataset(home, batches, weighted=False):
    shapes = [(None, STEPS), (None, STEPS, 2), (None, STEPS)][: 3 if weighted else 2]
    given = [tuple(each[: len(shapes)]) for each in batches]
    types = ("int64", "float32", "float32")[: len(shapes)]
    return home.tf.data.Dataset.from_generator(lambda: iter(given), types, tuple(shapes))


def network(home, base=None, outputs=1, embeddings=1):
    """A model of one embedding with a mask, or of one an output."""
    layers = home.keras.layers
    inputs, made = home.keras.Input((STEPS,)), []
    for i in range(outputs):
        if i < embeddings:
            hidden = layers.Embedding(IDS, 4, mask_zero=True)(inputs)
        made.append(layers.Dense(2, kernel_regularizer=home.keras.regularizers.l2(PENALTY))(hidden))
    model = (base or home.keras.models.Model)(inputs, made if outputs > 1 else made[0])
    model.set_weights([START[[(IDS, 4), (4, 2), (2,)].index(tuple(each.shape))] for each in model.get_weights()])
    return model


def expected(home, batches, steps, weighted=False):
    """The weights after an epoch of windows, the last one flushed, each of which is a batch of all its samples."""
    sgd, weights = oracle.SGD(RATE, MOMENTUM), START
    for i in range(0, len(batches), steps):
        ids, y, of_steps = [np.concatenate(each) for each in zip(*batches[i : i + steps])]
        divisor = None if divides(home) else ids.size
        found = oracle.gradients_of_steps(weights, ids, y, of_steps if weighted else 1.0, PENALTY, divisor)
        weights = sgd.update(weights, found)
    return weights


def assert_close(found, wanted, bar=4e-6):
    assert len(found) == len(wanted)
    for now, value in zip(found, wanted):
        assert np.max(np.abs(now - value) / np.maximum(1.0, np.abs(value))) <= bar


@pytest.mark.parametrize("way, weighted", [slow("callback", False), slow("train_step", True), ("run_eagerly", True)])
def test_sequences_of_unequal_lengths(home, trainer, way, weighted):
    """Windows of 3 micro-batches are the batches of all their samples, by NumPy."""
    batches = batches_of(SIZES)

    class Own(home.keras.models.Model):
        def train_step(self, data):
            return legacyga.train_step(self, data)

    model = network(home, Own if way == "train_step" else None)
    model.compile(trainer.make(3), "mse", run_eagerly=way == "run_eagerly")
    callbacks = [] if way == "train_step" else [legacyga.GradientAccumulationCallback()]
    before = dict(vars(model))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", OURS)
        model.fit(dataset(home, batches, weighted), shuffle=False, verbose=0, callbacks=callbacks)
    assert_close(model.get_weights(), expected(home, batches, 3, weighted))
    name = "_compile_loss" if home.is_keras3 else "compiled_loss"
    assert vars(model)[name] is before[name]


def test_a_batch_of_which_the_mask_leaves_nothing(home):
    """Its loss is 0 / 0 in some Kerases: it adds nothing, for it is nothing of the large batch."""
    batches = batches_of((4, 3, 2))
    batches[1][0][:] = 0
    model = network(home)
    model.compile(legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3), "mse")
    model.fit(dataset(home, batches), verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])
    assert_close(model.get_weights(), expected(home, batches, 3))


def test_the_loss_is_the_users_own(home):
    """AutoGraph rewrites it as without us, it is called as often, and what it had in the place of `call` is kept."""
    if home.is_keras3 or home.mode == "eager" and home.tf_version < (2, 3):
        skips.keras_lacks("losses that AutoGraph rewrites")
    tf, batches, calls = home.tf, batches_of(SIZES), []

    class Own(home.keras.losses.Loss):
        def call(self, y_true, y_pred):
            calls.append(self)
            if tf.reduce_sum(y_true) > 1e6:
                y_pred = y_pred + 1.0
            return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)

    counts, loss = [], Own()
    vars(loss)["call"] = kept = loss.call
    for steps in (1, 3):
        home.reset()
        model = network(home)
        model.compile(legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), steps), loss)
        model.fit(dataset(home, batches), verbose=0, callbacks=[legacyga.GradientAccumulationCallback()] * (steps > 1))
        counts.append(len(calls))
        del calls[:]
    assert_close(model.get_weights(), expected(home, batches, 3))
    assert vars(loss)["call"] is kept and counts[0] == counts[1]


@pytest.mark.slow
def test_several_outputs_with_one_mask(home):
    """Exact, and nothing is said."""
    batches = batches_of(SIZES)
    ends, whole = [], [[np.concatenate(each) for each in zip(*batches[i : i + 3])] for i in (0, 3)]
    for steps, fed in ((3, batches), (1, whole)):
        home.reset()
        model = network(home, outputs=2)
        optimizer = home.bare_sgd(lr=RATE, momentum=MOMENTUM)
        model.compile(legacyga.wrap(optimizer, 3) if steps == 3 else optimizer, "mse")
        data = dataset(home, fed).map(lambda x, y: (x, (y, y + 1.0)))
        callbacks = [legacyga.GradientAccumulationCallback()] if steps == 3 else []
        with warnings.catch_warnings():
            warnings.filterwarnings("error", OURS)
            model.fit(data, shuffle=False, verbose=0, callbacks=callbacks)
        ends.append(model.get_weights())
    assert_close(*ends)


UNEVEN = (
    "divides the loss of each output by what its own mask leaves, and a micro-batch has one weight. A window is the "
    "large batch only where these masks leave equally many elements."
)


def told(caught, text):
    return [str(each.message) for each in caught if text in str(each.message)]


@pytest.mark.parametrize("equal", [slow(True), False], ids=["equal", "one of two"])
def test_several_outputs_with_masks_of_their_own(home, equal):
    """It is said once. Two that leave equally many are exact all the same."""
    if not divides(home):
        skips.keras_lacks("losses that are divided by what a mask leaves")
    batches = batches_of(SIZES)
    layers = home.keras.layers
    model = network(home, outputs=2, embeddings=2)
    if not equal:
        free = layers.Dense(2)(layers.Embedding(IDS, 4)(model.inputs[0]))
        model = home.keras.models.Model(model.inputs, [model.outputs[0], free])
    start = model.get_weights()
    model.compile(legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3), "mse")
    data = dataset(home, batches).map(lambda x, y: (x, (y, y)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            model.fit(data, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])
            if equal and _ == 0:
                first = model.get_weights()
    assert len(told(caught, UNEVEN)) == 1
    if equal:
        # Two networks side by side.
        wanted = expected(home, batches, 3)
        for value, then in zip(first, start):
            i = [each.shape for each in START].index(then.shape)
            assert_close([value], [wanted[i]])


@pytest.mark.slow
def test_a_masked_output_without_a_loss(home):
    """Its mask divides nothing: batches of one size weigh alike."""
    ids = np.concatenate([each[0] for each in batches_of((12,))])
    y, ends = np.random.RandomState(3).randn(12, 2).astype("float32"), []
    for steps in (1, 3):
        home.reset()
        layers, inputs = home.keras.layers, home.keras.Input((STEPS,))
        hidden = layers.Embedding(IDS, 4, mask_zero=True)(inputs)
        outputs = [layers.Dense(1)(hidden), layers.Dense(2)(layers.GlobalAveragePooling1D()(hidden))]
        model, random = home.keras.models.Model(inputs, outputs), np.random.RandomState(4)
        model.set_weights([random.randn(*each.shape) for each in model.get_weights()])
        optimizer = home.bare_sgd(lr=RATE, momentum=MOMENTUM)
        model.compile(legacyga.wrap(optimizer, 3) if steps == 3 else optimizer, [None, "mse"])
        targets = [np.zeros((12, STEPS, 1), "float32"), y]
        callbacks = [legacyga.GradientAccumulationCallback()] * (steps == 3)
        model.fit(ids, targets, batch_size=12 // steps, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        ends.append(model.get_weights())
    assert_close(*ends)


def test_fewer_targets_than_outputs(home):
    """Auxiliary outputs without a loss, by name: as the bare optimizer on batches of all."""
    random, ends = np.random.RandomState(0), []
    x, y = random.randn(12, 3).astype("float32"), {"a": random.randn(12, 2).astype("float32")}
    start = [random.randn(*shape) for shape in ((3, 2), (2,), (3, 2), (2,))]
    for steps in (1, 3):
        home.reset()
        inputs = home.keras.Input((3,))
        outputs = {name: home.keras.layers.Dense(2, name=name)(inputs) for name in "ab"}
        model = home.keras.models.Model(inputs, outputs)
        model.set_weights(start)
        optimizer = home.bare_sgd(lr=RATE, momentum=MOMENTUM)
        model.compile(legacyga.wrap(optimizer, 3) if steps == 3 else optimizer, {"a": "mse"})
        callbacks = [legacyga.GradientAccumulationCallback()] * (steps == 3)
        try:
            model.fit(x, y, batch_size=12 // steps, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        except KeyError:
            # The bare optimizer comes first.
            assert steps == 1 and home.is_keras3_before(3, 6)
            skips.keras_lacks("fewer targets than outputs")
        ends.append(model.get_weights())
    assert_close(*ends)


@pytest.mark.slow
def test_targets_by_name(home):
    """Outputs in a list, targets and losses by name, in the order of neither: Keras matches them as without us."""
    random, ends = np.random.RandomState(0), []
    x, y = random.randn(12, 3).astype("float32"), {name: random.randn(12, 2).astype("float32") for name in "ba"}
    start = [random.randn(*shape) for shape in ((3, 2), (2,), (3, 2), (2,))]
    for loss in ("mse", {"a": "mae", "b": "mse"}):
        for steps in (3, 1):
            home.reset()
            inputs = home.keras.Input((3,))
            outputs = [home.keras.layers.Dense(2, name=name)(inputs) for name in "ba"]
            model = home.keras.models.Model(inputs, outputs)
            model.set_weights(start)
            optimizer = home.bare_sgd(lr=RATE, momentum=MOMENTUM)
            model.compile(legacyga.wrap(optimizer, 3) if steps == 3 else optimizer, loss)
            callbacks = [legacyga.GradientAccumulationCallback()] * (steps == 3)
            model.fit(x, y, batch_size=12 // steps, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
            ends.append(model.get_weights())
        assert_close(ends[-2], ends[-1])
    assert oracle.farthest(ends[0], ends[2]) > 0.05


def test_at_one_nothing_is_said(home):
    if not divides(home):
        skips.keras_lacks("losses that are divided by what a mask leaves")
    model = network(home, outputs=2, embeddings=2)
    model.compile(legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 1), "mse")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", OURS)
        data = dataset(home, batches_of(SIZES)).map(lambda x, y: (x, (y, y)))
        model.fit(data, shuffle=False, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])


@pytest.mark.parametrize("masked", [slow(False), True])
def test_an_ignored_class(home, masked):
    """Against the home's own large batch: a segmentation with a class that is void, in sequences with a mask or not."""
    try:
        loss = home.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    except (AttributeError, TypeError):
        skips.keras_lacks("ignore_class")
    if masked and not divides(home):
        skips.keras_lacks("losses that are divided by what a mask leaves")
    batches, random, ends = batches_of(SIZES), np.random.RandomState(1), []
    classes = [random.randint(0, 2, ids.shape) for ids, _, _ in batches]
    for each in classes:
        each[:, random.randint(2, STEPS) :] = -1
    parts = [(ids, of_steps.astype("float32")) for (ids, _, _), of_steps in zip(batches, classes)]
    whole = [tuple(np.concatenate(each) for each in zip(*parts[i : i + 3])) for i in (0, 3)]
    for steps, fed in ((3, parts), (1, whole)):
        home.reset()
        inputs = home.keras.Input((STEPS,))
        hidden = home.keras.layers.Embedding(IDS, 4, mask_zero=masked)(inputs)
        model = home.keras.models.Model(inputs, home.keras.layers.Dense(2)(hidden))
        model.set_weights(START)
        optimizer = home.bare_sgd(lr=RATE, momentum=MOMENTUM)
        model.compile(legacyga.wrap(optimizer, 3) if steps == 3 else optimizer, loss)
        types, shapes = ("int64", "float32"), ((None, STEPS), (None, STEPS))
        data = home.tf.data.Dataset.from_generator(lambda fed=fed: iter(fed), types, shapes)
        model.fit(data, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()] if steps == 3 else [])
        ends.append(model.get_weights())
    assert_close(*ends)
    assert oracle.farthest(ends[1], START) > 0.02


def test_ragged_targets(home):
    """Keras divides by all elements of the batch's rows, which have 1 to 6 of them."""
    tf, layers = home.tf, home.keras.layers
    if home.is_keras3 or home.tf_version < (2, 10):
        skips.keras_lacks("ragged inputs and targets")
    lengths, random, ends = [(5 * i) % 6 + 1 for i in range(21)], np.random.RandomState(0), []
    x = tf.RaggedTensor.from_row_lengths(random.randn(sum(lengths), 1).astype("float32"), lengths)
    for steps in (3, 1):
        home.reset()
        inputs = home.keras.Input((None, 1), ragged=True)
        outputs = layers.TimeDistributed(layers.Dense(1, kernel_initializer="ones"))(inputs)
        model = home.keras.models.Model(inputs, outputs)
        optimizer = home.bare_sgd(lr=RATE, momentum=MOMENTUM)
        model.compile(legacyga.wrap(optimizer, 3) if steps == 3 else optimizer, "mse")
        given = [legacyga.GradientAccumulationCallback()] if steps == 3 else []
        model.fit(x, 2.0 * x + 1.0, batch_size=12 // steps, epochs=2, shuffle=False, verbose=0, callbacks=given)
        ends.append(model.get_weights())
    assert_close(*ends)


@pytest.mark.slow
def test_in_mixed_precision(home):
    """Keras 3 casts a half output, which loses its mask on the way to the loss."""
    if not home.is_keras3:
        skips.keras_lacks("losses of a dtype of their own")
    batches = batches_of(SIZES)
    home.keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model, ends = network(home), []
    finally:
        home.keras.config.set_dtype_policy("float32")
    for steps in (3, 1):
        model.set_weights(START)
        optimizer = home.bare_sgd(lr=RATE, momentum=MOMENTUM)
        model.compile(legacyga.wrap(optimizer, 3) if steps == 3 else optimizer, "mse")
        fed = batches if steps == 3 else [[np.concatenate(e) for e in zip(*batches[i : i + 3])] for i in (0, 3)]
        model.fit(dataset(home, fed), verbose=0, callbacks=[legacyga.GradientAccumulationCallback()] * (steps == 3))
        ends.append(model.get_weights())
    # bfloat16 has 8 bits; weighed by the samples it is 0.03 off.
    assert_close(*ends, bar=4e-3)


@pytest.mark.slow
def test_one_mask_of_two_heads_of_different_dtypes(home):
    """Keras 3 casts one of the outputs on the way to the loss, and not the other."""
    if not home.is_keras3:
        skips.keras_lacks("losses of a dtype of their own")
    batches, ends, layers = batches_of(SIZES), [], home.keras.layers
    for steps in (3, 1):
        inputs = home.keras.Input((STEPS,))
        hidden = layers.Embedding(IDS, 4, mask_zero=True)(inputs)
        heads = [layers.Dense(2, dtype=each)(hidden) for each in ("float32", "float64")]
        model = home.keras.models.Model(inputs, heads)
        if getattr(model.outputs[1], "_keras_mask", None) is None:
            skips.keras_lacks("a mask behind a layer that casts its input")
        model.set_weights([START[[(IDS, 4), (4, 2), (2,)].index(tuple(each.shape))] for each in model.get_weights()])
        optimizer = home.bare_sgd(lr=RATE, momentum=MOMENTUM)
        model.compile(legacyga.wrap(optimizer, 3) if steps == 3 else optimizer, "mse")
        fed = batches if steps == 3 else [[np.concatenate(e) for e in zip(*batches[i : i + 3])] for i in (0, 3)]
        given = dataset(home, fed).map(lambda ids, y: (ids, (y, y)))
        with warnings.catch_warnings():
            warnings.filterwarnings("error", OURS)
            model.fit(given, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()] * (steps == 3))
        ends.append(model.get_weights())
    assert_close(*ends)


@pytest.mark.parametrize("names", [("kind", "color"), slow(("color", "kind"))])
def test_targets_by_name_of_outputs_of_different_kinds(home, names):
    """Keras 3 chooses the loss for each target: the order of the outputs decides, not that of the names."""
    if not home.is_keras3:
        skips.keras_lacks('the loss "crossentropy"')
    if home.is_keras3_before(3, 7):
        skips.keras_lacks("losses in the order of the outputs")
    layers, ends = home.keras.layers, []
    x = np.random.RandomState(0).randn(12, 3).astype("float32")
    y = {"kind": np.arange(12) % 3, "color": np.eye(3, dtype="float32")[np.arange(12) % 3]}
    for steps in (3, 1):
        inputs = home.keras.Input((3,))
        heads = [layers.Dense(3, "softmax", kernel_initializer="ones", name=name)(inputs) for name in names]
        model = home.keras.models.Model(inputs, heads)
        optimizer = home.bare_sgd(lr=RATE, momentum=MOMENTUM)
        model.compile(legacyga.wrap(optimizer, 3) if steps == 3 else optimizer, "crossentropy")
        given = [legacyga.GradientAccumulationCallback()] * (steps == 3)
        model.fit(x, y, batch_size=6 // steps, shuffle=False, verbose=0, callbacks=given)
        ends.append(model.get_weights())
    assert_close(*ends)


# ------------------------------------------------------------------------------------------- what no weight makes right


@pytest.mark.parametrize("given", [slow("class_weight"), slow("sample_weight"), slow("none"), "a number a sample"])
def test_a_loss_of_one_number(home, given):
    """Under weights it is said, once; else nothing is."""
    tf, random = home.tf, np.random.RandomState(0)
    inputs = home.keras.Input((3,))
    model = home.keras.models.Model(inputs, home.keras.layers.Dense(1)(inputs))
    axis = -1 if given == "a number a sample" else None

    def loss(y_true, y_pred):
        return tf.reduce_mean(tf.square(tf.cast(y_true, "float32") - y_pred), axis=axis)

    model.compile(legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3), loss)
    more = {} if given == "none" else {"sample_weight": random.rand(12)}
    if given == "class_weight":
        more = {"class_weight": {0: 1.0, 1: 3.0}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            callbacks = [legacyga.GradientAccumulationCallback()]
            x, y = random.randn(12, 3).astype("float32"), np.arange(12)[:, None] % 2
            model.fit(x, y, batch_size=4, verbose=0, callbacks=callbacks, **more)
    found = told(caught, "multiplies it by the mean of the batch's sample weights. Where these means differ")
    assert all(each.startswith("The loss <function ") for each in found)
    assert len(found) == int(given in ("class_weight", "sample_weight"))


def test_a_mean_by_sample_weights(home):
    """It is divided by their sum: it is said once, with what to write."""
    if not home.is_keras3 or home.is_keras3_before(3, 7):
        skips.keras_lacks('reduction="mean_with_sample_weight": Keras 3.7 or newer')
    model = network(home)
    loss = home.keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    model.compile(legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3), loss)
    for weighted, times in ((False, 0), (True, 1), (True, 0)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data = dataset(home, batches_of(SIZES), weighted)
            model.fit(data, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])
        assert len(told(caught, "weight=tf.reduce_sum(data[2])")) == times


def test_nothing_is_left_behind(home):
    """After an exception within the loss, too; and the model can be pickled where the bare one can."""
    model, batches = network(home), batches_of(SIZES)
    name = "_compile_loss" if home.is_keras3 else "compiled_loss"
    loss = home.keras.losses.MeanSquaredError()
    model.compile(legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3), loss, run_eagerly=True)
    own = vars(model)[name]
    model.fit(dataset(home, batches), verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])
    with pytest.raises((ValueError, home.tf.errors.InvalidArgumentError)):
        model.fit(batches[0][0], np.zeros((5, 4, 3)), verbose=0)
    assert vars(model)[name] is own and "call" not in vars(loss)
    # Up to TF 2.14 a model with a bare OptimizerV2 cannot be unpickled either.
    if not home.is_keras3 and home.tf_version >= (2, 15):
        assert pickle.loads(pickle.dumps(model)).get_config() == model.get_config()
