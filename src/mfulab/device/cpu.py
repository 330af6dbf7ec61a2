"""Describes the CPU and the part of it that this process may use. Reads system files and needs no
heavy imports."""

import functools
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mfulab.device import system

# "CPU implementer" and "CPU part" of /proc/cpuinfo: Linux, arch/arm64/include/asm/cputype.h.
ARM = {
    "0x41 0xd08": "Arm Cortex-A72",
    "0x41 0xd0b": "Arm Cortex-A76",
    "0x41 0xd0c": "Arm Neoverse-N1",
    "0x41 0xd40": "Arm Neoverse-V1",
    "0x41 0xd49": "Arm Neoverse-N2",
    "0x41 0xd4f": "Arm Neoverse-V2",
    "0xc0 0xac3": "Ampere-1",
}


@dataclass(frozen=True)
class Cpu:
    """CPU as seen by this process."""

    name: str
    vendor: str
    family: int | None  # of CPUID, like `model`; None on CPUs other than x86
    model: int | None
    flags: frozenset[str]
    # cpufreq's maximum, else the clock in /proc/cpuinfo: in a virtual machine the nominal one
    clock_mhz: float | None
    clock_source: str
    last_level_cache_bytes: int | None
    virtual: bool | None  # None if the CPU never reports a hypervisor, such as Arm's


@functools.cache
def cpu() -> Cpu:
    """CPU of this machine, as described by /proc and /sys, or by sysctl on macOS."""
    block = (system.text("proc/cpuinfo") or "").split("\n\n")[0]  # of the first processor
    pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in pairs}
    flags = frozenset((facts.get("flags") or facts.get("Features") or _flags_of_macos()).split())
    clock, source = _clock(facts)
    return Cpu(
        name=_cpu_name(facts),
        vendor=_vendor(facts),
        family=_integer(facts.get("cpu family")),
        model=_integer(facts.get("model")),
        flags=flags,
        clock_mhz=clock,
        clock_source=source,
        last_level_cache_bytes=max(caches().values(), default=None),
        virtual=_is_virtual(facts, flags),
    )


def _cpu_name(facts: Mapping[str, str]) -> str:
    named = facts.get("model name") or _arm(facts) or _sysctl("machdep.cpu.brand_string")
    return named or platform.processor() or platform.machine() or "cpu"


def _vendor(facts: Mapping[str, str]) -> str:
    stated = facts.get("vendor_id") or facts.get("CPU implementer")
    return stated or _sysctl("machdep.cpu.vendor") or ""


def _is_virtual(facts: Mapping[str, str], flags: frozenset[str]) -> bool | None:
    """True in a virtual machine; None if the CPU's flags do not say."""
    if "hypervisor" in flags or system.text("sys/hypervisor/type") is not None:
        return True
    if facts and "flags" not in facts:
        return None
    return False


def logical_cpus() -> frozenset[int]:
    """Logical CPUs in this process's affinity mask."""
    return system.affinity() or frozenset(range(os.cpu_count() or 1))


def cpu_limit() -> float | None:
    """Tightest CPU quota, in CPUs, of the cgroups of this process (version 1 or 2). None without a
    quota."""
    limits = []
    for folder in _cgroup_folders("cpu"):
        words: list[str | None] = [*(system.text(folder / "cpu.max") or "").split()]
        if len(words) != 2:  # version 1
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [system.text(folder / name) for name in files]
        quota, period = map(_integer, words)
        if quota and period and quota > 0:  # "max" is parsed as None
            limits.append(quota / period)
    return min(limits, default=None)


def cgroup_cpu_seconds() -> tuple[float | None, float | None]:
    """CPU seconds used by this process's cgroup, and seconds of throttling by its quota. Each is
    None if not reported."""
    counters: dict[str, int] = {}
    for folder in _cgroup_folders("cpu") + _cgroup_folders("cpuacct"):
        lines = (line.split() for line in (system.text(folder / "cpu.stat") or "").splitlines())
        stats = {line[0]: int(line[1]) for line in lines if len(line) == 2}
        if (usage := _integer(system.text(folder / "cpuacct.usage"))) is not None:
            stats["cpuacct.usage"] = usage
        counters = stats | counters  # the process's own folder comes first

    def seconds(scales: Mapping[str, float]) -> float | None:
        for name, scale in scales.items():
            if name in counters:
                return counters[name] * scale
        return None

    used = seconds({"usage_usec": 1e-6, "cpuacct.usage": 1e-9})
    return used, seconds({"throttled_usec": 1e-6, "throttled_time": 1e-9})


def memory_limit_bytes() -> int | None:
    """Tightest memory limit of this process's cgroups in bytes; None without a limit."""
    names = ("memory.max", "memory.limit_in_bytes")
    limits = (
        _integer(system.text(folder / name))
        for folder in _cgroup_folders("memory")
        for name in names
    )
    # Version 1 writes "unlimited" as almost 2**63.
    return min((limit for limit in limits if limit is not None and limit < 1 << 60), default=None)


# Parts of a CPU's time that are not added up. Linux counts guests inside user and nice as well.
NOT_BUSY = ("idle", "iowait", "steal", "guest", "guest_nice")


@dataclass(frozen=True)
class SystemSeconds:
    """Running totals over all processes, in CPU seconds, for the CPUs that this process may use."""

    busy: float
    steal: float | None
    total: float


def system_seconds() -> SystemSeconds:
    """Current totals of the system; `steal` is None if not reported."""
    import psutil

    every = psutil.cpu_times(percpu=True)
    times = [every[number] for number in sorted(logical_cpus()) if number < len(every)] or every
    idle = sum(core.idle + getattr(core, "iowait", 0.0) for core in times)
    steal = None
    if hasattr(times[0], "steal"):
        steal = sum(core.steal for core in times)
    # Adds the busy parts, which never decrease: total - idle may decrease by rounding, which would
    # give a utilization below 0 %.
    busy = 0.0
    for core in times:
        for part, seconds in core._asdict().items():
            if part not in NOT_BUSY:
                busy += seconds
    return SystemSeconds(busy, steal, busy + idle + (steal or 0.0))


def governor() -> str | None:
    """Frequency governor of the CPUs that this process may use, joined by commas if they differ.
    None if not reported."""
    paths = (
        f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor"
        for number in sorted(logical_cpus())
    )
    models = dict.fromkeys(filter(None, (system.text(path) for path in paths)))
    return ", ".join(models) or None


def turbo() -> bool | None:
    """True if turbo clocks are enabled. None if not reported, as in a virtual machine."""
    if off := system.text("sys/devices/system/cpu/intel_pstate/no_turbo"):
        return off == "0"
    boost = system.text("sys/devices/system/cpu/cpufreq/boost")
    if not boost:
        return None
    return boost == "1"


def huge_pages() -> str | None:
    """Setting of transparent huge pages: always, madvise or never. None if not reported."""
    match = re.search(r"\[(\w+)\]", system.text("sys/kernel/mm/transparent_hugepage/enabled") or "")
    return match[1] if match else None


def physical_cores(logical: frozenset[int]) -> int:
    """Number of physical cores behind these logical CPUs. Without a reported topology, each counts
    as a core."""
    siblings = {
        system.text(f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        or str(number)
        for number in logical
    }
    return max(1, len(siblings))


def usable_cores() -> int:
    """Number of physical cores that this process can keep busy under its affinity and quota, at
    least 1. SMT siblings count once."""
    if count := _sysctl("hw.physicalcpu"):
        return int(count)
    return max(1, min(physical_cores(logical_cpus()), int(cpu_limit() or 1 << 30)))


def vector_flags(flags: frozenset[str]) -> tuple[str, ...]:
    """Feature flags that concern vector and matrix units, sorted."""
    wide = re.compile(r"avx\w*|fma|f16c|amx_\w+|sse4_2|asimd\w*|sve\w*|bf16|i8mm|neon")
    return tuple(sorted(filter(wide.fullmatch, flags)))


def _arm(facts: Mapping[str, str]) -> str:
    implementer = facts.get("CPU implementer")
    part = facts.get("CPU part")
    if implementer and part:
        return ARM.get(f"{implementer} {part}", f"Arm {implementer} {part}")
    return ""


def _clock(facts: Mapping[str, str]) -> tuple[float | None, str]:
    if highest := _integer(system.text("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")):
        return highest / 1e3, "cpufreq cpuinfo_max_freq"
    if "cpu MHz" in facts:
        return float(facts["cpu MHz"]), "/proc/cpuinfo; turbo is not reported"
    hertz = _integer(_sysctl("hw.cpufrequency_max"))
    if hertz:
        return (hertz / 1e6, "sysctl")
    return (None, "not reported by this system")


def caches() -> dict[str, int]:
    """Size in bytes of each data cache of the first core, by level: `L1`, `L2`, `L3`."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = {}
    for path in Path(system.ROOT, "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = system.text(path) or ""
        level = system.text(path.with_name("level")) or path.parent.name[5:]
        if (
            system.text(path.with_name("type")) != "Instruction"
            and text
            and text[-1] in units
            and text[:-1].isdigit()
        ):
            sizes[f"L{level}"] = int(text[:-1]) * units[text[-1]]
    if not sizes and system.IS_MACOS:
        named = {"L1": "hw.l1dcachesize", "L2": "hw.l2cachesize", "L3": "hw.l3cachesize"}
        sizes = {name: size for name, key in named.items() if (size := _integer(_sysctl(key)))}
    return dict(sorted(sizes.items()))


def _cgroup_folders(controller: str) -> list[Path]:
    lines = [
        line.split(":", 2)[1:] for line in (system.text("proc/self/cgroup") or "").splitlines()
    ]
    # Each controller belongs to one cgroup version. If both versions are mounted, the other one
    # counts the whole machine.
    mounts = [line for line in lines if controller in line[0].split(",")] or [
        line for line in lines if not line[0]
    ]
    folders = []
    for controllers, path in mounts:
        names = (controllers, controller) if controllers else ("", "unified")
        own = Path(path.lstrip("/"))
        folders += [
            Path(system.ROOT, "sys/fs/cgroup", top, below)
            for top in names
            for below in (own, *own.parents)
        ]
    return folders


def _flags_of_macos() -> str:
    named = {"bf16": "BF16", "asimdhp": "FP16", "i8mm": "I8MM", "asimddp": "DotProd"}
    keys = {"asimd": "AdvSIMD", **{flag: f"FEAT_{name}" for flag, name in named.items()}}
    on_arm = [flag for flag, key in keys.items() if _sysctl(f"hw.optional.arm.{key}") == "1"]
    on_intel = (_sysctl(f"machdep.cpu.{leaf}features") or "" for leaf in ("", "leaf7_"))
    return " ".join((*on_intel, *on_arm)).lower()


def _sysctl(key: str) -> str | None:
    if not system.IS_MACOS:
        return None
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", key], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() or None


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        return None
