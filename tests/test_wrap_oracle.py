"""wrap against the NumPy oracle: the optimizers of the papers, in every generation of the home."""

import inspect

import kinds
import needs
import numpy as np
import oracle
import pytest
import tf1
from homes import generation_of
from slow import slow

import legacyga

pytestmark = pytest.mark.capability("wrap: NumPy oracle")

RANDOM = np.random.RandomState(5)
SHAPES = ((3, 4), (5,))
# The error is divided by the distance moved: start near, and let the gradients lean to one side.
START = [np.asarray(0.25 * RANDOM.standard_normal(shape)) for shape in SHAPES]
GRADIENTS = [[np.asarray(0.75 + RANDOM.standard_normal(shape)) for shape in SHAPES] for _ in range(20)]
# K, and of how many mini-steps: whole windows. float64 shows the formula, float32 that it is computed in nothing
# narrower. Few updates: optimizers of TensorFlow 1 keep the powers of Adam's betas in float32. At K = 1 test_wrap.py
# compares with the bare optimizer.
RUNS = [("float64", 3, 12), ("float32", 2, 8)]
of_runs = pytest.mark.parametrize("dtype, steps, mini_steps", RUNS[:1] + [slow(*RUNS[1])])

# Relative to the distance moved. All hyperparameters below are numbers that float32 holds: OptimizerV2 keeps them in
# float32 whatever floatx is.
BOUNDS = {"float64": 1e-13, "float32": 4e-6}
RATE = 2.0**-3
# So large that it matters where it stands.
EPSILON = 2.0**-8
BETAS = dict(beta_1=0.875, beta_2=0.96875, epsilon=EPSILON)

CASES = [
    ("SGD", {}),
    ("SGD", dict(momentum=0.875)),
    ("SGD", dict(momentum=0.875, nesterov=True)),
    ("RMSprop", dict(rho=0.875, epsilon=EPSILON)),
    ("RMSprop", dict(rho=0.875, epsilon=EPSILON, centered=True)),
    ("RMSprop", dict(rho=0.875, epsilon=EPSILON, momentum=0.75)),
    # With the home's own epsilon and, where it has one, its own start of the sums.
    ("Adagrad", {}),
    ("Adagrad", dict(initial_accumulator_value=0.5, epsilon=EPSILON)),
    ("Adam", BETAS),
    ("Adam", dict(BETAS, amsgrad=True)),
    # It reads `iterations` before it counts and after.
    ("Adam", dict(BETAS, decay=0.125)),
    ("AdamW", dict(BETAS, weight_decay=0.0625)),
    ("Adadelta", dict(rho=0.875, epsilon=EPSILON)),
    ("Adamax", BETAS),
    ("Adamax", dict(BETAS, decay=0.125)),
    ("Nadam", BETAS),
    ("Nadam", dict(BETAS, schedule_decay=0.0625)),
    ("Ftrl", {}),
    ("Ftrl", dict(initial_accumulator_value=0.5, learning_rate_power=-0.75)),
    # Between them some weights are zero in some updates.
    ("Ftrl", dict(initial_accumulator_value=0.5, l1_regularization_strength=2.0, l2_regularization_strength=0.25)),
    ("Ftrl", dict(initial_accumulator_value=0.5, l2_shrinkage_regularization_strength=0.125)),
    ("Ftrl", dict(initial_accumulator_value=0.5, beta=0.5)),
]

# Of tf.compat.v1.train: the class, its arguments, the oracle's and its arguments.
BETAS_OF_1 = dict(beta1=0.875, beta2=0.96875, epsilon=EPSILON)
DECAY_OF_1 = dict(decay=0.875, epsilon=EPSILON)
RMSPROP = dict(rho=0.875, epsilon=EPSILON, epsilon_inside=True, initial_accumulator_value=1.0)
PENALTIES = dict(initial_accumulator_value=0.5, l1_regularization_strength=2.0, l2_regularization_strength=0.25)
CASES_OF_1 = [
    ("GradientDescentOptimizer", {}, "SGD", {}),
    ("MomentumOptimizer", dict(momentum=0.875), "SGD", dict(momentum=0.875)),
    ("MomentumOptimizer", dict(momentum=0.875, use_nesterov=True), "SGD", dict(momentum=0.875, nesterov=True)),
    ("RMSPropOptimizer", DECAY_OF_1, "RMSprop", RMSPROP),
    ("RMSPropOptimizer", dict(DECAY_OF_1, centered=True), "RMSprop", dict(RMSPROP, centered=True)),
    ("RMSPropOptimizer", dict(DECAY_OF_1, momentum=0.75), "RMSprop", dict(RMSPROP, momentum=0.75)),
    ("AdagradOptimizer", {}, "Adagrad", dict(initial_accumulator_value=0.1, epsilon=0.0)),
    ("AdadeltaOptimizer", dict(rho=0.875, epsilon=EPSILON), "Adadelta", dict(rho=0.875, epsilon=EPSILON)),
    ("AdamOptimizer", BETAS_OF_1, "Adam", BETAS),
    ("FtrlOptimizer", {}, "Ftrl", {}),
    ("FtrlOptimizer", PENALTIES, "Ftrl", PENALTIES),
]


def is_forerunner(home, cls):
    """Whether this is one of the `experimental` v3 optimizers of TF 2.9 and 2.10, beside which v2 was the default."""
    return generation_of(cls) == "v3" and generation_of(home.keras.optimizers.SGD) == "v2"


def lacks(cls, kwargs):
    """Whether an optimizer class has not all of these arguments."""
    generation = generation_of(cls)
    missing = []
    if generation == "v1":
        missing += ["centered", "initial_accumulator_value"] + ["momentum"] * (cls.__name__ != "SGD")
    if generation in ("v3", "keras3"):
        missing += ["decay", "schedule_decay"]
    # FTRL has a beta from TF 2.4 on, Adam its amsgrad from Keras 2.1 on.
    missing += {"beta", "amsgrad"} - set(inspect.signature(cls.__init__).parameters)
    return bool(set(missing) & set(kwargs))


def details(home, cls, kwargs):
    """What this home's form of the formula gives the oracle beyond `kwargs`; None where it has no such thing."""
    generation, name = generation_of(cls), cls.__name__
    if lacks(cls, kwargs):
        return None
    if name == "RMSprop":
        if is_forerunner(home, cls):
            # It centers by the average of the squares, and takes roots of negative numbers: no formula of anybody's.
            return None if kwargs.get("centered") else dict(epsilon_inside=False)
        # OptimizerV2 calls TensorFlow's fused operation where there is momentum, and that one has it inside.
        return dict(epsilon_inside=generation in ("v3", "keras3") or generation == "v2" and "momentum" in kwargs)
    if name == "Adagrad":
        # v1 starts at zero as the paper does; 0.1 came with OptimizerV2.
        # Keras 3's Constant rounds it to float32 on the way to a float64 variable.
        default = {"v1": 0.0, "keras3": float(np.float32(0.1))}.get(generation, 0.1)
        start = kwargs.get("initial_accumulator_value", default)
        found = dict(epsilon_inside=generation in ("v3", "keras3"), initial_accumulator_value=start)
        # Keras 2.0 has another one.
        own = getattr(inspect.signature(cls.__init__).parameters.get("epsilon"), "default", None)
        epsilon = kwargs.get("epsilon", own)
        return found if epsilon is None else dict(found, epsilon=epsilon)
    rounded = generation in ("v3", "keras3")
    if name == "Ftrl":
        default = float(np.float32(0.1)) if rounded else 0.1
        return dict(initial_accumulator_value=kwargs.get("initial_accumulator_value", default))
    if name == "Nadam":
        # v3 and Keras 3 have the report's psi no more; all but v1 round 0.96 to float32, Keras 3 in one of two places.
        found = dict(base=0.96 if generation == "v1" else float(np.float32(0.96)))
        found["base_of_product"] = 0.96 if generation == "keras3" else found["base"]
        return dict(found, schedule_decay=1.0) if rounded else found
    return {}


def cases_of(home):
    """[(class, its arguments, the oracle's)] of all that the home has."""
    return [
        (cls, kwargs, dict(kwargs, **details(home, cls, kwargs)))
        for _, cls in home.optimizer_classes()
        for name, kwargs in CASES
        if cls.__name__ == name and details(home, cls, kwargs) is not None
    ]


def pytest_generate_tests(metafunc):
    if "number" in metafunc.fixturenames:
        from conftest import home_of

        home = home_of(metafunc.config)
        generations, params = kinds.classes(home), []
        for number, (cls, kwargs, _) in enumerate(cases_of(home)):
            generation = generation_of(cls)
            name = "{}-{}-{}".format(generation, cls.__module__.split(".")[-2], name_of(cls, kwargs))
            params.append(pytest.param(number, id=name, marks=kinds.marks(generation, generations)))
        metafunc.parametrize("number", params)


def name_of(cls, kwargs):
    return "-".join([cls.__name__] + ["{}={}".format(*item) for item in sorted(kwargs.items())])


def cast(values, dtype):
    return [value.astype(dtype) for value in values]


def expected(name, kwargs, dtype, steps, mini_steps):
    start = cast(cast(START, dtype), "float64")
    batches = [(cast(cast(each, dtype), "float64"), None) for each in GRADIENTS[:mini_steps]]
    optimizer = getattr(oracle, name)(RATE, **kwargs)
    return start, oracle.train(start, batches, steps, optimizer, gradients=lambda weights, x, y: x)


def assert_equal(history, dtype, steps, start, wanted):
    """After every window the oracle's weights; between, the same bits."""
    assert len(history) == len(wanted)
    before = cast(start, dtype)
    for i, (weights, goals) in enumerate(zip(history, wanted), 1):
        for now, was, goal, begin in zip(weights, before, goals, start):
            assert now.dtype == dtype
            if i % steps:
                np.testing.assert_array_equal(now, was)
            else:
                moved = np.max(np.abs(goal - begin))
                assert moved > 0.01
                assert np.max(np.abs(now - goal)) <= BOUNDS[dtype] * moved
        before = weights


@of_runs
def test_equals_the_oracle_after_every_mini_step(home, number, dtype, steps, mini_steps):
    needs.wrap(home)
    cls, given, kwargs = cases_of(home)[number]
    home.reset(plain_session=True)
    home.set_floatx(dtype)
    try:
        rate = "lr" if generation_of(cls) == "v1" else "learning_rate"
        optimizer = legacyga.wrap(cls(**dict(given, **{rate: RATE})), steps)
        gradients = [cast(each, dtype) for each in GRADIENTS[:mini_steps]]
        history = home.apply_to(cast(START, dtype), optimizer, gradients)
        counters = [int(home.value(each)) for each in (optimizer.iterations, optimizer.mini_step)]
    finally:
        home.set_floatx("float32")
        home.reset()
    start, wanted = expected(cls.__name__, kwargs, dtype, steps, mini_steps)
    assert_equal(history, dtype, steps, start, wanted)
    assert counters == [mini_steps // steps, 0]


@of_runs
@pytest.mark.parametrize(
    "name, kwargs, formula, details",
    CASES_OF_1[:2] + [slow(*each) for each in CASES_OF_1[2:]],
    ids=lambda value: str(value),
)
def test_optimizers_of_tensorflow_1(home, name, kwargs, formula, details, dtype, steps, mini_steps):
    tf1.in_the_run_of_tf_keras(home)
    home.reset(plain_session=True)
    home.set_floatx(dtype)
    try:
        optimizer = legacyga.wrap(tf1.make(home, name, RATE, **kwargs), steps)
        gradients = [cast(each, dtype) for each in GRADIENTS[:mini_steps]]
        history = home.apply_to(cast(START, dtype), optimizer, gradients)
    finally:
        home.set_floatx("float32")
    assert_equal(history, dtype, steps, *expected(formula, details, dtype, steps, mini_steps))
