"""The Keras under test, and one way of driving an optimizer through mini-steps that every home and mode has."""

import gc
import importlib
import os
import socket
import subprocess
import sys

import environments
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# The time that a program of the tests may take.
SECONDS = 900

# Base classes, and those that hold other optimizers.
NOT_ALONE = ("Optimizer", "OptimizerV2", "TFOptimizer", "LossScaleOptimizer", "MultiOptimizer")


def run(script, arguments, path=()):
    """What a Python program prints, in a process of its own.

    Args:
        script, arguments: its file, and the list of what it is called with.
        path: folders to import from before all others.
    """
    folders = list(path) + [each for each in [os.environ.get("PYTHONPATH")] if each]
    process = subprocess.Popen(
        [sys.executable, script] + list(arguments),
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(folders)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    try:
        printed, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, errors = process.communicate()
        raise AssertionError("not done after {} s:\n{}\n{}".format(SECONDS, printed, errors))
    assert process.returncode == 0, errors
    return printed


def free_ports(number):
    """Ports of the loopback interface that nobody listens on."""
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def version(name):
    """The version of an installed Keras package, None where it is not there. TF's own Keras has none of its own."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    return getattr(module, "__version__", None)


def available():
    """Every (home, mode) that is installed here, the order of a run.

    A home is run once: `keras` from 2.4 to 2.15 and Keras 3 are what tf.keras is, and Keras 3 beside tf_keras is
    what it is alone.
    """
    import tensorflow as tf

    keras = version("keras") or ""
    standalone = [("keras", "graph")] if keras.startswith(("2.0.", "2.1.", "2.2.", "2.3.")) else []
    if version("tf_keras"):
        found = [("tf_keras", "graph"), ("tf_keras", "eager")]
    elif keras.startswith("3."):
        found = [("keras", "eager")]
    else:
        found = standalone + [("tf.keras", "graph")] + [("tf.keras", "eager")] * (tf.__version__ >= "2")
    return found


def start(name=None, mode=None):
    """Import a home and switch to a mode, once for the life of the process."""
    import tensorflow as tf

    choice = [pair for pair in available() if name in (None, pair[0]) and mode in (None, pair[1])]
    if not choice:
        raise RuntimeError("no home {} in mode {} here; there are {}".format(name, mode, available()))
    name, mode = choice[-1] if name is None and mode is None else choice[0] if mode else choice[-1]
    if mode == "graph" and tf.__version__ >= "2":
        tf.compat.v1.disable_eager_execution()
    home = Home(name, mode, tf)
    # TensorFlow's million objects stay: no collection has to look through them. Python 3.6 cannot be told so.
    getattr(gc, "freeze", gc.collect)()
    return home


def start_on_replicas(name, replicas=2, **kwargs):
    """A home in eager mode, and a MirroredStrategy of so many replicas on the CPU, with these arguments."""
    home = start(name, "eager")
    # Collectives wait for all replicas: a thread for each.
    home.tf.config.threading.set_inter_op_parallelism_threads(8)
    config = home.tf.config.experimental
    # New names from TF 2.1 on.
    cpu = config.list_physical_devices("CPU")[0]
    config.set_virtual_device_configuration(cpu, [config.VirtualDeviceConfiguration()] * replicas)
    return home, home.tf.distribute.MirroredStrategy(["/cpu:{}".format(i) for i in range(replicas)], **kwargs)


def v1_of(tf):
    """tf.compat.v1, which TF 1.8 to 1.12 do not have."""
    return getattr(getattr(tf, "compat", None), "v1", tf)


def generation_of(cls):
    """The generation of an optimizer class, by the hooks it has; None if it is no optimizer."""
    if hasattr(cls, "_resource_apply_dense"):
        return "v2" if hasattr(cls, "get_updates") else "train"
    if hasattr(cls, "update_step"):
        return "keras3" if hasattr(cls, "stateless_apply") else "v3"
    return "v1" if hasattr(cls, "get_updates") else None


class Home(object):
    """A Keras module, the mode it runs in, and what the tests do with it."""

    def __init__(self, name, mode, tf):
        self.name, self.mode, self.tf = name, mode, tf
        self.keras = tf.keras if name == "tf.keras" else importlib.import_module(name)
        self.tf_version = tuple(int(part) for part in tf.__version__.split(".")[:2])
        self.version = getattr(self.keras, "__version__", None) or version("keras") or "of TensorFlow"
        self.is_keras3 = name == "keras" and mode == "eager"
        # What `clipnorm` means here: the norm of all gradients together, or each one's own.
        self.clipnorm_means = "all" if name == "keras" and mode == "graph" or self.tf_version < (1, 10) else "each"

    @property
    def root(self):
        """The package that implements the home: "keras", "tensorflow.python.keras", "keras.src", ..."""
        # Models are in `.models` in Keras 3, and in `.engine` in all others.
        return self.keras.models.Model.__module__.split(".models." if self.is_keras3 else ".engine")[0]

    @property
    def backend(self):
        """The internal keras.backend: the public one of Keras 3 and of newer tf.keras lacks half of it."""
        return importlib.import_module(self.root + ".backend")

    @property
    def sessions(self):
        """The backend that has the sessions: Keras 2.3 on TF 2 leaves them to tf.keras."""
        left = self.name == "keras" and self.mode == "graph" and self.tf_version >= (2, 0)
        return self.tf.compat.v1.keras.backend if left else self.backend

    @property
    def races(self):
        """Whether an update of the home's own optimizers may change what a gradient has yet to read.

        It may where weights are variables by reference: in Keras up to 2.3, in tf.keras of TF 1.8. TF 1.13 has none.
        """
        return self.mode == "graph" and (self.name == "keras" or self.tf_version < (1, 13))

    @property
    def v1_optimizers(self):
        """The module of the optimizers that have `get_updates` alone."""
        for name in (".optimizers.optimizer_v1", ".optimizer_v1", ".optimizers"):
            try:
                return importlib.import_module(self.root + name)
            except ImportError:
                continue
        raise ImportError("no v1 optimizers in {}".format(self.root))

    @property
    def default_optimizers(self):
        """The module of those of the generation that MySGD is of."""
        if self.mode == "graph":
            return self.v1_optimizers
        optimizers = self.keras.optimizers
        # From TF 2.11 on `decay` is an argument of those in `legacy` alone; in Keras 3 the name is there and raises.
        return optimizers if self.is_keras3 else getattr(optimizers, "legacy", optimizers)

    @property
    def has_wrap_in_v1(self):
        """Whether wrap takes v1 optimizers: up to TF 1.10 tf.Variable passes the creators of variables by."""
        return type(self.tf.Variable) is not type

    def reset(self, plain_session=False):
        """Forget what earlier tests built.

        Args:
            plain_session: in graph mode, open a session that does not optimize its graph, which for hundreds of small
                graphs is where the time would go.
        """
        if self.is_keras3:
            # It collects garbage otherwise, which takes longer than most tests.
            self.keras.utils.clear_session(free_memory=False)
            return
        self.keras.backend.clear_session()
        if plain_session and self.mode == "graph":
            v1 = v1_of(self.tf)
            config = v1.ConfigProto()
            config.graph_options.optimizer_options.opt_level = -1
            rewrites = config.graph_options.rewrite_options
            if hasattr(rewrites, "disable_meta_optimizer"):
                rewrites.disable_meta_optimizer = True
            self.sessions.set_session(v1.Session(config=config))

    def set_floatx(self, dtype):
        """Set the home's default dtype."""
        (self.keras.config if self.is_keras3 else self.keras.backend).set_floatx(dtype)

    def network(self, start, max_norm=None):
        """The fixtures' network: two dense layers, tanh between them, `start` as weights."""
        layers = self.keras.layers
        constraint = self.keras.constraints.max_norm(max_norm, axis=0) if max_norm else None
        if self.is_keras3 and max_norm:
            constraint = self.keras.constraints.MaxNorm(max_norm, axis=0)
        first = layers.Dense(
            start[0].shape[1], activation="tanh", input_shape=(start[0].shape[0],), kernel_constraint=constraint
        )
        model = self.keras.models.Sequential([first, layers.Dense(start[2].shape[1])])
        model.set_weights(start)
        return model

    def value(self, variable):
        """What a variable of an optimizer, or a constant in place of one, holds."""
        if self.mode == "graph":
            # That of one variable fails in Keras 2.3 on TF 2.
            return self.backend.batch_get_value([variable])[0]
        return variable.numpy() if hasattr(variable, "numpy") else np.asarray(variable)

    def read_checkpoint(self, checkpoint, path):
        """Restore what `checkpoint.write` has written: by Checkpoint.read, which is there from TF 2.3 on."""
        return getattr(checkpoint, "read", checkpoint.restore)(path)

    def mini_steps(self, pairs, batches):
        """Drive optimizers by hand, a mini-step a batch, on the mean squared error of their models.

        Args:
            pairs: list of (model, optimizer), side by side: in graph mode one session call takes a step with each,
                for a session is slow to take up new operations.
            batches: list of (x, y).

        Yields:
            For each batch the list of the models' weights after it.
        """
        if self.mode == "graph":
            step = self._graph_step(pairs)
        else:
            steps = [self._eager_step(model, optimizer) for model, optimizer in pairs]

            def step(x, y):
                for each in steps:
                    each(x, y)

        for x, y in batches:
            step(x, y)
            yield [model.get_weights() for model, _ in pairs]

    def step(self, model, optimizer):
        """A function of (x, y) that takes one mini-step; in eager mode a `tf.function`."""
        if self.mode == "graph":
            return self._graph_step([(model, optimizer)])
        if self.is_keras3:
            optimizer.build(model.trainable_variables)
        return self.tf.function(self._eager_step(model, optimizer))

    def _graph_step(self, pairs):
        backend = self.backend
        target = backend.placeholder(shape=pairs[0][0].outputs[0].shape.as_list())
        inputs, losses, updates = [target], [], []
        for model, optimizer in pairs:
            loss = backend.mean(backend.square(model.outputs[0] - target))
            inputs.append(model.inputs[0])
            losses.append(loss)
            updates += optimizer.get_updates(loss=loss, params=model.trainable_weights)
        function = backend.function(inputs, losses, updates=updates)
        return lambda x, y: function([y] + [x] * len(pairs))

    def _eager_step(self, model, optimizer):
        tf = self.tf

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        return step

    def bare_steps(self, model, optimizer, batches):
        """As `mini_steps`, for an optimizer that is not ours: its weights after each batch.

        In graph mode the gradients are computed in one session call and applied in the next. In one call the stock v1
        optimizers write to reference variables that gradients are still computed from.
        """
        if self.mode == "eager":
            for x, y in batches:
                self._eager_bare_step(model, optimizer, x, y)
                yield model.get_weights()
            return
        backend, params = self.backend, model.trainable_weights
        target = backend.placeholder(shape=model.outputs[0].shape.as_list())
        loss = backend.mean(backend.square(model.outputs[0] - target))
        differentiate = backend.function([model.inputs[0], target], backend.gradients(loss, params))
        # A loss whose gradient by each of the params is what is fed.
        fed = [backend.placeholder(shape=backend.int_shape(param)) for param in params]
        surrogate = sum(self.tf.reduce_sum(gradient * param) for gradient, param in zip(fed, params))
        apply = backend.function(fed, [surrogate], updates=optimizer.get_updates(loss=surrogate, params=params))
        for x, y in batches:
            apply(differentiate([x, y]))
            yield model.get_weights()

    def _eager_bare_step(self, model, optimizer, x, y):
        if self.tf_version >= (2, 4):
            return self._eager_step(model, optimizer)(x, y)
        # TF 2.0 to 2.3 clip in minimize alone.
        optimizer.minimize(lambda: self.tf.reduce_mean(self.tf.square(model(x) - y)), model.trainable_variables)

    def optimizer_weights(self, optimizer):
        """The values of all the optimizer's variables."""
        if hasattr(optimizer, "get_weights"):
            return optimizer.get_weights()
        # A list, a method or a list that can be called.
        variables = optimizer.variables
        return [variable.numpy() for variable in (variables if isinstance(variables, list) else variables())]

    def set_optimizer_weights(self, optimizer, weights):
        """Put `weights`, from `optimizer_weights`, back."""
        if self.is_keras3:
            for variable, value in zip(optimizer.variables, weights):
                variable.assign(value)
        else:
            optimizer.set_weights(weights)

    def optimizer_classes(self):
        """[(generation, class)] of every stock optimizer that trains, of every generation of the home in this mode."""
        if self.mode == "graph":
            modules = [("v1", self.v1_optimizers)]
            public = getattr(self.keras.optimizers, "legacy", self.keras.optimizers)
            if hasattr(public.SGD, "_resource_apply_dense"):
                modules.append(("v2", public))
        else:
            public = self.keras.optimizers
            modules = [("keras3" if self.is_keras3 else "v2/v3", public)]
            # legacyga refuses the experimental ones of TF 2.9.
            names = ("legacy", "experimental") if self.tf_version >= (2, 10) else ()
            others = [(name, getattr(public, name, None)) for name in names]
            modules += [("v2/v3", module) for name, module in others if module is not None]
        # Before Keras 3.13 the bare Muon ends in an AttributeError.
        broken = ("Muon",) if self.is_keras3_before(3, 13) else ()
        seen, found = set(), []
        for generation, module in modules:
            for name in dir(module):
                cls = getattr(module, name)
                if isinstance(cls, type) and cls not in seen and name not in NOT_ALONE + broken and name[0] != "_":
                    if generation_of(cls) in generation.split("/"):
                        seen.add(cls)
                        found.append((generation, cls))
        return found

    def is_keras3_before(self, *version):
        """Whether this is a Keras 3 that is older than that."""
        return self.is_keras3 and environments.as_numbers(self.version)[: len(version)] < version

    def is_standalone_before(self, *version):
        """Whether this is a standalone Keras 2 that is older than that."""
        is_standalone = self.name == "keras" and not self.is_keras3
        return is_standalone and environments.as_numbers(self.version)[: len(version)] < version

    def variables(self, start):
        """Variables of the home, in eager mode, with these values."""
        if not self.is_keras3:
            return [self.tf.Variable(value) for value in start]
        # Before Keras 3.6 they take the dtype of floatx, whatever the value's.
        dtypes = [self.tf.as_dtype(getattr(value, "dtype", "float32")).name for value in start]
        return [self.keras.Variable(value, dtype=dtype) for value, dtype in zip(start, dtypes)]

    def function(self, inputs, outputs, updates, bare=()):
        """In graph mode, a function of the list of the inputs' values that makes updates.

        Args:
            inputs, outputs, updates: as of backend.function.
            bare: the updates of stock v1 optimizers. Nothing orders what they read with what they write: what they
                are to write is computed in one session call, without a write, and written in a second.
        """
        backend = self.backend
        ours = backend.function(inputs, outputs, updates=updates) if updates else None
        writes = [each[0].assign(each[1]) if isinstance(each, tuple) else each for each in bare]
        writes = [getattr(each, "op", each) for each in writes]
        values = [write.inputs[1] for write in writes]

        def run(fed):
            if ours:
                ours(fed)
            if bare:
                session = self.sessions.get_session()
                found = session.run(values, dict(zip(inputs, fed)))
                session.run(writes, dict(zip(values, found)))

        return run

    def apply_to(self, start, optimizer, gradients):
        """Give an optimizer of this home gradients to apply to variables of its own, one list after the other.

        Returns:
            For each list of `gradients` the values of the variables after it.
        """
        return self.apply_all_to(start, [optimizer], gradients)[0]

    def apply_all_to(self, start, optimizers, gradients):
        """The same for several optimizers that are given the same gradients, each with variables of its own.

        In graph mode one session call takes a step with each, for a session is slow to take up new operations.

        Returns:
            A list with what `apply_to` returns for each.
        """
        if self.mode == "eager":
            gradients = list(gradients) if len(optimizers) > 1 else gradients
            return [self._apply_eagerly(Fed(self, optimizer, start), gradients) for optimizer in optimizers]
        fed = [self.backend.placeholder(shape=value.shape) for value in start]
        each_fed = [Fed(self, optimizer, start, placeholders=fed) for optimizer in optimizers]
        apply = self.function(
            fed,
            [each.loss for each in each_fed],
            [update for each in each_fed for update in each.updates],
            [update for each in each_fed for update in each.bare_updates],
        )
        flat = [variable for each in each_fed for variable in each.variables]
        histories = [[] for _ in optimizers]
        for each in gradients:
            apply(each)
            values = iter(self.backend.batch_get_value(flat))
            for history in histories:
                history.append([next(values) for _ in start])
        return histories

    def _apply_eagerly(self, fed, gradients):
        history = []
        for each in gradients:
            fed.step(each)
            history.append([np.array(variable.numpy()) for variable in fed.variables])
        return history

    def bare_sgd(self, **kwargs):
        """The home's own SGD: of the v1 API in graph mode, of the generation MySGD is built on in eager mode."""
        rate = "lr" if self.mode == "graph" else "learning_rate"
        kwargs[rate] = kwargs.pop("lr")
        if self.is_keras3:
            assert not kwargs.pop("decay", 0), "Keras 3 has no decay"
        return self.default_optimizers.SGD(**kwargs)


class Fed(object):
    """Variables of a home, and an optimizer that is given gradients by them.

    Args:
        home: a `Home`.
        optimizer: one of the home, or of tf.compat.v1.train.
        start: list of the variables' values; in eager mode also of variables.
        sparse: whether there is one variable, whose gradients are given as [ids, rows].
        placeholders: in graph mode, for the gradients, if several optimizers take their steps in one call.
    """

    def __init__(self, home, optimizer, start, sparse=False, placeholders=None):
        self.home, self.optimizer, self.sparse = home, optimizer, sparse
        if home.mode == "eager":
            if hasattr(start[0], "assign"):
                self.variables = start
            elif home.is_keras3 and not hasattr(optimizer, "build"):
                # One of tf.compat.v1.train.
                self.variables = [home.tf.Variable(value) for value in start]
            else:
                self.variables = home.variables(start)
            if home.is_keras3 and hasattr(optimizer, "build"):
                optimizer.build(self.given(self.variables))
            return
        backend, tf = home.backend, home.tf
        self.variables, fed = [backend.variable(value) for value in start], placeholders
        if sparse:
            fed = [
                backend.placeholder(shape=(None,), dtype="int64"),
                backend.placeholder(shape=(None,) + start[0][0].shape),
            ]
            self.loss = tf.reduce_sum(tf.gather(self.variables[0], fed[0]) * fed[1])
        else:
            fed = fed or [backend.placeholder(shape=value.shape) for value in start]
            self.loss = sum(tf.reduce_sum(gradient * var) for gradient, var in zip(fed, self.variables))
        self.placeholders = fed
        self._make_updates()
        if placeholders is None:
            self.apply = home.function(fed, [self.loss], self.updates, self.bare_updates)
        # A v1 optimizer that is given to two models lists the weights of the second.
        self.weights = self.optimizer_weights()

    def _make_updates(self):
        self.updates, self.bare_updates = [], []
        if not hasattr(self.optimizer, "get_updates"):
            self.updates = [self.optimizer.minimize(self.loss, var_list=self.variables)]
            initializer = v1_of(self.home.tf).variables_initializer(self.optimizer.variables())
            self.home.sessions.get_session().run(initializer)
            return
        updates = self.optimizer.get_updates(loss=self.loss, params=self.given(self.variables))
        if hasattr(self.optimizer, "mini_step") or hasattr(self.optimizer, "apply_gradients"):
            self.updates = updates
        else:
            self.bare_updates = updates

    def optimizer_weights(self):
        """The optimizer's variables, as it lists them now."""
        weights = self.optimizer.weights if hasattr(self.optimizer, "weights") else self.optimizer.variables
        return list(weights() if callable(weights) else weights)

    def given(self, values):
        """Those of `values`, one for each variable, whose variables are given to the optimizer: all."""
        return values

    def step(self, gradients):
        """Give the optimizer gradients, None for one that a variable does not have."""
        if self.home.mode == "graph":
            self.apply(list(gradients))
            return
        tf = self.home.tf
        gradients = [None if each is None else tf.constant(each) for each in gradients]
        if self.sparse:
            ids, rows = gradients
            gradients = [tf.IndexedSlices(rows, ids, tf.constant(self.variables[0].shape, "int64"))]
        self.optimizer.apply_gradients(self.given(list(zip(gradients, self.variables))))

    def read(self):
        """[the variables' values, those of the optimizer's state but for `iterations`, `iterations`, `mini_step`]."""
        optimizer = self.optimizer
        # The bare ones of tf.compat.v1.train have none.
        counters = [getattr(optimizer, name) for name in ("iterations", "mini_step") if hasattr(optimizer, name)]
        state = self.weights if self.home.mode == "graph" else self.optimizer_weights()
        state = [each for each in state if not any(each is counter for counter in counters)]
        wanted = self.variables + state + counters
        if self.home.mode == "graph":
            found = self.home.backend.batch_get_value(wanted)
        else:
            found = [np.array(self.home.value(each)) for each in wanted]
        n, m = len(self.variables), len(self.variables) + len(state)
        return found[:n], found[n:m], [int(value) for value in found[m:]]
