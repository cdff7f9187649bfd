"""What a TensorFlow 1 graph needs: lifted variables, one mini-step at a time."""

import contextlib
import importlib

from legacyga.backend import homes


def lifts_variables(tf):
    """Whether `lifted_variables` works: up to TF 1.10 tf.Variable passes the creators by. Deletable with 1.10."""
    return type(tf.Variable) is not type


def variable_creator_scope(tf):
    """tf.variable_creator_scope, which is public from TF 1.12 on."""
    found = getattr(homes.v1_of(tf), "variable_creator_scope", None)
    return found or importlib.import_module("tensorflow.python.ops.variable_scope").variable_creator_scope


def check_branches_take(tf, variable):
    """Raise where a reference variable cannot be written inside of a conditional."""
    in_functions = getattr(homes.v1_of(tf), "control_flow_v2_enabled", bool)
    if not hasattr(variable, "handle") and in_functions():
        raise ValueError(
            "The conditionals of this graph are functions, which cannot write to reference variables. Received: "
            "{!r}. Call tf.compat.v1.disable_control_flow_v2() first, or make it with use_resource=True.".format(
                variable
            )
        )


@contextlib.contextmanager
def lifted_variables(tf, made):
    """A context, for the inside of a conditional's branch: variables made in it are made outside of the branch.

    Their initial values must be constants (zeros, as the slots of the v1 optimizers are).

    Args:
        tf: TensorFlow.
        made: list of the variables that were made here another time, which are taken again, in that order; new ones
            are added to it.
    """
    again = iter(list(made))

    def lift(next_creator, **kwargs):
        found = next(again, None)
        if found is not None:
            return found
        value = kwargs["initial_value"]
        is_tensor = hasattr(value, "graph")
        value = constant_value(tf, value) if is_tensor else value
        with tf.init_scope():
            # A graph holds all of a constant, and no more than 2 GiB.
            if is_tensor and value.size and (value == value.flat[0]).all():
                value = tf.fill(value.shape, value.flat[0])
            made.append(next_creator(**dict(kwargs, initial_value=value)))
        return made[-1]

    with variable_creator_scope(tf)(lift):
        yield


def constant_value(tf, tensor):
    """The NumPy value of a constant tensor."""
    find = getattr(tf, "get_static_value", None)
    if find is None:
        # Up to TF 1.13. tf.contrib has it too, and takes seconds and 60 MiB to load.
        find = importlib.import_module("tensorflow.python.framework.tensor_util").constant_value
    value = find(tensor)
    if value is None:
        raise ValueError(
            "The optimizer starts one of its variables at a value that is not constant, and cannot be accumulated "
            "for. Received: {!r}. Make the variable in the optimizer's __init__.".format(tensor)
        )
    return value


class Mutex(object):
    """A lock in a graph: of the mini-steps that one session call makes on a window, one at a time.

    Without it nothing orders them: neither of them needs what the other makes.

    Args:
        ops: an `ops.Ops`.
        beside: a variable of the window. Where it is on a parameter server the lock is there too, one for all workers.
    """

    def __init__(self, ops, beside):
        self._ops = ops
        # tf.raw_ops is there from TF 1.14 on.
        self._raw = getattr(ops.tf, "raw_ops", None)
        if self._raw is None:
            self._raw = importlib.import_module("tensorflow.python.ops.gen_resource_variable_ops")
        spec = ops.v1.DeviceSpec.from_string(beside.device or "")
        # TF 1.8 to 1.12 cannot make one device of another's parts.
        self._server = ops.v1.DeviceSpec(spec.job, spec.replica, spec.task, "CPU", 0) if spec.job else None
        self._handle = self._make("MutexV2", "mutex_v2", shared_name=beside.name if spec.job else "")

    def _make(self, name, old_name, **kwargs):
        with self._ops.v1.device(self._server):
            return (getattr(self._raw, name, None) or getattr(self._raw, old_name))(**kwargs)

    @contextlib.contextmanager
    def held(self):
        """A context: what is made in it runs with the lock. Yields a function of the last result: free, then it."""
        ops, lock = self._ops, self._make("MutexLock", "mutex_lock", mutex=self._handle)

        def free(result):
            with ops.after(result):
                freed = self._make("ConsumeMutexLock", "consume_mutex_lock", mutex_lock=lock)
            with ops.after(freed):
                return ops.identity(result)

        with ops.after(lock):
            yield free


def with_values_of(pairs, update, ops):
    """`update`, whose operations are in this graph, on the values of other variables than those it was made for.

    Args:
        pairs: list of (other variable, variable). The variables begin with the values of the others, and the others
            end with theirs.
        update: a tensor or operation after which all is written.
        ops: an `ops.Ops`.
    """
    made = ops.v1.get_default_graph().get_operations()
    begun = [new.assign(old.read_value()).op for old, new in pairs]
    for begin in begun:
        # The variable, by the name that it has in this branch.
        handle = begin.inputs[0].name
        for operation in made:
            if operation.inputs and operation.inputs[0].name == handle:
                operation._add_control_input(begin)
    with ops.after(update, begun):
        return ops.done([old.assign(new.read_value()) for old, new in pairs])


def reaches(operation, targets):
    """Whether an operation needs one of `targets`, operations, whatever lies between."""
    return bool(ancestors([operation], targets) & set(targets))


def ancestors(operations, stop=()):
    """A set of what some operations need, themselves included; of what `stop` needs nothing."""
    seen, stack = set(), list(operations)
    while stack:
        each = stack.pop()
        if each not in seen:
            seen.add(each)
            if each not in stop:
                stack.extend(tensor.op for tensor in each.inputs)
                stack.extend(each.control_inputs)
    return seen


def function_with(graph, operations, is_one):
    """The name of an operation within the functions that operations call, None without one.

    Args:
        is_one: a function of an operation's type and name.
    """
    called = {value.func.name for each in operations for value in each.node_def.attr.values() if value.func.name}
    functions = {each.signature.name: each for each in graph.as_graph_def().library.function} if called else {}
    seen = set()
    while called - seen:
        name = (called - seen).pop()
        seen.add(name)
        for node in functions[name].node_def if name in functions else ():
            if is_one(node.op, node.name):
                return node.name
            called.update(value.func.name for value in node.attr.values() if value.func.name)
    return None
