"""What tox.ini says of its test environments: their names, what is installed into them, and which homes they hold."""

import configparser
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The Python of an environment that names none: toxfile.py takes the newest that is there.
NEWEST_PYTHON = "3.13"


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
    found = {}
    # `others` are no package: conftest.py looks for each.
    for factor in env.replace("-others", "").split("-"):
        match = re.match(r"(py|tfkeras|tf|keras|horovod)(\d[\d.]*)$", factor)
        if not match or match.group(1) in found:
            raise ValueError("{!r} is no factor of a test environment ({})".format(factor, env))
        kind, version = match.groups()
        found[kind] = version if kind != "py" else version[0] + "." + version[1:]
    return found


def python_of(env):
    return factors_of(env).get("py", NEWEST_PYTHON)


def position(env):
    """What environments are sorted by: TensorFlow, then Keras, then Python."""
    factors = factors_of(env)
    # `keras3` is the newest.
    keras = [as_numbers(factors.get(kind, "")) or (0,) for kind in ("tfkeras", "keras")]
    keras = [version + (1000,) if version == (3,) else version for version in keras]
    return as_numbers(factors["tf"]), keras, as_numbers(python_of(env)), env


def labels():
    """{label of tox.ini: [its environments]}."""
    lines = tox_ini()["tox"]["labels"].replace("\\\n", " ").strip().splitlines()
    pairs = [line.partition("=")[::2] for line in lines]
    return {name.strip(): re.findall(r"[^\s,]+", envs) for name, envs in pairs}


def environments(label="full"):
    """The test environments of a label of tox.ini, from the oldest TensorFlow to the newest."""
    return sorted(labels()[label], key=position)


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


def is_on_another_python(env):
    """Whether an earlier environment of the label `full` has the same packages on another Python."""
    full = labels()["full"]
    if env not in full:
        return False
    packages = dict(factors_of(env), py=None)
    return any(dict(factors_of(each), py=None) == packages for each in full[: full.index(env)])


def runs(label="full"):
    """[(environment, home, mode)] of a label."""
    return [(env,) + run for env in environments(label) for run in runs_of(env)]


def runs_of_the_core():
    """{(home, mode, TensorFlow): the environment of the core that holds it}, in the words of conftest.LONG."""
    return {(home, mode, factors_of(env)["tf"]): env for env, home, mode in runs("core")}


def family_of(line):
    """The Kerases that are one another's neighbours: Keras 3 is no neighbour of the standalone Keras before it."""
    return "keras3" if line["home"] == "keras" and line["mode"] == "eager" else line["home"]


def conditional(lines, env):
    """The lines of a setting of tox.ini that a condition on factors adds for `env`, as [(factors, what they add)]."""
    factors, found = set(env.split("-")), []
    for line in lines.replace("\\\n", " ").strip().splitlines():
        condition, colon, value = line.strip().partition(": ")
        if colon and re.match(r"^[\w.!, -]+$", condition):
            for names in [each.strip().split("-") for each in condition.split(",")]:
                if all((name[1:] not in factors) if name.startswith("!") else (name in factors) for name in names):
                    found.append((names, value.strip()))
                    break
    return found


def pins(env):
    """What pip is given for an environment: ([requirements], [those to install after them, without dependencies])."""
    config, python = tox_ini()["testenv"], as_numbers(python_of(env))
    # UV_OVERRIDE removes what a package requires.
    alone = {name for names, value in conditional(config["set_env"], env) if "UV_OVERRIDE" in value for name in names}
    found, after = [], []
    for names, requirement in conditional(config["deps"], env):
        requirement, _, marker = requirement.partition(";")
        compare, version = (re.findall(r'python_version (<|>=) "([\d.]+)"', marker) or [(">=", "3")])[0]
        if (python < as_numbers(version)) == (compare == "<"):
            (after if alone & set(names) else found).append(requirement.strip())
    return found, after
