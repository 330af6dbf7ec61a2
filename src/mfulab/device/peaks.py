"""Dense peaks of accelerators from `mfulab.peaks`, adjusted to the device at hand. Does not import
torch. A device without a datasheet gets a reason, never the peak of a similar product."""

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mfulab import peaks
from mfulab.core.said import Said, as_told
from mfulab.peaks.facts import named_texts
from mfulab.peaks.names import SLICE
from mfulab.peaks.rates import UNITS as UNITS

if TYPE_CHECKING:
    from mfulab.device.vendors import GpuProperties


@dataclass(frozen=True)
class Peak:
    """Dense peak in TFLOP/s (TOP/s for int8), with its origin. `spec` is None if unknown, and
    `reason` says why."""

    spec: float | None  # at the datasheet's clock for these units
    max_clock: float | None = None  # at the highest clock that the device at hand allows
    datasheet: float | None = None  # the printed figure
    formula: str = ""
    source: str = ""
    spec_clock_mhz: float | None = None
    reason: Said | None = None
    device: str = ""  # the product whose datasheet was used
    memory_gb_s: float | None = None  # the datasheet's bandwidth in 10⁹ byte/s
    sparse_factor: float = 1.0  # factor by which the vendor's marketing raises it for 2:4 sparsity
    note: str = ""
    texts: str = ""  # documents that the datasheet's figures were checked against

    @property
    def tflop_s(self) -> float | None:
        """Peak in TFLOP/s at the datasheet's clock, the same as `spec`."""
        return self.spec

    def __str__(self) -> str:
        """One line with the peak, device, formula and source, or the reason why there is no
        peak."""
        if self.spec is None:
            return f"no peak: {self.reason}"
        parts = (f"{self.spec:g} TFLOP/s dense", self.device, self.formula, self.source)
        return " · ".join(filter(None, parts))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __float__(self) -> float:
        """Returns the peak in TFLOP/s. Raises TypeError with the reason if it is unknown."""
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
    """Dense peak of a device, looked up by its name.

    Args:
        device: its name in a driver, framework or trace (`NVIDIA H100 80GB HBM3`, `AMD
            Instinct MI300X`), or its PCI id (`10de:2330`). Case, hyphens and the vendor's
            name do not matter; everything else does.
        precision: fp64, fp32, tf32, fp16, bf16, fp8, fp4 or int8: the format that matmuls
            use. A GPU whose tensor cores do not support the format has no peak in it.
        units: number of SMs or compute units, if known. Distinguishes products of the same
            name, and scales the peak of a slice.
        pci_id: PCI id, if known in addition to the name. Distinguishes products of the same
            name.
        max_clock_mhz: highest clock that the device at hand allows. `Peak.max_clock` is the
            peak at this clock.

    Returns a `Peak`. `.tflop_s`, or `float(peak)`, is the peak; it is None if unknown, and
    `.reason` says why. See also `.memory_gb_s`, `.spec_clock_mhz` and `.source`.
    >>> peak("NVIDIA H100 80GB HBM3", "bf16").datasheet
    989.4
    """
    try:
        found = peaks.peak(device, precision, units=units, pci_id=pci_id)
    except peaks.UnknownDeviceError as error:
        return Peak(None, reason=to_be_given(as_told(error), precision))
    except peaks.NoPeakError as error:
        why = as_told(error)
        return Peak(None, reason=to_be_given(why, precision) if error.may_exist else why)
    clock = found.clock_mhz
    sheet = peaks.find(found.device, found.units)
    is_whole = not units or not sheet.units or units == sheet.units
    return Peak(
        spec=found.tflop_s,
        max_clock=found.tflop_s * max_clock_mhz / clock if max_clock_mhz and clock else None,
        datasheet=found.printed if is_whole else None,
        formula=found.formula,
        source=found.source,
        spec_clock_mhz=clock,
        device=found.device,
        memory_gb_s=sheet.memory_gb_s if is_whole else None,
        sparse_factor=found.sparse_factor,
        note=found.note,
        texts=named_texts(sheet),
    )


def gpu_peak(gpu: "GpuProperties", precision: str) -> Peak:
    """Dense peak of a GPU, scaled by its SMs if it is a slice. `precision` is the *effective* one,
    not the parameters' dtype."""
    return peak(gpu.name, precision, gpu.sms, gpu.pci_id, gpu.max_sm_clock_mhz)


def memory_peak_gb_s(gpu: "GpuProperties") -> float | None:
    """Memory bandwidth in 10⁹ byte/s: clock × bus width × 2 transfers per clock. None if not
    reported, or for a MIG instance."""
    clock_mhz = gpu.max_memory_clock_mhz
    bits = gpu.bus_bits
    if clock_mhz and bits and not SLICE.search(gpu.name):
        return clock_mhz * 1e6 * bits / 8 * 2 / 1e9
    return None


def to_be_given(why: Said, precision: str) -> Said:
    """Extends the reason for an unknown peak by the config key that sets the peak."""
    return Said("peak_to_be_given", why=why, precision=precision)
