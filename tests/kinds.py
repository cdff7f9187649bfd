"""Optimizers of one formula in every generation of a home, each with its oracle: MySGD, SGD with momentum, Adam."""

import collections

import dense
import oracle
import pytest
from homes import generation_of, v1_of

import legacyga

K, RATE, MOMENTUM = 4, 2.0**-3, 0.875
BETAS, EPSILON = (0.875, 0.96875), 2.0**-8


class Kind(object):
    """An optimizer to test: MySGD, or a class that is wrapped."""

    def __init__(self, home, cls=None):
        self.home, self.cls = home, cls
        self.generation = generation_of(cls or type(self.bare()))
        self.is_adam = cls is not None and cls.__name__.startswith("Adam")
        self.id = "-".join([self.generation, cls.__name__]) if cls else "MySGD"
        self.is_wrapped_v1 = self.generation == "v1" and cls is not None
        self.takes_more_models = self.generation in ("v1", "v2", "train")

    def bare(self):
        if self.cls is None:
            return self.home.bare_sgd(lr=RATE, momentum=MOMENTUM)
        if self.generation == "train":
            return self.cls(*([RATE] + list(BETAS) + [EPSILON] if self.is_adam else [RATE, MOMENTUM]))
        names = dict(beta_1=BETAS[0], beta_2=BETAS[1], epsilon=EPSILON) if self.is_adam else dict(momentum=MOMENTUM)
        return dense.make(self.home, self.cls, RATE, **names)

    def make(self, steps=K, **kwargs):
        if self.cls is None:
            return legacyga.MySGD(lr=RATE, momentum=MOMENTUM, steps_per_update=steps, keras=self.home.keras, **kwargs)
        return legacyga.wrap(self.bare(), steps, **kwargs)

    def oracle(self):
        if self.is_adam:
            return oracle.Adam(RATE, beta_1=BETAS[0], beta_2=BETAS[1], epsilon=EPSILON)
        return oracle.SGD(RATE, momentum=MOMENTUM)

    def slots(self, optimizer):
        """The slots of an optimizer of the oracle, as this one has them."""
        names = ("mean", "squares") if self.is_adam else ("velocity",)
        # TensorFlow 1's momentum leaves the rate out of the velocity.
        scale = -RATE if self.generation == "train" and not self.is_adam else 1.0
        return [slots[name] / scale for slots in optimizer.state.values() for name in names]


def marks(generation, generations):
    """Return the marks of a test's case: slow, unless `generation` is Keras's newest of `generations`.

    An older one is the newest on an older stack.
    """
    newest = [each for each in ("v1", "v2", "v3", "keras3") if each in generations][-1:]
    return [] if generation in newest else [pytest.mark.slow]


def of_each(values):
    """{generation: value} as parameters of a test."""
    return [pytest.param(value, id=each, marks=marks(each, values)) for each, value in values.items()]


def params(found):
    """Kinds as parameters of a test. All are slow but MySGD and an SGD, or else an Adam, of the newest generation."""
    order = ["train", "v1", "v2", "v3", "keras3"]
    wrapped = sorted((order.index(each.generation), not each.is_adam, each.id) for each in found if each.cls)
    kept = ["MySGD"] + [name for _, _, name in wrapped[-1:]]
    return [pytest.param(each, id=each.id, marks=[] if each.id in kept else [pytest.mark.slow]) for each in found]


def classes(home):
    """{generation: {name: class}} of the home's stock optimizers."""
    found = collections.OrderedDict()
    for _, cls in home.optimizer_classes():
        # Where `legacy` has a second class of the name, the public one stays.
        found.setdefault(generation_of(cls), {}).setdefault(cls.__name__, cls)
    return found


def parametrize(metafunc, argument, name):
    """Give a test the stock optimizer class of this name, of each generation that the home has."""
    if argument in metafunc.fixturenames:
        from conftest import home_of

        found = classes(home_of(metafunc.config))
        metafunc.parametrize(argument, of_each({generation: each[name] for generation, each in found.items()}))


def of(home):
    """All that a home has."""
    train = v1_of(home.tf).train
    classes = [cls for _, cls in home.optimizer_classes() if cls.__name__ in ("SGD", "Adam")]
    if not home.has_wrap_in_v1:
        classes = [cls for cls in classes if generation_of(cls) != "v1"]
    # The optimizers of TensorFlow 1 belong to no Keras: beside standalone Keras the run of tf.keras has them.
    if not home.is_standalone:
        classes += [train.MomentumOptimizer, train.AdamOptimizer]
    found = [Kind(home)] + [Kind(home, cls) for cls in classes]
    # One of each: some have their v2 optimizers twice.
    return list(collections.OrderedDict((each.id, each) for each in found).values())


def made_by_name(home, name, rate):
    """Functions that make the stock optimizer of this name in each generation that wrap takes."""
    found = [each[name] for each in classes(home).values() if name in each]
    found = [cls for cls in found if generation_of(cls) != "v1" or home.has_wrap_in_v1]
    made = [lambda cls=cls: dense.make(home, cls, rate) for cls in found]
    if not home.is_standalone:
        named = {"SGD": "GradientDescentOptimizer"}.get(name, name + "Optimizer")
        made.append(lambda: getattr(v1_of(home.tf).train, named)(rate))
    return made
