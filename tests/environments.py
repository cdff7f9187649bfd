"""What tox.ini says of its test environments: their names, what is installed into them, and which homes they hold."""

import collections
import configparser
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The Python of an environment that names none: toxfile.py takes the newest that is there.
NEWEST_PYTHON = "3.13"
FACTOR = r"(py|tfkeras|tf|keras|horovod)(\d[\d.]*)$"
RUN_FILE = r"(.+)-(keras|tf\.keras|tf_keras)-(graph|eager)\.json$"


def tox_ini():
    config = configparser.ConfigParser(interpolation=None)
    config.read(os.path.join(ROOT, "tox.ini"))
    return config


def as_numbers(version):
    return tuple(int(part) for part in re.findall(r"\d+", version))


def minor(version):
    return ".".join(version.split(".")[:2])


def factors_of(env):
    """{"py": "3.7", "tf": "1.15", "keras": "2.3"} of "py37-tf1.15-keras2.3"."""
    found = collections.OrderedDict()
    # `others` are no package: conftest.py looks for each.
    for factor in env.replace("-others", "").split("-"):
        match = re.match(FACTOR, factor)
        if not match or match.group(1) in found:
            raise ValueError("{!r} is no factor of a test environment ({})".format(factor, env))
        kind, version = match.groups()
        found[kind] = version if kind != "py" else version[0] + "." + version[1:]
    return found


def position(env):
    """What environments are sorted by: TensorFlow, then Keras, then Python."""
    factors = factors_of(env)
    # `keras3` is the newest.
    keras = [as_numbers(factors.get(kind, "")) or (0,) for kind in ("tfkeras", "keras")]
    keras = [version + (1000,) if version == (3,) else version for version in keras]
    return as_numbers(factors["tf"]), keras, as_numbers(factors.get("py", NEWEST_PYTHON)), env


def labels(config=None):
    """{label of tox.ini: [its environments]}."""
    lines = (config or tox_ini())["tox"]["labels"].replace("\\\n", " ").strip().splitlines()
    pairs = [line.partition("=")[::2] for line in lines]
    return collections.OrderedDict((name.strip(), re.findall(r"[^\s,]+", envs)) for name, envs in pairs)


def environments(label="full", config=None):
    """The test environments of a label of tox.ini, from the oldest TensorFlow to the newest."""
    return sorted(labels(config)[label], key=position)


def runs_of(env):
    """[(home, mode)] that an environment holds, by its name. homes.available() is what was found there."""
    factors = factors_of(env)
    keras = as_numbers(factors.get("keras", "0"))
    if "tfkeras" in factors:
        return [("tf_keras", "eager"), ("tf_keras", "graph")]
    if keras >= (3,):
        return [("keras", "eager")]
    standalone = [("keras", "graph")] if (0,) < keras < (2, 4) else []
    eager = [("tf.keras", "eager")] if as_numbers(factors["tf"]) >= (2,) else []
    return standalone + eager + [("tf.keras", "graph")]


def runs_of_the_core():
    """{(home, mode, TensorFlow): the environment of the core that holds it}, in the words of conftest.LONG."""
    return {run + (factors_of(env)["tf"],): env for env in environments("core") for run in runs_of(env)}


def family_of(env, home):
    """The Kerases that are one another's neighbours: Keras 3 is no neighbour of the standalone Keras before it."""
    return "keras3" if home == "keras" and as_numbers(factors_of(env)["keras"]) >= (3,) else home


# ----------------------------------------------------------------------------------------------- how to install a stack


def conditions(lines):
    """The lines of a setting of tox.ini with a condition: [([factors of each alternative], what the line adds)]."""
    found = []
    for line in lines.replace("\\\n", " ").strip().splitlines():
        condition, colon, value = line.strip().partition(": ")
        if colon and re.match(r"^[\w.!, -]+$", condition):
            found.append(([each.strip().split("-") for each in condition.split(",")], value.strip()))
    return found


def conditional(lines, env):
    """The lines of a setting of tox.ini that a condition on factors adds for `env`, as [(factors, what they add)]."""
    factors, found = set(env.split("-")), []
    for alternatives, value in conditions(lines):
        for names in alternatives:
            if all((name[1:] not in factors) if name.startswith("!") else (name in factors) for name in names):
                found.append((names, value))
                break
    return found


def idle_factors(config=None):
    """The packages' factors in the settings of [testenv] that stand in the name of no environment."""
    config = config or tox_ini()
    named = {factor for envs in labels(config).values() for env in envs for factor in env.split("-")}
    used = {
        name.lstrip("!")
        for setting in ("base_python", "deps", "set_env")
        for alternatives, _ in conditions(config["testenv"].get(setting, ""))
        for names in alternatives
        for name in names
    }
    return sorted(name for name in used - named if re.match(FACTOR, name))


def holds(marker, python):
    """Whether an environment marker on python_version holds for a Python such as "3.10"."""
    compare, version = re.match(r"python_version\s*(<=|>=|==|<|>)\s*[\"']([\d.]+)[\"']$", marker.strip()).groups()
    one, other = as_numbers(python), as_numbers(version)
    return {"<=": one <= other, ">=": one >= other, "==": one == other, "<": one < other, ">": one > other}[compare]


def pins(env, python, config=None):
    """What pip is given for an environment: ([requirements], [those to install after them, without dependencies])."""
    config = config or tox_ini()
    alone = set()
    for names, value in conditional(config["testenv"].get("set_env", ""), env):
        # The override takes away what a package asks for.
        if value.startswith("UV_OVERRIDE"):
            alone.update(names)
    found, after = [], []
    for names, requirement in conditional(config["testenv"]["deps"], env):
        requirement, semicolon, marker = requirement.partition(";")
        if not semicolon or holds(marker, minor(python)):
            (after if alone & set(names) else found).append(requirement.strip())
    return found, after


def python_of(env):
    return factors_of(env).get("py", NEWEST_PYTHON)


def pinned(env, config=None):
    """{package: version} of what tox.ini asks for with `==`."""
    requirements = [each for part in pins(env, python_of(env), config) for each in part]
    return dict(each.split("==") for each in requirements if "==" in each)


def install(env, python, config=None):
    """The command that makes a stack, in a fresh environment of that Python."""
    found, after = pins(env, python, config)

    def command(options, requirements):
        quoted = ['"{}"'.format(each) if re.search("[<>*]", each) else each for each in requirements]
        return "python{} -m pip install {}".format(minor(python), " ".join(options + quoted))

    commands = [command([], ["legacyga"] + found)] + ([command(["--no-deps"], after)] if after else [])
    return " && ".join(commands)


def asked_for(env, home, config=None):
    """[TensorFlow, Keras, Python] that an environment asks for, of one of its homes."""
    factors, versions = factors_of(env), pinned(env, config)
    tensorflow = versions.get("tensorflow-cpu", versions.get("tensorflow", factors["tf"]))
    keras = home
    for kind, package in (("keras", "keras"), ("tf_keras", "tf-keras")):
        if home == kind:
            keras = "{} {}".format(home, versions.get(package, factors[kind.replace("_", "")]))
    return [tensorflow, keras, factors.get("py", "newest")]
