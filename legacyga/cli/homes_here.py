"""List the installed Kerases that can train, for the demo and the doctor to choose from."""

import importlib

from legacyga.backend import homes

# Standalone Keras comes first: an old project trains with it. A newer `keras` is mostly the same as tf.keras.
HOMES = ("keras", "tf_keras", "tf.keras")


def homes_here(name, mode, names=HOMES):
    """Yield each `Home` that can train here, of this name or these names; raise if there is none."""
    tf = homes.TensorFlow().tf
    if mode == "graph" and tf.executing_eagerly():
        tf.compat.v1.disable_eager_execution()
    roots, problem, causes = set(), None, []
    for candidate in (name,) if name else names:
        try:
            home = homes.find_home(tf.keras if candidate == "tf.keras" else importlib.import_module(candidate))
            home.check_can_train()
            if mode == "eager" and home.graph_mode:
                raise ValueError("{} has no eager mode to train in".format(home))
        # A Keras for another TensorFlow may raise anything.
        except Exception as error:
            problem = error
            if not (isinstance(error, ModuleNotFoundError) and error.name == candidate):
                # Raise the first of these: tf.keras's error only says that Keras cannot be imported.
                causes.append(error)
            continue
        if home.root not in roots:
            roots.add(home.root)
            yield home
    if not roots:
        raise causes[0] if causes else problem
