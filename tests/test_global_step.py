"""tf.compat.v1.train: each window counts its updates in the global step that its own mini-steps were given."""

import numpy as np
import pytest
import skips
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("wrap: TF 1 optimizers")

RATE = 0.5
# Two lists of variables, and what is fed to each in turn; the gradient of a list's variables is what is fed.
FED = {"a": [3.0, 6.0, 4.0, 8.0, 16.0], "b": [33.0, 63.0, 96.0, 16.0, 48.0]}


@pytest.fixture(autouse=True)
def in_the_run_of_tf_keras(home):
    """These optimizers belong to no Keras: beside standalone Keras the run of tf.keras has them."""
    if home.name == "keras" and home.mode == "graph":
        skips.elsewhere("tested in the run of tf.keras")


class TwoLists(object):
    """Two mini-steps of one optimizer, each on variables of its own, with a global step or without."""

    def __init__(self, home, steps, global_steps, session=None):
        """`global_steps` is, for each list, the name of the step that it is given, or None."""
        self.home, self.session, v1 = home, session, home.v1
        self.optimizer = legacyga.wrap(v1.train.GradientDescentOptimizer(RATE), steps)
        names = sorted({name for name in global_steps.values() if name})
        if home.mode == "eager":
            self.variables = {name: [home.tf.Variable(np.zeros(2, "float32")) for _ in range(2)] for name in "ab"}
            self.steps = {name: home.tf.Variable(0, dtype="int64") for name in names}
        else:
            self.variables = {
                name: [v1.get_variable(name + str(i), initializer=np.zeros(2, "float32")) for i in range(2)]
                for name in "ab"
            }
            self.steps = {name: v1.get_variable(name + "_step", initializer=np.int64(0)) for name in names}
        self.given = {name: self.steps.get(global_steps[name]) for name in "ab"}
        if home.mode == "graph":
            self.fed = v1.placeholder("float32", ())
            self.ops = {}
            for name in "ab":
                loss = self.fed * sum(home.tf.reduce_sum(each) for each in self.variables[name])
                self.ops[name] = self.optimizer.minimize(
                    loss, var_list=self.variables[name], global_step=self.given[name]
                )
            session.run(v1.global_variables_initializer())

    def step(self, name, gradient):
        if self.home.mode == "graph":
            self.session.run(self.ops[name], {self.fed: gradient})
            return
        pairs = [(self.home.tf.fill([2], np.float32(gradient)), variable) for variable in self.variables[name]]
        self.optimizer.apply_gradients(pairs, global_step=self.given[name])

    def read(self):
        """Where each list is, and what each global step says."""
        read = self.session.run if self.session else (lambda variable: variable.numpy())
        values = {name: [np.unique(read(each)).tolist() for each in self.variables[name]] for name in "ab"}
        assert all(len({str(each) for each in found}) == 1 for found in values.values())
        return [values[name][0][0] for name in "ab"], {name: int(read(step)) for name, step in self.steps.items()}


@pytest.fixture
def two_lists(home):
    """`TwoLists` in a graph and a session of their own."""
    if home.mode == "eager":
        yield lambda *args: TwoLists(home, *args)
        return
    with home.tf.Graph().as_default() as graph:
        with home.v1.Session(graph=graph) as session:
            yield lambda *args: TwoLists(home, *args, session=session)


GIVEN = [dict(a="x", b=None), dict(a=None, b="x"), dict(a="x", b="y"), dict(a="x", b="x"), dict(a=None, b=None)]


@pytest.mark.long
@pytest.mark.parametrize("given", GIVEN, ids=lambda given: "{a}-{b}".format(**given))
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_flush(two_lists, given, order):
    """A mini-step or two of each in the window: a flush is one update of each list."""
    lists = two_lists(3, given)
    for name in order:
        for gradient in FED[name][:2]:
            lists.step(name, gradient)
    lists.step(order[0], 0.0)
    done = {order[0]: -RATE * sum(FED[order[0]][:2]) / 3, order[1]: 0.0}
    counted = {step: 1 if given[order[0]] == step else 0 for step in lists.steps}
    assert lists.read() == ([done[name] for name in "ab"], counted)
    lists.step(order[0], FED[order[0]][2])
    assert legacyga.flush(lists.optimizer) is True
    done[order[0]] -= RATE * FED[order[0]][2]
    done[order[1]] -= RATE * sum(FED[order[1]][:2]) / 2
    counted = {step: counted[step] + sum(given[name] == step for name in "ab") for step in lists.steps}
    assert lists.read() == ([done[name] for name in "ab"], counted)
    assert legacyga.flush(lists.optimizer) is False
    assert lists.read()[1] == counted


@pytest.mark.parametrize("steps", [slow(1), 2])
@pytest.mark.parametrize(
    "given", [slow(GIVEN[0]), slow(GIVEN[1]), GIVEN[2]], ids=lambda given: "{a}-{b}".format(**given)
)
def test_whole_windows_in_turns(two_lists, given, steps):
    lists = two_lists(steps, given)
    for i in range(5):
        for name in "ab":
            lists.step(name, FED[name][i])
            done = {each: i + (each <= name) for each in "ab"}
            counted = {step: sum(done[each] // steps for each in "ab" if given[each] == step) for step in lists.steps}
            wanted = [-RATE * sum(FED[each][: done[each] - done[each] % steps]) / steps for each in "ab"]
            assert lists.read() == (wanted, counted)
    assert legacyga.flush(lists.optimizer) is (steps == 2)
    wanted = [wanted[i] - RATE * FED[name][4] * (steps - 1) for i, name in enumerate("ab")]
    counted = {step: counted[step] + (steps - 1) * sum(given[each] == step for each in "ab") for step in lists.steps}
    assert lists.read() == (wanted, counted)
