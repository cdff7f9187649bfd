"""GradientAccumulator: gradient accumulation for a training loop of one's own."""

import contextlib

from legacyga import _compat, _gradients, _ops, _sums, _window
from legacyga._accumulators import State


class GradientAccumulator(object):
    """The mean, or the sum, of the gradients of several mini-steps, for a training loop of one's own.

    Training on K micro-batches with it, weighted by their numbers of samples, equals training on the large batch: for
    a loss that is a mean over its samples, sum_k(w_k * g_k) / sum_k(w_k) is the large batch's gradient (the mean of a
    union is the weighted mean of the means). It belongs to no optimizer and no Keras: it takes the gradients of any
    `tf.GradientTape` (or `tf.gradients`), and gives gradients that any optimizer applies.

    It can be used eagerly, inside of a `tf.function`, inside of a `for batch in dataset` loop in one, compiled by XLA
    (with dense gradients), and under `strategy.run` of tf.distribute, where each replica accumulates alone: what
    `optimizer.apply_gradients` adds up over the replicas it adds up once an update, and the loss is scaled as it would
    be without accumulation. In a TensorFlow 1 graph a call makes the operation to run, and so does `reset`.

    Args:
        reduction: `"mean"` (default): sum(w * g) / sum(w), or `"sum"`: sum(w * g).

    Calling it, `accumulator(gradients, weight=1.0)`, takes a mini-step:
        gradients: list of one gradient for each variable, as many and in the same order each time: a tensor, an
            IndexedSlices (an embedding's), or None, which adds nothing, though its mini-step counts in the mean.
        weight: of this mini-step, a finite number or scalar tensor of at least 0: its number of samples, or of tokens,
            or the sum of its sample weights, whatever the loss is a mean over. A mini-step of weight 0 adds nothing,
            whatever its gradients (the mean over no samples is NaN).
        Returns the mini-steps taken in this window, this one included, a scalar int64 tensor.

    Attributes:
        step: the mini-steps taken in this window, since the start or the last `reset()`: a scalar int64 tensor.
        gradients: list of the reduced gradients, in the order given and each in its own dtype (16-bit ones are
            accumulated in float32). Where no call had a gradient there is None. Where it was an IndexedSlices there is
            one, of the rows touched in this window, each once. After `reset()` they are zero, or have no rows.
        reset(): begin the next window.

    Raises:
        ValueError: a reduction that is neither; another number of gradients than before, or none that is not None; a
            gradient whose shape is not known, or not the one it had; a weight below 0; `gradients` read before the
            first call; a call outside of `strategy.run` where the others were inside.

    Example:
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
        self._home = _compat.TensorFlow()
        self._ops = _ops.Ops(self._home.tf)
        self._sums = _sums.Sums(self._ops, _window.check_option("reduction", reduction))
        self._strategy = None
        self._step = self._weight = self._held = None

    def __call__(self, gradients, weight=1.0):
        ops = self._ops
        gradients = _gradients.check_gradients(self._home.tf, gradients, len(self._sums.states) or None)
        weight = _gradients.check_weight(ops, weight)
        self._check_replica()
        self._prepare(gradients)
        given = {i: gradient for i, gradient in enumerate(gradients) if gradient is not None}
        # In a TensorFlow 1 graph nothing else keeps the gradients ahead of the writes.
        with ops.after(gradients, weight):
            taken, held = self._own(self._step).read_value(), self._own(self._held).read_value()
            given = self._sums.weigh(given, None if isinstance(weight, float) else weight)
        begins = ops.equal(taken, 0)
        mask = ops.constant(self._sums.mask(given), "int32")
        held_then = ops.maximum(held * ops.cast(ops.logical_not(begins), "int32"), mask)
        written = ops.cond(
            begins, lambda: self._sums.write(given, held, True), lambda: self._sums.write(given, held, False)
        )
        with ops.after(written):
            # A reference variable (TF 1) may change below what was read of it: one addition, made before the write.
            taken, new_weight = taken + 1, self._own(self._weight).read_value() + weight
            with ops.after(
                self._own(self._step).assign(taken),
                self._own(self._weight).assign(new_weight),
                self._own(self._held).assign(held_then),
            ):
                return ops.identity(taken)

    @property
    def step(self):
        """The mini-steps taken in this window: a scalar int64 tensor."""
        if self._step is None:
            if self._home.tf.executing_eagerly():
                # No variable before it is known where: this may be outside of the strategy.
                return self._ops.constant(0, "int64")
            self._prepare([])
        if self._is_here():
            return self._ops.local(self._step).read_value()
        return self._strategy.experimental_local_results(self._step)[0].read_value()

    @property
    def gradients(self):
        """The reduced gradients, a list in the order in which they were given."""
        if not self._sums.states:
            raise ValueError(
                "The gradients of a GradientAccumulator are there after its first call. Received: no call yet. "
                "Call it with a list of gradients first."
            )
        self._note([None] * len(self._sums.states))
        return self._on_each_replica(self._reduced)

    def reset(self):
        """Begin the next window, of no mini-steps: what the last one holds is gone.

        Returns:
            A boolean tensor that is there after all that was written: in a TensorFlow 1 graph the operation to run.
        """
        if self._step is None:
            return self._ops.done([])
        self._note([None] * len(self._sums.states))
        return self._on_each_replica(self._clear)

    def _reduced(self):
        # The first mini-step of a window writes over what the last window left: until then it is there.
        begins = self._ops.equal(self._own(self._step).read_value(), 0)
        held, weight = self._own(self._held).read_value(), self._own(self._weight).read_value()
        return self._sums.reduced({}, held, weight, begins)

    def _clear(self):
        scalars = [self._own(each) for each in (self._step, self._weight)]
        return self._ops.done([each.assign(self._ops.zeros_like(each.read_value())) for each in scalars])

    def _prepare(self, gradients):
        """Make the variables that are missing for `gradients`."""
        if self._step is None:
            with self._making():
                self._step = self._make_zeros("step", [], "int64")
                # As wide as the widest gradient: float32 would round weights that are no integers.
                self._weight = self._make_zeros("weight", [], "float64")
        if not gradients:
            return
        for i, gradient in enumerate(gradients):
            self._sums.check_not_late(i, gradient, "Place {} of the gradients".format(i), "GradientAccumulator")
        states = self._sums.states or [None] * len(gradients)
        states = [self._state_for(i, each, state) for i, (each, state) in enumerate(zip(gradients, states))]
        if self._held is None:
            with self._making():
                self._held = self._make_zeros("held", [len(gradients)], "int32")
        self._sums.states = states
        self._note(gradients)

    def _note(self, gradients):
        for i, gradient in enumerate(gradients):
            self._sums.note(i, gradient, not self._home.tf.executing_eagerly())

    def _state_for(self, i, gradient, state):
        ops = self._ops
        if gradient is None:
            return state
        if state is not None:
            _gradients.check_shape(i, gradient, state.total.shape)
            return state
        shape = _gradients.shape_of(self._home.tf, i, gradient)
        with self._making():
            total = self._make_zeros("accumulator_{}".format(i), shape, ops.accumulator_dtype(gradient.dtype))
            touched = self._make_zeros("touched_{}".format(i), shape[:1] or [1], "int32")
        self._home.check_branches_take(total)
        return State(total, touched, gradient.dtype.base_dtype, False)

    def _make_zeros(self, name, shape, dtype):
        tf = self._home.tf
        return tf.Variable(tf.zeros(shape, dtype), trainable=False, name="gradient_accumulator/" + name)

    @contextlib.contextmanager
    def _making(self):
        """A context to make variables in: outside of every function, with a copy on each replica."""
        if self._step is None:
            self._strategy = self._current_strategy()
        with self._ops.init_scope():
            with contextlib.ExitStack() as stack:
                # Out here the strategy of a function need not be the current one.
                if self._strategy is not None and self._current_strategy() is None:
                    stack.enter_context(self._strategy.scope())
                stack.enter_context(_ops.replica_local_variables(self._home.tf))
                yield

    def _current_strategy(self):
        # tf.distribute has a strategy to ask for from TF 1.14 on.
        distribute = getattr(self._home.tf, "distribute", None)
        return distribute.get_strategy() if hasattr(distribute, "has_strategy") and distribute.has_strategy() else None

    def _is_here(self):
        """Whether this is where the variables are one's own: a replica, or there is no strategy."""
        if self._strategy is None:
            return True
        return self._current_strategy() is self._strategy and self._ops.in_replica_context()

    def _check_replica(self):
        if not self._ops.in_replica_context() or not self._is_here():
            raise ValueError(
                "A GradientAccumulator is called by each replica with its own gradients. Received: a call outside of "
                "strategy.run. Call it in the function that strategy.run is given."
            )

    def _on_each_replica(self, function):
        if self._is_here():
            return function()
        with self._strategy.scope():
            return self._strategy.extended.call_for_each_replica(function)

    def _own(self, variable):
        """This replica's part of a variable."""
        return self._ops.local(variable)
