"""What a batch of fit's data holds: its tensors, how many samples, and slices of these."""

SIZES = "Each part of a batch in slices must have the same first dimension. Received: {} and {} samples."


def parts_of(tf, data):
    """The tensors of a batch that have samples: not None, and no number."""
    return [leaf for leaf in tf.nest.flatten(data) if leaf is not None and not _is_number(tf, leaf)]


def _is_number(tf, leaf):
    return tf.TensorShape(getattr(leaf, "shape", ())).ndims == 0


def samples_in(tf, data):
    """The number of samples in a batch, a scalar tensor: the first dimension of its first target, else of its inputs.

    The loss is a mean over the targets. An input may have a row for each part of a sample, as in batches of graphs.
    """
    targets = parts_of(tf, data[1:2]) if isinstance(data, (tuple, list)) else []
    return size_of(tf, (targets or parts_of(tf, data))[0])


def number_in(tf, data):
    """The number of samples, an int where a part of the data knows it, else a tensor."""
    static = {known_size(tf, leaf) for leaf in parts_of(tf, data)} - {None}
    if len(static) > 1:
        raise ValueError(SIZES.format(*sorted(static)[:2]))
    return int(static.pop()) if static else samples_in(tf, data)


def checked(tf, data, samples):
    """Operations that raise where a part of the data has another number of samples."""
    sizes = [known_size(tf, leaf) for leaf in parts_of(tf, data)]
    if isinstance(samples, int) and None not in sizes:
        return []
    message = SIZES.format("other", "of the first part")
    checks = [tf.debugging.assert_equal(size_of(tf, leaf), samples, message) for leaf in parts_of(tf, data)]
    return [each for each in checks if each is not None]


def size_of(tf, tensor):
    """The first dimension of a tensor, dense, ragged or sparse: an int32 scalar."""
    # TF up to 1.12 has no ragged tensors. Delete with TF 1.12.
    if isinstance(tensor, getattr(tf, "RaggedTensor", ())):
        return tf.cast(tensor.nrows(), tf.int32)
    return tf.cast(tensor.dense_shape[0], tf.int32) if isinstance(tensor, tf.SparseTensor) else tf.shape(tensor)[0]


def slice_of(tf, leaf, begin, length):
    """So many samples of a tensor from `begin` on; None of None, and a number as it is."""
    if leaf is None or _is_number(tf, leaf):
        return leaf
    if isinstance(leaf, tf.SparseTensor):
        others = leaf.dense_shape[1:]
        starts = tf.concat([[tf.cast(begin, "int64")], tf.zeros_like(others)], 0)
        part = tf.sparse.slice(leaf, starts, tf.concat([[tf.cast(length, "int64")], others], 0))
        # Layers that are yet to be built ask for the static shape, which the slice has lost.
        sizes = [part.dense_shape[i] if not i or size is None else size for i, size in enumerate(leaf.shape)]
        return tf.SparseTensor(part.indices, part.values, tf.stack([tf.cast(each, "int64") for each in sizes]))
    shape = tf.TensorShape(leaf.shape)
    if isinstance(leaf, getattr(tf, "RaggedTensor", ())) or shape.ndims is None:
        return leaf[begin : begin + length]
    # By its size, not by its end: of an end that is no constant XLA makes a dynamic size, which some kernels lose.
    sizes = [length] + [tf.shape(leaf)[i] if shape[i] is None else shape[i] for i in range(1, shape.ndims)]
    return tf.slice(leaf, [begin] + [0] * (shape.ndims - 1), sizes)


def known_size(tf, leaf):
    """The first dimension of a tensor, an int, None where that is not static or there is none."""
    shape = tf.TensorShape(leaf.shape)
    return shape[0] if shape.ndims else None


def part_of(value, samples, part):
    """The samples of one slice; what is no batch, such as the learning phase, as it is."""
    shape = getattr(value, "shape", ())
    if not shape:
        return value
    if shape[0] != samples:
        raise ValueError(SIZES.format(samples, shape[0]))
    # Not every form of scipy's sparse matrices takes a slice.
    return (value.tocsr() if hasattr(value, "tocsr") else value)[part]


def joined(arrays):
    """Arrays one after the other. The package itself imports no NumPy."""
    joined, start = arrays[0].take([0] * sum(len(each) for each in arrays), axis=0), 0
    for each in arrays:
        joined[start : start + len(each)] = each
        start += len(each)
    return joined


def inner_model(model):
    """The model that trains: within a Sequential of Keras up to 2.1 there is another. Delete with Keras 2.1."""
    return vars(model).get("model") or model
