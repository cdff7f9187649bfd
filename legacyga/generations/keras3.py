"""The `keras3` generation: Keras 3's optimizers on its TensorFlow backend, with `apply(grads, trainable_variables)`."""

import contextlib

from legacyga import _compat, _window


class Accumulating(_window.Accumulates):
    """What `accumulating` puts before an optimizer class.

    Keras 3 has an accumulation of its own under the same argument. Its code must never see our K: it sees None.
    """

    _as_bare = 0

    def start_accumulating(self, steps, reduction="mean"):
        self._accumulation = _window.Accumulation(_compat.Ops(self.home.tf), steps, reduction)

    @property
    def gradient_accumulation_steps(self):
        """K, an int: the mini-steps of a window. Setting it takes effect at the next window."""
        return None if self._as_bare or self._accumulation is None else self._accumulation.steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value):
        if self._accumulation is not None:
            _window.Accumulates.gradient_accumulation_steps.fset(self, value)

    def _assign_steps(self, variable, steps):
        variable.assign(steps)

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
        if self._accumulation.steps > 1:
            # Kept where Keras does not look: it would track the list a second time.
            self._accumulation.accumulators = self._create_accumulators(variables)
        self._window_for(variables)

    def apply(self, grads, trainable_variables=None):
        """Take one mini-step. Arguments, and what is done at the end of a window, are the inner optimizer's."""
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not self.built:
                with self.home.module.name_scope(self.name, caller=self):
                    self.build(trainable_variables)

        def apply_inner(grads):
            with self._bare():
                return super(Accumulating, self).apply(grads, trainable_variables)

        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        present = [(gradient, var) for gradient, var in zip(grads, variables) if gradient is not None]
        replica = self.home.tf.distribute.get_replica_context()
        if not present or replica is None or len(grads) != len(variables):
            # Nothing to accumulate, or a call that the inner optimizer has the error for.
            return apply_inner(grads)
        self._check_variables_are_known(variables)
        with self.home.tf.init_scope():
            window = self._window_for([var for _, var in present])
        if window is None:
            return apply_inner(grads)

        def update(means):
            means = iter(means)
            # Variables without a gradient go along: what is said of them is the inner optimizer's to say.
            return apply_inner([None if gradient is None else next(means) for gradient in grads])

        def on_all_replicas(strategy, gradients):
            return window.take_mini_step(gradients, update, run=strategy.extended.call_for_each_replica)

        replica.merge_call(on_all_replicas, args=([gradient for gradient, _ in present],))

    def _window_for(self, variables):
        indices = tuple(self._get_variable_index(var) for var in variables)
        return self._accumulation.window(indices, lambda number: self._create_window(number, indices))

    def _create_accumulators(self, variables):
        created = []
        for i, var in enumerate(variables):
            raw = getattr(var, "value", var)
            with self._distribution_strategy.extended.colocate_vars_with(raw):
                created.append(
                    # A copy on each replica, written without a word to the others; a checkpoint takes their sum.
                    self._create_variable(
                        "accumulator_{}".format(i),
                        shape=var.shape,
                        initializer="zeros",
                        dtype=self._accumulation.ops.accumulator_dtype(raw.dtype).name,
                        synchronization="on_read",
                        aggregation="sum",
                    )
                )
        return created

    def _create_window(self, number, indices):
        def scalar(name, value, dtype="int64"):
            return self._create_variable(
                "window_{}_{}".format(number, name),
                shape=(),
                dtype=dtype,
                initializer=self.home.module.initializers.Constant(value),
                aggregation="only_first_replica",
            )

        return _window.Window(self._accumulation, [self._accumulation.accumulators[i] for i in indices], scalar)

    def _create_variable(self, name, **kwargs):
        with self.home.module.name_scope(self.name, caller=self):
            created = self.home.module.Variable(trainable=False, name=name, **kwargs)
        self._track_variable(created)
        return created.value


def accumulating(cls, home):
    """A subclass of the optimizer class `cls` that accumulates."""
    return type(cls.__name__, (Accumulating, cls), {"home": home})
