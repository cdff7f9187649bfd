"""Two processes of Horovod, by gloo: as one process with the large batch, and one exchange a window.

The processes are started as a user starts them, by Horovod's own launcher. What they exchanged is read from the
timeline that Horovod's core writes: an event for each tensor of each exchange, whichever graph made it.
"""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import oracle
import pytest
import skips

HERE = os.path.dirname(os.path.abspath(__file__))
pytestmark = pytest.mark.capability("R12 replicas")
K, WINDOWS, BATCH = 4, 6, 4
RANDOM = np.random.RandomState(43)
START = [RANDOM.randn(*shape).astype("float32") / 2 for shape in ((3, 4), (4,), (4, 2), (2,))]
# By process.
X = RANDOM.randn(2, WINDOWS * K * BATCH, 3).astype("float32")
Y = RANDOM.randn(2, WINDOWS * K * BATCH, 2).astype("float32")
LR, MOMENTUM, CLIP = 0.1, 0.9, 0.05
# Rows of an embedding, by process and mini-step: some that both have, as often as not.
IDS = [[[0, 1, 1], [1, 2, 2], [3, 3, 4], [0, 0, 0]], [[1, 1, 5], [0, 5, 5], [3, 2, 2], [3, 3, 1]]]
# The time that two processes may take.
SECONDS = 400

COMMON = """
import sys
import numpy as np
import homes
import legacyga
import test_horovod as data

home, folder = homes.start(sys.argv[1], sys.argv[2]), sys.argv[3]
if home.name == "keras":
    import horovod.keras as hvd
else:
    import horovod.tensorflow.keras as hvd
hvd.init()
assert hvd.size() == 2 and hvd.gloo_enabled()
rank, saved = hvd.rank(), {}


def begin(number):
    # No case has such a row of operations: the timeline shows by it where one begins.
    global case
    case = number
    hvd.broadcast([0.0], 0, name="before{}".format(case))
    hvd.allgather([0.0], name="case{}".format(case))
    hvd.broadcast([0.0], 0, name="after{}".format(case))


def sgd(**kwargs):
    return home.bare_sgd(lr=data.LR, momentum=data.MOMENTUM, **kwargs)


def mysgd():
    return legacyga.MySGD(lr=data.LR, momentum=data.MOMENTUM, steps_per_update=data.K, keras=home.keras)


def broadcast_before(model):
    from horovod.tensorflow import broadcast_variables

    broadcast_variables(model.variables, root_rank=0)


def fit(optimizer, batches=data.WINDOWS * data.K, callbacks=(), start=data.START, before=None):
    model = home.network(start)
    model.compile(loss="mse", optimizer=optimizer)
    if before:
        before(model)
    x, y = data.X[rank][: batches * data.BATCH], data.Y[rank][: batches * data.BATCH]
    model.fit(x, y, batch_size=data.BATCH, epochs=1, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model


def save(weights, **more):
    more.update(("weight{}".format(i), value) for i, value in enumerate(weights))
    np.savez(folder + "/{}-{}.npz".format(case, rank), **more)
"""

# What an optimizer is made by. Of one form, so that a program can make any of them.
OPTIMIZERS = {
    "wrap outside": "legacyga.wrap(hvd.DistributedOptimizer(sgd()), data.K)",
    "wrap outside, clipnorm": "legacyga.wrap(hvd.DistributedOptimizer(sgd(clipnorm=data.CLIP)), data.K)",
    "wrap inside": "hvd.DistributedOptimizer(legacyga.wrap(sgd(), data.K))",
    "MySGD inside": "hvd.DistributedOptimizer(mysgd())",
}


def run(folder, arguments, **environ):
    """What two processes of the program in a folder print."""
    paths = [HERE] + sys.path + [each for each in [os.environ.get("PYTHONPATH")] if each]
    process = subprocess.Popen(
        [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo", "--network-interfaces", "lo"]
        + [sys.executable, str(folder.join("program.py"))]
        + arguments,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths), **environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        # A group of its own, so that the launcher's processes end with it.
        start_new_session=True,
    )
    try:
        printed = process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError("not done after {} s:\n{}".format(SECONDS, process.communicate()[0]))
    assert process.returncode == 0, printed
    return printed


def launch(home, folder, cases):
    """Run programs in two processes, one after the other.

    Args:
        cases: {name: program}. A program calls `save`.

    Returns:
        {name: (what both processes saved, how often a tensor was exchanged)}: a dict of arrays, and one of the kinds
        of exchanges.
    """
    names = sorted(cases)
    programs = ["begin({})\n{}\n".format(i, cases[name]) for i, name in enumerate(names)]
    folder.join("program.py").write(COMMON + "".join(programs))
    timeline = folder.join("timeline.json")
    printed = run(folder, [home.name, home.mode, str(folder)], HOROVOD_TIMELINE=str(timeline))
    # An event begins with the operation's name, for each tensor. Its parts have other names.
    events = re.findall(r'"ph": "B", "name": "(ALLREDUCE|ALLGATHER|BROADCAST)"', timeline.read())
    parts = " ".join(events).split("BROADCAST ALLGATHER BROADCAST")[1:]
    assert len(parts) == len(names), printed
    found = {}
    for i, name in enumerate(names):
        one, other = [dict(np.load(str(folder.join("{}-{}.npz".format(i, rank))))) for rank in (0, 1)]
        for key in one:
            np.testing.assert_array_equal(one[key], other[key], "{}: {}".format(name, key))
        counted = parts[i].split()
        found[name] = one, {each: counted.count(each) for each in set(counted)}
    return found


def weights_of(found):
    return [found["weight{}".format(i)] for i in range(len(START))]


def expected(sizes=(K,) * WINDOWS, clip=None, data=(X, Y)):
    """The weights of one process that has the large batches: of each window all samples of both."""
    sgd, weights, at = oracle.SGD(LR, MOMENTUM, **(clip or {})), oracle.double(START), 0
    for size in sizes:
        x, y = [np.concatenate(each[:, at : at + size * BATCH]).astype("float64") for each in data]
        weights = sgd.update(weights, oracle.gradients(weights, x, y))
        at += size * BATCH
    return weights


def check(found, wanted, tolerance=5e-7):
    assert oracle.farthest(found, wanted) <= tolerance


OTHERS = {
    "K = 1": "save(fit(legacyga.wrap(hvd.DistributedOptimizer(sgd()), 1)).get_weights())",
    "bare": "save(fit(hvd.DistributedOptimizer(sgd())).get_weights())",
    "flush": """
callback = legacyga.GradientAccumulationCallback()
save(fit(legacyga.wrap(hvd.DistributedOptimizer(sgd()), data.K), 22, [callback]).get_weights())
""",
    "broadcast before": """
before = {"eager": broadcast_before, "graph": lambda model: hvd.broadcast_global_variables(0)}[home.mode]
optimizer = legacyga.wrap(hvd.DistributedOptimizer(sgd()), data.K)
save(fit(optimizer, start=[(1 + rank) * each for each in data.START], before=before).get_weights())
""",
    "broadcast by the callback": """
callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
save(fit(legacyga.wrap(hvd.DistributedOptimizer(sgd()), data.K), callbacks=[callback]).get_weights())
""",
    "config": """
outside = legacyga.wrap(hvd.DistributedOptimizer(sgd()), data.K)
inside = hvd.DistributedOptimizer(legacyga.wrap(sgd(), data.K))
made = [hvd.DistributedOptimizer(mysgd())] + [type(each).from_config(each.get_config()) for each in (outside, inside)]
model, path = fit(outside, 1), folder + "/{}.h5".format(rank)
model.save(path)
made.append(legacyga.load_model(path, keras=home.keras).optimizer)
save([], steps=[each.gradient_accumulation_steps for each in made],
     exchange=[hasattr(each, "_allreduce") for each in made])
""",
    "tape": """
if home.mode == "eager":
    tf, values = home.tf, []
    for steps in (1, 2):
        variable = tf.Variable([1.0, 1.0])
        optimizer = legacyga.wrap(hvd.DistributedOptimizer(home.bare_sgd(lr=data.LR)), steps)
        for step in range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * (1.0 + rank) * (1.0 + step))
            optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        values.append(variable.numpy())
    save(values)
else:
    save([])
""",
    "refused": """
def message(make):
    try:
        make()
    except ValueError as error:
        # Without addresses, which each process has its own of.
        return str(error).split("Received")[0]


distributed = hvd.DistributedOptimizer(sgd())
save([], messages=[
    message(lambda: legacyga.wrap(distributed, 4, on_nonfinite="skip_window")),
    "" if home.name == "keras" else message(
        lambda: legacyga.wrap(hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2), 4)
    ),
    message(lambda: legacyga.wrap(hvd.DistributedOptimizer(legacyga.wrap(sgd(), 2)), 2)),
    "" if home.mode == "graph" else message(
        lambda: hvd.DistributedOptimizer(legacyga.wrap(sgd(), 2), backward_passes_per_step=2).apply_gradients(
            [(home.tf.ones(2), home.tf.Variable([1.0, 1.0]))]
        )
    ),
])
""",
    "rows": """
if home.mode == "eager":
    tf = home.tf
    table = tf.Variable(tf.ones([6, 1]))
    optimizer = legacyga.wrap(hvd.DistributedOptimizer(home.bare_sgd(lr=data.LR, clipnorm=data.CLIP)), 2)

    @tf.function
    def mini_step(ids):
        optimizer.minimize(lambda: tf.reduce_sum(tf.gather(table, ids)), [table])

    for ids in data.IDS[rank]:
        mini_step(tf.constant(ids))
    save([], table=table.numpy())
else:
    save([])
""",
}


@pytest.fixture(scope="module")
def fits(home, tmpdir_factory):
    """What `launch` returns of a fit with each of the optimizers."""
    programs = {name: "save(fit({}).get_weights())".format(made) for name, made in OPTIMIZERS.items()}
    return launch(home, tmpdir_factory.mktemp("fits"), programs)


@pytest.fixture(scope="module")
def others(home, tmpdir_factory):
    """What `launch` returns of all else."""
    return launch(home, tmpdir_factory.mktemp("others"), OTHERS)


@pytest.mark.parametrize("case", sorted(OPTIMIZERS))
def test_fit(home, fits, case):
    found, counted = fits[case]
    clip = dict(clip=home.clipnorm_means, limit=CLIP) if "clipnorm" in case else None
    check(weights_of(found), expected(clip=clip))
    exchanges = WINDOWS if "outside" in case else WINDOWS * K
    if case == "wrap inside" and home.mode == "graph":
        # The window's mean goes through Horovod's get_gradients once more.
        exchanges += WINDOWS
    assert counted == {"ALLREDUCE": exchanges * len(START)}


def test_k_of_1_is_horovods_own(others):
    (wrapped, counted), (bare, counted_bare) = others["K = 1"], others["bare"]
    for one, other in zip(weights_of(wrapped), weights_of(bare)):
        np.testing.assert_array_equal(one, other)
    assert counted == counted_bare == {"ALLREDUCE": WINDOWS * K * len(START)}


def test_a_partial_window_is_exchanged_when_it_is_flushed(others):
    """22 batches: five windows, and two batches that the callback ends an epoch with."""
    found, counted = others["flush"]
    check(weights_of(found), expected((K,) * 5 + (2,)))
    assert counted == {"ALLREDUCE": 6 * len(START)}


def test_broadcast_before_training(others):
    """The processes begin with other weights, and the second with those of the first."""
    found, counted = others["broadcast before"]
    check(weights_of(found), expected())
    assert counted["BROADCAST"] >= len(START) and counted["ALLREDUCE"] == WINDOWS * len(START)


def test_the_broadcast_of_horovods_callback(others):
    """It comes after the first mini-step and takes the optimizer's variables along: all have the sums of the first."""
    found, counted = others["broadcast by the callback"]
    x, y = X.copy(), Y.copy()
    x[1, :BATCH], y[1, :BATCH] = x[0, :BATCH], y[0, :BATCH]
    check(weights_of(found), expected(data=(x, y)))
    assert counted["ALLREDUCE"] == WINDOWS * len(START)


def test_which_copies_exchange(others):
    """Those of Horovod's and of the optimizer's own class do. A model that is loaded has the optimizer without it."""
    found, counted = others["config"]
    assert found["steps"].tolist() == [K] * 4 and found["exchange"].tolist() == [True, True, True, False]
    assert not counted


def test_a_loop_with_a_plain_tape(home, others):
    """The update exchanges, at K = 1 too, where a bare optimizer of Horovod's would leave the processes to part."""
    if home.mode == "graph":
        skips.senseless("there is no tape in graph mode")
    found, counted = others["tape"]
    # 1 to 4 of one process, and twice that of the other.
    wanted = [1.0 - LR * 1.5 * (1 + 2 + 3 + 4) / steps for steps in (1, 2)]
    check([found["weight0"], found["weight1"]], [np.full(2, each) for each in wanted])
    assert counted == {"ALLREDUCE": 4 + 2}


def test_what_cannot_hold_is_refused(home, others):
    found, counted = others["refused"]
    messages = dict(zip(["policy", "twice", "again", "inside"], found["messages"].tolist()))
    assert "each process decides on its own gradients" in messages["policy"] and "'skip_window'" in messages["policy"]
    assert "accumulates already" in messages["again"] and not counted
    for name in ("twice", "inside"):
        assert not messages[name] or "backward_passes_per_step" in messages[name]
    assert messages["inside"] or home.mode == "graph"


def test_rows_of_an_embedding(home, others):
    """Rows are gathered, once a window, and a row that both processes have is clipped as one."""
    if home.mode == "graph":
        skips.elsewhere("a loop of the test's own, in eager mode")
    found, counted = others["rows"]
    table = np.ones((6, 1))
    for window in ((0, 1), (2, 3)):
        gradient = np.zeros((6, 1))
        for process in (0, 1):
            for step in window:
                for row in IDS[process][step]:
                    gradient[row] += 1.0 / 2.0 / 2.0
        table -= LR * gradient * CLIP / max(np.sqrt(np.sum(gradient**2)), CLIP)
    check([found["table"]], [table])
    # Of indices and of values.
    assert counted == {"ALLGATHER": 2 * 2}


def test_the_program_of_the_docs(home, tmpdir):
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.senseless("it is one of TensorFlow 2 in eager mode")
    with open(os.path.join(os.path.dirname(HERE), "docs", "distributed.md"), encoding="utf-8") as file:
        part = file.read().split("## Horovod")[1]
    tmpdir.join("program.py").write(re.search(r"```python\n(.*?)```", part, re.DOTALL).group(1))
    lines = re.findall(r"process (\d): (\d+) updates, the weights' sum is (\S+)", run(tmpdir, []))
    # 256 samples in batches of 16, twice over, are 8 windows of 4.
    assert sorted(line[:2] for line in lines) == [("0", "8"), ("1", "8")] and lines[0][2] == lines[1][2]
