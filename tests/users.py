"""What users write: optimizers of their own in every generation, and loops that hand an optimizer its gradients."""

import numpy as np


def variables_of(home, kind, start):
    """Variables such as an optimizer of this kind trains, with names of their own."""
    names = ["weight_{}".format(i) for i in range(len(start))]
    if home.mode == "graph":
        return [home.backend.variable(value, name=name) for value, name in zip(start, names)]
    variable = home.keras.Variable if home.is_keras3 and kind.generation != "train" else home.tf.Variable
    return [variable(value, name=name) for value, name in zip(start, names)]


def scalar_of(home, value):
    """A variable of the user's own, which no optimizer has made."""
    return home.backend.variable(value) if home.mode == "graph" else home.tf.Variable(np.float32(value))


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


class ByHand(object):
    """Variables, and an optimizer that is given their gradients. In graph mode by a loss that is linear in them.

    With `traced` a mini-step is a `tf.function`, traced once for each set of variables that have a gradient.
    """

    def __init__(self, home, optimizer, variables, traced=False):
        self.home, self.optimizer, self.variables = home, optimizer, variables
        self._apply = home.tf.function(self._apply_gradients) if traced else self._apply_gradients
        if home.mode == "eager":
            if home.is_keras3 and hasattr(optimizer, "build"):
                optimizer.build(variables)
            return
        backend = home.backend
        fed = [backend.placeholder(shape=backend.int_shape(variable)) for variable in variables]
        loss = sum(home.tf.reduce_sum(gradient * variable) for gradient, variable in zip(fed, variables))
        if hasattr(optimizer, "get_updates"):
            updates = optimizer.get_updates(loss=loss, params=variables)
        else:
            v1 = v1_of(home)
            updates = [optimizer.minimize(loss, var_list=variables)]
            backend.get_session().run(v1.variables_initializer(optimizer.variables()))
        self.apply = backend.function(fed, [loss], updates=updates)

    def step(self, gradients):
        """One mini-step. In eager mode a gradient may be None, or a pair of ids and rows."""
        if self.home.mode == "graph":
            self.apply(list(gradients))
            return
        self._apply([self._tensor(each, var) for each, var in zip(gradients, self.variables)])

    def _apply_gradients(self, gradients):
        self.optimizer.apply_gradients(list(zip(gradients, self.variables)))

    def _tensor(self, gradient, variable):
        tf = self.home.tf
        if gradient is None or not isinstance(gradient, tuple):
            return gradient if gradient is None else tf.constant(gradient)
        ids, rows = gradient
        return tf.IndexedSlices(tf.constant(rows), tf.constant(ids), tf.constant(tuple(variable.shape), "int64"))

    def values(self):
        return [np.array(self.home.value(variable)) for variable in self.variables]


def v1_of(home):
    return getattr(getattr(home.tf, "compat", None), "v1", home.tf)


def state_of(home, optimizer):
    """The values of the variables that an optimizer lists."""
    found = optimizer.weights if hasattr(optimizer, "weights") else optimizer.variables
    found = found() if callable(found) else found
    return [np.array(home.value(variable)) for variable in found]


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

    if kind.generation == "v1":
        return Scaling
    if kind.generation in ("v2", "train"):

        def resource_apply_dense(self, grad, var, *args, **kwargs):
            return super(Scaling, self)._resource_apply_dense(self.factor(var) * grad, var, *args, **kwargs)

        def apply_dense(self, grad, var):
            return super(Scaling, self)._apply_dense(self.factor(var) * grad, var)

        Scaling._resource_apply_dense = resource_apply_dense
        # Reference variables; OptimizerV2 has no such hook.
        if kind.generation == "train":
            Scaling._apply_dense = apply_dense
    else:

        def update_step(self, gradient, variable, *args):
            return super(Scaling, self).update_step(self.factor(variable) * gradient, variable, *args)

        Scaling.update_step = update_step
    return Scaling


def make(kind, cls, rate, momentum=0.0, **kwargs):
    """An optimizer of the SGD's class `cls` of this kind, or of a subclass of it."""
    if kind.generation == "train":
        return cls(rate, momentum, **kwargs)
    return cls(**dict(kwargs, **{"momentum": momentum, "lr" if kind.generation == "v1" else "learning_rate": rate}))


def accumulated(optimizer, weights, fed, steps):
    """What the oracle's `optimizer` makes of `weights` (float64) after all of `fed`, which are whole windows."""
    for i in range(0, len(fed), steps):
        weights = optimizer.update(weights, [np.mean(each, axis=0) for each in zip(*fed[i : i + steps])])
    return weights


def assert_close(found, wanted):
    assert len(found) == len(wanted)
    pairs = zip(found, wanted)
    off = max(np.max(np.abs(now - expected) / np.maximum(1.0, np.abs(expected))) for now, expected in pairs)
    assert off <= 4e-6


def assert_bits(found, wanted):
    assert len(found) == len(wanted)
    for now, expected in zip(found, wanted):
        np.testing.assert_array_equal(now, expected)
