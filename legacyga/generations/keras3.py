"""The `keras3` generation: Keras 3's optimizers on its TensorFlow backend, with `apply(grads, trainable_variables)`."""

import contextlib
import types

from legacyga import _accumulates, _ops

PLAIN = (bool, int, float, str, type(None), types.FunctionType, types.MethodType)


class Accumulating(_accumulates.HasConfig):
    """What `accumulating` puts before an optimizer class.

    Keras 3 has an accumulation of its own under the same argument. Its code must never see our K: it sees None.
    """

    _as_bare = 0

    def inherit(self, optimizer):
        """Become a copy of `optimizer`, with variables of its own."""
        # Keras 3's own way of copying, for its deepcopy forgets the state. What cannot go through a config, a rate
        # that is a function or a schedule, and what a subclass has and does not put there, goes along as it is.
        config, rate = optimizer.get_config(), optimizer._learning_rate
        if callable(rate):
            config["learning_rate"] = 0.0
        try:
            copied = type(optimizer).from_config(config)
        except (TypeError, ValueError) as error:
            raise ValueError(
                "{!r} cannot be copied, for its from_config does not take what its get_config gives ({}). Give its "
                "class a get_config with all arguments; in place of a MultiOptimizer over functions wrap each of the "
                "optimizers in it.".format(optimizer, error)
            )
        if callable(rate):
            copied._learning_rate = rate
        self.__dict__.update(optimizer.__dict__)
        self.__dict__.update(copied.__dict__)
        self.__dict__.update(
            (name, value) for name, value in vars(optimizer).items() if isinstance(value, PLAIN) and name != "built"
        )
        if optimizer.built:
            super(Accumulating, self).build(optimizer._trainable_variables)
            for variable, value in zip(self.variables, optimizer.variables):
                variable.assign(value)

    def __deepcopy__(self, memo):
        # As the inner class's: a copy by its config, without its state.
        return type(self).from_config(self.get_config())

    def get_config(self):
        with self._bare():
            return super(Accumulating, self).get_config()

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
        """The updates made: a variable."""
        with self._bare():
            return super(Accumulating, self).iterations

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
        self._build_inner(variables)
        self._build_window(variables)

    def _build_inner(self, variables):
        with self._bare():
            super(Accumulating, self).build(variables)

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
        if not self.built:
            # Where the inner optimizer would do it: within a function, where variables that the function has made, and
            # that have no value yet outside of it, can be read.
            with self.home.module.name_scope(self.name, caller=self):
                self._build_inner(variables)
        self._take_mini_step(list(zip(grads, variables)), apply_inner, scope=self.name)

    def _apply_inner(self, pairs):
        with self._bare():
            return super(Accumulating, self).apply([gradient for gradient, _ in pairs], [var for _, var in pairs])

    def _window_for_step(self, grads_and_vars):
        variables = [var for _, var in grads_and_vars]
        self._check_variables_are_known(variables)
        return self._window_for(variables)

    def _window_key(self, var_list):
        return tuple(self._get_variable_index(var) for var in var_list)

    def _make_weight(self, number, name, **kwargs):
        with self.home.module.name_scope(self.name, caller=self):
            created = self.home.module.Variable(trainable=False, name="window_{}_{}".format(number, name), **kwargs)
        self._track_variable(created)
        return created.value

    def _make_scalar(self, number, name, value, dtype="int64"):
        return self._make_weight(
            number,
            name,
            shape=(),
            dtype=dtype,
            initializer=self.home.module.initializers.Constant(value),
            aggregation="only_first_replica",
        )

    def _make_zeros(self, number, name, var, shape, dtype):
        with self._distribution_strategy.extended.colocate_vars_with(var if _ops.is_variable(var) else var.value):
            # A copy on each replica, written without a word to the others; a checkpoint takes their sum.
            return self._make_weight(
                number,
                name,
                shape=tuple(shape),
                dtype=dtype.name,
                initializer="zeros",
                synchronization="on_read",
                aggregation="sum",
            )


def accumulating(cls, home):
    """A subclass of the optimizer class `cls` that accumulates."""
    return type("Accumulating" + cls.__name__, (Accumulating, cls), {"home": home, "inner_class": cls})
