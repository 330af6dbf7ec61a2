"""Dense peaks of accelerators, as `mfulab.peaks` computes them, beside what is known of the device at
hand. Needs no torch. A device without a datasheet here has no peak, but a reason, never that of a
similar product."""

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
    """One dense peak with its origin, in TFLOP/s (TOP/s for int8); None if it is unknown, and
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
    sparse_factor: float = 1.0  # what 2:4 sparsity multiplies it by in the vendor's marketing
    note: str = ""
    texts: str = ""  # that were read for the datasheet's figures

    @property
    def tflop_s(self) -> float | None:
        """The peak in TFLOP/s, at the datasheet's clock: `spec`."""
        return self.spec

    def __str__(self) -> str:
        """The peak in TFLOP/s, of what, and where it is from; or why there is none."""
        if self.spec is None:
            return f"no peak: {self.reason}"
        parts = (f"{self.spec:g} TFLOP/s dense", self.device, self.formula, self.source)
        return " · ".join(filter(None, parts))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

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
        device: what a driver, framework or trace calls it (`NVIDIA H100 80GB HBM3`, `AMD
            Instinct MI300X`), or its PCI id (`10de:2330`). Case, hyphens and the vendor's
            name do not matter; everything else does.
        precision: fp64, fp32, tf32, fp16, bf16, fp8, fp4 or int8: the format that matmuls
            use. A GPU whose tensor cores lack the format has no peak in it.
        units: its SMs or compute units, where known: they tell products of one name apart,
            and a slice's share.
        pci_id: its PCI id, where known beside the name, for the same purpose.
        max_clock_mhz: the highest clock that the device at hand allows, of which
            `Peak.max_clock` is.

    Returns a `Peak`: `.tflop_s`, also as `float(peak)`, or None with `.reason`; `.memory_gb_s`,
    `.spec_clock_mhz`, `.source`.
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
    """The dense peak of this GPU (with fewer SMs a slice) in the *effective* precision, not the
    parameters' dtype."""
    return peak(gpu.name, precision, gpu.sms, gpu.pci_id, gpu.max_sm_clock_mhz)


def memory_peak_gb_s(gpu: "GpuProperties") -> float | None:
    """Memory clock × bus width × 2 (transfers a clock) in 10⁹ byte/s; None where hidden, and of a
    MIG instance."""
    clock_mhz = gpu.max_memory_clock_mhz
    bits = gpu.bus_bits
    if clock_mhz and bits and not SLICE.search(gpu.name):
        return clock_mhz * 1e6 * bits / 8 * 2 / 1e9
    return None


def to_be_given(why: Said, precision: str) -> Said:
    """Reason that a peak is unknown, and the key by which to give it."""
    return Said("peak_to_be_given", {"why": why, "precision": precision})
