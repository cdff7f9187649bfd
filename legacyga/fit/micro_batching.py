"""micro_batch: makes a model train each batch in slices, within one training step."""

from legacyga.backend import homes
from legacyga.fit import model_step
from legacyga.slices import checks, graph
from legacyga.windows import settings


def micro_batch(model, size):
    """Make a model train each batch in slices of at most `size` samples, with the memory of a single slice.

    `fit`, `fit_generator` and `train_on_batch` accept batches of any size, as before. Each training step computes the
    gradients of the batch's slices one after the other, weights each by its number of samples, and calls the model's
    optimizer once, with their mean. If the loss is a mean over the samples, this is the gradient of the whole batch. So
    weights, `iterations`, schedules, callbacks, logs and checkpoints are the same as without slices. Nothing is kept
    from one batch to the next.

    Two things differ: random layers (dropout) draw anew for each slice; BatchNormalization normalizes each slice by its
    own statistics, and updates its moving averages with each.

    Call it once, after `compile`. It stays in effect through later calls of `compile`, until you call it with None.

    Args:
        model: a compiled model of any Keras. The optimizer may be any; it is not changed. One from `wrap` or `MySGD`
            takes one mini-step per batch.
        size: the largest number of samples in a slice, an int of at least 1. None: stop slicing.

    Raises:
        ValueError: `size` is out of range; the model is not compiled; it has its own `train_step` (call
            `legacyga.train_step(self, data, micro_batch_size=size)` in it instead); it is in eager mode of TensorFlow
            2.0 or 2.1, where `fit` has no step to slice; it trains on several replicas; a loss is recognizably not a
            mean over the samples (docs/micro_batch.md lists them). In graph mode also: the optimizer scales the loss,
            or has trained another model since this one; or, during training, a batch is not an array.

    Example:
        >>> import numpy as np
        >>> from tensorflow import keras
        >>> import legacyga
        >>> inputs = keras.Input((1,))
        >>> model = keras.Model(inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs))
        >>> model.compile(keras.optimizers.SGD(0.25), "mse")
        >>> legacyga.micro_batch(model, 2)
        >>> y = np.array([[1.0], [1.0], [4.0]])
        >>> _ = model.fit(np.ones((3, 1)), y, batch_size=3, verbose=0)
        >>> model.get_weights()[0].tolist(), int(model.optimizer.iterations.numpy())
        ([[1.0]], 1)
    """
    if size is not None:
        size = settings.check_steps("size", size)
    optimizer = getattr(model, "optimizer", None)
    home = optimizer and homes.home_of(optimizer)
    if not home:
        raise ValueError(
            "micro_batch takes a compiled model of a Keras. Received: {!r} with the optimizer {!r}. Call "
            "model.compile first.".format(model, optimizer)
        )
    if home.graph_mode and not home.is_standalone_in_eager_mode:
        graph.install(model, home, size)
    else:
        _cut_train_step(model, home, size)


def _cut_train_step(model, home, size):
    """`micro_batch` in eager mode."""
    if model_step.homes_train_step(type(model)) is None:
        raise ValueError(
            "In eager mode of TensorFlow 2.0 and 2.1, and of Keras 2.3, fit has no training step that could be cut. "
            "Received: {!r} on TensorFlow {}. Call tf.compat.v1.disable_eager_execution() first, or give fit batches "
            "of {} samples and the model legacyga.wrap(optimizer, gradient_accumulation_steps).".format(
                model, home.tf_version, size
            )
        )
    step = model_step.installed(model)
    if step is None:
        raise ValueError(
            "micro_batch cuts what Keras's own train_step trains on. Received: {!r}, whose train_step is its own. Call "
            "legacyga.train_step(self, data, micro_batch_size={}) in it.".format(model, size)
        )
    if size is not None:
        checks.check_compiled(home, model, size)
    step.cut(size)
