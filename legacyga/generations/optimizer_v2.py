"""The `v2` generation: OptimizerV2, with `apply_gradients` and slots; `.legacy` from TF 2.11 on, and in tf_keras."""

import contextlib
import warnings

from legacyga import _accumulates


class Accumulating(_accumulates.HasConfig):
    """What `accumulating` puts before an optimizer class."""

    _inherited = None

    def inherit(self, optimizer):
        """Become a copy of `optimizer`, with variables of its own."""
        if not self.home.graph_mode or not optimizer.weights:
            return super(Accumulating, self).inherit(optimizer)
        # A graph's variables are made anew, and take over the values when they are all there.
        copied = type(optimizer).from_config(optimizer.get_config())
        self.__dict__.update(optimizer.__dict__)
        self.__dict__.update(copied.__dict__)
        self._inherited = self.home.backend.batch_get_value(optimizer.weights)

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        """Take one mini-step. Arguments, and what is done at the end of a window, are the inner optimizer's."""

        def apply_inner(pairs):
            return self._apply_inner(pairs, *args, **kwargs)

        # An operation, as the inner optimizer returns: it is run by name, and stands in LossScaleOptimizer's branches.
        return self._take_mini_step(list(grads_and_vars), apply_inner, self._name, result=self.home.tf.no_op)

    def _apply_inner(self, pairs, *args, **kwargs):
        return super(Accumulating, self).apply_gradients(self._clip_pairs(pairs), *args, **kwargs)

    def _window_for_step(self, grads_and_vars):
        self._create_inner_weights([var for gradient, var in grads_and_vars if gradient is not None])
        if self._inherited is not None:
            self.home.backend.batch_set_value(list(zip(self._weights, self._inherited)))
            self._inherited = None
        return self._window_for([var for _, var in grads_and_vars])

    def _clip_pairs(self, grads_and_vars):
        return grads_and_vars

    def _create_all_weights(self, var_list):
        self._create_inner_weights(var_list)
        self._build_window(var_list)

    def _create_inner_weights(self, var_list):
        # TF 2.0 to 2.2 have no such method; deletable with 2.2.
        create = getattr(super(Accumulating, self), "_create_all_weights", None)
        if create is not None:
            create(var_list)
        else:
            self.iterations  # noqa: B018  (a property that creates)
            self._create_hypers()
            self._create_slots(var_list)

    def _make_weight(self, number, name, **kwargs):
        created = self.add_weight("window_{}/{}".format(number, name), trainable=False, **kwargs)
        self._weights.append(created)
        return created

    def _make_scalar(self, number, name, value, dtype="int64"):
        tf = self.home.tf
        return self._make_weight(
            number,
            name,
            shape=[],
            dtype=tf.as_dtype(dtype),
            initializer=tf.constant_initializer(value),
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def _make_zeros(self, number, name, var, shape, dtype):
        tf = self.home.tf
        with tf.distribute.get_strategy().extended.colocate_vars_with(var):
            # A copy on each replica, written without a word to the others; a checkpoint takes their sum.
            return self._make_weight(
                number,
                name,
                shape=shape,
                dtype=dtype,
                initializer="zeros",
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )


class ClippingTheMeans(Accumulating):
    """Accumulating for TF 1.14 to 2.3, whose optimizers clip before `apply_gradients`; deletable with TF 2.3."""

    # Whether K = 1 clips too where the bare optimizer does not: fit of TF 2.0 and 2.1 in eager mode never clips.
    clips_always = False

    def start_accumulating(self, steps, reduction="mean"):
        super(ClippingTheMeans, self).start_accumulating(steps, reduction)
        self._clips_here = steps > 1 or self.clips_always
        if self._clips_here:
            # fit of TF 2.2 and 2.3 exchanges gradients between replicas, and clips them, before it hands them over to
            # a class that says True here.
            self._HAS_AGGREGATE_GRAD = False
        clips = hasattr(self, "clipnorm") or hasattr(self, "clipvalue")
        fit_clips = self.home.graph_mode or hasattr(super(ClippingTheMeans, self), "_clip_gradients")
        if steps > 1 and clips and not fit_clips and not self.clips_always:
            warnings.warn(
                "In eager mode fit of TensorFlow {} does not clip gradients with the bare optimizer; this one, over {} "
                "mini-steps, clips their mean.".format(self.home.tf_version, steps),
                stacklevel=4,
            )

    def get_gradients(self, loss, params):
        with self._unclipped():
            return super(ClippingTheMeans, self).get_gradients(loss, params)

    def _compute_gradients(self, *args, **kwargs):
        with self._unclipped():
            return super(ClippingTheMeans, self)._compute_gradients(*args, **kwargs)

    def _clip_gradients(self, grads):
        return grads if self._clips_here else super(ClippingTheMeans, self)._clip_gradients(grads)

    @contextlib.contextmanager
    def _unclipped(self):
        hidden = {}
        # TF 2.2 and 2.3 clip in _clip_gradients, those before wherever they find the attributes.
        if self._clips_here and not hasattr(super(ClippingTheMeans, self), "_clip_gradients"):
            hidden = {name: self.__dict__.pop(name) for name in ("clipnorm", "clipvalue") if name in self.__dict__}
        try:
            yield
        finally:
            self.__dict__.update(hidden)

    def _clip_pairs(self, grads_and_vars):
        if not self._clips_here:
            return grads_and_vars
        present = iter(self._clip([gradient for gradient, _ in grads_and_vars if gradient is not None]))
        return [(None if gradient is None else next(present), var) for gradient, var in grads_and_vars]

    def _clip(self, gradients):
        clip = getattr(super(ClippingTheMeans, self), "_clip_gradients", None)
        if clip is not None:
            return clip(gradients)
        tf = self.home.tf
        if hasattr(self, "clipnorm"):
            gradients = [tf.clip_by_norm(gradient, self.clipnorm) for gradient in gradients]
        if hasattr(self, "clipvalue"):
            gradients = [tf.clip_by_value(gradient, -self.clipvalue, self.clipvalue) for gradient in gradients]
        return gradients


def accumulating(cls, home):
    """A subclass of the optimizer class `cls` that accumulates."""
    base = Accumulating if hasattr(cls, "_transform_gradients") else ClippingTheMeans
    return type("Accumulating" + cls.__name__, (base, cls), {"home": home, "inner_class": cls})
