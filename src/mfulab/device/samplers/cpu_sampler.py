"""CPU utilization of the process, its cgroup and the machine; steal and throttling; page faults;
energy."""

import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from mfulab.core.said import Said
from mfulab.device import system
from mfulab.device.cpu import cgroup_cpu_seconds, system_seconds
from mfulab.device.samplers.reading import Reading, Readings, Watched, energy, sampler

PROCESS = "process CPU time ÷ (wall × cores that its threads fill)"
SYSTEM = "/proc/stat, the CPUs that this process may use"
CGROUP = "cgroup CPU accounting"
UNREPORTED = {
    SYSTEM: Said("no_tick"),
    CGROUP: Said("no_cgroup"),
}
RAPL = "RAPL package counters"  # available on bare metal, but not in virtual machines


# Running totals: seconds, and counts of context switches and minor page faults. None if not
# reported.
Counters = dict[str, float | None]


@sampler
def cpu_sampler(cores: float) -> Watched:
    """CPU utilization of this process, where 100 % means that all of `cores` were busy (or
    spinning) all the time."""
    begin = counters()
    yield
    return between(begin, counters(), cores)


def counters() -> Counters:
    """Current values of all counters."""
    every, own, (used, throttled) = (
        system_seconds(),
        resource.getrusage(resource.RUSAGE_SELF),
        cgroup_cpu_seconds(),
    )
    return {
        "wall_s": time.perf_counter(),
        "process_s": own.ru_utime + own.ru_stime,
        "children_s": children_seconds(),
        **{
            "system_busy_s": every.busy,
            "system_steal_s": every.steal,
            "system_total_s": every.total,
        },
        **{"cgroup_used_s": used, "cgroup_throttled_s": throttled},
        **{
            "voluntary_switches": own.ru_nvcsw,
            "involuntary_switches": own.ru_nivcsw,
            "page_faults": own.ru_minflt,
        },
    }


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

    def passed(name: str) -> float | None:
        before = begin[name]
        after = end[name]
        if before is None or after is None:
            return None
        return after - before

    wall, own, children = (passed(name) or 0.0 for name in ("wall_s", "process_s", "children_s"))
    if wall <= 0:
        raise ValueError(f"a window of {wall} s")
    total = passed("system_total_s")
    busy = passed("system_busy_s")
    used = passed("cgroup_used_s")
    others = None
    if busy is not None:  # may be below 0: the system counts ticks of 10 ms, getrusage is finer
        others = max(0.0, busy - own - children)
    stopped = passed("cgroup_throttled_s")
    # Linux adds up the throttled time of all CPUs, so it may exceed the wall time: the share is of
    # the CPU time that was wanted.
    wanted = None
    if used is not None and stopped is not None:
        wanted = used + stopped
    readings: Readings = {}
    for name, part, whole, source in (
        ("utilization_percent", own, wall * cores, f"{PROCESS}: {cores:g}"),
        ("system_utilization_percent", busy, total, SYSTEM),
        ("other_processes_percent", others, total, SYSTEM),
        ("steal_percent", passed("system_steal_s"), total, SYSTEM),
        ("cgroup_utilization_percent", used, wall * cores, CGROUP),
        ("throttled_percent", stopped, wanted, CGROUP),
    ):
        readings[name] = _share(part, whole, source, wall)
    for name in ("voluntary_switches", "involuntary_switches", "page_faults"):
        readings[f"{name}_per_s"] = Reading(
            (passed(name) or 0) / wall, "1/s", "getrusage, all threads", wall
        )
    return readings


def _share(part: float | None, whole: float | None, source: str, wall: float) -> Reading:
    """Reading of `part` as a percentage of `whole`; empty, with a reason, if the system does not
    report it."""
    if part is None or whole is None or not (whole or source == CGROUP):
        return Reading(None, "%", source, wall, UNREPORTED.get(source))
    return Reading(100 * part / (whole or 1.0), "%", source, wall)


@sampler
def rapl_sampler(root: Path | None = None, now: Callable[[], float] = time.perf_counter) -> Watched:
    """Energy and mean power of all CPU packages over the window, including what other processes
    used."""
    folders = (root or Path(system.ROOT, "sys/class/powercap")).glob("intel-rapl:*")
    # Sub-domains (cores, DRAM) have a second colon; they are not packages.
    domains = sorted(path for path in folders if path.name.count(":") == 1)
    packages = [path for path in domains if _named(path).startswith("package")]
    refusal = None if packages else Said("no_rapl")

    def microjoules(counter: str) -> list[int]:
        nonlocal refusal
        path = Path()
        try:
            return [int((path := package / counter).read_text()) for package in packages]
        except OSError as error:
            names = {"path": str(error.filename), "error": error.strerror}
            refusal = Said("root_alone_since", names)
        except ValueError:
            refusal = Said("holds_no_number", {"path": str(path)})
        return []

    begin = microjoules("energy_uj")
    began_s = now()
    yield
    end = microjoules("energy_uj")
    window_s = now() - began_s
    # Each counter wraps at its own range, after a minute or more of full load.
    wraps = not refusal and any(after < before for before, after in zip(begin, end, strict=True))
    ranges = microjoules("max_energy_range_uj") if wraps else [0] * len(packages)
    if refusal:
        return energy(None, RAPL, window_s, refusal)
    spent = (
        (after - before) + (after < before) * wrap
        for before, after, wrap in zip(begin, end, ranges, strict=True)
    )
    return energy(sum(spent) / 1e6, RAPL, window_s)


def _named(domain: Path) -> str:
    try:
        return (domain / "name").read_text().strip()
    except OSError:
        return "package"
