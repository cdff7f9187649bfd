"""The `keras3` generation: Keras 3's optimizers on the TensorFlow backend, with `apply(grads, trainable_variables)`."""

import contextlib
import copy
import importlib
import inspect

from legacyga.backend import homes
from legacyga.backend.messages import shown
from legacyga.backend.tensors import is_variable
from legacyga.optimizers import config as _config
from legacyga.optimizers import copying, state, surface
from legacyga.optimizers import inner as _inner

# Containers that a Keras 3 optimizer writes to.
KEPT = ("_variables", "_trainable_variables", "_trainable_variables_indices", "_exclude_from_weight_decay_cache")
UNPAIRED = (
    "Each gradient must be of one variable, and each variable needs a gradient or None. Received: {} gradients and {} "
    "variables. Nothing was accumulated."
)
OVER_FUNCTION = (
    "A MultiOptimizer asks its function for optimizers when it is built, and the copy would have the same ones. "
    "Received: {}. Call its build(variables) before wrap, or wrap each of the optimizers that the function returns."
)


class Inner(_inner.Inner):
    """The hooks of the `keras3` generation."""

    # Variables made in a function have no value before the function has run.
    reads_when_traced = False
    exchanging = ("apply_gradients", "apply", "_all_reduce_sum_gradients")
    # A count, not a flag: MirroredStrategy's replica threads hide the steps at the same time.
    hides_steps = 0

    @property
    def is_around_others(self):
        optimizer_class = self.home.module.optimizers.Optimizer
        return any(isinstance(each, optimizer_class) for each in copying.values_in(vars(self.optimizer).values()))

    @property
    def bypasses_step(self):
        # A user's `_backend_update_step` may give all variables to one call of update_step.
        return super(Inner, self).bypasses_step or self._overrides(["_backend_update_step"])

    @property
    def exchanges(self):
        # Optimizers inside sum over the replicas themselves.
        return not self.is_around_others and super(Inner, self).exchanges

    @contextlib.contextmanager
    def hiding_steps(self):
        """A context in which `gradient_accumulation_steps` is None, so that Keras 3 does not accumulate too."""
        self.hides_steps += 1
        try:
            yield
        finally:
            self.hides_steps -= 1

    @property
    def with_slots(self):
        """The optimizer with the slots: the inner one of a LossScaleOptimizer, else this one."""
        return self.optimizer.inner_optimizer if self.scales_loss else self.optimizer

    def inherit(self, optimizer):
        with self.ops.init_scope():
            within = copying.copy_attributes(optimizer, self.optimizer, _own, copy.deepcopy, KEPT)
        for each, copied in [(optimizer, self.optimizer)] + within:
            # The copy's slots, not yet made, also get the restored values that wait for them.
            to_come = copied._variables._deferred_dependencies
            to_come.update((i, list(found)) for i, found in each._variables._deferred_dependencies.items())
            optimizer_map = vars(each).get("_optimizer_map")
            if not each.built and callable(optimizer_map) and not hasattr(optimizer_map, "values"):
                raise ValueError(OVER_FUNCTION.format(shown(optimizer)))
        self._start_averages()

    def prepare(self, grads_and_vars, is_traced):
        # An optimizer around another may build the other alone, and then knows no variables.
        if self.with_slots._trainable_variables:
            self.with_slots._check_variables_are_known([var for _, var in grads_and_vars])

    def apply(self, pairs, called="apply_gradients", *args, **kwargs):
        # By default apply_gradients, as in `fit`: a flush right after a restore follows no call.
        if called == "apply_gradients":
            # The user's class may override `apply_gradients`, which ends in a call of our `apply`.
            return super(AccumulatingOptimizer, self.optimizer).apply_gradients(pairs, *args, **kwargs)
        return self.apply_inner([gradient for gradient, _ in pairs], [var for _, var in pairs], *args, **kwargs)

    def say_what_is_missing(self, grads_and_vars):
        self.optimizer._filter_empty_gradients(*zip(*grads_and_vars))

    def take(self, accumulation, called, grads, variables, args, kwargs):
        """Make one mini-step for a call of the optimizer's method `called`; `variables` may be None, as in `apply`."""
        optimizer, grads = self.optimizer, list(grads)
        # Lock, so that `is_applying` is of this thread's update. Without windows both paths do the same.
        with self.ops.uninterrupted() if self.steps.has_windows else contextlib.ExitStack():
            if called == "apply" and self.is_applying:
                # The update's own `apply_gradients` has called `apply`.
                self.apply_inner(grads, variables, *args, **kwargs)
                return
            method = getattr(self.own_class, called)
            # `apply` takes the variables as its second argument.
            _inner.check_arguments(method, (None,) * (called == "apply") + args, kwargs)
            given = None if variables is None else list(variables)
            variables = self.with_slots._trainable_variables if given is None else given
            if len(grads) != len(variables):
                if grads and given is not None:
                    # Keras would drop the rest in silence.
                    raise ValueError(UNPAIRED.format(len(grads), len(variables)))
                # Keras raises its own error, or ignores an empty list.
                self.apply_inner(grads, given, *args, **kwargs)
                return
            if not optimizer.built:
                # Build here, as Keras does: in `prepare`'s init_scope, variables made by this function have no value.
                with self.home.module.name_scope(optimizer.name, caller=optimizer):
                    self.build_inner(variables)
            accumulation.take_mini_step(list(zip(grads, variables)), (called,) + args, kwargs, scope=optimizer.name)

    def apply_inner(self, grads, variables, *args, **kwargs):
        with self.hiding_steps():
            return super(AccumulatingOptimizer, self.optimizer).apply(grads, variables, *args, **kwargs)

    def build_inner(self, variables):
        with self.hiding_steps():
            super(AccumulatingOptimizer, self.optimizer).build(variables)
        self._start_averages()

    def _start_averages(self):
        """Start moving averages at the weights: SwapEMAWeights would validate zeros if an epoch has no update."""
        if self.ops.replicas.are_several and self.ops.replicas.is_replica_here:
            # A replica's thread cannot assign the copies of all replicas.
            return
        with self.ops.init_scope():
            # The optimizers that SwapEMAWeights finds.
            for each in getattr(self.with_slots, "optimizers", [self.with_slots]):
                averages = getattr(each, "_model_variables_moving_average", [])
                if not averages or self.home.value_of(each.iterations):
                    continue
                for average, var in zip(averages, each._trainable_variables):
                    value = var if is_variable(var) else var.value
                    # A variable made in this function has no value yet.
                    if average is not None and value.is_initialized():
                        average.assign(value)

    def read_scale(self):
        return self.optimizer.dynamic_scale.value.read_value()

    def shrink_scale(self, value):
        self.optimizer.dynamic_scale.assign(value)
        self.optimizer._stateful_handle_non_finite_grads()

    def make_variable(self, name, value, shape, dtype, beside=None):
        optimizer, module = self.optimizer, self.home.module
        placement = dict(aggregation="only_first_replica")
        if beside is not None:
            placement = dict(aggregation="sum", synchronization="on_read")
        if "synchronization" not in inspect.signature(module.Variable.__init__).parameters:
            # Keras before 3.10 lacks `synchronization`. Delete with Keras 3.9.
            placement.pop("synchronization", None)
            if self.ops.replicas.are_several:
                raise ValueError(
                    "Before Keras 3.10 no variable can be a replica's own. Received: {}, and a strategy of several "
                    "replicas. Upgrade keras to 3.10 or newer, or train on one device.".format(self.home)
                )
        with contextlib.ExitStack() as entered:
            entered.enter_context(self.ops.replicas.colocated_with(beside))
            entered.enter_context(module.name_scope(optimizer.name, caller=optimizer))
            created = module.Variable(
                module.initializers.Constant(value),
                shape=tuple(shape),
                dtype=dtype.name,
                trainable=False,
                name=name.replace("/", "_"),
                **placement,
            )
        optimizer._track_variable(created)
        return created.value


def _own(optimizer):
    """The variables that Keras saves with the optimizer, except any of the model's that an attribute holds."""
    models = {id(each) for each in optimizer._trainable_variables}
    return [each for each in vars(optimizer)["_variables"] if id(each) not in models]


def _unpickled(name, inner, module, config):
    return _config.load(name, inner, homes.find_home(importlib.import_module(module)), config)


class AccumulatingOptimizer(_config.ConfiguredOptimizer):
    """Intercepts Keras 3's calls. Keras must see None as `gradient_accumulation_steps`, or it accumulates too."""

    _legacyga_calls = ("apply_gradients", "apply")
    _legacyga_methods = ("update_step",)

    def __deepcopy__(self, memo):
        # Copies the config, not the state. Keras 3's own copy has no slots either.
        return type(self).from_config(self.get_config())

    def __reduce__(self):
        # Pickling goes by the config too. Our class cannot be imported, the inner class can.
        inner, home = type(self)._legacyga_class
        return _unpickled, (type(self).__name__, inner, home.module.__name__, self.get_config())

    def get_config(self):
        with self._legacyga.inner.hiding_steps():
            return super(AccumulatingOptimizer, self).get_config()

    @property
    def gradient_accumulation_steps(self):
        """K of the next window, an int. Setting it affects the next window, not the current one."""
        accumulation = self._legacyga
        return None if accumulation is None or accumulation.inner.hides_steps else accumulation.next_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value):
        if self._legacyga is not None:
            surface.AccumulatingOptimizer.gradient_accumulation_steps.fset(self, value)

    @property
    def iterations(self):
        """The number of updates made: a variable."""
        if self._legacyga is None:
            return super(AccumulatingOptimizer, self).iterations
        # LossScaleOptimizer does not count updates itself. Delete with Keras 3.8.
        return self.inner_optimizer.iterations if self._legacyga.inner.scales_loss else self._iterations

    def build(self, *args, **kwargs):
        # Keras names the argument `variables` or `var_list`.
        (variables,) = args or kwargs.values()
        # The HDF5 loader calls this with no variables.
        if not variables:
            return
        if not self.built:
            self._legacyga.inner.build_inner(variables)
        self._legacyga.registry().build(list(variables))

    def load_own_variables(self, store):
        """Set all variables from a file's store; make the window first if the file may hold one."""
        # Keras builds an optimizer before it loads, but not one that was built before `wrap`.
        if self.built and len(store.keys()) > len(state.variables_of(self)):
            self.build(self._legacyga.inner.with_slots._trainable_variables)
        super(AccumulatingOptimizer, self).load_own_variables(store)

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        """Make one mini-step. The last one of a window calls the inner optimizer's own method, with these arguments."""
        grads, trainable_variables = zip(*grads_and_vars)
        self._legacyga.inner.take(self._legacyga, "apply_gradients", grads, trainable_variables, args, kwargs)
        return self._iterations

    def apply(self, grads, trainable_variables=None, *args, **kwargs):
        """Make one mini-step; within an update, make the inner optimizer's step."""
        self._legacyga.inner.take(self._legacyga, "apply", grads, trainable_variables, args, kwargs)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        own = super(AccumulatingOptimizer, self)._all_reduce_sum_gradients
        return self._legacyga.inner.exchanged_once(own, grads_and_vars)

    def finalize_variable_values(self, var_list):
        # A fit can end before the first update: averages of no update must not overwrite the weights.
        self._legacyga.say_no_update()
        if self._legacyga.home.value_of(self.iterations):
            super(AccumulatingOptimizer, self).finalize_variable_values(var_list)

    def _apply_weight_decay(self, variables):
        self._legacyga.inner.decay_weights(super(AccumulatingOptimizer, self)._apply_weight_decay, variables)

    def stateless_apply(self, *args, **kwargs):
        if self._legacyga.steps.has_windows:
            raise ValueError(
                "stateless_apply keeps no mini-steps. Received: a call of it on {}, which accumulates. Call "
                "apply_gradients or apply.".format(shown(self))
            )
        return super(AccumulatingOptimizer, self).stateless_apply(*args, **kwargs)


surface.register("keras3", AccumulatingOptimizer, Inner)
