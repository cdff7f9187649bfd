"""Train with a file saved after each mini-step, be killed at random moments, and go on from the file each time.

    python killed.py HOME MODE KILLS
    python killed.py HOME MODE full

Prints how often it was killed, within which mini-steps, and how far the end is from that of a run that nobody killed.
Ends with 1 where a bit differs. With `full` the disk is full after a few mini-steps, by a limit on a file's size.
"""

import collections
import contextlib
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback

import homes
import numpy as np

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
    number = os.fork()
    if not number:
        status = 1
        try:
            program(*args)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return number


def killed(home, folder, kills):
    """The mini-steps after which it was killed, a Counter by place in the window."""
    at = collections.Counter()
    progress, end = os.path.join(folder, "progress"), os.path.join(folder, "end.npz")
    while True:
        child = start(home, folder, 0.01 if kills > 0 else 0.0)
        before, status = read(progress), None
        if kills > 0:
            while read(progress) == before and status is None:
                time.sleep(0.002)
                number, found = os.waitpid(child, os.WNOHANG)
                status = found if number else None
            time.sleep(random.random() * 0.15)
            if status is None:
                os.kill(child, signal.SIGKILL)
        if status is None:
            status = os.waitpid(child, 0)[1]
        if os.path.exists(end):
            return at
        if status != signal.SIGKILL:
            sys.exit("the training ended by itself with the status {}".format(status))
        at[int(read(progress) or 0) % K] += 1
        kills -= 1


def full(home, folder):
    """The training is stopped by a full disk, and goes on when there is room."""
    if not os.waitpid(start(home, folder, 0.0, True), 0)[1]:
        sys.exit("nothing was said of the full disk")
    found = read(os.path.join(folder, "progress"))
    if found != "7":
        sys.exit("it went on without a file: {}".format(found))
    if os.waitpid(start(home, folder, 0.0), 0)[1]:
        sys.exit("the last whole file does not load")
    return {0: 1}


def read(path):
    with contextlib.suppress(FileNotFoundError):
        with open(path) as file:
            return file.read()


def main():
    kills = 1 if sys.argv[3] == "full" else int(sys.argv[3])
    random.seed(0)
    # TensorFlow imports its Keras when something of it is asked for: here, and not in each process anew.
    home = homes.start(*sys.argv[1:3])
    ends, total, at = [], 0, collections.Counter()
    while total < kills or not ends:
        with tempfile.TemporaryDirectory() as folder:
            if ends:
                found = full(home, folder) if sys.argv[3] == "full" else killed(home, folder, kills - total)
                at.update(found)
                total += max(1, sum(found.values()))
            elif os.waitpid(start(home, folder, 0.0), 0)[1]:
                sys.exit("the training failed")
            with np.load(os.path.join(folder, "end.npz")) as file:
                ends.append([file[name] for name in sorted(file.files)])
        print("{} stops so far".format(total), file=sys.stderr, flush=True)
    differ = [max(np.max(np.abs(one - other)) for one, other in zip(end, ends[0])) for end in ends[1:]]
    print("stopped {} times, by the mini-steps of the window: {}".format(sum(at.values()), dict(at)))
    print("largest difference to the run that nobody stopped: {}".format(max(differ)))
    return int(max(differ) > 0 or not sum(at.values()))


if __name__ == "__main__":
    sys.exit(main())
