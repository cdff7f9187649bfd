"""How an optimizer accumulates, the same in all generations: its parts, and the way of a mini-step through them."""

import contextlib
import copy
import warnings

from legacyga.backend import ops as _ops
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
    """What an accumulating optimizer has beside what its own class gives it.

    Args:
        optimizer: the accumulating optimizer.
        home: its `homes.Home`.
        settings: the `settings.Settings` that it was made with.
        inner_type: the `inner.Inner` of its generation.

    Attributes:
        inner: an `inner.Inner`: the inner optimizer.
        steps: a `steps.Steps`: K.
        windows: a `windows.Windows`.
        weights: a `weights.Weights`: what mini-steps weigh.
        is_handed_sums: whether the last mini-step's gradients came as sums over the replicas.
        refused: why the last state that was given did not fit: an error, None where it did.
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
        """An `Accumulation` of another optimizer, which has the same variables and windows."""
        shared = copy.copy(self)
        shared.optimizer, shared.inner = optimizer, copy.copy(self.inner)
        shared.inner.optimizer = optimizer
        shared.windows = self.windows.shared_with(shared)
        return shared

    def take_mini_step(self, grads_and_vars, args=(), kwargs=(), scope=None, result=None, before=()):
        """One call of an optimizer that is given gradients and variables, in replica context, whatever the strategy.

        Args:
            grads_and_vars: list of (gradient, variable) pairs. Pairs without a gradient go along to the inner
                optimizer: what is said of those variables is its to say.
            args, kwargs: what else the call came with, for the inner optimizer.
            scope: the name of the scope that variables are made in.
            result: function without arguments, of what to return for all replicas, made after all else.
            before: tensors that must have been computed before anything is written.

        Returns:
            What the inner optimizer returns where it is called straight away; else the result, by default a tensor:
            whether there was an update.
        """
        ops, kwargs = self.ops, dict(kwargs)
        present = [pair for pair in grads_and_vars if pair[0] is not None]
        self.weights.made += 1
        if not present or not ops.replicas.is_replica_here:
            # Nothing to accumulate, or a call from where none is allowed: the inner optimizer has the error for it.
            return self.inner.update(grads_and_vars, args, kwargs)
        if not self.steps.has_windows:
            self.steps.are_bare = True
            # In a graph all gradients are of one point, though a variable's decay may need none of them.
            with ops.after(present):
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
        """What the gradients of a call leave in a window: NOTHING, ROWS or WHOLE for each place among its sums."""
        sums = window.sums
        given = [(place, pair) for place, pair in zip(window.places, grads_and_vars) if pair[0] is not None]
        if sums.without:
            for place, (gradient, var) in given:
                sums.check_not_late(place, gradient, var, "optimizer")
        forms = sums.forms_of({place: gradient for place, (gradient, _) in given})
        sums.note(forms, window.places, registry.is_graph)
        if is_traced and self.inner.reads_when_traced and registry.mini_steps_under_way:
            # A window that was restored holds what this program has not seen.
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
        """Let a window take a `MiniStep`, which is this replica's; what `take_mini_step` returns."""
        ops, weight = self.ops, mini_step.weight

        def take(run, gradients, value=None):
            if value is not None and _inner.are_exchanged(mini_step.kwargs):
                # All replicas hold the same gradients, and are to stay alike.
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
        """A context: the mini-steps taken in it on this replica have this `Weight`."""
        return self.weights.giving(weight, self.registry())

    def registry(self):
        """The `Registry` of the default session's graph, or of here and now."""
        return self.windows.here()

    @property
    def next_steps(self):
        """K of the next window, an int."""
        return self.registry().steps

    def set_steps(self, steps):
        """Let the next window have this K."""
        registry = self.registry()
        registry.set_steps(steps)
        self.steps.set(steps, is_kept=registry.has_steps)

    @property
    def mini_steps_under_way(self):
        """The mini-steps in the latest window, an int."""
        return self.registry().mini_steps_under_way

    def say_no_update(self):
        """Say once, where a fit has ended, that the optimizer has made no update at all."""
        taken = self.mini_steps_under_way
        if taken and not self._has_said and not self.home.value_of(self.optimizer.iterations):
            self._has_said = True
            warnings.warn(NO_UPDATE.format(taken, self.next_steps), stacklevel=4)
