"""K of an optimizer: as the program sets it, in Python, and as a part of the state, in variables."""


class Steps(object):
    """K as the program sets it.

    Attributes:
        made_with: the K that the optimizer was made with.
        now: the K that the program has set last. Variables hold K from the first window on.
        was_set: whether the program has set K while no variable held it.
        are_bare: whether a mini-step was made at K = 1 without a window.
        has_windows: whether there are accumulators: if K is or may become above 1, or `on_nonfinite` needs them.
    """

    def __init__(self, settings):
        self.made_with = self.now = settings.steps
        self.was_set = self.are_bare = False
        self.has_windows = settings.steps > 1 or settings.guards

    def expect(self, steps):
        """Announce that K may become `steps`: if that is above 1, a state built from now on has accumulators."""
        self.has_windows = self.has_windows or steps > 1

    def set(self, steps, is_kept):
        """Set K; `is_kept` says whether a variable also holds it."""
        self.now, self.was_set = steps, self.was_set or not is_kept
        self.expect(steps)


class KeptSteps(object):
    """Two variables, None until the first window: K of the next window, and the K that the optimizer was made with.

    A restore may set both. If this program made its optimizer with another K than `made_with`, its K wins over `next`.
    """

    def __init__(self, steps, ops):
        self._steps, self._ops = steps, ops
        self.next = self.made_with = None

    def of_next_window(self, made_with, next_steps):
        """K of the next window, an int, from the values of the two variables."""
        return next_steps if made_with == self._steps.made_with else self._steps.made_with

    def begin(self):
        """K of a window that begins now, a tensor. Writes it to the variables if they say otherwise."""
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
