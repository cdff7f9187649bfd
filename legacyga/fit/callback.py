"""GradientAccumulationCallback: partial windows, batches of unequal sizes, a changing K and their logs, in fit."""

import sys
import warnings

from legacyga.backend import homes
from legacyga.fit import hooks, model_step, sample_counts
from legacyga.fit import schedule as _schedule
from legacyga.optimizers import lookup, surface

PARTIAL_WINDOWS = ("flush", "carry", "drop")
LOGS = ("updates", "gradient_accumulation_steps", "effective_batch_size")
_CLASSES = {}


def GradientAccumulationCallback(schedule=None, partial_window="flush"):
    """A callback for fit: it ends the partial window of an epoch, weighs batches by samples, sets K, logs the updates.

    A batch weighs as much as it has samples. So a window whose last batch is smaller equals the large batch exactly.
    That needs eager mode, the home's own `train_step` and `reduction="mean"`; TF 2.0 and 2.1 tell the sizes of arrays
    alone. In graph mode all batches weigh the same (docs/weights.md says how much that is). In a `train_step` of your
    own call `legacyga.train_step`.

    Each epoch's logs (History, CSVLogger, TensorBoard, the progress bar) get three ints:

        updates                      the optimizer's `iterations`, counted from its making
        gradient_accumulation_steps  K, as it stands at the end of the epoch
        effective_batch_size         K times the batch size, with "flush" at most the epoch's samples. Where known: in
                                     eager mode that weighs batches, in graph mode of arrays and generators

    An epoch ends with its last batch, ahead of its validation, where Keras says how many batches it has. Else it ends
    with the start of its validation, or with `on_epoch_end`. Put this callback first in the list: the others then find
    the weights and the logs as they are after it.

    EarlyStopping and `model.stop_training` end the epoch as usual. After an exception nothing is done: the mini-steps
    stay in the window, until training goes on or `flush` or `drop_windows` is called.

    Args:
        schedule: the K of the next windows. None (default): the optimizer's own. An int of at least 1: that one, from
            now on. A dict `{epoch: K}`: that of the largest key of at most the epoch's number, counted from 0; before
            the first key the optimizer's own. Or a function of the updates made so far (an int) that returns K. It is
            asked after each update, with `steps_per_execution=n` after each n batches.
        partial_window: what becomes of a window that is under way at the end of an epoch. `"flush"` (default): an
            update on the mean of the mini-steps that are there. `"carry"`: the next epoch goes on with it, and it is
            still there after training. `"drop"`: it is forgotten.

    Returns:
        A callback of the model's Keras: until it is given to a model, of the one that `MySGD` would choose. A model
        whose attributes are several accumulating optimizers (a GAN) has all of them treated alike, after a warning.

    Raises:
        ValueError: an argument of the wrong kind or out of its range. When training starts: the model has no optimizer
            that accumulates, or one whose graph was built at K = 1 and is to have a larger K.

    Example:
        >>> import legacyga
        >>> callback = legacyga.GradientAccumulationCallback({0: 1, 5: 4}, partial_window="flush")
        >>> callback.partial_window, sorted(callback.schedule.items())
        ('flush', [(0, 1), (5, 4)])
    """
    schedule = _schedule.check(schedule)
    if partial_window not in PARTIAL_WINDOWS:
        raise ValueError(
            'partial_window must be "flush", "carry" or "drop". Received: {!r}'.format(partial_window),
        )
    return _class_for(_likely_home())(schedule, partial_window)


def _likely_home():
    try:
        return homes.find_home()
    except ValueError:
        # Two Keras are imported. Which one is the model's is known when there is a model.
        return homes.find_home(sys.modules["tf_keras"])


class _Count(int):
    """An int for the TensorBoard callbacks of Keras 2.1 and TF 1.8, which ask each value for its `item`."""

    def item(self):
        return int(self)


class _Callback(object):
    """What the callbacks of all homes share."""

    home = None

    def __init__(self, schedule, partial_window):
        super(_Callback, self).__init__()
        self.schedule, self.partial_window = schedule, partial_window
        self._optimizers = []
        if hooks.has_raw_logs(self.home):
            # Then Keras does not fetch the loss from the device on every batch for our hook.
            self._supports_tf_logs = True
        self._tells_early = not self.home.graph_mode and (
            hooks.has_two_dicts(self.home) or hooks.bar_is_first(self.home)
        )

    def __reduce__(self):
        # For pickle and deepcopy: a new one. What else it knows is of the fit under way, and its class has no module.
        return GradientAccumulationCallback, (self.schedule, self.partial_window)

    def _implements_train_batch_hooks(self):
        # Asked for by the lists of TF 2.3 and newer, before they give a callback of another Keras its model.
        return True

    def _implements_test_batch_hooks(self):
        return False

    _implements_predict_batch_hooks = _implements_test_batch_hooks

    def set_model(self, model):
        optimizers = lookup.optimizers_of(model)
        home = surface.home_of(optimizers[0]) if optimizers else None
        if home is not None and hasattr(home, "module") and home.root != self.home.root:
            # It is of another Keras than was taken before there was a model.
            params = getattr(self, "params", None)
            schedule, partial_window = self.schedule, self.partial_window
            self.__class__ = _class_for(home)
            self.__init__(schedule, partial_window)
            if params:
                self.set_params(params)
        super(_Callback, self).set_model(model)
        # A fit or an `evaluate` begins. Where an exception ended the last fit, its epoch did not end.
        self._epoch_is_open = False
        if hooks.homes_train_step(type(model)) is not None:
            # fit of TF 2.2 and 2.3 takes its training function before it calls `on_train_begin`.
            sample_counts.start_fit(model, optimizers)

    def on_train_begin(self, logs=None):
        self._optimizers = lookup.optimizers_of(self.model)
        if not self._optimizers:
            raise ValueError(
                "GradientAccumulationCallback needs a model whose optimizer accumulates. Received: {!r}. Compile the "
                "model with legacyga.wrap(optimizer, gradient_accumulation_steps) or legacyga.MySGD(...).".format(
                    getattr(self.model, "optimizer", None)
                )
            )
        if len(self._optimizers) > 1:
            warnings.warn(
                "The model has {} optimizers that accumulate. The schedule and partial_window={!r} hold for each of "
                "them, by its own count of updates; the logs are those of {!r}.".format(
                    len(self._optimizers), self.partial_window, self._optimizers[0]
                ),
                stacklevel=2,
            )
        # fit may be called where an exception is being handled.
        self._handled = sys.exc_info()[1]
        self._batch_size = self._params.get("batch_size")
        _schedule.check_steps_to_come(
            self._optimizers, self.schedule, self._params.get("epochs"), self._batches(), self.partial_window
        )
        if hooks.has_two_dicts(self.home):
            # What we put into raw logs reaches CSVLogger and History by the last batch alone, which must be known,
            # and not in graph mode.
            self._supports_tf_logs = bool(self._batches()) and not self.home.graph_mode
        if "metrics" in self._params:
            # Up to TF 2.1, and in graph mode, the progress bar shows what is named here.
            known = list(self._params["metrics"])
            self._params["metrics"] = known + [name for name in LOGS if name not in known]
        self._follow_schedule()
        self._windows, self._is_first_batch = [], False
        self._counts = sample_counts.start_fit(self.model, self._optimizers)
        self._sizes, self._samples = set(), 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch_is_open, self._goes_on, self._is_first_batch = True, False, True
        self._samples_before = self._samples_so_far()
        if not self._windows:
            # A callback that comes after this one, such as BackupAndRestore, may have restored another K, and windows.
            self._follow_schedule()
            with self.home.default_session():
                self._windows = [lookup.WindowsOfFit(self.model, each) for each in self._optimizers]
        if isinstance(self.schedule, dict):
            steps = _schedule.steps_at(self.schedule, epoch)
            if steps is not None:
                _schedule.set_steps(self.home, self._optimizers, steps)

    # Every Keras calls the next two. Those that call them on_train_batch_begin and _end have these names, too.

    def on_batch_begin(self, batch, logs=None):
        if not self._epoch_is_open:
            warnings.warn(
                "An epoch of {} batches went on. Its last window is ended after the last batch, too.".format(batch),
                stacklevel=2,
            )
            self._epoch_is_open = self._goes_on = True
        size = (logs or {}).get("size") or 0
        self._samples += size
        if isinstance(self._counts, sample_counts.ToldSizes):
            self._counts.tell(size)
        elif self._counts is None and size:
            self._sizes.add(size)
            if len(self._sizes) > 1:
                sample_counts.say_unweighed(
                    self._optimizers, "Keras does not tell an optimizer here how many samples a batch has."
                )
        # Of a dataset it is 1, whatever it is.
        if not self._batch_size and size > 1:
            self._batch_size = size

    def on_batch_end(self, batch, logs=None):
        if self._counts is None and self._has_own_train_step:
            sample_counts.say_unweighed(
                self._optimizers, "The model has a train_step of its own, which may call legacyga.train_step."
            )
        if self._is_first_batch:
            with self.home.default_session():
                for windows in self._windows:
                    windows.look()
        self._is_first_batch = False
        if callable(self.schedule):
            _schedule.ask(self.home, self._optimizers, self.schedule)
        batches = self._batches()
        if batches and batch + 1 >= batches and not self._goes_on:
            self._end_epoch()
            if logs is not None and self._tells_early:
                # Keras makes the epoch's logs of the last batch's, and the other dict of those: all get what is here.
                self._write(logs)

    def _follow_schedule(self):
        if callable(self.schedule):
            _schedule.ask(self.home, self._optimizers, self.schedule)
        elif isinstance(self.schedule, int):
            _schedule.set_steps(self.home, self._optimizers, self.schedule)

    @property
    def _has_own_train_step(self):
        return not self.home.graph_mode and hooks.homes_train_step(type(self.model)) is not None

    def on_test_begin(self, logs=None):
        # Within fit: the epoch's validation.
        self._end_epoch()

    def on_epoch_end(self, epoch, logs=None):
        self._end_epoch()
        if logs is not None:
            told_before = LOGS[0] in logs
            values = self._write(logs)
            if self._params.get("verbose") and not told_before and hooks.bar_lacks_our_logs(self.home):
                # In graph mode of TF 2.3 to 2.5 the bar's line is still open.
                begin = "\n" if self.home.graph_mode and hooks.has_two_dicts(self.home) else ""
                print(begin + " - ".join("{}: {}".format(name, value) for name, value in values))

    def on_train_end(self, logs=None):
        self._end_epoch()
        if isinstance(self._counts, sample_counts.ToldSizes):
            self._counts.tell(0)

    def _write(self, logs):
        steps = self._optimizers[0].gradient_accumulation_steps
        values = [self.home.value_of(self._optimizers[0].iterations), steps]
        if not self._batch_size and isinstance(self._counts, model_step.TrainStep):
            self._batch_size = self._counts.counts()[0]
        if self._batch_size:
            samples = self._params.get("samples") or self._samples_so_far() - self._samples_before
            largest = steps * self._batch_size
            values.append(min(largest, samples) if samples and self.partial_window == "flush" else largest)
        values = list(zip(LOGS, [_Count(value) for value in values] if self.home.graph_mode else values))
        logs.update(values)
        return values

    def _samples_so_far(self):
        return self._counts.counts()[1] if isinstance(self._counts, model_step.TrainStep) else self._samples

    def _end_epoch(self):
        """End, keep or drop what is in the windows, once an epoch."""
        if not self._epoch_is_open or self._is_interrupted():
            return
        self._epoch_is_open = False
        if self.partial_window == "carry":
            return
        with self.home.default_session():
            for windows in self._windows:
                windows.drop() if self.partial_window == "drop" else windows.end()
        if callable(self.schedule):
            self._follow_schedule()

    def _is_interrupted(self):
        """Whether training ends by an exception: only eager fit of TF 2.0 and 2.1 calls us then, as any other's end."""
        calls_us = "metrics" in self._params and not self.home.graph_mode
        return calls_us and sys.exc_info()[1] is not self._handled

    def _batches(self):
        """The batches of an epoch, None where Keras does not know."""
        if self._params.get("steps"):
            return self._params["steps"]
        samples, batch_size = self._params.get("samples"), self._params.get("batch_size")
        return -(-samples // batch_size) if samples and batch_size else None

    @property
    def _params(self):
        return self.params or {}


def _class_for(home):
    if home.root not in _CLASSES:
        _CLASSES[home.root] = type(
            "GradientAccumulationCallback",
            (_Callback, home.module.callbacks.Callback),
            {"__doc__": GradientAccumulationCallback.__doc__, "home": home},
        )
    return _CLASSES[home.root]
