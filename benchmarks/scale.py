"""What accumulating saves where the network is the limit: time per window against workers and K, by a model.

    python benchmarks/scale.py [--measured benchmarks/exchange.json] [--picture docs/scale.png]

With t the seconds of a mini-step, u those of an update, and e those of an exchange, a window of K mini-steps takes

    K t + u + e        accumulated: one exchange
    K (t + u + e)      with an exchange every mini-step

A ring all-reduce of B bytes between W workers sends 2 (W - 1) / W B bytes from each, in 2 (W - 1) turns, so
e = 2 (W - 1) / W B / bandwidth + 2 (W - 1) latency (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009).
Printed are first the seconds that `exchange.py` measured, beside what the model says with t + u + e and t taken from
K = 1 and the smallest larger K of the same number of workers; then the model for networks of 10 and 100 Gbit/s.
"""

import argparse
import json

LATENCY = 20e-6
GBITS = (10, 100)
WORKERS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STEPS = (1, 4, 16, 64)
# A model of 100 million float32, and a mini-step of 0.1 s.
BYTES, SECONDS = 4e8, 0.1


def exchange(workers, size, bandwidth):
    """The seconds of a ring all-reduce of `size` bytes, at `bandwidth` bytes a second."""
    turns = 2 * (workers - 1)
    return turns / float(workers) * size / bandwidth + turns * LATENCY


def checked(measured):
    """(workers, model, K, seconds measured, seconds by the model) for each K beyond those it is fitted to."""
    rows = []
    for workers, results in sorted(measured.items(), key=lambda item: int(item[0])):
        for model in sorted({each["model"] for each in results}):
            seconds = {each["steps"]: each["seconds"] for each in results if each["model"] == model and each["steps"]}
            first, second = sorted(seconds)[:2]
            mini_step = (seconds[second] - seconds[first]) / (second - first)
            rest = seconds[first] - first * mini_step
            rows += [(workers, model, k, seconds[k], k * mini_step + rest) for k in sorted(seconds)[2:]]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured", default="benchmarks/exchange.json")
    parser.add_argument("--picture")
    options = parser.parse_args()
    with open(options.measured) as file:
        measured = json.load(file)
    print("{:>7}  {:<9}  {:>3}  {:>8}  {:>8}".format("workers", "model", "K", "measured", "model"))
    for row in checked(measured):
        print("{:>7}  {:<9}  {:>3}  {:>8.4f}  {:>8.4f}".format(*row))
    print(
        "\nspeed-up of a window over an exchange every mini-step, {:.0f} MB, {} s a mini-step".format(
            BYTES / 1e6, SECONDS
        )
    )
    print("{:>7}  ".format("workers") + "  ".join("K={:<3} {:>3}G".format(k, g) for g in GBITS for k in STEPS))
    curves = {}
    for workers in WORKERS:
        told = []
        for gbits in GBITS:
            for steps in STEPS:
                each = exchange(workers, BYTES, gbits * 1e9 / 8)
                ratio = steps * (SECONDS + each) / (steps * SECONDS + each)
                curves.setdefault((gbits, steps), []).append(ratio)
                told.append("{:>9.2f}".format(ratio))
        print("{:>7}  ".format(workers) + "  ".join(told))
    if options.picture:
        draw(curves, options.picture)


def draw(curves, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(GBITS), figsize=(9, 3.6), sharey=True)
    for axis, gbits in zip(axes, GBITS):
        for steps in STEPS:
            axis.plot(WORKERS, curves[gbits, steps], marker="o", markersize=3, label="K = {}".format(steps))
        axis.set(xscale="log", xlabel="workers", title="{} Gbit/s".format(gbits))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("times faster than an exchange\nevery mini-step")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
