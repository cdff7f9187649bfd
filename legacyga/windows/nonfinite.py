"""What becomes of gradients that are not finite: the policies of `on_nonfinite`. No TensorFlow is imported here."""

# The first is what the bare optimizer does: a window without a guard.
POLICIES = ("propagate", "skip_mini_step", "skip_window", "raise")
COMPILED = (
    'on_nonfinite="raise" cannot hold in a function that XLA compiles, which drops assertions. Received: a mini-step '
    "within jit_compile=True (Keras 3's default). Give compile, or tf.function, jit_compile=False, or take "
    'on_nonfinite="skip_window" and look at the optimizer\'s skipped_mini_steps.'
)
NOT_FINITE = (
    "The gradients of a window are not finite (NaN or inf): it was closed without an update, and the next mini-step "
    "begins a new one. The variables are:"
)


class Guard(object):
    """A policy. A window asks it before it adds gradients, and before it updates.

    Both is asked in cross-replica context. The verdict is one for all replicas, on all workers.

    Args:
        ops: an `ops.Ops`.
        policy: one of POLICIES, but for the first.
        skipped: variable: the mini-steps of all windows that were left out.
        scale: where the inner optimizer is a LossScaleOptimizer whose scale is to shrink, an object with
            `read_scale()`, and with `shrink_scale(value)`, which brings it to what an overflow makes of that value.
    """

    def __init__(self, ops, policy, skipped, scale=None):
        self._ops, self._skipped, self._scale = ops, skipped, scale
        self._looks_at_each, self._raises = policy == "skip_mini_step", policy == "raise"

    def look(self, run, arguments):
        """Whether gradients of a mini-step are not finite, a boolean tensor; None where that is not asked for.

        To be called ahead of all that waits for the last gradient: then each is read when it has just been made.

        Args:
            run: as of `Window.take`.
            arguments: for each replica, (gradients,) or (gradients, weight).
        """
        if self._looks_at_each:
            return self._ops.replicas.sum(run(self._is_bad, arguments)) > 0

    def take(self, bad, add, leave_out):
        """`add()`, or `leave_out()` where a look found the mini-step `bad`."""
        if bad is None:
            return add()

        def count():
            with self._ops.after(self._skipped.assign_add(1)):
                return leave_out()

        return self._ops.cond(bad, count, add)

    def _is_bad(self, gradients, weight=None):
        bad = self._ops.reduce_any(self._ops.not_finite(gradients) > 0)
        if weight is not None:
            # What weighs nothing adds nothing: the NaN of a mean over no samples.
            bad = self._ops.logical_and(bad, self._ops.logical_not(self._ops.equal(weight, 0)))
        return self._ops.cast(bad, "float32")

    def end(self, run, reduced, added, left_out, update, close, names):
        """The end of a window: an update, if there is something to update with, and it is finite.

        Args:
            reduced: on each replica the list of reduced gradients, None for a variable without.
            added, left_out: the mini-steps that are in them, and those that are not.
            update: as of `Window.take`.
            close: `close(updated)` writes that the window is over; returns `updated` as a tensor.
            names: of the variables.
        """
        ops = self._ops
        if self._raises and ops.is_compiled():
            raise ValueError(COMPILED)
        present = [i for i, gradient in enumerate(reduced) if gradient is not None]
        bad = ops.replicas.sum(run(lambda each: ops.not_finite([each[i] for i in present]), (reduced,))) > 0

        is_left = ops.logical_or(ops.reduce_any(bad), ops.equal(added, 0))

        def make_update():
            return ops.done(run(lambda each: ops.done(update(each)), (reduced,)))

        def leave():
            with ops.after(self._skipped.assign_add(added)):
                closed = close(False)
            if not self._raises:
                return closed
            # The state is written: training can go on with the next window.
            with ops.after(closed), ops.after(ops.fail(NOT_FINITE, [names[i] for i in present], bad)):
                return ops.identity(closed)

        def apply():
            with ops.after(make_update()):
                return close(True)

        def close_with_scale(before):
            with ops.after(
                ops.cond(left_out > 0, lambda: ops.done(self._scale.shrink_scale(before)), lambda: ops.done([]))
            ):
                return close(True)

        if self._scale is not None:
            # It makes no update of what is not finite, and learns of it.
            reduced = run(lambda each: ops.spoil_if(is_left, each), (reduced,))
            # It is to learn of what was left out, too, and has learned only of a finite update, by which it may grow.
            before = self._scale.read_scale() if self._looks_at_each else None
            # What raises ends what has not run. The newer optimizers return nothing to wait for.
            with ops.after(before), ops.after(ops.completed(make_update) if self._raises else make_update()):
                return ops.cond(
                    is_left, leave, lambda: close_with_scale(before) if self._looks_at_each else close(True)
                )
        return ops.cond(is_left, leave, apply)
