"""What an optimizer that accumulates carries, and the part of its surface that is the same in every generation."""

import contextlib
import copy
import functools
import weakref

from legacyga import _ops, _window


class Accumulation(object):
    """What an optimizer that accumulates carries: K, the reduction, and one window for each set of variables.

    An object that no Keras looks into: put straight on an optimizer, a dict would be tracked, and saved, as its state.
    """

    def __init__(self, ops, steps, reduction="mean"):
        self.ops = ops
        self.steps = steps
        # The largest K that is to come: where it is 1 there are no accumulators.
        self.most_steps = steps
        self.reduction = reduction
        self.next_steps = None
        self.windows = {}
        self.latest = None
        self.built = None
        self.weights = {}
        # What weighs the mini-steps of a model that a callback looks after, and those of each model by it.
        self.batch_weight = None
        self.batch_weights = weakref.WeakKeyDictionary()
        self.endings = {}

    def window(self, key, make):
        """The window of the variables that `key` stands for, None at K = 1. `make(number)` makes the first one."""
        if key not in self.windows:
            self.windows[key] = self._adopt(key) or (make(len(self.windows)) if self.most_steps > 1 else None)
        self.latest = self.windows[key]
        if self.built == key:
            self.built = None
        if self.latest is not None:
            self.next_steps = self.latest.next_steps
        return self.latest

    def build(self, key, make):
        """The window of all variables before any gradient is known, None where one is there already."""
        if self.windows:
            return None
        window = make()
        self.built = key
        return window

    def _adopt(self, key):
        """The window made by `build`, if it is not in use and all of these variables are in it."""
        if self.built is None or self.windows[self.built] is None or not set(key) <= set(self.built):
            return None
        window, all_keys, self.built = self.windows.pop(self.built), self.built, None
        window.restrict([all_keys.index(each) for each in key])
        return window


class Accumulates(object):
    """The part of an optimizer's surface that is the same in every generation, for their `Accumulating` classes."""

    home = None
    _accumulation = None

    def start_accumulating(self, steps, reduction="mean"):
        self._accumulation = Accumulation(_ops.Ops(self.home.tf), steps, reduction)

    @property
    def gradient_accumulation_steps(self):
        """K, an int: the mini-steps of a window. Setting it takes effect at the next window."""
        return self._accumulation.steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value):
        accumulation = self._accumulation
        steps = _window.check_steps("gradient_accumulation_steps", value)
        if accumulation.next_steps is not None:
            self._assign_steps(accumulation.next_steps, steps)
        elif accumulation.windows and steps > 1:
            raise ValueError(_window.NO_ACCUMULATORS.format(steps))
        accumulation.steps = steps
        accumulation.most_steps = max(accumulation.most_steps, steps)

    @property
    def mini_step(self):
        """The mini-steps taken in the window, 0 to K - 1: a variable, as `iterations` is (a constant at K = 1)."""
        latest = self._accumulation.latest
        return self._accumulation.ops.constant(0, "int64") if latest is None else latest.mini_step

    @classmethod
    def copy_of(cls, optimizer, steps, reduction="mean"):
        """An optimizer of this class that is a copy of `optimizer`, of the inner class, and accumulates."""
        copied = object.__new__(cls)
        copied.inherit(optimizer)
        copied.start_accumulating(steps, reduction)
        return copied

    def _assign_steps(self, variable, steps):
        if self.home.graph_mode:
            self.home.backend.set_value(variable, steps)
        else:
            variable.assign(steps)

    def inherit(self, optimizer):
        """Become a copy of `optimizer`, with variables of its own."""
        strategy = getattr(optimizer, "_distribution_strategy", None)
        # Of a strategy, and of a tensor given as a hyperparameter, there is one.
        hyper = getattr(optimizer, "_hyper", {}).values()
        tensors = [value for value in hyper if isinstance(value, self.home.tf.Tensor)]
        copied = copy.deepcopy(optimizer, {id(value): value for value in [strategy] + tensors})
        self.__dict__.update(copied.__dict__)

    def _take_mini_step(self, grads_and_vars, apply_inner, scope=None, result=None):
        """One call of an optimizer that is given gradients and variables, in replica context, whatever the strategy.

        Args:
            grads_and_vars: list of (gradient, variable) pairs.
            apply_inner: function of such a list: one step of the inner optimizer. Pairs without a gradient go along:
                what is said of those variables is the inner optimizer's to say.
            scope: the name of the scope that variables are made in.
            result: function without arguments, of what to return for all replicas, made after all else.

        Returns:
            What the inner optimizer returns where it is called straight away; else the result, by default a tensor:
            whether there was an update.
        """
        ops = self._accumulation.ops
        at = [i for i, (gradient, _) in enumerate(grads_and_vars) if gradient is not None]
        if not at or not ops.in_replica_context():
            # Nothing to accumulate, or a call from where none is allowed: the inner optimizer has the error for it.
            return apply_inner(grads_and_vars)
        traced = not self.home.tf.executing_eagerly()
        with ops.init_scope(), self.home.tf.name_scope(scope):
            window = self._window_for_step(grads_and_vars)
            if window is not None:
                self._prepare_window(window, [gradient for gradient, _ in grads_and_vars], traced)
        if window is None:
            return apply_inner(grads_and_vars)

        def update(reduced):
            return apply_inner([(gradient, var) for gradient, (_, var) in zip(reduced, grads_and_vars)])

        def take_mini_step(run, gradients, weight=None):
            updated = window.take_mini_step(gradients, at, update, run=run, weight=weight)
            if result is None:
                return updated
            with ops.after(updated):
                return result()

        arguments = ([grads_and_vars[i][0] for i in at],)
        weights = self._accumulation.weights
        if weights:
            arguments += (weights[ops.replica_number()],)
        elif self._accumulation.batch_weight is not None:
            arguments += (self._accumulation.batch_weight(),)
        return ops.on_all_replicas(take_mini_step, arguments)

    @contextlib.contextmanager
    def mini_steps_weigh(self, weight):
        """A context: the mini-steps taken in it have this weight, a scalar; outside of it all weigh 1."""
        # By replica: their threads take turns between here and the optimizer's call.
        weights, number = self._accumulation.weights, self._accumulation.ops.replica_number()
        before = weights.get(number)
        weights[number] = weight
        try:
            yield
        finally:
            if before is None:
                del weights[number]
            else:
                weights[number] = before

    def end_windows(self, drop=False):
        """End the windows that are under way with an update each, or drop what is in them.

        Returns:
            Whether there was an update: a bool; within a tf.function a tensor.
        """
        windows = [(key, window) for key, window in self._accumulation.windows.items() if window is not None]
        ended = [self._end_window(key, window, drop) for key, window in windows]
        if all(isinstance(each, bool) for each in ended):
            return any(ended)
        return self.home.tf.reduce_any(self.home.tf.stack(ended))

    def _end_window(self, key, window, drop):
        if not self.home.graph_mode:
            with self._accumulation.ops.strategy_scope(window.mini_step):
                updated = self._make_ending(window, drop)
            return bool(updated) if self.home.tf.executing_eagerly() else updated
        session = self._session(window)
        if (key, drop) not in self._accumulation.endings:
            with window.mini_step.graph.as_default():
                self._accumulation.endings[key, drop] = self._make_ending(window, drop)
        return bool(session.run(self._accumulation.endings[key, drop]))

    def _make_ending(self, window, drop):
        var_list = [reference() for reference in window.var_list]
        # Of a model that is no more there is nothing to update.
        gone = all(var is None for var in var_list)

        def end(run):
            return window.drop(run) if drop or gone else window.flush(self._update_of(var_list), run)

        return self._accumulation.ops.on_all_replicas(end, ())

    def _update_of(self, var_list):
        """A function of the reduced gradients of these variables, None for one that is no more: one update."""

        def update(reduced):
            return self._apply_inner([(gradient, var) for gradient, var in zip(reduced, var_list) if var is not None])

        return update

    def _session(self, window):
        """The session of a window in graph mode."""
        return self.home.backend.get_session()

    def _window_key(self, var_list):
        return tuple(_ops.variable_key(var) for var in var_list)

    def _window_for(self, var_list):
        """The window of these variables, None at K = 1."""
        accumulation = self._accumulation

        def make(number):
            return _window.Window(accumulation, number, var_list, functools.partial(self._make_scalar, number))

        return accumulation.window(self._window_key(var_list), make)

    def _prepare_window(self, window, gradients, traced=False, known=True):
        window.prepare(functools.partial(self._make_zeros, window.number), gradients, traced, known)

    def _build_window(self, var_list):
        """Make the window before any gradient is known: all of them dense, of their variable's dtype."""
        window = self._accumulation.build(self._window_key(var_list), lambda: self._window_for(var_list))
        if window is not None:
            dtypes = [self.home.tf.as_dtype(var.dtype).base_dtype for var in var_list]
            self._prepare_window(window, dtypes, known=False)


class HasConfig(Accumulates):
    """`Accumulates` for the optimizers of a Keras, which can be described."""

    def get_config(self):
        """The inner optimizer's config, with `gradient_accumulation_steps` and `reduction` where K is not 1."""
        accumulation = self._accumulation
        config = super(HasConfig, self).get_config()
        if accumulation.steps > 1:
            config.update(gradient_accumulation_steps=accumulation.steps, reduction=accumulation.reduction)
        return config

    @classmethod
    def from_config(cls, config, **kwargs):
        """The optimizer that `get_config` described."""
        config = dict(config)
        steps, reduction = config.pop("gradient_accumulation_steps", None) or 1, config.pop("reduction", "mean")
        return cls.copy_of(cls.inner_class.from_config(config, **kwargs), steps, reduction)
