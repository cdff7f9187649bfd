"""The `train` generation: optimizers of tf.compat.v1.train (tf.train in TensorFlow 1), run in the user's sessions."""

import contextlib
import copy

from legacyga.backend import features, replicas
from legacyga.backend import graph as _graph
from legacyga.backend.messages import shown
from legacyga.backend.tensors import variable_key
from legacyga.optimizers import copying, surface
from legacyga.optimizers import inner as _inner
from legacyga.optimizers.registry import NO_SESSION

# Containers that a tf.compat.v1.train optimizer writes to: always copied.
KEPT = ("_slots", "_non_slot_dict")
HAS_TRAINED = (
    "In graph mode the state of an optimizer of tf.compat.v1.train cannot be copied. Received: {}. It, or an "
    "optimizer within it, has made updates. Wrap it before it is given gradients."
)


class Inner(_inner.Inner):
    """The hooks of the `train` generation."""

    def __init__(self, *args):
        super(Inner, self).__init__(*args)
        # None until the first variables are known.
        self._iterations = None
        # {(graph, keys of the updated variables): the variables that an update made}.
        self._made_by_updates = {}
        # In graph mode, {id of a gradient that `compute_gradients` returned: (the gradient, its loss)}.
        self.losses = {}

    @property
    def iterations(self):
        """The number of updates, a variable made only when needed: new operations change the seeds of later ones."""
        return self.ops.constant(0, "int64") if self._iterations is None else self._iterations

    def inherit(self, optimizer):
        if not isinstance(vars(optimizer).get("_slots"), dict) or not hasattr(optimizer, "_non_slot_dict"):
            raise ValueError(
                "{} keeps its state in a way of its own and cannot be copied. Wrap the optimizer within it, or one "
                "that calls the __init__ of tf.compat.v1.train.Optimizer.".format(shown(optimizer))
            )
        if not self.home.graph_mode:
            copying.copy_attributes(optimizer, self.optimizer, _own, copy.deepcopy, KEPT)
            return
        inner = [copied for _, copied in copying.copy_attributes(optimizer, self.optimizer, lambda each: [], None)]
        if any(_own(each) for each in [optimizer] + inner):
            raise ValueError(HAS_TRAINED.format(shown(optimizer)))
        for each in [self.optimizer] + inner:
            vars(each).update(_slots={}, _non_slot_dict={})

    def prepare(self, grads_and_vars, is_traced):
        optimizer = self.optimizer
        var_list = [var for gradient, var in grads_and_vars if gradient is not None or is_traced]

        def create_slots(run, var_list):
            # `on_all` may run this in another thread, to which the caller's init_scope does not extend.
            with self.ops.init_scope():
                optimizer._create_slots(var_list)

        # In cross-replica context, as the bare optimizer: in a graph only the first replica could make variables.
        self.ops.replicas.on_all(create_slots, (var_list,))
        if not var_list:
            # Without a gradient, the inner optimizer raises its own error.
            return
        self._iterations = self._iterations_beside(var_list[0])
        if self.steps.has_windows:
            for var in var_list:
                _graph.check_branches_can_write(self.home.tf, var)

    def apply(self, pairs, global_step=None, name=None, **kwargs):
        if not self.steps.has_windows:
            with self.ops.init_scope():
                self.prepare(pairs, False)
        # Restore this list below: the inner optimizer adds its update, which no session can run, being in a branch.
        train_ops = self.home.v1.get_collection_ref("train_op") if self.home.graph_mode else []
        listed = list(train_ops)
        # `global_step` counts every update, including a flush.
        # The `apply_gradients` of a user's class may take only what its program gives.
        given = (global_step, name) if name is not None else (global_step,) if global_step is not None else ()
        with self._variables_again([var for _, var in pairs]):
            updated = super(AccumulatingOptimizer, self.optimizer).apply_gradients(pairs, *given, **kwargs)
        train_ops[:] = listed
        with self.ops.after(updated):
            iterations = self._iterations_beside(pairs[0][1]) if self.home.graph_mode else self.iterations
            return iterations.assign_add(1)

    def _iterations_beside(self, var):
        # Returns the existing variable if the graph of `var` has one.
        with self._scope(), replicas.counter_variables(self.home.tf):
            return self.optimizer._create_non_slot_variable(self.ops.constant(0, "int64"), "iterations", var)

    def _scope(self):
        """A name scope for our variables alone: the inner optimizer's keep the names that a Saver relies on."""
        return self.home.tf.name_scope(self.optimizer.get_name() + "/")

    @contextlib.contextmanager
    def _variables_again(self, var_list):
        """A context in which an update reuses the variables that an earlier update made for `var_list`."""
        # BERT's AdamWeightDecayOptimizer makes its moments in `apply_gradients`, which a flush calls a second time.
        if not (self.home.graph_mode and self.steps.has_windows):
            yield
            return
        v1 = self.home.v1
        # Variables of another graph may have the same names.
        key = var_list[0].graph if var_list else None, tuple(variable_key(var) for var in var_list)
        reuse = v1.AUTO_REUSE if key in self._made_by_updates else None
        made = self._made_by_updates.setdefault(key, [])
        with contextlib.ExitStack() as entered:
            if features.has_variable_creators(self.home.tf):
                entered.enter_context(_graph.lifted_variables(self.home.tf, made))
            entered.enter_context(v1.variable_scope(v1.get_variable_scope(), reuse=reuse))
            yield

    @property
    def has_own_methods(self):
        return not (self.own_class.apply_gradients.__module__ or "").startswith("tensorflow")

    def make_variable(self, name, value, shape, dtype, beside=None):
        value = self.home.tf.fill(shape, self.home.tf.cast(value, dtype))
        if beside is None:
            with self._scope():
                return self.optimizer._create_non_slot_variable(value, name, self.iterations)
        with self._scope(), replicas.replica_local_variables(self.home.tf):
            if self.home.graph_mode or not self.ops.replicas.are_several:
                return self.optimizer._create_non_slot_variable(value, name, beside)
            # That would give each replica the whole of a restored sum instead of its share.
            with self.ops.replicas.colocated_with(beside):
                created = self.home.tf.Variable(value, trainable=False, name=name)
            self.optimizer._handle_deferred_dependencies(name, created)
            self.optimizer._non_slot_dict[name, None] = created
            return created

    def session(self, variable, action):
        session = self.home.v1.get_default_session()
        if session is not None and session.graph is variable.graph:
            return session
        if action is not None:
            raise ValueError(NO_SESSION.format(action, shown(session)))
        return None

    def of_loss(self, accumulation, grads_and_vars):
        """A context in which the loss's divisor is the mini-step's weight, if all gradients are of one loss."""
        given = [gradient for gradient, _ in grads_and_vars if gradient is not None]
        losses = [self.losses.pop(id(each), (None, None))[1] for each in given]
        is_single = losses and all(each is losses[0] for each in losses)
        params = [variable for _, variable in grads_and_vars]
        return accumulation.weights.of_loss(accumulation.divisor_of(losses[0], params) if is_single else None)

    def mini_step_of(self, accumulation, grads_and_vars, kwargs):
        """Make a mini-step with the optimizer's `Accumulation`. Returns its operation in graph mode, else None."""
        if not self.home.graph_mode:
            accumulation.take_mini_step(grads_and_vars, (), kwargs)
            return None
        # In TF 2.0 to 2.13 init_scope exits a default graph that no `with` has entered. Delete with TF 2.13.
        with self.home.v1.get_default_graph().as_default():
            taken = accumulation.take_mini_step(grads_and_vars, (), kwargs)
        mini_step = self.home.tf.group(taken, name=kwargs["name"] or self.optimizer.get_name())
        self.home.v1.add_to_collection("train_op", mini_step)
        return mini_step


class AccumulatingOptimizer(surface.AccumulatingOptimizer):
    """Intercepts the calls of a tf.compat.v1.train optimizer."""

    _legacyga_methods = ("_apply_dense", "_resource_apply_dense", "_apply_sparse", "_resource_apply_sparse")

    @property
    def iterations(self):
        """The number of updates made: a variable; before the optimizer's first use, a constant 0."""
        return self._legacyga.inner.iterations

    def compute_gradients(self, loss, *args, **kwargs):
        """As the inner optimizer's. In a graph, keep each gradient's loss, whose divisor may weigh the mini-step."""
        # A user's class may return an iterator.
        pairs = list(super(AccumulatingOptimizer, self).compute_gradients(loss, *args, **kwargs))
        if self._legacyga.home.graph_mode:
            self._legacyga.inner.losses.update((id(each), (each, loss)) for each, _ in pairs if each is not None)
        return pairs

    def apply_gradients(self, grads_and_vars, global_step=None, name=None, **kwargs):
        """Make one mini-step. Only a window's last calls the inner optimizer's, so `global_step` counts updates."""
        _inner.check_arguments(type(self)._legacyga_class[0].apply_gradients, (), kwargs)
        kwargs.update(global_step=global_step, name=name)
        inner, grads_and_vars = self._legacyga.inner, list(grads_and_vars)
        with inner.of_loss(self._legacyga, grads_and_vars):
            return inner.mini_step_of(self._legacyga, grads_and_vars, kwargs)


def _own(optimizer):
    slots = [slot for by_variable in optimizer._slots.values() for slot in by_variable.values()]
    return slots + list(optimizer._non_slot_dict.values())


surface.register("train", AccumulatingOptimizer, Inner)
