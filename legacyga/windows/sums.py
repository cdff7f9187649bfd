"""Sum the gradients of several variables, for windows and for GradientAccumulator."""

from legacyga.backend.messages import shown
from legacyga.backend.tensors import is_sparse
from legacyga.windows import accumulators
from legacyga.windows.accumulators import NOTHING, ROWS, WHOLE

LATE_GRADIENT = (
    "{} has a gradient now and had none when another function or operation with this {} was made, which assumes that "
    "it has none. Received: {}. Give it a gradient of zeros there: "
    "tape.gradient(..., unconnected_gradients=tf.UnconnectedGradients.ZERO)."
)


class Sums(object):
    """The sums of several variables' gradients. Every method works on one replica, on that replica's own variables.

    Attributes:
        states: for each place an `accumulators.State`. None if `restrict` left the place out, or, in a
            GradientAccumulator, if it has had no gradient yet.
        forms: {place: ROWS or WHOLE} that this process has seen: ROWS if a gradient was an IndexedSlices.
        without: the places that a function or operation built earlier assumes never to get a gradient.
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
        """Accept gradients only at `places`. Call it before the first gradient. `variables` still lists all."""
        self._unused = [state for i, state in enumerate(self.states) if i not in places]
        self.states = [state if i in places else None for i, state in enumerate(self.states)]

    def check_not_late(self, place, gradient, variable, owner):
        """Raise if a function or operation built earlier would lose this gradient of `variable` (or a name for it)."""
        if place in self.without and gradient is not None:
            name = variable if isinstance(variable, str) else repr(getattr(variable, "name", variable))
            raise ValueError(LATE_GRADIENT.format(name, owner, shown(gradient)))

    def note(self, forms, places, is_final):
        """Record a mini-step's forms; if `is_final`, also places without any, which an operation built now omits."""
        for place in places:
            if forms[place] != NOTHING:
                self.forms[place] = min(self.forms.get(place, WHOLE), forms[place])
            elif is_final and place not in self.forms:
                self.without.add(place)

    def note_held(self, held):
        """Record the forms that a restored window holds (`held`, one per place), where this process has seen none."""
        for place, form in enumerate(held):
            if form != NOTHING:
                self.forms.setdefault(place, int(form))

    def forms_of(self, given):
        """Return the forms of the gradients `given`, {place: gradient}: NOTHING, ROWS or WHOLE for each place."""
        forms = [NOTHING] * len(self.states)
        for place, gradient in given.items():
            forms[place] = ROWS if is_sparse(gradient) else WHOLE
        return forms

    def weigh(self, given, weight):
        """Return `given`, {place: gradient}, times the weight; None means 1, at no cost."""
        if weight is None:
            return given
        return {i: self.ops.weighted(each, weight, self.states[i].total.dtype) for i, each in given.items()}

    def weigh_once(self, given, weight):
        """As `weigh`, but once, ahead of a graph's branches. A weight of 1, as of equal batches, costs nothing."""
        ops, places = self.ops, list(given)
        tensors = [given[i].values if is_sparse(given[i]) else ops.dense(given[i]) for i in places]
        tensors = [ops.cast(each, self.states[i].total.dtype.base_dtype) for i, each in zip(places, tensors)]

        def multiplied():
            return [each * ops.cast(weight, each.dtype) for each in tensors]

        def weighed():
            # Multiplying by 0 would keep the NaN of a mean over no samples.
            return ops.cond(ops.equal(weight, 0), lambda: [ops.zeros_like(each) for each in tensors], multiplied)

        tensors = ops.cond(ops.equal(weight, 1), lambda: [ops.identity(each) for each in tensors], weighed)
        return {i: ops.with_values(given[i], each) for i, each in zip(places, tensors)}

    def write(self, given, forms, held, begins):
        """If `begins`, a Python bool, start the sums anew with the gradients `given`, {place: gradient}; else add them.

        `forms` are those of `given`, from `forms_of`. `held`, an int64 tensor, is what each sum holds so far.
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
        """Add the last gradients, and return the window's mean or sum: a list, None at a place without a gradient.

        `given`, `forms` and `held` are as in `write`. `weight` is the sum of all weights, those of `given` included.
        `begins`, a bool or a tensor: `given` is the whole window. `absent`: places without a gradient in the window.
        """
        ops = self.ops
        places = self._forms(forms, held, absent)
        dense = [(i, self._accumulator(state, form)) for i, state, form in places if form == WHOLE]
        sparse = [(i, self._accumulator(state, form)) for i, state, form in places if form == ROWS]

        def sums(begins):
            return [ops.identity(each.sum(given.get(i), begins)) for i, each in dense]

        # With K = 1, or after a `reset`, the sums are an earlier window's: this one has `given` alone, or nothing.
        totals = ops.choose(begins, lambda: sums(True), lambda: sums(False)) if dense else []
        # If all weights of a window are 0, so are its sums: divide them by 1.
        divisor = ops.where(ops.equal(weight, 0), ops.ones_like(weight), weight)
        dtypes = dict.fromkeys(state.total.dtype.base_dtype for _, state, _ in places)
        divisors = {dtype: ops.cast(divisor, dtype) for dtype in dtypes}
        reduced = [None] * len(self.states)

        def reduce(total):
            return total if self.reduction == "sum" else total / divisors[total.dtype]

        for (i, _), total in zip(dense, totals):
            state = self.states[i]
            reduced[i] = ops.cast(reduce(total), state.dtype)
        held = ops.unstack(held, len(self.states)) if sparse else None
        for i, each in sparse:
            cleared = ops.choose(begins, lambda each=each, i=i: each.clear(held[i]), lambda: [ops.done([])])
            with ops.after(cleared):
                values, indices = each.sum(given.get(i), held[i] * ops.cast(ops.logical_not(begins), "int64"))
            state = self.states[i]
            values = ops.cast(reduce(values), state.dtype)
            reduced[i] = ops.tf.IndexedSlices(values, indices, ops.constant(state.total.shape.as_list(), "int64"))
        return reduced

    def empty(self, reduced):
        """Zero the rows that are in `reduced`, {place: gradient}; under XLA the next window zeroes them."""
        written = []
        for i, state in [] if self.ops.is_compiled() else self._places():
            gradient = reduced.get(i)
            if gradient is not None and is_sparse(gradient):
                written += self._accumulator(state, ROWS).empty(gradient.indices, gradient.values)
        return self.ops.done(written)

    def emptied(self, forms, held, absent):
        """Return the places whose sums are zero after `empty`."""
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
        """Return ROWS or WHOLE for a place without a gradient now: as seen before, else as `held`, else WHOLE."""
        return self.forms.get(place) or int(held) or WHOLE

    def _forms(self, forms, held, absent):
        """Return [(place, state, ROWS or WHOLE)] at the end of a window whose last gradients have the forms `forms`."""
        known = self.ops.value_if_eager(held)
        known = [NOTHING] * len(self.states) if known is None else known
        return [
            (i, state, forms[i] or self._form_without(i, known[i])) for i, state in self._places() if i not in absent
        ]
