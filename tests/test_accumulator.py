"""GradientAccumulator: training loops of one's own, against NumPy and the home's own optimizer on the large batch."""

import copy
import functools
import os
import pickle
import subprocess
import sys

import homes
import needs
import numpy as np
import oracle
import pytest
import skips
from homes import v1_of
from slow import slow

import legacyga
from legacyga.backend import ops as _ops

RANDOM = np.random.RandomState(5)
SHAPES = (3, 4), (4,), (4, 2), (2,)
START = [RANDOM.randn(*shape) for shape in SHAPES]
X, Y = RANDOM.randn(14, 3), RANDOM.randn(14, 2)
# The samples of a window's micro-batches.
SLICES = [slice(0, 4), slice(4, 8), slice(8, 12), slice(12, 14)]
TOLERANCE = {"float32": 4e-6, "float64": 1e-13}
TABLE = RANDOM.randn(9, 3).astype("float32")


def eager(home):
    if home.mode != "eager":
        skips.senseless("graph mode: a TensorFlow 1 graph has tests of its own in this file")
    return home.tf


def loss(tf, weights, x, y):
    kernel_1, bias_1, kernel_2, bias_2 = weights
    hidden = tf.tanh(tf.matmul(x, kernel_1) + bias_1)
    return tf.reduce_mean((tf.matmul(hidden, kernel_2) + bias_2 - y) ** 2)


def mini_step(tf, accumulator, weights, x, y, weight):
    with tf.GradientTape() as tape:
        value = loss(tf, weights, x, y)
    return accumulator(tape.gradient(value, weights), weight=weight)


def differ(got, wanted):
    """The largest difference, relative to the largest number, over all arrays."""
    assert len(got) == len(wanted)
    return np.max([np.max(np.abs(np.asarray(g) - w)) / np.max(np.abs(w)) for g, w in zip(got, wanted)])


def optimizers(home):
    """Functions that make the home's SGD with momentum and its Adam, of its default generation."""
    public = home.keras.optimizers
    return [lambda: public.SGD(0.1, momentum=0.9), lambda: public.Adam(0.1)]


@pytest.mark.capability("R2 weights")
@pytest.mark.parametrize("within", [slow("eager"), "function"])
@pytest.mark.parametrize("dtype", ["float32", slow("float64")])
def test_unequal_micro_batches_equal_the_large_batch(home, dtype, within):
    tf = eager(home)
    weights = [tf.Variable(value.astype(dtype)) for value in START]
    for reduction, unit in (("mean", 1), ("mean", 0.3), ("sum", 1)):
        accumulator = legacyga.GradientAccumulator(reduction=reduction)
        take = functools.partial(mini_step, tf, accumulator, weights)
        take = tf.function(take) if within == "function" else take
        # The second window begins on what the first one left.
        for begin in (0, 2):
            x, y = X[begin:], Y[begin:]
            for i, place in enumerate(SLICES, 1):
                parts = [tf.constant(values[place].astype(dtype)) for values in (x, y)]
                taken = take(*parts, weight=tf.shape(parts[0])[0] if unit == 1 else unit * len(x[place]))
                assert (int(taken), int(accumulator.step)) == (i, i)
            wanted = oracle.gradients(START, x, y)
            if reduction == "sum":
                wanted = [len(x) * value for value in wanted]
            assert differ([value.numpy() for value in accumulator.gradients], wanted) <= TOLERANCE[dtype]
            assert all(value.dtype == dtype for value in accumulator.gradients)
            accumulator.reset()
            assert int(accumulator.step) == 0 and accumulator.step.dtype == tf.int64


@pytest.mark.capability("GradientAccumulator")
def test_epochs_in_one_function(home):
    """The whole loop in one tf.function: 24 updates of the home's own SGD, as on the large batches."""
    tf = eager(home)
    start = [value.astype("float32") for value in START]
    model, optimizer = home.network(start), home.bare_sgd(lr=0.05, momentum=0.9)
    accumulator = legacyga.GradientAccumulator()
    if home.is_keras3:
        optimizer.build(model.trainable_variables)
    updates = 24
    x, y = X.astype("float32"), Y.astype("float32")

    @tf.function
    def train():
        mini_steps = tf.constant(0)
        for begin in tf.data.Dataset.range(0, 16, 4).repeat(updates):
            parts = tf.constant(x)[begin : begin + 4], tf.constant(y)[begin : begin + 4]
            with tf.GradientTape() as tape:
                value = tf.reduce_mean((model(parts[0]) - parts[1]) ** 2)
            accumulator(tape.gradient(value, model.trainable_variables), weight=tf.shape(parts[0])[0])
            mini_steps += 1
            if accumulator.step == 4:
                optimizer.apply_gradients(zip(accumulator.gradients, model.trainable_variables))
                accumulator.reset()
        return mini_steps

    assert int(train()) == 4 * updates
    assert int(home.value(optimizer.iterations)) == updates and int(accumulator.step) == 0
    weights = [value.astype("float32").astype("float64") for value in START]
    weights = oracle.train(weights, [(x, y)] * updates, 1, oracle.SGD(0.05, momentum=0.9))[-1]
    moved = [weight - value for weight, value in zip(weights, start)]
    assert differ([g - v for g, v in zip(model.get_weights(), start)], moved) <= 4e-6


@pytest.mark.capability("R11 no gradient")
@pytest.mark.parametrize("reduction", [slow("mean"), "sum"])
def test_none_adds_nothing_and_counts(home, reduction):
    tf = eager(home)
    accumulator = legacyga.GradientAccumulator(reduction)
    # A variable without a gradient at first, one without at the end, one never with, and one always.
    windows = [
        [[None, [2.0, 4.0], None, 1.0], [[3.0], None, None, 2.0], [[6.0], None, None, 3.0]],
        [[[1.0], None, None, 1.0], [None, None, None, 2.0], [None, [3.0, 1.0], None, 3.0]],
    ]
    for window, sums in zip(windows, ([[9.0], [2.0, 4.0], None, 6.0], [[1.0], [3.0, 1.0], None, 6.0])):
        for gradients in window:
            accumulator([None if value is None else tf.constant(value) for value in gradients])
        for got, wanted in zip(accumulator.gradients, sums):
            if wanted is None:
                assert got is None
            else:
                divisor = 3 if reduction == "mean" else 1
                np.testing.assert_allclose(got.numpy(), np.divide(wanted, divisor), rtol=1e-6)
        accumulator.reset()


@pytest.mark.capability("R11 no gradient")
def test_none_in_functions(home):
    """One function knows of all gradients, one that is traced later of the first only."""
    tf = eager(home)
    one, two = tf.constant([1.0]), tf.constant([2.0])

    def functions():
        accumulator = legacyga.GradientAccumulator()
        return (
            accumulator,
            tf.function(lambda a, b: accumulator([a, b])),
            tf.function(lambda a: accumulator([a, None])),
        )

    accumulator, both, first = functions()
    both(one, two)
    accumulator.reset()
    first(one)
    both(one, two)
    assert [value.numpy().tolist() for value in accumulator.gradients] == [[1.0], [1.0]]
    accumulator, both, first = functions()
    first(one)
    # That function would not write over what the last window left there.
    with pytest.raises(ValueError, match="Place 1 of the gradients has a gradient now and had none when another"):
        both(one, two)


@pytest.mark.capability("R11 no gradient")
def test_a_gradient_that_comes_after_a_traced_reset(home):
    """A reset assumes nothing of the gradients to come."""
    tf = eager(home)
    accumulator, one, two = legacyga.GradientAccumulator(), tf.constant([1.0]), tf.constant([2.0])
    accumulator([one, None])
    tf.function(accumulator.reset)()
    accumulator([one, two])
    assert [value.numpy().tolist() for value in accumulator.gradients] == [[1.0], [2.0]]


@pytest.mark.capability("GradientAccumulator")
@pytest.mark.parametrize("dtype", [slow("int32"), "int64"])
@pytest.mark.parametrize("within", [slow("eager"), "function"])
def test_sparse_with_duplicates(home, dtype, within):
    """As the home's own optimizer on the large batch's sparse gradient; rows that no batch touches among them."""
    eager(home)
    # Row 4 never, rows within a batch twice, in two batches, in one window and not in the other.
    ids = np.array([[0, 0, 2], [2, 3, 5], [7, 7, 7], [8, 0, 5]], dtype)
    factors = RANDOM.randn(4, 3).astype("float32")
    for make in optimizers(home):
        results = [
            train_table(home, make(), ids.reshape(-1, size), factors.reshape(-1, size), steps, within == "function")
            for size, steps in ((3, 2), (6, 1))
        ]
        assert np.max(np.abs(results[0] - results[1])) <= 4e-6 * np.max(np.abs(results[1] - TABLE))


def unique_rows(tf, gradient):
    """The gradient with its duplicates summed: Adam of Keras 3 squares each of them by itself."""
    indices, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def train_table(home, optimizer, ids, factors, steps, in_function):
    """Train `TABLE`; with `steps` of 1 without an accumulator."""
    tf = home.tf
    (table,), accumulator = home.variables([TABLE]), legacyga.GradientAccumulator()
    if home.is_keras3:
        optimizer.build([table])

    def take(part, factor):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(tf.reduce_sum(tf.gather(table, part) * factor[:, None], axis=1))
        (gradient,) = tape.gradient(value, [table])
        if steps == 1:
            optimizer.apply_gradients([(unique_rows(tf, gradient) if home.is_keras3 else gradient, table)])
            return
        accumulator([gradient])
        if accumulator.step == steps:
            optimizer.apply_gradients(zip(accumulator.gradients, [table]))
            accumulator.reset()

    take = tf.function(take) if in_function else take
    for part, factor in zip(ids, factors):
        take(tf.constant(part), tf.constant(factor))
    return table.numpy()


@pytest.mark.capability("GradientAccumulator")
def test_sparse_gradients_are_the_touched_rows(home):
    tf = eager(home)
    accumulator = legacyga.GradientAccumulator()
    table = tf.Variable(TABLE.astype("float64"))

    def take(ids, weight):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(tf.gather(table, ids))
        return accumulator(tape.gradient(value, [table]), weight=weight)

    for windows, rows, values in (
        ([([1, 1, 8], 3.0), ([8], 1.0)], [1, 8], [1.5, 1.0]),
        # Rows of the first window are zero again.
        ([([2, 8], 0.5), ([5, 5], 1.5)], [2, 5, 8], [0.25, 1.5, 0.25]),
    ):
        for ids, weight in windows:
            take(ids, weight)
        (gradient,) = accumulator.gradients
        assert isinstance(gradient, tf.IndexedSlices) and gradient.values.dtype == tf.float64
        assert gradient.indices.numpy().tolist() == rows
        np.testing.assert_allclose(gradient.values.numpy(), np.outer(values, np.ones(3)), rtol=1e-15)
        assert gradient.dense_shape.numpy().tolist() == [9, 3]
        accumulator.reset()
        assert accumulator.gradients[0].indices.shape == (0,)
    # A penalty on the whole table makes one gradient dense.
    take([3], 1.0)
    accumulator([tf.ones_like(table)])
    (gradient,) = accumulator.gradients
    assert gradient.indices.numpy().tolist() == list(range(9))
    assert gradient.values.numpy()[:, 0].tolist() == [0.5] * 3 + [1.0] + [0.5] * 5


@pytest.mark.capability("GradientAccumulator")
def test_16_bits_are_accumulated_in_32(home):
    tf = eager(home)
    for dtype in ("float16", "bfloat16"):
        accumulator = legacyga.GradientAccumulator()
        # In 16 bits 2048 + 1 is 2048, and 100 * 1000 is infinite in one and rounded in the other.
        for value in (2048.0, 1.0, 1.0, 1.0, 1.0):
            accumulator([tf.cast([value], dtype)])
        (gradient,) = accumulator.gradients
        assert gradient.dtype == dtype
        assert float(tf.cast(gradient, "float32")[0]) == float(tf.cast(tf.cast(2052.0 / 5, dtype), "float32"))
        accumulator.reset()
        accumulator([tf.cast([100.0], dtype)], weight=1000)
        accumulator([tf.cast([98.0], dtype)], weight=3000)
        assert float(tf.cast(accumulator.gradients[0], "float32")[0]) == 98.5


@pytest.mark.capability("R2 weights")
def test_weights(home):
    """Numbers of every kind; 0, whose gradient may be NaN; and too small ones, which a function finds when it runs."""
    tf = eager(home)
    accumulator = legacyga.GradientAccumulator()
    take = tf.function(lambda gradient, weight: accumulator([gradient], weight))
    one, two, nan = (tf.constant([value]) for value in (1.0, 2.0, np.nan))
    for call in (lambda gradient, weight: accumulator([gradient], weight), take):
        for weight in (0, tf.constant(0.0)):
            call(nan, weight)
            assert accumulator.gradients[0].numpy().tolist() == [0.0]
        for weight in (3, np.int64(3), np.float32(3.0), tf.constant(3), tf.Variable(3.0), tf.constant(3.0, "float64")):
            call(one, weight)
            call(two, 1)
        assert int(accumulator.step) == 14 and accumulator.gradients[0].numpy().tolist() == [1.25]
        accumulator.reset()
    with pytest.raises(tf.errors.InvalidArgumentError, match="weight must be a finite number, or a scalar tensor"):
        take(one, tf.constant(-1.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="weight must be a finite number, or a scalar tensor"):
        take(one, tf.constant(np.inf))
    for weight in (-1, -0.5, float("nan"), float("inf"), tf.constant(-1), [1.0, 2.0], "1", None, True):
        with pytest.raises(ValueError, match="weight must be a finite number, or a scalar tensor, of at least 0. Rec"):
            accumulator([one], weight)


@pytest.mark.capability("GradientAccumulator")
def test_the_surface_that_other_accumulators_have(home):
    """Sums, which are zero after reset; a step that compares to an int; variables as gradients."""
    tf = eager(home)
    accumulator = legacyga.GradientAccumulator(reduction="sum")
    assert accumulator.step == 0
    accumulator.reset()
    for value in ([1.0, 2.0], [-2.0, 1.0], [-1.0, 2.0]):
        accumulator([tf.Variable(value)])
    with pytest.raises(ValueError):
        accumulator([tf.constant([1.0, 1.0]), tf.constant([2.0, 2.0])])
    assert accumulator.step == 3 and len(accumulator.gradients) == 1
    assert accumulator.gradients[0].numpy().tolist() == [-2.0, 5.0]
    accumulator.reset()
    assert accumulator.step == 0 and accumulator.gradients[0].numpy().tolist() == [0.0, 0.0]


@pytest.mark.capability("GradientAccumulator")
def test_compiled_by_xla(home):
    tf = eager(home)
    if home.tf_version < (2, 5):
        skips.keras_lacks("tf.function has jit_compile from TF 2.5 on")
    weights = [tf.Variable(value.astype("float32")) for value in START]
    accumulator = legacyga.GradientAccumulator()

    def take(x, y):
        mini_step(tf, accumulator, weights, x, y, tf.shape(x)[0])

    take, read, reset = (
        tf.function(each, jit_compile=True) for each in (take, lambda: accumulator.gradients, accumulator.reset)
    )
    for begin in (0, 2):
        x, y = X[begin:].astype("float32"), Y[begin:].astype("float32")
        for place in SLICES:
            take(tf.constant(x[place]), tf.constant(y[place]))
        assert differ([value.numpy() for value in read()], oracle.gradients(START, x, y)) <= 4e-6
        reset()


@pytest.mark.capability("R9 state")
@pytest.mark.parametrize("way", [slow("itself"), slow("in a module"), "in a model"])
@pytest.mark.parametrize("is_called_before", [False, slow(True)])
@pytest.mark.parametrize("traced", [slow(False), True])
def test_a_checkpoint_takes_the_window_along(home, way, is_called_before, traced, tmpdir):
    """Restored into a new accumulator, before it has variables or after: to the bit as one that was not stopped."""
    tf = eager(home)

    class Module(tf.Module):
        pass

    def run():
        accumulator = legacyga.GradientAccumulator()
        table, bias, unused = tf.Variable(TABLE), tf.Variable(np.float64([1.0, 2.0])), tf.Variable(1.0)

        def take(rows, number, weight):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(tf.gather(table, rows)) * tf.cast(number, "float32")
                value += tf.cast(tf.reduce_sum(bias * bias * number), "float32")
            return accumulator(tape.gradient(value, [table, bias, unused]), weight)

        if way == "itself":
            holder = accumulator
        else:
            holder = Module() if way == "in a module" else home.network([value.astype("float32") for value in START])
            holder.own = accumulator
        return accumulator, tf.function(take) if traced else take, tf.train.Checkpoint(it=holder), holder

    def mini_steps(take, numbers):
        for i in numbers:
            take(tf.constant([i, 2, i + 1]), tf.constant(1.0 + i, "float64"), tf.constant(2.0 + i, "float64"))

    straight, take, checkpoint, holder = run()
    mini_steps(take, range(5))
    straight.reset()
    mini_steps(take, range(3))
    path = checkpoint.save(str(tmpdir.join("checkpoint")))
    mini_steps(take, range(3, 5))
    restored, take, checkpoint, holder = run()
    if is_called_before:
        mini_steps(take, range(4))
    status = checkpoint.restore(path)
    assert int(restored.step) == 3
    mini_steps(take, range(3, 5))
    status.assert_consumed()
    assert int(restored.step) == int(straight.step) == 5
    for now, then in zip(restored.gradients[:2], straight.gradients[:2]):
        if isinstance(then, tf.IndexedSlices):
            np.testing.assert_array_equal(now.indices, then.indices)
            now, then = now.values, then.values
        np.testing.assert_array_equal(now, then)
    if way == "in a model":
        assert len(holder.get_weights()) == len(START)


@pytest.mark.capability("R9 state")
def test_what_comes_of_a_checkpoint_before_the_first_call(home, tmpdir):
    tf = eager(home)
    one, other = tf.constant([2.0]), tf.constant([8.0])
    accumulator = legacyga.GradientAccumulator()
    accumulator([one, other])
    path = tf.train.Checkpoint(it=accumulator).save(str(tmpdir.join("checkpoint")))

    def restored():
        accumulator = legacyga.GradientAccumulator()
        tf.train.Checkpoint(it=accumulator).restore(path)
        return accumulator

    # Of a window that is forgotten nothing comes back.
    accumulator = restored()
    accumulator.reset()
    assert int(accumulator.step) == 0
    accumulator([None, other])
    assert accumulator.gradients[0] is None and accumulator.gradients[1].numpy() == [8.0]
    # This one has a gradient that the program has not seen.
    accumulator = restored()
    assert int(accumulator.step) == 1
    accumulator([None, other])
    with pytest.raises(ValueError, match=r"has not had yet. Received: None in every call, at the places \[0\]"):
        accumulator.gradients  # noqa: B018
    accumulator([0.0 * one, other])
    assert [value.numpy() for value in accumulator.gradients] == [np.float32(2.0 / 3), 8.0]
    # A traced function would leave it out for good.
    accumulator = restored()
    accumulator([None, other])
    with pytest.raises(ValueError, match=r"has not had yet. Received: None in every call, at the places \[0\]"):
        tf.function(lambda: accumulator.gradients[1])()
    accumulator([one, other])
    assert [value.numpy() for value in tf.function(lambda: accumulator.gradients)()] == [np.float32(4.0 / 3), 8.0]


@pytest.mark.capability("R9 state")
@pytest.mark.parametrize("is_sparse", [False, slow(True)])
def test_a_forgotten_sum_does_not_come_back_later(home, is_sparse, tmpdir):
    """A checkpoint made between windows holds the sums of the last one. The first mini-step lacks a gradient."""
    tf = eager(home)

    def gradient(value):
        return tf.IndexedSlices(tf.constant([[value]]), [1], [3, 1]) if is_sparse else tf.constant([[value]])

    accumulator = legacyga.GradientAccumulator()
    accumulator([gradient(2.0), gradient(8.0)])
    accumulator.reset()
    path = tf.train.Checkpoint(it=accumulator).save(str(tmpdir.join("checkpoint")))
    accumulator = legacyga.GradientAccumulator()
    tf.train.Checkpoint(it=accumulator).restore(path)
    for value in (1.0, 3.0):
        accumulator([gradient(1.0), None])
        accumulator([gradient(1.0), gradient(value)])
        assert [tf.convert_to_tensor(each).numpy().max() for each in accumulator.gradients] == [1.0, value / 2]
        accumulator.reset()


@pytest.mark.capability("R9 state")
def test_a_restored_window_is_not_saved_before_it_is_there(home, tmpdir):
    tf = eager(home)
    one, other = tf.constant([2.0]), tf.constant([8.0])

    def restored():
        accumulator = legacyga.GradientAccumulator()
        checkpoint = tf.train.Checkpoint(it=accumulator)
        # What the assertion asks a save asks, too.
        checkpoint.restore(path).assert_existing_objects_matched()
        return accumulator, checkpoint

    def save(checkpoint):
        return checkpoint.save(str(tmpdir.join("again")))

    accumulator = legacyga.GradientAccumulator()
    accumulator([one, other])
    path = tf.train.Checkpoint(it=accumulator).save(str(tmpdir.join("checkpoint")))
    accumulator, checkpoint = restored()
    for act in (lambda: None, lambda: accumulator([one, None])):
        act()
        with pytest.raises(ValueError, match="The window of a checkpoint waits for the gradients .*Take a mini-st"):
            save(checkpoint)
    accumulator, checkpoint = restored()
    accumulator([one, other])
    path = save(checkpoint)
    accumulator, checkpoint = restored()
    accumulator([one, other])
    assert int(accumulator.step) == 3 and [each.numpy() for each in accumulator.gradients] == [2.0, 8.0]
    # Between windows nothing is lost.
    accumulator.reset()
    path = save(checkpoint)
    accumulator, checkpoint = restored()
    save(checkpoint)
    # As a CheckpointManager does.
    for each in tmpdir.listdir(lambda each: each.basename.startswith(os.path.basename(path))):
        each.remove()
    save(checkpoint)
    path = save(checkpoint)
    accumulator, checkpoint = restored()
    accumulator([one, None])
    accumulator.reset()
    save(checkpoint)


STRATEGY = """
import subprocess
import sys
import numpy as np
import homes, oracle
import legacyga
from legacyga.backend import ops as _ops
import test_accumulator as data

home, strategy = homes.start_on_replicas(sys.argv[1])
tf = home.tf
# The new name is there from TF 2.2 on.
run = getattr(strategy, "run", None) or strategy.experimental_run_v2
start = [value.astype("float32") for value in data.START]
x, y = data.X[:12].astype("float32"), data.Y[:12].astype("float32")
table = data.TABLE
with strategy.scope():
    model, optimizer = home.network(start), home.bare_sgd(lr=0.05, momentum=0.9)
    (embedding,) = home.variables([table])
    if home.is_keras3:
        optimizer.build(model.trainable_variables + [embedding])
accumulator = legacyga.GradientAccumulator()
variables = model.trainable_variables + [embedding]


def mini_step(i):
    # Two samples in each of three mini-steps of two replicas.
    replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, "int32")
    place = 4 * i + 2 * replica
    part, target = tf.constant(x)[place : place + 2], tf.constant(y)[place : place + 2]
    with tf.GradientTape() as tape:
        value = tf.reduce_mean((model(part) - target) ** 2)
        value += tf.reduce_mean(tf.gather(embedding, [i, i + 2 * replica]) ** 2)
        value /= 2.0
    accumulator(tape.gradient(value, variables))


def apply():
    optimizer.apply_gradients(zip(accumulator.gradients, variables))
    accumulator.reset()


@tf.function
def train(updates):
    for _ in tf.range(updates):
        for i in tf.range(3):
            run(mini_step, args=(i,))
            if accumulator.step == 3:
                run(apply)


train(5)
assert accumulator.step == 0
# Eagerly, with a read and a reset from outside of the replicas.
for i in range(3):
    run(mini_step, args=(tf.constant(i),))
assert accumulator.step == 3
own = [strategy.experimental_local_results(value) for value in accumulator.gradients[:4]]
run(lambda: optimizer.apply_gradients(zip(accumulator.gradients, variables)))
accumulator.reset()
assert accumulator.step == 0
zeros = strategy.experimental_local_results(accumulator.gradients[0])
assert len(zeros) == 2 and not any(np.any(value.numpy()) for value in zeros)
try:
    accumulator([tf.zeros_like(value) for value in start + [table]])
except ValueError as error:
    assert "is called by each replica" in str(error), error
else:
    raise AssertionError("called outside of the replicas")
# Asked for something outside of the strategy before any replica has called it, its variables are no replica's own.
for first in ("reset", "step", "a call"):
    early = legacyga.GradientAccumulator()
    if first == "a call":
        early([tf.zeros_like(start[0])])
    else:
        tf.function(early.reset if first == "reset" else lambda: early.step)()
    try:
        run(lambda: early([tf.ones_like(start[0])]))
    except ValueError as error:
        assert "has variables already, which no strategy made" in str(error), error
    else:
        raise AssertionError("one variable for all replicas after " + first)

weights, sgd = [value.astype("float64") for value in start], oracle.SGD(0.05, momentum=0.9)
for _ in range(6):
    before, weights = weights, sgd.update(weights, oracle.gradients(weights, x, y))
worst = data.differ([g - s for g, s in zip(model.get_weights(), start)], [w - s for w, s in zip(weights, start)])
for replica in (0, 1):
    mine = np.concatenate([np.arange(4 * i + 2 * replica, 4 * i + 2 * replica + 2) for i in range(3)])
    wanted = [value / 2 for value in oracle.gradients(before, x[mine], y[mine])]
    worst = np.maximum(worst, data.differ([value[replica].numpy() for value in own], wanted))

counts = np.zeros(9)
for i in range(3):
    for row in (i, i, i, i + 2):
        counts[row] += 1
# d/dt of the mean over 3 mini-steps, 2 replicas, 2 rows and 3 columns of t squared.
rate = 2.0 * counts[:, None] / (3 * 2 * 2 * 3)
rows, sgd = [table.astype("float64")], oracle.SGD(0.05, momentum=0.9)
for _ in range(6):
    rows = sgd.update(rows, [rate * rows[0]])
assert not np.any((embedding.numpy() - table)[5:])
worst = np.maximum(worst, data.differ([embedding.numpy()[:5] - table[:5]], [rows[0][:5] - table[:5]]))
# One sample on one replica, three on the other, with their number as the weight.
uneven = legacyga.GradientAccumulator()


def uneven_mini_step():
    replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, "int32")
    part, target = tf.constant(x)[replica : 1 + 3 * replica], tf.constant(y)[replica : 1 + 3 * replica]
    with tf.GradientTape() as tape:
        value = tf.reduce_mean((model(part) - target) ** 2) / 2.0
    uneven(tape.gradient(value, model.trainable_variables), weight=tf.shape(part)[0])


run(uneven_mini_step)
sums = [sum(each.numpy() for each in strategy.experimental_local_results(value)) for value in uneven.gradients]
worst = np.maximum(worst, data.differ(sums, oracle.gradients(model.get_weights(), x[:4], y[:4])))

# A checkpoint holds the sum over the replicas: what they exchange at the window's end.
path = tf.train.Checkpoint(it=uneven).save(sys.argv[2])
straight, uneven = uneven, legacyga.GradientAccumulator()
tf.train.Checkpoint(it=uneven).restore(path)
with strategy.scope():
    assert uneven.step == 1
run(uneven_mini_step)
again = [sum(each.numpy() for each in strategy.experimental_local_results(value)) for value in uneven.gradients]
uneven = straight
run(uneven_mini_step)
assert straight.step == 2
worst = np.maximum(worst, data.differ(again, sums))

# Gone on with on one device: a mini-step weighs what it did.
several, alone = legacyga.GradientAccumulator(), legacyga.GradientAccumulator()
for number in (1.0, 2.0):
    run(several, args=([tf.constant([number / 2.0])],))
path = tf.train.Checkpoint(it=several).save(sys.argv[2] + "_of_several")
status = tf.train.Checkpoint(it=alone).restore(path)
alone([tf.constant([6.0])])
status.assert_consumed()
assert alone.step == 3 and alone.gradients[0].numpy() == [3.0], alone.gradients
print("worst", worst)
"""


@pytest.mark.capability("GradientAccumulator")
@pytest.mark.long
def test_under_a_strategy(home, tmpdir):
    """Two replicas, each with its own sums, in a process of its own: as one device with the large batch."""
    eager(home)
    printed = homes.run_program(tmpdir, STRATEGY, home.name, str(tmpdir.join("it")))
    assert float(printed.split("worst")[1]) <= 4e-6, printed


@pytest.mark.capability("R10 sparse stays sparse")
def test_rows_that_are_no_tensors(home):
    """IndexedSlices of lists, and then of arrays, with a row that is given twice."""
    tf = eager(home)
    accumulator, rows = legacyga.GradientAccumulator(), [[0.5, 1.0], [2.0, 0.25], [1.0, 3.0]]
    accumulator([tf.IndexedSlices(rows, [1, 2, 1], [4, 2])])
    accumulator([tf.IndexedSlices(np.float32(rows) * 3.0, np.array([2, 0, 1]), np.array([4, 2]))])
    (gradient,) = accumulator.gradients
    assert gradient.indices.numpy().tolist() == [0, 1, 2]
    assert gradient.values.numpy().tolist() == [[3.0, 0.375], [2.25, 6.5], [1.75, 1.625]]


@pytest.mark.capability("errors")
def test_what_cannot_be_accumulated(home):
    tf = eager(home)
    with pytest.raises(ValueError, match='reduction must be "mean" or "sum". Received: \'max\''):
        legacyga.GradientAccumulator(reduction="max")
    accumulator, one = legacyga.GradientAccumulator(), tf.constant([1.0])
    with pytest.raises(ValueError, match="are there after its first call. Received: no call yet. Call it with"):
        _ = accumulator.gradients
    for value in ([], [None, None]):
        with pytest.raises(ValueError, match="gradients must contain one that is not None. Received: .*GradientTape"):
            accumulator(value)
    pairs = [(one, tf.Variable([1.0]))]
    for value in (one, 1.0, None, "gradient", pairs, zip(*zip(*pairs))):
        with pytest.raises(ValueError, match="gradients must be a list with a tensor, an IndexedSlices or None"):
            accumulator(value)
    with pytest.raises(ValueError, match="(?s)The dense_shape of an IndexedSlices must be known.*as gradient 0. Give"):
        accumulator([tf.IndexedSlices(tf.ones([1, 3]), tf.constant([0]))])
    unknown = tf.function(lambda size: accumulator([one, tf.ones([size])]))
    with pytest.raises(ValueError, match="(?s)The shape of a gradient must be known.*as gradient 1. Give tf.ensure_"):
        unknown(tf.constant(3))
    # None of them has left a trace.
    accumulator([one, None])
    for value in ([one], [one, one, one]):
        with pytest.raises(ValueError, match="as many gradients each time, in the same order: 2 at first. Received: "):
            accumulator(value)
    with pytest.raises(ValueError, match=r"the same shapes each time: \(1,\) at first. Received: .* as gradient 0"):
        accumulator([tf.constant([1.0, 2.0]), None])
    assert accumulator.step == 1 and accumulator.gradients[0].numpy().tolist() == [1.0]


@pytest.mark.capability("GradientAccumulator")
@pytest.mark.parametrize("taken", [slow(0), 1, slow(2)])
@pytest.mark.parametrize("rows", [[1, 7], slow([-1]), [1]])
def test_a_call_that_raises_is_not_taken(home, taken, rows):
    """A row that is not there, or values that are not, in the last of three gradients: none of them is added."""
    tf = eager(home)
    accumulator = legacyga.GradientAccumulator()

    def gradients(rows, value):
        values = np.full((max(len(rows), 2), 3), value)
        table = tf.IndexedSlices(tf.constant(values, "float32"), tf.constant(rows), tf.constant([5, 3]))
        return [tf.fill([2], value), tf.fill([3, 2], value), table]

    for _ in range(taken):
        accumulator(gradients([1, 4], 6.0))
    received = "the row {}".format(rows[-1]) if rows != [1] else r"1 rows, values \[2, 3\]"
    wrong = r"which has the shape \[5, 3\]. Received: {} as gradient 2. Nothing was accumulated".format(received)
    with pytest.raises(tf.errors.InvalidArgumentError, match=wrong):
        accumulator(gradients(rows, -33.0))
    assert int(accumulator.step) == taken
    if not taken:
        with pytest.raises(ValueError, match="Received: no call yet"):
            accumulator.gradients  # noqa: B018
    accumulator(gradients([0, 4], 3.0))
    dense, _, table = accumulator.gradients
    assert dense.numpy().tolist() == [(6.0 * taken + 3.0) / (taken + 1)] * 2
    assert table.indices.numpy().tolist() == ([0, 1, 4] if taken else [0, 4])


@pytest.mark.capability("R9 state")
@pytest.mark.parametrize(
    "copied", [slow(copy.copy), slow(copy.deepcopy), lambda each: pickle.loads(pickle.dumps(each))]
)
def test_copies(home, copied):
    """Pickled or copied in mid-window, with rows and a place without a gradient: each goes on alone, to the bit."""
    tf = eager(home)
    accumulator = copied(copied(legacyga.GradientAccumulator()))
    assert int(accumulator.step) == 0

    def take(accumulator, value, weight=3.0):
        rows = tf.IndexedSlices(tf.fill([2, 3], value), tf.constant([1, int(value)]), tf.constant([6, 3]))
        accumulator([rows, None, tf.fill([2], tf.constant(value / 3, "float64"))], weight)

    def found(accumulator):
        rows, none, dense = accumulator.gradients
        assert none is None and int(accumulator.step) == 3
        return rows.indices.numpy().tolist(), rows.values.numpy().tolist(), dense.numpy().tolist()

    for value in (1.0, 2.0):
        take(accumulator, value)
    other = copied(accumulator)
    assert type(other) is type(accumulator) and int(other.step) == 2
    take(other, 4.0, weight=0.5)
    take(accumulator, 3.0)
    for each, last in ((accumulator, (3.0, 3.0)), (other, (4.0, 0.5))):
        straight = legacyga.GradientAccumulator()
        for given in ((1.0,), (2.0,), last):
            take(straight, *given)
        assert found(each) == found(straight)
    accumulator = legacyga.GradientAccumulator("sum")
    take(accumulator, 2.0)
    assert copied(accumulator).gradients[2].numpy().tolist() == [2.0, 2.0]


@pytest.mark.capability("R9 state")
def test_what_is_no_copy(home, tmpdir):
    """Nothing to come from a checkpoint, nothing of a graph or a function."""
    if home.mode == "graph":
        with home.tf.Graph().as_default():
            with pytest.raises(ValueError, match="can be pickled, or copied, in eager mode.*tf.train.Checkpoint"):
                pickle.dumps(legacyga.GradientAccumulator())
        return
    accumulator = legacyga.GradientAccumulator()
    accumulator([home.tf.constant([2.0])])
    path = home.tf.train.Checkpoint(it=accumulator).save(str(tmpdir.join("checkpoint")))
    accumulator = legacyga.GradientAccumulator()
    home.tf.train.Checkpoint(it=accumulator).restore(path)
    with pytest.raises(ValueError, match="not while a restored checkpoint waits for a gradient. Received: <legacyga"):
        copy.deepcopy(accumulator)


@pytest.mark.capability("errors")
def test_a_dtype_that_changes(home):
    tf = eager(home)
    accumulator, rows = legacyga.GradientAccumulator(), tf.IndexedSlices([[1.0, 2.0]], [1], [4, 2])
    accumulator([tf.constant([1.0]), rows])
    for gradients in ([tf.constant([2.0], "float64"), rows], [None, tf.IndexedSlices(np.ones((1, 2)), [1], [4, 2])]):
        name = "the same dtypes each time: float32 at first. Received: float64 as gradient {}. Cast it, or make"
        with pytest.raises(ValueError, match="(?s)" + name.format(int(gradients[0] is None))):
            accumulator(gradients)
    half = tf.function(lambda: accumulator([tf.constant([1.0], "float16"), rows]))
    with pytest.raises(
        ValueError, match="(?s)the same dtypes each time: float32 at first. Received: float16 as gradient 0"
    ):
        half()
    assert int(accumulator.step) == 1 and accumulator.gradients[0].numpy().tolist() == [1.0]


@pytest.mark.capability("GradientAccumulator")
def test_in_a_tensorflow_1_graph(home):
    """Calls make operations, to be run as often as wanted, in any order in one session."""
    if home.mode != "graph":
        skips.senseless("eager mode: a TensorFlow 1 graph is graph mode's")
    tf = home.tf
    v1 = getattr(getattr(tf, "compat", None), "v1", tf)
    with tf.Graph().as_default():
        weights = [v1.get_variable("w{}".format(i), initializer=value) for i, value in enumerate(START)]
        table = v1.get_variable("table", initializer=TABLE.astype("float64"))
        x, y = v1.placeholder("float64", [None, 3]), v1.placeholder("float64", [None, 2])
        ids = v1.placeholder("int32", [None])
        value = loss(tf, weights, x, y) + tf.reduce_mean(tf.gather(table, ids))
        accumulator = legacyga.GradientAccumulator()
        unused = v1.get_variable("unused", initializer=1.0)
        take = accumulator(tf.gradients(value, weights + [table, unused]), weight=tf.shape(x)[0])
        gradients, reset, step = accumulator.gradients, accumulator.reset(), accumulator.step
        assert gradients.pop() is None
        sparse = gradients.pop()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for begin in (0, 2):
                xs, ys = X[begin:], Y[begin:]
                for i, place in enumerate(SLICES, 1):
                    feed = {x: xs[place], y: ys[place], ids: [begin + i, begin + i, 8]}
                    assert session.run(take, feed) == i and session.run(step) == i
                wanted = oracle.gradients(START, xs, ys)
                dense, rows, values = session.run([gradients, sparse.indices, sparse.values])
                assert differ(dense, wanted) <= 1e-13
                shares = np.array([len(xs[place]) for place in SLICES]) / float(len(xs)) / 9
                assert rows.tolist() == [begin + 1, begin + 2, begin + 3, begin + 4, 8][: len(rows)]
                share = np.append(2 * shares, shares.sum())
                np.testing.assert_allclose(values, np.outer(share, np.ones(3)), rtol=1e-13)
                session.run(reset)
                assert session.run(step) == 0 and not np.any(session.run(gradients[0]))


@pytest.mark.capability("GradientAccumulator")
def test_a_reset_that_is_traced_first(home):
    """Before the first call there is nothing to reset; the function is to do it another time."""
    tf = eager(home)
    accumulator = legacyga.GradientAccumulator()
    begin, take = tf.function(lambda: accumulator.reset()), tf.function(lambda gradient: accumulator([gradient]))
    begin()
    for value in (1.0, 3.0):
        take(tf.constant([value]))
    begin()
    take(tf.constant([10.0]))
    assert int(accumulator.step) == 1 and accumulator.gradients[0].numpy().tolist() == [10.0]


@pytest.mark.capability("GradientAccumulator")
def test_two_calls_in_one_run(home):
    """In a TensorFlow 1 graph: both are taken, whatever the order."""
    needs.graph_only(home)
    v1 = homes.v1_of(home.tf)
    with home.tf.Graph().as_default(), v1.Session() as session:
        accumulator = legacyga.GradientAccumulator()
        fed = [v1.placeholder("float32", (200, 200)) for _ in range(4)]
        calls = [accumulator([each]) for each in fed]
        mean, step, reset = accumulator.gradients[0], accumulator.step, accumulator.reset()
        session.run(v1.global_variables_initializer())
        for i in range(30):
            given = [np.full((200, 200), float(i + j), "float32") for j in range(4)]
            found = session.run(calls, dict(zip(fed, given)))
            assert sorted(int(each) for each in found) == [1, 2, 3, 4] and int(session.run(step)) == 4
            np.testing.assert_array_equal(session.run(mean), np.full((200, 200), i + 1.5, "float32"))
            session.run(reset)


@pytest.mark.slow
@pytest.mark.capability("GradientAccumulator")
def test_nobody_asks_for_contrib(home):
    """TensorFlow 1 loads it when it is asked for: seconds, 60 MiB and a warning."""
    if home.tf_version >= (2,):
        skips.senseless("TensorFlow 1 only")
    code = (
        "import sys, tensorflow as tf, legacyga; "
        "legacyga.GradientAccumulator()([tf.ones([2])], weight=tf.constant(2.0)); "
        "print('tensorflow.contrib.util' in sys.modules)"
    )
    folder = os.path.dirname(os.path.dirname(os.path.abspath(legacyga.__file__)))
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=folder, universal_newlines=True)
    assert printed.splitlines()[-1] == "False"


@pytest.mark.capability("GradientAccumulator")
def test_zeros_that_xla_compiles(home):
    """In a graph they are made when they are needed, by what XLA does not know."""
    tf = home.tf
    compile_by_xla = getattr(getattr(getattr(tf, "xla", None), "experimental", None), "compile", None)
    if home.mode == "eager" or compile_by_xla is None:
        skips.keras_lacks("tf.xla.experimental.compile, in graph mode")
    ops = _ops.Ops(tf)
    with tf.Graph().as_default(), v1_of(tf).Session() as session:
        (found,) = session.run(compile_by_xla(lambda value: ops.zeros_like(value) + value, [tf.ones([3])]))
        plain = session.run(ops.zeros([2, 3], "float64"))
    np.testing.assert_array_equal(found, np.ones(3, "float32"))
    np.testing.assert_array_equal(plain, np.zeros((2, 3)))
