"""What the examples share, beside accumulation itself: the data, the command line, and the distance they end with.

Imported next to nothing: NumPy and TensorFlow are imported by the functions that need them, for
`partial_windows.py` and `keep_batch_size.py` measure the memory of processes that they start, and have to be small
themselves.
"""

import argparse
import importlib
import sys


def read_digits(shuffled=False):
    """scikit-learn's 1797 handwritten digits: images of 64 numbers of 0 to 1, and which digits they are."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(images)) if shuffled else slice(None)
    return (images[order] / 16.0).astype("float32"), digits[order].astype("int64")


def one_hot(digits):
    import numpy as np

    return np.eye(10, dtype="float32")[digits]


def pictures(number):
    """`number` shuffled digits to train on and the last 357 to test, each as (8 by 8 pictures, one-hot classes)."""
    images, digits = read_digits(shuffled=True)
    images, classes = images.reshape(-1, 8, 8, 1), one_hot(digits)
    return (images[:number], classes[:number]), (images[1440:], classes[1440:])


def start_scaled(model):
    """Give a network weights that keep the size of what passes through, the same ones in every process."""
    import numpy as np

    random = np.random.RandomState(1)
    scales = [np.prod(w.shape[:-1]) ** -0.5 if w.ndim > 1 else 0.0 for w in model.get_weights()]
    model.set_weights([scale * random.randn(*w.shape) for scale, w in zip(scales, model.get_weights())])


def flat(model):
    """A model's weights, as a list of numbers."""
    return [float(number) for weight in model.get_weights() for number in weight.ravel()]


def first_weights(*shapes):
    """Where a training starts, the large batch's and ours."""
    import numpy as np

    random = np.random.RandomState(0)
    return [(0.1 * random.randn(*shape)).astype("float32") for shape in shapes]


def parser(description, epochs, images=None, graph=False, small=None):
    """A parser of the arguments that the examples have in common.

    Args:
        description: the example's docstring.
        epochs, images: the defaults; without `images` there is no such argument.
        graph: whether there is an argument `--graph`.
        small: what `--small` is, if there is such an argument.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--home", choices=("keras", "tf.keras", "tf_keras"), default="tf.keras")
    made.add_argument("--epochs", type=int, default=epochs, help="(default: %(default)s)")
    if images:
        made.add_argument("--images", type=int, default=images, help="to train on (default: %(default)s)")
    if graph:
        made.add_argument("--graph", action="store_true", help="in a TensorFlow 1 graph")
    if small:
        made.add_argument("--small", action="store_true", help=small)
    return made


def keras_of(home, graph=False):
    """The Keras of that name, in graph mode if asked for."""
    import tensorflow as tf

    # tf.compat.v1 is not there before TF 1.13, and not needed there: there is nothing but graph mode.
    if graph and hasattr(tf.compat, "v1"):
        tf.compat.v1.disable_eager_execution()
    return tf.keras if home == "tf.keras" else importlib.import_module(home)


def peak_memory():
    """The most memory that this process has had so far, in MiB; None where Python cannot tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2.0**20 if sys.platform == "darwin" else peak / 2.0**10


def check_tensorflow_2(instead):
    """End the program where there is no TensorFlow 2."""
    import tensorflow as tf

    if tf.__version__ < "2":
        raise SystemExit(
            "A loop in a tf.function needs TensorFlow 2. Received: TensorFlow {}. {}".format(tf.__version__, instead)
        )


def print_title(home, **numbers):
    """What runs: the home, TensorFlow, and the numbers of things by their names."""
    import tensorflow as tf

    told = ["{} {}".format(number, name) for name, number in numbers.items()]
    print("{}, TensorFlow {}: {}".format(home, tf.__version__, ", ".join(told)))


def distance(weights, wanted, start):
    """The largest distance of any weight from the wanted one, relative to the largest that these went from `start`."""
    import numpy as np

    weights, wanted, start = [np.concatenate([np.ravel(each) for each in these]) for these in (weights, wanted, start)]
    return np.abs(weights - wanted).max() / np.abs(wanted - start).max()


def print_ending(*distances):
    """The last line: (of what, `distance`) of each."""
    told = "; ".join("{} {:.1e}".format(*each) for each in distances)
    print("distance to the large batch, relative to how far that one went: " + told)
