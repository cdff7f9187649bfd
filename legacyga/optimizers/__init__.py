"""The accumulating optimizers that wrap and MySGD return: one file per generation, none of which imports another.

Each has an `AccumulatingOptimizer`, a base before the user's class, and an `Inner` with the hooks of `inner.Inner`.
"""

# Importing a file registers its classes, as bases ahead of earlier ones: v2_before_tf24 must come after v2.
from legacyga.optimizers import keras3, train, v1, v2, v2_before_tf24, v3

__all__ = ["keras3", "train", "v1", "v2", "v2_before_tf24", "v3"]
