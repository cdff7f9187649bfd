"""Sum the gradients of one variable, dense or as rows.

Every variable has a `State`. The class that works on it depends on the mini-step's gradient.

A window's first mini-step overwrites the previous window's dense sum, which thus need not be zeroed. Without a
`nonfinite.Guard`, the last mini-step of an optimizer's window passes the sum plus its gradient to the update, and
stores nothing. `SparseAccumulator` says what differs for rows.
"""

import collections

# What a sum holds: nothing, rows of IndexedSlices, or dense gradients with or without rows.
NOTHING, ROWS, WHOLE = 0, 1, 2

State = collections.namedtuple("State", ["total", "touched", "dtype"])
State.__doc__ = """What is kept of one variable's gradients.

    total: variable of the gradient's shape, of at least float32: their sum.
    touched: float32 variable with an element for each row of `total`: 1 if a gradient of rows touched it, else 0. After
        a restore on several replicas it may be a fraction: a checkpoint holds the sum of the replicas' values, and each
        gets its share.
    dtype: of the sum that the window returns: the variable's, or in a GradientAccumulator its gradients'.
"""


def accumulator(ops, state, form):
    """Return the accumulator for ROWS or WHOLE gradients (`form`) on this replica's own `State`."""
    return (SparseAccumulator if form == ROWS else DenseAccumulator)(ops, state)


class DenseAccumulator(object):
    """The sum of gradients that are tensors. `held`, an int64 tensor, is what `total` holds: NOTHING, ROWS or WHOLE."""

    def __init__(self, ops, state):
        self._ops = ops
        self._total, self._touched, self._dtype = state.total, state.touched, state.total.dtype.base_dtype

    def store(self, gradient, held):
        """Write a window's first gradient, and overwrite the previous window's sum."""
        return [self._total.assign(self._widen(gradient))]

    def add(self, gradient):
        return [self._total.assign_add(self._widen(gradient))]

    def clear(self, held):
        """Zero what the previous window has left, if anything: this window's gradients are added to it."""
        ops = self._ops
        return [ops.cond(ops.equal(held, NOTHING), lambda: ops.done([]), lambda: self._clear(held))]

    def _clear(self, held):
        return self._clear_all()

    def _clear_all(self):
        ops = self._ops
        return ops.done([each.assign(ops.zeros_like(each.read_value())) for each in (self._total, self._touched)])

    def sum(self, gradient, begins):
        """Return the window's sum plus a gradient; None adds 0. If the window `begins`, its sum is 0."""
        if begins:
            return self._ops.zeros_like(self._total.read_value()) if gradient is None else self._widen(gradient)
        total = self._total.read_value()
        return self._ops.identity(total) if gradient is None else total + self._widen(gradient)

    def _widen(self, gradient):
        return self._ops.cast(self._ops.dense(gradient), self._dtype)


class SparseAccumulator(DenseAccumulator):
    """The sum of gradients that are IndexedSlices: a table whose untouched rows are zero.

    A mini-step adds its rows. `sum` finds the touched rows, reading one number per row of the table. The end of an
    optimizer's window zeroes the touched rows (`empty`); under XLA the next window does.
    """

    def store(self, gradient, held):
        """Zero the previous window's sum, and add this window's first gradient."""
        with self._ops.after(self.clear(held)):
            return self.add(gradient)

    def add(self, gradient):
        ops = self._ops
        ones = ops.ones_like(gradient.indices, self._touched.dtype.base_dtype)
        return [
            ops.scatter_add(self._total, gradient.indices, ops.cast(gradient.values, self._dtype)),
            ops.scatter_update(self._touched, gradient.indices, ones),
        ]

    def _clear(self, held):
        ops = self._ops

        def clear_rows():
            rows = ops.places_of_others(self._touched.read_value(), 0)
            return ops.done(self.empty(rows, ops.gather(self._total, rows)))

        return ops.cond(ops.equal(held, WHOLE), self._clear_all, clear_rows)

    def empty(self, rows, values):
        """Make these rows zero and untouched; `values` has their shape."""
        ops = self._ops
        return [
            ops.scatter_update(self._total, rows, ops.zeros_like(values, self._dtype)),
            ops.scatter_update(self._touched, rows, ops.zeros_like(rows, self._touched.dtype.base_dtype)),
        ]

    def sum(self, gradient, held):
        """Return the window's rows plus a gradient, each row once except under XLA: (values, int64 indices).

        This also writes the gradient into `total`.
        """
        ops = self._ops
        with ops.after([] if gradient is None else self.add(gradient)):
            # A dense gradient touches all rows.
            whole = ops.cast(ops.equal(held, WHOLE), self._touched.dtype.base_dtype)
            touched = self._touched.read_value()
            if ops.is_compiled():
                # XLA would pad the found rows with row 0, and the optimizer would apply those too. So return all rows:
                # an untouched row holds zeros, and gets the index of the first touched row.
                return self._total.read_value(), ops.places_or_first(touched + whole)
            # `touched` is never -1, so if `held` is WHOLE this finds every row.
            rows = ops.places_of_others(touched, -whole)
            return ops.gather(self._total, rows), rows
