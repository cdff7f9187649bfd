"""What cost.py runs: models in every home and mode, and the ways to accumulate, each a function of mini-steps."""

import collections
import importlib

import numpy as np

PICTURE, ROWS, WIDTH, IDS = 48, 100000, 256, 64
# Of two dense layers that have so many parameters.
WIDTHS = {"dense-1M": 707, "dense-25M": 3536, "dense-100M": 7071}
MODELS = tuple(sorted(WIDTHS, key=WIDTHS.get)) + ("convolutional", "embedding")
# All ways train one model, whose weights are to stay where they are.
RATE = 1e-6


class UnavailableError(Exception):
    """What a home, or a peer, does not have: no fault, and no figure."""


def network(keras, name):
    """(model, function of a random state and a batch's size that makes inputs)."""
    layers = keras.layers
    if name == "embedding":
        inputs = layers.Input((IDS,), dtype="int32")
        hidden = layers.GlobalAveragePooling1D()(layers.Embedding(ROWS, WIDTH)(inputs))
        outputs = layers.Dense(10)(layers.Dense(64, activation="tanh")(hidden))
        return keras.models.Model(inputs, outputs), lambda random, size: random.randint(0, ROWS, (size, IDS), "int32")
    if name == "convolutional":
        shape = (PICTURE, PICTURE, 3)
        inputs = layers.Input(shape)
        hidden = layers.Conv2D(32, (3, 3), padding="same", activation="tanh")(inputs)
        hidden = layers.Conv2D(32, (3, 3), padding="same", activation="tanh")(hidden)
        hidden = layers.Conv2D(64, (3, 3), strides=(4, 4), padding="same", activation="tanh")(hidden)
        outputs = layers.Dense(10)(layers.Dense(128, activation="tanh")(layers.Flatten()(hidden)))
    else:
        shape = (WIDTHS[name],)
        inputs = layers.Input(shape)
        outputs = layers.Dense(shape[0])(layers.Dense(shape[0])(inputs))
    model = keras.models.Model(inputs, outputs)
    return model, lambda random, size: random.randn(size, *shape).astype("float32")


def optimizers_of(keras, which, graph):
    """The module of a home's optimizers: "legacy", "new", or None for those that it trains with by itself."""
    hook = {"legacy": "get_updates", "new": "update_step", None: "get_updates" if graph else "__init__"}[which]
    names = ("experimental", "legacy")
    modules = [keras.optimizers] + [getattr(keras.optimizers, name, None) for name in names]
    for module in modules:
        if module is not None and hasattr(module.SGD, hook) and not (graph and hasattr(module.SGD, "update_step")):
            return module
    raise UnavailableError("no {} optimizers".format(which))


class Ground(object):
    """Variables, a loss and batches in a home and mode. It makes functions of a batch.

    Args:
        options: those of the command line; `mode` is the mode that there is.
        keras: the home.
        variables: what is trained.
        loss: function of a batch's tensors.
        batches: list of tuples of arrays.
        given: function of a batch's tensors: the list of gradients, where they are not those of the loss.
    """

    model = sample = None

    def __init__(self, options, keras, variables, loss, batches, given=None):
        import tensorflow as tf

        self.tf, self.keras, self.options = tf, keras, options
        self.v1 = getattr(getattr(tf, "compat", None), "v1", tf)
        self.graph = options.mode == "graph"
        self.variables, self._loss, self.given = variables, loss, given
        # Keras 3 keeps TensorFlow's variable in one of its own.
        self.sources = [each if hasattr(each, "read_value") else each.value for each in variables]
        self._traces, self._known = 0, set()
        if self.graph:
            self.batches = batches
            self.inputs = [self.v1.placeholder(each.dtype, (None,) + each.shape[1:]) for each in batches[0]]
            self.loss = loss(*self.inputs)
        else:
            self.batches = [tuple(tf.constant(each) for each in batch) for batch in batches]

    def function(self, make):
        """Return a function of a batch that runs `make(*tensors)`, a (loss, operations), and returns the loss."""
        if self.graph:
            loss, others = make(*self.inputs)
            fetches, made = [loss] + [each.op if hasattr(each, "op") else each for each in _flat(others)], []

            def run(batch):
                if not made:
                    made.append(self._session().make_callable(fetches, feed_list=self.inputs))
                return float(made[0](*batch)[0])

            return run

        def traced(*batch):
            self._traces += 1
            return make(*batch)

        # What is returned is computed; what only a control dependency asks for need not be.
        more = dict(jit_compile=True) if self.options.jit else {}
        compiled = self.tf.function(traced, autograph=self.options.autograph, **more)
        return lambda batch: float(compiled(*batch)[0])

    def made(self):
        """How many functions have been traced, or how many operations there are in the graph."""
        return len(self.v1.get_default_graph().get_operations()) if self.graph else self._traces

    def _session(self):
        backend = self.keras.backend
        if not hasattr(backend, "get_session"):
            is_other = self.keras.__name__ == "tf_keras"
            backend = importlib.import_module("tf_keras.src.backend") if is_other else self.v1.keras.backend
        session = backend.get_session()
        variables = [each for each in self._all() if each.name not in self._known]
        self._known.update(each.name for each in variables)
        there = session.run([self.v1.is_variable_initialized(each) for each in variables])
        session.run([each.initializer for each, is_there in zip(variables, there) if not is_there])
        return session

    def _all(self):
        return self.v1.global_variables() + self.v1.local_variables()

    def bytes_of_variables(self):
        """Of all variables that there are, whoever made them."""
        import gc

        if self.graph:
            found = self._all()
        else:
            gc.collect()
            found = [each for each in gc.get_objects() if issubclass(type(each), self.tf.Variable)]
        found = {getattr(each, "_unique_id", None) or each.name: each for each in found}
        return sum(int(each.shape.num_elements() or 0) * each.dtype.base_dtype.size for each in found.values())

    def gradients(self, *batch):
        """(loss, list of gradients)."""
        if self.given is not None:
            return self.loss if self.graph else self._loss(*batch), self.given(*batch)
        if self.graph:
            return self.loss, self.v1.gradients(self.loss, self.sources)
        with self.tf.GradientTape() as tape:
            loss = self._loss(*batch)
        return loss, tape.gradient(loss, self.sources)

    def zeros(self):
        """A variable of zeros for each of what is trained."""
        tf = self.tf
        return [tf.Variable(tf.zeros(each.shape, each.dtype.base_dtype), trainable=False) for each in self.sources]

    def add(self, sums, gradients):
        """Add each gradient in place; what else is to be computed."""
        added = []
        for total, gradient in zip(sums, gradients):
            if hasattr(gradient, "indices"):
                added.append(self.v1.scatter_add(total, gradient.indices, gradient.values))
            else:
                added.append(self.v1.assign_add(total, gradient))
        return self.done(added)

    def done(self, operations):
        """Return what graph mode must fetch. In eager mode a function runs all its writes."""
        return operations if self.graph else ()

    def after(self, operations):
        """A context: what is made in it runs after these."""
        return self.tf.control_dependencies([each.op if hasattr(each, "op") else each for each in operations])

    def nothing(self):
        return self.tf.constant(0.0)

    def optimizer(self, **more):
        """The bare optimizer."""
        if self._is_train:
            train = self.v1.train
            return train.AdamOptimizer(RATE) if self.options.optimizer == "adam" else train.MomentumOptimizer(RATE, 0.9)
        module = optimizers_of(self.keras, self.options.optimizers, self.graph)
        if self.options.optimizer == "adam":
            return module.Adam(RATE, **more)
        return module.SGD(RATE, momentum=0.9, **more)

    @property
    def _is_train(self):
        """Whether the optimizers are those of tf.compat.v1.train."""
        return self.options.optimizers == "train"

    def build(self, optimizer):
        """Let an optimizer make its variables outside of all functions."""
        if not self.graph and hasattr(optimizer, "build"):
            optimizer.build(self.variables)
        return optimizer

    def apply(self, optimizer, gradients):
        """Call an optimizer with gradients; what else is to be computed."""
        if self._is_train or not self.graph:
            variables = self.sources if self._is_train else self.variables
            return self.done([optimizer.apply_gradients(list(zip(gradients, variables)))])
        optimizer.get_gradients = lambda loss, params: gradients
        return self._updates(optimizer)

    def step(self, optimizer):
        """A function of a batch: forward and backward pass, and the optimizer."""
        self.build(optimizer)

        def make(*batch):
            if self.graph and self.given is None and not self._is_train:
                return self.loss, self._updates(optimizer)
            loss, gradients = self.gradients(*batch)
            return loss, self.apply(optimizer, gradients)

        return self.function(make)

    def _updates(self, optimizer):
        updates = optimizer.get_updates(loss=self.loss, params=self.variables)
        return [self.v1.assign(*each) if isinstance(each, tuple) else each for each in updates]


def _flat(values):
    for each in values:
        for one in (each.values, each.indices) if hasattr(each, "indices") else (each,):
            yield one


def of_model(options, keras):
    """The `Ground` of `options.model`."""
    model, inputs = network(keras, options.model)
    random, width = np.random.RandomState(0), int(model.output.shape[-1])

    def batch():
        return inputs(random, options.batch), random.randn(options.batch, width).astype("float32")

    import tensorflow as tf

    def loss(x, y):
        return tf.reduce_mean(tf.square(model(x) - y))

    batches = [batch() for _ in range(8)]
    ground = Ground(options, keras, model.trainable_weights, loss, batches)
    ground.model, ground.sample = model, batches[0][0][:1]
    return ground


def _variable(options, keras, shape):
    """A variable of ones, as the home's layers make them."""
    import tensorflow as tf

    if options.mode == "graph":
        return keras.backend.ones(shape)
    return (keras.Variable if hasattr(keras.optimizers.SGD, "stateless_apply") else tf.Variable)(tf.ones(shape))


def of_vectors(options, keras):
    """The `Ground` of `options.number` variables of a few elements each."""
    import tensorflow as tf

    variables = [_variable(options, keras, (16,)) for _ in range(options.number)]
    values = [each if hasattr(each, "read_value") else each.value for each in variables]

    def loss(x):
        return tf.add_n([tf.reduce_sum(tf.square(each) * x) for each in values])

    random = np.random.RandomState(0)
    return Ground(options, keras, variables, loss, [(random.rand(1, 16).astype("float32"),) for _ in range(8)])


def of_table(options, keras, dense=False):
    """The `Ground` of a table of `options.rows` by `options.width`, and of gradients of 512 rows each.

    With `dense` these are handed over as gradients of the whole table.
    """
    import tensorflow as tf

    shape = (options.rows, options.width)

    def given(ids, values):
        slices = tf.IndexedSlices(values, ids, tf.constant(shape, tf.int64))
        return [tf.convert_to_tensor(slices) if dense else slices]

    random = np.random.RandomState(0)
    batches = [
        (random.randint(0, shape[0], (options.ids,), "int64"), random.randn(options.ids, shape[1]).astype("float32"))
        for _ in range(8)
    ]
    return Ground(
        options, keras, [_variable(options, keras, shape)], lambda ids, values: tf.reduce_sum(values), batches, given
    )


# The ways. Each takes (ground, K) and returns a function of a mini-step's place in its window and of a batch.


def _every(run):
    return lambda place, batch: run(batch)


def alone(ground, steps):
    return _every(ground.function(ground.gradients))


def adding(ground, steps):
    sums = ground.zeros()

    def make(*batch):
        loss, gradients = ground.gradients(*batch)
        return loss, ground.add(sums, gradients)

    return _every(ground.function(make))


def bare(ground, steps):
    return _every(ground.step(ground.optimizer()))


def conditional(ground, steps, otherwise=None):
    """An update once in K mini-steps, and `otherwise`, a function of the gradients, or nothing in the others."""
    if ground.graph:
        raise UnavailableError("in eager mode alone")
    tf, optimizer = ground.tf, ground.build(ground.optimizer())
    count = tf.Variable(0, trainable=False)

    def make(*batch):
        loss, gradients = ground.gradients(*batch)
        count.assign((count + 1) % steps)

        def update():
            ground.apply(optimizer, gradients)
            return ground.nothing()

        def go_on():
            if otherwise:
                otherwise(gradients)
            return ground.nothing()

        tf.cond(tf.equal(count, 0), update, go_on)
        return loss, ()

    return _every(ground.function(make))


def conditional_adding(ground, steps):
    sums = ground.zeros()
    return conditional(ground, steps, lambda gradients: ground.add(sums, gradients))


def wrap(ground, steps):
    legacyga = importlib.import_module("legacyga")
    return _every(ground.step(legacyga.wrap(ground.optimizer(), steps)))


def summing(ground, steps):
    legacyga = importlib.import_module("legacyga")
    return _every(ground.step(legacyga.wrap(ground.optimizer(), steps, reduction="sum")))


def mysgd(ground, steps):
    legacyga = importlib.import_module("legacyga")
    if ground.options.optimizer != "sgd":
        raise UnavailableError("SGD alone")
    return _every(ground.step(legacyga.MySGD(RATE, momentum=0.9, steps_per_update=steps, keras=ground.keras)))


def accumulator(ground, steps):
    legacyga = importlib.import_module("legacyga")
    sums, optimizer = legacyga.GradientAccumulator(), ground.build(ground.optimizer())

    def make(*batch):
        loss, gradients = ground.gradients(*batch)
        return loss, ground.done([sums(gradients)])

    def end(*batch):
        with ground.after(ground.apply(optimizer, sums.gradients)):
            return ground.nothing(), ground.done([sums.reset()])

    return _with_end(ground.function(make), ground.function(end), steps)


def loop(ground, steps):
    sums, optimizer, tf = ground.zeros(), ground.build(ground.optimizer()), ground.tf

    def make(*batch):
        loss, gradients = ground.gradients(*batch)
        return loss, ground.add(sums, [tf.convert_to_tensor(each) for each in gradients])

    def end(*batch):
        with ground.after(ground.apply(optimizer, [each.read_value() / steps for each in sums])):
            zeros = [tf.zeros(each.shape, each.dtype.base_dtype) for each in sums]
            return ground.nothing(), ground.done([each.assign(zero) for each, zero in zip(sums, zeros)])

    return _with_end(ground.function(make), ground.function(end), steps)


def _with_end(run, end, steps):
    def mini_step(place, batch):
        run(batch)
        if place == steps - 1:
            end(batch)

    return mini_step


def keras_built_in(ground, steps):
    if not hasattr(ground.keras.optimizers.SGD, "stateless_apply"):
        raise UnavailableError("Keras 3 alone has it")
    return _every(ground.step(ground.optimizer(**(dict(gradient_accumulation_steps=steps) if steps > 1 else {}))))


def accumulator_optimizer(ground, steps):
    peer = _peer(ground, "gradient_accumulator", "tf.keras")
    optimizer = ground.optimizer()
    if hasattr(optimizer, "update_step"):
        raise UnavailableError("for legacy optimizers alone")
    return _every(ground.step(peer.GradientAccumulateOptimizer(optimizer, accum_steps=steps)))


def accumulator_model(ground, steps):
    peer = _peer(ground, "gradient_accumulator", "tf.keras")
    if ground.graph or ground.model is None:
        raise UnavailableError("for models in eager mode")
    model = peer.GradientAccumulateModel(accum_steps=steps, inputs=ground.model.inputs, outputs=ground.model.outputs)
    model.compile(ground.build(ground.optimizer()), "mse")
    return _every(ground.function(lambda x, y: (model.train_step((x, y))["loss"], ())))


def runai(ground, steps):
    peer = _peer(ground, "runai.ga.keras.optimizers", "keras")
    if hasattr(ground.keras.optimizers.SGD, "apply_gradients"):
        raise UnavailableError("for Keras before 2.4")
    return _every(ground.step(peer.Optimizer(ground.optimizer(), steps=steps)))


def _peer(ground, name, home):
    try:
        peer = importlib.import_module(name)
    except ImportError as error:
        if getattr(error, "name", None) == name.split(".")[0]:
            raise UnavailableError("not installed")
        raise
    if ground.options.home != home:
        raise UnavailableError("for another Keras")
    return peer


FLOORS = collections.OrderedDict([("alone", alone), ("adding", adding), ("bare", bare)])
WAYS = collections.OrderedDict(
    [
        ("wrap", wrap),
        ("sum", summing),
        ("MySGD", mysgd),
        ("GradientAccumulator", accumulator),
        ("loop", loop),
        ("keras", keras_built_in),
        ("ga-optimizer", accumulator_optimizer),
        ("ga-model", accumulator_model),
        ("runai", runai),
    ]
)
OURS = ("wrap", "sum", "MySGD", "GradientAccumulator")
