"""Give the TensorFlow operations that the package uses the same name in every version."""

import contextlib
import functools
import math
import signal
import threading

from legacyga.backend import features, graph, replicas
from legacyga.backend.tensors import is_sparse, leaves_of, parts_of


@functools.lru_cache(maxsize=None)
def trackable(tf, cls):
    """Return a subclass of `cls` whose attributes checkpoints save; up to TF 1.13 `cls` itself."""
    base = features.trackable_base(tf)
    if base is None or issubclass(cls, base):
        return cls
    return type(cls.__name__, (cls, base), dict(__doc__=cls.__doc__, __module__=cls.__module__))


def _is_traced_with_outer(here):
    """Whether a graph is a loop or a branch, which is traced again with the function around it."""
    kind = type(here).__name__
    if kind != "FuncGraph":
        return kind in ("CondBranchFuncGraph", "WhileBodyFuncGraph")
    # Only the name identifies the graphs of Dataset.reduce, and of AutoGraph's loops over datasets.
    return here.name.startswith(("reduce_", "Dataset_", "tf_data_"))


def _with_outer(here):
    """Return a graph and those of the functions around it: a list, empty for None."""
    return [] if here is None else [here] + _with_outer(getattr(here, "outer_graph", None))


class Ops(object):
    """TensorFlow's operations, and `replicas`, a `Replicas`."""

    def __init__(self, tf):
        self.tf = tf
        self.replicas = replicas.Replicas(tf)
        self._lock = threading.RLock()
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
        # Those of compat.v1 also take reference variables.
        self.scatter_add, self.scatter_update = v1.scatter_add, v1.scatter_update

    def __deepcopy__(self, memo):
        # A copied optimizer uses the same TensorFlow.
        return self

    def after(self, *values):
        """Return a context whose operations run after the nested `values`. Eager mode runs in order anyway."""
        if self.tf.executing_eagerly():
            return contextlib.ExitStack()
        leaves, tensor = leaves_of(values), self.tf.Tensor
        # A tensor that was made eagerly has its value, and TF 2.5 refuses to wait for it. Delete with TF 2.5.
        leaves = [each for each in leaves if not (isinstance(each, tensor) and hasattr(each, "numpy"))]
        # TF 2.4 accepts the operation of an outer function's tensor, but not the tensor. Delete with TF 2.4.
        return self.tf.control_dependencies(
            [getattr(each, "op", each) if isinstance(each, tensor) else each for each in leaves]
        )

    def done(self, values, result=True):
        """Return the constant `result`, available after `values`."""
        if self.tf.executing_eagerly():
            return self.tf.constant(result)
        with self.after(values):
            return self.tf.constant(result)

    @contextlib.contextmanager
    def uninterrupted(self):
        """In eager mode, keep a window consistent: delay a Ctrl-C until all writes of the context are done.

        Outside of strategies, admit one thread at a time.
        """
        if not self.tf.executing_eagerly():
            yield
            return
        # Python handles a Ctrl-C in the main thread only.
        is_main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGINT) if is_main else None
        # Under a strategy a lock would deadlock: replicas' threads wait in the context for each other.
        with self._lock if self.replicas.entered_strategy is None else contextlib.ExitStack():
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
        """Return `function()`, a boolean tensor, available once everything that it creates has run."""
        # Writes that no tensor waits for are done by the end of their traced function or branch: give them a branch.
        if not hasattr(self.graph_here(), "outer_graph"):
            return function()
        return self.cond(self.constant(True, "bool"), function, lambda: self.constant(False, "bool"))

    def as_tensors(self, gradient, dtype=None):
        """Convert a gradient's lists and arrays to tensors; a list's numbers take `dtype`."""
        if gradient is None or hasattr(getattr(gradient, "dtype", None), "base_dtype") and not is_sparse(gradient):
            return gradient
        if not is_sparse(gradient):
            return self.v1.convert_to_tensor(gradient, preferred_dtype=dtype)
        values = self.v1.convert_to_tensor(gradient.values, preferred_dtype=dtype)
        return self.tf.IndexedSlices(values, self.tf.convert_to_tensor(gradient.indices), gradient.dense_shape)

    def zeros(self, shape, dtype):
        """Return zeros. In a TF 1 graph they take memory only while they are needed."""
        zero = self.tf.zeros([], dtype)
        in_graph = not self.tf.executing_eagerly() and not hasattr(self.v1.get_default_graph(), "outer_graph")
        if in_graph and not self.is_compiled():
            # A session precomputes and keeps constants of up to 10 MiB each, even behind a placeholder with a default,
            # but nothing that depends on a timestamp. XLA cannot compile a timestamp, and no GPU has it.
            with self.tf.device("/cpu:0"):
                zero = self.cast(self.v1.timestamp() < 0, dtype)
        return self.tf.fill(shape, zero)

    def zeros_like(self, value, dtype=None):
        """Return `zeros` of a value's shape and, by default, dtype."""
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
        # A sum costs a tenth of a look at each element. It is not finite if an element is not, or if it overflows.
        sums = self.tf.stack([self.cast(self.tf.reduce_sum(each), "float64") for each in tensors])
        are_finite = self.is_finite(sums)

        def by_element():
            return self.tf.stack([self.tf.reduce_all(self.is_finite(each)) for each in tensors])

        are_finite = self.cond(self.tf.reduce_all(are_finite), lambda: self.identity(are_finite), by_element)
        return 1.0 - self.cast(are_finite, "float32")

    def spoil_if(self, condition, gradients):
        """If the condition holds, put NaN into the first dense gradient, or the first if all are sparse. Return all."""
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
        """Raise an InvalidArgumentError with the `names` marked in `bad`, if any; in a graph, when it runs."""
        found = self.tf.boolean_mask(self.constant(names, "string"), bad)
        return self.v1.Assert(self.logical_not(self.tf.reduce_any(bad)), [message, found], summarize=len(names))

    def is_compiled(self):
        """Whether the current code is traced for XLA, which drops assertions."""
        graphs = _with_outer(self.v1.get_default_graph())
        # AutoGraph of TF 2.0 cannot rewrite one generator of two loops. Delete with TF 2.0.
        found = [graph.contexts(each._get_control_flow_context()) for each in graphs]
        return any(context.IsXLAContext() for context in sum(found, []))

    def tensors_of_other_functions(self, values):
        """Return the tensors in nested values that belong to other functions than those being traced here."""
        graphs, leaves = _with_outer(self.graph_here()), leaves_of(values)
        tensors = [each for each in leaves if isinstance(each, self.tf.Tensor) and not hasattr(each, "numpy")]
        return [each for each in tensors if not any(each.graph is here for here in graphs)]

    def graph_here(self):
        """Return the graph under construction; in eager mode None."""
        return None if self.tf.executing_eagerly() else self.v1.get_default_graph()

    def is_made_with(self, other):
        """Whether operations made now are in the graph `other`, its loops or branches, not in a function it calls."""
        here = self.graph_here()
        while here is not other and _is_traced_with_outer(here):
            here = here.outer_graph
        return here is other

    def uses(self, variable):
        """Count the operations other than reads that use a variable in the function being traced."""
        here, handle = self.graph_here(), parts_of(variable)[0].handle
        inner = [each for outer, each in zip(here.external_captures, here.internal_captures) if outer is handle]
        return sum(operation.type != "ReadVariableOp" for each in inner for operation in each.consumers())

    def choose(self, condition, when_true, when_false):
        """As `cond`, also for a Python bool."""
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

    def accumulator_dtype(self, dtype):
        """Return the dtype to sum in: float32 for a dtype of fewer than 32 bits, else the dtype itself."""
        dtype = self.tf.as_dtype(dtype).base_dtype
        return dtype if dtype.size >= 4 else self.tf.float32
