"""Keeps K as the program sets it, in Python."""


class Steps(object):
    """K of an optimizer: the one it was made with, and the one the program has set since.

    Attributes:
        made_with: the K that the optimizer was made with.
        now: the K in effect while no variable holds it: until the first window is made, and at K = 1.
        was_set: whether the program has set K while no variable held it.
        are_bare: whether a mini-step was made at K = 1 without a window.
        has_windows: whether there are accumulators: if K is or may become above 1, or `on_nonfinite` needs them.
        had_windows: `has_windows` when the optimizer was made.
    """

    def __init__(self, settings):
        self.made_with = self.now = settings.steps
        self.was_set = self.are_bare = False
        self.had_windows = self.has_windows = settings.steps > 1 or settings.guards

    def expect(self, steps):
        """Announce that K may become `steps`: if that is above 1, a state built from now on has accumulators."""
        self.has_windows = self.has_windows or steps > 1

    def set(self, steps, is_kept):
        """Set K; `is_kept` tells whether a variable holds it too."""
        self.now, self.was_set = steps, self.was_set or not is_kept
        self.expect(steps)
