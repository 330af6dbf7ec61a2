"""What a GPU can do at best: dense peaks from its own properties and clocks, checked against the datasheets.

FLOP/s = SMs × FMA per clock per SM × 2 × clock. FMA per clock: `fma_per_clock_per_sm.csv`, by compute capability and
precision, for fp32 accumulation. A device that is not in the table has no peak, and says how to give one.
"""

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from mfulab.hardware.gpu import GpuProperties

# Which units compute a precision, best first; those marked tensor run at the tensor clock where the device has two.
UNITS = {
    "fp64": ("fp64_tensor", "fp64"),
    "fp32": ("fp32",),
    "tf32": ("tf32_tensor",),
    "fp16": ("fp16_tensor",),
    "bf16": ("bf16_tensor",),
    "fp8": ("fp8_tensor",),
    "int8": ("int8_tensor",),
}


@dataclass(frozen=True)
class Peak:
    """One peak with its denominators, in TFLOP/s (TOP/s for int8); None where it is unknown, and `reason` says why.

    `spec` is at the datasheet's clock for these units (else the highest SM clock), `max_clock` at the highest clock the
    device allows, `datasheet` the printed figure.
    """

    spec: float | None
    max_clock: float | None = None
    datasheet: float | None = None
    formula: str = ""
    source: str = ""
    spec_clock_mhz: float | None = None
    reason: str = ""


def gpu_peak(gpu: GpuProperties, precision: str, given: Mapping[str, float] | None = None) -> Peak:
    """The dense peak of `gpu` in the *effective* precision of an operation.

    Args:
        gpu: its properties.
        precision: fp64, fp32, tf32, fp16, bf16, fp8 or int8: the format that products use, not the parameters' dtype.
        given: `device.peak_tflop_s`: peaks by precision that the user states; they come first.
    """
    if given and precision in given:
        return Peak(given[precision], formula=f"{given[precision]} TFLOP/s", source="device.peak_tflop_s")
    if precision not in UNITS:
        return Peak(None, reason=f"no peak is defined for precision {precision}")
    row = _fma_row(gpu)
    if row is None:
        return Peak(None, reason=_unknown(gpu, precision))
    unit = next((unit for unit in UNITS[precision] if row[unit]), None)
    if unit is None:
        return Peak(None, reason=f"{gpu.name} (compute capability {gpu.compute_capability}) has no {precision} units")
    fma, sheet = int(row[unit]), datasheet(gpu)
    clock, clock_source = _spec_clock(gpu, unit, sheet)
    per_mhz = gpu.sms * fma * 2 * 1e-6
    return Peak(
        spec=None if clock is None else per_mhz * clock,
        max_clock=None if gpu.max_sm_clock_mhz is None else per_mhz * gpu.max_sm_clock_mhz,
        datasheet=_printed(sheet, unit) if sheet and int(sheet["sms"]) == gpu.sms else None,
        formula=f"{gpu.sms} SMs × {fma} FMA/clock/SM ({unit}) × 2 × {clock or '?'} MHz",
        source=f"SMs: device; FMA/clock: {row['source']}; clock: {clock_source}",
        spec_clock_mhz=clock,
        reason="" if clock else f"{gpu.name} does not tell its highest SM clock; {how_to_give(precision)}",
    )


def memory_peak_gb_s(gpu: GpuProperties) -> float | None:
    """Memory clock × bus width × 2 (two transfers a clock) in 10⁹ byte/s; None where the device does not tell them."""
    if not gpu.max_memory_clock_mhz or not gpu.bus_bits:
        return None
    return gpu.max_memory_clock_mhz * 1e6 * gpu.bus_bits / 8 * 2 / 1e9


def datasheet(gpu: GpuProperties) -> dict[str, str] | None:
    """The datasheet's row for exactly this product name (L40S is not L4), None where there is none."""
    return next((row for row in table("datasheets.csv") if gpu.name in row["names"].split("|")), None)


@functools.cache
def table(name: str) -> list[dict[str, str]]:
    """A table of facts that stands beside this module."""
    with (resources.files(__package__) / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _fma_row(gpu: GpuProperties) -> dict[str, str] | None:
    rows = [row for row in table("fma_per_clock_per_sm.csv") if row["compute_capability"] == gpu.compute_capability]
    own = [row for row in rows if (row["brand"] == "geforce") == gpu.geforce]
    return next(iter(own or rows), None)


def _spec_clock(gpu: GpuProperties, unit: str, sheet: dict[str, str] | None) -> tuple[float | None, str]:
    if sheet is None:
        return gpu.max_sm_clock_mhz, "highest SM clock of the device (it is in no datasheet here)"
    column = "tensor_mhz" if unit.endswith("_tensor") and unit != "fp64_tensor" else "boost_mhz"
    return float(sheet[column]), sheet["source"]


def _printed(sheet: dict[str, str], unit: str) -> float | None:
    name = unit.removesuffix("_tensor") if unit != "fp64_tensor" else unit
    figure = sheet[f"{name}_tops" if name == "int8" else f"{name}_tflops"]
    return float(figure) if figure else None


def _unknown(gpu: GpuProperties, precision: str) -> str:
    return (
        f"{gpu.name} has compute capability {gpu.compute_capability}, which is in no table here, so there is no "
        f"peak and no MFU against it; {how_to_give(precision)}"
    )


def how_to_give(precision: str) -> str:
    """What a user does about an unknown peak."""
    return f"give its dense peak in TFLOP/s: device.peak_tflop_s.{precision}=…"
