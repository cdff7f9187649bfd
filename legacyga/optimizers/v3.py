"""The `v3` generation: optimizers of tf.keras 2.11 to 2.15 and of tf_keras, and the `experimental` ones of 2.10."""

import copy

from legacyga.backend import features
from legacyga.backend.messages import shown
from legacyga.optimizers import config, copying, surface
from legacyga.optimizers import inner as _inner

# Containers that a v3 optimizer writes to: always copied.
KEPT = ("_variables", "_index_dict")
UNLISTED = (
    "{} keeps no list of its variables: its __init__ never calls the __init__ of its base. The optimizers of "
    "tf.keras.optimizers.experimental in TF 2.9 are such optimizers. Take one of tf.keras.optimizers there."
)


class Inner(_inner.Inner):
    """The hooks of the `v3` generation."""

    exchanging = ("apply_gradients", "aggregate_gradients")

    def inherit(self, optimizer):
        if "_variables" not in vars(copying.keeper_of(optimizer)):
            raise ValueError(UNLISTED.format(shown(optimizer)))
        copying.copy_attributes(optimizer, self.optimizer, _own, copy.deepcopy, KEPT)

    def prepare(self, grads_and_vars, is_traced):
        var_list = [var for _, var in grads_and_vars]
        with_gradient = [var for gradient, var in grads_and_vars if gradient is not None]
        if len(with_gradient) < len(var_list) and not is_traced and features.has_experimental_v3(self.home):
            # The experimental optimizers build only for variables with a gradient: do the same. Delete with TF 2.10.
            var_list = with_gradient
        self.build_inner(var_list)
        self._check_knows(with_gradient)

    def _check_knows(self, var_list):
        """Let the inner optimizer raise its error, naming its class, if it was not built with these variables."""
        keeper = self.keeper
        unknown = [var for var in var_list if keeper._var_key(var) not in keeper._index_dict]
        if unknown:
            inner = surface.as_inner(keeper) if keeper is self.optimizer else keeper
            inner._update_step(None, unknown[0])

    def apply(self, pairs, *args, **kwargs):
        if self._applying[True] and self.keeper is not self.optimizer:
            # Tell a LossScaleOptimizer that these gradients are already sums over the replicas.
            kwargs["skip_gradients_aggregation"] = True
        try:
            return super(AccumulatingOptimizer, self.optimizer).apply_gradients(pairs, *args, **kwargs)
        except KeyError:
            # At K = 1 `prepare` has not checked this, and Keras's error would name our class.
            self._check_knows([var for gradient, var in pairs if gradient is not None])
            raise

    def build_inner(self, var_list):
        # Build the optimizer with the state: up to TF 2.11 a LossScaleOptimizer does not. Delete with TF 2.11.
        keeper = self.keeper
        inner = super(AccumulatingOptimizer, keeper) if keeper is self.optimizer else keeper
        inner.build(var_list)

    def make_variable(self, name, value, shape, dtype, beside=None):
        tf = self.home.tf
        placement = dict(aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        if beside is not None:
            placement = dict(synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM)
        with self.ops.replicas.colocated_with(beside):
            created = tf.Variable(tf.fill(shape, tf.cast(value, dtype)), trainable=False, name=name, **placement)
        self.keeper._variables.append(created)
        return created


class AccumulatingOptimizer(config.ConfiguredOptimizer):
    """Intercepts Keras's calls of a v3 optimizer."""

    # With XLA, all callers share a trace of `_update_step_xla`, so the conditional must be around it, not in it.
    _legacyga_methods = ("_update_step_xla", "update_step")

    def build(self, var_list):
        self._legacyga.inner.build_inner(var_list)
        # Keras calls this in each step: at K = 1 it must cost nothing.
        if self._legacyga.steps.has_windows:
            self._legacyga.registry().build(list(var_list))

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        """Make one mini-step. The last one of a window calls the inner optimizer's own method, with these arguments."""
        accumulation = self._legacyga
        args, kwargs = _inner.named(type(self)._legacyga_class[0].apply_gradients, args, kwargs)
        scope = kwargs.get("name") or accumulation.inner.keeper.name or "optimizer"
        taken = accumulation.take_mini_step(list(grads_and_vars), args, kwargs, scope)
        # Return `iterations`, as the inner optimizer does, after either branch.
        with accumulation.ops.after(taken):
            return accumulation.ops.identity(self.iterations)

    def aggregate_gradients(self, grads_and_vars):
        own = super(AccumulatingOptimizer, self).aggregate_gradients
        return self._legacyga.inner.exchanged_once(own, grads_and_vars)

    def finalize_variable_values(self, var_list):
        # Keras calls this at the end of fit. A custom loop does not.
        self._legacyga.say_no_update()
        super(AccumulatingOptimizer, self).finalize_variable_values(var_list)

    def _update_model_variables_moving_average(self, var_list):
        own = super(AccumulatingOptimizer, self)._update_model_variables_moving_average
        self._legacyga.inner.average_those_present(own, var_list)

    def _overwrite_model_variables_with_average_value(self, var_list):
        own = super(AccumulatingOptimizer, self)._overwrite_model_variables_with_average_value
        self._legacyga.inner.average_those_present(own, var_list)

    def _apply_weight_decay(self, variables):
        self._legacyga.inner.decay_weights(super(AccumulatingOptimizer, self)._apply_weight_decay, variables)


def _own(optimizer):
    """The optimizer's own variables: those it lists and the learning rate, but no `iterations` set by the program."""
    made = copying.attributes_that_are_variables(optimizer)
    # Nadam does not list `_u_product`.
    names = ["_learning_rate", "_current_learning_rate", "_u_product"]
    if "_iterations" in made and made["_iterations"].name.split(":")[0].split("/")[-1] == "iteration":
        # The experimental optimizers do not list their own `_iterations`. A program's has another name.
        names.append("_iterations")
    return list(vars(optimizer)["_variables"]) + [made[name] for name in names if name in made]


class RefusesSlots(config.ConfiguredOptimizer):
    """For inner classes that have this method: in others it would make TensorFlow restore slots."""

    def _create_or_restore_slot_variable(self, **kwargs):
        # Raises the inner class's error: a checkpoint with slots is of another generation.
        return surface.as_inner(self)._create_or_restore_slot_variable(**kwargs)


surface.register("v3", AccumulatingOptimizer, Inner)
surface.register("v3", RefusesSlots, Inner, lambda cls: hasattr(cls, "_create_or_restore_slot_variable"))
