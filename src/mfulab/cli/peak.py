"""`mfulab peak`: dense peaks of a device by name or PCI id, or of the local one, with clock and source."""

import json
from dataclasses import asdict

from rich import box
from rich.table import Column, Table

from mfulab.core.terminal import Terminal
from mfulab.device.datasheets import find
from mfulab.device.local_peak import local_name, local_peak
from mfulab.device.peaks import UNITS, peak


def show(device: str | None, precision: str | None, as_json: bool) -> int:
    """Prints the peaks of `device` (None: the local one), in one precision or in all; status 1 if none is known.

    Raises UnknownDeviceError."""
    if device is not None:
        find(device)
    precisions = (precision,) if precision else tuple(UNITS)
    found = {name: local_peak(name) if device is None else peak(device, name) for name in precisions}
    status = int(all(one.spec is None for one in found.values()))
    if as_json:
        print(json.dumps({"device": device or local_name()} | {name: asdict(one) for name, one in found.items()}))
        return status
    numbers = [Column(name, justify="right") for name in ("dense TFLOP/s", "clock, MHz", "datasheet")]
    titled = {"box": box.SIMPLE_HEAD, "title": device or local_name(), "title_justify": "left"}
    table = Table("format", *numbers, "computed from", **titled)  # type: ignore[arg-type]
    for name, one in found.items():
        peak_rate = "unknown" if one.spec is None else f"{one.spec:,.4g}{' TOP/s' * (name == 'int8')}"
        rest = ("" if value is None else f"{value:g}" for value in (one.spec_clock_mhz, one.datasheet))
        table.add_row(name, peak_rate, *rest, one.formula or one.reason)
    console = Terminal(highlight=False, soft_wrap=True)
    console.print(table)
    known = [one for one in found.values() if one.spec is not None]
    lines = [f"memory: {one.memory_gb_s:g} GB/s" for one in known if one.memory_gb_s][:1]
    lines += [f"source: {one.source}" for one in known]
    lines += [one.checked for one in known if one.checked]
    lines += [f"note: {one.note}" for one in known if one.note]
    for line in dict.fromkeys(lines):
        console.print(line, style="dim")
    return status
