"""The rule of gradient accumulation, written once for every generation of optimizers.

A window is K consecutive mini-steps. Its K gradients g_1 ... g_K, of weights w_1 ... w_K (1 unless said otherwise),
end in one update of the inner optimizer with

    sum_k(w_k * g_k) / sum_k(w_k)      (reduction="mean")
    sum_k(w_k * g_k)                   (reduction="sum")

which for a loss that is a mean over its samples is the gradient of the K micro-batches taken as one batch.

The first mini-step of a window stores its gradients over what the last window left, so no pass sets zeros; the last
one adds on its way into the update and stores nothing: K - 1 additions and K - 1 writes.

No TensorFlow is imported here. `ops` (`_compat.Ops`) brings the handful of operations.
"""

import operator


def check_steps(name, value):
    """`value` as an int, or a ValueError that names the argument: it must be an integer of at least 1."""
    try:
        steps = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        steps = 0
    if steps < 1:
        raise ValueError("{} must be an integer of at least 1. Received: {!r}".format(name, value))
    return steps


def check_reduction(value):
    if value not in ("mean", "sum"):
        raise ValueError('reduction must be "mean" or "sum". Received: {!r}'.format(value))
    return value


NO_ACCUMULATORS = (
    "gradient_accumulation_steps was 1 when this optimizer's training graph was built, and a graph built at 1 has no "
    "accumulators. Received: {}. Make the optimizer with the larger number and compile the model again."
)


def _here(function, args):
    return function(*args)


class Accumulator(object):
    """The sum of one variable's gradients in the window under way.

    A gradient that comes as IndexedSlices (an embedding's) stays sparse: its rows are added to a table of the
    variable's shape, in which the rows that no gradient touched are zero, and the update gets the touched ones.

    Args:
        total: variable of the shape of the gradient, of at least float32.
        touched: None for a dense gradient, or an int32 variable with an element for each row of a sparse one.
        largest: whether the window's largest elements are kept in place of their sum. Keras 3's float8 layers hand
            over new values of their scales as gradients, and take the largest of several.
    """

    def __init__(self, total, touched=None, largest=False):
        self.total = total
        self.touched = touched
        self.largest = largest

    @property
    def variables(self):
        return [self.total] if self.touched is None else [self.total, self.touched]

    def write(self, ops, gradient, begins):
        """Store a dense gradient where a window begins, else add it."""
        if self.touched is not None:
            return self._write_rows(ops, gradient)
        gradient = self.widen(ops, gradient)
        if self.largest and not begins:
            return self.total.assign(self.add(ops, gradient))
        return (self.total.assign if begins else self.total.assign_add)(gradient)

    def add(self, ops, gradient):
        """The accumulated, with a dense gradient: a tensor."""
        total = self.total.read_value()
        return ops.maximum(total, gradient) if self.largest else total + gradient

    def widen(self, ops, gradient):
        return ops.cast(ops.dense(gradient), self.total.dtype.base_dtype)

    def _write_rows(self, ops, gradient):
        total, touched = ops.local(self.total), ops.local(self.touched)
        if not ops.is_sparse(gradient):
            return [
                total.assign_add(self.widen(ops, gradient)),
                touched.assign(ops.ones_like(touched)),
            ]
        return [
            ops.scatter_add(total, gradient.indices, ops.cast(gradient.values, total.dtype.base_dtype)),
            ops.scatter_update(touched, gradient.indices, ops.ones_like(gradient.indices, touched.dtype.base_dtype)),
        ]

    def rows(self, ops, gradient):
        """Add a gradient; the sums of the touched rows, and which they are."""
        with ops.after(self._write_rows(ops, gradient)):
            indices = ops.nonzero(ops.local(self.touched).read_value())
            return ops.gather(ops.local(self.total), indices), indices

    def clear(self, ops, rows):
        """Make the touched rows zero again."""
        values, indices = rows
        total, touched = ops.local(self.total), ops.local(self.touched)
        return [
            ops.scatter_update(total, indices, ops.zeros_like(values)),
            ops.scatter_update(touched, indices, ops.zeros_like(indices, touched.dtype.base_dtype)),
        ]


def make_accumulators(ops, zeros, variables, gradients=(), largest=()):
    """An `Accumulator` for each of `variables`.

    Args:
        ops: a `_compat.Ops`.
        zeros: `zeros(name, variable, shape, dtype)` makes a variable of the optimizer, beside `variable`.
        variables: the model's.
        gradients: their gradients, where they are known: they say which are sparse.
        largest: for which of them the largest is kept, a list of bool; default for none.
    """
    accumulators = []
    for i, variable in enumerate(variables):
        total = zeros("accumulator_{}".format(i), variable, variable.shape, ops.accumulator_dtype(variable.dtype))
        touched = None
        if i < len(gradients) and ops.is_sparse(gradients[i]):
            touched = zeros("touched_{}".format(i), variable, variable.shape[:1], ops.tf.int32)
        accumulators.append(Accumulator(total, touched, largest=i < len(largest) and largest[i]))
    return accumulators


class Window(object):
    """The state of the window that is under way, and what a mini-step does to it.

    Args:
        accumulation: the `Accumulation` that this window belongs to.
        accumulators: list of `Accumulator`, one for each gradient.
        scalar: `scalar(name, value, dtype="int64")` makes a variable of the optimizer.

    Attributes:
        mini_step: the mini-steps taken in this window, 0 to K - 1.
        weight: the sum of their weights.
        steps: K of this window.
        next_steps: K of the next one, the only one of these that the user sets; one for all windows of an optimizer.
    """

    def __init__(self, accumulation, accumulators, scalar):
        self.ops = accumulation.ops
        self.reduction = accumulation.reduction
        self.accumulators = accumulators
        self.mini_step = scalar("mini_step", 0)
        self.weight = scalar("weight", 0, "float32")
        self.steps = scalar("steps", accumulation.steps)
        self.next_steps = accumulation.next_steps
        if self.next_steps is None:
            self.next_steps = scalar("gradient_accumulation_steps", accumulation.steps)

    @property
    def variables(self):
        """All of the state, in the order in which an optimizer's `weights` lists it."""
        sums = [variable for accumulator in self.accumulators for variable in accumulator.variables]
        return sums + [self.mini_step, self.weight, self.steps, self.next_steps]

    def take_mini_step(self, gradients, update, run=_here, before=()):
        """Take one mini-step: accumulate `gradients`, or end the window with an update.

        Args:
            gradients: list of tensors or IndexedSlices, one for each accumulator, of weight 1.
            update: function of the list of reduced gradients: one step of the inner optimizer, whose operations it
                creates when called, and returns.
            run: `run(function, args)` calls `function` once on each replica with its own part of `args`.
            before: what else must have been computed before anything is written.

        Returns:
            A boolean tensor: whether this mini-step ended in an update. It is there after all that was written.
        """
        ops = self.ops
        # In a TensorFlow 1 graph nothing else keeps the loss and the gradients ahead of the writes: all the work
        # below hangs on this first read.
        with ops.after(gradients, before):
            mini_step = self.mini_step.read_value()
        weight = self.weight.read_value()
        begins = ops.equal(mini_step, 0)
        steps = ops.where(begins, self.next_steps.read_value(), self.steps.read_value())
        new_weight = weight + 1

        def write(begins):
            def on_replica(gradients):
                written = [each.write(ops, gradient, begins) for each, gradient in zip(self.accumulators, gradients)]
                return ops.done(written)

            return ops.done(run(on_replica, (gradients,)))

        def go_on():
            with ops.after(ops.cond(begins, lambda: write(True), lambda: write(False))):
                return self._move_to(mini_step + 1, new_weight, steps, updated=False)

        def end_window():
            def on_replica(gradients):
                return self._end(gradients, begins, new_weight, update)

            with ops.after(run(on_replica, (gradients,))):
                return self._move_to(0, 0, steps, updated=True)

        return ops.cond(mini_step + 1 >= steps, end_window, go_on)

    def _end(self, gradients, begins, weight, update):
        """The update of one replica, with the last gradients added on the way."""
        ops = self.ops
        pairs = list(zip(self.accumulators, gradients))
        dense = [(each, each.widen(ops, gradient)) for each, gradient in pairs if each.touched is None]
        sums = iter(
            # Where a window begins the gradients stand alone: K may have become 1.
            ops.cond(
                begins,
                lambda: [ops.identity(gradient) for _, gradient in dense],
                lambda: [each.add(ops, gradient) for each, gradient in dense],
            )
            if dense
            else ()
        )
        rows = {i: each.rows(ops, gradient) for i, (each, gradient) in enumerate(pairs) if each.touched is not None}
        reduced = []
        for i, (each, gradient) in enumerate(pairs):
            if i in rows:
                values, indices = rows[i]
                values = self._reduce(values, weight, gradient.dtype)
                reduced.append(ops.indexed_slices(values, indices, each.total))
            elif each.largest:
                reduced.append(ops.cast(next(sums), gradient.dtype))
            else:
                reduced.append(self._reduce(next(sums), weight, gradient.dtype))
        with ops.after(update(reduced)):
            return ops.done([self.accumulators[i].clear(ops, rows[i]) for i in sorted(rows)])

    def _reduce(self, total, weight, dtype):
        if self.reduction == "mean":
            total = total / self.ops.cast(weight, total.dtype)
        return self.ops.cast(total, dtype)

    def _move_to(self, mini_step, weight, steps, updated):
        written = [
            self.mini_step.assign(self.ops.cast(mini_step, "int64")),
            self.weight.assign(self.ops.cast(weight, self.weight.dtype.base_dtype)),
            self.steps.assign(steps),
        ]
        return self.ops.done(written, updated)
