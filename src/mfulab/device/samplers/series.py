"""Time series of device readings, written as CSV by a separate process until its stdin is closed.
In a thread, polling would take the GIL from launch-bound steps. Run as `python -m
mfulab.device.samplers.series cpu PID CORES SECONDS` or `… gpu PID UUID SECONDS`."""

import csv
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import psutil

from mfulab.core.files import write_csv
from mfulab.core.parts import drop_none
from mfulab.core.said import Said
from mfulab.device import gpu, is_gpu, vendors
from mfulab.device.cpu import system_seconds
from mfulab.device.samplers.reading import REFUSED_BY_DRIVER, Line, Now, Probe, Reading, Readings

if TYPE_CHECKING:
    import torch

INTERVAL_S = 0.2
SOURCE = "polled each 0.2 s by a process of its own"
# Columns averaged over the window, for which there is no better source. Utilization is left to
# more direct sources.
AVERAGED = {
    "clock_mhz": "MHz",
    "memory_clock_mhz": "MHz",
    "temperature_c": "°C",
    "power_w": "W",
    "device_memory_bytes": "B",
    "other_processes": "",  # the maximum over the polls, not the mean
}
# A mean over fewer samples is not reported.
MINIMUM_SAMPLES = 3


class Series:
    """Time series that is polled from `open` to `close`. `start` and `stop` mark the measured
    window, so that starting the poller disturbs only the warm-up."""

    def __init__(self, device: "torch.device", path: Path, interval_s: float = INTERVAL_S) -> None:
        self._device = device
        self._path = path
        self._interval_s = interval_s
        self._process: subprocess.Popen[bytes] | None = None
        self._began_s = self._ended_s = 0.0
        # times at which steps were in flight: begin and end of each window
        self._inside: list[float] = []

    def open(self) -> "Series":
        """Starts the poller."""
        if is_gpu(self._device):
            what = ["gpu", str(os.getpid()), gpu.uuid_of(self._device)]
        else:
            from mfulab.device.compute import cores_filled

            what = ["cpu", str(os.getpid()), str(cores_filled())]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "mfulab.device.samplers.series",
                    *what,
                    str(self._interval_s),
                ],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        return self

    def polls(self) -> int:
        """Number of complete lines written so far."""
        return len(read_series(self._path))

    def start(self) -> None:
        self._began_s = time.monotonic()  # the poller's clock, and never set
        self._inside = []

    def in_flight(self) -> None:
        self._inside.append(time.monotonic())

    def stop(self) -> Readings:
        self._ended_s = time.monotonic()
        lines = read_series(self._path)
        readings = means(lines, [(self._began_s, self._ended_s)], self._device.type)
        # Between windows the device is idle, and its clock differs.
        working = means(
            lines, list(zip(self._inside[::2], self._inside[1::2], strict=False)), self._device.type
        )
        return readings | {
            name: reading for name, reading in working.items() if reading.value is not None
        }

    def close(self) -> None:
        """Stops the poller and rewrites the series with the column `in_window`."""
        if self._process is None:
            return
        # DataLoader workers may keep the poller's stdin open, so closing it is not enough. Each
        # line is flushed when written, so none is lost.
        self._process.terminate()
        self._process.communicate()
        self._process = None
        lines = read_series(self._path)
        if not lines:
            self._path.unlink(missing_ok=True)
            return
        marked: list[dict[str, object]] = []
        for line in lines:
            stamp = line.pop("monotonic_s") or 0.0
            inside = self._began_s <= stamp <= self._ended_s
            marked.append({"time_s": f"{stamp - self._began_s:.3f}", "in_window": inside, **line})
        write_csv(self._path, marked)


def read_series(path: Path) -> list[Line]:
    """Complete lines that the poller has written so far, with None for empty cells."""
    if not path.exists():
        return []
    text = path.read_text()
    complete = text[: text.rfind("\n") + 1].splitlines()
    return [
        {key: float(cell) if cell else None for key, cell in row.items()}
        for row in csv.DictReader(complete)
    ]


def means(lines: list[Line], spans: list[tuple[float, float]], device: str) -> Readings:
    """Mean of each averaged column over the lines inside the spans; for other processes the
    maximum. Empty for a CPU."""
    if not is_gpu(device):
        return {}
    inside = _lines_inside(lines, spans)
    window_s = sum(end_s - begin_s for begin_s, end_s in spans)
    few = None
    if len(inside) < MINIMUM_SAMPLES:
        few = Said("few_polls", count=len(inside))
    readings: Readings = {}
    for name, unit in AVERAGED.items():
        values = drop_none(line.get(name) for line in inside)
        reason = few
        value = None
        if not values:
            reason = few or REFUSED_BY_DRIVER
        elif few is None and name == "other_processes":
            value = max(values)
        elif few is None:
            value = sum(values) / len(values)
        readings[name] = Reading(value, unit, SOURCE, window_s, reason)
    return readings


def _lines_inside(lines: list[Line], spans: list[tuple[float, float]]) -> list[Line]:
    """Lines whose time lies in one of the spans."""
    inside = []
    for line in lines:
        stamp = line["monotonic_s"] or 0.0
        if any(low <= stamp <= high for low, high in spans):
            inside.append(line)
    return inside


def cpu_probe(pid: int, cores: float) -> Probe:
    """Returns a function that reads CPU use since its previous call: of process `pid` relative to
    `cores`, of all processes, and the steal time."""
    process = psutil.Process(pid)
    before: dict[str, float] = {}

    def probe() -> Line:
        own = process.cpu_times()
        system = system_seconds()
        now = {
            "wall": time.monotonic(),
            "own": own.user + own.system,
            "busy": system.busy,
            "total": system.total,
        }
        if system.steal is not None:
            now["steal"] = system.steal
        passed = {key: value - before[key] for key, value in now.items()} if before else {}
        before.update(now)

        def share(part: str, whole: float | None) -> float | None:
            if part in passed and whole:
                return 100 * passed[part] / whole
            return None

        return {
            "utilization_percent": share("own", cores * passed.get("wall", 0.0)),
            "system_utilization_percent": share("busy", passed.get("total")),
            "steal_percent": share("steal", passed.get("total")),
            "process_memory_bytes": process.memory_info().rss,
        }

    probe()
    return probe


def poll(
    probe: Probe,
    wait: Callable[[], bool],
    output: TextIO,
    now: Now = time.monotonic,
) -> None:
    """Writes a CSV line of `probe` after each call of `wait`, until `wait` returns True. Time
    stamps are monotonic."""
    writer = None
    while not wait():
        line = {"monotonic_s": f"{now():.3f}", **probe()}
        if writer is None:
            writer = csv.DictWriter(output, list(line))
            writer.writeheader()
        writer.writerow(line)
        output.flush()


def _input_closed(interval_s: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], interval_s)
    return bool(ready) and not sys.stdin.read(1)


def main(arguments: list[str]) -> None:
    """Runs the poller with `cpu PID CORES SECONDS` or `gpu PID UUID SECONDS`."""
    kind, pid, what, interval_s = arguments
    probe = (
        cpu_probe(int(pid), float(what))
        if kind == "cpu"
        else vendors.of(what).probe(what, int(pid))
    )
    poll(probe, lambda: _input_closed(float(interval_s)), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
