"""Gradient accumulation for the TensorFlow a project is stuck with. Importing it imports no TensorFlow."""
from legacyga._version import __version__
from legacyga.mysgd import MySGD

__all__ = ["MySGD", "__version__"]
