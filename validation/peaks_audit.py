"""Compares the tables of peaks inside libraries with ours, by device and format.

    python validation/peaks_audit.py [--library torch_inductor] [--sources clones/] [--out peaks.csv]

Installed libraries are called. Frameworks of `peer_tables` are read from their sources in
`--sources`: clones/torchtitan, clones/trl and so on. With --names, prints a line for each figure
that is off.

Prints how many of each library's figures agree, and what the others are: sparse for dense, another
format, a guess.
"""

import argparse
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import peer_tables

from mfulab.core.files import write_csv
from mfulab.device.datasheets import Datasheet, datasheets, find
from mfulab.device.peaks import UNITS, peak
from mfulab.peaks.rates import computed

WITHIN = 0.02
"""Relative difference that rounding may cause between two figures of one peak."""
NOBODY = "NVIDIA Nonesuch 9000"
"""Device that does not exist: shows which peak a library assumes for unknown devices."""
VENDORS = ("NVIDIA", "AMD")
# Names of the pip packages that contain each library.
PACKAGES = {
    "torch_inductor": ("torch",),
    "lightning": ("pytorch-lightning", "lightning-fabric", "lightning"),
    "triton_proton": ("triton",),
}
Verdict = Literal[
    "agreed",
    "sparse for dense",
    "another format",
    "halved",
    "another device",
    "guessed",
    "different",
    "missing",
]
# Dense TFLOP/s of a device in one of our formats, or bandwidth in 10⁹ byte/s for `memory`.
Answer = float | None
Ask = Callable[[str, Datasheet, str], Answer]
MEMORY = "memory"


def torch_inductor(device: str, sheet: Datasheet, precision: str) -> Answer:
    """Calls torch._inductor.analysis.device_info by name. Divides by its own sparsity factor, like
    `datasheet_tops`."""
    info = import_module("torch._inductor.analysis.device_info").lookup_device_info(device)
    if info is None or precision == MEMORY:
        return info and info.dram_bw_gbs
    key = "torch.tf32" if precision == "tf32" else _dtype(precision)
    tops = info.tops.get(key)
    return None if tops is None else tops / info.tops_sparsity_factor


def lightning(device: str, sheet: Datasheet, precision: str) -> Answer:
    """Calls lightning.fabric.utilities.throughput.get_available_flops with a patched name of the
    CUDA device."""
    module = import_module("lightning_fabric.utilities.throughput")
    torch = import_module("torch")
    if precision == MEMORY:
        return None
    key = {"tf32": "tfloat32"}.get(precision) or _dtype(precision)
    with (
        patch.object(torch.cuda, "get_device_name", lambda *_: device),
        patch.object(module, "rank_zero_warn", lambda *_, **__: None),
        patch("lightning_fabric.accelerators.cuda._is_ampere_or_later", lambda *_: False),
    ):
        try:
            found = module.get_available_flops(torch.device("cuda"), key)
        except IndexError:  # it splits names at spaces
            return None
    return None if found is None else found / 1e12


def triton_proton(device: str, sheet: Datasheet, precision: str) -> Answer:
    """Calls triton.profiler.specs with architecture, number of SMs and clock, which its profiler
    reads from the device."""
    specs = import_module("triton.profiler.specs")
    widths = {"fp8": 8, "int8": 8, "fp16": 16, "bf16": 16, "tf32": 32, "fp32": 32, "fp64": 64}
    width = widths.get(precision)
    kind = {"NVIDIA": "CUDA", "AMD": "HIP"}.get(sheet.vendor)
    arch = sheet.architecture.replace(".", "")
    clock_khz = (sheet.boost_mhz or 0) * 1e3
    if width is None or kind is None or not sheet.units or not clock_khz:
        return None
    try:
        return specs.max_flops(kind, arch, width, sheet.units, clock_khz) / 1e12
    except (ValueError, KeyError):
        return None


@dataclass(frozen=True)
class Library:
    """Library with a table of peaks, and the function that calls it."""

    ask: Ask
    by_name: bool = True  # whether it looks devices up by name
    # names in its table that no driver reports, each with its product
    also: tuple[tuple[str, str], ...] = ()


LIBRARIES = {
    "torch_inductor": Library(
        torch_inductor,
        also=(
            ("NVIDIA H100", "H100 SXM5 80GB"),
            ("NVIDIA A100", "A100 SXM4 80GB"),
            ("AMD MI300A", "Instinct MI300A"),
        ),
    ),
    "lightning": Library(lightning),
    "triton_proton": Library(triton_proton, by_name=False),
}


def _dtype(precision: str) -> Any:
    names = {
        "fp64": "float64",
        "fp32": "float32",
        "fp16": "float16",
        "bf16": "bfloat16",
        "fp8": "float8_e5m2",
    }
    return getattr(import_module("torch"), {**names, "int8": "int8"}.get(precision, ""), None)


@dataclass
class Figure:
    """Peak of a library for one device in one format, with ours. In dense TFLOP/s, or 10⁹ byte/s
    for `memory`."""

    device: str
    asked: str  # name that the driver reports
    verdict: Verdict
    precision: str = ""
    theirs: float | None = None
    ours: float | None = None
    explanation: str = ""


def installed_version(library: str) -> str | None:
    """Version of a library, without importing it. None if it is not installed."""
    for distribution in PACKAGES[library]:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return None


def audit(library: Library) -> list[Figure]:
    """Figures for each device and format that the library has, and one for each device that it does
    not know."""
    names = [
        (sheet.names[0], sheet) for sheet in datasheets() if sheet.vendor in VENDORS and sheet.names
    ]
    names += [(name, find(device)) for name, device in library.also]
    figures: list[Figure] = []
    for name, sheet in names:
        figures += _device(library, name, sheet)
    return figures


def _device(library: Library, name: str, sheet: Datasheet) -> Iterator[Figure]:
    """Figures for a device under its driver's name. One figure with the verdict `missing` if the
    library knows no format."""
    ours = {precision: peak(sheet.device, precision, sheet.units).spec for precision in UNITS}
    ours[MEMORY] = sheet.memory_gb_s
    answers = {precision: library.ask(name, sheet, precision) for precision in ours}
    if not any(answers.values()):
        yield Figure(sheet.device, name, "missing")
        return
    for precision, theirs in answers.items():
        our_peak = ours[precision]
        if theirs is not None:
            verdict, explanation = _verdict(library, sheet, precision, theirs, ours)
            yield Figure(sheet.device, name, verdict, precision, theirs, our_peak, explanation)
        elif our_peak is not None and precision != MEMORY:
            yield Figure(sheet.device, name, "missing", precision, None, our_peak)


def _verdict(
    library: Library, sheet: Datasheet, precision: str, theirs: float, ours: dict[str, float | None]
) -> tuple[Verdict, str]:
    """Verdict on a library's number and its explanation: it agrees, is a known mistake, or
    differs."""
    our_peak = ours[precision]
    if our_peak is None:
        return "guessed", f"neither the datasheet nor the architecture has {precision}"
    if _same(theirs, our_peak):
        return "agreed", ""
    if library.by_name and library.ask(NOBODY, sheet, precision) == theirs:
        return "guessed", "what it takes for every device that it does not know"
    if precision != MEMORY:
        factor = peak(sheet.device, precision, sheet.units).sparse_factor
        if factor != 1 and _same(theirs, factor * our_peak):
            return "sparse for dense", f"{factor:g} times the dense peak"
        vector = computed(sheet, UNITS[precision][-1]) if len(UNITS[precision]) > 1 else None
        if vector and _same(theirs, vector):
            return "another format", f"that of {precision} without tensor cores"
        for name, value in ours.items():
            if name != MEMORY and value and _same(theirs, value):
                return "another format", f"that of {name}"
        if _same(theirs, our_peak / 2):
            return "halved", "half of the dense peak"
    other = _whose(theirs, precision, sheet)
    return ("another device", f"that of {other}") if other else ("different", "")


def _same(some: float, other: float) -> bool:
    return abs(some / other - 1) <= WITHIN


@cache
def _all(precision: str) -> tuple[tuple[str, float], ...]:
    """Every device with its computed and its printed figure."""
    found: list[tuple[str, float]] = []
    for sheet in datasheets():
        values: tuple[float | None, ...] = (sheet.memory_gb_s,)
        if precision != MEMORY:
            of_device = peak(sheet.device, precision, sheet.units)
            values = (of_device.spec, of_device.datasheet)
        found += [(sheet.device, value) for value in values if value]
    return tuple(found)


def _whose(theirs: float, precision: str, sheet: Datasheet) -> str | None:
    """Device whose peak is nearest, if it is within 0.1 %. Otherwise None."""
    near = [
        (abs(theirs / value - 1), device)
        for device, value in _all(precision)
        if device != sheet.device
    ]
    best, device = min(near, default=(1.0, ""))
    return device if best < 1e-3 else None


def main() -> None:
    """Audits each library and prints the counts of verdicts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", choices=LIBRARIES, nargs="*", default=list(LIBRARIES))
    parser.add_argument(
        "--sources", type=Path, help="a folder of frameworks' clones, which are read"
    )
    parser.add_argument("--names", action="store_true", help="a line for each peak that is off")
    parser.add_argument("--out", type=Path, help="every figure as CSV")
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    for name in options.library:
        version = installed_version(name)
        if version is None:
            print(f"{name}: not installed: pip install {PACKAGES[name][0]}")
            continue
        lines += print_verdicts(name, version, audit(LIBRARIES[name]), options.names)
    tables = peer_tables.tables(options.sources) if options.sources else {}
    for name, table in tables.items():
        figures = audit(Library(peer_tables.ask(table)))
        lines += print_verdicts(name, "of its sources", in_bf16(figures), options.names)
    if options.out:
        write_csv(options.out, lines)


def in_bf16(figures: list[Figure]) -> list[Figure]:
    """Figures of a table that only has bf16, without devices that have no peak in bf16."""
    with_peak = {
        sheet.device for sheet in datasheets() if peak(sheet.device, "bf16", sheet.units).spec
    }
    candidates = (figure for figure in figures if figure.precision in ("bf16", ""))
    return [figure for figure in candidates if figure.precision or figure.device in with_peak]


def print_verdicts(
    name: str, version: str, figures: list[Figure], by_name: bool
) -> list[dict[str, Any]]:
    """Prints the counts of a library's verdicts, and with `by_name` each peak that is off. Returns
    rows for the CSV file."""
    verdicts = Counter(figure.verdict for figure in figures)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    print(f"{name} {version}: {counts}")
    for figure in figures if by_name else ():
        if figure.theirs and figure.ours and not _same(figure.theirs, figure.ours):
            times = f"{figure.theirs / figure.ours:.2f} times"
            description = f"{figure.theirs:.4g}, {times} the dense {figure.ours:.4g}"
            print(f"  {figure.asked}, {figure.precision}: {description} ({figure.verdict})")
    return [{"library": name, "version": version, **asdict(figure)} for figure in figures]


if __name__ == "__main__":
    main()
