"""Find the parts of each Keras, and the Keras that an optimizer belongs to.

Three libraries are called `keras`: standalone below 2.4, tf.keras from 2.6 to 2.15 (in 2.5 a copy of it), and Keras 3.
"""

import contextlib
import importlib
import sys
import threading
import types

from legacyga.backend import features
from legacyga.backend.features import version_of
from legacyga.backend.messages import shown

# The first parts of the names of Keras's own modules.
KERAS = ("keras", "tensorflow", "tf_keras")


def installed_version(name):
    """Import the package `name`, and return its version, or a text that says why it has none."""
    try:
        return getattr(importlib.import_module(name), "__version__", "(no version)")
    # A Keras for another TensorFlow may raise anything.
    except Exception as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
        return "not installed" if is_missing else "cannot be imported: {}".format(shown(error))


def _tensorflow():
    try:
        # AutoGraph, which may rewrite this function, warns that it cannot rewrite importlib.
        return sys.modules.get("tensorflow") or importlib.import_module("tensorflow")
    except ImportError as error:
        raise ImportError(
            "legacyga works on the TensorFlow of your project and found none to import ({}). "
            "Install the tensorflow, and the Keras, that the project uses.".format(error)
        )


class TensorFlow(object):
    """The TensorFlow of this process; in place of a `Home` for tf.compat.v1.train optimizers, which need no Keras."""

    name = root = "tf.compat.v1.train"
    is_keras3 = False

    def __init__(self):
        self.tf = _tensorflow()
        self.tf_version = self.tf.__version__
        self.v1 = features.v1_of(self.tf)

    def __deepcopy__(self, memo):
        # A copied optimizer has the same home.
        return self

    @property
    def graph_mode(self):
        """Whether the current code builds a TensorFlow 1 graph, not a function."""
        if self.tf.executing_eagerly():
            return False
        outside_functions = features.executing_eagerly_outside_functions(self.tf)
        if features.is_of_function(self.v1.get_default_graph()):
            with features.init_scope(self.tf)():
                return not outside_functions()
        return not outside_functions()

    def check_can_train(self):
        """Raise if no optimizer can train in this mode, before TensorFlow or Keras raise an obscure error."""
        if self.tf.executing_eagerly() and version_of(self.tf) < (2,):
            raise ValueError(
                "legacyga needs TensorFlow 2.0 or newer in eager mode. Received: TensorFlow {} with eager execution "
                "enabled. Train in graph mode (do not enable eager execution).".format(self.tf.__version__)
            )


def _implementation_of(module):
    """Return the name of the module that defines a Keras's Callback. Programs may replace Keras's other classes."""
    callback = module.callbacks.Callback
    for each in callback.__mro__:
        if each.__module__.partition(".")[0] in KERAS and ".callbacks" in each.__module__:
            return each.__module__
    raise ValueError("{} has a Callback of no Keras: {}".format(module, callback))


class Home(TensorFlow):
    """One Keras, and its TensorFlow. `root` is the package that implements `module`, as "keras.src" for `keras`."""

    def __init__(self, module):
        super(Home, self).__init__()
        if module.__name__ == "keras" and (2, 5) <= version_of(module) < (2, 13):
            # There the public API is not in `keras` itself. Delete with TF 2.12.
            module = importlib.import_module("keras.api._v2.keras")
        self.module = module
        self.root = _implementation_of(module).split(".callbacks")[0]
        # A tf.keras of Keras 2 has a version below 3, or none.
        self.is_keras3 = version_of(module) >= (3,)
        top = self.root.split(".")[0]
        self.is_standalone = top == "keras" and not self.is_keras3 and version_of(sys.modules["keras"]) < (2, 4)
        self.name = "keras" if self.is_standalone or self.is_keras3 else "tf_keras" if top == "tf_keras" else "tf.keras"

    def __repr__(self):
        # In TF 2.13 to 2.15 tf.keras has no version of its own. Delete with TF 2.15.
        version = getattr(self.module, "__version__", None)
        return "{}{} on TensorFlow {}".format(self.name, " " + version if version else "", self.tf.__version__)

    def is_its_own(self, function):
        """Whether a function, method or object is this Keras's own."""
        # functools.wraps gives a program's function the module of Keras's. The function's globals stay the program's.
        written_in = getattr(function, "__globals__", {}).get("__name__")
        if written_in and written_in.split(".")[0] not in ("tensorflow", self.root.split(".")[0]):
            return False
        # A function made by `exec` may have None as its module.
        return (getattr(function, "__module__", None) or "").startswith(self.root + ".")

    @property
    def backend(self):
        return importlib.import_module(self.root + ".backend")

    @property
    def graph_mode(self):
        """Whether a model of this Keras, if built now, runs in a TensorFlow 1 graph."""
        return self.is_standalone or super(Home, self).graph_mode

    @property
    def is_standalone_in_eager_mode(self):
        """Whether this is Keras 2.3 in eager mode: it builds a graph, with eager variables. Delete with Keras 2.3."""
        return self.is_standalone and self.tf.executing_eagerly() and version_of(self.tf) >= (2,)

    def value_of(self, variable):
        return int(self.values_of([variable])[0])

    def values_of(self, variables):
        return self.backend.batch_get_value(variables) if self.graph_mode else [each.numpy() for each in variables]

    @property
    def session(self):
        """The session of this Keras's models, in graph mode; opens one if there is none."""
        with contextlib.suppress(RuntimeError):
            return self.backend.get_session()
        # Keras 2.3 has no session of its own on TF 2. Delete with Keras 2.3.
        return self.v1.keras.backend.get_session()

    @property
    def has_session(self):
        """Whether this Keras's models already have a session, in graph mode."""
        # On TF 2, Keras 2.3 uses the session of tf.keras. Delete with Keras 2.3.
        backends = [self.backend, self.v1.keras.backend] if self.is_standalone else [self.backend]
        sessions = [vars(sys.modules[each.get_session.__module__]).get("_SESSION") for each in backends]
        # Up to Keras 2.2 and TF 1.12 there is one session, later one per thread. Delete with Keras 2.2 and TF 1.12.
        sessions = [getattr(each, "session", None) if isinstance(each, threading.local) else each for each in sessions]
        return any(each is not None for each in sessions + [self.v1.get_default_session()])

    def default_session(self):
        """In graph mode, a context in which Keras's session is the default, as tf.compat.v1.train optimizers need."""
        return self.session.as_default() if self.graph_mode else contextlib.ExitStack()

    @property
    def v1_optimizers(self):
        """The module whose `Optimizer` has only the v1 API (`get_updates`)."""
        for name in (".optimizers.optimizer_v1", ".optimizer_v1", ".optimizers"):
            try:
                return importlib.import_module(self.root + name)
            except ImportError:
                continue
        raise ImportError("{} keeps no get_updates optimizers in {}".format(self, self.root))

    @property
    def eager_optimizers(self):
        """The module of the optimizers that MySGD uses in eager mode: OptimizerV2's where it exists, else Keras 3's."""
        optimizers = self.module.optimizers
        if self.is_keras3:
            return optimizers
        return features.legacy_optimizers(optimizers)

    def registered_name(self, cls):
        """Return the name of a class in configs."""
        return features.registered_name(self.module)(cls)

    def check_can_train(self):
        super(Home, self).check_can_train()
        if self.is_standalone and version_of(self.module) < (2, 0, 7):
            raise ValueError(
                "legacyga needs Keras 2.0.7 or newer: older ones hand constraints to get_updates. Received: {}. "
                "Install keras==2.0.8, which runs on the same TensorFlow.".format(self)
            )
        if self.is_standalone_in_eager_mode:
            raise ValueError(
                "The optimizers of standalone Keras accumulate in graph mode only. Received: {} in eager mode. Take "
                "one of tf.keras, which trains a model of this Keras too: legacyga.MySGD(..., keras=tf.keras), or "
                "legacyga.wrap(tf.keras.optimizers.Adam(...), ...). Or call "
                "tf.compat.v1.disable_eager_execution() before anything is made.".format(self)
            )
        if not self.is_keras3:
            return
        if features.is_before_keras_35(self.module):
            raise ValueError("legacyga needs Keras 3.5 or newer. Received: {}. Upgrade keras.".format(self))
        backend = self.module.backend.backend()
        if backend != "tensorflow":
            raise ValueError(
                "legacyga trains Keras 3 on its TensorFlow backend only. Received: the backend {}. "
                "Set KERAS_BACKEND=tensorflow before the first import of keras, or use Keras 3's own "
                "gradient_accumulation_steps.".format(shown(backend))
            )
        if self.graph_mode:
            raise ValueError(
                "Keras 3 cannot train in graph mode, not even with its own optimizers. Received: {} after "
                "disable_eager_execution() or inside a tf.Graph. Remove that call, or use tf_keras.".format(self)
            )


def home_of(optimizer):
    """Return the `Home` of an optimizer of any Keras, else None; raise for TensorFlow's private copies of Keras."""
    if generation_of(type(optimizer)) == "train":
        return None
    for cls in type(optimizer).__mro__:
        root, found, _ = cls.__module__.partition(".optimizer")
        if not found:
            continue
        top = root.split(".")[0]
        if top == "tf_keras":
            return Home(sys.modules["tf_keras"])
        keras = sys.modules.get("keras")
        if top == "keras" and keras is not None and (version_of(keras) < (2, 4) or version_of(keras) >= (3,)):
            return Home(keras)
        if top in ("keras", "tensorflow"):
            # With TF_USE_LEGACY_KERAS, and in TF 2.5, `keras` and tf.keras differ. Delete with TF 2.15.
            for each in [_tensorflow().keras] + [keras] * (top == "keras" and keras is not None):
                home = Home(each)
                if home.root == root:
                    return home
            raise ValueError(
                "{} is an optimizer of {}, a private copy that TensorFlow keeps of Keras. Take the one of "
                "tf.keras.optimizers.".format(type(optimizer).__name__, root)
            )
    return None


def generation_of(cls):
    """Return an optimizer class's generation, by its methods: the name of a legacyga.optimizers module, or None."""
    if hasattr(cls, "_resource_apply_dense"):
        return "v2" if hasattr(cls, "get_updates") else "train"
    if hasattr(cls, "update_step") and hasattr(cls, "apply_gradients"):
        return "keras3" if hasattr(cls, "stateless_apply") else "v3"
    return "v1" if hasattr(cls, "get_updates") and hasattr(cls, "get_gradients") else None


def find_home(keras=None):
    """Return the `Home` of a Keras module; for None, of standalone Keras or tf_keras if imported, else of tf.keras."""
    if isinstance(keras, types.ModuleType) and hasattr(keras, "optimizers") and hasattr(keras, "callbacks"):
        return Home(keras)
    if keras is not None:
        raise ValueError(
            "keras must be the Keras module of your model: keras, tf.keras or tf_keras. Received: {}".format(
                shown(keras)
            )
        )
    # TensorFlow from 2.6 on imports `keras` itself, so an imported Keras 3 does not show that the program uses it.
    imported = [sys.modules[name] for name in ("keras", "tf_keras") if sys.modules.get(name)]
    found = [each for each in imported if each.__name__ == "tf_keras" or () < version_of(each) < (2, 4)]
    if len(found) > 1:
        raise ValueError(
            "Two Keras are imported, {0} {2} and {1} {3}, and an optimizer belongs to one. Name the one your model is "
            "made of: keras={0} or keras={1}.".format(*[m.__name__ for m in found] + [m.__version__ for m in found])
        )
    return Home(found[0] if found else _tensorflow().keras)
