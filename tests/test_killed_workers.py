"""Two workers, one of which is killed in mid-window: both go on from BackupAndRestore's file, to the same end."""

import signal

import needs
import numpy as np
import pytest
import skips
import two_workers

pytestmark = [pytest.mark.capability("R9 state"), pytest.mark.long]
RANDOM = np.random.RandomState(43)
START = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
# Five batches of four samples, the last one of three: at K = 3 an epoch ends within a window.
X, Y = RANDOM.randn(19, 3).astype("float32"), RANDOM.randn(19, 2).astype("float32")
KILLED_IN = 2

PROGRAM = """
import os
import signal
import sys
import numpy as np
import homes
import kinds
import legacyga
import test_killed_workers as data

home = homes.start(sys.argv[1], "eager")
tf, folder, wrapped, generation, worker = home.tf, sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
callbacks = home.keras.callbacks
BackupAndRestore = getattr(callbacks, "BackupAndRestore", None) or callbacks.experimental.BackupAndRestore
is_to_be_killed = worker == 1 and not os.path.exists(os.path.join(folder, "backup"))
strategy = tf.distribute.MultiWorkerMirroredStrategy()


class Killed(callbacks.Callback):
    begun = None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self.begun = epoch if self.begun is None else self.begun

    def on_batch_end(self, batch, logs=None):
        if is_to_be_killed and self.epoch == data.KILLED_IN and batch == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def trained(*others):
    with strategy.scope():
        model = home.network(data.START)
        optimizer = kinds.classes(home)[generation]["SGD"](0.125, momentum=0.875)
        optimizer = legacyga.wrap(optimizer, 3) if wrapped == "wrapped" else optimizer
        model.compile(loss="mse", optimizer=optimizer)
    batches = tf.data.Dataset.from_tensor_slices((data.X, data.Y)).batch(4)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    killed = Killed()
    ours = [legacyga.GradientAccumulationCallback(partial_window="carry")] if wrapped == "wrapped" else []
    model.fit(batches.with_options(options), epochs=4, verbose=0, callbacks=ours + list(others) + [killed])
    counts = [int(optimizer.iterations.numpy())] + ([int(optimizer.mini_step.numpy())] if ours else [])
    return killed.begun, counts, np.concatenate([value.ravel() for value in model.get_weights()])


begun, counts, values = trained(BackupAndRestore(os.path.join(folder, "backup")))
undisturbed = trained()
np.savez("{}/end-{}.npz".format(folder, worker), begun, counts, values, *undisturbed[1:])
"""


@pytest.mark.parametrize(
    "wrapped, which",
    [
        ("wrapped", "newest"),
        pytest.param("wrapped", "other", marks=pytest.mark.more),
        pytest.param("bare", "newest", marks=pytest.mark.more),
    ],
)
def test_a_killed_worker(home, tmpdir, wrapped, which):
    """The third epoch begins with two mini-steps in the window of which a backup holds the sum of both workers."""
    needs.eager_only(home, since=(2, 4))
    if home.is_keras3:
        skips.keras_lacks("Keras 3 has no MultiWorkerMirroredStrategy")
    # The experimental optimizers of TF 2.10 are in no backup.
    generations = ["v3", "v2"] if home.tf_version >= (2, 11) else ["v2"]
    if which == "other" and len(generations) < 2:
        skips.keras_lacks("one generation alone is in a backup")
    generation = generations[which == "other"]
    tmpdir.join("program.py").write(PROGRAM)
    script, arguments = tmpdir.join("program.py"), [home.name, str(tmpdir), wrapped, generation]
    codes, printed = two_workers.ends_of(script, arguments, tmpdir)
    assert codes[1] == -signal.SIGKILL, printed
    two_workers.run(script, arguments, tmpdir)
    ends = []
    for worker in (0, 1):
        with np.load(str(tmpdir.join("end-{}.npz".format(worker)))) as file:
            begun, counts, values, wanted_counts, wanted = [file["arr_{}".format(i)] for i in range(5)]
        assert begun == KILLED_IN
        assert counts.tolist() == wanted_counts.tolist() == ([6, 2] if wrapped == "wrapped" else [20])
        # The backup has the sum of the workers' sums, and gives each a half of it: rounding is another.
        np.testing.assert_allclose(values, wanted, rtol=0, atol=5e-7)
        ends.append(values)
    np.testing.assert_array_equal(*ends)
