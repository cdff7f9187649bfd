"""R14: gradients that are not finite, under each policy, against the NumPy oracle; on replicas in a program below."""

import homes
import kinds
import numpy as np
import oracle
import pytest
import skips
from dense import assert_bits
from kinds import MOMENTUM, RATE, K
from needs import eager_only
from slow import slow
from users import variables_of

import legacyga

pytestmark = pytest.mark.capability("R14 trouble")
POLICIES = ("skip_mini_step", "skip_window", "raise")
RANDOM = np.random.RandomState(29)
SHAPES = ((3, 4), (5,))
# The error is divided by the distance moved: let the gradients lean to one side.
START = [RANDOM.randn(*shape).astype("float32") for shape in SHAPES]
# Of each window the mini-steps with a gradient that is not finite. The window before one whose first is bad leaves its
# sums behind.
WINDOWS = ((), (0,), (2,), (0, 1, 2, 3), (0, 3), (3,), (1, 2), ())
VALUES = (np.nan, np.inf, -np.inf)


def pytest_generate_tests(metafunc):
    for argument in {"kind", "sgd"} & set(metafunc.fixturenames):
        from conftest import home_of

        found = [each for each in kinds.of(home_of(metafunc.config)) if argument == "kind" or not each.is_adam]
        metafunc.parametrize(argument, kinds.params(found))


@pytest.fixture(autouse=True)
def fresh(home):
    home.reset(plain_session=True)
    if home.mode == "eager":
        yield
    else:
        # Those of tf.compat.v1.train flush in the default session.
        with home.sessions.get_session().graph.as_default(), home.sessions.get_session().as_default():
            yield


def gradient(shapes=SHAPES, bad=None, at=-1):
    """Gradients, with one element that is the number `bad` in the one `at`."""
    found = [(0.75 + RANDOM.randn(*shape)).astype("float32") for shape in shapes]
    if bad is not None:
        found[at].flat[RANDOM.randint(found[at].size)] = bad
    return found


def window_of(bad, number=K):
    """The gradients of a window, and those that are not finite: a value of its own in each, in either variable."""
    return [gradient(bad=VALUES[(i + len(bad)) % 3] if i in bad else None, at=i % 2) for i in range(number)]


def is_finite(gradients):
    return all(np.isfinite(each).all() for each in gradients)


class Training(homes.Fed):
    """An optimizer that is given gradients, beside the oracle of its policy."""

    def __init__(self, kind, policy, steps=K, traced=False, **kwargs):
        home = kind.home
        start = START if home.mode == "graph" else variables_of(home, kind, START)
        super(Training, self).__init__(home, kind.make(steps, on_nonfinite=policy), start)
        self.kind, self.policy, self.oracle = kind, policy, kind.oracle()
        self.expected = [value.astype("float64") for value in START]
        self.skipped, self.slots_at, self.traced = 0, None, None
        if traced:
            self.traced = home.tf.function(self.apply_eagerly, **kwargs)

    def apply_eagerly(self, *gradients):
        self.optimizer.apply_gradients(zip(gradients, self.variables))

    def step(self, gradients):
        if self.traced is None:
            return super(Training, self).step(gradients)
        self.traced(*[self.home.tf.constant(each) for each in gradients])

    def take_and_check(self, window, end=None, weights=None):
        """Give the optimizer a window, which `end` ends if it is not full; compare."""
        weights = [1.0] * len(window) if weights is None else weights
        good = [(each, weight) for each, weight in zip(window, weights) if is_finite(each) or weight == 0]
        at_start = self.values()
        for i, (each, weight) in enumerate(zip(window, weights)):
            if i + 1 == len(window):
                before, state, counters = self.read()
                assert counters == [self.oracle.iterations, i]
            error = self.caught(lambda each=each, weight=weight: self.weighed(each, weight))
            if i + 1 < len(window):
                assert error is None
                if self.policy == "skip_mini_step":
                    left_out = [weight and not is_finite(each) for each, weight in zip(window, weights)]
                    assert self.count() == self.skipped + sum(left_out[: i + 1])
        assert_bits(before, at_start)
        if end is not None:
            error = self.caught(end)
        if self.policy != "skip_mini_step" and len(good) < len(window):
            good = []
        self.skipped += len(window) - len(good)
        self.assert_ended(window, good, error, before, state)

    def weighed(self, gradients, weight):
        if weight == 1.0:
            return self.step(gradients)
        with self.optimizer.mini_step_weight(weight):
            self.step(gradients)

    def caught(self, function):
        try:
            function()
        except self.home.tf.errors.InvalidArgumentError as error:
            return str(error)

    def count(self):
        return int(self.home.value(self.optimizer.skipped_mini_steps))

    def assert_ended(self, window, good, error, before, state):
        """With the mean of the (gradients, weight) in `good`, or, where there is none, without an update."""
        values, now, (iterations, mini_step) = self.read()
        if good:
            gradients, weights = zip(*good)
            mean = [np.average(np.nan_to_num(each), axis=0, weights=weights) for each in zip(*gradients)]
            moved = self.oracle.update(self.expected, mean)
            for value, wanted, was in zip(values, moved, self.expected):
                assert np.max(np.abs(value - wanted)) <= 4e-6 * max(1.0, np.max(np.abs(wanted - was)))
            self.expected = moved
            self.slots_at = [
                min(
                    (i for i, each in enumerate(now) if each.shape == slot.shape),
                    key=lambda i: np.max(np.abs(now[i] - slot)),
                )
                for slot in self.kind.slots(self.oracle)
            ]
            for i, slot in zip(self.slots_at, self.kind.slots(self.oracle)):
                assert np.max(np.abs(now[i] - slot)) <= 4e-6 * np.max(np.abs(slot))
        else:
            assert_bits(values, before)
            assert_bits([now[i] for i in self.slots_at or ()], [state[i] for i in self.slots_at or ()])
        assert (iterations, mini_step, self.count()) == (self.oracle.iterations, 0, self.skipped)
        if self.policy == "raise" and not good:
            assert "not finite" in error and "closed without an update" in error
            for i, variable in enumerate(self.variables):
                bad = any(not np.isfinite(each[i]).all() for each in window)
                assert (getattr(variable, "path", variable.name) in error) is bad
        else:
            assert error is None


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_bad_mini_steps_at_every_place(kind, policy):
    """First, in the middle, last, several, all."""
    training = Training(kind, policy)
    assert training.count() == 0
    for bad in WINDOWS:
        training.take_and_check(window_of(bad))
    assert training.oracle.iterations == (7 if policy == "skip_mini_step" else 2)


def test_within_a_function(home, sgd):
    eager_only(home)
    training = Training(sgd, "skip_mini_step" if sgd.cls else "raise", traced=True)
    for bad in WINDOWS:
        training.take_and_check(window_of(bad))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.long
def test_k_1(sgd, policy):
    """Here too there is a look before the update; there is nothing to flush."""
    training = Training(sgd, policy, steps=1)
    for bad in ((), (), (0,), (), (0,), (0,), ()):
        training.take_and_check(window_of(bad, 1))
        assert legacyga.flush(training.optimizer) is False
    assert training.oracle.iterations == 4


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_flush(sgd, policy):
    training, flushed = Training(sgd, policy), []
    for number, bad in ((2, ()), (2, (1,)), (3, (0,)), (2, (0, 1)), (1, (0,)), (3, ())):
        training.take_and_check(window_of(bad, number), lambda: flushed.append(legacyga.flush(training.optimizer)))
        assert legacyga.flush(training.optimizer) is False
    wanted = {"skip_mini_step": [1, 1, 1, 0, 0, 1], "skip_window": [1, 0, 0, 0, 0, 1], "raise": [1, 1]}
    assert flushed == [bool(each) for each in wanted[policy]]
    # Of a window that is dropped by its user nothing is left, and nothing counts.
    training.step(window_of((0,), 1)[0])
    training.skipped += policy == "skip_mini_step"
    training.optimizer.drop_windows()
    training.take_and_check(window_of((0, 1, 2, 3)))


@pytest.mark.parametrize("policy", ["skip_mini_step", slow("skip_window"), slow("raise")])
def test_unequal_weights(home, sgd, policy):
    """A mini-step that is left out leaves the divisor; one that weighs nothing is not bad, whatever its gradients."""
    eager_only(home)
    training = Training(sgd, policy)
    for bad in ((), (0,), (1, 3), (0, 1, 2, 3), (2,)):
        training.take_and_check(window_of(bad), weights=[3.0, 0.5, 2.0, 5.0])
    training.take_and_check(window_of((1,)), weights=[3.0, 0.0, 2.0, 5.0])
    assert training.oracle.iterations == (5 if policy == "skip_mini_step" else 2)


@pytest.mark.parametrize("traced", [False, True])
def test_a_variable_whose_only_gradient_is_skipped(home, traced):
    """It has no gradient in the window, and Adam's old moments do not move it."""
    eager_only(home)
    tf = home.tf
    a, b = home.variables([np.ones(2, "float32"), np.ones(2, "float32")])
    make = home.keras.optimizers.Adam
    optimizer = legacyga.wrap(make(0.1), 2, on_nonfinite="skip_mini_step")
    if hasattr(optimizer, "build"):
        optimizer.build([a, b])

    def of_both(factor):
        optimizer.apply_gradients([(tf.fill([2], factor), a), (tf.fill([2], factor), b)])

    def of_one():
        optimizer.apply_gradients([(tf.ones(2), a), (None, b)])

    of_both, of_one = (tf.function(of_both), tf.function(of_one)) if traced else (of_both, of_one)
    of_both(tf.constant(1.0))
    of_both(tf.constant(1.0))
    before = [np.array(home.value(each)) for each in (a, b)]
    of_one()
    of_both(tf.constant(float("nan")))
    assert int(optimizer.iterations) == 2
    assert np.abs(home.value(a) - before[0]).max() > 0.01
    np.testing.assert_array_equal(home.value(b), before[1])


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_of_rows(home, sgd, policy):
    """Of an embedding whose rows are in each mini-step: the update of all rows is that of a dense gradient."""
    start = RANDOM.randn(3, 2).astype("float32")
    optimizer = sgd.make(on_nonfinite=policy)
    fed = homes.Fed(home, optimizer, [start], sparse=True)
    expected, formula, skipped = [start.astype("float64")], sgd.oracle(), 0
    for bad in WINDOWS:
        summed, error = [], None
        for i in range(K):
            ids = np.array([0, 1, 2, 1, 0], "int64")
            (rows,) = gradient([(5, 2)], VALUES[i % 3] if i in bad else None)
            try:
                fed.step([ids, rows])
            except home.tf.errors.InvalidArgumentError as raised:
                error = str(raised)
            if i not in bad:
                summed.append(np.zeros((3, 2)))
                np.add.at(summed[-1], ids, rows.astype("float64"))
        if policy != "skip_mini_step" and bad:
            summed = []
        skipped += K - len(summed)
        assert (error is not None) is (policy == "raise" and bool(bad))
        if summed:
            expected = formula.update(expected, [np.mean(summed, axis=0)])
        (now,), _, counters = fed.read()
        assert np.max(np.abs(now - expected[0])) <= 4e-6 * np.max(np.abs(expected[0] - start))
        assert counters == [formula.iterations, 0]
        assert int(home.value(optimizer.skipped_mini_steps)) == skipped


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.long
def test_sums_that_overflow(home, sgd, dtype):
    """In float16 they do in the cast alone: the accumulators are float32."""
    sgd.cls or skips.senseless("MySGD takes the mean")
    home.set_floatx(dtype if home.mode == "graph" else "float32")
    most, tolerance = float(np.finfo(dtype).max), {"float16": 2e-3}.get(dtype, 4e-6)
    try:
        for policy in POLICIES:
            start = np.zeros(3, dtype)
            optimizer = sgd.make(on_nonfinite=policy, reduction="sum")
            fed = homes.Fed(home, optimizer, [start if home.mode == "graph" else variable_of(home, sgd, start)])
            expected, formula, errors = [np.zeros(3)], oracle.SGD(RATE, momentum=MOMENTUM), 0
            for part in (0.05, 0.3, 0.1):
                for _ in range(K):
                    try:
                        fed.step([np.full(3, part * most, dtype)])
                    except home.tf.errors.InvalidArgumentError:
                        errors += 1
                if part < 0.25:
                    expected = formula.update(expected, [np.full(3, K * part * most)])
                (now,), _, counters = fed.read()
                np.testing.assert_allclose(now.astype("float64") / most, expected[0] / most, atol=tolerance)
                assert now.dtype == dtype and counters == [formula.iterations, 0]
            assert int(home.value(optimizer.skipped_mini_steps)) == K and errors == (policy == "raise")
    finally:
        home.set_floatx("float32")


def variable_of(home, kind, value):
    return home.tf.Variable(value) if kind.generation == "train" else home.variables([home.tf.constant(value)])[0]


@pytest.mark.long
def test_without_trouble_the_bits_of_propagate(home, sgd):
    for steps, batches in ((K, 3 * K), (1, 4)):
        fed = [gradient() for _ in range(batches)]
        optimizers = [sgd.make(steps, on_nonfinite=policy) for policy in ("propagate",) + POLICIES]
        plain, *others = [home.apply_to(START, each, fed) for each in optimizers]
        for history in others:
            for now, wanted in zip(history, plain):
                assert_bits(now, wanted)
        assert np.abs(plain[-1][0] - START[0]).max() > 0.01
        assert [int(home.value(each.skipped_mini_steps)) for each in optimizers] == [0] * 4


def test_propagate_is_what_the_bare_optimizer_does(home, sgd):
    history = home.apply_to(START, sgd.make(), window_of((1,)))
    assert not is_finite(history[-1]) and is_finite(history[-2])


@pytest.mark.long
def test_state_goes_along(home, sgd):
    """The count, and a window whose first mini-steps were left out, put into another optimizer: to the bit."""
    if sgd.generation == "train":
        skips.keras_lacks("optimizers of tf.compat.v1.train have no set_weights")
    if sgd.generation == "v3" and home.tf_version < (2, 11):
        skips.keras_lacks("the experimental optimizers of TF 2.10 have no set_weights")
    window, last = window_of((0, 1)), window_of((3,))
    first, second = [homes.Fed(home, sgd.make(on_nonfinite="skip_mini_step"), START) for _ in range(2)]
    for each in window_of(()) + window[:2]:
        first.step(each)
    if home.mode == "eager":
        for each in window_of(()):
            second.step(each)
    weights = [homes.variables_of(fed.optimizer) for fed in (first, second)]
    assert len(weights[0]) == len(weights[1])
    for source, target in zip(first.variables + weights[0], second.variables + weights[1]):
        value = home.value(source)
        home.backend.set_value(target, value) if home.mode == "graph" else target.assign(value)
    assert int(home.value(second.optimizer.skipped_mini_steps)) == 2
    for each in window[2:] + last:
        first.step(each)
        second.step(each)
    for now, wanted in zip(second.read()[0], first.read()[0]):
        np.testing.assert_array_equal(now, wanted)
    assert is_finite(first.read()[0])
    assert int(home.value(second.optimizer.skipped_mini_steps)) == 3


def test_the_config(kind):
    if kind.generation == "train":
        skips.keras_lacks("optimizers of tf.compat.v1.train have no config")
    for steps in (1, K):
        optimizer = kind.make(steps, on_nonfinite="skip_window")
        config = optimizer.get_config()
        assert config["on_nonfinite"] == "skip_window"
        again = type(optimizer).from_config(config)
        assert again.get_config() == config and again.gradient_accumulation_steps == steps
    assert kind.make().get_config().get("on_nonfinite", "propagate") == "propagate"


def test_an_unknown_policy(kind):
    with pytest.raises(ValueError, match='on_nonfinite must be "propagate" or .*"raise". Received: \'ignore\''):
        kind.make(on_nonfinite="ignore")


def test_under_xla(home, sgd):
    """Assertions are dropped there, and so "raise" is refused; the others hold."""
    eager_only(home, (2, 10))
    if not sgd.cls or sgd.generation == "train":
        skips.senseless("all are traced alike")
    training = Training(sgd, "skip_mini_step", traced=True, jit_compile=True)
    for bad in ((), (0, 3), (0, 1, 2, 3), ()):
        training.take_and_check(window_of(bad))
    with pytest.raises(ValueError, match="XLA compiles.*jit_compile=False, or take on_nonfinite"):
        Training(sgd, "raise", traced=True, jit_compile=True).step(gradient())


def test_fit(home, sgd):
    """A bad sample in the data of fit: the batch that has it is left out."""
    if sgd.generation == "train" or not sgd.cls:
        skips.senseless("fit is tested with the stock optimizers of Keras")
    x, y = RANDOM.randn(16, 3).astype("float32"), RANDOM.randn(16, 2).astype("float32")
    start = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
    x[5, 1] = np.nan
    model, optimizer = home.network(start), sgd.make(2, on_nonfinite="skip_mini_step")
    model.compile(loss="mse", optimizer=optimizer)
    model.fit(x, y, batch_size=4, epochs=1, shuffle=False, verbose=0)
    weights, formula = oracle.double(start), sgd.oracle()
    for window in ([0], [2, 3]):
        found = [oracle.gradients(weights, x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4]) for i in window]
        weights = formula.update(weights, [np.mean(each, axis=0) for each in zip(*found)])
    for now, wanted in zip(model.get_weights(), weights):
        assert np.max(np.abs(now - wanted)) <= 4e-6
    assert int(home.value(optimizer.skipped_mini_steps)) == 1


# --------------------------------------------------------------------------------------------------------- two replicas

ON_REPLICAS = [gradient() for _ in range(2 * 16)]
# (mini-step, replica)
BAD_ON_REPLICAS = ((1, 0), (4, 1), (7, 1), (8, 0), (9, 1), (10, 1), (11, 0))

PROGRAM = """
import sys
import numpy as np
import homes
import kinds
import test_on_nonfinite as cases

home, strategy = homes.start_on_replicas(sys.argv[1])
tf, run = home.tf, getattr(strategy, "run", None) or strategy.experimental_run_v2
fed = [tf.constant(np.stack(each)) for each in zip(*cases.on_replicas())]
for kind in [each for each in kinds.of(home) if each.cls and not each.is_adam and each.generation != "train"]:
    for policy in cases.POLICIES[::2]:
        with strategy.scope():
            variables = home.variables(cases.START)
            optimizer = kind.make(on_nonfinite=policy)
            if home.is_keras3:
                optimizer.build(variables)

        def on_replica(i):
            at = 2 * i + tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, "int32")
            optimizer.apply_gradients(zip([each[at] for each in fed], variables))

        step = tf.function(lambda i: run(on_replica, (i,)))
        raised = []
        for i in range(16):
            try:
                step(tf.constant(i))
            except tf.errors.InvalidArgumentError as error:
                raised.append(i)
        values = [np.array(home.value(each)).ravel() for each in variables]
        counts = [int(home.value(getattr(optimizer, name))) for name in ("iterations", "skipped_mini_steps")]
        name = "{}-{}-{}.npy".format(sys.argv[2], kind.generation, policy)
        np.save(name, np.concatenate(values + [counts, raised]))
"""


def on_replicas():
    found = [[each.copy() for each in gradients] for gradients in ON_REPLICAS]
    for i, (step, replica) in enumerate(BAD_ON_REPLICAS):
        found[2 * step + replica][i % 2].flat[3] = VALUES[i % 3]
    return found


@pytest.mark.long
def test_on_one_of_two_replicas(home, tmpdir):
    """What is not finite on one is left out on both. A window without any mini-step, and a good one."""
    eager_only(home)
    homes.run_program(tmpdir, PROGRAM, home.name, str(tmpdir.join("found")))
    bad = {step for step, _ in BAD_ON_REPLICAS}
    paths = tmpdir.listdir("found-*")
    assert len(paths) >= 2
    for path in paths:
        policy = path.purebasename.split("-")[-1]
        weights, formula, skipped, raised = oracle.double(START), oracle.SGD(RATE, momentum=MOMENTUM), 0, []
        for i in range(0, 16, K):
            good = [step for step in range(i, i + K) if step not in bad]
            if policy != "skip_mini_step" and len(good) < K:
                good, raised = [], raised + [i + K - 1] * (policy == "raise")
            skipped += K - len(good)
            if good:
                # Gradients of replicas are summed.
                both = [[a + b for a, b in zip(*map(oracle.double, ON_REPLICAS[2 * j : 2 * j + 2]))] for j in good]
                weights = formula.update(weights, [np.mean(each, axis=0) for each in zip(*both)])
        found = np.load(str(path))
        number = sum(each.size for each in weights)
        wanted = np.concatenate([each.ravel() for each in weights])
        assert np.max(np.abs(found[:number] - wanted)) <= 4e-6 * np.max(np.abs(wanted)), path
        assert found[number:].tolist() == [formula.iterations, skipped] + raised, path
