"""The examples run, and print what they promise."""

import os
import re

import homes
import pytest
import skips

import legacyga

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NUMBER = r"([-+.\w]+)"  # also inf and nan
ROW = re.compile(r"^ +(\d\.\d)  (\S.*?)  +([.X]+) +(\d+) +{0} +(\d+) of (\d+)$".format(NUMBER), re.MULTILINE)
ENDING = re.compile(r"^momentum (\d\.\d): weights move by up to {0}; off by: (.+)$".format(NUMBER), re.MULTILINE)


def run(name, *arguments):
    """What the example `name` prints, run as a user would run it, with the legacyga of this process."""
    ours = os.path.abspath(legacyga.__file__).startswith(os.path.join(ROOT, "legacyga", ""))
    return homes.run(os.path.join(ROOT, "examples", name), arguments, [ROOT] if ours else [])


def distances_of(printed):
    """The last line: the distances to the large batch, by what they are of."""
    told, _, distances = printed.splitlines()[-1].partition(": ")
    assert told == "distance to the large batch, relative to how far that one went", printed
    return {name: float(value) for name, value in (each.rsplit(" ", 1) for each in distances.split("; "))}


@pytest.mark.capability("demo and examples")
def test_mysgd_vs_snippet(home):
    graph_homes = [name for name, mode in homes.available() if mode == "graph"]
    if not graph_homes:
        skips.keras_lacks("no Keras with a graph mode is installed, and get_updates needs one")
    name = home.name if home.name in graph_homes else graph_homes[0]
    printed = run("mysgd_vs_snippet.py", "--home", name, "--runs", "3")

    rows = {(row[0], row[1]): row[2:] for row in ROW.findall(printed)}
    endings = {ending[0]: ending[1:] for ending in ENDING.findall(printed)}
    assert len(rows) == 6 and sorted(endings) == ["0.0", "0.9"], printed
    for momentum, (way, distances) in endings.items():
        way = float(way)
        assert way > 0.05, printed  # else a small distance would say nothing

        moved, iterations, distance, results, runs = rows[momentum, "legacyga.MySGD"]
        assert (moved, iterations, results, runs) == ("...X" * 6, "6", "1", "3"), printed
        assert float(distance) < 4e-6 * way, printed
        assert distances.endswith("legacyga.MySGD " + distance), printed

        # How many results the snippet gives, and how far it goes (to NaN, where nothing moves), is chance. This is not.
        moved, iterations, distance, _, _ = rows[momentum, "snippet"]
        assert moved.startswith("X" * 8) and iterations == "24", printed
        assert not float(distance) < 0.1 * way, printed  # "not", for it can be nan
