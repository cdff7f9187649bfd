"""Optimizers of other packages, wrapped: on micro-batches as the bare ones on the large batch.

The packages are in the environments of the label `others`, some in each.
"""

import importlib.util

import needs
import numpy as np
import oracle
import pytest
import skips
import test_programs_people_have

import legacyga

pytestmark = pytest.mark.capability("wrap: every optimizer")
K, SAMPLES, WINDOWS = 4, 4, 6
RANDOM = np.random.RandomState(53)
START = [RANDOM.randn(*shape).astype("float32") for shape in ((3, 4), (4,), (4, 2), (2,))]
X, Y = [RANDOM.randn(WINDOWS * K * SAMPLES, size).astype("float32") for size in (3, 2)]
BETAS = dict(beta_1=0.875, beta_2=0.96875, epsilon=2.0**-8)


def of_transformers(home):
    from transformers import optimization_tf

    def warmed_up():
        # Its schedule counts updates: two of warm-up, then a linear decay.
        made, _ = optimization_tf.create_optimizer(
            0.0625, WINDOWS, 2, weight_decay_rate=0.25, adam_beta1=0.875, adam_beta2=0.96875, adam_epsilon=2.0**-8
        )
        return made

    return {
        "AdamWeightDecay": lambda: optimization_tf.AdamWeightDecay(
            0.0625, weight_decay_rate=0.25, exclude_from_weight_decay=["bias"], **BETAS
        ),
        "create_optimizer": warmed_up,
    }


def of_addons(home):
    from tensorflow_addons import optimizers

    sgd, adam = home.keras.optimizers.SGD, home.keras.optimizers.Adam
    return {
        "LAMB": lambda: optimizers.LAMB(0.0625, weight_decay=0.25, exclude_from_weight_decay=["bias"], **BETAS),
        "RectifiedAdam": lambda: optimizers.RectifiedAdam(
            0.0625, total_steps=WINDOWS, warmup_proportion=0.5, min_lr=0.001, **BETAS
        ),
        "Lookahead": lambda: optimizers.Lookahead(sgd(0.0625, momentum=0.875), sync_period=2),
        "Lookahead(RectifiedAdam)": lambda: optimizers.Lookahead(optimizers.RectifiedAdam(0.0625, **BETAS), 2),
        "AdamW": lambda: optimizers.AdamW(0.25, 0.0625, **BETAS),
        "SGDW": lambda: optimizers.SGDW(0.25, 0.0625, momentum=0.875),
        "SWA": lambda: optimizers.SWA(sgd(0.0625), start_averaging=2, average_period=2),
        "MovingAverage": lambda: optimizers.MovingAverage(adam(0.0625, **BETAS), average_decay=0.5),
        "AdaBelief": lambda: optimizers.AdaBelief(0.0625, **BETAS),
        "NovoGrad": lambda: optimizers.NovoGrad(0.0625, weight_decay=0.25, **BETAS),
        "Yogi": lambda: optimizers.Yogi(0.0625),
        "LazyAdam": lambda: optimizers.LazyAdam(0.0625, **BETAS),
    }


PACKAGES = {"transformers": of_transformers, "tensorflow_addons": of_addons}


def pytest_generate_tests(metafunc):
    from conftest import home_of

    if "make" in metafunc.fixturenames:
        found = {}
        for name, make_all in PACKAGES.items():
            if importlib.util.find_spec(name):
                found.update(make_all(home_of(metafunc.config)))
        metafunc.parametrize("make", list(found.values()), ids=list(found))


@pytest.fixture(autouse=True)
def fresh(home):
    home.reset()


def trained(model, optimizer, x, y, size, loss="mse"):
    model.compile(optimizer=optimizer, loss=loss)
    model.fit(x, y, batch_size=size, shuffle=False, verbose=0)
    return model.get_weights()


def assert_as_the_large_batch(found, wanted, start):
    for now, then in zip(found, wanted):
        assert np.max(np.abs(now - then)) <= 4e-6
    assert oracle.farthest(wanted, start) > 0.01


def test_the_large_batch(home, make):
    # The bare AdamW of TensorFlow Addons races in a graph: 3 equal runs gave 3 results. At K = 1 it has an order.
    bare = legacyga.wrap(make(), 1) if home.mode == "graph" else make()
    wanted = trained(home.network(START), bare, X, Y, K * SAMPLES)
    found = trained(home.network(START), legacyga.wrap(make(), K), X, Y, SAMPLES)
    assert_as_the_large_batch(found, wanted, START)


def test_k_of_1(home, make):
    # In graph mode the bare AdamW gives three results in ten runs: it decays while gradients are read.
    needs.eager_only(home)
    wanted = trained(home.network(START), make(), X, Y, SAMPLES)
    found = trained(home.network(START), legacyga.wrap(make(), 1), X, Y, SAMPLES)
    for now, then in zip(found, wanted):
        np.testing.assert_array_equal(now, then)


def tiny_bert():
    from transformers import BertConfig

    none = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertConfig(
        vocab_size=32,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        **none,
    )


def test_a_tiny_bert(home):
    """Rows of embeddings, layer norms that do not decay, a warm-up: as transformers' own scripts train it."""
    needs.eager_only(home)
    from transformers import TFBertForSequenceClassification

    config = tiny_bert()
    ids, labels = RANDOM.randint(0, 32, (len(X), 8)), RANDOM.randint(0, 2, len(X))
    x, results, start = {"input_ids": ids, "attention_mask": np.ones_like(ids)}, [], None
    for steps in (None, K):
        model = TFBertForSequenceClassification(config)
        model({name: value[:1] for name, value in x.items()})
        start = model.get_weights() if start is None else start
        model.set_weights(start)
        optimizer = of_transformers(home)["create_optimizer"]()
        optimizer = optimizer if steps is None else legacyga.wrap(optimizer, steps)
        loss = home.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        results.append(trained(model, optimizer, x, labels, SAMPLES * (1 if steps else K), loss))
    assert_as_the_large_batch(results[1], results[0], start)


@pytest.mark.parametrize("head", ["SequenceClassification", "MaskedLM"])
def test_a_tiny_bert_in_slices(home, head):
    """The diff of docs/programs.md, and a loss of transformers' own with a number for each sample, as it is."""
    needs.eager_only(home)
    if head == "MaskedLM" and home.tf_version < (2, 10):
        skips.keras_lacks("ignore_class")
    import transformers

    ids = np.random.RandomState(5).randint(1, 32, (21, 8))
    attended = (np.arange(8) < np.random.RandomState(6).randint(2, 9, (21, 1))).astype("int32")
    inputs = {"input_ids": ids, "attention_mask": attended}
    labels = ids[:, 0] % 2 if head == "SequenceClassification" else np.where(attended, ids, -100)
    old, new = test_programs_people_have.sides("A transformers model")[0]
    if head == "SequenceClassification":
        new = old.replace("model.fit", "legacyga.micro_batch(model, 3)\nmodel.fit")
    make = getattr(transformers, "TFBertFor" + head)
    assert_alike(home, (old, new), lambda: make(tiny_bert()), inputs, labels)


def test_a_tiny_gpt_in_slices(home):
    """Without its cache, which has no row for each sample."""
    needs.eager_only(home)
    if home.tf_version < (2, 10):
        skips.keras_lacks("ignore_class")
    import transformers

    none = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2, **none)
    ids = np.random.RandomState(5).randint(0, 32, (21, 8))
    new = test_programs_people_have.sides("A transformers model")[0][1]
    whole = new.replace("legacyga.micro_batch(model, 3)\n", "")
    assert whole != new
    assert_alike(home, (whole, new), lambda: transformers.TFGPT2LMHeadModel(config), {"input_ids": ids}, ids)


def assert_alike(home, programs, make, inputs, labels):
    """That two programs of docs/programs.md, the second in slices, train models to the same weights."""
    results, start = [], None
    for code in programs:
        model = make()
        model({name: value[:1] for name, value in inputs.items()})
        start = model.get_weights() if start is None else start
        model.set_weights(start)
        names = dict(model=model, inputs=inputs, labels=labels, epochs=2, legacyga=legacyga)
        names["optimizer"] = home.keras.optimizers.SGD(0.25, momentum=0.875)
        names["SparseCategoricalCrossentropy"] = home.keras.losses.SparseCategoricalCrossentropy
        test_programs_people_have.make(code, **names)
        results.append(model.get_weights())
    assert legacyga.recomputes(model)
    assert_as_the_large_batch(results[1], results[0], start)
