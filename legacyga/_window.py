"""The rule of gradient accumulation, written once for every generation of optimizers.

A window is K consecutive mini-steps. Its K gradients g_1 ... g_K, of weights w_1 ... w_K (1 unless said otherwise),
end in one update of the inner optimizer with

    sum_k(w_k * g_k) / sum_k(w_k)      (reduction="mean")
    sum_k(w_k * g_k)                   (reduction="sum")

which for a loss that is a mean over its samples is the gradient of the K micro-batches taken as one batch.

No TensorFlow is imported here. `ops` (`_ops.Ops`) brings the handful of operations.
"""

import operator
import weakref

from legacyga import _totals


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

LATE_GRADIENT = (
    "{} has a gradient now and had none when another function with this {} was traced, which knows no accumulator of "
    "it. Received: {!r}. Give it a gradient of zeros there: "
    "tape.gradient(..., unconnected_gradients=tf.UnconnectedGradients.ZERO)."
)


def _here(function, args):
    return function(*args)


class Window(object):
    """The state of the window that is under way, and what a mini-step does to it.

    Args:
        accumulation: the `Accumulation` that this window belongs to.
        number: of the optimizer's windows, for the names of its variables.
        var_list: the model's variables, held weakly, so that a copy of the optimizer is no copy of the model.
        scalar: `scalar(name, value, dtype="int64")` makes a variable of the optimizer.

    Attributes:
        accumulators: for each model variable a `_totals.Accumulator`, None for one that has not had a gradient.
        mini_step: the mini-steps taken in this window, 0 to K - 1.
        weight: the sum of their weights.
        steps: K of this window.
        next_steps: K of the next one, the only one of these that the user sets; one for all windows of an optimizer.
    """

    def __init__(self, accumulation, number, var_list, scalar):
        self.ops = accumulation.ops
        self.reduction = accumulation.reduction
        self.number = number
        self.var_list = [weakref.ref(var) for var in var_list]
        self.accumulators = [None] * len(var_list)
        self.mini_step = scalar("mini_step", 0)
        self.weight = scalar("weight", 0, "float32")
        self.steps = scalar("steps", accumulation.steps)
        self.next_steps = accumulation.next_steps
        if self.next_steps is None:
            self.next_steps = scalar("gradient_accumulation_steps", accumulation.steps)
        # Which variables have had a gradient, and which had none in a mini-step that was made into a graph.
        self._seen, self._without_gradient = set(), set()

    @property
    def variables(self):
        """All of the state."""
        present = [accumulator for accumulator in self.accumulators if accumulator is not None]
        sums = [variable for accumulator in present for variable in accumulator.variables]
        return [self.mini_step, self.weight, self.steps, self.next_steps] + sums

    def restrict(self, places):
        """Keep the variables at these places, before any use."""
        self.var_list = [self.var_list[place] for place in places]
        self.accumulators = [self.accumulators[place] for place in places]

    def prepare(self, zeros, gradients, traced=False, known=True):
        """Make the accumulators that are missing for `gradients`.

        Args:
            zeros: `zeros(name, variable, shape, dtype)` makes a variable of the optimizer, beside `variable`.
            gradients: one for each variable, None where it has none, or their dtypes.
            traced: whether the mini-step is being made into a graph, which will not see accumulators made later.
            known: whether it is known that the variables have these gradients.
        """
        ops = self.ops
        for i, gradient in enumerate(gradients):
            variable = self.var_list[i]()
            if gradient is None:
                if traced and i not in self._seen:
                    self._without_gradient.add(i)
                continue
            if known:
                if i in self._without_gradient:
                    name = getattr(variable, "name", variable)
                    raise ValueError(LATE_GRADIENT.format(repr(name), "optimizer", gradient))
                self._seen.add(i)
            if self.accumulators[i] is not None:
                continue
            dtype = getattr(gradient, "dtype", gradient)
            name, total_dtype = "accumulator_{}".format(i), ops.accumulator_dtype(dtype)
            total, touched = zeros(name, variable, variable.shape, total_dtype), None
            if ops.is_sparse(gradient):
                touched = zeros("touched_{}".format(i), variable, variable.shape[:1], ops.tf.int32)
            self.accumulators[i] = _totals.Accumulator(
                total, dtype, touched, largest=getattr(variable, "overwrite_with_gradient", False)
            )

    def take_mini_step(self, gradients, at, update, run=_here, before=(), weight=None):
        """Take one mini-step: accumulate `gradients`, or end the window with an update.

        Args:
            gradients: list of tensors or IndexedSlices.
            at: for each of them the place of its accumulator.
            update: function of the list of reduced gradients, None where there is no accumulator: one step of the
                inner optimizer, whose operations it creates when called, and returns.
            run: `run(function, args)` calls `function` once on each replica with its own part of `args`.
            before: what else must have been computed before anything is written.
            weight: the weight of these gradients, a scalar on each replica; None for 1, at no cost.

        Returns:
            A boolean tensor: whether this mini-step ended in an update. It is there after all that was written.
        """
        ops = self.ops
        # In a TensorFlow 1 graph nothing else keeps the loss and the gradients ahead of the writes: all the work
        # below hangs on this first read.
        with ops.after(gradients, before):
            mini_step = self.mini_step.read_value()
        new_weight = self.weight.read_value() + (1 if weight is None else ops.mean_over_replicas(weight))
        begins = ops.equal(mini_step, 0)
        steps = ops.where(begins, self.next_steps.read_value(), self.steps.read_value())
        arguments = (gradients,) if weight is None else (gradients, weight)

        def write(begins):
            def on_replica(gradients, weight=None):
                pairs = self._pairs(gradients, at, weight)
                return ops.done([each.write(ops, gradient, begins) for each, gradient in pairs])

            return ops.done(run(on_replica, arguments))

        def go_on():
            with ops.after(ops.cond(begins, lambda: write(True), lambda: write(False))):
                return self._move_to(mini_step + 1, new_weight, steps, updated=False)

        def end_window():
            def on_replica(gradients, weight=None):
                return self._end(self._pairs(gradients, at, weight), begins, new_weight, update)

            with ops.after(run(on_replica, arguments)):
                return self._move_to(0, 0, steps, updated=True)

        return ops.cond(mini_step + 1 >= steps, end_window, go_on)

    def flush(self, update, run=_here):
        """End a window that is under way with an update, on the mean of what is there; else do nothing.

        Args:
            update, run: as in `take_mini_step`.

        Returns:
            A boolean tensor: whether there was an update.
        """
        ops = self.ops
        mini_step, weight, steps = self.mini_step.read_value(), self.weight.read_value(), self.steps.read_value()

        def end_window():
            def on_replica():
                return self._end(self._pairs([], [], None), ops.constant(False, "bool"), weight, update)

            with ops.after(run(on_replica, ())):
                return self._move_to(0, 0, steps, updated=True)

        return ops.cond(mini_step > 0, end_window, lambda: ops.done([], False))

    def drop(self, run=_here):
        """Forget the mini-steps of a window that is under way."""
        ops = self.ops

        def on_replica():
            sparse = [each for each in self.accumulators if each is not None and each.touched is not None]
            return ops.done([each.clear(ops, each.rows(ops, None)) for each in sparse])

        with ops.after(run(on_replica, ())):
            return self._move_to(0, 0, self.steps.read_value(), updated=False)

    def _pairs(self, gradients, at, weight):
        """(accumulator, its weighted gradient or None) of every accumulator."""
        given = dict(zip(at, gradients))
        if weight is not None:
            given = {i: self.ops.weighted(g, weight, self.accumulators[i].total.dtype) for i, g in given.items()}
        return [(each, given.get(i)) for i, each in enumerate(self.accumulators) if each is not None]

    def _end(self, pairs, begins, weight, update):
        """The update of one replica, with the last gradients added on the way."""
        ops = self.ops
        dense = [pair for pair in pairs if pair[0].touched is None]
        sums = (
            # Where a window begins the gradients stand alone: K may have become 1.
            ops.cond(
                begins,
                lambda: [ops.identity(each.sum(ops, gradient, True)) for each, gradient in dense],
                lambda: [each.sum(ops, gradient, False) for each, gradient in dense],
            )
            if dense
            else []
        )
        reduced = {
            each: total if each.largest else self._reduce(total, weight) for (each, _), total in zip(dense, sums)
        }
        rows = {each: each.rows(ops, gradient) for each, gradient in pairs if each.touched is not None}
        for each, (values, indices) in rows.items():
            values = ops.cast(self._reduce(values, weight), each.dtype)
            reduced[each] = ops.indexed_slices(values, indices, each.total)
        for each, _ in dense:
            reduced[each] = ops.cast(reduced[each], each.dtype)
        # An accumulator made in advance, whose variable has no gradient, is none. After a restart nothing was seen yet.
        seen = self._seen or range(len(self.accumulators))
        with ops.after(update([reduced.get(each) if i in seen else None for i, each in enumerate(self.accumulators)])):
            return ops.done([each.clear(ops, rows[each]) for each, _ in pairs if each in rows])

    def _reduce(self, total, weight):
        return total / self.ops.cast(weight, total.dtype) if self.reduction == "mean" else total

    def _move_to(self, mini_step, weight, steps, updated):
        written = [
            self.mini_step.assign(self.ops.cast(mini_step, "int64")),
            self.weight.assign(self.ops.cast(weight, self.weight.dtype.base_dtype)),
            self.steps.assign(steps),
        ]
        return self.ops.done(written, updated)
