"""The rule of gradient accumulation, written once for every generation of optimizers.

A window is K consecutive mini-steps. Its K gradients g_1 ... g_K, of weights w_1 ... w_K (1 unless said otherwise),
end in one update of the inner optimizer with

    sum_k(w_k * g_k) / sum_k(w_k)      (reduction="mean")
    sum_k(w_k * g_k)                   (reduction="sum")

which for a loss that is a mean over its samples is the gradient of the K micro-batches taken as one batch.

No TensorFlow is imported here. `ops` (`ops.Ops`) brings the handful of operations.
"""

import collections
import weakref

from legacyga.windows.accumulators import NOTHING


class Weight(collections.namedtuple("Weight", ["value", "is_sample_count", "given_in"])):
    """The weight of one replica's mini-step: a scalar; whether it counts the samples of its data; and, of one that a
    program gave, the graph that it was given in, None outside of all.
    """

    def __new__(cls, value, is_sample_count, given_in=None):
        return super(Weight, cls).__new__(cls, value, is_sample_count, given_in)


def _here(function, args):
    return function(*args)


class Window(object):
    """The state of the window that is under way, and what a mini-step does to it.

    Args:
        sums: its `Sums`.
        var_list: the model's variables, held weakly, so that a copy of the optimizer is no copy of the model.
        scalar: `scalar(name, value, dtype, shape=())` makes a variable of the optimizer.
        next_steps: function without arguments, of the K that a window beginning now has: a tensor.
        guard: a `nonfinite.Guard`, None for the policy "propagate".
        mutex: a `graph.Mutex`, None where mini-steps have an order already.

    Attributes:
        mini_step: the mini-steps taken in this window, 0 to K - 1.
        left_out: those of them that a guard left out.
        weight: the sum of their weights.
        unit: the samples, on all replicas together, that a weight of 1 stands for; 0 where no mini-step of this window
            has a weight. So a window goes on alike on another number of replicas.
        steps: K of this window.
        held: what the sums hold of each variable, of this window or of the last: NOTHING, ROWS or WHOLE.
        places: where the variables are among the sums.
        call: the arguments that its mini-steps came with beside gradients: (args, kwargs).
    """

    def __init__(self, sums, var_list, scalar, next_steps, steps, guard=None, mutex=None):
        self.ops, self.sums = sums.ops, sums
        self.var_list, self.places = [weakref.ref(var) for var in var_list], range(len(var_list))
        self.mini_step = scalar("mini_step", 0, "int64")
        self.left_out = scalar("left_out", 0, "int64")
        self.weight = scalar("weight", 0, "float64")
        self.unit = scalar("unit", 0, "float64")
        self.steps = scalar("steps", steps, "int64")
        self.held = scalar("held", 0, "int32", (len(var_list),))
        self._next_steps, self._guard, self._mutex = next_steps, guard, mutex
        self.call = ((), {})

    @property
    def variables(self):
        """All of the state."""
        return self.counts + [self.steps, self.held] + self.sums.variables

    @property
    def counts(self):
        """What is 0 where no window is under way."""
        return [self.mini_step, self.left_out, self.weight, self.unit]

    def restrict(self, places):
        """Let the window be one of the variables at these places alone, before any use. The state stays as it is."""
        self.places, self.var_list = places, [self.var_list[place] for place in places]
        self.sums.restrict(places)

    def remember(self, args, kwargs):
        """Keep the arguments of a mini-step's call, for an update that no mini-step makes."""
        self.call = (args, kwargs)

    def take_mini_step(self, gradients, places, mask, update, run=_here, before=(), weight=None):
        """Take one mini-step: accumulate `gradients`, or end the window with an update.

        Args:
            gradients: list of tensors or IndexedSlices.
            places: for each of them the place of its variable among the sums.
            mask: what these gradients leave there (`Sums.mask`).
            update: function of the list of reduced gradients, None where a variable has none, and of {position in that
                list: whether there is a gradient, a boolean tensor} where only the run can tell: one step of the inner
                optimizer, whose operations it creates when called, and returns.
            run: `run(function, args)` calls `function` once on each replica with its own part of `args`.
            before: what else must have been computed before anything is written.
            weight: a `Weight`, whose value is a scalar on each replica; None for 1, at no cost.

        Returns:
            A boolean tensor: whether this mini-step ended in an update. It is there after all that was written.
        """
        arguments = (gradients,) if weight is None else (gradients, weight.value)
        bad = self._guard and self._guard.look(run, arguments)
        # In a TensorFlow 1 graph nothing else keeps the loss and the gradients ahead of the writes: all the work
        # below hangs on the first read.
        with self.ops.after(gradients, before):
            if self._mutex is None:
                return self._take(arguments, places, mask, update, run, weight, bad)
            with self._mutex.held() as free:
                return free(self._take(arguments, places, mask, update, run, weight, bad))

    def _take(self, arguments, places, mask, update, run, weight, bad):
        ops, given, mask = self.ops, mask, self.ops.constant(mask, "int32")
        mini_step, held = self.mini_step.read_value(), self.held.read_value()
        begins = ops.equal(mini_step, 0)
        steps = ops.where(begins, self._next_steps(), self.steps.read_value())
        scale, added, unit = self._scale(weight)
        new_weight = self.weight.read_value() + added
        kept = ops.cast(ops.logical_not(begins), "int32")
        in_window = ops.maximum(held * kept, mask)

        def weigh(gradients, weight=None):
            weight = None if weight is None else ops.cast(weight, "float64") / scale
            return self.sums.weigh(dict(zip(places, gradients)), weight)

        def write(begins):
            return ops.done(run(lambda *args: self.sums.write(weigh(*args), held, begins), arguments))

        def go_on():
            with ops.after(ops.cond(begins, lambda: write(True), lambda: write(False))):
                return self._move_to(mini_step + 1, new_weight, unit, steps, in_window, updated=False)

        if self._guard is not None:
            taken = self._guard.take(bad, go_on, lambda: self._leave_out(mini_step, steps, held, kept, run))
            with ops.after(taken):
                return self._end_if(lambda taken, steps: taken >= steps, update, run, places)

        def end_window():
            absent, present = self._absent(in_window), self._present(in_window, places)

            def on_replica(*args):
                return self._update(update, self._reduced(weigh(*args), held, absent, new_weight, begins), present)

            with ops.after(run(on_replica, arguments)):
                # What the last window left is still there, where this one began with its end (K = 1) and wrote nothing.
                left = self._without(self.sums.emptied(given, held, absent), ops.maximum(held, mask))
                return self._move_to(0, 0, 0, steps, left, updated=True)

        return ops.cond(mini_step + 1 >= steps, end_window, go_on)

    def _leave_out(self, mini_step, steps, held, kept, run):
        """Count a mini-step that adds nothing; `kept`: 0 where the window begins with it, else 1."""
        ops = self.ops

        def clear():
            # What follows is added, to zeros.
            return ops.done(run(lambda: self.sums.write({}, held, True), ()))

        with ops.after(ops.cond(ops.equal(kept, 0), clear, lambda: ops.done([]))):
            written = [
                self.mini_step.assign(mini_step + 1),
                self.left_out.assign(self.left_out.read_value() + 1),
                self.steps.assign(steps),
                self.held.assign(held * kept),
            ]
            return ops.done(written, False)

    def _scale(self, weight):
        """What to divide a mini-step's weights by, what it adds to their sum, and the window's unit from then on.

        In a window that knows how many samples a mini-step had, a mini-step that says nothing weighs as much as the
        first that did. So equal batches weigh alike, whoever hands them over.
        """
        ops, unit = self.ops, self.unit.read_value()
        if weight is None:
            return None, 1, unit
        total, one = ops.sum_of_scalars(weight.value), ops.ones_like(unit)
        if self.sums.reduction == "sum":
            return one, total / ops.replicas, unit
        unit = ops.where(unit > 0, unit, total if weight.is_sample_count else one * ops.replicas)
        whole = ops.where(unit > 0, unit, one * ops.replicas)
        return whole / ops.replicas, total / whole, unit

    def flush(self, update, run=_here):
        """End a window that is under way with an update, on the mean of what is there; else do nothing.

        Args:
            update, run: as in `take_mini_step`.

        Returns:
            A boolean tensor: whether there was an update.
        """
        return self._end_if(lambda taken, steps: taken > 0, update, run)

    def _end_if(self, condition, update, run, given=()):
        ops = self.ops
        mini_step, weight, held = self.mini_step.read_value(), self.weight.read_value(), self.held.read_value()
        steps, left_out = self.steps.read_value(), self._guard and self.left_out.read_value()
        absent = self._absent(held)

        def reduce():
            return self._reduced({}, held, absent, weight, False)

        def close(updated):
            emptied = self.sums.emptied([NOTHING] * len(self.sums.states), held, absent)
            return self._move_to(0, 0, 0, steps, self._without(emptied, held), updated, anew=True)

        def end_window():
            present = self._present(held, given)
            if self._guard is None:
                with ops.after(run(lambda: self._update(update, reduce(), present), ())):
                    return close(True)
            added, reduced = mini_step - left_out, run(reduce, ())

            def empty_and_close(updated):
                with ops.after(run(self._empty, (reduced,))):
                    return close(updated)

            def update_present(each):
                return update(each, present)

            return self._guard.end(run, reduced, added, left_out, update_present, empty_and_close, self._names())

        return ops.cond(condition(mini_step, steps), end_window, lambda: ops.done([], False))

    def drop(self):
        """Forget the mini-steps of a window that is under way: the next one stores over its sums."""
        with self.ops.after(self.mini_step.read_value()):
            return self._move_to(0, 0, 0, self.steps.read_value(), self.held.read_value(), updated=False, anew=True)

    def _names(self):
        variables = [reference() for reference in self.var_list]
        return [str(getattr(each, "path", None) or getattr(each, "name", each)) for each in variables]

    def _absent(self, in_window):
        """The places among the sums that are known to have no gradient where a window ends that holds `in_window`."""
        known = self.ops.value_if_eager(in_window)
        if known is None:
            # A traced function asks `_present` when it runs. A graph of TensorFlow 1 leaves out what it has never seen.
            is_graph = self._mutex is not None and self.sums.forms
            return set(self.places) - set(self.sums.forms) if is_graph else set()
        # Where all mini-steps were left out nothing is held, and a loss scale still has to learn of it.
        return {i for i, each in enumerate(known) if each == NOTHING} if any(known) else set()

    def _present(self, in_window, given):
        """{position: whether the window holds a gradient of the variable} that a traced function asks when it runs.

        Another function, traced later, may add gradients of variables that have none here, such as another task's.

        Args:
            in_window: as of `_absent`.
            given: the places of which this mini-step has gradients.
        """
        asked = {i: place for i, place in enumerate(self.places) if place not in given}
        if not asked or self._mutex is not None or self.ops.value_if_eager(in_window) is not None:
            return {}
        forms = self.ops.unstack(in_window, len(self.sums.states))
        return {i: self.ops.logical_not(self.ops.equal(forms[place], NOTHING)) for i, place in asked.items()}

    def _reduced(self, given, held, absent, weight, begins):
        """What one replica's gradients are reduced to, a list, with the last ones added on the way."""
        reduced = self.sums.reduced(given, held, weight, begins, absent)
        return [reduced[place] for place in self.places]

    def _update(self, update, reduced, present):
        with self.ops.after(update(reduced, present)):
            return self._empty(reduced)

    def _empty(self, reduced):
        return self.sums.empty(dict(zip(self.places, reduced)))

    def _without(self, emptied, held):
        """`held` with NOTHING at the places of sums that were emptied."""
        if not emptied:
            return held
        kept = [int(place not in emptied) for place in range(len(self.sums.states))]
        return held * self.ops.constant(kept, "int32")

    def _move_to(self, mini_step, weight, unit, steps, held, updated, anew=False):
        written = [
            self.mini_step.assign(self.ops.cast(mini_step, "int64")),
            self.weight.assign(self.ops.cast(weight, "float64")),
            self.unit.assign(self.ops.cast(unit, "float64")),
            self.steps.assign(steps),
            self.held.assign(held),
        ]
        if self._guard is not None and anew:
            written.append(self.left_out.assign(self.ops.constant(0, "int64")))
        return self.ops.done(written, updated)
