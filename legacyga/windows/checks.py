"""Check the gradients and weights that a caller passes; define the error texts."""

import math

from legacyga.backend import graph
from legacyga.backend.messages import shown
from legacyga.backend.tensors import is_sparse

NO_CALL = (
    "The gradients of a GradientAccumulator are there after its first call. Received: no call yet. Call it with a list "
    "of gradients first."
)
MISSING = (
    "The window of a checkpoint has a gradient that this program has not had yet. Received: None in every call, at the "
    "places {}. Give zeros there once: tape.gradient(..., unconnected_gradients=tf.UnconnectedGradients.ZERO)."
)
NOT_SAVED = (
    "The window of a checkpoint waits for the gradients that it is put beside, and would be lost. Received: a "
    "checkpoint to save. Take a mini-step first, with a gradient for each variable that had one."
)
NOT_PICKLED = (
    "A GradientAccumulator can be pickled, or copied, in eager mode, outside of a strategy, and not while a restored "
    "checkpoint waits for a gradient. Received: {}. Save it by tf.train.Checkpoint(accumulator=accumulator)."
)
UNKNOWN_SHAPE = (
    "A variable must have a known shape to be accumulated for. Received: {} of the shape {}. Make it without `shape=`, "
    "so that it has the shape of its value, or set gradient_accumulation_steps=1."
)
ROWS = (
    "An IndexedSlices must have values for each of its rows, and rows that its variable has, which has the shape {}. "
    "Received: {} as gradient {}. Nothing was accumulated."
)


def refuse_to_save(name):
    raise ValueError(NOT_SAVED)


def check_gradients(ops, gradients, number):
    """Return `gradients` as a list of tensors, IndexedSlices and None; `number` is the expected number, or None."""
    is_list = hasattr(gradients, "__iter__") and not (hasattr(gradients, "dtype") or isinstance(gradients, (str, dict)))
    gradients = list(gradients) if is_list else gradients
    # Refuse pairs (gradient, variable): TensorFlow would make one tensor of each.
    if not is_list or any(isinstance(each, tuple) and not is_sparse(each) for each in gradients):
        raise ValueError(
            "gradients must be a list with a tensor, an IndexedSlices or None for each variable. Received: {}".format(
                shown(gradients)
            )
        )
    gradients = [
        gradient if gradient is None else ops.as_tensors(gradient) if is_sparse(gradient) else ops.dense(gradient)
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
            "gradients must contain one that is not None. Received: {}. Compute the loss inside of the "
            "GradientTape, from the variables whose gradients are asked for.".format(shown(gradients))
        )
    return gradients


def check_weight(ops, weight):
    """Return `weight` as a float64 tensor, or as Python's 1.0 if it is known to be 1."""
    message = "weight must be a finite number, or a scalar tensor, of at least 0."
    received = "{} Received: {}".format(message, shown(weight))
    if weight is None or isinstance(weight, (str, bool)):
        raise ValueError(received)
    # TensorFlow would convert a Python number to float32.
    convert = ops.tf.convert_to_tensor
    tensor = ops.cast(convert(weight), "float64") if hasattr(weight, "dtype") else convert(weight, "float64")
    if tensor.shape.ndims not in (0, None):
        raise ValueError(received)
    try:
        value = float(graph.constant_value(ops.tf, tensor))
    except ValueError:
        # Neither infinity nor NaN as a constant: tf.debugging.enable_check_numerics would raise.
        one, most = ops.constant(1, tensor.dtype), ops.constant(tensor.dtype.max, tensor.dtype)
        with ops.after(
            ops.v1.assert_non_negative(tensor, message=message), ops.v1.assert_less_equal(tensor, most, message=message)
        ):
            # XLA drops the assertions, so make a weight out of range NaN, the root of -1.
            valid = ops.logical_and(tensor >= 0, tensor <= most)
            return tensor * ops.tf.sqrt(ops.where(valid, one, -one))
    if not 0.0 <= value < math.inf:
        raise ValueError(received)
    return 1.0 if value == 1.0 else tensor


def _shape_of(tf, i, gradient):
    """Return the shape of a gradient, or the dense_shape of an IndexedSlices, as a list."""
    if not is_sparse(gradient):
        if not gradient.shape.is_fully_defined():
            raise ValueError(
                "The shape of a gradient must be known at its first call. Received: {} as gradient {}. Give "
                "tf.ensure_shape(gradient, variable.shape) instead.".format(shown(gradient), i)
            )
        return gradient.shape.as_list()
    try:
        return [int(size) for size in _dense_shape(tf, gradient)]
    except (TypeError, ValueError, AttributeError):
        raise ValueError(
            "The dense_shape of an IndexedSlices must be known at its first call. Received: {} as gradient {}. "
            "Give tf.IndexedSlices(gradient.values, gradient.indices, variable.shape) instead.".format(
                shown(gradient), i
            )
        )


def _dense_shape(tf, gradient):
    operation = getattr(gradient.dense_shape, "graph", None) and gradient.dense_shape.op
    if operation is None or operation.type != "VariableShape":
        return graph.constant_value(tf, gradient.dense_shape)
    # In a traced function an embedding's dense_shape is no constant: ask its variable. Delete with TF 2.4.
    handle = operation.inputs[0]
    if handle.op.type == "VarHandleOp":
        return tf.TensorShape(handle.op.get_attr("shape")).as_list()
    # Trace a read of the variable to learn its shape; the function is never called.
    read = tf.function(lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=gradient.dtype))
    return read.get_concrete_function().output_shapes.as_list()


def shapes_of(tf, gradients, sums):
    """Return the shapes of the gradients' variables as lists, None for no gradient; check them against the `Sums`."""
    shapes = [None] * len(gradients)
    for i, (gradient, state) in enumerate(zip(gradients, sums.states or shapes)):
        sums.check_not_late(i, gradient, "Place {} of the gradients".format(i), "GradientAccumulator")
        if gradient is not None and state is None:
            shapes[i] = _shape_of(tf, i, gradient)
        elif gradient is not None:
            _check_alike(i, gradient, state)
            shapes[i] = state.total.shape.as_list()
    return shapes


def _check_alike(i, gradient, state):
    """Raise if a gradient differs from the first one at its place in dtype, or in shape."""
    if gradient.dtype.base_dtype != state.dtype:
        raise ValueError(
            "A GradientAccumulator takes gradients of the same dtypes each time: {} at first. Received: {} as "
            "gradient {}. Cast it, or make another GradientAccumulator.".format(
                state.dtype.name, gradient.dtype.name, i
            )
        )
    whole = state.total.shape
    shape, known = whole, getattr(gradient, "shape", None)
    if is_sparse(gradient):
        shape, known = shape[1:], gradient.values.shape[1:]
    if not shape.is_compatible_with(known):
        raise ValueError(
            "A GradientAccumulator takes gradients of the same shapes each time: {} at first. Received: {} as "
            "gradient {}. Make another GradientAccumulator for other variables.".format(shape, shown(gradient), i)
        )


def check_rows(ops, gradients, shapes):
    """In eager mode, raise before any write if an IndexedSlices has a row that its variable lacks, or a wrong shape."""
    if not ops.tf.executing_eagerly():
        # A graph raises when it runs; on a GPU it ignores rows out of range.
        return
    for i, (gradient, shape) in enumerate(zip(gradients, shapes)):
        if not is_sparse(gradient):
            continue
        rows, shape = gradient.indices.numpy(), [int(size) for size in shape]
        outside, sizes = rows[(rows < 0) | (rows >= shape[0])], gradient.values.shape.as_list()
        if outside.size or sizes != [len(rows)] + shape[1:]:
            received = (
                "the row {}".format(outside[0]) if outside.size else "{} rows, values {}".format(len(rows), sizes)
            )
            raise ops.tf.errors.InvalidArgumentError(None, None, ROWS.format(shape, received, i))


def check_shapes(tf, var_list):
    """Raise if a variable has no fully known shape, before anything is created for it."""
    for var in var_list:
        if not tf.TensorShape(var.shape).is_fully_defined():
            raise ValueError(UNKNOWN_SHAPE.format(var.name, var.shape))


def check_fit(tf, grads_and_vars):
    """Raise, before any gradient is added, if one that is not None lacks its variable's shape."""
    for gradient, variable in grads_and_vars:
        has_rows = is_sparse(gradient)
        shape = gradient.values.shape if has_rows else getattr(gradient, "shape", None)
        wanted = tf.TensorShape(getattr(variable, "shape", None))
        if shape is not None and not wanted[has_rows:].is_compatible_with(tf.TensorShape(shape)[has_rows:]):
            raise ValueError(
                "A gradient must have the shape of its variable. Received: one of the shape {} for {} of the shape {}. "
                "Nothing was accumulated. Pair each gradient with the variable that it is of.".format(
                    tuple(shape), getattr(variable, "name", variable), tuple(wanted)
                )
            )
