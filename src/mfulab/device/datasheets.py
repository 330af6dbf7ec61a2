"""Datasheets of accelerators, found by device string or PCI id: that very product's, or an error with the choices."""

import csv
import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from typing import Any

from mfulab.core.errors import NEAR, ConfigurationError, alternatives

# Words that some drivers put into a name and others leave out; no two products differ in them alone. A virtual function
# (VF) is a whole device where its units are the product's, else a part of it.
_DECORATION = {"nvidia", "amd", "intel", "aws", "tesla", "geforce", "instinct", "r", "tm", "generation", "oam", "vf"}
_LINES = ("", "rtx ", "apple ")  # what people leave out, as no other line has such a number: A6000, 4090, M2
_PCI_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")
SLICE = re.compile(r"\s+MIG\s+\d+[cg].*$")  # of a MIG instance, a part of the product named


class UnknownDeviceError(ConfigurationError, LookupError):
    """No datasheet here is this device's, or several could be; the message lists the choices."""


@dataclass(frozen=True)
class Datasheet:
    """One accelerator as its vendor describes it: dense figures in TFLOP/s (TOP/s for int8), clocks in MHz."""

    device: str
    names: tuple[str, ...]
    pci_ids: tuple[str, ...]
    vendor: str
    architecture: str
    units: int | None  # what a framework counts: SMs, compute units, cores
    rate: str  # of the row of FMA per clock and unit; `printed`: the figures follow from none
    boost_mhz: float | None
    tensor_mhz: float | None
    memory_gb: float | None
    memory_gb_s: float | None
    source: str  # who prints the figures
    checked: tuple[str, ...]  # texts of `checked_texts.csv` that were read and state the same
    note: str
    figures: Mapping[str, str] = field(hash=False)  # the printed numbers as text, by unit


def find(device: str, units: int | None = None, pci_id: str | None = None) -> Datasheet:
    """The datasheet of a driver's name (`NVIDIA H200`) or PCI id (`10de:2330`); UnknownDeviceError if unsure."""
    is_id = _PCI_ID.fullmatch(asked := device.strip().lower())
    name = normalised(SLICE.sub("", device))
    named = next((sheets for line in _LINES if (sheets := _by_name().get(line + name))), ())
    matching = [sheet for sheet in datasheets() if asked in sheet.pci_ids] if is_id else list(named)
    matching = [sheet for sheet in matching if pci_id and pci_id.lower() in sheet.pci_ids] or matching
    matching = [sheet for sheet in matching if units and sheet.units == units] or matching
    if len(matching) == 1:
        return matching[0]
    if matching:
        choices = ", ".join(f"{sheet.device} ({sheet.units} units)" for sheet in matching)
        how = "name one of these" if is_id else "name one of these, or its PCI id"
        raise UnknownDeviceError(f"{device!r} could be one of {choices}: {how}")
    raise UnknownDeviceError(f"there is no datasheet of {device!r} here, so its peak is unknown{_suggested(device)}")


def normalised(name: str) -> str:
    """Lowers `name` to words and numbers without vendors and trademarks: `Tesla V100-SXM2-16GB` to `v100 sxm2 16gb`."""
    words = re.findall(r"[a-z0-9.]+", name.lower())
    return " ".join(word for word in words if word not in _DECORATION)


def typed_names() -> list[str]:
    """Lists products as people type them, in one word: `MI250X`, `RTX-4090`."""
    names = (re.findall(r"[\w.]+", sheet.device.partition(" (")[0]) for sheet in datasheets())
    return ["-".join(word for word in words if word.lower() not in _DECORATION) for words in names]


@functools.cache
def datasheets() -> tuple[Datasheet, ...]:
    """Lists all datasheets of `datasheets.csv`."""
    return tuple(_datasheet(row) for row in table("datasheets.csv"))


def texts_read(sheet: Datasheet) -> str:
    """Names the texts that were read for a datasheet's figures, what each states and when; says if none was."""
    if not sheet.checked:
        return "unchecked: no text that states these figures was read"
    texts = {row["key"]: row for row in table("checked_texts.csv")}
    return "checked: " + "; ".join(
        f"{text['states']} in {text['title']}, {text['url']} (read {text['read']})"
        for text in (texts[key] for key in sheet.checked)
    )


@functools.cache
def table(name: str) -> list[dict[str, str]]:
    """Reads a table of facts that stands beside this module."""
    with (resources.files(__package__) / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _datasheet(row: dict[str, str]) -> Datasheet:
    cells: dict[str, Any] = {field.name: row.get(field.name) for field in fields(Datasheet)}
    for key in ("boost_mhz", "tensor_mhz", "memory_gb", "memory_gb_s"):
        cells[key] = float(row[key]) if row[key] else None
    for key in ("names", "pci_ids", "checked"):
        cells[key] = tuple(filter(None, row[key].split("|")))
    cells["units"] = int(row["units"]) if row["units"] else None
    printed = {key.rpartition("_"): value for key, value in row.items() if value}
    cells["figures"] = {unit: value for (unit, _, kind), value in printed.items() if kind in ("tflops", "tops")}
    return Datasheet(**cells)


@functools.cache
def _by_name() -> dict[str, tuple[Datasheet, ...]]:
    named: dict[str, tuple[Datasheet, ...]] = {}
    for sheet in datasheets():
        for name in {normalised(name) for name in (sheet.device, *sheet.names)}:
            named[name] = (*named.get(name, ()), sheet)
    return named


def _suggested(device: str) -> str:
    words = set(normalised(device).split())
    containing = {sheet.device for name, sheets in _by_name().items() if words <= set(name.split()) for sheet in sheets}
    near = difflib.get_close_matches(normalised(device), _by_name(), n=5, cutoff=0.6)
    chosen = containing or {sheet.device for name in near for sheet in _by_name()[name]}
    nearest = alternatives(sorted(chosen, key=lambda name: (len(name), name))[:NEAR])
    more = f" All {len(datasheets())}: mfulab/device/datasheets.csv" if len(chosen) > NEAR else ""
    return f"; did you mean {nearest}?{more}" if words and nearest else ""
