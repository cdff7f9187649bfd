"""Keeps an optimizer's windows in one graph: one window for each list of variables, and the K that they share."""

import copy

from legacyga.backend import graph as _graph
from legacyga.backend.messages import shown
from legacyga.backend.tensors import parts_of, variable_key
from legacyga.optimizers import sharing, state_to_come
from legacyga.optimizers.steps import KeptSteps
from legacyga.windows import checks, nonfinite
from legacyga.windows import settings as _settings
from legacyga.windows import sums as _sums
from legacyga.windows import window as _window
from legacyga.windows.accumulators import State

NO_SESSION = (
    "{} in graph mode needs a default session, of the optimizer's graph. Received: {}. Do it inside "
    "`with session.as_default():`."
)
UNKNOWN_ARGUMENT = (
    "The mini-steps of a window came with an argument that is a tensor of a function, and has no value outside of it. "
    "Received: {}, and a flush. Call optimizer.end_windows() within the function, or let the argument be a variable "
    "or a number."
)
OVERWRITTEN = (
    "Keras overwrites this variable with its gradient, and a mean of such gradients means nothing. Received: {}, a "
    "scale of a float8 layer. Quantize the model after training, or make the optimizer with "
    "gradient_accumulation_steps=1."
)


class Registry(object):
    """The windows of an optimizer in one TensorFlow 1 graph, or in eager mode, where `graph` is None.

    `graph`, not the present mode, decides whether a session reads and writes the state: in eager mode, too, a graph's
    session may be the default.

    Attributes:
        windows: {`_key_of` a list of variables: its `window.Window`}.
        latest: the window of the last mini-step made, else the one that `build` made, else None.
        skipped: a variable: the number of mini-steps that `on_nonfinite` has skipped. None if there are no windows.
        unlisted: variables of the inner optimizer that its own `weights` lack, saved with the windows.
    """

    def __init__(self, accumulation, graph):
        self._owner = accumulation
        self._graph, self.is_graph = graph, graph is not None
        self.windows, self.latest, self.skipped, self.unlisted = {}, None, None, []
        self._steps = KeptSteps(accumulation.steps, accumulation.ops)
        # In graph mode, {(window, "_end" or "_drop"): the operation that this method made}.
        self._endings = {}
        # The key of the window that `build` made, until a mini-step uses it.
        self._built = None
        # If `drop` was called while restored mini-steps waited for their variables: the number of that restore.
        self._dropped = None
        self._sharing = sharing.Sharing()

    def shared_with(self, accumulation):
        """A registry for another optimizer with the same windows."""
        shared = copy.copy(self)
        shared._owner, shared._endings = accumulation, {}
        return shared

    # K.

    @property
    def has_steps(self):
        """Whether K is in variables, made with the first window."""
        return self._steps.next is not None

    @property
    def steps(self):
        """K of the next window, an int; in a graph without a session, the K that this program has set."""
        steps, values = self._owner.steps, None
        if self.has_steps:
            values = self.read([self._steps.made_with, self._steps.next])
        elif not steps.was_set:
            values = [self._number_to_come(name) for name in ("made_with", "gradient_accumulation_steps")]
            values = None if None in values else values
        return steps.now if values is None else self._steps.of_next_window(*values)

    def set_steps(self, steps):
        if self.has_steps:
            # `made_with` first: while it differs, a window that another thread begins would overwrite `next`.
            for variable, value in ((self._steps.made_with, self._owner.steps.made_with), (self._steps.next, steps)):
                self._assign(variable, value, "Setting gradient_accumulation_steps to {}".format(steps))
        elif self.has_no_accumulators and steps > 1:
            raise ValueError(_settings.NO_ACCUMULATORS.format(steps))

    @property
    def has_no_accumulators(self):
        """Whether the optimizer trains without accumulators: its first mini-step was made at K = 1."""
        return self._owner.steps.are_bare and not self.has_steps

    def read(self, variables):
        """The values of counters as ints; None in a graph without a session."""
        if not self.is_graph:
            with self._owner.ops.init_scope():
                return [int(variable.read_value()) for variable in variables]
        session = self._owner.inner.session(variables[0], None)
        return None if session is None else [int(value) for value in session.run(variables)]

    def _assign(self, variable, value, action):
        if not self.is_graph:
            variable.assign(value)
            return
        # Feed the initializer: a finalized graph takes no new operation.
        session = self._owner.inner.session(variable, action)
        initializers = [each.initializer for each in parts_of(variable)]
        session.run(initializers, {each.inputs[1]: value for each in initializers})

    # The windows.

    @property
    def mini_steps_under_way(self):
        """The number of mini-steps in the latest window, an int."""
        return 0 if self.latest is None else self.read([self.latest.kept.mini_step])[0]

    def under_way(self):
        """The set of (key, number of mini-steps) of the open windows."""
        counters = [window.kept.mini_step for window in self.windows.values()]
        taken = self.read(counters) if counters else None
        return {(key, number) for key, number in zip(self.windows, taken or ()) if number}

    def end(self, pick=None):
        """End each open window with an update; returns whether there was an update, in a tf.function as a tensor.

        `pick` selects from the list of the windows' keys. Default: all.
        """
        if pick is None:
            self.check_all_is_here("a flush")
        self._look_for_sharing()
        ended = [self._run(window, self._end, "flush") for window in self._picked(pick, "flush")]
        tf = self._owner.home.tf
        if all(isinstance(each, bool) for each in ended):
            # In a traced function the caller expects a tensor, even without windows.
            is_traced = not self.is_graph and not tf.executing_eagerly()
            return tf.constant(any(ended)) if is_traced else any(ended)
        return tf.reduce_any(tf.stack(ended))

    def drop(self, pick=None):
        """Discard the mini-steps of the open windows; `pick` is as in `end`."""
        self._dropped = state_to_come.latest(self._owner.inner.keeper) if self.state_is_to_come else None
        for window in self._picked(pick, "drop_windows"):
            self._run(window, self._drop, "drop_windows")

    def _picked(self, pick, action):
        if not self.windows and self._owner.windows.exist_somewhere:
            # Several graphs have windows, and the default session is of none of these graphs.
            raise ValueError(NO_SESSION.format(action, shown(self._owner.home.v1.get_default_session())))
        keys = list(self.windows)
        return [self.windows[key] for key in (keys if pick is None else pick(keys))]

    def _run(self, window, make, action):
        """Run `make(window)`, in graph mode with the session; returns its boolean. Errors name the `action`."""
        owner, counter = self._owner, window.kept.mini_step
        if not self.is_graph:
            with owner.ops.uninterrupted(), owner.ops.replicas.scope_of(counter):
                # TF 2.4's collectives take no IndexedSlices when run eagerly. Delete with TF 2.4.
                function = owner.home.tf.function if owner.ops.replicas.are_elsewhere else lambda each: each
                done = function(lambda: make(window))()
            return bool(done) if owner.home.tf.executing_eagerly() else done
        session, key = owner.inner.session(counter, action), (window, make.__name__)
        if key not in self._endings:
            with self._graph.as_default(), owner.ops.replicas.scope_of(counter):
                self._endings[key] = make(window)
        return bool(session.run(self._endings[key]))

    def forget_end(self, window):
        """Discard the operation that ends the window: the next flush builds one for the mini-step just made."""
        self._endings.pop((window, self._end.__name__), None)

    def _end(self, window):
        # All variables are gone with their model.
        if all(reference() is None for reference in window.var_list):
            return self._drop(window)
        args, kwargs = window.call
        unknown = self._owner.ops.tensors_of_other_functions(list(args) + list(kwargs.values()))
        if unknown:
            raise ValueError(UNKNOWN_ARGUMENT.format(shown(unknown[0])))
        inner = self._owner.inner
        update = inner.update_of(window)
        with inner.as_kept(window):
            return self._owner.ops.replicas.on_all(lambda run: window.flush(update, run), ())

    def _drop(self, window):
        return self._owner.ops.replicas.on_all(lambda run: window.drop(), ())

    # State restored before there is a window.

    def check_all_is_here(self, action):
        """Raise if restored state still waits for its variables; `action` says what needs it."""
        if self.state_is_to_come:
            raise state_to_come.error_of(self._owner.optimizer, self._owner.inner.keeper, action)

    @property
    def state_is_to_come(self):
        """Whether a restored checkpoint waits for the first window."""
        owner = self._owner
        return owner.steps.has_windows and not self.windows and state_to_come.is_to_come(owner.inner.keeper)

    @property
    def _drops_first(self):
        """Whether `drop` was called since the restore of the state that waits."""
        return self._dropped is not None and self._dropped == state_to_come.latest(self._owner.inner.keeper)

    def constant_to_come(self, name):
        """The restored value that waits for a counter of the first window, else 0: a tensor."""
        return self._owner.ops.constant(self._number_to_come(name) or 0, "int64")

    def _number_to_come(self, name):
        if not self.state_is_to_come or self._drops_first and name == "mini_step":
            return None
        return state_to_come.number_to_come(self._owner.home.tf, self._owner.inner.keeper, name)

    # The variables.

    def state(self):
        """(keys of all windows' `Kept.counts`, [keys of each window's variables]), each a set of `variable_key`s."""
        windows = list(self.windows.values())
        counts = {variable_key(each) for window in windows for each in window.kept.counts}
        return counts, [{variable_key(each) for each in self.variables_of(window)} for window in windows]

    def variables_of(self, window):
        """All of a window's state, including K and the inner optimizer's `unlisted` variables."""
        return self.unlisted + [self._steps.next, self._steps.made_with, self.skipped] + window.variables

    def build(self, var_list):
        """Make the window of all variables, before any gradient is known."""
        # `has_windows` rather than K > 1, because a schedule may raise K later.
        if self._owner.steps.has_windows and not self.windows and not self._owner.steps.are_bare:
            key = _key_of(var_list)
            # Set `latest`, which the optimizer's `mini_step` reads: a restore may put mini-steps into this window.
            self.latest = self.windows[key] = self._make(var_list)
            self._built = key

    def window_for(self, var_list):
        """The window of this list of variables: the existing one, the built one cut down to them, or a new one."""
        latest = self.latest
        if latest is not None and self._built is None and latest.is_of(var_list):
            return latest
        key, built = _key_of(var_list), self._built
        is_new = key not in self.windows
        if built is not None:
            # The program may have called `build` outside of the strategy's scope.
            self._owner.ops.replicas.check_is_each_replicas(self.windows[built].sums.states[0].total)
        if key == built:
            self._built = None
        elif is_new and built is not None and set(key) <= set(built) and len(set(key)) == len(key):
            # The window that `build` made is unused, but may hold restored state: cut it down to these variables.
            self._built, window = None, self.windows.pop(built)
            window.restrict([built.index(each) for each in key])
            self.windows[key] = window
        elif is_new:
            self.windows[key] = self._make(var_list)
        self.latest = self.windows[key]
        if is_new:
            self._sharing.learn(list(self.windows))
        if not self.is_graph and self.latest is not latest:
            self._look_for_sharing([key])
        return self.latest

    def _look_for_sharing(self, at_hand=()):
        self._sharing.look(lambda: {key for key, _ in self.under_way()}.union(at_hand), self._owner)

    def _make(self, var_list):
        owner, prefix = self._owner, "window_{}/".format(len(self.windows))
        checks.check_shapes(owner.home.tf, var_list)
        for var in var_list:
            if getattr(var, "overwrite_with_gradient", False):
                raise ValueError(OVERWRITTEN.format(shown(var)))

        def scalar(name, value, dtype, shape=()):
            return owner.inner.make_variable(prefix + name, value, shape, owner.home.tf.as_dtype(dtype))

        # Replicas' threads switch at each variable made, and all must find the same `has_steps`: set `_steps` last.
        is_first, settings = not self.has_steps, owner.settings
        # Ask now: once the variables exist, no state waits for them.
        drops_first = self._drops_first
        next_steps, made_with, skipped = self._steps.next, self._steps.made_with, self.skipped
        if is_first:
            next_steps = scalar("gradient_accumulation_steps", owner.steps.now, "int64")
            made_with = scalar("made_with", owner.steps.made_with, "int64")
            skipped = scalar("skipped_mini_steps", 0, "int64")
        sums = _sums.Sums(owner.ops, settings.reduction)
        mutex = _graph.Mutex(owner.ops, next_steps) if self.is_graph else None
        scale = owner.inner if owner.inner.adapts_scale else None
        guard = nonfinite.Guard(owner.ops, settings.on_nonfinite, skipped, scale) if settings.guards else None
        kept = _window.Kept.made(scalar, owner.steps.now, len(var_list))
        window = _window.Window(sums, kept, var_list, self._steps.begin, guard, mutex)
        sums.states.extend([self._state(prefix, i, var) for i, var in enumerate(var_list)])
        self._steps.next, self._steps.made_with, self.skipped = next_steps, made_with, skipped
        if is_first and not self.is_graph:
            # New variables hold restored values. What the program has set or dropped since is newer: write it to all
            # replicas' copies.
            was_set = owner.steps.was_set
            steps = [(next_steps, owner.steps.now), (made_with, owner.steps.made_with)] if was_set else []
            counts = [(each, each.dtype.as_numpy_dtype(0)) for each in kept.counts] if drops_first else []
            for variable, value in steps + counts:
                for each in parts_of(variable):
                    each.assign(value)
        return window

    def _state(self, prefix, number, var):
        owner, tf = self._owner, self._owner.home.tf
        dtype, shape = tf.as_dtype(var.dtype).base_dtype, tf.TensorShape(var.shape).as_list()
        name, make = prefix + "{}_" + str(number), owner.inner.make_variable
        total = make(name.format("accumulator"), 0, shape, owner.ops.accumulator_dtype(dtype), var)
        touched = make(name.format("touched"), 0, shape[:1] or [1], tf.float32, var)
        owner.ops.replicas.check_is_each_replicas(total)
        return State(total, touched, dtype)


def _key_of(var_list):
    return tuple(variable_key(var) for var in var_list)
