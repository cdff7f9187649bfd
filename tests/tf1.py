"""Optimizers of tf.compat.v1.train: sessions of their own in graph mode, and eager mode."""

import contextlib

import numpy as np
import skips
from homes import v1_of

RANDOM = np.random.RandomState(5)
SHAPES = ((3, 4), (4,), (2, 2, 3))
START = [RANDOM.randn(*shape).astype("float32") for shape in SHAPES]
GRADIENTS = [[RANDOM.randn(*shape).astype("float32") for shape in SHAPES] for _ in range(20)]
X = RANDOM.randn(24, 5).astype("float32")
Y = RANDOM.randn(24, 2).astype("float32")
KERNEL = RANDOM.randn(5, 2).astype("float32")


def make(home, name, rate=0.03, **kwargs):
    return getattr(v1_of(home.tf).train, name)(rate, **kwargs)


def in_the_run_of_tf_keras(home):
    """These optimizers belong to no Keras: beside standalone Keras the run of tf.keras has them."""
    if home.is_standalone:
        skips.elsewhere("tested in the run of tf.keras")


def graph_only(home):
    in_the_run_of_tf_keras(home)
    if home.mode != "graph":
        skips.senseless("sessions are of graph mode")


@contextlib.contextmanager
def graph_of_its_own(home):
    with home.tf.Graph().as_default() as graph:
        with v1_of(home.tf).Session(graph=graph) as session:
            yield v1_of(home.tf), session


def apply_to(home, make_optimizer, gradients, resource=None):
    """The values of variables that start at START after each of `gradients`; (the history, the optimizer's count)."""
    history = []
    if home.mode == "eager":
        variables = [home.tf.Variable(value) for value in START]
        step, optimizer = home.tf.Variable(0, dtype="int64"), make_optimizer()
        for each in gradients:
            optimizer.apply_gradients([(home.tf.constant(g), v) for g, v in zip(each, variables)], global_step=step)
            history.append([v.numpy() for v in variables])
        return history, int(step.numpy())
    with graph_of_its_own(home) as (v1, session):
        # TF 2 without disable_v2_behavior writes to resource variables alone; TF 1 makes reference variables.
        kwargs = dict(use_resource=resource)
        variables = [v1.get_variable(name, initializer=value, **kwargs) for name, value in zip("abc", START)]
        fed = [v1.placeholder("float32", value.shape) for value in START]
        step = v1.train.get_or_create_global_step()
        train = make_optimizer().apply_gradients(list(zip(fed, variables)), global_step=step)
        session.run(v1.global_variables_initializer())
        for each in gradients:
            session.run(train, dict(zip(fed, each)))
            history.append(session.run(variables))
        return history, int(session.run(step))


def means(steps, reduce=np.mean):
    return [
        [reduce(window, axis=0).astype("float32") for window in zip(*GRADIENTS[i : i + steps])]
        for i in range(0, len(GRADIENTS), steps)
    ]


def assert_same(history, bare, steps):
    assert len(history) == steps * len(bare)
    history = [START] + history
    for i, weights in enumerate(history[1:], 1):
        for now, before, start, wanted in zip(weights, history[i - 1], START, bare[(i - 1) // steps]):
            if i % steps:
                np.testing.assert_array_equal(now, before)
            else:
                assert np.max(np.abs(now - wanted)) <= 2e-6 * np.max(np.abs(wanted - start))
