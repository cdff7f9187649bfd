"""How an optimizer accumulates, the same in all five generations, and the hooks that a generation supplies."""

import contextlib
import copy
import warnings

from legacyga.backend import ops
from legacyga.optimizers import horovod, inner, weights
from legacyga.optimizers.registry import Registry
from legacyga.windows import checks

HOOKS = []
NO_UPDATE = (
    "Training ended, and nothing is learned yet: the optimizer has made no update. Its window has {} mini-steps, and "
    "gradient_accumulation_steps is {}. Give fit a legacyga.GradientAccumulationCallback(), which ends each epoch with "
    "an update, call legacyga.flush(optimizer), or take a smaller K."
)


def hook(function):
    """Declare a method that each generation supplies."""
    HOOKS.append(function.__name__)
    return function


class Accumulation(inner.Updating, weights.Weighing):
    """What an accumulating optimizer knows, and how it takes a mini-step. A generation's subclass supplies the hooks.

    Args:
        optimizer: the accumulating optimizer.
        home: its `homes.Home`.
        settings: the `settings.Settings` that it was made with.
    """

    def __init__(self, optimizer, home, settings):
        inner.Updating.__init__(self, optimizer)
        weights.Weighing.__init__(self)
        self.home, self.settings = home, settings
        self.ops = ops.Ops(self.home.tf)
        # K where there is no variable of it, until the first window is made and at K = 1; and whether it was set there.
        self.steps, self.was_set = settings.steps, False
        # The largest K that is to come.
        self.most_steps = settings.steps
        self._has_said = False
        # Why the last state that was given did not fit.
        self.refused = None
        self._registries = {}

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

    # Whether the state can be read while a function is traced.
    reads_when_traced = True

    # What is the same in all generations.

    def take_mini_step(self, grads_and_vars, args=(), kwargs=(), scope=None, result=None, before=()):
        """One call of an optimizer that is given gradients and variables, in replica context, whatever the strategy.

        Args:
            grads_and_vars: list of (gradient, variable) pairs. Pairs without a gradient go along to the inner
                optimizer: what is said of those variables is its to say.
            args, kwargs: what else the call came with, for `apply`.
            scope: the name of the scope that variables are made in.
            result: function without arguments, of what to return for all replicas, made after all else.
            before: tensors that must have been computed before anything is written.

        Returns:
            What the inner optimizer returns where it is called straight away; else the result, by default a tensor:
            whether there was an update.
        """
        kwargs = dict(kwargs)
        at = [i for i, (gradient, _) in enumerate(grads_and_vars) if gradient is not None]
        self.note_made(inner.are_exchanged(kwargs))
        if not at or not self.ops.in_replica_context():
            # Nothing to accumulate, or a call from where none is allowed: the inner optimizer has the error for it.
            return self.update(grads_and_vars, args, kwargs)
        self._check_can_accumulate()
        grads_and_vars = checks.as_tensors(self.ops, grads_and_vars)
        is_traced = self._is_in_function
        with self._outside_of_functions(scope):
            window = self._window_for_step(grads_and_vars, is_traced)
        if window is None:
            # In a graph all gradients are of one point, though a variable's decay may need none of them.
            present = [grads_and_vars[i][0] for i in at]
            with self.ops.after(present) if self.home.graph_mode else contextlib.ExitStack():
                return self.update(grads_and_vars, args, kwargs)
        if is_traced and len(at) < len(grads_and_vars):
            self.say_what_is_missing(grads_and_vars)
        checks.check_rows(self.ops, *zip(*[(each, var.shape) for each, var in grads_and_vars]))
        window.remember(args, kwargs)
        weight = self.weight_here()

        def take(run, gradients, value=None):
            if value is not None and are_reduced:
                # All replicas hold the same gradients, and are to stay alike.
                value = self.ops.sum_of_scalars(value) / self.ops.replicas
            weighed = weight and weight._replace(value=value)
            update = self.update_of(window, (args, kwargs))
            updated = window.take_mini_step(gradients, places, mask, update, run, before, weighed)
            if result is None:
                return updated
            with self.ops.after(updated):
                return result()

        are_reduced = inner.are_exchanged(kwargs)
        # Here, for across replicas a gradient does not show that it is an IndexedSlices.
        gradients, places = [grads_and_vars[i][0] for i in at], [window.places[i] for i in at]
        gradients = self.as_each_replicas(gradients, kwargs, 1.0 / self.ops.replicas)
        mask = window.sums.mask(dict(zip(places, gradients)))
        with self.ops.uninterrupted():
            taken = self.ops.on_all_replicas(take, (gradients,) if weight is None else (gradients, weight.value))
        self.keep_attributes(window)
        self.registry([grads_and_vars[at[0]][1]]).forget_end(window)
        return taken

    def _check_can_accumulate(self):
        horovod.check_inside(self.optimizer)
        if self.has_windows:
            self.ops.check_workers_wait()

    @property
    def has_windows(self):
        """Whether there are accumulators: not at K = 1, unless gradients are looked at before an update."""
        return self.most_steps > 1 or self.settings.guards

    @property
    def scales_loss(self):
        """Whether the inner optimizer is a LossScaleOptimizer of its home."""
        # The home of those of tf.compat.v1.train is no Keras.
        optimizers = getattr(getattr(self.home, "module", None), "optimizers", None)
        cls = getattr(optimizers, "LossScaleOptimizer", ())
        return hasattr(type(self.optimizer), "get_unscaled_gradients") or isinstance(self.optimizer, cls)

    @property
    def adapts_scale(self):
        """Whether it is one whose scale follows the gradients: the others look at none."""
        # An attribute of its own up to TF 2.3; Keras 3 has no other.
        scale = type(vars(self.optimizer).get("_loss_scale")).__name__
        return self.scales_loss and getattr(self.optimizer, "dynamic", scale != "FixedLossScale")

    def shared_with(self, optimizer):
        """An `Accumulation` of another optimizer, which has the same variables and windows."""
        shared = copy.copy(self)
        shared.optimizer = optimizer
        shared._registries = {graph: registry.shared_with(shared) for graph, registry in self._registries.items()}
        return shared

    # K and windows are the registry's.

    @property
    def next_steps(self):
        """K of the next window, an int."""
        return self.registry().steps

    def set_steps(self, steps):
        """Let the next window have this K."""
        registry = self.registry()
        registry.set_steps(steps)
        self.steps, self.was_set = steps, self.was_set or registry.next_steps is None
        self.most_steps = max(self.most_steps, steps)

    @property
    def mini_steps_under_way(self):
        """The mini-steps in the latest window, an int."""
        registry = self.registry()
        return 0 if registry.latest is None else registry.read([registry.latest.mini_step])[0]

    def say_no_update(self):
        """Say once, where a fit has ended, that the optimizer has made no update at all."""
        taken = self.mini_steps_under_way
        if taken and not self._has_said and not self.home.value_of(self.optimizer.iterations):
            self._has_said = True
            warnings.warn(NO_UPDATE.format(taken, self.next_steps), stacklevel=4)

    def window_for(self, var_list):
        """The window of these variables, made if there is none, None at K = 1."""
        return self.registry(var_list).window_for(var_list)

    def registry(self, var_list=None):
        """The registry of the graph of these variables; without them that of the default session, or of here and now.

        Where neither has windows it is the only one that has.
        """
        here = self.home.v1.get_default_graph() if self.home.graph_mode else None
        if var_list:
            return self._registry_of(var_list[0].graph if self.home.graph_mode else None)
        session = self.home.v1.get_default_session()
        known = [graph for graph, registry in self._registries.items() if registry.windows]
        # A session can be the default one outside of its graph, and in eager mode.
        for graph in ([] if session is None else [session.graph]) + [here]:
            if graph in known:
                return self._registry_of(graph)
        return self._registry_of(known[0] if len(known) == 1 else here)

    @property
    def has_windows_in_graphs(self):
        """Whether there is any window at all, in whatever graph."""
        return any(registry.windows for registry in self._registries.values())

    def _registry_of(self, graph):
        if graph not in self._registries:
            self._registries[graph] = Registry(self, graph)
        return self._registries[graph]

    @property
    def _is_in_function(self):
        return not self.home.graph_mode and not self.home.tf.executing_eagerly()

    def _window_for_step(self, grads_and_vars, is_traced):
        if self.has_windows:
            checks.check_fit(self.home.tf, grads_and_vars)
        if not self.prepare(grads_and_vars, is_traced):
            return None
        window = self.window_for([var for _, var in grads_and_vars])
        if window is not None:
            for place, (gradient, var) in zip(window.places, grads_and_vars):
                window.sums.check_not_late(place, gradient, repr(getattr(var, "name", var)), "optimizer")
            for place, (gradient, _) in zip(window.places, grads_and_vars):
                window.sums.note(place, gradient, self.home.graph_mode)
            if is_traced and self.reads_when_traced and self.mini_steps_under_way:
                # A window that was restored holds what this program has not seen.
                window.sums.note_held(window.held.read_value().numpy())
        return window

    @contextlib.contextmanager
    def _outside_of_functions(self, scope):
        with contextlib.ExitStack() as entered:
            entered.enter_context(self.ops.init_scope())
            if scope is not None:
                entered.enter_context(self.home.tf.name_scope(scope))
            yield
