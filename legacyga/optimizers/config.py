"""How Keras saves and loads an accumulating optimizer: its config and its variables."""

import contextlib
import importlib

from legacyga.backend import features, homes
from legacyga.backend.messages import shown
from legacyga.optimizers import copying, state, surface
from legacyga.windows import settings as _settings

NOT_HERE = (
    "{0} has an optimizer {1}, of another generation than the one in the file. Received: {2}'s, of the generation "
    "{3}. Load the model with compile=False, and compile it with an optimizer of today."
)
UNKNOWN = (
    "{0} has no optimizer of this name, and none is registered. Received: {4}. Give its class: "
    "legacyga.load_model(path, custom_objects={{{4}: {1}}})."
)

# The generations that have no `build`: their optimizers count as built.
ALWAYS_BUILT = ("v1", "v2")


def _optimizer_class(home, generation, name, module):
    """The optimizer class that a config names: one that the user registered, or Keras's own of this generation."""
    find, optimizers = features.registered_object(home.module), home.module.optimizers
    places = [home.v1_optimizers] if generation == "v1" and home.graph_mode else [optimizers]
    places += [getattr(optimizers, "legacy", None), getattr(optimizers, "experimental", None)]
    with contextlib.suppress(ImportError):
        places.append(importlib.import_module(home.root + ".mixed_precision.loss_scale_optimizer"))
    # Registered names carry a package prefix, and so do Keras's own in some versions: "Custom>Adam".
    plain = name.rpartition(">")[2]
    named = [find(name)] + [getattr(place, plain, None) for place in places]
    found = [cls for cls in named if homes.generation_of(cls) == generation]
    if module is not None and module.partition(".")[0] not in homes.KERAS:
        # The class is the user's own. Keras's of the same name would make other updates.
        named = found = [cls for cls in found if cls is named[0]]
    if found:
        # TF 2.9 and 2.10 have each OptimizerV2 in two modules, one of them `legacy`. Delete with TF 2.10.
        return next((cls for cls in found if cls.__module__ == module), found[0])
    raise ValueError((NOT_HERE if any(named) else UNKNOWN).format(home, plain, module, shown(generation), shown(name)))


def from_config(home, config, custom_objects=None):
    """The optimizer of this Keras from a config of `ConfiguredOptimizer.get_config`."""
    options = dict(config)
    try:
        inner = options.pop("optimizer")
        generation, name, inner_config = inner["generation"], inner["class_name"], inner["config"]
        settings = _settings.Settings.checked(options.pop("gradient_accumulation_steps"), **options)
    except (KeyError, TypeError):
        raise ValueError(
            "This is no config of an optimizer that legacyga.wrap returned. Received: {}".format(shown(config))
        )
    with _known(home, custom_objects or {}):
        cls = _optimizer_class(home, generation, name, inner.get("module"))
        return surface.wrapped(cls.from_config(inner_config), home, settings)


@contextlib.contextmanager
def _known(home, objects):
    """A context in which the Keras `home` knows these custom objects. Names already registered stay as they are."""
    # A CustomObjectScope of Keras 3 would hide the user's scopes around it.
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
    """The custom objects by which Keras loads our optimizers, {name: class with a `from_config`}."""

    def loader(name, make):
        def from_config(cls, config, custom_objects=None):
            return make(home, config, custom_objects)

        return type(name, (object,), {"from_config": classmethod(from_config)})

    return {name: loader(name, load) for name, load in LOADERS.items()}


def register(home):
    """Register our `loaders` with Keras, except under names that the program has registered itself."""
    for name, loader in loaders(home).items():
        home.module.utils.get_custom_objects().setdefault(name, loader)


def load(name, inner, home, config, custom_objects=None):
    """The optimizer from a config, by `LOADERS[name]`. The inner class `inner` need not be registered."""
    with _known(home, {home.registered_name(inner): inner}):
        return LOADERS[name](home, config, custom_objects)


class ConfiguredOptimizer(surface.AccumulatingOptimizer):
    """`AccumulatingOptimizer` for Keras optimizers, which have configs and are saved with models."""

    def get_config(self):
        """The config for `from_config`: the inner optimizer's config, K and the options of `wrap`."""
        cls, home = type(self)._legacyga_class
        # Keras saves the config first: if restored state waits for its variables, raise before it writes a file.
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
        """The optimizer from a config of `get_config`."""
        inner, home = cls._legacyga_class
        made = load(surface.NAME, inner, home, config, custom_objects)
        if "_legacyga_class" in vars(cls):
            return made
        # Horovod's subclass of ours needs its `__init__` run: the inner `from_config` runs it, `load` does not.
        extended = super(surface.AccumulatingOptimizer, cls).from_config(config["optimizer"]["config"])
        surface.start(extended, surface.accumulation_of(made).settings)
        return extended

    def set_weights(self, weights):
        """Set all variables from a list of arrays. If it has only the inner optimizer's, a new window starts.

        Raises ValueError, before it writes anything, if the number of arrays or a shape does not match.
        """
        if _is_built(self):
            weights = state.fitting(self, self._legacyga, weights)
        if not _is_built(self) or homes.generation_of(type(self)) in ALWAYS_BUILT:
            super(ConfiguredOptimizer, self).set_weights(weights)
            return
        # The inherited method fails for a v3 optimizer around another: it calls itself unbuilt, or omits variables.
        for variable, value in zip(state.variables_of(self), weights):
            variable.assign(value)

    def save_own_variables(self, store):
        """Write all variables to the store of a `.keras` or `.weights.h5` file."""
        self._legacyga.registry().check_all_is_here("a file")
        values = type(self)._legacyga_class[1].values_of(state.variables_of(self))
        for i, value in enumerate(values):
            store[str(i)] = value

    def load_own_variables(self, store):
        """Set all variables from the store of a `.keras` or `.weights.h5` file, as `set_weights` does."""
        if not _is_built(self):
            # Keras warns that the optimizer must be built first.
            super(ConfiguredOptimizer, self).load_own_variables(store)
            return
        self.set_weights([store[str(i)] for i in range(len(store.keys()))])


def _is_built(optimizer):
    keeper = copying.keeper_of(optimizer)
    # A keras3 optimizer has `built`, a v3 one has `_built` once it is built, the others have neither.
    return getattr(keeper, "built", getattr(keeper, "_built", homes.generation_of(type(keeper)) in ALWAYS_BUILT))
