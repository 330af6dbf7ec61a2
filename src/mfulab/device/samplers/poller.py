"""The time series: a separate process that writes a line each interval until its input is closed.

A thread would take the interpreter's lock from steps that are bound by launches. CSV goes to standard output. Run as
`python -m mfulab.device.samplers.poller cpu PID CORES SECONDS` or `… cuda PID UUID SECONDS`.
"""

import csv
import select
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

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
        now = {
            "wall": time.monotonic(),
            "own": own.user + own.system,
            "busy": system.busy,
            "total": system.total,
            **({} if system.steal is None else {"steal": system.steal}),
        }
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


def cuda_probe(uuid: str, own: int | None) -> Probe:
    """Reads what NVML reports of the GPU `uuid` now; what it refuses is empty. `own` is no "other process"."""
    import pynvml

    from mfulab.device import nvml
    from mfulab.device.samplers.nvml_sampler import field, other_processes

    handle = nvml.handle_by_uuid(uuid)

    def asked(call: Callable[..., Any], *arguments: Any) -> Any:
        return nvml.optional(call, handle, *arguments)

    def probe() -> Line:
        rates, memory = asked(pynvml.nvmlDeviceGetUtilizationRates), asked(pynvml.nvmlDeviceGetMemoryInfo)
        power, instant = asked(pynvml.nvmlDeviceGetPowerUsage), field(handle, pynvml.NVML_FI_DEV_POWER_INSTANT)
        return {
            "utilization_percent": None if rates is None else rates.gpu,
            "memory_utilization_percent": None if rates is None else rates.memory,
            "clock_mhz": asked(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": asked(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
            "power_w": None if power is None else power / 1e3,
            "instant_power_w": None if instant is None else instant / 1e3,  # the other is a mean, on Hopper over 1 s
            "temperature_c": asked(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            "device_memory_bytes": None if memory is None else memory.used,
            "other_processes": other_processes(handle, own)[0],
        }

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
    """`cpu PID CORES SECONDS` or `cuda PID UUID SECONDS`."""
    kind, pid, what, interval_s = arguments
    probe = cpu_probe(int(pid), float(what)) if kind == "cpu" else cuda_probe(what, int(pid))
    poll(probe, lambda: _input_closed(float(interval_s)), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
