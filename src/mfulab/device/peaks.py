"""Dense peaks of accelerators: FLOP/s = units × FMA per clock and unit × 2 × clock, for fp32 accumulation. Needs no
torch. Where the product is more than 1 % off the printed figure, and no rounding explains it, the printed one counts. A
device without a datasheet here has no peak, but a reason, never that of a similar product."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mfulab.device.datasheets import SLICE, Datasheet, UnknownDeviceError, find, table, texts_read

if TYPE_CHECKING:
    from mfulab.device.vendors import GpuProperties

# Formats of which a datasheet prints both vector and tensor figures; of the others there is but one.
_BOTH = ("fp64", "fp32")
# Which units compute a precision, best first; tensor units run at the tensor clock where the device has two.
UNITS: dict[str, tuple[str, ...]] = {
    **{name: (f"{name}_tensor", name) for name in _BOTH},
    **{name: (f"{name}_tensor",) for name in ("tf32", "fp16", "bf16", "fp8", "fp4", "int8")},
}
# The highest share by which a printed figure may differ from the product of its factors.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Peak:
    """One dense peak with its origin, in TFLOP/s (TOP/s for int8); None if it is unknown, and `reason` says why."""

    spec: float | None  # at the datasheet's clock for these units
    max_clock: float | None = None  # at the highest clock that the device at hand allows
    datasheet: float | None = None  # the printed figure
    formula: str = ""
    source: str = ""
    spec_clock_mhz: float | None = None
    reason: str = ""
    device: str = ""  # the product whose datasheet was used
    memory_gb_s: float | None = None  # the datasheet's bandwidth in 10⁹ byte/s
    sparse_factor: float = 1.0  # what 2:4 sparsity multiplies it by in the vendor's marketing
    note: str = ""
    checked: str = ""  # which texts were read for its figures

    @property
    def tflop_s(self) -> float | None:
        """The peak in TFLOP/s, at the datasheet's clock: `spec`."""
        return self.spec

    def __float__(self) -> float:
        """Gives the peak in TFLOP/s; raises TypeError with the reason if it is unknown."""
        if self.spec is None:
            raise TypeError(f"no peak: {self.reason}")
        return self.spec


def peak(
    device: str,
    precision: str,
    units: int | None = None,
    pci_id: str | None = None,
    max_clock_mhz: float | None = None,
) -> Peak:
    """The dense peak of a device by its name.

    Args:
        device: what a driver, framework or trace calls it (`NVIDIA H100 80GB HBM3`, `AMD Instinct MI300X`), or its
            PCI id (`10de:2330`). Case, hyphens and the vendor's name do not matter; everything else does.
        precision: fp64, fp32, tf32, fp16, bf16, fp8, fp4 or int8: the format that matmuls use. A GPU whose tensor
            cores lack the format has no peak in it.
        units: its SMs or compute units, where known: they tell products of one name apart, and a slice's share.
        pci_id: its PCI id, where known beside the name, for the same purpose.
        max_clock_mhz: the highest clock that the device at hand allows, of which `Peak.max_clock` is.

    Returns a `Peak`: `.tflop_s`, also as `float(peak)`, or None with `.reason`; `.memory_gb_s`, `.spec_clock_mhz`,
    `.source`.
    >>> peak("NVIDIA H100 80GB HBM3", "bf16").datasheet
    989.4
    """
    try:
        sheet = find(device, units, pci_id)
    except UnknownDeviceError as error:
        return Peak(None, reason=f"{error}; {how_to_give(precision)}")
    if precision not in UNITS:
        return Peak(None, reason=f"no peak is defined for precision {precision}; choose one of {', '.join(UNITS)}")
    if SLICE.search(device) and not units:
        return Peak(None, reason=f"this is a slice of {sheet.device}, and its name does not say how many SMs it has")
    if units and sheet.units and units > sheet.units:
        reason = f"the device has {units} SMs and the datasheet of {sheet.device} {sheet.units}: it is another product"
        return Peak(None, reason=f"{reason}; {how_to_give(precision)}")
    unit = next((unit for unit in UNITS[precision] if computed(sheet, unit) or printed(sheet, unit)), None)
    if unit is None:
        return Peak(None, reason=_missing(sheet, precision))
    product, figure, rate = computed(sheet, unit), printed(sheet, unit), _rates(sheet)
    share = units / sheet.units if units and sheet.units else 1.0
    by_formula = product is not None and agrees(sheet, unit)
    clock = _clock(sheet, unit) if by_formula else None
    value = product if by_formula else figure
    assert value is not None
    counted = {"NVIDIA": "SMs", "AMD": "CUs"}.get(sheet.vendor, "units")
    part = f" × {units}/{sheet.units}" if units and units != sheet.units else ""
    return Peak(
        spec=value * share,
        max_clock=value * share * max_clock_mhz / clock if max_clock_mhz and clock else None,
        datasheet=figure if share == 1 else None,
        formula=f"{units or sheet.units} {counted} × {rate[unit]} FMA/clock ({unit}) × 2 × {clock:.0f} MHz"
        if by_formula
        else f"{figure:g} TFLOP/s as printed{part}",
        source=f"{sheet.source}; FMA/clock: {rate['source']}" if by_formula else sheet.source,
        spec_clock_mhz=clock,
        device=sheet.device,
        memory_gb_s=sheet.memory_gb_s if share == 1 else None,
        sparse_factor=float(rate.get("sparse_factor") or 1) if precision not in _BOTH else 1.0,
        note=sheet.note,
        checked=texts_read(sheet),
    )


def _missing(sheet: Datasheet, precision: str) -> str:
    """Tells a format that a device lacks from one whose figure nobody prints."""
    if _rates(sheet):
        return f"neither the datasheet of {sheet.device} nor its architecture has {precision}"
    note = f" ({sheet.note})" if sheet.note else ""
    prints = f"the datasheet of {sheet.device} prints no dense figure in {precision}, and none can be computed{note}"
    return f"{prints}: the peak is unknown, whether or not the device has the format; {how_to_give(precision)}"


def gpu_peak(gpu: "GpuProperties", precision: str) -> Peak:
    """The dense peak of this GPU (with fewer SMs a slice) in the *effective* precision, not the parameters' dtype."""
    return peak(gpu.name, precision, gpu.sms, gpu.pci_id, gpu.max_sm_clock_mhz)


def memory_peak_gb_s(gpu: "GpuProperties") -> float | None:
    """Memory clock × bus width × 2 (transfers a clock) in 10⁹ byte/s; None where hidden, and of a MIG instance."""
    clock_mhz, bits = gpu.max_memory_clock_mhz, gpu.bus_bits
    return clock_mhz * 1e6 * bits / 8 * 2 / 1e9 if clock_mhz and bits and not SLICE.search(gpu.name) else None


def how_to_give(precision: str) -> str:
    """Advice for an unknown peak."""
    return f"give its dense peak in TFLOP/s: device.peak_tflop_s.{precision}=…"


def computed(sheet: Datasheet, unit: str) -> float | None:
    """Units × FMA per clock and unit × 2 × clock of one kind of unit, in TFLOP/s; None if a factor is unknown."""
    rate, clock = _rates(sheet).get(unit), _clock(sheet, unit)
    return sheet.units * int(rate) * 2e-6 * clock if rate and clock and sheet.units else None


def printed(sheet: Datasheet, unit: str) -> float | None:
    """The datasheet's figure of one kind of unit, in TFLOP/s; None if it prints none."""
    figure = sheet.figures.get(_column(unit))
    return float(figure) if figure else None


def agrees(sheet: Datasheet, unit: str) -> bool:
    """True if the computed and the printed figure differ by at most 1 %, or by the printed one's rounding."""
    product, figure = computed(sheet, unit), printed(sheet, unit)
    if product is None or figure is None:
        return True
    decimals = len(sheet.figures[_column(unit)].partition(".")[2])
    return abs(product - figure) <= max(TOLERANCE * figure, 0.5 * 10.0**-decimals)


def _rates(sheet: Datasheet) -> dict[str, str]:
    rows = table("fma_per_clock_per_unit.csv")
    return next((row for row in rows if (row["architecture"], row["rate"]) == (sheet.architecture, sheet.rate)), {})


def _clock(sheet: Datasheet, unit: str) -> float | None:
    return sheet.tensor_mhz if unit.endswith("_tensor") and unit != "fp64_tensor" else sheet.boost_mhz


def _column(unit: str) -> str:
    return unit if unit.removesuffix("_tensor") in _BOTH else unit.removesuffix("_tensor")
