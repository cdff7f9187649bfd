"""Lift variables out of branches, lock mini-steps, and search operations, in a graph."""

import contextlib
import itertools

from legacyga.backend import features
from legacyga.backend.messages import shown
from legacyga.backend.tensors import is_sparse

GRADIENT = "LegacygaGivenGradient"
# Operations that read a variable but do not write it.
READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")


def check_branches_can_write(tf, variable):
    """Raise if `variable` is a reference variable, and the graph's conditionals are functions: they cannot write it."""
    if not hasattr(variable, "handle") and features.has_branches_that_are_functions(tf):
        raise ValueError(
            "The conditionals of this graph are functions, which cannot write to reference variables. Received: "
            "{}. Call tf.compat.v1.disable_control_flow_v2() first, or make it with use_resource=True.".format(
                shown(variable)
            )
        )


@contextlib.contextmanager
def lifted_variables(tf, made):
    """Return a context that creates a branch's variables outside of the branch. Initial tensors must be constant."""
    # First take, in order, the variables that an earlier build of the branch has `made`. Append new ones.
    again = iter(list(made))

    def lift(next_creator, **kwargs):
        found = next(again, None)
        if found is not None:
            return found
        value = kwargs["initial_value"]
        is_tensor = hasattr(value, "graph")
        value = constant_value(tf, value) if is_tensor else value
        with tf.init_scope():
            # A graph stores a constant in full, and holds at most 2 GiB.
            if is_tensor and value.size and (value == value.flat[0]).all():
                value = tf.fill(value.shape, value.flat[0])
            made.append(next_creator(**dict(kwargs, initial_value=value)))
        return made[-1]

    with features.variable_creator_scope(tf)(lift):
        yield


def constant_value(tf, tensor):
    """Return the NumPy value of a constant tensor, else raise ValueError."""
    value = features.static_value(tf)(tensor)
    if value is None:
        raise ValueError(
            "The optimizer starts one of its variables at a value that is not constant, and cannot be accumulated "
            "for. Received: {}. Make the variable in the optimizer's __init__.".format(shown(tensor))
        )
    return value


class Mutex(object):
    """A lock in a graph: it runs mini-steps, which nothing else orders, one at a time."""

    def __init__(self, ops, beside):
        self._ops = ops
        # If the variable `beside` is on a parameter server, so is the lock, one for all workers.
        spec = ops.v1.DeviceSpec.from_string(beside.device or "")
        # Use the constructor: TF up to 1.12 cannot build a device from parts of another. Delete with TF 1.12.
        self._server = ops.v1.DeviceSpec(spec.job, spec.replica, spec.task, "CPU", 0) if spec.job else None
        self._handle = self._make("MutexV2", "mutex_v2", shared_name=beside.name if spec.job else "")

    def _make(self, name, old_name, **kwargs):
        with self._ops.v1.device(self._server):
            return features.raw_op(self._ops.tf, name, old_name)(**kwargs)

    @contextlib.contextmanager
    def held(self):
        """Run what the context creates under the lock. Yields `free`: `free(result)` unlocks and returns `result`."""
        ops, lock = self._ops, self._make("MutexLock", "mutex_lock", mutex=self._handle)

        def free(result):
            with ops.after(result):
                freed = self._make("ConsumeMutexLock", "consume_mutex_lock", mutex_lock=lock)
            with ops.after(freed):
                return ops.identity(result)

        with ops.after(lock):
            yield free


def one_at_a_time(mutex, function):
    """Return `function()`, run under the `Mutex`, which is None outside of TF 1 graphs."""
    if mutex is None:
        return function()
    with mutex.held() as free:
        return free(function())


def with_values_of(pairs, update, ops):
    """Run `update`, which is already in this graph and uses new variables, as if it used the old ones.

    For each pair (old, new), assign the value of `old` to `new` before the update, and of `new` to `old` after it.
    """
    made = ops.v1.get_default_graph().get_operations()
    begun = [new.assign(old.read_value()).op for old, new in pairs]
    for begin in begun:
        # All uses of `new` wait. In a branch they take it from the assignment's Switch: compare the input's name.
        handle = begin.inputs[0].name
        for operation in made:
            if operation.inputs and operation.inputs[0].name == handle:
                operation._add_control_input(begin)
    with ops.after(update, begun):
        return ops.done([old.assign(new.read_value()) for old, new in pairs])


def term_of(ops, gradient, param):
    """Return a term of a loss: a scalar whose gradient with respect to `param` is `gradient`."""
    tf, has_rows = ops.tf, is_sparse(gradient)

    def backward(op, upstream, *_):
        return [None, ops.cast(upstream, op.inputs[2].dtype) * op.inputs[2], None]

    # Register one gradient for all terms. tf.custom_gradient would register each for good, and keep its graph alive.
    with contextlib.suppress(KeyError):
        tf.RegisterGradient(GRADIENT)(backward)
    point = tf.gather(param, gradient.indices) if has_rows else tf.convert_to_tensor(param)
    with ops.v1.get_default_graph().gradient_override_map({"IdentityN": GRADIENT}):
        return tf.identity_n([tf.constant(0.0), point, gradient.values if has_rows else gradient])[0]


def reaches(operation, targets):
    """Whether an operation needs one of the operations in `targets`, directly or not."""
    return bool(ancestors([operation], targets) & set(targets))


def ancestors(operations, stop=()):
    """All operations that these operations need, including themselves: a set. The search ends at those in `stop`."""
    seen, stack = set(), list(operations)
    while stack:
        each = stack.pop()
        if each not in seen:
            seen.add(each)
            stack.extend(() if each in stop else sources(each))
    return seen


def sources(operation):
    """The operations whose outputs an operation uses, or that it waits for: a list."""
    return [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)


def dimension_of(tf, tensor):
    """Return i if a tensor is the size of another's dimension i, or sizes that begin at dimension i > 0; else None."""
    operation = tensor.op
    if operation.type not in ("StridedSlice", "Unpack") or operation.inputs[0].op.type != "Shape":
        return None
    if operation.type == "Unpack":
        return tensor.value_index
    begin = features.static_value(tf)(operation.inputs[1])
    if begin is None:
        return None
    rank = operation.inputs[0].op.inputs[0].shape.ndims
    dimension = int(begin[0]) if begin[0] >= 0 else int(begin[0]) + rank if rank else None
    return dimension if tensor.shape.ndims == 0 or dimension else None


def descendants(operations, carries=lambda tensor: True):
    """`operations` and all that use their results, directly or not: a set. Follows tensors that `carries` accepts."""
    seen, stack = set(), list(operations)
    while stack:
        each = stack.pop()
        if each not in seen:
            seen.add(each)
            stack.extend(reader for tensor in each.outputs if carries(tensor) for reader in tensor.consumers())
    return seen


def grouped(operation):
    """Return the operations of a group, with nested groups flattened."""
    if operation.type != "NoOp":
        return [operation]
    return [each for inner in operation.control_inputs for each in grouped(inner)]


def written_by(operations):
    """Return the operations of the variables that these operations write: a set."""
    return {each.inputs[0].op for each in operations if "Assign" in each.type or "Scatter" in each.type}


def operation_of(variable):
    """Return the operation that holds a variable, or makes a tensor."""
    return getattr(getattr(variable, "handle", None), "op", variable.op)


def contexts(context):
    """A control flow context and those around it: a list, empty for None."""
    return [] if context is None else [context] + contexts(context.outer_context)


def variables_of(tf, graph):
    """Return [(handle, dtype, its tensor in the graph)] of the variables that a traced function uses."""
    found = []
    for outer, inner in zip(graph.external_captures, graph.internal_captures):
        data = getattr(outer, "_handle_data", None)
        if inner.dtype == tf.resource and data is not None and data.is_set:
            found.append((outer, tf.as_dtype(data.shape_and_type[0].dtype), inner))
    return found


def operation_with(graph, operations, is_one):
    """The name of an operation, of these or in functions they call, for which `is_one(type, name)` holds; else None."""
    name = next((each.name for each in operations if is_one(each.type, each.name)), None)
    if name:
        return name
    called = set(itertools.chain(*(_called_by(each.node_def) for each in operations)))
    functions = {each.signature.name: each for each in graph.as_graph_def().library.function} if called else {}
    seen = set()
    while called - seen:
        name = (called - seen).pop()
        seen.add(name)
        for node in functions[name].node_def if name in functions else ():
            if is_one(node.op, node.name):
                return node.name
            called.update(_called_by(node))
    return None


def _called_by(node):
    """Yield the names of the functions that a node calls: `tf.switch_case` has a list of them."""
    for value in node.attr.values():
        for each in [value.func] + list(value.list.func):
            if each.name:
                yield each.name
