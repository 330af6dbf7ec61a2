"""Datasheets of accelerators as published by their vendors, and the documents that they were
checked against."""

from __future__ import annotations

import csv
import functools
import os
from typing import Any, Mapping, NamedTuple  # dataclasses take four times as long to import

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class Datasheet(NamedTuple):
    """Accelerator as described by its vendor: dense figures in TFLOP/s (TOP/s for int8), clocks in
    MHz."""

    device: str
    names: tuple[str, ...]
    pci_ids: tuple[str, ...]
    vendor: str
    architecture: str
    units: int | None  # SMs, compute units or cores, as frameworks count them
    rate: str  # selects the architecture's row of FMA per clock; `printed` if no row fits
    boost_mhz: float | None
    tensor_mhz: float | None
    memory_gb: float | None
    memory_gb_s: float | None
    source: str  # publication of the figures
    checked: tuple[str, ...]  # keys of the documents in `checked_texts.csv` that state the same
    note: str
    figures: Mapping[str, str]  # the printed numbers as text, by unit


@functools.lru_cache(maxsize=None)
def datasheets() -> tuple[Datasheet, ...]:
    """All datasheets of `datasheets.csv`."""
    return tuple(map(_datasheet, table("datasheets.csv")))


def texts_read(sheet: Datasheet) -> str:
    """Documents that a datasheet's figures were checked against, as text; `unchecked: …` if there
    are none."""
    if not sheet.checked:
        return "unchecked: no text that states these figures was read"
    return f"checked: {named_texts(sheet)}"


def named_texts(sheet: Datasheet) -> str:
    """Documents that a datasheet's figures were checked against: title, URL, statement and date.
    Empty if there are none."""
    return "; ".join(
        f"{text['states']} in {text['title']}, {text['url']} ({text['by']}, read {text['read']})"
        for text in _texts(sheet)
    )


def checked_by(sheet: Datasheet) -> str:
    """Publisher of the documents that a datasheet was checked against: `vendor`, `third party`, or
    `nobody` without documents."""
    if not sheet.checked:
        return "nobody"
    writers = {text["by"] for text in _texts(sheet)}
    if "vendor" in writers:
        return "vendor"
    return "third party"


def _texts(sheet: Datasheet) -> list[dict[str, str]]:
    texts = {row["key"]: row for row in table("checked_texts.csv")}
    return [texts[key] for key in sheet.checked]


@functools.lru_cache(maxsize=None)
def table(name: str) -> list[dict[str, str]]:
    """Rows of a CSV file in this folder."""
    with open(os.path.join(_FOLDER, name), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _datasheet(row: dict[str, str]) -> Datasheet:
    cells: dict[str, Any] = {name: row.get(name) for name in Datasheet._fields}
    for key in ("boost_mhz", "tensor_mhz", "memory_gb", "memory_gb_s"):
        cells[key] = float(row[key]) if row[key] else None
    for key in ("names", "pci_ids", "checked"):
        cells[key] = tuple(filter(None, row[key].split("|")))
    cells["units"] = int(row["units"]) if row["units"] else None
    cells["figures"] = {}
    for key, value in row.items():
        unit, _, kind = key.rpartition("_")
        if value and kind in ("tflops", "tops"):
            cells["figures"][unit] = value
    return Datasheet(**cells)
