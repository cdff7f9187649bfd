"""What a checkpoint has for variables of an optimizer that are not made yet: TensorFlow keeps it until they are."""

import importlib
import operator
import re

STATE_TO_COME = (
    "A checkpoint was restored, and there are no variables yet that its window could be put in. Received: {} of {!r}. "
    "Take a mini-step first{}."
)
BUILD = ", or call optimizer.{}(model.trainable_variables)"


def is_to_come(optimizer):
    """Whether a checkpoint has something for variables of an optimizer that are not made yet."""
    return any(_waiting_for(optimizer))


def latest(optimizer):
    """The number of the restore that was the last of those whose values wait, None where none does."""
    return max([each.restore_uid for each in _positions(optimizer)] or [None])


def check_is_not_to_come(optimizer, keeper, action):
    """Raise where an action needs a state that is to come; `keeper` is the optimizer that has it."""
    if is_to_come(keeper):
        builds = [name for name in ("build", "_create_all_weights") if hasattr(keeper, name)]
        advice = BUILD.format(builds[0]) if builds else ""
        raise ValueError(STATE_TO_COME.format(action, optimizer, advice))


def number_to_come(tf, optimizer, name):
    """The int that a checkpoint has for a variable of the first window, not made yet; None where it has none."""
    found = {}
    # The newest is what the variable will have.
    for each in sorted(_positions(optimizer), key=operator.attrgetter("restore_uid")):
        keys = _keys_of_window([each.object_proto])
        found.update((known, (each.checkpoint.save_path_string, key)) for known, key in keys.items())
    return int(tf.train.load_variable(*found[name])) if name in found else None


def _positions(optimizer):
    return [each for waiting in _waiting_for(optimizer) for listed in waiting.values() for each in listed]


def _waiting_for(optimizer):
    # By names in OptimizerV2 and tf.compat.v1.train, by places in a list of variables elsewhere.
    tracked = [optimizer, getattr(optimizer, "_variables", None)]
    return [getattr(each, "_deferred_dependencies", None) or {} for each in tracked]


def _keys_of_window(nodes):
    """{name: key in the file} of the first window's variables among the objects that a checkpoint holds."""
    names = [(attribute.full_name, attribute.checkpoint_key) for node in nodes for attribute in node.attributes]
    # A name of a variable of Keras 3 has no "/".
    return {re.split("window_0[/_]", name)[1]: key for name, key in names if re.search("(^|[/_])window_0[/_]", name)}


def build_if_it_fits(tf, optimizer, var_list, path):
    """Build an optimizer for these variables where the first window in a checkpoint, which is to be read, is of them.

    What waits for its variables is in no copy of the optimizer.
    """
    graph = importlib.import_module("tensorflow.core.protobuf.trackable_object_graph_pb2").TrackableObjectGraph()
    graph.ParseFromString(tf.train.load_variable(path, "_CHECKPOINTABLE_OBJECT_GRAPH"))
    keys, shapes = _keys_of_window(graph.nodes), tf.train.load_checkpoint(path).get_variable_to_shape_map()
    totals = [keys[name] for name in map("accumulator_{}".format, range(len(keys))) if name in keys]
    if totals and [shapes[key] for key in totals] == [tf.TensorShape(var.shape).as_list() for var in var_list]:
        # OptimizerV2 has no method for all to call.
        (getattr(optimizer, "build", None) or optimizer._create_all_weights)(var_list)
