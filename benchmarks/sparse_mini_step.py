"""What a mini-step on the rows of an embedding costs, over a bare scatter_add of those rows.

    python benchmarks/sparse_mini_step.py [--rows 100000] [--ids 512] [--rounds 60]

Prints, for each generation of the installed Keras in eager mode, the median of the ratios of one round, in which a
mini-step that is no update, a `scatter_add`, and the same mini-step on the dense gradient take turns.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
WIDTH = 256


def optimizers(keras):
    """{generation: an optimizer class} of this Keras."""
    from legacyga.backend import homes

    modules = [keras.optimizers] + [getattr(keras.optimizers, name, None) for name in ("legacy", "experimental")]
    # Keras 3 keeps names of old ones that say that they are gone.
    found = {homes.generation_of(module.SGD): module.SGD for module in modules if module is not None}
    return {generation: cls for generation, cls in found.items() if generation is not None}


def seconds(step, *args):
    start = time.perf_counter()
    step(*args)
    return time.perf_counter() - start


def measure(tf, keras, cls, rows, ids, rounds):
    """[(mini-step on rows, on the dense gradient) over scatter_add] of each round."""
    import legacyga

    shape = (rows, WIDTH)
    make = keras.Variable if hasattr(keras, "KerasTensor") and hasattr(keras, "ops") else tf.Variable
    by_rows, whole = [make(tf.zeros(shape)) for _ in range(2)]
    wrapped = [legacyga.wrap(cls(0.1, momentum=0.9), 10**6) for _ in range(2)]
    for optimizer, variable in zip(wrapped, (by_rows, whole)):
        if hasattr(optimizer, "build"):
            optimizer.build([variable])
    table = tf.Variable(tf.zeros(shape))
    indices = tf.random.uniform([ids], 0, rows, tf.int64)
    values = tf.random.normal([ids, WIDTH])
    slices = tf.IndexedSlices(values, indices, tf.constant(shape, tf.int64))

    @tf.function
    def mini_step():
        wrapped[0].apply_gradients([(slices, by_rows)])

    @tf.function
    def densified():
        wrapped[1].apply_gradients([(tf.convert_to_tensor(slices), whole)])

    @tf.function
    def scatter():
        table.scatter_add(slices)

    steps = (mini_step, densified, scatter)
    for _ in range(5):
        for step in steps:
            step()
    timed = [[seconds(step) for step in steps] for _ in range(rounds)]
    return [(by_rows / bare, dense / bare) for by_rows, dense, bare in timed]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100000)
    parser.add_argument("--ids", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    import tensorflow as tf

    try:
        import tf_keras as keras
    except ImportError:
        from tensorflow import keras
    print("TensorFlow {}, {} rows of {}, {} ids".format(tf.__version__, options.rows, WIDTH, options.ids))
    for generation, cls in sorted(optimizers(keras).items()):
        ratios = measure(tf, keras, cls, options.rows, options.ids, options.rounds)
        medians = [statistics.median(each) for each in zip(*ratios)]
        print("{}: {:.2f} times a scatter_add; on the dense gradient {:.1f} times".format(generation, *medians))


if __name__ == "__main__":
    main()
