"""LossScaleOptimizer under MirroredStrategy, on two replicas, with batches that overflow on one of them."""

import homes
import kinds
import needs
import numpy as np
import pytest
from test_mixed_precision import FED, OVERFLOWS, STEPS, Scaled

pytestmark = [pytest.mark.capability("R14 trouble"), pytest.mark.long]
WINDOWS = 12

PROGRAM = """
import sys
import numpy as np
import homes
import kinds
import legacyga
import test_mixed_precision as precision
import test_mixed_precision_of_replicas as cases

home, strategy = homes.start_on_replicas(sys.argv[1])
tf = home.tf
for kind in [each for each in kinds.of(home) if each.cls and not each.is_adam and each.generation != "train"]:
    # Tracing is where the time goes: how the other nesting exchanges gradients is test_flush_of_replicas's.
    for nesting in ("inside", "outside")[: 1 + (kind.generation != "v3")]:
        with strategy.scope():
            model, bare = home.network(precision.START), kind.bare()
            if nesting == "inside":
                optimizer = legacyga.wrap(precision.loss_scaled(home, bare), precision.STEPS)
            else:
                optimizer = precision.loss_scaled(home, legacyga.wrap(bare, precision.STEPS))
            model.compile(loss="mse", optimizer=optimizer)
        data = tf.data.Dataset.from_tensor_slices(precision.joined(cases.data(home))).batch(4)
        model.fit(data, verbose=0)
        state = precision.state_of(home, optimizer)
        assert legacyga.flush(optimizer) is True
        variables = [variable.value if home.is_keras3 else variable for variable in model.trainable_variables]
        for number in (0, 1):
            values = [strategy.experimental_local_results(variable)[number].numpy() for variable in variables]
            flat = np.concatenate([value.ravel() for value in values] + [state])
            np.save("{}-{}-{}-{}.npy".format(sys.argv[2], nesting, kind.id, number), flat)
"""


def data(home):
    """What overflows does so on one of the two replicas: the first, or by another order of its samples the second.

    In Keras 3 the first alone, for there the bare one does not see what overflows on the second.
    """
    return [(x[::-1], y[::-1]) if i % 2 and not home.is_keras3 else (x, y) for i, (x, y) in enumerate(FED[:17])]


def test_replicas(home, tmpdir):
    """On both, what one device makes of the large batches; the last window is flushed."""
    needs.eager_only(home)
    homes.run_program(tmpdir, PROGRAM, home.name, str(tmpdir.join("end")))
    (sgd,) = [each for each in kinds.of(home) if each.id.endswith("-SGD") and each.generation in ("v2", "keras3")]
    inside, outside, fed = Scaled(home, sgd), Scaled(home, sgd), data(home)
    for begin in range(0, 15, STEPS):
        inside.update([inside.gradients(each) for each in fed[begin : begin + STEPS]])
    window = []
    for i, batch in enumerate(fed):
        outside.react(i not in OVERFLOWS)
        window += [] if i in OVERFLOWS else [outside.gradients(batch)]
        if len(window) == STEPS:
            outside.apply(window)
            window = []
    states = {"inside": inside.state, "outside": outside.state}
    inside.apply([inside.gradients(each) for each in fed[15:]])
    outside.apply(window)
    for nesting, expected in (("inside", inside), ("outside", outside)):
        paths = tmpdir.listdir("end-{}-*.npy".format(nesting))
        assert paths and len(paths) % 2 == 0
        for path in paths:
            found, wanted = np.load(str(path)), np.concatenate([value.ravel() for value in expected.weights])
            assert tuple(found[-3:]) == states[nesting], path.basename
            np.testing.assert_allclose(found[:-3], wanted, rtol=0, atol=4e-6)


RAISING = """
import sys
import homes
import kinds
import legacyga
import numpy as np
import test_mixed_precision as precision
import test_mixed_precision_of_replicas as cases

home, strategy = homes.start_on_replicas(sys.argv[1])
tf = home.tf
run = getattr(strategy, "run", None) or strategy.experimental_run_v2
for kind in [each for each in kinds.of(home) if each.cls and not each.is_adam and each.generation != "train"]:
    with strategy.scope():
        variables = home.variables([np.ones((99, 99), "float32")] * 6)
        optimizer = precision.loss_scaled(home, kind.bare(), 2.0**cases.WINDOWS, 10**6)
        optimizer = legacyga.wrap(optimizer, 2, on_nonfinite="raise")
        if home.is_keras3:
            optimizer.build(variables)

    def mini_step(value):
        gradients = [value * tf.ones((99, 99))] * 6
        if not home.is_keras3:
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, variables))

    step = tf.function(lambda value: run(mini_step, args=(value,)))
    scales, errors = [], 0
    for _ in range(cases.WINDOWS):
        step(tf.constant(1.0))
        try:
            step(tf.constant(np.float32(np.inf)))
        except tf.errors.InvalidArgumentError:
            errors += 1
        scales.append(precision.state_of(home, optimizer)[0])
    np.save("{}-{}.npy".format(sys.argv[2], kind.id), [errors] + scales)
"""


def test_a_window_that_raises(home, tmpdir):
    """All that is to be written of it is written, and the scale is halved, before the error ends what runs."""
    needs.eager_only(home)
    homes.run_program(tmpdir, RAISING, home.name, str(tmpdir.join("end")))
    paths = tmpdir.listdir("end-*.npy")
    assert paths
    for path in paths:
        errors, scales = np.split(np.load(str(path)), [1])
        assert errors == WINDOWS and scales.tolist() == [2.0 ** (WINDOWS - 1 - i) for i in range(WINDOWS)]
