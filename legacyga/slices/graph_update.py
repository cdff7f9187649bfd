"""Graph mode: sum the gradients of slices, and give the optimizer their mean in place of the gradient of a loss."""

import contextlib

from legacyga.backend import ops as _ops
from legacyga.backend import update_order
from legacyga.backend.tensors import is_sparse
from legacyga.optimizers import lookup, surface
from legacyga.slices import batches
from legacyga.windows.gradient_accumulator import GradientAccumulator

GRADIENT = "LegacygaMeanGradient"


class MiniStep(object):
    """A mini-step of an accumulator, which replaces the update in a training function.

    Attributes:
        loss, params: the arguments of `get_updates`.
        operation: the mini-step with the gradients of the loss.
        update: the update of the optimizer, a tensor. `make_update` sets it.
        variables: the variables of the accumulator.
    """

    def __init__(self, home, model, loss, params):
        self._home, self._ops = home, _ops.Ops(home.tf)
        self.loss, self.params, self.variables = loss, params, []
        self._accumulator = GradientAccumulator()
        self._samples = self._ops.cast(batches.size_of(home.tf, model._feed_inputs[0]), "float64")
        self.operation = self.take(home.tf.gradients(loss, params)).op

    def take(self, gradients):
        """Return a mini-step with these gradients, a tensor. Its weight is the number of samples fed."""
        known = set(self._home.v1.global_variables())
        taken = self._accumulator(gradients, self._samples)
        made = [each for each in self._home.v1.global_variables() if each not in known]
        _make_local(self._home, made)
        self.variables.extend(made)
        return taken

    def _all_samples(self):
        return self._accumulator._weight.read_value()

    def make_update(self, optimizer):
        ops, means, params = self._ops, self._accumulator.gradients, self.params

        def updates():
            # get_updates needs a loss: build one whose gradients are the means.
            terms = [_term(ops, mean, param) for mean, param in zip(means, params) if mean is not None]
            with contextlib.ExitStack() as entered:
                for each in lookup.optimizers_in(optimizer):
                    # The slices of a batch are gone when it is taken as a mini-step: the sum of their samples is there.
                    entered.enter_context(surface.accumulation_of(each).of_loss(self.loss, params, self._all_samples))
                return optimizer.get_updates(loss=ops.tf.add_n(terms), params=params)

        # An accumulating optimizer orders its update itself.
        update = updates() if lookup.optimizers_in(optimizer) else update_order.ordered(updates, ops, means)
        with ops.after(update):
            self.update = self._accumulator.reset()


def recorder(optimizer, home, model, made):
    """Return an optimizer that shares all state with `optimizer`, whose `get_updates` puts a `MiniStep` in `made`."""
    cls = type(optimizer)

    def get_updates(self, loss, params):
        if not params:
            return optimizer.get_updates(loss=loss, params=params)
        step = MiniStep(home, model, loss, params)
        step.make_update(optimizer)
        made[:] = [step]
        return [step.operation]

    recorder = object.__new__(type(cls.__name__, (cls,), dict(get_updates=get_updates)))
    object.__setattr__(recorder, "__dict__", vars(optimizer))
    return recorder


def _make_local(home, variables):
    """Make variables local, so that neither a Saver nor Keras saves them."""
    v1 = home.v1
    known = v1.get_collection_ref(v1.GraphKeys.GLOBAL_VARIABLES)
    known[:] = [each for each in known if not any(each is variable for variable in variables)]
    for each in variables:
        v1.add_to_collection(v1.GraphKeys.LOCAL_VARIABLES, each)


def _term(ops, mean, param):
    """Return a scalar whose gradient with respect to `param` is `mean`."""
    tf, has_rows = ops.tf, is_sparse(mean)

    def gradient(op, upstream, *_):
        return [None, ops.cast(upstream, op.inputs[2].dtype) * op.inputs[2], None]

    # Register one gradient for all. tf.custom_gradient would register each for good, and keep its graph alive.
    with contextlib.suppress(KeyError):
        tf.RegisterGradient(GRADIENT)(gradient)
    point = tf.gather(param, mean.indices) if has_rows else tf.convert_to_tensor(param)
    with ops.v1.get_default_graph().gradient_override_map({"IdentityN": GRADIENT}):
        return tf.identity_n([tf.constant(0.0), point, mean.values if has_rows else mean])[0]
