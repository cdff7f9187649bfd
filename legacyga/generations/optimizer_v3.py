"""The `v3` generation: the optimizers of tf.keras 2.11 to 2.15 and of tf_keras, `experimental` in 2.9 and 2.10."""

from legacyga import _accumulates, _compat, _window


class Accumulating(_accumulates.HasConfig):
    """What `accumulating` puts before an optimizer class."""

    def build(self, var_list):
        super(Accumulating, self).build(var_list)
        self._accumulation.build(self._key(var_list), lambda number: self._create_window(number, var_list, ()))

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        """Take one mini-step. Arguments, and what is done at the end of a window, are the inner optimizer's."""

        def apply_inner(pairs):
            return super(Accumulating, self).apply_gradients(pairs, *args, **kwargs)

        taken = self._take_mini_step(list(grads_and_vars), apply_inner)
        # Whatever the branch, the value that the inner optimizer returns.
        with self._accumulation.ops.after(taken):
            return self._accumulation.ops.identity(self.iterations)

    def _window_for_step(self, var_list, present):
        with self.home.tf.name_scope(self.name or "optimizer"):
            super(Accumulating, self).build(var_list)
            return self._window_for([var for _, var in present], [gradient for gradient, _ in present])

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
