"""Find the divisor of a loss in a graph, such as the number of samples: the weight of its mini-step.

Keras builds a mini-step before any batch is there, so the loss's operations must tell the divisor. The search knows few
operations. It trusts any other to divide by nothing if the result has a row for each sample, and needs no *number of
the batch*: a scalar computed from the batch. Else it finds nothing, and all batches weigh the same.
"""

import collections

from legacyga.backend import features, graph
from legacyga.backend.tensors import is_differentiable

ADDITIONS = {"Add", "AddV2", "AddN", "Sub", "Pack"}
DIVISIONS = {"RealDiv", "Div", "DivNoNan"}
REDUCTIONS = {"Mean", "Sum"}
SAME = {"Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "Neg", "CheckNumerics", "Print"}
SELECTIONS = {"Select", "SelectV2"}
KEEPING_ROWS = SAME | DIVISIONS | SELECTIONS | REDUCTIONS | {
    "Add", "AddV2", "Sub", "Mul", "Square", "SquaredDifference", "Abs", "Pow", "Exp", "Log", "Log1p", "Maximum",
    "Minimum", "ClipByValue", "Relu", "Sigmoid", "Softplus", "Softmax", "SoftmaxCrossEntropyWithLogits",
    "SparseSoftmaxCrossEntropyWithLogits",
}  # fmt: skip
# The data decide how many rows these return, as in tf.boolean_mask.
CHOOSING = {"Where", "DynamicPartition"}
FEEDING = ("Placeholder", "IteratorGetNext", "QueueDequeue")
WITHOUT_GRADIENT = {"StopGradient", "ZerosLike", "OnesLike"}
# A scalar of these operations may be a TensorArray's flow, no number.
OF_ARRAYS = ("TensorArray", "Merge", "Switch")
# The largest number that a loss may add to a count against a division by 0.
EPSILON = 1e-3
# The largest bound of a mean, such as K.mean(mask), where the search leaves it out: it counts once per element.
EPSILON_OF_MEANS = 1e-5


class _UnknownError(Exception):
    """The search cannot tell what divides each term of the loss."""


class _Number(collections.namedtuple("_Number", ["value", "counted", "degree", "sums", "means"])):
    """A number of the batch, which divides some term of the loss.

    value: a float64 tensor, or 1.0 for a number that is the same in each batch. Constant factors may be left out.
    counted: `value` without a lower bound: n for max(1, n). So small batches' numbers add up to the large batch's.
    degree: the power of the batch's size with which `value` grows: 1 for a count, 0 for a share, -1 for an inverse.
    sums: how many factors are sums over the batch's data, such as a mask. Products of two sums do not add up.
    means: the power of means of such data in `value`: 1 where Keras up to 2.2 divides by the mean of a mask; 2 for two
        means, whose product is only close to the large batch's; -1 where a mean multiplies the loss.
    """

    @property
    def key(self):
        # TF 2's tensors have no hash.
        return (id(self.value), id(self.counted)) + self[2:]

    def times(self, other):
        values = [b if isinstance(a, float) else a if isinstance(b, float) else a * b for a, b in zip(self, other[:2])]
        return self._with(values, other, 1)

    def over(self, other):
        values = [a if isinstance(b, float) else a / b for a, b in zip(self, other[:2])]
        return self._with(values, other, -1)

    def _with(self, values, other, power):
        degree, means = self.degree + power * other.degree, self.means + power * other.means
        return _Number(values[0], values[1], degree, self.sums + other.sums, means)


ONE = _Number(1.0, 1.0, 0, 0, 0)


def find(ops, loss, params):
    """Return a scalar loss's divisor, the [value, counted] of its `_Number` as one float64 tensor; None if unknown.

    Both are -1 in a run in which the loss's terms have different divisors, or the divisor is NaN or negative.
    """
    if loss.shape.ndims != 0:
        return None
    with loss.graph.as_default():
        found = _terms(ops, loss, params)
        if not found or any(each.degree != 1 or each.sums > 1 or each.means < 0 for each in found):
            return None
        value, counted = found[0][:2]
        # Without samples a divisor may be NaN.
        known = [value >= 0]
        for each in found:
            known += [ops.equal(value, each.value), ops.equal(counted, each.counted)]
        # With a bound, as in max(1, n), the large batch's divisor is the sum of the counts only if these are whole.
        is_whole = ops.equal(counted, ops.tf.floor(counted))
        known.append((value - counted <= EPSILON) | ((counted >= 0) & is_whole))
        unknown = ops.constant(-1, "float64")
        return ops.tf.stack([ops.where(ops.tf.reduce_all(known), each, unknown) for each in (value, counted)])


def is_mean(ops, loss, params):
    """Whether a scalar loss is a mean over the rows, or learns nothing from the batch; None if that is unknown."""
    with loss.graph.as_default():
        found = _terms(ops, loss, params)
    return None if found is None else all((each.degree, each.sums, each.means) == (1, 0, 0) for each in found)


def _terms(ops, loss, params):
    """`_Divisors.of_terms` of a loss; None if unknown."""
    try:
        return _Divisors(ops, loss, params).of_terms(loss)
    # A loss of hundreds of added terms nests too deep.
    except (_UnknownError, RecursionError):
        return None


class _Divisors(object):
    """Walks back from a loss to the `_Number`s that divide its terms. Raises `_UnknownError` if one is unknown."""

    def __init__(self, ops, loss, params):
        self._ops, self._tf = ops, ops.tf
        within = graph.ancestors([loss.op])
        feeding = [each for each in within if each.type.startswith(FEEDING)]
        self._size = _size_of_batch([tensor for each in feeding for tensor in each.outputs])
        fed = [each for each in feeding if any(_size_of(tensor) in (None, self._size) for tensor in each.outputs)]
        # The operations that depend on the batch. Of a shape only the first size does.
        self._of_batch = within & graph.descendants(
            fed, lambda tensor: graph.dimension_of(self._tf, tensor) in (None, 0)
        )
        # Those of them on a gradient's way to the params.
        variables = [graph.operation_of(each) for each in params]
        learning = self._of_batch & graph.descendants(variables, self._carries_gradient)
        self._learning = {each for each in learning if each.type not in WITHOUT_GRADIENT}
        # A loop's operations. Scalars there, such as the step counter of keras-contrib's CRF, change in each step: only
        # reductions are numbers of the batch.
        loops = [each for each in within if each.type in ("Enter", "RefEnter")]
        self._of_loops = graph.descendants(loops, lambda tensor: not tensor.op.type.endswith("Exit"))
        self._without_rows = self._behind_reductions(within)
        # The tensor whose divisor is looked for.
        self._divided = loss
        # {a tensor's name: what `of_terms` returns}: a loss may use a tensor many times, as a running mean does.
        self._terms = {}
        # Operations that `_check_plain` has passed.
        self._plain = set()

    def _behind_reductions(self, operations):
        """Return the sums and means over the rows, and the operations on their results alone: a set.

        An unknown first dimension of such a result is not the samples but, say, time.
        """
        behind = set()
        for each in sorted(operations, key=lambda operation: operation._id):
            sized = [tensor for tensor in each.inputs if self._is_sized(tensor)]
            is_over_rows = each.type in REDUCTIONS and self._takes_rows(each)
            if is_over_rows or sized and all(tensor.op in behind for tensor in sized):
                behind.add(each)
        return behind

    def _is_sized(self, tensor):
        """Whether a tensor's first dimension may be the samples: unknown, or of the fixed size of all batches."""
        size = _size_of(tensor)
        return size is None or size == self._size and tensor.op in self._of_batch

    def _has_rows(self, tensor):
        """Whether a tensor has a row, or several, for each sample."""
        return self._is_sized(tensor) and tensor.op not in self._without_rows

    def _carries_gradient(self, tensor):
        # Gradients also pass resources (the variables' handles) and variants (the TensorLists of TF 2's loops).
        dtype = tensor.dtype.base_dtype
        carries = is_differentiable(dtype) or dtype in (self._tf.resource, self._tf.variant)
        return carries and tensor.op.type not in WITHOUT_GRADIENT

    def of_terms(self, tensor):
        """Return the different `_Number`s that divide those terms of a tensor that learn from the batch: a list."""
        if tensor.op not in self._learning:
            return []
        if tensor.name not in self._terms:
            self._terms[tensor.name] = list({each.key: each for each in self._find_terms(tensor)}.values())
        return self._terms[tensor.name]

    def _find_terms(self, tensor):
        operation, inputs, self._divided = tensor.op, list(tensor.op.inputs), tensor
        if operation.type in SAME:
            return self.of_terms(inputs[0])
        # Leave out conditions, as in tf.where(is_nan(loss), 0, loss).
        learning = [each for each in inputs if each.op in self._learning and self._carries_gradient(each)]
        if operation.type in REDUCTIONS:
            # Only a mean over the rows divides by a number of the batch.
            is_mean = operation.type == "Mean" and self._takes_rows(operation)
            divisor = self._rows(inputs[0]) if is_mean else ONE
        elif operation.type in ADDITIONS | SELECTIONS:
            divisor = ONE
        elif len(learning) == 1 and operation.type == "Mul":
            divisor = self._of_factor(inputs[int(inputs[0] is learning[0])])
        elif len(learning) == 1 and operation.type in DIVISIONS and learning[0] is inputs[0]:
            divisor = self._number(inputs[1]) if inputs[1].shape.ndims == 0 else ONE.over(self._of_factor(inputs[1]))
        elif self._has_rows(tensor) or (operation.type == "L2Loss" and self._has_rows(inputs[0])):
            self._check_plain(operation)
            return [ONE]
        else:
            raise _UnknownError()
        found = []
        for each in learning:
            # A term without rows that is broadcast to rows, as by sample weights, counts once per row.
            repeats = self._rows(tensor) if not self._has_rows(each) else ONE
            found.extend(term.times(divisor).over(repeats) for term in self.of_terms(each))
        return found

    def _of_factor(self, factor):
        """What a factor divides a product by: n for weights / n, 1 / n for the number n, 1 for weights or a mask."""
        operation = factor.op
        if operation not in self._of_batch:
            return ONE
        inputs = list(operation.inputs)
        if operation.type in SAME:
            return self._of_factor(inputs[0])
        if factor.shape.ndims == 0:
            return ONE.over(self._number(factor))
        if operation.type == "Mul":
            return self._of_factor(inputs[0]).times(self._of_factor(inputs[1]))
        if operation.type in DIVISIONS and inputs[1].shape.ndims == 0:
            return self._of_factor(inputs[0]).times(self._number(inputs[1]))
        is_by_numbers = operation.type in DIVISIONS and inputs[1].op in self._of_batch and not self._has_rows(inputs[1])
        if is_by_numbers or not self._has_rows(factor):
            raise _UnknownError()
        self._check_plain(operation)
        return ONE

    def _number(self, tensor):
        """A tensor without rows, as a `_Number`."""
        operation = tensor.op
        if operation not in self._of_batch:
            return ONE
        inputs = list(operation.inputs)
        if operation.type in SAME:
            return self._number(inputs[0])
        if operation.type == "Size" or (operation.type == "Prod" and inputs[0].op.type == "Shape"):
            return self._rows(inputs[0] if operation.type == "Size" else inputs[0].op.inputs[0])
        if graph.dimension_of(self._tf, tensor) is not None:
            return ONE if graph.dimension_of(self._tf, tensor) else self._rows(inputs[0].op.inputs[0])
        if operation.type == "Mul":
            return self._number(inputs[0]).times(self._number(inputs[1]))
        if operation.type in DIVISIONS:
            return self._number(inputs[0]).over(self._number(inputs[1]))
        if operation.type in REDUCTIONS:
            return self._reduced(tensor, operation)
        # A loss may keep its count away from 0, as by max(1, n): the count is the operand that is no bound.
        if tensor.shape.ndims == 0 and operation.type in {"Maximum", "Add", "AddV2"} | SELECTIONS:
            most = EPSILON if "Add" in operation.type else 1
            counts = [each for each in inputs[-2:] if not self._is_bound(each, most)]
            number = self._number(counts[0]) if len(counts) == 1 else ONE
            is_mean = (number.degree, number.means) == (0, 1)
            if is_mean and any(self._is_bound(each, EPSILON_OF_MEANS) for each in inputs[-2:]):
                return number
            if number.degree == 1 and number.value is number.counted:
                # The bound is of the count with its constant factors. `number` may lack them: use the graph's tensors.
                value, counted = [self._ops.cast(each, "float64") for each in (tensor, counts[0])]
                return number._replace(value=value, counted=counted)
        raise _UnknownError()

    def _reduced(self, tensor, operation):
        """A sum or mean of numbers, or of the batch's data, such as a mask, as a `_Number`."""
        inner, value = _unshaped(operation.inputs[0]), self._ops.cast(tensor, "float64")
        if not self._has_rows(inner):
            number = self._number(inner)
            # If `inner` is a vector of numbers, the value is their sum or mean: `tensor`.
            return number if inner.shape.ndims == 0 or number is ONE else number._replace(value=value, counted=value)
        self._check_plain(inner.op)
        if not self._has_rows(operation.inputs[0]):
            # For a scalar loss Keras squeezes its default sample weights, one row, to a scalar. Delete with TF 1.13.
            return _Number(value, value, 0, 0, 0)
        if not self._takes_rows(operation):
            raise _UnknownError()
        is_sum = int(operation.type == "Sum")
        value = value if is_sum else value * self._steps(operation)
        return _Number(value, value, is_sum, is_sum, 1 - is_sum)

    def _steps(self, mean):
        """How many elements of each sample a mean takes, as far as batches differ: the steps of their sequences."""
        reduced, axes = mean.inputs[0], features.static_value(self._tf)(mean.inputs[1])
        if axes is None or reduced.shape.ndims is None:
            return 1.0
        sizes = reduced.shape.as_list()
        # Keras's placeholders of sample weights know no number of steps, but the loss that they multiply may.
        if self._divided.shape.ndims == len(sizes):
            sizes = [size or known for size, known in zip(sizes, self._divided.shape.as_list())]
        unknown = [axis for axis in axes.ravel() % len(sizes) if axis and sizes[axis] is None]
        if not unknown:
            return 1.0
        return self._ops.cast(self._tf.reduce_prod(self._tf.gather(self._tf.shape(reduced), unknown)), "float64")

    def _is_bound(self, tensor, most):
        """Whether a number only keeps a count away from 0: a constant of 0 to `most`, or a OnesLike."""
        value = features.static_value(self._tf)(tensor)
        return tensor.op.type == "OnesLike" if value is None else bool(0 <= value <= most)

    def _rows(self, tensor):
        """The number of a tensor's rows; `ONE` if it has none."""
        if not self._has_rows(tensor):
            return ONE
        rows = self._ops.cast(self._tf.shape(self._unflattened(tensor))[0], "float64")
        return _Number(rows, rows, 1, int(self._is_chosen(tensor)), 0)

    def _unflattened(self, tensor):
        """Return the tensor before reshapes, such as K.flatten's, that divide each sample's row into several."""
        # Dense flattens too, but reshapes back: of the tensors passed, take the first with the fewest rows.
        rows = fewest = 1.0
        each = tensor
        while each.op.type in KEEPING_ROWS:
            inputs = [inner for inner in each.op.inputs if self._is_sized(inner)]
            if not inputs:
                break
            # Go on to the network: its sizes are known, those of Keras's placeholders of targets are not.
            inner = next((inner for inner in inputs if inner.op in self._learning), inputs[0])
            if each.op.type == "Reshape":
                sizes = [made.shape[1:].num_elements() for made in (each, inner)]
                if None in sizes or 0 in sizes:
                    break
                rows *= sizes[0] / sizes[1]
            each = inner
            if rows < fewest:
                tensor, fewest = each, rows
        return tensor

    def _is_chosen(self, tensor):
        """Whether the data decide how many rows a tensor has."""
        seen = set()
        while tensor.op in self._of_batch and tensor.op not in seen:
            operation = tensor.op
            seen.add(operation)
            if operation.type in CHOOSING:
                return True
            inputs = [each for each in operation.inputs if self._has_rows(each)]
            if not inputs:
                break
            # A Gather has the rows of its indices, the last input with rows.
            tensor = inputs[-1 if "Gather" in operation.type else 0]
        return False

    def _takes_rows(self, reduction):
        """Whether a reduction is over the first dimension, alone or with others."""
        if reduction.outputs[0].shape.ndims == 0:
            return True
        axes = features.static_value(self._tf)(reduction.inputs[1])
        ndims = reduction.inputs[0].shape.ndims
        return axes is not None and ndims is not None and any(axis % ndims == 0 for axis in axes.ravel())

    def _check_plain(self, operation):
        """Raise if an operation depends on a number of the batch, which may divide its result."""
        behind = (graph.ancestors([operation], self._plain) & self._of_batch) - self._plain
        for each in behind:
            if any(map(self._is_number, each.inputs)):
                raise _UnknownError()
        self._plain |= behind

    def _is_number(self, tensor):
        """Whether a tensor is a number of the batch."""
        # It may keep its dimensions, as from tf.reduce_mean(..., keepdims=True).
        operation, is_scalar = tensor.op, tensor.dtype.base_dtype.is_floating and tensor.shape.num_elements() == 1
        if operation in self._of_loops and operation.type not in REDUCTIONS:
            return False
        is_one = is_scalar and operation in self._of_batch and not operation.type.startswith(OF_ARRAYS)
        return is_one and not self._has_rows(tensor)


def _unshaped(tensor):
    while tensor.op.type in SAME:
        tensor = tensor.op.inputs[0]
    return tensor


def _size_of_batch(fed):
    """Return the fixed size of all batches in these tensors, or None.

    Keras's placeholders of targets and sample weights know no dimension, and do not count.
    """
    shapes = [tensor.shape.as_list() for tensor in fed if tensor.shape.ndims]
    if any(size is not None for shape in shapes if shape[0] is None for size in shape):
        return None
    sizes = {shape[0] for shape in shapes if shape[0] is not None}
    return sizes.pop() if len(sizes) == 1 else None


def _size_of(tensor):
    """The size of a tensor's first dimension: None if only the run tells it, 0 if there is none."""
    return tensor.shape.as_list()[0] if tensor.shape.ndims else 0
