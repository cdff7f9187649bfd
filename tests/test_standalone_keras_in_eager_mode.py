"""Standalone Keras in eager mode of TensorFlow 2: its own optimizers are refused, tf.keras's train its models."""

import json

import dense
import homes
import numpy as np
import oracle
import pytest
import skips

pytestmark = pytest.mark.capability("ways to train")
K, RATE, MOMENTUM = 3, 0.05, 0.9

PROGRAM = """
import json
import sys
import warnings

import keras
import tensorflow as tf

import dense
import legacyga
from test_standalone_keras_in_eager_mode import K, MOMENTUM, RATE

assert tf.executing_eagerly()
errors = []
for make in (
    lambda: legacyga.MySGD(lr=RATE, steps_per_update=K, keras=keras),
    lambda: legacyga.wrap(keras.optimizers.Adam(RATE), K),
):
    try:
        make()
    except ValueError as error:
        errors.append(str(error))

optimizers = {
    "MySGD": legacyga.MySGD(lr=RATE, momentum=MOMENTUM, steps_per_update=K, keras=tf.keras),
    "wrap": legacyga.wrap(tf.keras.optimizers.Adam(RATE), K),
}
ends = {}
for name, optimizer in optimizers.items():
    hidden = keras.layers.Dense(4, activation="tanh", input_shape=(5,))
    model = keras.models.Sequential([hidden, keras.layers.Dense(3)])
    model.set_weights(dense.START)
    model.compile(optimizer, "mse")
    dense.fit(model, dense.BATCHES)
    try:
        legacyga.micro_batch(model, 2)
    except ValueError as error:
        errors.append(str(error))
    ends[name] = [weight.tolist() for weight in model.get_weights()], int(optimizer.iterations.numpy())
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    x, y = dense.joined(dense.BATCHES)
    model.fit(x[:6], y[:6], batch_size=4, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])
told = [str(each.message) for each in found if "batches" in str(each.message).lower()]
print(json.dumps([errors, ends, told]))
"""


@pytest.fixture(scope="module")
def printed(home, tmpdir_factory):
    if not home.is_standalone_before(2, 4) or home.tf_version < (2,):
        skips.senseless("standalone Keras on TensorFlow 2 alone is asked")
    return json.loads(homes.run_program(tmpdir_factory.mktemp("eager"), PROGRAM).splitlines()[-1])


def test_its_own_optimizers_are_refused_with_the_remedy(printed):
    errors = printed[0]
    for error in errors[:2]:
        assert error.startswith("The optimizers of standalone Keras accumulate in graph mode only. Received: keras 2.")
        assert "in eager mode" in error and "keras=tf.keras" in error and "disable_eager_execution()" in error


def test_there_is_no_training_step_to_cut(printed):
    errors = printed[0]
    assert len(errors) == 4
    for error in errors[2:]:
        assert "of Keras 2.3, fit has no training step that could be cut. Received: <keras.engine.sequential" in error


def test_the_callback_says_that_batches_weigh_alike(printed):
    assert [message for message in printed[2] if "tell an optimizer here how many samples a batch has" in message]
    assert not [message for message in printed[2] if "trained before" in message]


@pytest.mark.parametrize("name", ["MySGD", "wrap"])
def test_those_of_tf_keras_train_its_models(printed, name):
    ours, updates = printed[1][name]
    optimizer = oracle.SGD(RATE, momentum=MOMENTUM) if name == "MySGD" else oracle.Adam(RATE)
    dense.assert_close([np.asarray(weight) for weight in ours], dense.trained(dense.BATCHES, K, optimizer))
    assert updates == 4
