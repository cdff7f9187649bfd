"""train_step: micro-batches that weigh as much as they have samples, and batches in slices."""

from legacyga.backend import homes
from legacyga.fit import hooks, model_step
from legacyga.optimizers import lookup
from legacyga.slices import means
from legacyga.windows import settings


def train_step(model, data, weight=None, micro_batch_size=None, recompute=None):
    """The body of a `Model.train_step` in which each micro-batch weighs as much as it has samples.

    It calls the home's own `train_step`, whose one mini-step then has a weight. With n_k the samples of the window's
    k-th micro-batch, and g_k the gradient of the loss that Keras reports for it, the update uses

        sum_k(n_k * g_k) / sum_k(n_k)

    Let the loss be a mean over the samples, and the regularization losses added to it. Then this is the gradient of
    all the window's samples in one batch, whatever the sizes. Where all sizes are equal, plain `fit` does the same.

    With `sample_weight` and `class_weight` the number of samples is still right, for Keras divides the weighted sum of
    the samples' losses by their number. Where Keras divides by the time steps that a mask leaves, or by the elements
    that `ignore_class` does, a micro-batch weighs those. Give `weight` where the loss divides by something else: the
    sum of the sample weights (`reduction="mean_with_sample_weight"` of Keras 3), or the positives of a detector.

    With `micro_batch_size` the batch itself is cut: its slices are differentiated one after the other, and the
    optimizer is called once, with the gradient of the whole batch. `legacyga.micro_batch` tells more of it.

    Args:
        model: the model, compiled with what `wrap` or `MySGD` returned, in a `LossScaleOptimizer` or not; with
            `micro_batch_size`, with any optimizer. It trains in eager mode, by `fit` or `train_on_batch`.
        data: what Keras gives to `train_step`: x, (x, y) or (x, y, sample_weight), each nested or not. The samples
            are the first dimension of the first target, where there is none that of x.
        weight: the micro-batch's weight, a finite number or scalar tensor of at least 0. Default: its samples, or what
            a mask leaves of them.
        micro_batch_size: the most samples of a slice, an int of at least 1. None (default): the batch as it is.
        recompute: whether each slice is computed twice, for losses that are no means over the samples, as
            `legacyga.micro_batch` takes it.

    Returns:
        What the home's own `train_step` returns: a dict of the loss and the metrics by name, over the epoch so far.

    Raises:
        ValueError: the model's optimizer does not accumulate and nothing is to be cut, or there is none; or it is graph
            mode, or a TensorFlow before 2.2, where no Keras has a `train_step`; or the weight or the size is out of its
            range; or what `legacyga.micro_batch` refuses.

    Example:
        >>> import numpy as np
        >>> from tensorflow import keras
        >>> import legacyga
        >>> class Weighted(keras.Model):
        ...     def train_step(self, data):
        ...         return legacyga.train_step(self, data)
        >>> inputs = keras.Input((1,))
        >>> model = Weighted(inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs))
        >>> model.compile(legacyga.wrap(keras.optimizers.SGD(0.25), gradient_accumulation_steps=2), "mse")
        >>> y = np.array([[1.0], [1.0], [4.0]])
        >>> _ = model.fit(np.ones((3, 1)), y, batch_size=2, shuffle=False, verbose=0)
        >>> model.get_weights()[0].tolist()  # with equal weights of the batches it would be 1.25
        [[1.0]]
    """
    size = micro_batch_size if micro_batch_size is None else settings.check_steps("micro_batch_size", micro_batch_size)
    optimizer = _accumulating_optimizer(model, weight is not None or size is None)
    home = homes.home_of(model.optimizer)
    if hooks.homes_train_step(type(model)) is None or home.graph_mode:
        raise ValueError(
            "train_step is for models that Keras trains by theirs: from TensorFlow 2.2 on, in eager mode. Received: "
            "{!r} on TensorFlow {}{}. Let plain fit train it, on batches of one size.".format(
                model, home.tf_version, " in graph mode" if home.graph_mode else ""
            )
        )
    return model_step.train_step(model, data, optimizer, weight, size, means.check_recompute(recompute))


def _accumulating_optimizer(model, must_be):
    """The model's optimizer, out of the LossScaleOptimizer that it may be in; None where it does not accumulate."""
    optimizer = getattr(model, "optimizer", None)
    found = lookup.optimizers_in(optimizer)
    if not found and (must_be or optimizer is None):
        raise ValueError(
            "train_step takes a model whose optimizer accumulates. Received: {!r} with the optimizer {!r}. Compile it "
            "with legacyga.wrap(optimizer, gradient_accumulation_steps) or legacyga.MySGD.".format(model, optimizer)
        )
    return found[0] if found else None
