"""load_model and custom_objects: saved models, with the optimizers that accumulate."""

import os

from legacyga.backend import homes
from legacyga.optimizers import config, lookup, state_to_come, surface


def load_model(path, keras=None, custom_objects=None, **kwargs):
    """A model that was saved with an optimizer that accumulates, to go on with where it stopped.

    It is the home's own `load_model`, which is told of `custom_objects()`. The optimizer comes back with all of its
    state, in the middle of a window too, and with the K that it was saved with.

    Args:
        path: a file or folder in any format that the home's `load_model` reads.
        keras: the Keras module of the model: `keras`, `tf.keras` or `tf_keras`. Default: as for `MySGD`.
        custom_objects: dict of the model's own classes and functions by name, an optimizer class of yours among them.
            Default: none.
        **kwargs: what else the home's `load_model` takes (`compile=False`, ...).

    Returns:
        The model.

    Raises:
        ValueError: the file has a state of the optimizer that does not fit; `custom_objects` is no dict; or two Keras
            to choose from.

    Example:
        >>> import os, tempfile
        >>> from tensorflow import keras
        >>> import legacyga
        >>> model = keras.Sequential([keras.layers.Dense(1, input_shape=(3,))])
        >>> optimizer = legacyga.wrap(keras.optimizers.SGD(0.1), gradient_accumulation_steps=4)
        >>> model.compile(optimizer, keras.losses.MeanSquaredError())
        >>> path = os.path.join(tempfile.mkdtemp(), "model.h5")
        >>> model.save(path)
        >>> legacyga.load_model(path, keras=keras).optimizer.gradient_accumulation_steps
        4
    """
    home = homes.find_home(keras)
    if not isinstance(custom_objects, (dict, type(None))):
        raise ValueError(
            "custom_objects must be a dict of classes and functions by name. Received: {!r}".format(custom_objects)
        )
    objects = dict(config.loaders(home), **(custom_objects or {}))
    with home.module.utils.CustomObjectScope(objects):
        model = home.module.models.load_model(path, custom_objects=objects, **kwargs)
    found = lookup.optimizers_of(model)
    variables = os.path.join(str(path), "variables", "variables")
    if found and os.path.exists(variables + ".index"):
        for optimizer in found:
            state_to_come.build_if_it_fits(home.tf, optimizer, model.trainable_variables, variables)
        # Of a SavedModel Keras restores no optimizer.
        model.load_weights(variables)
    for optimizer in found:
        refused = surface.accumulation_of(optimizer).refused
        if refused is not None:
            raise ValueError("{} holds a state of the optimizer that does not fit. {}".format(path, refused))
    return model


def custom_objects(keras=None):
    """What Keras's own loaders must be told to make an optimizer that accumulates of its config.

    Args:
        keras: the Keras module of the model: `keras`, `tf.keras` or `tf_keras`. Default: as for `MySGD`.

    Returns:
        A new dict, for the argument `custom_objects` of `load_model`, `optimizers.deserialize`, `CustomObjectScope`,
        ...: an entry for `wrap` and one for `MySGD`.

    Raises:
        ValueError: `keras` is not a Keras, or two of them are imported and none was named.

    Example:
        >>> import legacyga
        >>> sorted(legacyga.custom_objects())
        ['AccumulatingOptimizer', 'MySGD']
    """
    return config.loaders(homes.find_home(keras))
