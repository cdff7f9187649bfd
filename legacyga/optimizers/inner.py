"""How the inner optimizer is called: what an update is."""

import contextlib
import inspect
import math
import sys

from legacyga.backend import features, homes, ops
from legacyga.optimizers import horovod

# The argument of OptimizerV2; that of the optimizers of 2.11 and newer says the opposite.
AGGREGATES = "experimental_aggregate_gradients"
OWN_SCALE = (
    'on_nonfinite="skip_mini_step" needs a DynamicLossScale, which it tells of what was left out. Received: {!r}. Take '
    'on_nonfinite="skip_window", or a DynamicLossScale.'
)
AROUND = (
    "{0}.get_updates adds updates of its own to those of an optimizer that accumulates: they would be made on every "
    "mini-step. Received: {1!r}. Wrap the optimizer that adds them: wrap({0}(SGD()), {2}), not {0}(wrap(SGD(), {2})); "
    "or, where wrap refuses it, train in slices of a batch: legacyga.micro_batch(model, size) after compile."
)


def are_exchanged(kwargs):
    """Whether the gradients of a call with these keywords are sums over the replicas already."""
    return kwargs.get("skip_gradients_aggregation", not kwargs.get(AGGREGATES, True))


def check_arguments(method, args, kwargs):
    """Raise the TypeError of `method`'s call, at the window's end, where it does not take these after its first."""
    if args or kwargs:
        inspect.signature(method).bind(None, None, *args, **kwargs)


def named(method, args, kwargs):
    """The arguments of a call of `method` after its first: those of `args` that have a name are among `kwargs`."""
    check_arguments(method, args, kwargs)
    parameters = list(inspect.signature(method).parameters.values())[2:]
    names = [each.name for each in parameters if each.kind == each.POSITIONAL_OR_KEYWORD]
    return args[len(names) :], dict(kwargs, **dict(zip(names, args)))


class Updating(object):
    """The part of an `accumulation.Accumulation` that makes updates, of its `optimizer`."""

    # The inner optimizer's methods that take part in the exchange between replicas.
    exchanging = ()

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self._applying = {False: 0, True: 0}
        # By variable, whether the update under way has a gradient of it, where only the run can tell.
        self._present = {}
        # In a graph, by window, the optimizer's attributes when the mini-step was made.
        self._attributes = {}

    def update(self, pairs, args, kwargs, exchanged=False):
        """One update of the inner optimizer, whose own methods may be called meanwhile.

        With `exchanged` the gradients are sums over the replicas already.
        """
        # Counts, not flags: replicas' threads are in here at the same time.
        self._applying[exchanged] += 1
        try:
            rows_once = self.ops.sum_of_rows if self.has_windows else None
            return self.apply(horovod.exchanged(self.optimizer, pairs, rows_once), *args, **kwargs)
        finally:
            self._applying[exchanged] -= 1

    @property
    def is_applying(self):
        """Whether an update is being made."""
        return any(self._applying.values())

    @property
    def is_applying_exchanged(self):
        """Whether an update is being made with gradients that are sums over the replicas already."""
        return self._applying[True] > 0

    def check_is_applying(self, method):
        """Raise where somebody calls the inner optimizer's own method, round accumulation."""
        if self.has_windows and not self.is_applying:
            raise ValueError(
                "{0} of an optimizer that accumulates was called round its apply_gradients: it would update on every "
                "mini-step. Received: {1!r}. Wrap the optimizer that calls it: wrap(Lookahead(Adam()), {2}), not "
                "Lookahead(wrap(Adam(), {2})).".format(method, self.optimizer, self.next_steps)
            )

    def where_present(self, variable, step):
        """What `step()` returns, which updates a variable: run only where the window has a gradient of it."""
        key = ops.variable_key(variable) if self._present else None
        if key not in self._present:
            return step()
        # One step may call another, of the same variable.
        is_there, before = self._present[key], self._present
        self._present = {other: each for other, each in before.items() if other != key}
        try:
            return self.ops.cond(is_there, lambda: self.ops.done(step()), lambda: self.ops.done([])).op
        finally:
            self._present = before

    @property
    def is_around_others(self):
        """Whether the steps of single variables are those of an optimizer within this one, which asks nothing."""
        return getattr(self, "keeper", self.optimizer) is not self.optimizer

    def _with_or_without(self, asked, pairs, call, exchanged):
        """An update of all variables where the window has a gradient of one that is asked for, else of the others.

        Args:
            asked: {key of a variable: whether there is a gradient, a boolean tensor}. With it the others get zeros.
        """

        def update(pairs):
            return self.ops.done(self.update(pairs, *call, exchanged=exchanged))

        if self.ops.has_replicas:
            # They meet in an update, which no conditional can hold.
            return update(pairs)
        without = [(None if ops.variable_key(var) in asked else gradient, var) for gradient, var in pairs]
        is_any_there = self.ops.reduce_any(self.ops.tf.stack(list(asked.values())))
        return self.ops.cond(is_any_there, lambda: update(pairs), lambda: update(without))

    def for_those_present(self, own, variables):
        """Do `own(variables)`, which the inner optimizer does to all, to those that have a gradient in the window."""
        asked = [each for each in variables if ops.variable_key(each) in self._present]
        if not features.finds_averages_by_variable(self.home):
            # Keras takes the list for that of all variables. Delete with TF 2.13.
            asked = []
        own([each for each in variables if not any(each is other for other in asked)])
        for each in asked:
            self.where_present(each, lambda each=each: own([each]))

    def decay_weights(self, own, variables):
        """The inner optimizer's decay of weights, `own(variables)`, of those that the window has a gradient of."""
        attributes, before = vars(self.optimizer), vars(self.optimizer).get("weight_decay")
        own([each for each in variables if ops.variable_key(each) not in self._present])
        for each in variables if before is not None else ():
            is_there = self._present.get(ops.variable_key(each))
            if is_there is not None:
                # Not in a conditional: replicas meet in it.
                attributes["weight_decay"] = self.ops.cast(is_there, "float32") * before
                own([each])
        attributes["weight_decay"] = before

    def say_what_is_missing(self, grads_and_vars):
        """Warn of variables without a gradient, in your Keras's own words: a traced update has a gradient for each."""
        for cls in type(self.optimizer).__mro__:
            module = vars(sys.modules[cls.__module__])
            # TF 2.0 to 2.3 have the first. Delete with TF 2.3.
            found = module.get("_filter_grads") or getattr(
                module.get("optimizer_utils"), "filter_empty_gradients", None
            )
            if found is not None:
                found(grads_and_vars)
                return

    def as_updates(self, updates):
        """What `get_updates` returns for a mini-step: a list that raises where an optimizer around this one adds."""
        if not self.has_windows:
            return updates
        guarded = _MiniStep(updates)
        guarded.accumulation = self
        return guarded

    def update_of(self, window, call):
        """A function of the reduced gradients: an update of those of the window's variables that are still there."""

        exchanges = self.ops.has_replicas and self.exchanges and not are_exchanged(call[1])

        def update(reduced, present):
            reduced = self.as_each_replicas(reduced, call[1], self.ops.replicas)
            var_list = [reference() for reference in window.var_list]
            pairs = [(gradient, var) for gradient, var in zip(reduced, var_list) if var is not None]
            if exchanges:
                gradients, variables = zip(*pairs)
                pairs = list(zip(self.ops.exchanged(gradients, variables), variables))
            asked = [(var_list[i], is_there) for i, is_there in present.items() if var_list[i] is not None]
            asked = {ops.variable_key(var): is_there for var, is_there in asked}
            if asked and self.is_around_others:
                return self._with_or_without(asked, pairs, call, exchanges)
            self._present = asked
            try:
                return self.update(pairs, *call, exchanged=exchanges)
            finally:
                self._present = {}

        return update

    def as_each_replicas(self, gradients, kwargs, factor):
        """Gradients times `factor` where each replica is given the sum over them all, else as they are.

        So each accumulates its share, and what a checkpoint has is the sum, of any number of replicas.
        """
        if not self.ops.has_replicas or not are_exchanged(kwargs):
            return gradients
        return [each if each is None else self.ops.weighted(each, factor, each.dtype) for each in gradients]

    @property
    def exchanges(self):
        """Whether gradients are added up over the replicas here, once a window, and the inner optimizer lets them be.

        Not where a user's class may do that in its own way.
        """
        keeper, classes = getattr(self, "keeper", self.optimizer), [type(self.optimizer)._legacyga_class[0]]
        if keeper is not self.optimizer:
            classes.append(type(keeper))
        methods = [getattr(cls, name) for cls in classes for name in self.exchanging if hasattr(cls, name)]
        are_homes = all(method.__module__.startswith(self.home.root + ".") for method in methods)
        return bool(methods) and are_homes and not set(self.exchanging) & set(vars(keeper))

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

    def keep_attributes(self, window):
        """Keep what the optimizer is when a mini-step has been made in a graph, for a flush that is made later.

        keras-lr-multiplier changes `lr` round get_updates; what is set later is not obeyed by the training operation.
        """
        if self.home.graph_mode:
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


class _MiniStep(list):
    """The updates of a mini-step. Keras and programs may add to them; another optimizer's `get_updates` may not."""

    def __iadd__(self, others):
        if not isinstance(others, _MiniStep):
            self._check(sys._getframe(1))
        return super(_MiniStep, self).__iadd__(others)

    def __add__(self, others):
        self._check(sys._getframe(1))
        return super(_MiniStep, self).__add__(others)

    def __radd__(self, others):
        # What is added to other updates, as keras-lr-multiplier does, is a mini-step still.
        if others and not isinstance(others, _MiniStep):
            self._check(sys._getframe(1))
        both = _MiniStep(list.__add__(list(others), self))
        both.accumulation = self.accumulation
        return both

    def __iter__(self):
        # [*updates, another]
        self._check(sys._getframe(1))
        return super(_MiniStep, self).__iter__()

    def append(self, other):
        self._check(sys._getframe(1))
        super(_MiniStep, self).append(other)

    def extend(self, others):
        self._check(sys._getframe(1))
        super(_MiniStep, self).extend(others)

    def _check(self, caller):
        other, accumulation = caller.f_locals.get("self"), self.accumulation
        is_optimizer = other is not accumulation.optimizer and homes.generation_of(type(other)) is not None
        if is_optimizer and caller.f_code.co_name == "get_updates":
            raise ValueError(AROUND.format(type(other).__name__, other, accumulation.next_steps))


def _replace(attributes, others):
    others = dict(others)
    attributes.clear()
    attributes.update(others)
