"""The numbers that must come out, in NumPy float64: written from the formulas, importing nothing of legacyga.

A network of two dense layers, the gradients of its mean squared error by hand, SGD with momentum, and gradient
accumulation in the plainest way there is: keep the K gradients, and average them when there are K.
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
