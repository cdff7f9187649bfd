"""What accumulation costs: time of windows and mini-steps, memory, start, rows of embeddings, many small variables.

    python benchmarks/cost.py [--parts time memory rows variables] [--home keras | tf.keras | tf_keras]
        [--mode graph | eager] [--optimizers legacy | new | train] [--jit] [--autograph] [--model dense-25M ...]
        [--optimizer sgd adam] [--steps 8 ...] [--all] [--ways wrap loop ...] [--rounds 20] [--json FILE]
        [--picture FILE.png]
    python benchmarks/cost.py --kept FILE ... [--picture FILE.png]

The ways: `legacyga.wrap`, the same with reduction="sum", which divides by nothing, `legacyga.MySGD`, a loop with
`legacyga.GradientAccumulator`, a plain loop with variables of its own, Keras 3's own argument, the optimizer and the
model of gradient-accumulator, and runai, as far as they are there. The bare optimizer makes an update each mini-step.

- time: for each model, optimizer and K one process, in which all ways train one model, mini-step by mini-step in turn.
  A mini-step is a forward and backward pass and the optimizer, in one compiled function or session call. Two floors are
  measured among them: K passes, K - 1 additions of the gradients in place, and one update; and the same without the
  additions.
- memory: a process for each way. Its variables beyond the bare optimizer's, its peak beyond that of the idle model, and
  how long the first step takes, tracing included. --repeats of them.
- rows: gradients of so many rows of tables of several sizes, over a `scatter_add` of them, and as dense ones.
- variables: many small ones, and what is traced after the first window.

--kept shows what --json kept of several runs, for the K of --steps and the --ways, in tables with a line a stack.

A ratio is that of one round. Tables show medians over the rounds and quartiles, and mark what is over a bar.
"""

import argparse
import collections
import json
import os
import subprocess
import sys

from _cost_summary import summarize
from _cost_tables import draw, report
from _shared import GIVEN_BACK, keep

# This process imports neither TensorFlow nor NumPy: on Linux a process's peak counts from what had started it.
MARK = "cost.py: "
PARTS = ("time", "memory", "rows", "variables")
MODELS = ("dense-1M", "dense-25M", "dense-100M", "convolutional", "embedding")
WAYS = ("wrap", "sum", "MySGD", "GradientAccumulator", "loop", "keras", "ga-optimizer", "ga-model", "runai")
ALL = dict(model=MODELS, optimizer=("sgd", "adam"), steps=(1, 2, 8, 32))


def versions_of(options, keras):
    import numpy
    import tensorflow as tf
    from peers import version_of

    import legacyga

    found = collections.OrderedDict(python="{}.{}".format(*sys.version_info), tensorflow=tf.__version__)
    found.update(numpy=numpy.__version__, legacyga=legacyga.__version__)
    if hasattr(keras, "__version__"):
        found[options.home] = keras.__version__
    for name in ("gradient_accumulator", "runai"):
        version = version_of(name)
        if version:
            found[name] = version
    return found


def work(given):
    """What a process that is started does: it prints a line of JSON."""
    options = argparse.Namespace(**json.loads(given))
    import _cost_parts
    from micro_batch import home_of

    keras = home_of(options)
    measured = _cost_parts.PARTS[options.part](options, keras)
    # legacyga is imported after all that is measured.
    found = dict(measured, mode=options.mode, versions=versions_of(options, keras))
    print("\n" + MARK + json.dumps(found), flush=True)


def process(options, part, **own):
    """What a process of its own found, or an error."""
    given = json.dumps(dict(vars(options), part=part, **own))
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="-1", PYTHONWARNINGS="ignore")
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if part == "memory":
        environment.update(GIVEN_BACK)
    started = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--work", given],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        errors="replace",
    )
    printed, errors = started.communicate()
    lines = [line for line in printed.splitlines() if line.startswith(MARK)]
    if not lines:
        last = ([line for line in errors.splitlines() if line.strip()] or [""])[-1]
        return dict(error="exit {}: {}".format(started.returncode, last[:200]))
    return json.loads(lines[-1][len(MARK) :])


def measure_time(options):
    for model in options.model:
        for optimizer in options.optimizer:
            for steps in options.steps:
                own = dict(model=model, optimizer=optimizer, steps=steps)
                yield dict(process(options, "time", **own), **own)


def measure_memory(options):
    absent = set()
    for model in options.memory_model:
        for steps in options.memory_steps:
            large = options.batch * steps
            runs = [("bare", options.batch)] + [("bare", large)] * (steps > 1)
            runs += [(way, options.batch) for way in options.ways if way not in absent]
            found = collections.OrderedDict((run, []) for run in runs)
            for _ in range(options.repeats):
                for way, batch in runs:
                    last = found[way, batch][-1:]
                    # What is not there is not asked for again.
                    if not last or "peak" in last[0]:
                        own = dict(steps=steps * options.batch // batch, batch=batch, optimizer=options.optimizer[0])
                        found[way, batch].append(process(options, "memory", model=model, way=way, **own))
            absent.update(way for (way, _), each in found.items() if "missing" in each[0])
            yield dict(
                model=model,
                steps=steps,
                optimizer=options.optimizer[0],
                runs=[dict(way=way, batch=batch, processes=each) for (way, batch), each in found.items()],
            )


def measure_rows(options):
    for width in options.widths:
        for number in options.rows:
            own = dict(rows=number, width=width, optimizer=options.optimizer[0], steps=8)
            yield dict(process(options, "rows", **own), **own)


def measure_variables(options):
    for number in options.numbers:
        own = dict(number=number, optimizer=options.optimizer[0], steps=8)
        ways = [way for way in options.ways if way in ("wrap", "MySGD", "keras")]
        yield dict(process(options, "variables", ways=ways, **own), **own)


MEASURES = dict(time=measure_time, memory=measure_memory, rows=measure_rows, variables=measure_variables)


def first_with(found, key):
    """The first value of this key in what the processes found."""
    for each in (one for part in PARTS for one in found.get(part, [])):
        for one in [each] + [process for run in each.get("runs", []) for process in run["processes"]]:
            if key in one:
                return one[key]
    return None


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    names = ("keras", "tf.keras", "tf_keras")
    parser.add_argument("--home", choices=names, default="tf.keras", help="your Keras (default: %(default)s)")
    parser.add_argument("--mode", choices=("graph", "eager"), help="if your Keras has both modes (default: its own)")
    parser.add_argument(
        "--optimizers",
        choices=("legacy", "new", "train"),
        help="if your Keras has both kinds (default: its own); train: those of tf.compat.v1.train",
    )
    parser.add_argument("--jit", action="store_true", help="jit_compile=True, in eager mode")
    parser.add_argument(
        "--autograph", action="store_true", help="as in your own tf.function; Keras's fit has no AutoGraph"
    )
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["dense-25M"])
    parser.add_argument("--optimizer", nargs="+", choices=ALL["optimizer"], default=list(ALL["optimizer"]))
    parser.add_argument("--steps", type=int, nargs="+", default=[8])
    parser.add_argument("--all", action="store_true", help="all models, optimizers and K of the part time")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3, help="processes of a way in the part memory")
    parser.add_argument("--memory-model", nargs="+", choices=MODELS, default=["dense-25M", "convolutional"])
    parser.add_argument("--memory-steps", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rows", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--ids", type=int, default=512)
    parser.add_argument("--numbers", type=int, nargs="+", default=[10, 100, 500, 2000])
    parser.add_argument("--json")
    parser.add_argument("--picture")
    parser.add_argument("--kept", nargs="+", metavar="FILE", help="measure nothing: show what --json has written")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.all:
        options.model, options.optimizer, options.steps = [list(ALL[name]) for name in ("model", "optimizer", "steps")]
    return options


def main():
    options = arguments()
    if options.work:
        work(options.work)
        return
    if options.kept:
        summarize(options.kept, options.steps, options.ways, options.picture)
        return
    names = ("home", "optimizers", "jit", "autograph", "batch", "rounds", "repeats", "ids")
    found = collections.OrderedDict((name, getattr(options, name)) for name in names)
    found.update(cores=os.cpu_count(), load=round(os.getloadavg()[0], 1))
    for part in options.parts:
        found[part] = list(MEASURES[part](options))
    found.update(mode=first_with(found, "mode"), versions=first_with(found, "versions"))
    keep(found, options.json)
    print("\n".join(report(found)))
    if options.picture:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
