"""train_step: weights micro-batches by samples, or slices batches, in a model's own `train_step`."""

from legacyga.backend import homes
from legacyga.backend.messages import shown
from legacyga.fit import model_step
from legacyga.optimizers import lookup
from legacyga.slices import means
from legacyga.windows import settings


def train_step(model, data, weight=None, micro_batch_size=None, recompute=None):
    """The body of a `Model.train_step` that weights each micro-batch by its number of samples.

    A micro-batch is one of the small batches whose gradients together make one update. The function calls your Keras's
    own `train_step`, with a weight for the gradients. With n_k the number of samples in the k-th micro-batch of an
    update, and g_k the gradient of the loss that Keras reports for it, the update uses

        sum_k(n_k * g_k) / sum_k(n_k)

    If the loss is a mean over the samples plus regularization losses, this is the gradient of one batch with all these
    samples. If all micro-batches have the same size, plain `fit` does the same.

    The number of samples is the right weight with `sample_weight` and `class_weight` too, because Keras divides the
    weighted sum of the losses by the number of samples. If Keras divides by the number of unmasked time steps, or of
    elements that `ignore_class` keeps, `train_step` uses this number as the weight. Pass `weight` if the loss divides
    by anything else, such as the sum of the sample weights (`reduction="mean_with_sample_weight"` in Keras 3), or the
    number of positives in a detection loss.

    With `micro_batch_size`, it cuts the batch into slices, computes their gradients one after the other, and calls the
    optimizer once, with the gradient of the whole batch. See `legacyga.micro_batch`.

    Args:
        model: the model, compiled with an optimizer from `wrap` or `MySGD`, inside a `LossScaleOptimizer` or not. With
            `micro_batch_size`, it can have any optimizer. It must be in eager mode, and train with `fit` or
            `train_on_batch`.
        data: the argument that Keras passes to `train_step`: x, (x, y) or (x, y, sample_weight), each nested or not.
            The number of samples is the first dimension of the first target, or of x if there is no target.
        weight: the micro-batch's weight, a finite number or scalar tensor of at least 0. Default: its number of
            samples, or what a mask leaves of them.
        micro_batch_size: the largest number of samples in a slice, an int of at least 1. None (default): the whole
            batch.
        recompute: whether to compute each slice twice, for losses that are not means over the samples, as in
            `legacyga.micro_batch`.

    Returns:
        The result of your Keras's own `train_step`: a dict of the loss and metrics by name, over the epoch so far.

    Raises:
        ValueError: the model has no optimizer; its optimizer does not accumulate, and you pass `weight` or omit
            `micro_batch_size`; the model is in graph mode, or on TensorFlow before 2.2, which has no `train_step`;
            `weight`, `micro_batch_size` or `recompute` is not as above; or `legacyga.micro_batch` raises an error for
            the model.

    Examples:
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
    if model_step.keras_train_step(type(model)) is None or home.graph_mode:
        raise ValueError(
            "train_step is for models that Keras trains by their train_step: from TensorFlow 2.2 on, in eager mode. "
            "Received: {} on TensorFlow {}{}. Let plain fit train it, on batches of one size.".format(
                shown(model), home.tf_version, " in graph mode" if home.graph_mode else ""
            )
        )
    return model_step.train_step(model, data, optimizer, weight, size, means.check_recompute(recompute))


def _accumulating_optimizer(model, must_be):
    """The model's accumulating optimizer, or the one in its LossScaleOptimizer. Else None, or an error if `must_be`."""
    optimizer = getattr(model, "optimizer", None)
    found = lookup.optimizers_in(optimizer)
    if not found and (must_be or optimizer is None):
        raise ValueError(
            "train_step takes a model whose optimizer accumulates. Received: {} with the optimizer {}. Compile it "
            "with legacyga.wrap(optimizer, gradient_accumulation_steps) or legacyga.MySGD.".format(
                shown(model), shown(optimizer)
            )
        )
    return found[0] if found else None
