"""micro_batch beside what is no mean over the samples, what raises, and what has nothing to train."""

import copy
import functools

import numpy as np
import oracle
import pytest
import skips
import test_micro_batch
from kinds import RATE
from slow import slow
from test_micro_batch import BATCH, START, X, Y, assert_alike, start_anew  # noqa: F401

import legacyga

pytestmark = pytest.mark.capability("micro_batch")


def plain_sgd(home):
    # The stock optimizers of old graphs race.
    return legacyga.MySGD(RATE, steps_per_update=1, keras=home.keras)


def both(home, make, size=3, **kwargs):
    """[(weights, history)] of what `make` made, in whole batches and in slices; or the error of the slices."""
    ends = []
    for each in (None, size):
        home.reset()
        model, x, y = make()
        if each is not None:
            legacyga.micro_batch(model, each)
        fitted = dict(batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        history = model.fit(x, y, **dict(fitted, **kwargs)).history
        ends.append((model.get_weights(), {name: np.array(values) for name, values in history.items()}))
    return ends


def first_of(made, samples=16):
    return made[:1] + tuple(each if each is None else each[:samples] for each in made[1:])


def has_objects(home):
    if not hasattr(home.keras.losses, "MeanSquaredError"):
        skips.keras_lacks("losses that are objects")


@pytest.mark.slow
def test_masked_time_steps(home):
    """Whether the loss is divided by the steps that a mask leaves or not."""
    random, layers = np.random.RandomState(0), home.keras.layers
    x = random.randint(1, 9, (21, 6))
    for row in x:
        row[random.randint(1, 6) :] = 0
    y = random.randn(21, 6, 2).astype("float32")

    def make():
        inputs = layers.Input((6,))
        hidden = layers.Embedding(9, 4, mask_zero=True)(inputs)
        model = home.keras.models.Model(inputs, layers.Dense(2)(hidden))
        started = np.random.RandomState(5)
        model.set_weights([started.randn(*value.shape).astype("float32") for value in model.get_weights()])
        model.compile(plain_sgd(home), "mse")
        return model, x, y

    whole, slices = both(home, make)
    assert_alike(slices, whole)


def has_weighted_means(home):
    if not home.is_keras3 or home.is_keras3_before(3, 7):
        skips.keras_lacks('reduction="mean_with_sample_weight": Keras 3.7 or newer')


@pytest.mark.parametrize("case", [slow("none"), slow("tuple"), "weighted mean"])
def test_losses_that_are_no_means(home, case):
    has_objects(home)
    if case == "none" and home.mode == "graph":
        skips.senseless("in graph mode Keras itself takes the mean of it")
    if case == "weighted mean":
        has_weighted_means(home)
    if case == "tuple" and home.tf_version == (1, 13):
        skips.keras_lacks("a tuple of losses")
    reduction = {"none": "none", "tuple": "sum", "weighted mean": "mean_with_sample_weight"}[case]
    model, loss = home.network(START), home.keras.losses.MeanSquaredError(reduction=reduction)
    if case == "tuple":
        model = home.keras.models.Model(model.inputs, [model.outputs[0], model.outputs[0]])
    model.compile(plain_sgd(home), ("mse", loss) if case == "tuple" else loss)
    with pytest.raises(ValueError, match="is a mean over the samples. Received: .*reduction='{}'".format(reduction)):
        legacyga.micro_batch(model, 3, recompute=False)
        y, weights = ([Y, Y], None) if case == "tuple" else (Y, np.arange(21.0))
        model.fit(X, y, batch_size=BATCH, verbose=0, sample_weight=weights)


def test_a_training_step_of_ones_own_is_cut(home):
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.senseless("no training step that a model has")

    def make(size):
        class Own(home.keras.Model):
            def train_step(self, data):
                return legacyga.train_step(self, data, micro_batch_size=size)

        network = home.network(START)
        model = Own(network.inputs, network.outputs)
        model.compile(plain_sgd(home), "mse")
        history = model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0).history
        return model.get_weights(), {name: np.array(values) for name, values in history.items()}

    assert_alike(make(3), make(None))


def test_a_list_of_data(home):
    """A train_step that makes its data a list, which Keras unpacks as a tuple."""
    has_weighted_means(home)

    class Own(home.keras.Model):
        def train_step(self, data):
            return legacyga.train_step(self, list(data), micro_batch_size=3, recompute=False)

    network = home.network(START)
    model = Own(network.inputs, network.outputs)
    model.compile(plain_sgd(home), home.keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    with pytest.raises(ValueError, match="is a mean over the samples. Received: .*'mean_with_sample_weight'"):
        model.fit(X, Y, batch_size=BATCH, verbose=0, sample_weight=np.arange(21.0))


@pytest.mark.parametrize("subclassed", [slow(False), True])
@pytest.mark.parametrize("weighted", [slow(False), True])
def test_an_output_of_one_dimension(home, weighted, subclassed):
    """Without sample weights the loss over the whole batch is the mean over its samples; with them it is not."""
    if not home.is_keras3:
        skips.keras_lacks("a loss of an output of one dimension under sample weights")
    more = {"sample_weight": np.arange(21.0) / 10} if weighted else {}

    def make():
        network = home.network(START)
        if subclassed:

            class Own(home.keras.Model):
                def __init__(self):
                    super(Own, self).__init__()
                    self.network = network

                def call(self, x):
                    return self.network(x)[:, 0]

            model = Own()
        else:
            vector = home.keras.layers.Lambda(lambda values: values[:, 0])(network.outputs[0])
            model = home.keras.Model(network.inputs, vector)
        model.compile(plain_sgd(home), "mse")
        return model, X, Y[:, 0]

    whole, slices = both(home, make, **more)
    assert_alike(slices, whole)


@pytest.mark.slow
@pytest.mark.parametrize("given", [slow("function"), slow("object"), "a number a sample"])
def test_a_loss_of_one_number_under_sample_weights(home, given):
    """Keras multiplies it by the mean of the batch's weights, which no slice knows; without weights it is a mean."""
    tf = home.tf
    if given == "object":
        has_objects(home)
        if home.name == "tf.keras" and not hasattr(home.keras.losses, "Loss"):
            skips.keras_lacks("loss objects of one's own")

    def loss(y_true, y_pred):
        return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1 if given == "a number a sample" else None)

    class Own(getattr(home.keras.losses, "Loss", object)):
        def call(self, y_true, y_pred):
            return loss(y_true, y_pred)

    def make():
        model = home.network(START)
        model.compile(plain_sgd(home), Own() if given == "object" else loss)
        return model, X, Y

    whole, slices = both(home, make)
    assert_alike(slices, whole)
    weights = np.linspace(0.5, 2.0, len(X))
    if given == "a number a sample":
        if home.mode == "graph" and home.name == "tf.keras" and (1, 11) <= home.tf_version < (1, 14):
            skips.keras_lacks("slices of a loss function under sample weights")
        whole, slices = both(home, make, sample_weight=weights)
        assert_alike(slices, whole)
        return
    model, x, y = make()
    try:
        model.fit(x[:8], y[:8], sample_weight=weights[:8], batch_size=8, verbose=0)
    except tf.errors.InvalidArgumentError:
        skips.keras_lacks("a loss of one number under sample weights, in graph mode")
    before = model.get_weights()
    legacyga.micro_batch(model, 3, recompute=False)
    with pytest.raises(ValueError, match="Received: .*one number for a whole batch"):
        model.fit(x, y, sample_weight=weights, batch_size=BATCH, verbose=0)
    for now, then in zip(model.get_weights(), before):
        np.testing.assert_array_equal(now, then)


def test_a_number_among_the_parts_of_a_batch(home):
    """It has no samples, and goes whole to each slice."""
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.senseless("in graph mode a batch is arrays")
    tf, layers = home.tf, home.keras.layers

    class Own(home.keras.models.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.dense = layers.Dense(2, kernel_initializer="ones")

        def call(self, inputs):
            return self.dense(inputs["x"]) * inputs["z"]

    def make():
        data = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y[:, :2]}).batch(BATCH)
        model = Own()
        model.compile(plain_sgd(home), "mse")
        return model, data.map(lambda each: ({"x": each["x"], "z": tf.constant(0.5)}, each["y"])), None

    whole, slices = both(home, make, batch_size=None)
    assert_alike(slices, whole)


def test_metrics_after_a_slice_that_raised(home):
    """They are as they were before the batch, of which the first slices were good."""
    tf = home.tf
    if home.mode == "eager" and home.tf_version < (2, 2):
        skips.keras_lacks("slices in eager mode of TF 2.0 and 2.1")

    def loss(y_true, y_pred):
        checked = [tf.Assert(tf.reduce_all(y_true < 1e3), ["too large"])]
        with tf.control_dependencies([each for each in checked if each is not None]):
            return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)

    has_states = not home.is_standalone_before(2, 3) and home.tf_version >= (1, 14)
    if not has_states:
        skips.keras_lacks("metrics that have a state, of which all are known")
    model, bad, found = home.network(START), Y[:8].copy(), []
    more = {"run_eagerly": True} if home.mode == "eager" else {}
    model.compile(plain_sgd(home), loss, metrics=["mae"], **more)
    legacyga.micro_batch(model, 3)
    bad[-1] = 1e6

    def values():
        variables = [getattr(each, "weights", None) or each.variables for each in model.metrics]
        return [np.array(home.value(value)) for each in variables for value in each]

    class Raises(home.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            found.append(values())
            with pytest.raises(tf.errors.InvalidArgumentError):
                model.train_on_batch(X[:8], bad, **({} if home.is_keras3 else {"reset_metrics": False}))
            found.append(values())

    model.fit(X[:8], Y[:8], batch_size=8, verbose=0, callbacks=[Raises()])
    assert len(found[0]) == len(found[1]) > 1
    for now, then in zip(found[1], found[0]):
        # train_on_batch of Keras 3 resets them first, from 3.15 on.
        is_reset = home.is_keras3 and not home.is_keras3_before(3, 15)
        np.testing.assert_array_equal(now, 0.0 * then if is_reset else then)


@pytest.mark.parametrize("case", [slow("sparse inputs"), "all frozen"])
def test_a_model_that_its_first_batch_builds(home, case):
    """As without slices: the inputs' static shape is known, and what has nothing to train is not trained."""
    if not home.is_keras3 and (home.mode == "graph" or home.tf_version < (2, 11)):
        skips.senseless("models that are built by their first batch in slices, as Keras 3 and tf.keras 2.15")
    tf = home.tf
    kept = np.where(X > 0, X, 0)

    def make():
        model = home.keras.Sequential([home.keras.layers.Dense(2, kernel_initializer="ones")])
        model.layers[0].trainable = case == "sparse inputs"
        model.compile(plain_sgd(home), "mse")
        x = tf.sparse.from_dense(kept) if case == "sparse inputs" else tf.constant(kept)
        return model, tf.data.Dataset.from_tensor_slices((x, Y[:, :2])).batch(BATCH), None

    whole, slices = both(home, make, batch_size=None)
    assert_alike(slices, whole)
    moved = not np.array_equal(whole[0][0], np.ones((3, 2)))
    assert moved == (case == "sparse inputs")


def test_a_weighted_mean_without_weights(home):
    has_objects(home)
    has_weighted_means(home)

    def make():
        model = home.network(START)
        model.compile(plain_sgd(home), home.keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
        return model, X, Y

    whole, slices = both(home, make)
    assert_alike(slices, whole)


@pytest.mark.parametrize("given", [slow("object"), "partial"])
def test_an_ignored_class(home, given):
    """Whether the loss is divided by the elements that are left or not."""
    losses = home.keras.losses
    try:
        loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    except (AttributeError, TypeError):
        skips.keras_lacks("ignore_class")
    if given == "partial":
        if home.mode == "graph":
            skips.keras_lacks("a functools.partial as loss")
        loss = functools.partial(losses.sparse_categorical_crossentropy, from_logits=True, ignore_class=-1)
    random = np.random.RandomState(0)
    x, y = random.randn(8, 6, 3).astype("float32"), random.randint(0, 4, (8, 6))
    y[:2], y[2, 1:], y[5, 2:] = -1, -1, -1

    def make():
        layers = home.keras.layers
        inputs = layers.Input((6, 3))
        model = home.keras.models.Model(inputs, layers.Dense(4)(inputs))
        model.set_weights([np.random.RandomState(5).randn(*each.shape) for each in model.get_weights()])
        model.compile(plain_sgd(home), loss)
        return model, x, y

    whole, slices = both(home, make, 2)
    assert_alike(slices, whole)


def test_a_loss_that_wraps_one_of_keras(home):
    """functools.wraps gives it the name and the module of the loss within."""
    y = np.where(np.random.RandomState(0).rand(*Y.shape) < 0.6, -1, Y).astype("float32")

    def masked(loss):
        @functools.wraps(loss)
        def inner(y_true, y_pred):
            kept = home.tf.cast(home.tf.not_equal(y_true, -1.0), y_pred.dtype)
            squares = kept * home.tf.square(y_true - y_pred)
            return home.tf.reduce_sum(squares) / home.tf.maximum(home.tf.reduce_sum(kept), 1.0)

        return inner

    def make():
        model = home.network(START)
        model.compile(plain_sgd(home), masked(home.keras.losses.mean_squared_error))
        return model, X, y

    whole, slices = both(home, make)
    assert_alike(slices, whole)


def test_a_loss_over_all_samples(home):
    """Those of Keras 3 by name, function and object; with an axis within a sample they are cut."""
    if not home.is_keras3:
        skips.keras_lacks("Dice, Tversky")
    losses = home.keras.losses
    model = home.network(START)
    has_axes = not home.is_keras3_before(3, 6)
    tversky = losses.Tversky(axis=(0, 1)) if has_axes else losses.Tversky()
    others = [losses.Circle()] if hasattr(losses, "Circle") else []
    for loss in ["dice", losses.dice, losses.Dice(), tversky] + others:
        model.compile(plain_sgd(home), loss)
        legacyga.micro_batch(model, 3, recompute=False)
        with pytest.raises(ValueError, match="takes all samples of a batch together"):
            model.fit(X, Y, batch_size=BATCH, verbose=0)

    def make():
        model = home.network(START)
        model.compile(plain_sgd(home), losses.Dice(axis=(1,)))
        return model, X, Y

    if has_axes:
        whole, slices = both(home, make)
        assert_alike(slices, whole)


def test_the_scales_of_float8(home):
    """What they hand over as gradients are values of which the largest holds."""
    if not home.is_keras3:
        skips.keras_lacks("quantize")
    x = X * np.linspace(0.1, 3.0, len(X), dtype="float32")[:, None]

    def make():
        model = home.network(START)
        model.quantize("float8")
        model.compile(plain_sgd(home), "mse")
        return model, x[:8], Y[:8]

    ends = {}
    for size in (None, 3):
        home.reset()
        model, x, y = make()
        legacyga.micro_batch(model, size)
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        ends[size] = {each.name: home.value(each) for each in model.layers[0].variables if "inputs_" in each.name}
    assert sorted(ends[3]) == ["inputs_amax_history", "inputs_scale"]
    assert ends[3]["inputs_amax_history"][0] == np.abs(x[:8]).max()
    for name, value in ends[3].items():
        np.testing.assert_array_equal(value, ends[None][name])


def test_places_without_a_loss(home):
    """A list of None, as Mask R-CNN compiles: the loss is that of add_loss alone."""

    def make():
        layers, keras = home.keras.layers, home.keras
        inputs, wanted = layers.Input((3,)), layers.Input((2,))
        outputs = layers.Dense(2)(inputs)
        difference = layers.Lambda(lambda each: home.tf.reduce_mean(home.tf.square(each[0] - each[1])))
        loss = difference([outputs, wanted])
        model = keras.models.Model([inputs, wanted], [outputs, loss])
        model.add_loss(loss)
        model.set_weights([START[0][:, :2], START[3]])
        model.compile(plain_sgd(home), [None, None])
        return model, [X, Y], None

    if home.is_keras3 or home.name == "keras" or not (2, 2) <= home.tf_version < (2, 5):
        skips.keras_lacks("targets of None for losses of None")
    whole, slices = both(home, make)
    assert_alike(slices, whole)


@pytest.mark.parametrize("other", [slow(True), False], ids=["and another loss", "alone"])
def test_a_loss_of_each_sample_by_add_loss(home, other):
    """Its mean is forgotten: Keras takes the sum, but for Keras 2.3, which takes the mean."""
    layers, tf = home.keras.layers, home.tf

    class Penalty(layers.Layer):
        def call(self, inputs):
            self.add_loss(tf.reduce_mean(tf.square(inputs), axis=-1))
            return inputs + 0.0

        def compute_output_shape(self, shape):
            return shape

    def make():
        inputs = layers.Input((3,))
        model = home.keras.models.Model(inputs, Penalty()(layers.Dense(2)(inputs)))
        model.set_weights([START[0][:, :2], START[3]])
        model.compile(plain_sgd(home), "mse" if other else None)
        return model, X, Y if other else None

    try:
        model, x, y = make()
        model.compile(home.bare_sgd(lr=RATE), model.loss)
        # Batches of one size.
        model.fit(x[:16], None if y is None else y[:16], batch_size=8, verbose=0)
    except Exception:
        skips.keras_lacks("a loss of each sample by add_loss, here")
    model, x, y = make()
    if home.name == "keras" and not home.is_standalone_before(2, 3):
        skips.senseless("Keras 2.3 takes the mean itself")
    whole, slices = both(home, lambda: first_of(make()))
    assert_alike(slices, whole)


def test_slices_that_begin_within_fit(home):
    """A callback sets them, and takes them off: what is trained is that of whole batches."""
    if home.mode == "graph":
        skips.senseless("graph mode cuts what is fed, and has no function that fit keeps")
    sizes, found = {1: 3, 3: None}, []

    class Sizes(home.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch in sizes:
                legacyga.micro_batch(self.model, sizes[epoch])
            found.append(legacyga.micro_batch_size(self.model))

    ends = []
    for callbacks in ([], [Sizes()]):
        home.reset()
        model = home.network(START)
        model.compile(plain_sgd(home), "mse")
        model.fit(X, Y, batch_size=BATCH, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
        ends.append(model.get_weights())
    for one, other in zip(*ends):
        assert np.abs(one - other).max() <= 4e-6
    assert "train_step" not in vars(model) and found == [None, 3, 3, None]


def test_compiled_again_with_a_sum(home):
    """It is refused when it trains."""
    has_objects(home)
    model = home.network(START)
    model.compile(plain_sgd(home), "mse")
    legacyga.micro_batch(model, 3, recompute=False)
    model.compile(plain_sgd(home), home.keras.losses.MeanSquaredError(reduction="sum"))
    with pytest.raises(ValueError, match="is a mean over the samples. Received: .*reduction='sum'"):
        model.fit(X, Y, batch_size=BATCH, verbose=0)


def test_a_batch_that_raises_leaves_nothing(home):
    """The next one is as after no such batch."""
    layers, ends = home.keras.layers, []
    x, y = np.random.RandomState(3).randint(0, 9, (8, 2)), Y[:8]
    wrong = x.copy()
    wrong[-1, 0] = 1000
    for with_wrong in (False, True):
        home.reset()
        inputs = layers.Input((2,))
        model = home.keras.models.Model(inputs, layers.Dense(2)(layers.Flatten()(layers.Embedding(9, 3)(inputs))))
        random = np.random.RandomState(5)
        model.set_weights([random.randn(*value.shape).astype("float32") for value in model.get_weights()])
        model.compile(plain_sgd(home), "mse")
        legacyga.micro_batch(model, 3)
        model.train_on_batch(x, y)
        if with_wrong:
            with pytest.raises(home.tf.errors.InvalidArgumentError):
                model.train_on_batch(wrong, y)
        model.train_on_batch(x, y)
        ends.append((model.get_weights(), {}))
    assert_alike(ends[1], ends[0], bar=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", [slow(1), 3])
def test_losses_of_several_outputs(home, size):
    """What is told is weighed as without slices, in slices of one, too."""

    def make():
        network = home.network(START)
        inputs = home.keras.layers.Input((3,))
        hidden = network(inputs)
        outputs = [home.keras.layers.Dense(2, name=name, kernel_initializer="ones")(hidden) for name in ("one", "two")]
        model = home.keras.models.Model(inputs, outputs)
        model.compile(plain_sgd(home), ["mse", "mae"], loss_weights=[1.0, 0.5])
        return model, X, [Y, Y[:, ::-1]]

    whole, slices = both(home, make, size)
    assert_alike(slices, whole)


def penalized(home, penalty, *loss):
    """What makes a model with a penalty of its output by add_loss, for `both`."""
    if not hasattr(home.keras.models.Model, "add_loss") or home.is_keras3:
        skips.keras_lacks("add_loss of a tensor, by the model")

    def make():
        model = home.network(START)
        model = home.keras.models.Model(model.inputs, model.outputs)
        model.add_loss(penalty(model.outputs[0]))
        model.compile(plain_sgd(home), *loss)
        return model, X, Y if loss else None

    return make


@pytest.mark.parametrize("size", [slow(1), 3])
def test_a_loss_by_add_loss_alone(home, size):
    """Weights and what is told, of batches of 8, 8 and 5."""
    if home.name == "keras" or home.mode == "graph" and home.tf_version < (1, 15):
        skips.keras_lacks("compile without a loss")
    tf = home.tf
    whole, slices = both(home, penalized(home, lambda output: tf.reduce_mean(tf.square(output - 1.0))), size)
    assert_alike(slices, whole)


def test_a_penalty_that_is_no_scalar(home):
    """Old detectors tell such ones: means that keep their dimensions."""
    if home.tf_version >= (2, 0):
        skips.keras_lacks("add_loss of a tensor that is no scalar, by the model")
    tf = home.tf
    make = penalized(home, lambda output: tf.reduce_mean(tf.square(output), keepdims=True), "mse")
    whole, slices = both(home, make)
    assert_alike(slices, whole)


def test_an_optimizer_of_tensorflow_1(home):
    """compile(tf.train.AdamOptimizer()), which Keras covers by one of its own."""
    if home.mode == "eager":
        skips.senseless("graph mode")

    def make():
        model = home.network(START)
        train = getattr(getattr(home.tf, "compat", None), "v1", home.tf).train
        model.compile(optimizer=train.MomentumOptimizer(RATE, 0.9), loss="mse")
        return model, X, Y

    whole, slices = both(home, make)
    assert_alike(slices, whole)


def test_nothing_to_train(home):
    """What is frozen whole is told of, as without."""

    def make():
        model = home.network(START)
        for layer in model.layers:
            layer.trainable = False
        # The others raise here by themselves: MySGD of old Keras among them.
        model.compile(home.bare_sgd(lr=RATE), "mse")
        return model, X, Y

    whole, slices = both(home, make)
    for now, start in zip(slices[0], START):
        np.testing.assert_array_equal(now, start)
    weights = oracle.double(START)
    wanted = sum(len(x) * oracle.loss(weights, x, y) for x, y in test_micro_batch.batches()) / len(X)
    np.testing.assert_allclose(slices[1]["loss"], [wanted, wanted], rtol=1e-5)


@pytest.mark.parametrize(
    "name, size", [slow("MirroredStrategy", 3), slow("OneDeviceStrategy", 3), ("OneDeviceStrategy", "auto")]
)
def test_a_strategy_of_one_replica(home, name, size):
    if home.mode == "graph":
        skips.senseless("graph mode")
    strategy = getattr(home.tf.distribute, name)(["cpu:0"] if name == "MirroredStrategy" else "cpu:0")
    with strategy.scope():
        model = home.network(START)
        model.compile(test_micro_batch.sgd(home), "mse", metrics=["mae"])
    legacyga.micro_batch(model, size)
    test_micro_batch.fit(model)
    wanted = test_micro_batch.expected(oracle.SGD(RATE, test_micro_batch.MOMENTUM))
    test_micro_batch.assert_close(model.get_weights(), wanted)


@pytest.mark.slow
def test_what_replicas_cannot_do(home):
    if home.mode == "graph" or home.tf_version < (2, 4):
        skips.senseless("eager mode")
    layers = home.keras.layers
    kinds = getattr(getattr(layers, "experimental", None), "SyncBatchNormalization", None)
    with home.tf.distribute.MirroredStrategy(["cpu:0"]).scope():
        model = home.network(START)
        model.compile(test_micro_batch.sgd(home), "mse")
        with pytest.raises(ValueError, match="takes a batch again on one device.*Received: .*Give micro_batch a"):
            legacyga.micro_batch(model, "auto")
        synchronized = kinds() if kinds else layers.BatchNormalization(synchronized=True)
        model = home.keras.models.Sequential([synchronized, layers.Dense(2)])
        model.compile(test_micro_batch.sgd(home), "mse")
        with pytest.raises(ValueError, match="cannot stand in the loop.*Received: .*BatchNormalization"):
            legacyga.micro_batch(model, 3)


def detector(home):
    """In the manner of Mask R-CNN: losses in layers and in add_loss, and a stage in which a part of it is frozen."""
    layers, backend, tf = home.keras.layers, home.keras.backend, home.tf
    image, meta = layers.Input((8, 8, 3)), layers.Input((5,))
    boxes, classes = layers.Input((6, 4)), layers.Input((6, 1), dtype="int32")
    hidden = layers.Conv2D(4, (3, 3), strides=(2, 2), activation="relu", name="body")(image)
    hidden = layers.concatenate([layers.Dense(8, activation="relu")(layers.Flatten()(hidden)), meta])
    found = layers.Reshape((6, 4))(layers.Dense(24)(hidden))
    logits = layers.Reshape((6, 3))(layers.Dense(18)(hidden))

    def of_classes(given):
        labels = tf.cast(tf.squeeze(given[0], 2), "int32")
        return backend.mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=given[1]))

    box_loss = layers.Lambda(lambda given: backend.mean(abs(given[0] - given[1])), name="box_loss")([boxes, found])
    class_loss = layers.Lambda(of_classes, name="class_loss")([classes, logits])
    model = home.keras.models.Model([image, meta, boxes, classes], [found, logits, box_loss, class_loss])
    random = np.random.RandomState(5)
    model.set_weights([0.5 * random.randn(*value.shape).astype("float32") for value in model.get_weights()])
    return model


def compile_detector(home, model):
    tf = home.tf
    model._losses, model._per_input_losses = [], {}
    means = [tf.reduce_mean(model.get_layer(name).output, keepdims=True) for name in ("box_loss", "class_loss")]
    for mean in means:
        model.add_loss(mean)
    penalty = home.keras.regularizers.l2(1e-2)
    model.add_loss(
        tf.add_n([penalty(weight) / tf.cast(tf.size(weight), "float32") for weight in model.trainable_weights])
    )
    optimizer = legacyga.MySGD(0.05, 0.9, clipnorm=0.5, steps_per_update=1, keras=home.keras)
    model.compile(optimizer=optimizer, loss=[None] * len(model.outputs))
    model.metrics_names.extend(["box_loss", "class_loss"])
    model.metrics_tensors.extend(means)


@pytest.mark.parametrize("size", [slow(1), 3])
def test_an_old_detector(home, size):
    """Batches of 4 from a generator without targets, compiled twice; micro_batch is called once."""
    if not home.is_standalone_before(2, 3):
        skips.keras_lacks("metrics_tensors, of Keras up to 2.2")

    def generator(seed):
        random = np.random.RandomState(seed)
        while True:
            floats = [random.rand(4, *shape).astype("float32") for shape in ((8, 8, 3), (5,), (6, 4))]
            yield floats + [random.randint(0, 3, (4, 6, 1)).astype("int32")], []

    ends = []
    for each in (None, size):
        home.reset()
        model, history = detector(home), {}
        for begin, end in ((0, 1), (1, 3)):
            model.get_layer("body").trainable = begin > 0
            compile_detector(home, model)
            if begin == 0 and each is not None:
                legacyga.micro_batch(model, each)
            named = dict(steps_per_epoch=3, initial_epoch=begin, epochs=end, verbose=0)
            # Its thread reads ahead. There is none with workers=0, which Keras 2.0 does not have.
            told = model.fit_generator(generator(end), **named).history
            history.update({name + str(begin): np.ravel(values) for name, values in told.items()})
        ends.append((model.get_weights(), history))
    assert len(ends[0][1]) == 6
    assert_alike(ends[1], ends[0], bar=4e-6)


@pytest.mark.slow
def test_a_deep_copy_trains_itself(home):
    """deepcopy up to TF 2.4 copies a model's attributes, among them its training step, which refers to the model."""
    if home.mode == "graph":
        skips.keras_lacks("deepcopy of a model")

    class Own(home.keras.Model):
        def __init__(self):
            super(Own, self).__init__()
            self.dense = home.keras.layers.Dense(Y.shape[1])

        def call(self, x):
            return self.dense(x)

    model = Own()
    model.compile(home.keras.optimizers.SGD(RATE), "mse")
    model.build((None,) + X.shape[1:])
    try:
        copy.deepcopy(model).fit(X, Y, verbose=0)
    except Exception:
        skips.keras_lacks("deepcopy of a model")
    legacyga.micro_batch(model, 3)
    copied, before = copy.deepcopy(model), model.get_weights()
    copied.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    for one, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(one, other)
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    for one, other in zip(copied.get_weights(), model.get_weights()):
        np.testing.assert_allclose(one, other, atol=4e-6)
