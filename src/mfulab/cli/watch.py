"""`mfulab watch`: the ladder of a running device in a terminal, once a second, whoever keeps it busy."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mfulab.hardware import cpu, identity, nvml
from mfulab.interactive.show import bar, ladder_table
from mfulab.samplers.gpm_sampler import GpmSampler
from mfulab.samplers.poller import cpu_probe, cuda_probe
from mfulab.samplers.reading import Reading, Readings

Frame = tuple[Readings, str]


def frames(
    device: str, uuid: str, pid: int | None, wait: Callable[[], None], now: Callable[[], float] = time.perf_counter
) -> Iterator[Frame]:
    """The readings over each `wait`, and a line of further facts, for ever."""
    if device == "cuda":
        probe, gpm = cuda_probe(uuid, None), GpmSampler(nvml.handle_by_uuid(uuid), now)
        while True:
            gpm.start()
            wait()
            readings, line = gpm.stop(), probe()
            rates = line["utilization_percent"]
            readings["utilization_percent"] = Reading(rates, "%", "NVML", reason="refused by the driver")
            yield readings, _gpu_line(line)
    cores = cpu.usable_cores()
    probe = cpu_probe(pid or psutil.Process().pid, cores)
    switches = psutil.cpu_stats().ctx_switches
    while True:
        began = now()
        wait()
        line, passed = probe(), now() - began
        switched, switches = psutil.cpu_stats().ctx_switches - switches, psutil.cpu_stats().ctx_switches
        busy = line["utilization_percent"] if pid else line["system_utilization_percent"]
        whose = f"process {pid}" if pid else "all processes"
        readings = {"utilization_percent": Reading(busy, "%", whose, passed, "no 10 ms tick passed")}
        yield readings, f"{whose} on {cores} cores · {_steal(line)}{switched / passed:.0f} context switches/s"


def picture(name: str, readings: Readings, facts: str) -> Group:
    """One refresh of the terminal."""
    values = {key: reading.value for key, reading in readings.items()}
    missing = {reading.reason for key, reading in readings.items() if reading.value is None and key.startswith("sm_")}
    lines: list[Any] = [Text(name, style="bold"), ladder_table(values, readings), Text(facts)]
    lines += [Text(f"finer rungs: {reason}", style="dim") for reason in missing]
    if "sm_active_percent" not in readings:
        lines += [
            Text(f"{number:>3} {bar(busy)} {busy:3.0f} %")
            for number, busy in enumerate(psutil.cpu_percent(percpu=True))
        ]
        lines.append(Text("busy is not useful: only counted FLOPs tell MFU (mfulab.measure)", style="dim"))
    return Group(*lines)


def run(
    device: str = "auto",
    *,
    pid: int | None = None,
    interval_s: float = 1.0,
    count: int | None = None,
    console: Console | None = None,
) -> int:
    """Runs until interrupted, or for `count` refreshes; returns the exit status, 2 after a mistake."""
    try:
        kind = _checked(device, pid, interval_s)
    except ValueError as error:
        print(f"mfulab: {error}", file=sys.stderr)
        return 2
    gpu = identity.cuda_devices()[0] if kind == "cuda" else None
    name = gpu.name if gpu else cpu.cpu().name
    source = frames(kind, gpu.uuid if gpu else "", pid, lambda: time.sleep(interval_s))
    try:
        with Live(console=console, auto_refresh=False) as live:
            for number, (readings, facts) in enumerate(source, start=1):
                live.update(picture(name, readings, facts), refresh=True)
                if number == count:
                    break
    except KeyboardInterrupt:
        pass
    except psutil.NoSuchProcess:
        print(f"process {pid} has ended")
    return 0


def _checked(device: Any, pid: int | None, interval_s: float) -> str:
    """`cpu` or `cuda`; raises ValueError for what cannot be watched."""
    if interval_s <= 0:
        raise ValueError(f"--interval {interval_s:g}: give seconds above 0")
    if pid is not None and not psutil.pid_exists(pid):
        raise ValueError(f"--pid {pid}: there is no such process")
    try:
        return identity.resolve(device)
    except identity.NoDeviceError as error:
        raise ValueError(str(error)) from error


def _gpu_line(line: dict[str, float | None]) -> str:
    units = {"clock_mhz": "{:.0f} MHz", "power_w": "{:.0f} W", "temperature_c": "{:.0f} °C"}
    parts = [form.format(value) for key, form in units.items() if (value := line[key]) is not None]
    used, others = line["device_memory_bytes"], line["other_processes"]
    if used is not None:
        parts.append(f"{used / 1e9:.1f} GB in use")
    if others is not None:
        parts.append(f"{others:.0f} process(es)")
    return " · ".join(parts)


def _steal(line: dict[str, float | None]) -> str:
    return "" if line["steal_percent"] is None else f"{line['steal_percent']:.1f} % stolen · "
