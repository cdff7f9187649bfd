"""The `keras3` generation: Keras 3's optimizers on its TensorFlow backend, with `apply(grads, trainable_variables)`."""

import contextlib

from legacyga import _accumulates, _window


class Accumulating(_accumulates.HasConfig):
    """What `accumulating` puts before an optimizer class.

    Keras 3 has an accumulation of its own under the same argument. Its code must never see our K: it sees None.
    """

    _as_bare = 0

    def inherit(self, optimizer):
        """Become a copy of `optimizer`, with variables of its own."""
        # Keras 3's own way of copying, for its deepcopy forgets the state; what a subclass adds goes along.
        copied = type(optimizer).from_config(optimizer.get_config())
        self.__dict__.update(optimizer.__dict__)
        self.__dict__.update(copied.__dict__)
        if optimizer.built:
            super(Accumulating, self).build(optimizer._trainable_variables)
            for variable, value in zip(self.variables, optimizer.variables):
                variable.assign(value)

    @property
    def gradient_accumulation_steps(self):
        """K, an int: the mini-steps of a window. Setting it takes effect at the next window."""
        return None if self._as_bare or self._accumulation is None else self._accumulation.steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value):
        if self._accumulation is not None:
            _accumulates.Accumulates.gradient_accumulation_steps.fset(self, value)

    @property
    def iterations(self):
        return self._iterations

    @contextlib.contextmanager
    def _bare(self):
        # A count, not a flag: under MirroredStrategy the replicas' threads are in here at the same time.
        self._as_bare += 1
        try:
            yield
        finally:
            self._as_bare -= 1

    def build(self, variables):
        if self.built:
            return
        with self._bare():
            super(Accumulating, self).build(variables)
        self._accumulation.build(self._key(variables), lambda number: self._create_window(number, variables, ()))

    def apply(self, grads, trainable_variables=None):
        """Take one mini-step. Arguments, and what is done at the end of a window, are the inner optimizer's."""
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        variables = self._trainable_variables if trainable_variables is None else trainable_variables

        def apply_inner(pairs):
            with self._bare():
                return super(Accumulating, self).apply([gradient for gradient, _ in pairs], trainable_variables)

        if len(grads) != len(variables):
            # The inner optimizer has the error for it.
            return apply_inner([(gradient, None) for gradient in grads])
        self._take_mini_step(list(zip(grads, variables)), apply_inner)

    def _window_for_step(self, variables, present):
        with self.home.module.name_scope(self.name, caller=self):
            if not self.built:
                with self._bare():
                    super(Accumulating, self).build(variables)
            self._check_variables_are_known(variables)
            return self._window_for([var for _, var in present], [gradient for gradient, _ in present])

    def _key(self, variables):
        return tuple(self._get_variable_index(var) for var in variables)

    def _window_for(self, variables, gradients=()):
        return self._accumulation.window(
            self._key(variables), lambda number: self._create_window(number, variables, gradients)
        )

    def _create_window(self, number, variables, gradients):
        def weight(name, **kwargs):
            created = self.home.module.Variable(trainable=False, name="window_{}_{}".format(number, name), **kwargs)
            self._track_variable(created)
            return created.value

        def scalar(name, value, dtype="int64"):
            return weight(
                name,
                shape=(),
                dtype=dtype,
                initializer=self.home.module.initializers.Constant(value),
                aggregation="only_first_replica",
            )

        def zeros(name, var, shape, dtype):
            with self._distribution_strategy.extended.colocate_vars_with(var):
                # A copy on each replica, written without a word to the others; a checkpoint takes their sum.
                return weight(
                    name,
                    shape=tuple(shape),
                    dtype=dtype.name,
                    initializer="zeros",
                    synchronization="on_read",
                    aggregation="sum",
                )

        raw = [getattr(var, "value", var) for var in variables]
        largest = [getattr(var, "overwrite_with_gradient", False) for var in variables]
        accumulators = _window.make_accumulators(self._accumulation.ops, zeros, raw, gradients, largest)
        return _window.Window(self._accumulation, accumulators, scalar)


def accumulating(cls, home):
    """A subclass of the optimizer class `cls` that accumulates."""
    return type("Accumulating" + cls.__name__, (Accumulating, cls), {"home": home, "inner_class": cls})
