"""Tell what a TensorFlow value is: a variable, rows of a table, or the parts of several replicas."""


def is_sparse(gradient):
    """Whether a gradient is an IndexedSlices."""
    return hasattr(gradient, "indices") and hasattr(gradient, "values")


def is_variable(value):
    """Whether a value is a TensorFlow variable, in any version."""
    return hasattr(value, "assign_add") and hasattr(value, "read_value")


def is_differentiable(dtype):
    """Whether a tensor of this tf.DType may have a gradient."""
    return dtype.is_floating or dtype.is_complex


def variable_key(variable):
    """Return a key that identifies a variable, the same on all its replicas."""
    # A Keras 3 variable holds a TensorFlow variable.
    variable = variable if is_variable(variable) else getattr(variable, "_value", variable)
    container = getattr(variable, "_distributed_container", None)
    variable = (container and container()) or variable
    # A reference variable lacks this id, and its name is unique in its graph.
    return getattr(variable, "_unique_id", None) or variable.name


def parts_of(value):
    """Return this process's parts of a value, one for each replica: a tuple."""
    values = getattr(value, "values", None)
    return values if isinstance(values, tuple) else (value,)


def leaves_of(value):
    """Return the tensors and operations in nested lists, IndexedSlices and per-replica values: a list."""
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        # Use a loop: AutoGraph cannot read this as one expression. Delete with TF 2.0.
        found = []
        for item in value:
            found.extend(leaves_of(item))
        return found
    if is_sparse(value):
        return [value.values, value.indices]
    parts = parts_of(value)
    return [value] if parts[0] is value else leaves_of(parts)
