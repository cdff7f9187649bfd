"""Find what divides a loss in a graph: the number of samples, or of what a mask leaves. A mini-step weighs that.

Keras builds a mini-step from the loss alone, before any batch is there, so the loss's operations must tell the number.
"""

from legacyga.backend import features, graph

ADDITIONS = {"Add", "AddV2", "AddN", "Sub"}
DIVISIONS = {"RealDiv", "Div", "DivNoNan"}
REDUCTIONS = {"Mean", "Sum"}
SAME = {"Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "Neg", "CheckNumerics"}
SELECTIONS = {"Select", "SelectV2"}
FEEDING = ("Placeholder", "IteratorGetNext")
WITHOUT_GRADIENT = {"StopGradient", "ZerosLike", "OnesLike"}


class _UnknownError(Exception):
    """Not every term of the loss is a sum over the batch, divided by a number."""


def find(ops, loss, params):
    """Return what divides a scalar loss, a float64 tensor; None if nothing does that depends on the batch.

    Terms of the loss can be divided by different numbers: where they are in a run, the tensor is -1.

    Args:
        ops: an `ops.Ops`.
        params: the variables that the loss is differentiated by.
    """
    with loss.graph.as_default():
        try:
            found = _Divisors(ops, loss, params).of_terms(loss)
        except _UnknownError:
            return None
        if loss.shape.ndims != 0 or not found or any(isinstance(each, float) for each in found):
            return None
        value, unknown = found[0], ops.constant(-1, "float64")
        for other in found[1:]:
            value = ops.where(ops.equal(value, other), value, unknown)
        # Without samples some divisors are NaN.
        return ops.where(value >= 0, value, unknown)


class _Divisors(object):
    """Divisors are float64 tensors, or 1.0 for numbers that are the same in each batch."""

    def __init__(self, ops, loss, params):
        self._ops = ops
        within = graph.ancestors([loss.op])
        fed = [each for each in within if each.type.startswith(FEEDING) and any(map(_has_rows, each.outputs))]
        self._of_batch = within & graph.descendants(fed)
        variables = [graph.operation_of(each) for each in params]
        learning = self._of_batch & graph.descendants(variables, self._carries_gradient)
        self._learning = {each for each in learning if each.type not in WITHOUT_GRADIENT}

    def _carries_gradient(self, tensor):
        dtype = tensor.dtype.base_dtype
        return tensor.op.type not in WITHOUT_GRADIENT and (dtype.is_floating or dtype == self._ops.tf.resource)

    def of_terms(self, scalar):
        """The divisors of all terms of a scalar that learn from the batch."""
        found, stack = [], [scalar]
        while stack:
            operation = stack.pop().op
            if operation not in self._learning:
                continue
            if operation.type in ADDITIONS:
                stack.extend(operation.inputs)
            elif operation.type in REDUCTIONS | {"L2Loss"}:
                found.extend(self._of_elements(operation.outputs[0]))
            else:
                term, divisor = self._divided(operation)
                if term is None:
                    raise _UnknownError()
                found.extend(_product(each, divisor) for each in self.of_terms(term))
        return found

    def _of_elements(self, tensor):
        """The divisors of a scalar that is made of elements."""
        divisor, times = 1.0, 1.0
        while tensor.op in self._learning:
            operation = tensor.op
            if operation.type in REDUCTIONS:
                inner = operation.inputs[0]
                rows = self._rows(inner) if self._takes_rows(operation) else 1.0
                here, times = (rows, times) if operation.type == "Mean" else (1.0, _product(times, rows))
            else:
                inner, here = self._divided(operation)
            if inner is None:
                break
            if inner.shape.ndims == 0:
                # One number for the batch, multiplied by each sample's weight. A mean gives that number again, a sum
                # gives it as many times as there are rows.
                return [_quotient(each, times) for each in self.of_terms(inner)]
            tensor, divisor = inner, _product(divisor, here)
        return [divisor]

    def _divided(self, operation):
        """(the only input that learns, what divides it here); (None, None) if the operation does something else."""
        inputs = list(operation.inputs)[: 1 if operation.type in SAME else None]
        learning = [each for each in inputs if each.op in self._learning]
        if len(learning) == 1 and operation.type in SAME | SELECTIONS:
            return learning[0], 1.0
        if len(learning) == 1 and operation.type == "Mul":
            return learning[0], self._divisor_within(inputs[1 - inputs.index(learning[0])])
        if len(learning) == 1 and operation.type in DIVISIONS and learning[0] is inputs[0]:
            return learning[0], self._number(inputs[1])
        return None, None

    def _divisor_within(self, factor):
        """What divides sample weights or a mask."""
        operation = factor.op
        if operation not in self._of_batch:
            return 1.0
        inputs = list(operation.inputs)
        if operation.type in SAME:
            return self._divisor_within(inputs[0])
        if operation.type == "Mul":
            return _product(*map(self._divisor_within, inputs))
        if operation.type in DIVISIONS and inputs[0].shape.ndims == 0:
            return _quotient(self._number(inputs[1]), self._number(inputs[0]))
        if operation.type in DIVISIONS:
            return _product(self._divisor_within(inputs[0]), self._number(inputs[1]))
        return 1.0

    def _number(self, tensor):
        """The value of a scalar that depends on the batch; rows for a number of elements. 1.0 for all else."""
        value = tensor
        while value.op.type in ("Identity", "Cast"):
            value = value.op.inputs[0]
        if value.op.type == "Size":
            return self._rows(value.op.inputs[0])
        of_batch = tensor.op in self._of_batch and tensor.shape.ndims == 0
        return self._ops.cast(tensor, "float64") if of_batch else 1.0

    def _rows(self, tensor):
        return self._ops.cast(self._ops.tf.shape(tensor)[0], "float64") if _has_rows(tensor) else 1.0

    def _takes_rows(self, reduction):
        """Whether a mean is one over the first dimension, too."""
        if reduction.outputs[0].shape.ndims == 0:
            return True
        axes = features.static_value(self._ops.tf)(reduction.inputs[1])
        ndims = reduction.inputs[0].shape.ndims
        return axes is not None and ndims is not None and any(axis % ndims == 0 for axis in axes.ravel())


def _product(one, other):
    return other if isinstance(one, float) else one if isinstance(other, float) else one * other


def _quotient(one, other):
    return one if isinstance(other, float) else one / other


def _has_rows(tensor):
    """Whether only the run tells the size of a tensor's first dimension."""
    return bool(tensor.shape.ndims) and tensor.shape.as_list()[0] is None
