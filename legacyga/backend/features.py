"""What one version of TensorFlow or Keras has and another lacks: each fact once.

Each function says since when, and ends in "Delete with": a grep for that tells what a raised floor frees. "Delete with
TF 2.3" means: once TF 2.3 is no longer supported, the function answers the same everywhere.
"""

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


def v1_of(tf):
    """tf.compat.v1; tf itself where there is none. Delete with TF 1.12."""
    return getattr(getattr(tf, "compat", None), "v1", tf)


def distribute(tf):
    """tf.distribute, None where it has no strategy to ask for. Delete with TF 1.12."""
    found = getattr(tf, "distribute", None)
    return found if hasattr(found, "get_strategy") else None


def init_scope(tf):
    """tf.init_scope, private up to TF 1.10. Delete with TF 1.10."""
    return getattr(tf, "init_scope", None) or importlib.import_module(tf.Tensor.__module__).init_scope


def executing_eagerly_outside_functions(tf):
    """The function of that name; up to TF 2.1 tf.executing_eagerly, which says no in a function. Delete with TF 2.1."""
    return getattr(v1_of(tf), "executing_eagerly_outside_functions", tf.executing_eagerly)


def has_variable_creators(tf):
    """Whether tf.Variable asks the creators of variables around it, from TF 1.11 on. Delete with TF 1.10."""
    return type(tf.Variable) is not type


def variable_creator_scope(tf):
    """tf.variable_creator_scope, public from TF 1.12 on. Delete with TF 1.11."""
    found = getattr(v1_of(tf), "variable_creator_scope", None)
    return found or importlib.import_module("tensorflow.python.ops.variable_scope").variable_creator_scope


def variable_aggregation(tf, name):
    """A tf.VariableAggregation by its name; replicas are towers in TF 1.11 and 1.12. Delete with TF 1.12."""
    names = tf.VariableAggregation.__members__
    return names[name if name in names else name.replace("REPLICA", "TOWER")]


def strategy_of(variable):
    """The strategy that a variable was made under, None without one; private up to TF 2.0. Delete with TF 2.0."""
    return getattr(variable, "distribute_strategy", None) or getattr(variable, "_distribute_strategy", None)


def getter_of_part(tf):
    """The name of the method that gives a replica its part of a variable: `get` up to TF 2.1. Delete with TF 2.1."""
    return "_get" if version_of(tf) >= (2, 2) else "get"


def static_value(tf):
    """tf.get_static_value, the NumPy value of a constant tensor, private up to TF 1.13. Delete with TF 1.13."""
    # tf.contrib has it too, and takes seconds and 60 MiB to load.
    found = getattr(tf, "get_static_value", None)
    return found or importlib.import_module("tensorflow.python.framework.tensor_util").constant_value


def raw_op(tf, name, old_name):
    """An operation of tf.raw_ops, under its old name in the module that has it up to TF 1.13. Delete with TF 1.13."""
    ops = getattr(tf, "raw_ops", None) or importlib.import_module("tensorflow.python.ops.gen_resource_variable_ops")
    return getattr(ops, name, None) or getattr(ops, old_name)


def is_finite(tf):
    """tf.math.is_finite, tf.is_finite up to TF 1.8. Delete with TF 1.8."""
    return getattr(tf, "is_finite", None) or tf.math.is_finite


def multiply_no_nan(tf):
    """tf.math.multiply_no_nan, None up to TF 1.13. Delete with TF 1.13."""
    return getattr(getattr(tf, "math", None), "multiply_no_nan", None)


def trackable_base(tf):
    """The class that makes checkpoints take an object's attributes in, None up to TF 1.13. Delete with TF 1.13."""
    # The base of tf.Module: a Keras model would have a tf.Module's variables among its weights.
    return tf.Module.__mro__[1] if hasattr(tf, "Module") else None


def has_branches_that_are_functions(tf):
    """Whether conditionals of graphs are functions, which cannot write to reference variables; never up to TF 1.13."""
    return getattr(v1_of(tf), "control_flow_v2_enabled", bool)()


def asks_within_init_scope(graph):
    """Whether a graph is a function's, in which TF up to 2.1 says nothing of what is outside. Delete with TF 2.1."""
    return getattr(graph, "building_function", False)


def is_loss_scale_optimizer(home, optimizer):
    """Whether an optimizer of a home is a LossScaleOptimizer. The home of those of tf.train has none."""
    cls = getattr(getattr(getattr(home, "module", None), "optimizers", None), "LossScaleOptimizer", ())
    return hasattr(type(optimizer), "get_unscaled_gradients") or isinstance(optimizer, cls)


def has_dynamic_scale(optimizer):
    """Whether the scale of a LossScaleOptimizer follows the gradients. Keras 3 has no other.

    The attribute `dynamic` is there from TF 2.4 on. Delete with TF 2.3.
    """
    return getattr(optimizer, "dynamic", type(vars(optimizer).get("_loss_scale")).__name__ != "FixedLossScale")


def filter_of_gradients(module):
    """Keras's function that warns of variables without a gradient, as an optimizer's module has it; None without it.

    It is `_filter_grads` in TF 2.0 to 2.3. Delete with TF 2.3.
    """
    names = vars(module)
    return names.get("_filter_grads") or getattr(names.get("optimizer_utils"), "filter_empty_gradients", None)


def shares_raw_logs(home):
    """Whether Keras gives callbacks that take raw logs the dict of all others: TF 2.6 and newer. Delete with TF 2.5.

    TF 2.3 to 2.5 give them another one. What they put into it does not reach History and CSVLogger.
    """
    return version_of(home.tf) >= (2, 6)


def calls_callbacks_on_exceptions(home):
    """Whether fit calls callbacks after an exception: in eager mode of TF 2.0 and 2.1. Delete with TF 2.1."""
    return version_of(home.tf) < (2, 2) and not home.graph_mode


def has_autograph(tf):
    """Whether functions are traced, and so rewritten by AutoGraph. Delete with TF 1.15."""
    return version_of(tf) >= (2,)


def legacy_optimizers(optimizers):
    """`keras.optimizers.legacy`, there from TF 2.9 on, else the module itself. Delete with TF 2.10."""
    return getattr(optimizers, "legacy", optimizers)


def is_before_keras_35(keras):
    """Whether a Keras 3 is too old: `iterations` is a property of the class from 3.5 on. Delete with Keras 3.4."""
    return not hasattr(keras.optimizers.Optimizer, "iterations")


def registered_name(keras):
    """`keras.utils.get_registered_name`, there from TF 2.2 on, else a class's own name. Delete with TF 2.1."""
    return getattr(keras.utils, "get_registered_name", lambda cls: cls.__name__)


def registered_object(keras):
    """`keras.utils.get_registered_object`, there from TF 2.2 on, else `get` of custom objects. Delete with TF 2.1."""
    return getattr(keras.utils, "get_registered_object", keras.utils.get_custom_objects().get)
