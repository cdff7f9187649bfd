"""load_model and custom_objects: a run saved in mid-window and loaded ends with the bits of one that was not."""

import copy
import functools
import json
import os
import pickle
import subprocess
import sys

import kinds
import needs
import numpy as np
import pytest
import skips
from dense import assert_close
from homes import generation_of, variables_of
from slow import slow
from test_own_optimizers import base_class, own_from_scratch

import legacyga

pytestmark = pytest.mark.capability("R9 state")
RANDOM = np.random.RandomState(5)
BATCHES = [(RANDOM.randint(0, 9, (4, 3)), RANDOM.randn(4, 2).astype("float32")) for _ in range(13)]
START = [RANDOM.randn(*shape).astype("float32") for shape in ((9, 2), (6, 2), (2,))]
FORMATS = ["model.h5", "model.keras", "model"]


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "adam_class", "Adam")


@pytest.fixture(autouse=True)
def start_anew(home):
    forget(home)


@pytest.fixture
def kind(home, adam_class):
    if generation_of(adam_class) == "v1":
        needs.wrap(home)
    return kinds.Kind(home, adam_class)


def model_of(home, optimizer, run_eagerly=True):
    """An embedding and a layer on it."""
    layers = home.keras.layers
    embedding = layers.Embedding(9, 2) if home.is_keras3 else layers.Embedding(9, 2, input_length=3)
    model = home.keras.models.Sequential([embedding, layers.Flatten(), layers.Dense(2)])
    if home.is_keras3:
        model.build((None, 3))
    model.set_weights(START)
    kwargs = {} if home.mode == "graph" else dict(run_eagerly=run_eagerly)
    # Keras 3.15 cannot load the string from HDF5, the older ones cannot load the object.
    model.compile(optimizer, home.keras.losses.MeanSquaredError() if home.is_keras3 else "mse", **kwargs)
    return model


def train(model, batches):
    for batch in batches:
        model.train_on_batch(*batch)


def state(home, model):
    return model.get_weights() + [home.value(each) for each in variables_of(model.optimizer)]


def assert_bits(one, other):
    assert len(one) == len(other)
    for now, then in zip(one, other):
        np.testing.assert_array_equal(now, then)


def check_format(home, kind, name):
    """Skip where the bare optimizer's state does not survive a format."""
    if name == "model.h5" and home.is_keras3:
        skips.keras_lacks("its loader of HDF5 files builds the optimizer for no variables")
    if name == "model.keras" and (home.tf_version < (2, 13) or kind.generation not in ("v3", "keras3")):
        skips.keras_lacks("the .keras format has no state of these optimizers")
    if name == "model" and (home.is_keras3 or home.tf_version < (2, 2) or kind.generation == "v1"):
        skips.keras_lacks("no SavedModel, or none with these optimizers")
    if home.mode == "graph" and name == "model":
        skips.keras_lacks("the SavedModel of graph mode has no state of the optimizer")
    if kind.generation == "v3" and home.tf_version < (2, 11):
        skips.keras_lacks("no format takes along the experimental optimizers")


def forget(home):
    if home.mode == "graph":
        home.reset(plain_session=True)


def save(model, path):
    kwargs = {} if os.path.splitext(path)[1] else dict(save_format="tf")
    model.save(path, **kwargs)


@pytest.mark.parametrize("name, steps", [slow(FORMATS[0], 5)] + [(name, 3) for name in FORMATS])
def test_a_loaded_run_goes_on(home, kind, name, steps, tmpdir):
    check_format(home, kind, name)
    path = str(tmpdir.join(name))
    model = model_of(home, kind.make(steps))
    train(model, BATCHES[:7])
    save(model, path)
    train(model, BATCHES[7:])
    wanted = state(home, model)
    forget(home)
    model = legacyga.load_model(path, keras=home.keras)
    assert isinstance(model.optimizer, kind.cls) and model.optimizer.gradient_accumulation_steps == steps
    train(model, BATCHES[7:])
    assert int(home.value(model.optimizer.iterations)) == 13 // steps
    assert_bits(state(home, model), wanted)


@pytest.mark.parametrize("way", FORMATS[:1] + [slow(each) for each in FORMATS[1:]] + ["checkpoint"])
def test_a_saved_model_that_is_saved_again(home, kind, way, tmpdir):
    """Before it trains: the second file is as good as the first, and tells the same."""
    check_format(home, kind, "model")
    if way != "checkpoint":
        check_format(home, kind, way)
    model = model_of(home, kind.make(4))
    train(model, BATCHES[:6])
    model.optimizer.gradient_accumulation_steps = 3
    save(model, str(tmpdir.join("first")))
    train(model, BATCHES[6:])
    wanted = state(home, model)
    model = legacyga.load_model(str(tmpdir.join("first")), keras=home.keras)
    assert int(home.value(model.optimizer.mini_step)) == 2 and int(home.value(model.optimizer.iterations)) == 1
    path = str(tmpdir.join(way))
    if way == "checkpoint":
        path = home.tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(path)
        model = model_of(home, kind.make(4))
        home.tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(path)
    else:
        save(model, path)
        model = legacyga.load_model(path, keras=home.keras)
    told = [home.value(each) for each in (model.optimizer.mini_step, model.optimizer.iterations)]
    assert [int(each) for each in told] == [2, 1] and model.optimizer.gradient_accumulation_steps == 3
    train(model, BATCHES[6:])
    # Of a checkpoint that waited the slots come back in another order.
    now = state(home, model)
    assert_bits(*((now, wanted) if way != "checkpoint" else (now[: len(START)], wanted[: len(START)])))


def test_an_optimizer_with_get_updates_alone(home, kind, tmpdir):
    """It makes its variables there. Bare, its state is left out from TF 2.3 on, with a warning."""
    if kind.generation != "v1":
        skips.senseless("get_updates is of the v1 API")
    path = str(tmpdir.join("model.h5"))
    own = own_from_scratch(home, base_class(kind.cls))
    model = model_of(home, legacyga.wrap(own(), 3))
    train(model, BATCHES[:8])
    save(model, path)
    train(model, BATCHES[8:])
    wanted = state(home, model)
    forget(home)
    model = legacyga.load_model(path, keras=home.keras, custom_objects=dict(Own=own))
    train(model, BATCHES[8:])
    assert_bits(state(home, model), wanted)


@pytest.mark.parametrize("steps", [slow(3), 5])
def test_weights_alone(home, kind, steps, tmpdir):
    """save_weights to .weights.h5, and load_weights into a model whose optimizer is built."""
    if home.tf_version < (2, 13) or kind.generation not in ("v3", "keras3"):
        skips.keras_lacks("no .weights.h5, or none with the state of these optimizers")
    path = str(tmpdir.join("model.weights.h5"))
    model = model_of(home, kind.make(steps))
    train(model, BATCHES[:7])
    model.save_weights(path)
    train(model, BATCHES[7:])
    wanted = state(home, model)
    model = model_of(home, kind.make(steps))
    model.optimizer.build(model.trainable_variables)
    model.load_weights(path)
    train(model, BATCHES[7:])
    assert_bits(state(home, model), wanted)


def test_an_optimizer_that_has_not_trained(home, kind, tmpdir):
    check_format(home, kind, "model.keras" if home.is_keras3 else "model.h5")
    path = str(tmpdir.join("model.keras" if home.is_keras3 else "model.h5"))
    model = model_of(home, kind.make(3))
    save(model, path)
    train(model, BATCHES[:4])
    wanted = model.get_weights()
    forget(home)
    model = legacyga.load_model(path, keras=home.keras)
    train(model, BATCHES[:4])
    assert_bits(model.get_weights(), wanted)
    assert int(home.value(model.optimizer.mini_step)) == 1


def test_mysgd_and_a_set_k(home, tmpdir):
    """K was set to 4 in mid-window: the window that is open ends with 3, the others have 4."""
    path = str(tmpdir.join("model.keras" if home.is_keras3 else "model.h5"))
    model = model_of(home, legacyga.MySGD(lr=0.1, momentum=0.5, steps_per_update=3, keras=home.keras))
    train(model, BATCHES[:4])
    model.optimizer.gradient_accumulation_steps = 4
    save(model, path)
    train(model, BATCHES[4:])
    wanted = state(home, model)
    forget(home)
    model = legacyga.load_model(path, keras=home.keras)
    assert model.optimizer.gradient_accumulation_steps == 4 and type(model.optimizer).__name__ == "MySGD"
    train(model, BATCHES[4:])
    assert int(home.value(model.optimizer.iterations)) == 3
    assert_bits(state(home, model), wanted)


@pytest.mark.long
def test_a_class_of_the_users(home, kind, tmpdir):
    """It is given as for the bare optimizer; one that Keras has been told of is found."""
    check_format(home, kind, "model.keras" if home.is_keras3 else "model.h5")

    class Own(kind.cls):
        pass

    path = str(tmpdir.join("model.keras" if home.is_keras3 else "model.h5"))
    bare = kind.bare()
    model = model_of(home, legacyga.wrap(Own.from_config(bare.get_config()), 3))
    train(model, BATCHES[:7])
    save(model, path)
    train(model, BATCHES[7:])
    wanted = state(home, model)
    forget(home)
    with pytest.raises(ValueError, match="Own"):
        legacyga.load_model(path, keras=home.keras)
    forget(home)
    model = legacyga.load_model(path, keras=home.keras, custom_objects={"Own": Own})
    assert isinstance(model.optimizer, Own)
    train(model, BATCHES[7:])
    assert_bits(state(home, model), wanted)
    forget(home)
    objects = dict(legacyga.custom_objects(home.keras), Own=Own)
    with home.keras.utils.CustomObjectScope(objects):
        model = home.keras.models.load_model(path, custom_objects=objects)
    train(model, BATCHES[7:])
    assert_bits(state(home, model), wanted)


@pytest.mark.parametrize("own", [slow(False), True], ids=["keras", "own"])
@pytest.mark.parametrize("of", [slow("wrap"), "MySGD"])
def test_a_schedule_as_rate(home, of, own, tmpdir):
    if not hasattr(home.keras.optimizers, "schedules") or home.mode == "graph":
        skips.keras_lacks("no schedules for optimizers in this mode")
    schedule, objects = home.keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5), {}
    if own:
        schedule, objects = halving(home)(0.5), {"Halving": halving(home)}
    path = str(tmpdir.join("model.keras" if home.is_keras3 else "model.h5"))
    if of == "wrap":
        optimizer = legacyga.wrap(home.keras.optimizers.SGD(schedule, momentum=0.5), 3)
    else:
        optimizer = legacyga.MySGD(schedule, momentum=0.5, steps_per_update=3, keras=home.keras)
        with home.keras.utils.CustomObjectScope(objects):
            again = legacyga.MySGD(keras=home.keras, **optimizer.get_config())
            assert again.get_config() == type(optimizer).from_config(optimizer.get_config()).get_config()
    model = model_of(home, optimizer)
    train(model, BATCHES[:7])
    save(model, path)
    checkpoint = home.tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    at = checkpoint.save(str(tmpdir.join("saved")))
    train(model, BATCHES[7:])
    wanted = state(home, model)
    checkpoint.restore(at)
    train(model, BATCHES[7:])
    assert_bits(state(home, model), wanted)
    model = legacyga.load_model(path, keras=home.keras, custom_objects=objects)
    train(model, BATCHES[7:])
    assert_bits(state(home, model), wanted)


def test_a_config_by_the_other_name_of_the_rate_or_without(home):
    optimizer = legacyga.MySGD(lr=0.25, steps_per_update=3, keras=home.keras)
    config = optimizer.get_config()
    rate = config.pop("lr")
    renamed = type(optimizer).from_config(dict(config, learning_rate=rate))
    assert renamed.get_config() == optimizer.get_config()
    assert type(optimizer).from_config(config).get_config()["lr"] == pytest.approx(0.01)


def test_a_config_that_eager_mode_wrote(home):
    """It has a name, which optimizers of the v1 API have not."""
    config = dict(lr=0.25, momentum=0.5, decay=0.125, nesterov=True, steps_per_update=3, name="Own")
    found = legacyga.custom_objects(home.keras)["MySGD"].from_config(config).get_config()
    config.pop("name")
    assert {name: found[name] for name in config} == config


@functools.lru_cache()
def halving(home):
    """A class of schedules, of the user's."""

    class Halving(home.keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self, rate):
            self.rate = rate

        def __call__(self, step):
            return self.rate / (1.0 + home.tf.cast(step, "float32"))

        def get_config(self):
            return {"rate": self.rate}

    return Halving


def test_serialize_and_deserialize(home, kind):
    optimizers = home.keras.optimizers
    ours = kind.make(3, reduction="sum")
    described = json.loads(json.dumps(optimizers.serialize(ours), default=float))
    again = optimizers.deserialize(described, custom_objects=legacyga.custom_objects(home.keras))
    assert isinstance(again, kind.cls) and again.get_config() == ours.get_config()
    with pytest.raises(ValueError, match="no config of an optimizer that legacyga.wrap returned. Received"):
        type(ours).from_config(kind.bare().get_config())


def test_a_config_of_a_generation_that_cannot_train_here(home, kind):
    """Of a file from another version: said before the model is made, with what to do."""
    config = legacyga.wrap(kind.bare(), 3).get_config()
    config["optimizer"]["generation"] = other = "v3" if home.mode == "graph" else "v1"
    if other == "v3" and home.tf_version >= (2, 9) and home.name != "keras":
        # There it is, and trains in eager mode alone. Its arguments are others.
        config["optimizer"]["config"] = {}
    loader = legacyga.custom_objects(home.keras)["AccumulatingOptimizer"]
    remedy = "trains in eager mode only|of another generation than the one in the file.*compile=False"
    with pytest.raises(ValueError, match=remedy) as raised:
        loader.from_config(config)
    assert type(kind.bare()).__name__ in str(raised.value)


def test_a_config_of_a_registered_name(home):
    """tf.keras 2.12 to 2.15 registers its own as "Custom>Adam". What an error advises is Python."""
    from_config = legacyga.custom_objects(home.keras)["AccumulatingOptimizer"].from_config

    def config(name):
        generation = "v3" if home.is_keras3 else "keras3"
        inner = dict(class_name=name, config={}, generation=generation, module="keras.src.optimizers.adam")
        return dict(optimizer=inner, gradient_accumulation_steps=4, reduction="mean", on_nonfinite="propagate")

    with pytest.raises(
        ValueError, match="has an optimizer Adam, of another generation .* Load the model with compile=F"
    ):
        from_config(config("Custom>Adam"))
    with pytest.raises(ValueError, match=r"Received: 'My>Own'. Give .*\(path, custom_objects=\{'My>Own': Own\}\).$"):
        from_config(config("My>Own"))


def test_loaders_of_the_program_stay(home):
    """A program may have a MySGD of its own, and have told Keras."""
    registered = home.keras.utils.get_custom_objects()
    before, own = registered.get("MySGD"), object()
    registered["MySGD"] = own
    try:
        legacyga.MySGD(keras=home.keras)
        assert registered["MySGD"] is own
    finally:
        registered.pop("MySGD")
        registered.update({} if before is None else {"MySGD": before})
    assert sorted(legacyga.custom_objects(home.keras)) == ["AccumulatingOptimizer", "MySGD"]


# Keras's own callbacks, over epochs of 4 batches with K = 3: each ends within a window

X, Y = [np.concatenate(each) for each in zip(*BATCHES[:4])]


def fit(home, model, epochs, callbacks=(), initial_epoch=0):
    callbacks = list(callbacks) + [legacyga.GradientAccumulationCallback(partial_window="carry")]
    kwargs = dict(batch_size=4, shuffle=False, verbose=0)
    model.fit(X, Y, epochs=epochs, initial_epoch=initial_epoch, callbacks=callbacks, **kwargs)


def momentum_model(home, is_built=False):
    """A model with MySGD, or, if `is_built`, with an optimizer that was built before `wrap`, as a loaded model has."""
    optimizer = legacyga.MySGD(lr=0.1, momentum=0.5, steps_per_update=3, keras=home.keras)
    model = model_of(home, optimizer, run_eagerly=False)
    if is_built:
        bare = home.keras.optimizers.SGD(0.1, momentum=0.5)
        bare.build(model.trainable_variables)
        model.compile(legacyga.wrap(bare, 3), model.loss)
    return model


def test_model_checkpoint(home, tmpdir):
    path = str(tmpdir.join("model-{epoch}." + ("keras" if home.is_keras3 else "h5")))
    model = momentum_model(home)
    fit(home, model, 3, [home.keras.callbacks.ModelCheckpoint(path)])
    wanted = model.get_weights()
    for epoch in (1, 2):
        forget(home)
        # Keras 2.0 counts the files from 0.
        name = path.format(epoch=epoch - 1 if home.is_standalone_before(2, 1) else epoch)
        model = legacyga.load_model(name, keras=home.keras)
        assert int(home.value(model.optimizer.mini_step)) == 4 * epoch % 3
        fit(home, model, 3, initial_epoch=epoch)
        assert_bits(model.get_weights(), wanted)


@pytest.mark.parametrize("is_built", [False, True])
def test_backup_and_restore(home, is_built, tmpdir):
    callbacks = home.keras.callbacks
    backup = getattr(callbacks, "BackupAndRestore", None)
    backup = backup or getattr(getattr(callbacks, "experimental", None), "BackupAndRestore", None)
    if backup is None or home.mode == "graph":
        skips.keras_lacks("no BackupAndRestore here")
    if is_built and not hasattr(home.keras.optimizers.SGD, "build"):
        skips.keras_lacks("optimizers of this generation have no `build`")

    class Interrupt(callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    model = momentum_model(home, is_built)
    fit(home, model, 4)
    wanted, folder = model.get_weights(), str(tmpdir.join("backup"))
    model = momentum_model(home, is_built)
    with pytest.raises(KeyboardInterrupt):
        fit(home, model, 4, [backup(folder), Interrupt()])
    model = momentum_model(home, is_built)
    fit(home, model, 4, [backup(folder)])
    assert int(home.value(model.optimizer.iterations)) == 5
    assert_bits(model.get_weights(), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["set_weights", "checkpoint"])
def test_a_window_of_an_optimizer_that_was_built_before(home, way, tmpdir):
    """As that of a loaded model, which was wrapped then."""
    if home.mode == "graph" or not hasattr(home.keras.optimizers.SGD, "build"):
        skips.keras_lacks("optimizers of this generation have no `build`")
    model, other = momentum_model(home, True), momentum_model(home, True)
    train(model, BATCHES[:5])
    other.set_weights(model.get_weights())
    if way == "checkpoint":
        path = home.tf.train.Checkpoint(optimizer=model.optimizer).write(str(tmpdir.join("begun")))
        home.tf.train.Checkpoint(optimizer=other.optimizer).read(path)
    other.optimizer.build(other.trainable_variables)
    if way == "set_weights":
        other.optimizer.set_weights([home.value(each) for each in variables_of(model.optimizer)])
    assert int(home.value(other.optimizer.mini_step)) == 2
    assert legacyga.flush(model.optimizer) and legacyga.flush(other.optimizer)
    assert_bits(state(home, other), state(home, model))


# What does not fit


def broken(values):
    """{what is wrong: values} of a state."""
    return {
        "one too few": values[:-1],
        "one too many": values + [values[-1]],
        "another shape": values[:-2] + [np.zeros((3, 3), "float32")] + values[-1:],
        "none": [],
    }


def test_a_state_that_does_not_fit_is_refused_whole(home, kind):
    if kind.generation == "v3" and home.tf_version < (2, 11):
        skips.keras_lacks("the experimental optimizers have no set_weights")
    model = model_of(home, kind.make(3))
    train(model, BATCHES[:5])
    before = state(home, model)
    for values in broken([value + 1 for value in before[len(START) :]]).values():
        with pytest.raises(ValueError, match="Received: .* Nothing was written"):
            model.optimizer.set_weights(values)
        assert_bits(state(home, model), before)


@pytest.mark.slow
def test_a_file_whose_state_does_not_fit(home, kind, tmpdir):
    """An accumulator of another shape: Keras makes a line in the log of it."""
    check_format(home, kind, "model.h5")
    h5py = pytest.importorskip("h5py")
    path = str(tmpdir.join("model.h5"))
    model = model_of(home, kind.make(3))
    train(model, BATCHES[:5])
    save(model, path)
    with h5py.File(path, "a") as file:
        group = file["optimizer_weights"]
        found = []
        group.visititems(lambda name, each: found.append(name) if "accumulator_1" in name else None)
        name = [each for each in found if isinstance(group[each], h5py.Dataset)][0]
        del group[name]
        group[name] = np.zeros((5, 5), "float32")
    forget(home)
    with pytest.raises(ValueError, match="holds a state of the optimizer that does not fit.*Received: a value of the"):
        legacyga.load_model(path, keras=home.keras)


@pytest.mark.slow
def test_a_file_of_a_model_that_was_frozen_on_its_way(home, kind, tmpdir):
    """The state in it is that of both lists of variables, and a loader makes the second alone."""
    if kind.generation == "v1":
        skips.senseless("its moments are those of the latest model alone")
    name = "model.keras" if kind.generation in ("v3", "keras3") and home.tf_version >= (2, 13) else "model.h5"
    check_format(home, kind, name)
    path = str(tmpdir.join(name))
    model = model_of(home, kind.make(3))
    train(model, BATCHES[:3])
    compile_again(home, model, trainable=False)
    train(model, BATCHES[3:6])
    save(model, path)
    weights = model.get_weights()
    forget(home)
    with pytest.raises(ValueError, match="or from before a layer was frozen"):
        legacyga.load_model(path, keras=home.keras)
    assert_bits(home.keras.models.load_model(path, compile=False).get_weights(), weights)


def test_load_own_variables(home, kind):
    if kind.generation not in ("v3", "keras3") or home.tf_version < (2, 13):
        skips.keras_lacks("no .keras files with these optimizers")
    model = model_of(home, kind.make(3))
    train(model, BATCHES[:5])
    before, store = state(home, model), {}
    model.optimizer.save_own_variables(store)
    assert_bits([store[str(i)] for i in range(len(store))], before[len(START) :])
    for values in broken([value + 1 for value in before[len(START) :]]).values():
        with pytest.raises(ValueError, match="Nothing was written"):
            model.optimizer.load_own_variables({str(i): value for i, value in enumerate(values)})
        assert_bits(state(home, model), before)


@pytest.mark.parametrize("way", [slow("own variables"), "weights"])
@pytest.mark.parametrize("outer", [slow("LossScaleOptimizer"), "MultiOptimizer"])
def test_the_state_of_optimizers_within_another(home, outer, way):
    """All of it comes back in mid-window; of a MultiOptimizer the default one may have no variables."""
    optimizers = home.keras.optimizers
    if not home.is_keras3 or not hasattr(optimizers, outer):
        skips.keras_lacks("Keras 3 alone has it, or the newest")

    def make():
        inner = optimizers.SGD(0.5, momentum=0.5)
        if outer == "LossScaleOptimizer":
            return legacyga.wrap(optimizers.LossScaleOptimizer(inner, initial_scale=2.0), 2)
        return legacyga.wrap(optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.Adam(), {".*": inner})), 2)

    def train(optimizer, variable, gradients):
        for each in gradients:
            optimizer.apply([home.tf.constant([2.0 * each])], [variable])

    (first,), (second,) = home.variables([np.zeros(1, "float32")]), home.variables([np.zeros(1, "float32")])
    saved, loaded = make(), make()
    for optimizer, variable in ((saved, first), (loaded, second)):
        optimizer.build([variable])
    train(saved, first, [1, 3, 2])
    second.assign(home.value(first))
    values = [np.array(home.value(each)) for each in saved.variables]
    if way == "weights":
        loaded.set_weights(values)
    else:
        store = {}
        saved.save_own_variables(store)
        loaded.load_own_variables(store)
    assert_bits([np.array(home.value(each)) for each in loaded.variables], values)
    for optimizer, variable in ((saved, first), (loaded, second)):
        train(optimizer, variable, [4])
    assert_bits([home.value(second)], [home.value(first)])
    assert float(home.value(second)[0]) == {"L": -3.0, "M": -6.0}[outer[0]]


@pytest.mark.parametrize("share", [slow(0.3), slow(0.6), slow(0.9), 0.99])
def test_a_truncated_file(home, share, tmpdir):
    path = str(tmpdir.join("model.keras" if home.is_keras3 else "model.h5"))
    model = model_of(home, legacyga.MySGD(keras=home.keras))
    train(model, BATCHES[:1])
    save(model, path)
    with open(path, "rb+") as file:
        file.truncate(int(os.path.getsize(path) * share))
    with pytest.raises((ValueError, OSError, KeyError)):
        legacyga.load_model(path, keras=home.keras)


# Bare and wrapped


def test_the_state_of_a_bare_optimizer(home, kind):
    """Taken over by set_weights, in mid-window: then no window is open."""
    if kind.generation == "v3" and home.tf_version < (2, 11):
        skips.keras_lacks("the experimental optimizers have no set_weights")
    assert_goes_on_after_the_bare_one(home, kind.bare)


def without_count(home):
    """Functions that make the optimizers that list no `iterations` before Keras 2.3 and in tf.keras of TF 1."""
    for generation, classes in kinds.classes(home).items():
        if generation == "v3" and home.tf_version < (2, 11) or generation == "v1" and not home.has_wrap_in_v1:
            continue
        rate = {"lr" if generation == "v1" else "learning_rate": 0.125}
        for name in ("RMSprop", "Adagrad", "Adadelta"):
            if name in classes:
                forget(home)
                yield functools.partial(classes[name], epsilon=2.0**-6, **rate)


@pytest.mark.slow
def test_the_state_of_a_bare_optimizer_that_may_list_no_count(home):
    needs.wrap(home)
    for make in without_count(home):
        assert_goes_on_after_the_bare_one(home, make)


@pytest.mark.slow
def test_a_state_without_a_window_is_taken_over_at_one(home):
    needs.wrap(home)
    for make in without_count(home):
        model, one = [model_of(home, legacyga.wrap(make(), steps)) for steps in (3, 1)]
        train(model, BATCHES[:3])
        train(one, BATCHES[3:4])
        one.set_weights(model.get_weights())
        one.optimizer.set_weights([home.value(each) for each in variables_of(model.optimizer)])
        model.optimizer.gradient_accumulation_steps = 1
        for each in (model, one):
            train(each, BATCHES[4:5])
        assert_close(*[each.get_weights()[comparable(home)] for each in (one, model)])


def comparable(home):
    """Which weights: not the embedding in Keras 3, whose bare optimizers square a row's gradients one by one."""
    return slice(1 if home.is_keras3 else 0, None)


def assert_goes_on_after_the_bare_one(home, make):
    bare = model_of(home, make())
    train(bare, BATCHES[:2])
    values = [home.value(each) for each in variables_of(bare.optimizer)]
    weights = bare.get_weights()
    model = model_of(home, legacyga.wrap(make(), 3))
    train(model, BATCHES[:4])
    assert int(home.value(model.optimizer.mini_step)) == 1
    model.set_weights(weights)
    model.optimizer.set_weights(values)
    assert int(home.value(model.optimizer.mini_step)) == 0
    train(model, BATCHES[2:5])
    whole = [np.concatenate(each) for each in zip(*BATCHES[2:5])]
    if home.races:
        legacyga.micro_batch(bare, len(whole[0]))
    bare.train_on_batch(*whole)
    assert_close(*[each.get_weights()[comparable(home)] for each in (model, bare)])


def compile_again(home, model, trainable):
    model.layers[0].trainable = trainable
    kwargs = {} if home.mode == "graph" else dict(run_eagerly=True)
    model.compile(model.optimizer, home.keras.losses.MeanSquaredError() if home.is_keras3 else "mse", **kwargs)


def values_of(home, model):
    return [home.value(each) for each in variables_of(model.optimizer)]


@pytest.mark.slow
def test_a_layer_frozen_between_a_state_and_its_return(home, kind):
    """Then the optimizer has a window more than the state, or one less: of other variables, and empty."""
    if kind.generation == "v1":
        skips.senseless("it lists the window of the latest model alone")
    if kind.generation == "v3" and home.tf_version < (2, 11):
        skips.keras_lacks("the experimental optimizers have no set_weights")
    model = model_of(home, kind.make(3))
    train(model, BATCHES[:3])
    early, weights = values_of(home, model), model.get_weights()
    compile_again(home, model, trainable=False)
    train(model, BATCHES[3:7])
    begun = values_of(home, model)
    train(model, BATCHES[7:9])
    ended, last = values_of(home, model), model.get_weights()
    assert len(early) < len(begun) == len(ended)
    straight = model_of(home, kind.make(3))
    train(straight, BATCHES[:3])

    # The earlier state, into the optimizer with two windows.
    train(model, BATCHES[9:10])
    compile_again(home, model, trainable=True)
    model.set_weights(weights)
    model.optimizer.set_weights(early)
    assert int(home.value(model.optimizer.mini_step)) == 0
    for each in (model, straight):
        train(each, BATCHES[:4])
    assert_bits(model.get_weights(), straight.get_weights())
    assert_bits(values_of(home, model)[: len(early)], values_of(home, straight))

    # The later one into an optimizer with one window, and at K = 1 with none.
    fresh = [model_of(home, kind.make(steps)) for steps in (3, 1)]
    for each in fresh:
        train(each, BATCHES[:1])
        with pytest.raises(ValueError, match="an open window that this optimizer does not have.* Nothing was written"):
            each.optimizer.set_weights(begun)
        each.set_weights(last)
        each.optimizer.set_weights(ended)
        assert int(home.value(each.optimizer.iterations)) == 3
    model.set_weights(last)
    model.optimizer.set_weights(ended)
    for each in [model] + fresh[:1]:
        train(each, BATCHES[4:8])
    assert_bits(model.get_weights(), fresh[0].get_weights())


def test_the_state_of_a_bare_optimizer_where_a_layer_is_not_trained(home, kind):
    """The window that `build` made of all variables is that of some of them."""
    if kind.generation not in ("v3", "keras3") or home.tf_version < (2, 11):
        skips.keras_lacks("nothing is built before training, or no set_weights")
    bare, model = model_of(home, kind.bare()), model_of(home, kind.make(3))
    for each in (bare, model):
        each.optimizer.build(each.trainable_variables)
    compile_again(home, model, trainable=False)
    train(model, BATCHES[:1])
    assert int(home.value(model.optimizer.mini_step)) == 1
    model.optimizer.set_weights(values_of(home, bare))
    assert int(home.value(model.optimizer.mini_step)) == 0


@pytest.mark.long
def test_copies_of_a_compiled_model(home, kind):
    """deepcopy and pickle, where Keras can do them with the bare optimizer."""
    model = model_of(home, kind.make(3))
    train(model, BATCHES[:4])
    bare = model_of(home, kind.bare())
    train(bare, BATCHES[:1])
    ways = [lambda each: pickle.loads(pickle.dumps(each))] + ([copy.deepcopy] if home.mode == "eager" else [])
    tried = 0
    for way in ways:
        try:
            copied_bare = way(bare)
        except Exception:
            copied_bare = None
        if copied_bare is None or copied_bare.optimizer is None:
            continue
        tried += 1
        copied = way(model)
        assert copied.optimizer.gradient_accumulation_steps == 3
        assert_bits(copied.get_weights(), model.get_weights())
    if not tried:
        skips.keras_lacks("copies of a model with the bare optimizer")


COPIES = """
import copy, importlib, json, pickle, sys
path, home, does = sys.argv[1:]
tf = importlib.import_module("tensorflow")
keras = tf.keras if home == "tf.keras" else importlib.import_module(home)
import legacyga
if does == "load_model":
    model = legacyga.load_model(path, keras=keras)
else:
    legacyga.custom_objects(keras)
    model = keras.models.load_model(path)
found = [model.optimizer, keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer))]
for way in (copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
    try:
        way(keras.models.load_model(path, compile=False))
    except Exception:
        continue
    found.append(way(model).optimizer)
print(json.dumps([[type(each).__name__, each.gradient_accumulation_steps] for each in found if each is not None]))
"""


@pytest.mark.parametrize("does", ["load_model", "custom_objects"])
@pytest.mark.parametrize("form", ["wrap", "MySGD"])
@pytest.mark.long
def test_copies_in_a_new_process(home, once_in_an_environment, form, does, tmpdir):
    """Which has only loaded the model: Keras finds the classes of its copies and configs."""
    if home.mode == "graph":
        skips.keras_lacks("copies of models in graph mode")
    path = str(tmpdir.join("model.keras" if home.is_keras3 else "model.h5"))
    optimizers = getattr(home.keras.optimizers, "legacy", home.keras.optimizers)
    sgd = (home.keras.optimizers if home.is_keras3 else optimizers).SGD
    made = legacyga.wrap(sgd(0.1), 3) if form == "wrap" else legacyga.MySGD(0.1, steps_per_update=3, keras=home.keras)
    model = model_of(home, made)
    train(model, BATCHES[:4])
    save(model, path)
    found = subprocess.check_output([sys.executable, "-c", COPIES, path, home.name, does], universal_newlines=True)
    name = "AccumulatingOptimizer" if form == "wrap" else "MySGD"
    found = json.loads(found.splitlines()[-1])
    assert len(found) > 1 and found == [[name, 3]] * len(found)


PROGRAM = """
import importlib, json, sys
import numpy as np
path, home, guest = sys.argv[1:]
if guest == "without":
    sys.modules["legacyga"] = None
tf = importlib.import_module("tensorflow")
keras = tf.keras if home == "tf.keras" else importlib.import_module(home)
x, y = np.load(path + ".npz")["x"], np.load(path + ".npz")["y"]
if guest == "without":
    model = keras.models.load_model(path, compile=False)
    print(json.dumps(np.asarray(model.predict(x[0], verbose=0)).tolist()))
else:
    import legacyga
    model = legacyga.load_model(path, keras=keras)
    for batch in zip(x, y):
        model.train_on_batch(*batch)
    print(json.dumps([weight.tolist() for weight in model.get_weights()]))
"""


@pytest.mark.parametrize("guest", ["with", "without"])
@pytest.mark.long
def test_in_a_new_process(home, once_in_an_environment, guest, tmpdir):
    """Which has never wrapped anything; and one that does not have legacyga, for inference."""
    path = str(tmpdir.join("model.keras" if home.is_keras3 else "model.h5"))
    model = model_of(home, legacyga.MySGD(lr=0.1, momentum=0.5, steps_per_update=3, keras=home.keras))
    train(model, BATCHES[:7])
    save(model, path)
    np.savez(path + ".npz", x=[x for x, _ in BATCHES[7:]], y=[y for _, y in BATCHES[7:]])
    if guest == "with":
        train(model, BATCHES[7:])
        wanted = model.get_weights()
    else:
        wanted = model.predict(BATCHES[7][0], verbose=0)
    command = [sys.executable, "-c", PROGRAM, path, home.name, guest]
    found = json.loads(subprocess.check_output(command, universal_newlines=True).splitlines()[-1])
    assert_bits([np.float32(each) for each in found], wanted)


def test_a_model_at_a_url(home, tmpdir):
    """TensorFlow reads it, and the optimizer goes on, too."""
    needs.eager_only(home, since=(2, 2))
    if home.is_keras3:
        skips.keras_lacks("Keras 3 loads no SavedModel")
    model = home.keras.Sequential([home.keras.layers.Dense(1, input_shape=(3,))])
    optimizers = getattr(home.keras.optimizers, "legacy", home.keras.optimizers)
    model.compile(legacyga.wrap(optimizers.SGD(0.1, momentum=0.9), 2), "mse")
    for _ in range(5):
        model.train_on_batch(np.ones((4, 3)), np.ones((4, 1)))
    path = str(tmpdir.join("saved"))
    model.save(path, save_format="tf")
    for each in (path, "file://" + path):
        optimizer = legacyga.load_model(each, keras=home.keras).optimizer
        assert [int(optimizer.iterations), int(optimizer.mini_step)] == [2, 1]


def test_a_class_with_the_name_of_keras_own(home):
    """It has another rule: without it the file is refused, and with it loaded."""
    needs.eager_only(home)
    SGD = home.keras.optimizers.SGD
    own = type("SGD", (SGD,), {"__module__": "a_module_of_the_users"})
    config = legacyga.wrap(own(0.5), 2).get_config()
    loader = legacyga.custom_objects(keras=home.keras)["AccumulatingOptimizer"]
    with pytest.raises(ValueError, match="has no optimizer of this name, and none is registered.*Give its class"):
        loader.from_config(config)
    found = loader.from_config(config, custom_objects={config["optimizer"]["class_name"]: own})
    assert isinstance(found, own)


def test_a_scope_around_load_model(home, tmpdir):
    """Keras 3 has one scope at a time."""
    needs.eager_only(home, since=(2, 2))

    class Twice(home.keras.layers.Layer):
        def call(self, x):
            return 2 * x

    model = home.keras.Sequential([home.keras.layers.Input((3,)), Twice(), home.keras.layers.Dense(1)])
    model.compile(legacyga.wrap(home.keras.optimizers.SGD(0.1), 2), "mse")
    path = str(tmpdir.join("model.keras" if home.is_keras3 else "model.h5"))
    model.save(path)
    with home.keras.utils.custom_object_scope({"Twice": Twice}):
        assert legacyga.load_model(path, keras=home.keras).optimizer.gradient_accumulation_steps == 2


def test_an_attribute_named_weights(home):
    """The newer optimizers have none of their own."""
    needs.eager_only(home)
    if hasattr(home.keras.optimizers.SGD(0.1), "weights"):
        skips.senseless("weights are the optimizer's own")

    class Mine(home.keras.optimizers.SGD):
        def __init__(self, learning_rate=0.1, **kwargs):
            super(Mine, self).__init__(learning_rate, **kwargs)
            self.weights = None

    variables = home.variables([np.ones(2, "float32")])
    optimizer = legacyga.wrap(Mine(), 2)
    optimizer.build(variables)
    values = [np.array(home.value(each)) for each in variables_of(optimizer)]
    optimizer.set_weights(values)
    store = {}
    optimizer.save_own_variables(store)
    assert len(store) == len(values)


@pytest.mark.capability("R8 partial windows")
def test_a_variable_twice_after_a_build(home):
    """Two losses may give two gradients of one variable in one call."""
    needs.eager_only(home)
    ends = []
    for is_built in (False, True):
        (variable,) = home.variables([np.ones(1, "float32")])
        optimizer = legacyga.wrap(home.keras.optimizers.SGD(1.0), 2)
        if is_built and hasattr(optimizer, "build"):
            optimizer.build([variable])
        elif home.is_keras3:
            optimizer.build([variable])
        for _ in range(2):
            optimizer.apply_gradients([(home.tf.constant([each]), variable) for each in (0.25, 0.5)])
        ends.append(float(home.value(variable)[0]))
    assert ends == [0.25, 0.25]
