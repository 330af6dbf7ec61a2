"""MFU is formed in one function: where that is broken, every place that reports MFU is wrong."""

import json

import pytest

from mfulab.interactive.laps import as_job
from mfulab.measurements.published import PublishedRow
from mfulab.measurements.published.measure import _add_mfu
from mfulab.mfu import job
from mfulab.mfu.explain import explain
from mfulab.mfu.roofline import expect
from mfulab.mfu.utilization import of_peak
from mfulab.tables import join, trace_join

H100 = "NVIDIA H100 80GB HBM3"


def reported() -> dict[str, float]:
    """MFU by each place that forms it."""
    flops = {"forward_flops": 1e12, "backward_flops": 2e12, "executed_backward_flops": 2e12}
    ceilings = {"measured_tflop_s": 80.0, "computed_tflop_s": 100.0}
    step = {"status": "ok", "time_s": 0.1, "mode": "training"}
    trace = {
        "status": "ok",
        "device": H100,
        "time_s": 1.0,
        "flops": 1e14,
        **dict.fromkeys(("flops_by_format", "executed_by_format"), json.dumps({"bf16": 1e14})),
    }
    places = {"job": "one", "first_step": 1, "last_step": 2, "window_s": 1.0, "peak_tflop_s": 900.0, "mfu_percent": 9.0}
    ranks = [{**trace, **places, "rank": rank} for rank in range(2)]
    job.joined(ranks)
    published = PublishedRow(accelerator=H100, tflop_s_per_device=400.0, precision="bf16")
    _add_mfu(published)
    rank = {"flops": 1e12, "executed_flops": 1e12, "mfu_percent": 10.0, "tflop_s": 5.0, "seconds": 0.2}
    return {
        "profile": join.profile_columns(step, flops, ceilings, {}, "cuda")["mfu_percent"],
        "traces": trace_join.trace_columns(trace)["mfu_percent"],
        "jobs": ranks[0]["job_mfu_percent"],
        "published": published.mfu_percent or 0.0,
        "explain": explain("gpt2", H100, tokens_per_s=1e5).ours.mfu_percent,
        "roofline": expect("gpt2", H100, modes=["inference"])[0].mfu_percent,
        "loop": as_job([rank, rank])["mfu_percent"],
    }


def test_every_mfu_comes_from_one_function(monkeypatch):
    before = reported()
    assert all(before.values()), before

    def twice(work, seconds, peak, unit=1e12):
        return None if None in (work, seconds, peak) else 200 * work / seconds / peak / unit

    monkeypatch.setattr(of_peak, "__code__", twice.__code__)  # for everyone who imported it
    assert reported() == pytest.approx({name: 2 * value for name, value in before.items()})
