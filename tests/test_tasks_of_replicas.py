"""Tasks by turns under MirroredStrategy, each a traced function of its own: as on one device."""

import homes
import numpy as np
import pytest
import skips

pytestmark = [pytest.mark.capability("R12 replicas"), pytest.mark.long]
# What each mini-step has gradients for: the first window ends in a function that has never seen the last variable's.
TASKS = ["ab ", "a c", "ab ", "a c", "ab ", "a c", "ab ", "ab ", "ab ", "a  ", "a  ", "a  "]

PROGRAM = """
import sys
import numpy as np
import homes
import oracle
import legacyga
import test_tasks_of_replicas as cases

home, strategy = homes.start_on_replicas(sys.argv[1])
tf = home.tf


def train(cls, kwargs, replicas):
    with strategy.scope() if replicas > 1 else tf.init_scope():
        variables = home.variables([np.ones(3, "float32") * i for i in (1, 2, 3)])
        optimizer = legacyga.wrap(cls(0.125, **kwargs), 3)
        if hasattr(optimizer, "build"):
            optimizer.build(variables)

    def step(gradients):
        optimizer.apply_gradients(list(zip(gradients, variables)))

    @tf.function
    def mini_step(gradients):
        step(gradients) if replicas == 1 else getattr(strategy, "run", None)(step, args=(gradients,))

    for task in cases.TASKS:
        mini_step([None if each == " " else tf.fill([3], (i + 1.0) / replicas) for i, each in enumerate(task)])
    return [np.array(home.value(each)) for each in variables]


for name in ("SGD", "Adam"):
    for _, cls in home.optimizer_classes():
        if cls.__name__ == name:
            kwargs = {"weight_decay": 0.25} if "weight_decay" in cls(0.125).get_config() else {}
            one, two = [train(cls, kwargs, replicas) for replicas in (1, 2)]
            print(cls.__module__, name, oracle.farthest(two, one))
"""


def test_tasks_by_turns(home, tmpdir):
    if home.mode == "graph" or home.tf_version < (2, 2):
        skips.keras_lacks("strategy.run in eager mode, from TF 2.2 on")
    printed = homes.run_program(tmpdir, PROGRAM, home.name)
    distances = [float(line.split()[-1]) for line in printed.splitlines()]
    assert distances and np.max(distances) <= 4e-6, printed
