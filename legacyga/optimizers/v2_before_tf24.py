"""Adapts `v2` to the OptimizerV2 of TF 1.14 to 2.3, where Keras clips before `apply_gradients`. Delete with TF 2.3."""

from legacyga.backend.messages import warn
from legacyga.optimizers import config, surface
from legacyga.optimizers import inner as _inner


class Inner(_inner.Inner):
    """The hooks that differ: an update clips the means."""

    # Whether to clip at K = 1 too. The bare optimizer does not in fit of TF 2.0 and 2.1. Delete with TF 2.3.
    clips_always = False

    @property
    def clips_here(self):
        """Whether an update clips the means, instead of Keras clipping each mini-step's gradients."""
        return self.steps.has_windows or self.clips_always

    def inherit(self, optimizer):
        super(Inner, self).inherit(optimizer)
        if self._asks_for_clipping and self.clips_here and not self.home.graph_mode and not self._has_clipping:
            warn(
                "In eager mode fit of TensorFlow {} does not clip gradients with the bare optimizer; this one, over {} "
                "mini-steps, clips their mean.".format(self.home.tf_version, self.steps.made_with)
            )

    def apply(self, pairs, *args, **kwargs):
        if self.clips_here:
            clipped = iter(self._clip([gradient for gradient, _ in pairs if gradient is not None]))
            pairs = [(None if gradient is None else next(clipped), var) for gradient, var in pairs]
        if self._applying[True] and not self._can_skip_exchange:
            # Keras will sum these sums over the replicas again.
            gradients, variables = zip(*pairs)
            pairs = list(zip(self.scaled(gradients, 1.0 / self.ops.replicas.count), variables))
        return super(Inner, self).apply(pairs, *args, **kwargs)

    def exchanged_once(self, own, pairs):
        # Keras expects gradients back, not pairs.
        return [gradient for gradient, _ in pairs] if self._applying[True] else own(pairs)

    @property
    def exchanges(self):
        # TF 2.0 and 2.1 always sum over the replicas, so do it before only if clipping needs it. Delete with TF 2.1.
        return (self._can_skip_exchange or self._asks_for_clipping) and super(Inner, self).exchanges

    @property
    def _asks_for_clipping(self):
        return hasattr(self.optimizer, "clipnorm") or hasattr(self.optimizer, "clipvalue")

    @property
    def _can_skip_exchange(self):
        """Whether `apply_gradients` takes `experimental_aggregate_gradients`: `_aggregate_gradients` came with it."""
        return hasattr(self.own_class, "_aggregate_gradients")

    @property
    def _has_clipping(self):
        # Up to TF 2.1 Keras lacks this method, and clips where it finds `clipnorm` or `clipvalue`. Delete with TF 2.1.
        return hasattr(super(AccumulatingOptimizer, self.optimizer), "_clip_gradients")

    def unclipped(self):
        """A context in which Keras finds no attributes for clipping, if the update clips."""
        names = ("clipnorm", "clipvalue") if self.clips_here and not self._has_clipping else ()
        return _inner.hidden(self.optimizer, *names)

    def _clip(self, gradients):
        optimizer, tf = self.optimizer, self.home.tf
        if self._has_clipping:
            return super(AccumulatingOptimizer, optimizer)._clip_gradients(gradients)
        if hasattr(optimizer, "clipnorm"):
            gradients = [tf.clip_by_norm(gradient, optimizer.clipnorm) for gradient in gradients]
        if hasattr(optimizer, "clipvalue"):
            gradients = [
                tf.clip_by_value(gradient, -optimizer.clipvalue, optimizer.clipvalue) for gradient in gradients
            ]
        return gradients


class AccumulatingOptimizer(config.ConfiguredOptimizer):
    """Intercepts Keras's calls where Keras clips before `apply_gradients`."""

    @property
    def _HAS_AGGREGATE_GRAD(self):
        # If this is True, fit passes gradients already clipped and summed over the replicas.
        own = getattr(super(AccumulatingOptimizer, self), "_HAS_AGGREGATE_GRAD", False)
        return own and not self._legacyga.inner.clips_here

    def get_gradients(self, loss, params):
        with self._legacyga.inner.unclipped():
            return super(AccumulatingOptimizer, self).get_gradients(loss, params)

    def _compute_gradients(self, *args, **kwargs):
        with self._legacyga.inner.unclipped():
            return super(AccumulatingOptimizer, self)._compute_gradients(*args, **kwargs)

    def _clip_gradients(self, grads):
        if self._legacyga.inner.clips_here:
            return grads
        return super(AccumulatingOptimizer, self)._clip_gradients(grads)


surface.register("v2", AccumulatingOptimizer, Inner, lambda cls: not hasattr(cls, "_transform_gradients"))
