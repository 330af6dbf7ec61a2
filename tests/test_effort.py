"""The duty cycle of sweeps by hand: one after another, with a pause, side by side, on two machines."""

import pandas as pd
import pytest

from mfulab.report.effort import effort


def rows(*runs, hardware="machine"):
    """Runs as (second of the start, length, measured)."""
    return pd.DataFrame(
        {
            "hardware": hardware,
            "started_at": [f"2026-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}+00:00" for at, _, _ in runs],
            "process_s": [length for _, length, _ in runs],
            "measured_s": [measured for _, _, measured in runs],
        }
    )


def test_what_lies_between_runs_counts():
    found = effort(rows((0, 8.0, 6.0), (10, 10.0, 9.0)))
    assert (found.runs, found.wall_s, found.measured_s) == (2, 20, 15)
    assert found.duty_percent == 75


def test_a_pause_does_not():
    assert effort(rows((0, 10.0, 6.0), (3600, 10.0, 6.0))).wall_s == 20


def test_two_devices_side_by_side_have_twice_the_time():
    assert effort(rows((0, 20.0, 15.0), (0, 20.0, 15.0), (20, 20.0, 15.0), (20, 20.0, 15.0))).duty_percent == 75


def test_starts_in_whole_seconds_are_no_overlap():
    assert effort(rows((0, 10.4, 9.0), (10, 9.6, 9.0))).wall_s == pytest.approx(19.6)


def test_short_runs_in_one_second_are_no_overlap():
    assert effort(rows((0, 0.3, 0.2), (0, 0.3, 0.2), (0, 0.3, 0.2), (5, 1.0, 0.5))).wall_s == 6


def test_machines_work_at_the_same_time():
    both = pd.concat([rows((0, 10.0, 5.0)), rows((0, 10.0, 10.0), hardware="other")])
    assert effort(both).duty_percent == 75


@pytest.mark.parametrize("bad", [{"started_at": ""}, {"process_s": None}, {"measured_s": None}, {"started_at": "soon"}])
def test_rows_without_a_time_are_left_out(bad):
    assert effort(rows((0, 10.0, 5.0)).assign(**bad)) is None
    assert effort(pd.concat([rows((0, 10.0, 5.0)), rows((0, 10.0, 5.0)).assign(**bad)])).runs == 1
