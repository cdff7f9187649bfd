"""How far from the large batch legacyga and its peers end, each measured on one fixture.

    python benchmarks/peers.py [--home keras | tf.keras | tf_keras]

A small network trains for 6 windows of K = 4 micro-batches of 8 samples, by `fit`, with one optimizer a column. A cell
is the largest distance of a weight from where six batches of 32 take it, computed here in NumPy's float64, so that no
race of a framework's own optimizers is in the yardstick. Rounding is 1e-7 or so; `moved` is what the weights moved.

Each peer runs in processes of its own, with whatever of it is installed; what is not installed is said to be so, and
what raises is printed as the error that it is. In graph mode, where operations that nothing orders may race, a cell is
the worst of --repeats runs, and says so where they differed in more than rounding.
"""

import argparse
import collections
import glob
import importlib
import json
import os
import subprocess
import sys

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

K, WINDOWS, BATCH = 4, 6, 8
MARK = "peers.py: "
ROUNDING = 1e-5
# The first column: the longest name of a peer, and a version.
NAME = "{:40}"


# The fixture: both networks end in a dense layer, before which stands a dense layer with tanh, or an embedding.


class Fixture(object):
    """Data and starting weights: of two dense layers, or of an embedding and a dense layer."""

    def __init__(self, embedding=False):
        random = np.random.RandomState(5)
        self.embedding = embedding
        samples = K * WINDOWS * BATCH
        self.y = random.randn(samples, 3).astype("float32")
        if embedding:
            self.x = random.randint(0, 40, size=(samples, 3)).astype("int32")
            shapes = [(40, 4), (12, 3), (3,)]
        else:
            self.x = random.randn(samples, 6).astype("float32")
            shapes = [(6, 5), (5,), (5, 3), (3,)]
        self.start = [0.5 * random.randn(*shape).astype("float32") for shape in shapes]

    def gradients(self, weights, x, y):
        """Of the mean squared error, in float64."""
        if self.embedding:
            table, kernel, bias = weights
            hidden = table[x].reshape(len(x), -1)
        else:
            first, first_bias, kernel, bias = weights
            hidden = np.tanh(np.dot(x, first) + first_bias)
        error = 2.0 * (np.dot(hidden, kernel) + bias - y) / y.size
        last = [np.dot(hidden.T, error), error.sum(axis=0)]
        back = np.dot(error, kernel.T)
        if self.embedding:
            by_row = np.zeros_like(table)
            np.add.at(by_row, x, back.reshape(x.shape + (-1,)))
            return [by_row] + last
        back = back * (1.0 - hidden**2)
        return [np.dot(x.T, back), back.sum(axis=0)] + last

    def model(self, keras):
        """The same network, of a home, with the starting weights."""
        layers = keras.layers
        if self.embedding:
            inputs = layers.Input(shape=(3,), dtype="int32")
            hidden = layers.Flatten()(layers.Embedding(40, 4)(inputs))
        else:
            inputs = layers.Input(shape=(6,))
            hidden = layers.Dense(5, activation="tanh")(inputs)
        model = keras.models.Model(inputs, layers.Dense(3)(hidden))
        model.set_weights(self.start)
        return model


class Case(object):
    """A column: an optimizer, and what the large batch does with it.

    Args:
        name: of the column.
        optimizer: name of the class.
        arguments: for it, by the names of the newer homes.
        batches: micro-batches to train on.
    """

    def __init__(self, name, optimizer, batches=K * WINDOWS, embedding=False, replicas=1, decays=0.0, **arguments):
        self.name, self.optimizer, self.batches, self.replicas = name, optimizer, batches, replicas
        self.arguments, self.decays = arguments, decays
        self.fixture = Fixture(embedding)

    def expected(self, home):
        """The weights where the large batches take them, and by how much they moved."""
        arguments = dict(momentum=0.0, clipnorm=None, use_ema=False, ema_momentum=0.0)
        arguments.update(self.arguments)
        weights = [value.astype("float64") for value in self.fixture.start]
        average = None
        first, second = [[np.zeros_like(value) for value in weights] for _ in range(2)]
        size = K * BATCH
        for t, begin in enumerate(range(0, self.batches * BATCH, size)):
            batch = slice(begin, min(begin + size, self.batches * BATCH))
            gradients = self.fixture.gradients(weights, self.fixture.x[batch], self.fixture.y[batch])
            if arguments["clipnorm"]:
                gradients = clipped(gradients, arguments["clipnorm"], home.clips_by_all)
            rate = arguments["learning_rate"]
            if self.decays:
                rate = rate * self.decays**t if home.schedules else rate / (1.0 + self.decays * t)
            for i, g in enumerate(gradients):
                if self.optimizer == "SGD":
                    first[i] = arguments["momentum"] * first[i] - rate * g
                    weights[i] = weights[i] + first[i]
                elif self.optimizer == "RMSprop":
                    second[i] = 0.9 * second[i] + 0.1 * g**2
                    inside, outside = (1e-7, 0.0) if home.epsilon_inside else (0.0, 1e-7)
                    weights[i] = weights[i] - rate * g / (np.sqrt(second[i] + inside) + outside)
                else:
                    # On its own, Keras 3 takes a row's gradients one by one where a batch has the row more than once.
                    first[i] = 0.9 * first[i] + 0.1 * g
                    second[i] = 0.999 * second[i] + 0.001 * g**2
                    corrected = rate * np.sqrt(1.0 - 0.999 ** (t + 1)) / (1.0 - 0.9 ** (t + 1))
                    weights[i] = weights[i] - corrected * first[i] / (np.sqrt(second[i]) + 1e-7)
            m = arguments["ema_momentum"] if t else 0.0
            average = [m * old + (1.0 - m) * new for old, new in zip(average or weights, weights)]
        weights = average if arguments["use_ema"] else weights
        return weights, distance(weights, self.fixture.start)


def clipped(gradients, limit, by_all):
    norms = [np.sqrt((g**2).sum()) for g in gradients]
    if by_all:
        norms = [np.sqrt(sum(norm**2 for norm in norms))] * len(norms)
    return [g * min(1.0, limit / norm) for g, norm in zip(gradients, norms)]


def distance(weights, others):
    return max(float(np.max(np.abs(a - b))) for a, b in zip(weights, others))


CASES = [
    Case("SGD", "SGD", learning_rate=0.5),
    Case("momentum", "SGD", learning_rate=0.25, momentum=0.9),
    Case("Adam", "Adam", learning_rate=0.1),
    Case("RMSprop", "RMSprop", learning_rate=0.1, epsilon=1e-7),
    Case("clipnorm", "SGD", learning_rate=1.0, clipnorm=0.125),
    Case("rate", "SGD", learning_rate=0.5, decays=0.5),
    Case("EMA", "SGD", learning_rate=0.5, use_ema=True, ema_momentum=0.5),
    Case("emb. SGD", "SGD", embedding=True, learning_rate=1.0),
    Case("emb. Adam", "Adam", embedding=True, learning_rate=0.1),
    Case("partial", "SGD", batches=K * WINDOWS - 2, learning_rate=0.5),
    Case("mirrored", "SGD", replicas=2, learning_rate=0.25, momentum=0.9),
    Case("mirr. Adam", "Adam", replicas=2, learning_rate=0.1),
]


class UnavailableError(Exception):
    """What a home, or a peer, does not have: no fault, and no figure."""


class Home(object):
    """The Keras that the models are made of."""

    def __init__(self, name):
        self.name = name
        import tensorflow as tf

        self.tf = tf
        self.keras = tf.keras if name == "tf.keras" else importlib.import_module(name)
        sgd = self.keras.optimizers.SGD
        self.standalone = name == "keras" and not hasattr(sgd, "apply_gradients")
        self.graph = self.standalone or tf.__version__.startswith("1.")
        self.schedules = getattr(self.keras.optimizers, "schedules", None) if not self.standalone else None
        self.epsilon_inside = hasattr(sgd, "update_step")
        self.clips_by_all = self.standalone

    def __str__(self):
        version = getattr(self.keras, "__version__", "")
        return "{} {} on TensorFlow {}, {} mode".format(
            self.name, version, self.tf.__version__, "graph" if self.graph else "eager"
        )

    def optimizer(self, case, classes=None, wrap_class=lambda cls: cls, **more):
        """The bare optimizer of a case."""
        cls = wrap_class(getattr(classes or self.keras.optimizers, case.optimizer))
        arguments = dict(case.arguments)
        if arguments.get("use_ema") and not self.epsilon_inside:
            raise UnavailableError("no EMA in this home")
        if case.decays and self.schedules:
            rate = self.schedules.ExponentialDecay(arguments["learning_rate"], 1, case.decays)
            arguments["learning_rate"] = rate
        elif case.decays:
            arguments["decay"] = case.decays
        if self.standalone:
            # Up to 2.2 the rate is `lr`, which 2.3 takes too.
            arguments["lr"] = arguments.pop("learning_rate")
        return cls(**dict(arguments, **more))


# The peers. Each takes (home, case) and returns a compiled model, the batch size, and a function to call after fit, or
# None.


def compiled(home, case, optimizer, model_class=None):
    model = case.fixture.model(home.keras)
    if model_class is not None:
        model = model_class(model)
    model.compile(optimizer=optimizer, loss="mse")
    return model


def large_batch(home, case):
    """The home's own optimizer on the large batches: what rounding, and its own races, come to."""
    return compiled(home, case, home.optimizer(case)), BATCH * K, None


def ours(home, case):
    legacyga = importlib.import_module("legacyga")
    optimizer = legacyga.wrap(home.optimizer(case), K)
    model = compiled(home, case, optimizer)
    flush = getattr(legacyga, "flush", None)
    return model, BATCH, flush and (lambda: flush(model.optimizer))


def keras_built_in(home, case):
    if not hasattr(home.keras.optimizers.SGD, "stateless_apply"):
        raise ImportError("Keras 3")
    return compiled(home, case, home.optimizer(case, gradient_accumulation_steps=K)), BATCH, None


def legacy_classes(home):
    return getattr(home.keras.optimizers, "legacy", home.keras.optimizers)


def accumulator_optimizer(home, case):
    peer = importlib.import_module("gradient_accumulator")
    check_home(home, "tf.keras")
    optimizer = peer.GradientAccumulateOptimizer(home.optimizer(case, legacy_classes(home)), accum_steps=K)
    return compiled(home, case, optimizer), BATCH, None


def accumulator_model(home, case):
    peer = importlib.import_module("gradient_accumulator")
    check_home(home, "tf.keras")

    def model_class(model):
        return peer.GradientAccumulateModel(accum_steps=K, inputs=model.inputs, outputs=model.outputs)

    return compiled(home, case, home.optimizer(case), model_class), BATCH, None


def runai(home, case):
    peer = importlib.import_module("runai.ga.keras.optimizers")
    check_home(home, "keras")
    return compiled(home, case, peer.Optimizer(home.optimizer(case), steps=K)), BATCH, None


def keras_gradient_accumulation(home, case):
    os.environ["TF_KERAS"] = "0" if home.standalone else "1"
    peer = importlib.import_module("keras_gradient_accumulation")
    return compiled(home, case, peer.GradientAccumulation(home.optimizer(case), K)), BATCH, None


def adam_accumulated(home, case):
    os.environ["TF_KERAS"] = "0" if home.standalone else "1"
    peer = importlib.import_module("keras_gradient_accumulation")
    if case.optimizer != "Adam":
        raise UnavailableError("Adam alone")
    optimizer = peer.AdamAccumulated(accumulation_steps=K, learning_rate=case.arguments["learning_rate"])
    return compiled(home, case, optimizer), BATCH, None


def accum_optimizer(home, case):
    peer = importlib.import_module("accum_optimizer")
    check_home(home, "keras")
    return compiled(home, case, peer.AccumOptimizer(home.optimizer(case), K)), BATCH, None


def bert4keras(home, case):
    os.environ["TF_KERAS"] = "0" if home.standalone else "1"
    peer = importlib.import_module("bert4keras.optimizers")
    extend = peer.extend_with_gradient_accumulation
    if not home.standalone:
        extend = peer.extend_with_gradient_accumulation_v2
    optimizer = home.optimizer(case, wrap_class=extend, grad_accum_steps=K)
    return compiled(home, case, optimizer), BATCH, None


def check_home(home, name):
    if home.name != name or (name == "keras" and not home.standalone):
        raise UnavailableError("for another Keras")


# By the row's name: the function, and the distribution that is installed for it, for its version.
PEERS = [
    ("the large batch itself", large_batch, None),
    ("legacyga.wrap", ours, "legacyga"),
    ("Keras 3 built-in", keras_built_in, "keras"),
    ("gradient-accumulator, optimizer", accumulator_optimizer, "gradient-accumulator"),
    ("gradient-accumulator, model", accumulator_model, "gradient-accumulator"),
    ("runai", runai, "runai"),
    ("keras-gradient-accumulation", keras_gradient_accumulation, "keras-gradient-accumulation"),
    ("its AdamAccumulated", adam_accumulated, "keras-gradient-accumulation"),
    ("accum_optimizer_for_keras", accum_optimizer, None),
    ("bert4keras", bert4keras, "bert4keras"),
]


def version_of(distribution):
    """Of what is installed, from the name of its metadata's folder: importlib.metadata is there from Python 3.8 on."""
    for folder in sys.path:
        for found in glob.glob(os.path.join(folder, distribution.replace("-", "_") + "-*.dist-info")):
            return os.path.basename(found)[len(distribution) + 1 : -len(".dist-info")]
    return ""


def make_two_devices(tf):
    config = tf.config
    if hasattr(config, "set_logical_device_configuration"):
        one = config.LogicalDeviceConfiguration
        config.set_logical_device_configuration(config.list_physical_devices("CPU")[0], [one(), one()])
    else:
        config, one = config.experimental, config.experimental.VirtualDeviceConfiguration
        config.set_virtual_device_configuration(config.list_physical_devices("CPU")[0], [one(), one()])
    return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])


def run_case(home, case, peer, repeats):
    """The worst distance of the runs, and in how many results they ended."""
    expected, moved = case.expected(home)
    strategy = None
    if case.replicas > 1:
        if home.graph:
            raise UnavailableError("one device in graph mode")
        strategy = make_two_devices(home.tf)
    ends = []
    for _ in range(repeats):
        if hasattr(home.keras.backend, "clear_session"):
            home.keras.backend.clear_session()
        if strategy is None:
            made = peer(home, case)
        else:
            with strategy.scope():
                made = peer(home, case)
        model, batch, after = made
        samples = case.batches * BATCH
        x, y = case.fixture.x[:samples], case.fixture.y[:samples]
        model.fit(x, y, batch_size=batch, epochs=1, shuffle=False, verbose=0)
        if after is not None:
            after()
        ends.append(model.get_weights()[: len(expected)])
    different = 1
    if repeats > 1 and max(distance(end, ends[0]) for end in ends) > ROUNDING:
        different = len({b"".join(value.tobytes() for value in end) for end in ends})
    return dict(distance=max(distance(end, expected) for end in ends), results=different, moved=moved)


def run_peer(args):
    """In a process of its own: the cases of one peer, a line of JSON each."""
    home = Home(args.home)
    _, peer, distribution = PEERS[args.peer]
    print(MARK + json.dumps(dict(home=str(home), version=version_of(distribution) if distribution else "")))
    for number in args.cases:
        case = CASES[number]
        result = dict(case=number)
        try:
            result.update(run_case(home, case, peer, args.repeats if home.graph else 1))
        except UnavailableError as error:
            result.update(missing=str(error))
        except Exception as error:
            absent = isinstance(error, ImportError) and getattr(error, "name", None) in (None, peer_module(peer, error))
            if absent:
                result.update(missing="not installed")
            else:
                text = str(error).strip().splitlines() or [""]
                result.update(error=type(error).__name__, text=text[-1] if len(text[0]) < 20 else text[0])
        print(MARK + json.dumps(result))
        sys.stdout.flush()


def peer_module(peer, error):
    # The peer itself is missing, not something that it wants.
    names = {
        "accumulator_optimizer": "gradient_accumulator",
        "accumulator_model": "gradient_accumulator",
        "adam_accumulated": "keras_gradient_accumulation",
        "ours": "legacyga",
    }
    name = names.get(peer.__name__, peer.__name__)
    return error.name if (getattr(error, "name", None) or "").split(".")[0] == name else name


def spawn(args, peer, cases):
    command = [sys.executable, os.path.abspath(__file__), "--home", args.home, "--repeats", str(args.repeats)]
    command += ["--peer", str(peer), "--cases"] + [str(case) for case in cases]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, errors="replace"
    )
    output, _ = process.communicate()
    lines = [json.loads(line[len(MARK) :]) for line in output.splitlines() if line.startswith(MARK)]
    said = {result["case"]: result for result in lines[1:]}
    for case in cases:
        # A crash, or a home that is not there.
        last = (output.strip().splitlines() or [""])[-1]
        said.setdefault(case, dict(case=case, error="exit {}".format(process.returncode), text=last))
    return lines[0] if lines else {}, said


def cell(result):
    if "missing" in result:
        return "-"
    if "error" in result:
        return result["error"].replace("Error", "")[:11] + "!"
    text = "{:.1e}".format(result["distance"]) if result["distance"] < 0.01 else "{:.3f}".format(result["distance"])
    return text + (" /{}".format(result["results"]) if result["results"] > 1 else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    names = ("keras", "tf.keras", "tf_keras")
    parser.add_argument("--home", choices=names, default="tf.keras", help="your Keras (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of a case in graph mode")
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--cases", type=int, nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer is not None:
        return run_peer(args)
    alone = [number for number, case in enumerate(CASES) if case.replicas == 1]
    # Later strategies of one process fail on some versions, so each gets its own.
    groups = [alone] + [[number] for number, case in enumerate(CASES) if case.replicas > 1]
    row = NAME + " {:>12}" * len(CASES)
    notes, moved = collections.OrderedDict(), ["-"] * len(CASES)
    for peer, (name, _, _) in enumerate(PEERS):
        said, about = {}, {}
        for group in groups:
            found, results = spawn(args, peer, group)
            about = about or found
            said.update(results)
            if all(result.get("missing") == "not installed" for result in results.values()):
                break
        if peer == 0:
            print("{}; {} windows of K = {}\n".format(about.get("home"), WINDOWS, K))
            print(row.format("distance from the large batch", *[case.name for case in CASES]))
        if all(result.get("missing") == "not installed" for result in said.values()):
            print((NAME + " not installed").format(name))
            continue
        results = [said[number] for number in range(len(CASES))]
        print(row.format(" ".join([name, about.get("version", "")]).strip(), *[cell(result) for result in results]))
        sys.stdout.flush()
        for case, result in zip(CASES, results):
            text = result.get("text") or result.get("missing")
            if text:
                said = "{}: {} {}".format(name, result.get("error", "-"), text[:200])
                notes.setdefault(said, []).append(case.name)
            if "moved" in result:
                moved[CASES.index(case)] = "{:.2f}".format(result["moved"])
    print(row.format("the weights moved", *moved))
    print("\n-  this Keras or package lacks it      /n  n results in {} runs      !  raised".format(args.repeats))
    for said, cases in notes.items():
        print("  {}  ({})".format(said, ", ".join(cases)))


if __name__ == "__main__":
    sys.exit(main())
