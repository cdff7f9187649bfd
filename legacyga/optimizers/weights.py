"""The weights of an optimizer's mini-steps: those that a program gives, and those that are counted."""

import contextlib

from legacyga.windows import checks


class Weighing(object):
    """The part of an `accumulation.Accumulation` that knows what a mini-step weighs."""

    def __init__(self):
        # Whether a mini-step has ever had a weight, or somebody was told that none has.
        self.knows_weights = False
        # Whether it was said that no weight makes a mini-step right.
        self.has_warned = False
        # In graph mode, whether the losses were looked at: that adds operations to the graph.
        self.knows_losses = False
        self._weights = {}
        # The mini-steps that were made, whether the last one's gradients came as sums over the replicas, and whether
        # one was made in a function that is traced.
        self._made, self.is_handed_sums, self._is_traced = 0, False, False

    def note_made(self, is_handed_sums):
        """A mini-step is being made."""
        self._made, self.is_handed_sums = self._made + 1, is_handed_sums
        self._is_traced = self._is_traced or not self.home.tf.executing_eagerly()

    def weight_here(self):
        """The `Weight` of a mini-step on this replica, None for 1."""
        # One that was given outside of all replicas is each one's.
        weight = self._weights.get(self.ops.replica_number()) or self._weights.get(None)
        if weight is None:
            return None
        if not weight.is_sample_count and not self.ops.is_made_with(weight.given_in):
            raise ValueError(
                "A function that is traced keeps the weight of its first trace. Received: mini_step_weight({!r}) "
                "around the call of such a function. Enter the context in it, around apply_gradients, or give the "
                "model a train_step that does.".format(weight.value)
            )
        # In one dtype: workers exchange it.
        return weight._replace(value=self.ops.cast(weight.value, "float64"))

    @contextlib.contextmanager
    def weighing(self, weight):
        """A context: the mini-steps taken in it on this replica have this `Weight`."""
        given = weight.value
        if not weight.is_sample_count:
            value = checks.check_weight(self.ops, given)
            weight = weight._replace(value=value, given_in=self.ops.graph_here())
        # Eager mode alone takes no mini-step behind our back, and a LossScaleOptimizer counts what it skips: up to TF
        # 2.4 it does not say that it is there.
        watched = self._is_traced and not (weight.is_sample_count or self.home.graph_mode)
        counters = list(self.registry().counters.values()) if watched else []
        counted = self._counted(counters)
        # By replica: their threads take turns between here and the optimizer's call.
        weights, number, made = self._weights, self.ops.replica_number(), self._made
        before, weights[number] = weights.get(number), weight
        self.knows_weights = True
        try:
            yield
        finally:
            weights[number] = before
        if self._made > made:
            return
        # Nothing was made here. A function that was traced before may have taken a mini-step.
        if self.home.graph_mode or self._counted(counters) != counted:
            raise ValueError(
                "In a graph, or a function that was traced, a mini-step has the weight that it was made with, and no "
                "mini-step was made in this context. Received: {!r}. Make the mini-step in it, with a tensor as its "
                "weight.".format(given)
            )

    def weigh_anew(self, value):
        """Within `weighing`: the mini-step to come weighs this, which was counted in its data after all."""
        number = self.ops.replica_number()
        self._weights[number] = self._weights[number]._replace(value=value)

    def _counted(self, counters):
        """What is another once a function that was traced before, and so makes nothing here, takes mini-steps."""
        if not counters:
            return None
        if not self.home.tf.executing_eagerly():
            return [self.ops.uses(counter) for counter in counters]
        if self.is_handed_sums:
            # A LossScaleOptimizer counts on what it does not hand over.
            return self.registry().read(counters)
        # These tell of whole windows.
        updates = self.optimizer.iterations
        return self.registry().read(counters + [updates if self.ops.is_variable(updates) else updates.value])
