"""One file a generation of optimizer classes, on the base that `_base` declares; none imports another.

In each an `AccumulatingOptimizer` stands before the user's class and takes Keras's calls, and an `Accumulation`
supplies the hooks.
"""
