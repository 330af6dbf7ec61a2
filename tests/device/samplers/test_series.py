"""The time series: real polls of this process, and the arithmetic over lines."""

import io
import itertools
import os
import signal
import subprocess
import time

import pytest
import torch
from support.nvml_stand_in import Gpu, StandIn
from support.processes import until

from mfulab.device.samplers import series
from mfulab.device.vendors import nvidia, nvml


def test_polls_a_real_process_and_marks_the_window(tmp_path):
    path = tmp_path / "run" / "series.csv"
    made = series.Series(torch.device("cpu"), path).open()
    until(lambda: len(series.read_series(path)) >= 2)
    made.start()
    until(lambda: len(series.read_series(path)) >= 5)
    assert made.stop() == {}
    made.close()
    lines = path.read_text().splitlines()
    assert lines[0].startswith("time_s,in_window,utilization_percent")
    assert ",False," in lines[1]
    assert ",True," in lines[-1]


def test_processes_that_a_loader_forked_meanwhile_do_not_keep_the_poller(tmp_path):
    made = series.Series(torch.device("cpu"), tmp_path / "series.csv").open()
    until(lambda: len(series.read_series(tmp_path / "series.csv")) >= 1)
    poller = made._process
    with subprocess.Popen(["sleep", "60"], pass_fds=[poller.stdin.fileno()]) as loader:
        made.close()
        loader.kill()
    assert poller.returncode == -signal.SIGTERM, "and none had to be killed after a while"


def test_closing_twice_or_unopened_is_harmless(tmp_path):
    made = series.Series(torch.device("cpu"), tmp_path / "series.csv")
    made.close()
    made.open()
    made.close()
    made.close()


def test_a_poll_of_this_process():
    probe = series.cpu_probe(os.getpid(), cores=1)
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    line = probe()
    assert line["utilization_percent"] > 0
    assert line["process_memory_bytes"] > 1 << 20


def test_poll_writes_until_it_is_told():
    output, waits = io.StringIO(), iter([False, False, True])
    series.poll(
        lambda: {"clock_mhz": 1755.0, "power_w": None},
        lambda: next(waits),
        output,
        itertools.count(10).__next__,
    )
    found = output.getvalue().split()
    assert found == ["monotonic_s,clock_mhz,power_w", "10.000,1755.0,", "11.000,1755.0,"]


def test_a_poll_of_a_gpu_leaves_what_is_refused_empty(monkeypatch):
    StandIn(Gpu(uuid="GPU-1", refused={"nvmlDeviceGetPowerUsage"}, processes=[1, 2])).install(
        monkeypatch
    )
    line = nvidia.Nvidia().probe("GPU-1", 1)()
    nvml.why_absent.cache_clear()
    assert (line["power_w"], line["instant_power_w"]) == (None, 650)
    found = (line["clock_mhz"], line["utilization_percent"], line["other_processes"])
    assert found == (1755, 100, 1)


def lines(*clocks: float | None) -> list[dict[str, float | None]]:
    return [
        {"monotonic_s": float(n), "clock_mhz": clock, "other_processes": float(n % 2)}
        for n, clock in enumerate(clocks)
    ]


def test_means_are_of_the_window_only():
    readings = series.means(lines(100, 1000, 1200, 1400, 9), [(1.0, 3.0)], "cuda")
    assert readings["clock_mhz"].value == pytest.approx(1200)
    assert readings["other_processes"].value == 1
    assert readings["power_w"].reason.key == "refused_by_driver"


def test_polls_between_windows_are_in_no_mean_of_the_clock(tmp_path, monkeypatch):
    """The device rests between windows, at a higher clock. Without windows that hold enough polls
    all count."""
    rested = lines(1980, 1400, 1400, 1980, 1400, 1400, 1980)
    monkeypatch.setattr(series, "read_series", lambda path: rested)
    for moments, clock in (
        ((0.5, 2.5, 3.5, 5.5), 1400),
        ((0.5, 1.5), sum(line["clock_mhz"] for line in rested) / 7),
    ):
        now = iter([0.0, *moments, 6.0])
        monkeypatch.setattr(series.time, "monotonic", lambda now=now: next(now))
        polled = series.Series(torch.device("cuda"), tmp_path / "series.csv")
        polled.start()
        for _ in moments:
            polled.in_flight()
        assert polled.stop()["clock_mhz"].value == pytest.approx(clock)


def test_few_polls_are_no_mean():
    readings = series.means(lines(1000, 1200), [(0.0, 5.0)], "cuda")
    assert readings["clock_mhz"].value is None
    assert readings["clock_mhz"].reason.key == "few_polls"


def test_a_half_written_line_is_left_out(tmp_path):
    path = tmp_path / "series.csv"
    path.write_text("monotonic_s,power_w\n1.0,5\n2.0,\n3.0,1")
    found = series.read_series(path)
    assert found == [{"monotonic_s": 1.0, "power_w": 5.0}, {"monotonic_s": 2.0, "power_w": None}]
    assert series.read_series(tmp_path / "none.csv") == []
