"""K as a part of an optimizer's state."""


class KeptSteps(object):
    """K in two variables: of the next window, and what the optimizer was made with. Each graph has its own.

    Where `made_with` holds the K that this program made the optimizer with, `next` holds K of the next window. Else a
    checkpoint was restored whose optimizer was made with another K, and the program's K holds.

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
        """New variables (next, made_with), of `scalar(name, value, dtype)`. They hold once they are attributes."""
        steps = self._steps
        return scalar("gradient_accumulation_steps", steps.now, "int64"), scalar("made_with", steps.made_with, "int64")

    def of_next_window(self, made_with, next_steps):
        """K of the next window, of the values of the two variables."""
        return next_steps if made_with == self._steps.made_with else self._steps.made_with

    def begin(self):
        """K of a window that begins now, a tensor."""
        ops, own = self._ops, self._ops.constant(self._steps.made_with, "int64")
        # Each is read once, ahead of the condition: a session orders no second read before the branch's writes.
        made_with, next_steps = self.made_with.read_value(), self.next.read_value()
        steps = ops.where(ops.equal(made_with, own), next_steps, own)

        def take_over():
            # What is saved from now on is of this program.
            return ops.done([self.next.assign(own), self.made_with.assign(own)])

        # A run that was loaded from a file goes on with that file's state.
        is_own = ops.logical_or(ops.equal(made_with, own), ops.equal(next_steps, own))
        with ops.after(ops.cond(is_own, lambda: ops.done([]), take_over)):
            return ops.identity(steps)
