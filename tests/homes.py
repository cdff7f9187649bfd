"""The Keras under test, and one way of driving an optimizer through mini-steps that every home and mode has."""

import collections
import contextlib
import gc
import importlib
import os
import socket
import subprocess
import sys

import environments
import numpy as np

from legacyga.backend import homes as ours
from legacyga.backend.features import has_variable_creators, v1_of
from legacyga.backend.homes import generation_of

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# The time that a program of the tests may take.
SECONDS = 900

# Base classes, and those that hold other optimizers.
NOT_ALONE = ("Optimizer", "OptimizerV2", "TFOptimizer", "LossScaleOptimizer", "MultiOptimizer")


def run(script, arguments, path=()):
    """What a Python program prints, in a process of its own that imports from the folders `path` first."""
    folders = list(path) + [each for each in [os.environ.get("PYTHONPATH")] if each]
    done = subprocess.run(
        [sys.executable, script] + list(arguments),
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(folders)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_program(folder, source, *arguments):
    """What a program that imports the helpers prints. It is a file, for AutoGraph reads it; `folder` is a py.path."""
    folder.join("program.py").write(source)
    return run(str(folder.join("program.py")), arguments, [os.path.dirname(os.path.abspath(__file__))] + sys.path)


def free_ports(number):
    """Ports of the loopback interface that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


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
    name, mode = choice[0] if mode else choice[-1]
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


def variables_of(optimizer):
    """An optimizer's variables, as a user of its home asks for them."""
    found = getattr(optimizer, "weights", None)
    found = optimizer.variables if found is None else found
    return list(found() if callable(found) else found)


class Home(object):
    """A Keras module, the mode it runs in, and what the tests do with it."""

    def __init__(self, name, mode, tf):
        self.name, self.mode, self.tf, self.v1 = name, mode, tf, v1_of(tf)
        self.keras = tf.keras if name == "tf.keras" else importlib.import_module(name)
        self.ours = ours.Home(self.keras)
        # The package that implements the home ("keras", "keras.src"), and its internal backend: the public one of Keras
        # 3 and of newer tf.keras lacks half of it.
        self.root, self.backend = self.ours.root, self.ours.backend
        # The module of the optimizers that have `get_updates` alone.
        self.v1_optimizers = self.ours.v1_optimizers
        self.tf_version = tuple(int(part) for part in tf.__version__.split(".")[:2])
        self.version = getattr(self.keras, "__version__", None) or version("keras") or "of TensorFlow"
        self.is_keras3, self.is_standalone = name == "keras" and mode == "eager", name == "keras" and mode == "graph"
        # What `clipnorm` means here: the norm of all gradients together, or each one's own.
        self.clipnorm_means = "all" if self.is_standalone or self.tf_version < (1, 10) else "each"
        # The backend that has the sessions: Keras 2.3 on TF 2 leaves them to tf.keras.
        self.sessions = self.v1.keras.backend if self.is_standalone and self.tf_version >= (2, 0) else self.backend
        # Whether an update of the home's own optimizers may change what a gradient has yet to read. It may if weights
        # are reference variables: in Keras up to 2.3, and in tf.keras before TF 1.13.
        self.races = mode == "graph" and (self.is_standalone or self.tf_version < (1, 13))
        # Whether wrap takes v1 optimizers: up to TF 1.10 tf.Variable passes the creators of variables by.
        self.has_wrap_in_v1 = has_variable_creators(tf)

    def reset(self, plain_session=False):
        """Forget what earlier tests built. A plain session does not optimize its graph, which takes the time."""
        if self.is_keras3:
            # It collects garbage otherwise, which takes longer than most tests.
            self.keras.utils.clear_session(free_memory=False)
            return
        self.keras.backend.clear_session()
        if plain_session and self.mode == "graph":
            config = self.v1.ConfigProto()
            config.graph_options.optimizer_options.opt_level = -1
            rewrites = config.graph_options.rewrite_options
            if hasattr(rewrites, "disable_meta_optimizer"):
                rewrites.disable_meta_optimizer = True
            self.sessions.set_session(self.v1.Session(config=config))

    def set_floatx(self, dtype):
        (self.keras.config if self.is_keras3 else self.keras.backend).set_floatx(dtype)

    def network(self, start, max_norm=None, tanh_at_the_end=False, names=None):
        """Dense layers with tanh between them, `start` as weights, and a constraint on the first kernel."""
        layers, model = self.keras.layers, self.keras.models.Sequential()
        for i in range(0, len(start), 2):
            kwargs = dict(name=names[i // 2]) if names else {}
            if i == 0:
                kwargs["input_shape"] = (start[0].shape[0],)
                kwargs["kernel_constraint"] = max_norm and self.keras.constraints.MaxNorm(max_norm, axis=0)
            activation = "tanh" if tanh_at_the_end or i + 2 < len(start) else None
            model.add(layers.Dense(start[i].shape[1], activation=activation, **kwargs))
        model.set_weights(start)
        return model

    def values(self, variables):
        """What variables, or constants in place of them, hold."""
        if self.mode == "graph":
            return self.backend.batch_get_value(variables)
        return [np.array(each.numpy() if hasattr(each, "numpy") else each) for each in variables]

    def value(self, variable):
        return self.values([variable])[0]

    def read_checkpoint(self, checkpoint, path):
        """Restore what `checkpoint.write` has written: by Checkpoint.read, which is there from TF 2.3 on."""
        return getattr(checkpoint, "read", checkpoint.restore)(path)

    def mini_steps(self, model, optimizer, batches):
        """Drive an optimizer by hand, a mini-step a batch; the model's weights after each."""
        step = self.step(model, optimizer, traced=False)
        for x, y in batches:
            step(x, y)
            yield model.get_weights()

    def step(self, model, optimizer, traced=True):
        """A function of (x, y) that takes one mini-step on the mean squared error; in eager mode a `tf.function`, or
        what one can be made of.
        """
        if self.mode == "graph":
            return self.graph_step([(model, optimizer)])
        tf, variables = self.tf, model.trainable_variables
        if self.is_keras3:
            optimizer.build(variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        return tf.function(step) if traced else step

    def graph_step(self, pairs):
        """The same in graph mode, of several (model, optimizer) in one session call."""
        backend = self.backend
        target = backend.placeholder(shape=pairs[0][0].outputs[0].shape.as_list())
        losses = [backend.mean(backend.square(model.outputs[0] - target)) for model, _ in pairs]
        updates = []
        for (model, optimizer), loss in zip(pairs, losses):
            updates += optimizer.get_updates(loss=loss, params=model.trainable_weights)
        function = backend.function([target] + [model.inputs[0] for model, _ in pairs], losses, updates=updates)
        return lambda x, y: function([y] + [x] * len(pairs))

    def bare_steps(self, model, optimizer, batches):
        """As `mini_steps`, for an optimizer that is not ours.

        In graph mode the gradients are computed in one session call and applied in the next. In one call the stock v1
        optimizers write to reference variables that gradients are still computed from.
        """
        params, tf = model.trainable_weights, self.tf
        if self.mode == "graph":
            fed = Fed(self, optimizer, params)
            target = self.backend.placeholder(shape=model.outputs[0].shape.as_list())
            loss = tf.reduce_mean(tf.square(model.outputs[0] - target))
            differentiate = self.backend.function([model.inputs[0], target], self.backend.gradients(loss, params))
        for x, y in batches:
            if self.mode == "graph":
                fed.step(differentiate([x, y]))
            elif self.is_keras3:
                self.step(model, optimizer, traced=False)(x, y)
            else:
                # TF 2.0 to 2.3 clip in minimize alone.
                optimizer.minimize(lambda x=x, y=y: tf.reduce_mean(tf.square(model(x) - y)), params)
            yield model.get_weights()

    def optimizer_weights(self, optimizer):
        return self.values(variables_of(optimizer))

    def set_optimizer_weights(self, optimizer, weights):
        if self.is_keras3:
            for variable, value in zip(optimizer.variables, weights):
                variable.assign(value)
        else:
            optimizer.set_weights(weights)

    def optimizer_classes(self):
        """[(generation, class)] of every stock optimizer that trains, of every generation of the home in this mode."""
        public = self.keras.optimizers
        if self.mode == "graph":
            generations, modules = ("v1", "v2"), [self.v1_optimizers, getattr(public, "legacy", public)]
        else:
            generations, modules = ("v2", "v3", "keras3"), [public]
            # legacyga refuses the experimental ones of TF 2.9.
            if self.tf_version >= (2, 10):
                modules += [getattr(public, name) for name in ("legacy", "experimental") if hasattr(public, name)]
        # Before Keras 3.13 the bare Muon ends in an AttributeError.
        left_out = NOT_ALONE + (("Muon",) if self.is_keras3_before(3, 13) else ())
        found = collections.OrderedDict()
        for module in modules:
            for name in dir(module):
                generation = generation_of(getattr(module, name))
                if generation in generations and name not in left_out and name[0] != "_":
                    found.setdefault(getattr(module, name), generation)
        return [(generation, cls) for cls, generation in found.items()]

    def is_keras3_before(self, *version):
        return self.is_keras3 and environments.as_numbers(self.version)[: len(version)] < version

    def is_standalone_before(self, *version):
        return self.is_standalone and environments.as_numbers(self.version)[: len(version)] < version

    def variables(self, start):
        if self.mode == "graph":
            return [self.backend.variable(value) for value in start]
        if not self.is_keras3:
            return [self.tf.Variable(value) for value in start]
        # Before Keras 3.6 they take the dtype of floatx, whatever the value's.
        dtypes = [self.tf.as_dtype(getattr(value, "dtype", "float32")).name for value in start]
        return [self.keras.Variable(value, dtype=dtype) for value, dtype in zip(start, dtypes)]

    def apply_to(self, start, optimizer, gradients):
        """The values of variables from `start` on, after each list of `gradients` that an optimizer is given."""
        fed, found = Fed(self, optimizer, start), []
        for each in gradients:
            fed.step(each)
            found.append(fed.values())
        return found

    def bare_sgd(self, **kwargs):
        """The home's own SGD: of the v1 API in graph mode, of the generation MySGD is built on in eager mode."""
        if self.mode == "graph":
            return self.v1_optimizers.SGD(**kwargs)
        if self.is_keras3:
            assert not kwargs.pop("decay", 0), "Keras 3 has no decay"
        # From TF 2.11 on `decay` is an argument of those in `legacy` alone.
        return self.ours.eager_optimizers.SGD(learning_rate=kwargs.pop("lr"), **kwargs)


class Fed(object):
    """Variables, and an optimizer that is given gradients by them: in graph mode of a loss that is linear in them.

    Args:
        optimizer: one of the home, or of tf.compat.v1.train.
        start: the variables, or their values.
        sparse: whether there is one variable, whose gradients are given as [ids, rows].
        traced: whether a mini-step is a `tf.function`, in eager mode.
    """

    def __init__(self, home, optimizer, start, sparse=False, traced=False):
        self.home, self.optimizer, self.sparse = home, optimizer, sparse
        is_built = home.is_keras3 and hasattr(optimizer, "build")
        if hasattr(start[0], "assign"):
            self.variables = start
        elif home.is_keras3 and not is_built:
            # An optimizer of tf.compat.v1.train.
            self.variables = [home.tf.Variable(value) for value in start]
        else:
            self.variables = home.variables(start)
        self._apply = home.tf.function(self._apply_gradients) if traced else self._apply_gradients
        if is_built:
            optimizer.build(self.given(self.variables))
        if home.mode == "eager":
            return
        backend, tf = home.backend, home.tf
        if sparse:
            row = backend.int_shape(self.variables[0])[1:]
            fed = [backend.placeholder(shape=(None,), dtype="int64"), backend.placeholder(shape=(None,) + row)]
            loss = tf.reduce_sum(tf.gather(self.variables[0], fed[0]) * fed[1])
        else:
            fed = [backend.placeholder(shape=backend.int_shape(variable)) for variable in self.variables]
            loss = sum(tf.reduce_sum(gradient * var) for gradient, var in zip(fed, self.variables))
        self.placeholders = fed
        self._make_updates(loss)
        # A v1 optimizer that is given to two models lists the weights of the second.
        self.weights = variables_of(optimizer)

    def _make_updates(self, loss):
        self.values_written = []
        if not hasattr(self.optimizer, "get_updates"):
            self.updates = [self.optimizer.minimize(loss, var_list=self.variables)]
            self.home.sessions.get_session().run(self.home.v1.variables_initializer(self.optimizer.variables()))
            return
        self.updates = list(self.optimizer.get_updates(loss=loss, params=self.given(self.variables)))
        if not (hasattr(self.optimizer, "mini_step") or hasattr(self.optimizer, "apply_gradients")):
            # Nothing orders what stock v1 optimizers read with what they write: what they are to write is computed in
            # one session call, without a write, and written in a second.
            writes = [each[0].assign(each[1]) if isinstance(each, tuple) else each for each in self.updates]
            self.updates = [getattr(each, "op", each) for each in writes]
            self.values_written = [write.inputs[1] for write in self.updates]

    def given(self, values):
        """Those of `values`, one for each variable, whose variables are given to the optimizer: all."""
        return values

    def step(self, gradients):
        """Give the optimizer gradients; in eager mode None for one that a variable does not have, or (ids, rows)."""
        if self.home.mode == "graph":
            session, fed = self.home.sessions.get_session(), dict(zip(self.placeholders, gradients))
            found = session.run(self.values_written, fed)
            session.run(self.updates, dict(zip(self.values_written, found)) or fed)
            return
        gradients = [tuple(gradients)] if self.sparse else gradients
        self._apply([self._tensor(each, variable) for each, variable in zip(gradients, self.variables)])

    def _apply_gradients(self, gradients):
        self.optimizer.apply_gradients(self.given(list(zip(gradients, self.variables))))

    def _tensor(self, gradient, variable):
        tf = self.home.tf
        if isinstance(gradient, tuple):
            ids, rows = map(tf.constant, gradient)
            return tf.IndexedSlices(rows, ids, tf.constant(tuple(variable.shape), "int64"))
        return None if gradient is None else tf.constant(gradient)

    def values(self):
        return self.home.values(self.variables)

    def read(self):
        """Return the values of the variables and of the optimizer's other state, and [`iterations`, `mini_step`]."""
        optimizer = self.optimizer
        # The bare ones of tf.compat.v1.train have none.
        counters = [getattr(optimizer, name) for name in ("iterations", "mini_step") if hasattr(optimizer, name)]
        state = self.weights if self.home.mode == "graph" else variables_of(optimizer)
        state = [each for each in state if not any(each is counter for counter in counters)]
        found = self.home.values(self.variables + state + counters)
        n, m = len(self.variables), len(self.variables) + len(state)
        return found[:n], found[n:m], [int(value) for value in found[m:]]
