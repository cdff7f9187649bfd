"""fit with the callback under MirroredStrategy: each replica's part of a batch weighs its samples, none of them 0."""

import homes
import numpy as np
import pytest
import skips
import test_weights
from kinds import RATE

pytestmark = [pytest.mark.capability("R12 replicas"), pytest.mark.long]

# (samples, of them in a batch, K): the last batch leaves one replica with nothing, or has unequal parts.
CASES = [(9, 4, 3), (13, 6, 4), (15, 6, 3)]

PROGRAM = """
import sys
import numpy as np
import homes
import legacyga
import kinds
import test_weights
import test_weights_of_replicas as cases

home, strategy = homes.start_on_replicas(sys.argv[1])
tf = home.tf


def reset_metrics(batch, logs=None):
    model.reset_metrics()


for kind in [each for each in kinds.of(home) if each.cls and not each.is_adam and each.generation != "train"]:
    with strategy.scope():
        model = test_weights.network(home)
        optimizer = legacyga.wrap(kind.cls(cases.RATE), 2)
        model.compile(loss="mse", optimizer=optimizer)
    for i, (samples, batch, steps) in enumerate(cases.CASES):
        model.set_weights(test_weights.START)
        optimizer.gradient_accumulation_steps = steps
        callbacks = [legacyga.GradientAccumulationCallback()]
        if i % 2:
            callbacks.append(home.keras.callbacks.LambdaCallback(on_batch_end=reset_metrics))
        data = tf.data.Dataset.from_tensor_slices(cases.data(i)).batch(batch)
        model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
        name = "{}-{}-{}.npy".format(sys.argv[2], kind.generation, i)
        np.save(name, np.concatenate([value.ravel() for value in model.get_weights()]))

    # A weight that is given outside of all replicas is each one's.
    with strategy.scope():
        (variable,) = home.variables([np.ones(2, "float32")])
        optimizer = legacyga.wrap(kind.cls(1.0), 2)
        if hasattr(optimizer, "build"):
            optimizer.build([variable])
    for weight, gradient in ((3.0, 1.0), (1.0, 5.0)):
        with optimizer.mini_step_weight(weight):
            strategy.run(lambda: optimizer.apply_gradients([(tf.fill([2], gradient / 2.0), variable)]))
    np.testing.assert_array_equal(np.asarray(variable.numpy()), np.float32([-1, -1]))
"""


def data(case):
    return test_weights.batches_of([CASES[case][0]], seed=51 + case)[0]


def test_parts_of_unequal_sizes(home, tmpdir):
    """Epochs of 9, 13 and 15 samples equal the large batches of one device."""
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.keras_lacks("train_step: TF 2.2 or newer, in eager mode")
    homes.run_program(tmpdir, PROGRAM, home.name, str(tmpdir.join("weights")))
    found, wrong = 0, []
    for i, (samples, batch, steps) in enumerate(CASES):
        x, y = data(i)
        large = [(x[j : j + batch * steps], y[j : j + batch * steps]) for j in range(0, samples, batch * steps)]
        sgd = test_weights.oracle.SGD(RATE)
        wanted = test_weights.expected(test_weights.known(2 * large), 1, sgd)
        for path in tmpdir.listdir("weights-*-{}.npy".format(i)):
            flat = np.load(str(path))
            ends = np.cumsum([value.size for value in wanted])
            weights = [part.reshape(w.shape) for part, w in zip(np.split(flat, ends[:-1]), wanted)]
            distance, found = test_weights.off(weights, wanted), found + 1
            if not distance <= 4e-6:
                wrong.append((path.basename, CASES[i], distance))
    assert found % len(CASES) == 0 and found and not wrong, wrong


MASKED = """
import sys
import numpy as np
import homes
import legacyga
import test_masks as cases
from kinds import MOMENTUM, RATE

home, strategy = homes.start_on_replicas(sys.argv[1])
ids, y, _ = cases.batches_of([12])[0]
with strategy.scope():
    model = cases.network(home)
    model.compile(legacyga.wrap(home.bare_sgd(lr=RATE, momentum=MOMENTUM), 3), "mse")
name = "_compile_loss" if home.is_keras3 else "compiled_loss"
own = vars(model)[name]
data = home.tf.data.Dataset.from_tensor_slices((ids, y)).batch(4)
model.fit(data, verbose=0, callbacks=[legacyga.GradientAccumulationCallback()])
assert vars(model)[name] is own
cases.assert_close(model.get_weights(), cases.expected(home, [cases.batches_of([12])[0]], 1))
"""


def test_sequences_of_unequal_lengths(home, tmpdir):
    """Each replica weighs the time steps that its loss was divided by; what looks at the losses is gone afterwards."""
    if home.mode == "graph" or home.tf_version < (2, 11):
        skips.keras_lacks("losses that are divided by what a mask leaves, in eager mode")
    homes.run_program(tmpdir, MASKED, home.name)
