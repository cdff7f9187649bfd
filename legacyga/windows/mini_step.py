"""MiniStep and Weight: what one call of an optimizer brings into a window."""

import collections


class MiniStep(collections.namedtuple("MiniStep", ["gradients", "places", "forms", "weight", "before"])):
    """One call of an optimizer with the gradients of one micro-batch. The call's entry point makes it, once.

    gradients: list of tensors and IndexedSlices. In cross-replica context each stands for the parts of all replicas.
    places: for each gradient, the place of its variable among the window's sums.
    forms: for each place, what the gradients leave there: NOTHING, ROWS or WHOLE.
    weight: a `Weight`, or None for 1, which costs nothing.
    before: tensors that must be computed before anything is written.
    """


class Weight(collections.namedtuple("Weight", ["value", "is_sample_count", "given_in"])):
    """The weight of one replica's mini-step.

    value: a scalar.
    is_sample_count: whether it counts the samples of the replica's data.
    given_in: for a weight from the program, the graph that it was given in; None outside of all graphs.
    """

    def __new__(cls, value, is_sample_count, given_in=None):
        return super(Weight, cls).__new__(cls, value, is_sample_count, given_in)
