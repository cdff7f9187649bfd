"""Call a model on the slices of a batch, and attach the slices' gradient to the outputs for the whole batch."""

import contextlib
import functools

from legacyga.backend import autograph, features
from legacyga.backend import ops as _ops
from legacyga.backend.messages import shown
from legacyga.backend.tensors import is_differentiable, is_variable
from legacyga.slices import batches, losses
from legacyga.slices.loop import Loop, Rows, SharedRows, TableRows, Total, joins_gradient

ROWS = (
    "micro_batch can join an output of several slices only if it has a row for each sample. Received: {} of a slice "
    "of {} samples of {}. Let it have such rows, or compute it in the loss. If it is one number, a mean over the "
    "samples, give recompute=False."
)
OUTSIDE = (
    "The gradient of a model in slices must be taken where the model is called. Received: {}, an operation of a call "
    "within a tf.function, tf.map_fn, tf.while_loop or tf.cond, and a gradient from outside of it, or by tf.gradients. "
    "Call the model in the train_step itself, or take the gradient by a GradientTape within the function."
)
# Attributes of these types may switch what a layer computes.
PLAIN = (bool, int, float, str, type(None))
_REFUSES = "LegacygaGradientFromOutside"


def arguments(model, x):
    """Return (args, kwargs) with which Keras's training step calls the model."""
    # Only Keras 3 has this attribute: Keras 3 passes `training` only to a `call` that takes it.
    return (x,), {"training": True} if getattr(model, "_call_has_training_arg", True) else {}


@contextlib.contextmanager
def replaced(model, call):
    """A context in which the model's `call` is another function, or its own again if `call` is None."""
    attributes = vars(model)
    before = {name: value for name, value in attributes.items() if name == "call"}
    attributes.pop("call", None)
    # {"call": what the user or a SavedModel has set on the object}, or {}. A function of ours keeps this as `before`.
    own = getattr(before.get("call"), "before", before)
    if call is None:
        attributes.update(own)
    else:
        # Replicas take turns within a step, so another replica's function may be in place now. Never restore that.
        call.before = before = own
        attributes["call"] = call
    try:
        yield
    finally:
        # If another replica's function is in place, that replica began later, ends later, and restores.
        if call is None or attributes.get("call") is call:
            attributes.pop("call", None)
            attributes.update(before)


@contextlib.contextmanager
def uncut(models):
    """A context in which the `call` of each model is its own again."""
    with contextlib.ExitStack() as stack:
        for each in models:
            stack.enter_context(replaced(each, None))
        yield


def again(home, model):
    """Return Keras's own `__call__` of a model, for use within its call, where the user's `__call__` is under way."""
    return functools.partial(home.module.layers.Layer.__call__, model)


@contextlib.contextmanager
def without_penalty(model):
    """A context in which a model has no activity_regularizer: the model's call in progress adds that loss."""
    before = getattr(model, "activity_regularizer", None)
    if before is None:
        yield
        return
    model.activity_regularizer = None
    try:
        yield
    finally:
        model.activity_regularizer = before


class SlicedCall(object):
    """One call of a model in slices, with `given`, the (args, kwargs) of the whole batch.

    Each slice yields a flat list of tensors: its outputs (a ragged one as values and row lengths, a softmax or sigmoid
    without `_keras_logits` as its input), their masks, their `_keras_logits`, and what its layers added to the loss.

    `models`, if this runs within `model.__call__`: all models whose `call` is replaced. The first one trains.
    """

    # Whether an output may be one number, as a mean over the samples.
    joins_numbers = False

    def __init__(self, home, model, given, samples, size, models=()):
        self.home, self.model, self.given, self.samples = home, model, given, samples
        self.models, self._is_within = models or [model], bool(models)
        self.tf, self.ops, self.tape = home.tf, _ops.Ops(home.tf), features.tape_module(home.tf)
        self.loop = Loop(self.ops, samples, size)
        # `scalars`: {place of a single number in the flat list: whether it is a sum, not a mean}.
        # `ragged`: {place of a ragged tensor's values: how many tensors of row lengths follow}.
        self.scalars, self.ragged = {}, {}
        # The result of `tables_of_shared_rows`, None until a gradient asks for it.
        self._tables = None
        # The outputs of a slice, the layers that added its losses, and the list that `variables` returns.
        self._template, self._adding, self._variables = None, [], None
        # If `call` takes no `training`, its layers take that of the call in progress. The second pass comes after this
        # call, so give each slice's call its `training`.
        training = features.training_of_call(home)
        self.told = {} if training is None or features.is_told_of_training(home, model) else {"training": training}

    def part(self, nested, begin, length):
        return self.tf.nest.map_structure(lambda leaf: self.argument(leaf, begin, length), nested)

    def argument(self, leaf, begin, length):
        """Return a slice of a tensor that the model is called with, with a slice of its mask attached."""
        part, mask = batches.slice_of(self.tf, leaf, begin, length), losses.mask_of(leaf)
        if mask is not None and part is not leaf:
            part._keras_mask = batches.slice_of(self.tf, mask, begin, length)
        return part

    def call(self, part):
        """Return the outputs of one slice, and [(loss from add_loss, whether it is a sum, its layer)]."""
        model, (args, kwargs) = self.model, part
        # Keep the losses of an earlier call in this step, as where an outer model calls this one twice.
        before = [(layer, list(features.losses_kept_by(layer))) for layer in features.layers_of(model)]
        added = []
        try:
            with uncut(self.models):
                model._clear_losses()
                call = again(self.home, model) if self._is_within else model
                with without_penalty(model) if self._is_within else contextlib.ExitStack():
                    outputs = call(*args, **dict(kwargs, **self.told))
            for layer in features.layers_of(model):
                is_sum, kept = features.sums_activities(self.home, layer), features.losses_kept_by(layer)
                added.extend((loss, is_sum, layer) for loss in kept if self.tf.is_tensor(loss))
        finally:
            model._clear_losses()
            for layer, kept in before:
                features.losses_kept_by(layer).extend(kept)
        return outputs, added

    def tensors_of(self, outputs, added, length):
        """Return the flat list of tensors of a slice; raise if an output is known not to have one row per sample."""
        tf, found = self.tf, []
        leaves = [each for each in tf.nest.flatten(outputs) if each is not None]
        for leaf in leaves:
            if isinstance(leaf, tf.RaggedTensor):
                lengths = list(leaf.nested_row_lengths())
                self.ragged[len(found)] = len(lengths)
                found.extend([leaf.flat_values] + lengths)
                continue
            shape = getattr(leaf, "shape", tf.TensorShape(()))
            if self.joins_numbers and tf.is_tensor(leaf) and shape.ndims == 0 and is_differentiable(leaf.dtype):
                self.scalars[len(found)] = False
                found.append(leaf)
                continue
            is_unlike = isinstance(length, int) and shape.ndims and shape[0] not in (None, length)
            if not tf.is_tensor(leaf) or shape.ndims == 0 or is_unlike:
                raise ValueError(ROWS.format(shown(leaf), length, shown(self.model)))
            found.append(self._rows(leaf, length))
        for attached in (losses.mask_of, losses.logits_of):
            found += [attached(each) for each in leaves if attached(each) is not None]
        for loss, is_sum, _ in added:
            if loss.shape.ndims == 0:
                self.scalars[len(found)] = is_sum
            found.append(loss)
        self._template, self._adding = outputs, [layer for _, _, layer in added]
        return found

    def _rows(self, leaf, length):
        """Return the tensor to join for an output: the input of its softmax or sigmoid, else the output itself."""
        tf = self.tf
        rows = leaf if losses.activation_of(tf, leaf) is None else leaf.op.inputs[0]
        if leaf.shape.ndims and leaf.shape[0] is not None:
            return rows
        # Only the run tells the number of rows, for example after a tf.boolean_mask.
        message = ROWS.format(shown(leaf), "some", shown(self.model))
        with self.ops.after(tf.debugging.assert_equal(tf.shape(rows)[0], length, message) or []):
            return tf.identity(rows)

    def share(self, place, length, dtype):
        """Return the weight of a slice's number at `place` in the batch's: 1 for a sum, a slice's share for a mean."""
        return 1 if self.scalars[place] else self.loop.share(length, dtype)

    def joins(self, found, length):
        """Return the flat list of a slice as pairs for `Loop.run`."""
        pairs = []
        for i, each in enumerate(found):
            is_one = i in self.scalars
            pairs.append((Total, each * self.share(i, length, each.dtype)) if is_one else (Rows, each))
        return pairs

    def modes(self):
        """Return [(layer, whether it is trainable, its PLAIN attributes)]: the call may depend on these."""
        layers = features.layers_of(self.model)
        return [(each, each.trainable, _plain(each, vars(each))) for each in layers]

    def since_built(self, modes):
        """Return `modes`, with the present attributes of layers not yet built then: the old ones would undo a build."""
        return [(each, t, p if p.get("built", True) else _plain(each, vars(each))) for each, t, p in modes]

    @contextlib.contextmanager
    def as_called(self, modes):
        """A context in which the layers have the first pass's `modes`, which the step may have changed since.

        With others the second pass could differ: a frozen BatchNormalization uses its moving averages.
        """
        now = [(layer, layer.trainable, _plain(layer, before)) for layer, _, before in modes]
        _set_modes(modes)
        try:
            yield
        finally:
            _set_modes(now)

    def variables(self):
        """Return [(trainable variable, TensorFlow's variable in it)], the same list each time."""
        # Between the call and the gradient, a step may freeze or unfreeze the model, as a GAN's does.
        if self._variables is None:
            self._variables = [(each, raw_of(each)) for each in features.trainable_variables_of(self.model)]
        return self._variables

    def traced(self):
        """Trace the call on an unknown number of samples, and return (the graph, what `call` returned).

        Return None if the trace fails, as where a layer needs the number of samples.
        """
        tf, found, leaves = self.tf, [], batches.of_samples(self.tf, self.given)

        def call(*parts):
            cut = dict(zip(map(id, leaves), parts))
            found[:] = self.call(tf.nest.map_structure(lambda leaf: cut.get(id(leaf), leaf), self.given))

        call = autograph.as_written(tf, call)
        try:
            # The shape of a tensor of unknown rank raises here.
            specs = [tf.TensorSpec([None] + list(each.shape[1:]), each.dtype) for each in leaves]
            return tf.function(call, autograph=False).get_concrete_function(*specs).graph, found
        except Exception:
            return None

    def joins_gradient(self, variable, gradient):
        """Return the subclass of `Join` that joins a variable's gradients over the slices."""
        kind = joins_gradient(self.ops, variable, gradient)
        # In eager mode a trace for each batch would cost too much.
        if kind is not TableRows or self.tf.executing_eagerly():
            return kind
        if self._tables is None:
            traced = self.traced()
            self._tables = () if traced is None else batches.tables_of_shared_rows(self.tf, traced[0])
        # Each slice has a gradient for the same rows of such a table. Keras 3's Adam would square each, not their sum,
        # so add them up first.
        return SharedRows if id(raw_of(variable).handle) in self._tables else kind

    def recorded(self, joined, inputs, backward):
        """Return the outputs of the whole batch, whose flat list is `joined`, with `backward` as their gradient.

        `backward({place: upstream gradient})` returns the gradients of variables, then of `inputs`.
        """
        # The tape records these reads, which connect the outputs to the variables.
        values = [raw.read_value() for _, raw in self.variables()]
        at = [i for i, each in enumerate(joined) if is_differentiable(each.dtype)]
        if not at:
            return self._put_together(joined)
        for i in at:
            # The tape may have recorded the slices, too: cut them off.
            joined[i] = self.tf.stop_gradient(joined[i])
        with self.tape.stop_recording():
            for i, each in zip(at, self._refusing([joined[i] for i in at] + values + inputs)):
                joined[i] = each
        # The places that a gradient reaches: `_noting` adds them before `call_backward`.
        read = set()

        def call_backward(*upstream):
            # For an output that the loss does not use, the tape passes zeros. Leave it out: an optimizer may move a
            # variable whose gradient is zero, but none whose gradient is None.
            found = {i: self.tf.convert_to_tensor(each) for i, each in zip(at, upstream) if i in read}
            read.clear()
            return backward(found)

        self.tape.record_operation("LegacygaSlices", [joined[i] for i in at], values + inputs, call_backward)
        for i in at:
            joined[i] = self._noting(joined[i], lambda i=i: read.add(i))
        return self._put_together(joined)

    def _noting(self, tensor, note):
        """Return an equal tensor. A tape calls `note()` when it passes a gradient through it."""
        with self.tape.stop_recording():
            noted = self.tf.identity(tensor)

        def backward(upstream):
            note()
            return [upstream]

        self.tape.record_operation("LegacygaOutput", [noted], [tensor], backward)
        return noted

    def _refusing(self, tensors):
        """Return equal tensors that make tf.gradients and outer functions' tapes raise: these lack our gradient."""
        tf, here = self.tf, self.ops.graph_here()
        if here is None:
            return tensors

        def refuse(operation, *upstream):
            raise ValueError(OUTSIDE.format(shown(operation.name)))

        with contextlib.suppress(KeyError):
            tf.RegisterGradient(_REFUSES)(refuse)
        with here.gradient_override_map({"IdentityN": _REFUSES}):
            return tf.identity_n(tensors)

    def _put_together(self, joined):
        """Return the outputs of the whole batch with their masks, and add the layers' losses to their layers."""
        tf, template, joined, leaves = self.tf, self.tf.nest.flatten(self._template), iter(joined), []
        for leaf in template:
            if isinstance(leaf, tf.RaggedTensor):
                values, lengths = next(joined), [next(joined) for _ in range(leaf.ragged_rank)]
                leaves.append(tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False))
                continue
            leaves.append(leaf if leaf is None else next(joined))
            if leaf is None or not leaf.shape.ndims:
                continue
            activation = losses.activation_of(tf, leaf)
            if activation is not None:
                leaves[-1] = activation(leaves[-1])
            if isinstance(self.samples, int):
                leaves[-1].set_shape([self.samples] + list(leaf.shape[1:]))
        for name, attached in (("_keras_mask", losses.mask_of), ("_keras_logits", losses.logits_of)):
            for leaf, made in zip(template, leaves):
                if leaf is not None and attached(leaf) is not None:
                    setattr(made, name, next(joined))
        for layer, loss in zip(self._adding, joined):
            # The add_loss of a functional model in Keras 3 raises, so use the one of Layer.
            self.home.module.layers.Layer.add_loss(layer, loss)
        return tf.nest.pack_sequence_as(self._template, leaves)


def _plain(layer, names):
    """Return {name: value} of a layer's attributes with these names whose type is in PLAIN."""
    found = vars(layer)
    return {name: found[name] for name in names if name in found and type(found[name]) in PLAIN}


def _set_modes(modes):
    # A model passes its `trainable` on to its layers, which come after it.
    for layer, trainable, _ in modes:
        if layer.trainable != trainable:
            layer.trainable = trainable
    for layer, _, plain in modes:
        # Leave alone an attribute that is an object now: a build, or the step itself, has made the object.
        now = _plain(layer, plain)
        vars(layer).update((name, value) for name, value in plain.items() if name in now and now[name] != value)


def raw_of(variable):
    """Return TensorFlow's variable inside an AutoCastVariable (mixed precision) or a variable of Keras 3."""
    for name in ("_variable", "_value"):
        inner = getattr(variable, name, None)
        if is_variable(inner):
            return inner
    return variable


def values_of(tensor):
    """Return the values of a ragged or sparse tensor, or the tensor itself."""
    return getattr(tensor, "flat_values", getattr(tensor, "values", tensor))
