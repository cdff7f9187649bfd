"""Eager mode: a training function that finds the slice size that fits in memory (`size="auto"`)."""

import functools
import itertools
import weakref

from legacyga.backend import autograph, features, graph, homes
from legacyga.fit import model_step
from legacyga.slices import batches, fitting
from legacyga.slices import recompute as slices_recompute


class MakeTrainFunction(object):
    """Replaces a model's `make_train_function` by `make`. A deep copy of the model gets its class's method back.

    `own` is a `make_train_function` that the user has set on the model, or None.
    """

    def __init__(self, model, make, own=None):
        self._model, self._make, self.own = weakref.ref(model), make, own

    def __call__(self, *args, **kwargs):
        return self._make(*args, **kwargs)

    def __deepcopy__(self, memo):
        # The copy keeps the present slice size, and adapts it only after a `micro_batch` call of its own.
        copied = memo.get(id(self._model()))
        if copied is None:
            return self
        reference = weakref.ref(copied)
        return MakeTrainFunction(copied, lambda *args: type(copied).make_train_function(reference(), *args))


class FittingFunction(object):
    """A training function that takes smaller slices if memory is exhausted.

    `cut(model, size)` sets the slice size, and `own` is as in `MakeTrainFunction`.
    """

    def __init__(self, model, cut, own):
        self._model, self._cut, self._own = weakref.ref(model), cut, own
        self._tf = homes.home_of(model.optimizer).tf
        self._function = self._variables = None

    def __deepcopy__(self, memo):
        # The copy of a model makes its own training function.
        return None

    def make(self, *args, **kwargs):
        """Make the training function, by Keras's own method or the user's, and put this object in its place."""
        model = self._model()
        if model.train_function is not None and not (args or kwargs):
            return model.train_function
        model.train_function = None
        with features.one_step_per_execution(model):
            (self._own or functools.partial(type(model).make_train_function, model))(*args, **kwargs)
        self._function, self._variables = model.train_function, None
        model.train_function = self
        return self

    def __call__(self, iterator):
        """Train on the next `steps_per_execution` batches, one by one: a batch that does not fit is repeated alone."""
        result = None
        with features.one_step_per_execution(self._model()) as steps:
            for data in itertools.islice(iterator, steps):
                result = self._take(_without_none(data), getattr(iterator, "element_spec", None))
        if result is None:
            raise StopIteration
        return result

    def _take(self, data, spec):
        tf, model = self._tf, self._model()
        samples = int(batches.samples_in(tf, data))
        found = fitting.fitting_of(model)

        def step():
            self._cut(model, found.size)
            # Keras 3's train_on_batch has a generator, without a spec. Use one too: a dataset makes a list one array.
            return self._function(iter([data] if spec is None else _dataset_of(tf, data, spec)))

        self._cut(model, found.size)
        if self._variables is None:
            # If memory runs out, `take` restores all variables. A trace, which never runs, makes missing ones and finds
            # all. It may draw NumPy's random numbers.
            drawn = slices_recompute.random_states()
            # Under a OneDeviceStrategy, an optimizer works only in replica context.
            strategy = model.distribute_strategy
            one_step = autograph.as_written(tf, lambda data: strategy.run(model.train_step, args=(data,)))
            trace = tf.function(one_step).get_concrete_function(features.optionals_as_none(tf, data))
            self._variables = [each[:2] for each in graph.variables_of(tf, trace.graph)]
            slices_recompute.draw_from(drawn)
        return found.take(tf, samples, step, self._read, self._write)

    def _read(self):
        read = self._tf.raw_ops.ReadVariableOp
        return [(handle, dtype, read(resource=handle, dtype=dtype).numpy()) for handle, dtype in self._variables]

    def _write(self, values):
        for handle, dtype, value in values:
            self._tf.raw_ops.AssignVariableOp(resource=handle, value=self._tf.constant(value, dtype))


def _dataset_of(tf, data, spec):
    """Return a dataset of one batch with the static shapes of `spec`, so that a step traces as on all of the data."""
    # `data` is without the trailing None parts, and so must be its spec.
    spec, made = spec[: len(data)] if type(data) is tuple else spec, tf.data.Dataset.from_tensors(data)
    # Not by `map`: it would trace a function for each batch.
    return tf.data.experimental.from_variant(tf.data.experimental.to_variant(made), spec)


def _without_none(data):
    """Return a batch without its trailing None parts, such as Keras 3's train_on_batch adds."""
    if type(data) is not tuple:
        return data
    parts = list(data)
    while parts and parts[-1] is None:
        parts.pop()
    return tuple(parts)


def install(model, step, recompute):
    """Make a model's training function find its slice size, or undo this if its `Fitting` does not look for one."""
    attributes = vars(model)
    before = own = attributes.get("make_train_function")
    if isinstance(before, MakeTrainFunction):
        own = before.own
    if not fitting.fitting_of(model).looks:
        if own is not before:
            attributes.pop("make_train_function")
            attributes.update({} if own is None else {"make_train_function": own})
            model_step.make_anew(model)
        return

    def cut(model, size):
        if (step.size, step.recompute) != (size, recompute):
            step.size, step.recompute = size, recompute
            model_step.make_anew(model)

    function = FittingFunction(model, cut, own)
    attributes["make_train_function"] = MakeTrainFunction(model, function.make, own)
    model_step.make_anew(model)
