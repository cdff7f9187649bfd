"""What a value of TensorFlow is: a variable, rows of a table, or the parts that several replicas have."""


def is_sparse(gradient):
    """Whether a gradient is an IndexedSlices."""
    return hasattr(gradient, "indices") and hasattr(gradient, "values")


def is_variable(value):
    """Whether a value is a TensorFlow variable, of any version."""
    return hasattr(value, "assign_add") and hasattr(value, "read_value")


def variable_key(variable):
    """What tells one variable from another, the same for all its replicas."""
    # A variable of Keras 3 holds one of TensorFlow's.
    variable = variable if is_variable(variable) else getattr(variable, "_value", variable)
    container = getattr(variable, "_distributed_container", None)
    variable = (container and container()) or variable
    # A graph's variable has a name that is unique in its graph, and no such id. Delete with TF 1.15.
    return getattr(variable, "_unique_id", None) or variable.name


def parts_of(value):
    """The parts of a value that this process has, one a replica: a tuple."""
    values = getattr(value, "values", None)
    return values if isinstance(values, tuple) else (value,)


def leaves_of(value):
    """The tensors and operations in nested lists, IndexedSlices and per-replica values: a list."""
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        # A loop, for AutoGraph cannot read this as one expression. Delete with TF 2.0.
        found = []
        for item in value:
            found.extend(leaves_of(item))
        return found
    if is_sparse(value):
        return [value.values, value.indices]
    parts = parts_of(value)
    return [value] if parts[0] is value else leaves_of(parts)
