"""K as a program gives it."""


class Steps(object):
    """K of an optimizer: the one that it was made with, and the one that the program has set since.

    Attributes:
        made_with: the K that the optimizer was made with.
        now: the K that holds where no variable keeps it: until the first window is made, and at K = 1.
        was_set: whether the program has set K where no variable keeps it.
        are_bare: whether a mini-step was made at K = 1, without a window.
        has_windows: whether there are accumulators: not at K = 1, unless gradients are looked at before an update.
        had_windows: the same, of the K that the optimizer was made with.
    """

    def __init__(self, settings):
        self.made_with = self.now = settings.steps
        self.was_set = self.are_bare = False
        self.had_windows = self.has_windows = settings.steps > 1 or settings.guards

    def expect(self, steps):
        """K may become this one: where it is more than 1, what is built from now on has accumulators."""
        self.has_windows = self.has_windows or steps > 1

    def set(self, steps, is_kept):
        """K is this from now on; `is_kept`: whether a variable keeps it."""
        self.now, self.was_set = steps, self.was_set or not is_kept
        self.expect(steps)
