"""The windows of an optimizer: one for each list of variables, and the K that they share."""

import copy

from legacyga.backend import graph as _graph
from legacyga.backend import ops as _ops
from legacyga.optimizers import sharing, state_to_come
from legacyga.windows import checks, nonfinite
from legacyga.windows import settings as _settings
from legacyga.windows import sums as _sums
from legacyga.windows import window as _window
from legacyga.windows.accumulators import State

NO_SESSION = (
    "{} in graph mode needs a default session, of the optimizer's graph. Received: {!r}. Do it inside "
    "`with session.as_default():`."
)
UNKNOWN_ARGUMENT = (
    "The mini-steps of a window came with an argument that is a tensor of a function, and has no value outside of it. "
    "Received: {!r}, and a flush. Call optimizer.end_windows() within the function, or let the argument be a variable "
    "or a number."
)


class Registry(object):
    """The windows of an optimizer in one graph, or outside of all.

    K is state. Where `made_with` is the K that this program made the optimizer with, `next_steps` is K of the next
    window. Else a checkpoint was restored whose optimizer was made with another K, and the program's K holds.

    Args:
        accumulation: the optimizer's `accumulation.Accumulation`.
        graph: the TensorFlow 1 graph, None outside of all. With it goes how state is read and written: TF 2 in eager
            mode has graphs, too, and their sessions are open outside of them.
    """

    def __init__(self, accumulation, graph):
        self._owner = accumulation
        self._graph = graph
        self.windows = {}
        # The one of the mini-step that was made last.
        self.latest = None
        self.next_steps = self.made_with = self.skipped = None
        # The inner optimizer's variables that it does not list among its own.
        self.unlisted = []
        # Operations that end windows, of a graph.
        self._endings = {}
        self._built = None
        # Which restored state, that waits for the first window, is to be dropped.
        self._dropped = None
        self._sharing = sharing.Sharing()

    def shared_with(self, accumulation):
        """The same windows, of another optimizer."""
        shared = copy.copy(self)
        shared._owner, shared._endings = accumulation, {}
        return shared

    # K.

    @property
    def steps(self):
        """K of the next window, an int; in a graph without a session the one that this program set."""
        values = None
        if self.next_steps is not None:
            values = self.read([self.made_with, self.next_steps])
        elif not self._owner.was_set:
            values = [self._number_to_come(name) for name in ("made_with", "gradient_accumulation_steps")]
            values = None if None in values else values
        own = self._owner.settings.steps
        return self._owner.steps if values is None else values[1] if values[0] == own else own

    def set_steps(self, steps):
        """Let the next window have this K."""
        if self.next_steps is not None:
            # In this order: other threads may be taking mini-steps.
            for variable, value in ((self.made_with, self._owner.settings.steps), (self.next_steps, steps)):
                self._assign(variable, value, "Setting gradient_accumulation_steps to {}".format(steps))
        elif self.has_no_accumulators and steps > 1:
            raise ValueError(_settings.NO_ACCUMULATORS.format(steps))

    @property
    def has_no_accumulators(self):
        """Whether there are windows, and they were made at K = 1."""
        return bool(self.windows) and self.next_steps is None

    def read(self, variables):
        """The ints that counters hold, None in a graph without a session."""
        if self._graph is None:
            with self._owner.ops.init_scope():
                return [int(variable.read_value()) for variable in variables]
        session = self._owner.session(variables[0], None)
        return None if session is None else [int(value) for value in session.run(variables)]

    def _assign(self, variable, value, action):
        if self._graph is None:
            variable.assign(value)
            return
        # The initializer, fed, adds no operation to a graph that may be finalized.
        session = self._owner.session(variable, action)
        session.run(variable.initializer, {variable.initializer.inputs[1]: value})

    def _next_steps(self):
        """K of a window that begins now, a tensor."""
        ops, own = self._owner.ops, self._owner.ops.constant(self._owner.settings.steps, "int64")
        # Each is read once, ahead of the condition: a session orders no second read before the branch's writes.
        made_with, next_steps = self.made_with.read_value(), self.next_steps.read_value()
        steps = ops.where(ops.equal(made_with, own), next_steps, own)

        def take_over():
            # What is saved from now on is of this program.
            return ops.done([self.next_steps.assign(own), self.made_with.assign(own)])

        # A run that was loaded from a file goes on with that file's state.
        is_own = ops.logical_or(ops.equal(made_with, own), ops.equal(next_steps, own))
        with ops.after(ops.cond(is_own, lambda: ops.done([]), take_over)):
            return ops.identity(steps)

    # Windows.

    def end(self, pick=None):
        """End the windows that are under way with an update each.

        Args:
            pick: function that picks some of a list of windows by their keys. Default: all.

        Returns:
            Whether there was an update: a bool; within a tf.function a tensor.
        """
        if pick is None:
            self.check_all_is_here("a flush")
        self._look_for_sharing()
        ended = [self._run(window, self._end) for window in self._picked(pick)]
        if all(isinstance(each, bool) for each in ended):
            return any(ended)
        tf = self._owner.home.tf
        return tf.reduce_any(tf.stack(ended))

    def drop(self, pick=None):
        """Forget what is in the windows that are under way; `pick` as in `end`."""
        self._dropped = state_to_come.latest(self._keeper) if self._state_is_to_come else None
        for window in self._picked(pick):
            self._run(window, self._drop)

    def check_all_is_here(self, action):
        """Raise where an action needs a state that is to come."""
        if self._state_is_to_come:
            state_to_come.check_is_not_to_come(self._owner.optimizer, self._keeper, action)

    @property
    def _state_is_to_come(self):
        """Whether a checkpoint was restored, and there are no windows yet that it could be put in."""
        return self._owner.has_windows and not self.windows and state_to_come.is_to_come(self._keeper)

    @property
    def _drops_first(self):
        """Whether the state that waits is the one that was to be dropped: no other was restored since."""
        return self._dropped is not None and self._dropped == state_to_come.latest(self._keeper)

    @property
    def _keeper(self):
        return getattr(self._owner, "keeper", self._owner.optimizer)

    def constant_to_come(self, name):
        """What a restored checkpoint has for a number of the first window, which is not made yet, else 0."""
        return self._owner.ops.constant(self._number_to_come(name) or 0, "int64")

    def _number_to_come(self, name):
        if not self._state_is_to_come or self._drops_first and name == "mini_step":
            return None
        return state_to_come.number_to_come(self._owner.home.tf, self._keeper, name)

    @property
    def counters(self):
        """{key: the variable that counts its mini-steps} of the windows."""
        return {key: window.mini_step for key, window in self.windows.items() if window is not None}

    def under_way(self):
        """The (key, mini-steps) of each window that is under way: a set."""
        counters = self.counters
        taken = self.read(list(counters.values())) if counters else None
        return {(key, number) for key, number in zip(counters, taken or ()) if number}

    def _picked(self, pick):
        if not self.windows and self._owner.has_windows_in_graphs:
            raise ValueError(NO_SESSION.format("flush", self._owner.home.v1.get_default_session()))
        keys = [key for key, window in self.windows.items() if window is not None]
        return [self.windows[key] for key in (keys if pick is None else pick(keys))]

    def _run(self, window, make):
        """Do what `make(window)` does, in a graph by its session; the boolean that it returns."""
        owner = self._owner
        if self._graph is None:
            with owner.ops.strategy_scope(window.mini_step):
                # Eagerly, the collectives of TF 2.4 take no rows; deletable with it.
                function = owner.home.tf.function if owner.ops.has_other_workers else lambda each: each
                done = function(lambda: make(window))()
            return bool(done) if owner.home.tf.executing_eagerly() else done
        session, key = owner.session(window.mini_step, "flush"), (window, make.__name__)
        if key not in self._endings:
            with self._graph.as_default():
                self._endings[key] = make(window)
        return bool(session.run(self._endings[key]))

    def forget_end(self, window):
        """Make what ends the window anew when next it is asked for: a mini-step was made of another optimizer state."""
        self._endings.pop((window, self._end.__name__), None)

    def _end(self, window):
        # Of a model that is no more there is nothing to update.
        if all(reference() is None for reference in window.var_list):
            return self._drop(window)
        args, kwargs = window.call
        unknown = self._owner.ops.tensors_of_other_functions(list(args) + list(kwargs.values()))
        if unknown:
            raise ValueError(UNKNOWN_ARGUMENT.format(unknown[0]))
        update = self._owner.update_of(window, window.call)
        with self._owner.as_kept(window):
            return self._owner.ops.on_all_replicas(lambda run: window.flush(update, run), ())

    def _drop(self, window):
        return self._owner.ops.on_all_replicas(lambda run: window.drop(), ())

    def state(self):
        """The keys of the variables that count what is in windows, a set, and of each window's state, sets in order."""
        windows = [window for window in self.windows.values() if window is not None]
        counts = {_ops.variable_key(each) for window in windows for each in window.counts}
        return counts, [{_ops.variable_key(each) for each in self.variables_of(window)} for window in windows]

    def variables_of(self, window):
        """All of a window's state, K and what the inner optimizer leaves out of its own included."""
        return self.unlisted + [self.next_steps, self.made_with, self.skipped] + window.variables

    def build(self, var_list):
        """Make the window of all variables before any gradient is known."""
        # At K = 1 a schedule may still raise it.
        if self._owner.has_windows and not self.windows and self._window(var_list) is not None:
            self._built = _key_of(var_list)
            # A restored checkpoint may have put a window under way into it.
            self.latest = self.windows[self._built]

    def window_for(self, var_list):
        """The window of these variables, made if there is none, None at K = 1."""
        key = _key_of(var_list)
        is_new = key not in self.windows
        if is_new:
            self._adopt(key)
        if self._built == key:
            self._built = None
        before, self.latest = self.latest, self._window(var_list)
        if is_new:
            self._sharing.learn([each for each, window in self.windows.items() if window is not None])
        if self._graph is None and self.latest is not before:
            self._look_for_sharing([key])
        return self.latest

    def _look_for_sharing(self, at_hand=()):
        self._sharing.look(lambda: {key for key, _ in self.under_way()}.union(at_hand), self._owner)

    def _adopt(self, key):
        """Give the window that `build` made, if it is not in use, to some of its variables."""
        if self._built is not None and set(key) <= set(self._built):
            window, built, self._built = self.windows.pop(self._built), self._built, None
            window.restrict([built.index(each) for each in key])
            self.windows[key] = window

    def _window(self, var_list):
        key = _key_of(var_list)
        if key not in self.windows:
            self.windows[key] = self._make(var_list) if self._owner.has_windows else None
        return self.windows[key]

    def _make(self, var_list):
        owner, prefix = self._owner, "window_{}/".format(len(self.windows))
        # Before there is any variable of the window.
        checks.check_shapes(owner.home.tf, var_list)

        def scalar(name, value, dtype, shape=()):
            return owner.make_variable(prefix + name, value, shape, owner.home.tf.as_dtype(dtype))

        # Replicas' threads take turns at each variable. What decides which are made changes only after the last one.
        is_first, settings = self.next_steps is None, owner.settings
        # Asked before the variables that wait are made.
        drops_first = self._drops_first
        next_steps, made_with, skipped = self.next_steps, self.made_with, self.skipped
        if is_first:
            next_steps = scalar("gradient_accumulation_steps", owner.steps, "int64")
            made_with = scalar("made_with", owner.settings.steps, "int64")
            skipped = scalar("skipped_mini_steps", 0, "int64")
        sums = _sums.Sums(owner.ops, owner.settings.reduction)
        mutex = _graph.Mutex(owner.ops, next_steps) if self._graph is not None else None
        scale = owner if owner.adapts_scale else None
        guard = nonfinite.Guard(owner.ops, settings.on_nonfinite, skipped, scale) if settings.guards else None
        window = _window.Window(sums, var_list, scalar, self._next_steps, owner.steps, guard, mutex)
        sums.states.extend([self._state(prefix, i, var) for i, var in enumerate(var_list)])
        self.next_steps, self.made_with, self.skipped = next_steps, made_with, skipped
        if is_first and self._graph is None:
            # What a checkpoint has just put there is older. This one thread writes the copies of all replicas.
            steps = [(next_steps, owner.steps), (made_with, owner.settings.steps)] if owner.was_set else []
            counts = [(each, each.dtype.as_numpy_dtype(0)) for each in window.counts] if drops_first else []
            for variable, value in steps + counts:
                for each in getattr(variable, "values", (variable,)):
                    each.assign(value)
        return window

    def _state(self, prefix, number, var):
        owner, tf = self._owner, self._owner.home.tf
        dtype, shape = tf.as_dtype(var.dtype).base_dtype, tf.TensorShape(var.shape).as_list()
        name, wide = prefix + "{}_" + str(number), owner.ops.accumulator_dtype(dtype)
        total = owner.make_variable(name.format("accumulator"), 0, shape, wide, var)
        touched = owner.make_variable(name.format("touched"), 0, shape[:1] or [1], tf.float32, var)
        owner.ops.check_is_each_replicas(total)
        return State(total, touched, dtype, getattr(var, "overwrite_with_gradient", False))


def _key_of(var_list):
    return tuple(_ops.variable_key(var) for var in var_list)
