"""Kernel-busy arithmetic by hand and by law, on traces written as torch.profiler writes them."""

import gzip
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trace_events import TRACE

from mfulab.tracing import trace
from mfulab.tracing.trace import Activity, activities, gaps, kernel_table, shares, traced_span, union


def test_by_hand():
    readings = shares(activities(TRACE), traced_span(TRACE), steps=2)
    values = {name: reading.value for name, reading in readings.items()}
    assert values == {
        "kernel_busy_percent": pytest.approx(70),
        "compute_busy_percent": pytest.approx(40),
        "copy_percent": pytest.approx(10),
        "communication_percent": pytest.approx(20),
        "idle_percent": pytest.approx(30),
        "launch_gaps_per_step": 1.5,
        "launch_gap_s": pytest.approx(10e-6),
    }
    assert readings["kernel_busy_percent"].window_s == pytest.approx(100e-6)


def test_the_edges_count_as_idle():
    one = [Activity("compute", "k", 40, 60)]
    assert shares(one, (0, 100), 1)["kernel_busy_percent"].value == pytest.approx(20), "not 100 %"


def test_what_runs_outside_the_steps_does_not_count():
    assert shares([Activity("compute", "k", -50, 10)], (0, 100), 1)["kernel_busy_percent"].value == pytest.approx(10)


def test_no_kernel_is_all_idle():
    values = shares([], (0, 100), 1)
    assert (values["kernel_busy_percent"].value, values["idle_percent"].value) == (0, 100)


intervals = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30)).map(lambda pair: (pair[0], sum(pair))))
kinds = st.sampled_from(["compute", "copy", "communication"])


@given(intervals)
def test_union_covers_the_same_points_once(pairs):
    merged = union(pairs)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(merged))
    assert {p for b, e in pairs for p in range(b, e)} == {p for b, e in merged for p in range(b, e)}


@given(intervals)
def test_busy_and_gaps_fill_the_span(pairs):
    busy = union(trace.clip(pairs, (10, 90)))
    assert trace.length(busy) + sum(gaps(busy, (10, 90))) == 80


@given(st.lists(st.tuples(kinds, st.integers(0, 100), st.integers(1, 30))))
def test_the_shares_sum_to_the_whole(parts):
    found = [Activity(kind, "k", begin, begin + duration) for kind, begin, duration in parts]
    values = {name: reading.value for name, reading in shares(found, (0, 100), 1).items()}
    split = ("compute_busy_percent", "copy_percent", "communication_percent")
    assert sum(values[name] for name in split) == pytest.approx(values["kernel_busy_percent"])
    assert values["kernel_busy_percent"] + values["idle_percent"] == pytest.approx(100)


def test_top_kernels():
    rows = kernel_table(
        [Activity("compute", "a", 0, 10), Activity("compute", "b", 10, 40), Activity("compute", "a", 40, 50)]
    )
    assert [(row["kernel"], row["calls"]) for row in rows] == [("b", 1), ("a", 2)]
    assert rows[0]["share_percent"] == pytest.approx(60)
    assert kernel_table([]) == []


def test_load(tmp_path):
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump(TRACE, file)
    assert trace.load(path) == TRACE
    assert traced_span({"traceEvents": []}) is None
