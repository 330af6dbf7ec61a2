"""`mfulab peak`: dense peaks of a device by name or PCI id, or of the one at hand, with clock and source."""

import sys

from rich import box
from rich.console import Console
from rich.table import Table

from mfulab.device.datasheets import UnknownDeviceError, find
from mfulab.device.local_peak import local_name, local_peak
from mfulab.device.peaks import UNITS, Peak, peak


def show(device: str | None = None, precision: str | None = None) -> int:
    """Prints the peaks of `device` (None: the one at hand), in one precision or in all; returns the exit status."""
    if precision and precision not in UNITS:
        print(f"mfulab: precision {precision!r} is unknown; choose one of {', '.join(UNITS)}", file=sys.stderr)
        return 2
    if device is not None:
        try:
            find(device)
        except UnknownDeviceError as error:
            print(f"mfulab: {error}", file=sys.stderr)
            return 2
    precisions = (precision,) if precision else tuple(UNITS)
    found = {name: local_peak(name) if device is None else peak(device, name) for name in precisions}
    console = Console(highlight=False, soft_wrap=True)
    console.print(_table(device or local_name(), found))
    for line in _footnotes(found):
        console.print(line, style="dim")
    return 0 if any(one.spec for one in found.values()) else 1


def _table(name: str, found: dict[str, Peak]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=name, title_justify="left")
    table.add_column("format")
    for column in ("dense TFLOP/s", "clock, MHz", "datasheet"):
        table.add_column(column, justify="right")
    table.add_column("computed from")
    for precision, one in found.items():
        unit = " TOP/s" if precision == "int8" else ""
        table.add_row(
            precision,
            "unknown" if one.spec is None else f"{one.spec:,.4g}{unit}",
            _number(one.spec_clock_mhz),
            _number(one.datasheet),
            one.formula or one.reason,
        )
    return table


def _footnotes(found: dict[str, Peak]) -> list[str]:
    known = [one for one in found.values() if one.spec is not None]
    bandwidth = next((one.memory_gb_s for one in known if one.memory_gb_s), None)
    lines = [f"memory: {bandwidth:g} GB/s"] if bandwidth else []
    lines += [f"source: {source}" for source in dict.fromkeys(one.source for one in known)]
    lines += [checked for checked in dict.fromkeys(one.checked for one in known) if checked]
    return lines + [f"note: {note}" for note in dict.fromkeys(one.note for one in known) if note]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
