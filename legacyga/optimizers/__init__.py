"""What wrap and MySGD return. Each generation of optimizer classes has a file, and none imports another.

In each an `AccumulatingOptimizer` stands before the user's class and takes Keras's calls, and an `Inner` supplies the
hooks that `inner.Inner` declares.
"""

from legacyga.optimizers import keras3, train, v1, v2, v2_before_tf24, v3

__all__ = ["keras3", "train", "v1", "v2", "v2_before_tf24", "v3"]
