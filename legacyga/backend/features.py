"""State what one version of TensorFlow or Keras has and another lacks, each fact once.

Grep for "Delete with TF 2.3" to find what nothing needs once TF 2.3 is no longer supported: a function, or the part of
it that the sentence names.
"""

import contextlib
import importlib
import inspect
import re

_NUMBERS = re.compile(r"[\d.]*")


def version_of(module):
    """Return the version of `module` as a tuple of its leading integers, `()` if it has none."""
    numbers = _NUMBERS.match(str(getattr(module, "__version__", ""))).group()
    return tuple(map(int, filter(None, numbers.split("."))))


def multiplies_one_number(home):
    """Whether graph mode multiplies a loss of one number by sample weights. Delete with TF 1.10 and Keras 2.3."""
    return home.is_standalone or version_of(home.tf) < (1, 11)


def finds_averages_by_variable(home):
    """Whether v3 optimizers find a moving average by variable, not by list position. Delete with TF 2.13."""
    return home.name == "tf_keras" or version_of(home.tf) >= (2, 14)


def has_experimental_v3(home):
    """Whether the v3 optimizers are the experimental ones of TF 2.10. Delete with TF 2.10."""
    return hasattr(home.module.optimizers.SGD, "_resource_apply_dense")


def v1_of(tf):
    """Return tf.compat.v1, or tf if there is none. Delete with TF 1.12."""
    return getattr(getattr(tf, "compat", None), "v1", tf)


def distribute(tf):
    """Return tf.distribute, or None if it has no `get_strategy`. Delete with TF 1.12."""
    found = getattr(tf, "distribute", None)
    return found if hasattr(found, "get_strategy") else None


def init_scope(tf):
    """Return tf.init_scope, private up to TF 1.10. Delete with TF 1.10."""
    return getattr(tf, "init_scope", None) or importlib.import_module(tf.Tensor.__module__).init_scope


def executing_eagerly_outside_functions(tf):
    """Return TF's function, or up to TF 2.1 executing_eagerly, which is False in functions. Delete with TF 2.1."""
    return getattr(v1_of(tf), "executing_eagerly_outside_functions", tf.executing_eagerly)


def has_variable_creators(tf):
    """Whether tf.Variable obeys variable_creator_scope: from TF 1.11 on. Delete with TF 1.10."""
    return type(tf.Variable) is not type


def variable_creator_scope(tf):
    """Return tf.variable_creator_scope, public from TF 1.12 on. Delete with TF 1.11."""
    found = getattr(v1_of(tf), "variable_creator_scope", None)
    return found or importlib.import_module("tensorflow.python.ops.variable_scope").variable_creator_scope


def variable_aggregation(tf, name):
    """Return a tf.VariableAggregation by name; TF 1.11 and 1.12 call replicas towers. Delete with TF 1.12."""
    names = tf.VariableAggregation.__members__
    return names[name if name in names else name.replace("REPLICA", "TOWER")]


def strategy_of(variable):
    """Return the strategy that made a variable, or None. Under OneDeviceStrategy the attribute is private."""
    return getattr(variable, "distribute_strategy", None) or getattr(variable, "_distribute_strategy", None)


def strategy_of_model(model):
    """Return the strategy under which a model was made, or None; private up to TF 2.1. Delete with TF 2.1."""
    return getattr(model, "distribute_strategy", None) or getattr(model, "_distribution_strategy", None)


def getter_of_part(tf):
    """Return the name of the method that gives a variable's part on this replica. Delete with TF 2.1."""
    return "_get" if version_of(tf) >= (2, 2) else "get"


def static_value(tf):
    """Return tf.get_static_value, which gives a constant's NumPy value; private up to TF 1.13. Delete with TF 1.13."""
    # tf.contrib has it too, but takes seconds and 60 MiB to load.
    found = getattr(tf, "get_static_value", None)
    return found or importlib.import_module("tensorflow.python.framework.tensor_util").constant_value


def raw_op(tf, name, old_name):
    """Return an operation of tf.raw_ops; up to TF 1.13 by its old name in another module. Delete with TF 1.13."""
    ops = getattr(tf, "raw_ops", None) or importlib.import_module("tensorflow.python.ops.gen_resource_variable_ops")
    return getattr(ops, name, None) or getattr(ops, old_name)


def is_finite(tf):
    """Return tf.is_finite, or tf.math.is_finite in newer versions, which have only that. Delete with TF 1.15."""
    return getattr(tf, "is_finite", None) or tf.math.is_finite


def multiply_no_nan(tf):
    """Return tf.math.multiply_no_nan, None up to TF 1.13. Delete with TF 1.13."""
    return getattr(getattr(tf, "math", None), "multiply_no_nan", None)


def trackable_base(tf):
    """Return the base class whose attributes checkpoints save, None up to TF 1.13. Delete with TF 1.13."""
    # Use the base of tf.Module: a Keras model would count a tf.Module's variables among its weights.
    return tf.Module.__mro__[1] if hasattr(tf, "Module") else None


def has_branches_that_are_functions(tf):
    """Whether a graph's conditionals are functions (control flow v2): TF 1.14 cannot tell. Delete with TF 1.14."""
    return getattr(v1_of(tf), "control_flow_v2_enabled", bool)()


def is_of_function(graph):
    """Whether `graph` is a function's: up to TF 2.1 code in it cannot ask for the mode. Delete with TF 2.1."""
    return getattr(graph, "building_function", False)


def is_loss_scale_optimizer(home, optimizer):
    """Whether an optimizer is a LossScaleOptimizer. The home of tf.train optimizers has no such class."""
    cls = getattr(getattr(getattr(home, "module", None), "optimizers", None), "LossScaleOptimizer", ())
    return hasattr(type(optimizer), "get_unscaled_gradients") or isinstance(optimizer, cls)


def has_dynamic_scale(optimizer):
    """Whether a LossScaleOptimizer adapts its scale. That of Keras 3 always does, and has no `dynamic`."""
    # Up to TF 2.3 the class of the scale says so. Delete with TF 2.3.
    return getattr(optimizer, "dynamic", type(vars(optimizer).get("_loss_scale")).__name__ != "FixedLossScale")


def filter_of_gradients(module):
    """Return the function by which an optimizer module warns of missing gradients, None if there is none."""
    names = vars(module)
    # Up to TF 2.3 its name is `_filter_grads`. Delete with TF 2.3.
    return names.get("_filter_grads") or getattr(names.get("optimizer_utils"), "filter_empty_gradients", None)


def shares_raw_logs(home):
    """Whether later callbacks get what one adds to raw logs (tensors): from TF 2.6 on. Delete with TF 2.5."""
    return version_of(home.tf) >= (2, 6)


def calls_callbacks_on_exceptions(home):
    """Whether fit calls callbacks after an exception: in eager mode of TF 2.0 and 2.1. Delete with TF 2.1."""
    return version_of(home.tf) < (2, 2) and not home.graph_mode


def has_autograph(tf):
    """Whether this is TensorFlow 2, where AutoGraph may rewrite our methods. Delete with TF 1.15."""
    return version_of(tf) >= (2,)


def legacy_optimizers(optimizers):
    """Return `keras.optimizers.legacy`, or before TF 2.9 the module itself. Delete with TF 2.8."""
    return getattr(optimizers, "legacy", optimizers)


def is_before_keras_35(keras):
    """Whether this Keras 3 is older than 3.5: its Optimizer lacks the property `iterations`. Delete with Keras 3.4."""
    return not hasattr(keras.optimizers.Optimizer, "iterations")


def registered_name(keras):
    """Return `keras.utils.get_registered_name`, or one that gives `__name__`. Delete with TF 2.1 and Keras 2.3."""
    return getattr(keras.utils, "get_registered_name", lambda cls: cls.__name__)


def registered_object(keras):
    """Return `keras.utils.get_registered_object`, else custom objects' `get`. Delete with TF 2.1 and Keras 2.3."""
    return getattr(keras.utils, "get_registered_object", keras.utils.get_custom_objects().get)


@contextlib.contextmanager
def one_step_per_execution(model):
    """A context in which a model's steps_per_execution is 1. It yields the model's own number."""
    # Outside of Keras 3 the model keeps the number in a variable. Delete with tf_keras.
    kept = getattr(model, "_steps_per_execution", None)
    is_variable = kept is not None
    steps = int(kept) if is_variable else getattr(model, "steps_per_execution", 1)

    def set_steps(value):
        if steps != 1:
            kept.assign(value) if is_variable else setattr(model, "steps_per_execution", value)

    set_steps(1)
    try:
        yield steps
    finally:
        set_steps(steps)


def tape_module(tf):
    """The private module that tapes record with: `record`, up to TF 2.12 `tape`. Delete with TF 2.12."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("tensorflow.python.eager.record")
    return importlib.import_module("tensorflow.python.eager.tape")


def sums_activities(home, layer):
    """Whether a layer's activity_regularizer is a sum over the batch, in eager mode. Delete with Keras 3.13."""
    if not home.is_keras3 or version_of(home.module) >= (3, 14):
        return False
    kinds = home.module.regularizers
    return isinstance(getattr(layer, "activity_regularizer", None), (kinds.L1, kinds.L2, kinds.L1L2))


def layers_of(model):
    """A model and all layers within it, which TF 2.2 lists among its submodules. Delete with TF 2.2."""
    if hasattr(model, "_flatten_layers"):
        return list(model._flatten_layers())
    return [model] + [each for each in model.submodules if hasattr(each, "_eager_losses")]


def trainable_variables_of(model):
    """A model's trainable variables so far. Keras 2 raises if a model within it is not built. Delete with Keras 2."""
    try:
        return list(model.trainable_weights)
    except ValueError:
        return _kept_by([each for each in layers_of(model) if each.trainable], "_trainable_weights")


def variables_of(model):
    """A model's variables so far. Keras 2 raises if a model within it is not built. Delete with Keras 2."""
    try:
        return list(model.weights)
    except ValueError:
        return _kept_by(layers_of(model), "_trainable_weights", "_non_trainable_weights")


def _kept_by(layers, *names):
    found = [variable for each in layers for name in names for variable in getattr(each, name, ())]
    return list({id(each): each for each in found}.values())


def is_told_of_training(home, model):
    """Whether Keras passes `training` to a model's `call`. Keras 3 does not if `call` takes it only by `**kwargs`."""
    takes = inspect.signature(model.call).parameters.values()
    names = {each.name for each in takes}
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes)
    return "training" in names or takes_any and not home.is_keras3


def is_stateless(home):
    """Whether this code is in a `stateless_call` of Keras 3, which replaces the values of variables."""
    if not home.is_keras3:
        return False
    return importlib.import_module(home.root + ".backend.common.stateless_scope").in_stateless_scope()


def training_of_call(home):
    """The `training` of the layer call in progress; None outside of a call, or if nothing has set it."""
    if home.is_keras3:
        state = importlib.import_module(home.root + ".backend.common.global_state")
        context = state.get_global_attribute("current_call_ctx")
    else:
        context = importlib.import_module(home.root + ".engine.base_layer_utils").call_context()
    return getattr(context, "training", None)


def losses_kept_by(layer):
    """The losses that a layer has added in its call: `_losses` in Keras 3. Delete with tf_keras."""
    return getattr(layer, "_eager_losses", getattr(layer, "_losses", ()))


def takes_added_losses(home):
    """Whether the loss container adds the losses of layers. In Keras 3 the model adds them. Delete with tf_keras."""
    return not home.is_keras3


def divides_by_masks(home):
    """Whether loss objects divide by the number of unmasked elements; tf.keras from TF 2.11 on. Delete with TF 2.10."""
    return home.is_keras3 or home.name == "tf_keras" or home.name == "tf.keras" and version_of(home.tf) >= (2, 11)


def looks_at_all_labels(home):
    """Whether Keras's hinge takes the label 0 for -1 if all labels of a batch are 0 or 1. Delete with TF 1.13."""
    return version_of(home.module) >= (2, 3) if home.is_standalone else version_of(home.tf) >= (1, 14)


def divides_functions_by_masks(home):
    """Whether masks divide results of loss functions, but not of loss objects. Delete with TF 1.13 and Keras 2.2."""
    return version_of(home.module) < (2, 3) if home.is_standalone else version_of(home.tf) < (1, 14)


def finds_masks_by_call(home):
    """Whether `compile` calls compute_mask and caches its result. Delete with TF 1.10 and Keras 2.2."""
    return divides_functions_by_masks(home) and (home.is_standalone or version_of(home.tf) < (1, 11))


def divides_functions_by_weights(home):
    """Whether graph mode divides a loss function's values by the sum of their weights. Delete with TF 1.13."""
    # Older versions, and Keras up to 2.2, divide by how many weights are not 0.
    return not home.is_standalone and (1, 11) <= version_of(home.tf) < (1, 14)


def loss_container(home):
    """The name of a model's attribute that computes its losses in eager mode."""
    return "_compile_loss" if home.is_keras3 else "compiled_loss"


def losses_in(home, container, y_true, y_pred):
    """Return a list of the loss objects in a model's loss container. Builds the container first if necessary."""
    if not home.is_keras3:
        if not container._built:
            # TF 2.2 calls it `_build`. Delete with TF 2.2.
            (getattr(container, "build", None) or container._build)(y_pred)
        return container._losses
    nest = home.tf.nest
    # Up to Keras 3.6 the list is `flat_losses`. Delete with Keras 3.6.
    is_newer = hasattr(container, "_flat_losses")
    if isinstance(y_true, dict) and isinstance(y_pred, (list, tuple)):
        # nest would sort the names. A newer Keras takes the targets in the order of the outputs.
        y_true = [y_true[name] for name in container.output_names or () if name in y_true] if is_newer else y_true
    targets = nest.flatten(y_true)
    if not container.built and (not is_newer or len(targets) == len(nest.flatten(y_pred))):
        # Newer Keras builds with targets packed in the form of the outputs, and keeps that form: do the same.
        container.build(nest.pack_sequence_as(y_pred, targets) if is_newer else y_true, y_pred)
    # With fewer targets than outputs, a newer container was not built above, and may have no losses yet.
    found = container._flat_losses if is_newer else container.flat_losses
    return [getattr(each, "loss", each) for each in found or []]


class Deaf(object):
    """A metric that ignores updates."""

    def update_state(self, *args, **kwargs):
        pass


def without_metrics(home, container, build):
    """Return a copy of a loss container that updates no metrics, None for None. `build()` builds one not yet built."""
    if container is None:
        return None
    if not (container.built if home.is_keras3 else container._built):
        build()
    copied = object.__new__(type(container))
    vars(copied).update(vars(container))
    if home.is_keras3:
        vars(copied)["_metrics"] = [Deaf() for _ in container.metrics]
    else:
        # Up to TF 2.9 the metric of the total loss is `_loss_metric`. Delete with TF 2.9.
        vars(copied).update(_total_loss_mean=Deaf(), _loss_metric=Deaf())
        vars(copied).update(_per_output_metrics=[None for _ in container._losses])
    return copied


def added_loss(home, model, loss):
    """What Keras 3 adds to a model's total loss for one loss from add_loss."""
    # Up to Keras 3.6 there is no such method. Delete with Keras 3.6.
    aggregate = getattr(model, "_aggregate_additional_loss", None)
    return home.tf.cast(home.tf.reduce_sum(loss), "float32") if aggregate is None else aggregate(loss)


def scaled_loss(optimizer, loss):
    """The loss as the home's train_step scales it: by `scale_loss` in Keras 3, else by `get_scaled_loss`."""
    scale = getattr(optimizer, "scale_loss", None) or getattr(optimizer, "get_scaled_loss", None)
    return loss if scale is None else scale(loss)


def as_trained_on(home, data):
    """A batch as train_step unpacks it: a list as a tuple, up to TF 2.6 vectors as columns. Delete with TF 2.6."""
    tf, data = home.tf, tuple(data) if isinstance(data, list) else data
    if home.is_keras3 or version_of(tf) >= (2, 7):
        return data

    def column(leaf):
        is_vector = isinstance(leaf, tf.Tensor) and leaf.shape.rank == 1
        return tf.expand_dims(leaf, -1) if is_vector else leaf

    return tf.nest.map_structure(column, data)


def optionals_as_none(tf, data):
    """A batch as train_step gets it: None for each Optional, by which Keras from 3.12 on passes a generator's None."""
    # TF 2.2 has no Optional. Delete with TF 2.2.
    optional = getattr(tf.experimental, "Optional", ())
    return tf.nest.map_structure(lambda each: None if isinstance(each, optional) else each, data)
