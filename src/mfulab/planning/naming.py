"""Readable, stable names of runs: every axis of the step, then what differs from the defaults."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from mfulab.core.replicates import numbered

LONGEST = 180  # bytes: file systems allow 255, and a temporary suffix must fit
# Named where they differ from their defaults.
TUNABLE = ("timing", "profile", "parallel", "device", "seed", "sum_length", "first_calls", "load_time_s")
# Seconds of the section timing, of a CPU's process that is one of many: named by one word.
SHORT = {"window_time_s": 0.1, "warm_up_time_s": 0.3, "patience_s": 0.2}
UNNAMED = ("device.name", "device.type", "device.peak_tflop_s", "model._target_", "model.name", "kernel._target_")


def run_name(config: BaseModel, axes: tuple[str, ...], dotted: Mapping[str, Any]) -> str:
    """`model=resnet18,batch_size=8,…`; `dotted` holds nested keys that were swept or set by the user."""
    values: dict[str, Any] = {}
    for axis in axes:
        value = getattr(config, axis)
        if value is not None:
            values[axis] = getattr(value, "name", value)
    fields = type(config).model_fields
    for key, value in dotted.items():
        head = key.split(".")[0]
        if head in fields and head not in TUNABLE:
            values[key] = value
    for key in TUNABLE:
        if key in fields:
            values |= _differences(key, getattr(config, key), fields[key].get_default())
    short_times = {f"timing.{key}": value for key, value in SHORT.items()}
    if short_times.items() <= values.items():
        values = {key: value for key, value in values.items() if key not in short_times} | {"timing": "short"}
    name = ",".join(f"{key}={_text(value)}" for key, value in values.items() if key not in UNNAMED)
    if len(name.encode()) > LONGEST:
        kept = name[: LONGEST - 13].rpartition(",")[0]  # each part between commas stays key=value: keep_commas
        name = f"{kept}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return numbered(name or "all", getattr(config, "replicate", 1))


def short(run: str) -> str:
    """A run's name without its keys, which its values make plain, and without how long it was measured.

    >>> short("kernel=torch,size=64,timing.windows=2,parallel.processes=2")
    'torch 64 processes=2'
    """
    parts = (part.partition("=") for part in run.split(",") if not part.startswith("timing"))
    return " ".join(f"{key.rpartition('.')[2]}={value}" if "." in key else value or key for key, _, value in parts)


def _differences(key: str, value: Any, default: Any) -> dict[str, Any]:
    if not isinstance(value, BaseModel):
        return {} if value == default else {key: value}
    return {
        f"{key}.{name}": getattr(value, name)
        for name in type(value).model_fields
        if getattr(value, name) != getattr(default, name)
    }


def _text(value: Any) -> str:
    """A value as part of a file name: lists joined by x, anything unusual replaced, then with a hash."""
    if isinstance(value, list | tuple):
        value = "x".join(str(item) for item in value)
    text = str(value)
    safe = re.sub(r"[^A-Za-z0-9_.+\-]", "-", text)
    return safe if safe == text else f"{safe[:60]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
