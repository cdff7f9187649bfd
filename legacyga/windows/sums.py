"""The sums of several variables' gradients, for windows and for GradientAccumulator. No TensorFlow is imported here."""

from legacyga.backend.tensors import is_sparse
from legacyga.windows import accumulators
from legacyga.windows.accumulators import NOTHING, ROWS, WHOLE

LATE_GRADIENT = (
    "{} has a gradient now and had none when another function or operation with this {} was made, which takes it to "
    "have none. Received: {!r}. Give it a gradient of zeros there: "
    "tape.gradient(..., unconnected_gradients=tf.UnconnectedGradients.ZERO)."
)


class Sums(object):
    """The sums of several variables' gradients, and what may be done to them.

    All of it is done on one replica, on variables that are its own.

    Args:
        ops: an `ops.Ops`.
        reduction: `"mean"` or `"sum"`.

    Attributes:
        states: an `accumulators.State` a place, None where there can be no gradient.
        forms: {place: ROWS or WHOLE}, what this process has seen there: ROWS where a gradient was an IndexedSlices.
        without: the places whose gradient a traced function takes to be absent.
    """

    def __init__(self, ops, reduction):
        self.ops, self.reduction = ops, reduction
        self.states, self._unused = [], []
        self.forms, self.without = {}, set()

    @property
    def variables(self):
        states = [state for state in self.states if state is not None] + self._unused
        return [each for state in states for each in (state.total, state.touched)]

    def restrict(self, places):
        """Let there be no gradients at other places, before any was there. The variables stay."""
        self._unused = [state for i, state in enumerate(self.states) if i not in places]
        self.states = [state if i in places else None for i, state in enumerate(self.states)]

    def check_not_late(self, place, gradient, variable, owner):
        """Raise where a traced function would lose a gradient.

        Args:
            variable: what the gradient is of: a variable, or a text.
            owner: what the message calls the caller.
        """
        if place in self.without and gradient is not None:
            name = variable if isinstance(variable, str) else repr(getattr(variable, "name", variable))
            raise ValueError(LATE_GRADIENT.format(name, owner, gradient))

    def note(self, forms, places, traced):
        """Take note of what a mini-step's gradients are.

        Args:
            forms: NOTHING, ROWS or WHOLE for each place among the sums.
            places: those that the mini-step's variables have.
            traced: whether it is made in a function, one among others.
        """
        for place in places:
            if forms[place] != NOTHING:
                self.forms[place] = min(self.forms.get(place, WHOLE), forms[place])
            elif traced and place not in self.forms:
                self.without.add(place)

    def note_held(self, held):
        """Take note of what the sums hold: NOTHING, ROWS or WHOLE a place."""
        for place, form in enumerate(held):
            if form != NOTHING:
                self.forms.setdefault(place, int(form))

    def forms_of(self, given):
        """What a mini-step with the gradients {place: gradient} leaves: NOTHING, ROWS or WHOLE for each place."""
        forms = [NOTHING] * len(self.states)
        for place, gradient in given.items():
            forms[place] = ROWS if is_sparse(gradient) else WHOLE
        return forms

    def weigh(self, given, weight):
        """{place: gradient}, each times the weight; None is 1, at no cost."""
        if weight is None:
            return given
        return {i: self.ops.weighted(each, weight, self.states[i].total.dtype) for i, each in given.items()}

    def write(self, given, forms, held, begins):
        """Store the gradients {place: gradient} where a window begins, a Python bool, else add them.

        Args:
            forms: as of `forms_of`.
            held: what `states` hold, an int32 for each place.
        """
        writes, held = [], self.ops.unstack(held, len(self.states)) if begins else None
        for i, state in self._places():
            if i in given:
                each = self._accumulator(state, forms[i])
                writes += each.store(given[i], held[i]) if begins else each.add(given[i])
            elif begins:
                writes += self._accumulator(state, self._form_without(i)).clear(held[i])
        return self.ops.done(writes)

    def reduced(self, given, forms, held, weight, begins, absent=()):
        """What the window's gradients are reduced to, with these added on the way: a list, None at a place without.

        Args:
            given: {place: gradient}.
            forms, held: as of `write`.
            weight: the sum of the weights, these gradients' included.
            begins: whether the window begins with these gradients, a bool or a boolean tensor.
            absent: places to leave without a gradient.
        """
        ops = self.ops
        places = self._forms(forms, held, absent)
        dense = [(i, self._accumulator(state, form)) for i, state, form in places if form == WHOLE]
        sparse = [(i, self._accumulator(state, form)) for i, state, form in places if form == ROWS]

        def sums(begins):
            return [ops.identity(each.sum(given.get(i), begins)) for i, each in dense]

        # K may have become 1. The window then begins with these gradients, and they stand alone.
        totals = ops.choose(begins, lambda: sums(True), lambda: sums(False)) if dense else []
        reduced, divisors = [None] * len(self.states), _Divisors(ops, weight)

        def reduce(total):
            return total if self.reduction == "sum" else total / divisors[total.dtype]

        for (i, _), total in zip(dense, totals):
            state = self.states[i]
            reduced[i] = ops.cast(reduce(total), state.dtype)
        held = ops.unstack(held, len(self.states)) if sparse else None
        for i, each in sparse:
            cleared = ops.choose(begins, lambda each=each, i=i: each.clear(held[i]), lambda: [ops.done([])])
            with ops.after(cleared):
                values, indices = each.sum(given.get(i), held[i] * ops.cast(ops.logical_not(begins), "int32"))
            state = self.states[i]
            values = ops.cast(reduce(values), state.dtype)
            reduced[i] = ops.indexed_slices(values, indices, state.total)
        return reduced

    def empty(self, reduced):
        """Make the rows zero that were summed, where that is known to be all: `emptied`.

        Args:
            reduced: {place: gradient}, as `reduced` returns them.
        """
        written = []
        for i, state in [] if self.ops.is_compiled() else self._places():
            gradient = reduced.get(i)
            if gradient is not None and is_sparse(gradient):
                written += self._accumulator(state, ROWS).empty(gradient.indices, gradient.values)
        return self.ops.done(written)

    def emptied(self, forms, held, absent):
        """The places whose sums are zero after `empty`; the arguments are those of `reduced`."""
        if self.ops.is_compiled():
            return []
        return [i for i, state, form in self._forms(forms, held, absent) if form == ROWS]

    def _places(self):
        return [(i, state) for i, state in enumerate(self.states) if state is not None]

    def _accumulator(self, state, form):
        local = self.ops.replicas.local
        own = state._replace(total=local(state.total), touched=local(state.touched))
        return accumulators.accumulator(self.ops, own, form)

    def _form_without(self, place, held=NOTHING):
        """ROWS or WHOLE, without a gradient to look at: what was seen, or what the sums are known to hold."""
        return self.forms.get(place) or int(held) or WHOLE

    def _forms(self, forms, held, absent):
        """[(place, state, ROWS or WHOLE)] of the sums that a window ends with."""
        known = self.ops.value_if_eager(held)
        known = [NOTHING] * len(self.states) if known is None else known
        return [
            (i, state, forms[i] or self._form_without(i, known[i])) for i, state in self._places() if i not in absent
        ]


class _Divisors(dict):
    """{dtype: the sum of a window's weights in it}, each made once, where it is first asked for."""

    def __init__(self, ops, weight):
        super(_Divisors, self).__init__()
        self._ops, self._weight = ops, weight

    def __missing__(self, dtype):
        ops, weight = self._ops, self._weight
        # A window whose weights are all 0 is one of zero gradients.
        self[dtype] = ops.cast(ops.where(ops.equal(weight, 0), ops.ones_like(weight), weight), dtype)
        return self[dtype]
