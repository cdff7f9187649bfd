"""K after a restore: the open window ends with the K it began with; then the program's K or the one set last holds."""

import contextlib
import functools

import kinds
import needs
import numpy as np
import oracle
import pytest
import skips
import test_weights
from kinds import MOMENTUM, RATE
from slow import slow

import legacyga
from legacyga.backend import homes

pytestmark = pytest.mark.capability("R8 change of K")

BATCHES = test_weights.batches_of([4] * 24, seed=71)


class Case(object):
    """A run that is saved, and the program that restores it.

    Args:
        made: the K that the saved run's optimizer is made with.
        set_to: None, or (a number of mini-steps, the K that is set after so many).
        saved: the mini-steps after which it is saved.
        program: the K that the restoring program's optimizer is made with.
        then: the K that it tells after the restore, that of the next window.
        windows: the mini-steps of all windows, before the save and after it.
        sets: the K that the program sets after the restore, None for none.
    """

    def __init__(self, made, set_to, saved, program, then, windows, sets=None):
        self.made, self.set_to, self.saved, self.program = made, set_to, saved, program
        self.then, self.windows, self.sets = then, windows, sets


CASES = {
    "another K": Case(4, None, 6, 3, 3, [4, 4, 3, 3]),
    "a larger K": Case(2, None, 5, 5, 5, [2, 2, 2, 5]),
    "set, the same program": Case(3, (4, 2), 5, 3, 2, [3, 3, 2, 2]),
    "set, another program": Case(3, (4, 2), 5, 4, 4, [3, 3, 4, 4]),
    "between two windows": Case(2, None, 4, 3, 3, [2, 2, 3, 3]),
    "set after the restore": Case(4, None, 6, 3, 2, [4, 4, 2, 2], sets=2),
}
# A file that is loaded as a model brings its own K.
FROM_FILE = {
    "not set": Case(4, None, 6, None, 4, [4, 4, 4]),
    "set": Case(3, (4, 2), 5, None, 2, [3, 3, 2, 2]),
}


def pytest_generate_tests(metafunc):
    from conftest import home_of

    if "kind" in metafunc.fixturenames:
        home = home_of(metafunc.config)
        found = [each for each in kinds.of(home) if not each.is_adam and each.generation != "train"]
        # In eager mode MySGD is one of them.
        found = [each for each in found if each.cls or home.mode == "graph"]
        metafunc.parametrize("kind", kinds.params(found))


@pytest.fixture(autouse=True)
def start_anew(home):
    forget(home)


def forget(home):
    """As in a new process: another graph. Eager models have nothing in common, and Keras takes long to forget them."""
    if home.mode == "graph":
        home.reset(plain_session=True)


# ----------------------------------------------------------------------------- ways of saving: (save, restore) pairs


class ByWeights(object):
    """get_weights and set_weights; the variables are there when something was trained."""

    deferred = False

    def save(self, home, model, folder):
        return home.optimizer_weights(model.optimizer), model.get_weights()

    def restore(self, home, model, saved):
        model.train_on_batch(*BATCHES[-1])
        home.set_optimizer_weights(model.optimizer, saved[0])
        model.set_weights(saved[1])


class ByCheckpoint(object):
    """tf.train.Checkpoint, into an optimizer whose variables are there, or are not."""

    def __init__(self, built):
        self.deferred = not built

    def save(self, home, model, folder):
        return self.checkpoint(home, model).save(str(folder.join("checkpoint")))

    def restore(self, home, model, saved):
        if not self.deferred:
            build = getattr(model.optimizer, "build", None) or model.optimizer._create_all_weights
            build(model.trainable_variables)
        self.checkpoint(home, model).restore(saved)

    def checkpoint(self, home, model):
        return home.tf.train.Checkpoint(model=model, optimizer=model.optimizer)


class ByModelWeights(object):
    """save_weights and load_weights, which take the optimizer's along but for HDF5 before Keras 3."""

    def __init__(self, home):
        self.deferred = not home.is_keras3
        self.ending = ".weights.h5" if home.is_keras3 else ""

    def save(self, home, model, folder):
        path = str(folder.join("weights" + self.ending))
        model.save_weights(path)
        return path

    def restore(self, home, model, saved):
        if not self.deferred:
            model.optimizer.build(model.trainable_variables)
        model.load_weights(saved)


WAYS = ["set_weights", "Checkpoint, built", "Checkpoint", "load_weights"]


def way_of(home, name):
    if name != "set_weights" and home.mode == "graph":
        skips.senseless("graph mode: set_weights, HDF5, and the sessions of tf.compat.v1.train")
    made = dict(zip(WAYS, (ByWeights(), ByCheckpoint(True), ByCheckpoint(False), ByModelWeights(home))))
    return made[name]


# ------------------------------------------------------------------------------------------------------------- trained


def model_of(home, kind, steps):
    model = test_weights.network(home)
    kwargs = {} if home.mode == "graph" else dict(run_eagerly=True)
    model.compile(optimizer=kind.make(steps), loss="mse", **kwargs)
    return model


def run_until_saved(home, kind, case):
    model = model_of(home, kind, case.made)
    for i, batch in enumerate(BATCHES[: case.saved]):
        if case.set_to and case.set_to[0] == i:
            model.optimizer.gradient_accumulation_steps = case.set_to[1]
        model.train_on_batch(*batch)
    return model


def updates_of(windows):
    """The updates made after each mini-step."""
    ends = set(np.cumsum(windows).tolist())
    return np.cumsum([i in ends for i in range(1, sum(windows) + 1)]).tolist()


def expected(windows):
    """The oracle's weights after windows of these lengths."""
    large, begin = [], 0
    for steps in windows:
        x, y = [np.concatenate(each) for each in zip(*BATCHES[begin : begin + steps])]
        large.append((x, y))
        begin += steps
    return test_weights.expected(test_weights.known(large), 1, oracle.SGD(RATE, MOMENTUM))


def assert_goes_on(home, model, case, tells_at_once):
    """The K told, the mini-steps on which updates fall, and the weights at the end."""
    optimizer, updates, told = model.optimizer, [], []
    if tells_at_once:
        told.append(optimizer.gradient_accumulation_steps)
    for batch in BATCHES[case.saved : sum(case.windows)]:
        model.train_on_batch(*batch)
        updates.append(int(home.value(optimizer.iterations)))
        told.append(optimizer.gradient_accumulation_steps)
    assert updates == updates_of(case.windows)[case.saved :]
    assert told == [case.then] * len(told)
    assert int(home.value(optimizer.mini_step)) == 0
    distance = test_weights.off(model.get_weights(), expected(case.windows))
    assert distance <= 4e-6, distance


def assert_restored(home, kind, way, case, folder):
    way, model = way_of(home, way), run_until_saved(home, kind, case)
    if isinstance(way, ByWeights) and not home.is_keras3 and not hasattr(model.optimizer, "get_weights"):
        skips.keras_lacks("these optimizers have no get_weights")
    saved = way.save(home, model, folder)
    forget(home)
    model = model_of(home, kind, case.program)
    way.restore(home, model, saved)
    if case.sets:
        model.optimizer.gradient_accumulation_steps = case.sets
    assert_goes_on(home, model, case, tells_at_once=not way.deferred or case.sets)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["another K", "set, the same program"])
@pytest.mark.long
def test_a_program_restores_a_run(home, kind, way, name, tmpdir):
    assert_restored(home, kind, way, CASES[name], tmpdir)


@pytest.mark.parametrize("way", ["set_weights", slow("Checkpoint")])
@pytest.mark.parametrize(
    "name", ["a larger K", "set, another program", slow("between two windows"), slow("set after the restore")]
)
def test_further_cases(home, way, name, tmpdir):
    assert_restored(home, kinds.Kind(home), way, CASES[name], tmpdir)


@pytest.mark.parametrize("name", [slow("not set"), "set"])
def test_a_model_is_loaded_from_a_file(home, kind, name, tmpdir):
    """The K is that of the file, and the window that was open ends with the one it began with."""
    case, path = FROM_FILE[name], str(tmpdir.join("model.keras" if home.is_keras3 else "model.h5"))
    if kind.generation == "v3" and home.tf_version < (2, 11):
        skips.keras_lacks("HDF5 does not take along the bare experimental optimizers")
    model = run_until_saved(home, kind, case)
    custom_objects = {type(model.optimizer).__name__: type(model.optimizer)}
    model.save(path)
    forget(home)
    model = home.keras.models.load_model(path, custom_objects=custom_objects)
    assert_goes_on(home, model, case, tells_at_once=True)


def test_bits_of_a_run_that_was_not_stopped(home, tmpdir):
    """Saved within a window after K was set, restored by the same program."""
    case, way = CASES["set, the same program"], way_of(home, "set_weights")
    kind = kinds.Kind(home)
    model = run_until_saved(home, kind, case)
    saved = way.save(home, model, tmpdir)
    weights = []
    for restored in (False, True):
        if restored:
            forget(home)
            model = model_of(home, kind, case.program)
            way.restore(home, model, saved)
        for batch in BATCHES[case.saved : sum(case.windows)]:
            model.train_on_batch(*batch)
        weights.append(model.get_weights() + home.optimizer_weights(model.optimizer))
    for now, then in zip(*weights):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("schedule", [slow(None), "function"])
def test_the_callback_after_a_restore(home, schedule, tmpdir):
    """A restored window of 4 with 2 mini-steps in it ends as such; then its schedule, or the program's K, holds."""
    way = way_of(home, "set_weights" if home.mode == "graph" else "Checkpoint")
    kind, asked = kinds.Kind(home), []
    saved = way.save(home, run_until_saved(home, kind, CASES["another K"]), tmpdir)
    forget(home)
    model = model_of(home, kind, 3)
    way.restore(home, model, saved)

    def steps_after(updates):
        asked.append(updates)
        return {2: 2, 3: 5}.get(updates, 7)

    x, y = [np.concatenate(each) for each in zip(*BATCHES[6:11])]
    callback = legacyga.GradientAccumulationCallback(schedule and steps_after, "carry")
    history = model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[callback]).history
    if schedule:
        # 2 mini-steps, then a window of 2, and one of the next.
        assert history["updates"] == [3] and history["gradient_accumulation_steps"] == [5]
        assert 2 in asked and 3 in asked and int(home.value(model.optimizer.mini_step)) == 1
        assert test_weights.off(model.get_weights(), expected([4, 4, 2])) <= 4e-6
    else:
        assert history["updates"] == [3] and history["gradient_accumulation_steps"] == [3]
        assert test_weights.off(model.get_weights(), expected([4, 4, 3])) <= 4e-6


# ------------------------------------------------------------------------- sessions and estimators, which restore alone


def trains_in_sessions(home):
    if home.mode != "graph" or home.name == "keras":
        skips.elsewhere("sessions are of graph mode, and belong to the run of tf.keras")
    return homes.TensorFlow().v1


START = test_weights.START[0]
GRADIENTS = [np.random.RandomState(i).randn(*START.shape).astype("float32") + 1 for i in range(16)]


def expected_of_gradients(windows):
    sgd, values, begin = oracle.SGD(RATE, MOMENTUM), [START.astype("float64")], 0
    for steps in windows:
        values = sgd.update(values, [np.mean(np.float64(GRADIENTS[begin : begin + steps]), axis=0)])
        begin += steps
    return values


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.long
def test_a_monitored_session(home, name, tmpdir):
    """Run again in its folder it restores what it finds there."""
    v1, case = trains_in_sessions(home), CASES[name]
    if case.saved < case.windows[0]:
        skips.senseless("a checkpoint is saved when there was an update")
    runs = [
        (case.made, 0, case.saved, case.set_to),
        (case.program, case.saved, sum(case.windows), (case.saved, case.sets)),
    ]
    counted, told = [], []
    for steps, begin, end, set_to in runs:
        with home.tf.Graph().as_default():
            variable = v1.get_variable("value", initializer=START, use_resource=True)
            fed = v1.placeholder("float32", START.shape)
            global_step = v1.train.get_or_create_global_step()
            optimizer = legacyga.wrap(v1.train.MomentumOptimizer(RATE, MOMENTUM), steps)
            train = optimizer.apply_gradients([(fed, variable)], global_step=global_step)
            with v1.train.MonitoredTrainingSession(checkpoint_dir=str(tmpdir), log_step_count_steps=None) as session:
                # Its own session is no default session; setting K and reading it ask for one.
                with contextlib.ExitStack() as entered:
                    entered.enter_context(session._tf_sess().as_default())
                    for i in range(begin, end):
                        if set_to and set_to[1] and set_to[0] == i:
                            optimizer.gradient_accumulation_steps = set_to[1]
                        if begin:
                            told.append(optimizer.gradient_accumulation_steps)
                        session.run(train, {fed: GRADIENTS[i]})
                        counted.append(int(session.run(global_step)))
                    found = session.run(variable)
    assert counted == updates_of(case.windows)
    assert told == [case.then] * len(told)
    assert test_weights.off([found], expected_of_gradients(case.windows), [START]) <= 4e-6


@pytest.mark.long
@pytest.mark.parametrize("name", ["another K", "between two windows"])
def test_an_estimator_run_again(home, name, tmpdir):
    """With another K in the same model_dir."""
    v1, case = trains_in_sessions(home), CASES[name]
    if not hasattr(home.tf, "estimator"):
        skips.keras_lacks("this TensorFlow has no estimators")

    def model_fn(features, mode, params):
        variable = v1.get_variable("value", initializer=START, use_resource=True)
        optimizer = legacyga.wrap(v1.train.MomentumOptimizer(RATE, MOMENTUM), params["steps"])
        loss = v1.reduce_sum(variable * features)
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return home.tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    for steps, begin, end in ((case.made, 0, case.saved), (case.program, case.saved, sum(case.windows))):
        estimator = home.tf.estimator.Estimator(model_fn, str(tmpdir), params=dict(steps=steps))
        gradients = np.array(GRADIENTS[begin:end])
        estimator.train(functools.partial(home.tf.data.Dataset.from_tensor_slices, gradients))
    assert int(estimator.get_variable_value("global_step")) == len(case.windows)
    found = estimator.get_variable_value("value")
    assert test_weights.off([found], expected_of_gradients(case.windows), [START]) <= 4e-6


def restored_later(home, kind, tmpdir, steps=3, program=None):
    """A model and its optimizer whose state, 2 mini-steps of a window of `steps`, comes when it is built."""
    if home.mode == "graph" or home.tf_version < (2, 2) or kind.generation == "v3" and home.tf_version < (2, 11):
        skips.keras_lacks("no checkpoint that waits for variables, or none of these optimizers")
    model = home.network(test_weights.START)
    model.compile(optimizer=kind.make(steps), loss="mse", run_eagerly=True)
    for batch in BATCHES[: steps + 2]:
        model.train_on_batch(*batch)
    model.optimizer.gradient_accumulation_steps = 8
    names = dict(model=model, optimizer=model.optimizer)
    path = home.tf.train.Checkpoint(**names).save(str(tmpdir.join("saved")))
    again = home.network(test_weights.START)
    again.compile(optimizer=kind.make(program or steps), loss="mse", run_eagerly=True)
    home.tf.train.Checkpoint(model=again, optimizer=again.optimizer).restore(path)
    return again


def test_a_window_that_is_dropped_before_it_is_there(home, kind, tmpdir):
    model = restored_later(home, kind, tmpdir)
    with pytest.raises(ValueError, match="A checkpoint was restored, and there are no variables yet"):
        legacyga.flush(model.optimizer)
    model.optimizer.drop_windows()
    before = model.get_weights()
    model.train_on_batch(*BATCHES[0])
    assert int(home.value(model.optimizer.mini_step)) == 1 and int(home.value(model.optimizer.iterations)) == 1
    for now, then in zip(model.get_weights(), before):
        np.testing.assert_array_equal(now, then)


def test_two_restores_before_the_state_is_there(home, kind, tmpdir):
    """The later one holds, also where the earlier one's window was dropped."""
    model = restored_later(home, kind, tmpdir)
    model.optimizer.drop_windows()
    checkpoint = home.tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    for _ in range(2):
        status = checkpoint.restore(str(tmpdir.join("saved-1")))
        # What they ask a save asks, too.
        status.assert_existing_objects_matched().assert_nontrivial_match()
    assert int(home.value(model.optimizer.mini_step)) == 2
    model.train_on_batch(*BATCHES[5])
    assert int(home.value(model.optimizer.mini_step)) == 0 and int(home.value(model.optimizer.iterations)) == 2


def test_what_is_asked_before_the_state_is_there(home, kind, tmpdir):
    """It is the file's: K that the saved run had set last, or the program's own, and the window under way."""
    model = restored_later(home, kind, tmpdir)
    optimizer = model.optimizer
    assert optimizer.gradient_accumulation_steps == 8 and int(home.value(optimizer.mini_step)) == 2
    assert int(home.value(optimizer.skipped_mini_steps)) == 0
    for _ in range(2):
        (getattr(optimizer, "build", None) or optimizer._create_all_weights)(model.trainable_variables)
        assert optimizer.gradient_accumulation_steps == 8 and int(home.value(optimizer.mini_step)) == 2
    model = restored_later(home, kind, tmpdir)
    model.optimizer.gradient_accumulation_steps = 5
    assert model.optimizer.gradient_accumulation_steps == 5
    model.optimizer.drop_windows()
    assert int(home.value(model.optimizer.mini_step)) == 0
    model = restored_later(home, kind, tmpdir, program=4)
    assert model.optimizer.gradient_accumulation_steps == 4 and int(home.value(model.optimizer.mini_step)) == 2


def test_nothing_is_saved_before_the_state_is_there(home, kind, tmpdir):
    """It would be lost without a word: a copy of the model alone is one."""
    model = restored_later(home, kind, tmpdir)
    way = "build" if hasattr(model.optimizer, "build") else "_create_all_weights"
    wrong = r"A checkpoint was restored, and there are no variables yet .*Take a mini-step first, or call "
    wrong += r"optimizer.{}\(model.trainable_variables\)".format(way)
    checkpoint = home.tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    saves = [
        lambda: model.save(str(tmpdir.join("model.keras" if home.is_keras3 else "model.h5"))),
        lambda: model.optimizer.get_config(),
    ]
    saves.append(lambda: checkpoint.save(str(tmpdir.join("again"))))
    if home.is_keras3:
        saves.append(lambda: model.save_weights(str(tmpdir.join("model.weights.h5"))))
    else:
        saves.append(lambda: model.save(str(tmpdir.join("folder")), save_format="tf"))
    if not home.is_keras3:
        saves.append(lambda: model.save_weights(str(tmpdir.join("weights"))))
    for save in saves:
        with pytest.raises(ValueError, match=wrong):
            save()
    if not home.is_keras3:
        model.save(str(tmpdir.join("alone.h5")), include_optimizer=False)
    model.train_on_batch(*BATCHES[5])
    path = checkpoint.save(str(tmpdir.join("again")))
    other = home.network(test_weights.START)
    other.compile(optimizer=kind.make(3), loss="mse", run_eagerly=True)
    home.tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
    for each in (model, other):
        for batch in BATCHES[6:]:
            each.train_on_batch(*batch)
    for now, then in zip(other.get_weights(), model.get_weights()):
        np.testing.assert_array_equal(now, then)


def test_a_schedule_that_is_set_before_the_state_comes(home, kind, tmpdir):
    """The K that the saved run had set is older."""
    model = restored_later(home, kind, tmpdir)
    x, y = (np.concatenate(each) for each in zip(*BATCHES[:8]))
    callback = legacyga.GradientAccumulationCallback(3, partial_window="carry")
    model.fit(x, y, batch_size=len(x) // 8, epochs=1, shuffle=False, verbose=0, callbacks=[callback])
    assert model.optimizer.gradient_accumulation_steps == 3
    # The window that was open ends with its third mini-step; then two of three, and one mini-step.
    assert int(home.value(model.optimizer.iterations)) == 1 + 1 + 2 and int(home.value(model.optimizer.mini_step)) == 1


def test_k_of_the_run_before_the_last(home, tmpdir):
    """What a run saves is its own K, not that of the run which it was restored from."""
    needs.eager_only(home, since=(2, 2))

    def run(made, restores=None, sets=None):
        variables = home.variables([np.ones(2, "float32")])
        optimizer = legacyga.wrap(home.bare_sgd(lr=0.25), made)
        if home.is_keras3:
            optimizer.build(variables)
        checkpoint = home.tf.train.Checkpoint(
            optimizer=optimizer, variable=getattr(variables[0], "_value", variables[0])
        )
        if restores:
            home.read_checkpoint(checkpoint, restores)
        if sets:
            optimizer.gradient_accumulation_steps = sets
        optimizer.apply_gradients(zip([home.tf.ones(2)], variables))
        return optimizer, checkpoint.write(str(tmpdir.join("after-{}".format(made))))

    _, first = run(2, sets=8)
    second, path = run(4, first)
    assert second.gradient_accumulation_steps == 4
    third, _ = run(2, path)
    assert third.gradient_accumulation_steps == 2


@pytest.mark.parametrize("schedule", [slow(4), lambda updates: 4], ids=["int", "function"])
def test_a_callback_that_restores_after_ours(home, tmpdir, schedule):
    """As BackupAndRestore does: the schedule holds all the same."""
    needs.eager_only(home, since=(2, 2))

    class Restores(home.keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            home.read_checkpoint(checkpoint, path)

    model = home.network(test_weights.START)
    optimizer = legacyga.wrap(home.bare_sgd(lr=0.25), 2)
    model.compile(loss="mse", optimizer=optimizer)
    x, y = BATCHES[0]
    model.fit(x, y, batch_size=1, epochs=1, verbose=0)
    optimizer.gradient_accumulation_steps = 8
    checkpoint = home.tf.train.Checkpoint(optimizer=optimizer)
    path = checkpoint.write(str(tmpdir.join("checkpoint")))
    callbacks = [legacyga.GradientAccumulationCallback(schedule), Restores()]
    history = model.fit(np.concatenate([x] * 4), np.concatenate([y] * 4), batch_size=1, verbose=0, callbacks=callbacks)
    assert history.history["updates"] == [len(x) // 2 + len(x) * 4 // 4]
