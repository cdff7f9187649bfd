"""What the looks of `on_nonfinite` cost: a mini-step under a policy, over one under "propagate".

    python benchmarks/on_nonfinite.py [--width 3536] [--batch 8] [--rounds 40]

Prints, for each generation of the installed Keras in eager mode, the median of the ratios of one round, in which a
mini-step of each policy takes its turn: forward and backward pass of two dense layers, and the optimizer. Once for the
mini-steps that are no update, once for whole windows.
"""

import argparse
import os
import statistics

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from sparse_mini_step import optimizers, seconds

STEPS = 8
# The last is "propagate" in a step that adds up each gradient's elements: the least that a look can cost.
SUMS = "propagate, and a sum of each gradient"
POLICIES = ("propagate", "skip_mini_step", "skip_window", "raise", SUMS)


def mini_step(tf, keras, cls, width, policy, x):
    """A function that takes a mini-step of a model of its own."""
    import legacyga

    inputs = keras.layers.Input((width,))
    model = keras.models.Model(inputs, keras.layers.Dense(width)(keras.layers.Dense(width)(inputs)))
    optimizer = legacyga.wrap(cls(1e-3, momentum=0.9), STEPS, on_nonfinite=policy.split(",")[0])
    variables = model.trainable_variables
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - x))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
        return loss + sum(tf.reduce_sum(each) for each in gradients) if policy == SUMS else loss

    return lambda: step().numpy()


def measure(tf, keras, cls, width, batch, rounds):
    """{policy: [(mini-steps that are no update, windows) over those of the first] of each round}."""
    x = tf.random.normal([batch, width])
    steps = [mini_step(tf, keras, cls, width, policy, x) for policy in POLICIES]
    for step in steps:
        for _ in range(2 * STEPS):
            step()
    found = {policy: [] for policy in POLICIES[1:]}
    for _ in range(rounds):
        timed = [[] for _ in steps]
        for _ in range(STEPS):
            for times, step in zip(timed, steps):
                times.append(seconds(step))
        for policy, times in zip(POLICIES[1:], timed[1:]):
            found[policy].append((sum(times[:-1]) / sum(timed[0][:-1]), sum(times) / sum(timed[0])))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=3536)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    import tensorflow as tf

    try:
        import tf_keras as keras
    except ImportError:
        from tensorflow import keras
    parameters = 2 * options.width * (options.width + 1)
    print("TensorFlow {}, {:.1f} million parameters, batch {}".format(tf.__version__, parameters / 1e6, options.batch))
    for generation, cls in sorted(optimizers(keras).items()):
        ratios = measure(tf, keras, cls, options.width, options.batch, options.rounds)
        for policy in POLICIES[1:]:
            medians = [statistics.median(each) for each in zip(*ratios[policy])]
            print("{}, {}: {:.3f}; the window {:.3f}".format(generation, policy, *medians))


if __name__ == "__main__":
    main()
