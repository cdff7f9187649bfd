"""Graph mode: call Keras's training function once per slice of its feeds, then update once."""

import contextlib

from legacyga.backend import features, graph
from legacyga.slices import batches, checks, fitting, graph_recompute, graph_results, graph_update, means
from legacyga.slices import losses as _losses

# {method that makes a training function: attribute that stores it}. Only fit in TF 1.13 uses the second pair.
# Delete with TF 1.13.
FUNCTIONS = {"_make_train_function": "train_function", "_make_fit_function": "_fit_function"}

NOT_FED = (
    "In graph mode a batch can be cut where it is fed: as arrays, by fit, fit_generator or train_on_batch. Received: "
    "{!r}. Give a generator in place of a dataset or tensors."
)
ANOTHERS = (
    "{!r} keeps the state of what was trained last, and that is another than {!r}, which has trained with it before. "
    "Give each model an optimizer of its own, or call micro_batch right after compile."
)

OF_TWO = (
    "Each of fit and train_on_batch has trained {!r} with moments of its own of {!r}, as in TensorFlow 1.13, and those "
    "of one would be lost. Call micro_batch right after compile, or train by one of the two."
)


def install(model, home, size, recompute):
    """Make the model's training functions run in slices of `size` samples, or whole again if `size` is None."""
    model = batches.inner_model(model)
    if size is not None:
        checks.check_compiled(home, model, size)
    names = [name for name in FUNCTIONS if hasattr(type(model), name)]
    state, own = _under_way(model, names)
    for name in names:
        vars(model)[name] = Maker(model, home, size, recompute, name)
        setattr(model, FUNCTIONS[name], None)
    for name in own:
        vars(model)[name]()
        _copy_values(home.backend, state, _state_of(model.optimizer))


def _under_way(model, names):
    """Return the optimizer's state, and the `names` of methods whose existing training function uses that state.

    The caller makes these functions again and copies the state, because optimizers of the v1 API create new variables
    with each function. They know only those of the last function, whichever model it trains. After a new `compile`
    there is no function, and nothing to carry over.

    Raises:
        ValueError: the state belongs to another model, or only to one of two functions.
    """
    there = [name for name in names if getattr(model, FUNCTIONS[name], None) is not None]
    state = _state_of(model.optimizer)
    own = [name for name in there if _writes(getattr(model, FUNCTIONS[name]), state)]
    if there and state and not own:
        raise ValueError(ANOTHERS.format(model.optimizer, model))
    if state and len(own) < len(there):
        raise ValueError(OF_TWO.format(model, model.optimizer))
    return state, own


def _copy_values(backend, variables, others):
    """Copy the values of `variables` to `others`, pair by pair, if both lists have the same length."""
    pairs = [(old, new) for old, new in zip(variables, others) if old is not new]
    if len(variables) == len(others):
        values = backend.batch_get_value([old for old, _ in pairs])
        backend.batch_set_value(list(zip([new for _, new in pairs], values)))


def _state_of(optimizer):
    """Return the optimizer's variables that belong to a model: all but `iterations`."""
    try:
        weights = list(getattr(optimizer, "weights", ()))
    except NotImplementedError:
        # Keras's wrapper around a tf.train optimizer does not know its variables.
        return []
    return [each for each in weights if each is not getattr(optimizer, "iterations", None)]


def _writes(function, variables):
    """Whether the update of a training function depends on one of these variables."""
    handles = {getattr(getattr(each, "handle", None), "op", each.op) for each in variables}
    return graph.reaches(function.updates_op, handles)


class Maker(object):
    """Replaces the method that makes a training function, and makes one that works in slices.

    Args:
        model: the model.
        home: its `homes.Home`.
        size: as `micro_batch` takes it. None makes Keras's own function.
        recompute: as `micro_batch` takes it.
        name: the name of the method.
    """

    def __init__(self, model, home, size, recompute, name):
        self._model, self._home, self._size, self._recompute, self._name = model, home, size, recompute, name

    def __call__(self):
        model, attributes, made = self._model, vars(self._model), []
        optimizer, attribute = attributes["optimizer"], FUNCTIONS[self._name]
        if self._size is not None:
            # The user may have compiled the model again.
            checks.check_compiled(self._home, model, self._size)
            attributes["optimizer"] = graph_update.recorder(optimizer, self._home, model, made)
        try:
            getattr(type(model), self._name)(model)
        finally:
            attributes["optimizer"] = optimizer
        if made:
            function = getattr(model, attribute)
            function = SlicedFunction(self._home, model, self._recompute, function, made[0], self._name)
            setattr(model, attribute, function)


class SlicedFunction(object):
    """Replaces a training function and trains on each batch in slices.

    Args:
        home, model, recompute, name: the arguments of its `Maker`.
        accumulate: Keras's own function, with a mini-step in place of the update.
        mini_step: this mini-step, a `graph_update.MiniStep`.
    """

    def __init__(self, home, model, recompute, accumulate, mini_step, name):
        self._home, self._model, self._accumulate = home, model, accumulate
        self._fitting, self._variables = fitting.fitting_of(model), None
        self._recompute, self._mini_step, self._name = recompute, mini_step, name
        self._doubt = None if recompute else checks.doubt_in_graph(home, model, mini_step.loss)
        self._session = self._twice = None
        # {index among the outputs that have a loss: whether this loss is one number for a whole batch}
        self._one_number = {}

    @property
    def updates_op(self):
        """The operation of the update, under the name that Keras's functions use."""
        return self._mini_step.update.op

    def __getattr__(self, name):
        return getattr(self._accumulate, name)

    def __call__(self, inputs):
        fed = list(inputs)
        if not fed or any(isinstance(each, self._home.tf.Tensor) for each in fed):
            raise ValueError(NOT_FED.format(fed))
        samples, found = fed[0].shape[0], self._fitting
        if not found.looks:
            return self._take(fed, samples)
        backend, variables = self._home.backend, self._written()
        return found.take(
            self._home.tf,
            samples,
            lambda: self._take(fed, samples),
            lambda: backend.batch_get_value(variables),
            lambda values: backend.batch_set_value(list(zip(variables, values))),
        )

    def _written(self):
        """Return the variables that the training function uses."""
        if self._variables is None:
            ends = [self._accumulate.updates_op, self._mini_step.update.op]
            used = graph.ancestors(ends + [each.op for each in self._accumulate.outputs])
            known = self._home.v1.global_variables()
            # Keras initializes all of them when it reads the first.
            self._variables = [each for each in known if getattr(getattr(each, "handle", None), "op", each.op) in used]
        return self._variables

    def _take(self, fed, samples):
        """Train on a batch in slices of the current size, and return the outputs for the whole batch."""
        size = self._fitting.size or samples or 1
        parts = [slice(start, start + size) for start in range(0, samples or 1, size)]
        is_twice = len(parts) > 1 and means.choose(self._model, self._recompute, lambda: self._doubt_of(fed, parts))
        if is_twice:
            if self._twice is None:
                self._twice = graph_recompute.Twice(self._home, self._model, self._accumulate, self._mini_step)
                # Twice may have made variables: initialize them again, as in a new session.
                self._session = None
            with self._update_after() as session:
                return self._twice(session, fed, parts)
        losses = graph_results.LossMeans(self._home, self._model, parts)
        outputs, weights = [], self._sample_weights(fed, parts)
        with self._update_after():
            for number, part in enumerate(parts):
                cut = [batches.part_of(each, samples, part) for each in fed]
                for place, of_parts in weights.items():
                    cut[place] = of_parts[number]
                outputs.append(self._accumulate(cut))
                losses.note()
        return self._told(outputs, losses, [len(range(samples)[part]) for part in parts])

    @contextlib.contextmanager
    def _update_after(self):
        """A context that yields the session and runs the update at its end. An error restores the metrics instead."""
        session = self._home.session
        if session is not self._session:
            session.run([each.initializer for each in self._mini_step.variables])
        # A batch that fails leaves its sums behind. Without a session here, the next batch initializes them.
        self._session = None
        metrics = getattr(self._model, "metrics", None) or []
        metrics = [value for each in metrics for value in getattr(each, "weights", [])]
        before = self._home.backend.batch_get_value(metrics)
        try:
            yield session
        except BaseException:
            # The metrics hold the slices before the error.
            self._home.backend.batch_set_value(list(zip(metrics, before)))
            raise
        session.run(self._mini_step.update)
        self._session = session

    def _doubt_of(self, fed, parts):
        """Return the `means.Doubt` about a batch, None if there is none."""
        for i, weights in self._weights(fed):
            differ = _differ([float(weights[part].mean()) for part in parts])
            if differ and self._is_one_number(i):
                return means.Doubt("sample weights for a loss of one number for a whole batch", True)
            # Weighted metric functions also divide by the sum of the weights.
            is_function = not hasattr(_given_losses(self._model)[i], "reduction")
            divides = is_function or any(getattr(self._model, "_per_output_weighted_metrics", None) or ())
            if differ and divides and features.divides_functions_by_weights(self._home):
                return means.Doubt("sample weights, by whose sum the loss or a metric is divided", True)
        return self._doubt

    def _weights(self, fed):
        """Return [(index among the outputs that have a loss, sample weights of this output)]."""
        model = self._model
        weights = fed[len(model._feed_inputs) + len(model._feed_targets) :]
        # Up to TF 1.13 tf.keras feeds weights for every output, later only where they are used. Delete with TF 1.13.
        count = len(_given_losses(model))
        used = weights[:count] if len(model._feed_sample_weights) == count else []
        return [(i, each) for i, each in enumerate(used) if each is not None]

    def _sample_weights(self, fed, parts):
        """Return {index of a feed: its sample weights for each part}, corrected for what Keras divides a slice by.

        Up to Keras 2.2 and TF 1.12 Keras divides a loss function by the number of weights that are not 0. That number
        differs between slices, so each slice's weights compensate for it. Delete with Keras 2.2 and TF 1.12.
        """
        first, model = len(self._model._feed_inputs) + len(self._model._feed_targets), self._model
        return {
            first + i: self._with_shares(weights, parts)
            for i, weights in self._weights(fed)
            if len(parts) > 1 and not hasattr(_given_losses(model)[i], "reduction")
        }

    def _is_one_number(self, place):
        if place not in self._one_number:
            self._one_number[place] = _losses.is_one_number(self._model, place)
        return self._one_number[place]

    def _with_shares(self, weights, parts):
        """Return the parts of `weights`, each times its fraction of weights other than 0, over that of the batch.

        Where Keras divides by the sum of the weights, return the parts unchanged.
        """
        if features.divides_functions_by_weights(self._home):
            return [weights[part] for part in parts]
        share, made = (weights != 0).mean(), []
        for part in parts:
            of_part = (weights[part] != 0).mean()
            # With all weights 0, Keras would divide by 0. A tiny weight adds almost nothing; float16 needs 6.2e-5.
            little = 6.2e-5 if self._home.backend.floatx() == "float16" else 1e-30
            made.append(weights[part] * (of_part / share) if of_part else weights[part] + little)
        return made

    def _told(self, outputs, losses, sizes):
        """Return the outputs of the training function for the whole batch.

        An output comes from `losses` if they have it. Otherwise a stateful one is the last slice's value, one with a
        row per sample is joined from all slices, and any other is the mean over the samples.
        """
        told = losses.of_the_batch(sizes)
        for place, values in enumerate(zip(*outputs)):
            if place not in told and (len(values) == 1 or self._is_stateful(place)):
                told[place] = values[-1]
            elif place not in told and self._has_samples(place):
                told[place] = batches.joined(values)
            elif place not in told:
                mean = sum(value * size for value, size in zip(values, sizes)) / float(sum(sizes))
                # Keras returns an array or a NumPy scalar of this dtype.
                told[place] = mean.astype(values[0].dtype)
        return [told[place] for place in sorted(told)]

    def _has_samples(self, place):
        """Whether the first dimension of an output is unknown until a batch is fed."""
        shape = self._accumulate.outputs[place].shape
        return bool(shape.dims) and shape.as_list()[0] is None

    def _is_stateful(self, place):
        names = getattr(self._model, "stateful_metric_names", None)
        if names is not None:
            return self._model.metrics_names[place] in names
        if hasattr(self._model, "metrics_tensors"):
            # Keras 2.0 has no stateful metrics. Delete with Keras 2.0.
            return False
        if self._name == "_make_train_function" and hasattr(self._model, "_make_fit_function"):
            # In TF 1.13 train_on_batch reports a metric function for this batch alone. Delete with TF 1.13.
            names = self._model.metrics_names
            ways = [getattr(self._model, way) for way in ("_all_metrics_tensors", "_all_stateful_metrics_tensors")]
            return place > 0 and ways[0][names[place]] is ways[1][names[place]]
        # Everything but the loss, at place 0, is a stateful metric.
        return place > 0


def _given_losses(model):
    return [each for each in getattr(model, "loss_functions", None) or [] if each is not None]


def _differ(means):
    return max(means) - min(means) > 1e-6 * max(means)
