"""Find the slice size that fits in memory: start with the whole batch, halve it each time memory is exhausted."""

import weakref

from legacyga.backend.messages import shown, warn
from legacyga.slices.batches import inner_model
from legacyga.slices.recompute import draw_from, random_states

AUTO = "auto"
FOUND = (
    "micro_batch found slices of {} samples for {}: larger ones exhausted the memory. To begin with them next time, "
    "call legacyga.micro_batch(model, {})."
)
EXHAUSTED = (
    "A slice of one sample exhausts the memory. All variables are as before this batch. Received: {}. Train in mixed "
    "precision, with an optimizer that has fewer slots, or with smaller inputs; another process may hold the memory."
)

# {model: its Fitting}
_FITTINGS = weakref.WeakKeyDictionary()


def micro_batch_size(model):
    """Return the largest number of samples in a slice: the size given to `micro_batch`, or the size that it found.

    Args:
        model: a model.

    Returns:
        An int. None if batches train whole: without `micro_batch`, or with "auto" until memory is exhausted.

    Examples:
        >>> from tensorflow import keras
        >>> import legacyga
        >>> inputs = keras.Input((1,))
        >>> model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        >>> model.compile("sgd", "mse")
        >>> legacyga.micro_batch(model, 8)
        >>> legacyga.micro_batch_size(model), int(model.optimizer.iterations.numpy())
        (8, 0)
    """
    found = _FITTINGS.get(inner_model(model))
    return None if found is None else found.size


def fitting_of(model):
    model = inner_model(model)
    if model not in _FITTINGS:
        _FITTINGS[model] = Fitting(model)
    return _FITTINGS[model]


class Fitting(object):
    """The slice size of a model: `size`, None for whole batches. `looks`: whether `size` adapts to memory."""

    def __init__(self, model):
        self._model = weakref.ref(model)
        self.size, self.looks = None, False

    def set(self, size):
        """Set the size that `micro_batch` received: an int, None or "auto". A second "auto" keeps the size found."""
        if size == AUTO and self.looks:
            return
        self.size, self.looks = (None, True) if size == AUTO else (size, False)

    def take(self, tf, samples, step, read, write):
        """Train on a batch in slices, and return what `step()` returns.

        If memory is exhausted, restore variables and random states, and repeat the batch with half the size. Warn if
        the size changed.

        Args:
            step: `step()` trains on the batch in slices of `size` samples.
            read: `read()` returns the values of all variables that a step may write.
            write: `write(values)` restores them.

        Raises:
            ResourceExhaustedError: a slice of one sample exhausts the memory.
        """
        before, begun_with, drawn = read(), self.size, random_states()
        while True:
            try:
                result = step()
                break
            # An operation that runs eagerly can raise Python's MemoryError.
            except (tf.errors.ResourceExhaustedError, MemoryError) as error:
                write(before)
                draw_from(drawn)
                largest = min(self.size or samples, samples)
                if largest <= 1:
                    raise tf.errors.ResourceExhaustedError(None, None, EXHAUSTED.format(error))
                self.size = (largest + 1) // 2
        if self.size != begun_with:
            warn(FOUND.format(self.size, shown(self._model()), self.size))
        return result
