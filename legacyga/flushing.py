"""flush: the update of a window that is not full."""

from legacyga.generations import _finding, _surface


def flush(optimizer):
    """End the window that is under way with an update, on the mean of the gradients that are there.

    Where no mini-step was taken since the last update, nothing is done.

    Args:
        optimizer: what `MySGD` or `wrap` returned, or the LossScaleOptimizer around it. In graph mode it has been
            given to a model, and trained.

    Returns:
        True where an update was made, else False. Within a `tf.function` a boolean tensor.

    Raises:
        ValueError: `optimizer` is none that accumulates; or one of tf.compat.v1.train without a default session.

    Example:
        >>> from tensorflow import keras
        >>> import legacyga
        >>> legacyga.flush(legacyga.wrap(keras.optimizers.Adam(1e-3), gradient_accumulation_steps=8))
        False
    """
    found = _finding.optimizers_in(optimizer)
    if len(found) != 1:
        raise ValueError(
            "flush takes an optimizer that legacyga.wrap or legacyga.MySGD returned. Received: {!r}".format(optimizer)
        )
    return _surface.accumulation_of(found[0]).registry().end()
