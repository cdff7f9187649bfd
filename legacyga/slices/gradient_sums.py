"""Sum the gradients of slices, one sum per variable, in the loop variables of a tf.while_loop."""

from legacyga.backend.tensors import is_sparse


class GradientSums(object):
    """Adds up the gradients of a model's variables.

    Args:
        ops: an `ops.Ops`.
        variables: the variables of the model.
        slices: the number of slices, an int or a tensor.
    """

    def __init__(self, ops, variables, slices):
        self._ops = ops
        # Keras passes float8 scales as gradients; their result is the largest value, not the sum.
        self._is_largest = [getattr(each, "overwrite_with_gradient", False) for each in variables]
        self._pieces = Pieces(ops, slices, True)

    def begun(self, place, gradient, share=None):
        """Return the sum after the first slice: one tensor, or two TensorArrays (values, indices) for IndexedSlices.

        Args:
            place: the index of the variable.
            gradient: the gradient of the first slice, a tensor or IndexedSlices.
            share: its weight, a float64 scalar, None for 1.
        """
        ops = self._ops
        if self._is_largest[place]:
            return [gradient]
        dtype = ops.accumulator_dtype(gradient.dtype)
        # XLA's TensorArrays need equal shapes, so there the sum is dense.
        if is_sparse(gradient) and not ops.is_compiled():
            values = gradient.values if share is None else ops.weighted(gradient.values, share, dtype)
            return [self._pieces.begun(ops.cast(values, dtype)), self._pieces.begun(gradient.indices)]
        gradient = ops.cast(ops.dense(gradient), dtype)
        return [gradient if share is None else ops.weighted(gradient, share, dtype)]

    def added(self, place, total, gradient, number):
        """Return the sum plus the gradient of slice `number`, counted from 0."""
        ops = self._ops
        if self._is_largest[place]:
            return [ops.maximum(total[0], gradient)]
        if len(total) == 1:
            return [total[0] + ops.cast(ops.dense(gradient), total[0].dtype)]
        values = ops.cast(gradient.values, ops.accumulator_dtype(gradient.dtype))
        return [total[0].write(number, values), total[1].write(number, gradient.indices)]

    def result(self, place, total, gradient, whole=None):
        """Return the sum, divided by `whole` unless None, as IndexedSlices or a tensor in the dtype of `gradient`."""
        if self._is_largest[place]:
            return total[0]
        values = total[0] if len(total) == 1 else total[0].concat()
        values = values if whole is None else values / self._ops.cast(whole, values.dtype)
        values = self._ops.cast(values, gradient.dtype)
        if len(total) == 1:
            return values
        return self._ops.tf.IndexedSlices(values, total[1].concat(), gradient.dense_shape)


class Pieces(object):
    """Collects the rows that each slice adds to a tensor, in a TensorArray that a tf.while_loop carries.

    Args:
        ops: an `ops.Ops`.
        slices: the number of slices, an int or a tensor.
        uneven: whether slices may differ in their number of rows. Under XLA only the first slice may differ.
    """

    def __init__(self, ops, slices, uneven=False):
        self._ops, self._slices, self._holds_first = ops, slices, uneven or not ops.is_compiled()

    def begun(self, first):
        tf, shape = self._ops.tf, [None] + list(first.shape[1:])
        size = self._slices if self._holds_first else self._slices - 1
        array = tf.TensorArray(first.dtype, size, infer_shape=not self._holds_first, element_shape=shape)
        return array.write(0, first) if self._holds_first else array

    def written(self, array, number, piece):
        return array.write(number if self._holds_first else number - 1, piece)

    def joined(self, array, first):
        if self._holds_first:
            return array.concat()
        tf = self._ops.tf
        others = array.stack()
        return tf.concat([first, tf.reshape(others, tf.concat([[-1], tf.shape(others)[2:]], 0))], 0)
