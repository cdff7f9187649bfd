"""Programs around `fit`: a model of a home and an oracle (NumPy float64) take the same calls, and are compared.

test_any_program.py makes up such programs, and soak.py runs one for half an hour.
"""

import copy
import os

import oracle
from epochs import BATCHES, START, X, Y, counts

import legacyga

LR, MOMENTUM = 0.05, 0.5


class InterruptionError(Exception):
    pass


class Promised(object):
    """What a program's weights are to be.

    Args:
        counts: whether `fit` with the callback weighs batches by their samples here.
        known: whether batches weigh their samples already.
    """

    def __init__(self, steps, counts, known):
        self.weights, self.accumulated = oracle.double(START), oracle.Accumulated(oracle.SGD(LR, MOMENTUM), steps)
        self.steps, self.counts, self.known = steps, counts, known

    def mini_step(self, x, y):
        if not self.accumulated.windows:
            self.accumulated.steps = self.steps
        found, size = oracle.gradients(self.weights, x, y), len(x) if self.known else None
        self.weights = self.accumulated.mini_step(self.weights, found, size=size)

    def flush(self):
        self.weights = self.accumulated.flush(self.weights)

    def drop(self):
        self.accumulated.windows.clear()

    def fit(self, epochs, partial_window, schedule, interrupted):
        self.known = self.known or self.counts and partial_window is not None
        self.steps = schedule or self.steps
        for _ in range(epochs):
            for i, batch in enumerate(BATCHES):
                self.mini_step(*batch)
                if interrupted and i == 1:
                    return
            if partial_window in ("flush", "drop"):
                getattr(self, partial_window)()

    def get_state(self):
        return copy.deepcopy((self.weights, self.steps, self.accumulated))

    def set_state(self, state):
        self.weights, self.steps, self.accumulated = copy.deepcopy(state)


class Program(object):
    """A model of a home that is driven through the same calls.

    Args:
        make: function of K, of an accumulating SGD of that K.
        folder: where it saves.
        traced: whether Keras traces the training step, in eager mode. `losses_made` counts how often.
    """

    def __init__(self, home, make, steps, folder, traced=False):
        self.home, self.folder, self.traced, self.losses_made = home, folder, traced, 0
        self.compiled = {} if home.mode == "graph" or traced else dict(run_eagerly=True)
        self.model = home.network(START)
        self.model.compile(optimizer=make(steps), loss=self._loss(), **self.compiled)
        self.promised = Promised(steps, counts(home), home.mode == "graph")
        self.between = self._between()
        # Train once: then all state exists, and `set_state` can restore it.
        self.train_on_batch(0)

    def _between(self):
        """A callback that evaluates, or interrupts, within an epoch."""
        program = self

        class Between(self.home.keras.callbacks.Callback):
            def on_batch_end(self, batch, logs=None):
                if self.evaluates and batch == 1:
                    program.evaluate()
                if self.interrupted and batch == 1:
                    raise InterruptionError

        return Between()

    def _loss(self):
        if not self.traced:
            return self.home.keras.losses.MeanSquaredError() if self.home.is_keras3 else "mse"

        def loss(y_true, y_pred):
            self.losses_made += 1
            return self.home.keras.losses.mean_squared_error(y_true, y_pred)

        return loss

    @property
    def optimizer(self):
        return self.model.optimizer

    def train_on_batch(self, number):
        self.model.train_on_batch(*BATCHES[number])
        self.promised.mini_step(*BATCHES[number])

    def evaluate(self):
        self.model.evaluate(X, Y, batch_size=3, verbose=0)

    def set_steps(self, steps):
        self.optimizer.gradient_accumulation_steps = self.promised.steps = steps

    def flush(self):
        legacyga.flush(self.optimizer)
        self.promised.flush()

    def drop(self):
        self.optimizer.drop_windows()
        self.promised.drop()

    def fit(self, epochs=1, partial_window=None, schedule=None, evaluates=False, interrupted=False):
        """`partial_window=None` is fit without our callback, and then there is no schedule."""
        self.between.evaluates, self.between.interrupted = evaluates, interrupted
        callbacks = [self.between]
        if partial_window is not None:
            callbacks.append(legacyga.GradientAccumulationCallback(schedule, partial_window=partial_window))
        try:
            self.model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
        except InterruptionError:
            assert interrupted
        self.promised.fit(epochs, partial_window, schedule if partial_window else None, interrupted)

    def save(self):
        path = os.path.join(self.folder, "model." + ("keras" if self.home.is_keras3 else "h5"))
        self.model.save(path)
        return path

    def save_and_load(self):
        self.model = legacyga.load_model(self.save(), keras=self.home.keras)
        if self.compiled:
            self.model.run_eagerly = True
        # The step that counts samples is the old model's. A graph needs none.
        self.promised.known = self.home.mode == "graph"

    def compile_again(self):
        self.model.compile(optimizer=self.optimizer, loss=self._loss(), **self.compiled)

    def get_state(self):
        weights = self.home.optimizer_weights(self.optimizer)
        return self.model.get_weights(), weights, self.promised.get_state()

    def set_state(self, state):
        weights, optimizer_weights, promised = state
        self.model.set_weights(weights)
        self.home.set_optimizer_weights(self.optimizer, optimizer_weights)
        self.promised.set_state(promised)

    def difference(self):
        """The largest one to what is promised, of a weight."""
        return oracle.farthest(self.model.get_weights(), self.promised.weights)

    def check(self, tolerance):
        value, promised = self.home.value, self.promised
        assert self.optimizer.gradient_accumulation_steps == promised.steps
        counted = [int(value(each)) for each in (self.optimizer.mini_step, self.optimizer.iterations)]
        window = promised.accumulated.windows.get(None, [])
        assert counted == [len(window), promised.accumulated.optimizer.iterations]
        assert self.difference() <= tolerance
