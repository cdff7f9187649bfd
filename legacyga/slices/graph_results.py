"""Graph mode: report the losses of a batch in slices as if the batch were whole."""


class LossMeans(object):
    """Keras's running means of each output's loss over batches, in which a batch in slices counts once.

    Models with several outputs have them, from Keras 2.3 and TF 1.14 on.
    """

    def __init__(self, home, model, parts):
        found = getattr(model, "_output_loss_metrics", None) or []
        losses = getattr(model, "loss_functions", None) or []
        if len(losses) == len(found):
            # Keras 2.3 also has one, which it never reports, for an output without a loss. Delete with Keras 2.3.
            found = [each for each, loss in zip(found, losses) if loss is not None]
        self._backend, self._means = home.backend, [each for each in found if each is not None and len(parts) > 1]
        self._read = [self._values()]

    @property
    def _variables(self):
        return [value for each in self._means for value in (each.total, each.count)]

    def _values(self):
        """Return the (total, count) of each mean."""
        values = [float(value) for value in self._backend.batch_get_value(self._variables)]
        return list(zip(values[::2], values[1::2]))

    def note(self):
        """Read the means. Call this after each slice."""
        self._read.append(self._values())

    def of_the_batch(self, sizes):
        """Rewrite the means as if the batch had come whole. Return {place in the function's outputs: mean}."""
        made = []
        for i, (total, count) in enumerate(self._read[0]):
            read = [values[i] for values in self._read]
            losses = [(after[0] - before[0]) / (after[1] - before[1]) for before, after in zip(read, read[1:])]
            made.append((total + sum(loss * size for loss, size in zip(losses, sizes)) / sum(sizes), count + 1))
        self._backend.batch_set_value(list(zip(self._variables, [value for pair in made for value in pair])))
        return {place + 1: total / count for place, (total, count) in enumerate(made)}
