"""Readings of a load: real ones on this CPU, and the arithmetic of single readings and polls."""

import itertools
import json
from types import SimpleNamespace

import pytest
from support.said import refused

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.device.samplers.reading import REFUSED_BY_DRIVER, Reading, sampler
from mfulab.measurements.read_utilization import ReadUtilizationConfig
from mfulab.measurements.read_utilization.measure import _run_sampled, measure, polled

LINES = [
    {"monotonic_s": 10 + step / 5, "utilization_percent": 100.0 * (2 < step / 5 < 4)}
    for step in range(40)
]


def test_one_reading_says_something_else_at_each_moment():
    readings = {
        name: reading.value for name, reading in polled(LINES, 12.0, 14.0, 0.2, 0.02).items()
    }
    found = (readings["before_percent"], readings["during_percent"], readings["after_percent"])
    assert found == (0, 100, 0)
    assert readings["polls"] == 10
    assert readings["polled_mean_percent"] == 90  # the last one is stamped as the loop ends


@pytest.mark.parametrize(
    ("lines", "period", "tick", "reason"),
    [
        (LINES, 0.2, 0.5, Said("period_below_tick", {"period": 0.2, "tick": 0.5})),
        (LINES, 3.0, 0.02, Said("no_period_inside", {"period": 3.0, "loop": 2.0})),
        ([], 0.2, 0.02, Said("no_period_inside", {"period": 0.2, "loop": 2.0})),
    ],
)
def test_what_cannot_be_read_is_empty_with_the_reason(lines, period, tick, reason):
    readings = polled(lines, 12.0, 14.0, period, tick)
    assert readings["polls"].value == 0
    for name in ("during_percent", "polled_mean_percent"):
        assert (readings[name].value, readings[name].reason) == (None, reason)


def test_a_real_load_is_read_by_every_counter_of_a_cpu(tmp_path):
    precision = {"name": "fp32", "dtype": "float32"}
    device = {"type": "cpu"}
    config = ReadUtilizationConfig(
        load="duty_50", precision=precision, load_time_s=0.6, polling_period_s=0.05, device=device
    )
    row = measure(config, tmp_path).row
    # About half; a core that is busy with others wakes the load late or lets its work take longer.
    assert 0 < row.truth_percent == row.duty_percent < 100
    assert row.useful_flops == row.flops > 0
    reasons = json.loads(row.reasons)
    found = {name for name in reasons if name.startswith(("nvml", "sm_", "tensor"))}
    assert found == {"nvml_percent", "sm_active_percent", "tensor_active_percent"}
    for name in ("mfulab", "psutil_process", "psutil_machine", "profiler"):
        assert getattr(row, f"{name}_percent") > 0, name
    assert row.polls > 0
    assert (tmp_path / "series.csv").read_text().count("True") > 0
    assert not (tmp_path / "trace.json").exists()


@sampler
def reads(value, source):
    """Stands for a sampler of a GPU's utilization."""
    yield
    return {
        "utilization_percent": Reading(
            value, "%", source, reason=None if value else REFUSED_BY_DRIVER
        )
    }


@pytest.mark.parametrize(("mean", "wanted"), [(40.0, 40.0), (None, 90.0)])
def test_a_mean_over_the_loop_counts_before_a_value_at_its_end(mean, wanted):
    """As in a profiled step; the CPU's own utilization, read for other processes, is never the
    GPU's."""
    polls = itertools.count(10, 10)
    series = reads(1.0, "series")
    series.open, series.polls = lambda: series, lambda: next(polls)
    samplers = [reads(mean, "mean"), reads(90.0, "at end")]
    instruments = SimpleNamespace(on_gpu=True, series=series, samplers=lambda polled: samplers)
    config = ReadUtilizationConfig(
        load="idle", precision={"name": "fp32", "dtype": "float32"}, load_time_s=0.01
    )
    loader = SimpleNamespace(run=lambda seconds: None)
    _, sampled, _, _ = _run_sampled(loader, config, instruments)
    assert sampled["mfulab_percent"].value == wanted


def test_a_format_without_matmuls_is_said(tmp_path):
    config = ReadUtilizationConfig(
        load="steady", precision={"name": "int8", "dtype": "int8"}, device={"type": "cpu"}
    )
    with refused(
        UnsupportedError, "loads_multiply_in", precision="int8", choices="fp64, fp32, bf16, fp16"
    ):
        measure(config, tmp_path)
