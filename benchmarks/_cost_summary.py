"""What cost.py kept of several runs, in tables with a line a stack, and a picture."""

import collections
import json

from _cost_tables import BARS, FLAT, TITLES, process_rows, quartiles, ratio
from _shared import figure, markdown, save
from micro_batch import MIB, against

NOT_WAYS = ("alone", "adding", "bare", "scatter_add", "dense")
ABOVE = ["model", "optimizer", "K", "way"]


def stack_of(found):
    versions = found["versions"]
    named = "{home} {0}".format(versions[found["home"]], **found) if found["home"] in versions else found["home"]
    more = [found["optimizers"] and found["optimizers"] + " optimizers", found["jit"] and "by XLA"]
    told = "TensorFlow {}, {}, {} mode".format(versions["tensorflow"], named, found["mode"])
    return ", ".join([told] + [each for each in more if each])


def windows(founds):
    """The table of windows; over its bar a figure says so."""
    head = ["stack"] + ABOVE + ["ms", "over the floor with additions", "its quartiles"]
    head += ["over the floor without additions", "over K bare steps", "a mini-step without an update, over a bare step"]
    rows = []
    for found in founds:
        for each in [one for one in found.get("time", []) if "ways" in one]:
            bars = BARS.get(each["model"], {}) if each["steps"] > 1 else {}
            for name, values in each["ways"].items():
                if name in NOT_WAYS:
                    continue
                cells = [stack_of(found), each["model"], each["optimizer"], each["steps"], TITLES[name]]
                cells += ["{:.1f}".format(1000 * values["window"][0])]
                cells += [ratio(values["over additions"], bars.get("over additions"))]
                cells += [quartiles(values["over additions"])]
                keys = ("over passes", "over bare", "none over bare")
                rows.append(cells + [ratio(values.get(key), bars.get(key)) for key in keys])
    return markdown(head, rows) if rows else []


def memory(founds):
    head = ["stack"] + ABOVE + ["variables added, in copies of the parameters"]
    head += ["peak above the idle model, MiB", "peak above the bare optimizer's, in copies", "the first step, s"]
    rows = []
    for found in founds:
        for each in found.get("memory", []):
            measured = process_rows(each)
            if not measured or measured[0][0]["way"] != "bare":
                continue
            bare = measured[0][1]
            for run, values in measured:
                way = TITLES[run["way"]] + ("" if run["batch"] == found["batch"] else ", batch {}".format(run["batch"]))
                copies = [(values[key][0] - bare[key][0]) / bare["parameters"][0] for key in ("variables", "peak")]
                cells = [
                    stack_of(found),
                    each["model"],
                    each["optimizer"],
                    each["steps"],
                    way,
                    "{:.2f}".format(copies[0]),
                ]
                cells += ["{:.0f}".format(values["peak"][0] / MIB), "{:.2f}".format(copies[1])]
                rows.append(cells + ["{:.2f}".format(values["first step"][0])])
    return markdown(head, rows) if rows else []


def tables_of_rows(founds):
    head = ["stack", "rows x width", "a mini-step, ms", "over that of the smallest table: bar {}".format(FLAT)]
    head += ["a `scatter_add` over that of the smallest table", "a mini-step over a `scatter_add`"]
    head += ["one of `GradientAccumulator` over a `scatter_add`", "with dense gradients, over a `scatter_add`"]
    rows = []
    for found in founds:
        smallest = {}
        for each in [one for one in found.get("rows", []) if "ways" in one]:
            ways = each["ways"]
            small = smallest.setdefault(each["width"], ways)
            grown = [ways[name]["none"][0] / small[name]["none"][0] for name in ("wrap", "scatter_add")]
            cells = [
                stack_of(found),
                "{rows} x {width}".format(**each),
                "{:.2f}".format(1000 * ways["wrap"]["none"][0]),
            ]
            cells += [against(grown[0], FLAT), "{:.2f}".format(grown[1])]
            told = [ways[name]["none over scatter_add"] for name in ("wrap", "GradientAccumulator", "dense")]
            rows.append(cells + [ratio(each) for each in told])
    return markdown(head, rows) if rows else []


def numbers(founds):
    head = ["stack", "variables", "way", "a mini-step without an update, ms", "over a bare step"]
    head += ["traces (graph mode: operations) in the first windows", "in later windows"]
    rows = []
    for found in founds:
        for each in [one for one in found.get("variables", []) if "ways" in one]:
            for name in [name for name in each["ways"] if name not in NOT_WAYS]:
                values = each["ways"][name]
                cells = [stack_of(found), each["number"], TITLES[name], "{:.2f}".format(1000 * values["none"][0])]
                rows.append(cells + [ratio(values["none over bare"]), each["made"], each["later"]])
    return markdown(head, rows) if rows else []


TABLES = [
    ("Windows", windows),
    ("Memory and start", memory),
    ("Rows of a table", tables_of_rows),
    ("Many variables", numbers),
]


def only(each, ways):
    """What was measured, of these ways and of those that they are compared with."""
    if "ways" in each:
        kept = collections.OrderedDict(one for one in each["ways"].items() if one[0] in NOT_WAYS + tuple(ways))
        return dict(each, ways=kept)
    return dict(each, runs=[run for run in each["runs"] if run["way"] in ("bare",) + tuple(ways)])


def summarize(paths, steps, ways, picture=None):
    """Print the tables of what `--json` has written, for K in `steps` and these ways, and draw the windows."""
    founds = []
    for path in paths:
        with open(path) as file:
            found = json.load(file)
        for part in ("time", "memory"):
            if part in found:
                found[part] = [only(each, ways) for each in found[part] if each["steps"] in steps]
        founds.append(found)
    for title, table in TABLES:
        lines = table(founds)
        if lines:
            print("\n".join([title + ":", ""] + lines + [""]))
    if picture:
        draw(founds, picture)


def draw(founds, path):
    timed = [found for found in founds if any("ways" in each for each in found.get("time", []))]
    models = sorted({each["model"] for found in timed for each in found["time"]}, reverse=True)
    drawn, places = figure(len(models))
    for place, model in zip(places, models):
        for number, found in enumerate(timed):
            for each in [one for one in found["time"] if one["model"] == model and "ways" in one]:
                there = [name for name in TITLES if name in each["ways"] and name not in NOT_WAYS]
                medians, low, high = zip(*[each["ways"][name]["over additions"] for name in there])
                spreads = [[m - a for m, a in zip(medians, low)], [b - m for m, b in zip(medians, high)]]
                at = [list(TITLES).index(name) + 0.8 * number / len(timed) for name in there]
                label = ", ".join(stack_of(found).split(", ")[:2])
                place.errorbar(
                    at, medians, yerr=spreads, fmt="o", markersize=4, color="C{}".format(number), label=label
                )
        timed_ways = {name for found in timed for each in found["time"] for name in each.get("ways", ())}
        names = [name for name in TITLES if name in timed_ways and name not in NOT_WAYS]
        place.axhline(1.0, color="grey", linestyle=":")
        place.set_xticks([list(TITLES).index(name) + 0.4 for name in names])
        place.set_xticklabels(names, rotation=30, ha="right", fontsize=8)
        place.set_ylabel("time over the floor with additions")
        place.set_title(
            model + ": a window against the floor (dotted);\nlower is faster, bars are quartiles", fontsize=9
        )
        place.legend(fontsize=7)
    save(drawn, path)
