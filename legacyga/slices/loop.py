"""Run a function on each slice of a batch, and join its results in the loop variables of a tf.while_loop."""

from legacyga.backend.tensors import is_sparse


class Loop(object):
    """A batch's slices. The first is the remainder: those in the loop have one size. `samples` may be a tensor."""

    def __init__(self, ops, samples, size):
        self.ops, self.samples, self.size = ops, samples, size
        full = (samples - 1) // size
        self._full = full if isinstance(samples, int) else ops.maximum(full, 0)
        self.rest = samples - self._full * size
        self.slices = self._full + 1

    def share(self, length, dtype):
        """Return the share of the batch that `length` samples are: finite even if the batch has none."""
        # Divide in float64: float16 cannot represent every number of samples above 2,048.
        ops, samples = self.ops, self.ops.maximum(self.samples, 1)
        return ops.cast(ops.cast(length, "float64") / ops.cast(samples, "float64"), dtype)

    def run(self, take):
        """Call `take(begin, length)` for each slice and return the joined results: a list.

        `take` returns a list of pairs: a subclass of `Join`, and the value of a slice that it joins.
        """
        ops, tf = self.ops, self.ops.tf
        first = take(0, self.rest)
        kinds, first = [kind(self) for kind, _ in first], [value for _, value in first]
        # With a global seed, the seed of a random operation is its number in its graph. The loop's body is a new graph.
        # Continue to count there, or the second slice draws what the first slice has drawn.
        drawn = 0 if getattr(ops.graph_here(), "seed", None) is None else ops.v1.get_seed(None)[1]
        # get_seed returns (0, 2**31 - 1) in place of (0, 0).
        drawn %= 2**31 - 1

        def body(number, states):
            for _ in range(drawn):
                ops.v1.get_seed(None)
            values = [value for _, value in take(self.rest + number * self.size, self.size)]
            states = [kind.added(state, value, number + 1) for kind, state, value in zip(kinds, states, values)]
            # The next slice waits for this one, so that memory never holds the activations of both.
            with ops.after(values):
                return ops.identity(number + 1), states

        with ops.after(first):
            number = ops.identity(tf.constant(0))
        states = [kind.begun(value) for kind, value in zip(kinds, first)]
        until, begun = (lambda number, _: number < self._full), (number, states)
        # A gradient of a gradient differentiates this loop, and XLA can only if the number of iterations is bounded.
        _, states = tf.while_loop(until, body, begun, parallel_iterations=1, maximum_iterations=self._full)
        return [kind.result(state, value) for kind, state, value in zip(kinds, states, first)]


class Join(object):
    """Joins the slices' values of one tensor."""

    def __init__(self, loop):
        self._ops, self._loop = loop.ops, loop

    def begun(self, first):
        """Return the state after the first slice: a list of loop variables."""
        return []

    def added(self, state, value, number):
        """Return the state with the value of slice `number`, counted from 0."""
        return state

    def result(self, state, first):
        return None


class Nothing(Join):
    """Joins values that are None in each slice."""


class Total(Join):
    """Adds tensors, also IndexedSlices, to one dense tensor. Sums in float32 or more."""

    def begun(self, first):
        return [self._ops.cast(self._ops.dense(first), self._ops.accumulator_dtype(first.dtype))]

    def added(self, state, value, number):
        return [state[0] + self._ops.cast(self._ops.dense(value), state[0].dtype)]

    def result(self, state, first):
        return self._ops.cast(state[0], first.dtype)


class Largest(Total):
    """Takes the largest value of each element: Keras 3 passes the scales of float8 as gradients."""

    def added(self, state, value, number):
        return [self._ops.maximum(state[0], value)]


class Rows(Join):
    """Concatenates tensors in a TensorArray. XLA needs elements of one shape: there the first slice stays outside."""

    def __init__(self, loop):
        super(Rows, self).__init__(loop)
        self._holds_first = not self._ops.is_compiled()

    def begun(self, first):
        shape = None if first.shape.ndims is None else [None] + list(first.shape[1:])
        # Under XLA the array has one place too many, because older XLA ends the process if an array has no place.
        array = self._ops.tf.TensorArray(
            first.dtype, self._loop.slices, infer_shape=not self._holds_first, element_shape=shape
        )
        return [array.write(0, first) if self._holds_first else array]

    def added(self, state, value, number):
        return [state[0].write(number if self._holds_first else number - 1, value)]

    def result(self, state, first):
        if self._holds_first:
            return state[0].concat()
        tf, others = self._ops.tf, state[0].stack()[:-1]
        return tf.concat([first, tf.reshape(others, tf.concat([[-1], tf.shape(others)[2:]], 0))], 0)


class TableRows(Rows):
    """Concatenates the rows of IndexedSlices, as one IndexedSlices."""

    def begun(self, first):
        begun = super(TableRows, self).begun
        return begun(first.values) + begun(first.indices)

    def added(self, state, value, number):
        added = super(TableRows, self).added
        return added(state[:1], value.values, number) + added(state[1:], value.indices, number)

    def result(self, state, first):
        result = super(TableRows, self).result
        values, indices = result(state[:1], first.values), result(state[1:], first.indices)
        return self._ops.tf.IndexedSlices(values, indices, first.dense_shape)


class SharedRows(TableRows):
    """As TableRows, but adds up the rows if all slices have the same indices, such as position numbers."""

    def result(self, state, first):
        tf, rows = self._ops.tf, super(SharedRows, self).result(state, first)
        repeated = tf.tile(first.indices, [self._loop.slices])
        total, least = tf.size(rows.indices), tf.minimum(tf.size(rows.indices), tf.size(repeated))
        are_same = tf.reduce_all(tf.equal(rows.indices[:least], repeated[:least])) & (total == tf.size(repeated))
        count = tf.where(are_same, tf.size(first.indices), total)
        values = self._ops.cast(rows.values, self._ops.accumulator_dtype(first.dtype))
        values = tf.math.unsorted_segment_sum(values, tf.range(total) % tf.maximum(count, 1), count)
        return tf.IndexedSlices(self._ops.cast(values, first.dtype), rows.indices[:count], first.dense_shape)


def joins_gradient(ops, variable, gradient):
    """Return the subclass of `Join` that joins a variable's gradients over the slices."""
    if gradient is None:
        return Nothing
    if getattr(variable, "overwrite_with_gradient", False):
        return Largest
    # The TensorArrays of XLA need equal shapes.
    return TableRows if is_sparse(gradient) and not ops.is_compiled() else Total
