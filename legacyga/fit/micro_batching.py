"""micro_batch: trains each batch of a model in slices, within one training step."""

from legacyga.backend import homes
from legacyga.backend.messages import shown
from legacyga.fit import fitting_function, model_step
from legacyga.slices import checks, fitting, graph, means
from legacyga.windows import settings

ON_OBJECT = (
    "micro_batch replaces the train_step of a model's class, and cannot replace one that was set on the object. "
    "Received: {}. Define train_step in the class."
)
NOT_KERAS_STEP = (
    "recompute=False works only with Keras's own train_step. Received: {}, whose train_step is its own. Leave "
    "recompute out, or call legacyga.train_step(self, data, micro_batch_size=size) in it."
)


def micro_batch(model, size, recompute=None):
    """Train each batch of a model in slices of at most `size` samples, with the memory of a single slice.

    `fit`, `fit_generator` and `train_on_batch` accept batches of any size, as before. Each training step computes the
    gradients of the batch's slices one after the other, and calls the model's optimizer once, with the gradient of the
    whole batch. So weights, `iterations`, schedules, callbacks, logs and checkpoints are the same as without slices.

    If the loss is a mean over the samples, each slice is computed once and weighted by its number of samples. For any
    other loss, each slice is computed twice. A first pass computes the outputs of all slices. Keras then computes the
    loss, the metrics and the gradient with respect to the outputs for the whole batch, and a second pass computes each
    slice again, with its part of this gradient.

    Random layers (dropout) draw new numbers for each slice. BatchNormalization uses the statistics of each slice, and
    updates its moving averages once per slice. docs/micro_batch.md lists what else differs from the whole batch.

    Call `micro_batch` once, after `compile`. It stays in effect through later calls of `compile`, until you call it
    with None. Call it after each `compile` for a Sequential of Keras up to 2.1, which then makes another model.

    Args:
        model: a compiled model of any Keras, with any optimizer. An optimizer from `wrap` or `MySGD` counts each batch
            as one micro-batch.
        size: the largest number of samples in a slice, an int of at least 1. None: stop slicing. "auto": start with the
            whole batch; if memory is exhausted, halve the slices, restore the state and repeat the batch.
            `legacyga.micro_batch_size` returns the size found, and a warning names it once. "auto" copies the state to
            the host's memory before each batch; to avoid this, pass the size found in later runs.
        recompute: whether to compute each slice twice. None (default): if the loss is not known to be a mean over the
            samples. A warning then says so once, and `legacyga.recomputes` returns True. False: never; use it for your
            own loss if it is a mean over the samples. True: always.

    Raises:
        ValueError: `size` or `recompute` is out of range; the model is not compiled; it is in eager mode of TensorFlow
            2.0 or 2.1, or of Keras 2.3, where `fit` has no training step to replace, or has a `train_step` that was set
            on the object; it is on several replicas, but not of `MirroredStrategy` in eager mode, or on such replicas
            with "auto" or synchronized batch normalization; slices are computed twice, and a random layer cannot draw
            the same numbers twice, or an output does not have one row per sample. With `recompute=False` also: the loss
            is clearly not a mean over the samples, or the model has its own `train_step`. In graph mode also: the
            optimizer scales the loss, has trained a different model since, or has separate moments for `fit` and
            `train_on_batch`; or, during training, a batch is not an array. docs/micro_batch.md has the details.

    Examples:
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
    if size is not None and size != fitting.AUTO:
        size = settings.check_steps("size", size)
    optimizer = getattr(model, "optimizer", None)
    home = optimizer and homes.home_of(optimizer)
    if not home:
        raise ValueError(
            "micro_batch takes a compiled model of a Keras. Received: {} with the optimizer {}. Call "
            "model.compile first.".format(shown(model), shown(optimizer))
        )
    means.check_recompute(recompute)
    if home.is_keras3:
        home.check_can_train()
    if home.graph_mode and not home.is_standalone_in_eager_mode:
        graph.install(model, home, size, recompute)
        fitting.fitting_of(model).set(size)
    else:
        _cut_train_step(model, home, size, recompute)


def _cut_train_step(model, home, size, recompute):
    """`micro_batch` in eager mode."""
    if model_step.keras_train_step(type(model)) is None:
        raise ValueError(
            "In eager mode of TensorFlow 2.0 and 2.1, and of Keras 2.3, fit has no training step that could be cut. "
            "Received: {} on TensorFlow {}. Call tf.compat.v1.disable_eager_execution() first, or give fit batches "
            "of a slice's size and the model legacyga.wrap(optimizer, gradient_accumulation_steps).".format(
                shown(model), home.tf_version
            )
        )
    if size is not None:
        checks.check_compiled(home, model, size)
    if size is None and not isinstance(vars(model).get("train_step"), (model_step.TrainStep, type(None))):
        # The user's own train_step has taken the place of ours.
        fitting.fitting_of(model).set(None)
        fitting_function.install(model, None, None)
        return
    # Slicing can be stopped whatever train_step the class has.
    step = model_step.installed(model, recompute is not False or size is None)
    if step is None:
        raise ValueError((NOT_KERAS_STEP if recompute is False else ON_OBJECT).format(shown(model)))
    if size != fitting.AUTO:
        step.cut(size, recompute)
    fitting.fitting_of(model).set(size)
    fitting_function.install(model, step, recompute)
