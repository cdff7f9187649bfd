"""What a user of the home expects of a wrapped optimizer: class, attributes, config, weights, copies, the one given."""

import copy

import kinds
import lines
import needs
import numpy as np
import oracle
import pytest
import skips
import test_wrap
from dense import (
    RATE,
    START,
    applied,
    assert_bits,
    assert_close,
    error_of,
    gradients_by_hand,
    make,
    without_numbers,
)
from homes import variables_of
from slow import slow
from test_one_result import all_variables

import legacyga

pytestmark = pytest.mark.capability("wrap: surface")


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "adam", "Adam")


@pytest.fixture(autouse=True)
def fresh(home):
    needs.wrap(home)
    home.reset(plain_session=True)


# The one that wrap is given


def test_the_optimizer_given_is_not_changed_and_its_state_is_kept(home):
    """Four updates at once, and two, a wrap, and two more: the same; and the two of the original stay two."""
    home.reset()
    inner = test_wrap.adam(home)
    half = home.apply_to(test_wrap.START, inner, test_wrap.means(5)[:2])[-1] if home.mode == "graph" else None
    if home.mode == "graph":
        wrapped = legacyga.wrap(inner, 5)
        after = home.apply_to(half, wrapped, test_wrap.GRADIENTS[10:])[-1]
    else:
        variables = home.variables(test_wrap.START)
        home.apply_to(variables, inner, test_wrap.means(5)[:2])
        wrapped = legacyga.wrap(inner, 5)
        after = home.apply_to(variables, wrapped, test_wrap.GRADIENTS[10:])[-1]
    whole = home.apply_to(test_wrap.START, test_wrap.adam(home), test_wrap.means(5))[-1]
    for now, wanted, start in zip(after, whole, test_wrap.START):
        assert np.max(np.abs(now - wanted)) <= 2e-6 * np.max(np.abs(wanted - start))
    assert int(home.value(inner.iterations)) == 2
    assert int(home.value(wrapped.iterations)) == 4


def state_of(home, optimizer):
    """The values of an optimizer's variables, its config, and the names on the object."""
    return (
        [np.array(home.value(each)) for each in variables_of(optimizer)],
        optimizer.get_config(),
        sorted(vars(optimizer)),
    )


@pytest.mark.parametrize("steps", [slow(1), 3])
def test_wrapping_an_optimizer_that_has_trained(home, adam, steps):
    """It goes on from the state, in a model of its own; the one passed in keeps its bits, its config and its names."""
    inner = make(home, adam)
    fed = gradients_by_hand(2 + 2 * steps)
    if home.mode == "graph":
        half = home.apply_to(START, inner, fed[:2])[-1]
    else:
        half = home.variables(START)
        home.apply_to(half, inner, fed[:2])
    values, config, names = state_of(home, inner)
    optimizer = legacyga.wrap(inner, steps)
    after = home.apply_to(half, optimizer, fed[2:])[-1]
    assert int(home.value(optimizer.iterations)) == 4
    values_after, config_after, names_after = state_of(home, inner)
    assert_bits(values_after, values)
    assert (config_after, names_after) == (config, names)
    expected = oracle.Adam(RATE)
    weights = expected.update(oracle.double(START), fed[0], range(4))
    weights = expected.update(weights, fed[1], range(4))
    assert_close(after, applied(expected, fed[2:], steps, weights))


def test_every_variable_of_the_one_given_stays(home):
    """Nadam keeps a product beside its slots: it is the copy's own."""
    needs.wrap(home)
    fed = gradients_by_hand(6)
    for _, cls in home.optimizer_classes():
        if cls.__name__ != "Nadam":
            continue
        home.reset(plain_session=True)
        inner = make(home, cls)
        if home.mode == "graph":
            half = home.apply_to(START, inner, fed[:2])[-1]
        else:
            half = home.variables(START)
            home.apply_to(half, inner, fed[:2])
        variables = all_variables(inner)
        before = [np.array(home.value(each)) for each in variables]
        assert len(before) > 2 * len(START)
        optimizer = legacyga.wrap(inner, 2)
        after = home.apply_to(half, optimizer, [each for each in fed[2:] for _ in range(2)])[-1]
        for variable, value in zip(variables, before):
            np.testing.assert_array_equal(home.value(variable), value)
        home.reset(plain_session=True)
        for now, then in zip(after, home.apply_to(START, make(home, cls), fed)[-1]):
            assert np.max(np.abs(now - then)) <= 4e-6


@pytest.mark.parametrize("name", [slow("Adagrad"), "RMSprop"])
def test_built_v1_optimizers_that_leave_iterations_out_of_their_weights(home, name):
    if home.mode != "graph":
        skips.keras_lacks(lines.NOT_THERE.format("v1 optimizers in eager mode"))
    rows = [[column.astype("float32") for column in row] for row in lines.mean_rows(lines.ROWS)]
    inner = lines.make(home, "v1", name)
    half = home.apply_to(lines.START, inner, rows[:3])[-1]
    wrapped = legacyga.wrap(inner, 1)
    after = home.apply_to(half, wrapped, rows[3:])[-1]
    for now, then in zip(after, home.apply_to(lines.START, lines.make(home, "v1", name), rows)[-1]):
        np.testing.assert_array_equal(now, then)
    assert int(home.value(wrapped.iterations)) == 6


# The one that it returns


def test_class_and_config(home):
    inner = test_wrap.adam(home)
    wrapped = legacyga.wrap(inner, 3, reduction="sum")
    assert isinstance(wrapped, type(inner)) and type(wrapped) is type(legacyga.wrap(test_wrap.adam(home), 2))
    config = wrapped.get_config()
    assert (config["gradient_accumulation_steps"], config["reduction"]) == (3, "sum")
    again = type(wrapped).from_config(config)
    assert again.get_config() == config and again.gradient_accumulation_steps == 3


def set_rate(home, optimizer, name, value):
    """As users of the home set it: by a plain attribute; in graph mode, where it is a variable, in the backend."""
    current = getattr(optimizer, name)
    if home.mode == "graph" and (hasattr(current, "assign") or hasattr(current, "initializer")):
        home.backend.set_value(current, value)
    else:
        setattr(optimizer, name, value)


def test_the_rate_is_read_and_written_as_on_the_bare_optimizer(home, adam):
    """Written in the middle of a window it takes effect at the update, as between two large batches."""
    fed = gradients_by_hand(6)
    names = [name for name in ("lr", "learning_rate") if hasattr(make(home, adam), name)]
    assert names
    for name in names:
        bare, ours = make(home, adam), legacyga.wrap(make(home, adam), 3)
        assert float(home.value(getattr(ours, name))) == float(home.value(getattr(bare, name))) == np.float32(RATE)
        start = START if home.mode == "graph" else home.variables(START)
        if home.mode == "graph":
            set_rate(home, ours, name, 0.0625)
            assert float(home.value(getattr(ours, name))) == 0.0625
            wanted = applied(oracle.Adam(0.0625), fed[:3], 3)
            assert_close(home.apply_to(start, ours, fed[:3])[-1], wanted)
            continue
        home.apply_to(start, ours, fed[:4])
        set_rate(home, ours, name, 0.0625)
        assert float(home.value(getattr(ours, name))) == 0.0625
        expected = oracle.Adam(RATE)
        weights = applied(expected, fed[:3], 3)
        expected.lr = 0.0625
        assert_close(home.apply_to(start, ours, fed[4:])[-1], applied(expected, fed[3:], 3, weights))


def test_hyperparameters_read_as_on_the_bare_optimizer(home, adam):
    """And `name`, a sane `repr`, and a config that is the bare one's and two entries."""
    kwargs = dict(beta_1=0.75, beta_2=0.875, epsilon=0.125)
    bare = make(home, adam, **kwargs)
    ours = legacyga.wrap(bare, 3)
    config = ours.get_config()
    described = config.pop("optimizer")
    assert config == {"gradient_accumulation_steps": 3, "reduction": "mean", "on_nonfinite": "propagate"}
    assert described["config"] == bare.get_config() and described["class_name"].endswith("Adam")
    for name, value in kwargs.items():
        read = [getattr(each, name) for each in (ours, bare)]
        assert [float(each if isinstance(each, float) else home.value(each)) for each in read] == [value, value]
    for name in ("name", "_name", "clipnorm", "clipvalue", "amsgrad"):
        assert getattr(ours, name, "none") == getattr(bare, name, "none")
    its_home = "tf.compat.v1.train" if kinds.generation_of(adam) == "train" else home.name
    said = "<legacyga: {} of {}, accumulating 3 steps>".format(adam.__name__, its_home)
    assert repr(ours) == str(ours) == said
    if not home.is_keras3:
        assert home.keras.optimizers.get(ours) is ours
    assert ours.gradient_accumulation_steps == 3 and int(home.value(ours.mini_step)) == 0


def test_keras_names_the_inner_class(home, adam):
    """In its errors of a variable that the optimizer was not built with, and of a checkpoint of OptimizerV2."""
    needs.eager_only(home)
    if kinds.generation_of(adam) != "v3":
        skips.keras_lacks("errors of the optimizers of TF 2.10 and newer, and of tf_keras")
    said = []
    for optimizer in (make(home, adam), legacyga.wrap(make(home, adam), 1), legacyga.wrap(make(home, adam), 2)):
        first, second = home.variables([np.zeros(2, "float32")] * 2)
        optimizer.build([first])
        with pytest.raises(KeyError) as error:
            optimizer.apply_gradients([(home.tf.ones(2), second)])
        said.append([str(error.value).replace(second.name, "")])
        assert hasattr(optimizer, "_create_or_restore_slot_variable") == (home.tf_version > (2, 10))
        if home.tf_version > (2, 10):
            with pytest.raises(ValueError) as error:
                optimizer._create_or_restore_slot_variable(slot_variable_position=None, slot_name="m", variable=second)
            said[-1].append(str(error.value))
            # Keras 2.11 forgets the `f` of the first message.
            named = said[-1] if home.tf_version >= (2, 12) else said[-1][1:]
            assert all("tf.keras.optimizers.legacy.Adam" in each for each in named)
    assert said[0] == said[1] == said[2]


def test_no_name_to_come_is_taken(home, adam):
    """Keras 3 numbers optimizers that are given no name, by their class."""
    if not home.is_keras3 or kinds.generation_of(adam) == "train":
        skips.keras_lacks("of Keras 3")

    optimizers = home.keras.optimizers

    def bare():
        return [adam(RATE), optimizers.LossScaleOptimizer(adam(RATE)), adam(lambda: RATE)]

    def names_after(make_some):
        home.reset()
        make_some()
        made = [optimizers.SGD(), optimizers.Adam()]
        return [each.name for each in made + [optimizers.LossScaleOptimizer(made[0])]]

    assert names_after(bare) == names_after(lambda: [legacyga.wrap(each, 2) for each in bare()])


def test_weights_are_the_bare_ones_and_ours_after_them(home, adam):
    fed = gradients_by_hand(5)
    bare = make(home, adam)
    home.apply_to(START, bare, [[np.mean(each, axis=0) for each in zip(*fed[:3])]])
    ours = legacyga.wrap(make(home, adam), 3)
    home.apply_to(START, ours, fed)
    theirs, mine = variables_of(bare), variables_of(ours)
    # Adam's are two for each variable, and `iterations`, which the experimental ones of TF 2.10 do not list.
    assert len(theirs) >= 2 * len(START)
    for variable, wanted in zip(mine, theirs):
        assert tuple(variable.shape) == tuple(wanted.shape) and variable.dtype == wanted.dtype
        assert without_numbers(variable.name).split("/")[-1] == without_numbers(wanted.name).split("/")[-1]
        assert_close([home.value(variable)], [home.value(wanted)])
    # K, the K it was made with, and what was skipped; the window's mini_step, left_out, weight, unit, steps; what it
    # holds of each variable, 2: the whole. Then for each the sum, and the rows that sparse gradients touched: none.
    sums = [(a + b, np.zeros(np.shape(a)[:1] or (1,), "int32")) for a, b in zip(fed[3], fed[4])]
    assert_bits(
        [home.value(each) for each in mine[len(theirs) :]],
        [3, 3, 0, 2, 0, 2, 0, 3, [2] * len(START)] + [each for pair in sums for each in pair],
    )
    if not home.is_keras3 and not hasattr(bare, "get_weights"):
        return
    weights = home.optimizer_weights(ours)
    assert_bits(weights, [home.value(each) for each in mine])
    # NumPy 1 makes float64 of a single float32 and 1.
    more = [np.add(weight, 1, dtype=np.asarray(weight).dtype) for weight in weights]
    home.set_optimizer_weights(ours, more)
    assert_bits([home.value(each) for each in mine], more)


def goes_on(home, one, other, fed):
    """The weights that two optimizers of one state lead to."""
    return [home.apply_to(START, each, fed)[-1] for each in (one, other)]


@pytest.mark.parametrize("way", [slow("from_config"), "serialize"])
def test_a_config_is_enough_to_train_the_same(home, adam, way):
    fed = gradients_by_hand(6)
    ours = legacyga.wrap(make(home, adam, beta_1=0.75, clipvalue=0.5), 3, reduction="sum")
    if way == "from_config":
        again = type(ours).from_config(ours.get_config())
    else:
        optimizers = home.keras.optimizers
        described = optimizers.serialize(ours)
        again = optimizers.deserialize(described, custom_objects=legacyga.custom_objects(home.keras))
    assert type(again) is type(ours) and again.get_config() == ours.get_config()
    one, other = goes_on(home, ours, again, fed)
    assert_bits(one, other)
    assert np.max(np.abs(one[0] - START[0])) > RATE


def test_deepcopy_as_of_the_bare_optimizer(home, adam):
    """In mid-window, where the bare one's copy is of any use: it goes on alone, to the same weights."""
    fed = gradients_by_hand(6)

    def halfway(optimizer, number):
        start = START if home.mode == "graph" else home.variables(START)
        home.apply_to(start, optimizer, fed[:number])
        return optimizer, start

    bare, variables = halfway(make(home, adam), 2)
    error = error_of(copy.deepcopy, bare)
    ours, variables = halfway(legacyga.wrap(make(home, adam), 3), 2)
    if error:
        # In graph mode, and where the optimizer holds a strategy's threads.
        assert error_of(copy.deepcopy, ours) is not None
        return
    copied = copy.deepcopy(ours)
    assert type(copied) is type(ours) and copied.get_config() == ours.get_config()
    kept = [np.array(home.value(each)) for each in variables_of(ours)]
    if int(home.value(copy.deepcopy(bare).iterations)) == 0:
        # Keras 3 copies an optimizer by its config.
        assert int(home.value(copied.iterations)) == 0 and int(home.value(copied.mini_step)) == 0
        after = home.apply_to(home.variables(START), copied, fed[:3])[-1]
        assert_close(after, applied(oracle.Adam(RATE), fed[:3], 3))
    else:
        after = home.apply_to(variables, copied, fed[2:])[-1]
        assert_close(after, applied(oracle.Adam(RATE), fed, 3))
    assert_bits([home.value(each) for each in variables_of(ours)], kept)
