"""Train with a file saved after each mini-step, be killed at random moments, and go on from the file each time.

    python killed.py HOME MODE KILLS
    python killed.py HOME MODE full

Prints how often it was killed, within which mini-steps, and how far the end is from that of a run that nobody killed.
Ends with 1 where a bit differs. With `full` the disk is full after a few mini-steps, by a limit on a file's size.
"""

import collections
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time

import numpy as np

STEPS, K = 40, 3


def program(home, mode, folder, pause, is_full=False):
    """Train to the end, from the file where there is one."""
    import tensorflow as tf

    if mode == "graph" and tf.executing_eagerly():
        tf.compat.v1.disable_eager_execution()
    keras = keras_of(home)
    import legacyga

    path = os.path.join(folder, "model.keras" if hasattr(keras, "ops") else "model.h5")
    random_state = np.random.RandomState(0)
    batches = [(random_state.randint(0, 9, (4, 3)), random_state.randn(4, 2)) for _ in range(STEPS)]
    start = [random_state.randn(*shape).astype("float32") for shape in ((9, 2), (6, 2), (2,))]
    done = 0
    if os.path.exists(path):
        model = legacyga.load_model(path, keras=keras)
        done = K * int(value(keras, model.optimizer.iterations)) + int(value(keras, model.optimizer.mini_step))
    else:
        layers = keras.layers
        inputs = layers.Input((3,))
        outputs = layers.Dense(2)(layers.Flatten()(layers.Embedding(9, 2)(inputs)))
        model = keras.models.Model(inputs, outputs)
        model.set_weights(start)
        optimizer = legacyga.MySGD(lr=0.125, momentum=0.875, steps_per_update=K, keras=keras)
        model.compile(optimizer, keras.losses.MeanSquaredError() if hasattr(keras, "ops") else "mse")
    for number in range(done, STEPS):
        model.train_on_batch(*batches[number])
        new = os.path.join(folder, "new" + os.path.splitext(path)[1])
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


def keras_of(home):
    return importlib.import_module("tensorflow").keras if home == "tf.keras" else importlib.import_module(home)


def value(keras, variable):
    return keras.backend.get_value(variable) if hasattr(keras.backend, "get_value") else variable.numpy()


def start(*args):
    """A process of its own, in which nothing has run but the imports."""
    number = os.fork()
    if number:
        return number
    try:
        program(*args)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def killed(home, mode, folder, kills):
    """The mini-steps after which it was killed, a Counter by place in the window."""
    at = collections.Counter()
    progress = os.path.join(folder, "progress")
    while True:
        child = start(home, mode, folder, 0.0 if kills <= 0 else 0.01)
        before = read(progress)
        if kills > 0:
            while read(progress) == before and os.waitpid(child, os.WNOHANG) == (0, 0):
                time.sleep(0.002)
            time.sleep(random.random() * 0.15)
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            status = os.waitpid(child, 0)[1]
        except ChildProcessError:
            status = 0
        if os.path.exists(os.path.join(folder, "end.npz")):
            return at
        if status != signal.SIGKILL:
            sys.exit("the training ended by itself with the status {}".format(status))
        at[int(read(progress) or 0) % K] += 1
        kills -= 1


def full(home, mode, folder):
    """The training is stopped by a full disk, and goes on when there is room."""
    if not os.waitpid(start(home, mode, folder, 0.0, True), 0)[1]:
        sys.exit("nothing was said of the full disk")
    if read(os.path.join(folder, "progress")) != "7":
        sys.exit("it went on without a file: {}".format(read(os.path.join(folder, "progress"))))
    if os.waitpid(start(home, mode, folder, 0.0), 0)[1]:
        sys.exit("the last whole file does not load")
    return {0: 1}


def read(path):
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return file.read()


def main():
    home, mode = sys.argv[1:3]
    kills = 1 if sys.argv[3] == "full" else int(sys.argv[3])
    random.seed(0)
    # TensorFlow imports its Keras when something of it is asked for: here, and not in each process anew.
    _ = keras_of(home).models.Model
    importlib.import_module("legacyga")
    ends, total, at = [], 0, collections.Counter()
    while total < kills or not ends:
        for run in ("undisturbed", "killed") if not ends else ("killed",):
            folder = tempfile.mkdtemp()
            if run == "killed":
                found = full(home, mode, folder) if sys.argv[3] == "full" else killed(home, mode, folder, kills - total)
                at.update(found)
                total += max(1, sum(found.values()))
            elif os.waitpid(start(home, mode, folder, 0.0), 0)[1]:
                sys.exit("the training failed")
            with np.load(os.path.join(folder, "end.npz")) as file:
                ends.append([file[name] for name in sorted(file.files)])
            shutil.rmtree(folder)
            print("{}: {} stops so far".format(run, total), file=sys.stderr, flush=True)
    differ = [max(np.max(np.abs(one - other)) for one, other in zip(end, ends[0])) for end in ends[1:]]
    print("stopped {} times, by the mini-steps of the window: {}".format(sum(at.values()), dict(at)))
    print("largest difference to the run that nobody stopped: {}".format(max(differ)))
    return int(max(differ) > 0 or not sum(at.values()))


if __name__ == "__main__":
    sys.exit(main())
