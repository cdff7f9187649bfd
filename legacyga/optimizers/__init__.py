"""One file a generation of optimizer classes, on the base that `accumulation` declares; none imports another.

In each an `AccumulatingOptimizer` stands before the user's class and takes Keras's calls, and an `Accumulation`
supplies the hooks.
"""

from legacyga.optimizers import keras3, train, v1, v2, v3

__all__ = ["keras3", "train", "v1", "v2", "v3"]
