"""`mfulab peak`: dense peaks of a device, given by name or PCI id, or of the local one, with clock
and source."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

import click

from mfulab.cli.options import AS_JSON, DEVICE, LANGUAGE, PRECISION, command, listing
from mfulab.core.answer import Answer, answered, unanswered
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import ABSENT
from mfulab.core.printing import say_json
from mfulab.core.said import Said
from mfulab.core.said import as_json as said_as_json
from mfulab.core.terminal import Terminal, table
from mfulab.device.datasheets import MOST_LISTED, Datasheet, datasheets, find
from mfulab.device.local_peak import local_name, local_peak
from mfulab.device.peaks import UNITS, Peak, peak
from mfulab.device.samplers.reading import UNTOLD
from mfulab.peaks.lookup import known
from mfulab.peaks.names import variants
from mfulab.peaks.rates import figure, rates

NUMBERS = ("dense", "clock", "datasheet")  # keys of the headers of numeric columns
# Formats that are compared between several products; they fit 80 columns.
SIDE_BY_SIDE = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8", "fp4")


def _products() -> list[str]:
    return [sheet.device for sheet in datasheets()]


@command("peak", 'peak "NVIDIA H100 80GB HBM3" bf16')
@click.argument("device", type=DEVICE, required=False)
@click.argument("precision", type=PRECISION, required=False)
@listing(_products, "products")
@AS_JSON
@LANGUAGE
def show(device: str | None, precision: str | None, as_json: bool, language: str) -> int:
    """Prints the peaks of `device` (None: the local one), in one precision or in all. Returns 1 if
    none is known, else 0. If a short name means several products, it prints them all; with JSON it
    raises UnknownDeviceError, as for an unknown name."""
    text = Texts(language, "peak")
    products = variants(device) if device is not None and not as_json else ()
    if 1 < len(products) <= MOST_LISTED:
        _print_variants(device or "", products, precision, text)
        return 0
    sheet = None if device is None else find(device)
    formats = (precision,) if precision else tuple(UNITS)
    peaks = {name: _peak(device, name) for name in formats}
    title = device or local_name()
    if as_json:
        for name, found in peaks.items():
            details = {"asked": title, "precision": name, **asdict(found)}
            details["reason"] = said_as_json(found.reason) if found.reason else None
            say_json(_answer(found, name).line(details))
    else:
        _print(title, peaks, sheet, text)
    return int(all(found.spec is None for found in peaks.values()))


def _peak(device: str | None, precision: str) -> Peak:
    if device is None:
        return local_peak(precision)
    return peak(device, precision)


def _unit(precision: str) -> str:
    if precision == "int8":
        return "TOP/s"
    return "TFLOP/s"


def _answer(found: Peak, precision: str) -> Answer:
    unit = _unit(precision)
    if found.spec is None:
        because = str(found.reason or UNTOLD)  # docs/answer.schema.json: numbers and texts
        return unanswered(unit, Said("no_peak", precision=precision, because=because))
    return answered(found.spec, unit, "spec")


def _print(title: str, peaks: Mapping[str, Peak], sheet: Datasheet | None, text: Texts) -> None:
    """Prints a table with a line per format, and the sources of the numbers below it."""
    numbers = map(text, NUMBERS)
    shown = table([text("format")], numbers, [text("computed")], title=title, title_justify="left")
    # Formats that are unknown for the same reason share a line.
    formats_by_cells: dict[tuple[str, ...], list[str]] = {}
    for name, found in peaks.items():
        cells = tuple(_cells(name, found, sheet, text))
        formats_by_cells.setdefault(cells, []).append(name)
    for cells, names in formats_by_cells.items():
        shown.add_row("\n".join(names), *cells)
    console = Terminal(soft_wrap=True)
    console.print(shown)
    known = [found for found in peaks.values() if found.spec is not None]
    for line in _sources(known, sheet, text):
        console.print(line, style="dim")


def _print_variants(
    device: str, products: Iterable[Datasheet], precision: str | None, text: Texts
) -> None:
    """Prints a table with a line per product, the fastest first, and how to ask for one of them."""
    formats = (precision,) if precision else SIDE_BY_SIDE

    def order(sheet: Datasheet) -> tuple[float, str]:
        return -max((figure(sheet, name) or 0 for name in formats), default=0), sheet.device

    sheets = sorted(products, key=order)
    columns = {name: [figure(sheet, name) for sheet in sheets] for name in formats}
    if not precision:
        columns = _informative(columns)
    columns["GB"] = [sheet.memory_gb for sheet in sheets]
    columns["GB/s"] = [sheet.memory_gb_s for sheet in sheets]
    title = text("variants", device=device, count=len(sheets))
    shown = table([text("product")], columns, title=title, title_justify="left")
    for sheet, *values in zip(sheets, *columns.values(), strict=True):
        shown.add_row(sheet.device, *map(_rounded, values))
    console = Terminal(soft_wrap=True)
    console.print(shown)
    console.print(text("one_variant", device=sheets[0].device), style="dim")


def _informative(columns: Mapping[str, list[float | None]]) -> dict[str, list[float | None]]:
    """Columns of the formats that any product has; without fp16 if it equals bf16."""
    filled = {name: values for name, values in columns.items() if any(values)}
    if filled.get("fp16") == filled.get("bf16"):
        filled.pop("fp16", None)
    return filled


def _rounded(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:,.4g}"


def _cells(precision: str, found: Peak, sheet: Datasheet | None, text: Texts) -> Iterator[str]:
    if found.spec is None:
        yield text("unknown")
    elif precision == "int8":
        yield f"{found.spec:,.4g} {_unit(precision)}"
    else:
        yield f"{found.spec:,.4g}"
    for number in (found.spec_clock_mhz, found.datasheet):
        yield "" if number is None else f"{number:g}"
    yield found.formula or _why(found, sheet, text)


def _why(found: Peak, sheet: Datasheet | None, text: Texts) -> str:
    """Reason why a peak is unknown. For a known product: it lacks the format, or its vendor prints
    no figure. "" if there is no reason."""
    if found.reason is None:
        return ""
    if sheet is None:
        return verdicts.say(found.reason, text.language)
    if rates(sheet):
        return text("lacks", device=sheet.device, formats=", ".join(known(sheet)))
    return text("not_printed")


def _sources(peaks: Iterable[Peak], sheet: Datasheet | None, text: Texts) -> list[str]:
    """Lines about the memory, the sources, the documents behind them, and notes, each without
    repetition."""
    memory: list[str] = []
    sources = []
    documents = []
    notes = []
    for found in peaks:
        if found.memory_gb_s and not memory:
            memory.append(text("memory", gb_s=found.memory_gb_s))
        sources.append(text("source", source=found.source))
        if found.device:
            key = "checked" if found.texts else "unchecked"
            documents.append(text(key, texts=found.texts))
        if found.note:
            notes.append(text("note", note=found.note))
    if sheet and sheet.note and not notes:
        notes.append(text("note", note=sheet.note))
    return list(dict.fromkeys([*memory, *sources, *documents, *notes]))
