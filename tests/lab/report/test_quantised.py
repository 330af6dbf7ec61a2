"""Quantised models: the sentence from their rows, and bars within the intervals."""

import pytest
from support.drawn import step, tables
from support.said import heard

from mfulab.core.language import Texts
from mfulab.lab.report import figures
from mfulab.lab.report.figures import quantised

TEXT = Texts("en", "quantised")


def row(mode: str = "decoding", speed: float = 20.0, batch_size: int = 1, **changes) -> dict:
    """An eager step that moves 80 % of the bandwidth; with `quantisation` one that has fewer
    bits."""
    shape = {"model": "gpt2", "batch_size": batch_size, "sequence_length": 64}
    speeds = {"samples_per_s": speed, "time_s": batch_size / speed, "mbu_percent": 80.0}
    return {**step(mode), **shape, **speeds, "quantisation": "none", **changes}


def fewer(kind: str, speed: float, mode: str = "decoding", batch_size: int = 1, **changes) -> dict:
    own = {
        "execution": f"quantised_{kind}",
        "quantisation": kind,
        "weight_bytes": 125e6,
        "output_error": 0.012,
    }
    return row(mode, speed, batch_size, **{**own, "mbu_percent": 40.0, **changes})


def said(tmp_path, *rows: dict) -> str:
    return quantised.finding(quantised.rows(tables(tmp_path, *rows)), TEXT)


def test_one_scheme_says_what_it_gains_and_costs(tmp_path):
    scheme = fewer("weight_int8", 40.0, "prefill", mbu_percent=40.0)
    told = heard(quantised, tables(tmp_path, row("prefill"), scheme))
    assert {"finding", "of"} == told.keys()
    finding = told["finding"][0]
    assert (finding["factor"], finding["size"]) == (2.0, "0.250")
    assert finding["row"]["error"] == pytest.approx(1.2, rel=0.05)


def test_decoding_has_a_bandwidth_and_unknown_sizes_stay_unknown(tmp_path):
    schemes = fewer("weight_int8", 40.0), fewer("dynamic_int8", 10.0, output_error=0.5)
    told = heard(quantised, tables(tmp_path, row(), *schemes))
    assert told["finding"][0]["size"] == "?"
    assert told["slowest"][0]["factor"] == 0.5
    assert told["slowest"][0]["row"]["quantisation"] == "dynamic_int8"
    bandwidth = told["bandwidth"][0]["row"]
    assert (bandwidth["mbu_percent_before"], bandwidth["mbu_percent"]) == (80, 40)
    assert told["error"][0]["row"]["error"] == 50


def test_schemes_within_the_intervals_are_neither_fast_nor_slow(tmp_path):
    wide = {"time_ci_low_s": 0.01, "time_ci_high_s": 0.3}
    rows = row(time_ci_low_s=0.045, time_ci_high_s=0.055), fewer("weight_int8", 40.0, **wide)
    told = heard(quantised, tables(tmp_path, *rows, fewer("static_int8", 4.0, **wide)))
    assert told.keys() == {"finding_alike", "overlaps", "error", "of"}
    assert told["overlaps"] == [{"count": 2, "total": 2}]
    told = heard(quantised, tables(tmp_path, *rows, fewer("dynamic_int8", 30.0)))
    assert told["finding"][0]["row"]["quantisation"] == "dynamic_int8"


def test_a_bar_within_the_intervals_is_pale_and_the_step_before_is_above(tmp_path):
    wide = {"time_ci_low_s": 0.01, "time_ci_high_s": 0.3}
    rows = row(time_ci_low_s=0.045, time_ci_high_s=0.055), fewer("weight_int8", 40.0, **wide)
    drawn = figures.render("quantised", tables(tmp_path, *rows, fewer("dynamic_int8", 30.0)))
    axes = drawn.figure.axes[0]
    inks = {round(bar.get_width()): bar.get_facecolor()[3] for bar in axes.patches}
    assert inks[25] < inks[33] == inks[50] == 1  # milliseconds
    assert TEXT("within") in [each.get_text() for each in drawn.figure.legends[0].get_texts()]
    first = axes.get_yticklabels()[0].get_text()
    assert first == TEXT("before", precision="fp32")


@pytest.mark.parametrize(("speed", "key"), [(20.0, "finding_alike"), (5.0, "finding_slower")])
def test_equal_or_slower_schemes_are_not_called_faster(tmp_path, speed, key):
    scheme = fewer("static_int8", speed, "prefill", mbu_percent="")
    told = heard(quantised, tables(tmp_path, row("prefill"), scheme))
    assert told.keys() - {"overlaps"} == {key, "of"}
    assert ("overlaps" in told) == (key == "finding_alike")
    assert "nan" not in said(tmp_path, row("prefill"), scheme)


def test_without_the_step_before_there_is_nothing_to_hold_against(tmp_path):
    assert quantised.rows(tables(tmp_path, fewer("weight_int8", 40.0))).empty
    assert quantised.rows(tables(tmp_path, row())).empty
