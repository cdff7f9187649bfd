"""The `train` generation: the optimizers of tf.compat.v1.train (tf.train in TensorFlow 1), with their own sessions."""

import contextlib
import copy

from legacyga import _accumulates, _ops

NO_SESSION = (
    "{} in graph mode needs a default session, of the optimizer's graph. Received: {!r}. Do it inside "
    "`with session.as_default():`."
)


class Accumulating(_accumulates.Accumulates):
    """What `accumulating` puts before an optimizer class."""

    _original = None
    _global_step = None

    def start_accumulating(self, steps, reduction="mean"):
        super(Accumulating, self).start_accumulating(steps, reduction)
        self._accumulations = {}
        self._iterations = None

    def inherit(self, optimizer):
        """Become a copy of `optimizer`, with variables of its own."""
        for name, value in vars(optimizer).items():
            self.__dict__[name] = copy.copy(value) if isinstance(value, (dict, list)) else value
        self._slots, self._non_slot_dict = {}, {}
        self._original = optimizer

    @property
    def iterations(self):
        """The updates made: a variable (a constant 0 before the first use of the optimizer)."""
        return self._accumulation.ops.constant(0, "int64") if self._iterations is None else self._iterations

    def compute_gradients(self, *args, **kwargs):
        """As the inner optimizer's, with one point for all gradients."""
        grads_and_vars = super(Accumulating, self).compute_gradients(*args, **kwargs)
        if self._accumulation.most_steps > 1 or not self.home.graph_mode:
            return grads_and_vars
        # At K = 1 nothing else keeps an update of one variable behind the gradients of the others (R7).
        present = [gradient for gradient, _ in grads_and_vars if gradient is not None]
        together = iter(self.home.tf.tuple(present) if present else ())
        return [(gradient if gradient is None else next(together), var) for gradient, var in grads_and_vars]

    def apply_gradients(self, grads_and_vars, global_step=None, name=None, **kwargs):
        """Take one mini-step. Arguments, and what is done at the end of a window, are the inner optimizer's.

        `global_step` counts updates.
        """
        ops, graph_mode = self._accumulation.ops, self.home.graph_mode
        # The inner optimizer lists its operation, which stands in a branch of the conditional, for all to run.
        train_ops = self.home.v1.get_collection_ref("train_op") if graph_mode else []
        listed = list(train_ops)

        def apply_inner(pairs):
            return self._apply_inner(pairs, name=name, **kwargs)

        self._global_step = global_step
        # A graph that nobody has entered is not what the init_scope of TF 2.0 to 2.13 leads to.
        with contextlib.ExitStack() as entered:
            if graph_mode:
                entered.enter_context(self.home.v1.get_default_graph().as_default())
            taken = self._take_mini_step(list(grads_and_vars), apply_inner, scope=self.get_name())
        if not graph_mode:
            return None
        mini_step = ops.tf.group(taken, name=name or self.get_name())
        train_ops[:] = listed + [mini_step]
        return mini_step

    def _apply_inner(self, pairs, **kwargs):
        # A flush, too, is an update that the global step counts.
        updated = super(Accumulating, self).apply_gradients(pairs, self._global_step, **kwargs)
        with self._accumulation.ops.after(updated):
            return self._iterations.assign_add(1)

    def _window_for_step(self, grads_and_vars):
        var_list = [var for gradient, var in grads_and_vars if gradient is not None]
        self._accumulate_in(var_list[0].graph if self.home.graph_mode else None)
        self._create_slots(var_list)
        # Found, not made, where this graph has one.
        self._iterations = self._create_non_slot_variable(
            self.home.tf.constant(0, "int64"), "iterations", colocate_with=var_list[0]
        )
        if self._accumulation.most_steps > 1:
            for var in var_list:
                self.home.check_branches_take(var)
        return self._window_for([var for _, var in grads_and_vars])

    def _accumulate_in(self, graph):
        """Each graph has an accumulation of its own: an Estimator takes one optimizer through many graphs."""
        if graph not in self._accumulations and self._accumulations:
            latest = self._accumulation
            self._accumulation = _accumulates.Accumulation(latest.ops, latest.steps, latest.reduction)
            self._accumulation.most_steps = latest.most_steps
        self._accumulation = self._accumulations.setdefault(graph, self._accumulation)

    def _make_scalar(self, number, name, value, dtype="int64"):
        value = self.home.tf.constant(value, dtype)
        return self._create_non_slot_variable(value, "window_{}/{}".format(number, name), self._iterations)

    def _make_zeros(self, number, name, var, shape, dtype):
        # A copy on each replica, written without a word to the others.
        with _ops.replica_local_variables(self.home.tf):
            value = self.home.tf.zeros(shape, dtype)
            return self._create_non_slot_variable(value, "window_{}/{}".format(number, name), colocate_with=var)

    def _assign_steps(self, variable, steps):
        if not self.home.graph_mode:
            variable.assign(steps)
        else:
            # The initializer, fed, adds no operation to a graph that may be finalized.
            session = self._session_of(variable, "Setting gradient_accumulation_steps to {}".format(steps))
            session.run(variable.initializer, {variable.initializer.inputs[1]: steps})

    def _session(self, window):
        return self._session_of(window.mini_step, "flush")

    def _session_of(self, variable, action):
        session = self.home.v1.get_default_session()
        if session is None or session.graph is not variable.graph:
            raise ValueError(NO_SESSION.format(action, session))
        return session

    # A slot starts where the same slot of the optimizer that was wrapped is; in a graph when it is initialized.

    def _zeros_slot(self, var, slot_name, op_name):
        value = self._inherited_slot(var, slot_name)
        if value is None:
            return super(Accumulating, self)._zeros_slot(var, slot_name, op_name)
        return super(Accumulating, self)._get_or_make_slot(var, value, slot_name, op_name)

    def _get_or_make_slot(self, var, val, slot_name, op_name):
        value = self._inherited_slot(var, slot_name)
        return super(Accumulating, self)._get_or_make_slot(var, val if value is None else value, slot_name, op_name)

    def _get_or_make_slot_with_initializer(self, var, initializer, shape, dtype, slot_name, op_name):
        value = self._inherited_slot(var, slot_name)
        if value is None:
            return super(Accumulating, self)._get_or_make_slot_with_initializer(
                var, initializer, shape, dtype, slot_name, op_name
            )
        return super(Accumulating, self)._get_or_make_slot(var, value, slot_name, op_name)

    def _create_non_slot_variable(self, initial_value, name, colocate_with):
        graph = colocate_with.graph if self.home.graph_mode else None
        original = self._original._non_slot_dict.get((name, graph))
        if original is not None:
            initial_value = self._accumulation.ops.present_value(original, self.home.graph_mode)
        return super(Accumulating, self)._create_non_slot_variable(initial_value, name, colocate_with)

    def _inherited_slot(self, var, slot_name):
        original = self._original.get_slot(var, slot_name)
        if original is None or self.get_slot(var, slot_name) is not None:
            return None
        return self._accumulation.ops.present_value(original, self.home.graph_mode)


def accumulating(cls, home):
    """A subclass of the optimizer class `cls` that accumulates."""
    return type("Accumulating" + cls.__name__, (Accumulating, cls), {"home": home, "inner_class": cls})
