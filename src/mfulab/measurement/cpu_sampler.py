"""How busy the CPU was: this process, its cgroup, the machine; what a hypervisor or a quota took; thread switches."""

import resource
import time
from dataclasses import dataclass

import psutil

from mfulab.hardware.cpu import allowed_cpus, cgroup_cpu_seconds
from mfulab.measurement.reading import Reading, Readings

PROCESS = "process CPU time ÷ (wall × CPUs allowed)"
SYSTEM = "/proc/stat, all CPUs"
CGROUP = "cgroup CPU accounting"


@dataclass(frozen=True)
class CpuCounters:
    """Running totals: seconds, and counts of context switches."""

    wall_s: float
    process_s: float
    system_busy_s: float | None
    system_steal_s: float | None
    system_total_s: float | None
    voluntary: int
    involuntary: int
    cgroup_used_s: float | None = None
    cgroup_throttled_s: float | None = None


class CpuSampler:
    """CPU utilization of this process with all its threads, 100 % where every allowed CPU worked for it all the time.

    Threads that spin while they wait count as busy: like the GPU's utilization, it tells that something ran, not what.
    """

    def __init__(self, cpus: float | None = None) -> None:
        self._cpus = cpus or allowed_cpus()
        self._begin: CpuCounters | None = None

    def start(self) -> None:
        self._begin = self.read()

    def stop(self) -> Readings:
        end = self.read()
        if self._begin is None:
            raise RuntimeError("stop() before start()")
        return between(self._begin, end, self._cpus)

    def read(self) -> CpuCounters:
        """The counters now."""
        system = psutil.cpu_times()
        idle = system.idle + getattr(system, "iowait", 0.0)
        steal = getattr(system, "steal", None)
        # Linux counts guests' time inside user and nice as well.
        total = sum(system) - getattr(system, "guest", 0.0) - getattr(system, "guest_nice", 0.0)
        own = resource.getrusage(resource.RUSAGE_SELF)
        used, throttled = cgroup_cpu_seconds()
        return CpuCounters(
            wall_s=time.perf_counter(),
            process_s=own.ru_utime + own.ru_stime,
            system_busy_s=total - idle - (steal or 0.0),
            system_steal_s=steal,
            system_total_s=total,
            voluntary=own.ru_nvcsw,
            involuntary=own.ru_nivcsw,
            cgroup_used_s=used,
            cgroup_throttled_s=throttled,
        )


def between(begin: CpuCounters, end: CpuCounters, cpus: float) -> Readings:
    """The readings between two states of the counters, for a process that may use `cpus` CPUs."""
    wall = end.wall_s - begin.wall_s
    if wall <= 0:
        raise ValueError(f"a window of {wall} s")
    total = _difference(begin.system_total_s, end.system_total_s)
    readings = {
        "utilization_percent": Reading(
            100 * (end.process_s - begin.process_s) / (wall * cpus), "%", f"{PROCESS}: {cpus:g}", wall
        )
    }
    for name, before, after in (
        ("system_utilization_percent", begin.system_busy_s, end.system_busy_s),
        ("steal_percent", begin.system_steal_s, end.system_steal_s),
    ):
        part = _difference(before, after)
        value = None if part is None or not total else 100 * part / total
        reason = "" if value is not None else "not told by this system, or the window is shorter than its 10 ms ticks"
        readings[name] = Reading(value, "%", SYSTEM, wall, reason)
    used = _difference(begin.cgroup_used_s, end.cgroup_used_s)
    stopped = _difference(begin.cgroup_throttled_s, end.cgroup_throttled_s)
    # Linux adds up what each CPU was stopped for: the sum may exceed the wall time, and belongs to the time wanted.
    wanted = None if used is None or stopped is None else used + stopped
    for name, part, whole in (
        ("cgroup_utilization_percent", used, wall * cpus),
        ("throttled_percent", stopped, wanted),
    ):
        value = None if part is None or whole is None else 100 * part / whole if part else 0.0
        reason = "" if value is not None else "this system tells no cgroup CPU accounting"
        readings[name] = Reading(value, "%", CGROUP, wall, reason)
    for name, before, after in (
        ("voluntary_switches_per_s", begin.voluntary, end.voluntary),
        ("involuntary_switches_per_s", begin.involuntary, end.involuntary),
    ):
        readings[name] = Reading((after - before) / wall, "1/s", "getrusage, all threads", wall)
    return readings


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
