"""One file a generation of optimizer classes, on the base that `_base` declares; none imports another.

Each has an `AccumulatingOptimizer`, which stands before the user's class and takes Keras's calls, and an `Accumulation`,
which supplies the hooks.
"""
