"""R11 in eager mode: a variable without a gradient in a whole window is left alone, whatever earlier windows had.

So it is in a `tf.function`, too. One that is traced once a task, as in multi-task training, ends windows that hold
gradients of other tasks.
"""

import dense
import homes
import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
import users
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("R11 no gradient")

RANDOM = np.random.RandomState(29)
SHAPES = ((3, 2), (2,), (4,))
START = [RANDOM.randn(*shape).astype("float32") for shape in SHAPES]
RATE, MOMENTUM = 2.0**-2, 0.75
# What each mini-step has gradients for, window by window: K of them each.
PATTERNS = {
    2: [("abc", "abc"), ("a c", "a c"), ("ab ", "a  "), ("  c", "  c"), ("abc", "ab ")],
    3: [("ab ", "ab ", "ab "), ("a  ", "a  ", "a  "), ("a c", "a  ", "ab "), ("a  ", "a  ", "a  ")],
}


def pytest_generate_tests(metafunc):
    from conftest import home_of

    if "kind" in metafunc.fixturenames:
        found = kinds.of(home_of(metafunc.config))
        metafunc.parametrize("kind", kinds.params(found))


@pytest.fixture(autouse=True)
def eager(home):
    if home.mode == "graph":
        skips.senseless("eager mode only")


@pytest.mark.parametrize("steps", [slow(1), 2])
def test_zeros_made_outside_of_the_function(home, steps):
    """A traced step that gives them where the tape has none trains as with None."""
    tf = home.tf

    def train(is_given):
        weights = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]
        optimizer = legacyga.wrap(home.keras.optimizers.SGD(0.25), steps)
        zeros = [tf.zeros_like(weight) if is_given else None for weight in weights]

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weights[0] ** 2)
            given = zip(tape.gradient(loss, weights), zeros)
            optimizer.apply_gradients(zip([zero if each is None else each for each, zero in given], weights))

        for _ in range(4):
            step()
        return [weight.numpy().tolist() for weight in weights]

    assert train(False) == train(True) == [[value / 2 ** (4 // steps) for value in (1.0, 2.0)], [3.0]]


def gradients(pattern):
    """Those of one mini-step, None where the pattern has a blank."""
    return [None if letter == " " else RANDOM.randn(*shape).astype("float32") for letter, shape in zip(pattern, SHAPES)]


def mean(window):
    """Of each variable's gradients, a missing one is 0; None where all of them are missing."""
    found = []
    for each, shape in zip(zip(*window), SHAPES):
        present = [np.zeros(shape) if gradient is None else gradient for gradient in each]
        found.append(None if all(gradient is None for gradient in each) else np.mean(present, axis=0))
    return found


class Each(object):
    """An optimizer of the oracle for each variable, which passes over those without a gradient; one `iterations`."""

    def __init__(self, make):
        self.optimizers, self.iterations = [make() for _ in SHAPES], 0

    def update(self, weights, found):
        updated = []
        for optimizer, weight, gradient in zip(self.optimizers, weights, found):
            optimizer.iterations = self.iterations
            updated.append(weight if gradient is None else optimizer.update([weight], [gradient])[0])
        self.iterations += 1
        return updated


def make(kind, steps):
    """The kind's optimizer with K and momentum, and the oracle's."""
    if kind.cls is None:
        optimizer = legacyga.MySGD(RATE, MOMENTUM, steps_per_update=steps, keras=kind.home.keras)
        return optimizer, Each(lambda: oracle.SGD(RATE, MOMENTUM))
    if kind.is_adam:
        return legacyga.wrap(kind.bare(), steps), Each(kind.oracle)
    optimizer = legacyga.wrap(users.make(kind, kind.cls, RATE, MOMENTUM), steps)
    return optimizer, Each(lambda: oracle.SGD(RATE, MOMENTUM))


traces = pytest.mark.parametrize("traced", [slow(False), True], ids=["eager", "tf.function"])


@traces
@pytest.mark.parametrize("steps", sorted(PATTERNS))
def test_in_a_later_window(home, kind, steps, traced):
    """With momentum, or with moments, a gradient of zeros in place of none would move it."""
    optimizer, expected = make(kind, steps)
    variables = users.variables_of(home, kind, START)
    driven = homes.Fed(home, optimizer, variables, traced=traced)
    if hasattr(optimizer, "build"):
        # Those of TF 2.9 and newer know the variables of their first mini-step, and no others, bare ones too.
        optimizer.build(variables)
    wanted = [value.astype("float64") for value in START]
    for patterns in PATTERNS[steps]:
        before = driven.values()
        window = [gradients(pattern) for pattern in patterns]
        for each in window:
            dense.assert_bits(driven.values(), before)
            driven.step(each)
        found = mean(window)
        wanted = expected.update(wanted, found)
        for now, then, gradient in zip(driven.values(), before, found):
            if gradient is None:
                np.testing.assert_array_equal(now, then)
            else:
                assert np.all(now != then)
        dense.assert_close(driven.values(), wanted)
    assert int(home.value(optimizer.iterations)) == len(PATTERNS[steps])


@traces
def test_a_variable_of_integers(home, kind, traced):
    """A counter in a model is among its trainable variables, and never has a gradient."""
    tf = home.tf
    ends = []
    for has_counter in (False, True):
        weight, counter = tf.Variable(START[0]), tf.Variable(0)
        optimizer = kind.make(2)

        def step(gradient, weight=weight, counter=counter, optimizer=optimizer, has_counter=has_counter):
            optimizer.apply_gradients([(gradient, weight)] + [(None, counter)] * has_counter)

        step = tf.function(step) if traced else step
        for value in (1.0, 3.0, 2.0, 4.0):
            step(tf.fill(SHAPES[0], value))
        ends.append(weight.numpy())
        assert counter.numpy() == 0
    assert np.max(np.abs(ends[0] - START[0])) > 0.05
    np.testing.assert_array_equal(*ends)


@traces
def test_of_tasks_by_turns(home, kind, traced):
    """Each mini-step has a head of its own, and the first window ends in a function that has never seen the others'."""
    optimizer, expected = make(kind, 3)
    variables = users.variables_of(home, kind, START)
    driven = homes.Fed(home, optimizer, variables, traced=traced)
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    wanted = [value.astype("float64") for value in START]
    for patterns in (("ab ", "a c", "ab "), ("a c", "ab ", "a c"), ("a c", "a c", "a c"), ("ab ", "ab ", "ab ")):
        before, window = driven.values(), [gradients(pattern) for pattern in patterns]
        for each in window:
            driven.step(each)
        found = mean(window)
        wanted = expected.update(wanted, found)
        dense.assert_close(driven.values(), wanted)
        for now, then, gradient in zip(driven.values(), before, found):
            assert np.array_equal(now, then) == (gradient is None)


@traces
def test_in_a_window_that_is_flushed(home, kind, traced):
    optimizer, expected = make(kind, 4)
    variables = users.variables_of(home, kind, START)
    driven = homes.Fed(home, optimizer, variables, traced=traced)
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    wanted = [value.astype("float64") for value in START]
    for patterns in (("abc",) * 4, ("a c", "a c"), (" b ", "  c", "  c")):
        window = [gradients(pattern) for pattern in patterns]
        for each in window:
            driven.step(each)
        assert legacyga.flush(optimizer) is (len(window) < 4)
        wanted = expected.update(wanted, mean(window))
        dense.assert_close(driven.values(), wanted)


ROWS, WIDTH = 6, 2
TABLE = RANDOM.randn(ROWS, WIDTH).astype("float32")
BIAS = RANDOM.randn(WIDTH).astype("float32")


def slices(*ids):
    """The gradient of an embedding, these ids in the batch."""
    return np.array(ids, "int64"), RANDOM.randn(len(ids), WIDTH).astype("float32")


# By window: of each mini-step the embedding's gradient; None where the mini-step does not look it up.
LOOKED_UP = [
    [slices(0, 1, 1), slices(3), slices(0, 5)],
    [None, None, None],
    [None, slices(2, 2), None],
    [None, None, None],
    [slices(4), slices(0, 3), slices(1)],
]
BIASES = [[RANDOM.randn(WIDTH).astype("float32") for _ in window] for window in LOOKED_UP]


def summed(window):
    """The embedding's gradient in the batch of all: the rows of all, over K, each id once; None where there is none."""
    present = [each for each in window if each is not None]
    if not present:
        return None
    ids = np.concatenate([each[0] for each in present])
    rows = np.concatenate([each[1] for each in present])
    once = np.unique(ids)
    return once, np.stack([rows[ids == each].sum(axis=0) for each in once]).astype("float32") / np.float32(len(window))


@traces
def test_of_an_embedding(home, kind, traced):
    """As the home's own optimizer on the large batch, fed rows: what it does to rows without a gradient is its own."""
    steps = len(LOOKED_UP[0])
    optimizer, _ = make(kind, steps)
    if kind.cls is None:
        bare = home.bare_sgd(lr=RATE, momentum=MOMENTUM)
    else:
        bare = kind.bare() if kind.is_adam else users.make(kind, kind.cls, RATE, MOMENTUM)
    ours, theirs = [
        homes.Fed(home, each, users.variables_of(home, kind, [TABLE, BIAS]), traced=traced)
        for each in (optimizer, bare)
    ]
    for each in (ours, theirs):
        if hasattr(each.optimizer, "build"):
            each.optimizer.build(each.variables)
    for window, biases in zip(LOOKED_UP, BIASES):
        before = ours.values()
        for table, bias in zip(window, biases):
            dense.assert_bits(ours.values(), before)
            ours.step([table, bias])
        found = summed(window)
        theirs.step([found, np.mean(biases, axis=0).astype("float32")])
        if found is None:
            np.testing.assert_array_equal(ours.values()[0], before[0])
        else:
            assert np.all(ours.values()[0][found[0]] != before[0][found[0]])
        dense.assert_close(ours.values(), theirs.values())


def test_in_a_window_that_was_restored(home, tmpdir):
    """A traced function without the gradient that the restored window has: of another task, say."""
    needs.eager_only(home, since=(2, 2))

    def program():
        variables = home.variables([np.ones(1, "float32")] * 2)
        optimizer = legacyga.wrap(home.bare_sgd(lr=1.0), 2)
        if home.is_keras3:
            optimizer.build(variables)
        tracked = {str(i): getattr(each, "_value", each) for i, each in enumerate(variables)}
        return variables, optimizer, home.tf.train.Checkpoint(optimizer=optimizer, **tracked)

    variables, optimizer, checkpoint = program()
    optimizer.apply_gradients(zip([home.tf.constant([2.0]), None], variables))
    path = checkpoint.write(str(tmpdir.join("checkpoint")))
    variables, optimizer, checkpoint = program()
    home.read_checkpoint(checkpoint, path)

    @home.tf.function
    def mini_step():
        optimizer.apply_gradients(zip([None, home.tf.constant([4.0])], variables))

    mini_step()
    assert [float(home.value(each)[0]) for each in variables] == [0.0, -1.0]


def test_a_decay_of_weights_is_of_those_with_a_gradient(home):
    """Keras's own decay goes over all variables of an update at once."""
    sgd = home.keras.optimizers.SGD
    if "weight_decay" not in sgd(0.5).get_config():
        skips.keras_lacks("no optimizer has weight_decay here")

    def run(optimizer, patterns, traced):
        variables = home.variables(START)
        optimizer.build(variables)
        driven = homes.Fed(home, optimizer, variables, traced=traced)
        for pattern in patterns:
            driven.step([None if letter == " " else np.ones_like(value) for letter, value in zip(pattern, START)])
        return driven.values()

    fed = ["a  ", "ab "] + ["a  "] * 2 + ["  c"] * 2
    ours = run(legacyga.wrap(sgd(0.5, weight_decay=0.25), 2), fed, True)
    eager = run(legacyga.wrap(sgd(0.5, weight_decay=0.25), 2), fed, False)
    dense.assert_close(ours, eager)
    # b: one update of half a gradient; c: one of a whole.
    dense.assert_close(ours[1:], [START[1] * 0.875 - 0.25, START[2] * 0.875 - 0.5])


@pytest.mark.parametrize("compiled", [slow(False), True], ids=["", "jit_compile"])
def test_a_function_that_xla_compiles(home, compiled):
    """And the step of one variable that the optimizers of TF 2.11 and newer compile by themselves on a GPU."""
    needs.eager_only(home, since=(2, 10))
    optimizer = home.keras.optimizers.Adam(0.1)
    if not compiled and not hasattr(type(optimizer), "_update_step_xla"):
        skips.keras_lacks("the optimizer compiles no step by itself")
    optimizer = legacyga.wrap(optimizer, 3)
    variables = home.variables(START)
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    if not compiled:
        optimizer.jit_compile = True

    def apply(gradients):
        optimizer.apply_gradients(list(zip(gradients, variables)))

    step = home.tf.function(apply, jit_compile=compiled)
    expected, wanted = Each(lambda: oracle.Adam(0.1)), [value.astype("float64") for value in START]
    for patterns in (("ab ", "a c", "ab "), ("a  ", "a  ", "a  "), ("a c", "ab ", "a c")):
        window = [gradients(pattern) for pattern in patterns]
        for each in window:
            step([each if each is None else home.tf.constant(each) for each in each])
        wanted = expected.update(wanted, mean(window))
        dense.assert_close([np.array(home.value(each)) for each in variables], wanted)


@pytest.mark.slow
def test_a_model_that_is_compiled_again_with_a_second_output(home):
    """The first training function knows no gradient of the second head, and is never called again."""
    needs.eager_only(home, since=(2, 2))
    layers, random = home.keras.layers, np.random.RandomState(3)
    inputs = layers.Input((4,))
    outputs = [layers.Dense(2, name=name)(layers.Dense(3, activation="tanh")(inputs)) for name in ("one", "two")]
    model = home.keras.models.Model(inputs, outputs)
    x, targets = random.randn(8, 4).astype("float32"), [random.randn(8, 2).astype("float32") for _ in range(2)]
    start = [random.randn(*each.shape).astype("float32") for each in model.get_weights()]

    def train(optimizer, batch):
        model.set_weights(start)
        for second in (None, "mse"):
            model.compile(optimizer, loss={"one": "mse", "two": second})
            y = dict(zip(("one", "two"), targets))
            model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    ours = train(legacyga.wrap(home.bare_sgd(lr=0.25, momentum=0.5), 4), 2)
    dense.assert_close(ours, train(home.bare_sgd(lr=0.25, momentum=0.5), 8))


def test_moving_averages_are_of_those_with_a_gradient(home):
    """Keras averages the variables of an update, and puts the averages in now and then: whole windows of a task."""
    needs.eager_only(home)
    sgd = home.keras.optimizers.SGD
    if home.is_keras3 or "use_ema" not in sgd(0.125).get_config():
        skips.keras_lacks("use_ema of single variables: TF 2.11 and newer; Keras 3 averages all")
    if home.name == "tf.keras" and home.tf_version < (2, 14):
        skips.keras_lacks("before TF 2.14 Keras takes the averages by their place in the list")

    def run(steps):
        variables = home.variables([np.ones(2, "float32")] * 2)
        optimizer = sgd(0.125, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
        optimizer = optimizer if steps == 1 else legacyga.wrap(optimizer, steps)
        optimizer.build(variables)
        driven = homes.Fed(home, optimizer, variables, traced=True)
        for pattern in ("b", "a", "a", "a", "b"):
            for _ in range(steps):
                driven.step([np.ones(2, "float32") if letter == pattern else None for letter in "ab"])
        return driven.values()

    bare = run(1)
    assert not np.array_equal(*bare)
    dense.assert_close(run(2), bare)


def test_within_a_loss_scale(home):
    """The steps are the inner optimizer's: a window of no other task's gradient leaves its variable, decay included."""
    needs.eager_only(home, since=(2, 4))
    precision = home.keras.optimizers if home.is_keras3 else home.keras.mixed_precision
    kwargs = {"weight_decay": 0.25} if "weight_decay" in home.keras.optimizers.SGD(0.5).get_config() else {}

    def run(traced):
        inner = home.keras.optimizers.SGD(0.5, momentum=0.5, **kwargs)
        optimizer = legacyga.wrap(precision.LossScaleOptimizer(inner, initial_scale=2.0), 2)
        variables, seen = home.variables([np.ones(2, "float32")] * 2), []
        if hasattr(optimizer, "build"):
            optimizer.build(variables)
        driven = homes.Fed(home, optimizer, variables, traced=traced)
        for pattern in ("a ", "a ", " b", "a "):
            driven.step([np.full(2, 2.0, "float32") if letter != " " else None for letter in pattern])
            seen.extend(driven.values())
        return seen

    traced = run(True)
    np.testing.assert_array_equal(traced[3], np.ones(2))
    assert np.all(traced[-1] < 1.0)
    dense.assert_close(traced, run(False))


def one_of_two(tf, optimizer, variables):
    def step():
        optimizer.apply_gradients([(tf.zeros(variables[0].shape), variables[0]), (None, variables[1])])

    return step


@pytest.mark.parametrize("traced, mixed", [slow(False, False), (True, False), (True, True)])
def test_a_constraint_is_of_those_with_a_gradient(home, traced, mixed):
    """Keras applies constraints outside of the methods that update a variable, also to those of mixed precision."""
    needs.eager_only(home)
    tf = home.tf

    class Halves(home.keras.constraints.Constraint):
        def __call__(self, weight):
            return 0.5 * weight

    for kind in kinds.of(home):
        if kind.is_adam or kind.generation == "train":
            continue
        variables = []
        for value in (1.0, 4.0):
            halves = Halves()
            if home.is_keras3:
                variables.append(home.keras.Variable([value]))
                variables[-1].constraint = halves
            else:
                variables.append(tf.Variable([value], constraint=halves))
        if mixed:
            if home.is_keras3 or not hasattr(getattr(home.keras, "mixed_precision", None), "Policy"):
                skips.keras_lacks("variables that mixed precision casts")
            variables, policy = [], home.keras.mixed_precision.Policy("mixed_bfloat16")
            for value in (1.0, 4.0):
                layer = home.keras.layers.Dense(1, dtype=policy, kernel_constraint=Halves())
                layer.build((1, 1))
                layer.kernel.assign([[value]])
                variables.append(layer.kernel)
        optimizer = kind.make(2)
        if hasattr(optimizer, "build"):
            optimizer.build(variables)

        step = one_of_two(tf, optimizer, variables)
        step = tf.function(step) if traced else step
        for _ in range(4):
            step()
        # The bare experimental optimizers of TF 2.10 apply no constraint at all.
        constrained = 1.0 if kind.generation == "v3" and home.tf_version < (2, 11) else 0.25
        assert [float(np.ravel(home.value(each))[0]) for each in variables] == [constrained, 4.0]
        assert all(isinstance(each.constraint, Halves) for each in variables)


def test_the_second_decay_of_muon(home):
    needs.eager_only(home)
    if not hasattr(home.keras.optimizers, "Muon") or home.is_keras3_before(3, 13):
        skips.keras_lacks("Muon with a decay for its Adam")
    tf = home.tf
    a, b = home.keras.Variable(tf.ones(2)), home.keras.Variable(tf.ones(2))
    optimizer = legacyga.wrap(home.keras.optimizers.Muon(1.0, adam_weight_decay=0.5), 2)
    optimizer.build([a, b])
    step = tf.function(lambda: optimizer.apply_gradients([(tf.ones(2), a), (None, b)]))
    step()
    step()
    assert home.value(b).tolist() == [1.0, 1.0] and optimizer.adam_weight_decay == 0.5
    assert np.abs(home.value(a) - 1.0).max() > 0.1


def test_a_class_of_a_module_that_python_does_not_know(home):
    """As one that `importlib` or `exec` made: Keras's warning is found in the next class's module."""
    needs.eager_only(home)
    tf = home.tf
    made = type("Mine", (home.keras.optimizers.SGD,), {"__module__": "nowhere"})
    a, b = home.variables([np.ones(1, "float32")] * 2)
    optimizer = legacyga.wrap(made(0.5), 2)
    if hasattr(optimizer, "build"):
        optimizer.build([a, b])

    @tf.function
    def step():
        optimizer.apply_gradients([(tf.ones(1), a), (None, b)])

    step()
    step()
    assert [float(home.value(each)[0]) for each in (a, b)] == [0.5, 1.0]


@pytest.mark.capability("errors")
def test_a_build_that_raised(home):
    """The next call raises the same error."""
    needs.eager_only(home)
    if not home.is_keras3:
        skips.senseless("the scales of Keras 3's float8 layers")
    scale = home.keras.Variable(1.0)
    scale.overwrite_with_gradient = True
    optimizer = legacyga.wrap(home.keras.optimizers.SGD(0.1), 2)
    for call in (lambda: optimizer.build([scale]), lambda: optimizer.apply_gradients([(home.tf.constant(1.0), scale)])):
        with pytest.raises(ValueError, match="Keras overwrites this variable with its gradient"):
            call()


ON_REPLICAS = """
import sys
import numpy as np
import homes
import legacyga
import tensorflow as tf

home, _ = homes.start_on_replicas(sys.argv[1], 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
constraint = home.keras.constraints.NonNeg()
with strategy.scope():
    inputs = home.keras.layers.Input((2,))
    outputs = home.keras.layers.Dense(1, kernel_initializer="ones", kernel_constraint=constraint)(inputs)
    model = home.keras.models.Model(inputs, outputs)
    optimizer = legacyga.wrap(home.keras.optimizers.SGD(0.1), 4, on_nonfinite="skip_mini_step")
    model.compile(optimizer, "mse")
# A window, and two mini-steps.
x, y = np.ones((24, 2), "float32"), np.ones((24, 1), "float32")
model.fit(x, y, batch_size=4, verbose=0)
kernel = model.layers[-1].kernel
print(kernel.constraint is constraint)
print(bool(legacyga.flush(optimizer)), int(home.value(optimizer.iterations)))
"""


def test_a_constraint_on_replicas(home, tmpdir):
    """Their threads update at the same time, and the variable keeps the user's constraint."""
    needs.eager_only(home, since=(2, 4))
    if home.is_keras3_before(3, 10):
        skips.keras_lacks("variables of a replica's own")
    lines = homes.run_program(tmpdir, ON_REPLICAS, home.name).splitlines()
    assert lines[-2:] == ["True", "True 2"]
