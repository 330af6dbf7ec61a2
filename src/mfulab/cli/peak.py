"""`mfulab peak`: dense peaks of a device by name or PCI id, or of the local one, with clock and source."""

import json
from dataclasses import asdict

from mfulab.core.terminal import Terminal, table
from mfulab.device.datasheets import find
from mfulab.device.local_peak import local_name, local_peak
from mfulab.device.peaks import UNITS, peak


def show(device: str | None, precision: str | None, as_json: bool) -> int:
    """Prints the peaks of `device` (None: the local one), in one precision or in all; status 1 if none is known. Raises
    UnknownDeviceError."""
    if device is not None:
        find(device)
    precisions = (precision,) if precision else tuple(UNITS)
    peaks = {name: local_peak(name) if device is None else peak(device, name) for name in precisions}
    status = int(all(device_peak.spec is None for device_peak in peaks.values()))
    if as_json:
        print(json.dumps({"device": device or local_name()} | {name: asdict(peaks[name]) for name in peaks}))
        return status
    numbers, title = ("dense TFLOP/s", "clock, MHz", "datasheet"), device or local_name()
    shown = table(["format"], numbers, ["computed from"], title=title, title_justify="left")
    for name, device_peak in peaks.items():
        peak_rate = "unknown" if device_peak.spec is None else f"{device_peak.spec:,.4g}{' TOP/s' * (name == 'int8')}"
        cells = ("" if value is None else f"{value:g}" for value in (device_peak.spec_clock_mhz, device_peak.datasheet))
        shown.add_row(name, peak_rate, *cells, device_peak.formula or device_peak.reason)
    console = Terminal(highlight=False, soft_wrap=True)
    console.print(shown)
    published = [device_peak for device_peak in peaks.values() if device_peak.spec is not None]
    lines = [f"memory: {device_peak.memory_gb_s:g} GB/s" for device_peak in published if device_peak.memory_gb_s][:1]
    lines += [f"source: {device_peak.source}" for device_peak in published]
    lines += [device_peak.checked for device_peak in published if device_peak.checked]
    lines += [f"note: {device_peak.note}" for device_peak in published if device_peak.note]
    for line in dict.fromkeys(lines):
        console.print(line, style="dim")
    return status
