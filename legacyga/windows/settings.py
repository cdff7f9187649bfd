"""The settings of an accumulating optimizer, K and the options, each checked."""

import collections
import operator

from legacyga.backend.messages import shown
from legacyga.windows import nonfinite

NO_ACCUMULATORS = (
    "gradient_accumulation_steps was 1 at this optimizer's first mini-step, so it has no accumulators. Received: {}. "
    "Make the optimizer with the larger number, and compile the model again if there is one."
)


def check_steps(name, value):
    """Return `value` as an int; raise a ValueError that names the argument unless it is an integer of at least 1."""
    try:
        steps = 0 if isinstance(value, bool) else int(operator.index(value))
    except TypeError:
        steps = 0
    if steps < 1:
        raise ValueError("{} must be an integer of at least 1. Received: {}".format(name, shown(value)))
    return steps


class Settings(collections.namedtuple("Settings", ["steps", "reduction", "on_nonfinite"])):
    OPTIONS = {"reduction": ("mean", "sum"), "on_nonfinite": nonfinite.POLICIES}

    @classmethod
    def checked(cls, steps, reduction="mean", on_nonfinite="propagate", name="gradient_accumulation_steps"):
        return cls(
            check_steps(name, steps), check_option("reduction", reduction), check_option("on_nonfinite", on_nonfinite)
        )

    @property
    def guards(self):
        """Whether a guard checks gradients for values that are not finite."""
        return self.on_nonfinite != nonfinite.POLICIES[0]

    @property
    def options(self):
        """The options that differ from their defaults, by name."""
        return {name: getattr(self, name) for name, values in self.OPTIONS.items() if getattr(self, name) != values[0]}


def check_option(name, value):
    """Return `value`; raise a ValueError unless it is one of the option's values."""
    values = Settings.OPTIONS[name]
    if not isinstance(value, str) or value not in values:
        wanted = " or ".join('"{}"'.format(each) for each in values)
        raise ValueError("{} must be {}. Received: {}".format(name, wanted, shown(value)))
    return value
