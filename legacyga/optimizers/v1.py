"""The `v1` generation: `get_updates(loss, params)` of Keras up to 2.3.1, and of tf.keras and tf_keras in graph mode."""

import contextlib

from legacyga.backend import graph as _graph
from legacyga.backend import update_order
from legacyga.backend.messages import shown
from legacyga.optimizers import config, copying, surface, updates
from legacyga.optimizers import inner as _inner

NO_LOSS = (
    "get_updates of {} is called with loss=None, because the gradients of a window belong to several losses. Received: "
    "an error in it, {}. Take gradients by self.get_gradients(loss, params), which returns the window's, and do not "
    "use the loss."
)
RUNS_SESSION = (
    "{0}.get_updates runs a session (K.get_value, K.batch_get_value, K.eval), and cannot stand in the branch of the "
    "graph that is an update. Received: {1}. Leave wrap out, and train in slices of a batch, which is exact with any "
    "optimizer: legacyga.micro_batch(model, size) after compile."
)


class Inner(_inner.Inner):
    """The hooks of the `v1` generation."""

    # `update_order` makes writes wait for gradients. Reads must not: keras-lookahead runs a session without a batch.
    orders_writes = True

    def __init__(self, *args):
        super(Inner, self).__init__(*args)
        # {name of a param: its reduced gradient, the mean or sum} while the inner optimizer makes an update, else None.
        self.reduced = None
        # By params' names: inner variables; what `_create_all_weights` returned; variables lifted out of get_updates.
        self._weights_of, self._made_of, self._lifted = {}, {}, {}
        # The names of params for which an update has been built.
        self._updated = set()
        # The values of the original's weights, until the copy has weights of its own; else None.
        self._inherited = None

    def inherit(self, optimizer):
        backend, values = self.home.backend, {}

        def own(optimizer):
            variables = self._own(optimizer)
            values.update(zip(map(id, variables), self._values_of(variables)))
            return variables

        def new_variable(variable):
            name = variable.name.split("/")[-1].split(":")[0]
            return backend.variable(values[id(variable)], dtype=backend.dtype(variable), name=name)

        inner = copying.copy_attributes(optimizer, self.optimizer, own, new_variable)
        for each in [self.optimizer] + [copied for _, copied in inner]:
            # These are of the original's model.
            each.updates, each.weights = [], []
        if not hasattr(self.optimizer, "iterations"):
            # The wrappers of keras-rl and keras-lr-multiplier have no `iterations`.
            self.optimizer.iterations = self._differentiating.iterations
        self._inherited = backend.batch_get_value(optimizer.weights) if optimizer.weights else None

    def _values_of(self, variables):
        """The variables' values in Keras's session; initial values if it is not open, or has not initialized them."""
        if not self.home.has_session:
            # Keras would open a session and mark all variables as initialized, even for a session that the program sets
            # later. So open one only for an initial value that is no constant.
            with contextlib.suppress(ValueError):
                return [_initial_value(self.home.tf, variable) for variable in variables]
        session, is_initialized = self.home.session, self.home.v1.is_variable_initialized
        # Keras's session may be of an earlier graph, without these variables. Delete with TF 1.13.
        known = [variable for variable in variables if variable.graph is session.graph]
        # Ask in one run: after a new operation a session processes its whole graph again.
        are_there = session.run([is_initialized(each) for each in known]) or [False] * len(variables)
        there = [variable for variable, is_there in zip(variables, are_there) if is_there]
        read = iter(self.home.backend.batch_get_value(there))
        # With K.manual_variable_initialization(True) some variables may not be initialized yet.
        return [
            next(read) if is_there else _initial_value(self.home.tf, variable)
            for variable, is_there in zip(variables, are_there)
        ]

    def _own(self, optimizer):
        """The variables that the optimizer's `__init__` made: those named like their attribute, but no global step."""
        # Do not look in get_config, which reads the variables: the program may not have initialized them yet.
        made = copying.attributes_that_are_variables(optimizer)
        given = self.home.v1.get_collection(self.home.v1.GraphKeys.GLOBAL_STEP)
        return [var for name, var in made.items() if _is_named(var, name) and all(var is not each for each in given)]

    @property
    def _differentiating(self):
        """The optimizer whose `get_gradients` is used: the outermost wrapper that overrides it, else the innermost."""
        optimizer, cls = self.optimizer, self.own_class
        while cls.get_gradients is self.home.v1_optimizers.Optimizer.get_gradients:
            inner = copying.wrapped_by(optimizer)
            if inner is None:
                break
            optimizer, cls = inner, type(inner)
        return optimizer

    def prepare(self, grads_and_vars, is_traced):
        """Does nothing: `_state_for` has made the state."""

    def apply(self, pairs):
        """Make one update by the inner optimizer's `get_updates`, with its reads and writes in a fixed order."""
        params = [param for _, param in pairs]
        gradients = [self.ops.dense(gradient) for gradient, _ in pairs]
        if self.steps.has_windows and self._differentiating is self.optimizer:
            gradients = self._clip(self.optimizer, gradients)
        return self.make_update(gradients, params, self._weights_of[_names(params)])

    def make_variable(self, name, value, shape, dtype, beside=None):
        backend, name = self.home.backend, name.split("/")[-1]
        if beside is not None:
            return backend.zeros(tuple(shape), dtype=dtype.name, name=name)
        for size in shape:
            value = [value] * size
        return backend.variable(value, dtype=dtype.name, name=name)

    # Building a mini-step.

    def check_graph(self, graph):
        # In eager mode TF 2.0 comes here with a private graph, so ask for the mode, too. Delete with TF 2.0.
        if not self.home.graph_mode or getattr(self.optimizer.iterations, "graph", None) is not graph:
            raise ValueError(
                "{} was made in another graph than the model, and cannot train it. Make both in one place: after the "
                "same disable_eager_execution() or clear_session(), in one tf.Graph, or both in eager mode.".format(
                    self.optimizer
                )
            )

    def mini_step_of(self, accumulation, loss, params):
        """Build a mini-step with the gradients of `loss`; returns the tensor that runs it."""
        weights, window = self._state_for(accumulation, params)
        differentiating = self._differentiating
        # With windows the update clips, not the mini-step. A wrapper's inner optimizer always clips in `_answered`.
        is_late = window is not None or differentiating is not self.optimizer
        # Hide the settings from a get_gradients that the user has overridden, too.
        with _inner.hidden(differentiating, "clipnorm", "clipvalue") if is_late else contextlib.ExitStack():
            gradients = differentiating.get_gradients(loss, params)
        if window is None:
            # Without a window `before` is ignored, so make the update wait for the loss here.
            with self.ops.after(gradients, loss):
                gradients = [self.ops.identity(gradient) for gradient in gradients]
        taken = accumulation.take_mini_step(list(zip(gradients, params)), before=[loss])
        self.optimizer.weights = self._all_weights(accumulation, weights, window)
        if self._inherited is not None:
            # If these are not the original's variables, as after freezing a layer, moments begin anew.
            if [self.home.backend.int_shape(each) for each in weights] == [each.shape for each in self._inherited]:
                self.home.backend.batch_set_value(list(zip(weights, self._inherited)))
            self._inherited = None
        return taken

    def create_all_weights(self, accumulation, params):
        """Return what the inner `_create_all_weights` returned. Outside of an update, make all variables first."""
        if self.reduced is None:
            weights, window = self._state_for(accumulation, params)
            if not weights:
                # Only get_updates makes the variables, which the loader is about to set.
                self.make_update([self.ops.zeros_like(param) for param in params], params, weights)
                self.optimizer.weights = self._all_weights(accumulation, weights, window)
        return self._made_of.get(_names(params))

    def _state_for(self, accumulation, params):
        """Return (the inner optimizer's variables, the window or None) for these params; makes both if necessary."""
        key = _names(params)
        with self.home.backend.name_scope(type(self.optimizer).__name__):
            if key not in self._weights_of:
                self._weights_of[key] = self.create_weights(params)
            window = accumulation.windows.of(params[0]).window_for(params) if self.steps.has_windows else None
        weights = self._weights_of[key]
        self.optimizer.weights = self._all_weights(accumulation, weights, window)
        return weights, window

    def _all_weights(self, accumulation, weights, window):
        """Return the list for `optimizer.weights`, and tell the registry what the inner optimizer leaves out."""
        iterations, registry = self.optimizer.iterations, accumulation.registry()
        # Some Keras optimizers do not list `iterations`, so it is not saved. With a window, list it too.
        registry.unlisted = [iterations] if all(weight is not iterations for weight in weights) else []
        return weights + registry.variables_of(window) if window is not None else list(weights)

    # The next two call the optimizer's own methods. MySGD overrides both.

    def create_weights(self, params):
        """Make the inner optimizer's variables: a list, empty if only get_updates makes them."""
        # In users' classes and older Kerases only get_updates makes them, from which `make_update` lifts them.
        create = getattr(super(AccumulatingOptimizer, self.optimizer), "_create_all_weights", None)
        try:
            self._made_of[_names(params)] = create and create(params)
        except NotImplementedError:
            create = None
        return list(self.optimizer.weights) if create else []

    def make_update(self, gradients, params, weights):
        """Make the operation of an update. The first one for these params fills the list `weights`."""
        optimizer, ops = self.optimizer, self.ops
        self.reduced = dict(zip(_names(params), gradients))
        differentiating = self._differentiating
        # get_updates takes its variables from `weights`, or puts new ones there. The full list is restored below.
        listed, optimizer.weights = optimizer.weights, list(weights) if differentiating is optimizer else []
        # Empty `updates`: some get_updates append to it, or return it if it is there.
        known_updates, optimizer.updates = getattr(optimizer, "updates", []), []
        known, lifted = set(self.home.v1.global_variables()), self._lifted.setdefault(_names(params), [])
        answered = contextlib.ExitStack()
        if differentiating is not optimizer:
            answered = self._answered(differentiating)

        def get_updates():
            try:
                with answered:
                    return super(AccumulatingOptimizer, optimizer).get_updates(loss=None, params=params)
            except (AttributeError, TypeError, ValueError, RuntimeError) as error:
                # These come from running a session on operations in a conditional's branch.
                if any(each in str(error) for each in ("not fetchable", "not an element of", "Cannot get session")):
                    raise ValueError(RUNS_SESSION.format(type(optimizer)._legacyga_class[0].__name__, shown(optimizer)))
                if "NoneType" in str(error) and not isinstance(error, ValueError):
                    raise ValueError(NO_LOSS.format(shown(optimizer), error))
                raise

        try:
            # get_updates must get the reduced gradients, even if the user has set a get_gradients on the object.
            with _graph.lifted_variables(self.home.tf, lifted), _inner.hidden(optimizer, "get_gradients"):
                update = self.ordered(get_updates, gradients)
        finally:
            self.reduced = None
            # keras-rl's wrapper lists no weights.
            inner, optimizer.weights = optimizer.weights or list(differentiating.weights), listed
            optimizer.updates = known_updates
        made_twice = [(old, new) for old, new in zip(weights, inner) if old is not new]
        unknown = set(self.home.v1.global_variables()) - known - set(lifted) - set(inner)
        if unknown and _names(params) in self._updated:
            raise ValueError(
                "get_updates of {} makes variables that it does not put into self.weights, and a second update "
                "cannot find them. Received: {}. List them there, or make them in __init__.".format(
                    shown(optimizer), sorted(each.name for each in unknown)
                )
            )
        self._updated.add(_names(params))
        if made_twice:
            # TF 1.11 to 1.13, 2.0 and 2.1 cannot lift K.variable, so get_updates has made its variables again. Keep the
            # first ones. Delete with TF 2.1.
            return _graph.with_values_of(made_twice, update, ops)
        weights[:] = inner
        return update

    def ordered(self, get_updates, gradients):
        """Make the operation of an update with these gradients from the reads and writes of `get_updates`."""
        # At K = 1 the update is in no branch of its own, and may share operations with another update.
        return update_order.ordered(get_updates, self.ops, gradients, in_parts=self.steps.has_windows)

    def reduced_of(self, params):
        """The reduced gradients of some of the update's params: a list."""
        return [self.reduced[name] for name in _names(params)]

    @contextlib.contextmanager
    def _answered(self, inner):
        """A context in which a wrapper's get_updates gets reduced gradients from its `inner` optimizer, clipped."""
        with _inner.hidden(inner, "get_gradients"):
            inner.get_gradients = lambda loss, params: self._clip(inner, self.reduced_of(params))
            try:
                yield
            finally:
                del inner.get_gradients

    def _clip(self, optimizer, means):
        """Clip `means` as Keras's `get_gradients` does: call it on sum(mean * point), whose gradients are the means."""
        if not any(hasattr(optimizer, name) for name in ("clipnorm", "clipvalue")):
            return means
        tf = self.home.tf
        points = [tf.zeros_like(mean) for mean in means]
        surrogate = [tf.reduce_sum(mean * point) for mean, point in zip(means, points)]
        return self.home.v1_optimizers.Optimizer.get_gradients(optimizer, surrogate, points)


class AccumulatingOptimizer(config.ConfiguredOptimizer):
    """Intercepts Keras's calls of a v1 optimizer. Belongs to the graph in which it was made."""

    def get_updates(self, *args, **kwargs):
        """Build a mini-step of (loss, params) for Keras's training function; returns [the tensor that runs it]."""
        accumulation = self._legacyga
        loss, params = _arguments(accumulation.home, *args, **kwargs)
        if not params:
            # Nothing is trainable.
            return super(AccumulatingOptimizer, self).get_updates(loss=loss, params=params)
        # The loss may be None if a user's get_gradients needs none.
        accumulation.inner.check_graph(getattr(loss, "graph", None) or getattr(params[0], "graph", None))
        # TF 2.0 builds a conditional's branch as in eager mode unless the graph is entered. Delete with TF 2.0.
        with params[0].graph.as_default(), accumulation.weights.of_loss(accumulation.divisor_of(loss, params)):
            mini_step = accumulation.inner.mini_step_of(accumulation, loss, params)
            self.updates = updates.guarded([mini_step], accumulation)
        return self.updates

    def get_gradients(self, loss, params):
        inner = self._legacyga.inner
        if inner.reduced is None:
            return super(AccumulatingOptimizer, self).get_gradients(loss, params)
        return inner.reduced_of(params)

    def _create_all_weights(self, params):
        """Make the optimizer's variables, once per list of `params`. From TF 2.2 on, the HDF5 loader calls it."""
        if not params:
            return super(AccumulatingOptimizer, self)._create_all_weights(params)
        return self._legacyga.inner.create_all_weights(self._legacyga, list(params))


def _arguments(home, *args, **kwargs):
    """(loss, params) of a call of `get_updates`, in the new argument order or, if Keras accepts it, the old one."""
    # The old order of arguments has `loss` last. Delete with Keras 2.3.
    if home.is_standalone and (len(args) == 3 or (len(args) == 2 and "loss" in kwargs)):
        args = (args[2] if len(args) == 3 else kwargs.pop("loss"), args[0])
    return _bound(*args, **kwargs)


def _bound(loss, params):
    """Let Python match the arguments by place or by name."""
    return loss, list(params)


def _names(params):
    return tuple(param.name for param in params)


def _initial_value(tf, variable):
    return _graph.constant_value(tf, variable.initial_value)


def _is_named(variable, name):
    last = variable.name.split("/")[-1].split(":")[0]
    return last == name or last.startswith(name + "_") and last[len(name) + 1 :].isdigit()


surface.register("v1", AccumulatingOptimizer, Inner)
