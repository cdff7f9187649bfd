"""wrap on the optimizers of tf.compat.v1.train, in sessions of their own in graph mode, and in eager mode."""

import os
import threading

import homes
import numpy as np
import oracle
import pages
import pytest
import skips
import tf1
from homes import generation_of, v1_of
from slow import slow
from tf1 import (
    GRADIENTS,
    KERNEL,
    START,
    X,
    Y,
    apply_to,
    assert_same,
    graph_of_its_own,
    graph_only,
    make,
    means,
)

import legacyga
from legacyga.backend import homes as legacyga_homes

pytestmark = pytest.mark.capability("wrap: TF 1 optimizers")
RANDOM = np.random.RandomState(5)


OPTIMIZERS = [
    ("GradientDescentOptimizer", {}),
    ("MomentumOptimizer", dict(momentum=0.9)),
    ("MomentumOptimizer", dict(momentum=0.9, use_nesterov=True)),
    ("AdamOptimizer", {}),
    ("RMSPropOptimizer", {}),
    ("RMSPropOptimizer", dict(momentum=0.5, centered=True)),
    ("AdagradOptimizer", {}),
    ("AdadeltaOptimizer", {}),
    ("FtrlOptimizer", {}),
    ("ProximalGradientDescentOptimizer", dict(l1_regularization_strength=0.01)),
    ("ProximalAdagradOptimizer", dict(l2_regularization_strength=0.01)),
]


@pytest.fixture(autouse=True)
def in_the_run_of_tf_keras(home):
    tf1.in_the_run_of_tf_keras(home)


def test_in_the_default_graph(home):
    """As TF 1 programs are written, without a graph that they enter."""
    graph_only(home)
    home.reset()
    v1 = v1_of(home.tf)
    value = v1.get_variable("value", initializer=np.float32([1.0, 2.0]), use_resource=True)
    train = legacyga.wrap(make(home, "AdamOptimizer"), 2).minimize(v1.reduce_sum(value * value))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        seen = [session.run([train, value])[1] for _ in range(2)] + [session.run(value)]
    np.testing.assert_array_equal(seen[0], [1.0, 2.0])
    # Adam's first step is its rate.
    np.testing.assert_allclose(seen[2], [0.97, 1.97], rtol=1e-5)


def test_a_gradient_that_an_operation_made_before_takes_to_be_absent(home):
    """It would end the window without it: an error, where the second is made."""
    graph_only(home)
    home.reset()
    v1 = v1_of(home.tf)
    first, second = [
        v1.get_variable(name, initializer=np.float32([1.0, 2.0]), use_resource=True) for name in ("first", "second")
    ]
    optimizer = legacyga.wrap(make(home, "GradientDescentOptimizer"), 2)
    optimizer.minimize(v1.reduce_sum(first), var_list=[first, second])
    with pytest.raises(ValueError, match="second.*has a gradient now and had none when another"):
        optimizer.minimize(v1.reduce_sum(first + second), var_list=[first, second])


@pytest.mark.parametrize(
    "name, kwargs", OPTIMIZERS[:2] + [slow(*each) for each in OPTIMIZERS[2:]], ids=lambda value: str(value)
)
@pytest.mark.parametrize("steps", [slow(1), 4])
def test_equals_the_bare_optimizer_on_means(home, name, kwargs, steps):
    bare, updates = apply_to(home, lambda: make(home, name, **kwargs), means(steps))
    history, counted = apply_to(home, lambda: legacyga.wrap(make(home, name, **kwargs), steps), GRADIENTS)
    assert_same(history, bare, steps)
    assert counted == updates == len(GRADIENTS) // steps


def test_resource_variables_and_sum(home):
    bare, _ = apply_to(home, lambda: make(home, "AdamOptimizer"), means(4, np.sum), resource=True)
    history, _ = apply_to(
        home, lambda: legacyga.wrap(make(home, "AdamOptimizer"), 4, reduction="sum"), GRADIENTS, resource=True
    )
    assert_same(history, bare, 4)


def squared_error(tf, kernel):
    x, y = v1_of(tf).placeholder("float32", (None, 5)), v1_of(tf).placeholder("float32", (None, 2))
    return tf.reduce_mean(tf.square(tf.matmul(x, kernel) - y)), x, y


def linear_gradient(weights, x, y):
    return [2.0 * x.T.dot(x.dot(weights[0]) - y) / y.size]


def test_minimize_in_a_monitored_session_stops_at_updates(home):
    """StopAtStepHook counts the global step: 3 updates of 4 mini-steps, at a rate that falls with each update."""
    graph_only(home)
    batches = [(X[i : i + 2], Y[i : i + 2]) for i in range(0, 24, 2)] * 2
    with home.tf.Graph().as_default():
        v1 = v1_of(home.tf)
        kernel = v1.get_variable("kernel", initializer=KERNEL)
        loss, x, y = squared_error(home.tf, kernel)
        step = v1.train.get_or_create_global_step()
        rate = v1.train.exponential_decay(0.5, step, decay_steps=1, decay_rate=0.5)
        optimizer = legacyga.wrap(v1.train.MomentumOptimizer(rate, 0.9), 4)
        train = optimizer.minimize(loss, global_step=step)
        values, taken = [KERNEL], 0
        with v1.train.MonitoredTrainingSession(hooks=[v1.train.StopAtStepHook(last_step=3)]) as session:
            while not session.should_stop():
                session.run(train, {x: batches[taken][0], y: batches[taken][1]})
                taken += 1
                if not session.should_stop():
                    values.append(session.run(kernel, {x: batches[0][0], y: batches[0][1]}))
    wanted, velocity = KERNEL.astype("float64"), 0.0
    assert taken == 12
    for update in range(2):
        window = batches[4 * update : 4 * update + 4]
        gradient = np.mean([linear_gradient([wanted], *batch)[0] for batch in window], axis=0)
        # tf.train.MomentumOptimizer: the rate is outside of the accumulated gradient.
        velocity = 0.9 * velocity + gradient
        for between in values[4 * update + 1 : 4 * update + 4]:
            np.testing.assert_array_equal(between, values[4 * update])
        wanted = wanted - 0.5 * 0.5**update * velocity
        np.testing.assert_allclose(values[4 * update + 4], wanted, rtol=0, atol=4e-6)


def test_compute_and_apply_with_clipping_by_hand(home):
    """What lies between compute_gradients and apply_gradients is the user's, on each mini-step."""
    graph_only(home)
    with graph_of_its_own(home) as (v1, session):
        kernel = v1.get_variable("kernel", initializer=KERNEL)
        loss, x, y = squared_error(home.tf, kernel)
        optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(0.5), 3)
        pairs = [(home.tf.clip_by_value(g, -0.25, 0.25), v) for g, v in optimizer.compute_gradients(loss)]
        train = optimizer.apply_gradients(pairs)
        session.run(v1.global_variables_initializer())
        for i in range(0, 24, 4):
            session.run(train, {x: X[i : i + 4], y: Y[i : i + 4]})
        counters = session.run([optimizer.iterations, optimizer.mini_step])
        value = session.run(kernel)
    weights = oracle.train(
        [KERNEL.astype("float64")],
        [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 24, 4)],
        3,
        oracle.SGD(0.5),
        lambda *args: [np.clip(linear_gradient(*args)[0], -0.25, 0.25)],
    )[-1][0]
    np.testing.assert_allclose(value, weights, rtol=0, atol=4e-6)
    assert counters == [2, 0]


@pytest.mark.parametrize("name, kwargs", [slow("AdagradOptimizer", {}), ("MomentumOptimizer", dict(momentum=0.9))])
def test_rows_of_an_embedding(home, name, kwargs):
    """Sparse gradients, rows named twice: those that no mini-step of the window touched are left as they are."""
    graph_only(home)
    table = RANDOM.randn(10, 3).astype("float32")
    ids = RANDOM.randint(0, 7, (12, 4)).astype("int64")
    results = []
    for steps, batch in ((1, 3), (3, 1)):
        with graph_of_its_own(home) as (v1, session):
            embedding = v1.get_variable("embedding", initializer=table)
            fed = v1.placeholder("int64", (None, 4))
            loss = home.tf.reduce_mean(home.tf.square(home.tf.nn.embedding_lookup(embedding, fed) - 1.0))
            optimizer = make(home, name, **kwargs)
            train = (legacyga.wrap(optimizer, steps) if steps > 1 else optimizer).minimize(loss)
            session.run(v1.global_variables_initializer())
            for i in range(0, 12, batch):
                session.run(train, {fed: ids[i : i + batch]})
            results.append(session.run(embedding))
    bare, accumulated = results
    untouched = sorted(set(range(10)) - set(ids.ravel()))
    np.testing.assert_array_equal(accumulated[untouched], table[untouched])
    assert np.max(np.abs(accumulated - bare)) <= 2e-6 * np.max(np.abs(bare - table))


def test_the_optimizer_given_is_not_changed_and_its_state_is_kept(home):
    """Two updates, a wrap, and two more are four; the slots of the original stay where they were."""
    if home.mode == "graph":
        skips.senseless("refused in a graph, as test_a_trained_optimizer_is_not_wrapped_in_a_graph asserts")
    whole, _ = apply_to(home, lambda: make(home, "AdamOptimizer"), means(5))
    variables, inner = [home.tf.Variable(value) for value in START], make(home, "AdamOptimizer")

    def apply(optimizer, gradients):
        for each in gradients:
            optimizer.apply_gradients([(home.tf.constant(g), v) for g, v in zip(each, variables)])

    apply(inner, means(5)[:2])
    before = [value.numpy() for value in inner.variables()]
    apply(legacyga.wrap(inner, 5), GRADIENTS[10:])
    for now, then in zip(inner.variables(), before):
        np.testing.assert_array_equal(now.numpy(), then)
    for now, wanted, start in zip(variables, whole[-1], START):
        assert np.max(np.abs(now.numpy() - wanted)) <= 2e-6 * np.max(np.abs(wanted - start))


def test_a_trained_optimizer_is_not_wrapped_in_a_graph(home):
    graph_only(home)
    with graph_of_its_own(home) as (v1, _):
        inner = make(home, "AdamOptimizer")
        inner.apply_gradients([(v1.constant(START[0]), v1.get_variable("v", initializer=START[0]))])
        with pytest.raises(ValueError, match="cannot be copied.*Wrap it before it is given gradients"):
            legacyga.wrap(inner, 5)


def test_in_a_strategy_of_one_device(home):
    graph_only(home)
    strategies = getattr(home.tf, "distribute", None)
    if home.tf_version >= (2, 0) or not hasattr(strategies, "Strategy"):
        skips.senseless("TF 1.13 to 1.15, as an Estimator's RunConfig takes it")
    kind = getattr(strategies, "OneDeviceStrategy", None) or home.tf.contrib.distribute.OneDeviceStrategy
    strategy = kind("/cpu:0")
    with graph_of_its_own(home) as (v1, session), strategy.scope():
        weight, fed = v1.get_variable("w", initializer=np.float32(0)), v1.placeholder("float32", ())
        optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(1.0), 2)
        train = strategy.extended.call_for_each_replica(lambda: optimizer.minimize(fed * weight))
        session.run(v1.global_variables_initializer())
        values = []
        for each in (1.0, 3.0, 2.0, 4.0):
            session.run(train, {fed: each})
            values.append(float(session.run(weight)))
    assert values == [0, -2, -2, -5]


def test_one_optimizer_in_two_graphs_and_its_listed_operation(home):
    """As an Estimator does. The collection `train_op` lists the mini-step, not what stands in a branch."""
    graph_only(home)
    optimizer = legacyga.wrap(make(home, "MomentumOptimizer", 1.0, momentum=0.5), 2)
    for _ in range(2):
        with graph_of_its_own(home) as (v1, session):
            weight = v1.get_variable("w", initializer=np.float32(0))
            fed = v1.placeholder("float32", ())
            train = optimizer.minimize(fed * weight, name="mini_step")
            assert train.name == "mini_step" and v1.get_collection("train_op") == [train]
            session.run(v1.global_variables_initializer())
            values = []
            for each in (1.0, 3.0, 2.0, 4.0):
                session.run(train, {fed: each})
                values.append(float(session.run(weight)))
            assert values == [0, -2, -2, -6]


def test_a_loss_scale_of_tensorflow_1_and_what_a_policy_leaves_out(home):
    """It would never be halved. With none it is, and the window with the overflow makes no update."""
    graph_only(home)
    v1 = v1_of(home.tf)
    found = [getattr(v1.train, "experimental", None), getattr(v1, "mixed_precision", None)]
    kinds = [getattr(each, "MixedPrecisionLossScaleOptimizer", None) for each in found]
    kinds = [each for each in kinds if each is not None]
    if not kinds:
        skips.senseless("MixedPrecisionLossScaleOptimizer: TF 1.15 and newer")
    with graph_of_its_own(home) as (v1, session):
        weight, fed = v1.get_variable("w", initializer=np.float32(1)), v1.placeholder("float32", ())
        optimizer = kinds[0](v1.train.GradientDescentOptimizer(1.0), "dynamic")
        with pytest.raises(ValueError, match="on_nonfinite='skip_window' would keep them from it. Leave on_nonfinite"):
            legacyga.wrap(optimizer, 2, on_nonfinite="skip_window")
        # A fixed scale does not look at the gradients.
        fixed = kinds[0](v1.train.GradientDescentOptimizer(1.0), 128.0)
        assert legacyga.wrap(fixed, 2, on_nonfinite="skip_window").gradient_accumulation_steps == 2
        train = legacyga.wrap(optimizer, 2).minimize(fed * weight)
        session.run(v1.global_variables_initializer())
        (scale,) = [each for each in v1.global_variables() if each.name.endswith("current_loss_scale:0")]
        before = session.run(scale)
        for each in (1.0, 3.0, np.inf, 2.0, 2.0, 4.0):
            session.run(train, {fed: each})
        assert session.run([weight, scale]) == [-4.0, before / 2]


@pytest.mark.slow
def test_a_saver_takes_the_window_along(home, tmpdir):
    graph_only(home)
    with graph_of_its_own(home) as (v1, session):
        variables = [v1.get_variable("v{}".format(i), initializer=value) for i, value in enumerate(START)]
        fed = [v1.placeholder("float32", value.shape) for value in START]
        train = legacyga.wrap(make(home, "AdamOptimizer"), 3).apply_gradients(list(zip(fed, variables)))
        saver, results = v1.train.Saver(), []
        session.run(v1.global_variables_initializer())
        for i, each in enumerate(GRADIENTS[:9]):
            if i == 4:
                saver.save(session, str(tmpdir.join("mid")), write_meta_graph=False)
            session.run(train, dict(zip(fed, each)))
        whole = session.run(variables)
        session.run(v1.global_variables_initializer())
        saver.restore(session, str(tmpdir.join("mid")))
        for each in GRADIENTS[4:9]:
            session.run(train, dict(zip(fed, each)))
        results = session.run(variables)
    for now, wanted in zip(results, whole):
        np.testing.assert_array_equal(now, wanted)


@pytest.mark.slow
def test_a_checkpoint_takes_the_window_along(home, tmpdir):
    if home.mode == "graph":
        skips.senseless("a Checkpoint of a graph is a Saver, as test_a_saver_takes_the_window_along has")
    tf, ends = home.tf, []

    def made():
        return [tf.Variable(value) for value in START], legacyga.wrap(make(home, "AdamOptimizer"), 3)

    def checkpoint(variables, optimizer):
        # TF 2.0 takes no list.
        return tf.train.Checkpoint(optimizer=optimizer, **{"v{}".format(i): v for i, v in enumerate(variables)})

    for saved_before in (None, 3, 4):
        variables, optimizer = made()
        for i, each in enumerate(GRADIENTS[:9]):
            if i == saved_before:
                path = checkpoint(variables, optimizer).save(str(tmpdir.join("c")))
                variables, optimizer = made()
                status = checkpoint(variables, optimizer).restore(path)
            optimizer.apply_gradients([(tf.constant(g), v) for g, v in zip(each, variables)])
        if saved_before is not None:
            status.assert_consumed()
        ends.append([variable.numpy() for variable in variables])
    for end in ends[1:]:
        for now, wanted in zip(end, ends[0]):
            np.testing.assert_array_equal(now, wanted)


@pytest.mark.capability("R8 partial windows")
def test_flush_is_an_update_of_what_is_there(home):
    graph_only(home)
    with graph_of_its_own(home) as (v1, session):
        weight = v1.get_variable("w", initializer=np.float32(0))
        fed, step = v1.placeholder("float32", ()), v1.train.get_or_create_global_step()
        optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(1.0), 4)
        train = optimizer.minimize(fed * weight, global_step=step)
        session.run(v1.global_variables_initializer())
        for each in (1.0, 2.0):
            session.run(train, {fed: each})
        assert legacyga.flush(optimizer) is True and legacyga.flush(optimizer) is False
        assert session.run([weight, step, optimizer.iterations, optimizer.mini_step]) == [-1.5, 1, 1, 0]
    with pytest.raises(ValueError, match="flush in graph mode needs a default session, .* Received: None"):
        legacyga.flush(optimizer)


@pytest.mark.capability("errors")
def test_what_keras_puts_around_it_cannot_be_wrapped(home):
    graph_only(home)
    cover = home.v1_optimizers.TFOptimizer
    with pytest.raises(ValueError, match=r"Wrap the optimizer in it.* TFOptimizer\(wrap\(AdamOptimizer, 3\)\)"):
        legacyga.wrap(cover(make(home, "AdamOptimizer")), 3)


@pytest.mark.capability("errors")
def test_a_wrapper_around_another_generation(home):
    graph_only(home)
    kinds = {generation_of(each): each for _, each in home.optimizer_classes() if each.__name__ == "SGD"}
    if not {"v1", "v2"} <= set(kinds):
        skips.senseless("one generation of Keras alone")

    class Cover(kinds["v1"]):
        def __init__(self, optimizer):
            super(Cover, self).__init__()
            self.optimizer = optimizer

    with pytest.raises(ValueError, match="Cover calls an optimizer of another generation.* Train in slices of a batch"):
        legacyga.wrap(Cover(kinds["v2"](0.1)), 3)


@pytest.mark.capability("errors")
def test_reference_variables_that_branches_cannot_write(home):
    if home.mode == "eager" or not getattr(v1_of(home.tf), "control_flow_v2_enabled", bool)():
        skips.senseless("graph mode with branches that are functions")
    with pytest.raises(ValueError, match="cannot write to reference variables.*disable_control_flow_v2"):
        apply_to(home, lambda: legacyga.wrap(make(home, "AdamOptimizer"), 2), GRADIENTS, resource=False)


def bert(home, code, steps):
    """KERNEL after 6 updates of BERT's optimizer, made by lines of `create_optimizer`."""
    with graph_of_its_own(home) as (v1, session):

        class AdamWeightDecayOptimizer(v1.train.Optimizer):
            """As in BERT's optimization.py, in fewer words."""

            def __init__(self, learning_rate, weight_decay_rate):
                super(AdamWeightDecayOptimizer, self).__init__(False, "AdamWeightDecayOptimizer")
                self.learning_rate, self.weight_decay_rate = learning_rate, weight_decay_rate

            def apply_gradients(self, grads_and_vars, global_step=None, name=None):
                assignments = []
                for grad, param in grads_and_vars:
                    m, v = [
                        v1.get_variable(
                            param.name[:-2] + each,
                            param.shape.as_list(),
                            trainable=False,
                            initializer=v1.zeros_initializer(),
                        )
                        for each in ("/adam_m", "/adam_v")
                    ]
                    next_m = 0.9 * m + 0.1 * grad
                    next_v = 0.999 * v + 0.001 * home.tf.square(grad)
                    update = next_m / (home.tf.sqrt(next_v) + 1e-6) + self.weight_decay_rate * param
                    next_param = param - self.learning_rate * update
                    assignments += [param.assign(next_param), m.assign(next_m), v.assign(next_v)]
                return home.tf.group(*assignments, name=name)

        kernel = v1.get_variable("kernel", initializer=KERNEL)
        loss, x, y = squared_error(home.tf, kernel)
        global_step = v1.train.get_or_create_global_step()
        names = dict(tf=home.tf, legacyga=legacyga, AdamWeightDecayOptimizer=AdamWeightDecayOptimizer)
        names.update(loss=10.0 * loss, tvars=[kernel], global_step=global_step)
        names["learning_rate"] = v1.train.polynomial_decay(0.05, global_step, 8, 0.0)
        exec(code, names)
        session.run(v1.global_variables_initializer())
        for i in range(6 * steps):
            rows = slice(24 // steps * (i % steps), 24 // steps * (i % steps + 1))
            session.run(names["train_op"], {x: X[rows], y: Y[rows]})
        return session.run([kernel, global_step])


def test_an_optimizer_of_the_programs_own_that_takes_and_returns_less(home):
    """Its `compute_gradients` returns an iterator, and its `apply_gradients` takes no `name` and no `global_step`."""
    graph_only(home)
    optimizer = v1_of(home.tf).train.MomentumOptimizer

    class Clipped(optimizer):
        def compute_gradients(self, loss):
            gradients, variables = zip(*optimizer.compute_gradients(self, loss))
            return zip(home.tf.clip_by_global_norm(gradients, 100.0)[0], variables)

        def apply_gradients(self, pairs):
            return optimizer.apply_gradients(self, list(pairs))

    ends = []
    for steps in (1, 3):
        with graph_of_its_own(home) as (v1, session):
            kernel = v1.get_variable("kernel", initializer=KERNEL)
            loss, x, y = squared_error(home.tf, kernel)
            wrapped = legacyga.wrap(Clipped(0.5, 0.9), steps)
            train = wrapped.apply_gradients(wrapped.compute_gradients(loss))
            session.run(v1.global_variables_initializer())
            size = 12 // steps
            for i in range(0, 24, size):
                session.run(train, {x: X[i : i + size], y: Y[i : i + size]})
            ends.append(session.run(kernel))
    assert np.max(np.abs(ends[0] - KERNEL)) > 0.1
    np.testing.assert_allclose(ends[1], ends[0], rtol=0, atol=4e-6)


@pytest.mark.slow
def test_bert_with_clipping_and_counting_in_apply_gradients(home):
    """The diff of docs/quickstart/tf1_session.md, beside the program with its old lines."""
    graph_only(home)
    text = pages.read(os.path.join("docs", "quickstart", "tf1_session.md"))
    lines = text.split("<!-- run by: test_tf1_train.py -->")[1].split("```")[1].splitlines()[1:]
    old, new = ["\n".join(line[1:] for line in lines if line[:1] in (sign, " ")) for sign in ("-", "+")]
    found, updates = bert(home, new, 4)
    # The old lines race on the global step: nothing orders its writing with the rate's reading.
    wanted, m, v = KERNEL.astype("float64"), 0.0, 0.0
    for update in range(6):
        (gradient,) = linear_gradient([wanted], X, Y)
        gradient = 10.0 * gradient * min(1.0, 1.0 / np.linalg.norm(10.0 * gradient))
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        rate = 0.05 * (1 - update / 8.0)
        wanted = wanted - rate * (m / (np.sqrt(v) + 1e-6) + 0.01 * wanted)
    assert updates == 6
    np.testing.assert_allclose(found, wanted, rtol=0, atol=4e-6)
    # With each micro-batch clipped, and counted, it is another training.
    wrapped = old.replace("= Adam", "= legacyga.wrap(Adam").replace("rate=0.01)", "rate=0.01), 4)")
    far, counted = bert(home, wrapped, 4)
    assert counted == 24 and np.max(np.abs(far - wanted)) > 0.5


def test_a_flush_finds_what_an_update_has_made(home):
    """BERT's AdamWeightDecayOptimizer makes its moments in `apply_gradients`; a flush calls that a second time."""
    graph_only(home)
    v1 = v1_of(home.tf)

    class MakesItsMoments(v1.train.Optimizer):
        def __init__(self):
            super(MakesItsMoments, self).__init__(False, "MakesItsMoments")

        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            written = []
            for gradient, var in grads_and_vars:
                kwargs = dict(shape=var.shape.as_list(), trainable=False, initializer=v1.zeros_initializer())
                moment = v1.get_variable(var.op.name + "/moment", use_resource=True, **kwargs)
                velocity = 0.5 * moment + gradient
                written += [var.assign(var - 0.25 * velocity), moment.assign(velocity)]
            return v1.group(*written, name=name)

    optimizer = legacyga.wrap(MakesItsMoments(), 2)
    # In another graph it makes them anew.
    for _ in range(2):
        with graph_of_its_own(home) as (_, session):
            var = v1.get_variable("var", initializer=np.zeros(2, "float32"), use_resource=True)
            fed = v1.placeholder("float32", [2])
            train = optimizer.apply_gradients([(fed, var)])
            session.run(v1.global_variables_initializer())
            for number in range(3):
                session.run(train, {fed: [1.0 + number, 2.0]})
            assert legacyga.flush(optimizer) is True
            # Means 1.5 and 2 in the first window, 3 and 2 in the second: the moment is 3.75 and 3.
            np.testing.assert_array_equal(session.run(var), [-0.25 * (1.5 + 3.75), -0.25 * (2.0 + 3.0)])
            session.run(train, {fed: [1.0, 1.0]})
            assert legacyga.flush(optimizer) is True
            np.testing.assert_array_equal(session.run(var), [-0.25 * (5.25 + 2.875), -0.25 * (5.0 + 2.5)])


@pytest.mark.capability("R8 partial windows")
def test_flush_and_k_go_by_the_default_session(home):
    """Which its graph need not be entered for, in eager mode neither; one optimizer in two graphs."""
    optimizer, made = legacyga.wrap(make(home, "GradientDescentOptimizer", 0.5), 4), []
    for _ in range(2):
        with graph_of_its_own(home) as (v1, _):
            var = v1.get_variable("var", initializer=np.float32([1.0, 2.0]), use_resource=True)
            train = optimizer.minimize(v1.reduce_sum(var))
            session = v1.Session(graph=var.graph)
            session.run(v1.global_variables_initializer())
            session.run(train)
            made.append((session, var, train))
    for session, var, train in made:
        with session.as_default():
            assert session.run(optimizer.mini_step) == 1
            assert legacyga.flush(optimizer) is True
            np.testing.assert_array_equal(session.run(var), [0.5, 1.5])
            optimizer.gradient_accumulation_steps = 2
            assert optimizer.gradient_accumulation_steps == 2
            for _ in range(3):
                session.run(train)
            np.testing.assert_array_equal(session.run(var), [0.0, 1.0])
            optimizer.drop_windows()
            assert session.run(optimizer.mini_step) == 0 and legacyga.flush(optimizer) is False
    for end, name in ((optimizer.end_windows, "flush"), (optimizer.drop_windows, "drop_windows")):
        with pytest.raises(ValueError, match=name + " in graph mode needs a default session, .* Received: None"):
            end()


@pytest.mark.capability("errors")
def test_an_optimizer_that_keeps_its_state_elsewhere(home):
    """As MovingAverageOptimizer and GGTOptimizer of tf.contrib."""
    v1 = v1_of(home.tf)

    class Around(v1.train.Optimizer):
        def __init__(self, inner):
            self._optimizer = inner

    with pytest.raises(ValueError, match="keeps its state in a way of its own and cannot be copied"):
        legacyga.wrap(Around(make(home, "GradientDescentOptimizer")), 2)


def stateful(home):
    """Functions that make an optimizer of each kind whose variables are named as the bare one names them."""
    made = [lambda each=each: make(home, each[0], **each[1]) for each in OPTIMIZERS]
    if home.tf_version >= (1, 13) and home.name != "keras":
        classes = [cls for _, cls in home.optimizer_classes() if generation_of(cls) == "v2"]
        made += [lambda cls=cls: cls(learning_rate=0.03) for cls in classes]
    return made


@pytest.mark.long
@pytest.mark.capability("R9 state")
@pytest.mark.parametrize("first", ["bare", "wrapped"])
def test_a_saver_of_one_restores_the_other(home, tmpdir, first):
    """By name, all that the bare optimizer has: 3 updates, saved, then 2 more by the other on the same gradients."""
    graph_only(home)
    path = str(tmpdir.join("saved"))

    def program(make_optimizer, is_wrapped, updates, is_restored):
        with graph_of_its_own(home) as (v1, session):
            optimizer = legacyga.wrap(make_optimizer(), 2) if is_wrapped else make_optimizer()
            variables = [
                v1.get_variable("v{}".format(i), initializer=value, use_resource=True) for i, value in enumerate(START)
            ]
            fed = [v1.placeholder("float32", value.shape) for value in START]
            train = optimizer.apply_gradients(list(zip(fed, variables)))
            everything = v1.global_variables()
            session.run(v1.global_variables_initializer())
            if is_restored:
                saved = dict(home.tf.train.list_variables(path))
                common = [each for each in everything if each.op.name in saved]
                assert len(common) == min(len(saved), len(everything)) >= len(START)
                v1.train.Saver(common).restore(session, path)
            for gradients in updates:
                for _ in range(2 if is_wrapped else 1):
                    session.run(train, dict(zip(fed, gradients)))
            if not is_restored:
                v1.train.Saver().save(session, path, write_meta_graph=False)
            return session.run(variables)

    for make_optimizer in stateful(home):
        wanted = program(make_optimizer, False, GRADIENTS[:5], False)
        program(make_optimizer, first == "wrapped", GRADIENTS[:3], False)
        found = program(make_optimizer, first == "bare", GRADIENTS[3:5], True)
        for now, then, start in zip(found, wanted, START):
            assert np.max(np.abs(now - then)) <= 2e-6 * np.max(np.abs(then - start))


@pytest.mark.long
@pytest.mark.capability("R12 replicas")
@pytest.mark.more
def test_the_strategy_of_parameter_servers(home):
    """In graph mode: one worker, by the strategy's own call."""
    v1 = v1_of(home.tf)
    experimental = getattr(getattr(v1, "distribute", None), "experimental", None)
    if home.mode == "eager" or not hasattr(experimental, "ParameterServerStrategy"):
        skips.senseless("graph mode, from TF 1.14 on")
    with home.tf.Graph().as_default():
        strategy = experimental.ParameterServerStrategy()
        run = getattr(strategy, "run", None) or strategy.experimental_run_v2
        with strategy.scope():
            variable = home.tf.Variable(np.zeros(3, "float32"), use_resource=True)
            optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(1.0), 3)
            step = run(lambda: optimizer.apply_gradients([(home.tf.ones(3), variable)]))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(7):
                session.run(step)
            np.testing.assert_array_equal(session.run(variable), np.full(3, -2.0, "float32"))
            assert session.run([optimizer.iterations, optimizer.mini_step]) == [2, 1]


@pytest.mark.slow
def test_workers_of_a_parameter_server(home):
    """Each with a graph and threads of its own: their mini-steps are taken one after the other, in one window."""
    v1 = v1_of(home.tf)
    if home.mode == "eager" or not hasattr(v1.train, "replica_device_setter"):
        skips.senseless("graph mode")
    addresses = ["localhost:{}".format(port) for port in homes.free_ports(3)]
    cluster = v1.train.ClusterSpec({"ps": addresses[:1], "worker": addresses[1:]})
    servers = [v1.train.Server(cluster, name, i) for name, i in (("ps", 0), ("worker", 0), ("worker", 1))]
    found, is_ready, is_done = {}, threading.Event(), threading.Barrier(2)

    def work(number):
        with home.tf.Graph().as_default(), v1.device(
            v1.train.replica_device_setter(cluster=cluster, worker_device="/job:worker/task:{}".format(number))
        ):
            variable = v1.get_variable("variable", initializer=np.zeros(1000, "float32"))
            optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(1.0), 4)
            step = optimizer.apply_gradients([(home.tf.ones(1000) * (number + 1), variable)])
            with v1.Session(servers[1 + number].target) as session:
                if number == 0:
                    session.run(v1.global_variables_initializer())
                    is_ready.set()
                is_ready.wait()
                for _ in range(60):
                    session.run(step)
                is_done.wait()
                found[number] = session.run([variable, optimizer.iterations, optimizer.mini_step])

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (0, 1):
        variable, iterations, mini_step = found[number]
        assert (int(iterations), int(mini_step)) == (30, 0)
        # The sum of all gradients, a quarter of each: 60 of 1, 60 of 2.
        np.testing.assert_array_equal(variable, np.full(1000, -45.0, "float32"))


@pytest.mark.capability("R8 partial windows")
def test_the_listed_operations_after_a_flush(home):
    """Programs run what is in the collection, and an update in a conditional's branch cannot be run."""
    graph_only(home)
    with graph_of_its_own(home) as (v1, session):
        variable = v1.get_variable("variable", initializer=np.zeros(2, "float32"))
        optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(1.0), 3, reduction="sum")
        step = optimizer.apply_gradients([(home.tf.ones(2), variable)])
        session.run(v1.global_variables_initializer())
        for _ in range(2):
            session.run(v1.get_collection("train_op"))
            assert legacyga.flush(optimizer) is True
            assert v1.get_collection("train_op") == [step]
        assert session.run(variable).tolist() == [-2.0, -2.0]


def test_gradients_that_are_arrays(home):
    """The bare optimizer makes tensors of them."""
    graph_only(home)
    with graph_of_its_own(home) as (v1, session):
        variable = v1.get_variable("variable", initializer=np.zeros(2, "float32"))
        optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(1.0), 2)
        step = optimizer.apply_gradients([(np.float32([1.0, 3.0]), variable)])
        session.run(v1.global_variables_initializer())
        session.run(step)
        session.run(step)
        assert session.run(variable).tolist() == [-1.0, -3.0]


@pytest.mark.slow
@pytest.mark.capability("R2 weights")
def test_a_loss_of_a_thousand_terms(home):
    """Its divisor is unknown; it trains."""
    graph_only(home)
    with graph_of_its_own(home) as (v1, session):
        x = v1.placeholder("float32", [None])
        variable = v1.get_variable("variable", initializer=np.float32(1.0))
        loss = home.tf.constant(0.0)
        for _ in range(1100):
            loss += home.tf.reduce_mean(variable * x) * 1e-3
        optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(1.0), 2)
        step = optimizer.minimize(loss)
        session.run(v1.global_variables_initializer())
        for value in (1.0, 3.0):
            session.run(step, {x: [value]})
        assert abs(session.run(variable) - (1.0 - 1.1 * 2.0)) <= 1e-5


@pytest.mark.capability("errors")
def test_it_belongs_to_no_keras(home):
    """Its module's name looks like that of a copy of Keras in TensorFlow."""
    assert legacyga_homes.home_of(v1_of(home.tf).train.GradientDescentOptimizer(0.1)) is None


@pytest.mark.capability("R8 partial windows")
def test_a_flush_beside_other_threads(home):
    """One thread trains while another flushes: no mini-step is lost, and none counts twice."""
    graph_only(home)
    with graph_of_its_own(home) as (v1, session):
        variable = v1.get_variable("variable", initializer=np.zeros(100000, "float32"))
        optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(1.0), 1000, reduction="sum")
        step = optimizer.apply_gradients([(home.tf.ones(100000), variable)])
        session.run(v1.global_variables_initializer())
        steps, flushes = [], []

        def train():
            # Until enough flushes fell between them, on a busy machine too.
            while len(steps) < 200 or len(flushes) <= 10 and len(steps) < 20000:
                session.run(step)
                steps.append(1)

        thread = threading.Thread(target=train)
        thread.start()
        while thread.is_alive():
            flushes += [1] * legacyga.flush(optimizer)
        thread.join()
        legacyga.flush(optimizer)
        assert len(flushes) > 10
        np.testing.assert_array_equal(session.run(variable), np.full(100000, -float(len(steps)), "float32"))


@pytest.mark.capability("R15 a quiet guest")
def test_the_seeds_of_later_operations(home):
    """TensorFlow 1 derives the seed of an operation from the number of those before it."""
    graph_only(home)
    found = []
    for steps in (1, 4):
        with graph_of_its_own(home) as (v1, session):
            v1.set_random_seed(1)
            optimizer = v1.train.AdamOptimizer(0.1)
            if steps == 4:
                legacyga.wrap(optimizer, steps)
            weight = v1.get_variable("w", [3])
            session.run(v1.global_variables_initializer())
            found.append(session.run(weight))
    np.testing.assert_array_equal(*found)


def test_a_gpu_can_hold_what_is_beside_the_weights(home):
    """GPUs of TensorFlow 1 have no variables of int32, and no timestamps; what is colocated is on one device."""
    graph_only(home)
    v1 = v1_of(home.tf)
    with home.tf.Graph().as_default() as graph, home.tf.device("/gpu:0"):
        x = v1.placeholder("float32", [None, 3])
        weights = v1.get_variable("weights", [3, 2])
        loss = home.tf.reduce_mean(home.tf.square(home.tf.matmul(x, weights)))
        legacyga.wrap(v1.train.AdamOptimizer(0.1), 4).minimize(loss)
        operations = graph.get_operations()
        types = {each.dtype.base_dtype.name for each in v1.global_variables()}
    assert types == {"float32", "float64", "int64"}
    timestamps = [each for each in operations if each.type == "Timestamp"]
    assert all(each.device.lower().endswith("cpu:0") for each in timestamps)
