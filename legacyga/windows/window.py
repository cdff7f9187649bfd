"""The rule of gradient accumulation, for every generation of optimizers.

A window is K consecutive mini-steps. Its K gradients g_1 ... g_K, with weights w_1 ... w_K (1 by default), end in one
update of the inner optimizer with

    sum_k(w_k * g_k) / sum_k(w_k)      (reduction="mean")
    sum_k(w_k * g_k)                   (reduction="sum")
"""

import collections
import operator
import weakref

from legacyga.backend import graph
from legacyga.backend.tensors import is_differentiable
from legacyga.windows.accumulators import NOTHING


class Kept(collections.namedtuple("Kept", ["mini_step", "left_out", "weight", "unit", "steps", "held"])):
    """The state of a window besides its sums, in the order of a saved state. Each field is a variable of the optimizer.

    mini_step: the number of mini-steps in this window so far, 0 to K - 1.
    left_out: how many of them a guard skipped.
    weight: the sum of their weights, each divided by `unit`, or by the number of replicas while `unit` is 0.
    unit: what a mini-step without a weight weighs, summed over all replicas: the window's first weight if that counts
        samples, else the number of replicas. So a window can go on with another number of replicas. 0 while no
        mini-step of this window has had a weight, and with reduction="sum".
    steps: K of this window.
    held: for each variable, what its sum holds, from this window or the previous one: NOTHING, ROWS or WHOLE.
    """

    @classmethod
    def made(cls, scalar, steps, number):
        """Create the fields for `number` variables of the model, each by `scalar(name, value, dtype, shape=())`."""
        return cls(
            mini_step=scalar("mini_step", 0, "int64"),
            left_out=scalar("left_out", 0, "int64"),
            weight=scalar("weight", 0, "float64"),
            unit=scalar("unit", 0, "float64"),
            steps=scalar("steps", steps, "int64"),
            held=scalar("held", 0, "int64", (number,)),
        )

    @property
    def counts(self):
        """The counters that are 0 while no window is open."""
        return [self.mini_step, self.left_out, self.weight, self.unit]


class Window(object):
    """The window of one list of variables: its state, and what a mini-step does to it.

    Args:
        next_steps: function without arguments that returns K of a window that begins now, a tensor.
        guard: a `nonfinite.Guard`, or None for the policy "propagate".
        mutex: a `graph.Mutex`, or None if mini-steps already run in order.
    """

    def __init__(self, sums, kept, var_list, next_steps, guard, mutex):
        self.ops, self.sums, self.kept = sums.ops, sums, kept
        self.var_list, self.places = [weakref.ref(var) for var in var_list], range(len(var_list))
        self._next_steps, self._guard, self._mutex = next_steps, guard, mutex
        # The other arguments of the last mini-step's call, for a flush.
        self.call = ((), {})

    @property
    def variables(self):
        return list(self.kept) + self.sums.variables

    def is_of(self, var_list):
        """Whether `var_list` holds the window's variables, the same objects in the same order."""
        known = [reference() for reference in self.var_list]
        return len(known) == len(var_list) and all(map(operator.is_, known, var_list))

    def restrict(self, places):
        """Keep only the variables at `places`. Call it before any use. `variables` still lists all."""
        self.places, self.var_list = places, [self.var_list[place] for place in places]
        self.sums.restrict(places)

    def take(self, mini_step, update, run):
        """Run a `MiniStep`, and return whether it ended in an update: a boolean tensor, available after all writes.

        Args:
            update: function that makes one step of the inner optimizer and returns its operations. It takes the list of
                reduced gradients, None for a variable without one, and {position in that list: whether there is a
                gradient, a boolean tensor} for the positions where this is known only at run time.
            run: `run(function, args)` calls `function` once on each replica, with that replica's part of `args`.
        """
        weight = mini_step.weight
        arguments = (mini_step.gradients,) if weight is None else (mini_step.gradients, weight.value)
        bad = self._guard and self._guard.look(run, arguments)
        # In a TensorFlow 1 graph nothing else makes the writes wait for the loss and the gradients.
        with self.ops.after(mini_step.gradients, mini_step.before):
            return graph.one_at_a_time(self._mutex, lambda: self._take(mini_step, arguments, update, run, bad))

    def _take(self, step, arguments, update, run, bad):
        ops, kept = self.ops, self.kept
        forms = ops.constant(step.forms, "int64")
        mini_step, held = kept.mini_step.read_value(), kept.held.read_value()
        begins = ops.equal(mini_step, 0)
        steps = ops.where(begins, self._next_steps(), kept.steps.read_value())
        scale, added, unit = self._scale(step.weight)
        new_weight = kept.weight.read_value() + added
        goes_on = ops.cast(ops.logical_not(begins), "int64")
        in_window = ops.maximum(held * goes_on, forms)

        # In a graph, weigh once, ahead of the branches: a weight of 1 then costs nothing.
        if self._mutex is not None and len(arguments) > 1 and not ops.replicas.are_several:
            weight = ops.cast(step.weight.value, "float64") / scale
            arguments = (list(self.sums.weigh_once(dict(zip(step.places, step.gradients)), weight).values()),)

        def weigh(gradients, weight=None):
            weight = None if weight is None else ops.cast(weight, "float64") / scale
            return self.sums.weigh(dict(zip(step.places, gradients)), weight)

        def write(begins):
            return ops.done(run(lambda *args: self.sums.write(weigh(*args), step.forms, held, begins), arguments))

        def go_on():
            with ops.after(ops.cond(begins, lambda: write(True), lambda: write(False))):
                return self._move_to(mini_step + 1, new_weight, unit, steps, in_window, updated=False)

        if self._guard is not None:
            taken = self._guard.take(bad, go_on, lambda: self._leave_out(mini_step, steps, held, goes_on, run))
            with ops.after(taken):
                # If the mini-step may have been skipped, only `held` tells whether the sums have its gradients.
                given = step.places if bad is None else ()
                return self._end_if(lambda taken, steps: taken >= steps, update, run, given)

        def end_window():
            absent, presence = self._absent(in_window), self._presence(in_window, step.places)

            def on_replica(*args):
                reduced = self._reduced(weigh(*args), step.forms, held, absent, new_weight, begins)
                return self._update(update, reduced, presence)

            with ops.after(run(on_replica, arguments)):
                # Include `held`: at K = 1 a window overwrites no dense sum, which still holds an earlier window's.
                left = self._without(self.sums.emptied(step.forms, held, absent), ops.maximum(held, forms))
                return self._move_to(0, 0, 0, steps, left, updated=True)

        return ops.cond(mini_step + 1 >= steps, end_window, go_on)

    def _leave_out(self, mini_step, steps, held, goes_on, run):
        """Count a skipped mini-step; `goes_on` is 0 if it is the first of its window, else 1."""
        ops, kept = self.ops, self.kept

        def clear():
            # Later mini-steps only add, so they need zeros.
            return ops.done(run(lambda: self.sums.write({}, (), held, True), ()))

        with ops.after(ops.cond(ops.equal(goes_on, 0), clear, lambda: ops.done([]))):
            written = [
                kept.mini_step.assign(mini_step + 1),
                kept.left_out.assign(kept.left_out.read_value() + 1),
                kept.steps.assign(steps),
                kept.held.assign(held * goes_on),
            ]
            return ops.done(written, False)

    def _scale(self, weight):
        """Return what divides each replica's weight (or None), the addend of `Kept.weight`, and the new `Kept.unit`."""
        ops, unit = self.ops, self.kept.unit.read_value()
        if weight is None:
            return None, 1, unit
        replicas = ops.replicas
        total, one = replicas.sum(weight.value), ops.ones_like(unit)
        if self.sums.reduction == "sum":
            return one, total / replicas.count, unit
        unit = ops.where(unit > 0, unit, total if weight.is_sample_count else one * replicas.count)
        whole = ops.where(unit > 0, unit, one * replicas.count)
        if self._mutex is not None and weight.is_sample_count:
            # In a graph, -1 stands for an unknown count: the mini-step weighs as much as one without a weight.
            whole, unit = ops.where(total < 0, total, whole), ops.maximum(unit, 0)
        counted = total if weight.counted is None else weight.counted
        return whole / replicas.count, counted / whole, unit

    def flush(self, update, run):
        """End a window with an update if one is open, and return whether there was an update, as `take` does."""
        return graph.one_at_a_time(self._mutex, lambda: self._end_if(lambda taken, steps: taken > 0, update, run))

    def _end_if(self, condition, update, run, given=()):
        """End the window on its stored sums if `condition(mini-steps so far, K)`. `given` is as in `_presence`."""
        ops, kept = self.ops, self.kept
        mini_step, weight, held = kept.mini_step.read_value(), kept.weight.read_value(), kept.held.read_value()
        steps, left_out = kept.steps.read_value(), self._guard and kept.left_out.read_value()
        absent, forms = self._absent(held), self.sums.forms_of({})

        def reduce():
            return self._reduced({}, forms, held, absent, weight, False)

        def close(updated):
            emptied = self.sums.emptied(forms, held, absent)
            return self._move_to(0, 0, 0, steps, self._without(emptied, held), updated, is_over=True)

        def end_window():
            presence = self._presence(held, given)
            if self._guard is None:
                with ops.after(run(lambda: self._update(update, reduce(), presence), ())):
                    return close(True)
            added, reduced = mini_step - left_out, run(reduce, ())

            def zero_rows_and_close(updated):
                with ops.after(run(self._zero_rows, (reduced,))):
                    return close(updated)

            def update_present(each):
                return update(each, presence)

            variables = [reference() for reference in self.var_list]
            names = [str(getattr(each, "path", None) or getattr(each, "name", each)) for each in variables]
            return self._guard.end(run, reduced, added, left_out, update_present, zero_rows_and_close, names)

        return ops.cond(condition(mini_step, steps), end_window, lambda: ops.done([], False))

    def drop(self):
        """Discard the mini-steps of an open window: the next mini-step overwrites its sums."""
        kept = self.kept

        def close():
            with self.ops.after(kept.mini_step.read_value()):
                held = kept.held.read_value()
                return self._move_to(0, 0, 0, kept.steps.read_value(), held, updated=False, is_over=True)

        return graph.one_at_a_time(self._mutex, close)

    def _absent(self, in_window):
        """Return the places known here to have no gradient in the window. `in_window` is what its sums hold."""
        known = self.ops.value_if_eager(in_window)
        if known is None:
            # A traced function asks `_presence`. A TensorFlow 1 graph leaves out places that never had a gradient.
            is_graph = self._mutex is not None and self.sums.forms
            return set(self.places) - set(self.sums.forms) if is_graph else self._counters()
        # If the guard skipped every mini-step, nothing is held. Call no place absent: a loss scale must see gradients.
        return {i for i, each in enumerate(known) if each == NOTHING} if any(known) else set()

    def _presence(self, in_window, given):
        """In a traced function, return {position: whether the window holds a gradient}: other functions may add some.

        Leaves out `given`, the places of this mini-step's gradients.
        """
        if self._mutex is not None or self.ops.value_if_eager(in_window) is not None:
            return {}
        known = self._counters().union(given)
        asked = {i: place for i, place in enumerate(self.places) if place not in known}
        if not asked:
            return {}
        forms = self.ops.unstack(in_window, len(self.sums.states))
        return {i: self.ops.logical_not(self.ops.equal(forms[place], NOTHING)) for i, place in asked.items()}

    def _counters(self):
        """Return the places of integer variables, such as a counter in a model: no tape has their gradients."""
        dtypes = {place: self.ops.tf.as_dtype(self.sums.states[place].dtype) for place in self.places}
        return {place for place, dtype in dtypes.items() if not is_differentiable(dtype)} - set(self.sums.forms)

    def _reduced(self, given, forms, held, absent, weight, begins):
        reduced = self.sums.reduced(given, forms, held, weight, begins, absent)
        return [reduced[place] for place in self.places]

    def _update(self, update, reduced, presence):
        with self.ops.after(update(reduced, presence)):
            return self._zero_rows(reduced)

    def _zero_rows(self, reduced):
        return self.sums.empty(dict(zip(self.places, reduced)))

    def _without(self, emptied, held):
        """Return `held` with NOTHING at the places in `emptied`."""
        if not emptied:
            return held
        stays = [int(place not in emptied) for place in range(len(self.sums.states))]
        return held * self.ops.constant(stays, "int64")

    def _move_to(self, mini_step, weight, unit, steps, held, updated, is_over=False):
        """Write the state besides the sums. Returns `updated`, available after all writes."""
        kept, cast = self.kept, self.ops.cast
        written = [
            kept.mini_step.assign(cast(mini_step, "int64")),
            kept.weight.assign(cast(weight, "float64")),
            kept.unit.assign(cast(unit, "float64")),
            kept.steps.assign(steps),
            kept.held.assign(held),
        ]
        if self._guard is not None and is_over:
            written.append(kept.left_out.assign(self.ops.constant(0, "int64")))
        return self.ops.done(written, updated)
