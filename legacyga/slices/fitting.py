"""Slices that find their own size: the whole batch first, and half of it each time that memory is exhausted."""

import warnings
import weakref

from legacyga.slices.batches import inner_model

AUTO = "auto"
FOUND = (
    "micro_batch found slices of {} samples for {!r}: larger ones exhausted the memory. To begin with them next time, "
    "call legacyga.micro_batch(model, {})."
)
EXHAUSTED = (
    "A slice of one sample exhausts the memory. All variables are as before this batch. Received: {}. Train in mixed "
    "precision, with an optimizer that has fewer slots, or with smaller inputs; another process may hold the memory."
)

# {model: its Fitting}
_FITTINGS = weakref.WeakKeyDictionary()


def micro_batch_size(model):
    """The largest number of samples in a slice of a model's batches, as `micro_batch` was given it or has found it.

    Args:
        model: a model that was given to `micro_batch`.

    Returns:
        An int. None where batches train whole: without `micro_batch`, or while memory was never exhausted.

    Example:
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
    """The `Fitting` of a model, made if there is none."""
    model = inner_model(model)
    if model not in _FITTINGS:
        _FITTINGS[model] = Fitting(model)
    return _FITTINGS[model]


class Fitting(object):
    """How large the slices of a model are.

    Attributes:
        size: the largest number of samples in a slice, None for whole batches.
        looks: whether slices find their own size.
    """

    def __init__(self, model):
        self._model = weakref.ref(model)
        self.size, self.looks = None, False

    def set(self, size):
        """Take over what `micro_batch` is given: an int, None or "auto"."""
        if size == AUTO and self.looks:
            return
        self.size, self.looks = (None, True) if size == AUTO else (size, False)

    def take(self, tf, samples, step, read, write):
        """What `step()` returns, which trains on a batch: with the largest slices that fit.

        Args:
            samples: how many the batch has.
            step: function without arguments. It cuts slices of `size` samples.
            read: function without arguments: the values of all variables that a step may write.
            write: function of these values.
        """
        before, begun_with = read(), self.size
        while True:
            try:
                result = step()
                break
            # Python raises its own for an operation that runs eagerly.
            except (tf.errors.ResourceExhaustedError, MemoryError) as error:
                write(before)
                largest = min(self.size or samples, samples)
                if largest <= 1:
                    raise tf.errors.ResourceExhaustedError(None, None, EXHAUSTED.format(error))
                self.size = (largest + 1) // 2
        if self.size != begun_with:
            warnings.warn(FOUND.format(self.size, self._model(), self.size), stacklevel=2)
        return result
