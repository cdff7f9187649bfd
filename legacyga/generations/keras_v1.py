"""The `v1` generation: optimizers whose one hook is `get_updates(loss, params)`, in TensorFlow 1 graphs.

Standalone Keras up to 2.3.1, and the v1 optimizers that tf.keras and tf_keras still carry.
"""

import contextlib
import copy

from legacyga import _accumulates, _ops


class Accumulating(_accumulates.HasConfig):
    """What `accumulating` puts before an optimizer class. Made in a graph, and of use in that graph only."""

    _reduced = None
    _inherited = None

    def start_accumulating(self, steps, reduction="mean"):
        super(Accumulating, self).start_accumulating(steps, reduction)
        self._weights_of = {}
        self._made = {}
        self._lifted = {}

    def inherit(self, optimizer):
        """Become a copy of `optimizer`, with variables of its own."""
        backend = self.home.backend
        for name, value in vars(optimizer).items():
            self.__dict__[name] = copy.copy(value) if isinstance(value, (dict, list)) else value
        variables = [(name, value) for name, value in vars(optimizer).items() if _ops.is_variable(value)]
        values = backend.batch_get_value([variable for _, variable in variables])
        for (name, variable), value in zip(variables, values):
            self.__dict__[name] = backend.variable(value, dtype=backend.dtype(variable), name=name)
        self.updates, self.weights = [], []
        self._inherited = backend.batch_get_value(optimizer.weights) if optimizer.weights else None

    def get_updates(self, loss, params):
        """The one operation that is a mini-step, in a list. Called by Keras when it builds the training function."""
        # TF 2.0 in eager mode calls this, in a graph of its own; all later ones refuse such an optimizer in compile.
        if not self.home.graph_mode or getattr(self.iterations, "graph", None) is not loss.graph:
            raise ValueError(
                "{} was made in another graph than the model, and cannot train it. Make both in one place: after the "
                "same disable_eager_execution() or clear_session(), in one tf.Graph, or both in eager mode.".format(
                    self
                )
            )
        # TF 2.0 takes a branch of a graph that nobody has entered to be one of eager mode. Deletable with 2.0.
        with loss.graph.as_default():
            return self._get_updates(loss, list(params))

    def _get_updates(self, loss, params):
        weights, window = self._state_for(params)
        if window is None:
            gradients = self.get_gradients(loss, params)
            with self._accumulation.ops.after(gradients, loss):
                gradients = [self._accumulation.ops.identity(gradient) for gradient in gradients]
            update = self._update(gradients, params, weights)
        else:
            with self._unclipped():
                gradients = self.get_gradients(loss, params)
            update = window.take_mini_step(
                gradients,
                range(len(params)),
                self._update_of(params),
                before=[loss],
            )
        self.weights = self._all_weights(weights, window)
        if self._inherited is not None:
            self.home.backend.batch_set_value(list(zip(weights, self._inherited)))
            self._inherited = None
        self.updates = [update]
        return self.updates

    def _update_of(self, params):
        return lambda means: self._update(self._clip(means), params, self._weights_of[self._window_key(params)])

    def _all_weights(self, weights, window):
        if window is None:
            return list(weights)
        # Some of the stock optimizers do not list it.
        listed = any(weight is self.iterations for weight in weights)
        return weights + ([] if listed else [self.iterations]) + window.variables

    def _create_all_weights(self, params):
        """Make the optimizer's variables, once for a list of `params`. The HDF5 loader calls it from TF 2.3 on."""
        if self._reduced is None:
            self._state_for(list(params))
        return self._made.get(self._window_key(params))

    # The next two are one update of any optimizer of this generation, by its own get_updates. MySGD states its own.

    def _create_weights(self, params):
        """The list of the inner optimizer's variables, empty where they are made by get_updates alone."""
        # Before TF 2.3 nothing makes them but get_updates, out of which they are lifted, nor for a class of the user's
        # own later. The first half is deletable with 2.2.
        create = getattr(super(Accumulating, self), "_create_all_weights", None)
        try:
            self._made[self._window_key(params)] = create and create(params)
        except NotImplementedError:
            create = None
        return list(self.weights) if create else []

    def _update(self, gradients, params, weights):
        """One call of the inner optimizer's `get_updates`, made to read everything before it writes anything."""
        self._reduced = gradients
        # The inner optimizer's, to be found or made anew; a flush leaves the list of all weights as it was.
        listed, self.weights = self.weights, list(weights)
        # A hook that the user has put on the object has had its call, with the micro-batch's.
        hook = {name: self.__dict__.pop(name) for name in ("get_gradients",) if name in self.__dict__}
        ops = self._accumulation.ops
        try:
            with _ops.lifted_variables(self.home.tf, self._lifted.setdefault(self._window_key(params), [])):
                update = _ops.ordered(lambda: super(Accumulating, self).get_updates(loss=None, params=params), ops)
        finally:
            self._reduced = None
            self.__dict__.update(hook)
            inner, self.weights = self.weights, listed
        again = [(old, new) for old, new in zip(weights, inner) if old is not new]
        if again:
            # K.variable of tf.keras in TF 1.11 to 1.13, 2.0 and 2.1 cannot be lifted; deletable with 2.1.
            return _ops.with_values_of(again, update, ops)
        weights[:] = inner
        return update

    def get_gradients(self, loss, params):
        if self._reduced is not None:
            return self._reduced
        return super(Accumulating, self).get_gradients(loss, params)

    def _state_for(self, params):
        key = self._window_key(params)
        with self.home.backend.name_scope(type(self).__name__):
            if key not in self._weights_of:
                self._weights_of[key] = self._create_weights(params)
            window = self._window_for(params)
            if window is not None:
                # Dense for sparse gradients too: the optimizers of this generation make them dense themselves.
                self._prepare_window(window, [param.dtype.base_dtype for param in params])
        weights = self._weights_of[key]
        self.weights = self._all_weights(weights, window)
        return weights, window

    def _make_scalar(self, number, name, value, dtype="int64"):
        return self.home.backend.variable(value, dtype=dtype, name=name)

    def _make_zeros(self, number, name, var, shape, dtype):
        return self.home.backend.zeros(self.home.backend.int_shape(var), dtype=dtype.name, name=name)

    @contextlib.contextmanager
    def _unclipped(self):
        """`get_gradients`, which users override, without the clipping that the home does at its end."""
        clips = {name: self.__dict__.pop(name) for name in ("clipnorm", "clipvalue") if name in self.__dict__}
        try:
            yield
        finally:
            self.__dict__.update(clips)

    def _clip(self, means):
        """`means` clipped as this home's `get_gradients` clips.

        That method can only clip what it differentiates itself: it is given sum(mean * point), whose gradient is mean.
        """
        if not any(hasattr(self, name) for name in ("clipnorm", "clipvalue")):
            return means
        tf = self.home.tf
        points = [tf.zeros_like(mean) for mean in means]
        surrogate = [tf.reduce_sum(mean * point) for mean, point in zip(means, points)]
        return self.home.v1_optimizers.Optimizer.get_gradients(self, surrogate, points)


def accumulating(cls, home):
    """A subclass of the optimizer class `cls` that accumulates."""
    return type("Accumulating" + cls.__name__, (Accumulating, cls), {"home": home, "inner_class": cls})
