"""In a `tf.function` of the user's AutoGraph leaves our methods as it leaves Keras's, and rewrites the user's own."""

import traceback

import dense
import homes
import needs
import pytest
import skips
from homes import generation_of
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("ways to train")


@pytest.fixture(autouse=True)
def eager(home):
    if home.mode == "graph":
        skips.senseless("no tf.function is traced in graph mode")
    needs.wrap(home)
    home.reset()


def rewritten():
    """The names of the functions that AutoGraph has rewritten, of those that called this one."""
    return [frame.name for frame in traceback.extract_stack() if frame.name.startswith("tf__")]


@pytest.fixture
def noting(home):
    """A subclass of the home's SGD that notes what calls its update, and the notes."""
    stock, notes = home.keras.optimizers.SGD, []
    hook = "_resource_apply_dense" if generation_of(stock) == "v2" else "update_step"

    def note(self, *args, **kwargs):
        notes.append(rewritten())
        return getattr(super(Noting, self), hook)(*args, **kwargs)

    class Noting(stock):
        pass

    setattr(Noting, hook, note)
    return Noting, notes


def trained(home, optimizer):
    """A variable after mini-steps with gradients 1 and 2 in a function. It began at 0."""
    tf = home.tf
    variable = tf.Variable([0.0]) if not home.is_keras3 else home.keras.Variable([0.0])

    @tf.function
    def step(gradient):
        optimizer.apply_gradients([(gradient, variable)])

    for gradient in (1.0, 2.0):
        step(tf.constant([gradient]))
    return variable


def test_a_mini_step_is_left_as_it_is(home, noting):
    cls, notes = noting
    optimizer = legacyga.wrap(dense.make(home, cls, rate=1.0), 2)
    assert trained(home, optimizer).numpy() == [-1.5]
    assert notes and all(note == ["tf__step"] for note in notes), notes


def test_the_end_of_a_window_is_left_as_it_is(home, noting):
    cls, notes = noting
    optimizer = legacyga.wrap(dense.make(home, cls, rate=1.0), 4)
    variable = trained(home, optimizer)
    assert variable.numpy() == [0.0]
    del notes[:]

    @home.tf.function
    def end():
        return optimizer.end_windows()

    assert bool(end()) and variable.numpy() == [-1.5]
    assert notes and all(note == ["tf__end"] for note in notes), notes


@pytest.mark.slow
def test_a_users_apply_gradients_is_rewritten(home):
    """Its `if` is of a tensor: without AutoGraph that is an error."""
    tf, stock = home.tf, home.keras.optimizers.SGD

    class Clipping(stock):
        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            pairs = []
            for gradient, variable in grads_and_vars:
                if tf.reduce_max(gradient) > 1.25:
                    gradient = gradient / 3.0
                else:
                    gradient = gradient * 5.0
                pairs.append((gradient, variable))
            return super(Clipping, self).apply_gradients(pairs, *args, **kwargs)

    optimizer = legacyga.wrap(dense.make(home, Clipping, rate=1.0), 2)
    assert trained(home, optimizer).numpy() == [-0.5]


@pytest.mark.parametrize("steps", [slow(1), 2])
def test_a_users_apply_is_rewritten(home, steps):
    """Keras 3's: of a class with no more than that."""
    tf, stock = home.tf, home.keras.optimizers.SGD
    if not home.is_keras3:
        skips.keras_lacks("Keras 3 alone has apply")

    class Clipping(stock):
        def apply(self, grads, trainable_variables=None):
            grads = list(grads)
            if tf.reduce_max(grads[0]) > 0.5:
                grads[0] = grads[0] / 2.0
            return super(Clipping, self).apply(grads, trainable_variables)

    variable = home.keras.Variable([0.0])
    optimizer = legacyga.wrap(dense.make(home, Clipping, rate=1.0), steps)
    optimizer.build([variable])

    @tf.function
    def step(gradient):
        optimizer.apply([gradient], [variable])

    for _ in range(2):
        step(tf.constant([4.0]))
    assert variable.numpy() == [-4.0 / steps]


@pytest.mark.parametrize("steps", [slow(1), 2])
def test_what_keras_rewrites_in_an_update_is_rewritten(home, steps):
    """A layer of the user's, which the user's own update calls: Keras asks AutoGraph for it, in `fit` too."""
    tf, stock = home.tf, home.keras.optimizers.SGD
    if home.is_keras3:
        skips.keras_lacks("Keras 3 has AutoGraph rewrite no layer")

    class Halving(home.keras.layers.Layer):
        def call(self, inputs):
            if tf.reduce_max(inputs) > 0.5:
                inputs = inputs / 2.0
            return inputs

    layer = Halving()
    layer.build((1,))
    hook = "_resource_apply_dense" if generation_of(stock) == "v2" else "update_step"

    def halved(self, gradient, *args, **kwargs):
        return getattr(super(Own, self), hook)(layer(gradient), *args, **kwargs)

    Own = type("Own", (stock,), {hook: halved})
    optimizer = legacyga.wrap(dense.make(home, Own, rate=1.0), steps)
    # Gradients 1 and 2, or their mean.
    assert trained(home, optimizer).numpy() == [-1.5 / steps]


@pytest.mark.slow
def test_a_method_of_no_module(home):
    namespace = dict(super_of=lambda self: super(Made, self), getattr=getattr)
    exec("def apply_gradients(self, pairs): return super_of(self).apply_gradients(pairs)", namespace)
    namespace["apply_gradients"].__module__ = None
    Made = type("Made", (home.keras.optimizers.SGD,), dict(apply_gradients=namespace["apply_gradients"]))
    assert trained(home, legacyga.wrap(dense.make(home, Made, rate=1.0), 2)).numpy() == [-1.5]


def test_an_accumulator_is_left_as_it_is(home):
    accumulator, tf, notes = legacyga.GradientAccumulator(), home.tf, []

    def note(make, **kwargs):
        notes.append(rewritten())
        return make(**kwargs)

    @tf.function
    def step(gradient):
        return accumulator([gradient])

    with tf.variable_creator_scope(note):
        step(tf.constant([1.0, 2.0]))
    step(tf.constant([3.0, 6.0]))
    assert accumulator.gradients[0].numpy().tolist() == [2.0, 4.0]
    # Of ours the method alone that hands over to what is left as it is.
    assert notes and all(note == ["tf__step", "tf____call__"] for note in notes), notes


TOLD = """
import logging, sys
import homes, legacyga

home = homes.start(sys.argv[1], "eager")
tf, told = home.tf, []
handler = logging.Handler()
handler.emit = lambda record: told.append(record.getMessage())
tf.get_logger().addHandler(handler)
(variable,) = home.variables([[1.0, 2.0]])
optimizer = legacyga.wrap(home.keras.optimizers.SGD(0.5), 2)
accumulate = legacyga.GradientAccumulator()

@tf.function
def accumulated(gradient):
    accumulate([gradient])
    total = accumulate.gradients[0]
    accumulate.reset()
    return total

@tf.function
def wrapped(gradient):
    optimizer.apply_gradients([(gradient, variable)])
    return legacyga.flush(optimizer)

if hasattr(home.keras.Model, "train_step"):
    model = home.keras.models.Sequential([home.keras.layers.Dense(1, input_shape=(2,))])
    model.compile(legacyga.wrap(home.keras.optimizers.SGD(0.5), 2), "mse")
    model.fit(tf.ones([2, 2]), tf.ones([2, 1]), verbose=0)
    tf.function(lambda x, y: legacyga.train_step(model, (x, y)))(tf.ones([2, 2]), tf.ones([2, 1]))
print(accumulated(tf.constant([4.0, 2.0])).numpy().tolist(), bool(wrapped(tf.constant([1.0, 0.0]))), told)
"""


@pytest.mark.long
def test_nothing_is_warned_of(home, tmpdir):
    """In a process of its own: AutoGraph warns of a function once."""
    printed = homes.run_program(tmpdir, TOLD, home.name)
    assert printed.splitlines()[-1] == "[4.0, 2.0] True []"
