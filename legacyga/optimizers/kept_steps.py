"""Keeps K in an optimizer's state, and decides which K holds after a restore."""


class KeptSteps(object):
    """Two variables per graph: K of the next window, and the K that the optimizer was made with.

    If `made_with` equals the K that this program made the optimizer with, `next` is K of the next window. Otherwise
    the state comes from a checkpoint of an optimizer made with another K, and this program's K applies instead.

    Args:
        steps: the program's `steps.Steps`.
        ops: an `ops.Ops`.

    Attributes:
        next, made_with: variables, None until the first window is made.
    """

    def __init__(self, steps, ops):
        self._steps, self._ops = steps, ops
        self.next = self.made_with = None

    def make(self, scalar):
        """New variables (next, made_with), made by `scalar(name, value, dtype)`; the caller sets the attributes."""
        steps = self._steps
        return scalar("gradient_accumulation_steps", steps.now, "int64"), scalar("made_with", steps.made_with, "int64")

    def of_next_window(self, made_with, next_steps):
        """K of the next window, an int, from the values of the two variables."""
        return next_steps if made_with == self._steps.made_with else self._steps.made_with

    def begin(self):
        """K of a window that begins now, a tensor."""
        ops, own = self._ops, self._ops.constant(self._steps.made_with, "int64")
        # Read each once, ahead of the condition: a session could run a second read after the branch's writes.
        made_with, next_steps = self.made_with.read_value(), self.next.read_value()
        steps = ops.where(ops.equal(made_with, own), next_steps, own)

        def take_over():
            # From now on, checkpoints hold this program's K.
            return ops.done([self.next.assign(own), self.made_with.assign(own)])

        # Write nothing if the state already gives this K, so that a resumed run keeps the file's state.
        is_own = ops.logical_or(ops.equal(made_with, own), ops.equal(next_steps, own))
        with ops.after(ops.cond(is_own, lambda: ops.done([]), take_over)):
            return ops.identity(steps)
