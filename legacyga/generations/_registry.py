"""The windows of an optimizer: one for each list of variables, and the K that they share."""

from legacyga import _graph, _ops, _window
from legacyga._accumulators import State


class Registry(object):
    """The windows of an optimizer in one graph, or outside of all.

    K is state. `next_steps` is that of the next window if `made_with` is the K that this program made the optimizer
    with. Else the checkpoint of one that was made with another K was restored, and the program's K holds.

    Args:
        accumulation: the optimizer's `_base.Accumulation`.
    """

    def __init__(self, accumulation):
        self._owner = accumulation
        self.windows = {}
        self.next_steps = self.made_with = None
        # Operations that end windows, of a graph.
        self.endings = {}
        self._built = None

    def present(self, pick=None):
        """The windows there are: all, or those whose keys `pick` returns of a list of keys."""
        keys = [key for key, window in self.windows.items() if window is not None]
        return [self.windows[key] for key in (keys if pick is None else pick(keys))]

    def build(self, var_list):
        """Make the window of all variables before any gradient is known."""
        if not self.windows and self._window(var_list) is not None:
            self._built = _key_of(var_list)

    def window_for(self, var_list):
        """The window of these variables, made if there is none, None at K = 1."""
        key = _key_of(var_list)
        if key not in self.windows:
            self._adopt(key)
        if self._built == key:
            self._built = None
        return self._window(var_list)

    def _adopt(self, key):
        """Give the window that `build` made, if it is not in use, to some of its variables."""
        if self._built is not None and set(key) <= set(self._built):
            window, built, self._built = self.windows.pop(self._built), self._built, None
            window.restrict([built.index(each) for each in key])
            self.windows[key] = window

    def _window(self, var_list):
        key = _key_of(var_list)
        if key not in self.windows:
            self.windows[key] = self._make(var_list) if self._owner.most_steps > 1 else None
        return self.windows[key]

    def _make(self, var_list):
        owner, prefix = self._owner, "window_{}/".format(len(self.windows))

        def scalar(name, value, dtype, shape=()):
            return owner.make_scalar(prefix + name, value, dtype, shape)

        if self.next_steps is None:
            self.next_steps = scalar("gradient_accumulation_steps", owner.steps, "int64")
            self.made_with = scalar("made_with", owner.settings.steps, "int64")
        sums = _window.Sums(owner.ops, owner.settings.reduction)
        mutex = _graph.Mutex(owner.ops) if owner.home.graph_mode else None
        window = _window.Window(sums, var_list, scalar, self._next_steps, owner.steps, mutex)
        sums.states.extend(self._state(prefix, i, var) for i, var in enumerate(var_list))
        return window

    def _state(self, prefix, number, var):
        owner, tf = self._owner, self._owner.home.tf
        dtype, shape = tf.as_dtype(var.dtype).base_dtype, tf.TensorShape(var.shape).as_list()
        name, wide = prefix + "{}_" + str(number), owner.ops.accumulator_dtype(dtype)
        total = owner.make_zeros(name.format("accumulator"), var, shape, wide)
        touched = owner.make_zeros(name.format("touched"), var, shape[:1] or [1], tf.int32)
        return State(total, touched, dtype, getattr(var, "overwrite_with_gradient", False))

    def _next_steps(self):
        """K of a window that begins now, a tensor."""
        ops, own = self._owner.ops, self._owner.ops.constant(self._owner.settings.steps, "int64")
        return ops.where(ops.equal(self.made_with.read_value(), own), self.next_steps.read_value(), own)


def _key_of(var_list):
    return tuple(_ops.variable_key(var) for var in var_list)
