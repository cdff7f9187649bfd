"""Recompute in eager mode, for any loss: outputs of all slices first, then the loss, then each slice a second time.

A loss that is not a mean over the samples needs the outputs of the whole batch, but not the activations behind them. So
only the model's `call` works in slices, and need not keep activations. Keras's own training step computes the loss, the
metrics and the outputs' gradient as usual. Each slice's second pass takes its part of this gradient.
"""

import contextlib
import functools
import inspect
import random
import sys
import weakref

from legacyga.backend import autograph, features
from legacyga.backend import graph as graphs
from legacyga.backend import ops as _ops
from legacyga.backend.messages import shown, warn
from legacyga.backend.tensors import is_differentiable, is_variable
from legacyga.optimizers import loss_divisor
from legacyga.slices import batches, losses, means
from legacyga.slices.calls import (
    ROWS,
    SlicedCall,
    again,
    arguments,
    raw_of,
    replaced,
    uncut,
    values_of,
    without_penalty,
)
from legacyga.slices.loop import Nothing, Rows, Total

RANDOM = (
    "Where slices are computed twice, random layers must draw the same numbers twice. Received: {}, whose operation "
    "{} cannot. Call keras.backend.experimental.enable_tf_random_generator() before the model is made (tf.keras from "
    "TensorFlow 2.8 on, tf_keras), or leave the layer out. For a loss that is a mean over the samples, give "
    "recompute=False."
)
STORED = (
    "In slices a tensor that the call of a model stores in an attribute belongs to one slice, not to the batch. "
    "Received: {}, with the attribute {}. Return the tensor as an output of the model."
)
NO_CALL = (
    "micro_batch cuts the calls of models, and a train_step that calls no model with a whole batch needs the memory of "
    "a whole batch. Received: {}. Put the layers that its train_step calls into a keras.Sequential or keras.Model, and "
    "let it be an attribute of the model."
)
NUMBER = (
    "In slices, a number that a layer gives to add_loss counts as a mean over the samples. Received: {} in {}, whose "
    "number may be no mean. If it is none, return the layer's tensor as an output, and compute the number in the loss."
)

# {model: {kind of call: Seen}} in eager mode, with at most MOST_KINDS kinds per model.
_SEEN = weakref.WeakKeyDictionary()
MOST_KINDS = 100
# The models for which `NUMBER` was shown.
_WARNED = weakref.WeakSet()
# {model that trains: the slice size with which its train_step last called it, or a model within it}
_CUT = weakref.WeakKeyDictionary()


def look(home, model, data, size):
    """Return the `Seen` of a model's call on a slice of a batch."""
    data = features.as_trained_on(home, data)
    given = arguments(model, data[0] if isinstance(data, tuple) else data)
    return _Twice(home, model, given, batches.number_in(home.tf, given), size).seen()


@contextlib.contextmanager
def cut(home, model, size, is_needed=True):
    """A context in which calls of a model, and of models within it, compute their outputs in slices.

    Of nested calls, only the outermost is cut. On one replica, raises ValueError at the end if the batch may need
    slices (`is_needed`), no call came, and the last call in an earlier context had another `size`.
    """
    models = [model]
    models += [each for each in features.layers_of(model) if isinstance(each, home.module.Model) and each is not model]
    cuts = [_Cut(home, each, size, models) for each in models]
    with contextlib.ExitStack() as stack:
        for each in cuts:
            call = autograph.as_written(home.tf, each.__call__)
            # Keras inspects the signature.
            call.__signature__ = inspect.signature(each.model.call)
            stack.enter_context(replaced(each.model, call))
        yield
    if any(each.was_called for each in cuts):
        _CUT[model] = size
    # A tf.function in the train_step calls the model in its first trace only, so `_CUT` remembers the call. Replicas
    # take turns within a step. One may call the `_Cut` of another, and its own then looks uncalled.
    elif is_needed and _CUT.get(model) != size and not _ops.Ops(home.tf).replicas.are_several:
        raise ValueError(NO_CALL.format(shown(model)))


class _Cut(object):
    """Replaces a model's `call`, and returns the same outputs, computed in slices of at most `size` samples."""

    def __init__(self, home, model, size, models):
        self.model, self.was_called = model, False
        self._home, self._size, self._models = home, size, models

    def __call__(self, *args, **kwargs):
        tf, self.was_called = self._home.tf, True
        # Read a variable among the arguments here, where the tape records the read.
        args, kwargs = given = tf.nest.map_structure(
            lambda leaf: tf.convert_to_tensor(leaf) if is_variable(raw_of(leaf)) else leaf, (args, kwargs)
        )
        # Put the tensors one level down, because `samples_in` takes a batch's second element for its targets.
        cut = [batches.of_samples(tf, given)]
        if not cut[0] or features.is_stateless(self._home):
            # A call with numbers alone, such as a time, or within a `stateless_call`, stays whole.
            with uncut(self._models), without_penalty(self.model):
                return again(self._home, self.model)(*args, **kwargs)
        samples = batches.number_in(tf, cut)
        checked = batches.checked(tf, cut, samples)
        if isinstance(samples, int) and samples <= self._size:
            with uncut(self._models), without_penalty(self.model), _ops.Ops(tf).after(checked):
                return again(self._home, self.model)(*args, **kwargs)
        with _ops.Ops(tf).after(checked):
            samples = samples if isinstance(samples, int) else tf.identity(samples)
        return _Twice(self._home, self.model, given, samples, self._size, self._models).outputs()


class _Twice(SlicedCall):
    """A call whose slices are computed a second time for the gradient."""

    def outputs(self):
        seen = self.seen()
        if seen.random:
            raise ValueError(RANDOM.format(shown(self.model), shown(seen.random)))
        modes = self.modes()
        before, others, drawn = self._read(seen.written), self._read(seen.read), random_states()
        # In eager mode Keras's tape would keep all slices' activations. Stop all tapes, unless the call has its own.
        stops = self.tf.executing_eagerly() and not seen.differentiates
        with self.tape.stop_recording() if stops else contextlib.ExitStack():
            joined = self.loop.run(lambda begin, length: self.joins(self._take(begin, length), length))
        modes = self.since_built(modes)
        inputs = [each for each in self.tf.nest.flatten(self.given) if self.tf.is_tensor(each)]
        inputs = [each for each in inputs if is_differentiable(each.dtype)]
        inputs = [each for each in inputs if self.tape.should_record_backprop([values_of(each)])]
        made = self._operations()

        def backward(upstream):
            written, values = seen.written, before
            if self._may_write_since(made, seen.read):
                # The step may have updated variables since the call, as with a persistent tape.
                written, values = written + seen.read, before + others
            # Repeat the call with the values, random states and modes that it had, then restore the present ones.
            now = self._read(written)
            self._write(written, values)
            drawn_since = random_states()
            draw_from(drawn)
            with self.as_called(modes):
                gradients = self.loop.run(self._backward(upstream, joined, inputs))
            draw_from(drawn_since)
            self._write(written, now)
            return gradients

        return self.recorded(joined, [values_of(each) for each in inputs], backward)

    def variables(self):
        """Also return other trainable variables of the model that trains, if the call uses them."""
        if self._variables is None:
            known = {id(each) for each in features.trainable_variables_of(self.model)}
            others = [each for each in features.trainable_variables_of(self.models[0]) if id(each) not in known]
            seen = self.seen() if others else None
            used = {id(handle) for handle, _ in seen.read + seen.written} if others else ()
            found = super(_Twice, self).variables()
            found += [(each, raw) for each, raw in ((each, raw_of(each)) for each in others) if id(raw.handle) in used]
        return self._variables

    def _operations(self):
        return None if self.tf.executing_eagerly() else self.ops.graph_here().get_operations()

    def _may_write_since(self, made, variables):
        """Whether an operation newer than `made` may write the variables: True in eager mode or another graph."""
        found = self._operations()
        if not made or not found or made[0] is not found[0]:
            return True
        captured = {self.ops.graph_here().capture(handle).name for handle, _ in variables}
        newer = [each for each in found[len(made) :] if each.type not in graphs.READS]
        return any(each.name in captured for operation in newer for each in operation.inputs)

    def _take(self, begin, length, cut=()):
        """Run one slice and return its flat list. `cut`: {id(tensor): its slice} for tensors already sliced."""

        def part(leaf):
            return cut[id(leaf)] if id(leaf) in cut else self.argument(leaf, begin, length)

        return self.tensors_of(*self.call(self.tf.nest.map_structure(part, self.given)), length)

    def _backward(self, upstream, joined, inputs):
        """Return a function for `Loop.run` that computes a slice again, and the gradients of variables and `inputs`.

        Args:
            upstream: {place: gradient of the whole batch's tensor at this place}.
        """
        tf, variables = self.tf, self.variables()

        def take(begin, length):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([raw for _, raw in variables])
                slices = [self.argument(each, begin, length) for each in inputs]
                watched = [values_of(each) for each in slices]
                tape.watch(watched)
                found = self._take(begin, length, dict(zip(map(id, inputs), slices)))
            parts = [self._part(upstream[i], joined, i, begin, length) for i in upstream]
            sources = [raw for _, raw in variables] + watched
            gradients = tape.gradient([found[i] for i in upstream], sources, output_gradients=parts)
            kinds = [self.joins_gradient(each, gradients[i]) for i, (each, _) in enumerate(variables)]
            of_inputs = [Total if batches.is_shared(tf, each) else Rows for each in inputs]
            kinds += [Nothing if each is None else kind for kind, each in zip(of_inputs, gradients[len(variables) :])]
            return list(zip(kinds, gradients))

        return take

    def _part(self, gradient, joined, place, begin, length):
        """Return a slice's part of the gradient of the whole batch's tensor at `place`."""
        if place in self.scalars:
            return gradient * self.share(place, length, gradient.dtype)
        if place in self.ragged:
            lengths = joined[place + 1 : place + 1 + self.ragged[place]]
            gradient = self.tf.RaggedTensor.from_nested_row_lengths(gradient, lengths, validate=False)
            return batches.slice_of(self.tf, gradient, begin, length).flat_values
        return batches.slice_of(self.tf, gradient, begin, length)

    def seen(self):
        """Trace a call on one slice, run nothing, and return its `Seen`; eager mode caches these by kind of call."""
        is_eager = self.tf.executing_eagerly()
        known = _SEEN.setdefault(self.model, {}) if is_eager else {}
        leaves = self.tf.nest.flatten(self.given)
        key = tuple(str((each.shape[1:], each.dtype)) if hasattr(each, "shape") else each for each in leaves)
        key += tuple(sorted(self.given[1])) + (str(self.told),)
        # Modes switch what a layer does: a frozen BatchNormalization writes no averages. A float, such as a rate, does
        # so only by being 0.
        for _, trainable, plain in self.modes():
            modes = [(name, bool(value) if type(value) is float else value) for name, value in plain.items()]
            key += (trainable, hash(str(modes)))
        # Each replica has its own variables.
        key += (self.ops.replicas.number,)
        if key not in known:
            if len(known) >= MOST_KINDS:
                # If a layer counts its calls in an attribute, each call is a new kind.
                known.clear()
            known[key] = self._look()
        return known[key]

    def _look(self):
        # A layer may draw by NumPy while it is traced.
        drawn = random_states()
        graph, outputs, added = self._trace(self.loop.rest)
        shapes = [self.tf.TensorShape(getattr(each, "shape", ())) for each in _rows_in(outputs, added)]
        # Trace twice the samples, too: a table that happens to have as many rows as a slice does not grow, and a matrix
        # of all pairs of samples grows in two dimensions.
        # If only the run tells a slice's length, take an odd one: rarely an output's own size, such as 64 steps.
        length = 2 * self.loop.rest if isinstance(self.loop.rest, int) else 2 * self.loop.size + 1
        for shape, each in zip(shapes, _rows_in(*self._trace(length)[1:])):
            if not shape.ndims:
                continue
            others = zip(shape[1:], each.shape[1:])
            are_rows = each.shape[0] is None or each.shape[0] == length != shape[0]
            if not are_rows or any(dim in (None, shape[0]) and other == length for dim, other in others):
                raise ValueError(ROWS.format(shown(each), length, shown(self.model)))
        if any(each.shape.ndims == 0 for each in added) and self.model not in _WARNED:
            self._check_numbers()
        draw_from(drawn)
        return Seen(self.tf, graph, outputs, added)

    def _check_numbers(self):
        """Warn, once per model, of a number from add_loss that is not known to be a mean over the samples."""
        traced = self.traced()
        if traced is None:
            return
        graph, (_, added) = traced
        # Not `self.variables()`, which calls `seen`, and so this method.
        trainable = map(features.trainable_variables_of, [self.model, self.models[0]])
        handles = {id(raw_of(each).handle) for variables in trainable for each in variables}
        params = [inner for outer, _, inner in graphs.variables_of(self.tf, graph) if id(outer) in handles]
        for loss, is_sum, layer in added:
            if not is_sum and not loss.shape.ndims and not loss_divisor.is_mean(self.ops, loss, params):
                _WARNED.add(self.model)
                warn(NUMBER.format(shown(layer), shown(self.model)))
                return

    def _trace(self, length):
        """Return the graph of a call on the first samples, which never runs, its outputs, and the losses it adds."""
        found = []
        # AutoGraph of TF 2.2 rewrites this method and the functions in it: `_call_into` is outside. Delete with TF 2.2.
        call = autograph.as_written(self.tf, functools.partial(self._call_into, found, length))
        graph = self.tf.function(call, autograph=False).get_concrete_function().graph
        # In a traced step TensorFlow itself raises if a loss reads a stored tensor. For a clearer error, look at the
        # model's own attributes there, if the user's train_step or compute_loss may read them.
        layers = features.layers_of(self.model) if self.tf.executing_eagerly() else [self.model]
        if self.tf.executing_eagerly() or not means.is_trained_by_keras(self.home, self.models[0]):
            for layer, (name, value) in ((each, pair) for each in layers for pair in vars(each).items()):
                if getattr(value, "graph", None) is graph:
                    raise ValueError(STORED.format(shown(layer), shown(name)))
        return graph, self.tf.nest.flatten(found[0]), [loss for loss, _, _ in found[1]]

    def _call_into(self, found, length):
        # TensorFlow traces again if the first trace makes variables.
        found[:] = self.call(self.part(self.given, 0, length))

    def _read(self, variables):
        return [self.tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) for handle, dtype in variables]

    def _write(self, variables, values):
        for (handle, _), value in zip(variables, values):
            self.tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _rows_in(outputs, added):
    """Return what must have a row for each sample: a call's outputs, and its losses that are no single number."""
    return outputs + [each for each in added if each.shape.ndims]


class Seen(object):
    """What a traced call of a model does.

    Attributes:
        written: [(handle, dtype)] of the variables that it writes, or may write within a loop or branch.
        read: [(handle, dtype)] of the variables that it only reads.
        random: the name of an operation for which `is_random` is true, else None.
        differentiates: whether the call itself takes a gradient, of a tape within it.
        masked: whether an output has a mask.
        shapes: the shape of each output, a TensorShape.
        adds_rows: whether a layer adds a loss that is more than one number.
    """

    def __init__(self, tf, graph, outputs, added):
        self.masked = any(losses.mask_of(each) is not None for each in outputs)
        self.shapes = [tf.TensorShape(getattr(each, "shape", ())) for each in outputs]
        self.adds_rows = any(each.shape.ndims != 0 for each in added)
        operations = graph.get_operations()
        self.random = graphs.operation_with(graph, operations, is_random)
        self.differentiates = bool(graphs.operation_with(graph, operations, _is_of_tape))
        self.written, self.read = [], []
        for outer, dtype, inner in graphs.variables_of(tf, graph):
            writes = any(each.type not in graphs.READS for each in inner.consumers())
            (self.written if writes else self.read).append((outer, dtype))


def random_states():
    """Return the random states of Python and NumPy. TensorFlow has imported NumPy."""
    return random.getstate(), sys.modules["numpy"].random.get_state()


def draw_from(states):
    """Restore these random states. RandomFlip of TF 2.10 and 2.11 draws by NumPy."""
    random.setstate(states[0])
    sys.modules["numpy"].random.set_state(states[1])


# `graph.operation_with` calls the next two with an operation's type and name.


def is_random(kind, name):
    """Whether an operation draws random numbers without a state or seed as input, so it cannot repeat them."""
    kinds = ("TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial", "FractionalMaxPool", "FractionalAvgPool")
    samples = kind.endswith("CandidateSampler") and kind != "AllCandidateSampler" or kind.startswith("SampleDistorted")
    return kind in kinds or samples or kind.startswith("Random") and "Dataset" not in kind


def _is_of_tape(kind, name):
    """Whether a GradientTape made an operation for a gradient: TensorFlow names it so."""
    return "gradient_tape" in name
