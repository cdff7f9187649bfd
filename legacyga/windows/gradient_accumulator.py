"""GradientAccumulator: gradient accumulation for custom training loops."""

from legacyga.backend import autograph, graph, homes
from legacyga.backend import ops as _ops
from legacyga.backend.messages import shown
from legacyga.windows import checks, settings, sums
from legacyga.windows.accumulators import NOTHING, State


class GradientAccumulator(object):
    """Accumulate the mean, or the sum, of the gradients of several small batches, in your own training loop.

    A mini-step is one call with the gradients of one small batch (micro-batch). A window is the mini-steps up to a
    `reset()`. Its gradients g_k, with weights w_k, are reduced to

        sum_k(w_k * g_k) / sum_k(w_k)      (reduction="mean")
        sum_k(w_k * g_k)                   (reduction="sum")

    If the loss is a mean over samples and w_k is the number of samples in a micro-batch, the mean is the gradient of
    all samples in one large batch.

    It works with any optimizer, and without Keras: the gradients can come from a `tf.GradientTape` or from
    `tf.gradients`. Call it eagerly, in a `tf.function`, in a loop over a dataset inside one, or compiled by XLA (with
    dense gradients). In a TensorFlow 1 graph, a call creates the operation to run.

    `tf.train.Checkpoint(accumulator=accumulator)` saves the window, and so does the checkpoint of a module or a model
    that has the accumulator as an attribute (from TF 1.14 on). After a restore, a sum becomes available with the first
    gradient for its variable. If the number of replicas has changed, the mini-steps before and after the restore still
    have equal weights. In eager mode, outside a strategy, an accumulator can be pickled.

    Under a strategy, the first use must be the call within `strategy.run`. Each replica accumulates separately, and
    `optimizer.apply_gradients` sums over the replicas, once per update. Scale the loss as without accumulation: divide
    a mean over a replica's samples by the number of replicas. If each replica passes its number of samples as the
    weight, the result is the gradient of the large batch.

    Args:
        reduction: `"mean"` (default) or `"sum"`.

    Call arguments:
        gradients: list with one gradient for each variable, the same number in the same order in every call. Each is a
            tensor of the variable's shape, an IndexedSlices (as of an embedding), or None. None adds nothing, but its
            mini-step still counts in the mean.
        weight: the weight of this mini-step, a finite number or scalar tensor of at least 0. Default 1. Pass the number
            of items that the loss averages over: samples, tokens, or the sum of the sample weights. A mini-step with
            the weight 0 adds nothing, even if its gradients are NaN (as for a mean over no samples).

    Returns:
        The number of mini-steps in this window, including this one: a scalar int64 tensor.

    Raises:
        ValueError: `reduction` is neither value; the number of gradients changed, or all are None; the shape of a
            gradient is unknown, or its shape or dtype changed; a weight is out of range; some calls are within
            `strategy.run` and others are not; a restored window has a sum for which no gradient has come yet.
        tf.errors.InvalidArgumentError: in eager mode, an IndexedSlices has a row that its variable lacks, or values of
            a wrong shape. A weight that is known only when a graph or a `tf.function` runs is out of range; XLA
            (`jit_compile=True`) drops assertions, so the gradients are NaN instead.

    Examples:
        >>> import tensorflow as tf
        >>> import legacyga
        >>> accumulator = legacyga.GradientAccumulator()
        >>> variable, optimizer = tf.Variable([1.0, 1.0]), tf.keras.optimizers.SGD(1.0)
        >>> for gradient, samples in (([0.25, 0.5], 4), ([1.0, 2.0], 2)):
        ...     step = accumulator([tf.constant(gradient)], weight=samples)
        >>> int(accumulator.step), accumulator.gradients[0].numpy().tolist()
        (2, [0.5, 1.0])
        >>> done = optimizer.apply_gradients(zip(accumulator.gradients, [variable]))
        >>> done = accumulator.reset()
        >>> int(accumulator.step), variable.numpy().tolist()
        (0, [0.5, 0.0])
    """

    def __init__(self, reduction="mean"):
        home = homes.TensorFlow()
        # The base class comes from TensorFlow, and `import legacyga` does not import TensorFlow.
        self.__class__ = _ops.trackable(home.tf, type(self))
        self._home, self._ops = home, _ops.Ops(home.tf)
        self._sums = sums.Sums(self._ops, settings.check_option("reduction", reduction))
        self._strategy = None
        self._step = self._weight = self._held = self._mutex = None

    def __reduce_ex__(self, protocol):
        # Pickle and copies cannot import the class that `trackable` made. A user's subclass handles this itself.
        if GradientAccumulator not in type(self).__mro__[:2]:
            return super(GradientAccumulator, self).__reduce_ex__(protocol)
        if self._strategy is not None or self._state_is_to_come or not self._home.tf.executing_eagerly():
            raise ValueError(checks.NOT_PICKLED.format(shown(self)))
        kinds = [state and (state.total.shape.as_list(), state.dtype.name) for state in self._sums.states]
        values = [each.numpy() for each in self._variables]
        return _unpickled, (self._sums.reduction, kinds, self._sums.forms, values)

    @property
    def _variables(self):
        return [each for each in (self._step, self._weight, self._held) if each is not None] + self._sums.variables

    def __call__(self, gradients, weight=1.0):
        """Make a mini-step. The class docstring describes the arguments and the result."""
        return self._as_written(self._take_mini_step)(gradients, weight)

    def _as_written(self, method):
        # AutoGraph leaves eager code alone.
        tf = self._home.tf
        return method if tf.executing_eagerly() else autograph.as_written(tf, method)

    def _take_mini_step(self, gradients, weight):
        ops = self._ops
        gradients = checks.check_gradients(ops, gradients, len(self._sums.states) or None)
        weight = checks.check_weight(ops, weight)
        self._check_replica()
        shapes = checks.shapes_of(ops.tf, gradients, self._sums)
        checks.check_rows(ops, gradients, shapes)
        given = {i: gradient for i, gradient in enumerate(gradients) if gradient is not None}
        with ops.uninterrupted():
            self._prepare(gradients, shapes)
            # In a TensorFlow 1 graph nothing else makes the writes wait for the gradients.
            with ops.after(gradients, None if isinstance(weight, float) else weight):
                return graph.one_at_a_time(self._mutex, lambda: self._take(given, weight))

    def _take(self, given, weight):
        ops = self._ops
        taken, held = self._local(self._step).read_value(), self._local(self._held).read_value()
        given = self._sums.weigh(given, None if isinstance(weight, float) else weight)
        begins = ops.equal(taken, 0)
        forms = self._sums.forms_of(given)
        held_then = ops.maximum(held * ops.cast(ops.logical_not(begins), "int64"), ops.constant(forms, "int64"))

        def write(begins):
            return self._sums.write(given, forms, held, begins)

        written = ops.cond(begins, lambda: write(True), lambda: write(False))
        with ops.after(written):
            # Writing a reference variable may change a value read from it. So add once, before the write.
            taken, new_weight = taken + 1, self._local(self._weight).read_value() + weight
            with ops.after(
                self._local(self._step).assign(taken),
                self._local(self._weight).assign(new_weight),
                self._local(self._held).assign(held_then),
            ):
                return ops.identity(taken)

    @property
    def step(self):
        """The number of mini-steps since the start or the last `reset()`: a scalar int64 tensor."""
        if self._is_unused():
            return self._ops.constant(0, "int64")
        return self._first(self._step).read_value()

    @property
    def gradients(self):
        """The mean (or sum) of the window's gradients: a list in the order of the call, each in its own dtype.

        If a variable never had a gradient, its entry is None. If it had an IndexedSlices, its entry is an IndexedSlices
        too, which has each row touched in this window once. 16-bit gradients are summed in float32. After `reset()` the
        gradients are zero, or have no rows.

        Raises:
            ValueError: there was no call yet, or a restored window has a sum for which no gradient has come yet.
        """
        if not self._sums.states:
            raise ValueError(checks.NO_CALL)
        missing = self._missing()
        if missing:
            raise ValueError(checks.MISSING.format(missing))
        self._note()
        return self._as_written(self._on_each_replica)(self._reduced)

    def reset(self):
        """Discard the gradients of this window and start the next one.

        Returns:
            A boolean tensor, available once the reset is done. In a TensorFlow 1 graph, run it to reset.
        """
        if self._is_unused():
            return self._ops.done([])
        with self._ops.uninterrupted():
            return self._as_written(self._on_each_replica)(lambda: graph.one_at_a_time(self._mutex, self._clear))

    def _is_unused(self):
        """Whether there are no variables to read or reset. Creates them first for restored state, or in a graph."""
        # In a graph, what is built here may run after a mini-step that is built later. Eager code creates none here,
        # because the strategy that must create them may not be entered yet.
        if self._step is None and (self._state_is_to_come or not self._home.tf.executing_eagerly()):
            self._prepare([])
        return self._step is None

    @property
    def _state_is_to_come(self):
        """Whether a restored checkpoint still waits for the creation of the variables that hold its window."""
        return bool(getattr(self, "_deferred_dependencies", None))

    def _missing(self):
        """Return the places where a restored window has a sum for which no gradient has come yet, in eager mode."""
        with self._ops.init_scope():
            if all(self._sums.states) or not self._home.tf.executing_eagerly() or not self._first(self._step).numpy():
                return []
            held = self._first(self._held).numpy()
        return [i for i, state in enumerate(self._sums.states) if state is None and held[i] != NOTHING]

    def _taken(self):
        """Return the number of mini-steps in the window, also of a restored one whose variables do not exist yet."""
        if self._step is not None:
            return self.step
        # No public API tells which restored values wait.
        (waiting,) = getattr(self, "_deferred_dependencies", {}).get("_step", [])[-1:] or [None]
        if waiting is None:
            return 0
        (value,), tf = waiting.object_proto.attributes, self._home.tf
        try:
            return tf.train.load_variable(waiting.checkpoint.save_path_string, value.checkpoint_key)
        except tf.errors.NotFoundError:
            # A CheckpointManager deleted the file after a later save, which would have raised if mini-steps waited.
            return 0

    def _gather_saveables_for_checkpoint(self):
        saveables = super(GradientAccumulator, self)._gather_saveables_for_checkpoint()
        may_lose = self._home.tf.executing_eagerly() and self._state_is_to_come
        if may_lose and self._taken() and (self._held is None or self._missing()):
            # A save calls `refuse_to_save`, which raises. A restore's status only looks for the entry.
            saveables = dict(saveables, legacyga=checks.refuse_to_save)
        return saveables

    def _reduced(self):
        # Until the first mini-step of this window, the sums still hold the previous window's values.
        begins = self._ops.equal(self._local(self._step).read_value(), 0)
        # All replicas divide by the same number, so that the sum over replicas is the large batch's mean.
        weight = self._ops.replicas.mean(self._local(self._weight).read_value())
        forms = self._sums.forms_of({})
        return self._sums.reduced({}, forms, self._local(self._held).read_value(), weight, begins)

    def _clear(self):
        scalars = [self._local(each) for each in (self._step, self._weight)]
        return self._ops.done([each.assign(self._ops.zeros_like(each.read_value())) for each in scalars])

    def _prepare(self, gradients, shapes=()):
        """Create what is missing for `gradients` of variables of these shapes."""
        if self._step is None:
            # All replicas count the same mini-steps.
            with self._making("ONLY_FIRST_REPLICA"):
                step = self._make_zeros("step", [], "int64")
                self._ops.replicas.check_is_each_replicas(step)
            with self._making("MEAN"):
                # Not float32, which would round the weights of float64 gradients.
                self._weight = self._make_zeros("weight", [], "float64")
                self._mutex = graph.Mutex(self._ops, step) if self._home.graph_mode else None
            # Last: `_step` says that these variables exist, so an error above must leave it None.
            self._step = step
        if not gradients:
            return
        known, is_restored = self._sums.states or [None] * len(gradients), self._state_is_to_come
        states = [
            state if gradient is None or state is not None else self._state_for(i, gradient, shapes[i])
            for i, (gradient, state) in enumerate(zip(gradients, known))
        ]
        if self._held is None:
            with self._making("ONLY_FIRST_REPLICA"):
                self._held = self._make_zeros("held", [len(gradients)], "int64")
        self._sums.states = states
        if is_restored:
            self._forget([i for i, state in enumerate(states) if state is not known[i]])
        self._note(gradients)

    def _note(self, gradients=()):
        given = {i: gradient for i, gradient in enumerate(gradients) if gradient is not None}
        places = range(len(self._sums.states))
        self._sums.note(self._sums.forms_of(given), places, not self._home.tf.executing_eagerly())

    def _forget(self, places):
        """In eager mode, zero the sums, just restored at `places`, of a window that is over: `held` says NOTHING."""
        with self._making("SUM"):
            held = self._first(self._held).numpy() if self._home.tf.executing_eagerly() else None
            for state in [] if held is None else [self._sums.states[i] for i in places if held[i] == NOTHING]:
                state.total.assign(self._ops.zeros_like(state.total))
                state.touched.assign(self._ops.zeros_like(state.touched))

    def _state_for(self, i, gradient, shape):
        ops = self._ops
        with self._making("SUM"):
            total = self._make_zeros("accumulator_{}".format(i), shape, ops.accumulator_dtype(gradient.dtype))
            touched = self._make_zeros("touched_{}".format(i), shape[:1] or [1], "float32")
            # Checkpoints save what is an attribute.
            setattr(self, "_accumulator_{}".format(i), total)
            setattr(self, "_touched_{}".format(i), touched)
        graph.check_branches_can_write(self._home.tf, total)
        return State(total, touched, gradient.dtype.base_dtype)

    def _make_zeros(self, name, shape, dtype):
        tf = self._home.tf
        return tf.Variable(self._ops.zeros(shape, dtype), trainable=False, name="gradient_accumulator/" + name)

    def _making(self, aggregation):
        """Return a context that creates variables outside of every function, with a copy on each replica."""
        if self._step is None:
            self._strategy = self._ops.replicas.entered_strategy
        return self._ops.replicas.making(self._strategy, aggregation)

    def _local(self, variable):
        return self._ops.replicas.local(variable)

    def _first(self, variable):
        """Return this replica's copy of a variable, or outside of replicas the first."""
        if self._is_here():
            return self._local(variable)
        return self._strategy.experimental_local_results(variable)[0]

    def _is_here(self):
        """Whether code here has its own copy of the variables: in a replica, or without a strategy."""
        if self._strategy is None:
            return True
        return self._ops.replicas.entered_strategy is self._strategy and self._ops.replicas.is_replica_here

    def _check_replica(self):
        self._ops.replicas.check_workers_wait()
        if self._step is not None and self._strategy is None and self._ops.replicas.are_several:
            raise ValueError(
                "This GradientAccumulator has variables already, which no strategy made: they would be one for all "
                "replicas. Received: a call within strategy.run, after one, or a `step` or a `reset`, outside of the "
                "strategy. Make a new one, and let its first use be the call within strategy.run."
            )
        if not self._ops.replicas.is_replica_here or not self._is_here():
            raise ValueError(
                "A GradientAccumulator is called by each replica with its own gradients. Received: a call outside of "
                "strategy.run. Call it in the function that strategy.run is given."
            )

    def _on_each_replica(self, function):
        if self._is_here():
            return function()
        with self._strategy.scope():
            return self._strategy.extended.call_for_each_replica(function)


def _unpickled(reduction, kinds, forms, values):
    """Make an accumulator from what `__reduce_ex__` returned. `kinds` are (shape, dtype name) of the sums, or None."""
    accumulator = GradientAccumulator(reduction)
    if values:
        zeros = [kind and accumulator._ops.zeros(*kind) for kind in kinds]
        accumulator._prepare(zeros, [kind and kind[0] for kind in kinds])
    accumulator._sums.forms = dict(forms)
    for variable, value in zip(accumulator._variables, values):
        variable.assign(value)
    return accumulator
