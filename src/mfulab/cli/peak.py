"""`mfulab peak`: dense peaks of a device by name or PCI id, or of the local one, with clock and source."""

import json
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

from mfulab.core.errors import ConfigurationError
from mfulab.device.datasheets import UnknownDeviceError, find
from mfulab.device.local_peak import local_name, local_peak
from mfulab.device.peaks import UNITS, Peak, peak


def show(device: str | None, precision: str | None, as_json: bool) -> int:
    """Prints the peaks of `device` (None: the local one), in one precision or in all; status 1 if none is known."""
    if device is not None:
        try:
            find(device)
        except UnknownDeviceError as error:
            raise ConfigurationError(str(error)) from error
    precisions = (precision,) if precision else tuple(UNITS)
    found = {name: local_peak(name) if device is None else peak(device, name) for name in precisions}
    status = int(all(one.spec is None for one in found.values()))
    if as_json:
        print(json.dumps({"device": device or local_name()} | {name: asdict(one) for name, one in found.items()}))
        return status
    console = Console(highlight=False, soft_wrap=True)
    console.print(_table(device or local_name(), found))
    for line in _footnotes(found):
        console.print(line, style="dim")
    return status


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
