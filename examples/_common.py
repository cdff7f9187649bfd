"""What the examples share, beside accumulation itself: the data, the command line, and the distance they end with.

Imported next to nothing: NumPy and TensorFlow are imported by the functions that need them, for
`partial_windows.py` and `keep_batch_size.py` measure the memory of processes that they start, and have to be small
themselves.
"""

import argparse
import importlib
import importlib.util
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
    names, told = ("keras", "tf.keras", "tf_keras"), "your Keras (default: %(default)s)"
    made.add_argument("--home", choices=names, default="tf.keras", help=told)
    made.add_argument("--epochs", type=int, default=epochs, help="passes over the data (default: %(default)s)")
    if images:
        made.add_argument("--images", type=int, default=images, help="how many to train on (default: %(default)s)")
    if graph:
        made.add_argument("--graph", action="store_true", help="train in graph mode, as TensorFlow 1 does")
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


def check_needs(description, home, since=(1, 7), keras_3=True, packages=("sklearn",)):
    """End the program with the paragraph of its docstring that says what it needs, where that is not here.

    Args:
        description: the example's docstring.
        home: the Keras that is asked for.
        since: the first TensorFlow; from 2 on in eager mode.
        keras_3: whether Keras 3 will do.
        packages: what is imported beside TensorFlow and Keras.
    """
    import tensorflow as tf

    (needs,) = [each for each in description.split("\n\n") if each.startswith("This example needs ")]
    names = list(packages) + ([] if home == "tf.keras" else [home])
    received = ["no " + name.replace("sklearn", "scikit-learn") for name in names if not importlib.util.find_spec(name)]
    is_eager = tf.executing_eagerly() if hasattr(tf, "executing_eagerly") else False
    if tuple(map(int, tf.__version__.split(".")[:2])) < since or (since >= (2,) and not is_eager):
        received.append("TensorFlow {} in {} mode".format(tf.__version__, "eager" if is_eager else "graph"))
    elif not (keras_3 or received) and getattr(keras_of(home), "__version__", "2") >= "3":
        received.append("Keras " + keras_of(home).__version__)
    if received:
        raise SystemExit("{} Received: {}.".format(" ".join(needs.split()), " and ".join(received)))


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
