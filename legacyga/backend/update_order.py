"""Order an update's reads and writes in a TensorFlow 1 graph by their creation, because nothing else orders them."""

import collections
import itertools
import re

from legacyga.backend.graph import ancestors, contexts, sources
from legacyga.backend.messages import shown
from legacyga.backend.tensors import leaves_of

# These operations pass on a variable or its value.
_ALIASES = ("Identity", "RefIdentity", "Switch", "RefSwitch", "Merge", "RefMerge", "ReadVariableOp", "Reshape")
# The ends of conditionals and loops.
_ENDS = ("Merge", "RefMerge", "Exit", "RefExit")
_FUNCTIONS = re.compile("^If$|^While$|PartitionedCall$")
_WRITES = re.compile("Assign|Apply|Scatter|" + _FUNCTIONS.pattern)
_VARIABLES = ("VariableV2", "Variable", "TemporaryVariable")

REPLACED = (
    "K.update was replaced when get_updates was called: keras-lookahead's Lookahead does that round the optimizer that "
    "it is given, which must not accumulate, and leaves it so after an error. Received: {} for an update. Start "
    "Python anew, and train in slices of a batch: legacyga.micro_batch(model, size) after compile, with "
    "Lookahead(SGD())."
)


def ordered(get_updates, ops, gradients, in_parts=True):
    """Return a boolean tensor that is available after an optimizer's updates, which run in order.

    The writes that `get_updates` returns come after all its reads of their variables, but for reads that need such a
    write. Any other write that it creates keeps the order of creation: earlier reads get the old value, later ones the
    new value.

    `in_parts` says that all gradients are computed before the update begins. The update then takes one gradient after
    the other, unless an operation needs two, so that memory holds old and new values for one gradient at a time.
    Without `in_parts`, all writes wait for all gradients.
    """
    graph = ops.v1.get_default_graph()
    made_before = len(graph.get_operations())
    updates = get_updates()
    replaced = [update for update in updates if isinstance(update, tuple) and not hasattr(update[0], "assign")]
    if replaced:
        raise ValueError(REPLACED.format(shown(replaced[0])))
    updates = [update[0].assign(update[1]) if isinstance(update, tuple) else update for update in updates]
    listed = list(dict.fromkeys(getattr(update, "op", update) for update in updates))
    _check_made_here(listed, graph)
    order = _Order(graph.get_operations()[made_before:], listed, [leaves_of(each) for each in gradients])
    order.of_each_variable()
    if in_parts:
        order.one_part_after_the_other(ops)
    else:
        order.after_all_gradients(ops)
    return ops.done(listed)


def _check_made_here(listed, graph):
    """Raise if an update is outside of the conditional's branch: it would run with each mini-step."""
    context = graph._get_control_flow_context()
    outside = [each for each in listed if each.graph is not graph or _context_of(each) is not context]
    if outside:
        raise ValueError(
            "get_updates returns operations that were made elsewhere, and would run with each mini-step. Received: {}. "
            "Make them in get_updates, or return (variable, value) pairs.".format([each.name for each in outside])
        )


class _Order(object):
    """The order of an update's operations: `get_updates` created those `made`, in order, and returned those `listed`.

    `gradients` has a list of tensors for each gradient. Of what computes a gradient, only the division by the sum of
    the weights, at the end, may wait for a write.
    """

    def __init__(self, made, listed, gradients):
        self._made, self._listed, self._gradients = made, listed, gradients
        self._places = {operation: place for place, operation in enumerate(made)}
        self._gradient_ops = {tensor.op for tensors in gradients for tensor in tensors}
        self._needed = ancestors(listed, self._gradient_ops) - self._gradient_ops
        # All operations that write a variable, {operation: its `_end`}, and {an end: all operations that it needs}.
        self._writes, self._ends, self._needs = set(), {}, {}

    def _place(self, operation):
        return self._places.get(operation, -1)

    def of_each_variable(self):
        """Order each variable's reads and writes."""
        needed = sorted(self._needed, key=self._place)
        context = _context_of(self._listed[0]) if self._listed else None
        self._ends = {each: self._end(each, context) for each in needed}
        # Of a functional conditional an output, an Identity, is listed. The conditional itself writes: add it.
        behind = [each.inputs[0].op for each in self._listed if each.type == "Identity"]
        listed = set(self._listed).union(each for each in behind if _FUNCTIONS.search(each.type))
        writes = self._writes_of_each(needed, listed)
        self._writes = set(sum(writes.values(), []))
        uses = _uses(needed, writes)
        for variable, its_writes in writes.items():
            # A write in a branch that is not taken waits for nothing, so neighbours are not enough: order every pair.
            for before, after in itertools.combinations(its_writes, 2):
                self._wait(after, before)
            for write in its_writes:
                if self._ends[write] not in listed:
                    self._order(write, uses[variable], self._needed)
        # Not earlier: the waits added above can make an operation need a listed write.
        late = self._needing(needed, listed)
        for variable, its_writes in writes.items():
            for write in its_writes:
                if self._ends[write] in listed:
                    self._order(write, uses[variable], late)

    def _writes_of_each(self, needed, listed):
        """Return {variable: the update's writes of it, in the order of creation}."""
        writes = collections.OrderedDict()
        for each in needed:
            if each in self._places or each in listed:
                for variable, _ in itertools.chain(*map(_origins, _written_inputs(each))):
                    writes.setdefault(variable, []).append(each)
        return writes

    def _needing(self, needed, listed):
        """Return the operations that need a listed write. Their reads keep the order of creation."""
        late, known = set(), None
        while known != len(late):
            known = len(late)
            late.update(
                each
                for each in needed
                if self._ends[each] in late or any(source in listed or source in late for source in sources(each))
            )
        return late

    def _order(self, write, uses, in_turn):
        """Order a write and the (read, user) pairs of its variable.

        Uses made before the write, or in `in_turn`, keep the order of creation. Others come before
        the write, unless they need it.
        """
        for read, user in uses:
            if user is not write:
                if self._comes_before(user, write, in_turn):
                    self._wait(write, user)
                elif self._comes_before(read, write, in_turn):
                    self._wait(write, read)
                else:
                    self._wait(read, write)

    def _comes_before(self, use, write, in_turn):
        if use in in_turn or self._place(use) < self._place(write):
            return self._place(use) < self._place(write)
        end = self._ends.get(use)
        if end is None or (end is use and not _WRITES.search(use.type)):
            return True
        # A conditional counts as a whole: if anything in it needs the write, it cannot come first.
        if end not in self._needs:
            self._needs[end] = ancestors(self._outputs(end), self._gradient_ops)
        return write not in self._needs[end]

    def after_all_gradients(self, ops):
        """Make all writes wait for all gradients, even writes that need none: computing gradients reads the model."""
        with ops.after(self._gradients):
            begun = ops.tf.no_op()
        for write in self._writes:
            self._wait(write, begun)

    def one_part_after_the_other(self, ops):
        """Make the computations and writes that need one gradient wait for the writes of the previous gradient."""
        if any(each.type == "NextIteration" for each in self._made):
            return
        entries = [self._entries(tensors) for tensors in self._gradients]
        numbers = self._parts_from(entries)
        if numbers is None:
            return
        done = []
        for number, first in enumerate(entries):
            for each in first if done else ():
                self._wait(each, done[0])
            with ops.tf.control_dependencies(done + [each for each in self._listed if numbers.get(each) == number]):
                done = [ops.tf.no_op()]

    def _parts_from(self, entries):
        """Return {operation: the number of its gradient}, or None if an operation needs two gradients."""
        needing, numbers = collections.defaultdict(list), {}
        for each in self._needed:
            for source in sources(each):
                needing[source].append(each)
        for number, stack in enumerate(map(list, entries)):
            while stack:
                each = stack.pop()
                if numbers.setdefault(each, number) != number:
                    return None
                stack.extend(other for other in needing[each] if numbers.get(other) != number)
        return numbers

    def _entries(self, tensors):
        """Return the first operations on a gradient: its division by the sum of the weights, or its uses here."""
        users = [each for tensor in tensors for each in tensor.consumers()]
        if len(tensors) == 1 and tensors[0].op.type == "RealDiv" and all(each in self._places for each in users):
            return [tensors[0].op]
        return [each for each in users if each in self._needed]

    def _end(self, operation, context):
        """Return what ends the outermost conditional around an operation but not around `context`.

        Without such a conditional, return the operation. Return None if `get_updates` did not make the end, or if
        `context` is the other branch.
        """
        around = contexts(context) + [None]
        while operation is not None and _context_of(operation) not in around:
            if _excludes(_context_of(operation), around):
                return None
            after = self._made[self._place(operation) + 1 :] if operation in self._places else ()
            outer = _context_of(operation).outer_context
            ends = (each for each in after if each.type in _ENDS and _context_of(each) is outer)
            operation = next(ends, None)
        return operation

    def _wait(self, later, earlier):
        """Make `later` wait for `earlier`, or, if `earlier` may not run, for everything that ends its conditional."""
        end = self._end(earlier, _context_of(later))
        for each in [end] if end is earlier and end.type in _ENDS else self._outputs(end):
            if each not in sources(later) and not _enters_loop(later, each):
                later._add_control_input(each)
                for needs in self._needs.values():
                    if later in needs and each not in needs:
                        needs.update(ancestors([each], self._gradient_ops))

    def _outputs(self, end):
        """Return what a later operation waits for: all outputs of the conditional that `end` ends or is, else `end`."""
        if end is None:
            return []
        if end.type in _ENDS:
            return list(itertools.takewhile(lambda each: each.type in _ENDS, self._made[self._place(end) :]))
        # A functional conditional is done once it has chosen its branch; its outputs are done once the branch has run.
        users = [each for output in end.outputs for each in output.consumers()] if _FUNCTIONS.search(end.type) else []
        return [end] + [each for each in users if each.type == "Identity"]


def _written_inputs(operation):
    """Return the variables among an operation's inputs that it writes, or may write."""
    if not _WRITES.search(operation.type):
        return []
    # From TF 2.2 on the attribute says which resources a function only reads. Delete with TF 2.1.
    known = _FUNCTIONS.search(operation.type) and "_read_only_resource_inputs" in operation.node_def.attr
    read = operation.get_attr("_read_only_resource_inputs") if known else ()
    variables = [each.dtype.name == "resource" or each.dtype._is_ref_dtype for each in operation.inputs]
    return [each for place, each in enumerate(operation.inputs) if variables[place] and place not in read]


def _origins(tensor, read=None):
    """Return [(variable, its read)] behind a tensor, as operations; the read of a reference variable is None."""
    operation = tensor.op
    # An operation that writes a reference variable passes on the variable's memory, not its old value.
    hands_on_memory = tensor.dtype._is_ref_dtype and _WRITES.search(operation.type)
    if operation.type not in _ALIASES and not hands_on_memory:
        return [(operation, None if operation.type in _VARIABLES else read)]
    read = operation if operation.type == "ReadVariableOp" else read
    sources = operation.inputs if operation.type.endswith("Merge") else operation.inputs[:1]
    return [origin for each in sources for origin in _origins(each, read)]


def _uses(needed, writes):
    """Return {variable: [(its read, the operation that uses it)]}. For a reference variable both are the same."""
    uses = collections.defaultdict(list)
    for each in needed:
        written = {id(tensor) for tensor in _written_inputs(each)}
        read_only = [tensor for tensor in each.inputs if id(tensor) not in written and each.type not in _ALIASES]
        for variable, read in itertools.chain(*map(_origins, read_only)):
            if variable in writes:
                uses[variable].append((read or each, each))
    return uses


def _context_of(operation):
    # An Exit belongs to its loop, but hands its value to the outer context.
    context = operation._control_flow_context
    return context.outer_context if context is not None and operation.type in ("Exit", "RefExit") else context


def _excludes(branch, around):
    """Whether a context of `around` is the other branch of a conditional: both share the condition's tensor."""
    condition = getattr(branch, "pred", None)
    return condition is not None and any(getattr(each, "pred", None) is condition for each in around)


def _enters_loop(operation, outer):
    """Whether an operation is in a loop that `outer` is not in, where edges enter only by the loop's own operations."""
    around = contexts(_context_of(outer))
    return any(each.IsWhileContext() for each in contexts(_context_of(operation)) if each not in around)
