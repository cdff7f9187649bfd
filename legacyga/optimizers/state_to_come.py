"""Looks into restored checkpoint values that TensorFlow holds until an optimizer makes the variables for them."""

import importlib
import operator
import re

from legacyga.backend.messages import shown

STATE_TO_COME = (
    "A checkpoint was restored, and there are no variables yet that its window could be put in. Received: {} of {}. "
    "Take a mini-step first{}."
)
BUILD = ", or call optimizer.{}(model.trainable_variables)"


def is_to_come(optimizer):
    return any(_waiting_for(optimizer))


def latest(optimizer):
    """The number of the latest restore with values that wait for variables; None if there are none."""
    return max([each.restore_uid for each in _positions(optimizer)] or [None])


def error_of(optimizer, keeper, action):
    """The error for an action that needs values which wait for variables of `keeper`, the optimizer with the state."""
    builds = [name for name in ("build", "_create_all_weights") if hasattr(keeper, name)]
    advice = BUILD.format(builds[0]) if builds else ""
    return ValueError(STATE_TO_COME.format(action, shown(optimizer), advice))


def number_to_come(tf, optimizer, name):
    """The restored int that waits for the variable `name` of the first window; None if there is none."""
    found = {}
    # The variable will get the newest value.
    for each in sorted(_positions(optimizer), key=operator.attrgetter("restore_uid")):
        keys = _keys_of_window([each.object_proto])
        found.update((known, (each.checkpoint.save_path_string, key)) for known, key in keys.items())
    return int(tf.train.load_variable(*found[name])) if name in found else None


def _positions(optimizer):
    """TensorFlow's `CheckpointPosition`s of the values that wait for variables of an optimizer: a list."""
    return [each for waiting in _waiting_for(optimizer) for listed in waiting.values() for each in listed]


def _waiting_for(optimizer):
    # OptimizerV2 and tf.compat.v1.train track variables by name, the others by their place in the list `_variables`.
    tracked = [optimizer, getattr(optimizer, "_variables", None)]
    return [getattr(each, "_deferred_dependencies", None) or {} for each in tracked]


def _keys_of_window(nodes):
    """{name: key in the file} of the first window's variables, from a checkpoint's object nodes."""
    names = [(attribute.full_name, attribute.checkpoint_key) for node in nodes for attribute in node.attributes]
    # Keras 3's variable names have "_" for "/".
    return {re.split("window_0[/_]", name)[1]: key for name, key in names if re.search("(^|[/_])window_0[/_]", name)}


def build_if_it_fits(tf, optimizer, var_list, path):
    """Build an optimizer if the first window of a checkpoint, read next, fits: a flush raises while its values wait."""
    graph = importlib.import_module("tensorflow.core.protobuf.trackable_object_graph_pb2").TrackableObjectGraph()
    graph.ParseFromString(tf.train.load_variable(path, "_CHECKPOINTABLE_OBJECT_GRAPH"))
    keys, shapes = _keys_of_window(graph.nodes), tf.train.load_checkpoint(path).get_variable_to_shape_map()
    totals = [keys[name] for name in map("accumulator_{}".format, range(len(keys))) if name in keys]
    if totals and [shapes[key] for key in totals] == [tf.TensorShape(var.shape).as_list() for var in var_list]:
        # OptimizerV2 has no public method for this.
        (getattr(optimizer, "build", None) or optimizer._create_all_weights)(var_list)
