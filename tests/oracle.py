"""The numbers that must come out, in NumPy float64: written from the papers' formulas, importing nothing of legacyga.

A network of dense layers, the gradients of its mean squared error by hand, the optimizers, and gradient accumulation
in the plainest way there is: keep the K gradients, and average them when there are K. What an optimizer's formula
leaves open, and one Keras settles in another way than the next, is an argument.
"""

import numpy as np

EPSILON = 1e-7  # keras.backend.epsilon()


def double(weights):
    """The weights in float64."""
    return [np.asarray(weight, "float64") for weight in weights]


def farthest(arrays, others):
    """The largest distance of two elements at one place in two lists of arrays; NaN if there is a NaN."""
    assert len(arrays) == len(others)
    # Python's max would pass a NaN by.
    return np.max([np.max(np.abs(np.asarray(one) - other)) for one, other in zip(arrays, others)])


def hidden_and_output(weights, x):
    """The input of each dense layer, and the last one's output; tanh between them."""
    inputs = [np.asarray(x, "float64")]
    for i in range(0, len(weights) - 2, 2):
        inputs.append(np.tanh(inputs[-1].dot(weights[i]) + weights[i + 1]))
    return inputs, inputs[-1].dot(weights[-2]) + weights[-1]


def loss(weights, x, y):
    """Mean squared error: the mean over samples and outputs."""
    return np.mean((hidden_and_output(weights, x)[1] - y) ** 2)


def gradients(weights, x, y):
    """The gradient of `loss` by each of the weights, [kernel, bias, kernel, bias, ...], by the chain rule."""
    inputs, output = hidden_and_output(weights, x)
    error = 2.0 * (output - y) / y.size
    found = []
    for i in range(len(weights) - 2, -1, -2):
        found = [inputs[i // 2].T.dot(error), error.sum(axis=0)] + found
        error = error.dot(weights[i].T) * (1.0 - inputs[i // 2] ** 2)
    return found


def gradients_of_steps(weights, ids, y, sample_weight=1.0, penalty=0.0, divisor=None):
    """The gradient by [embedding, kernel, bias] of the mean squared error of `embedding[ids].dot(kernel) + bias`.

    Steps of id 0 are masked. The sum over the others is divided by how many there are, or by `divisor`. Beside it
    there is `penalty` times the sum of the kernel's squares.
    """
    embedding, kernel, bias = weights
    hidden, mask = embedding[ids], ids != 0
    error = 2.0 * (hidden.dot(kernel) + bias - y) / y.shape[-1]
    error = error * (mask * np.asarray(sample_weight, "float64"))[..., None] / (divisor or mask.sum())
    rows = np.zeros(embedding.shape)
    np.add.at(rows, ids, error.dot(kernel.T))
    return [rows, np.einsum("nth,nto->ho", hidden, error) + 2.0 * penalty * kernel, error.sum(axis=(0, 1))]


def clip_by_each_norm(gradients, limit):
    """`clipnorm` of tf.keras from 1.10 on, and of Keras 3: every gradient by its own norm."""
    return [g * limit / max(np.sqrt(np.sum(g * g)), limit) for g in gradients]


def clip_by_norm_of_all(gradients, limit):
    """`clipnorm` of standalone Keras and of tf.keras up to 1.9: by the norm of all gradients together."""
    norm = np.sqrt(sum(np.sum(g * g) for g in gradients))
    return [g * limit / max(norm, limit) for g in gradients]


def clip_by_value(gradients, limit):
    return [np.clip(g, -limit, limit) for g in gradients]


CLIPS = {"each": clip_by_each_norm, "all": clip_by_norm_of_all, "value": clip_by_value}


def max_norm(weight, limit):
    """keras.constraints.MaxNorm(limit, axis=0)."""
    norms = np.sqrt(np.sum(weight**2, axis=0, keepdims=True))
    return weight * np.clip(norms, 0, limit) / (EPSILON + norms)


class Optimizer(object):
    """Updates weights by their gradients. A subclass's `step` returns a new weight, and changes its slots.

    Args:
        lr: the rate before the first update, lr / (1 + decay * t) after t of them.
        clip, limit: what is done to the gradients first, a key of `CLIPS`, and its limit.
        constraints: {place of a weight: function of what it is after an update}.
        kwargs: others of `arguments`.

    Attributes:
        iterations: the number of updates; in `step` that of the present one, from 1 on.
        rate: that of the present update.
        state: {name of a weight: {name of a slot: array}}.
    """

    slots, arguments = (), {}
    initial_accumulator_value = 0.0  # of the sums and averages of squares

    def __init__(self, lr, decay=0.0, clip=None, limit=None, constraints=None, **kwargs):
        assert set(kwargs) <= set(self.arguments), kwargs
        vars(self).update(self.arguments, **kwargs)
        self.lr, self.decay = lr, decay
        self.clip, self.limit, self.constraints = clip, limit, constraints or {}
        self.iterations = 0
        self.state = {}

    def update(self, weights, gradients, names=None):
        """The weights after one update. `names` are the keys of their slots in `state`; by default their places."""
        names = range(len(weights)) if names is None else names
        if self.clip:
            gradients = CLIPS[self.clip](gradients, self.limit)
        self.rate = self.lr / (1.0 + self.decay * self.iterations)
        self.iterations += 1
        updated = []
        for weight, gradient, name in zip(weights, gradients, names):
            if name not in self.state:
                self.state[name] = {slot: np.zeros(np.shape(weight)) for slot in self.slots}
                if "squares" in self.slots:
                    self.state[name]["squares"] += self.initial_accumulator_value
            updated.append(self.step(weight, gradient, self.state[name]))
        return [self.constraints[i](w) if i in self.constraints else w for i, w in enumerate(updated)]


def average(slots, name, beta, value):
    """Take a value into a moving average."""
    slots[name] = beta * slots[name] + (1.0 - beta) * value


class SGD(Optimizer):
    """SGD with momentum in Keras's form (Sutskever et al. 2013, section 2)."""

    slots = ("velocity",)

    def __init__(self, lr, momentum=0.0, nesterov=False, decay=0.0, **kwargs):
        super(SGD, self).__init__(lr, decay, **kwargs)
        self.momentum, self.nesterov = momentum, nesterov

    def step(self, weight, gradient, slots):
        slots["velocity"] = self.momentum * slots["velocity"] - self.rate * gradient
        if self.nesterov:
            return weight + self.momentum * slots["velocity"] - self.rate * gradient
        return weight + slots["velocity"]


def over_root(self, gradient, squares):
    """A gradient divided by sqrt(squares + epsilon) or, without `epsilon_inside`, by sqrt(squares) + epsilon."""
    if self.epsilon_inside:
        return gradient / np.sqrt(squares + self.epsilon)
    return gradient / (np.sqrt(squares) + self.epsilon)


class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton 2012, lecture 6.5, slide 29).

    With the momentum of the update, the rate in it (Graves 2013, equation 40), and `centered`: the variance in place of
    the second moment (equations 38 to 40). tf.compat.v1.train starts the average of the squares at 1.
    """

    slots = ("squares", "mean", "velocity")
    arguments = dict(rho=0.9, momentum=0.0, centered=False, initial_accumulator_value=0.0)
    arguments.update(epsilon=EPSILON, epsilon_inside=False)

    def step(self, weight, gradient, slots):
        average(slots, "squares", self.rho, gradient**2)
        average(slots, "mean", self.rho, gradient)
        squares = slots["squares"] - slots["mean"] ** 2 if self.centered else slots["squares"]
        slots["velocity"] = self.momentum * slots["velocity"] + self.rate * over_root(self, gradient, squares)
        return weight - slots["velocity"]


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011, figure 1, the diagonal form); the paper's delta is `epsilon`."""

    slots = ("squares",)
    arguments = dict(epsilon=EPSILON, epsilon_inside=False, initial_accumulator_value=0.0)

    def step(self, weight, gradient, slots):
        slots["squares"] = slots["squares"] + gradient**2
        return weight - self.rate * over_root(self, gradient, slots["squares"])


class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012, algorithm 1), whose update every Keras multiplies by a rate that the paper has not."""

    slots = ("squares", "squares_of_updates")
    arguments = dict(rho=0.95, epsilon=EPSILON)

    def step(self, weight, gradient, slots):
        average(slots, "squares", self.rho, gradient**2)
        roots = [np.sqrt(slots[name] + self.epsilon) for name in ("squares_of_updates", "squares")]
        update = roots[0] / roots[1] * gradient
        average(slots, "squares_of_updates", self.rho, update**2)
        return weight - self.rate * update


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015) in the form before their section 2.1: `epsilon` is their "epsilon hat".

    With `amsgrad` it divides by the largest second moment so far (Reddi et al. 2018, algorithm 2; they correct no bias,
    and every Keras leaves the correction in the rate).
    """

    slots = ("mean", "squares", "largest")
    arguments = dict(beta_1=0.9, beta_2=0.999, epsilon=EPSILON, amsgrad=False)

    def step(self, weight, gradient, slots):
        average(slots, "mean", self.beta_1, gradient)
        average(slots, "squares", self.beta_2, gradient**2)
        slots["largest"] = np.maximum(slots["largest"], slots["squares"])
        squares = slots["largest"] if self.amsgrad else slots["squares"]
        t = self.iterations
        rate = self.rate * np.sqrt(1.0 - self.beta_2**t) / (1.0 - self.beta_1**t)
        return weight - rate * slots["mean"] / (np.sqrt(squares) + self.epsilon)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2), their lambda times the rate.

    Adam's step does not look at the weight: whether the decay comes before it or with it is the same number.
    """

    arguments = dict(Adam.arguments, weight_decay=None)

    def step(self, weight, gradient, slots):
        return super(AdamW, self).step(weight, gradient, slots) - self.rate * self.weight_decay * weight


class Adamax(Optimizer):
    """AdaMax (Kingma and Ba 2015, algorithm 2). The paper has no epsilon; every Keras adds it to the norm."""

    slots = ("mean", "norm")
    arguments = dict(beta_1=0.9, beta_2=0.999, epsilon=EPSILON)

    def step(self, weight, gradient, slots):
        average(slots, "mean", self.beta_1, gradient)
        slots["norm"] = np.maximum(self.beta_2 * slots["norm"], np.abs(gradient))
        rate = self.rate / (1.0 - self.beta_1**self.iterations)
        return weight - rate * slots["mean"] / (slots["norm"] + self.epsilon)


class Nadam(Optimizer):
    """Nadam (Dozat 2016, algorithm 2), with the schedule of its report: mu_t = beta_1 (1 - 0.5 * 0.96^(t psi)).

    Its psi is `schedule_decay`: 0.004, as in the older Keras; the newer ones have 1. `base` and, for the product of all
    mu, `base_of_product` are 0.96 or what a home rounds it to.
    """

    slots = ("mean", "squares")
    arguments = dict(Adamax.arguments, schedule_decay=0.004, base=0.96, base_of_product=0.96)

    def mu(self, t, base):
        return self.beta_1 * (1.0 - 0.5 * base ** (t * self.schedule_decay))

    def step(self, weight, gradient, slots):
        t, base = self.iterations, self.base
        product = np.prod([self.mu(i, self.base_of_product) for i in range(1, t + 1)])
        average(slots, "mean", self.beta_1, gradient)
        average(slots, "squares", self.beta_2, gradient**2)
        mean = self.mu(t + 1, base) * slots["mean"] / (1.0 - product * self.mu(t + 1, base))
        mean = mean + (1.0 - self.mu(t, base)) * gradient / (1.0 - product)
        squares = slots["squares"] / (1.0 - self.beta_2**t)
        return weight - self.rate * mean / (np.sqrt(squares) + self.epsilon)


class Ftrl(Optimizer):
    """FTRL-Proximal (McMahan et al. 2013, algorithm 1); z starts at 0 wherever the weights do.

    The rate of a weight is alpha times its sum of squares to the `learning_rate_power`, which starts at 0 in the paper.
    lambda_1 is `l1_...`, and `l2_...` half of lambda_2. `l2_shrinkage_...` is half of a penalty on the present weight,
    which is in the gradient that z adds up and not in the sum of its squares.
    """

    slots = ("squares", "z")
    arguments = dict(learning_rate_power=-0.5, initial_accumulator_value=0.1, beta=0.0)
    arguments.update(l1_regularization_strength=0.0, l2_regularization_strength=0.0)
    arguments.update(l2_shrinkage_regularization_strength=0.0)

    def step(self, weight, gradient, slots):
        power, l1, l2 = -self.learning_rate_power, self.l1_regularization_strength, self.l2_regularization_strength
        before, slots["squares"] = slots["squares"], slots["squares"] + gradient**2
        sigma = (slots["squares"] ** power - before**power) / self.rate
        slots["z"] = slots["z"] + gradient + (2.0 * self.l2_shrinkage_regularization_strength - sigma) * weight
        steepness = (self.beta + slots["squares"] ** power) / self.rate + 2.0 * l2
        beyond = slots["z"] - np.sign(slots["z"]) * l1
        return np.where(np.abs(slots["z"]) <= l1, 0.0, -beyond / steepness)


class Accumulated(object):
    """An optimizer that updates once in `steps` mini-steps, with the mean; a window for each set of weights.

    A mini-step counts as much as its `size`, and one of unknown size, None, as much as the first of known size.
    """

    def __init__(self, optimizer, steps):
        self.optimizer, self.steps, self.windows = optimizer, steps, {}

    def mini_step(self, weights, gradients, names=None, size=None):
        """The weights after a mini-step; `names` as in `Optimizer.update`."""
        window = self.windows.setdefault(names if names is None else tuple(names), [])
        window.append((size, gradients))
        return self.flush(weights, names) if len(window) >= self.steps else weights

    def flush(self, weights, names=None):
        """The weights after an update that ends the window, if there is one."""
        window = self.windows.pop(names if names is None else tuple(names), None)
        if window is None:
            return weights
        sizes, gradients = zip(*window)
        unit = next((size for size in sizes if size is not None), 1)
        sizes = [unit if size is None else size for size in sizes]
        means = [np.average(each, axis=0, weights=sizes) for each in zip(*gradients)]
        return self.optimizer.update(weights, means, names)


def train(weights, batches, steps, optimizer, gradients=gradients):
    """The weights after each of the `batches`, list of (x, y), in windows of `steps`.

    `gradients` is a function of (weights, x, y), and `optimizer` has `update(weights, gradients)`.
    """
    accumulated, history = Accumulated(optimizer, steps), []
    for x, y in batches:
        weights = accumulated.mini_step(weights, gradients(weights, x, y))
        history.append(weights)
    return history
