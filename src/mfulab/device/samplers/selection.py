"""Selects the samplers of a device in order of preference, and writes their readings into a row."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mfulab.core.said import Said, as_json
from mfulab.device import gpu, is_gpu, vendors
from mfulab.device.compute import cores_filled
from mfulab.device.samplers.cpu_sampler import cpu_sampler, rapl_sampler
from mfulab.device.samplers.input_sampler import input_sampler
from mfulab.device.samplers.reading import (
    UNTOLD,
    Readings,
    Sampler,
    Watched,
    missing,
    sampler,
)
from mfulab.device.vendors.gpm import UNITS

if TYPE_CHECKING:
    import torch

# Kinds of sources, the most direct first: a column that only this kind can fill, and its name.
_LEVELS = (
    ("sm_active_percent", "hardware counters"),
    ("kernel_busy_percent", "trace"),
    ("power_capped_percent", "driver's counters"),
    ("voluntary_switches_per_s", "CPU time"),
)


@sampler
def absent(reason: Said) -> Watched:
    """Sampler for a device whose library does not answer: all readings are empty, with the
    reason."""
    yield
    names = {"utilization_percent": "%", "power_w": "W", "window_energy_j": "J", "clock_mhz": "MHz"}
    return missing({**names, **UNITS}, "the vendor's library", reason)


def samplers_for(device: "torch.device", series: Sequence[Sampler] = ()) -> list[Sampler]:
    """Samplers of a torch.device, the most direct first. A GPU's vendor selects its own."""
    if not is_gpu(device):
        return [cpu_sampler(cores_filled()), rapl_sampler(), input_sampler(), *series]
    uuid = gpu.uuid_of(device)
    try:
        return vendors.of(uuid).samplers(uuid, [input_sampler(), *series])
    except vendors.RefusedError as refusal:
        return [absent(refusal.said), input_sampler()]


def set_readings(row: Any, readings: Readings, steps: int) -> None:
    """Writes readings into the row's columns of the same names, and their sources and reasons as
    JSON columns."""
    step_readings = per_step(readings, steps)
    sources = fill(row, step_readings)
    row.utilization_source, row.memory_source = (
        sources.get("utilization_percent"),
        sources.get("memory_bytes"),
    )
    row.sources_answered = sources_answered(step_readings)


def fill(row: Any, readings: Readings) -> dict[str, str]:
    """Writes readings into the row's columns of the same names, and the reasons of the empty ones.
    Returns the source of each value."""
    sources = dict[str, str]()
    reasons = dict[str, object]()
    for name, reading in readings.items():
        if reading.value is None:
            reasons[name] = as_json(reading.reason or UNTOLD)
        else:
            type(row).__pydantic_validator__.validate_assignment(row, name, reading.value)
            sources[name] = reading.origin
    row.sources = json.dumps(sources, ensure_ascii=False)
    row.reasons = json.dumps(reasons, ensure_ascii=False) if reasons else None
    return sources


def per_step(readings: Readings, steps: int) -> Readings:
    """Readings with the window's energy divided by its number of steps."""
    shared = dict(readings)
    if total := shared.pop("window_energy_j", None):
        energy = None if total.value is None else total.value / steps
        shared["energy_j"] = replace(total, value=energy, source=f"{total.source} ÷ {steps} steps")
    return shared


def sources_answered(readings: Readings) -> str:
    """Kinds of sources that returned values, the most direct first; `utilization only` or `counted
    only` if there were none."""
    columns = {column for column, reading in readings.items() if reading.value is not None}
    answered = [name for column, name in _LEVELS if column in columns]
    return ", ".join(answered) or (
        "utilization only" if "utilization_percent" in columns else "counted only"
    )
