"""Read a batch that `fit` trains on: its tensors, its number of samples, its slices."""

from legacyga.backend import graph
from legacyga.backend import ops as _ops
from legacyga.backend.messages import shown

SIZES = "Each part of a batch in slices must have the same first dimension. Received: {} and {} samples."
NO_SAMPLES = "A batch must have a tensor with a row for each sample. Received: {}. Let fit have such data."
UNEQUAL = "Each part of a batch in slices must have the same first dimension. Received: a part with another one."


def parts_of(tf, data):
    """Return the tensors of a batch, without None and scalars."""
    return [leaf for leaf in tf.nest.flatten(data) if leaf is not None and not _is_number(tf, leaf)]


def _is_number(tf, leaf):
    return tf.TensorShape(getattr(leaf, "shape", ())).ndims == 0


def is_shared(tf, leaf):
    """Whether a tensor has a single row, which all samples share, such as position numbers."""
    return known_size(tf, leaf) == 1


def of_samples(tf, given):
    """Return the tensors that have a row for each sample: a list. If all have one row, the batch is one sample."""
    leaves = parts_of(tf, given)
    return [leaf for leaf in leaves if not is_shared(tf, leaf)] or leaves


def tables_of_shared_rows(tf, traced):
    """Return {id(handle)} of the variables that a call uses only in lookups whose indices do not depend on samples.

    Args:
        traced: the graph of a call on an unknown number of samples.
    """
    captures = zip(traced.external_captures, traced.internal_captures)
    constants = {inner.op for outer, inner in captures if hasattr(outer, "numpy")}
    found = set()
    for handle, _, inner in graph.variables_of(tf, traced):
        ids = list(_ids_of_lookups(inner))
        if ids and not any(each is None or _depends_on_samples(tf, each, constants) for each in ids):
            found.add(id(handle))
    return found


def _ids_of_lookups(handle):
    """Yield the indices of each lookup in a variable, and None for each other use of the variable."""
    for reader in handle.consumers():
        if reader.type == "ReadVariableOp":
            # Keras 3 reads the variable, then looks up rows of its value.
            for user in reader.outputs[0].consumers():
                yield user.inputs[1] if user.type == "GatherV2" else None
        else:
            yield reader.inputs[1] if reader.type == "ResourceGather" else None


def _depends_on_samples(tf, tensor, constants):
    seen, stack = set(constants), [tensor]
    while stack:
        each = stack.pop()
        # Dimensions after the first have the same sizes in all slices.
        if each.op in seen or graph.dimension_of(tf, each):
            continue
        operation = each.op
        is_fed = operation.type == "Placeholder" and each.dtype != tf.resource
        if is_fed or operation.op_def.is_stateful and operation.type not in graph.READS:
            return True
        seen.add(operation)
        stack.extend(operation.inputs)
    return False


def samples_in(tf, data):
    """Return the number of samples in a batch, a scalar tensor: the first dimension of its first target, else input."""
    # The loss is a mean over the targets. An input may have several rows per sample, such as a molecule's atoms.
    given = data[1:2] if isinstance(data, (tuple, list)) else ()
    targets = parts_of(tf, given)
    if not targets and any(leaf is not None for leaf in tf.nest.flatten(given)):
        # A target that is one number, as of a graph whose atoms are the rows of the input.
        return tf.constant(1)
    found = targets or of_samples(tf, data)
    if not found:
        raise ValueError(NO_SAMPLES.format(shown(data)))
    return size_of(tf, found[0])


def number_in(tf, data):
    """Return the number of samples: an int if static in any part, else a tensor. Raise if static ones differ."""
    static = {known_size(tf, leaf) for leaf in of_samples(tf, data)} - {None}
    if len(static) > 1:
        raise ValueError(SIZES.format(*sorted(static)[:2]))
    return int(static.pop()) if static else samples_in(tf, data)


def may_exceed(tf, data, size):
    """Whether any part of a batch may have more than `size` rows."""
    sizes = [known_size(tf, leaf) for leaf in parts_of(tf, data)]
    return any(each is None or each > size for each in sizes)


def is_cut(tf, data, size):
    """Whether a batch may need more than one slice of at most `size` samples. True if its size is not static."""
    samples = number_in(tf, data)
    return not (isinstance(samples, int) and samples <= size)


def checked(tf, data, samples):
    """Return operations that raise if parts of the data have unequal numbers of samples; [] if sizes are static."""
    leaves = of_samples(tf, data)
    if isinstance(samples, int) and None not in [known_size(tf, leaf) for leaf in leaves]:
        return []
    checks = [tf.debugging.assert_equal(size_of(tf, leaf), samples, UNEQUAL) for leaf in leaves]
    return [each for each in checks if each is not None]


def size_of(tf, tensor):
    """Return the first dimension of a dense, ragged or sparse tensor: an int32 scalar."""
    if isinstance(tensor, tf.RaggedTensor):
        return tf.cast(tensor.nrows(), tf.int32)
    return tf.cast(tensor.dense_shape[0], tf.int32) if isinstance(tensor, tf.SparseTensor) else tf.shape(tensor)[0]


def slice_of(tf, leaf, begin, length):
    """Return `length` samples of a tensor, starting at `begin`. None, scalars and shared rows come back unchanged."""
    if leaf is None or _is_number(tf, leaf) or is_shared(tf, leaf):
        return leaf
    if isinstance(leaf, tf.SparseTensor):
        others = leaf.dense_shape[1:]
        starts = tf.concat([[tf.cast(begin, "int64")], tf.zeros_like(others)], 0)
        part = tf.sparse.slice(leaf, starts, tf.concat([[tf.cast(length, "int64")], others], 0))
        # tf.sparse.slice loses the static shape, which layers need to build.
        sizes = [part.dense_shape[i] if not i or size is None else size for i, size in enumerate(leaf.shape)]
        return tf.SparseTensor(part.indices, part.values, tf.stack([tf.cast(each, "int64") for each in sizes]))
    shape = tf.TensorShape(leaf.shape)
    if isinstance(leaf, tf.RaggedTensor) or shape.ndims is None:
        return leaf[begin : begin + length]
    if isinstance(length, int) and shape[0] is None and _ops.Ops(tf).is_compiled():
        # XLA compiles the loop even for a batch of less than `length` samples, which never enters it. Pad such a batch,
        # or the slice in the loop does not compile.
        missing = tf.maximum(length - tf.shape(leaf)[0], 0)
        leaf = tf.concat([leaf, tf.zeros(tf.concat([[missing], tf.shape(leaf)[1:]], 0), leaf.dtype)], 0)
    # Not leaf[begin:end]: XLA makes the size of such a slice dynamic, and some kernels lose a dynamic size.
    sizes = [length] + [tf.shape(leaf)[i] if shape[i] is None else shape[i] for i in range(1, shape.ndims)]
    return tf.slice(leaf, [begin] + [0] * (shape.ndims - 1), sizes)


def known_size(tf, leaf):
    """Return the static first dimension of a tensor: an int, None if it is unknown or the tensor has none."""
    shape = tf.TensorShape(leaf.shape)
    return shape[0] if shape.ndims else None


def part_of(value, samples, part):
    """Return the slice `part` of a fed array. A scalar, such as the learning phase, comes back unchanged."""
    shape = getattr(value, "shape", ())
    if not shape:
        return value
    if shape[0] != samples:
        raise ValueError(SIZES.format(samples, shape[0]))
    # Some formats of scipy's sparse matrices cannot be sliced.
    return (value.tocsr() if hasattr(value, "tocsr") else value)[part]


def inner_model(model):
    """Return the model that trains: up to Keras 2.1 and TF 1.7 a Sequential wraps another model. Delete with these."""
    inner = vars(model).get("model")
    # Only a compiled model has `loss_functions`. A user's model may have an attribute `model` of any kind.
    return inner if hasattr(inner, "loss_functions") and not hasattr(model, "loss_functions") else model
