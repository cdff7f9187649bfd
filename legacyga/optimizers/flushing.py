"""flush: makes the update of a window that is not full."""

from legacyga.optimizers import lookup, surface


def flush(optimizer):
    """Update now from every partial window, using the mean of the gradients accumulated so far.

    Does nothing if there was no mini-step since the last update.

    Args:
        optimizer: an optimizer from `MySGD` or `wrap`, or a LossScaleOptimizer around one.

    Returns:
        True if there was an update, else False. Inside a `tf.function`, a boolean tensor.

    Raises:
        ValueError: `optimizer` does not accumulate; or it is a tf.compat.v1.train optimizer in graph mode and there is
            no default session.

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
