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


class Window(object):
    """The state of the window that is under way, and what a mini-step does to it.

    Args:
        accumulation: the `Accumulation` that this window belongs to.
        accumulators: list of variables, one for each gradient, of at least float32.
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
        return self.accumulators + [self.mini_step, self.weight, self.steps, self.next_steps]

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

        def end_window():
            def on_replica(gradients):
                return update(self._reduce(self._sums(begins, gradients), gradients, new_weight))

            with ops.after(run(on_replica, (gradients,))):
                return self._move_to(0, 0, steps, updated=True)

        def go_on():
            stored = ops.cond(
                begins, lambda: self._write(run, gradients, False), lambda: self._write(run, gradients, True)
            )
            with ops.after(stored):
                return self._move_to(mini_step + 1, new_weight, steps, updated=False)

        return ops.cond(mini_step + 1 >= steps, end_window, go_on)

    def _sums(self, begins, gradients):
        """The window's sums with `gradients`, which stand alone where a window begins: K may have become 1."""
        gradients = [self._wide(gradient, total) for gradient, total in zip(gradients, self.accumulators)]
        return self.ops.cond(
            begins,
            lambda: [self.ops.identity(gradient) for gradient in gradients],
            lambda: [total.read_value() + gradient for gradient, total in zip(gradients, self.accumulators)],
        )

    def _reduce(self, sums, gradients, weight):
        if self.reduction == "mean":
            sums = [total / self.ops.cast(weight, total.dtype) for total in sums]
        return [self.ops.cast(total, gradient.dtype) for total, gradient in zip(sums, gradients)]

    def _write(self, run, gradients, add):
        def on_replica(gradients):
            return [
                (total.assign_add if add else total.assign)(self._wide(gradient, total))
                for gradient, total in zip(gradients, self.accumulators)
            ]

        with self.ops.after(run(on_replica, (gradients,))):
            return self.ops.constant(True, "bool")

    def _wide(self, gradient, total):
        return self.ops.cast(self.ops.dense(gradient), total.dtype.base_dtype)

    def _move_to(self, mini_step, weight, steps, updated):
        written = [
            self.mini_step.assign(self.ops.cast(mini_step, "int64")),
            self.weight.assign(self.ops.cast(weight, self.weight.dtype.base_dtype)),
            self.steps.assign(steps),
        ]
        with self.ops.after(written):
            return self.ops.constant(updated, "bool")


class Accumulation(object):
    """What an optimizer that accumulates carries: K, the reduction, and one window for each set of variables.

    An object that no Keras looks into: put straight on an optimizer, a dict would be tracked, and saved, as its state.
    """

    def __init__(self, ops, steps, reduction="mean"):
        self.ops = ops
        self.steps = steps
        self.reduction = reduction
        self.next_steps = None
        self.windows = {}
        self.latest = None

    def window(self, key, make):
        """The window of the variables that `key` stands for, None at K = 1. `make(number)` makes the first one."""
        if key not in self.windows:
            self.windows[key] = make(len(self.windows)) if self.steps > 1 else None
        self.latest = self.windows[key]
        if self.latest is not None:
            self.next_steps = self.latest.next_steps
        return self.latest


class Accumulates(object):
    """The part of an optimizer's surface that is the same in every generation, for their `Accumulating` classes."""

    home = None
    _accumulation = None

    @property
    def gradient_accumulation_steps(self):
        """K, an int: the mini-steps of a window. Setting it takes effect at the next window."""
        return self._accumulation.steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value):
        accumulation = self._accumulation
        steps = check_steps("gradient_accumulation_steps", value)
        if accumulation.next_steps is not None:
            self._assign_steps(accumulation.next_steps, steps)
        elif accumulation.windows and steps > 1:
            raise ValueError(NO_ACCUMULATORS.format(steps))
        accumulation.steps = steps

    @property
    def mini_step(self):
        """The mini-steps taken in the window, 0 to K - 1: a variable, as `iterations` is (a constant at K = 1)."""
        latest = self._accumulation.latest
        return self._accumulation.ops.constant(0, "int64") if latest is None else latest.mini_step

    def _assign_steps(self, variable, steps):
        self.home.backend.set_value(variable, steps)
