"""The command: the peaks of a device, or of this machine's, as text or JSON."""

from __future__ import annotations

import argparse
import sys
from typing import Sequence

from .facts import datasheets
from .lookup import NoPeakError, Peak, known, peak
from .names import UnknownDeviceError, find

HEALTHY, REFUSED = 0, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints peaks; the status is 2 where there is none, and the standard error says why."""
    given = _parser().parse_args(arguments)
    if given.list:
        print(*(sheet.device for sheet in datasheets()), sep="\n")
        return HEALTHY
    if given.all_json:
        from .export import as_json

        print(as_json(), end="")
        return HEALTHY
    try:
        name, found = _asked(given.device, given.dtype, given.sparse)
    except (UnknownDeviceError, NoPeakError) as refusal:
        if given.json:
            _print_json(given.device, [], str(refusal))
        print(f"mfulab-peaks: {refusal}", file=sys.stderr)
        return REFUSED
    if given.json:
        _print_json(name, found)
        return HEALTHY
    _show(found)
    return HEALTHY


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mfulab-peaks",
        description="Peaks of an accelerator, with basis and source; of this machine's without a name.",
    )
    parser.add_argument("device", nargs="?", help="a driver's name or a PCI id")
    parser.add_argument("dtype", nargs="?", help="a format, such as bf16; without it every one")
    parser.add_argument("--sparse", action="store_true", help="with 2:4 sparsity")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", action="store_true", help="print the names of all products")
    parser.add_argument("--all-json", action="store_true", help="print every peak as JSON")
    return parser


def _asked(device: str | None, dtype: str | None, sparse: bool) -> tuple[str, list[Peak]]:
    """The device's name, and its peak in `dtype` or in each format that it has."""
    units = pci_id = None
    if device is None:
        from .detection import detect

        devices = detect()
        if not devices:
            raise UnknownDeviceError("no accelerator is found here; give a device by its name")
        device, units, pci_id = devices[0].name, devices[0].units, devices[0].pci_id
    sheet = find(device, units, pci_id)
    formats = [dtype] if dtype else known(sheet)
    if not formats:
        raise NoPeakError(f"{sheet.device}: no peak is known. {sheet.note}")
    found = []
    for name in formats:
        try:
            found.append(peak(device, name, sparse, units, pci_id))
        except NoPeakError:
            if dtype:
                raise
    if not found:
        raise NoPeakError(f"{sheet.device} has no peak with sparsity; ask for the dense")
    return sheet.device, found


def _print_json(device: str, found: Sequence[Peak], reason: str | None = None) -> None:
    import json

    from .export import of_peak

    peaks = {one.dtype: of_peak(one) for one in found}
    told = {"device": device, "peaks": peaks, "reason": reason}
    print(json.dumps(told, ensure_ascii=False))


def _show(found: Sequence[Peak]) -> None:
    print(found[0].device)
    for one in found:
        unit = "TOP/s" if one.dtype == "int8" else "TFLOP/s"
        print(f"  {one.dtype:5} {one.tflop_s:>9,.4g} {unit:7}  {one.basis}")
    if found[0].memory_bytes_s:
        print(f"memory: {found[0].memory_bytes_s / 1e9:g} GB/s")
    for line in dict.fromkeys([*(f"source: {one.source}" for one in found), found[0].checked]):
        print(line)
    if found[0].note:
        print(f"note: {found[0].note}")
