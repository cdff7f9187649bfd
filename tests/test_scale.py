"""The model of benchmarks/scale.py against numbers by hand, and the pages against the file of the last measurement."""

import argparse
import json
import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "benchmarks"))

import _shared  # noqa: E402
import exchange  # noqa: E402
import scale  # noqa: E402

pytestmark = pytest.mark.capability("house")


def row(steps, window, bare, sent, sent_bare):
    """A row of a result file: medians, with quartiles that nobody reads."""

    def each(number):
        return [number, number, number]

    seconds = dict(window=each(window), bare=each(bare), ratio=each(window / bare))
    return dict(
        steps=steps,
        seconds=seconds,
        bytes=dict(window=each(sent), bare=each(sent_bare), ratio=each(sent / max(sent_bare, 1))),
    )


@pytest.fixture
def found():
    """Of a machine on which the model holds: 1 GB/s, 1 ms of latency, two cores.

    A mini-step is 4 ms (dense) and 1 ms (embedding), an update 2 and 1 ms, adding up 0.5 and 0.25 ms. Gradients are
    4 MB and 0.5 MB; a window of 4 has 1.5 MB of rows.
    """
    dense = {
        "1": [row(1, 6e-3, 6e-3, 0, 0), row(4, 20e-3, 24e-3, 0, 0)],
        # An exchange is 4 + 2 ms; 16 ms and 2 ms of mini-steps, 2 of the update.
        "2": [row(1, 12e-3, 12e-3, 8e6, 8e6), row(4, 26e-3, 48e-3, 8e6, 32e6)],
    }
    rows = {
        "1": [row(1, 2e-3, 2e-3, 0, 0), row(4, 6e-3, 8e-3, 0, 0)],
        # 0.5 + 2 ms, in a window 1.5 + 2.
        "2": [row(1, 4.5e-3, 4.5e-3, 1e6, 1e6), row(4, 9.5e-3, 18e-3, 3e6, 4e6)],
    }
    workers = {
        number: {
            "dense": dict(parameters=4000000, forward_backward=[4e-3] * 3, windows=dense[number]),
            "embedding": dict(parameters=9, forward_backward=[1e-3] * 3, windows=rows[number]),
        }
        for number in ("1", "2")
    }
    return dict(cores=2, workers=workers)


@pytest.mark.parametrize("workers, dense, rows", [(1, 0, 0), (2, 8, 8), (4, 12, 24), (8, 14, 56)])
def test_what_a_worker_sends(workers, dense, rows):
    assert scale.sent(workers, 8) == dense
    assert scale.sent(workers, 8, gathered=True) == rows


def test_the_time_of_an_exchange():
    # 4 workers send 1.5 times 4 MB each, 6 ms at 1 GB/s, in 6 steps of 1 ms.
    assert scale.exchange(4, 4e6, 1e9, 1e-3) == pytest.approx(12e-3)
    assert scale.exchange(4, 4e6, 1e9, 1e-3, crowd=2.0) == pytest.approx(18e-3)
    assert scale.exchange(4, 4e6, 1e9, 1e-3, gathered=True) == pytest.approx(18e-3)
    assert scale.exchange(1, 4e6, 1e9, 1e-3) == 0


def test_the_time_of_a_window():
    # Mini-step 3, exchange 5, update 2.
    assert scale.bare(4, 3.0, 5.0, 2.0) == 40
    assert scale.accumulated(4, 3.0, 5.0, 2.0) == 19
    assert scale.accumulated(4, 3.0, 5.0, 2.0, adding=0.5) == 21
    assert scale.accumulated(1, 3.0, 5.0, 2.0) == scale.bare(1, 3.0, 5.0, 2.0)


def test_where_nothing_but_the_exchange_takes_time_a_window_takes_one_kth():
    assert scale.accumulated(8, 0.0, 5.0, 0.0) * 8 == scale.bare(8, 0.0, 5.0, 0.0)


@pytest.mark.parametrize("workers, expected", [(1, 1), (2, 1), (3, 1.5), (4, 2)])
def test_workers_that_share_two_cores(workers, expected):
    assert scale.crowding(workers, 2) == expected


def test_the_fit_finds_what_two_exchanges_were_made_of():
    # 2 workers: size / bandwidth + 2 latencies.
    bandwidth, latency = scale.fit((4e6, 4e-3 + 2e-3), (5e5, 5e-4 + 2e-3))
    assert bandwidth == pytest.approx(1e9)
    assert latency == pytest.approx(1e-3)


def test_what_is_taken_from_a_file(found):
    measured = scale.Measured(found)
    assert measured.bandwidth == pytest.approx(1e9)
    assert measured.latency == pytest.approx(1e-3)
    assert measured.mini_step == {"dense": 4e-3, "embedding": 1e-3}
    assert measured.update == pytest.approx({"dense": 2e-3, "embedding": 1e-3})
    # (26 - 12 - 3 * 4) / 4 ms, and (9.5 - 4.5 - 3 * 1 - 1) / 4 for 1 MB of rows more.
    assert measured.adding == pytest.approx({"dense": 0.5e-3, "embedding": 0.25e-3})
    assert measured.adding_alone("dense") == pytest.approx(0.5e-3)


def test_what_wrap_adds_where_both_windows_add(found):
    rows = found["workers"]["2"]["dense"]["windows"]
    # 4 mini-steps of 4.5 ms more.
    rows[:] = [rows[1], row(8, 44e-3, 96e-3, 8e6, 64e6)]
    assert scale.Measured(found).adding["dense"] == pytest.approx(0.5e-3)


def test_three_workers_by_hand(found):
    measured = scale.Measured(found)
    # 4/3 of 4 MB at 1 GB/s and 1.5 workers a core, 4 steps of 1 ms; 6 ms of mini-step and 3 of update.
    assert measured.predicted(3, "dense") == pytest.approx(8e-3 + 4e-3 + 6e-3 + 3e-3)
    assert measured.predicted(3, "dense", 1) == measured.predicted(3, "dense")
    assert measured.predicted(3, "dense", 4) == pytest.approx(12e-3 + 4 * 6.75e-3 + 3e-3)
    # Twice 1.5 MB of rows.
    assert measured.predicted(3, "embedding", 4) == pytest.approx(4.5e-3 + 4e-3 + 4 * 1.875e-3 + 1.5e-3)


def test_what_was_fitted_is_no_prediction(found):
    measured = scale.Measured(found)
    assert [measured.fitted(2, "dense", steps) for steps in (None, 1, 4, 8)] == [True, True, True, False]
    assert not measured.fitted(3, "dense", None)
    assert all(predicted >= 0 and seconds > 0 for _, _, _, predicted, seconds in measured.rows())
    # Where the model holds nothing is off.
    assert [line[3] for line in measured.rows()] == pytest.approx([line[4] for line in measured.rows()])


def test_a_network_that_is_the_limit(found):
    options = argparse.Namespace(megabytes=None, mini_step=None, update=None, latency=0.0, steps=[4])
    scale.fill(options, scale.Measured(found))
    # 4 MB on 2 workers at 0.032 Gbit/s: 1 s.
    exchanged, ratios = scale.ratios(options, 0.032, 2)
    assert exchanged == pytest.approx(1.0)
    assert ratios[4] == pytest.approx((4 * 4.5e-3 + 1 + 2e-3) / (4 * 1.006))


def test_a_mini_step_of_ones_own_has_nothing_of_ours_added(found):
    options = argparse.Namespace(megabytes=None, mini_step=0.25, update=None, latency=0.0, steps=[4])
    scale.fill(options, scale.Measured(found))
    assert (options.mini_step, options.adding, options.megabytes) == (0.25, 0.0, 4.0)
    assert options.update == pytest.approx(2e-3)


def test_the_spread_of_few_and_of_many():
    assert _shared.spread([3.0]) == [3.0, 3.0, 3.0]
    assert _shared.spread([4.0, 1.0, 3.0]) == [3.0, 1.0, 4.0]
    assert _shared.spread(range(9)) == [4.0, 2.0, 6.0]


def page(name):
    with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as file:
        return file.read()


@pytest.fixture(scope="module")
def result():
    with open(scale.RESULT) as file:
        return json.load(file)


# The commands of the page.
@pytest.mark.parametrize("options", ["", "--mini-step 0.2 --update 0.01 --megabytes 400"])
def test_the_page_says_what_the_program_prints(options, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scale.py"] + options.split())
    scale.main()
    printed = capsys.readouterr().out.splitlines()
    assert not [line for line in printed if any(each.isdigit() for each in line) and line not in page("scale.md")]
    assert "scale.py " + options in page("scale.md")


def test_the_page_of_the_exchanges_says_what_the_file_says(result):
    lines = exchange.table(result, "bytes", exchange.BYTES) + exchange.table(result, "seconds", exchange.SECONDS)
    assert not [line for line in lines if line not in page("distributed.md")]


def test_the_bytes_of_three_workers_are_those_of_the_formula(result):
    measured = scale.Measured(result)
    for model in measured.models:
        for steps, line in measured.windows(3, model).items():
            predicted = 3 * scale.sent(3, measured.size(model, steps), model == scale.GATHERED)
            assert predicted == pytest.approx(line["bytes"]["window"][0], rel=0.1)
