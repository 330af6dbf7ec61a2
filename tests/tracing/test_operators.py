"""The traced pass on this CPU, and what a GPU's trace becomes."""

import functools
import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.trace_events import TRACE
from torch.profiler import profile, tensorboard_trace_handler

from mfulab.tracing import operators
from mfulab.tracing.operators import TracedPass, operator_table, trace_readings, trace_steps

CUDA = SimpleNamespace(type="cuda")


class Traced:
    """A profiler that has recorded `trace` and, as kineto's, saves it once."""

    def __init__(self, trace: dict) -> None:
        self.trace, self.saved = trace, False

    def export_chrome_trace(self, path: str) -> None:
        if self.saved:
            raise RuntimeError("Trace is already saved.")
        self.saved = True
        with open(path, "w") as file:
            json.dump(self.trace, file)


def test_operators_are_counted_over_all_traced_steps():
    a = torch.randn(32, 32)
    rows = operator_table(trace_steps(lambda: a @ a, torch.device("cpu"), 3))
    product = next(row for row in rows if row["operator"] == "aten::mm")
    assert (product["calls"], product["flops"]) == (3, 3 * 2 * 32**3)
    assert product["input_shapes"] == "[[32, 32], [32, 32]]"
    assert not [row for row in rows if "mfulab" in str(row["operator"])], (
        "not the pass's own annotation"
    )
    times = [row["self_cpu_time_s"] + row["self_device_time_s"] for row in rows]
    assert times == sorted(times, reverse=True)


def load(path: Path) -> dict:
    return json.loads(
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    )


def test_a_gpus_trace_gives_shares_and_kernels():
    readings, analysis = trace_readings(TracedPass(Traced(TRACE)), CUDA)
    assert readings["kernel_busy_percent"].value == pytest.approx(60)
    assert json.loads(analysis.top_kernels())["gemm"] == pytest.approx(100 * 30 / 80)


def test_tensorboard_s_trace_is_one_of_ours_under_another_name(tmp_path):
    """What torch writes for TensorBoard is read as ours is, and a kept trace has all that such a
    file holds."""
    step = functools.partial(torch.matmul, torch.ones(8, 16), torch.ones(16, 4))
    trace_steps(step, torch.device("cpu"), 2).export(tmp_path / "trace.json.gz")
    handler = tensorboard_trace_handler(str(tmp_path / "runs"))
    with profile(
        record_shapes=True, with_flops=True, profile_memory=True, on_trace_ready=handler
    ) as profiler:
        step()
        profiler.step()
    (written,) = (tmp_path / "runs").glob("*.pt.trace.json")
    ours, theirs = (json.loads(opened(path)) for path in (tmp_path / "trace.json.gz", written))
    assert set(theirs) - {"traceName"} <= set(ours)
    for trace in (ours, theirs):
        products = [event["args"] for event in trace["traceEvents"] if event["name"] == "aten::mm"]
        (shapes,) = {json.dumps(each["Input Dims"]) for each in products}
        assert shapes == "[[8, 16], [16, 4]]"


def opened(path):
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def test_a_trace_that_was_read_can_still_be_exported(tmp_path):
    traced = TracedPass(Traced(TRACE))
    trace_readings(traced, CUDA)
    for name in ("trace.json", "trace.json.gz", "again.json.gz"):
        traced.export(tmp_path / name)
        assert load(tmp_path / name) == TRACE


def test_a_trace_without_kernels_says_so():
    events = [
        event for event in TRACE["traceEvents"] if event.get("cat") not in ("kernel", "gpu_memcpy")
    ]
    for content in ({"traceEvents": events}, {"traceEvents": []}):
        readings, analysis = trace_readings(TracedPass(Traced(content)), CUDA)
        assert analysis is None
        assert readings["kernel_busy_percent"].value is None
        assert str(readings["kernel_busy_percent"].reason).startswith("the trace holds no")


def test_an_untraced_run_says_so():
    assert operators.untraced()["kernel_busy_percent"].reason.key == "not_traced"
