"""MFU is formed in one function: where that is broken, every MFU of the project is."""

import pytest

from mfu.test_roofline import made
from mfulab.measurements.published import PublishedRow
from mfulab.measurements.published.measure import _add_mfu
from mfulab.mfu import job
from mfulab.mfu.conventions import OURS
from mfulab.mfu.explain import Denominator, change
from mfulab.mfu.join import profile_columns, reading_columns
from mfulab.mfu.roofline import expected
from mfulab.mfu.traced import trace_columns
from mfulab.mfu.utilization import of_peak

CEILING = {"computed_tflop_s": 100.0, "measured_tflop_s": 80.0}
RANK = {
    "status": "ok",
    "job": "a",
    "first_step": 1,
    "last_step": 2,
    "time_s": 1.0,
    "flops": 1e13,
    "window_s": 2.0,
}


def published() -> float | None:
    row = PublishedRow(accelerator="NVIDIA H100 SXM", precision="bf16", tflop_s_per_device=400.0)
    _add_mfu(row)
    return row.mfu_percent


def traced() -> dict[str, object]:
    row = {"status": "ok", "device": "NVIDIA H100 80GB HBM3", "time_s": 1.0, "flops": 1e14}
    return trace_columns(
        {**row, "flops_by_format": '{"bf16": 1e14}', "executed_by_format": '{"bf16": 1e14}'}
    )


def of_ranks() -> float:
    rows = [{**RANK, "rank": rank, "peak_tflop_s": 20.0, "mfu_percent": 50.0} for rank in (0, 1)]
    job.joined(rows)
    return rows[0]["job_mfu_percent"]


def profiled() -> dict[str, object]:
    step = {"status": "ok", "time_s": 1.0, "mode": "training", "batch_size": 1}
    counted = {"forward_flops": 1e13, "backward_flops": 2e13, "executed_backward_flops": 2e13}
    return profile_columns(step, counted, CEILING, {}, "cuda")


EVERYWHERE = {
    "profiled step": lambda: profiled()["mfu_percent"],
    "profiled step, HFU": lambda: profiled()["hfu_percent"],
    "load of known utilization": lambda: reading_columns(
        {"useful_flops": 1e13, "window_s": 1.0, "status": "ok"}, CEILING, "cuda"
    )["mfu_percent"],
    "trace": lambda: traced()["mfu_percent"],
    "trace, HFU": lambda: traced()["hfu_percent"],
    "ranks of traces": of_ranks,
    "ranks of a loop": lambda: job.as_job(2 * [job.RankShare(1.0, 1e12, 1e12, 10.0, 10.0)])[
        "mfu_percent"
    ],
    "convention": lambda: (
        change("x", OURS, Denominator("a", 100.0), made(), 1.0, Denominator("a", 100.0)).mfu_percent
    ),
    "published run": published,
    "roofline": lambda: expected(made(), 1e15, 1e12, 2).mfu_percent,
}


@pytest.mark.parametrize("place", EVERYWHERE)
def test_whoever_breaks_it_breaks_all(place, monkeypatch):
    before = EVERYWHERE[place]()
    assert before
    monkeypatch.setattr(of_peak, "__code__", (lambda flops, seconds, peak_tflop_s: -1.0).__code__)
    assert EVERYWHERE[place]() == -1.0
