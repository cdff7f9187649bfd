"""How accumulation copies, prepares and calls the inner optimizer; each generation's file implements the hooks."""

import contextlib
import functools
import inspect
import math
import sys

from legacyga.backend import features
from legacyga.backend.messages import shown
from legacyga.backend.tensors import is_variable, parts_of, variable_key
from legacyga.optimizers import copying, horovod

# OptimizerV2's argument. The v3 optimizers have skip_gradients_aggregation, its opposite.
AGGREGATES = "experimental_aggregate_gradients"
OWN_SCALE = (
    'on_nonfinite="skip_mini_step" needs a DynamicLossScale, which it tells of what was left out. Received: {}. Take '
    'on_nonfinite="skip_window", or a DynamicLossScale.'
)


def hook(function):
    """Declare a method that each generation implements."""
    return function


def are_exchanged(kwargs):
    """Whether these keywords say that the call's gradients are already summed over the replicas."""
    return kwargs.get("skip_gradients_aggregation", not kwargs.get(AGGREGATES, True))


def check_arguments(method, args, kwargs):
    """Raise the TypeError of `method` for these arguments, which follow the gradients, before the window's end."""
    if args or kwargs:
        inspect.signature(method).bind(None, None, *args, **kwargs)


def named(method, args, kwargs):
    """The arguments of `method` after the gradients: (args, kwargs), by name where possible, for `are_exchanged`."""
    if not args and not kwargs:
        return args, kwargs
    check_arguments(method, args, kwargs)
    parameters = list(inspect.signature(method).parameters.values())[2:]
    names = [each.name for each in parameters if each.kind == each.POSITIONAL_OR_KEYWORD]
    return args[len(names) :], dict(kwargs, **dict(zip(names, args)))


@contextlib.contextmanager
def hidden(optimizer, *names):
    """A context in which an object lacks these attributes."""
    attributes = vars(optimizer)
    found = {name: attributes.pop(name) for name in names if name in attributes}
    try:
        yield
    finally:
        attributes.update(found)


class Inner(object):
    """The inner optimizer: the accumulating object itself, called through the methods of the user's class."""

    # The inner class's methods that take part in the replicas' exchange. A user's own may do it, and must see None.
    exchanging = ()
    # Whether variables made while a function is traced can be read at once.
    reads_when_traced = True
    # Whether the update itself makes its writes wait for all gradients, so that its other operations need not wait.
    orders_writes = False

    def __init__(self, optimizer, home, ops, steps):
        self.optimizer, self.home, self.ops, self.steps = optimizer, home, ops, steps
        self.scales_loss = features.is_loss_scale_optimizer(home, optimizer)
        # {whether the gradients are exchanged: the number of updates in progress, one in each replica's thread}.
        self._applying = {False: 0, True: 0}
        # {variable key: whether the update in progress has its gradient, a tensor}, where only the run tells.
        self._presence = {}
        # {window: the optimizer's attributes when its mini-step was built}, in graph mode.
        self._attributes = {}

    # The hooks.

    @hook
    def inherit(self, optimizer):
        """Make the new optimizer a copy of `optimizer`, an object of the inner class, with separate variables.

        Called by `surface.wrapped`, before all other hooks, in the user's context; not for MySGD. Returns nothing.
        """

    @hook
    def prepare(self, grads_and_vars, is_traced):
        """Make the inner optimizer's own state for these (gradient, variable) pairs.

        Called when a mini-step is made, before its window, in replica context, within an init_scope; without windows
        only by `apply`. `is_traced`: in a tf.function, whose update may use gradients that are None here, if another
        function adds them. Returns nothing.
        """

    @hook
    def apply(self, pairs, *args, **kwargs):
        """Make one update from (gradient, variable) pairs; a gradient is the window's mean or sum, or None.

        Called in replica context: at a window's end, in the conditional's branch; without windows, in place of a
        mini-step. Returns what to wait for.
        """

    @hook
    def make_variable(self, name, value, shape, dtype, beside=None):
        """Make a variable of the optimizer's state, filled with the number `value`.

        Called in replica or cross-replica context, by a mini-step within an init_scope. If `beside` is a variable of
        the model, each replica has its own copy, and a checkpoint saves their sum; if None, replicas share one value.
        Returns the variable.
        """

    # Facts about the inner optimizer.

    def session(self, variable, action):
        """The session for `variable`. Keras opens one if needed; `train` returns None, or raises for an `action`."""
        # tf.keras has one session, and gives it up, with all values in it, if it is asked from another graph.
        with variable.graph.as_default():
            return self.home.session

    @property
    def own_class(self):
        return type(self.optimizer)._legacyga_class[0]

    @property
    def keeper(self):
        return copying.keeper_of(self.optimizer)

    @property
    def is_around_others(self):
        """Whether an optimizer inside this one updates the variables, without a call of `step`."""
        return self.keeper is not self.optimizer

    @property
    def bypasses_step(self):
        """Whether an update may change variables other than by one call of `step` for each."""
        return self.is_around_others

    @property
    def adapts_scale(self):
        """Whether the optimizer is a LossScaleOptimizer whose scale depends on the gradients."""
        return self.scales_loss and features.has_dynamic_scale(self.optimizer)

    # Updates.

    def update(self, pairs, args, kwargs, exchanged=False):
        """Make one update. `exchanged` means that the gradients are already summed over the replicas."""
        self._applying[exchanged] += 1
        try:
            rows_once = self.ops.replicas.sum_of_rows if self.steps.has_windows else None
            return self.apply(horovod.exchanged(self.optimizer, pairs, rows_once), *args, **kwargs)
        finally:
            self._applying[exchanged] -= 1

    def update_of(self, window):
        """The `update` function for `Window.take`: updates the window's variables, except any that no longer exist."""
        args, kwargs = window.call

        def update(reduced, presence):
            exchanges = self.ops.replicas.are_several and self.exchanges and not are_exchanged(kwargs)
            if are_exchanged(kwargs):
                # The gradients were sums over the replicas, and each replica accumulated its share: restore the sums.
                reduced = self.scaled(reduced, self.ops.replicas.count)
            var_list = [reference() for reference in window.var_list]
            pairs = [(gradient, var) for gradient, var in zip(reduced, var_list) if var is not None]
            if exchanges:
                gradients, variables = zip(*pairs)
                pairs = list(zip(self.ops.replicas.exchanged(gradients, variables), variables))
            at_run_time = [(var_list[i], is_there) for i, is_there in presence.items() if var_list[i] is not None]
            at_run_time = {variable_key(var): is_there for var, is_there in at_run_time}
            bypasses_step = bool(at_run_time) and self.bypasses_step
            self._presence = {} if bypasses_step else at_run_time
            try:
                with self._constraints_of_those_present(var_list):
                    # The user's methods, or optimizers inside, may treat None in their own way, so give them None.
                    if bypasses_step or at_run_time and self.has_own_methods:
                        return self._with_or_without(at_run_time, pairs, args, kwargs, exchanges)
                    return self.update(pairs, args, kwargs, exchanged=exchanges)
            finally:
                self._presence = {}

        return update

    @property
    def is_applying(self):
        return any(self._applying.values())

    def exchanged_once(self, own, pairs):
        """Call `own`, the inner optimizer's exchange between replicas, unless gradients are already exchanged."""
        return list(pairs) if self._applying[True] else own(pairs)

    def scaled(self, gradients, factor):
        """Scale gradients that are sums over the replicas, the same on each, by `factor`."""
        if not self.ops.replicas.are_several:
            return gradients
        # A Python number would become a float32, too coarse for float64 gradients.
        factor = self.ops.constant(factor, "float64")
        return [each if each is None else self.ops.weighted(each, factor, each.dtype) for each in gradients]

    @property
    def has_own_methods(self):
        """Whether a method in `exchanging` is not Keras's own."""
        return self._overrides(self.exchanging)

    def _overrides(self, names):
        keeper, classes = self.keeper, [self.own_class]
        if keeper is not self.optimizer:
            classes.append(type(keeper))
        methods = [getattr(cls, name) for cls in classes for name in names if hasattr(cls, name)]
        are_keras_own = all(map(self.home.is_its_own, methods))
        return not are_keras_own or bool(set(names) & set(vars(keeper)))

    @property
    def exchanges(self):
        """Whether the package, not the inner optimizer, sums gradients over the replicas, once per window.

        A user's class that overrides a method in `exchanging` may do the exchange in its own way.
        """
        return bool(self.exchanging) and not self.has_own_methods

    # Variables with and without a gradient in the window.

    def step(self, name, variable, method):
        """Run `method()`, the inner optimizer's `name` for one variable, only if the window has a gradient of it."""
        if not self.is_applying:
            raise ValueError(
                "{0} of an optimizer that accumulates was called round its apply_gradients: it would update on every "
                "mini-step. Received: {1}. Wrap the optimizer that calls it: wrap(Lookahead(Adam()), {2}), not "
                "Lookahead(wrap(Adam(), {2})).".format(name, shown(self.optimizer), self.steps.now)
            )
        return self._where_present(variable, method) if self._presence else method()

    def _where_present(self, variable, method):
        """Run `method()`, which updates `variable`, only if the window has a gradient of it."""
        key = variable_key(variable)
        if key not in self._presence:
            return method()
        # `method` may call another method for the same variable, which needs no second conditional.
        is_there, before = self._presence[key], self._presence
        self._presence = {other: each for other, each in before.items() if other != key}
        try:
            return self.ops.cond(is_there, lambda: self.ops.done(method()), lambda: self.ops.done([])).op
        finally:
            self._presence = before

    def _with_or_without(self, at_run_time, pairs, args, kwargs, exchanged):
        """If any in `at_run_time` has a gradient, update all, the others with zeros; else leave out `at_run_time`."""

        def update(pairs):
            return self.ops.done(self.update(pairs, args, kwargs, exchanged=exchanged))

        without = [(None if variable_key(var) in at_run_time else gradient, var) for gradient, var in pairs]
        # Use the zeros in `pairs`: replicas cannot synchronize in a conditional, and with None everywhere Keras raises.
        if self.ops.replicas.synchronize or all(gradient is None for gradient, _ in without):
            return update(pairs)
        is_any_there = self.ops.reduce_any(self.ops.tf.stack(list(at_run_time.values())))
        return self.ops.cond(is_any_there, lambda: update(pairs), lambda: update(without))

    @contextlib.contextmanager
    def _constraints_of_those_present(self, var_list):
        """A context in which a variable's constraint acts only if the window has a gradient of it.

        Keras applies constraints outside of the methods that `step` makes conditional.
        """
        replaced = []
        for var in var_list:
            is_there = self._presence.get(variable_key(var)) if var is not None else None
            # With mixed precision, an AutoCastVariable is around the variable whose constraint Keras calls.
            inner = getattr(var, "_variable", None)
            var = inner if is_variable(inner) else var
            for part in parts_of(var) if is_there is not None and is_variable(var) else [var]:
                # The public `constraint` of a tf.Variable is read-only.
                own = None if is_there is None else getattr(part, "_constraint", None)
                if own is not None:
                    # Replicas' threads are here at once: each wraps the user's own, and the last to come restores it.
                    own = getattr(own, "legacyga_own", own)
                    ours = functools.partial(self._constrained_if, is_there, own)
                    ours.legacyga_own = own
                    part._constraint = ours
                    replaced.append((part, own, ours))
        try:
            yield
        finally:
            for part, own, ours in replaced:
                if part._constraint is ours:
                    part._constraint = own

    def _constrained_if(self, is_there, constraint, variable):
        tf = self.home.tf
        return self.ops.cond(is_there, lambda: constraint(variable), lambda: tf.convert_to_tensor(variable))

    def average_those_present(self, own, variables):
        """Call `own`, the inner optimizer's method for moving averages, for variables with a gradient in the window."""
        # Up to TF 2.13 Keras assumes that the list is complete, so it cannot be split. Delete with TF 2.13.
        if not self._presence or not features.finds_averages_by_variable(self.home):
            own(variables)
            return
        own([each for each in variables if variable_key(each) not in self._presence])
        for each in variables:
            if variable_key(each) in self._presence:
                self._where_present(each, lambda each=each: own([each]))

    def decay_weights(self, own, variables):
        """Call `own`, the inner optimizer's weight decay, for the variables with a gradient in the window."""
        if not self._presence:
            own(variables)
            return
        attributes = vars(self.optimizer)
        # Muon of Keras 3 has both.
        decays = {name: attributes.get(name) for name in ("weight_decay", "adam_weight_decay")}
        decays = {name: decay for name, decay in decays.items() if decay is not None}
        own([each for each in variables if variable_key(each) not in self._presence])
        try:
            for each in variables if decays else ():
                is_there = self._presence.get(variable_key(each))
                if is_there is not None:
                    # Scale the decay by 0 or 1: replicas synchronize in `own`, so it cannot be in a conditional.
                    part = self.ops.cast(is_there, "float32")
                    attributes.update((name, part * decay) for name, decay in decays.items())
                    own([each])
        finally:
            attributes.update(decays)

    def say_what_is_missing(self, grads_and_vars):
        """Emit Keras's warning of missing gradients: a traced update, with zeros in their place, would not."""
        for cls in type(self.optimizer).__mro__:
            # A class may come from a module that is not in `sys.modules`.
            module = sys.modules.get(cls.__module__)
            found = None if module is None else features.filter_of_gradients(module)
            if found is not None:
                found(grads_and_vars)
                return

    # The loss scale, for a `nonfinite.Guard`.

    def read_scale(self):
        """The present scale of the LossScaleOptimizer, a tensor."""
        scale = vars(self.optimizer)["_loss_scale"]
        # TF 2.0 to 2.3 accept a user's own class of loss scale. Delete with TF 2.3.
        if not hasattr(scale, "_current_loss_scale"):
            raise ValueError(OWN_SCALE.format(shown(scale)))
        return scale._current_loss_scale.read_value()

    def shrink_scale(self, value):
        """Set the scale to the one that follows `value` after an overflow. Returns what to wait for, or None."""
        state = vars(self.optimizer)["_loss_scale"]
        with self.ops.after(state._current_loss_scale.assign(value)):
            return state.update([self.ops.constant(math.nan, "float32")])[0]

    # A flush in graph mode, built later than the mini-step.

    def keep_attributes(self, window):
        """Save the optimizer's attributes when a mini-step is built in a graph, for a flush that is built later.

        They may change in between: keras-lr-multiplier changes `lr` only during get_updates.
        """
        self._attributes[window] = dict(vars(self.optimizer))

    @contextlib.contextmanager
    def as_kept(self, window):
        """A context in which the optimizer has the attributes kept for the window."""
        if window not in self._attributes:
            yield
            return
        attributes = vars(self.optimizer)
        present = dict(attributes)
        attributes.clear()
        attributes.update(self._attributes[window])
        try:
            yield
        finally:
            attributes.clear()
            attributes.update(present)
