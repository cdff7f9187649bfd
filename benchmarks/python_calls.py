"""How many Python functions of legacyga are called by `wrap`, by an eager mini-step, and by a step at K = 1.

    python benchmarks/python_calls.py

Adam, two variables, each optimizer class of Adam that this Keras has. The numbers do not depend on the machine.
"""

import os
import sys

import legacyga

ROOT = os.path.dirname(legacyga.__file__)


def calls_of(function):
    """How often functions that are defined in the package are called while `function()` runs."""
    found = []

    def note(frame, event, _):
        # From Python 3.12 on a comprehension has no frame.
        is_function = not frame.f_code.co_name.endswith("comp>")
        if event == "call" and is_function and frame.f_code.co_filename.startswith(ROOT):
            found.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(found)


def measured(tf, cls):
    """{what: number of calls} of an optimizer class."""
    variables = [tf.Variable([1.0, 2.0]), tf.Variable([[1.0]])]
    pairs = [(tf.ones_like(each), each) for each in variables]
    found = {"wrap": calls_of(lambda: legacyga.wrap(cls(0.1), 4))}
    for name, steps in (("a mini-step that is no update", 4), ("a step at K = 1", 1)):
        optimizer = legacyga.wrap(cls(0.1), steps)
        for _ in range(5):
            optimizer.apply_gradients(pairs)
        found[name] = calls_of(lambda optimizer=optimizer: optimizer.apply_gradients(pairs))
    return found


def main():
    from legacyga.backend import homes

    home = homes.find_home()
    optimizers = home.module.optimizers
    classes = [optimizers.Adam] + [optimizers.legacy.Adam] * (hasattr(optimizers, "legacy") and not home.is_keras3)
    for cls in classes:
        print("{!r}, {}".format(home, cls.__module__))
        for name, number in measured(home.tf, cls).items():
            print("    {:32}{:4}".format(name, number))


if __name__ == "__main__":
    main()
