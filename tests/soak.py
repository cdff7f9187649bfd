"""Train for long, with everything that a program does on the way, and see whether anything grows.

    python tests/soak.py --home HOME --mode MODE [--minutes 30]

Calls at random, traced as programs are: fit with each treatment of partial windows, changes of K, train_on_batch,
evaluate, flush, drop, a state put back, the model saved to a file. Each minute it prints the memory of the process, the
graph's operations (graph mode) or the traces of the training step (eager mode), the updates, and the largest difference
of a weight to the NumPy oracle. Ends with 1 where, after the first minute, operations or traces are added, memory grows
by more than 2 %, or a weight is further off than 1e-5.
"""

import argparse
import gc
import os
import random
import resource
import shutil
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
    """How many operations the graph has, or how often the training step was traced."""
    if program.home.mode == "graph":
        return len(program.home.backend.get_session().graph.get_operations())
    return program.model.train_function.experimental_get_tracing_count()


def one_call(program, kept, path):
    name = random.choice(["fit", "fit", "train_on_batch", "set_steps", "flush", "drop", "evaluate", "go_back", "save"])
    if name == "fit":
        program.fit(
            epochs=random.randint(1, 3),
            partial_window=random.choice([None, "flush", "carry", "drop"]),
            schedule=random.choice([None, 2, 3]),
            evaluates=random.random() < 0.3,
            interrupted=random.random() < 0.2,
        )
    elif name == "train_on_batch":
        program.train_on_batch(random.randint(0, 3))
    elif name == "set_steps":
        program.set_steps(random.choice([2, 3, 4, 7]))
    elif name == "go_back":
        if kept and random.random() < 0.5:
            program.set_state(kept[0])
        else:
            kept[:] = [program.get_state()]
    elif name == "save":
        program.model.save(path)
    else:
        getattr(program, name)()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--home", required=True)
    parser.add_argument("--mode", required=True, choices=("graph", "eager"))
    parser.add_argument("--minutes", type=float, default=30)
    args = parser.parse_args()
    home = homes.start(args.home, args.mode)
    folder = tempfile.mkdtemp()

    def make(steps):
        return legacyga.MySGD(
            lr=programs.LR, momentum=programs.MOMENTUM, steps_per_update=steps, keras=home.keras
        )

    random.seed(0)
    path = os.path.join(folder, "model." + ("keras" if home.is_keras3 else "h5"))
    print("{} {} of TensorFlow {} in {} mode".format(home.name, home.version, home.tf.__version__, home.mode))
    program, kept, start, rows, calls = programs.Program(home, make, 3, folder, traced=True), [], time.time(), [], 0
    try:
        while len(rows) <= args.minutes:
            one_call(program, kept, path)
            calls += 1
            if time.time() - start >= 60 * len(rows):
                gc.collect()
                updates = int(home.value(program.optimizer.iterations))
                rows.append((len(rows), memory(), built(program), calls, updates, program.difference()))
                print("minute {:3}: {:7.1f} MiB, built {}, {} calls, update {}, off by {:.1e}".format(*rows[-1]))
                sys.stdout.flush()
                program.check(TOLERANCE)
    finally:
        shutil.rmtree(folder)
    first, last = rows[1], rows[-1]
    print("after the first minute: memory {:+.2%}, built {:+d}".format(last[1] / first[1] - 1, last[2] - first[2]))
    return int(last[1] > 1.02 * first[1] or last[2] != first[2])


if __name__ == "__main__":
    sys.exit(main())
