"""Train for long, with everything that a program does on the way, and see whether anything grows.

    python tests/soak.py --home HOME --mode MODE [--minutes 30] [--bare]

Calls at random, traced as programs are: fit with each treatment of partial windows, changes of K, train_on_batch,
evaluate, flush, drop, a state put back, the model saved to a file. Each minute it prints the memory of the process, the
Python objects in it, the graph's operations (graph mode) or the traces of the loss (eager mode), the updates,
and the largest difference of a weight to the NumPy oracle. Ends with 1 where, after the first minute, operations,
traces or more than 500 objects are added, or a weight is further off than 1e-5.

In eager mode Keras's own `fit`, `evaluate` and `save` keep some memory at each call. `--bare` shows how much: the same
calls of Keras's own SGD, without ours.
"""

import argparse
import gc
import os
import random
import resource
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "fixtures")]

import homes  # noqa: E402
import programs  # noqa: E402

import legacyga  # noqa: E402

TOLERANCE = 1e-5


def memory():
    """MiB of the process that are in memory now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2.0**20


def built(program):
    """How many operations the graph has, or how often the loss was traced."""
    if program.home.mode == "graph":
        return len(program.home.sessions.get_session().graph.get_operations())
    return program.losses_made


def one_call(program, kept, path, bare):
    name = random.choice(["fit", "fit", "train_on_batch", "set_steps", "flush", "drop", "evaluate", "go_back", "save"])
    fit = dict(
        epochs=random.randint(1, 3),
        partial_window=None if bare else random.choice([None, "flush", "carry", "drop"]),
        schedule=random.choice([None, 2, 3]),
        evaluates=random.random() < 0.3,
        interrupted=random.random() < 0.2,
    )
    number, steps = random.randint(0, 3), random.choice([2, 3, 4, 7])
    arguments = dict(fit=fit, train_on_batch=dict(number=number), set_steps=dict(steps=steps)).get(name, {})
    if name == "save":
        program.model.save(path)
    elif name == "go_back" and kept and random.random() < 0.5:
        program.set_state(kept[0])
    elif name == "go_back":
        kept[:] = [program.get_state()]
    elif not bare or name not in ("set_steps", "flush", "drop"):
        getattr(program, name)(**arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--home", required=True)
    parser.add_argument("--mode", required=True, choices=("graph", "eager"))
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--bare", action="store_true")
    args = parser.parse_args()
    home = homes.start(args.home, args.mode)

    def make(steps):
        if args.bare:
            return home.bare_sgd(lr=programs.LR, momentum=programs.MOMENTUM)
        return legacyga.MySGD(lr=programs.LR, momentum=programs.MOMENTUM, steps_per_update=steps, keras=home.keras)

    random.seed(0)
    print("{} {} of TensorFlow {} in {} mode".format(home.name, home.version, home.tf.__version__, home.mode))
    rows, calls, format = [], 0, "minute {:3}: {:6.1f} MiB, {} objects, built {}, {} calls, update {}, off by {:.1e}"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model." + ("keras" if home.is_keras3 else "h5"))
        program = programs.Program(home, make, 1 if args.bare else 3, folder, traced=True)
        kept, start = [], time.time()
        while len(rows) <= args.minutes:
            one_call(program, kept, path, args.bare)
            calls += 1
            if time.time() - start >= 60 * len(rows):
                gc.collect()
                updates = int(home.value(program.optimizer.iterations))
                found = memory(), len(gc.get_objects()), built(program), calls, updates, program.difference()
                print(format.format(len(rows), *found), flush=True)
                rows.append(found)
                assert found[-1] <= TOLERANCE
                if not args.bare:
                    program.check(TOLERANCE)
    added = [last - first for first, last in zip(rows[1], rows[-1])]
    told = "after the first minute: memory {:+.1f} MiB in {} calls, {:+d} objects, built {:+d}"
    print(told.format(added[0], added[3], *added[1:3]))
    return int(added[1] > 500 or added[2] != 0)


if __name__ == "__main__":
    sys.exit(main())
