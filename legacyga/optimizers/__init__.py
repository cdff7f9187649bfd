"""The accumulating optimizers that wrap and MySGD return: one file per generation, none of which imports another.

Each file has an `AccumulatingOptimizer`, a base placed before the user's class to intercept Keras's calls, and an
`Inner`, which implements the hooks declared in `inner.Inner`.
"""

# Importing a file registers its classes. The later registration comes first, so v2_before_tf24 must come after v2.
from legacyga.optimizers import keras3, train, v1, v2, v2_before_tf24, v3

__all__ = ["keras3", "train", "v1", "v2", "v2_before_tf24", "v3"]
