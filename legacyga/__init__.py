"""Gradient accumulation for the TensorFlow a project is stuck with. Importing it imports no TensorFlow."""

from legacyga._version import __version__
from legacyga.accumulator import GradientAccumulator
from legacyga.callback import GradientAccumulationCallback
from legacyga.cli.versions import show_versions
from legacyga.flushing import flush
from legacyga.micro_batching import micro_batch
from legacyga.mysgd import MySGD
from legacyga.saving import custom_objects, load_model
from legacyga.training import train_step
from legacyga.wrapping import wrap

__all__ = [
    "GradientAccumulationCallback",
    "GradientAccumulator",
    "MySGD",
    "__version__",
    "custom_objects",
    "flush",
    "load_model",
    "micro_batch",
    "show_versions",
    "train_step",
    "wrap",
]
