"""The accumulation logic shared by all generations: an optimizer's components, and a mini-step's path through them."""

import contextlib
import copy
import warnings

from legacyga.backend import ops as _ops
from legacyga.backend.tensors import is_variable
from legacyga.optimizers import horovod
from legacyga.optimizers import inner as _inner
from legacyga.optimizers.steps import Steps
from legacyga.optimizers.weights import Weights
from legacyga.optimizers.windows import Windows
from legacyga.windows import checks
from legacyga.windows.mini_step import MiniStep

NO_UPDATE = (
    "Training ended, and nothing is learned yet: the optimizer has made no update. Its window has {} mini-steps, and "
    "gradient_accumulation_steps is {}. Give fit a legacyga.GradientAccumulationCallback(), which ends each epoch with "
    "an update, call legacyga.flush(optimizer), or take a smaller K."
)


class Accumulation(object):
    """Everything an accumulating optimizer has on top of its inner class.

    Args:
        optimizer: the accumulating optimizer.
        home: its `homes.Home`.
        settings: its `settings.Settings`.
        inner_type: its generation's `inner.Inner` class.

    Attributes:
        inner: the `inner.Inner`, which drives the inner optimizer.
        steps: the `steps.Steps`, which holds K.
        windows: the `windows.Windows`.
        weights: the `weights.Weights` of mini-steps.
        is_handed_sums: whether the last mini-step's gradients were already summed over the replicas.
        refused: the error of the last attempt to set the state; None if the state fitted.
    """

    def __init__(self, optimizer, home, settings, inner_type):
        self.optimizer, self.home, self.settings = optimizer, home, settings
        self.ops = _ops.Ops(home.tf)
        self.steps = Steps(settings)
        self.inner = inner_type(optimizer, home, self.ops, self.steps)
        self.windows = Windows(self)
        self.weights = Weights(self.ops)
        self.is_handed_sums = self._has_said = False
        self.refused = None

    def shared_with(self, optimizer):
        """An `Accumulation` for another optimizer that shares this one's variables and windows."""
        shared = copy.copy(self)
        shared.optimizer, shared.inner = optimizer, copy.copy(self.inner)
        shared.steps = copy.copy(self.steps)
        shared.inner.optimizer, shared.inner.steps = optimizer, shared.steps
        shared.windows = self.windows.shared_with(shared)
        return shared

    def take_mini_step(self, grads_and_vars, args=(), kwargs=(), scope=None, result=None, before=()):
        """Take one mini-step. Called in replica context under every strategy.

        Args:
            grads_and_vars: list of (gradient, variable) pairs. Pairs without a gradient are passed on, because the
                inner optimizer is the one to warn about them.
            args, kwargs: the call's other arguments, for the inner optimizer.
            scope: the name scope of new variables.
            result: function without arguments, called after everything else, that makes the return value for all
                replicas.
            before: tensors to compute before anything is written.

        Returns:
            The inner optimizer's return value if it is called directly; else `result()`, by default a boolean tensor:
            whether there was an update.
        """
        ops, kwargs = self.ops, dict(kwargs)
        present = [pair for pair in grads_and_vars if pair[0] is not None]
        self.weights.made += 1
        if not present or not ops.replicas.is_replica_here:
            # Nothing to accumulate, or a call from the wrong context: the inner optimizer raises its own error.
            return self.inner.update(grads_and_vars, args, kwargs)
        if not self.steps.has_windows:
            self.steps.are_bare = True
            # A graph must compute all gradients before any write, even before a weight decay that reads none of them.
            with ops.after([gradient for gradient, _ in present]):
                return self.inner.update(grads_and_vars, args, kwargs)
        horovod.check_inside(self.optimizer)
        ops.replicas.check_workers_wait()
        self.is_handed_sums = _inner.are_exchanged(kwargs)
        registry = self.windows.of(present[0][1])
        grads_and_vars = checks.as_tensors(ops, grads_and_vars)
        checks.check_fit(ops.tf, grads_and_vars)
        is_traced = not registry.is_graph and not ops.tf.executing_eagerly()
        self.weights.are_traced = self.weights.are_traced or is_traced
        with self._outside_of_functions(scope):
            if not self.inner.prepare(grads_and_vars, is_traced):
                return self.inner.update(grads_and_vars, args, kwargs)
            window = registry.window_for([var for _, var in grads_and_vars])
            forms = self._forms(window, grads_and_vars, registry, is_traced)
        if is_traced and len(present) < len(grads_and_vars):
            self.inner.say_what_is_missing(grads_and_vars)
        checks.check_rows(ops, *zip(*[(each, var.shape) for each, var in grads_and_vars]))
        mini_step = self._made(window, grads_and_vars, forms, args, kwargs, before)
        with ops.uninterrupted():
            taken = self._take(window, mini_step, result)
        if registry.is_graph:
            self.inner.keep_attributes(window)
            registry.forget_end(window)
        return taken

    def _forms(self, window, grads_and_vars, registry, is_traced):
        """NOTHING, ROWS or WHOLE for each of the window's sums: what the call's gradients add to it."""
        sums = window.sums
        given = [(place, pair) for place, pair in zip(window.places, grads_and_vars) if pair[0] is not None]
        if sums.without:
            for place, (gradient, var) in given:
                sums.check_not_late(place, gradient, var, "optimizer")
        forms = sums.forms_of({place: gradient for place, (gradient, _) in given})
        sums.note(forms, window.places, registry.is_graph)
        if is_traced and self.inner.reads_when_traced and registry.mini_steps_under_way:
            # A restored window may hold forms of gradients that this program has never seen.
            sums.note_held(window.kept.held.read_value().numpy())
        return forms

    def _made(self, window, grads_and_vars, forms, args, kwargs, before):
        """The `MiniStep` of a call."""
        pairs = [
            (gradient, place) for (gradient, _), place in zip(grads_and_vars, window.places) if gradient is not None
        ]
        gradients, places = map(list, zip(*pairs))
        if self.is_handed_sums:
            gradients = self.inner.as_each_replicas(gradients, 1.0 / self.ops.replicas.count)
        window.call = args, kwargs
        return MiniStep(gradients, places, forms, args, kwargs, self.weights.here(), before)

    def _take(self, window, mini_step, result):
        """Let a window take this replica's `MiniStep`; returns what `take_mini_step` does."""
        ops, weight = self.ops, mini_step.weight

        def take(run, gradients, value=None):
            if value is not None and _inner.are_exchanged(mini_step.kwargs):
                # The gradients are equal on all replicas; equal weights keep the sums equal too.
                value = ops.replicas.sum_of_scalars(value) / ops.replicas.count
            of_all = mini_step._replace(gradients=gradients, weight=weight and weight._replace(value=value))
            updated = window.take(of_all, self.inner.update_of(window, mini_step.args, mini_step.kwargs), run)
            if result is None:
                return updated
            with ops.after(updated):
                return result()

        parts = (mini_step.gradients,) if weight is None else (mini_step.gradients, weight.value)
        return ops.replicas.on_all(take, parts)

    @contextlib.contextmanager
    def _outside_of_functions(self, scope):
        with contextlib.ExitStack() as entered:
            entered.enter_context(self.ops.init_scope())
            if scope is not None:
                entered.enter_context(self.home.tf.name_scope(scope))
            yield

    def giving(self, weight):
        """A context that gives this replica's mini-steps this `Weight`."""
        return self.weights.giving(weight, self._counted, self.registry().is_graph)

    def of_loss(self, loss, params, samples=None):
        """A context in which the mini-steps of a loss weigh what divides it, if a graph shows that.

        Args:
            samples: as `Weights.dividing` takes it.
        """
        can_weigh = self.home.graph_mode and self.steps.has_windows and self.settings.reduction == "mean"
        if not can_weigh or getattr(loss, "graph", None) is None:
            return contextlib.ExitStack()
        return self.weights.dividing(loss, list(params), samples)

    def _counted(self):
        """What changes where a function that was traced earlier takes mini-steps, or is called in a function."""
        registry = self.registry()
        counters = [window.kept.mini_step for window in registry.windows.values()]
        if not self.ops.tf.executing_eagerly():
            return [self.ops.uses(counter) for counter in counters]
        if not self.is_handed_sums:
            # Whole windows leave the counters as they were. A LossScaleOptimizer counts what it does not hand over.
            updates = self.optimizer.iterations
            counters.append(updates if is_variable(updates) else updates.value)
        return registry.read(counters) if counters else []

    def registry(self):
        """The `Registry` of the default session's graph, or else of the current context."""
        return self.windows.here()

    @property
    def next_steps(self):
        """K of the next window, an int."""
        return self.registry().steps

    def set_steps(self, steps):
        """Set K of the next window."""
        registry = self.registry()
        registry.set_steps(steps)
        self.steps.set(steps, is_kept=registry.has_steps)

    @property
    def mini_steps_under_way(self):
        """The mini-steps in the latest window, an int."""
        return self.registry().mini_steps_under_way

    def say_no_update(self):
        """Warn once, at the end of a fit, if the optimizer has never made an update."""
        taken = self.mini_steps_under_way
        if taken and not self._has_said and not self.home.value_of(self.optimizer.iterations):
            self._has_said = True
            warnings.warn(NO_UPDATE.format(taken, self.next_steps), stacklevel=4)
