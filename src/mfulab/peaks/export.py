"""Exports all peaks as one JSON document for other languages. `packages/peaks/peaks.schema.json`
describes it."""

from __future__ import annotations

import json
from typing import Any

from .facts import Datasheet, checked_by, datasheets
from .lookup import Peak, known, peak

# Increased when a reader of the older format would misread the newer one.
FORMAT = 1


def as_json() -> str:
    """All devices with their names, PCI ids and peaks, as JSON with one line per device."""
    lines = [json.dumps(_device(sheet), ensure_ascii=False) for sheet in datasheets()]
    units = {"value": "FLOP/s; int8: operations a second", "memory_bytes_s": "byte/s"}
    head = json.dumps({"format": FORMAT, "units": units})
    devices = ",\n".join(lines)
    return f'{head[:-1]}, "devices": [\n{devices}\n]}}\n'


def of_peak(found: Peak) -> dict[str, Any]:
    """One peak as a JSON object."""
    return {
        "value": round(found.value),
        "sparse": found.sparse,
        "basis": found.basis,
        "source": found.source,
    }


def _device(sheet: Datasheet) -> dict[str, Any]:
    peaks = {}
    for dtype in known(sheet):
        found = peak(sheet.device, dtype, units=sheet.units)
        peaks[dtype] = {**of_peak(found), "sparse_factor": found.sparse_factor}
    return {
        "device": sheet.device,
        "names": list(sheet.names),
        "pci_ids": list(sheet.pci_ids),
        "vendor": sheet.vendor,
        "units": sheet.units,
        "memory_bytes_s": None if sheet.memory_gb_s is None else round(1e9 * sheet.memory_gb_s),
        "peaks": peaks,
        "reason": None if peaks else sheet.note,
        "note": sheet.note,
        "checked_by": checked_by(sheet),
    }
