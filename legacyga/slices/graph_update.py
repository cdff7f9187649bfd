"""Graph mode: add up the gradients of slices, and give the optimizer their sum in place of the gradient of a loss."""

import contextlib

from legacyga.backend import ops as _ops
from legacyga.backend import update_order
from legacyga.backend.tensors import is_sparse
from legacyga.optimizers import lookup
from legacyga.windows.gradient_accumulator import GradientAccumulator

GRADIENT = "LegacygaSumGradient"


class MiniStep(object):
    """The mini-steps of an accumulator, and the update, for a training function.

    Attributes:
        loss, params: the arguments of `get_updates`.
        share: a placeholder for the share of a slice's samples in those of the batch.
        operations: the mini-step with the gradients of a slice's loss, times `share`, in a list.
        update: the update of the optimizer, a tensor. `make_update` sets it.
        variables: the variables of the accumulator.
    """

    def __init__(self, home, loss, params):
        self._home, self._ops = home, _ops.Ops(home.tf)
        self.loss, self.params, self.variables = loss, params, []
        self._accumulator = GradientAccumulator(reduction="sum")
        self.share = home.v1.placeholder("float64", [])
        self.operations = self.take(home.tf.gradients(loss, params), self.share)

    def take(self, gradients, weight=1.0):
        """Return [the mini-step with these gradients], [] if there are none."""
        if all(each is None for each in gradients):
            return []
        known = set(self._home.v1.global_variables())
        taken = self._accumulator(gradients, weight)
        made = [each for each in self._home.v1.global_variables() if each not in known]
        _make_local(self._home, made)
        self.variables.extend(made)
        return [taken.op]

    def make_update(self, optimizer):
        ops, gradients, params = self._ops, self._accumulator.gradients, self.params

        def updates():
            # get_updates needs a loss: build one that has these gradients.
            terms = [_term(ops, each, param) for each, param in zip(gradients, params) if each is not None]
            return optimizer.get_updates(loss=ops.tf.add_n(terms), params=params)

        # An accumulating optimizer orders its update itself.
        update = updates() if lookup.optimizers_in(optimizer) else update_order.ordered(updates, ops, gradients)
        with ops.after(update):
            self.update = self._accumulator.reset()


def recorder(optimizer, home, made):
    """Return an optimizer that shares all state with `optimizer`, whose `get_updates` puts a `MiniStep` in `made`."""
    cls = type(optimizer)

    def get_updates(self, loss, params):
        if not params:
            return optimizer.get_updates(loss=loss, params=params)
        step = MiniStep(home, loss, params)
        step.make_update(optimizer)
        made[:] = [step]
        # The session runs them, not Keras.
        return []

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


def _term(ops, given, param):
    """Return a scalar whose gradient with respect to `param` is `given`."""
    tf, has_rows = ops.tf, is_sparse(given)

    def gradient(op, upstream, *_):
        return [None, ops.cast(upstream, op.inputs[2].dtype) * op.inputs[2], None]

    # Register one gradient for all. tf.custom_gradient would register each for good, and keep its graph alive.
    with contextlib.suppress(KeyError):
        tf.RegisterGradient(GRADIENT)(gradient)
    point = tf.gather(param, given.indices) if has_rows else tf.convert_to_tensor(param)
    with ops.v1.get_default_graph().gradient_override_map({"IdentityN": GRADIENT}):
        return tf.identity_n([tf.constant(0.0), point, given.values if has_rows else given])[0]
