"""One file a generation of optimizer classes, on the base that `_base` declares; none imports another.

In each an `AccumulatingOptimizer` stands before the user's class and takes Keras's calls, and an `Accumulation`
supplies the hooks.
"""

from legacyga.generations import keras3, keras_v1, optimizer_v2, optimizer_v3, tf1_train

__all__ = ["keras3", "keras_v1", "optimizer_v2", "optimizer_v3", "tf1_train"]
