"""What one version of TensorFlow or Keras has and another lacks: each fact once.

Each function says since when, and ends in "Delete with": a grep for that tells what a raised floor frees. "Delete with
TF 2.3" means: once TF 2.3 is no longer supported, the function answers the same everywhere.
"""

import contextlib
import importlib


def version_of(module):
    """The version of `module` as a tuple of its leading integers, `()` if it has none."""
    numbers = []
    for part in str(getattr(module, "__version__", "")).split("."):
        digits = part.split("-")[0].split("+")[0]
        if not digits.isdigit():
            break
        numbers.append(int(digits))
    return tuple(numbers)


def restores_as_it_saves(tf):
    """Whether tf.train.Checkpoint calls the same method to restore an object as to save it. Delete with TF 2.7."""
    return version_of(tf) < (2, 8)


def multiplies_one_number(home):
    """Whether graph mode multiplies a loss of one number by the sample weights; else it raises. Delete with TF 1.10."""
    return home.is_standalone or version_of(home.tf) < (1, 11)


def finds_averages_by_variable(home):
    """Whether v3 optimizers find a moving average by its variable, not by its place in a list. Delete with TF 2.13."""
    return home.name == "tf_keras" or version_of(home.tf) >= (2, 14)


def has_experimental_v3(home):
    """Whether the v3 optimizers are the experimental ones of TF 2.10. Delete with TF 2.10."""
    return hasattr(home.module.optimizers.SGD, "_resource_apply_dense")


def tape_module(tf):
    """The private module that tapes record with: `record`, up to TF 2.12 `tape`. Delete with TF 2.12."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("tensorflow.python.eager.record")
    return importlib.import_module("tensorflow.python.eager.tape")


def sums_activities(home):
    """Whether a layer's activity_regularizer is a sum over the batch, in eager mode. Delete with Keras 3.13."""
    return home.is_keras3 and version_of(home.module) < (3, 14)


def layers_of(model):
    """A model and all layers within it, which TF 2.2 and 2.3 call its modules. Delete with TF 2.3."""
    if hasattr(model, "_flatten_layers"):
        return list(model._flatten_layers())
    return [model] + [each for each in model.submodules if hasattr(each, "_eager_losses")]
