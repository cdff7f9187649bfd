"""Recompute in eager mode, for any loss: outputs of all slices first, then the loss, then each slice a second time.

A loss that is not a mean over the samples needs the outputs of the whole batch, but not the activations behind them. So
only the model's `call` works in slices, without a tape. The home's own training step computes the loss, the metrics and
the gradient of the loss with respect to the outputs as usual. Each slice is then computed a second time and takes its
part of that gradient backward.
"""

import contextlib
import inspect
import weakref

from legacyga.backend import autograph, features
from legacyga.backend import graph as graphs
from legacyga.backend import ops as _ops
from legacyga.backend.tensors import is_variable
from legacyga.slices import batches, losses, means
from legacyga.slices.gradient_sums import GradientSums, Pieces

ROWS = (
    "Where slices are computed twice, each output of a model is put together of its slices, and has a row for each "
    "sample. Received: {!r} of a slice of {} samples of {!r}. Let it have such rows; or, for a loss that is a mean "
    "over the samples, give recompute=False."
)
RANDOM = (
    "Where slices are computed twice, random layers must draw the same numbers twice. Received: {!r}, whose operation "
    "{!r} cannot. Call keras.backend.experimental.enable_tf_random_generator() before the model is made (tf.keras from "
    "TensorFlow 2.8 on, tf_keras), or leave the layer out. For a loss that is a mean over the samples, give "
    "recompute=False."
)
# Operations that read a variable but do not write it.
READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")

# {model: {description of the arguments: Seen}}, for calls outside traced functions.
_SEEN = weakref.WeakKeyDictionary()


def look(home, model, data, size):
    """Return a `Seen`: what the call of a model does on a slice of a batch."""
    x = data[0] if isinstance(data, (tuple, list)) else data
    call = Cut(home, model, size)
    takes_training = "training" in inspect.signature(model.call).parameters
    given = ((x,), {"training": True} if takes_training else {})
    return _Call(call, given, batches.number_in(home.tf, given)).seen()


@contextlib.contextmanager
def cut(home, model, size):
    """A context in which a call of the model computes its outputs in slices of at most `size` samples."""
    with contextlib.ExitStack() as stack:
        for each in _called(home, model):
            call = autograph.as_written(home.tf, Cut(home, each, size).__call__)
            # Keras inspects the signature.
            call.__signature__ = inspect.signature(each.call)
            stack.enter_context(_replaced(each, call))
        yield


def _called(home, model):
    """Return the models that a training step calls: the model, or its inner models if it has no `call` of its own."""
    if type(model).call is not home.module.Model.call:
        return [model]
    found = {id(each): each for each in means.leaves(list(vars(model).values())) if isinstance(each, home.module.Model)}
    return list(found.values())


@contextlib.contextmanager
def _replaced(model, call):
    """A context in which the model's `call` is another function, or the class's method if `call` is None."""
    attributes = vars(model)
    before = {name: value for name, value in attributes.items() if name == "call"}
    attributes.pop("call", None)
    if call is not None:
        attributes["call"] = call
    try:
        yield
    finally:
        attributes.pop("call", None)
        attributes.update(before)


class Cut(object):
    """Replaces a model's `call`, and returns the same outputs, computed in slices of at most `size` samples."""

    def __init__(self, home, model, size):
        self._home, self._model, self._size = home, model, size
        self._tf, self._ops = home.tf, _ops.Ops(home.tf)
        self._tape = features.tape_module(home.tf)

    def __call__(self, *args, **kwargs):
        given = (args, kwargs)
        samples = batches.number_in(self._tf, given)
        if isinstance(samples, int) and samples <= self._size:
            with _replaced(self._model, None):
                return self._model(*args, **kwargs)
        with self._ops.after(batches.checked(self._tf, given, samples)):
            samples = samples if isinstance(samples, int) else self._tf.identity(samples)
        return _Call(self, given, samples).outputs()


class _Call(object):
    """One call of a model in slices."""

    def __init__(self, cut, given, samples):
        self.model, self.home, self.size = cut._model, cut._home, cut._size
        self.tf, self.ops, self.tape = cut._tf, cut._ops, cut._tape
        self.given, self.samples = given, samples
        tf = self.tf
        self.full = (
            (samples - 1) // self.size if isinstance(samples, int) else tf.maximum((samples - 1) // self.size, 0)
        )
        self.rest = samples - self.full * self.size
        # A slice returns a flat list of tensors. By their places in it: {loss of one number: whether it is a sum},
        # {values of a ragged tensor: how many tensors of row lengths follow}, tensors with a row for each sample.
        self.scalars, self.ragged, self.rows = {}, {}, set()
        # The layers that added the losses.
        self.adding = []

    def outputs(self):
        tf, tape = self.tf, self.tape
        with tape.stop_recording():
            seen = self.seen()
            if seen.random:
                raise ValueError(RANDOM.format(self.model, seen.random))
            before = self._read(seen.written)
            template, joined = self._run_forward()
        variables = [(each, _raw(each)) for each in self.model.trainable_variables]
        # The tape records these reads, which connect the outputs to the variables.
        values = [raw.read_value() for _, raw in variables]
        inputs = [each for each in tf.nest.flatten(self.given) if isinstance(each, tf.Tensor) and _has_gradient(each)]
        inputs = [each for each in inputs if tape.should_record_backprop([each])]
        at = [i for i, each in enumerate(joined) if _has_gradient(each)]
        for i in at:
            joined[i] = tf.identity(joined[i])

        def backward(*upstream):
            upstream = {i: tf.convert_to_tensor(each) for i, each in zip(at, upstream) if each is not None}
            now = self._read(seen.written)
            self._write(seen.written, before)
            gradients = self._run_backward(upstream, joined, variables, inputs)
            self._write(seen.written, now)
            return gradients

        tape.record_operation("LegacygaSlices", [joined[i] for i in at], values + inputs, backward)
        return self._put_together(template, joined)

    def _run_forward(self):
        """Return the outputs of the first slice, and the tensors of the whole batch in the order of `_tensors_of`."""
        ops, tf = self.ops, self.tf
        template, first = self._take(0, self.rest)
        pieces = Pieces(ops, self.full + 1)
        rows = [i for i in range(len(first)) if i not in self.scalars]
        counts = sorted(self.scalars)
        totals = [self._counted(i, first[i], self.rest) for i in counts]

        def body(number, arrays, totals):
            _, found = self._take(self.rest + number * self.size, self.size)
            arrays = [pieces.written(array, number + 1, found[i]) for array, i in zip(arrays, rows)]
            totals = [total + self._counted(i, found[i], self.size) for total, i in zip(totals, counts)]
            with ops.after(found):
                return ops.identity(number + 1), arrays, totals

        with ops.after(first):
            number = ops.identity(tf.constant(0))
        started = (number, [pieces.begun(first[i]) for i in rows], totals)
        _, arrays, totals = tf.while_loop(lambda number, *_: number < self.full, body, started, parallel_iterations=1)
        joined = list(first)
        for i, array in zip(rows, arrays):
            joined[i] = pieces.joined(array, first[i])
            if i in self.rows and isinstance(self.samples, int):
                joined[i].set_shape([self.samples] + list(first[i].shape[1:]))
        for i, total in zip(counts, totals):
            joined[i] = total if self.scalars[i] else total / ops.cast(self.samples, total.dtype)
        return template, joined

    def _counted(self, place, scalar, length):
        """Return what a slice's scalar adds to the batch: itself if it is a sum, else itself times the samples."""
        return scalar if self.scalars[place] else scalar * self.ops.cast(length, scalar.dtype)

    def _take(self, begin, length, cut=()):
        """Run one slice and return (outputs, tensors).

        Args:
            cut: {id of an argument's tensor: its slice}, for tensors that are already sliced.
        """
        outputs, added = self._call(self._slice(begin, length, cut))
        found = self._tensors_of(outputs, length)
        for loss, is_sum, _ in added:
            if loss.shape.ndims == 0:
                self.scalars[len(found)] = is_sum
            found.append(loss)
        self.adding = [layer for _, _, layer in added]
        return outputs, found

    def _slice(self, begin, length, cut=()):
        """Return the arguments of one slice."""
        tf = self.tf

        def part(leaf):
            return cut[id(leaf)] if id(leaf) in cut else batches.slice_of(tf, leaf, begin, length)

        return tf.nest.map_structure(part, self.given)

    def _call(self, part):
        """Return the outputs of one slice, and [(loss from add_loss, whether it is a sum, its layer)]."""
        model, (args, kwargs) = self.model, part
        with _replaced(model, None):
            model._clear_losses()
            outputs = model(*args, **kwargs)
        kept = "_losses" if self.home.is_keras3 else "_eager_losses"
        sums_up, added = features.sums_activities(self.home), []
        for layer in features.layers_of(model):
            is_sum = sums_up and getattr(layer, "activity_regularizer", None) is not None
            added.extend((loss, is_sum, layer) for loss in getattr(layer, kept, ()) if self.tf.is_tensor(loss))
        model._clear_losses()
        return outputs, added

    def _tensors_of(self, outputs, length):
        """Return the tensors of nested outputs, followed by their masks.

        Raises ValueError if an output does not have one row per sample.
        """
        tf, found = self.tf, []
        leaves = [each for each in tf.nest.flatten(outputs) if each is not None]
        for leaf in leaves:
            if isinstance(leaf, tf.RaggedTensor):
                lengths = list(leaf.nested_row_lengths())
                self.ragged[len(found)] = len(lengths)
                found.extend([leaf.flat_values] + lengths)
                continue
            shape = getattr(leaf, "shape", tf.TensorShape(()))
            if not tf.is_tensor(leaf) or not shape.ndims or isinstance(length, int) and shape[0] not in (None, length):
                raise ValueError(ROWS.format(leaf, length, self.model))
            self.rows.add(len(found))
            found.append(leaf)
        masks = [losses.mask_of(each) for each in leaves if losses.mask_of(each) is not None]
        self.rows.update(range(len(found), len(found) + len(masks)))
        return found + masks

    def _put_together(self, template, joined):
        """Return the outputs of the whole batch with their masks, and add the layers' losses to their layers."""
        tf, joined, leaves = self.tf, iter(joined), []
        for leaf in tf.nest.flatten(template):
            if isinstance(leaf, tf.RaggedTensor):
                values, lengths = next(joined), [next(joined) for _ in range(leaf.ragged_rank)]
                leaves.append(tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False))
            else:
                leaves.append(leaf if leaf is None else next(joined))
        for leaf, made in zip(tf.nest.flatten(template), leaves):
            if leaf is not None and losses.mask_of(leaf) is not None:
                made._keras_mask = next(joined)
        for layer, loss in zip(self.adding, joined):
            # The add_loss of a functional model in Keras 3 raises, so use the one of Layer.
            self.home.module.layers.Layer.add_loss(layer, loss)
        return tf.nest.pack_sequence_as(template, leaves)

    def _run_backward(self, upstream, joined, variables, inputs):
        """Compute each slice again, and return the gradients of the variables, then those of the inputs.

        Args:
            upstream: {place: gradient of the whole batch's tensor at this place}.
        """
        ops, tf = self.ops, self.tf
        sums = GradientSums(ops, [each for each, _ in variables], self.full + 1)
        pieces = Pieces(ops, self.full + 1)

        def take(begin, length):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([raw for _, raw in variables])
                watched = [batches.slice_of(tf, each, begin, length) for each in inputs]
                tape.watch(watched)
                _, found = self._take(begin, length, dict(zip(map(id, inputs), watched)))
            parts = [self._part(upstream, joined, i, begin, length) for i in upstream]
            sources = [raw for _, raw in variables] + watched
            found = tape.gradient([found[i] for i in upstream], sources, output_gradients=parts)
            return found[: len(variables)], found[len(variables) :]

        first, of_inputs = take(0, self.rest)
        at = [i for i, each in enumerate(first) if each is not None]
        wanted = [i for i, each in enumerate(of_inputs) if each is not None]

        def body(number, totals, arrays):
            found, of_inputs = take(self.rest + number * self.size, self.size)
            totals = [sums.added(i, total, found[i], number + 1) for i, total in zip(at, totals)]
            arrays = [pieces.written(array, number + 1, of_inputs[i]) for i, array in zip(wanted, arrays)]
            with ops.after([found[i] for i in at]):
                return ops.identity(number + 1), totals, arrays

        started = [sums.begun(i, first[i]) for i in at], [pieces.begun(of_inputs[i]) for i in wanted]
        with ops.after([first[i] for i in at]):
            number = ops.identity(tf.constant(0))
        _, totals, arrays = tf.while_loop(
            lambda number, *_: number < self.full, body, (number,) + started, parallel_iterations=1
        )
        for i, total in zip(at, totals):
            first[i] = sums.result(i, total, first[i])
        for i, array in zip(wanted, arrays):
            of_inputs[i] = pieces.joined(array, of_inputs[i])
        return first + of_inputs

    def _part(self, upstream, joined, place, begin, length):
        """Return a slice's part of the gradient of the whole batch's tensor at `place`."""
        ops, tf, gradient = self.ops, self.tf, upstream[place]
        if place in self.scalars:
            share = ops.cast(length, gradient.dtype) / ops.cast(self.samples, gradient.dtype)
            return gradient if self.scalars[place] else gradient * share
        if place in self.ragged:
            lengths = joined[place + 1 : place + 1 + self.ragged[place]]
            gradient = tf.RaggedTensor.from_nested_row_lengths(gradient, lengths, validate=False)
            return batches.slice_of(tf, gradient, begin, length).flat_values
        return batches.slice_of(tf, gradient, begin, length)

    def seen(self):
        """Return what a call on one slice does, found in a trace that never runs."""
        is_eager = self.tf.executing_eagerly()
        known = _SEEN.setdefault(self.model, {}) if is_eager else {}
        leaves = self.tf.nest.flatten(self.given)
        key = tuple(
            str((getattr(each, "shape", each)[1:], each.dtype)) if hasattr(each, "dtype") else each for each in leaves
        )
        key += tuple(each.trainable for each in features.layers_of(self.model))
        if key not in known:
            known[key] = self._look()
        return known[key]

    def _look(self):
        found = []

        def call():
            found.extend(self._call(self._slice(0, self.rest)))

        graph = self.tf.function(call, autograph=False).get_concrete_function().graph
        return Seen(self.tf, graph, self.tf.nest.flatten(found[0]), [loss for loss, _, _ in found[1]])

    def _read(self, written):
        return [self.tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) for handle, dtype in written]

    def _write(self, written, values):
        for (handle, _), value in zip(written, values):
            self.tf.raw_ops.AssignVariableOp(resource=handle, value=value)


class Seen(object):
    """What a traced call of a model does.

    Attributes:
        written: [(handle, dtype)] of the variables that it writes, or may write within a loop or branch.
        random: the name of an operation for which `is_random` is true, None if there is none.
        masked: whether an output has a mask.
        ranks: the ranks of the outputs.
        adds_rows: whether a layer adds a loss that is more than one number.
    """

    def __init__(self, tf, graph, outputs, added):
        self.masked = any(losses.mask_of(each) is not None for each in outputs)
        self.ranks = [tf.TensorShape(getattr(each, "shape", ())).ndims for each in outputs]
        self.adds_rows = any(each.shape.ndims != 0 for each in added)
        found = graph.get_operations()
        self.random = next((each.name for each in found if is_random(each.type, each.name)), None)
        self.random, self.written = self.random or graphs.function_with(graph, found, is_random), []
        for outer, inner in zip(graph.external_captures, graph.internal_captures):
            data = getattr(outer, "_handle_data", None)
            is_known = inner.dtype == tf.resource and data is not None and data.is_set
            if is_known and any(each.type not in READS for each in inner.consumers()):
                self.written.append((outer, tf.as_dtype(data.shape_and_type[0].dtype)))


def is_random(kind, name):
    """Whether an operation draws random numbers without a state or seed as input, so it cannot repeat them."""
    kinds = ("TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")
    return kind in kinds or kind.startswith("Random") and "Dataset" not in kind


def _raw(variable):
    """Return TensorFlow's variable inside an AutoCastVariable (mixed precision) or a variable of Keras 3."""
    for name in ("_variable", "_value"):
        inner = getattr(variable, name, None)
        if is_variable(inner):
            return inner
    return variable


def _has_gradient(tensor):
    return tensor.dtype.is_floating or tensor.dtype.is_complex
