"""A window's time on many workers: a model in a few formulas, checked against what `exchange.py` measured.

    python benchmarks/scale.py [--json benchmarks/results/exchange.json] [--picture FILE.png] [--mini-step SECONDS]
        [--update SECONDS] [--megabytes MB] [--latency SECONDS] [--gbits 10 100] [--steps 4 8 32]

Prints three tables: the model's times and bytes beside the measured ones, and what accumulating saves on 2 to 1,024
workers. The last is for the dense model of the measurement, or for the one that the options describe. A second option
such as `--megabytes` alone changes that number and leaves the others. docs/scale.md explains the formulas. Needs no
TensorFlow.
"""

import argparse
import json
import os

from _shared import figure, markdown, save

RESULT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results", "exchange.json")
WORKERS = [2**i for i in range(1, 11)]
# Those of the table, which is long enough.
TOLD = [2, 4, 16, 64, 256, 1024]
# Of the two models the one whose gradients are rows, which each worker needs from each.
GATHERED = "embedding"


def sent(workers, size, gathered=False):
    """Bytes that one worker sends in an exchange.

    Args:
        workers: their number.
        size: bytes of a worker's gradients.
        gathered: whether every worker gets those of all, instead of their sum.
    """
    return (workers - 1.0) * size if gathered else 2.0 * (workers - 1) / workers * size


def exchange(workers, size, bandwidth, latency, gathered=False, crowd=1.0):
    """Seconds of an exchange in a ring, of `bandwidth` bytes a second; for `crowd` see `crowding`."""
    return crowd * sent(workers, size, gathered) / bandwidth + 2.0 * (workers - 1) * latency


def accumulated(steps, mini_step, exchanged, update, adding=0.0):
    """Seconds of a window of so many mini-steps."""
    return steps * (mini_step + adding) + exchanged + update


def bare(steps, mini_step, exchanged, update):
    """Seconds of as many mini-steps without accumulation."""
    return steps * (mini_step + exchanged + update)


def crowding(workers, cores):
    """How much longer computing and copying take where workers share the cores of one machine."""
    return max(1.0, float(workers) / cores)


def fit(one, other):
    """(bandwidth, latency) of the two exchanges of two workers, each as (bytes that a worker sends, seconds)."""
    bandwidth = (one[0] - other[0]) / (one[1] - other[1])
    return bandwidth, (one[1] - one[0] / bandwidth) / 2.0


class Measured(object):
    """A file of `exchange.py`, and the constants of the formulas, all of them taken from one and two workers."""

    def __init__(self, found):
        self.workers, self.cores = found["workers"], found["cores"]
        self.models = sorted(self.workers["2"])
        self.mini_step, self.update = {}, {}
        exchanges = []
        for model in self.models:
            self.mini_step[model] = self.workers["1"][model]["forward_backward"][0]
            alone, of_two = self.bare_mini_step("1", model), self.bare_mini_step("2", model)
            # Where it is less than the measurement's noise.
            self.update[model] = max(0.0, alone - self.mini_step[model])
            exchanges.append((self.size(model), of_two - alone))
        self.bandwidth, self.latency = fit(*exchanges)
        self.adding = {model: self._adding(model) for model in self.models}

    def windows(self, workers, model):
        """{K: row}."""
        return {row["steps"]: row for row in self.workers[str(workers)][model]["windows"]}

    def bare_mini_step(self, workers, model):
        """Seconds, from the longest turns."""
        rows = self.windows(workers, model)
        return rows[max(rows)]["seconds"]["bare"][0] / max(rows)

    def size(self, model, steps=None):
        """Bytes that one of two workers sends in the exchange of a window, or of a mini-step of the bare optimizer.

        With two workers that is the size of what is exchanged, added up or gathered.
        """
        rows = self.windows(2, model)
        if steps is not None:
            return rows[steps]["bytes"]["window"][0] / 2.0
        return rows[max(rows)]["bytes"]["bare"][0] / max(rows) / 2.0

    def _adding(self, model):
        """Seconds that `wrap` adds to a mini-step, by which the two shortest windows of two workers differ."""
        rows = self.windows(2, model)
        first, second = sorted(rows)[:2]
        more = rows[second]["seconds"]["window"][0] - rows[first]["seconds"]["window"][0]
        more -= self.exchange(2, model, second) - self.exchange(2, model, first)
        # At K = 1 nothing is added up.
        adding = second - (first if first > 1 else 0)
        return max(0.0, (more - (second - first) * self.mini_step[model]) / adding)

    def adding_alone(self, model):
        """Seconds that `wrap` adds to a mini-step where nothing waits for other workers: of one, its longest window."""
        rows = self.windows(1, model)
        steps = max(rows)
        window = rows[steps]["seconds"]["window"][0]
        return max(0.0, (window - steps * self.mini_step[model] - self.update[model]) / steps)

    def exchange(self, workers, model, steps=None):
        crowd = crowding(workers, self.cores)
        return exchange(workers, self.size(model, steps), self.bandwidth, self.latency, model == GATHERED, crowd)

    def predicted(self, workers, model, steps=None):
        """Seconds of a window, or of a mini-step of the bare optimizer."""
        crowd, exchanged = crowding(workers, self.cores), self.exchange(workers, model, steps)
        mini_step, update = crowd * self.mini_step[model], crowd * self.update[model]
        # At K = 1 `wrap` adds nothing up.
        adding = crowd * self.adding[model] if (steps or 1) > 1 else 0.0
        return accumulated(steps or 1, mini_step, exchanged, update, adding)

    def fitted(self, workers, model, steps):
        """Whether a number was taken from this row."""
        return workers == 2 and (steps is None or steps in sorted(self.windows(2, model))[:2])

    def rows(self):
        """[(workers, model, K or None for the bare optimizer, seconds predicted, seconds measured)] to compare."""
        found = []
        for workers in (2, 3):
            for model in self.models if str(workers) in self.workers else []:
                rows = self.windows(workers, model)
                found.append(
                    (workers, model, None, self.predicted(workers, model), self.bare_mini_step(workers, model))
                )
                for steps in sorted(rows):
                    measured = rows[steps]["seconds"]["window"][0]
                    found.append((workers, model, steps, self.predicted(workers, model, steps), measured))
        return found


def error(predicted, measured):
    return "{:+.0f} %".format(100.0 * (predicted / measured - 1.0))


def milliseconds(seconds):
    return "{:.1f}".format(1e3 * seconds)


def table_of_times(measured):
    rows = []
    for workers, model, steps, predicted, seconds in measured.rows():
        off = "fitted" if measured.fitted(workers, model, steps) else error(predicted, seconds)
        what = "bare" if steps is None else "K = {}".format(steps)
        rows.append([workers, model, what, milliseconds(predicted), milliseconds(seconds), off])
    return markdown(["workers", "model", "", "predicted, ms", "measured, ms", "error"], rows)


def table_of_bytes(measured):
    rows = []
    for model in measured.models if "3" in measured.workers else []:
        for steps, row in sorted(measured.windows(3, model).items()):
            predicted, found = 3 * sent(3, measured.size(model, steps), model == GATHERED), row["bytes"]["window"][0]
            rows.append([model, steps] + ["{:,.0f}".format(each) for each in (predicted, found)])
            rows[-1].append(error(predicted, found))
    return markdown(["model", "K", "predicted, bytes", "measured, bytes", "error"], rows)


def ratios(options, gbits, workers):
    """(seconds of an exchange, {K: seconds of a window over those of the bare optimizer})."""
    exchanged = exchange(workers, options.megabytes * 1e6, gbits * 1e9 / 8, options.latency)
    terms = (options.mini_step, exchanged, options.update)
    return exchanged, {k: accumulated(k, *terms, adding=options.adding) / bare(k, *terms) for k in options.steps}


def table_of_scale(options):
    rows = []
    for gbits in options.gbits:
        for workers in TOLD:
            exchanged, by_steps = ratios(options, gbits, workers)
            share = exchanged / bare(1, options.mini_step, exchanged, options.update)
            told = [milliseconds(exchanged), "{:.0f} %".format(100 * share)]
            rows.append(["{:g}".format(gbits), workers] + told + ["{:.2f}".format(by_steps[k]) for k in options.steps])
    head = ["Gbit/s", "workers", "an exchange, ms", "of a bare mini-step"]
    return markdown(head + ["K = {}".format(each) for each in options.steps], rows)


def draw(measured, options):
    """Predicted against measured times, and what accumulating leaves at each bandwidth."""
    picture, places = figure(1 + len(options.gbits))
    rows, check = measured.rows(), places[0]
    for model, color in zip(measured.models, ("C0", "C1")):
        for workers, marker in ((2, "o"), (3, "s")):
            points = [row[3:] for row in rows if row[:2] == (workers, model)]
            label = "{}, {} workers".format(model, workers)
            check.plot(
                *([1e3 * each for each in axis] for axis in zip(*points)), color=color, marker=marker, label=label
            )
            check.lines[-1].set_linestyle("")
    ends = [1e3 * end(row[4] for row in rows) for end in (min, max)]
    check.plot(ends, ends, color="grey", linestyle=":")
    check.set_xscale("log")
    check.set_yscale("log")
    check.set_title("The model is right where a mark is on the line", fontsize=10)
    check.set_xlabel("time of a window or K bare mini-steps, predicted, ms")
    check.set_ylabel("the same measured, ms")
    check.legend(fontsize=8)
    for place, gbits in zip(places[1:], options.gbits):
        for steps in options.steps:
            line = [ratios(options, gbits, workers)[1][steps] for workers in WORKERS]
            place.plot(WORKERS, line, marker="o", markersize=3, label="K = {}".format(steps))
        place.set_xscale("log")
        place.minorticks_off()
        place.set_xticks(WORKERS[::3])
        place.set_xticklabels([str(each) for each in WORKERS[::3]])
        place.set_ylim(0, max(1.05, place.get_ylim()[1]))
        place.set_xlabel("workers (logarithmic)")
        place.set_ylabel("time of a window over K bare mini-steps")
        place.set_title("At {:g} Gbit/s: the more workers, the more K saves".format(gbits), fontsize=10)
        place.legend(fontsize=8)
    save(picture, options.picture)


def fill(options, measured):
    """Take what no option says from the dense model that was measured."""
    options.adding = 0.0 if options.mini_step is not None else measured.adding_alone("dense")
    if options.mini_step is None:
        options.mini_step = measured.mini_step["dense"]
    if options.update is None:
        options.update = measured.update["dense"]
    if options.megabytes is None:
        options.megabytes = measured.workers["2"]["dense"]["parameters"] / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", default=RESULT, help="what exchange.py wrote, of 1, 2 and 3 workers")
    parser.add_argument("--picture")
    parser.add_argument("--mini-step", type=float, help="seconds of a forward and backward pass")
    parser.add_argument("--update", type=float, help="seconds of the inner optimizer's update")
    parser.add_argument("--megabytes", type=float, help="of the gradients")
    parser.add_argument("--latency", type=float, default=25e-6, help="seconds from worker to worker (default: 25e-6)")
    parser.add_argument("--gbits", type=float, nargs="+", default=[10, 100])
    parser.add_argument("--steps", type=int, nargs="+", default=[4, 8, 32])
    options = parser.parse_args()
    with open(options.json) as file:
        found = json.load(file)
    measured = Measured(found)
    fill(options, measured)
    told = "Measured on TensorFlow {}, {cores} cores with a load of {load} before, medians of {rounds} rounds"
    print(told.format(found["versions"]["tensorflow"], **found))
    told = "The loopback interface: {:.2f} GB/s, {:.2f} ms a step of the ring".format
    print(told(measured.bandwidth / 1e9, 1e3 * measured.latency))
    for model in measured.models:
        terms = [1e3 * each[model] for each in (measured.mini_step, measured.update, measured.adding)]
        print("{}: a mini-step {:.2f} ms, an update {:.2f} ms, `wrap` adds {:.2f} ms".format(model, *terms))
    print("\n".join(["", "Times:", ""] + table_of_times(measured)))
    print("\n".join(["", "Bytes of three workers, from those of two:", ""] + table_of_bytes(measured)))
    told = "A model of {:.1f} MB, mini-step {:.4g} s, update {:.4g} s, adding {:.4g} s, latency {:.4g} s:".format
    terms = (options.megabytes, options.mini_step, options.update, options.adding, options.latency)
    print("\n".join(["", told(*terms), ""] + table_of_scale(options)))
    if options.picture:
        draw(measured, options)


if __name__ == "__main__":
    main()
