"""MFU is formed in one function, OFU in another: where that is broken, every one of the project
is."""

import json
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from mfu.test_roofline import made
from mfulab.cli import jobs, trace_ranks, watch
from mfulab.device.peaks import Peak
from mfulab.device.samplers.reading import Reading
from mfulab.loop.goodput import engines
from mfulab.loop.goodput.ladder import job_of
from mfulab.loop.goodput.pages import Page
from mfulab.loop.interactive.costs import PhaseCost
from mfulab.loop.interactive.peaks import WeightedPeaks
from mfulab.loop.interactive.published import Rate
from mfulab.loop.interactive.row import Site, WindowWork, accounted
from mfulab.measurements.published import PublishedRow
from mfulab.measurements.published.measure import _add_mfu
from mfulab.mfu import account, job
from mfulab.mfu.conventions import OURS
from mfulab.mfu.explain import Denominator, change
from mfulab.mfu.join import profile_columns, reading_columns
from mfulab.mfu.roofline import expected
from mfulab.mfu.step import StepPeaks
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


def of_a_job_s_journals(folder) -> float:
    line = {"ns": 10**10, "spans": {"step": 10**10}, "step": 10}
    facts = {"flops": 2e12, "peak_tflop_s": 10.0}
    head = {"rank": 0, "host": "a", "unix_ns": 0}
    lines = map(json.dumps, (head, {**line, **facts}))
    (folder / "a.jsonl").write_text("\n".join(lines))
    return job_of(folder).row()["mfu_of_steps_percent"]


def of_a_loop(**seen: float) -> account.Shares:
    flops = {(torch.float32, False): 10**12}
    work = WindowWork(PhaseCost(flops, flops), 1, 1.0, Reading(1e12, "", "counted"))
    device = torch.device("cpu")
    peaks = StepPeaks("spec", "bf16", peak_tflop_s=10.0, peak_clock_mhz=2000.0)
    site = Site(torch.float32, device, [device], lambda *_: WeightedPeaks(peaks))
    return accounted(work, site, seen).account.shares


def watched() -> dict[str, object]:
    """A sample of a GPU with a process that measures itself."""
    readings = {
        "tensor_active_percent": Reading(40.0, "%", "GPM"),
        "clock_mhz": Reading(1000.0, "MHz", "NVML"),
    }
    rate = Rate(42, "train.py", "GPU-1", {"bf16": 1e12}, 1.0, 5.0)
    device_peak = Peak(spec=10.0, spec_clock_mhz=2000.0)
    with (
        patch.object(watch, "local_peak", lambda precision: device_peak),
        patch.object(watch, "emulated_here", lambda device: ()),
    ):
        return watch.sample_of("H100", "GPU-1", readings, [rate], 5.0)


def of_an_engine() -> float:
    pages = [Page(at, "vllm", "m", {"flops": at * 1e12}) for at in (1.0, 2.0)]
    return engines.sample_of("url", *pages, None, "bf16", Peak(spec=10.0))["mfu_percent"]


def of_a_cluster_s_job() -> float:
    row = {"device": "NVIDIA H100 80GB HBM3", "gpus": 1, "active_mhz": 500.0}
    jobs._fill(row)
    return row["ofu_percent"]


READ_TOGETHER = SimpleNamespace(ranks=[SimpleNamespace(step_ms=1e3)], flops=1e12, peak_tflop_s=10.0)
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
    "loop": lambda: of_a_loop().mfu_percent,
    "process that is watched": lambda: watched()["processes"][0]["mfu_spec_percent"],
    "device that is watched, counted": lambda: watched()["counted_mfu_percent"],
    "serving engine": of_an_engine,
    "ranks of traces, read together": lambda: trace_ranks._mfu(READ_TOGETHER),
}
OF_OFU = {
    "device that is watched": lambda: watched()["expected_mfu_percent"],
    "job of a cluster": of_a_cluster_s_job,
    "loop": lambda: of_a_loop(tensor_active_percent=40.0, clock_mhz=1e3).expected_mfu_percent,
    "row": lambda: (
        account.read(
            {"effective_precision": "bf16", "time_s": 1.0, "tensor_active_percent": 40.0}
            | {"clock_mhz": 1e3, "peak_clock_mhz": 2e3}
        ).shares.expected_mfu_percent
    ),
}


@pytest.fixture
def broken(monkeypatch):
    """Breaks `of_peak`, wherever it has been imported to."""

    def break_it() -> None:
        changed = (lambda flops, seconds, peak_tflop_s: -1.0).__code__
        monkeypatch.setattr(of_peak, "__code__", changed)

    return break_it


@pytest.mark.parametrize("place", EVERYWHERE)
def test_whoever_breaks_it_breaks_all(place, broken):
    before = EVERYWHERE[place]()
    assert before > 0
    broken()
    assert EVERYWHERE[place]() == -1.0


def test_whoever_breaks_it_breaks_a_job_s_goodput(tmp_path, broken):
    assert of_a_job_s_journals(tmp_path) == pytest.approx(100 * 10 * 2e12 / 10 / 10e12)
    broken()
    assert of_a_job_s_journals(tmp_path) == -1.0


@pytest.mark.parametrize("place", OF_OFU)
def test_whoever_breaks_ofu_breaks_all(place, monkeypatch):
    before = OF_OFU[place]()
    assert before > 0
    monkeypatch.setattr(account.expected_mfu, "__code__", (lambda facts: -1.0).__code__)
    assert OF_OFU[place]() == -1.0
