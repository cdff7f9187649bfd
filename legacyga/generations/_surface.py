"""What an accumulating optimizer is: an object of a subclass of the user's optimizer class.

All that we know of it stands in one object, its `_base.Accumulation`, so that no name of ours meets one of the user's.
"""

from legacyga import _window

_CLASSES = {}


def class_for(bases, cls, home, **attributes):
    """The accumulating subclass of the optimizer class `cls`: one for one class, so that two wrapped Adams are alike.

    Args:
        bases: the classes to put before it, the generation's `AccumulatingOptimizer` the last.
        cls: the optimizer class.
        home: its `_compat.Home`.
        attributes: more of the class, `__name__` included.
    """
    key = bases, cls, home.root
    if key not in _CLASSES:
        name = attributes.pop("__name__", "Accumulating" + cls.__name__)
        attributes.update(_legacyga_class=(cls, home))
        # Where the user's class has a method of the same name, that one is kept.
        attributes.update({name: getattr(cls, name) for name in PUBLIC_METHODS if hasattr(cls, name)})
        _CLASSES[key] = type(name, bases + (cls,), attributes)
    return _CLASSES[key]


def accumulation_of(optimizer):
    """The `Accumulation` of an optimizer, None of one that does not accumulate."""
    return vars(optimizer).get("_legacyga") if isinstance(optimizer, AccumulatingOptimizer) else None


def home_of(optimizer):
    """The `_compat.Home` of an accumulating optimizer."""
    return type(optimizer)._legacyga_class[1]


def start(optimizer, settings):
    """Make a new optimizer of an accumulating class accumulate."""
    vars(optimizer)["_legacyga"] = type(optimizer)._legacyga_type(optimizer, home_of(optimizer), settings)


def copy_of(cls, optimizer, settings):
    """An optimizer of the accumulating class `cls` that is a copy of `optimizer`, of the inner class."""
    copied = object.__new__(cls)
    start(copied, settings)
    accumulation_of(copied).inherit(optimizer)
    return copied


class AccumulatingOptimizer(object):
    """The part of an optimizer's surface that is the same in every generation."""

    _legacyga = None

    @property
    def gradient_accumulation_steps(self):
        """K of the next window, an int. Setting it takes effect at the next window."""
        return self._legacyga.next_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value):
        self._legacyga.set_steps(_window.check_steps("gradient_accumulation_steps", value))

    @property
    def mini_step(self):
        """The mini-steps taken in the window, 0 to K - 1: a variable, as `iterations` is (a constant at K = 1)."""
        latest = self._legacyga.latest
        return self._legacyga.ops.constant(0, "int64") if latest is None else latest.mini_step

    @property
    def skipped_mini_steps(self):
        """The mini-steps that `on_nonfinite` has left out, those of windows without update too: as `mini_step`."""
        skipped = self._legacyga.registry().skipped
        return self._legacyga.ops.constant(0, "int64") if skipped is None else skipped

    def mini_step_weight(self, weight):
        """A context: the mini-steps taken in it have this weight, a scalar; outside of it all weigh 1.

        In graph mode the mini-steps that are *made* in it have the weight, a number or a tensor.
        """
        return self._legacyga.weighing(_window.Weight(weight, False))

    # Its name until 0.1.
    mini_steps_weigh = mini_step_weight

    def end_windows(self):
        """End the windows that are under way with an update each.

        Returns:
            Whether there was an update: a bool; within a tf.function a tensor.
        """
        return self._legacyga.registry().end()

    def drop_windows(self):
        """Forget the mini-steps of the windows that are under way."""
        self._legacyga.registry().drop()


PUBLIC_METHODS = ("mini_step_weight", "mini_steps_weigh", "end_windows", "drop_windows")


class ConfiguredOptimizer(AccumulatingOptimizer):
    """`AccumulatingOptimizer` for the optimizers of a Keras, which can be described."""

    def get_config(self):
        """The inner optimizer's config, with `gradient_accumulation_steps` and the options where K is not 1."""
        config = super(ConfiguredOptimizer, self).get_config()
        steps = self._legacyga.next_steps
        settings = self._legacyga.settings
        if steps > 1 or settings.guards:
            config.update(settings.options, gradient_accumulation_steps=steps)
            config.setdefault("reduction", settings.reduction)
        return config

    @classmethod
    def from_config(cls, config, **kwargs):
        """The optimizer that `get_config` described."""
        config = dict(config)
        options = {name: config.pop(name) for name in _window.Settings.OPTIONS if name in config}
        settings = _window.Settings.checked(config.pop("gradient_accumulation_steps", None) or 1, **options)
        return copy_of(cls, cls._legacyga_class[0].from_config(config, **kwargs), settings)
