"""The `v2` generation: OptimizerV2, with `apply_gradients` and slots; it is `.legacy` in TF 2.11+ and tf_keras."""

import contextlib
import copy

from legacyga.backend.messages import shown
from legacyga.backend.tensors import is_differentiable, is_variable
from legacyga.optimizers import config, copying, surface, updates
from legacyga.optimizers import inner as _inner

# Containers that an OptimizerV2 writes to: always copied.
KEPT = ("_hyper", "_slots", "_slot_names", "_weights")
NO_STATE = (
    "{} has no hyperparameters of its own: its __init__ never calls the __init__ of its base. LossScaleOptimizer "
    "before TF 1.15 is such an optimizer. Wrap the optimizer inside it."
)


class Inner(_inner.Inner):
    """The hooks of the `v2` generation."""

    # In graph mode, the original's values, in order, for the variables that `prepare` will make.
    _inherited = ()
    exchanging = ("apply_gradients", "_transform_unaggregated_gradients", "_aggregate_gradients")

    def inherit(self, optimizer):
        if "_hyper" not in vars(copying.keeper_of(optimizer)):
            raise ValueError(NO_STATE.format(shown(optimizer)))
        copying.copy_attributes(optimizer, self.optimizer, _own, self._new_variable, KEPT)
        weights = copying.keeper_of(optimizer)._weights
        if self.home.graph_mode and len(weights) > 1:
            # The copy may train another model, so it makes new slots, which start with these values.
            attributes = vars(self.keeper)
            attributes.update(_slots={}, _weights=attributes["_weights"][:1])
            if "_m_cache" in attributes:
                # Nadam makes this variable with the slots if it is None.
                attributes["_m_cache"] = None
            self._inherited = self.home.backend.batch_get_value(weights)

    def _new_variable(self, variable):
        if not self.home.graph_mode:
            copied = copy.deepcopy(variable)
            if hasattr(copied, "assign"):
                return copied
            # In TF 2.0 to 2.3 deepcopy of a mirrored variable gives its value. Delete with TF 2.3.
            return self.home.tf.Variable(copied, trainable=False, aggregation=variable.aggregation)
        backend, name = self.home.backend, variable.name.split(":")[0]
        return backend.variable(backend.get_value(variable), dtype=variable.dtype.base_dtype.name, name=name)

    def prepare(self, grads_and_vars, is_traced):
        # When traced, the window may hold a gradient of any variable, from a mini-step of another trace.
        self.create_inner_weights(
            [var for each, var in grads_and_vars if each is not None or is_traced and is_differentiable(var.dtype)]
        )
        self.take_inherited()

    def take_inherited(self):
        """In graph mode, start the slots just made at the values of the optimizer that `wrap` was given."""
        if self._inherited:
            # If these are not the original's variables, as after freezing a layer, moments begin anew.
            weights = self.keeper._weights
            if [self.home.backend.int_shape(each) for each in weights] == [each.shape for each in self._inherited]:
                self.home.backend.batch_set_value(list(zip(weights, self._inherited)))
            self._inherited = ()

    @property
    def exchanges(self):
        # TF up to 2.3 has no gradient_aggregator. Delete with TF 2.3.
        aggregator = getattr(self.keeper, "gradient_aggregator", None)
        is_given = aggregator is not None and not self.home.is_its_own(aggregator)
        return not is_given and super(Inner, self).exchanges

    def apply(self, pairs, *args, **kwargs):
        if self._inherited:
            # At K = 1 `prepare` has not been called before.
            with self.ops.init_scope(), self.home.tf.name_scope(self.keeper._name):
                self.prepare(pairs, False)
        if self._applying[True] and self.keeper is not self.optimizer:
            # Tell a LossScaleOptimizer that these gradients are already sums over the replicas.
            kwargs[_inner.AGGREGATES] = False
        return super(AccumulatingOptimizer, self.optimizer).apply_gradients(pairs, *args, **kwargs)

    def create_inner_weights(self, var_list):
        keeper = self.keeper
        inner = super(AccumulatingOptimizer, keeper) if keeper is self.optimizer else keeper
        # TF up to 2.1 lacks this method. Delete with TF 2.1.
        if hasattr(inner, "_create_all_weights"):
            inner._create_all_weights(var_list)
        else:
            keeper.iterations  # noqa: B018  (a property that creates)
            keeper._create_hypers()
            keeper._create_slots(var_list)

    def make_variable(self, name, value, shape, dtype, beside=None):
        tf = self.home.tf
        placement = dict(aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        if beside is not None:
            placement = dict(synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM)
            if not self.home.graph_mode and self.ops.replicas.are_several:
                return self._make_for_each_replica(name, value, shape, dtype, beside, placement)
        with self.ops.replicas.colocated_with(beside):
            created = self.keeper.add_weight(
                name,
                shape=shape,
                dtype=dtype,
                initializer=tf.constant_initializer(value) if value else "zeros",
                trainable=False,
                **placement,
            )
        self.keeper._weights.append(created)
        return created

    def _make_for_each_replica(self, name, value, shape, dtype, beside, placement):
        # add_weight would give each replica the whole of a restored sum instead of its share.
        keeper, tf = self.keeper, self.home.tf
        with self.ops.replicas.colocated_with(beside):
            created = tf.Variable(tf.fill(shape, tf.cast(value, dtype)), trainable=False, name=name, **placement)
        keeper._track_trackable(created, name, overwrite=True)
        keeper._handle_deferred_dependencies(name, created)
        keeper._weights.append(created)
        return created


class AccumulatingOptimizer(config.ConfiguredOptimizer):
    """Intercepts Keras's calls of an OptimizerV2."""

    _legacyga_methods = ("_resource_apply_dense", "_resource_apply_sparse", "_resource_apply_sparse_duplicate_indices")

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        """Make one mini-step. The last one of a window calls the inner optimizer's own method, with these arguments."""
        # Returns an operation, as Keras does: programs run it by name, and LossScaleOptimizer's branches need one.
        home = type(self)._legacyga_class[1]
        # In TF 2.0 to 2.13 init_scope exits a default graph that no `with` has entered. Delete with TF 2.13.
        with home.v1.get_default_graph().as_default() if home.graph_mode else contextlib.ExitStack():
            accumulation = self._legacyga
            scope = accumulation.inner.keeper._name
            args, kwargs = _inner.named(type(self)._legacyga_class[0].apply_gradients, args, kwargs)
            return accumulation.take_mini_step(list(grads_and_vars), args, kwargs, scope, result=home.tf.no_op)

    def get_updates(self, loss, params):
        """Build a mini-step in graph mode; returns a list of one operation."""
        with self._legacyga.weights.of_loss(self._legacyga.divisor_of(loss, params)):
            return updates.guarded(super(AccumulatingOptimizer, self).get_updates(loss, params), self._legacyga)

    def _aggregate_gradients(self, grads_and_vars):
        own = super(AccumulatingOptimizer, self)._aggregate_gradients
        return self._legacyga.inner.exchanged_once(own, grads_and_vars)

    def _create_all_weights(self, var_list):
        self._legacyga.inner.create_inner_weights(var_list)
        self._legacyga.inner.take_inherited()
        # Keras comes with an empty list where nothing is trainable.
        if var_list and self._legacyga.steps.has_windows:
            self._legacyga.windows.of(var_list[0]).build(list(var_list))


def _own(optimizer):
    """The optimizer's own variables: those it lists and its hyperparameters, except any that the user passed in."""
    steps = vars(optimizer).get("_iterations")
    # The user may have set `iterations` to a variable that this optimizer's `add_weight` did not make and track.
    made = vars(optimizer).get("_self_unconditional_dependency_names", {}).get("iter")
    given = steps is not None and steps is not made
    listed = [each for each in optimizer._weights if not (given and each is steps)]
    # Until the optimizer makes its own, variables among the hyperparameters are the user's.
    hypers = optimizer._hyper.items() if optimizer._hypers_created else ()
    return listed + [value for name, value in hypers if is_variable(value) and _is_own_variable(name, value)]


def _is_own_variable(name, variable):
    """Whether an optimizer made this hyperparameter's variable, with `add_weight`."""
    aggregation = getattr(variable, "aggregation", None)
    is_named = variable.name.split("/")[-1].split(":")[0].startswith(name)
    return is_named and getattr(aggregation, "name", "") == "ONLY_FIRST_REPLICA"


surface.register("v2", AccumulatingOptimizer, Inner)
