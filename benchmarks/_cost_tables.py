"""The tables and the picture of cost.py."""

from _shared import figure, markdown, save, spread
from micro_batch import MIB, against

# At most: a window over its floors and over bare steps, and a mini-step without an update over a bare step.
BARS = {
    "dense-25M": {"over additions": 1.05, "over passes": 1.03, "over bare": 0.60, "none over bare": 1.0},
    "convolutional": {"over passes": 1.02, "none over bare": 1.0},
}
# At most: copies of the parameters kept; times over those on the smallest table.
COPIES, FLAT = 1.05, 1.5
TITLES = {
    "alone": "a pass alone",
    "adding": "a pass and the additions",
    "bare": "the bare optimizer",
    "wrap": "`legacyga.wrap`",
    "sum": "`legacyga.wrap` of sums",
    "MySGD": "`legacyga.MySGD`",
    "GradientAccumulator": "`legacyga.GradientAccumulator`",
    "loop": "a plain loop",
    "keras": "Keras 3's own",
    "ga-optimizer": "gradient-accumulator, optimizer",
    "ga-model": "gradient-accumulator, model",
    "runai": "runai",
    "scatter_add": "`scatter_add`",
    "dense": "`legacyga.wrap`, made dense",
    "conditional": "a conditional around the bare update",
    "conditional_adding": "the same, with the additions in its other branch",
}


def milliseconds(values):
    return "-" if values is None else "{:.2f}".format(1000 * values[0])


def ratio(values, bar=None):
    if values is None:
        return "-"
    return "{:.2f}".format(values[0]) if bar is None else against(values[0], bar)


def quartiles(values):
    return "-" if values is None else "{:.2f} to {:.2f}".format(*values[1:])


def lines_of_missing(missing):
    return ["not measured: {} ({})".format(TITLES.get(name, name), why) for name, why in missing.items()]


def with_bars(head, bars):
    return ["{}: bar {:.2f}".format(title, bars[key]) if key in bars else title for title, key in head]


def time_tables(each):
    bars = BARS.get(each["model"], {}) if each["steps"] > 1 else {}
    windows, mini_steps = [], []
    for name, found in each["ways"].items():
        if name in ("alone", "adding", "bare"):
            # All mini-steps of these are alike.
            mini_steps.append([TITLES[name], "-", milliseconds(found.get("none", found["last"]))] + 6 * ["-"])
            continue
        keys = ("over additions", "over passes", "over bare")
        cells = [cell for key in keys for cell in (ratio(found[key], bars.get(key)), quartiles(found[key]))]
        windows.append([TITLES[name], milliseconds(found["window"])] + cells)
        cells = [milliseconds(found.get(key)) for key in ("first", "none", "last")]
        keys = ("none over bare", "none over pass", "none over adding")
        cells += [ratio(found.get(key), bars.get(key)) for key in keys]
        mini_steps.append([TITLES[name]] + cells + [form(found["last over bare"]) for form in (ratio, quartiles)])
    head = [("over the floor with additions", "over additions"), ("its quartiles", "")]
    head += [("over the floor without additions", "over passes"), ("its quartiles", "")]
    head += [("over K bare steps", "over bare"), ("its quartiles", "")]
    lines = markdown(["a window of K", "ms"] + with_bars(head, bars), windows)
    head = ["a mini-step", "the first, ms", "all without an update, ms", "with an update, ms"]
    head += with_bars([("without an update over a bare step", "none over bare")], bars)
    head += ["over a pass", "over a pass and the additions", "with an update over a bare step", "its quartiles"]
    return lines + [""] + markdown(head, mini_steps)


def report_time(found):
    lines = []
    for each in found["time"]:
        lines += ["", "{model}, {optimizer}, K = {steps}:".format(**each), ""]
        if "error" in each:
            lines.append("not measured: {}".format(each["error"]))
            continue
        lines += time_tables(each) + [""] + lines_of_missing(each["missing"])
    return lines


def process_rows(each):
    """[(run, {figure: its spread over the processes})] of a model and K, those that ran."""
    found = []
    for run in each["runs"]:
        processes = [one for one in run["processes"] if "peak" in one]
        if processes:
            keys = [key for key in processes[0] if isinstance(processes[0][key], (int, float))]
            found.append((run, {key: spread([one[key] for one in processes]) for key in keys}))
    return found


def report_memory(found):
    lines = []
    for each in found["memory"]:
        lines += ["", "{model}, {optimizer}, K = {steps}, each in its own process:".format(**each), ""]
        measured = process_rows(each)
        rows, bare = [], measured[0][1] if measured and measured[0][0]["way"] == "bare" else None
        for run, values in measured:
            cells = [TITLES[run["way"]], run["batch"]]
            if bare is None:
                cells += ["-"] * 3
            else:
                copies = [(values[key][0] - bare[key][0]) / bare["parameters"][0] for key in ("variables", "peak")]
                # At K = 1 the optimizers alone keep nothing.
                bar = COPIES if each["steps"] > 1 else 0.005 if run["way"] in ("wrap", "sum", "MySGD") else 1000.0
                kept = against(copies[0], bar)
                cells += [kept, "{:.0f}".format(values["peak"][0] / MIB), "{:.2f}".format(copies[1])]
            cells += [milliseconds(values.get("import")), "{:.2f}".format(values["first step"][0])]
            rows.append(cells + ["{:.2f} to {:.2f}".format(*values["first step"][1:])])
        head = ["way", "batch", "variables added, in copies of the parameters"]
        head += ["peak above the idle model, MiB", "peak above the bare optimizer's, in copies"]
        head += ["import of legacyga, ms"]
        lines += markdown(head + ["the first step, s", "its quartiles"], rows) + [""]
        missing = {}
        for run in each["runs"]:
            last = run["processes"][-1]
            if "peak" not in last:
                missing[run["way"]] = last.get("missing") or last.get("error")
        lines += lines_of_missing(missing)
    return lines


def report_rows(found):
    head = ["rows", "width", "way", "mini-step, ms"]
    head += ["over that of the smallest table: bar {}".format(FLAT), "over a `scatter_add`", "its quartiles"]
    head += ["a window, ms", "over that of the smallest table", "over K bare steps"]
    rows, missing, smallest = [], {}, {}
    for each in found["rows"]:
        if "error" in each:
            missing["{rows} x {width}".format(**each)] = each["error"]
            continue
        missing.update(each["missing"])
        for name, values in each["ways"].items():
            small = smallest.setdefault((each["width"], name), values)
            grown = [values[key][0] / small[key][0] for key in ("none", "window")]
            bar = [FLAT] if name == "wrap" else []
            cells = [each["rows"], each["width"], TITLES[name], milliseconds(values["none"])]
            cells.append(against(grown[0], bar[0]) if bar else "{:.2f}".format(grown[0]))
            cells += [ratio(values["none over scatter_add"]), quartiles(values["none over scatter_add"])]
            cells += [milliseconds(values["window"]), "{:.2f}".format(grown[1]), ratio(values["window over bare"])]
            rows.append(cells)
    title = "Gradients of {} rows, K = 8, by the size of their table:".format(found["ids"])
    return ["", title, ""] + markdown(head, rows) + [""] + lines_of_missing(missing)


def report_variables(found):
    head = ["variables", "way", "the first window, s", "mini-step without an update, ms", "over a bare step"]
    head += ["its quartiles", "with an update over a bare step"]
    counted = "traces" if found["mode"] == "eager" else "operations"
    rows, missing, later = [], {}, []
    for each in found["variables"]:
        if "error" in each:
            missing["{} variables".format(each["number"])] = each["error"]
            continue
        missing.update(each["missing"])
        for name, values in each["ways"].items():
            cells = [each["number"], TITLES[name], "{:.2f}".format(each["starts"][name]), milliseconds(values["none"])]
            cells += [ratio(values["none over bare"]), quartiles(values["none over bare"])]
            rows.append(cells + [ratio(values["last over bare"])])
        later.append("{}: {} {}, then {} more".format(each["number"], each["made"], counted, each["later"]))
    lines = ["", "Many variables of 16 elements, K = 8:", ""] + markdown(head, rows) + [""]
    lines.append("in the first windows of all ways, by the number of variables: {}".format("; ".join(later)))
    return lines + lines_of_missing(missing)


REPORTS = [("time", report_time), ("memory", report_memory), ("rows", report_rows), ("variables", report_variables)]


def report(found):
    """The lines of all tables."""
    versions = found["versions"] or {}
    said = "{home} in {mode} mode, {0}batches of {batch}, {cores} cores with a load of {load} before, {rounds} rounds"
    which = "" if found["optimizers"] is None else "{} optimizers, ".format(found["optimizers"])
    lines = [said.format(which + ("compiled by XLA, " if found["jit"] else ""), **found)]
    if found["autograph"]:
        lines[0] += ", AutoGraph on"
    lines.append(", ".join("{} {}".format(name, version) for name, version in versions.items()))
    for part, make in REPORTS:
        if part in found:
            lines += make(found)
    return lines


def draw(found, path):
    """Windows over their floor, sizes of tables, and numbers of variables: a place for each that was measured."""
    drawn = [(part, make) for part, make in DRAWN if any("ways" in each for each in found.get(part, []))]
    if not drawn:
        return
    picture, places = figure(len(drawn))
    for place, (part, make) in zip(places, drawn):
        make(place, [each for each in found[part] if "ways" in each])
    save(picture, path)


def draw_time(place, measured):
    names = [name for name in TITLES if any(name in each["ways"] for each in measured)][3:]
    for number, each in enumerate(measured):
        there = [name for name in names if name in each["ways"]]
        medians, low, high = zip(*[each["ways"][name]["over additions"] for name in there])
        spreads = [[m - a for m, a in zip(medians, low)], [b - m for m, b in zip(medians, high)]]
        at = [names.index(name) + number * 0.8 / len(measured) for name in there]
        label = "{model}, {optimizer}, K = {steps}".format(**each)
        place.bar(at, medians, 0.8 / len(measured), align="edge", yerr=spreads, label=label)
    place.axhline(1.0, color="grey", linestyle=":")
    place.set_xticks([number + 0.4 for number in range(len(names))])
    place.set_xticklabels(names, rotation=30, ha="right", fontsize=8)
    place.set_ylabel("time over the floor with additions")
    place.set_title("A window against the floor (dotted)", fontsize=10)
    place.legend(fontsize=7)


def draw_rows(place, measured):
    for width in sorted({each["width"] for each in measured}):
        for name in ("scatter_add", "wrap", "dense"):
            there = [each for each in measured if each["width"] == width and name in each["ways"]]
            values = [1000 * each["ways"][name]["none"][0] for each in there]
            place.plot([each["rows"] for each in there], values, marker="o", label="{}, {}".format(name, width))
    place.set_xscale("log")
    place.set_yscale("log")
    place.set_xlabel("rows of the table (logarithmic)")
    place.set_ylabel("time of a mini-step without an update, ms (logarithmic)")
    place.set_title("A sparse mini-step, by the rows of the table", fontsize=10)
    place.legend(fontsize=7)


def draw_variables(place, measured):
    for name in TITLES:
        there = [each for each in measured if name in each["ways"] and name != "bare"]
        if there:
            values = [each["ways"][name]["none over bare"][0] for each in there]
            place.plot([each["number"] for each in there], values, marker="o", label=name)
    place.set_xscale("log")
    place.set_ylim(bottom=0)
    place.set_xlabel("variables (logarithmic)")
    place.set_ylabel("time over the bare optimizer's step")
    place.set_title("A mini-step without an update, by variables", fontsize=10)
    place.legend(fontsize=7)


DRAWN = [("time", draw_time), ("rows", draw_rows), ("variables", draw_variables)]
