"""GradientAccumulationCallback: handles partial windows, unequal batches, a changing K and logs during fit."""

import sys

from legacyga.backend import features, homes
from legacyga.backend.messages import shown, warn
from legacyga.fit import model_step, sample_counts
from legacyga.fit import schedule as _schedule
from legacyga.optimizers import lookup, surface

PARTIAL_WINDOWS = ("flush", "carry", "drop")
LOGS = ("updates", "gradient_accumulation_steps", "effective_batch_size")
COMPILED = (
    "A callback has compiled the model anew within fit, with another optimizer. Received: {}. This fit began with {}, "
    "and ends only the windows of that. Compile between two calls of fit."
)
_CLASSES = {}


def GradientAccumulationCallback(schedule=None, partial_window="flush"):
    """A callback for fit that ends each epoch's partial window, weighs batches by samples, sets K and logs updates.

    A window is the K batches (mini-steps) of one update; a partial window has fewer. Each batch is weighted by its
    number of samples, so a window with a smaller last batch equals the large batch exactly. In eager mode this needs TF
    2.2 or newer, your Keras's own `train_step` and `reduction="mean"`; in graph mode the optimizer does it, without
    this callback. In all other cases all batches have the same weight (docs/weights.md). A warning says so once: if
    array batches differ in size, or in eager mode if the model has its own `train_step`. Call `legacyga.train_step` in
    it.

    Each epoch's logs (History, CSVLogger, TensorBoard, the progress bar) get three ints:

        updates                      the optimizer's `iterations`, counted since it was made
        gradient_accumulation_steps  K at the end of the epoch
        effective_batch_size         K times the batch size; with "flush", at most the epoch's number of samples.
                                     Logged if known: in eager mode when batches are weighted, elsewhere for arrays, and
                                     in graph mode for generators

    The progress bar does not show them in Keras up to 2.3, nor in tf.keras up to TF 1.11 and of TF 2.3 to 2.7.
    TensorBoard does not show them in TF 2.3 to 2.5.

    If Keras reports the number of batches, the callback ends the epoch's window after the last batch, before
    validation. Otherwise it does so when validation begins, or in `on_epoch_end`. Put this callback first in the list,
    so that the other callbacks see the final weights and logs.

    After an exception the mini-steps stay in the window until training continues, or you call `flush` or
    `drop_windows`.

    Args:
        schedule: K of the next windows. None (default): keep the optimizer's K. An int of at least 1: use it from now
            on. A dict `{epoch: K}`: use the entry with the largest key up to the epoch's number, counted from 0; before
            the first key, keep the optimizer's K. A function that takes the number of updates so far, an int, and
            returns K: called when training begins and after each update, or with `steps_per_execution=n` after every n
            batches. It may be called several times with one number.
        partial_window: what to do with a partial window at the end of an epoch. `"flush"` (default): update with the
            mean of its mini-steps. `"carry"`: continue it in the next epoch; after training it stays open. `"drop"`:
            discard it.

    Returns:
        A callback of the model's Keras. Until it has a model, it belongs to the Keras that `MySGD` would choose. If the
        model's attributes hold several accumulating optimizers (a GAN), it warns and treats them all the same.

    Raises:
        ValueError: an argument has the wrong type or is out of range. When training starts: the model has no
            accumulating optimizer, or the schedule raises K of one that began to train at K = 1.

    Examples:
        >>> import legacyga
        >>> callback = legacyga.GradientAccumulationCallback({0: 1, 5: 4}, partial_window="flush")
        >>> callback.partial_window, sorted(callback.schedule.items())
        ('flush', [(0, 1), (5, 4)])
    """
    schedule = _schedule.check(schedule)
    if partial_window not in PARTIAL_WINDOWS:
        raise ValueError(
            'partial_window must be "flush", "carry" or "drop". Received: {}'.format(shown(partial_window)),
        )
    return _class_for(_likely_home())(schedule, partial_window)


def _is_not_called(*args):
    raise ValueError(
        "callbacks must hold what GradientAccumulationCallback returns. Received: the function itself. Call it: "
        "callbacks=[legacyga.GradientAccumulationCallback()]."
    )


# If `callbacks` has the function itself, Keras calls the first of these, and in graph mode of tf.keras the second.
GradientAccumulationCallback.set_model = GradientAccumulationCallback._implements_test_batch_hooks = _is_not_called


def _likely_home():
    try:
        return homes.find_home()
    except ValueError:
        # Standalone Keras and tf_keras are both imported. If this guess is wrong, `set_model` corrects it.
        return homes.find_home(sys.modules["tf_keras"])


class _Count(int):
    """An int with `item`, which TensorBoard callbacks of Keras 2.1 and TF 1.8 to 1.12 call. Delete with TF 1.12."""

    item = int.__int__


class _Callback(object):
    home = None

    def __init__(self, schedule, partial_window):
        super(_Callback, self).__init__()
        self.schedule, self.partial_window = schedule, partial_window
        # Raw logs spare Keras a fetch of the loss after each batch. Take them only if other callbacks get our entries.
        self._supports_tf_logs = features.shares_raw_logs(self.home)

    def __reduce__(self):
        # pickle cannot find the class, which is in no module, and all other state is of a single fit.
        return GradientAccumulationCallback, (self.schedule, self.partial_window)

    def _implements_train_batch_hooks(self):
        # Graph mode asks before `set_model`, when the base class may still be another Keras's.
        return True

    def _implements_test_batch_hooks(self):
        return False

    _implements_predict_batch_hooks = _implements_test_batch_hooks

    def set_model(self, model):
        optimizers = lookup.optimizers_of(model)
        home = surface.home_of(optimizers[0]) if optimizers else None
        if home is not None and not hasattr(home, "module"):
            # A tf.train optimizer belongs to no Keras, but what `compile` puts around it does.
            home = homes.home_of(model.optimizer)
        if home is not None and home.root != self.home.root:
            # Become a callback of the model's Keras.
            params = getattr(self, "params", None)
            schedule, partial_window = self.schedule, self.partial_window
            self.__class__ = _class_for(home)
            self.__init__(schedule, partial_window)
            if params:
                self.set_params(params)
        super(_Callback, self).set_model(model)
        # If an exception ended the previous fit, its epoch is still open.
        self._epoch_is_open = False
        if model_step.keras_train_step(type(model)) is not None:
            # Fit of TF 2.2 and 2.3 keeps the training function from before `on_train_begin`. Delete with TF 2.3.
            sample_counts.start_fit(model, optimizers)

    def on_train_begin(self, logs=None):
        self._optimizers = lookup.optimizers_of(self.model)
        if not self._optimizers:
            raise ValueError(
                "GradientAccumulationCallback needs a model whose optimizer accumulates. Received: {}. Compile the "
                "model with legacyga.wrap(optimizer, gradient_accumulation_steps) or legacyga.MySGD(...).".format(
                    shown(getattr(self.model, "optimizer", None))
                )
            )
        if len(self._optimizers) > 1:
            warn(
                "The model has {} optimizers that accumulate. The schedule and partial_window={} hold for each of "
                "them, by its own count of updates; the logs are those of {}.".format(
                    len(self._optimizers), shown(self.partial_window), shown(self._optimizers[0])
                )
            )
        # A program may call fit while it handles an exception: `_end_epoch` looks for one raised since.
        self._handled = sys.exc_info()[1]
        self._batch_size = self._params.get("batch_size")
        _schedule.check_steps_to_come(
            self._optimizers, self.schedule, self._params.get("epochs"), self._batches(), self.partial_window
        )
        if "metrics" in self._params:
            # The progress bar of TF 1.12 to 2.1 shows only logs named here. Delete with TF 2.1.
            known = list(self._params["metrics"])
            self._params["metrics"] = known + [name for name in LOGS if name not in known]
        self._follow_schedule()
        self._windows, self._is_first_batch = [], False
        self._counts = sample_counts.start_fit(self.model, self._optimizers)
        self._sizes, self._samples = set(), 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch_is_open, self._went_on, self._is_first_batch = True, False, True
        self._samples_before = self._samples_so_far()
        if not self._windows:
            # A later callback's on_train_begin, such as BackupAndRestore's, may have restored another K and windows.
            self._follow_schedule()
            with self.home.default_session():
                self._windows = [lookup.WindowsOfFit(self.model, each) for each in self._optimizers]
        if isinstance(self.schedule, dict):
            steps = _schedule.steps_at(self.schedule, epoch)
            if steps is not None:
                _schedule.set_steps(self.home, self._optimizers, steps)

    # Newer Kerases call the next two through on_train_batch_begin and on_train_batch_end.

    def on_batch_begin(self, batch, logs=None):
        # In graph mode fit goes on with the function, and so the optimizer, that it began with.
        if self._is_first_batch and not self.home.graph_mode:
            now = lookup.optimizers_of(self.model)
            if list(map(id, now)) != list(map(id, self._optimizers)):
                raise ValueError(COMPILED.format(shown(self.model.optimizer), shown(self._optimizers[0])))
        if not self._epoch_is_open:
            # Keras announced too few batches, so `on_batch_end` has ended the epoch already.
            warn("An epoch of {} batches went on. Its last window is ended after the last batch, too.".format(batch))
            self._epoch_is_open = self._went_on = True
        size = (logs or {}).get("size") or 0
        self._samples += size
        if self._counts is None and size:
            self._sizes.add(size)
            if len(self._sizes) > 1:
                reason = sample_counts.UNKNOWN if self.home.graph_mode else sample_counts.UNTOLD
                sample_counts.say_unweighed(self._optimizers, reason)
        # Graph mode reports size 1 for a dataset's batches.
        if not self._batch_size and size > 1:
            self._batch_size = size

    def on_batch_end(self, batch, logs=None):
        # Warn only now: the model's own train_step may have given a weight.
        if self._counts is None and not self.home.graph_mode and model_step.keras_train_step(type(self.model)):
            several = len(self._optimizers) > 1
            sample_counts.say_unweighed(self._optimizers, sample_counts.SEVERAL if several else sample_counts.OWN_STEP)
        if self._is_first_batch:
            with self.home.default_session():
                for windows in self._windows:
                    windows.look()
        self._is_first_batch = False
        if callable(self.schedule):
            _schedule.ask(self.home, self._optimizers, self.schedule)
        batches = self._batches()
        if batches and batch + 1 >= batches and not self._went_on:
            self._end_epoch()

    def _follow_schedule(self):
        """Set K by a function or an int; `on_epoch_begin` follows a dict."""
        if callable(self.schedule):
            _schedule.ask(self.home, self._optimizers, self.schedule)
        elif isinstance(self.schedule, int):
            _schedule.set_steps(self.home, self._optimizers, self.schedule)

    def on_test_begin(self, logs=None):
        # Within fit, this is the start of the epoch's validation.
        self._end_epoch()

    def on_epoch_end(self, epoch, logs=None):
        self._end_epoch()
        if logs is not None:
            self._write(logs)

    def on_train_end(self, logs=None):
        self._end_epoch()

    def _write(self, logs):
        steps = self._optimizers[0].gradient_accumulation_steps
        values = [self.home.value_of(self._optimizers[0].iterations), steps]
        batch_size = self._batch_size
        if not batch_size and self._counts is not None:
            batch_size = self._counts.counts()[0]
        if batch_size:
            # Not `params["samples"]`: in graph mode of tf.keras it is the number of batches of a generator.
            samples, largest = self._samples_so_far() - self._samples_before, steps * batch_size
            values.append(min(largest, samples) if samples and self.partial_window == "flush" else largest)
        logs.update(zip(LOGS, [_Count(value) for value in values] if self.home.graph_mode else values))

    def _samples_so_far(self):
        return self._samples if self._counts is None else self._counts.counts()[1]

    def _end_epoch(self):
        """Apply `partial_window`, once per epoch."""
        if not self._epoch_is_open:
            return
        # An exception that ends the fit leaves the window open.
        if features.calls_callbacks_on_exceptions(self.home) and sys.exc_info()[1] is not self._handled:
            return
        self._epoch_is_open = False
        if self.partial_window == "carry":
            return
        with self.home.default_session():
            for windows in self._windows:
                windows.drop() if self.partial_window == "drop" else windows.end()
        if callable(self.schedule):
            self._follow_schedule()

    def _batches(self):
        """The number of batches in an epoch; None if Keras does not know."""
        if self._params.get("steps"):
            return self._params["steps"]
        samples, batch_size = self._params.get("samples"), self._params.get("batch_size")
        return -(-samples // batch_size) if samples and batch_size else None

    @property
    def _params(self):
        # A loop of the program may not call `set_params`, which makes the attribute in Keras 2. Delete with Keras 2.
        return getattr(self, "params", None) or {}


def _class_for(home):
    if home.root not in _CLASSES:
        _CLASSES[home.root] = type(
            "GradientAccumulationCallback",
            (_Callback, home.module.callbacks.Callback),
            {"__doc__": GradientAccumulationCallback.__doc__, "home": home},
        )
    return _CLASSES[home.root]
