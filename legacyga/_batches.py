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
    return leaf[begin : begin + length]
