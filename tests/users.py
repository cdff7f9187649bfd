"""Optimizers as users write them, in every generation, and the variables that these train or hold."""

import dense


def variables_of(home, kind, start):
    """Variables such as an optimizer of this kind trains, with names of their own."""
    names = ["weight_{}".format(i) for i in range(len(start))]
    if home.mode == "graph":
        return [home.backend.variable(value, name=name) for value, name in zip(start, names)]
    variable = home.keras.Variable if home.is_keras3 and kind.generation != "train" else home.tf.Variable
    return [variable(value, name=name) for value, name in zip(start, names)]


def own_variable(home, value):
    """A number in a variable that no optimizer has made. Keras 3 takes a Variable of its own for the optimizer's."""
    return home.backend.variable(value) if home.mode == "graph" else home.tf.Variable(value, dtype="float32")


def assign(home, variable, value):
    if home.mode == "graph":
        home.backend.set_value(variable, value)
    else:
        variable.assign(value)


def as_seen(variable):
    """The variable that an optimizer's own code meets: Keras 3 hands over what its variables hold."""
    value = getattr(variable, "value", None)
    return variable if value is None or callable(value) else value


def reference_to(variable):
    """What a dict takes for a variable: in eager mode the variable itself is no key."""
    variable = as_seen(variable)
    # TF 2.0 has the second alone.
    return (variable.ref if hasattr(variable, "ref") else variable.experimental_ref)()


def own_sgd(base, home):
    """An SGD of the v1 API with all of its mathematics of its own, as programs have it over `base`."""
    backend = home.backend

    class OwnSGD(base):
        def __init__(self, lr=0.01, momentum=0.0, **kwargs):
            super(OwnSGD, self).__init__(**kwargs)
            self.iterations = backend.variable(0, dtype="int64", name="iterations")
            self.learning_rate = backend.variable(lr, name="learning_rate")
            self.momentum = backend.variable(momentum, name="momentum")

        def factor(self, variable):
            return 1.0

        def get_updates(self, loss, params):
            found = self.get_gradients(loss, params)
            velocities = [backend.zeros(backend.int_shape(param)) for param in params]
            self.weights = [self.iterations] + velocities
            self.updates = [backend.update_add(self.iterations, 1)]
            for gradient, velocity, param in zip(found, velocities, params):
                moved = self.momentum * velocity - self.learning_rate * self.factor(param) * gradient
                self.updates += [backend.update(velocity, moved), backend.update(param, param + moved)]
            return self.updates

        def get_config(self):
            found = {"lr": self.learning_rate, "momentum": self.momentum}
            return dict(super(OwnSGD, self).get_config(), **{k: float(backend.get_value(v)) for k, v in found.items()})

    return OwnSGD


def scaling(kind, home):
    """An SGD of the user's that multiplies each gradient by what its method `factor(variable)` says.

    It does so where a user of the generation would: v1 in a `get_updates` of its own, the others in their hook, over
    the kind's own SGD.
    """
    base = kind.cls
    if kind.generation == "v1":
        base = own_sgd(next(each for each in kind.cls.__mro__ if each.__name__ in ("Optimizer", "OptimizerV1")), home)

    class Scaling(base):
        def __init__(self, *args, **kwargs):
            what = kwargs.pop("what", None)
            super(Scaling, self).__init__(*args, **kwargs)
            self.what = what

        def factor(self, variable):
            raise NotImplementedError

    def scaled(name):
        def apply(self, gradient, variable, *args, **kwargs):
            return getattr(super(Scaling, self), name)(self.factor(variable) * gradient, variable, *args, **kwargs)

        return apply

    for name in ("_resource_apply_dense", "_apply_dense", "update_step"):
        if hasattr(base, name):
            setattr(Scaling, name, scaled(name))
    return Scaling


def make(kind, cls, rate, momentum=0.0, **kwargs):
    """An optimizer of the SGD's class `cls` of this kind, or of a subclass of it."""
    if kind.generation == "train":
        return cls(rate, momentum, **kwargs)
    return dense.make(kind.home, cls, rate, momentum=momentum, **kwargs)
