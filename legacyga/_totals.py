"""The sum of one variable's gradients, dense or sparse; no TensorFlow is imported here.

The first mini-step of a window stores its gradients over what the last window left, so no pass sets zeros; the last
one adds on its way into the update and stores nothing: K - 1 additions and K - 1 writes.
"""


class Accumulator(object):
    """The sum of one variable's gradients in the window under way.

    A gradient that comes as IndexedSlices (an embedding's) stays sparse: its rows are added to a table of the
    variable's shape, in which the rows that no gradient touched are zero, and the update gets the touched ones.

    Args:
        total: variable of the shape of the gradient, of at least float32.
        dtype: the gradient's.
        touched: None for a dense gradient, or an int32 variable with an element for each row of a sparse one.
        largest: whether the window's largest elements are kept in place of their sum. Keras 3's float8 layers hand
            over new values of their scales as gradients, and take the largest of several.
    """

    def __init__(self, total, dtype, touched=None, largest=False):
        self.total = total
        self.dtype = dtype
        self.touched = touched
        self.largest = largest

    @property
    def variables(self):
        return [self.total] if self.touched is None else [self.total, self.touched]

    def write(self, ops, gradient, begins):
        """Store a gradient where a window begins, else add it. None adds nothing."""
        if self.touched is not None:
            return self._write_rows(ops, gradient)
        if gradient is None:
            return self.total.assign(ops.zeros_like(self.total.read_value())) if begins else None
        if self.largest and not begins:
            return self.total.assign(self.sum(ops, gradient, begins))
        return (self.total.assign if begins else self.total.assign_add)(self._widen(ops, gradient))

    def sum(self, ops, gradient, begins):
        """The window's sum with a dense gradient, or None, added: a tensor; nothing is written."""
        if begins:
            return ops.zeros_like(self.total.read_value()) if gradient is None else self._widen(ops, gradient)
        total = self.total.read_value()
        if gradient is None:
            return ops.identity(total)
        gradient = self._widen(ops, gradient)
        return ops.maximum(total, gradient) if self.largest else total + gradient

    def _widen(self, ops, gradient):
        return ops.cast(ops.dense(gradient), self.total.dtype.base_dtype)

    def _write_rows(self, ops, gradient):
        total, touched = ops.local(self.total), ops.local(self.touched)
        if gradient is None:
            return None
        if not ops.is_sparse(gradient):
            return [
                total.assign_add(self._widen(ops, gradient)),
                touched.assign(ops.ones_like(touched)),
            ]
        return [
            ops.scatter_add(total, gradient.indices, ops.cast(gradient.values, total.dtype.base_dtype)),
            ops.scatter_update(touched, gradient.indices, ops.ones_like(gradient.indices, touched.dtype.base_dtype)),
        ]

    def rows(self, ops, gradient):
        """Add a gradient; the sums of the touched rows, and which they are."""
        with ops.after(self._write_rows(ops, gradient)):
            indices = ops.nonzero(ops.local(self.touched).read_value())
            return ops.gather(ops.local(self.total), indices), indices

    def clear(self, ops, rows):
        """Make the touched rows zero again."""
        values, indices = rows
        total, touched = ops.local(self.total), ops.local(self.touched)
        return [
            ops.scatter_update(total, indices, ops.zeros_like(values)),
            ops.scatter_update(touched, indices, ops.zeros_like(indices, touched.dtype.base_dtype)),
        ]
