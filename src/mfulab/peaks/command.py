"""Command that prints the peaks of a device, by default of this machine's, as text or JSON."""

from __future__ import annotations

import argparse
import sys
from typing import Mapping, NoReturn, Sequence, TextIO

from .facts import datasheets
from .lookup import NoPeakError, Peak, known, peak
from .names import UnknownDeviceError, find

HEALTHY, REFUSED = 0, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints peaks. Returns 0, or 2 if there is no peak, with the reason on standard error."""
    options = _parser().parse_args(arguments)
    if options.list:
        _print("\n".join(sheet.device for sheet in datasheets()))
        return HEALTHY
    if options.all_json:
        from .export import as_json

        _print(as_json().rstrip("\n"))
        return HEALTHY
    try:
        name, found = _look_up(options.device, options.dtype, options.sparse, options.units)
    except (UnknownDeviceError, NoPeakError) as refusal:
        if options.json:
            _print_answer(options.device, None, "", {}, str(refusal))
        _print(f"mfulab-peaks: {refusal}", sys.stderr)
        return REFUSED
    if options.json:
        _print_json(name, found)
        return HEALTHY
    _show(found)
    return HEALTHY


def _print(text: str, stream: TextIO | None = None) -> None:
    """Prints a text. Control characters are escaped, and characters that the stream cannot encode
    become `?`."""
    stream = stream or sys.stdout
    shown = "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(shown.encode(encoding, "replace").decode(encoding), file=stream)


class _Parser(argparse.ArgumentParser):
    """Argument parser that escapes control characters in its error messages."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        _print(f"{self.prog}: error: {message}", sys.stderr)
        sys.exit(REFUSED)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mfulab-peaks",
        description="Peaks of an accelerator, with basis and source; of this machine's without a name.",
    )
    parser.add_argument("device", nargs="?", help="a driver's name or a PCI id")
    parser.add_argument("dtype", nargs="?", help="a format, such as bf16; without it every one")
    parser.add_argument("--sparse", action="store_true", help="with 2:4 sparsity")
    parser.add_argument(
        "--units", type=int, metavar="N", help="its SMs, compute units or cores, where known"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", action="store_true", help="print the names of all products")
    parser.add_argument("--all-json", action="store_true", help="print every peak as JSON")
    return parser


def _look_up(
    device: str | None, dtype: str | None, sparse: bool, units: int | None
) -> tuple[str, list[Peak]]:
    """Returns the name of the device, and its peak in `dtype`, or in every format that it
    supports."""
    pci_id = None
    if device is None:
        from .detection import detect

        devices = detect()
        if not devices:
            raise UnknownDeviceError("no accelerator is found here; give a device by its name")
        first = devices[0]
        device, pci_id = first.name, first.pci_id
        units = units or first.units
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


def _print_json(device: str, found: Sequence[Peak]) -> None:
    """Prints a line of JSON per format, with the same answer fields as mfulab's commands, and the
    peak."""
    from .export import of_peak

    for answer in found:
        peaks = {answer.dtype: of_peak(answer)}
        _print_answer(device, answer.tflop_s, _unit(answer.dtype), peaks, None)


def _print_answer(
    device: str | None,
    value: float | None,
    unit: str,
    peaks: Mapping[str, object],
    reason: str | None,
) -> None:
    import json

    answer = {
        **{"value": value, "unit": unit, "denominator": None, "denominator_unit": None},
        "basis": None if value is None else "spec",
        "reason": None if reason is None else {"refused": {"because": reason}},
        "doubt": {},
    }
    _print(json.dumps({"answer": answer, "device": device, "peaks": peaks, "reason": reason}))


def _unit(dtype: str) -> str:
    if dtype == "int8":
        return "TOP/s"
    return "TFLOP/s"


def _show(found: Sequence[Peak]) -> None:
    _print(found[0].device)
    for answer in found:
        _print(
            f"  {answer.dtype:5} {answer.tflop_s:>9,.4g} {_unit(answer.dtype):7}  {answer.basis}"
        )
    if found[0].memory_bytes_s:
        _print(f"memory: {found[0].memory_bytes_s / 1e9:g} GB/s")
    for line in dict.fromkeys(
        [*(f"source: {answer.source}" for answer in found), found[0].checked]
    ):
        _print(line)
    if found[0].note:
        _print(f"note: {found[0].note}")
