"""load_model and custom_objects: load models that were saved with an accumulating optimizer."""

import contextlib
import os

from legacyga.backend import homes
from legacyga.backend.messages import shown
from legacyga.optimizers import config, lookup, state_to_come, surface


def load_model(path, keras=None, custom_objects=None, **kwargs):
    """Load a model saved with an accumulating optimizer, to resume training where it stopped.

    Calls your Keras's `load_model` with `custom_objects()`. The optimizer is restored with its full state and K, even
    if fewer than K batches had been accumulated since the last update.

    Args:
        path: a file or folder in any format that your Keras's `load_model` reads.
        keras: the model's Keras module: `keras`, `tf.keras` or `tf_keras`. Default: as for `MySGD`.
        custom_objects: dict of the model's custom classes and functions by name, including your own optimizer class.
            Default: none.
        **kwargs: other arguments of your Keras's `load_model` (`compile=False`, ...).

    Returns:
        The model.

    Raises:
        FileNotFoundError, ValueError: there is no such file. Your Keras decides which of the two.
        ValueError: the optimizer state in the file does not match; `custom_objects` is not a dict; or your program has
            imported more than one Keras, and `keras=` does not say which to use, or is no Keras module.

    Examples:
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
    # Later copies and pickles of the model need our loaders.
    config.register(home)
    if not isinstance(custom_objects, (dict, type(None))):
        raise ValueError(
            "custom_objects must be a dict of classes and functions by name. Received: {}".format(shown(custom_objects))
        )
    objects = dict(config.loaders(home), **(custom_objects or {}))
    # A CustomObjectScope of Keras 3 would hide the user's scopes, and Keras 3's load_model needs none.
    with contextlib.ExitStack() if home.is_keras3 else home.module.utils.CustomObjectScope(objects):
        try:
            model = home.module.models.load_model(path, custom_objects=objects, **kwargs)
        except (OSError, ValueError) as error:
            if not isinstance(path, (str, os.PathLike)) or "://" in str(path) or os.path.exists(path):
                raise
            # For a missing file Keras's message is often about another format, so name the file.
            kind = FileNotFoundError if isinstance(error, OSError) else ValueError
            raise kind("{}. There is no file or folder {}.".format(str(error).rstrip("."), os.path.abspath(path)))
    found = lookup.optimizers_of(model)
    variables = os.path.join(str(path), "variables", "variables")
    # `gfile`, because the path may be a URL.
    if found and home.v1.gfile.Exists(variables + ".index"):
        for optimizer in found:
            state_to_come.build_if_it_fits(home.tf, optimizer, model.trainable_variables, variables)
        # Keras does not restore the optimizer of a SavedModel.
        model.load_weights(variables)
    for optimizer in found:
        refused = surface.accumulation_of(optimizer).refused
        if refused is not None:
            raise ValueError("{} holds a state of the optimizer that does not fit. {}".format(path, refused))
    return model


def custom_objects(keras=None):
    """The custom objects that Keras's own loaders need to load an accumulating optimizer. Also registers them.

    Args:
        keras: the model's Keras module: `keras`, `tf.keras` or `tf_keras`. Default: as for `MySGD`.

    Returns:
        A new dict with one entry for `wrap` and one for `MySGD`, to pass as `custom_objects` to `load_model`,
        `optimizers.deserialize`, `CustomObjectScope`, ...

    Raises:
        ValueError: `keras` is not a Keras module; or your program has imported more than one Keras, and `keras=` does
            not say which to use.

    Examples:
        >>> import legacyga
        >>> sorted(legacyga.custom_objects())
        ['AccumulatingOptimizer', 'MySGD']
    """
    home = homes.find_home(keras)
    config.register(home)
    return config.loaders(home)
