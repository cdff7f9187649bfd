"""Train for long, with everything that a program does on the way, and see whether anything grows.

    python tests/soak.py --home HOME --mode MODE [--minutes 30]

Calls at random, traced as programs are: fit with each treatment of partial windows, changes of K, train_on_batch,
evaluate, flush, drop, a state put back, the model saved to a file. Each minute it prints the most memory that the
process has had, its Python objects, the graph's operations (graph mode) or the traces of the loss (eager mode), the
updates, and the largest difference of a weight to the NumPy oracle. Ends with 1 where, after the first minute,
operations, traces or more than 500 objects are added, or a weight is further off than 1e-5. Memory alone is no failure:
in eager mode Keras's own `fit`, `evaluate` and `save` keep some at each call.
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


def built(program):
    """How many operations the graph has, or how often the loss was traced."""
    if program.home.mode == "graph":
        return len(program.home.sessions.get_session().graph.get_operations())
    return program.losses_made


def one_call(program, kept):
    fit = dict(
        epochs=random.randint(1, 3),
        partial_window=random.choice([None, "flush", "carry", "drop"]),
        schedule=random.choice([None, 2, 3]),
        evaluates=random.random() < 0.3,
        interrupted=random.random() < 0.2,
    )
    calls = dict(fit=fit, set_steps=dict(steps=random.choice([2, 3, 4, 7])), flush={}, drop={}, evaluate={}, save={})
    calls["train_on_batch"] = dict(number=random.randint(0, 3))
    name = random.choice(["fit", "go_back"] + sorted(calls))
    if name in calls:
        getattr(program, name)(**calls[name])
    elif kept and random.random() < 0.5:
        program.set_state(kept[0])
    else:
        kept[:] = [program.get_state()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--home", required=True)
    parser.add_argument("--mode", required=True, choices=("graph", "eager"))
    parser.add_argument("--minutes", type=float, default=30)
    args = parser.parse_args()
    home = homes.start(args.home, args.mode)

    def make(steps):
        return legacyga.MySGD(lr=programs.LR, momentum=programs.MOMENTUM, steps_per_update=steps, keras=home.keras)

    random.seed(0)
    print("{} {} of TensorFlow {} in {} mode".format(home.name, home.version, home.tf.__version__, home.mode))
    rows, calls, kept = [], 0, []
    with tempfile.TemporaryDirectory() as folder:
        program, start = programs.Program(home, make, 3, folder, traced=True), time.time()
        while len(rows) <= args.minutes:
            one_call(program, kept)
            calls += 1
            if time.time() - start >= 60 * len(rows):
                gc.collect()
                rows.append((len(gc.get_objects()), built(program)))
                updates, off = int(home.value(program.optimizer.iterations)), program.difference()
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
                told = "minute {:3}: {:6.1f} MiB, {} objects, built {}, {} calls, update {}, off by {:.1e}"
                print(told.format(len(rows) - 1, peak, *rows[-1], calls, updates, off), flush=True)
                program.check(TOLERANCE)
    objects, operations = [last - first for first, last in zip(rows[1], rows[-1])]
    print("after the first minute: {:+d} objects, built {:+d}".format(objects, operations))
    return int(objects > 500 or operations != 0)


if __name__ == "__main__":
    sys.exit(main())
