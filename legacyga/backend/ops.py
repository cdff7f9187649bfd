"""TensorFlow's operations, under one name in every version."""

import contextlib
import functools
import math
import signal
import threading

from legacyga.backend import features, replicas
from legacyga.backend.tensors import is_sparse, leaves_of, parts_of

# By class, what `trackable` has made of it.
_TRACKABLE = {}


def trackable(tf, cls):
    """The subclass of `cls` whose variables, where they are attributes, checkpoints take in; `cls` up to TF 1.13."""
    base = features.trackable_base(tf)
    if base is None or issubclass(cls, base):
        return cls
    if cls not in _TRACKABLE:
        own = dict(__doc__=cls.__doc__, __module__=cls.__module__)
        _TRACKABLE[cls] = type(cls.__name__, (cls, base), own)
    return _TRACKABLE[cls]


def _is_traced_with_outer(graph):
    """Whether a graph is a part of the function around it, traced each time that this is: a loop or a branch."""
    kind = type(graph).__name__
    if kind != "FuncGraph":
        return kind in ("CondBranchFuncGraph", "WhileBodyFuncGraph")
    # Those of Dataset.reduce, and of AutoGraph's loops over data sets, have nothing but their names.
    return graph.name.startswith(("reduce_", "Dataset_", "tf_data_"))


class Ops(object):
    """The few TensorFlow operations that the rule is written with, under one name in every version.

    Attributes:
        replicas: a `replicas.Replicas`.
    """

    def __init__(self, tf):
        self.tf = tf
        self.replicas = replicas.Replicas(tf)
        self.v1 = v1 = features.v1_of(tf)
        # The cond of compat.v1 alone takes `strict`, by which it returns a list of one as a list.
        self.cond = functools.partial(v1.cond, strict=True)
        self.init_scope = features.init_scope(tf)
        self.where, self.equal, self.maximum = tf.where, tf.equal, tf.maximum
        self.logical_not, self.logical_and, self.logical_or = tf.logical_not, tf.logical_and, tf.logical_or
        self.cast, self.constant, self.identity = tf.cast, tf.constant, tf.identity
        self.ones_like, self.reduce_any, self.unstack = tf.ones_like, tf.reduce_any, tf.unstack
        self.dense = tf.convert_to_tensor
        self.is_finite = features.is_finite(tf)
        # Those of compat.v1 take reference variables and resource variables alike.
        self.scatter_add, self.scatter_update = v1.scatter_add, v1.scatter_update

    def __deepcopy__(self, memo):
        # A copy of an optimizer is one on the same TensorFlow.
        return self

    def after(self, *values):
        """A context: what is made in it runs after `values`, whatever they are nested in. Eagerly all is in order."""
        if self.tf.executing_eagerly():
            return contextlib.ExitStack()
        # TF 2.4 takes the operation of an outer function's tensor, but not the tensor. Delete with TF 2.4.
        return self.tf.control_dependencies(
            [getattr(leaf, "op", leaf) if isinstance(leaf, self.tf.Tensor) else leaf for leaf in leaves_of(values)]
        )

    def done(self, values, result=True):
        """The constant `result`, there after `values`."""
        if self.tf.executing_eagerly():
            return self.tf.constant(result)
        with self.after(values):
            return self.tf.constant(result)

    @contextlib.contextmanager
    def uninterrupted(self):
        """A context, in eager mode, at whose end a Ctrl-C is raised that came within: what is written goes together.

        Python raises it between any two lines of the main thread, and nowhere else.
        """
        is_main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGINT) if is_main and self.tf.executing_eagerly() else None
        if not callable(handler):
            yield
            return
        came = []
        signal.signal(signal.SIGINT, lambda *args: came.append(args))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)
            if came:
                handler(*came[-1])

    def completed(self, function):
        """What `function()` returns, a boolean tensor, there when all that it makes has run.

        A function that is traced waits for what no operation is known of at its own end; so this is a branch, which
        waits at its own.
        """
        if not hasattr(self.graph_here(), "outer_graph"):
            return function()
        return self.cond(self.constant(True, "bool"), function, lambda: self.constant(False, "bool"))

    def as_tensors(self, gradient, dtype=None):
        """A gradient with tensors in place of lists or arrays in IndexedSlices; `dtype` is that of a list's numbers."""
        if not is_sparse(gradient):
            return gradient
        values = self.v1.convert_to_tensor(gradient.values, preferred_dtype=dtype)
        return self.tf.IndexedSlices(values, self.tf.convert_to_tensor(gradient.indices), gradient.dense_shape)

    def zeros(self, shape, dtype):
        """Zeros; in a graph of TF 1 such as take no memory but while they are needed."""
        zero = self.tf.zeros([], dtype)
        in_graph = not self.tf.executing_eagerly() and not hasattr(self.v1.get_default_graph(), "outer_graph")
        # XLA takes no timestamp.
        if in_graph and not self.is_compiled():
            # A session keeps what it can compute ahead, up to 10 MiB each, and sees that a placeholder has a default.
            zero = self.cast(self.v1.timestamp() < 0, dtype)
        return self.tf.fill(shape, zero)

    def zeros_like(self, value, dtype=None):
        """Zeros of a tensor's shape, as `zeros` makes them."""
        return self.zeros(self.tf.shape(value), value.dtype.base_dtype if dtype is None else dtype)

    def weighted(self, gradient, weight, dtype):
        """`weight * gradient` in a dtype that is wide enough, 0 where the weight is; IndexedSlices stay so."""
        if is_sparse(gradient):
            values = self.weighted(gradient.values, weight, dtype)
            return self.tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        dtype = self.tf.as_dtype(dtype).base_dtype
        gradient, weight = self.tf.cast(gradient, dtype), self.tf.cast(weight, dtype)
        # A product with 0 would keep the NaN of a mean over no samples.
        multiply = features.multiply_no_nan(self.tf)
        if multiply is not None:
            return multiply(gradient, weight)
        return self.cond(self.equal(weight, 0), lambda: self.zeros_like(gradient), lambda: gradient * weight)

    def not_finite(self, gradients):
        """A float32 vector with a 1 for each of the gradients that has an element which is not finite, else 0."""
        tensors = [gradient.values if is_sparse(gradient) else gradient for gradient in gradients]
        tensors = [self.tf.abs(each) if each.dtype.is_complex else each for each in tensors]
        tensors = [self.cast(each, self.accumulator_dtype(each.dtype)) for each in tensors]
        # A sum is not finite where an element is not. It costs a tenth, and may overflow where all are.
        sums = self.tf.stack([self.cast(self.tf.reduce_sum(each), "float64") for each in tensors])
        found = self.is_finite(sums)

        def by_element():
            return self.tf.stack([self.tf.reduce_all(self.is_finite(each)) for each in tensors])

        found = self.cond(self.tf.reduce_all(found), lambda: self.identity(found), by_element)
        return 1.0 - self.cast(found, "float32")

    def spoil_if(self, condition, gradients):
        """The list of gradients, on the condition with a NaN in one: the first that is dense, else the first."""
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        place = next((i for i in present if not is_sparse(gradients[i])), present[0])
        gradient = gradients[place]
        values = gradient.values if is_sparse(gradient) else gradient
        nan = self.constant(math.nan, values.dtype)
        # Within XLA there is a row for each of the table.
        if not is_sparse(gradient) or self.is_compiled():
            values, rows = values * self.where(condition, nan, self.constant(1, values.dtype)), 0
        else:
            # There may be no row.
            rows = self.cast(condition, "int32")
            row = self.tf.fill(self.tf.concat([[rows], self.tf.shape(values)[1:]], 0), nan)
            values = self.tf.concat([values, row], 0)
        if is_sparse(gradient):
            indices = self.tf.concat([gradient.indices, self.tf.zeros([rows], gradient.indices.dtype)], 0)
            values = self.tf.IndexedSlices(values, indices, gradient.dense_shape)
        return gradients[:place] + [values] + gradients[place + 1 :]

    def fail(self, message, names, bad):
        """Raise an InvalidArgumentError, in a graph when it runs, that tells those of `names` that are bad."""
        found = self.tf.boolean_mask(self.constant(names, "string"), bad)
        return self.v1.Assert(self.logical_not(self.tf.reduce_any(bad)), [message, found], summarize=len(names))

    def is_compiled(self):
        """Whether what is made here is in a function that is traced for XLA, which drops assertions."""
        graph = self.v1.get_default_graph()
        while graph is not None:
            context = graph._get_control_flow_context()
            while context is not None:
                if context.IsXLAContext():
                    return True
                context = context.outer_context
            graph = getattr(graph, "outer_graph", None)
        return False

    def tensors_of_other_functions(self, values):
        """Those of nested values that are tensors of functions, but for the ones that are traced here."""
        here, graphs = self.graph_here(), []
        while here is not None:
            graphs.append(here)
            here = getattr(here, "outer_graph", None)
        tensors = [
            leaf for leaf in leaves_of(values) if isinstance(leaf, self.tf.Tensor) and not hasattr(leaf, "numpy")
        ]
        return [each for each in tensors if not any(each.graph is graph for graph in graphs)]

    def graph_here(self):
        """The graph that is being made, None in eager mode."""
        return None if self.tf.executing_eagerly() else self.v1.get_default_graph()

    def is_made_with(self, graph):
        """Whether what is made here is made each time that `graph` is: in it, or in its loops and branches.

        Within a tf.function that it calls it is not: that one is traced once for many calls.
        """
        here = self.graph_here()
        while here is not graph and _is_traced_with_outer(here):
            here = here.outer_graph
        return here is graph

    def uses(self, variable):
        """How many operations of the function that is traced here use a variable, calls of functions that do included.

        Those that only read it do not count.
        """
        graph, handle = self.graph_here(), parts_of(variable)[0].handle
        inner = [each for outer, each in zip(graph.external_captures, graph.internal_captures) if outer is handle]
        return sum(operation.type != "ReadVariableOp" for each in inner for operation in each.consumers())

    def choose(self, condition, when_true, when_false):
        """`cond`, of a tensor or of a Python bool."""
        if isinstance(condition, bool):
            return when_true() if condition else when_false()
        return self.cond(condition, when_true, when_false)

    def value_if_eager(self, tensor):
        """The NumPy value of a tensor in eager mode, None of one in a graph or a function."""
        return tensor.numpy() if self.tf.executing_eagerly() else None

    def places_of_others(self, vector, value):
        """The int64 indices of the elements that are not `value`."""
        return self.tf.reshape(self.tf.where(self.tf.not_equal(vector, value)), [-1])

    def places_or_first(self, vector):
        """For each element its int64 index; for one that is zero that of the first which is not."""
        found = self.tf.not_equal(vector, 0)
        places = self.tf.range(self.cast(self.tf.size(vector), "int64"))
        first = self.tf.argmax(self.cast(found, "int32"), output_type=places.dtype)
        return self.where(found, places, self.tf.fill(self.tf.shape(places), first))

    def gather(self, variable, indices):
        """Rows of a variable, as they are after what was written before."""
        # A reference variable would give what was read of it when it was made.
        return self.tf.gather(variable if hasattr(variable, "handle") else variable.read_value(), indices)

    def indexed_slices(self, values, indices, table):
        return self.tf.IndexedSlices(values, indices, self.tf.constant(table.shape.as_list(), "int64"))

    def accumulator_dtype(self, dtype):
        """float64 for float64 and complex as they are; float32 for float32 and everything narrower."""
        dtype = self.tf.as_dtype(dtype).base_dtype
        return dtype if dtype.size >= 4 else self.tf.float32
