"""Cells that no measurement can have written."""

import re
from datetime import UTC, datetime

import pytest

from mfulab.core.language.sentences import sentence
from mfulab.core.rows import Row, column, impossible, json_column
from mfulab.core.said import Said

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HANGUL = re.compile("[가-힣]")


class Cells(Row):
    loss: float | None = column("Loss.")
    largest_value: float | None = column("Limit of a format.")
    time_s: float | None = column("Time.")
    count: int | None = column("Calls.")
    measured_tflop_s: float | None = column("A device's peak.")
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
    ("cells", "key", "numbers"),
    [
        ({"time_s": -1.0}, "cell_below_zero", {"cell": "time_s", "value": -1.0}),
        ({"time_s": 1e-40}, "cell_out_of_range", {"cell": "time_s", "value": "1e-40"}),
        ({"time_s": float("inf")}, "cell_out_of_range", {"cell": "time_s", "value": "inf"}),
        ({"count": 10**400}, "cell_out_of_range", {"cell": "count", "value": f"1{'0' * 23}"}),
        ({"measured_tflop_s": 0.0}, "cell_no_peak", {"cell": "measured_tflop_s"}),
        ({"words": "x" * 5000}, "cell_too_long", {"cell": "words", "most": 4000}),
        ({"parts": "{no JSON"}, "cell_not_json", {"cell": "parts", "begins": "{no JSON"}),
        ({"started_at": "yesterday"}, "start_no_date", {"started_at": "yesterday"}),
        ({"started_at": "2036-01-01"}, "start_to_come", {"started_at": "2036-01-01"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_cell_that_none_can_have_written_is_named_in_each_language(cells, key, numbers):
    said = impossible(Cells(**cells), NOW)
    assert said.key == key
    assert numbers.items() <= said.numbers.items()
    english, korean = (sentence(said.key, said.numbers, language) for language in ("en", "ko"))
    named = numbers.get("cell", "started_at")
    assert english.startswith(f"{named}=")
    assert korean.startswith(f"{named}=")
    assert HANGUL.search(korean)
    assert not HANGUL.search(english)


@pytest.mark.parametrize(
    "started_at", ["0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00", "1969-12-31T23:59:59+00:00"]
)
def test_a_date_that_no_computer_s_clock_tells_is_impossible(started_at):
    """Nor can a figure's axis hold all of them."""
    said = impossible(Cells(started_at=started_at), NOW)
    assert said == Said("start_before_1970", {"started_at": started_at})
    assert impossible(Cells(started_at="1970-01-01T00:00:00+00:00"), NOW) is None
