"""Finds a device's datasheet from its name in a driver or framework, or from its PCI id. Returns
exactly that product, or raises an error with the choices."""

from __future__ import annotations

import functools
import re
from typing import Iterable

from .facts import Datasheet, datasheets
from .rates import figure

# Words that some drivers put into a name and others leave out; no two products differ only in
# these. A virtual function (VF) is a whole device if it has all of the product's units.
_DECORATION = {
    *("nvidia", "amd", "intel", "aws", "google", "tesla", "geforce", "instinct"),
    *("r", "tm", "generation", "oam", "vf"),
}
# Vendor of a product with one of these words in its name: a Tesla M4 is not an Apple M4.
_VENDORS = {
    **dict.fromkeys(("nvidia", "tesla", "geforce", "quadro", "titan", "jetson"), "NVIDIA"),
    **dict.fromkeys(("amd", "radeon", "instinct"), "AMD"),
    **{"intel": "Intel", "apple": "Apple", "google": "Google", "aws": "Amazon", "huawei": "Huawei"},
}
# Product lines that people leave out, as the number is unambiguous: A6000, 4090, M2.
_LINES = ("", "rtx ", "apple ", "radeon ", "arc ")
_PCI_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")
# Word that names a model, such as h100, v3 or 4090, but not a memory size.
_MODEL = re.compile(r"(?!\d+gb?$)(?:[a-z]+\d|\d{3})[a-z0-9]*")
SLICE = re.compile(r"\s+MIG\s+\d+[cg].*$")  # end of a MIG instance's name, after the product
LONGEST = 80  # characters of a name that a message repeats
# Command that lists all products, depending on whether this package is installed alone.
LISTS = "mfulab-peaks --list" if __package__ == "mfulab_peaks" else "mfulab peak --list"
NEAR = 3  # number of similar products that a message suggests


class UnknownDeviceError(LookupError):
    """Raised if no datasheet, or more than one, matches a device. The message lists the choices."""

    def __init__(self, message: str, choices: tuple[Datasheet, ...] = ()) -> None:
        super().__init__(message)
        self.choices = choices


def find(device: str, units: int | None = None, pci_id: str | None = None) -> Datasheet:
    """Datasheet for a driver's device name (`NVIDIA H200`) or PCI id (`10de:2330`). Raises
    UnknownDeviceError if none or several match."""
    text = device.strip().lower()
    is_id = bool(_PCI_ID.fullmatch(text))
    matching = _of_id(text) if is_id else _of_name(SLICE.sub("", device))
    if pci_id:
        matching = [sheet for sheet in matching if pci_id.lower() in sheet.pci_ids] or matching
    if units:
        matching = [sheet for sheet in matching if sheet.units == units] or matching
    if len(matching) == 1:
        return matching[0]
    raise _ambiguous(device, is_id, matching) if matching else _unknown(device)


def variants(device: str) -> tuple[Datasheet, ...]:
    """Products that a short name or a PCI id may refer to, such as three for `H100`. One for a full
    product name, none for an unknown name."""
    text = device.strip().lower()
    if _PCI_ID.fullmatch(text):
        return tuple(_of_id(text))
    plain = SLICE.sub("", device)
    same = _of_name(plain)
    words = normalised(plain).split()
    if same or not words:
        return tuple(same)
    found: dict[str, Datasheet] = {}
    for name, sheets in _by_name().items():
        if _means(words, name):
            found |= {sheet.device: sheet for sheet in _of_its_vendor(device, sheets)}
    return tuple(found.values())


def _means(words: Iterable[str], name: str) -> bool:
    """True if a name contains all of the words. A word may omit the last letter of a model: MI300
    matches MI300X."""
    parts = name.split()
    known = {*parts, *(part[:-1] for part in parts if part[-2:-1].isdigit() and part[-1].isalpha())}
    return known.issuperset(words)


def _ambiguous(device: str, is_id: bool, matching: list[Datasheet]) -> UnknownDeviceError:
    """Error for a name or id that several products share. Lists what distinguishes them."""
    choices = ", ".join(f"{sheet.device} ({_numbers(sheet, True)})" for sheet in matching)
    advice = "name one of these" if is_id else "name one of these, or its PCI id"
    message = f"{_short(device)} could be one of {choices}: {advice}"
    return UnknownDeviceError(message, tuple(matching))


def _unknown(device: str) -> UnknownDeviceError:
    near = _near(device)
    message = (
        f"there is no datasheet of {_short(device)} here, so its peak is unknown{_suggested(near)}"
    )
    return UnknownDeviceError(message, near)


def _short(name: str) -> str:
    """Quotes a name for a message, shortened if it is long."""
    return repr(name if len(name) <= LONGEST else f"{name[:LONGEST]}…")


def normalised(name: str) -> str:
    """Lower-case words and numbers of a name, without vendors and trademarks: `Tesla
    V100-SXM2-16GB` becomes `v100 sxm2 16gb`."""
    words = re.findall(r"[a-z0-9.]+", name.lower())
    return " ".join(word for word in words if word not in _DECORATION)


def typed_names() -> list[str]:
    """Product names as people type them, in one word: `MI250X`, `RTX-4090`."""
    result = []
    for sheet in datasheets():
        words = re.findall(r"[\w.]+", sheet.device.partition(" (")[0])
        result.append("-".join(word for word in words if word.lower() not in _DECORATION))
    return result


def _of_id(pci_id: str) -> list[Datasheet]:
    found = []
    for sheet in datasheets():
        if pci_id in sheet.pci_ids:
            found.append(sheet)
    return found


def _of_name(device: str) -> list[Datasheet]:
    name = normalised(device)
    for line in _LINES:
        sheets = _of_its_vendor(device, _by_name().get(line + name, ()))
        if sheets:
            return sheets
    return []


def _of_its_vendor(device: str, sheets: Iterable[Datasheet]) -> list[Datasheet]:
    """Keeps the datasheets of the vendor that a name mentions; all of them if it mentions none."""
    words = re.findall(r"[a-z]+", device.lower())
    vendors = {_VENDORS[word] for word in words if word in _VENDORS}
    return [sheet for sheet in sheets if not vendors or sheet.vendor in vendors]


@functools.lru_cache(maxsize=None)
def _by_name() -> dict[str, tuple[Datasheet, ...]]:
    named: dict[str, tuple[Datasheet, ...]] = {}
    for sheet in datasheets():
        for name in set(map(normalised, (sheet.device, *sheet.names))):
            named[name] = (*named.get(name, ()), sheet)
    return named


def _near(device: str) -> tuple[Datasheet, ...]:
    """Products whose names contain all words of `device`. Otherwise those of its model, with
    similar names, or of its architecture."""
    name = normalised(device)
    words = set(name.split())
    if not words:
        return ()
    for names in (_with_all(words), _with_model(name), _similar(name)):
        found: dict[str, Datasheet] = {}
        for known in names:
            for sheet in _of_its_vendor(device, _by_name()[known]):
                found.setdefault(sheet.device, sheet)
        if found:
            return tuple(found.values())
    return tuple(sheet for sheet in datasheets() if sheet.architecture in words)


def _with_all(words: set[str]) -> list[str]:
    names = [name for name in _by_name() if words <= set(name.split())]
    return sorted(names, key=_shortest)


def _shortest(name: str) -> tuple[int, str]:
    """Sort key of a name: the length of its product's name, then that name."""
    device = _by_name()[name][0].device
    return len(device), device


def _with_model(name: str) -> list[str]:
    """Names that share the first word of `name` that is a known model, those with most words in
    common first."""
    words = name.split()
    words_of = {other: other.split() for other in _by_name()}
    known = set().union(*words_of.values())
    model = next((word for word in words if word in known and _MODEL.fullmatch(word)), None)
    names = [other for other, its_words in words_of.items() if model in its_words]

    def rank(other: str) -> tuple[int, int, str]:
        shared = set(words).intersection(words_of[other])
        return -len(shared), *_shortest(other)

    return sorted(names, key=rank)


def _similar(name: str) -> list[str]:
    import difflib

    return difflib.get_close_matches(name, _by_name(), n=5, cutoff=0.6)


def _suggested(near: tuple[Datasheet, ...]) -> str:
    listed = f"All {len(datasheets())}: {LISTS}"
    if not near:
        return f". {listed}"
    *others, last = (f"{sheet.device} ({_numbers(sheet)})" for sheet in near[:NEAR])
    names = f"{', '.join(others)} or {last}" if others else last
    more = ""
    if len(near) > NEAR:
        more = f" {listed}"
    return f"; did you mean {names}?{more}"


def _numbers(sheet: Datasheet, with_units: bool = False) -> str:
    """Units and dense peak of a product, which distinguish it from others of the same name."""
    parts = []
    if with_units and sheet.units:
        parts = [f"{sheet.units} units"]
    for dtype in ("bf16", "fp16", "fp32"):
        value = figure(sheet, dtype)
        if value is not None:
            parts.append(f"{value:.4g} TFLOP/s in {dtype}")
            break
    return ", ".join(parts) or "no figure"
