"""What a batch of fit's data holds: its tensors, how many samples, and slices of these."""


def parts_of(tf, data):
    """The tensors of a batch, without the places that have none."""
    return [leaf for leaf in tf.nest.flatten(data) if leaf is not None]


def samples_in(tf, data):
    """The number of samples in a batch, a scalar tensor: the first dimension of its first target, else of its inputs.

    The loss is a mean over the targets. An input may have a row for each part of a sample, as in batches of graphs.
    """
    targets = parts_of(tf, data[1:2]) if isinstance(data, (tuple, list)) else []
    counted = [leaf for leaf in targets + parts_of(tf, data) if tf.TensorShape(leaf.shape).ndims != 0]
    return size_of(tf, counted[0])


def size_of(tf, tensor):
    """The first dimension of a tensor, dense, ragged or sparse: an int32 scalar."""
    # There are ragged ones from TF 1.13 on.
    if isinstance(tensor, getattr(tf, "RaggedTensor", ())):
        return tf.cast(tensor.nrows(), tf.int32)
    return tf.cast(tensor.dense_shape[0], tf.int32) if isinstance(tensor, tf.SparseTensor) else tf.shape(tensor)[0]


def slice_of(tf, leaf, begin, length):
    """So many samples of a tensor from `begin` on; None of None."""
    if leaf is None:
        return None
    if isinstance(leaf, tf.SparseTensor):
        others = leaf.dense_shape[1:]
        starts = tf.concat([[tf.cast(begin, "int64")], tf.zeros_like(others)], 0)
        return tf.sparse.slice(leaf, starts, tf.concat([[tf.cast(length, "int64")], others], 0))
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
