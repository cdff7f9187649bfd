"""MiniStep and Weight: the gradients that one call of an optimizer adds to a window, and their weight."""

import collections


class MiniStep(collections.namedtuple("MiniStep", ["gradients", "places", "forms", "weight", "before"])):
    """One call of an optimizer with the gradients of one micro-batch. `Accumulation` creates it.

    gradients: list of tensors and IndexedSlices. In cross-replica context each stands for the parts of all replicas.
    places: for each gradient, the place of its variable among the window's sums.
    forms: for each place, what these gradients add to its sum: NOTHING, ROWS or WHOLE.
    weight: a `Weight`. None: the mini-step weighs one unit (`Kept.unit`), and nothing is multiplied.
    before: tensors that must be computed before anything is written.
    """


class Weight(collections.namedtuple("Weight", ["value", "is_sample_count", "given_in", "counted"])):
    """The weight of one replica's mini-step.

    value: a scalar.
    is_sample_count: whether it counts the samples of the replica's data.
    given_in: for a weight set by the program, the graph in which it was set; None outside of all graphs.
    counted: what the window's sum of weights grows by: n where `value`, a loss's divisor, is max(1, n). None: `value`.
    """

    def __new__(cls, value, is_sample_count, given_in=None, counted=None):
        return super(Weight, cls).__new__(cls, value, is_sample_count, given_in, counted)
