"""What an accumulating optimizer is made with: K and the options. Each is checked here. No TensorFlow is imported."""

import collections
import operator

from legacyga.windows import nonfinite

NO_ACCUMULATORS = (
    "gradient_accumulation_steps was 1 when this optimizer's training graph was built, and a graph built at 1 has no "
    "accumulators. Received: {}. Make the optimizer with the larger number and compile the model again."
)


def check_steps(name, value):
    """`value` as an int, or a ValueError that names the argument: it must be an integer of at least 1."""
    try:
        steps = 0 if isinstance(value, bool) else int(operator.index(value))
    except TypeError:
        steps = 0
    if steps < 1:
        raise ValueError("{} must be an integer of at least 1. Received: {!r}".format(name, value))
    return steps


class Settings(collections.namedtuple("Settings", ["steps", "reduction", "on_nonfinite"])):
    """What an optimizer was made with: K, and the options, each checked. An option is named here and in `wrap`."""

    OPTIONS = {"reduction": ("mean", "sum"), "on_nonfinite": nonfinite.POLICIES}

    @classmethod
    def checked(cls, steps, reduction="mean", on_nonfinite="propagate", name="gradient_accumulation_steps"):
        return cls(
            check_steps(name, steps), check_option("reduction", reduction), check_option("on_nonfinite", on_nonfinite)
        )

    @property
    def guards(self):
        """Whether something is done about gradients that are not finite."""
        return self.on_nonfinite != nonfinite.POLICIES[0]

    @property
    def options(self):
        """The options that are not the defaults, by name."""
        return {name: getattr(self, name) for name, values in self.OPTIONS.items() if getattr(self, name) != values[0]}


def check_option(name, value):
    """`value`, or a ValueError: it must be one of the option's values."""
    values = Settings.OPTIONS[name]
    if value not in values:
        wanted = " or ".join('"{}"'.format(each) for each in values)
        raise ValueError("{} must be {}. Received: {!r}".format(name, wanted, value))
    return value
