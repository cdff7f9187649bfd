"""The policies of `on_nonfinite`, for gradients that are NaN or infinite."""

# The first is the bare optimizer's behaviour: a window without a guard.
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
    """Apply a policy. A window asks its guard in cross-replica context, before it adds gradients and before it updates.

    All replicas on all workers get the same verdict. The variable `skipped` counts the mini-steps skipped in all
    windows. `scale` is None, or for an inner LossScaleOptimizer with a dynamic scale, an object with `read_scale()` and
    `shrink_scale(value)`, which sets the scale that follows an overflow at the scale `value`.
    """

    def __init__(self, ops, policy, skipped, scale=None):
        self._ops, self._skipped, self._scale = ops, skipped, scale
        self._looks_at_each, self._raises = policy == "skip_mini_step", policy == "raise"

    def look(self, run, arguments):
        """Return whether gradients of a mini-step are not finite: a boolean tensor, or None if the policy does not ask.

        Called where nothing waits for all gradients, it reads each gradient as soon as that is computed.
        """
        if self._looks_at_each:
            return self._ops.replicas.sum(run(self._is_bad, arguments)) > 0

    def take(self, bad, add, leave_out):
        """Return `add()`, or `leave_out()` if `look` found the mini-step `bad`."""
        if bad is None:
            return add()

        def count():
            with self._ops.after(self._skipped.assign_add(1)):
                return leave_out()

        return self._ops.cond(bad, count, add)

    def _is_bad(self, gradients, weight=None):
        bad = self._ops.reduce_any(self._ops.not_finite(gradients) > 0)
        if weight is not None:
            # A mini-step of weight 0 adds nothing, even the NaN of a mean over no samples.
            bad = self._ops.logical_and(bad, self._ops.logical_not(self._ops.equal(weight, 0)))
        return self._ops.cast(bad, "float32")

    def end(self, run, reduced, added, left_out, update, close, names):
        """End a window: update if any mini-step added gradients and the sums are finite.

        Args:
            run: as in `Window.take`.
            reduced: on each replica, the list of reduced gradients, None for a variable without one.
            added: the number of mini-steps in the reduced gradients.
            left_out: the number of mini-steps of the window that were skipped.
            update: function that takes the reduced gradients, makes one update and returns its operations.
            close: `close(updated)` writes that the window is over, and returns `updated` as a tensor.
            names: the variables' names.
        """
        ops = self._ops
        if self._raises and ops.is_compiled():
            raise ValueError(COMPILED)
        present = [i for i, gradient in enumerate(reduced) if gradient is not None]
        bad = ops.replicas.sum(run(lambda each: ops.not_finite([each[i] for i in present]), (reduced,))) > 0
        is_skipped = ops.logical_or(ops.reduce_any(bad), ops.equal(added, 0))

        def make_update():
            return ops.done(run(lambda each: ops.done(update(each)), (reduced,)))

        def skip_window():
            with ops.after(self._skipped.assign_add(added)):
                closed = close(False)
            if not self._raises:
                return closed
            # The state is written first, so training can go on with the next window.
            with ops.after(closed), ops.after(ops.fail(NOT_FINITE, [names[i] for i in present], bad)):
                return ops.identity(closed)

        def update_and_close():
            with ops.after(make_update()):
                return close(True)

        def close_with_scale(before):
            with ops.after(
                ops.cond(left_out > 0, lambda: ops.done(self._scale.shrink_scale(before)), lambda: ops.done([]))
            ):
                return close(True)

        if self._scale is not None:
            # A NaN makes the LossScaleOptimizer itself skip the update, and lower its scale.
            reduced = run(lambda each: ops.spoil_if(is_skipped, each), (reduced,))
            # If mini-steps were left out, shrink the scale from its value before the update, which may raise it.
            before = self._scale.read_scale() if self._looks_at_each else None
            # An error ends everything that has not run, so complete the update first.
            with ops.after(before), ops.after(ops.completed(make_update) if self._raises else make_update()):
                return ops.cond(
                    is_skipped, skip_window, lambda: close_with_scale(before) if self._looks_at_each else close(True)
                )
        return ops.cond(is_skipped, skip_window, update_and_close)
