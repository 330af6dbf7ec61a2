"""The CPU's facts, read from /proc and /sys trees as several machines have them."""

from collections import namedtuple
from pathlib import Path

import pytest
from support.said import numbers

from mfulab.device import cpu, system
from mfulab.device.local_peak import cpu_peak

INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
cpu MHz\t\t: 2700.000
flags\t\t: fpu fma avx2 avx512f amx_bf16 hypervisor
"""


ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: {part}
CPU revision\t: 1
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(system, "ROOT", tmp_path)

    def write(files: dict[str, str]) -> Path:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return tmp_path

    return write


def test_reads_the_first_processor(machine):
    machine({"proc/cpuinfo": INTEL + "\nprocessor\t: 1\nmodel name\t: another\n"})
    facts = cpu.cpu.__wrapped__()
    found = (facts.name, facts.family, facts.model)
    assert found == ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", 6, 143)
    assert facts.virtual
    assert facts.clock_mhz == 2700
    assert cpu.vector_flags(facts.flags) == ("amx_bf16", "avx2", "avx512f", "fma")


@pytest.mark.parametrize(
    ("part", "name"), [("0xd0c", "Arm Neoverse-N1"), ("0xfff", "Arm 0x41 0xfff")]
)
def test_an_arm_core_is_named_by_its_numbers_and_says_neither_clock_nor_cache(machine, part, name):
    machine({"proc/cpuinfo": ARM.format(part=part) + "\n"})
    facts = cpu.cpu.__wrapped__()
    assert (facts.name, facts.vendor, facts.family, facts.model) == (name, "0x41", None, None)
    assert (facts.clock_mhz, facts.last_level_cache_bytes, facts.virtual) == (None, None, None)
    assert cpu.vector_flags(facts.flags) == ("asimd", "asimddp", "asimdhp", "asimdrdm")
    assert numbers(cpu_peak(facts, 2, "fp32").reason, "no_clock_of") == {"chip": name}


CPU_0 = "sys/devices/system/cpu/cpu0"


@pytest.mark.parametrize(
    ("files", "fact", "value"),
    [
        ({"proc/cpuinfo": INTEL.replace(" hypervisor", "")}, "virtual", False),
        ({f"{CPU_0}/cpufreq/cpuinfo_max_freq": "3800000\n"}, "clock_mhz", 3800),
        (
            {f"{CPU_0}/cache/index0/size": "32K\n", f"{CPU_0}/cache/index3/size": "105M\n"},
            "last_level_cache_bytes",
            105 << 20,
        ),
    ],
    ids=["bare metal", "the highest clock, not the present one", "the largest cache"],
)
def test_a_fact_of_the_first_processor(machine, files, fact, value):
    machine({"proc/cpuinfo": INTEL} | files)
    assert getattr(cpu.cpu.__wrapped__(), fact) == value


def version_1(group, folder, quota_us):
    """A quota of 100 ms periods as the first version of cgroups has it."""
    told = {"cpu.cfs_quota_us": quota_us, "cpu.cfs_period_us": "100000"}
    files = {f"sys/fs/cgroup/{folder}/{name}": f"{value}\n" for name, value in told.items()}
    return {"proc/self/cgroup": f"4:{group}\n"} | files


POD, OF_POD = {"proc/self/cgroup": "0::/pod/app\n"}, "sys/fs/cgroup/pod"
TWO_CPUS = "200000 100000\n"


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        (POD | {f"{OF_POD}/app/cpu.max": "150000 100000\n"}, 1.5),
        (POD | {f"{OF_POD}/cpu.max": TWO_CPUS}, 2),
        (POD | {f"{OF_POD}/app/cpu.max": "800000 100000\n", f"{OF_POD}/cpu.max": TWO_CPUS}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (version_1("cpu,cpuacct:/app", "cpu,cpuacct/app", "300000"), 3),
        (version_1("cpu:/", "cpu", "-1"), None),
        ({}, None),
    ],
)
def test_cgroup_quota(machine, files, limit):
    machine(files)
    assert cpu.cpu_limit() == limit


@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        (
            {
                "proc/self/cgroup": "0::/app\n",
                "sys/fs/cgroup/app/cpu.stat": "usage_usec 2500000\nnr_throttled 3\nthrottled_usec 500000\n",
            },
            (2.5, 0.5),
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/app\n",
                "sys/fs/cgroup/cpu,cpuacct/app/cpuacct.usage": "2500000000\n",
                "sys/fs/cgroup/cpu,cpuacct/app/cpu.stat": "nr_periods 5\nthrottled_time 500000000\n",
            },
            (2.5, 0.5),
        ),
        (
            {
                "proc/self/cgroup": "2:cpuacct:/app\n1:cpu:/app\n0::/\n",
                "sys/fs/cgroup/unified/cpu.stat": "usage_usec 7000000\n",
                "sys/fs/cgroup/cpuacct/app/cpuacct.usage": "2500000000\n",
                "sys/fs/cgroup/cpu/app/cpu.stat": "nr_periods 5\nthrottled_time 500000000\n",
            },
            (2.5, 0.5),
        ),
        (
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.stat": "usage_usec 7000000\n"},
            (7.0, None),
        ),
        ({}, (None, None)),
    ],
    ids=[
        "version 2",
        "version 1",
        "both, version 2 without a controller",
        "the root cgroup",
        "none",
    ],
)
def test_cgroup_accounting(machine, files, seconds):
    machine(files)
    assert cpu.cgroup_cpu_seconds() == pytest.approx(seconds)


def test_unlimited_memory_is_no_limit(machine):
    limit = {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
    machine({"proc/self/cgroup": "8:memory:/\n"} | limit)
    assert cpu.memory_limit_bytes() is None


def test_two_threads_of_one_core_count_once(machine):
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    machine({topology.format(n): text for n, text in enumerate(("0,2", "1,3", "0,2", "1,3"))})
    assert cpu.physical_cores(frozenset({0, 1, 2, 3})) == 2
    assert cpu.physical_cores(frozenset({0, 2})) == 1


def test_cores_stay_within_the_quota(machine, monkeypatch):
    monkeypatch.setattr(cpu, "logical_cpus", lambda: frozenset(range(8)))
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}
    root = machine(files | {"sys/devices/system/cpu/x": ""})
    assert cpu.usable_cores() == 2
    (root / "sys/fs/cgroup/cpu.max").write_text("50000 100000\n")
    assert cpu.usable_cores() == 1


def test_this_machine():
    assert cpu.cpu().name
    assert 1 <= cpu.usable_cores() <= len(cpu.logical_cpus())


def test_what_decides_the_clock_is_told_where_it_is_readable(machine, monkeypatch):
    monkeypatch.setattr(cpu, "logical_cpus", lambda: frozenset({0, 1}))
    assert (cpu.governor(), cpu.turbo(), cpu.huge_pages()) == (None, None, None)
    cpus = "sys/devices/system/cpu"
    machine({f"{cpus}/cpu{number}/cpufreq/scaling_governor": "powersave\n" for number in (0, 1)})
    machine({f"{cpus}/intel_pstate/no_turbo": "1\n"})
    machine({"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"})
    assert (cpu.governor(), cpu.turbo(), cpu.huge_pages()) == ("powersave", False, "madvise")
    machine({f"{cpus}/cpu1/cpufreq/scaling_governor": "performance\n"})
    machine({f"{cpus}/intel_pstate/no_turbo": "0\n"})
    assert (cpu.governor(), cpu.turbo()) == ("powersave, performance", True)


@pytest.mark.parametrize(("boost", "turbo"), [("1", True), ("0", False)])
def test_amd_tells_turbo_as_boost(machine, boost, turbo):
    machine({"sys/devices/system/cpu/cpufreq/boost": f"{boost}\n"})
    assert cpu.turbo() is turbo


def test_an_idle_machine_is_never_busy_below_zero(monkeypatch):
    """`iowait` may fall, as Linux says, and sums of hundredths are rounded: only busy parts decide
    what is busy."""
    core = namedtuple(
        "scputimes", "user nice system idle iowait irq softirq steal guest guest_nice"
    )
    passed = [0.0, 0.0]

    def cores(percpu):
        idle, waits = passed
        return [
            core(54321.37 + n, 0.13, 12.07, 9000.29 + idle, 3.3 - waits, 0.0, 0.71, 2.19, 5.0, 0.0)
            for n in (0, 1)
        ]

    monkeypatch.setattr("psutil.cpu_times", cores)
    monkeypatch.setattr(cpu, "logical_cpus", lambda: {0, 1})
    first = cpu.system_seconds()
    for tick in range(1, 300):
        passed[:] = tick / 100, tick / 1000
        now = cpu.system_seconds()
        assert now.busy - first.busy == 0
        assert now.total > first.total
    assert first.total == pytest.approx(first.busy + first.steal + 2 * (9000.29 + 3.3))
