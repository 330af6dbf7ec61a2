"""The time series: a process of its own that writes CSV each interval until its input is closed,
and means over it. A thread would take the interpreter's lock from steps that are bound by launches.
Run as `python -m mfulab.device.samplers.series cpu PID CORES SECONDS` or `… gpu PID UUID
SECONDS`."""

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
from mfulab.core.said import Said
from mfulab.device import gpu, is_gpu, vendors
from mfulab.device.cpu import system_seconds
from mfulab.device.samplers.reading import REFUSED_BY_DRIVER, Reading, Readings

if TYPE_CHECKING:
    import torch

INTERVAL_S = 0.2
Line = dict[str, float | None]
Probe = Callable[[], Line]
SOURCE = "polled each 0.2 s by a process of its own"
# Means over the window that nothing else tells better; utilization is left to stricter sources
# where they have it.
AVERAGED = {
    "clock_mhz": "MHz",
    "memory_clock_mhz": "MHz",
    "temperature_c": "°C",
    "power_w": "W",
    "device_memory_bytes": "B",
    "other_processes": "",  # the most in one poll
}
# Fewer samples than this are an anecdote.
MINIMUM_SAMPLES = 3


class Series:
    """A time series polled from `open` to `close`: the poller's start disturbs the warm-up, not
    `start` to `stop`."""

    def __init__(self, device: "torch.device", path: Path, interval_s: float = INTERVAL_S) -> None:
        self._device = device
        self._path = path
        self._interval_s = interval_s
        self._process: subprocess.Popen[bytes] | None = None
        self._began_s = self._ended_s = 0.0
        self._inside: list[
            float
        ] = []  # moments at which steps were in flight: begin and end of each window

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
        """Complete lines so far."""
        return len(read_series(self._path))

    def start(self) -> None:
        self._began_s = time.monotonic()
        self._inside = []  # one clock for all processes, which nobody sets

    def in_flight(self) -> None:
        self._inside.append(time.monotonic())

    def stop(self) -> Readings:
        self._ended_s = time.monotonic()
        lines = read_series(self._path)
        readings = means(lines, [(self._began_s, self._ended_s)], self._device.type)
        # Between windows the device rests, and its clock is another.
        working = means(
            lines, list(zip(self._inside[::2], self._inside[1::2], strict=False)), self._device.type
        )
        return readings | {
            name: reading for name, reading in working.items() if reading.value is not None
        }

    def close(self) -> None:
        """Ends the poller and writes the series again with the column `in_window`."""
        if self._process is None:
            return
        # a loader's processes may hold its input open; each line is there once written
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
    """The poller's complete lines so far; empty cells are None."""
    if not path.exists():
        return []
    text = path.read_text()
    complete = text[: text.rfind("\n") + 1].splitlines()
    return [
        {key: float(cell) if cell else None for key, cell in row.items()}
        for row in csv.DictReader(complete)
    ]


def means(lines: list[Line], spans: list[tuple[float, float]], device: str) -> Readings:
    """Means over the lines inside the spans, and the most other processes seen in one of them."""
    if not is_gpu(device):
        return {}
    inside = []
    for line in lines:
        stamp = line["monotonic_s"] or 0.0
        if any(low <= stamp <= high for low, high in spans):
            inside.append(line)
    window_s = sum(end_s - begin_s for begin_s, end_s in spans)
    few = Said("few_polls", {"count": len(inside)}) if len(inside) < MINIMUM_SAMPLES else None
    readings: Readings = {}
    for name, unit in AVERAGED.items():
        values = [value for line in inside if (value := line.get(name)) is not None]
        reason = few
        if not values:
            reason = reason or REFUSED_BY_DRIVER
        if reason:
            value = None
        elif name == "other_processes":
            value = max(values)
        else:
            value = sum(values) / len(values)
        readings[name] = Reading(value, unit, SOURCE, window_s, reason)
    return readings


def cpu_probe(pid: int, cores: float) -> Probe:
    """Reads the CPU since the previous call: process `pid`'s share of `cores`, every process's, the
    hypervisor's."""
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
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Writes a line of `probe` after each `wait`, until `wait` says that it is over, by the
    monotonic clock."""
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
    """`cpu PID CORES SECONDS` or `gpu PID UUID SECONDS`."""
    kind, pid, what, interval_s = arguments
    probe = (
        cpu_probe(int(pid), float(what))
        if kind == "cpu"
        else vendors.of(what).probe(what, int(pid))
    )
    poll(probe, lambda: _input_closed(float(interval_s)), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
