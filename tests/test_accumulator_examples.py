"""The examples of training loops of one's own run, and equal the large batch."""

import re

import pytest
import skips
from test_examples import distances_of, run


def arguments(home):
    if home.mode != "eager":
        skips.senseless("graph mode: the loops of these examples are eager TensorFlow 2")
    return ["--small", "--home", home.name]


@pytest.mark.capability("demo and examples")
def test_custom_loop(home):
    printed = run("custom_loop.py", *arguments(home))
    distances = distances_of(printed)
    assert distances["with weights"] <= 4e-6 and distances["without"] > 1e-3, printed
    # 450 samples in batches of 96, twice over.
    assert re.findall(r"^\S.*  +(\d+)  +\d\.\d+  +\d\.\d+ ", printed, re.MULTILINE) == ["10"] * 3, printed


@pytest.mark.capability("demo and examples")
def test_embeddings(home):
    printed = run("embeddings.py", *arguments(home))
    assert distances_of(printed)["K = 4"] <= 4e-6, printed
    rows = re.findall(r"  (\d+) of (\d+)  +([.\d]+) ", printed)
    # The same rows, a fraction of all; and a guess is right once in 16 times.
    assert len(rows) == 2 and rows[0] == rows[1], printed
    assert 0 < int(rows[0][0]) < int(rows[0][1]) / 2 and float(rows[0][2]) > 0.2, printed


@pytest.mark.capability("demo and examples")
@pytest.mark.parametrize("name", ["custom_loop.py", "embeddings.py"])
def test_on_tensorflow_1_they_say_what_they_need(home, name):
    if home.tf_version >= (2,):
        skips.senseless("TensorFlow 1 only")
    with pytest.raises(AssertionError, match="needs TensorFlow 2. Received: TensorFlow 1.*Take legacyga.wrap"):
        run(name)
