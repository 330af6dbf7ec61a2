"""Readings: what is missing says why, and what stands in for it says so."""

import math

from mfulab.core.said import as_told
from mfulab.device.samplers.reading import Reading, first_available, missing


def test_a_value_that_is_not_finite_is_missing_with_a_reason():
    reading = Reading(math.nan, "%", "GPM")
    assert reading.value is None
    assert "nan" in str(reading.reason)


def test_the_first_source_with_a_value_wins_and_the_others_are_told():
    strict = missing({"busy_percent": "%"}, "GPM", as_told("not supported"))
    loose = {"busy_percent": Reading(40.0, "%", "NVML", 5.0)}
    chosen = first_available([strict, loose])["busy_percent"]
    assert chosen.value == 40
    assert chosen.origin == "NVML (instead of GPM: not supported) over 5.00 s"


def test_where_nobody_knows_every_reason_is_kept():
    chosen = first_available(
        [
            missing({"busy_percent": "%"}, "GPM", as_told("not supported")),
            missing({"busy_percent": "%"}, "NVML", as_told("no driver")),
        ]
    )["busy_percent"]
    assert chosen.value is None
    assert str(chosen.reason) == "GPM: not supported; NVML: no driver"


def test_zero_is_a_value():
    assert (
        first_available([{"x": Reading(0.0, "%", "a")}, {"x": Reading(1.0, "%", "b")}])["x"].value
        == 0
    )
