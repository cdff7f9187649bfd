"""What Keras's fit tells its callbacks, in every home."""

import importlib

from legacyga.backend import homes


def callbacks_of(home):
    """The home's own `keras.callbacks`, internal classes included."""
    return importlib.import_module(home.root + ".callbacks")


def has_raw_logs(home):
    """Whether callbacks may ask for logs as they are on the device: TF 2.3 and newer, but not Keras 3."""
    return hasattr(callbacks_of(home).Callback(), "_supports_tf_logs")


def has_two_dicts(home):
    """Whether callbacks that ask for raw logs are given another dict than those that do not: TF 2.3 to 2.5."""
    return has_raw_logs(home) and not hasattr(callbacks_of(home).CallbackList, "_process_logs")


def bar_is_first(home):
    """Whether the progress bar has its hooks before the user's callbacks: eager mode of TF 2.4 to 2.7."""
    if home.graph_mode or not has_raw_logs(home):
        return False
    callbacks = callbacks_of(home)
    listed = callbacks.CallbackList([callbacks.Callback()], add_progbar=True).callbacks
    return isinstance(listed[0], callbacks.ProgbarLogger)


def bar_lacks_our_logs(home):
    """Whether the progress bar's last line of an epoch is made without what our `on_epoch_end` puts into its logs."""
    if home.is_keras3:
        return False
    # Standalone Keras, and tf.keras of TF 1.8 to 1.11, draw it before.
    drawn_before = not hasattr(callbacks_of(home), "configure_callbacks")
    return drawn_before or has_two_dicts(home) or bar_is_first(home)


def homes_train_step(cls):
    """The `train_step` of the first of Keras's own classes that a model's class is made of, None if none has it."""
    for each in cls.__mro__:
        if each.__module__.partition(".")[0] in homes.KERAS and "train_step" in vars(each):
            return vars(each)["train_step"]
    return None


def is_of_tensorflow(cls):
    """Whether a model's class is of the tf.keras of TF 1.8 to 2.5, and not of a Keras beside it."""
    return any(each.__module__.partition(".")[0] == "tensorflow" for each in cls.__mro__)
