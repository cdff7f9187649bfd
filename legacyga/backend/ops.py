"""Give TensorFlow's operations one name in every version."""

import contextlib
import functools
import math
import signal
import threading

from legacyga.backend import features, replicas
from legacyga.backend.tensors import is_sparse, leaves_of, parts_of

# The results of `trackable`, by class.
_TRACKABLE = {}


def trackable(tf, cls):
    """Return a subclass of `cls` with attributes that checkpoints save; up to TF 1.13 `cls` itself."""
    base = features.trackable_base(tf)
    if base is None or issubclass(cls, base):
        return cls
    if cls not in _TRACKABLE:
        own = dict(__doc__=cls.__doc__, __module__=cls.__module__)
        _TRACKABLE[cls] = type(cls.__name__, (cls, base), own)
    return _TRACKABLE[cls]


def _is_traced_with_outer(graph):
    """Whether a graph belongs to the function around it, and is traced anew with it: a loop or a branch."""
    kind = type(graph).__name__
    if kind != "FuncGraph":
        return kind in ("CondBranchFuncGraph", "WhileBodyFuncGraph")
    # Only the name identifies the graphs of Dataset.reduce, and of AutoGraph's loops over datasets.
    return graph.name.startswith(("reduce_", "Dataset_", "tf_data_"))


class Ops(object):
    """The few TensorFlow operations that the rule uses, under one name in every version.

    Attributes:
        replicas: a `replicas.Replicas`.
    """

    def __init__(self, tf):
        self.tf = tf
        self.replicas = replicas.Replicas(tf)
        self.v1 = v1 = features.v1_of(tf)
        # Only compat.v1's cond takes `strict`, which keeps a list of one a list.
        self.cond = functools.partial(v1.cond, strict=True)
        self.init_scope = features.init_scope(tf)
        self.where, self.equal, self.maximum = tf.where, tf.equal, tf.maximum
        self.logical_not, self.logical_and, self.logical_or = tf.logical_not, tf.logical_and, tf.logical_or
        self.cast, self.constant, self.identity = tf.cast, tf.constant, tf.identity
        self.ones_like, self.reduce_any, self.unstack = tf.ones_like, tf.reduce_any, tf.unstack
        self.dense = tf.convert_to_tensor
        self.is_finite = features.is_finite(tf)
        # The compat.v1 functions take reference variables as well as resource variables.
        self.scatter_add, self.scatter_update = v1.scatter_add, v1.scatter_update

    def __deepcopy__(self, memo):
        # A copied optimizer uses the same TensorFlow.
        return self

    def after(self, *values):
        """Return a context whose operations run after `values`, nested or not. Eager mode runs in order anyway."""
        if self.tf.executing_eagerly():
            return contextlib.ExitStack()
        # TF 2.4 accepts the operation of an outer function's tensor, but not the tensor. Delete with TF 2.4.
        return self.tf.control_dependencies(
            [getattr(leaf, "op", leaf) if isinstance(leaf, self.tf.Tensor) else leaf for leaf in leaves_of(values)]
        )

    def done(self, values, result=True):
        """Return the constant `result`, available after `values`."""
        if self.tf.executing_eagerly():
            return self.tf.constant(result)
        with self.after(values):
            return self.tf.constant(result)

    @contextlib.contextmanager
    def uninterrupted(self):
        """In eager mode, hold back a Ctrl-C until the context ends, so that its writes go together.

        Python raises a Ctrl-C between any two lines of the main thread, and nowhere else.
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
        """Return `function()`, a boolean tensor, available once everything that it creates has run.

        A traced function waits only at its end for effects that no returned operation stands for. So a branch runs
        `function`: it waits at the branch's own end.
        """
        if not hasattr(self.graph_here(), "outer_graph"):
            return function()
        return self.cond(self.constant(True, "bool"), function, lambda: self.constant(False, "bool"))

    def as_tensors(self, gradient, dtype=None):
        """Return a gradient whose IndexedSlices holds tensors, not lists or arrays; a list's numbers take `dtype`."""
        if not is_sparse(gradient):
            return gradient
        values = self.v1.convert_to_tensor(gradient.values, preferred_dtype=dtype)
        return self.tf.IndexedSlices(values, self.tf.convert_to_tensor(gradient.indices), gradient.dense_shape)

    def zeros(self, shape, dtype):
        """Return zeros. In a TF 1 graph they take memory only while they are needed."""
        zero = self.tf.zeros([], dtype)
        in_graph = not self.tf.executing_eagerly() and not hasattr(self.v1.get_default_graph(), "outer_graph")
        # XLA cannot compile a timestamp.
        if in_graph and not self.is_compiled():
            # A session precomputes and keeps constants of up to 10 MiB each, and even sees through a placeholder with a
            # default. A timestamp prevents that.
            zero = self.cast(self.v1.timestamp() < 0, dtype)
        return self.tf.fill(shape, zero)

    def zeros_like(self, value, dtype=None):
        """Return zeros of a tensor's shape, made as by `zeros`."""
        return self.zeros(self.tf.shape(value), value.dtype.base_dtype if dtype is None else dtype)

    def with_values(self, gradient, values):
        """Return a gradient with other values; IndexedSlices stay IndexedSlices."""
        return self.tf.IndexedSlices(values, gradient.indices, gradient.dense_shape) if is_sparse(gradient) else values

    def weighted(self, gradient, weight, dtype):
        """Return `weight * gradient` in `dtype`, 0 if the weight is 0; IndexedSlices stay IndexedSlices."""
        if is_sparse(gradient):
            return self.with_values(gradient, self.weighted(gradient.values, weight, dtype))
        dtype = self.tf.as_dtype(dtype).base_dtype
        gradient, weight = self.tf.cast(gradient, dtype), self.tf.cast(weight, dtype)
        # Multiplying by 0 would keep the NaN of a mean over no samples.
        multiply = features.multiply_no_nan(self.tf)
        if multiply is not None:
            return multiply(gradient, weight)
        return self.cond(self.equal(weight, 0), lambda: self.zeros_like(gradient), lambda: gradient * weight)

    def not_finite(self, gradients):
        """Return a float32 vector: 1 for each gradient with an element that is not finite, else 0."""
        tensors = [gradient.values if is_sparse(gradient) else gradient for gradient in gradients]
        tensors = [self.tf.abs(each) if each.dtype.is_complex else each for each in tensors]
        tensors = [self.cast(each, self.accumulator_dtype(each.dtype)) for each in tensors]
        # If an element is not finite, neither is the sum, at a tenth of the cost. But the sum of finite elements may
        # overflow: so a sum that is not finite leads to a look at each element.
        sums = self.tf.stack([self.cast(self.tf.reduce_sum(each), "float64") for each in tensors])
        found = self.is_finite(sums)

        def by_element():
            return self.tf.stack([self.tf.reduce_all(self.is_finite(each)) for each in tensors])

        found = self.cond(self.tf.reduce_all(found), lambda: self.identity(found), by_element)
        return 1.0 - self.cast(found, "float32")

    def spoil_if(self, condition, gradients):
        """Return the gradients; if the condition holds, with a NaN in the first dense one, else in the first."""
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        place = next((i for i in present if not is_sparse(gradients[i])), present[0])
        gradient = gradients[place]
        values = gradient.values if is_sparse(gradient) else gradient
        nan = self.constant(math.nan, values.dtype)
        # Under XLA the IndexedSlices has every row of its table, so there is a row to spoil.
        if not is_sparse(gradient) or self.is_compiled():
            values, rows = values * self.where(condition, nan, self.constant(1, values.dtype)), 0
        else:
            # There may be no row to spoil: append one.
            rows = self.cast(condition, "int32")
            row = self.tf.fill(self.tf.concat([[rows], self.tf.shape(values)[1:]], 0), nan)
            values = self.tf.concat([values, row], 0)
        if is_sparse(gradient):
            indices = self.tf.concat([gradient.indices, self.tf.zeros([rows], gradient.indices.dtype)], 0)
            values = self.tf.IndexedSlices(values, indices, gradient.dense_shape)
        return gradients[:place] + [values] + gradients[place + 1 :]

    def fail(self, message, names, bad):
        """Raise an InvalidArgumentError that lists the bad ones of `names`; in a graph, raise when it runs."""
        found = self.tf.boolean_mask(self.constant(names, "string"), bad)
        return self.v1.Assert(self.logical_not(self.tf.reduce_any(bad)), [message, found], summarize=len(names))

    def is_compiled(self):
        """Whether code here is traced for XLA, which drops assertions."""
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
        """Return the tensors in nested values that belong to functions, except those being traced here."""
        here, graphs = self.graph_here(), []
        while here is not None:
            graphs.append(here)
            here = getattr(here, "outer_graph", None)
        tensors = [
            leaf for leaf in leaves_of(values) if isinstance(leaf, self.tf.Tensor) and not hasattr(leaf, "numpy")
        ]
        return [each for each in tensors if not any(each.graph is graph for graph in graphs)]

    def graph_here(self):
        """Return the graph under construction, None in eager mode."""
        return None if self.tf.executing_eagerly() else self.v1.get_default_graph()

    def is_made_with(self, graph):
        """Whether operations made here are made each time that `graph` is: in it, or in its loops and branches.

        Inside a tf.function that `graph` calls they are not: that function is traced once for many calls.
        """
        here = self.graph_here()
        while here is not graph and _is_traced_with_outer(here):
            here = here.outer_graph
        return here is graph

    def uses(self, variable):
        """Count the operations of the function being traced here that use a variable, including calls of functions.

        Plain reads do not count.
        """
        graph, handle = self.graph_here(), parts_of(variable)[0].handle
        inner = [each for outer, each in zip(graph.external_captures, graph.internal_captures) if outer is handle]
        return sum(operation.type != "ReadVariableOp" for each in inner for operation in each.consumers())

    def choose(self, condition, when_true, when_false):
        """Return `cond` for a tensor or a Python bool."""
        if isinstance(condition, bool):
            return when_true() if condition else when_false()
        return self.cond(condition, when_true, when_false)

    def value_if_eager(self, tensor):
        """Return a tensor's NumPy value in eager mode, None in a graph or a function."""
        return tensor.numpy() if self.tf.executing_eagerly() else None

    def places_of_others(self, vector, value):
        """Return the int64 indices of the elements that differ from `value`."""
        return self.tf.reshape(self.tf.where(self.tf.not_equal(vector, value)), [-1])

    def places_or_first(self, vector):
        """Return each element's int64 index; for a zero element, the index of the first nonzero one."""
        found = self.tf.not_equal(vector, 0)
        places = self.tf.range(self.cast(self.tf.size(vector), "int64"))
        first = self.tf.argmax(self.cast(found, "int32"), output_type=places.dtype)
        return self.where(found, places, self.tf.fill(self.tf.shape(places), first))

    def gather(self, variable, indices):
        """Return rows of a variable, after all earlier writes."""
        # A reference variable itself would give the value of an earlier read.
        return self.tf.gather(variable if hasattr(variable, "handle") else variable.read_value(), indices)

    def indexed_slices(self, values, indices, table):
        return self.tf.IndexedSlices(values, indices, self.tf.constant(table.shape.as_list(), "int64"))

    def accumulator_dtype(self, dtype):
        """Return the dtype to sum in: float64 and complex stay, float32 and narrower become float32."""
        dtype = self.tf.as_dtype(dtype).base_dtype
        return dtype if dtype.size >= 4 else self.tf.float32
