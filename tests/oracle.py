"""The numbers that must come out, in NumPy float64: written from the formulas, importing nothing of legacyga.

A network of two dense layers, the gradients of its mean squared error by hand, the optimizers that have one formula
in every Keras but for the details that are arguments here, and gradient accumulation in the plainest way there is:
keep the K gradients, and average them when there are K.
"""

import numpy as np

EPSILON = 1e-7  # keras.backend.epsilon(), in the max-norm constraint


def predict(weights, x):
    """Two dense layers, tanh between them. `weights` is [kernel, bias, kernel, bias] as Keras orders them."""
    kernel_1, bias_1, kernel_2, bias_2 = weights
    return np.tanh(x.dot(kernel_1) + bias_1).dot(kernel_2) + bias_2


def loss(weights, x, y):
    """Mean squared error: the mean over samples and outputs."""
    return np.mean((predict(weights, x) - y) ** 2)


def gradients(weights, x, y):
    """The gradient of `loss` by each of the weights, by the chain rule."""
    kernel_1, bias_1, kernel_2, bias_2 = weights
    hidden = np.tanh(x.dot(kernel_1) + bias_1)
    error = 2.0 * (hidden.dot(kernel_2) + bias_2 - y) / y.size
    inner = error.dot(kernel_2.T) * (1.0 - hidden**2)
    return [x.T.dot(inner), inner.sum(axis=0), hidden.T.dot(error), error.sum(axis=0)]


def clip_by_each_norm(gradients, limit):
    """`clipnorm` of tf.keras from 1.11 on, and of Keras 3: every gradient by its own norm."""
    return [g * limit / max(np.sqrt(np.sum(g * g)), limit) for g in gradients]


def clip_by_norm_of_all(gradients, limit):
    """`clipnorm` of standalone Keras and of tf.keras up to 1.10: by the norm of all gradients together."""
    norm = np.sqrt(sum(np.sum(g * g) for g in gradients))
    return [g * limit / max(norm, limit) for g in gradients]


def clip_by_value(gradients, limit):
    return [np.clip(g, -limit, limit) for g in gradients]


CLIPS = {"each": clip_by_each_norm, "all": clip_by_norm_of_all, "value": clip_by_value}


def max_norm(weight, limit):
    """keras.constraints.MaxNorm(limit, axis=0)."""
    norms = np.sqrt(np.sum(weight**2, axis=0, keepdims=True))
    return weight * np.clip(norms, 0, limit) / (EPSILON + norms)


class SGD(object):
    """SGD with momentum in Keras's form (Sutskever et al. 2013, section 2), the rate lr / (1 + decay * t)."""

    def __init__(self, lr, momentum=0.0, nesterov=False, decay=0.0, clip=None, limit=None, constraints=None):
        self.lr, self.momentum, self.nesterov, self.decay = lr, momentum, nesterov, decay
        self.clip, self.limit, self.constraints = clip, limit, constraints or {}
        self.iterations = 0
        self.velocities = None

    def update(self, weights, gradients):
        """The weights after one update."""
        if self.velocities is None:
            self.velocities = [np.zeros_like(w) for w in weights]
        if self.clip:
            gradients = CLIPS[self.clip](gradients, self.limit)
        lr = self.lr / (1.0 + self.decay * self.iterations)
        self.iterations += 1
        self.velocities = [self.momentum * v - lr * g for v, g in zip(self.velocities, gradients)]
        if self.nesterov:
            weights = [w + self.momentum * v - lr * g for w, v, g in zip(weights, self.velocities, gradients)]
        else:
            weights = [w + v for w, v in zip(weights, self.velocities)]
        return [self.constraints[i](w) if i in self.constraints else w for i, w in enumerate(weights)]


class Adaptive(object):
    """An update of each weight by its own gradient and its own slots.

    Args:
        lr: the rate before the first update, lr / (1 + decay * t) after t of them.
        epsilon: what keeps the denominator from zero.
    """

    slots = ()

    def __init__(self, lr, decay=0.0, epsilon=EPSILON):
        self.first_lr, self.decay, self.epsilon = lr, decay, epsilon
        self.iterations = 0
        self.state = None

    def update(self, weights, gradients):
        """The weights after one update."""
        if self.state is None:
            self.state = [{name: np.full_like(w, self.first(name)) for name in self.slots} for w in weights]
        self.lr = self.first_lr / (1.0 + self.decay * self.iterations)
        self.iterations += 1
        return [self.step(w, g, slots) for w, g, slots in zip(weights, gradients, self.state)]

    def first(self, slot):
        """What a slot starts at."""
        return 0.0

    def step(self, weight, gradient, slots):
        """`weight` after an update; `slots` are changed."""
        raise NotImplementedError


class RootOfSquares(Adaptive):
    """A gradient divided by the root of an average or a sum of squares.

    Args:
        epsilon_inside: whether the denominator is sqrt(s + epsilon), else sqrt(s) + epsilon.
    """

    def __init__(self, lr, epsilon_inside=False, **kwargs):
        super(RootOfSquares, self).__init__(lr, **kwargs)
        self.epsilon_inside = epsilon_inside

    def divide(self, gradient, squares):
        if self.epsilon_inside:
            return gradient / np.sqrt(squares + self.epsilon)
        return gradient / (np.sqrt(squares) + self.epsilon)


class RMSprop(RootOfSquares):
    """RMSprop (Tieleman and Hinton 2012, lecture 6.5, slide 29).

    Args:
        rho: of the averages.
        momentum: of the update, the rate in it (Graves 2013, equation 40).
        centered: subtract the square of the averaged gradient: the variance for the second moment (equations 38 to 40).
    """

    slots = ("squares", "mean", "velocity")

    def __init__(self, lr, rho=0.9, momentum=0.0, centered=False, **kwargs):
        super(RMSprop, self).__init__(lr, **kwargs)
        self.rho, self.momentum, self.centered = rho, momentum, centered

    def step(self, weight, gradient, slots):
        slots["squares"] = self.rho * slots["squares"] + (1.0 - self.rho) * gradient**2
        slots["mean"] = self.rho * slots["mean"] + (1.0 - self.rho) * gradient
        squares = slots["squares"] - slots["mean"] ** 2 if self.centered else slots["squares"]
        slots["velocity"] = self.momentum * slots["velocity"] + self.lr * self.divide(gradient, squares)
        return weight - slots["velocity"]


class Adagrad(RootOfSquares):
    """Adagrad (Duchi et al. 2011, figure 1, the diagonal form).

    Args:
        initial_accumulator_value: what the sums of squares start at; the paper's delta is `epsilon`.
    """

    slots = ("squares",)

    def __init__(self, lr, initial_accumulator_value=0.0, **kwargs):
        super(Adagrad, self).__init__(lr, **kwargs)
        self.initial_accumulator_value = initial_accumulator_value

    def first(self, slot):
        return self.initial_accumulator_value

    def step(self, weight, gradient, slots):
        slots["squares"] = slots["squares"] + gradient**2
        return weight - self.lr * self.divide(gradient, slots["squares"])


class Adam(Adaptive):
    """Adam (Kingma and Ba 2015) in the form before their section 2.1: `epsilon` is their "epsilon hat".

    Args:
        beta_1, beta_2: of the averages of the gradient and of its square.
        amsgrad: divide by the largest second moment so far (Reddi et al. 2018, algorithm 2; they correct no bias, and
            every Keras leaves the correction in the rate).
    """

    slots = ("mean", "squares", "largest")

    def __init__(self, lr, beta_1=0.9, beta_2=0.999, amsgrad=False, **kwargs):
        super(Adam, self).__init__(lr, **kwargs)
        self.beta_1, self.beta_2, self.amsgrad = beta_1, beta_2, amsgrad

    def step(self, weight, gradient, slots):
        slots["mean"] = self.beta_1 * slots["mean"] + (1.0 - self.beta_1) * gradient
        slots["squares"] = self.beta_2 * slots["squares"] + (1.0 - self.beta_2) * gradient**2
        slots["largest"] = np.maximum(slots["largest"], slots["squares"])
        squares = slots["largest"] if self.amsgrad else slots["squares"]
        t = self.iterations
        rate = self.lr * np.sqrt(1.0 - self.beta_2**t) / (1.0 - self.beta_1**t)
        return weight - rate * slots["mean"] / (np.sqrt(squares) + self.epsilon)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2), their lambda times the rate.

    Adam's step does not look at the weight: whether the decay comes before it or with it is the same number.
    """

    def __init__(self, lr, weight_decay, **kwargs):
        super(AdamW, self).__init__(lr, **kwargs)
        self.weight_decay = weight_decay

    def step(self, weight, gradient, slots):
        return super(AdamW, self).step(weight, gradient, slots) - self.lr * self.weight_decay * weight


def train(weights, batches, steps, optimizer, gradients=gradients):
    """Accumulate over `steps` of the `batches`; the weights after every one of them.

    Args:
        weights: list of float64 arrays to start from.
        batches: list of (x, y).
        steps: K.
        optimizer: an object with `update(weights, gradients)`.
        gradients: function of (weights, x, y).

    Returns:
        A list, for each batch the list of weights.
    """
    window, history = [], []
    for x, y in batches:
        window.append(gradients(weights, x, y))
        if len(window) == steps:
            weights = optimizer.update(weights, [np.mean(g, axis=0) for g in zip(*window)])
            window = []
        history.append(weights)
    return history
