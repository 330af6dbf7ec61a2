"""The time series: a separate process that writes a line each interval until its input is closed.

A thread would take the interpreter's lock from steps that are bound by launches. CSV goes to standard output. Run as
`python -m mfulab.device.samplers.poller cpu PID CORES SECONDS` or `… gpu PID UUID SECONDS`.
"""

import csv
import select
import sys
import time
from collections.abc import Callable
from typing import TextIO

from mfulab.device import vendors

INTERVAL_S = 0.2
Line = dict[str, float | None]
Probe = Callable[[], Line]


def cpu_probe(pid: int, cores: float) -> Probe:
    """Reads the CPU since the previous call: process `pid`'s share of `cores`, every process's, the hypervisor's."""
    import psutil

    from mfulab.device.cpu import system_seconds

    process = psutil.Process(pid)
    before: dict[str, float] = {}

    def probe() -> Line:
        own, system = process.cpu_times(), system_seconds()
        now = {"wall": time.monotonic(), "own": own.user + own.system, "busy": system.busy, "total": system.total}
        if system.steal is not None:
            now["steal"] = system.steal
        passed = {key: value - before[key] for key, value in now.items()} if before else {}
        before.update(now)

        def share(part: str, whole: float | None) -> float | None:
            return 100 * passed[part] / whole if part in passed and whole else None

        return {
            "utilization_percent": share("own", cores * passed.get("wall", 0.0)),
            "system_utilization_percent": share("busy", passed.get("total")),
            "steal_percent": share("steal", passed.get("total")),
            "process_memory_bytes": process.memory_info().rss,
        }

    probe()
    return probe


def poll(probe: Probe, wait: Callable[[], bool], output: TextIO, now: Callable[[], float] = time.monotonic) -> None:
    """Writes a line of `probe` after each `wait`, until `wait` says that it is over, by the monotonic clock."""
    writer = None
    while not wait():
        line = {"monotonic_s": f"{now():.3f}", **probe()}
        if writer is None:
            writer = csv.DictWriter(output, list(line))
            writer.writeheader()
        writer.writerow(line)
        output.flush()


def _input_closed(interval_s: float) -> bool:
    """Waits an interval; true once the parent has closed our input, by intent or by dying."""
    ready, _, _ = select.select([sys.stdin], [], [], interval_s)
    return bool(ready) and not sys.stdin.read(1)


def main(arguments: list[str]) -> None:
    """`cpu PID CORES SECONDS` or `gpu PID UUID SECONDS`."""
    kind, pid, what, interval_s = arguments
    probe = cpu_probe(int(pid), float(what)) if kind == "cpu" else vendors.of(what).probe(what, int(pid))
    poll(probe, lambda: _input_closed(float(interval_s)), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
