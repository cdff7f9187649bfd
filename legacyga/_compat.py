"""Where things live, and what a version of TensorFlow or Keras can do: the only file that knows.

Nothing here imports TensorFlow or Keras before somebody asks for a home. Features are looked for on the object
given; a version number is read only where two packages share one name (standalone Keras below 2.4 is a home of its
own, from 2.4 to 2.15 it *is* tf.keras, from 3 it is another library).
"""

import contextlib
import functools
import importlib
import sys
import types


def version_of(module):
    """The version of `module` as a tuple of its leading integers, `()` if it has none."""
    numbers = []
    for part in str(getattr(module, "__version__", "")).split("."):
        digits = part.split("-")[0].split("+")[0]
        if not digits.isdigit():
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _tensorflow():
    try:
        return importlib.import_module("tensorflow")
    except ImportError as error:
        raise ImportError(
            "legacyga works on the TensorFlow of your project and found none to import ({}). "
            "Install the tensorflow, and the Keras, that the project uses.".format(error)
        )


class TensorFlow(object):
    """The TensorFlow of this process: all there is to know for an optimizer of tf.compat.v1.train."""

    name = root = "tf.compat.v1.train"

    def __init__(self):
        self.tf = _tensorflow()

    @property
    def tf_version(self):
        return self.tf.__version__

    @property
    def v1(self):
        """tf.compat.v1, which TF 1.8 to 1.12 do not have: there it is tf itself."""
        return getattr(getattr(self.tf, "compat", None), "v1", self.tf)

    def check_branches_take(self, variable):
        """Raise where a reference variable cannot be written inside of a conditional."""
        in_functions = getattr(self.v1, "control_flow_v2_enabled", bool)
        if not hasattr(variable, "handle") and in_functions():
            raise ValueError(
                "The conditionals of this graph are functions, which cannot write to reference variables. Received: "
                "{!r}. Call tf.compat.v1.disable_control_flow_v2() first, or make it with use_resource=True.".format(
                    variable
                )
            )

    @property
    def graph_mode(self):
        """Whether what is built here and now is a TensorFlow 1 graph."""
        # TF 1.8 to 1.12 have nothing but tf.executing_eagerly to tell.
        outside_functions = getattr(self.v1, "executing_eagerly_outside_functions", self.tf.executing_eagerly)
        return not outside_functions()

    def check_can_train(self):
        """Raise where nothing can be trained at all, before TensorFlow or Keras say so in their own obscure way."""


class Home(TensorFlow):
    """One Keras: the module a model and its optimizer come from, and the TensorFlow below it.

    Args:
        module: `keras`, `tf.keras` or `tf_keras`.

    Attributes:
        module: what was given.
        root: the package that implements it (`"tensorflow.python.keras"`, `"keras.src"`, ...).
        name: `"keras"`, `"tf.keras"` or `"tf_keras"`.
    """

    def __init__(self, module):
        super(Home, self).__init__()
        self.module = module
        # `.models` is there from Keras 2.1 on, where `keras.Model` is not (standalone up to 2.2.0).
        implemented_in = module.models.Model.__module__
        self.is_keras3 = implemented_in.startswith("keras.src.models.")
        self.root = implemented_in.split(".models.")[0] if self.is_keras3 else implemented_in.split(".engine")[0]
        top = self.root.split(".")[0]
        self.is_standalone = top == "keras" and not self.is_keras3 and version_of(sys.modules["keras"]) < (2, 4)
        self.name = "keras" if self.is_standalone or self.is_keras3 else "tf_keras" if top == "tf_keras" else "tf.keras"

    def __repr__(self):
        # tf.keras of TF 2.13 to 2.15 has no version of its own.
        version = getattr(self.module, "__version__", None)
        return "{}{} on TensorFlow {}".format(self.name, " " + version if version else "", self.tf.__version__)

    @property
    def backend(self):
        """The home's own `keras.backend`, internal functions included."""
        return importlib.import_module(self.root + ".backend")

    @property
    def graph_mode(self):
        """Whether a model of this home, built here and now, runs in a TensorFlow 1 graph."""
        return self.is_standalone or super(Home, self).graph_mode

    @property
    def v1_optimizers(self):
        """The module whose `Optimizer` has `get_updates` alone: section 4 of the design is its table."""
        for name in (".optimizers.optimizer_v1", ".optimizer_v1", ".optimizers"):
            try:
                return importlib.import_module(self.root + name)
            except ImportError:
                continue
        raise ImportError("{!r} keeps no get_updates optimizers in {}".format(self, self.root))

    @property
    def eager_optimizers(self):
        """The module of the optimizers that MySGD takes in eager mode: the one place where that is settled.

        It is the newest generation that has a time-based `decay` of its own. That is OptimizerV2 wherever there is one
        (`tf.keras.optimizers` to 2.10, `.legacy` from 2.11 on and in tf_keras); Keras 3 has its one.
        """
        optimizers = self.module.optimizers
        if self.is_keras3:
            return optimizers
        # `legacy` is there from 2.9; deletable with TF 2.10.
        optimizers = getattr(optimizers, "legacy", optimizers)
        if not hasattr(optimizers.SGD, "apply_gradients"):
            raise ValueError(
                "legacyga needs TensorFlow 2.0 or newer in eager mode. Received: TensorFlow {} with eager execution "
                "enabled. Train in graph mode (do not enable eager execution).".format(self.tf.__version__)
            )
        return optimizers

    @property
    def v3_is_experimental(self):
        """Whether the v3 optimizers are those of TF 2.9 and 2.10: no slots for variables without gradient."""
        return hasattr(self.module.optimizers.SGD, "_resource_apply_dense")

    def check_can_train(self):
        if not self.is_keras3:
            return
        backend = self.module.backend.backend()
        if backend != "tensorflow":
            raise ValueError(
                "legacyga trains Keras 3 on its TensorFlow backend only. Received: the backend {!r}. "
                "Set KERAS_BACKEND=tensorflow before the first import of keras, or use Keras 3's own "
                "gradient_accumulation_steps.".format(backend)
            )
        if self.graph_mode:
            raise ValueError(
                "Keras 3 cannot train in graph mode, not even with its own optimizers. Received: {!r} after "
                "disable_eager_execution() or inside a tf.Graph. Remove that call, or use tf_keras.".format(self)
            )


def home_of(optimizer):
    """The `Home` of an optimizer of any Keras, None for anything else."""
    for cls in type(optimizer).__mro__:
        root, found, _ = cls.__module__.partition(".optimizer")
        if not found:
            continue
        top = root.split(".")[0]
        if top == "tf_keras":
            return Home(sys.modules["tf_keras"])
        keras = sys.modules.get("keras")
        if top == "keras" and keras is not None and (version_of(keras) < (2, 4) or version_of(keras) >= (3,)):
            return Home(keras)
        if top in ("keras", "tensorflow"):
            home = Home(_tensorflow().keras)
            if home.root == root:
                return home
            raise ValueError(
                "{} is an optimizer of {}, a private copy that TensorFlow keeps of Keras. Take the one of "
                "tf.keras.optimizers.".format(type(optimizer).__name__, root)
            )
    return None


def covered_optimizer(optimizer):
    """The name of the class of the optimizer that a TFOptimizer or a LossScaleOptimizer covers, None for any other."""
    # LossScaleOptimizer has `inner_optimizer` from TF 2.4 on, `_optimizer` before.
    for name in ("optimizer", "inner_optimizer", "_optimizer"):
        covered = vars(optimizer).get(name, vars(optimizer).get("_" + name))
        if generation_of(type(covered)):
            return type(covered).__name__
    return None


def generation_of(cls):
    """The name of the generation that an optimizer class is of, by the hooks it has; None if it is no optimizer.

    `"v1"`, `"train"`, `"v2"`, `"v3"` or `"keras3"`.
    """
    if hasattr(cls, "_resource_apply_dense"):
        return "v2" if hasattr(cls, "get_updates") else "train"
    if hasattr(cls, "update_step"):
        return "keras3" if hasattr(cls, "stateless_apply") else "v3"
    return "v1" if hasattr(cls, "get_updates") and hasattr(cls, "get_gradients") else None


def find_home(keras=None):
    """The Keras to make an optimizer for.

    Args:
        keras: a module (`keras`, `tf.keras`, `tf_keras`), or None: then standalone `keras` below 2.4 or `tf_keras`,
            whichever this process has imported, else `tf.keras`. (TensorFlow from 2.6 on imports `keras` by itself,
            so that Keras 3 being imported says nothing about the user.)

    Returns:
        A `Home`.

    Raises:
        ValueError: `keras` is not a Keras, or two of them are imported and none was named.
    """
    if keras is not None:
        if not isinstance(keras, types.ModuleType) or not hasattr(keras, "optimizers") or not hasattr(keras, "models"):
            raise ValueError(
                "keras must be the Keras module of your model: keras, tf.keras or tf_keras. Received: {!r}".format(
                    keras
                )
            )
        return Home(keras)
    found = []
    standalone = sys.modules.get("keras")
    if standalone is not None and () < version_of(standalone) < (2, 4):
        found.append(standalone)
    if "tf_keras" in sys.modules:
        found.append(sys.modules["tf_keras"])
    if len(found) > 1:
        raise ValueError(
            "Two Keras are imported, {} {} and {} {}, and an optimizer belongs to one. Name the one your model is made "
            "of: keras={} or keras={}.".format(
                *[text for module in found for text in (module.__name__, module.__version__)]
                + [module.__name__ for module in found]
            )
        )
    return Home(found[0] if found else _tensorflow().keras)


def _leaves(value):
    """The tensors and operations in nested lists, IndexedSlices and per-replica values."""
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    if is_sparse(value):
        return [value.values, value.indices]
    if isinstance(getattr(value, "values", None), tuple):
        return _leaves(value.values)
    return [value]


def is_sparse(gradient):
    """Whether a gradient is an IndexedSlices."""
    return hasattr(gradient, "indices") and hasattr(gradient, "values")


def variable_key(variable):
    """What tells one variable from another, the same for all its replicas."""
    container = getattr(variable, "_distributed_container", None)
    variable = (container and container()) or variable
    # In a graph (TF 1.14, 1.15) a variable has no id that is unique across graphs, but a name.
    return getattr(variable, "_unique_id", None) or variable.name


def is_variable(value):
    """Whether a value is a TensorFlow variable, of any version."""
    return hasattr(value, "assign_add") and hasattr(value, "read_value")


@contextlib.contextmanager
def lifted_variables(tf, made):
    """A context, for the inside of a conditional's branch: variables made in it are made outside of the branch.

    Their initial values must be constants (zeros, as the slots of the v1 optimizers are).

    Args:
        tf: TensorFlow.
        made: list of the variables that were made here another time, which are taken again, in that order; new ones
            are added to it.
    """
    v1 = getattr(getattr(tf, "compat", None), "v1", tf)
    again = iter(list(made))

    def lift(next_creator, **kwargs):
        found = next(again, None)
        if found is not None:
            return found
        value = kwargs["initial_value"]
        if hasattr(value, "graph"):
            value = constant_value(tf, value)
        with tf.init_scope():
            made.append(next_creator(**dict(kwargs, initial_value=value)))
        return made[-1]

    with v1.variable_creator_scope(lift):
        yield


@contextlib.contextmanager
def replica_local_variables(tf):
    """A context: variables made in it have a copy on each replica, where there is a strategy with replicas."""
    if not lifts_variables(tf):
        yield
        return
    v1 = getattr(getattr(tf, "compat", None), "v1", tf)

    def make_local(next_creator, **kwargs):
        kwargs.update(synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM)
        return next_creator(**kwargs)

    with v1.variable_creator_scope(make_local):
        yield


def constant_value(tf, tensor):
    """The NumPy value of a constant tensor."""
    # tf.get_static_value is there from TF 1.13 on, tf.contrib up to 1.15.
    find = getattr(tf, "get_static_value", None) or tf.contrib.util.constant_value
    value = find(tensor)
    if value is None:
        raise ValueError(
            "The optimizer starts one of its variables at a value that is not constant, and cannot be accumulated "
            "for. Received: {!r}. Make the variable in the optimizer's __init__.".format(tensor)
        )
    return value


def lifts_variables(tf):
    """Whether `lifted_variables` works: up to TF 1.10 tf.Variable passes the creators by. Deletable with 1.10."""
    return type(tf.Variable) is not type


def ordered(get_updates, ops):
    """An operation that runs an optimizer's updates: all that they read before all they write.

    In TensorFlow 1 graphs nothing orders the stock optimizers' reads of `iterations`, of their slots and of the
    parameters with the writes of the same step. The update operations get an edge from everything that is written.

    Args:
        get_updates: function that returns the updates, whose operations it makes.
        ops: an `Ops`.
    """
    graph = ops.v1.get_default_graph()
    made_before = len(graph.get_operations())
    updates = get_updates()
    late = [update for update in updates if isinstance(update, tuple)]
    writes = [getattr(update, "op", update) for update in updates if not isinstance(update, tuple)]
    values = [tensor.op for write in writes for tensor in write.inputs[1:]] + [value.op for _, value in late]
    before = set(writes)
    _order_early_writes(before, set(writes + values), graph.get_operations()[made_before:])
    # What is itself computed from a write of this step comes after that one, as its author meant.
    values = [value for value in values if not _reaches(value, before)]
    with ops.control_dependencies(values):
        barrier = ops.tf.no_op()
    for write in writes:
        write._add_control_input(barrier)
    with ops.control_dependencies([barrier]):
        writes += [variable.assign(value) for variable, value in late]
    return ops.done(writes)


def _order_early_writes(updates, last, made):
    """Give what writes on the way to the updates an edge from all that was made before it.

    Adam and Adamax of tf.keras increment `iterations` ahead of everything, and their decay reads it unordered.
    """
    place = {operation: i for i, operation in enumerate(made)}
    seen, stack = set(), [operation for operation in last if operation in place]
    while stack:
        each = stack.pop()
        if each not in seen:
            seen.add(each)
            sources = [tensor.op for tensor in each.inputs] + list(each.control_inputs)
            stack.extend(operation for operation in sources if operation in place)
    for write in seen - updates:
        if write.type.startswith("Assign"):
            for each in seen:
                if place[each] < place[write]:
                    write._add_control_input(each)


def _reaches(operation, targets):
    seen, stack = set(), [operation]
    while stack:
        each = stack.pop()
        if each in targets:
            return True
        if each not in seen:
            seen.add(each)
            stack.extend(tensor.op for tensor in each.inputs)
            stack.extend(each.control_inputs)
    return False


class Ops(object):
    """The few TensorFlow operations that the rule is written with, under one name in every version."""

    def __init__(self, tf):
        self.tf = tf
        # TF 1.8 to 1.12 have no tf.compat.v1. Its cond is the one that can be told to leave a list of one a list.
        self.v1 = v1 = getattr(getattr(tf, "compat", None), "v1", tf)
        self.cond = functools.partial(v1.cond, strict=True)
        # Public from TF 1.11 on.
        self.init_scope = getattr(tf, "init_scope", None) or importlib.import_module(tf.Tensor.__module__).init_scope
        self.where = tf.where
        self.equal = tf.equal
        self.cast = tf.cast
        self.identity = tf.identity
        self.maximum = tf.maximum
        self.ones_like = tf.ones_like
        self.zeros_like = tf.zeros_like
        # These take reference variables (TF 1) and resource variables alike.
        self.scatter_add = v1.scatter_add
        self.scatter_update = v1.scatter_update
        self.is_sparse = is_sparse
        self.control_dependencies = tf.control_dependencies

    def __deepcopy__(self, memo):
        # A copy of an optimizer is one on the same TensorFlow.
        return self

    def after(self, *values):
        """A context: what is made in it runs after `values`, whatever they are nested in."""
        # TF 2.4 knows the operation of a tensor of an outer function, but not the tensor. Deletable with 2.4.
        return self.control_dependencies(
            [getattr(leaf, "op", leaf) if isinstance(leaf, self.tf.Tensor) else leaf for leaf in _leaves(values)]
        )

    def done(self, values, result=True):
        """The constant `result`, there after `values`."""
        with self.after(values):
            return self.tf.constant(result)

    def dense(self, gradient):
        """`gradient` as a tensor."""
        return self.tf.convert_to_tensor(gradient)

    def weighted(self, gradient, weight, dtype):
        """`weight * gradient` in a dtype that is wide enough; IndexedSlices stay so."""
        dtype = self.tf.as_dtype(dtype).base_dtype
        if not is_sparse(gradient):
            return self.tf.cast(weight, dtype) * self.tf.cast(gradient, dtype)
        values = self.tf.cast(weight, dtype) * self.tf.cast(gradient.values, dtype)
        return self.tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)

    def mean_over_replicas(self, value):
        """In cross-replica context, the float32 mean of a scalar of each replica."""
        if isinstance(getattr(value, "values", None), tuple):
            value = sum(self.tf.cast(each, "float32") for each in value.values) / len(value.values)
        return self.tf.cast(value, "float32")

    def nonzero(self, vector):
        """The int64 indices of the elements that are not zero."""
        return self.tf.reshape(self.tf.where(self.tf.not_equal(vector, 0)), [-1])

    def gather(self, variable, indices):
        """Rows of a variable, as they are after what was written before."""
        # A reference variable (TF 1) gives the tensor that was read when it was made.
        return self.tf.gather(variable if hasattr(variable, "handle") else variable.read_value(), indices)

    def indexed_slices(self, values, indices, table):
        return self.tf.IndexedSlices(values, indices, self.tf.constant(table.shape.as_list(), "int64"))

    def local(self, variable):
        """In replica context, this replica's part of a variable, for the operations that ask for no less."""
        # `get` of TF 2.0 and 2.1 is `_get` from 2.2 on.
        get = getattr(variable, "_get", None) or getattr(variable, "get", None)
        return variable if get is None else get()

    def present_value(self, variable, graph_mode):
        """A tensor of what a variable holds; in a graph its initial value for as long as it holds nothing."""
        if not graph_mode:
            return variable.read_value()
        initialized = self.v1.is_variable_initialized(variable)
        return self.v1.cond(initialized, variable.read_value, lambda: variable.initial_value)

    def on_all_replicas(self, function, args):
        """`function(run, *args)` in cross-replica context, where `run(each, args)` calls `each` on every replica."""
        if not hasattr(getattr(self.tf, "distribute", None), "get_replica_context"):
            # TF 1.8 to 1.12: one replica.
            return function(lambda each, args: each(*args), *args)

        def across(strategy, *args):
            return function(strategy.extended.call_for_each_replica, *args)

        replica = self.tf.distribute.get_replica_context()
        return across(self.tf.distribute.get_strategy(), *args) if replica is None else replica.merge_call(across, args)

    def replica_number(self):
        """Which of the replicas this is, an int; 0 where there is one, or none."""
        distribute = getattr(self.tf, "distribute", None)
        replica = distribute.get_replica_context() if hasattr(distribute, "get_replica_context") else None
        number = 0 if replica is None else replica.replica_id_in_sync_group
        return number if isinstance(number, int) else int(constant_value(self.tf, number))

    def in_replica_context(self):
        """Whether gradients can be applied here: everywhere but in the cross-replica context of a strategy."""
        distribute = getattr(self.tf, "distribute", None)
        return not hasattr(distribute, "get_replica_context") or distribute.get_replica_context() is not None

    def constant(self, value, dtype):
        return self.tf.constant(value, dtype)

    def accumulator_dtype(self, dtype):
        """float64 for float64 and complex as they are; float32 for float32 and everything narrower."""
        dtype = self.tf.as_dtype(dtype).base_dtype
        return dtype if dtype.size >= 4 else self.tf.float32
