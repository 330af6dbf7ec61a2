"""Cells that no measurement can have written."""

from datetime import UTC, datetime

import pytest

from mfulab.core.rows import Row, column, impossible, json_column

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Cells(Row):
    loss: float | None = column("Loss.")
    largest_value: float | None = column("Limit of a format.")
    time_s: float | None = column("Time.")
    count: int | None = column("Calls.")
    words: str | None = column("JSON: so begins a description of plain words.")
    parts: str | None = json_column("part → time.")


@pytest.mark.parametrize(
    "cells",
    [
        {"loss": -1.0},
        {"loss": 1e-40},
        {"loss": float("inf")},
        {"largest_value": 1e38},
        {"time_s": float("nan")},
        {"words": "{no JSON"},
        {"parts": '{"a": 1}'},
        {"parts": f'["{"x" * 5000}"]'},
        {"started_at": "2026-06-01T00:00:00+00:00"},
    ],
    ids=str,
)
def test_a_cell_that_a_measurement_may_write_is_possible(cells):
    assert impossible(Cells(**cells), NOW) is None


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({"time_s": -1.0}, "time_s"),
        ({"time_s": 1e-40}, "time_s"),
        ({"time_s": float("inf")}, "time_s"),
        ({"count": 10**400}, "count"),
        ({"words": "x" * 5000}, "words"),
        ({"parts": "{no JSON"}, "parts"),
        ({"started_at": "yesterday"}, "started_at"),
        ({"started_at": "2036-01-01"}, "started_at"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_cell_that_none_can_have_written_is_named(cells, name):
    assert impossible(Cells(**cells), NOW).startswith(f"{name}=")


@pytest.mark.parametrize(
    "started_at", ["0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00", "1969-12-31T23:59:59+00:00"]
)
def test_a_date_that_no_computer_s_clock_tells_is_impossible(started_at):
    """Nor can a figure's axis hold all of them."""
    assert impossible(Cells(started_at=started_at), NOW).startswith(f"started_at={started_at}")
    assert impossible(Cells(started_at="1970-01-01T00:00:00+00:00"), NOW) is None
