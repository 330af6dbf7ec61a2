"""Peak of a CPU: physical cores × clock × vector units × lanes × 2, each factor with its source.

In virtual machines the turbo clock is invisible, so a thread may exceed this by a fifth: MFU on a CPU is reported
against the measured ceiling, with this beside it.
"""

from collections.abc import Mapping

from mfulab.device.cpu import Cpu
from mfulab.device.datasheets import table
from mfulab.device.emulation import CPU_UNITS, emulated_by_cpu, usable
from mfulab.device.peaks import Peak, given_peak, how_to_give

_BITS = {"fp64": 64, "fp32": 32}  # that an element takes of a vector


def cpu_peak(cpu: Cpu, cores: int, precision: str, given: Mapping[str, float] | None = None) -> Peak:
    """The computed peak of `cores` physical cores in TFLOP/s (TOP/s for int8), None with the reason where unknown."""
    if given and precision in given:
        return given_peak(given[precision])
    how = how_to_give(precision)
    if precision in ("tf32", "fp8", "fp4"):
        return Peak(None, reason=f"{precision} is a GPU format")
    if cpu.clock_mhz is None:
        return Peak(None, reason=f"the clock of {cpu.name} is not reported; {how}")
    row = next((row for row in table("fma_per_clock_per_core.csv") if _is_of(row, cpu)), None)
    if row is None:
        return Peak(None, reason=f"the vector units of {cpu.name} are in no table here; {how}")
    fma, words, why = _fma_per_clock(cpu, row, precision)
    if fma is None:
        return Peak(None, reason=f"{cpu.name}: {why}")
    peak = cores * cpu.clock_mhz * fma * 2 * 1e-6
    return Peak(
        spec=peak,
        formula=f"{cores} cores × {cpu.clock_mhz:.0f} MHz × {words} × 2",
        source=f"cores: affinity and cgroup; clock: {cpu.clock_source}; units: {row['source']}",
        spec_clock_mhz=cpu.clock_mhz,
    )


def _fma_per_clock(cpu: Cpu, row: Mapping[str, str], precision: str) -> tuple[int | None, str, str]:
    units, width = int(row["units"]), int(row["vector_bits"])
    if precision not in _BITS and precision not in CPU_UNITS:
        return None, "", f"no peak is defined for {precision}"
    if reason := emulated_by_cpu(precision, cpu.flags):
        return None, "", f"{reason}: it converts, far slower than fp32"
    rates = CPU_UNITS.get(precision, {})
    flag = next((flag for flag in rates if flag in usable(cpu.flags)), "")
    rate = rates[flag] if flag else 1
    if rate is None:
        return None, "", f"no rate of {flag} instructions stands here"
    if flag.startswith("amx"):
        return rate, f"{rate} multiply-adds (AMX tile)", ""
    lanes = width // _BITS.get(precision, 32) * rate
    return units * lanes, f"{units} units × {lanes} lanes ({width} bit)", ""


def _is_of(row: Mapping[str, str], cpu: Cpu) -> bool:
    low, _, high = row["models"].partition("-")
    family = row["vendor"] == cpu.vendor and int(row["family"]) == cpu.family and row["flag"] in cpu.flags
    return family and cpu.model is not None and int(low) <= cpu.model <= int(high or low)
