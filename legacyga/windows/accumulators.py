"""The sum of one variable's gradients: dense, or of rows. No TensorFlow is imported here.

Every variable has the same state, a `State`, whatever its gradients are. Which class below works on it is decided anew
by the gradient of each mini-step, and of each traced function.

The first mini-step of a window stores its gradients over what the last window left, so no pass sets zeros; the last
one adds on its way into the update and stores nothing: K - 1 additions and K - 1 writes. Sums of rows are another
matter: the window's end empties the rows that it touched, and every mini-step adds.
"""

import collections

# What a window holds of a variable.
NOTHING, ROWS, WHOLE = 0, 1, 2

State = collections.namedtuple("State", ["total", "touched", "dtype"])
State.__doc__ = """What is kept of one variable's gradients.

    total: variable of the gradient's shape, of at least float32: their sum.
    touched: float32 variable with an element for each row of `total`, which is not 0 where a gradient of rows was
        added: 1, or the part of it that a checkpoint gives each of several replicas.
    dtype: of the gradient.
"""


def accumulator(ops, state, form):
    """The accumulator that works on a `State`, which is this replica's own: for ROWS or WHOLE gradients."""
    return (SparseAccumulator if form == ROWS else DenseAccumulator)(ops, state)


class DenseAccumulator(object):
    """The sum of gradients that are tensors.

    `held`, where a method takes it, is what `total` holds: NOTHING, ROWS or WHOLE, an int32 tensor.
    """

    def __init__(self, ops, state):
        self._ops = ops
        self._total, self._touched, self._dtype = state.total, state.touched, state.total.dtype.base_dtype

    def store(self, gradient, held):
        """Write the first gradient of a window over what the last window left."""
        return [self._total.assign(self._widen(gradient))]

    def add(self, gradient):
        """Add a gradient."""
        return [self._total.assign_add(self._widen(gradient))]

    def clear(self, held):
        """Make zero what the last window left: where a window's first mini-step has no gradient to store."""
        ops = self._ops

        def write():
            return ops.done([each.assign(ops.zeros_like(each.read_value())) for each in (self._total, self._touched)])

        return [ops.cond(ops.equal(held, NOTHING), lambda: ops.done([]), write)]

    def sum(self, gradient, begins):
        """The window's sum with a gradient, or None, added: a tensor. Where the window begins, of that alone."""
        if begins:
            return self._ops.zeros_like(self._total.read_value()) if gradient is None else self._widen(gradient)
        total = self._total.read_value()
        return self._ops.identity(total) if gradient is None else total + self._widen(gradient)

    def _widen(self, gradient):
        return self._ops.cast(self._ops.dense(gradient), self._dtype)


class SparseAccumulator(object):
    """The sum of gradients that are IndexedSlices, whose cost is that of the rows touched.

    Rows are added to a table in which the rows that no gradient has touched are zero. Which were touched is looked for
    once a window, one number a row, where the sum is taken. A window empties them there (`empty`), so that the next one
    has nothing to clear.
    """

    def __init__(self, ops, state):
        self._ops = ops
        self._total, self._touched = state.total, state.touched
        self._dtype = state.total.dtype.base_dtype

    def store(self, gradient, held):
        """Make zero what the last window left, and add the first gradient of this one."""
        with self._ops.after(self.clear(held)):
            return self.add(gradient)

    def add(self, gradient):
        """Add a gradient's rows."""
        ops = self._ops
        ones = ops.ones_like(gradient.indices, self._touched.dtype.base_dtype)
        return [
            ops.scatter_add(self._total, gradient.indices, ops.cast(gradient.values, self._dtype)),
            ops.scatter_update(self._touched, gradient.indices, ones),
        ]

    def clear(self, held):
        """Make zero the rows that the last window left, or the whole table where it left more."""
        ops = self._ops

        def clear_rows():
            rows = ops.places_of_others(self._touched.read_value(), 0)
            return ops.done(self.empty(rows, ops.gather(self._total, rows)))

        def clear_all():
            return ops.done([each.assign(ops.zeros_like(each.read_value())) for each in (self._total, self._touched)])

        def clear():
            return ops.cond(ops.equal(held, WHOLE), clear_all, clear_rows)

        return [ops.cond(ops.equal(held, NOTHING), lambda: ops.done([]), clear)]

    def empty(self, rows, values):
        """Make these rows zero and untouched; `values` has their shape."""
        ops = self._ops
        return [
            ops.scatter_update(self._total, rows, ops.zeros_like(values, self._dtype)),
            ops.scatter_update(self._touched, rows, ops.zeros_like(rows, self._touched.dtype.base_dtype)),
        ]

    def sum(self, gradient, held):
        """The window's rows, each once, with a gradient added: (values, their int64 indices).

        With a gradient `total` is written. `held` is what it holds without it.
        """
        ops = self._ops
        with ops.after([] if gradient is None else self.add(gradient)):
            # A dense gradient has touched all rows.
            whole = ops.cast(ops.equal(held, WHOLE), self._touched.dtype.base_dtype)
            touched = self._touched.read_value()
            if ops.is_compiled():
                # XLA pads what is found with row 0, which an optimizer then counts. All rows, those untouched as zeros
                # of one that is touched.
                return self._total.read_value(), ops.places_or_first(touched + whole)
            # No row is -1: then all are found, at no pass of its own.
            rows = ops.places_of_others(touched, -whole)
            return ops.gather(self._total, rows), rows
