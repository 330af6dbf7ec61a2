"""The duty cycle of sweeps: with a pause, side by side, out of time, on two machines."""

import itertools
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.lab.report.trust import CLOCK_S, PAUSE_S, duty_cycle


def rows(*runs, hardware="machine"):
    """Runs as (second of the start, length, measured)."""
    return pd.DataFrame(
        {
            "hardware": hardware,
            "started_at": [
                f"2026-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}+00:00"
                for at, _, _ in runs
            ],
            "process_s": [length for _, length, _ in runs],
            "measured_s": [measured for _, _, measured in runs],
        }
    )


def test_what_lies_between_runs_counts():
    found = duty_cycle(rows((0, 8.0, 6.0), (10, 10.0, 9.0)))
    assert (found.runs, found.total_s, found.measured_s) == (2, 20, 15)
    assert found.duty_percent == 75


def test_a_pause_does_not():
    assert duty_cycle(rows((0, 10.0, 6.0), (3600, 10.0, 6.0))).total_s == 20


def test_two_devices_side_by_side_have_twice_the_time():
    found = duty_cycle(
        rows((0, 20.0, 15.0), (0, 20.0, 15.0), (20, 20.0, 15.0), (20, 20.0, 15.0))
    ).duty_percent
    assert found == 75


def test_the_clock_counts_runs_side_by_side_once():
    beside = duty_cycle(rows((0, 20.0, 15.0), (5, 20.0, 15.0), (30, 10.0, 9.0)))
    assert (beside.total_s, beside.clock_s, beside.is_beside) == (55, 40, True)
    alone = duty_cycle(rows((0, 8.0, 6.0), (10, 10.0, 9.0)))
    assert (alone.total_s, alone.clock_s, alone.is_beside) == (20, 20, False)


def test_a_short_overlap_counts_for_as_long_as_it_lasts():
    one_after_another = [(60 * minute, 60.0, 54.0) for minute in range(60)]
    assert duty_cycle(rows(*one_after_another)).duty_percent == 90
    assert duty_cycle(rows(*one_after_another, (1800, 2.0, 1.0))).total_s == 3602


def test_starts_in_whole_seconds_are_no_overlap():
    found = duty_cycle(rows((0, 10.4, 9.0), (10, 9.6, 9.0), (20, 4.0, 3.0))).total_s
    assert found == pytest.approx(24)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 900)), min_size=1, max_size=30))
def test_one_after_another_they_take_from_the_first_start_to_the_last_end(gaps_and_lengths):
    ends = list(itertools.accumulate(gap + length for gap, length in gaps_and_lengths))
    begins = [end - length for end, (_, length) in zip(ends, gaps_and_lengths, strict=True)]
    runs = [
        (math.floor(begin), length, length)
        for begin, (_, length) in zip(begins, gaps_and_lengths, strict=True)
    ]
    found = duty_cycle(rows(*runs)).total_s
    assert found == pytest.approx(ends[-1] - begins[0], abs=1.01 * CLOCK_S)


@given(st.data())
def test_every_run_counts_in_full_and_gaps_up_to_a_pause(data):
    one = st.tuples(st.integers(0, 80_000), st.floats(0.01, 900)).map(lambda run: (*run, run[1]))
    runs = data.draw(st.lists(one, min_size=1, max_size=20))
    total_s, lengths_s = duty_cycle(rows(*runs)).total_s, sum(length for _, length, _ in runs)
    assert (
        lengths_s <= total_s * (1 + 1e-12) <= (lengths_s + PAUSE_S * (len(runs) - 1)) * (1 + 1e-9)
    )
    assert duty_cycle(rows(*data.draw(st.permutations(runs)))).total_s == pytest.approx(total_s)


def test_short_runs_in_one_second_are_no_overlap():
    found = duty_cycle(rows((0, 0.3, 0.2), (0, 0.3, 0.2), (0, 0.3, 0.2), (5, 1.0, 0.5))).total_s
    assert found == pytest.approx(6)


def test_machines_work_at_the_same_time():
    both = pd.concat([rows((0, 10.0, 5.0)), rows((0, 10.0, 10.0), hardware="other")])
    assert duty_cycle(both).duty_percent == 75


def test_a_run_out_of_time_is_no_pause():
    """Its process was ended before it could tell what it had measured."""
    found = duty_cycle(rows((0, 10.0, 8.0), (10, 610.0, None), (620, 10.0, 8.0)))
    assert (found.runs, found.total_s, found.measured_s) == (3, 630, 16)


@pytest.mark.parametrize("bad", [{"started_at": ""}, {"process_s": None}, {"started_at": "soon"}])
def test_rows_without_a_time_are_left_out(bad):
    assert duty_cycle(rows((0, 10.0, 5.0)).assign(**bad)) is None
    found = duty_cycle(pd.concat([rows((0, 10.0, 5.0)), rows((0, 10.0, 5.0)).assign(**bad)])).runs
    assert found == 1
