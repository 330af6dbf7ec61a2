"""Operators without a matmul: times predicted by bytes, the sentence, and a figure without overlaps."""

import pandas as pd
import pytest
from support.drawn import overlaps

from mfulab.core.language import Texts
from mfulab.report import figures, frames
from mfulab.report.figures import fusion

ENVIRONMENT = {"hardware": "here", "recorded": "False", "device": "cpu", "device_name": "Invented Xeon"}


def row(model: str = "by_hand", execution: str = "eager", time_s: float = 0.08, batch_size: int = 64, **more) -> dict:
    """A step whose operators move 800 MB at 10 GB/s: 80 ms; its input and output are 100 MB: 10 ms."""
    common = {"status": "ok", "hardware": "here", "recorded": "False", "mode": "inference", "precision": "fp32"}
    known = {"flops": 0, "unfused_roofline_time_s": 0.08, "ceiling_gb_s": 10.0, "dtype": "float32"}
    step = {"model": model, "execution": execution, "time_s": time_s, "batch_size": batch_size, "flops_run": "counted"}
    return {**common, **known, **step, **more}


def tables(tmp_path, *rows: dict) -> frames.Tables:
    flops = {"run": "counted", "status": "ok", "least_bytes": 100_000_000}
    for name, lines in (("profile", list(rows)), ("environment", [ENVIRONMENT]), ("flops", [flops])):
        pd.DataFrame(lines).to_csv(tmp_path / f"{name}.csv", index=False)
    return frames.read(tmp_path, fusion.TABLES)[0]


def said(tmp_path, *rows: dict) -> str:
    return fusion.finding(fusion.rows(tables(tmp_path, *rows)), Texts("en", "fusion"))


def test_fusing_spares_the_bytes_between_operators(tmp_path):
    found = fusion.rows(tables(tmp_path, row(), row(execution="compile", time_s=0.02)))
    assert found["predicted_ms"].round(6).tolist() == [80, 10]
    assert said(tmp_path, row(), row(execution="compile", time_s=0.02), row(time_s=1.0, batch_size=1)) == (
        "by_hand takes 80.0 ms eager and 20.0 ms compiled (batch 64): 4.00× apart where its bytes say 8.00×. "
        "At batch 64 the 2 steps take 1.50× the predicted time in the median."
    )


def test_equal_times_and_single_rows(tmp_path):
    assert said(tmp_path, row(), row(execution="compile")).startswith("by_hand takes as long eager as compiled")
    wide = {"time_ci_low_s": 0.01, "time_ci_high_s": 0.1}
    told = said(tmp_path, row(**wide), row(execution="compile", time_s=0.02, **wide))
    assert told.startswith("by_hand takes 80.0 ms eager and 20.0 ms compiled (batch 64), but their intervals overlap;")
    assert said(tmp_path, row(time_s=0.16)) == "At batch 64 the step takes 2.00× the predicted time."


def test_steps_with_matmuls_or_without_bytes_are_not_drawn(tmp_path):
    assert fusion.rows(tables(tmp_path, row(flops=1))).empty
    assert fusion.rows(tables(tmp_path, row(execution="compile", flops_run="unknown"))).empty
    assert fusion.rows(tables(tmp_path, row(mode="training"))).empty


@pytest.mark.parametrize("language", ["en", "ko"])
def test_everything_fits(tmp_path, language):
    names = [f"norm_gelu_{name}" for name in ("by_hand", "in_place", "library", "one_stream", "two_streams")]
    rows = [row(name, mode, 0.01 * n) for n, name in enumerate(names, 1) for mode in fusion.MARKERS]
    drawn = figures.render("fusion", tables(tmp_path, *rows), language)
    assert overlaps(drawn.figure) == []
