"""A mini-step: what one call of an optimizer brings into a window."""

import collections


class MiniStep(
    collections.namedtuple("MiniStep", ["gradients", "places", "forms", "args", "kwargs", "weight", "before"])
):
    """One call of an optimizer with the gradients of one micro-batch. It is made once, where the call comes in.

    gradients: list of tensors and IndexedSlices. Across replicas each stands for the parts of all replicas.
    places: for each gradient, the place of its variable among the window's sums.
    forms: NOTHING, ROWS or WHOLE for each place: what the gradients leave there.
    args, kwargs: what else the call came with.
    weight: a `Weight`, None for 1, which costs nothing.
    before: tensors that must be there before anything is written.
    """


class Weight(collections.namedtuple("Weight", ["value", "is_sample_count", "given_in"])):
    """What one replica's mini-step weighs.

    value: a scalar.
    is_sample_count: whether it counts the samples of the replica's data.
    given_in: of a weight that a program gave, the graph that it was given in, None outside of all graphs.
    """

    def __new__(cls, value, is_sample_count, given_in=None):
        return super(Weight, cls).__new__(cls, value, is_sample_count, given_in)
