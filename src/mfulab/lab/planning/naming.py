"""Readable, stable names of runs: every axis of the measurement, then what differs from the defaults."""

import hashlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mfulab.core.configs import StepConfig
from mfulab.timing.pace import SHORT

LONGEST = 180  # bytes: file systems allow 255, and a temporary suffix must fit
# Named where they differ from their defaults.
TUNABLE = ("search", "timing", "profile", "parallel", "device", "seed", "sum_length", "first_calls", "load_time_s")
# Seconds of the section timing of a process that is one of many: named by one word.
SHORT_TIMES = [
    {f"timing.{key}": value for key, value in times.items()} for by_step in SHORT.values() for times in by_step.values()
]
# As it is typed where `make` installed it and nothing was activated.
OF_MAKE = Path(".venv/bin/snakemake")
SNAKEMAKE = str(OF_MAKE) if OF_MAKE.exists() and not shutil.which("snakemake") else "snakemake"
MEASURE = f"{SNAKEMAKE} --cores 1 report"
NO_RUNS = ("report.", "budget_min")  # how the keys begin that no run reads
UNNAMED = ("device.name", "device.type", "device.peak_tflop_s", "model._target_", "model.name", "kernel._target_")


def run_name(config: StepConfig, dotted: Mapping[str, Any]) -> str:
    """`model=resnet18,batch_size=8,…`; `dotted` holds nested keys that were swept or set by the user."""
    fields = type(config).model_fields
    chosen = {axis: getattr(config, axis) for axis in config.axes}
    values = {axis: getattr(value, "name", value) for axis, value in chosen.items() if value is not None}
    values |= {key: value for key, value in dotted.items() if key.split(".")[0] in fields.keys() - TUNABLE}
    for key in filter(fields.__contains__, TUNABLE):
        value, default = getattr(config, key), fields[key].get_default()
        if isinstance(value, BaseModel):
            values |= {f"{key}.{name}": content for name, content in value if content != getattr(default, name)}
        elif value != default:
            values[key] = value
    if short := next((times for times in SHORT_TIMES if times.items() <= values.items()), None):
        values = {key: value for key, value in values.items() if key not in short} | {"timing": "short"}
    name = ",".join(f"{key}={_text(value)}" for key, value in values.items() if key not in UNNAMED)
    if len(name.encode()) > LONGEST:
        kept = name[: LONGEST - 13].rpartition(",")[0]  # each part between commas stays key=value: keep_commas
        name = f"{kept}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return name or "all"


def short(run: str) -> str:
    """A run's name without its keys, which its values make plain, and without how long it was measured.

    >>> short("kernel=torch,size=64,timing.windows=2,parallel.processes=2")
    'torch 64 processes=2'
    """
    parts = (part.partition("=") for part in run.split(",") if not part.startswith("timing"))
    return " ".join(f"{key.rpartition('.')[2]}={value}" if "." in key else value or key for key, _, value in parts)


def _text(value: Any) -> str:
    """A value as part of a file name: lists joined by x, anything unusual replaced, then with a hash."""
    if isinstance(value, list | tuple):
        value = "x".join(str(item) for item in value)
    text = str(value)
    safe = re.sub(r"[^A-Za-z0-9_.+\-]", "-", text)
    return safe if safe == text else f"{safe[:60]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
