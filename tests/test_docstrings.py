"""The docstrings of the public names: their examples, which `pytest --doctest-modules legacyga` runs, and sections."""

import doctest
import importlib
import inspect
import pkgutil
import re

import homes
import needs
import pytest
import skips
import test_wrap

import legacyga
from legacyga.optimizers import surface

SURFACE = surface.AccumulatingOptimizer
# {name: (the first TensorFlow that runs its example in its default mode, how to skip before, and why)}.
NEEDS = {
    "load_model": ((1, 15), skips.keras_lacks, "Keras loads no loss object before TF 1.15"),
    "wrap": ((1, 11), skips.we_lack, "wrap needs TF 1.11 or newer for the v1 API"),
    "flush": ((1, 11), skips.we_lack, "wrap needs TF 1.11 or newer for the v1 API"),
    "train_step": ((2, 2), skips.keras_lacks, "Keras calls train_step from TF 2.2 on, in eager mode"),
    "micro_batch": ((2, 2), skips.we_lack, "micro_batch in eager mode needs TF 2.2 or newer"),
    "micro_batch_size": ((2, 2), skips.we_lack, "micro_batch in eager mode needs TF 2.2 or newer"),
    "recomputes": ((2, 2), skips.we_lack, "micro_batch in eager mode needs TF 2.2 or newer"),
    "GradientAccumulator": ((2,), skips.senseless, "eager execution is TensorFlow's default from 2.0 on"),
    "AccumulatingOptimizer": ((2,), skips.senseless, "eager execution is TensorFlow's default from 2.0 on"),
}
CAPABILITY = {
    "wrap": "wrap: surface",
    "AccumulatingOptimizer": "wrap: surface",
    "GradientAccumulationCallback": "callback",
    "GradientAccumulator": "GradientAccumulator",
}
PUBLIC = {name: getattr(legacyga, name) for name in legacyga.__all__ if name != "__version__"}
PUBLIC["AccumulatingOptimizer"] = SURFACE
SECTIONS = ["Args", "Call arguments", "Returns", "Raises", "Examples"]


def examples():
    """{docstring: the source of its examples}, of the whole package, as doctest finds them."""
    names = [name for _, name, _ in pkgutil.walk_packages(legacyga.__path__, "legacyga.") if "__main__" not in name]
    modules = [legacyga] + [importlib.import_module(name) for name in names]
    found = [test for module in modules for test in doctest.DocTestFinder().find(module)]
    return {test.name: "".join(each.source for each in test.examples) for test in found if test.examples}


def members(cls):
    """{name: what it is} of the public members of a class, but for an old name."""
    public = {name: each for name, each in vars(cls).items() if not name.startswith("_") or name == "__call__"}
    return {name: each for name, each in public.items() if name != "mini_steps_weigh"}


@pytest.mark.capability("surface")
@pytest.mark.long
def test_all_examples_are_run_and_no_others(home, doctests):
    ran = {name for name in doctests if name != "printed"}
    assert ran == set(examples()) and len(ran) == len(PUBLIC), doctests["printed"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.capability(CAPABILITY.get(each, "surface"))) for each in sorted(PUBLIC)],
)
def test_the_example_of(home, doctests, name):
    if name == "MySGD" and home.mode == "eager" and ("keras", "graph") in homes.available():
        skips.elsewhere("the example of MySGD takes Keras 2.3 where it is installed, and trains in graph mode only")
    since, skip, reason = NEEDS.get(name, ((0,), None, None))
    outcome = doctests["{}.{}".format(PUBLIC[name].__module__, name)]
    # Up to TF 1.15 the example of train_step passes without it: in graph mode the optimizer weighs by itself.
    if home.tf_version < since and not (name == "train_step" and home.tf_version < (2,) and outcome == "PASSED"):
        assert outcome == "FAILED", doctests["printed"]
        skip(reason)
    assert outcome == "PASSED", doctests["printed"]


@pytest.mark.capability("surface")
@pytest.mark.parametrize("cls", [legacyga.GradientAccumulator, SURFACE], ids=lambda cls: cls.__name__)
def test_an_example_uses_each_member(cls):
    (source,) = [source for name, source in examples().items() if name.endswith("." + cls.__name__)]
    for name in members(cls):
        assert re.search(r"accumulator\(\[" if name == "__call__" else r"\.{}\b".format(name), source), name


@pytest.mark.capability("surface")
def test_sections_are_in_order_and_name_every_argument():
    functions = [each for each in PUBLIC.values() if inspect.isfunction(each)] + [SURFACE.mini_step_weight]
    for each in functions + [legacyga.GradientAccumulator]:
        text = inspect.getdoc(each)
        found = re.findall(r"^({}):$".format("|".join(SECTIONS)), text, re.MULTILINE)
        assert found == sorted(found, key=SECTIONS.index) and len(found) == len(set(found)), each
        for name in inspect.signature(each).parameters:
            assert name == "self" or re.search(r"^    \**{}: \S".format(name), text, re.MULTILINE), (each, name)
    for name, each in list(members(legacyga.GradientAccumulator).items()) + list(members(SURFACE).items()):
        assert inspect.getdoc(each), name


@pytest.mark.capability("wrap: surface")
def test_a_wrapped_class_says_what_it_is(home):
    """What it has, by name, and then what the inner class says."""
    needs.wrap(home)
    home.reset(plain_session=True)
    inner = test_wrap.adam(home)
    text = inspect.getdoc(type(legacyga.wrap(inner, 3)))
    assert text.startswith("{} with gradient accumulation. ".format(type(inner).__name__))
    assert "once in K mini-steps" in text
    for name in ["iterations"] + list(members(SURFACE)):
        assert re.search(r"^    {}\b".format(name), text, re.MULTILINE), name
    assert text.endswith(inspect.getdoc(type(inner)) or "")
    assert inspect.getdoc(type(legacyga.MySGD(keras=home.keras))) == inspect.getdoc(legacyga.MySGD)
