"""The `v3` generation: the optimizers of tf.keras 2.11 to 2.15 and of tf_keras, `experimental` in 2.9 and 2.10."""

from legacyga import _compat, _window


class Accumulating(_window.Accumulates):
    """What `accumulating` puts before an optimizer class."""

    def start_accumulating(self, steps, reduction="mean"):
        self._accumulation = _window.Accumulation(_compat.Ops(self.home.tf), steps, reduction)

    def build(self, var_list):
        super(Accumulating, self).build(var_list)
        self._accumulation.build(self._key(var_list), lambda number: self._create_window(number, var_list, ()))

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        """Take one mini-step. Arguments, and what is done at the end of a window, are the inner optimizer's."""
        tf = self.home.tf
        grads_and_vars = list(grads_and_vars)
        gradients, var_list = [pair[0] for pair in grads_and_vars], [pair[1] for pair in grads_and_vars]
        present = [(gradient, var) for gradient, var in grads_and_vars if gradient is not None]

        def apply_inner(gradients):
            return super(Accumulating, self).apply_gradients(list(zip(gradients, var_list)), *args, **kwargs)

        if not present or tf.distribute.get_replica_context() is None:
            # Nothing to accumulate, or a call from where none is allowed: the inner optimizer has the error for it.
            return apply_inner(gradients)
        with tf.name_scope(self.name or "optimizer"), tf.init_scope():
            super(Accumulating, self).build(var_list)
            window = self._window_for([var for _, var in present], [gradient for gradient, _ in present])
        if window is None:
            return apply_inner(gradients)
        with self._accumulation.ops.after(self._accumulate(window, gradients, apply_inner)):
            return self._accumulation.ops.identity(self.iterations)

    def _key(self, var_list):
        return tuple(_compat.variable_key(var) for var in var_list)

    def _window_for(self, var_list, gradients=()):
        return self._accumulation.window(
            self._key(var_list), lambda number: self._create_window(number, var_list, gradients)
        )

    def _create_window(self, number, var_list, gradients):
        tf = self.home.tf

        def weight(name, value, **kwargs):
            created = tf.Variable(value, name="window_{}/{}".format(number, name), trainable=False, **kwargs)
            self._variables.append(created)
            return created

        def scalar(name, value, dtype="int64"):
            return weight(name, tf.constant(value, dtype), aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

        def zeros(name, var, shape, dtype):
            with tf.distribute.get_strategy().extended.colocate_vars_with(var):
                # A copy on each replica, written without a word to the others; a checkpoint takes their sum.
                return weight(
                    name,
                    tf.zeros(shape, dtype),
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )

        accumulators = _window.make_accumulators(self._accumulation.ops, zeros, var_list, gradients)
        return _window.Window(self._accumulation, accumulators, scalar)


def accumulating(cls, home):
    """A subclass of the optimizer class `cls` that accumulates."""
    return type("Accumulating" + cls.__name__, (Accumulating, cls), {"home": home, "inner_class": cls})
