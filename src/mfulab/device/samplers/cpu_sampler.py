"""CPU utilization of the process, its cgroup and the machine; steal and throttling; page faults;
energy."""

import resource
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from mfulab.core.said import Said
from mfulab.device import system
from mfulab.device.cpu import cgroup_cpu_seconds, system_seconds
from mfulab.device.samplers.reading import Now, Reading, Readings, Watched, energy, sampler

PROCESS = "process CPU time ÷ (wall × cores that its threads fill)"
SYSTEM = "/proc/stat, the CPUs that this process may use"
CGROUP = "cgroup CPU accounting"
UNREPORTED = {SYSTEM: Said("no_tick"), CGROUP: Said("no_cgroup")}
RAPL = "RAPL package counters"  # available on bare metal, but not in virtual machines


@dataclass(frozen=True)
class Counters:
    """Running totals, or what a window added to them. None if not reported."""

    wall_s: float
    process_s: float
    children_s: float
    system_busy_s: float
    system_total_s: float
    voluntary_switches: int
    involuntary_switches: int
    page_faults: int  # minor ones
    system_steal_s: float | None = None
    cgroup_used_s: float | None = None
    cgroup_throttled_s: float | None = None

    def since(self, begin: "Counters") -> "Counters":
        """Difference to the totals at `begin`."""
        return Counters(
            self.wall_s - begin.wall_s,
            self.process_s - begin.process_s,
            self.children_s - begin.children_s,
            self.system_busy_s - begin.system_busy_s,
            self.system_total_s - begin.system_total_s,
            self.voluntary_switches - begin.voluntary_switches,
            self.involuntary_switches - begin.involuntary_switches,
            self.page_faults - begin.page_faults,
            _difference(self.system_steal_s, begin.system_steal_s),
            _difference(self.cgroup_used_s, begin.cgroup_used_s),
            _difference(self.cgroup_throttled_s, begin.cgroup_throttled_s),
        )


def _difference(after: float | None, before: float | None) -> float | None:
    if after is None or before is None:
        return None
    return after - before


@sampler
def cpu_sampler(cores: float) -> Watched:
    """CPU utilization of this process, where 100 % means that all of `cores` were busy (or
    spinning) all the time."""
    begin = counters()
    yield
    return between(begin, counters(), cores)


def counters() -> Counters:
    """Current values of all counters."""
    system_s = system_seconds()
    own = resource.getrusage(resource.RUSAGE_SELF)
    used_s, throttled_s = cgroup_cpu_seconds()
    return Counters(
        wall_s=time.perf_counter(),
        process_s=own.ru_utime + own.ru_stime,
        children_s=children_seconds(),
        system_busy_s=system_s.busy,
        system_total_s=system_s.total,
        voluntary_switches=own.ru_nvcsw,
        involuntary_switches=own.ru_nivcsw,
        page_faults=own.ru_minflt,
        system_steal_s=system_s.steal,
        cgroup_used_s=used_s,
        cgroup_throttled_s=throttled_s,
    )


def children_seconds() -> float:
    """CPU seconds of this process's descendants, including ended ones: data loaders, the poller,
    compilers."""
    own = psutil.Process()
    ended = own.cpu_times()
    seconds = ended.children_user + ended.children_system
    for child in own.children(recursive=True):
        with suppress(psutil.Error):  # it has ended, or is another user's
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def between(begin: Counters, end: Counters, cores: float) -> Readings:
    """Readings for the interval between two calls of `counters`. Utilization is relative to
    `cores`, the cores that the process's threads fill."""
    spent = end.since(begin)
    wall_s = spent.wall_s
    if wall_s <= 0:
        raise ValueError(f"a window of {wall_s} s")
    filled_s = wall_s * cores
    system_s = spent.system_total_s
    # may be below 0: the system counts ticks of 10 ms, getrusage is finer
    others_s = max(0.0, spent.system_busy_s - spent.process_s - spent.children_s)
    used_s = spent.cgroup_used_s
    throttled_s = spent.cgroup_throttled_s
    # Linux adds up the throttled time of all CPUs, so it may exceed the wall time: the share is of
    # the CPU time that was wanted.
    wanted_s = None
    if used_s is not None and throttled_s is not None:
        wanted_s = used_s + throttled_s

    shares = {
        "utilization_percent": (spent.process_s, filled_s, f"{PROCESS}: {cores:g}"),
        "system_utilization_percent": (spent.system_busy_s, system_s, SYSTEM),
        "other_processes_percent": (others_s, system_s, SYSTEM),
        "steal_percent": (spent.system_steal_s, system_s, SYSTEM),
        "cgroup_utilization_percent": (used_s, filled_s, CGROUP),
        "throttled_percent": (throttled_s, wanted_s, CGROUP),
    }
    counts = {
        "voluntary_switches_per_s": spent.voluntary_switches,
        "involuntary_switches_per_s": spent.involuntary_switches,
        "page_faults_per_s": spent.page_faults,
    }
    readings: Readings = {}
    for name, (part_s, whole_s, source) in shares.items():
        readings[name] = _share(part_s, whole_s, source, wall_s)
    for name, count in counts.items():
        readings[name] = Reading(count / wall_s, "1/s", "getrusage, all threads", wall_s)
    return readings


def _share(part_s: float | None, whole_s: float | None, source: str, wall_s: float) -> Reading:
    """Reading of a part as a percentage of a whole; empty, with a reason, if the system does not
    report it."""
    if part_s is None or whole_s is None or not (whole_s or source == CGROUP):
        return Reading(None, "%", source, wall_s, UNREPORTED.get(source))
    return Reading(100 * part_s / (whole_s or 1.0), "%", source, wall_s)


@sampler
def rapl_sampler(root: Path | None = None, now: Now = time.perf_counter) -> Watched:
    """Energy and mean power of all CPU packages over the window, including what other processes
    used."""
    packages = _packages(root or Path(system.ROOT, "sys/class/powercap"))
    begin = _microjoules(packages, "energy_uj")
    began_s = now()
    yield
    end = _microjoules(packages, "energy_uj")
    window_s = now() - began_s
    spent = _added(packages, begin, end)
    if isinstance(spent, Said):
        return energy(None, RAPL, window_s, spent)
    return energy(sum(spent) / 1e6, RAPL, window_s)


def _packages(root: Path) -> list[Path]:
    """Folders of CPU packages, in order of their names."""
    # Sub-domains (cores, DRAM) have a second colon; they are not packages.
    domains = [path for path in root.glob("intel-rapl:*") if path.name.count(":") == 1]
    return [path for path in sorted(domains) if _named(path).startswith("package")]


def _named(domain: Path) -> str:
    try:
        return (domain / "name").read_text().strip()
    except OSError:
        return "package"


def _microjoules(packages: Sequence[Path], counter: str) -> list[int] | Said:
    """Value of a counter of each package, or the reason why one cannot be read."""
    if not packages:
        return Said("no_rapl")
    values = []
    for package in packages:
        path = package / counter
        try:
            values.append(int(path.read_text()))
        except OSError as error:
            return Said("root_alone_since", path=str(error.filename), error=error.strerror)
        except ValueError:
            return Said("holds_no_number", path=str(path))
    return values


def _added(
    packages: Sequence[Path], begin: list[int] | Said, end: list[int] | Said
) -> list[int] | Said:
    """Microjoules that each package's counter added, or the reason why they are unknown. A counter
    wraps at its own range, after a minute or more of full load."""
    if isinstance(begin, Said):
        return begin
    if isinstance(end, Said):
        return end
    added = [after - before for before, after in zip(begin, end, strict=True)]
    if min(added) >= 0:
        return added
    ranges = _microjoules(packages, "max_energy_range_uj")
    if isinstance(ranges, Said):
        return ranges
    for index, wrap in enumerate(ranges):
        if added[index] < 0:
            added[index] += wrap
    return added
