"""Looks up the peak of a device with its basis and source, or raises an error that says why there
is none."""

from __future__ import annotations

from typing import NamedTuple

from .facts import Datasheet, texts_read
from .names import SLICE, UnknownDeviceError, find
from .rates import UNITS, by_formula, clock_mhz, computed, printed, rates, sparse_factor, unit_of

# Names of formats in frameworks. fp32 is without TF32, which torch enables by a separate switch.
ALIASES = {
    **{"float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "single": "fp32"},
    **{"tfloat32": "tf32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"},
    **{"float8": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "float8_e4m3fnuz": "fp8"},
    **{"float8_e5m2fnuz": "fp8", "float4": "fp4", "float4_e2m1fn_x2": "fp4"},
    **{"mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"},
}


# Names of units. RDNA's are work-group processors of two compute units, as HIP counts them.
_COUNTED = {"NVIDIA": "SMs", "AMD": "CUs", "gfx11": "WGPs", "gfx12": "WGPs"}


class NoPeakError(LookupError):
    """Raised if a known device has no peak as requested. The message says why, and what is
    available."""

    def __init__(self, message: str, may_exist: bool = False) -> None:
        super().__init__(message)
        self.may_exist = may_exist  # the device may support the format, but no figure is published


class Peak(NamedTuple):
    """A peak with its origin."""

    device: str  # the product whose datasheet was used
    dtype: str
    value: float  # FLOP/s, integer operations a second for int8
    basis: str  # dense or sparse, and the factors or that it is a printed figure
    source: str  # publication of the factors
    checked: str  # documents that the figures were checked against
    sparse: bool
    units: int | None  # SMs, compute units, cores
    clock_mhz: float | None  # datasheet's clock of these units; None if the printed figure is used
    formula: str
    printed: float | None  # the datasheet's dense figure for the whole product, in TFLOP/s
    memory_bytes_s: float | None  # the datasheet's bandwidth for the whole product
    sparse_factor: float  # factor by which marketing raises the dense peak for 2:4 sparsity
    note: str

    @property
    def tflop_s(self) -> float:
        """The value in TFLOP/s (TOP/s for int8)."""
        return self.value / 1e12

    def __float__(self) -> float:
        """Returns the value in FLOP/s."""
        return self.value


def peak(
    name: str,
    dtype: object,
    sparse: bool = False,
    units: int | None = None,
    pci_id: str | None = None,
) -> Peak:
    """Peak of a device, looked up by its name. Dense unless `sparse`.

    Args:
        name: its name in a driver or framework (`NVIDIA H100 80GB HBM3`), or its PCI id
            (`10de:2330`). Case, hyphens and the vendor's name do not matter; everything else does.
        dtype: the format that matmuls use: fp64, fp32, tf32, fp16, bf16, fp8, fp4 or int8, or a
            dtype of torch, JAX or NumPy.
        sparse: returns the peak with 2:4 sparsity, as in marketing. The MFU of a dense model
            needs the dense peak.
        units: number of SMs or compute units, if known. Distinguishes products of the same name,
            and scales the peak of a slice.
        pci_id: PCI id, if known in addition to the name. Distinguishes products of the same name.

    Raises UnknownDeviceError if the device is unknown or ambiguous, and NoPeakError if it does not
    support the format. Both are LookupErrors whose messages list the choices.

    >>> peak("NVIDIA H100 80GB HBM3", "bfloat16").tflop_s
    989.4...
    """
    sheet = find(name, units, pci_id)
    plain = format_of(dtype)
    if SLICE.search(name) and not units:
        of_how_many = f" of its {sheet.units}" if sheet.units else ""
        hint = f"its name does not say how many{of_how_many} SMs it has; give them as units"
        raise NoPeakError(f"this is a slice of {sheet.device}, and {hint}")
    if units is not None and units < 0:
        raise NoPeakError(f"{sheet.device} cannot have {units} SMs; give their number, or none")
    if units and sheet.units and units > sheet.units:
        difference = f"the device has {units} SMs and the datasheet of {sheet.device} {sheet.units}"
        raise NoPeakError(f"{difference}: it is another product", may_exist=True)
    unit = unit_of(sheet, plain)
    if unit is None:
        raise _missing(sheet, plain)
    factor = sparse_factor(sheet, plain)
    if sparse and factor == 1:
        raise NoPeakError(f"{sheet.device} has no peak with sparsity in {plain}; ask for the dense")
    return _peak(sheet, plain, unit, sparse, units)


def format_of(dtype: object) -> str:
    """Short name of a format: `torch.bfloat16` is `bf16`. Raises NoPeakError, with the choices, if
    it is unknown."""
    name = getattr(dtype, "__name__", None) or str(dtype)
    name = name.rpartition(".")[2].strip().lower()
    plain = ALIASES.get(name, name)
    if plain not in UNITS:
        raise NoPeakError(
            f"no peak is defined for precision {str(dtype)[:80]!r}; choose one of {', '.join(UNITS)}"
        )
    return plain


def known(sheet: Datasheet) -> list[str]:
    """Formats for which a datasheet has a peak."""
    found = []
    for dtype in UNITS:
        if unit_of(sheet, dtype):
            found.append(dtype)
    return found


def _peak(sheet: Datasheet, dtype: str, unit: str, sparse: bool, units: int | None) -> Peak:
    rate = rates(sheet)
    is_computed = by_formula(sheet, unit)
    clock = None
    if is_computed:
        clock = clock_mhz(sheet, unit)
    dense = computed(sheet, unit) if is_computed else printed(sheet, unit)
    assert dense is not None
    share = 1.0
    if units and sheet.units:
        share = units / sheet.units
    factor = sparse_factor(sheet, dtype)
    formula = _formula(sheet, unit, units, clock)
    kind = "dense"
    if sparse:
        kind = f"2:4 sparse, {factor:g} times the dense"
    where = ", at the datasheet's clock" if is_computed else ""
    return Peak(
        device=sheet.device,
        dtype=dtype,
        value=float(round(dense * share * (factor if sparse else 1.0) * 1e12)),
        basis=f"{kind}{where}: {formula}",
        source=f"{sheet.source}; FMA/clock: {rate['source']}" if is_computed else sheet.source,
        checked=texts_read(sheet),
        sparse=sparse,
        units=units or sheet.units,
        clock_mhz=clock,
        formula=formula,
        printed=printed(sheet, unit),
        memory_bytes_s=None if sheet.memory_gb_s is None else 1e9 * sheet.memory_gb_s,
        sparse_factor=factor,
        note=sheet.note,
    )


def _formula(sheet: Datasheet, unit: str, units: int | None, clock: float | None) -> str:
    if clock is None:
        part = ""
        if units and units != sheet.units:
            part = f" × {units}/{sheet.units}"
        return f"{printed(sheet, unit):g} TFLOP/s as printed{part}"
    counted = _COUNTED.get(sheet.architecture[:5]) or _COUNTED.get(sheet.vendor, "units")
    factors = f"{units or sheet.units} {counted} × {rates(sheet)[unit]} FMA/clock ({unit})"
    return f"{factors} × 2 × {clock:.0f} MHz"


def _missing(sheet: Datasheet, dtype: str) -> NoPeakError:
    """Error for a missing peak. Distinguishes a format that the device does not support from one
    whose figure is not published."""
    choices = ""
    if known(sheet):
        choices = f"; it has {', '.join(known(sheet))}"
    if rates(sheet):
        message = f"neither the datasheet of {sheet.device} nor its architecture has {dtype}"
        return NoPeakError(message + choices)
    note = ""
    if sheet.note:
        note = f" ({sheet.note})"
    message = f"the datasheet of {sheet.device} prints no dense figure in {dtype}"
    unknown = f"{message}, and none can be computed{note}: the peak is unknown"
    return NoPeakError(f"{unknown}, whether or not the device has the format", may_exist=True)


__all__ = ["NoPeakError", "Peak", "UnknownDeviceError", "format_of", "known", "peak"]
