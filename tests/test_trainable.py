"""Layers that are frozen, and made trainable again."""

import kinds
import needs
import oracle
import pytest
from dense import (
    BATCHES,
    RATE,
    START,
    assert_alike_errors,
    assert_bits,
    assert_close,
    error_of,
    fit,
    make,
    refuses_new_variables,
    train,
    trained,
)
from homes import generation_of

import legacyga

pytestmark = pytest.mark.capability("ways to train")


def pytest_generate_tests(metafunc):
    kinds.parametrize(metafunc, "adam", "Adam")


@pytest.fixture
def fresh(home):
    needs.wrap(home)
    home.reset(plain_session=True)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
def test_a_frozen_layer_and_one_made_trainable_with_a_new_optimizer(home, adam):
    model = home.network(START)
    model.layers[0].trainable = False
    model.compile(optimizer=legacyga.wrap(make(home, adam), 3), loss="mse")
    fit(model, BATCHES[:8])
    half = trained(BATCHES[:8], 3, trainable=[2, 3])
    weights = model.get_weights()
    assert_bits(weights[:2], START[:2])
    assert_close(weights, half)
    model.layers[0].trainable = True
    model.compile(optimizer=legacyga.wrap(make(home, adam), 2), loss="mse")
    fit(model, BATCHES[8:])
    assert_close(model.get_weights(), trained(BATCHES[8:], 2, start=half))


@pytest.mark.usefixtures("fresh")
def test_a_layer_made_trainable_with_the_same_optimizer(home, adam):
    """What the bare optimizer keeps: v1 the count of updates alone, v2 the moments of the layer that trained before."""

    def thaw(optimizer):
        model = home.network(START)
        model.layers[0].trainable = False
        model.compile(optimizer=optimizer, loss="mse")
        train(model, BATCHES[:6])
        model.layers[0].trainable = True
        model.compile(optimizer=optimizer, loss="mse")
        return model

    if refuses_new_variables(adam):
        bare = error_of(train, thaw(make(home, adam)), BATCHES[6:])
        ours = error_of(train, thaw(legacyga.wrap(make(home, adam), 3)), BATCHES[6:])
        assert_alike_errors(ours, bare)
        return
    model = thaw(legacyga.wrap(make(home, adam), 3))
    train(model, BATCHES[6:])
    expected = oracle.Adam(RATE)
    half = trained(BATCHES[:6], 3, optimizer=expected, trainable=[2, 3])
    if generation_of(adam) == "v1":
        expected.state.clear()
    assert_close(model.get_weights(), trained(BATCHES[6:], 3, optimizer=expected, start=half))
    assert int(home.value(model.optimizer.iterations)) == 4


@pytest.mark.slow
def test_compile_twice_in_one_graph(home):
    """As Mask R-CNN does: train the head with one optimizer, then all layers with another."""
    model = home.network(START)
    head = oracle.double(START)

    def head_only(weights, x, y):
        return [g * (i >= 2) for i, g in enumerate(oracle.gradients(weights, x, y))]

    model.layers[0].trainable = False
    model.compile(loss="mse", optimizer=legacyga.MySGD(lr=0.1, momentum=0.9, steps_per_update=4, keras=home.keras))
    fit(model, BATCHES)
    head = oracle.train(head, BATCHES, 4, oracle.SGD(lr=0.1, momentum=0.9), head_only)[-1]
    assert_close(model.get_weights(), head)
    model.layers[0].trainable = True
    model.compile(loss="mse", optimizer=legacyga.MySGD(lr=0.05, momentum=0.9, steps_per_update=2, keras=home.keras))
    fit(model, BATCHES)
    assert_close(model.get_weights(), oracle.train(head, BATCHES, 2, oracle.SGD(lr=0.05, momentum=0.9))[-1])
