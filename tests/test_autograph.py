"""In a `tf.function` of the user's AutoGraph leaves our methods as it leaves Keras's, and rewrites the user's own."""

import traceback

import dense
import needs
import pytest
import skips
from homes import generation_of

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
