"""Which of an optimizer's writes in a TensorFlow 1 graph may go one after the other. No TensorFlow is imported here."""

import collections

Part = collections.namedtuple("Part", ["writes", "entries"])
Part.__doc__ = """Writes of an update that go together.

    writes: operations.
    entries: operations that are to wait for the part before. None but these writes need them, and they need none such.
"""

# What hands a variable or its value on.
_ALIASES = ("Identity", "RefIdentity", "Switch", "RefSwitch", "ReadVariableOp")
# What waits for nothing: it takes no memory, is the conditional's own, or later updates read a variable by it.
_NEVER_WAIT = _ALIASES + ("Const", "VarHandleOp", "VariableV2", "Variable", "Placeholder", "NoOp", "Merge")
# In place of the number of a part: of what several need.
_SEVERAL = -1


def parts(writes, made, gradients):
    """`writes` as a list of `Part`s in an order in which each may end before the next begins; as a single one where
    that is not known to be right.

    Writes are of one part where one's value needs what the other writes over. What needs no gradient, such as a new
    value of `iterations`, is the last part: all others may read that.

    Args:
        writes: operations.
        made: the operations that were made for them, each after all that it needs.
        gradients: what they are made of: list of tensors or IndexedSlices, None for a variable without.
    """
    together = [Part(list(writes), [])]
    given = _tensors(gradients)
    if not _are_plain(writes, made) or _reads_outside(writes, made, given):
        return together
    made = _divisions(given, made) + list(made)
    needing = _needing(made)
    of_gradients = _below([each for tensor in given for each in tensor.consumers()], needing)
    own, last = [each for each in writes if each in of_gradients], [each for each in writes if each not in of_gradients]
    needs = {write: _below(_readers(write), needing) for write in own}
    groups = _groups(own, needs)
    numbers = _numbers(groups, made)
    if not _are_apart(own, last, needs, numbers):
        return together
    return _with_entries(groups, numbers, made) + ([Part(last, [])] if last else [])


def _tensors(gradients):
    found = []
    for each in gradients:
        found += [] if each is None else [each.values, each.indices] if hasattr(each, "indices") else [each]
    return found


def _are_plain(writes, made):
    """Whether all writes are assignments, and nothing loops."""
    return all(each.type.startswith("Assign") for each in writes) and all(each.type != "NextIteration" for each in made)


def _divisions(given, made):
    """The gradients' divisions by the sum of the weights: one more new value of each parameter's size."""
    within = set(made)
    return [each.op for each in given if each.op.type == "RealDiv" and within.issuperset(_consumers(each.op))]


def _are_apart(own, last, needs, numbers):
    """Whether no write of one group, and none of the last, is needed by another."""
    is_one = all(numbers[each] != _SEVERAL for each in own)
    return bool(own) and is_one and all(needed.isdisjoint(last) for needed in list(needs.values()) + [set(numbers)])


def _sources(operation):
    return [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)


def _consumers(operation):
    return [each for tensor in operation.outputs for each in tensor.consumers()]


def variable_of(write):
    """The operation of the variable that a write's first input hands on."""
    operation = write.inputs[0].op
    while operation.type in _ALIASES:
        operation = operation.inputs[0].op
    return operation


def _readers(write):
    """What works with the value of a write's variable, wherever it was made."""
    found, seen, stack = [], set(), [variable_of(write)]
    while stack:
        operation = stack.pop()
        if operation not in seen:
            seen.add(operation)
            for each in _consumers(operation):
                if each.type in _ALIASES:
                    stack.append(each)
                elif each is not write:
                    found.append(each)
    return found


def _needing(made):
    """{operation: those of `made` that need it}, for each of `made`."""
    found = {each: [] for each in made}
    for each in made:
        for source in _sources(each):
            if source in found:
                found[source].append(each)
    return found


def _below(operations, needing):
    """Those in `needing` that are among `operations`, or need one of them."""
    seen, stack = set(), [each for each in operations if each in needing]
    while stack:
        operation = stack.pop()
        if operation not in seen:
            seen.add(operation)
            stack.extend(needing[operation])
    return seen


def _reads_outside(writes, made, given):
    """Whether a value needs what was computed of a written variable before: nothing orders that with the write."""
    roots = {variable_of(write) for write in writes}
    # The gradients are there before anything is written.
    seen = set(made) | {tensor.op for tensor in given}
    stack = [(source, False) for each in made for source in _handed(each)]
    while stack:
        operation, is_computed = stack.pop()
        if operation in roots and is_computed:
            return True
        if operation not in seen and operation not in roots:
            seen.add(operation)
            is_computed = is_computed or operation.type not in _ALIASES
            stack.extend((source, is_computed) for source in _handed(operation))
    return False


def _handed(operation):
    """The operations whose values this one works with."""
    # The other input of a Switch is the condition.
    return [tensor.op for tensor in operation.inputs][: 1 if operation.type in _ALIASES else None]


def _groups(writes, needs):
    """Lists of the writes that go together: of each with those that need what it writes over."""
    group_of = {write: [write] for write in writes}
    for write in writes:
        for other in writes:
            if other in needs[write] and group_of[other] is not group_of[write]:
                group_of[write].extend(group_of[other])
                for each in group_of[other]:
                    group_of[each] = group_of[write]
    return [group_of[write] for write in writes if group_of[write][0] is write]


def _numbers(groups, made):
    """{operation: the place of the one group that needs it, or _SEVERAL}."""
    numbers = {write: place for place, group in enumerate(groups) for write in group}
    for operation in reversed(made):
        if operation in numbers:
            for source in _sources(operation):
                number = numbers.setdefault(source, numbers[operation])
                if number != numbers[operation]:
                    numbers[source] = _SEVERAL
    return numbers


def _with_entries(groups, numbers, made):
    found = [Part(group, []) for group in groups]
    context = groups[0][0]._control_flow_context
    waiting = set()
    for each in made:
        is_own = numbers.get(each, _SEVERAL) != _SEVERAL and each.type not in _NEVER_WAIT
        if is_own and each._control_flow_context is context:
            part = found[numbers[each]]
            if each not in part.writes and not any(source in waiting for source in _sources(each)):
                part.entries.append(each)
            waiting.add(each)
    return found
