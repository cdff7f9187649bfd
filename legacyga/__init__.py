"""Gradient accumulation for the TensorFlow a project is stuck with. Importing it imports no TensorFlow."""

from legacyga._version import __version__
from legacyga.backend.messages import AccumulationWarning
from legacyga.cli.versions import show_versions
from legacyga.fit.callback import GradientAccumulationCallback
from legacyga.fit.micro_batching import micro_batch
from legacyga.fit.train_step import train_step
from legacyga.optimizers.lookup import flush
from legacyga.optimizers.mysgd import MySGD
from legacyga.optimizers.saving import custom_objects, load_model
from legacyga.optimizers.wrapping import wrap
from legacyga.slices.fitting import micro_batch_size
from legacyga.slices.means import recomputes
from legacyga.windows.gradient_accumulator import GradientAccumulator

__all__ = [
    "AccumulationWarning",
    "GradientAccumulationCallback",
    "GradientAccumulator",
    "MySGD",
    "__version__",
    "custom_objects",
    "flush",
    "load_model",
    "micro_batch",
    "micro_batch_size",
    "recomputes",
    "show_versions",
    "train_step",
    "wrap",
]
