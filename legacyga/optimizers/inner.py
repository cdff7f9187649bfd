"""The inner optimizer: how it is copied, prepared and called. The file of each generation adds the hooks."""

import contextlib
import inspect
import math
import sys

from legacyga.backend import features
from legacyga.backend.tensors import variable_key
from legacyga.optimizers import copying, horovod

HOOKS = []
# The argument of OptimizerV2; that of the optimizers of 2.11 and newer says the opposite.
AGGREGATES = "experimental_aggregate_gradients"
OWN_SCALE = (
    'on_nonfinite="skip_mini_step" needs a DynamicLossScale, which it tells of what was left out. Received: {!r}. Take '
    'on_nonfinite="skip_window", or a DynamicLossScale.'
)


def hook(function):
    """Declare a method that each generation supplies."""
    HOOKS.append(function.__name__)
    return function


def are_exchanged(kwargs):
    """Whether the gradients of a call with these keywords are sums over the replicas already."""
    return kwargs.get("skip_gradients_aggregation", not kwargs.get(AGGREGATES, True))


def check_arguments(method, args, kwargs):
    """Raise the TypeError of `method`'s call, at the window's end, where it does not take these after its first."""
    if args or kwargs:
        inspect.signature(method).bind(None, None, *args, **kwargs)


def named(method, args, kwargs):
    """The arguments of a call of `method` after its first: those of `args` that have a name are among `kwargs`."""
    if not args and not kwargs:
        return args, kwargs
    check_arguments(method, args, kwargs)
    parameters = list(inspect.signature(method).parameters.values())[2:]
    names = [each.name for each in parameters if each.kind == each.POSITIONAL_OR_KEYWORD]
    return args[len(names) :], dict(kwargs, **dict(zip(names, args)))


class Inner(object):
    """The inner optimizer, which is the accumulating one by the methods of its own class.

    A generation's subclass supplies the hooks.

    Args:
        optimizer: the accumulating optimizer.
        home: its `homes.Home`.
        ops: an `ops.Ops`.
        steps: its `steps.Steps`.

    Attributes:
        scales_loss: whether it is a LossScaleOptimizer of its home.
    """

    # The inner optimizer's methods that take part in the exchange between replicas.
    exchanging = ()
    # Whether the state can be read while a function is traced.
    reads_when_traced = True

    def __init__(self, optimizer, home, ops, steps):
        self.optimizer, self.home, self.ops, self.steps = optimizer, home, ops, steps
        self.scales_loss = features.is_loss_scale_optimizer(home, optimizer)
        # How many updates are being made; with True, with gradients that are sums over the replicas already. Counts,
        # not flags: replicas' threads are in here at the same time.
        self._applying = {False: 0, True: 0}
        # By variable, whether the update under way has a gradient of it, where only the run can tell.
        self._present = {}
        # In a graph, by window, the optimizer's attributes when the mini-step was made.
        self._attributes = {}

    # The hooks.

    @hook
    def inherit(self, optimizer):
        """Make the new optimizer a copy of `optimizer`, of the inner class, with variables of its own.

        Called once, by `wrap`, before all else, wherever the user calls it. Returns nothing.
        """

    @hook
    def prepare(self, grads_and_vars, is_traced):
        """Make the inner optimizer's own state for these (gradient, variable) pairs.

        Called at each mini-step that is made, in replica context, within an init_scope, before there is a window. With
        `is_traced` it is made in a function, whose update may find gradients of all the variables. Returns whether the
        mini-step can be taken; if not, the inner optimizer is called, which has the error for it.
        """

    @hook
    def apply(self, pairs, *args, **kwargs):
        """Make one update of the inner optimizer, with the arguments of the mini-step's call.

        Called where a window ends, within the conditional's branch, in replica context, and at K = 1 in place of a
        mini-step. `pairs` are (reduced gradient or None, variable). Returns what the inner optimizer returns.
        """

    @hook
    def make_variable(self, name, value, shape, dtype, beside=None):
        """Make a variable of the optimizer's state, all of whose elements are the number `value`.

        Called within an init_scope, in replica context or in none. With `beside`, a variable of the model, it has a
        copy on each replica, of which a checkpoint takes the sum; else one value for all. Returns the variable.
        """

    @hook
    def session(self, variable, action):
        """Find the session of the graph of `variable`, in graph mode.

        Called outside of all functions. Returns it, or None where none is open: with an `action`, which says what for,
        that is an error.
        """

    # What it is.

    @property
    def own_class(self):
        """The class that the user's optimizer has."""
        return type(self.optimizer)._legacyga_class[0]

    @property
    def keeper(self):
        """The optimizer that has the state: in a LossScaleOptimizer of tf.keras the one in it."""
        return copying.keeper_of(self.optimizer)

    @property
    def is_around_others(self):
        """Whether the steps of single variables are those of an optimizer within this one, which asks nothing."""
        return self.keeper is not self.optimizer

    @property
    def adapts_scale(self):
        """Whether it is one whose scale follows the gradients: the others look at none."""
        return self.scales_loss and features.has_dynamic_scale(self.optimizer)

    # An update.

    def update(self, pairs, args, kwargs, exchanged=False):
        """One update of the inner optimizer, whose own methods may be called meanwhile.

        With `exchanged` the gradients are sums over the replicas already.
        """
        self._applying[exchanged] += 1
        try:
            rows_once = self.ops.replicas.sum_of_rows if self.steps.has_windows else None
            return self.apply(horovod.exchanged(self.optimizer, pairs, rows_once), *args, **kwargs)
        finally:
            self._applying[exchanged] -= 1

    def update_of(self, window, args, kwargs):
        """A function of the reduced gradients: an update of those of the window's variables that are still there.

        Args:
            args, kwargs: what the mini-steps' calls came with.
        """

        def update(reduced, present):
            exchanges = self.ops.replicas.are_several and self.exchanges and not are_exchanged(kwargs)
            if are_exchanged(kwargs):
                reduced = self.as_each_replicas(reduced, self.ops.replicas.count)
            var_list = [reference() for reference in window.var_list]
            pairs = [(gradient, var) for gradient, var in zip(reduced, var_list) if var is not None]
            if exchanges:
                gradients, variables = zip(*pairs)
                pairs = list(zip(self.ops.replicas.exchanged(gradients, variables), variables))
            asked = [(var_list[i], is_there) for i, is_there in present.items() if var_list[i] is not None]
            asked = {variable_key(var): is_there for var, is_there in asked}
            if asked and self.is_around_others:
                return self._with_or_without(asked, pairs, args, kwargs, exchanges)
            self._present = asked
            try:
                return self.update(pairs, args, kwargs, exchanged=exchanges)
            finally:
                self._present = {}

        return update

    @property
    def is_applying(self):
        """Whether an update is being made."""
        return any(self._applying.values())

    @property
    def is_applying_exchanged(self):
        """Whether an update is being made with gradients that are sums over the replicas already."""
        return self._applying[True] > 0

    def as_each_replicas(self, gradients, factor):
        """Gradients that each replica was given as the sum over them all, times `factor`.

        So each accumulates its share, and what a checkpoint has is the sum, of any number of replicas.
        """
        if not self.ops.replicas.are_several:
            return gradients
        return [each if each is None else self.ops.weighted(each, factor, each.dtype) for each in gradients]

    @property
    def exchanges(self):
        """Whether gradients are added up over the replicas here, once a window, and the inner optimizer lets them be.

        Not where a user's class may do that in its own way.
        """
        keeper, classes = self.keeper, [self.own_class]
        if keeper is not self.optimizer:
            classes.append(type(keeper))
        methods = [getattr(cls, name) for cls in classes for name in self.exchanging if hasattr(cls, name)]
        are_homes = all(method.__module__.startswith(self.home.root + ".") for method in methods)
        return bool(methods) and are_homes and not set(self.exchanging) & set(vars(keeper))

    # The step of a single variable.

    def step(self, name, variable, method):
        """What `method()` returns, the step of the inner optimizer's method `name`, which updates a variable.

        It runs only where the window has a gradient of the variable. Outside of an update it is an error: another
        optimizer calls it round accumulation.
        """
        if not self.is_applying:
            raise ValueError(
                "{0} of an optimizer that accumulates was called round its apply_gradients: it would update on every "
                "mini-step. Received: {1!r}. Wrap the optimizer that calls it: wrap(Lookahead(Adam()), {2}), not "
                "Lookahead(wrap(Adam(), {2})).".format(name, self.optimizer, self.steps.now)
            )
        return self._where_present(variable, method) if self._present else method()

    def _where_present(self, variable, step):
        """What `step()` returns, which updates a variable: run only where the window has a gradient of it."""
        key = variable_key(variable)
        if key not in self._present:
            return step()
        # One step may call another, of the same variable.
        is_there, before = self._present[key], self._present
        self._present = {other: each for other, each in before.items() if other != key}
        try:
            return self.ops.cond(is_there, lambda: self.ops.done(step()), lambda: self.ops.done([])).op
        finally:
            self._present = before

    def _with_or_without(self, asked, pairs, args, kwargs, exchanged):
        """An update of all variables where the window has a gradient of one that is asked for, else of the others.

        Args:
            asked: {key of a variable: whether there is a gradient, a boolean tensor}. With it the others get zeros.
        """

        def update(pairs):
            return self.ops.done(self.update(pairs, args, kwargs, exchanged=exchanged))

        if self.ops.replicas.are_several:
            # They meet in an update, which no conditional can hold.
            return update(pairs)
        without = [(None if variable_key(var) in asked else gradient, var) for gradient, var in pairs]
        is_any_there = self.ops.reduce_any(self.ops.tf.stack(list(asked.values())))
        return self.ops.cond(is_any_there, lambda: update(pairs), lambda: update(without))

    def average_those_present(self, own, variables):
        """Do `own(variables)`, which the inner optimizer does to all, to those that have a gradient in the window."""
        asked = [each for each in variables if variable_key(each) in self._present] if self._present else []
        if asked and not features.finds_averages_by_variable(self.home):
            # Keras takes the list for that of all variables.
            asked = []
        own([each for each in variables if not any(each is other for other in asked)] if asked else variables)
        for each in asked:
            self._where_present(each, lambda each=each: own([each]))

    def decay_weights(self, own, variables):
        """The inner optimizer's decay of weights, `own(variables)`, of those that the window has a gradient of."""
        if not self._present:
            own(variables)
            return
        attributes, before = vars(self.optimizer), vars(self.optimizer).get("weight_decay")
        own([each for each in variables if variable_key(each) not in self._present])
        for each in variables if before is not None else ():
            is_there = self._present.get(variable_key(each))
            if is_there is not None:
                # Not in a conditional: replicas meet in it.
                attributes["weight_decay"] = self.ops.cast(is_there, "float32") * before
                own([each])
        attributes["weight_decay"] = before

    def say_what_is_missing(self, grads_and_vars):
        """Warn of variables without a gradient, in your Keras's own words: a traced update has a gradient for each."""
        for cls in type(self.optimizer).__mro__:
            found = features.filter_of_gradients(sys.modules[cls.__module__])
            if found is not None:
                found(grads_and_vars)
                return

    # The scale of a LossScaleOptimizer, for a `nonfinite.Guard`.

    def read_scale(self):
        """The scale of a LossScaleOptimizer that adapts it, a tensor."""
        scale = vars(self.optimizer)["_loss_scale"]
        # A class of the user's own, which TF 2.0 to 2.3 take. Delete with TF 2.3.
        if not hasattr(scale, "_current_loss_scale"):
            raise ValueError(OWN_SCALE.format(scale))
        return scale._current_loss_scale.read_value()

    def shrink_scale(self, value):
        """Bring the scale to what an overflow makes of `value`. Returns what to wait for."""
        state = vars(self.optimizer)["_loss_scale"]
        with self.ops.after(state._current_loss_scale.assign(value)):
            return state.update([self.ops.constant(math.nan, "float32")])[0]

    # A flush, made in a graph later than the mini-step.

    def keep_attributes(self, window):
        """Keep what the optimizer is when a mini-step has been made in a graph, for a flush that is made later.

        keras-lr-multiplier changes `lr` round get_updates; what is set later is not obeyed by the training operation.
        """
        self._attributes[window] = dict(vars(self.optimizer))

    @contextlib.contextmanager
    def as_kept(self, window):
        """A context: the optimizer has the attributes that it had when the window's mini-step was made."""
        if window not in self._attributes:
            yield
            return
        attributes = vars(self.optimizer)
        present = dict(attributes)
        _replace(attributes, self._attributes[window])
        try:
            yield
        finally:
            _replace(attributes, present)


def _replace(attributes, others):
    others = dict(others)
    attributes.clear()
    attributes.update(others)
