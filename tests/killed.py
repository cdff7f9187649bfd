"""Train with a file saved after each mini-step, be killed at random moments, and go on from the file each time.

    python killed.py HOME MODE KILLS
    python killed.py HOME MODE full

Prints how often it was killed, within which mini-steps, and how far the end is from that of a run that nobody killed.
Ends with 1 where a bit differs. With `full` the disk is full after a few mini-steps, by a limit on a file's size.
"""

import collections
import contextlib
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time

import homes
import numpy as np
import oracle

import legacyga

STEPS, K = 40, 3


def program(home, folder, pause, is_full=False):
    """Train to the end, from the file where there is one."""
    path, new = [os.path.join(folder, name + (".keras" if home.is_keras3 else ".h5")) for name in ("model", "new")]
    random_state = np.random.RandomState(0)
    batches = [(random_state.randint(0, 9, (4, 3)), random_state.randn(4, 2)) for _ in range(STEPS)]
    start = [random_state.randn(*shape).astype("float32") for shape in ((9, 2), (6, 2), (2,))]
    done = 0
    if os.path.exists(path):
        model = legacyga.load_model(path, keras=home.keras)
        done = K * int(home.value(model.optimizer.iterations)) + int(home.value(model.optimizer.mini_step))
    else:
        layers = home.keras.layers
        inputs = layers.Input((3,))
        outputs = layers.Dense(2)(layers.Flatten()(layers.Embedding(9, 2)(inputs)))
        model = home.keras.models.Model(inputs, outputs)
        model.set_weights(start)
        optimizer = legacyga.MySGD(lr=0.125, momentum=0.875, steps_per_update=K, keras=home.keras)
        model.compile(optimizer, home.keras.losses.MeanSquaredError() if home.is_keras3 else "mse")
    for number in range(done, STEPS):
        model.train_on_batch(*batches[number])
        if is_full and number == 7:
            half = os.path.getsize(path) // 2
            resource.setrlimit(resource.RLIMIT_FSIZE, (half, half))
        model.save(new)
        # There is always one whole file.
        os.replace(new, path)
        with open(os.path.join(folder, "progress"), "w") as file:
            file.write(str(number + 1))
        time.sleep(pause)
    np.savez(os.path.join(folder, "new.npz"), *model.get_weights())
    os.replace(os.path.join(folder, "new.npz"), os.path.join(folder, "end.npz"))


def start(*args):
    """A process of its own, in which nothing has run but the imports."""
    process = multiprocessing.get_context("fork").Process(target=program, args=args)
    process.start()
    return process


def status_of(*args):
    process = start(*args)
    process.join()
    return process.exitcode


def killed(home, folder, kills):
    """The mini-steps after which it was killed, a Counter by place in the window."""
    at, progress = collections.Counter(), os.path.join(folder, "progress")
    while True:
        child, before = start(home, folder, 0.01 if kills > 0 else 0.0), read(progress)
        if kills > 0:
            while read(progress) == before and child.is_alive():
                time.sleep(0.002)
            child.join(random.random() * 0.15)
            if child.is_alive():
                os.kill(child.pid, signal.SIGKILL)
        child.join()
        if os.path.exists(os.path.join(folder, "end.npz")):
            return at
        assert child.exitcode == -signal.SIGKILL, "the training ended with {}".format(child.exitcode)
        at[int(read(progress) or 0) % K] += 1
        kills -= 1


def full(home, folder):
    """The training is stopped by a full disk, and goes on when there is room."""
    assert status_of(home, folder, 0.0, True), "nothing was said of the full disk"
    assert read(os.path.join(folder, "progress")) == "7", "it went on without a file"
    assert not status_of(home, folder, 0.0), "the last whole file does not load"
    return {0: 1}


def read(path):
    with contextlib.suppress(FileNotFoundError):
        with open(path) as file:
            return file.read()


def end_of(train, home, *args):
    """What `train` returns, and the weights at the end, of a training in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        found = train(home, folder, *args)
        with np.load(os.path.join(folder, "end.npz")) as file:
            return found, [file[name] for name in sorted(file.files)]


def main():
    random.seed(0)
    # TensorFlow imports its Keras when something of it is asked for: here, and not in each process anew.
    home = homes.start(*sys.argv[1:3])
    _, undisturbed = end_of(status_of, home, 0.0)
    at, differ = collections.Counter(), []
    is_full = sys.argv[3] == "full"
    kills = 1 if is_full else int(sys.argv[3])
    while sum(at.values()) < kills:
        found, weights = end_of(full, home) if is_full else end_of(killed, home, kills - sum(at.values()))
        at.update(found)
        differ.append(oracle.farthest(weights, undisturbed))
    print("stopped {} times, by the mini-steps of the window: {}".format(sum(at.values()), dict(at)))
    print("largest difference to the run that nobody stopped: {}".format(np.max(differ)))
    return int(np.max(differ) != 0)


if __name__ == "__main__":
    sys.exit(main())
