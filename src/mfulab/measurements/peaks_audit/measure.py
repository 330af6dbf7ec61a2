"""Holds the table of peaks of one installed library against ours, device by device and format by format."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mfulab.core.errors import UnsupportedError
from mfulab.core.measurement import Measured
from mfulab.device.datasheets import Datasheet, datasheets, find
from mfulab.device.other_peaks import LIBRARIES, MEMORY, Library
from mfulab.device.peaks import UNITS, computed, peak
from mfulab.measurements.peaks_audit import AUDITED, PeaksAuditConfig, PeaksAuditRow, PeakVerdict, installed_version

WITHIN = 0.02
"""Share by which two figures of one peak differ through rounding."""
NOBODY = "NVIDIA Nonesuch 9000"
"""A device that nobody makes: what a library takes for it, it takes for every device that it does not know."""
VENDORS = ("NVIDIA", "AMD")


def measure(config: PeaksAuditConfig, folder: Path) -> Measured:
    """A row for each device and format that the library answers for, one for each device that it does not know.

    Raises UnsupportedError if the library is not installed.
    """
    library = LIBRARIES[config.library]
    version = installed_version(config.library)
    if version is None:
        raise UnsupportedError(f"library={config.library} is not installed: pip install {AUDITED[config.library][0]}")
    asked = [(sheet.names[0], sheet) for sheet in datasheets() if sheet.vendor in VENDORS and sheet.names]
    asked += [(name, find(device)) for name, device in library.also]
    rows = [row for name, sheet in asked for row in _device(library, name, sheet)]
    for row in rows:
        row.library, row.version = config.library, version
    summary = PeaksAuditRow(library=config.library, version=version, message=f"{len(rows)} answers")
    return Measured(summary, [row.model_dump(exclude={"hardware", "run"}) for row in rows])


def _device(library: Library, name: str, sheet: Datasheet) -> Iterator[PeaksAuditRow]:
    """The answers for a device as a driver names it; one row, `missing`, without one in any format."""
    ours = {precision: peak(sheet.device, precision, sheet.units).spec for precision in UNITS}
    ours[MEMORY] = sheet.memory_gb_s
    answers = {precision: library.ask(name, sheet, precision) for precision in ours}
    if not any(answers.values()):
        yield PeaksAuditRow(device=sheet.device, asked=name, verdict="missing")
        return
    for precision, theirs in answers.items():
        own = ours[precision]
        if theirs is None:
            if own is not None and precision != MEMORY:
                yield PeaksAuditRow(device=sheet.device, asked=name, precision=precision, ours=own, verdict="missing")
            continue
        row = PeaksAuditRow(device=sheet.device, asked=name, precision=precision, theirs=theirs, ours=own)
        row.ratio = theirs / own if own else None
        row.verdict, row.explanation = _verdict(library, sheet, precision, theirs, ours)
        yield row


def _verdict(
    library: Library, sheet: Datasheet, precision: str, theirs: float, ours: dict[str, float | None]
) -> tuple[PeakVerdict, str]:
    """Explanation of their number: ours, a known mistake, or none."""
    own = ours[precision]
    if own is None:
        return "guessed", f"neither the datasheet nor the architecture has {precision}"
    if _same(theirs, own):
        return "agreed", ""
    if library.by_name and library.ask(NOBODY, sheet, precision) == theirs:
        return "guessed", "what it takes for every device that it does not know"
    if precision != MEMORY:
        factor = peak(sheet.device, precision, sheet.units).sparse_factor
        if factor != 1 and _same(theirs, factor * own):
            return "sparse for dense", f"{factor:g} times the dense peak"
        vector = computed(sheet, UNITS[precision][-1]) if len(UNITS[precision]) > 1 else None
        if vector and _same(theirs, vector):
            return "another format", f"that of {precision} without tensor cores"
        for name, value in ours.items():
            if name != MEMORY and value and _same(theirs, value):
                return "another format", f"that of {name}"
        if _same(theirs, own / 2):
            return "halved", "half of the dense peak"
    other = _whose(theirs, precision, sheet)
    return ("another device", f"that of {other}") if other else ("different", "")


def _same(some: float, other: float) -> bool:
    return abs(some / other - 1) <= WITHIN


@cache
def _all(precision: str) -> tuple[tuple[str, float], ...]:
    """Every device with its computed and its printed figure."""
    found: list[tuple[str, float | None]] = []
    for sheet in datasheets():
        of = peak(sheet.device, precision, sheet.units) if precision != MEMORY else None
        found += [(sheet.device, value) for value in ((of.spec, of.datasheet) if of else (sheet.memory_gb_s,))]
    return tuple((device, value) for device, value in found if value)


def _whose(theirs: float, precision: str, sheet: Datasheet) -> str | None:
    """The device whose peak comes nearest, to one part in a thousand; None if none does."""
    near = [(abs(theirs / value - 1), device) for device, value in _all(precision) if device != sheet.device]
    best, device = min(near, default=(1.0, ""))
    return device if best < 1e-3 else None
