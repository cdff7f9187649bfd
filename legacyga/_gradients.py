"""What gradients and weights may be given, and the errors that say what else it was."""

import math

from legacyga import _graph, _ops


def as_tensors(ops, grads_and_vars):
    """(gradient, variable) pairs with tensors in IndexedSlices; the numbers of a list take the variable's dtype."""
    return [(ops.as_tensors(gradient, var.dtype), var) for gradient, var in grads_and_vars]


def check_gradients(ops, gradients, number):
    """`gradients` as a list of tensors, IndexedSlices and None; `number` is how many there were before, or None."""
    if hasattr(gradients, "dtype") or isinstance(gradients, (str, dict)) or not hasattr(gradients, "__iter__"):
        raise ValueError(
            "gradients must be a list with a tensor, an IndexedSlices or None for each variable. Received: {!r}".format(
                gradients
            )
        )
    gradients = [
        gradient if gradient is None else ops.as_tensors(gradient) if _ops.is_sparse(gradient) else ops.dense(gradient)
        for gradient in gradients
    ]
    if number not in (None, len(gradients)):
        raise ValueError(
            "A GradientAccumulator takes as many gradients each time, in the same order: {} at first. "
            "Received: {}. Give None for a variable without one, or make another GradientAccumulator for other "
            "variables.".format(number, len(gradients))
        )
    if all(gradient is None for gradient in gradients):
        raise ValueError(
            "gradients must hold one that is not None. Received: {!r}. Compute the loss inside of the "
            "GradientTape, from the variables whose gradients are asked for.".format(gradients)
        )
    return gradients


def check_weight(ops, weight):
    """`weight` as a float64 tensor, or a Python 1.0. NaN stands for one out of range that no assertion stops."""
    message = "weight must be a finite number, or a scalar tensor, of at least 0."
    received = "{} Received: {!r}".format(message, weight)
    if weight is None or isinstance(weight, (str, bool)):
        raise ValueError(received)
    # A Python number would become a float32.
    convert = ops.tf.convert_to_tensor
    tensor = ops.cast(convert(weight), "float64") if hasattr(weight, "dtype") else convert(weight, "float64")
    if tensor.shape.ndims not in (0, None):
        raise ValueError(received)
    try:
        value = float(_graph.constant_value(ops.tf, tensor))
    except ValueError:
        infinite = ops.constant(math.inf, tensor.dtype)
        with ops.after(
            ops.v1.assert_non_negative(tensor, message=message), ops.v1.assert_less(tensor, infinite, message=message)
        ):
            # XLA drops assertions: there nothing that is out of range goes on as a weight.
            valid = ops.logical_and(tensor >= 0, tensor < infinite)
            return ops.where(valid, tensor, ops.constant(math.nan, tensor.dtype))
    if not 0.0 <= value < math.inf:
        raise ValueError(received)
    return 1.0 if value == 1.0 else tensor


def shape_of(tf, i, gradient):
    """The shape of the whole gradient, a list."""
    if not _ops.is_sparse(gradient):
        if not gradient.shape.is_fully_defined():
            raise ValueError(
                "The shape of a gradient must be known at its first call. Received: {!r} as gradient {}. Give "
                "tf.ensure_shape(gradient, variable.shape) instead.".format(gradient, i)
            )
        return gradient.shape.as_list()
    try:
        return [int(size) for size in _dense_shape(tf, gradient)]
    except (TypeError, ValueError, AttributeError):
        raise ValueError(
            "The dense_shape of an IndexedSlices must be known at its first call. Received: {!r} as gradient {}. "
            "Give tf.IndexedSlices(gradient.values, gradient.indices, variable.shape) instead.".format(gradient, i)
        )


def _dense_shape(tf, gradient):
    operation = getattr(gradient.dense_shape, "graph", None) and gradient.dense_shape.op
    if operation is None or operation.type != "VariableShape":
        return _graph.constant_value(tf, gradient.dense_shape)
    # Up to TF 2.4 a function asks for the shape of its embedding only when it runs, though it knows it.
    handle = operation.inputs[0]
    if handle.op.type == "VarHandleOp":
        return tf.TensorShape(handle.op.get_attr("shape")).as_list()
    # What reading the variable would give, in a function that is traced and never called.
    read = tf.function(lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=gradient.dtype))
    return read.get_concrete_function().output_shapes.as_list()


def check_shape(i, gradient, whole):
    """Raise where a gradient does not fit the shape of the first one at its place."""
    shape, known = whole, getattr(gradient, "shape", None)
    if _ops.is_sparse(gradient):
        shape, known = shape[1:], gradient.values.shape[1:]
    if not shape.is_compatible_with(known):
        raise ValueError(
            "A GradientAccumulator takes gradients of the same shapes each time: {} at first. Received: {!r} as "
            "gradient {}. Make another GradientAccumulator for other variables.".format(shape, gradient, i)
        )


def check_fit(tf, grads_and_vars):
    """Raise where a gradient, if there is one, has not its variable's shape: before another one is added."""
    for gradient, variable in grads_and_vars:
        is_sparse = _ops.is_sparse(gradient)
        shape = gradient.values.shape if is_sparse else getattr(gradient, "shape", None)
        wanted = tf.TensorShape(getattr(variable, "shape", None))
        if shape is not None and not wanted[is_sparse:].is_compatible_with(tf.TensorShape(shape)[is_sparse:]):
            raise ValueError(
                "A gradient must have the shape of its variable. Received: one of the shape {} for {} of the shape {}. "
                "Nothing was accumulated. Pair each gradient with the variable that it is of.".format(
                    tuple(shape), getattr(variable, "name", variable), tuple(wanted)
                )
            )
