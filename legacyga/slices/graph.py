"""Graph mode: run Keras's training function in slices of its feeds, then update once."""

import functools

from legacyga.backend import features, graph
from legacyga.backend.messages import shown
from legacyga.slices import batches, checks, fitting, graph_passes, graph_update, means
from legacyga.slices import losses as _losses

# {method that makes a training function: attribute for it}. Only TF 1.13 has the second, for fit. Delete with TF 1.13.
FUNCTIONS = {"_make_train_function": "train_function", "_make_fit_function": "_fit_function"}

NOT_FED = (
    "In graph mode micro_batch can cut only arrays, in fit, fit_generator or train_on_batch. Received: {}. Give a "
    "generator in place of a dataset or tensors."
)
ANOTHERS = (
    "{} keeps only the state of the model that it trained last. This is not {}, which has trained with it before. "
    "Give each model an optimizer of its own, or call micro_batch right after compile."
)
REPLACED = (
    "The program has replaced the training function of {}, and micro_batch would undo this. Call micro_batch right "
    "after compile."
)
OF_TWO = (
    "Each of fit and train_on_batch has trained {} with separate moments of {}, as in TensorFlow 1.13. micro_batch "
    "would lose the moments of one. Call micro_batch right after compile, or train by one of the two."
)


def install(model, home, size, recompute):
    """Make the model's training functions run in slices of `size` samples, or whole again if `size` is None."""
    model = batches.inner_model(model)
    if size is not None:
        checks.check_compiled(home, model, size)
    names = [name for name in FUNCTIONS if hasattr(type(model), name)]
    state, stateful = _under_way(model, names)
    for name in names:
        vars(model)[name] = functools.partial(_make, model, home, size, recompute, name)
        setattr(model, FUNCTIONS[name], None)
    for name in stateful:
        vars(model)[name]()
        remade = _state_of(model.optimizer)
        pairs = [pair for pair in zip(remade, state) if pair[0] is not pair[1]] if len(remade) == len(state) else []
        values = home.backend.batch_get_value([old for _, old in pairs])
        home.backend.batch_set_value(list(zip([new for new, _ in pairs], values)))


def _under_way(model, names):
    """Return the optimizer's state, and those of `names` whose training function exists and uses this state.

    The caller makes these functions anew. A v1 optimizer then makes new variables, and the caller copies the state to
    them. But the optimizer knows only the last function's variables. Raise if these are another model's, or only one
    of two functions'. Raise also if a function is not Keras's.
    """
    there = [name for name in names if getattr(model, FUNCTIONS[name], None) is not None]
    if not all(hasattr(getattr(model, FUNCTIONS[name]), "updates_op") for name in there):
        raise ValueError(REPLACED.format(shown(model)))
    state = _state_of(model.optimizer)
    holders = {graph.operation_of(each) for each in state}
    stateful = [name for name in there if graph.reaches(getattr(model, FUNCTIONS[name]).updates_op, holders)]
    if there and state and not stateful:
        raise ValueError(ANOTHERS.format(shown(model.optimizer), shown(model)))
    if state and len(stateful) < len(there):
        raise ValueError(OF_TWO.format(shown(model), shown(model.optimizer)))
    return state, stateful


def _state_of(optimizer):
    """Return the optimizer's variables that belong to a model: all but `iterations`."""
    try:
        weights = list(getattr(optimizer, "weights", ()))
    except NotImplementedError:
        # Keras's wrapper around a tf.train optimizer does not know its variables.
        return []
    return [each for each in weights if each is not getattr(optimizer, "iterations", None)]


def _make(model, home, size, recompute, name):
    """Stands in for a model's method `name`: makes its training function, in slices unless `size` is None."""
    attributes, made = vars(model), []
    optimizer = attributes["optimizer"]
    if size is not None:
        # The user may have compiled the model again.
        checks.check_compiled(home, model, size)
        # The recorder fills `made` when Keras calls its get_updates.
        attributes["optimizer"] = graph_update.recorder(optimizer, home, made)
    try:
        getattr(type(model), name)(model)
    finally:
        attributes["optimizer"] = optimizer
    if made:
        function = getattr(model, FUNCTIONS[name])
        # Keras's own function, which makes no update, must not stay if SlicedFunction raises. Keras replaces a None.
        setattr(model, FUNCTIONS[name], None)
        setattr(model, FUNCTIONS[name], SlicedFunction(home, model, recompute, function, made[0]))


class SlicedFunction(object):
    """Replaces `function`, Keras's training function without an update, and trains on batches in slices."""

    def __init__(self, home, model, recompute, function, step):
        self._home, self._model, self._function = home, model, function
        self._fitting, self._variables = fitting.fitting_of(model), None
        self._recompute, self._step = recompute, step
        self._doubts = [] if recompute else list(checks.doubts_in_graph(home, model, step.loss, step.params))
        # Keras's functions have this attribute, too, and `_under_way` reads it.
        self.updates_op = step.update.op
        # {place of a loss: whether it is one number}. Asking adds operations to the graph, so ask once.
        self._are_one_number = {}
        # `_session`: the one in which the step's sums are zero, or None. `_passes`: {whether there are two: Passes}.
        self._session, self._passes = None, {}

    def __getattr__(self, name):
        return getattr(self._function, name)

    def __call__(self, inputs):
        fed = list(inputs)
        # tf.keras makes a SparseTensor of scipy's matrices.
        tensors = (self._home.tf.Tensor, self._home.tf.SparseTensor)
        if not self._model._feed_inputs or any(isinstance(each, tensors) for each in fed):
            raise ValueError(NOT_FED.format(shown(fed)))
        samples, found = fed[0].shape[0], self._fitting
        if not found.looks:
            return self._take(fed, samples)
        self._variables = self._variables or self._written()
        backend, variables = self._home.backend, self._variables
        return found.take(
            self._home.tf,
            samples,
            lambda: self._take(fed, samples),
            lambda: backend.batch_get_value(variables),
            lambda values: backend.batch_set_value(list(zip(variables, values))),
        )

    def _written(self):
        """Return the variables that the training function or the update uses, also the local ones of tf.metrics."""
        ends = [self._function.updates_op, self.updates_op]
        used = graph.ancestors(ends + [each.op for each in self._function.outputs])
        # `batch_get_value` initializes new global ones.
        known = self._home.v1.global_variables() + self._home.v1.local_variables()
        own = set(map(graph.operation_of, self._step.variables))
        return [each for each in known if graph.operation_of(each) in used - own]

    def _take(self, fed, samples):
        """Train on a batch in slices of the current size, and return the outputs for the whole batch."""
        size = self._fitting.size or samples or 1
        parts = [slice(start, start + size) for start in range(0, samples or 1, size)]
        is_twice = len(parts) > 1 and means.choose(self._model, self._recompute, lambda: self._doubts_of(fed, parts))
        if is_twice not in self._passes:
            found = graph_passes.Passes(self._home, self._model, self._function, self._step, is_twice)
            # `Passes` may add variables to the step: initialize all of them, as in a new session.
            self._passes[is_twice], self._session = found, None
        session = self._home.session
        if session is not self._session:
            session.run([each.initializer for each in self._step.variables])
        # A batch that fails leaves its sums behind. With None, the next batch initializes them.
        self._session = None
        metrics, backend = graph_passes.variables_of_metrics(self._model), self._home.backend
        before = backend.batch_get_value(metrics)
        try:
            told, weight = self._passes[is_twice](fed, parts)
            # What the program feeds by `compile`, such as a learning rate.
            feeds = dict((getattr(self._model, "_function_kwargs", None) or {}).get("feed_dict") or {})
            feeds[self._step.weight] = weight
            session.run(self._step.update, feeds)
        except BaseException:
            # Metrics may be updated although the loss or the update fails.
            backend.batch_set_value(list(zip(metrics, before)))
            raise
        self._session = session
        return told

    def _doubts_of(self, fed, parts):
        """Yield each `means.Doubt` about a batch."""
        model = self._model
        losses = [each for each in getattr(model, "loss_functions", None) or [] if each is not None]
        given = fed[len(model._feed_inputs) + len(model._feed_targets) :]
        # After TF 1.13 tf.keras feeds weights only if a fit has some. Else `given` is other feeds. Delete with TF 1.13.
        given = given if len(model._feed_sample_weights) == len(losses) else []
        for i, (loss, weights) in enumerate(zip(losses, given)):
            if weights is not None and _differ(weights, parts) and self._is_one_number(i) is not False:
                yield means.Doubt("sample weights for a loss of one number for a whole batch", True)
            if weights is not None and not hasattr(loss, "reduction"):
                # Keras divides what a function returns by the sum of the weights, or by how many are not 0.
                counted = weights if features.divides_functions_by_weights(self._home) else weights != 0
                if _differ(counted, parts):
                    yield means.Doubt("sample weights, by whose sum or number the loss is divided", True)
        yield from self._doubts

    def _is_one_number(self, place):
        if place not in self._are_one_number:
            self._are_one_number[place] = _losses.is_one_number(self._model, place)
        return self._are_one_number[place]


def _differ(values, parts):
    """Whether the means of the parts of an array differ."""
    found = [float(values[part].mean()) for part in parts]
    return max(found) - min(found) > 1e-6 * max(found)
