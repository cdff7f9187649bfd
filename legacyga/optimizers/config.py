"""The config of an accumulating optimizer: how Keras describes, saves and loads one."""

import contextlib
import importlib

from legacyga.backend import features, homes
from legacyga.optimizers import copying, state, surface
from legacyga.windows import settings as _settings

NOT_HERE = (
    "{0!r} has an optimizer {1}, of another generation than the one in the file. Received: {2}'s, of the generation "
    "{3!r}. Load the model with compile=False, and compile it with an optimizer of today."
)
UNKNOWN = (
    "{0!r} has no optimizer of this name, and none is registered. Received: {4!r}. Give its class: "
    "legacyga.load_model(path, custom_objects={{{4!r}: {1}}})."
)


def _optimizer_class(home, generation, name, module):
    """The class that a config names: one that the user has registered, or the home's own of this generation."""
    find, optimizers = features.registered_object(home.module), home.module.optimizers
    places = [home.v1_optimizers] if generation == "v1" and home.graph_mode else [optimizers]
    places += [getattr(optimizers, "legacy", None), getattr(optimizers, "experimental", None)]
    with contextlib.suppress(ImportError):
        places.append(importlib.import_module(home.root + ".mixed_precision.loss_scale_optimizer"))
    # A program's own package stands before the name, as Keras's own do in some versions: "Custom>Adam".
    plain = name.rpartition(">")[2]
    named = [find(name)] + [getattr(place, plain, None) for place in places]
    found = [cls for cls in named if homes.generation_of(cls) == generation]
    if found:
        # OptimizerV2 stands in two modules of TF 2.9 and 2.10, `legacy` or not. Delete with TF 2.10.
        return next((cls for cls in found if cls.__module__ == module), found[0])
    raise ValueError((NOT_HERE if any(named) else UNKNOWN).format(home, plain, module, generation, name))


def from_config(home, config, custom_objects=None):
    """The optimizer of a home that `ConfiguredOptimizer.get_config` described."""
    options = dict(config)
    try:
        inner = options.pop("optimizer")
        generation, name, inner_config = inner["generation"], inner["class_name"], inner["config"]
        settings = _settings.Settings.checked(options.pop("gradient_accumulation_steps"), **options)
    except (KeyError, TypeError):
        raise ValueError("This is no config of an optimizer that legacyga.wrap returned. Received: {!r}".format(config))
    with _known(home, custom_objects or {}):
        cls = _optimizer_class(home, generation, name, inner.get("module"))
        return surface.wrapped(cls.from_config(inner_config), home, settings)


@contextlib.contextmanager
def _known(home, objects):
    """A context in which the home finds these custom objects, a dict by name, beside those that it knows."""
    # Not in a scope, for a scope of Keras 3 hides those around it.
    registered = home.module.utils.get_custom_objects()
    added = {name: each for name, each in objects.items() if name not in registered}
    registered.update(added)
    try:
        yield
    finally:
        for name in added:
            registered.pop(name, None)


LOADERS = {surface.NAME: from_config}


def loaders(home):
    """{name: an object with a `from_config`} for the loaders of a home, of all classes of optimizers that accumulate.

    `LOADERS` has their functions of (home, config, custom objects).
    """

    def loader(name, load):
        def from_config(cls, config, custom_objects=None):
            return load(home, config, custom_objects)

        return type(name, (object,), {"from_config": classmethod(from_config)})

    return {name: loader(name, load) for name, load in LOADERS.items()}


def register(home):
    """Tell the home's own loaders of them, unless the program has given them others of these names."""
    for name, loader in loaders(home).items():
        home.module.utils.get_custom_objects().setdefault(name, loader)


def load(name, inner, home, config, custom_objects=None):
    """The optimizer, over the class `inner` and with this name of its own, that `get_config` described."""
    with _known(home, {home.registered_name(inner): inner}):
        return LOADERS[name](home, config, custom_objects)


class ConfiguredOptimizer(surface.AccumulatingOptimizer):
    """`AccumulatingOptimizer` for the optimizers of a Keras, which can be described, and saved."""

    def get_config(self):
        """What `from_config` makes this optimizer of again: the inner optimizer's config, K, and the options."""
        cls, home = type(self)._legacyga_class
        # Keras saves the config first.
        self._legacyga.registry().check_all_is_here("its config")
        inner = super(ConfiguredOptimizer, self).get_config()
        described = {
            "class_name": home.registered_name(cls),
            "config": inner,
            "generation": homes.generation_of(cls),
            "module": cls.__module__,
        }
        settings = self._legacyga.settings._asdict()
        settings.pop("steps")
        return dict(settings, optimizer=described, gradient_accumulation_steps=self._legacyga.next_steps)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The optimizer that `get_config` described."""
        inner, home = cls._legacyga_class
        made = load(surface.NAME, inner, home, config, custom_objects)
        if surface.is_own(cls):
            return made
        # Horovod extends the class, and has what its methods need from an `__init__` that this call comes by.
        extended = super(surface.AccumulatingOptimizer, cls).from_config(config["optimizer"]["config"])
        surface.start(extended, surface.accumulation_of(made).settings)
        return extended

    def set_weights(self, weights):
        """Set all variables of the optimizer, or those that the bare one has: then no window is open.

        Args:
            weights: list of arrays, in the order of `weights` (`variables` in newer versions).

        Raises:
            ValueError: one array too few or too many, or of another shape. Nothing is written then.
        """
        if _is_built(self):
            weights = state.fitting(self, self._legacyga, weights)
        if not _is_built(self) or not hasattr(self, "update_step"):
            super(ConfiguredOptimizer, self).set_weights(weights)
            return
        # The v3 optimizers that hold another one take themselves to be unbuilt, or leave it out.
        for variable, value in zip(state.variables_of(self), weights):
            variable.assign(value)

    def save_own_variables(self, store):
        """Put all variables into the store of a `.keras` or `.weights.h5` file."""
        self._legacyga.registry().check_all_is_here("a file")
        values = type(self)._legacyga_class[1].values_of(state.variables_of(self))
        for i, value in enumerate(values):
            store[str(i)] = value

    def load_own_variables(self, store):
        """Take all variables out of the store of a `.keras` or `.weights.h5` file, as `set_weights` does."""
        if not _is_built(self):
            # Keras's own warning is of an optimizer that must be built first.
            super(ConfiguredOptimizer, self).load_own_variables(store)
            return
        self.set_weights([store[str(i)] for i in range(len(store.keys()))])


def _is_built(optimizer):
    keeper = copying.keeper_of(optimizer)
    # Those of the v1 API and of OptimizerV2 have no such thing. The others of tf.keras have it once they are built.
    return getattr(keeper, "built", getattr(keeper, "_built", not hasattr(keeper, "update_step")))
