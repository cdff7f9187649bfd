"""The well-known get_updates/K.switch accumulator beside legacyga.MySGD, on the same data.

Many projects have their own copy of such an optimizer, often called MySGD. It is SGD's `get_updates` with
`K.switch(it_is_time, K.update(...), ...)` around its writes. But K.switch only chooses between two values. Operations
that were made before its call run in any case. So all the writes of both branches run on every batch, in any order.

This script trains one small network on the diabetes data of scikit-learn with three optimizers. The first uses the
snippet's algorithm, newly written, without its decay and Nesterov. The second is `legacyga.MySGD`. The third is the
plain SGD of the same Keras, on batches as large as a whole window; the other two should give its result. Each trains
20 times, from the same start on the same batches in the same order.

    weights moved  one character for each batch: X if any weight changed
    iterations     the optimizer's own count, which `decay` uses
    distance       the largest difference of any weight in any run from SGD on the large batches, computed in NumPy
                   float64 (the plain SGD is no reference, because in Keras 2.2 its reads and writes race, too)
    results        how many different final weights, to the bit, the identical runs gave: 1 is right

    python mysgd_vs_snippet.py                    tf.keras (in graph mode, because get_updates needs it)
    python mysgd_vs_snippet.py --home keras       standalone Keras, up to 2.3.1
    python mysgd_vs_snippet.py --home tf_keras    where tf.keras is Keras 3, which has no graph mode

This example needs scikit-learn, and a Keras that has graph mode: any but Keras 3.
"""

import argparse
import importlib

import numpy as np
import tensorflow as tf
from _common import check_needs

import legacyga
from legacyga.backend import homes

N = 4  # batches of one update
BATCH, BATCHES = 16, 24
LR = 0.05
INPUTS, HIDDEN = 10, 16


def snippet_for(keras, base):
    """The snippet's algorithm as a class of this Keras. Not to be used: `WRONG` says where and why."""
    K = keras.backend

    class Snippet(base):
        def __init__(self, lr, momentum, steps_per_update):
            super(Snippet, self).__init__()
            self.iterations = K.variable(0, dtype="int64", name="iterations")
            # The snippet says `self.lr`. In Keras 2.3 nobody can set that, and the snippet ends here.
            self.learning_rate = K.variable(lr, name="learning_rate")
            self.momentum = K.variable(momentum, name="momentum")
            self.steps_per_update = steps_per_update

        def get_updates(self, loss, params):
            gradients = self.get_gradients(loss, params)
            sums = [K.zeros(K.int_shape(param)) for param in params]
            self.weights = [self.iterations] + sums
            # WRONG: counts batches instead of updates.
            self.updates = [K.update_add(self.iterations, 1)]
            # WRONG: nothing says whether this reads the count before or after that write.
            it_is_time = K.equal(self.iterations % self.steps_per_update, 0)
            for param, gradient, total in zip(params, gradients, sums):
                # WRONG: a sum of gradients in the velocity's place points uphill; N divides it and not the step; the
                # step takes the gradient of one batch alone.
                velocity = self.momentum * total / self.steps_per_update - self.learning_rate * gradient
                # WRONG: these three writes are made before K.switch is called, so all three run on every batch.
                self.updates.append(K.switch(it_is_time, K.update(param, param + velocity), param))
                self.updates.append(K.switch(it_is_time, K.update(total, gradient), K.update(total, total + gradient)))
            return self.updates

    return Snippet


def read_data():
    """`BATCHES` batches of inputs and targets, scaled to a variance of about 1."""
    from sklearn.datasets import load_diabetes

    inputs, targets = load_diabetes(return_X_y=True)
    inputs, targets = inputs * len(inputs) ** 0.5, (targets - targets.mean()) / targets.std()
    rows = BATCH * BATCHES
    return inputs[:rows].astype("float32"), targets[:rows, None].astype("float32")


def first_weights():
    """The start of every run: kernel, bias, kernel, bias."""
    random = np.random.RandomState(0)
    shapes = (INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,)
    return [(0.3 * random.randn(*shape)).astype("float32") for shape in shapes]


def flat(weights):
    return np.concatenate([weight.ravel() for weight in weights])


def large_batches(momentum):
    """The weights that SGD on batches N times as large ends with, in NumPy float64."""
    inputs, targets = (values.astype("float64") for values in read_data())
    weights = [weight.astype("float64") for weight in first_weights()]
    velocities = [np.zeros_like(weight) for weight in weights]
    for i in range(0, len(inputs), N * BATCH):
        x, y = inputs[i : i + N * BATCH], targets[i : i + N * BATCH]
        hidden = np.tanh(x.dot(weights[0]) + weights[1])
        error = 2.0 * (hidden.dot(weights[2]) + weights[3] - y) / y.size
        inner = error.dot(weights[2].T) * (1.0 - hidden**2)
        gradients = [x.T.dot(inner), inner.sum(axis=0), hidden.T.dot(error), error.sum(axis=0)]
        velocities = [momentum * v - LR * g for v, g in zip(velocities, gradients)]
        weights = [w + v for w, v in zip(weights, velocities)]
    return flat(weights)


def train(keras, optimizer, batch, runs):
    """Build the network once and train it `runs` times from the same start.

    Returns:
        The batches on which the weights moved, as text; `iterations` at the end; the final weights, a row for each run.
    """
    K = keras.backend
    model = keras.models.Sequential(
        [keras.layers.Dense(HIDDEN, activation="tanh", input_shape=(INPUTS,)), keras.layers.Dense(1)]
    )
    model.compile(loss="mse", optimizer=optimizer)
    inputs, targets = read_data()
    moved, results = "", []
    for run in range(runs):
        model.set_weights(first_weights())
        for variable in optimizer.weights:  # none before the first batch, which makes them
            K.set_value(variable, K.get_value(variable.initial_value))
        for i in range(0, len(inputs), batch):
            before = flat(model.get_weights()) if run == 0 else None
            model.train_on_batch(inputs[i : i + batch], targets[i : i + batch])
            if run == 0:
                # As bytes: a NaN would never equal itself.
                moved += "." if flat(model.get_weights()).tobytes() == before.tobytes() else "X"
        results.append(flat(model.get_weights()))
    return moved, int(K.get_value(optimizer.iterations)), np.array(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names, told = ("keras", "tf.keras", "tf_keras"), "your Keras (default: %(default)s)"
    parser.add_argument("--home", choices=names, default="tf.keras", help=told)
    parser.add_argument("--runs", type=int, default=20, help="identical runs of each optimizer (default: 20)")
    parser.add_argument("--momentum", type=float, nargs="+", default=[0.0, 0.9], help="to compare (default: 0 and 0.9)")
    args = parser.parse_args()
    check_needs(__doc__, args.home, keras_3=False)

    if hasattr(tf.compat, "v1"):  # not there before TF 1.13, and not needed there
        tf.compat.v1.disable_eager_execution()
    keras = tf.keras if args.home == "tf.keras" else importlib.import_module(args.home)
    home = homes.find_home(keras)
    home.check_can_train()
    v1 = home.v1_optimizers  # the module of the optimizers with get_updates, which has moved from version to version
    Snippet = snippet_for(keras, v1.Optimizer)

    print("{}, TensorFlow {}: {} batches of {}, {} to an update".format(home, tf.__version__, BATCHES, BATCH, N))
    row = "{:>8}  {:<18}  {:<24}  {:>10}  {:>8}  {}".format
    print(row("momentum", "optimizer", "weights moved", "iterations", "distance", "results"))
    endings = []
    for momentum in args.momentum:
        exact = large_batches(momentum)
        distances = []
        for name, optimizer, batch in (
            ("SGD, batches of {}".format(N * BATCH), v1.SGD(lr=LR, momentum=momentum), N * BATCH),
            ("snippet", Snippet(LR, momentum, N), BATCH),
            ("legacyga.MySGD", legacyga.MySGD(LR, momentum, steps_per_update=N, keras=keras), BATCH),
        ):
            moved, iterations, results = train(keras, optimizer, batch, args.runs)
            distance = "{:.1e}".format(np.abs(results - exact).max())
            different = len({result.tobytes() for result in results})
            print(row(momentum, name, moved, iterations, distance, "{} of {}".format(different, args.runs)), flush=True)
            distances.append("{} {}".format(name, distance))
        way = np.abs(exact - flat(first_weights())).max()
        ending = "momentum {}: weights move by up to {:.2g}; off by: {}"
        endings.append(ending.format(momentum, way, "; ".join(distances)))
    print("\n".join(endings))


if __name__ == "__main__":
    main()
