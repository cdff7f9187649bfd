"""The `v3` generation: the optimizers of tf.keras 2.11 to 2.15 and of tf_keras, `experimental` in 2.9 and 2.10."""

from legacyga import _accumulates


class Accumulating(_accumulates.HasConfig):
    """What `accumulating` puts before an optimizer class."""

    def build(self, var_list):
        super(Accumulating, self).build(var_list)
        self._build_window(var_list)

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        """Take one mini-step. Arguments, and what is done at the end of a window, are the inner optimizer's."""

        def apply_inner(pairs):
            return self._apply_inner(pairs, *args, **kwargs)

        scope = kwargs.get("name") or self.name or "optimizer"
        taken = self._take_mini_step(list(grads_and_vars), apply_inner, scope)
        # Whatever the branch, the value that the inner optimizer returns.
        with self._accumulation.ops.after(taken):
            return self._accumulation.ops.identity(self.iterations)

    def _apply_inner(self, pairs, *args, **kwargs):
        return super(Accumulating, self).apply_gradients(pairs, *args, **kwargs)

    def _window_for_step(self, grads_and_vars):
        var_list = [var for _, var in grads_and_vars]
        with_gradient = [var for gradient, var in grads_and_vars if gradient is not None]
        super(Accumulating, self).build(with_gradient if self.home.v3_is_experimental else var_list)
        if any(self._var_key(var) not in self._index_dict for var in with_gradient):
            # A variable that it was not built with: the inner optimizer has the error for it.
            return None
        return self._window_for(var_list)

    def _make_weight(self, number, name, value, **kwargs):
        name = "window_{}/{}".format(number, name)
        created = self.home.tf.Variable(value, name=name, trainable=False, **kwargs)
        self._variables.append(created)
        return created

    def _make_scalar(self, number, name, value, dtype="int64"):
        tf = self.home.tf
        value = tf.constant(value, dtype)
        return self._make_weight(number, name, value, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    def _make_zeros(self, number, name, var, shape, dtype):
        tf = self.home.tf
        with tf.distribute.get_strategy().extended.colocate_vars_with(var):
            # A copy on each replica, written without a word to the others; a checkpoint takes their sum.
            return self._make_weight(
                number,
                name,
                tf.zeros(shape, dtype),
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )


def accumulating(cls, home):
    """A subclass of the optimizer class `cls` that accumulates."""
    return type("Accumulating" + cls.__name__, (Accumulating, cls), {"home": home, "inner_class": cls})
