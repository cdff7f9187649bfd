"""flush: the update of a window that is not full."""

from legacyga.optimizers import lookup, surface


def flush(optimizer):
    """End the windows that are under way with an update each, on the mean of the gradients that are there.

    Without a mini-step since the last update it does nothing.

    Args:
        optimizer: what `MySGD` or `wrap` returned, or the LossScaleOptimizer around it.

    Returns:
        True where an update was made, else False. Within a `tf.function` a boolean tensor.

    Raises:
        ValueError: `optimizer` is none that accumulates, or it is one of tf.compat.v1.train that in graph mode has no
            default session.

    Example:
        >>> from tensorflow import keras
        >>> import legacyga
        >>> legacyga.flush(legacyga.wrap(keras.optimizers.Adam(1e-3), gradient_accumulation_steps=8))
        False
    """
    found = lookup.optimizers_in(optimizer)
    if len(found) != 1:
        raise ValueError(
            "flush takes an optimizer that legacyga.wrap or legacyga.MySGD returned. Received: {!r}".format(optimizer)
        )
    return surface.accumulation_of(found[0]).registry().end()
