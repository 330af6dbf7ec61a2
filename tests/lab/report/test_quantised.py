"""Quantised models: the sentence from their rows, and a figure in which no text covers another."""

import pytest
from support.drawn import overlaps, tables

from mfulab.core.language import Texts
from mfulab.lab.report import figures
from mfulab.lab.report.figures import quantised

TEXT = Texts("en", "quantised")


def row(mode: str = "decoding", speed: float = 20.0, batch_size: int = 1, **changes) -> dict:
    """An eager step that moves 80 % of the bandwidth; with `quantisation` one that has fewer
    bits."""
    common = {
        "status": "ok",
        "hardware": "here",
        "recorded": "False",
        "model": "gpt2",
        "precision": "fp32",
    }
    step = {
        "mode": mode,
        "workload": mode,
        "batch_size": batch_size,
        "execution": "eager",
        "sequence_length": 64,
    }
    speeds = {"samples_per_s": speed, "time_s": batch_size / speed, "mbu_percent": 80.0}
    return {**common, **step, **speeds, "quantisation": "none", **changes}


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
    assert said(
        tmp_path, row("prefill"), fewer("weight_int8", 40.0, "prefill", mbu_percent=40.0)
    ) == (
        "weights in int8 (from fp32) is fastest: gpt2 runs prefill at batch 1 2.00× as fast, with 0.250× the weights "
        "and an error of 1.2 %."
    )


def test_decoding_has_a_bandwidth_and_unknown_sizes_stay_unknown(tmp_path):
    told = said(
        tmp_path, row(), fewer("weight_int8", 40.0), fewer("dynamic_int8", 10.0, output_error=0.5)
    )
    assert "with ?× the weights" in told
    assert "The slowest is int8, dynamic (from fp32), decoding at batch 1: 0.500×." in told
    assert (
        "Decoding uses 80 % of the bandwidth unquantised and 40 % with weights in int8 (from fp32)."
        in told
    )
    assert told.endswith("int8, dynamic (from fp32) changes the output most, by 50 %.")


def test_schemes_within_the_intervals_are_neither_fast_nor_slow(tmp_path):
    wide = {"time_ci_low_s": 0.01, "time_ci_high_s": 0.3}
    rows = row(time_ci_low_s=0.045, time_ci_high_s=0.055), fewer("weight_int8", 40.0, **wide)
    told = said(tmp_path, *rows, fewer("static_int8", 4.0, **wide))
    assert told.startswith(
        "No scheme is measurably faster: the nearest, weights in int8 (from fp32),"
    )
    assert "2 of 2 cases make no measurable difference." in told
    assert "slowest" not in told
    assert "bandwidth" not in told
    assert "int8, dynamic (from fp32) is fastest" in said(
        tmp_path, *rows, fewer("dynamic_int8", 30.0)
    )


def test_a_bar_within_the_intervals_is_pale_and_its_format_is_named(tmp_path):
    wide = {"time_ci_low_s": 0.01, "time_ci_high_s": 0.3}
    rows = row(time_ci_low_s=0.045, time_ci_high_s=0.055), fewer("weight_int8", 40.0, **wide)
    drawn = figures.render("quantised", tables(tmp_path, *rows, fewer("dynamic_int8", 30.0)))
    axes = drawn.figure.axes[0]
    inks = {round(bar.get_width()): bar.get_facecolor()[3] for bar in axes.patches}
    assert inks[200] < inks[150] == 1
    assert TEXT("within") in [each.get_text() for each in drawn.figure.legends[0].get_texts()]
    assert all("from fp32" in label.get_text() for label in axes.get_yticklabels())


@pytest.mark.parametrize("speed", [20.0, 5.0])
def test_equal_or_slower_schemes_are_not_called_faster(tmp_path, speed):
    told = said(tmp_path, row("prefill"), fewer("static_int8", speed, "prefill", mbu_percent=""))
    assert told.startswith("No scheme is measurably faster: the nearest, int8, static (from fp32),")
    assert "nan" not in told


def test_without_the_step_before_there_is_nothing_to_hold_against(tmp_path):
    assert quantised.rows(tables(tmp_path, fewer("weight_int8", 40.0))).empty
    assert quantised.rows(tables(tmp_path, row())).empty


@pytest.mark.parametrize("language", ["en", "ko"])
def test_every_scheme_fits(tmp_path, language):
    rows = [
        fewer(kind, 10.0 * batch * (1 + place), mode, batch)
        for mode in ("prefill", "decoding")
        for batch in (1, 8)
        for place, kind in enumerate(quantised.ORDER_OF_SCHEMES)
    ]
    base = [row(mode, 20.0 * batch, batch) for mode in ("prefill", "decoding") for batch in (1, 8)]
    drawn = figures.render("quantised", tables(tmp_path, *base, *rows), language)
    assert overlaps(drawn.figure) == []
