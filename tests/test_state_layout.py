"""The layout of the optimizer's state: of the variables, K and the options alone, whatever gradients were seen."""

import contextlib

import homes
import kinds
import numpy as np
import pytest
import skips
from kinds import MOMENTUM, RATE
from slow import slow

import legacyga
from legacyga.backend import homes as _homes

pytestmark = pytest.mark.capability("R9 state")

RANDOM = np.random.RandomState(81)
TABLE = RANDOM.randn(9, 2).astype("float32")
START = [TABLE, RANDOM.randn(3, 2).astype("float32"), RANDOM.randn(4).astype("float32")]


def classes(home, *names):
    found = [(_homes.generation_of(cls), cls) for _, cls in home.optimizer_classes() if cls.__name__ in names]
    return list({generation + "-" + cls.__name__: cls for generation, cls in reversed(found)}.items())


def pytest_generate_tests(metafunc):
    from conftest import home_of

    home = home_of(metafunc.config)
    if "kind" in metafunc.fixturenames:
        found = [each for each in kinds.of(home) if not each.is_adam]
        metafunc.parametrize("kind", kinds.params(found))
    if "cls" in metafunc.fixturenames:
        found = classes(home, "SGD", "RMSprop", "Adagrad") if home.mode == "eager" else []
        metafunc.parametrize("cls", [pytest.param(cls, id=name) for name, cls in sorted(found)])


@pytest.fixture(autouse=True)
def fresh(home):
    # Eager models have nothing in common, and Keras takes long to forget them.
    if home.mode == "graph":
        home.reset(plain_session=True)


def build(optimizer, variables):
    """Make the optimizer's variables before anything is trained, as Keras's loaders do."""
    make = getattr(optimizer, "build", None) or getattr(optimizer, "_create_all_weights", None)
    if make is None:
        skips.keras_lacks("optimizers of tf.compat.v1.train cannot be built before they are given gradients")
    make(variables)


def rows(tf, ids, values):
    shape = tf.constant(TABLE.shape, "int64")
    return tf.IndexedSlices(tf.constant(values), tf.constant(np.asarray(ids, "int64")), shape)


# ----------------------------------------------------------------------------------------- the gradient alone decides


@pytest.mark.parametrize("is_built", [slow(True), False], ids=["built before", "not built"])
@pytest.mark.parametrize("steps", [slow(2), 3])
def test_an_embedding_as_the_bare_large_batch_with_its_rows(home, cls, is_built, steps):
    """Rows that are touched in some windows only, beside a dense variable; optimizers with momentum and lazy rows."""
    tf, random = home.tf, np.random.RandomState(steps)
    options = dict(learning_rate=RATE, **({} if cls.__name__ == "Adagrad" else dict(momentum=MOMENTUM)))
    bare, wrapped = cls(**options), legacyga.wrap(cls(**options), steps)
    variables = [home.variables(START[:2]) for _ in range(2)]
    if is_built:
        build(wrapped, variables[1])
    for window, touched in enumerate(((0, 1, 5), (2, 5, 6), (6, 7), (0, 7), (3,))):
        number = steps if window != 2 else steps - 1
        ids = random.choice(touched, (number, 4))
        values = (0.75 + random.randn(number, 4, 2)).astype("float32")
        dense = random.randn(number, 3, 2).astype("float32")
        for each in zip(ids, values, dense):
            wrapped.apply_gradients(zip([rows(tf, *each[:2]), tf.constant(each[2])], variables[1]))
        assert legacyga.flush(wrapped) is (number < steps)
        total = np.zeros_like(TABLE)
        np.add.at(total, ids.ravel(), values.reshape(-1, 2) / number)
        unique = np.unique(ids)
        mean = tf.constant(dense.mean(axis=0))
        bare.apply_gradients(zip([rows(tf, unique, total[unique]), mean], variables[0]))
        for now, wanted, start in zip(variables[1], variables[0], START):
            now, wanted = home.value(now), home.value(wanted)
            assert np.abs(now - wanted).max() <= 4e-6 * np.abs(wanted - start).max()
        # Rows that no window had.
        np.testing.assert_array_equal(home.value(variables[1][0])[[4, 8]], home.value(variables[0][0])[[4, 8]])


# ------------------------------------------------------------------------------------------------------- one layout


class Trained(homes.Fed):
    """Variables and an optimizer that was built before or not, and took mini-steps with rows, or with none.

    Args:
        kind: a `kinds.Kind`.
        is_built: whether it is built before.
        sparse: whether the table's gradients are rows.
        unused: whether the last variable has no gradient.
    """

    def __init__(self, kind, is_built, sparse, unused=False, steps=3, optimizer=None):
        self.is_built, self.unused = is_built, unused
        self.table_is_sparse = sparse
        home, self.home, self.sparse = kind.home, kind.home, False
        self.optimizer = optimizer or kind.make(steps)
        if home.mode == "eager":
            train = not hasattr(self.optimizer, "build") and home.is_keras3
            self.variables = [home.tf.Variable(v) for v in START] if train else home.variables(START)
            if is_built:
                build(self.optimizer, self.variables)
            return
        backend, tf = home.backend, home.tf
        self.variables = [backend.variable(value) for value in START]
        if is_built:
            build(self.optimizer, self.variables)
        ids = tf.constant([0, 1, 1, 5])
        table = tf.gather(self.variables[0], ids) if sparse else self.variables[0]
        used = [table] + self.variables[1 : 2 if unused else 3]
        loss = sum(tf.reduce_sum(each * each) for each in used)
        if hasattr(self.optimizer, "get_updates"):
            updates = self.optimizer.get_updates(loss=loss, params=self.variables)
        else:
            v1 = _homes.TensorFlow().v1
            updates = [self.optimizer.minimize(loss, var_list=self.variables)]
            backend.get_session().run(v1.variables_initializer(self.optimizer.variables()))
        self.apply = backend.function([], [loss], updates=list(updates))

    def mini_step(self, seed):
        if self.home.mode == "graph":
            self.apply([])
            return
        tf, random = self.home.tf, np.random.RandomState(seed)
        gradients = [tf.constant(random.randn(*value.shape).astype("float32") + 1) for value in START]
        if self.table_is_sparse:
            gradients[0] = rows(tf, random.choice([0, 2, 3, 7], 3), random.randn(3, 2).astype("float32") + 1)
        if self.unused:
            gradients[2] = None
        self.optimizer.apply_gradients(list(zip(gradients, self.variables)))

    def layout(self):
        """(shape, dtype) of each of the optimizer's variables, in the order in which they are listed and saved."""
        found = []
        for variable in homes.variables_of(self.optimizer):
            shape = variable.shape.as_list() if hasattr(variable.shape, "as_list") else variable.shape
            dtype = self.home.tf.as_dtype(variable.dtype).base_dtype.name
            found.append((tuple(int(size) for size in shape), dtype))
        return found


@pytest.mark.long
def test_one_layout_whatever_was_seen(home, kind):
    """Built before or not, rows or dense gradients, full windows and begun ones."""
    layouts, can_build = {}, kind.generation != "train"
    for is_built in (False, True) if can_build else (False,):
        for sparse in (False, True):
            with in_a_session_of_its_own(home):
                trained = Trained(kind, is_built, sparse)
                for number in (0, 1, 3):
                    for seed in range(number):
                        trained.mini_step(seed)
                    # Before training there is all of it, or nothing yet.
                    if number or is_built:
                        layouts[is_built, sparse, number] = trained.layout()
    first = layouts[False, False, 1]
    assert len(first) > len(START) and {key: each for key, each in layouts.items() if each != first} == {}


def in_a_session_of_its_own(home):
    stack = contextlib.ExitStack()
    if home.mode == "graph":
        home.reset(plain_session=True)
        stack.enter_context(home.sessions.get_session().graph.as_default())
        stack.enter_context(home.sessions.get_session().as_default())
    return stack


def test_one_layout_where_a_variable_has_no_gradient(home, kind):
    """Of plain SGD, which has no slots of its own: all that differs would be ours."""
    if kind.cls is None or kind.generation != "train" and home.mode == "graph":
        skips.keras_lacks("get_updates takes no variable without gradient")
    layouts = {}
    for is_built in (False, True) if kind.generation != "train" else (False,):
        for unused in (False, True):
            with in_a_session_of_its_own(home):
                if kind.generation == "train":
                    bare = _homes.TensorFlow().v1.train.GradientDescentOptimizer(RATE)
                else:
                    bare = kind.cls(RATE)
                trained = Trained(kind, is_built, True, unused, optimizer=legacyga.wrap(bare, 3))
                trained.mini_step(0)
                layouts[is_built, unused] = trained.layout()
    first = layouts[False, False]
    assert len(first) > 2 and {key: each for key, each in layouts.items() if each != first} == {}


# ------------------------------------------------------------------------------ saved by the one, restored by the other


@pytest.mark.parametrize("target_is_built", [False, slow(True)], ids=["into unbuilt", "into built"])
@pytest.mark.parametrize("source_is_built", [slow(False), True], ids=["from unbuilt", "from built"])
def test_a_checkpoint_of_a_begun_window(home, kind, source_is_built, target_is_built, tmpdir):
    """With rows of an embedding and a variable without gradient in it: to the bit, as a run that goes on."""
    if home.mode == "graph":
        skips.senseless("eager mode only")
    if kind.generation == "train":
        skips.keras_lacks("optimizers of tf.compat.v1.train are never built before")

    if kind.generation == "v3" and home.tf_version < (2, 11) and source_is_built != target_is_built:
        skips.keras_lacks("the experimental optimizers make slots by gradients, or, when built, for all")

    def checkpoint(trained):
        names = {"v{}".format(i): getattr(v, "value", v) for i, v in enumerate(trained.variables)}
        names = names if home.is_keras3 else dict(zip(sorted(names), trained.variables))
        return home.tf.train.Checkpoint(optimizer=trained.optimizer, **names)

    source = Trained(kind, source_is_built, sparse=True, unused=True)
    for seed in range(5):
        source.mini_step(seed)
    path = checkpoint(source).save(str(tmpdir.join("checkpoint")))
    target = Trained(kind, target_is_built, sparse=True, unused=True)
    checkpoint(target).restore(path)
    if target_is_built:
        assert int(home.value(target.optimizer.mini_step)) == int(home.value(source.optimizer.mini_step)) == 2
    for trained in (source, target):
        # The first of these ends the window.
        for seed in range(5, 10):
            trained.mini_step(seed)
        assert legacyga.flush(trained.optimizer) is True
    for now, then in zip(target.variables, source.variables):
        np.testing.assert_array_equal(home.value(now), home.value(then))


def embedding_model(home, optimizer):
    layers = home.keras.layers
    model = home.keras.models.Sequential(
        [layers.Embedding(9, 2, input_length=3) if not home.is_keras3 else layers.Embedding(9, 2), layers.Flatten()]
        + [layers.Dense(2)]
    )
    if home.is_keras3:
        model.build((None, 3))
    model.set_weights([TABLE, RANDOM.__class__(5).randn(6, 2).astype("float32"), np.zeros(2, "float32")])
    kwargs = {} if home.mode == "graph" else dict(run_eagerly=True)
    model.compile(optimizer=optimizer, loss="mse", **kwargs)
    return model


@pytest.mark.slow
def test_a_file_of_a_begun_window_with_an_embedding(home, kind, tmpdir):
    """HDF5, or .keras in Keras 3: a loader builds the optimizer before it trains."""
    if kind.generation == "train":
        skips.keras_lacks("Keras loads no optimizer of tf.compat.v1.train")
    if kind.generation == "v3" and home.tf_version < (2, 11):
        skips.keras_lacks("HDF5 does not take along the bare experimental optimizers")
    random = np.random.RandomState(7)
    data = [(random.randint(0, 9, (4, 3)), random.randn(4, 2).astype("float32")) for _ in range(9)]
    model = embedding_model(home, kind.make(3))
    for batch in data[:5]:
        model.train_on_batch(*batch)
    path = str(tmpdir.join("model.keras" if home.is_keras3 else "model.h5"))
    model.save(path)
    weights = []
    for loaded in (False, True):
        if loaded:
            custom_objects = {type(model.optimizer).__name__: type(model.optimizer)}
            if home.mode == "graph":
                home.reset(plain_session=True)
            model = home.keras.models.load_model(path, custom_objects=custom_objects)
        assert int(home.value(model.optimizer.iterations)) == 1 or not loaded
        for batch in data[5:]:
            model.train_on_batch(*batch)
        assert int(home.value(model.optimizer.iterations)) == 3
        weights.append(model.get_weights())
    for now, then in zip(*weights):
        np.testing.assert_array_equal(now, then)


def test_a_bare_optimizer_with_a_restore_to_come(home, kind, tmpdir):
    """Restored before it is built, and then wrapped: as the bare one goes on."""
    if home.mode == "graph" or kind.cls is None or kind.generation == "train":
        skips.senseless("optimizers that are built by their first step, and wrapped")
    if kind.generation == "v3" and home.tf_version < (2, 11):
        skips.we_lack("wrap cannot copy an experimental optimizer between restore and the creation of its variables")
    fed = [RANDOM.__class__(31 + i).randn(2).astype("float32") for i in range(6)]

    def begin(optimizer):
        (variable,) = home.variables([np.float32([1.0, 2.0])])
        value = variable.value if home.is_keras3 else variable
        tracked = home.tf.train.Checkpoint(variable=value, optimizer=optimizer)
        return variable, tracked

    bare = kind.bare()
    variable, tracked = begin(bare)
    for gradient in fed[:2]:
        bare.apply_gradients([(home.tf.constant(gradient), variable)])
    path = tracked.save(str(tmpdir.join("checkpoint")))
    for gradient in fed[2:4]:
        bare.apply_gradients([(home.tf.constant(gradient), variable)])
    again = kind.bare()
    restored, tracked = begin(again)
    tracked.restore(path)
    ours = legacyga.wrap(again, 2)
    for gradient in fed[2:4]:
        for _ in range(2):
            ours.apply_gradients([(home.tf.constant(gradient), restored)])
    assert int(home.value(ours.iterations)) == 4
    np.testing.assert_array_equal(home.value(restored), home.value(variable))
