"""What the window of an embedding consists of, on a small table and on a large one, part by part.

    python benchmarks/window_by_rows.py [--rows 10000 1000000] [--ids 512] [--steps 8] [--rounds 20]

Prints, in ms, the medians of the parts of a window by rows in a TensorFlow 1 graph, which take turns: the K additions
of rows, the search for the rows that were touched, the reading and the emptying of their sums, and the momentum update
by rows that follows.
"""

import argparse
import os
import statistics
import time

import _shared
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
WIDTH = 256


def parts_of(tf, rows, ids, steps, random):
    """{part: the operations that it runs one after another}."""
    shape = [rows, WIDTH]
    total, touched, table = [
        tf.get_variable(name + str(rows), initializer=tf.zeros(size), use_resource=True)
        for name, size in (("total", shape), ("touched", [rows]), ("table", shape))
    ]
    named = random.randint(0, rows, (steps, ids))
    every = tf.constant(np.unique(named))
    sums = tf.constant(random.randn(int(every.shape[0]), WIDTH).astype("float32"))
    added = [
        tf.group(
            tf.scatter_add(total, each, tf.constant(random.randn(ids, WIDTH).astype("float32"))),
            tf.scatter_update(touched, each, tf.ones(ids)),
        )
        for each in named
    ]
    found = tf.where(tf.not_equal(touched.read_value(), 0.0))
    emptied = tf.group(
        tf.scatter_update(total, every, tf.zeros_like(sums)), tf.scatter_update(touched, every, tf.zeros(every.shape))
    )
    update = tf.train.MomentumOptimizer(0.1, 0.9).apply_gradients([(tf.IndexedSlices(sums, every, shape), table)])
    return {
        "{} additions".format(steps): added,
        "the search": [found.op],
        "reading the sums": [tf.gather(total, every).op],
        "emptying them": [emptied],
        "the update": [update],
    }


def measure(session, parts, rounds):
    """{part: its median in ms}."""
    took = {name: [] for name in parts}
    for number in range(rounds + 2):
        for name, operations in parts.items():
            start = time.perf_counter()
            for operation in operations:
                session.run(operation)
            if number > 1:
                took[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in took.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs=2, default=[10**4, 10**6])
    parser.add_argument("--ids", type=int, default=512)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    import tensorflow

    tf = getattr(getattr(tensorflow, "compat", None), "v1", tensorflow)
    found = []
    for rows in options.rows:
        with tf.Graph().as_default(), tf.Session() as session:
            parts = parts_of(tf, rows, options.ids, options.steps, np.random.RandomState(0))
            session.run(tf.global_variables_initializer())
            found.append(measure(session, parts, options.rounds))
    small, large = found
    head = ["part"] + ["{:,} rows".format(rows) for rows in options.rows] + ["more"]
    rows = [
        [name, *["{:.2f}".format(each) for each in (small[name], large[name], large[name] - small[name])]]
        for name in small
    ]
    print("TensorFlow {}".format(tensorflow.__version__))
    print("\n".join(_shared.markdown(head, rows)))


if __name__ == "__main__":
    main()
