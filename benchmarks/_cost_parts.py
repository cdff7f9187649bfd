"""What each process of cost.py measures: times of windows, memory and start of one way, rows, numbers of variables."""

import collections
import statistics
import time

import _cost_programs as programs
from _cost_programs import UnavailableError
from _shared import spread
from micro_batch import peak


def seconds(function, *args):
    began = time.perf_counter()
    function(*args)
    return time.perf_counter() - began


def reason(error):
    if isinstance(error, UnavailableError):
        return str(error)
    lines = [line for line in str(error).strip().splitlines() if line.strip()] or [""]
    return "{}: {}".format(type(error).__name__, lines[-1].strip()[:160])


def run_window(run, steps, batches):
    """The seconds of each mini-step of a window."""
    return [seconds(run, place, batches[place % len(batches)]) for place in range(steps)]


def started(found, grounds, steps):
    """({name: function of a mini-step}, {name: why it is not there}), each after two windows."""
    there, missing = collections.OrderedDict(), collections.OrderedDict()
    for name, way in found.items():
        try:
            run = way(grounds[name], steps)
            for _ in range(2):
                run_window(run, steps, grounds[name].batches)
            there[name] = run
        except Exception as error:
            missing[name] = reason(error)
    return there, missing


def rounds_of(there, grounds, steps, rounds):
    """A list of {name: seconds of each mini-step of a window}; in a round the names take turns at each mini-step."""
    found, names = [], list(there)
    for number in range(rounds):
        first = number % len(names)
        times = {name: [] for name in names}
        for place in range(steps):
            for name in names[first:] + names[:first]:
                batches = grounds[name].batches
                times[name].append(seconds(there[name], place, batches[place % len(batches)]))
        found.append(times)
    return found


def figures(rounds, name):
    """{figure: its spread} of a way, in seconds and in ratios of one round."""
    steps, found = len(rounds[0][name]), collections.defaultdict(list)
    for times in rounds:
        alone, adding, bare = [statistics.mean(times[each]) for each in ("alone", "adding", "bare")]
        own = times[name]
        found["window"].append(sum(own))
        found["over additions"].append(sum(own) / ((steps - 1) * adding + bare))
        found["over passes"].append(sum(own) / ((steps - 1) * alone + bare))
        found["over bare"].append(sum(own) / sum(times["bare"]))
        found["last"].append(own[-1])
        found["last over bare"].append(own[-1] / bare)
        if steps > 1:
            none = statistics.mean(own[:-1])
            found["first"].append(own[0])
            found["none"].append(none)
            found["none over pass"].append(none / alone)
            found["none over adding"].append(none / adding)
            found["none over bare"].append(none / bare)
    return {each: spread(values) for each, values in found.items()}


def time_of_windows(options, keras):
    ground = programs.of_model(options, keras)
    ways = collections.OrderedDict(programs.FLOORS)
    ways.update((name, programs.WAYS[name]) for name in options.ways)
    grounds = dict.fromkeys(ways, ground)
    there, missing = started(ways, grounds, options.steps)
    check_there(programs.FLOORS, missing)
    rounds = rounds_of(there, grounds, options.steps, options.rounds)
    return dict(
        parameters=parameters_of(ground),
        ways=collections.OrderedDict((name, figures(rounds, name)) for name in there),
        missing=missing,
    )


def check_there(names, missing):
    for name in names:
        if name in missing:
            raise RuntimeError("{}: {}".format(name, missing[name]))


def parameters_of(ground):
    return sum(int(each.shape.num_elements()) for each in ground.sources)


def memory_and_start(options, keras):
    """Of one way in a process that does nothing else."""
    found = {}
    if options.way in programs.OURS:
        began = time.perf_counter()
        import legacyga  # noqa: F401

        found["import"] = time.perf_counter() - began
    ground = programs.of_model(options, keras)
    # So that what a prediction takes is there before.
    ground.model.predict(ground.sample)
    before, alive = peak(), ground.bytes_of_variables()
    way = programs.WAYS.get(options.way) or programs.FLOORS[options.way]
    try:
        began = time.perf_counter()
        run = way(ground, options.steps)
        run(0, ground.batches[0])
        found["first step"] = time.perf_counter() - began
        for place in range(1, 2 * options.steps):
            run(place % options.steps, ground.batches[place % len(ground.batches)])
        found["first windows"] = time.perf_counter() - began
    except UnavailableError as error:
        return dict(missing=str(error))
    found.update(peak=peak() - before, idle=before, variables=ground.bytes_of_variables() - alive)
    return dict(found, parameters=4 * parameters_of(ground))


def rows(options, keras):
    """Of gradients of rows, by the size of their table."""
    by_rows, whole = programs.of_table(options, keras), programs.of_table(options, keras, dense=True)
    ways = collections.OrderedDict([("scatter_add", programs.adding), ("bare", programs.bare), ("wrap", programs.wrap)])
    ways["GradientAccumulator"] = programs.accumulator
    ways["dense"] = programs.wrap
    grounds = dict.fromkeys(ways, by_rows)
    grounds["dense"] = whole
    there, missing = started(ways, grounds, options.steps)
    check_there(("scatter_add", "bare"), missing)
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for times in rounds_of(there, grounds, options.steps, options.rounds):
        scatter = statistics.mean(times["scatter_add"])
        for name, own in times.items():
            none = statistics.mean(own[:-1])
            for key, value in (("none", none), ("none over scatter_add", none / scatter), ("last", own[-1])):
                found[name][key].append(value)
            found[name]["window"].append(sum(own))
            found[name]["window over bare"].append(sum(own) / sum(times["bare"]))
    told = {name: {key: spread(values) for key, values in each.items()} for name, each in found.items()}
    return dict(ways=told, missing=missing)


def variables(options, keras):
    """Of many small variables."""
    ground = programs.of_vectors(options, keras)
    # No accumulation costs less than a pass and the additions, and a conditional around the update.
    floors = ("bare", "adding", "conditional", "conditional_adding")
    ways = collections.OrderedDict((name, getattr(programs, name)) for name in floors)
    ways.update((name, programs.WAYS[name]) for name in options.ways)
    there, missing, starts = collections.OrderedDict(), {}, {}
    for name, way in ways.items():
        try:
            began = time.perf_counter()
            there[name] = way(ground, options.steps)
            run_window(there[name], options.steps, ground.batches)
            starts[name] = time.perf_counter() - began
        except UnavailableError as error:
            there.pop(name, None)
            missing[name] = str(error)
    made, found = ground.made(), collections.defaultdict(lambda: collections.defaultdict(list))
    for times in rounds_of(there, dict.fromkeys(there, ground), options.steps, options.rounds):
        bare = statistics.mean(times["bare"])
        for name, own in times.items():
            none = statistics.mean(own[:-1])
            for key, value in (("none", none), ("none over bare", none / bare), ("last over bare", own[-1] / bare)):
                found[name][key].append(value)
    told = {name: {key: spread(values) for key, values in each.items()} for name, each in found.items()}
    return dict(ways=told, missing=missing, starts=starts, made=made, later=ground.made() - made)


PARTS = collections.OrderedDict(
    [("time", time_of_windows), ("memory", memory_and_start), ("rows", rows), ("variables", variables)]
)
