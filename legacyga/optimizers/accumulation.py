"""The accumulation logic shared by all generations: an optimizer's components, and a mini-step's path through them."""

import contextlib
import copy

from legacyga.backend import ops as _ops
from legacyga.backend.messages import warn
from legacyga.backend.tensors import is_variable
from legacyga.optimizers import horovod, loss_divisor
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
    """Everything that an accumulating optimizer adds to its inner class."""

    def __init__(self, optimizer, home, settings, inner_type):
        self.optimizer, self.home, self.settings = optimizer, home, settings
        self.ops = _ops.Ops(home.tf)
        self.steps = Steps(settings)
        self.inner = inner_type(optimizer, home, self.ops, self.steps)
        self.windows = Windows(self)
        self.weights = Weights(self.ops)
        # Whether the last mini-step's caller had already summed the gradients over the replicas.
        self.is_handed_sums = False
        self._has_warned_of_no_update = False
        # The error of the last attempt to set the state, or None. `load_model` raises it, because Keras only logs it.
        self.refused = None

    def shared_with(self, optimizer):
        """An `Accumulation` for `optimizer`, a shallow copy. It shares the windows made so far."""
        shared = copy.copy(self)
        shared.optimizer, shared.inner = optimizer, copy.copy(self.inner)
        shared.steps = copy.copy(self.steps)
        shared.inner.optimizer, shared.inner.steps = optimizer, shared.steps
        shared.windows = self.windows.shared_with(shared)
        return shared

    def take_mini_step(self, grads_and_vars, args=(), kwargs=(), scope=None, result=None, before=()):
        """Make one mini-step. Call it in replica context, whatever the strategy.

        Args:
            grads_and_vars: list of pairs. Pairs without a gradient are passed to the inner optimizer, which warns.
            args, kwargs: the call's other arguments, for the inner optimizer.
            scope: the name scope of new variables.
            result: function that makes the return value, once for all replicas, after everything else.
            before: tensors to compute before anything is written, if the optimizer has windows.

        Returns:
            What `Inner.update` returns if no window takes the gradients; else `result()`, by default whether there was
            an update, a boolean tensor.
        """
        ops, kwargs = self.ops, dict(kwargs)
        present = [pair for pair in grads_and_vars if pair[0] is not None]
        self.weights.made += 1
        if not present or not ops.replicas.is_replica_here:
            # Nothing to accumulate, or the wrong context: the inner optimizer raises, or ignores the call.
            return self.inner.update(grads_and_vars, args, kwargs)
        if not self.steps.has_windows:
            self.steps.are_bare = True
            # In a graph, a write that needs no gradient, such as a weight decay, could precede a gradient's reads.
            with ops.after([] if self.inner.orders_writes else [gradient for gradient, _ in present]):
                return self.inner.update(grads_and_vars, args, kwargs)
        horovod.check_does_not_accumulate(self.optimizer)
        ops.replicas.check_workers_wait()
        self.is_handed_sums = _inner.are_exchanged(kwargs)
        registry = self.windows.of(present[0][1])
        grads_and_vars = [(ops.as_tensors(gradient, var.dtype), var) for gradient, var in grads_and_vars]
        checks.check_fit(ops.tf, grads_and_vars)
        is_traced = not registry.is_graph and not ops.tf.executing_eagerly()
        self.weights.are_traced = self.weights.are_traced or is_traced
        with ops.uninterrupted():
            with ops.init_scope(), contextlib.ExitStack() if scope is None else ops.tf.name_scope(scope):
                self.inner.prepare(grads_and_vars, is_traced)
                window = registry.window_for([var for _, var in grads_and_vars])
                forms = self._forms(window, grads_and_vars, registry, is_traced)
            if is_traced and len(present) < len(grads_and_vars):
                self.inner.say_what_is_missing(grads_and_vars)
            checks.check_rows(ops, *zip(*[(each, var.shape) for each, var in grads_and_vars]))
            taken = self._take(window, grads_and_vars, forms, (args, kwargs), before, result)
        if registry.is_graph:
            self.inner.keep_attributes(window)
            registry.forget_end(window)
        return taken

    def _forms(self, window, grads_and_vars, registry, is_traced):
        """Check, record and return what the gradients add to each of the window's sums: NOTHING, ROWS or WHOLE."""
        sums = window.sums
        given = [(place, pair) for place, pair in zip(window.places, grads_and_vars) if pair[0] is not None]
        if sums.without:
            for place, (gradient, var) in given:
                sums.check_not_late(place, gradient, var, "optimizer")
        forms = sums.forms_of({place: gradient for place, (gradient, _) in given})
        sums.note(forms, window.places, registry.is_graph)
        if is_traced and self.inner.reads_when_traced and registry.mini_steps_under_way:
            # For a sum without a gradient here, the trace takes the form recorded. A restored sum may have none.
            sums.note_held(window.kept.held.read_value().numpy())
        return forms

    def _take(self, window, grads_and_vars, forms, call, before, result):
        """Run this replica's mini-step in a window; returns the result of `take_mini_step`."""
        ops, weight, is_handed_sums = self.ops, self.weights.here(), self.is_handed_sums
        pairs = [(each, place) for (each, _), place in zip(grads_and_vars, window.places) if each is not None]
        gradients, places = map(list, zip(*pairs))
        if is_handed_sums:
            # Each replica accumulates its share, because a checkpoint saves the sum of all replicas' accumulators.
            gradients = self.inner.scaled(gradients, 1.0 / ops.replicas.count)

        def take(run, gradients, value=None):
            if value is not None and is_handed_sums:
                # The gradients are equal on all replicas. Equal weights keep the sums equal too: take their mean.
                value = ops.replicas.sum(value) / ops.replicas.count
            mini_step = MiniStep(gradients, places, forms, weight and weight._replace(value=value), before)
            window.call = call
            updated = window.take(mini_step, self.inner.update_of(window), run)
            if result is None:
                return updated
            with ops.after(updated):
                return result()

        return ops.replicas.on_all(take, (gradients,) if weight is None else (gradients, weight.value))

    def giving(self, weight):
        return self.weights.giving(weight, self._counted, self.registry().is_graph)

    def divisor_of(self, loss, params):
        """In graph mode, a loss's divisor from `loss_divisor.find`: the weight of its mini-step. Else None."""
        can_weigh = self.home.graph_mode and self.steps.has_windows and self.settings.reduction == "mean"
        # On several replicas, a loss tells only the divisor of its own replica's samples.
        if not can_weigh or self.ops.replicas.are_several or getattr(loss, "graph", None) is None:
            return None
        return loss_divisor.find(self.ops, loss, list(params))

    def _counted(self):
        """Numbers that change when a function traced earlier takes mini-steps: a list."""
        registry = self.registry()
        counters = [window.kept.mini_step for window in registry.windows.values()]
        if not self.ops.tf.executing_eagerly():
            # A trace runs nothing, but such a call adds uses of the counters.
            return [self.ops.uses(counter) for counter in counters]
        if not self.is_handed_sums:
            # K mini-steps leave the counters unchanged, so add `iterations`. Not inside a LossScaleOptimizer (it hands
            # over sums), which increments `iterations` even if it skips the mini-step.
            updates = self.optimizer.iterations
            counters.append(updates if is_variable(updates) else updates.value)
        return registry.read(counters) if counters else []

    def registry(self):
        """The `Registry` of windows that applies here."""
        return self.windows.here()

    @property
    def next_steps(self):
        """K of the next window, an int."""
        return self.registry().steps

    def set_steps(self, steps):
        registry = self.registry()
        registry.set_steps(steps)
        self.steps.set(steps, is_kept=registry.has_steps)

    def say_no_update(self):
        """Warn once, at the end of a fit, if the optimizer has never made an update."""
        taken = self.registry().mini_steps_under_way
        if taken and not self._has_warned_of_no_update and not self.home.value_of(self.optimizer.iterations):
            self._has_warned_of_no_update = True
            warn(NO_UPDATE.format(taken, self.next_steps))
