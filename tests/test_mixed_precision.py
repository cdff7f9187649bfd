"""LossScaleOptimizer in both nestings, with batches that overflow, and models in half precision."""

import os
import warnings

import dense
import homes
import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R14 trouble")

HERE = os.path.dirname(os.path.abspath(__file__))
RANDOM = np.random.RandomState(14)
START = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
STEPS, SCALE, GROWTH = 3, 8.0, 2
# Mini-steps that overflow: the first, the middle and the last of a window, and two of one. In between the scale grows.
OVERFLOWS = (3, 10, 14, 21, 23)
BATCHES = [(RANDOM.randn(4, 3).astype("float32"), RANDOM.randn(4, 2).astype("float32")) for _ in range(30)]


def overflowing(batch, number):
    """The batch with an infinite input, whose gradient is NaN, or an infinite target, whose gradient is infinite."""
    x, y = np.array(batch[0]), np.array(batch[1])
    (x if number % 2 else y)[1, 0] = np.inf
    return x, y


FED = [overflowing(batch, i) if i in OVERFLOWS else batch for i, batch in enumerate(BATCHES)]


def pytest_generate_tests(metafunc):
    from conftest import home_of

    if "kind" in metafunc.fixturenames:
        found = [
            each for each in kinds.of(home_of(metafunc.config)) if each.cls and each.cls.__name__ in ("SGD", "Adam")
        ]
        found = [each for each in found if each.generation not in ("v1", "train")]
        if "sgd" in metafunc.function.__name__:
            found = [each for each in found if not each.is_adam]
        metafunc.parametrize("kind", kinds.params(found))


@pytest.fixture(autouse=True)
def fresh(home):
    home.reset(plain_session=True)


def loss_scaled(home, inner, scale=SCALE, growth=GROWTH):
    """`inner` in the home's LossScaleOptimizer."""
    precision = getattr(home.keras, "mixed_precision", None)
    if hasattr(precision, "LossScaleOptimizer"):
        return precision.LossScaleOptimizer(inner, initial_scale=scale, dynamic_growth_steps=growth)
    if not hasattr(getattr(precision, "experimental", None), "LossScaleOptimizer"):
        skips.keras_lacks("LossScaleOptimizer: TF 1.15 or newer")
    # TF 2.1 to 2.3, and those before.
    module = getattr(home.tf, "mixed_precision", home.tf.train)
    dynamic = module.experimental.DynamicLossScale(scale, growth)
    made = precision.experimental.LossScaleOptimizer(inner, dynamic)
    if home.tf_version < (1, 15):
        skips.keras_lacks("LossScaleOptimizer that is an optimizer of its own: TF 1.15 or newer")
    return made


def fixed_loss_scaled(home, inner):
    """`inner` in the home's LossScaleOptimizer, with a scale that no batch changes."""
    precision = getattr(home.keras, "mixed_precision", None)
    if home.is_keras3 or home.tf_version < (1, 15):
        skips.keras_lacks("LossScaleOptimizer with a fixed scale: TF 1.15 or newer, before Keras 3")
    if hasattr(precision, "LossScaleOptimizer"):
        return precision.LossScaleOptimizer(inner, dynamic=False, initial_scale=SCALE)
    return precision.experimental.LossScaleOptimizer(inner, SCALE)


def counts_dropped_updates(home):
    """Whether a LossScaleOptimizer adds an update that it drops to `iterations`."""
    return not home.is_keras3 and home.tf_version >= (2, 3)


def state_of(home, optimizer):
    """(scale, updates since it changed, iterations) of a LossScaleOptimizer."""
    if home.is_keras3:
        variables = [optimizer.dynamic_scale, optimizer.step_counter]
    else:
        scale = vars(optimizer)["_loss_scale"]
        variables = [
            vars(scale)["_current_loss_scale"],
            vars(scale).get("_counter", vars(scale).get("_num_good_steps")),
        ]
    return tuple(float(home.value(each)) for each in variables + [updates_of(home, optimizer)])


def updates_of(home, optimizer):
    """The count of a LossScaleOptimizer's updates; before Keras 3.9 only the one in it counts."""
    return (optimizer.inner_optimizer if home.is_keras3 else optimizer).iterations


class Scaled(object):
    """A loss scale and its optimizer, in NumPy: the algorithm of Micikevicius et al. 2018, section 3.2."""

    def __init__(self, home, kind, start=START):
        self.home, self.optimizer, self.scale, self.good = home, kind.oracle(), SCALE, 0
        self.weights = oracle.double(start)

    def react(self, finite, updated=False):
        """To a window whose batches were finite, all of them; without some there may have been an update."""
        self.good = self.good + 1 if finite else 0
        if self.good == GROWTH or not finite:
            self.scale, self.good = self.scale * (2.0 if finite else 0.5), 0
        if not self.home.is_keras3:
            self.scale = max(self.scale, 1.0)
        if not finite and not updated and counts_dropped_updates(self.home):
            self.optimizer.iterations += 1

    def gradients(self, batch):
        with np.errstate(invalid="ignore"):
            return oracle.gradients(self.weights, *[each.astype("float64") for each in batch])

    def apply(self, gradients):
        """An update on the mean of these lists, where it is finite. Returns whether it is."""
        with np.errstate(invalid="ignore"):
            mean = [np.mean(each, axis=0) for each in zip(*gradients)]
        finite = all(np.isfinite(each).all() for each in mean)
        if finite:
            self.weights = self.optimizer.update(self.weights, mean)
        return finite

    def update(self, gradients):
        """The same, to which the scale reacts."""
        self.react(self.apply(gradients))

    @property
    def state(self):
        return self.scale, float(self.good), float(self.optimizer.iterations)


def joined(batches):
    return tuple(np.concatenate(each) for each in zip(*batches))


def step_of(home, model, optimizer, traced=False):
    """A function of (x, y): a mini-step of a loop that scales the loss and takes the scale out again."""
    if home.mode == "graph":
        # The bare one of TF 2.0 to 2.13 cannot be called in a graph that nobody has entered.
        with homes.v1_of(home.tf).get_default_graph().as_default():
            return home.step(model, optimizer)
    tf, variables = home.tf, model.trainable_variables
    if home.is_keras3:
        optimizer.build(variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
            loss = optimizer.scale_loss(loss) if home.is_keras3 else optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(loss, variables)
        if not home.is_keras3:
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, variables))

    return tf.function(step) if traced else step


def errors_of(home, step, batches):
    """How many of these mini-steps raise."""
    errors = 0
    for batch in batches:
        try:
            step(*batch)
        except home.tf.errors.InvalidArgumentError:
            errors += 1
    return errors


def mini_step_of(home, optimizer):
    return int(home.value(optimizer.mini_step))


# ------------------------------------------------------------------------------------ wrap(LossScaleOptimizer(...), K)


def test_windows_that_overflow(home, kind):
    """Scale, its counter and `iterations` are those of the bare one on the large batches, the weights NumPy's."""
    given = loss_scaled(home, kind.bare())
    optimizer, bare = legacyga.wrap(given, STEPS), loss_scaled(home, kind.bare())
    assert isinstance(optimizer, type(given)) and optimizer.gradient_accumulation_steps == STEPS
    model, large = home.network(START), home.network(START)
    step, large_step = step_of(home, model, optimizer, traced=not kind.is_adam), step_of(home, large, bare)
    expected, scales = Scaled(home, kind), []
    for i, batch in enumerate(FED):
        assert mini_step_of(home, optimizer) == i % STEPS
        before = model.get_weights(), state_of(home, optimizer) if i else None
        step(*batch)
        if (i + 1) % STEPS:
            dense.assert_bits(model.get_weights(), before[0])
            assert i == 0 or state_of(home, optimizer) == before[1]
            continue
        window = FED[i + 1 - STEPS : i + 1]
        large_step(*joined(window))
        expected.update([expected.gradients(each) for each in window])
        assert state_of(home, optimizer) == state_of(home, bare) == expected.state
        dense.assert_close(model.get_weights(), expected.weights)
        dense.assert_close(large.get_weights(), expected.weights)
        scales.append(expected.scale)
    assert scales == [8, 4, 4, 2, 1, 1, 2, 1, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["skip_mini_step", "skip_window", "raise"])
def test_a_policy_around_a_loss_scale(home, kind, policy):
    """What is left out is left out by the policy, and the scale learns of each window with an overflow, once.

    So it does where the update is made without it, and where the scale would grow by that update.
    """
    if home.mode == "graph" and policy == "raise":
        skips.elsewhere("eager mode has the error")
    if policy == "skip_mini_step" and home.mode == "eager" and home.tf_version < (2, 1):
        skips.we_lack("the scale of TF 2.0 does not learn of a window of which nothing is left")
    optimizer, bad = legacyga.wrap(loss_scaled(home, kind.bare()), STEPS, on_nonfinite=policy), {3, 4, 5, 10, 20, 21}
    fed = [overflowing(batch, i) if i in bad else batch for i, batch in enumerate(BATCHES)]
    model, expected, skipped, scales = home.network(START), Scaled(home, kind), 0, []
    step = step_of(home, model, optimizer, traced=not kind.is_adam)
    for first in range(0, len(fed), STEPS):
        numbers = range(first, first + STEPS)
        errors = errors_of(home, step, [fed[i] for i in numbers])
        good = [i for i in numbers if i not in bad]
        left = set(numbers) - set(good) if policy == "skip_mini_step" else numbers if len(good) < STEPS else ()
        skipped += len(left)
        batches = good if policy == "skip_mini_step" and good else numbers
        updated = expected.apply([expected.gradients(fed[i]) for i in batches])
        expected.react(len(good) == STEPS, updated)
        assert errors == (policy == "raise" and len(good) < STEPS)
        assert int(home.value(optimizer.skipped_mini_steps)) == skipped and mini_step_of(home, optimizer) == 0
        assert state_of(home, optimizer) == expected.state
        dense.assert_close(model.get_weights(), expected.weights)
        scales.append(expected.scale)
    assert scales == [8, 4, 4, 2, 2, 4, 2, 1, 1, 2]


@pytest.mark.parametrize("policy", [slow("skip_mini_step"), "skip_window", slow("raise")])
def test_a_policy_around_a_fixed_loss_scale(home, kind, policy):
    """Such a scale looks at no gradient: there is no update of what the policy leaves out."""
    if home.mode == "graph" and policy == "raise":
        skips.elsewhere("eager mode has the error")
    optimizer, bad = legacyga.wrap(fixed_loss_scaled(home, kind.bare()), STEPS, on_nonfinite=policy), {4, 6, 7, 8}
    fed = [overflowing(batch, i) if i in bad else batch for i, batch in enumerate(BATCHES[:12])]
    model, expected, skipped = home.network(START), Scaled(home, kind), 0
    step = step_of(home, model, optimizer, traced=not kind.is_adam)
    for first in range(0, len(fed), STEPS):
        numbers = range(first, first + STEPS)
        errors = errors_of(home, step, [fed[i] for i in numbers])
        good = [i for i in numbers if i not in bad]
        assert errors == (policy == "raise" and len(good) < STEPS)
        if policy != "skip_mini_step" and len(good) < STEPS:
            good = []
        skipped += STEPS - len(good)
        if good:
            expected.apply([expected.gradients(fed[i]) for i in good])
        dense.assert_close(model.get_weights(), expected.weights)
        assert int(home.value(updates_of(home, optimizer))) == expected.optimizer.iterations
        assert int(home.value(optimizer.skipped_mini_steps)) == skipped and mini_step_of(home, optimizer) == 0


def test_a_scale_of_the_users_own_is_not_told_of_what_is_left_out(home):
    precision = getattr(getattr(home.tf, "mixed_precision", None), "experimental", None)
    if home.mode == "graph" or not hasattr(precision, "LossScale") or home.tf_version >= (2, 4):
        skips.keras_lacks("LossScale classes of the user's own: TF 2.1 to 2.3")

    class Own(precision.LossScale):
        def __call__(self):
            return home.tf.constant(2.0)

        def update(self, grads):
            return home.tf.no_op(), True

        def get_config(self):
            return {}

    variable = home.tf.Variable([1.0])
    made = home.keras.mixed_precision.experimental.LossScaleOptimizer(home.bare_sgd(lr=1.0), Own())
    optimizer = legacyga.wrap(made, 2, on_nonfinite="skip_mini_step")
    optimizer.apply_gradients([(home.tf.constant([2.0]), variable)])
    with pytest.raises(ValueError, match="needs a DynamicLossScale, .*Received: .*Own object"):
        optimizer.apply_gradients([(home.tf.constant([2.0]), variable)])
    assert variable.numpy().tolist() == [1.0]


@pytest.mark.parametrize("beside, xla", [slow(0, False), (1, False), slow(0, True)])
def test_rows_of_which_nothing_is_left(home, kind, beside, xla):
    """Of an embedding, alone and ahead of a layer: the scale learns of a window whose mini-steps were all left out."""
    needs.eager_only(home, since=(2, 1))
    if xla and home.tf_version < (2, 8):
        skips.we_lack("the rows of sparse gradients are found by tf.where, which XLA has from TF 2.8 on")
    if xla and kind.generation == "v2" and not kind.is_adam:
        skips.keras_lacks("XLA has no ResourceSparseApplyKerasMomentum")
    tf, ids = home.tf, np.array([0, 1, 1, 0])
    optimizer = legacyga.wrap(loss_scaled(home, kind.bare()), 2, on_nonfinite="skip_mini_step")
    start = [RANDOM.randn(2, 3).astype("float32"), RANDOM.randn(3).astype("float32")][: 1 + beside]
    variables, expected, scales = home.variables(start), Scaled(home, kind, start), []
    if home.is_keras3:
        optimizer.build(variables)

    def step(rows, vector, scale):
        given = [tf.IndexedSlices(rows * scale, tf.constant(ids), tf.constant([2, 3])), vector * scale][: 1 + beside]
        if not home.is_keras3:
            given = optimizer.get_unscaled_gradients(given)
        optimizer.apply_gradients(zip(given, variables))

    if xla:
        step = tf.function(step, jit_compile=True)
    elif not kind.is_adam:
        step = tf.function(step)
    for worst in (0.0, np.inf, np.nan, 0.0, np.inf):
        window = []
        for _ in range(2):
            rows, vector = [RANDOM.randn(*shape).astype("float32") + worst for shape in ((4, 3), (3,))]
            step(tf.constant(rows), tf.constant(vector), tf.constant(np.float32(expected.scale)))
            summed = np.zeros((2, 3))
            np.add.at(summed, ids, rows.astype("float64"))
            window.append([summed, vector.astype("float64")][: 1 + beside])
        expected.update(window)
        dense.assert_close([home.value(each) for each in variables], expected.weights)
        assert state_of(home, optimizer) == expected.state
        scales.append(expected.scale)
    assert scales == [8, 4, 2, 2, 1]


def test_what_no_config_holds(home):
    """Of the optimizer in a LossScaleOptimizer: the variables that AdamW leaves undecayed, an attribute of a user's."""
    if home.mode == "graph" or not hasattr(home.keras.optimizers, "AdamW"):
        skips.keras_lacks("no AdamW")

    class Doubling(home.keras.optimizers.AdamW):
        factor = 1.0

        def update_step(self, gradient, *args):
            return super(Doubling, self).update_step(self.factor * gradient, *args)

    def trained(wrapper):
        inner = Doubling(0.125, weight_decay=0.5, epsilon=1.0)
        inner.exclude_from_weight_decay(var_names=["bias"])
        inner.factor = 2.0
        optimizer, model = legacyga.wrap(wrapper(inner), 2), home.network(START)
        model.compile(optimizer, home.keras.losses.MeanSquaredError(), run_eagerly=True)
        for batch in BATCHES[:6]:
            model.train_on_batch(*batch)
        return model.get_weights()

    dense.assert_close(trained(lambda inner: loss_scaled(home, inner, growth=100)), trained(lambda inner: inner))


@pytest.mark.parametrize("name", [slow("model.h5"), "model.keras"])
def test_a_saved_model_with_a_loss_scale(home, kind, name, tmpdir):
    """Saved in mid-window: window and moments come back, to the bit. tf.keras itself saves no scale."""
    if name == "model.h5" and (home.is_keras3 or home.tf_version < (2, 4)):
        skips.keras_lacks("HDF5 files without the state of a LossScaleOptimizer")
    if name == "model.keras" and (home.tf_version < (2, 13) or kind.generation == "v2"):
        skips.keras_lacks("the .keras format has no state of these optimizers")
    if home.mode == "graph" or kind.generation == "v3" and home.tf_version < (2, 12):
        skips.keras_lacks("no file takes these along")
    model, path = home.network(START), str(tmpdir.join(name))
    loss = home.keras.losses.MeanSquaredError() if home.is_keras3 else "mse"
    model.compile(legacyga.wrap(loss_scaled(home, kind.bare(), growth=100), STEPS), loss, run_eagerly=True)
    for batch in BATCHES[:7]:
        model.train_on_batch(*batch)
    model.save(path)
    loaded = legacyga.load_model(path, keras=home.keras)
    loaded.run_eagerly = True
    assert mini_step_of(home, loaded.optimizer) == 1 and int(home.value(loaded.optimizer.iterations)) == 2
    for batch in BATCHES[7:15]:
        model.train_on_batch(*batch)
        loaded.train_on_batch(*batch)
    dense.assert_bits(loaded.get_weights(), model.get_weights())


def test_flush_of_windows_that_overflow(home, kind):
    """Two mini-steps; two of which one overflows; then a whole window."""
    optimizer = legacyga.wrap(loss_scaled(home, kind.bare()), STEPS)
    model, expected = home.network(START), Scaled(home, kind)
    step = step_of(home, model, optimizer)
    for window in (BATCHES[:2], FED[2:4], BATCHES[4:7]):
        for batch in window:
            step(*batch)
        assert legacyga.flush(optimizer) is (len(window) < STEPS) and legacyga.flush(optimizer) is False
        expected.update([expected.gradients(each) for each in window])
        assert state_of(home, optimizer) == expected.state
        dense.assert_close(model.get_weights(), expected.weights)
    assert expected.state[0] == SCALE / 2


def test_an_optimizer_that_has_trained(home, kind):
    """Its scale and its slots go along, and what it was stays; then K is set."""
    given = loss_scaled(home, kind.bare())
    model, expected = home.network(START), Scaled(home, kind)
    first = step_of(home, model, given)
    for batch in FED[2:5]:
        first(*batch)
        expected.update([expected.gradients(batch)])
    kept, optimizer = state_of(home, given), legacyga.wrap(given, STEPS)
    optimizer.gradient_accumulation_steps = 2
    step = step_of(home, model, optimizer)
    for window in (FED[6:8], FED[16:18]):
        for batch in window:
            step(*batch)
        expected.update([expected.gradients(each) for each in window])
    assert state_of(home, optimizer) == expected.state and state_of(home, given) == kept
    dense.assert_close(model.get_weights(), expected.weights)


def test_a_copy_by_its_config_of_sgd(home, kind):
    if home.tf_version < (2, 0):
        skips.keras_lacks("get_config of LossScaleOptimizer: TF 2.0 or newer")
    optimizer = legacyga.wrap(loss_scaled(home, kind.bare()), STEPS)
    copied = type(optimizer).from_config(optimizer.get_config())
    assert type(copied) is type(optimizer) and copied.gradient_accumulation_steps == STEPS
    model, expected = home.network(START), Scaled(home, kind)
    step = step_of(home, model, copied)
    for window in (FED[:3], FED[3:6]):
        for batch in window:
            step(*batch)
        expected.update([expected.gradients(each) for each in window])
    assert state_of(home, copied) == expected.state
    dense.assert_close(model.get_weights(), expected.weights)


def test_fit_with_the_callback_for_sgd(home, kind):
    """Batches of 4, 4, 4 and 2 samples by their weights, several in one execution; then the first overflows."""
    needs.eager_only(home, since=(2, 2))
    optimizer, expected = legacyga.wrap(loss_scaled(home, kind.bare()), STEPS), Scaled(home, kind)
    model = home.network(START)
    several = dict(steps_per_execution=4) if home.tf_version >= (2, 4) else {}
    model.compile(loss="mse", optimizer=optimizer, **several)
    assert model.optimizer is optimizer
    for batches in (BATCHES[4:8], FED[3:7]):
        x, y = [each[:14] for each in joined(batches)]
        callbacks = [legacyga.GradientAccumulationCallback()]
        logs = model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=callbacks).history
        expected.update([expected.gradients((x[:12], y[:12]))])
        expected.update([expected.gradients((x[12:], y[12:]))])
        assert state_of(home, optimizer) == expected.state
        assert logs["updates"] == [expected.optimizer.iterations] and logs["gradient_accumulation_steps"] == [STEPS]
        dense.assert_close(model.get_weights(), expected.weights)
    assert expected.scale == SCALE


def test_a_checkpoint_in_mid_window_for_sgd(home, kind, tmpdir):
    """The scale, and the window with a batch that overflowed, go on in another optimizer."""
    needs.eager_only(home)
    made = [(home.network(START), legacyga.wrap(loss_scaled(home, kind.bare()), STEPS)) for _ in range(2)]
    steps = [step_of(home, model, optimizer) for model, optimizer in made]
    checkpoints = [home.tf.train.Checkpoint(model=model, optimizer=optimizer) for model, optimizer in made]
    expected = Scaled(home, kind)
    for batch in FED[:4]:
        steps[0](*batch)
    status = checkpoints[1].restore(checkpoints[0].save(str(tmpdir.join("saved"))))
    for batch in FED[4:9]:
        steps[1](*batch)
    status.assert_existing_objects_matched()
    for begin in (0, 3, 6):
        expected.update([expected.gradients(each) for each in FED[begin : begin + 3]])
    assert state_of(home, made[1][1]) == expected.state
    dense.assert_close(made[1][0].get_weights(), expected.weights)


# ------------------------------------------------------------------------------------ LossScaleOptimizer(wrap(..., K))


def test_what_overflows_is_not_handed_over(home, kind):
    """It belongs to no window, which ends a batch later. The scale reacts to each batch; flush ends the last window."""
    inner = legacyga.wrap(kind.bare(), STEPS)
    optimizer = loss_scaled(home, inner)
    model, expected, window = home.network(START), Scaled(home, kind), []
    step = step_of(home, model, optimizer)
    for i, batch in enumerate(FED[:20]):
        step(*batch)
        if i not in OVERFLOWS:
            window.append(expected.gradients(batch))
        expected.react(i not in OVERFLOWS)
        if len(window) == STEPS:
            expected.apply(window)
            window = []
        assert state_of(home, optimizer) == expected.state
        assert mini_step_of(home, inner) == len(window)
        dense.assert_close(model.get_weights(), expected.weights)
    assert len(window) == 2 and legacyga.flush(optimizer) is True and legacyga.flush(optimizer) is False
    expected.apply(window)
    assert state_of(home, optimizer) == expected.state
    dense.assert_close(model.get_weights(), expected.weights)


def test_what_overflows_in_a_context_of_a_weight(home, kind):
    """It has none, and is skipped; ahead of the first mini-step, too."""
    needs.eager_only(home)
    inner = legacyga.wrap(kind.bare(), STEPS)
    optimizer, bad = loss_scaled(home, inner), (0, 4, 6)
    model, expected, window = home.network(START), Scaled(home, kind), []
    if hasattr(inner, "build"):
        inner.build(model.trainable_variables)
    step = step_of(home, model, optimizer)
    for i, batch in enumerate(BATCHES[:12]):
        weight = 1 + i % 3
        with inner.mini_step_weight(weight):
            step(*(overflowing(batch, i) if i in bad else batch))
        if i not in bad:
            window.append((weight, expected.gradients(batch)))
        expected.react(i not in bad)
        if len(window) == STEPS:
            total = sum(weight for weight, _ in window)
            expected.apply([[STEPS * weight / float(total) * each for each in given] for weight, given in window])
            window = []
        assert state_of(home, optimizer) == expected.state
        dense.assert_close(model.get_weights(), expected.weights)


@pytest.mark.parametrize("nesting", ["wrap outside", slow("wrap inside")])
def test_gradients_that_are_missing_by_turns(home, kind, nesting):
    """Two heads over one trunk. Outside, Keras's LossScaleOptimizer hands on lists without them: a warning says so."""
    needs.eager_only(home, since=(2, 4))
    if nesting == "wrap outside":
        optimizer = ours = legacyga.wrap(loss_scaled(home, kind.bare(), 1.0, 1000), 2)
    else:
        ours = legacyga.wrap(kind.bare(), 2)
        optimizer = loss_scaled(home, ours, 1.0, 1000)
    variables = home.variables([np.zeros(1, "float32")] * 3)
    for each in (ours, optimizer):
        if hasattr(each, "build"):
            each.build(variables)
    weights, sgd, told = oracle.double([np.zeros(1)] * 3), kind.oracle(), []
    for i in range(4):
        gradient = home.tf.constant([1.0 + 2 * (i % 2)])
        given = [gradient, None if i % 2 else gradient, gradient if i % 2 else None]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.apply_gradients(list(zip(given, variables)))
        told += [str(each.message) for each in caught if "leaves out the variables" in str(each.message)]
        if i % 2 and not told:
            weights = sgd.update(weights, [np.array([each]) for each in (2.0, 0.5, 1.5)])
            dense.assert_close([home.value(each) for each in variables], weights)
    # That of TF 2.4 hands on the None, too.
    assert len(told) == (nesting == "wrap inside" and not home.is_keras3 and home.tf_version >= (2, 5))


# ------------------------------------------------------------------------------------------------------ half precision


@pytest.mark.parametrize(
    "policy, nesting", [("mixed_float16", "compile"), ("mixed_float16", "wrap"), ("mixed_bfloat16", "compile")]
)
@pytest.mark.long
def test_fit_of_a_mixed_precision_model_by_sgd(home, kind, policy, nesting):
    """compile puts a LossScaleOptimizer around what it is given, for float16 alone; one that is there stays."""
    needs.eager_only(home, since=(2, 4))
    precision, half = home.keras.mixed_precision, policy == "mixed_float16"
    # At Keras's scale of 2**15 the gradients stay in the range of float16.
    start, (x, y) = [value / 32 for value in START], joined(BATCHES[:9])
    y, bare = y / 32, kind.bare()
    optimizer = legacyga.wrap(loss_scaled(home, bare) if nesting == "wrap" else bare, STEPS)
    precision.set_global_policy(policy)
    try:
        model = home.network(start)
        model.compile(loss="mse", optimizer=optimizer)
        outer = model.optimizer
        assert (outer is optimizer) is not (half and nesting == "compile")
        assert getattr(outer, "inner_optimizer", optimizer) is optimizer or nesting == "wrap"
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    finally:
        precision.set_global_policy("float32")
    expected = Scaled(home, kind, start)
    for begin in (0, 12, 24):
        expected.update([expected.gradients((x[begin : begin + 12], y[begin : begin + 12]))])
    if nesting == "wrap":
        assert state_of(home, outer) == expected.state
    elif half:
        # Its own scale, of nine batches none of which overflowed.
        assert state_of(home, outer) == (2.0**15, 9.0, 3.0)
    # Of the numbers of half precision, 11 and 8 bits.
    moved = farthest(expected.weights, start)
    off = farthest(model.get_weights(), expected.weights)
    assert 0 < off <= 2 * moved * (2.0**-11 if half else 2.0**-8), (off, moved)


def farthest(weights, others):
    return oracle.farthest(weights, others)


# Of a sum in the type itself the ones beside the first are lost.
SUMMED = [("float16", 2.0**11, "float32"), ("bfloat16", 2.0**8, "float32"), ("float64", 2.0**40, "float64")]


@pytest.mark.capability("R13 dtype")
@pytest.mark.parametrize("dtype, largest, summed_in", SUMMED, ids=[each[0] for each in SUMMED])
def test_what_sums_are_of_in_sgd(home, kind, dtype, largest, summed_in):
    # That of TF 2.0 unscales float32 alone.
    needs.eager_only(home, since=(2, 1))
    tf, numbers = home.tf, [largest, 1, 1, 1, 1, 1, 1, 2]
    optimizer = legacyga.wrap(loss_scaled(home, kind.cls(learning_rate=1.0)), len(numbers))
    variables = home.variables([tf.zeros([2], dtype)])
    if home.is_keras3:
        optimizer.build(variables)
    for number in numbers:
        gradients = [tf.fill([2], tf.cast(number * SCALE, dtype))]
        if not home.is_keras3:
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, variables))
    found = np.array(home.value(variables[0]))
    assert str(found.dtype) == dtype
    np.testing.assert_array_equal(found.astype("float64"), [-sum(numbers) / 8.0] * 2)
    # That of TF 2.10 lists none in v3.
    listed = homes.variables_of(vars(optimizer).get("_optimizer", optimizer))
    state = [tf.as_dtype(each.dtype).name for each in listed if tuple(each.shape) == (2,)]
    assert state[-2:] == [summed_in, "float32"]
