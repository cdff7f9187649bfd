"""Which Keras is chosen, and every error by its text."""

import contextlib
import os
import subprocess
import sys
import types

import homes
import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
from epochs import LR, fit, model_with
from slow import slow
from test_mixed_precision import loss_scaled
from test_wrap import adam

import legacyga
from legacyga.backend.messages import shown

pytestmark = pytest.mark.capability("errors")


def pytest_generate_tests(metafunc):
    if "kind" in metafunc.fixturenames:
        from conftest import home_of

        found = [each for each in kinds.of(home_of(metafunc.config)) if not each.is_adam]
        metafunc.parametrize("kind", kinds.params(found))


@pytest.mark.parametrize("value", [0, slow(-1), True, 2.0, slow("2"), slow(None), slow(np.float32(2))], ids=repr)
def test_steps_per_update(home, value):
    with pytest.raises(ValueError) as error:
        legacyga.MySGD(steps_per_update=value, keras=home.keras)
    assert str(error.value) == "steps_per_update must be an integer of at least 1. Received: {!r}".format(value)


def test_steps_per_update_takes_numpy_integers(home):
    assert legacyga.MySGD(steps_per_update=np.int64(3), keras=home.keras).gradient_accumulation_steps == 3


@pytest.mark.parametrize("name", ["lr", "decay"])
@pytest.mark.parametrize("value", [-0.1, slow("0.1"), slow(None), slow(True), slow(float("nan"))], ids=repr)
def test_lr_and_decay(home, name, value):
    with pytest.raises(ValueError) as error:
        legacyga.MySGD(keras=home.keras, **{name: value})
    assert str(error.value) == "{} must be a number of at least 0. Received: {!r}".format(name, value)


@pytest.mark.parametrize("value", [-0.1, 1.1, "0.9"], ids=repr)
def test_momentum(home, value):
    with pytest.raises(ValueError) as error:
        legacyga.MySGD(momentum=value, keras=home.keras)
    assert str(error.value) == "momentum must be a number of 0 to 1. Received: {!r}".format(value)


@pytest.mark.parametrize("name", ["no_such_argument", "clipnrom", "reduction", "steps"])
def test_unknown_argument(home, name):
    """What the Keras says, and then the value, and the arguments that there are."""
    with pytest.raises((TypeError, ValueError)) as bare:
        home.bare_sgd(lr=LR, **{name: 8})
    with pytest.raises((TypeError, ValueError)) as error:
        legacyga.MySGD(keras=home.keras, **{name: 8})
    assert name in str(bare.value) and bare.type is error.type
    assert str(error.value).endswith(
        ". Received: {}=8. MySGD's own arguments are lr, momentum, decay, nesterov, steps_per_update (K), keras and "
        "on_nonfinite; all others are those of your Keras's SGD.".format(name)
    )
    assert name in str(error.value).split(". Received: ")[0]


def test_another_error_of_an_argument_stays_keras(home):
    if home.tf_version < (1, 14) or home.name == "keras" and not home.is_keras3:
        skips.keras_lacks("the optimizers of the v1 API look at no value")
    with pytest.raises((TypeError, ValueError)) as bare:
        home.bare_sgd(lr=LR, clipnorm=-1.0, clipvalue="much")
    with pytest.raises((TypeError, ValueError)) as error:
        legacyga.MySGD(LR, keras=home.keras, clipnorm=-1.0, clipvalue="much")
    assert str(error.value) == str(bare.value)


@pytest.mark.parametrize("is_wrapped", [False, True], ids=["MySGD", "wrap"])
def test_k_is_not_set_by_the_name_of_the_argument(home, is_wrapped):
    if is_wrapped:
        needs.wrap(home)
        optimizer = legacyga.wrap(home.bare_sgd(lr=LR), 2)
    else:
        optimizer = legacyga.MySGD(steps_per_update=2, keras=home.keras)
    with pytest.raises(AttributeError) as error:
        optimizer.steps_per_update = 8
    assert str(error.value) == (
        "steps_per_update is an argument of MySGD, and sets nothing later. Received: 8. Set "
        "optimizer.gradient_accumulation_steps."
    )
    assert optimizer.gradient_accumulation_steps == 2 and not hasattr(optimizer, "steps_per_update")


def test_an_attribute_of_this_name_in_your_own_optimizer_stays_its_own(home):
    needs.wrap(home)

    class Own(type(home.bare_sgd(lr=LR))):
        steps_per_update = 3

    optimizer = legacyga.wrap(Own(LR), 2)
    optimizer.steps_per_update += 1
    assert (optimizer.steps_per_update, optimizer.gradient_accumulation_steps) == (4, 2)


def test_both_names_of_k(home):
    """Keras 3's SGD has an argument of this name itself, and its own accumulation was put aside: K was 2."""
    name = "gradient_accumulation_steps"
    assert legacyga.MySGD(lr=LR, keras=home.keras, **{name: 8}).gradient_accumulation_steps == 8
    assert type(legacyga.MySGD(keras=home.keras).gradient_accumulation_steps) is int
    with pytest.raises(ValueError) as error:
        legacyga.MySGD(keras=home.keras, **{name: 0})
    assert str(error.value) == name + " must be an integer of at least 1. Received: 0"
    # The default, given, is given.
    for steps in (2, 4):
        with pytest.raises(ValueError) as error:
            legacyga.MySGD(steps_per_update=steps, keras=home.keras, **{name: 8})
        assert str(error.value) == (
            "steps_per_update and gradient_accumulation_steps are two names of one argument. Received: "
            "steps_per_update={} and gradient_accumulation_steps=8. Leave one out.".format(steps)
        )


def test_both_names_of_the_rate(home):
    optimizer = legacyga.MySGD(learning_rate=0.5, keras=home.keras)
    assert float(home.value(optimizer.lr)) == 0.5 and optimizer.get_config()["lr"] == 0.5
    for lr in (0.01, 0.25, 0.5):
        with pytest.raises(ValueError) as error:
            legacyga.MySGD(lr=lr, learning_rate=0.5, keras=home.keras)
        assert str(error.value) == (
            "lr and learning_rate are two names of one argument. Received: lr={} and learning_rate=0.5. Leave one "
            "out.".format(lr)
        )


@pytest.mark.parametrize("value", ["tf_keras", 3, object])
def test_keras_must_be_a_keras(value):
    with pytest.raises(ValueError) as error:
        legacyga.MySGD(keras=value)
    assert str(
        error.value
    ) == "keras must be the Keras module of your model: keras, tf.keras or tf_keras. Received: {!r}".format(value)


@pytest.mark.parametrize("value", [np, os], ids=["numpy", "os"])
def test_a_module_that_is_no_keras(value):
    with pytest.raises(ValueError, match="keras must be the Keras module of your model"):
        legacyga.MySGD(keras=value)


def test_two_candidates(monkeypatch):
    for name, version in (("keras", "2.3.1"), ("tf_keras", "2.21.0")):
        module = types.ModuleType(name)
        module.__version__ = version
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ValueError) as error:
        legacyga.MySGD()
    assert str(error.value) == (
        "Two Keras are imported, keras 2.3.1 and tf_keras 2.21.0, and an optimizer belongs to one. "
        "Name the one your model is made of: keras=keras or keras=tf_keras."
    )


def test_no_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    with pytest.raises(ImportError, match="legacyga works on the TensorFlow of your project and found none"):
        legacyga.MySGD()


def test_the_home_under_test_is_chosen_when_it_is_imported(home):
    """`home` has imported standalone keras or tf_keras if it is one; tf.keras is what is left."""
    if home.name == "tf.keras" and home.tf_version < (2, 4) and "keras" in sys.modules:
        skips.senseless("standalone Keras was imported by looking for it")
    if home.is_keras3 and "tf_keras" in sys.modules:
        skips.senseless("tf_keras was imported by looking for it")
    assert isinstance(legacyga.MySGD(), type(home.bare_sgd(lr=0.1)))


def python(code):
    """What a fresh process prints for `code`, its last line of standard error if it fails."""
    environ = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def fit_with(optimizer, keras, first=""):
    """A program that makes `optimizer` and fits a model of the Keras `keras` with it."""
    return """
import numpy as np, tensorflow as tf, legacyga
{first}
{imports}
model = k.models.Sequential([k.layers.Dense(1, input_shape=(2,))])
model.compile(loss='mse', optimizer={optimizer})
model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)
""".format(
        first=first,
        optimizer=optimizer,
        imports="k = tf.keras" if keras == "tf.keras" else "import {} as k".format(keras),
    )


@pytest.mark.parametrize("made_by", ["MySGD", slow("wrap")])
def test_an_optimizer_of_another_home(home, made_by):
    """Keras's own message says nothing; behind it stands ours, with the remedy."""
    if home.name == "keras" and not home.is_keras3:
        made_for, module = "tf.keras", "tf.keras"
    elif home.name == "tf_keras":
        made_for, module = "tf_keras", "__import__('tf_keras')"
    else:
        skips.senseless("one home is here")
    made = "legacyga.MySGD(keras={})" if made_by == "MySGD" else "legacyga.wrap({}.optimizers.SGD(0.1), 8)"
    # Keras 2.0 has a tuple for a message, which is made of reprs.
    output = python(fit_with(made.format(module), "keras")).replace(":', <", ": <")
    if made_by == "wrap" or home.is_standalone_before(2, 1):
        needs.wrap(home)
        said = "<legacyga: SGD of {}, accumulating {} steps>".format(made_for, 8 if made_by == "wrap" else 2)
        assert "Could not interpret optimizer identifier: " + said in output
        return
    assert "Could not interpret optimizer identifier: <MySGD for " + made_for in output
    assert "A model of another Keras needs legacyga.MySGD(..., keras=that_keras)" in output


def test_a_graph_optimizer_in_eager_mode(home):
    if home.mode == "graph" or home.is_keras3:
        skips.senseless("eager mode of a home with a v1 API only")
    with home.tf.Graph().as_default():
        optimizer = legacyga.MySGD(keras=home.keras)
    model = home.keras.models.Sequential([home.keras.layers.Dense(1, input_shape=(2,))])
    # Up to TF 2.0 the error is ours; from 2.1 on compile's own, which names the optimizer.
    wanted = "<MySGD for .* in graph mode|<legacyga: SGD of .* is not supported when eager execution is enabled"
    with pytest.raises(ValueError, match=wanted):
        model.compile(loss="mse", optimizer=optimizer)
        model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)


def test_an_optimizer_of_another_graph(home):
    if home.mode == "eager":
        skips.senseless("graph mode only")
    optimizer = legacyga.MySGD(keras=home.keras)
    home.reset()
    model = home.keras.models.Sequential([home.keras.layers.Dense(1, input_shape=(2,))])
    with pytest.raises(ValueError, match="was made in another graph than the model.* Make both in one place"):
        model.compile(loss="mse", optimizer=optimizer)
        model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)


def test_keras_3_in_graph_mode(home):
    if not home.is_keras3:
        skips.senseless("Keras 3 only")
    output = python(fit_with("legacyga.MySGD()", "keras", "tf.compat.v1.disable_eager_execution()"))
    assert "Keras 3 cannot train in graph mode, not even with its own optimizers" in output
    assert "Remove that call, or use tf_keras." in output


def test_keras_3_before_3_5(home, monkeypatch):
    """There the class has no property `iterations`."""
    needs.eager_only(home)
    if not home.is_keras3:
        skips.senseless("of Keras 3")
    for cls in home.keras.optimizers.Optimizer.__mro__:
        if "iterations" in vars(cls):
            monkeypatch.delattr(cls, "iterations")
    with pytest.raises(ValueError, match="needs Keras 3.5 or newer. Received: keras {}".format(home.version)):
        legacyga.MySGD(steps_per_update=2, keras=home.keras)


def test_keras_3_on_another_backend(home, monkeypatch):
    if not home.is_keras3:
        skips.senseless("Keras 3 only")
    monkeypatch.setattr(home.keras.backend, "backend", lambda: "jax")
    with pytest.raises(
        ValueError, match="on its TensorFlow backend only. Received: the backend 'jax'. Set KERAS_BACKEND"
    ):
        legacyga.MySGD(keras=home.keras)
    model = home.keras.models.Sequential([home.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="on its TensorFlow backend only"):
        legacyga.micro_batch(model, 2)


def test_eager_mode_of_tensorflow_1(home, monkeypatch):
    if home.tf_version >= (2, 0):
        skips.senseless("TensorFlow 1 only")
    monkeypatch.setattr(home.tf, "executing_eagerly", lambda: True, raising=False)
    optimizer = home.tf.train.GradientDescentOptimizer(0.1)
    for make in (lambda: legacyga.MySGD(keras=home.keras), lambda: legacyga.wrap(optimizer, 2)):
        with pytest.raises(ValueError, match="needs TensorFlow 2.0 or newer in eager mode. Received: TensorFlow 1"):
            make()


def test_raising_k_where_there_are_no_accumulators(home):
    optimizer = legacyga.MySGD(steps_per_update=1, keras=home.keras)
    start = [np.ones(shape, "float32") for shape in ((2, 3), (3,), (3, 1), (1,))]
    next(home.mini_steps(home.network(start), optimizer, [(np.ones((2, 2), "float32"), np.ones((2, 1), "float32"))]))
    with pytest.raises(ValueError) as error:
        optimizer.gradient_accumulation_steps = 4
    assert str(error.value) == (
        "gradient_accumulation_steps was 1 at this optimizer's first mini-step, so it has no accumulators. Received: "
        "4. Make the optimizer with the larger number, and compile the model again if there is one."
    )
    assert optimizer.gradient_accumulation_steps == 1


@pytest.mark.parametrize("value", [0, True, 2.5], ids=repr)
def test_setting_k_to_what_it_cannot_be(home, value):
    optimizer = legacyga.MySGD(steps_per_update=2, keras=home.keras)
    with pytest.raises(ValueError) as error:
        optimizer.gradient_accumulation_steps = value
    assert str(error.value) == "gradient_accumulation_steps must be an integer of at least 1. Received: {!r}".format(
        value
    )
    assert optimizer.gradient_accumulation_steps == 2


# wrap


def test_what_cannot_be_wrapped(home):
    needs.wrap(home)
    inner = adam(home)
    for value, wanted in (
        (type(inner), "a class. Call it."),
        ("adam", "a string. Make the optimizer that it names."),
        (None, "which is no optimizer of a Keras or of tf.compat.v1.train."),
        (home.keras.models.Sequential(), "which is no optimizer of a Keras or of tf.compat.v1.train."),
    ):
        with pytest.raises(ValueError) as error:
            legacyga.wrap(value, 2)
        assert str(error.value).startswith("wrap takes an optimizer object") and str(error.value).endswith(wanted)
    with pytest.raises(ValueError, match="This optimizer accumulates already, over 2 mini-steps"):
        legacyga.wrap(legacyga.wrap(inner, 2), 3)
    with pytest.raises(ValueError, match="gradient_accumulation_steps must be an integer of at least 1. Received: 0"):
        legacyga.wrap(inner, 0)
    with pytest.raises(ValueError, match='reduction must be "mean" or "sum". Received: \'max\''):
        legacyga.wrap(inner, 2, reduction="max")
    with pytest.raises(ValueError, match='reduction must be "mean" or "sum". Received: array'):
        legacyga.wrap(inner, 2, reduction=np.array(["mean", "sum"]))


@pytest.mark.parametrize("name", ["steps", "accumulation_steps", "keras"])
def test_an_unknown_argument_of_wrap(home, name):
    with pytest.raises(TypeError) as error:
        legacyga.wrap(adam(home), **{name: 8})
    assert str(error.value) == (
        "wrap() got an unexpected keyword argument '{0}'. Received: {0}=8. Its arguments are optimizer, "
        "gradient_accumulation_steps, reduction, on_nonfinite; K is the second.".format(name)
    )


def test_mysgds_name_of_k_in_wrap(home):
    for arguments in ((), (4,)):
        with pytest.raises(TypeError) as error:
            legacyga.wrap(adam(home), *arguments, steps_per_update=8)
        assert str(error.value) == (
            "wrap has no argument steps_per_update: it is MySGD's. Received: steps_per_update=8. Call it "
            "gradient_accumulation_steps."
        )
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such_argument'"):
        legacyga.wrap(adam(home), 2, no_such_argument=1)


def test_an_optimizer_that_waits_for_other_workers(home):
    train = homes.v1_of(home.tf).train
    waiting = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(LR), replicas_to_aggregate=2)
    with pytest.raises(ValueError, match="SyncReplicasOptimizer collects the workers'.*Received: <.*leave it out"):
        legacyga.wrap(waiting, 2)


def test_the_accumulation_of_keras_3_below_ours(home):
    if not home.is_keras3:
        skips.senseless("Keras 3 only")
    with pytest.raises(ValueError, match="has Keras's own gradient_accumulation_steps=4.*Leave that argument out"):
        legacyga.wrap(home.keras.optimizers.Adam(gradient_accumulation_steps=4), 2)


def test_an_accumulation_within_a_wrapper(home, kind):
    """As without the wrapper. Else there was an update every fourth mini-step, or none that `iterations` counted."""
    if kind.generation in ("v1", "train"):
        skips.keras_lacks("LossScaleOptimizer is of the newer generations")
    bare = kinds.Kind(home, kind.cls or type(home.bare_sgd(lr=LR))).bare
    inner = [kind.make(2)]
    if home.is_keras3:
        optimizers = home.keras.optimizers
        inner.append(
            kind.cls(LR, gradient_accumulation_steps=2) if kind.cls else optimizers.SGD(gradient_accumulation_steps=2)
        )
        multi = optimizers.MultiOptimizer if hasattr(optimizers, "MultiOptimizer") else None
    for each in inner:
        around = [loss_scaled(home, each)]
        if home.is_keras3 and multi is not None:
            around.append(multi(optimizers.OptimizerMap(bare(), {"a.*": each})))
            around.append(loss_scaled(home, around[-1]))
        for outer in around:
            with pytest.raises(ValueError) as error:
                legacyga.wrap(outer, 1)
            assert str(error.value) == (
                "An optimizer within this one accumulates already, over 2 mini-steps. Received: {}, in {}. Put one "
                "there that does not.".format(shown(each), shown(outer))
            )


def test_wrap_on_the_oldest_tensorflow(home):
    if home.tf_version >= (1, 11):
        skips.senseless("TF 1.8 to 1.10 only")
    with pytest.raises(ValueError, match="wrap needs TensorFlow 1.11 or newer for optimizers of the v1 API"):
        legacyga.wrap(adam(home), 2)


def test_a_wrapper_without_a_state_of_its_own(home):
    """So is LossScaleOptimizer of TF 1.14, and a subclass that never calls its base's __init__."""
    base = {kind.generation: kind.cls for kind in kinds.of(home)}.get("v2")
    if base is None:
        skips.keras_lacks("OptimizerV2: TF 1.14 or newer")

    class Around(base):
        def __init__(self, inner):
            self.inner = inner

    with pytest.raises(ValueError, match="has no hyperparameters of its own.*Wrap the optimizer inside it"):
        legacyga.wrap(Around(base(0.1)), 2)


def test_optimizers_without_a_list_of_variables(home):
    """So are the experimental ones of TF 2.9, and a subclass that never calls its base's __init__."""
    if home.mode == "graph" or home.is_keras3 or home.tf_version < (2, 9):
        skips.keras_lacks("optimizers of the v3 generation: eager mode from TF 2.9 on")
    if home.tf_version == (2, 9):
        refused = home.keras.optimizers.experimental.Adam()
    else:
        base = {kind.generation: kind.cls for kind in kinds.of(home)}["v3"]
        refused = type("Own", (base,), {"__init__": lambda self: None})()
    with pytest.raises(ValueError, match="keeps no list of its variables.*Take one of tf.keras.optimizers"):
        legacyga.wrap(refused, 2)


@pytest.mark.parametrize("way", ["differentiates", "scales"])
def test_a_get_updates_that_takes_the_loss_itself(home, way):
    """An optimizer of one's own that calls K.gradients, where get_gradients has the window's; or changes the loss."""
    needs.graph_only(home)
    needs.wrap(home)
    backend = home.backend

    class Own(home.v1_optimizers.SGD):
        def get_updates(self, loss, params):
            gradients = backend.gradients(loss, params) if way == "differentiates" else None
            gradients = gradients or self.get_gradients(loss * 2.0, params)
            self.updates = [backend.update(p, p - self.lr * g) for p, g in zip(params, gradients)]
            return self.updates

    start = [np.ones(shape, "float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
    batch = np.ones((2, 3), "float32"), np.zeros((2, 2), "float32")
    for steps in (2, None):
        optimizer = Own(lr=LR) if steps is None else legacyga.wrap(Own(lr=LR), steps)
        mini_steps = home.mini_steps(home.network(start), optimizer, [batch])
        if steps is None:
            next(mini_steps)
            continue
        with pytest.raises(
            ValueError, match="is called with loss=None.*NoneType.*Take gradients by self.get_gradients"
        ):
            next(mini_steps)


# The callback


def test_arguments_of_the_callback():
    make = legacyga.GradientAccumulationCallback
    for value in (0, -1, True, 2.0, "2", [1], int):
        with pytest.raises(ValueError) as error:
            make(value)
        assert str(error.value) == (
            "schedule must be None, an integer of at least 1, a dict {{epoch: K}} or a function of the number of "
            "updates. Received: {!r}".format(value)
        )
    for value in (-1, True, 1.0, "1"):
        with pytest.raises(ValueError) as error:
            make({value: 2})
        wanted = "The keys of schedule must be epochs, integers of at least 0. Received: {!r}".format(value)
        assert str(error.value) == wanted
    with pytest.raises(ValueError) as error:
        make({0: 2, 3: 0})
    assert str(error.value) == "schedule[3] must be an integer of at least 1. Received: 0"
    with pytest.raises(ValueError, match=r"schedule must name at least one epoch, such as {0: 4}. Received: {}"):
        make({})
    for value in ("keep", None, True):
        with pytest.raises(ValueError) as error:
            make(partial_window=value)
        assert str(error.value) == 'partial_window must be "flush", "carry" or "drop". Received: {!r}'.format(value)


def test_the_callback_given_uncalled(home):
    home.reset(plain_session=True)
    for arguments in ({}, {"validation_split": 0.5}):
        model = model_with(home, 2, traced=False)
        with pytest.raises(ValueError) as error:
            fit(home, model, [legacyga.GradientAccumulationCallback], **arguments)
        assert str(error.value) == (
            "callbacks must hold what GradientAccumulationCallback returns. Received: the function itself. Call it: "
            "callbacks=[legacyga.GradientAccumulationCallback()]."
        )


def test_what_is_found_out_when_training_starts(home):
    home.reset(plain_session=True)
    make = legacyga.GradientAccumulationCallback
    with pytest.raises(ValueError, match="needs a model whose optimizer accumulates. Received: .*Compile the model"):
        fit(home, model_with(home, 1, home.bare_sgd(lr=LR), traced=False), [make()])
    with pytest.raises(ValueError, match=r"schedule\(0\) must be an integer of at least 1. Received: 1.5"):
        fit(home, model_with(home, 2, traced=False), [make(lambda updates: 1.5)])
    # A graph without accumulators: said before the first epoch, not in the fifth.
    model = model_with(home, 1)
    fit(home, model, [], epochs=1)
    with pytest.raises(ValueError, match="1 at this optimizer's first mini-step.*Received: 6. Make the"):
        fit(home, model, [make({5: 6})], epochs=9)
    assert int(home.value(model.optimizer.iterations)) == 4


# What is given to an optimizer, and to the functions


@pytest.mark.parametrize("is_sparse", [slow(False), True])
def test_a_gradient_of_another_shape(home, kind, is_sparse):
    """In the middle of a window, beside one that fits: nothing is added, and training goes on to the right end."""
    needs.eager_only(home)
    start = [np.float32([1.0, 2.0]), np.float32([[3.0], [4.0]])]
    fed, tf = homes.Fed(home, kind.make(2), start), home.tf
    gradients = [[np.float32([0.5, -1.0]) * i, np.float32([[2.0], [0.25]]) * i] for i in (1, 2)]
    fed.step(gradients[0])
    before = [np.array(each) for each in sum(fed.read(), [])]
    wrong = tf.ones((2, 2))
    if is_sparse:
        wrong = tf.IndexedSlices(wrong, tf.constant([0, 1]), tf.constant([2, 2]))
    with pytest.raises(ValueError) as error:
        fed.optimizer.apply_gradients([(tf.ones(2), fed.variables[0]), (wrong, fed.variables[1])])
    assert "A gradient must have the shape of its variable. Received: one of the shape (2, 2) for " in str(error.value)
    assert "of the shape (2, 1). Nothing was accumulated." in str(error.value)
    for now, then in zip(sum(fed.read(), []), before):
        np.testing.assert_array_equal(now, then)
    fed.step(gradients[1])
    expected = kind.oracle().update(oracle.double(start), [np.mean(each, axis=0) for each in zip(*gradients)])
    for now, then in zip(fed.read()[0], expected):
        assert np.max(np.abs(now - then)) <= 4e-6


def test_lists_of_unequal_lengths(home, kind):
    """`apply` of Keras 3 pairs what it can and drops the rest; here nothing is added, and training goes on."""
    if kind.generation != "keras3":
        skips.senseless("Keras 3 only")
    start = [np.float32([1.0, 2.0]), np.float32([3.0])]
    fed, tf = homes.Fed(home, kind.make(2), start), home.tf
    gradients = [[np.float32([0.5, -1.0]) * i, np.float32([2.0]) * i] for i in (1, 2)]
    fed.step(gradients[0])
    for wrong in ([tf.ones(2)], [tf.ones(2), tf.ones(1), tf.ones(1)]):
        with pytest.raises(ValueError) as error:
            fed.optimizer.apply(wrong, fed.variables)
        received = "Received: {} gradients and 2 variables. Nothing was accumulated.".format(len(wrong))
        assert received in str(error.value)
    fed.step(gradients[1])
    expected = kind.oracle().update(oracle.double(start), [np.mean(each, axis=0) for each in zip(*gradients)])
    for now, then in zip(fed.read()[0], expected):
        assert np.max(np.abs(now - then)) <= 4e-6


def test_an_unknown_argument_of_a_mini_step(home, kind):
    """The first mini-step says so, not the one that ends the window."""
    needs.eager_only(home)
    if kind.generation == "v3":
        skips.keras_lacks("the bare optimizer takes any")
    fed = homes.Fed(home, kind.make(2), [np.float32([1.0, 2.0])])
    fed.step([np.float32([0.5, 0.5])])
    fed.optimizer.end_windows()
    before = [np.array(each) for each in sum(fed.read(), [])]
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such_argument'"):
        fed.optimizer.apply_gradients([(home.tf.ones(2), fed.variables[0])], no_such_argument=1)
    assert int(home.value(fed.optimizer.mini_step)) == 0
    for now, then in zip(sum(fed.read(), []), before):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("shape", [slow(None), [None, 2]], ids=str)
def test_a_variable_of_unknown_shape(home, kind, shape):
    """Where the bare optimizer trains it, which K = 1 is. Its accumulator would have no shape."""
    if kind.generation == "v1" or home.tf_version < (2, 0):
        skips.keras_lacks("from TF 2.0 on a variable can be made without its shape")
    tf, v1 = home.tf, homes.v1_of(home.tf)

    def train(steps):
        with tf.Graph().as_default() if home.mode == "graph" else contextlib.ExitStack():
            variable = tf.Variable(np.zeros((3, 2), "float32"), shape=tf.TensorShape(shape), name="open")
            if kind.generation == "train":
                bare = v1.train.GradientDescentOptimizer(LR)
            else:
                bare = home.bare_sgd(lr=LR) if kind.cls is None else kind.cls(LR)
            optimizer = bare if steps is None else legacyga.wrap(bare, steps)
            if kind.cls is None and steps is not None:
                optimizer = legacyga.MySGD(LR, steps_per_update=steps, keras=home.keras)
            optimizer.apply_gradients([(tf.ones((3, 2)), variable)])

    try:
        train(None)
    except (TypeError, ValueError):
        skips.keras_lacks("the bare optimizer takes no such variable")
    train(1)
    with pytest.raises(ValueError) as error:
        train(2)
    assert "must have a known shape to be accumulated for. Received: open:0 of the shape " in str(error.value)
    assert "shape=" in str(error.value) and "gradient_accumulation_steps=1" in str(error.value)


@pytest.mark.parametrize("first", [slow("a mini-step"), "set_weights"])
def test_before_an_optimizer_is_built(home, kind, first):
    """A mini-step builds; weights that were given before have nowhere to go, and it says so."""
    needs.eager_only(home)
    if not hasattr(kind.bare(), "set_weights"):
        skips.keras_lacks("no set_weights here")
    trained, new = homes.Fed(home, kind.make(2), [np.ones(2, "float32")]), kind.make(2)
    trained.step([np.ones(2, "float32")])
    weights = home.optimizer_weights(trained.optimizer)
    if first == "set_weights":
        with pytest.raises(ValueError, match="this optimizer must be built first. Nothing|has not yet been built"):
            new.set_weights(weights)
    variables = home.variables([np.ones(2, "float32")])
    new.apply_gradients([(home.tf.ones(2), variables[0])])
    assert int(home.value(new.mini_step)) == 1
    new.set_weights(weights)
    new.apply_gradients([(home.tf.ones(2), variables[0])])
    np.testing.assert_array_equal(home.value(variables[0]), np.float32([1 - kinds.RATE] * 2))


def test_k_set_to_0_in_the_middle_of_a_window(home, kind):
    """It says so, and the window goes on with the K that it has."""
    needs.eager_only(home)
    fed = homes.Fed(home, kind.make(2), [np.ones(2, "float32")])
    fed.step([np.ones(2, "float32")])
    with pytest.raises(ValueError, match="gradient_accumulation_steps must be an integer of at least 1. Received: 0"):
        fed.optimizer.gradient_accumulation_steps = 0
    fed.step([np.ones(2, "float32")])
    np.testing.assert_array_equal(home.value(fed.variables[0]), np.float32([1 - kinds.RATE] * 2))


@pytest.mark.parametrize("value", [None, "adam", 3], ids=repr)
def test_flush_of_what_does_not_accumulate(home, value):
    for given in (value, home.bare_sgd(lr=LR)):
        with pytest.raises(ValueError) as error:
            legacyga.flush(given)
        assert str(error.value) == (
            "flush takes an optimizer that legacyga.wrap or legacyga.MySGD returned. Received: {}. Give it the one "
            "that the model was compiled with, model.optimizer. If that is a bare optimizer, it updates with every "
            "batch and has nothing to flush: leave flush out, or compile the model with "
            "legacyga.wrap(optimizer, gradient_accumulation_steps).".format(shown(given))
        )


def test_train_step_of_what_does_not_accumulate(home):
    model = home.keras.models.Sequential([home.keras.layers.Dense(1, input_shape=(2,))])
    for given in (None, model):
        with pytest.raises(ValueError, match="train_step takes a model whose optimizer accumulates. Received: "):
            legacyga.train_step(given, (np.ones((4, 2)), np.ones((4, 1))))


def test_arguments_of_load_model(home, tmpdir):
    path = str(tmpdir.join("no_such_file.h5"))
    for value in ([1], "MyLayer", 3):
        with pytest.raises(ValueError) as error:
            legacyga.load_model(path, keras=home.keras, custom_objects=value)
        wanted = "custom_objects must be a dict of classes and functions by name. Received: {!r}".format(value)
        assert str(error.value) == wanted
    for function in (lambda keras: legacyga.load_model(path, keras=keras), legacyga.custom_objects):
        with pytest.raises(ValueError, match="keras must be the Keras module of your model.*Received: 3"):
            function(3)


@pytest.mark.parametrize("name", ["no_such_file.h5", slow("no_such_file.keras"), "no_such_folder"])
def test_a_file_that_there_is_not(home, tmpdir, name):
    """What the Keras says, and the whole path, of a relative one too."""
    tmpdir.chdir()
    said = {}
    for loader in (home.keras.models, legacyga):
        kwargs = dict(keras=home.keras) if loader is legacyga else {}
        with pytest.raises((IOError, ValueError)) as error:
            loader.load_model(name, **kwargs)
        said[loader] = error
    keras, ours = str(said[home.keras.models].value), str(said[legacyga].value)
    assert ours == "{}. There is no file or folder {}.".format(keras.rstrip("."), tmpdir.join(name))
    is_io = said[home.keras.models].errisinstance(IOError)
    assert said[legacyga].errisinstance(FileNotFoundError if is_io else ValueError)


def test_another_error_of_a_file_stays_keras(home, tmpdir):
    path = tmpdir.join("text.h5")
    path.write("no model")
    with pytest.raises((IOError, ValueError)) as error:
        legacyga.load_model(str(path), keras=home.keras)
    assert "There is no file" not in str(error.value)


def test_the_number_of_gradients_of_an_accumulator(home):
    needs.eager_only(home)
    accumulator, ones = legacyga.GradientAccumulator(), home.tf.ones(2)
    accumulator([ones])
    with pytest.raises(ValueError) as error:
        accumulator([ones, ones])
    assert str(error.value) == (
        "A GradientAccumulator takes as many gradients each time, in the same order: 1 at first. Received: 2. Give "
        "None for a variable without one, or make another GradientAccumulator for other variables."
    )
    np.testing.assert_array_equal(accumulator.gradients[0], np.ones(2))


def test_a_state_from_before_the_build(home, kind):
    """An optimizer that has trained refuses it, and keeps its own."""
    needs.eager_only(home)
    if kind.generation not in ("v3", "keras3") or home.tf_version < (2, 11):
        skips.senseless("those of the others have no variables before the build")
    optimizer = kind.make(2)
    listed = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    snapshot = [np.array(home.value(each)) for each in listed]
    variables = home.variables([np.ones(2, "float32")])
    for _ in range(3):
        optimizer.apply_gradients([(home.tf.ones(2), variables[0])])
    with pytest.raises(ValueError, match="Nothing was written."):
        optimizer.set_weights(snapshot)
    assert [int(home.value(each)) for each in (optimizer.iterations, optimizer.mini_step)] == [1, 1]
