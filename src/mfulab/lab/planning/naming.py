"""Readable, stable names of runs: all axes of the measurement, then the keys that differ from their
defaults."""

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mfulab.core.configs import StepConfig
from mfulab.core.parts import Content, Values
from mfulab.timing.pace import SHORT

LONGEST = 180  # bytes: file systems allow 255, and a temporary suffix must fit
# Keys that are in a name only if they differ from their defaults.
TUNABLE = (
    "search",
    "timing",
    "profile",
    "parallel",
    "device",
    "seed",
    "sum_length",
    "first_calls",
    "transfers",
    "load_time_s",
)
# Timing keys of a process that is one of many: a name has the one word "short" for them.
SHORT_TIMES = list[Content]()
for _by_step in SHORT.values():
    for _times in _by_step.values():
        SHORT_TIMES.append({f"timing.{key}": value for key, value in _times.items()})
# The command to type if `make` installed it and the virtual environment is not active.
OF_MAKE = Path(".venv/bin/snakemake")
SNAKEMAKE = str(OF_MAKE) if OF_MAKE.exists() and not shutil.which("snakemake") else "snakemake"
MEASURE = f"{SNAKEMAKE} --cores 1 report"
WORKFLOWS = (Path("Snakefile"), Path("workflow/Snakefile"))
NO_RUNS = ("report.", "budget_min")  # prefixes of keys that no run reads
UNNAMED = (
    "device.name",
    "device.type",
    "device.peak_tflop_s",
    "model._target_",
    "model.name",
    "kernel._target_",
)


def has_workflow() -> bool:
    """True if the current folder is a checkout, or uses the workflow as a module."""
    return any(path.is_file() for path in WORKFLOWS)


def measures() -> str:
    """The command that measures in the current folder; without a workflow, the one for a single
    run."""
    if has_workflow():
        return MEASURE
    return "mfulab run profile_step model=gpt2"


def in_language(command: str, language: str) -> str:
    """A command that measures or draws, with the key that sets the page's language added."""
    if language == "en":
        return command
    key = f"report.language={language}"
    overrides = re.search(r"overrides=(?:'([^']*)'|(\S+))", command)
    if overrides:
        value = overrides[1] or overrides[2]
        return command.replace(overrides[0], f"overrides='{value} {key}'", 1)
    option = "" if " --config " in command else " --config"
    return f"{command}{option} overrides={key}"


def run_name(config: StepConfig, dotted: Values) -> str:
    """Name of a run: `model=resnet18,batch_size=8,…`. `dotted` holds nested keys that were swept or
    set by the user."""
    values: Content = {}
    for axis in config.axes:
        value = getattr(config, axis)
        if value is not None:
            values[axis] = getattr(value, "name", value)
    for key, value in dotted.items():
        group = key.split(".")[0]
        if group in type(config).model_fields and group not in TUNABLE:
            values[key] = value
    values |= _tuned(config)
    for times in SHORT_TIMES:
        if times.items() <= values.items():
            for key in times:
                del values[key]
            values["timing"] = "short"
            break
    parts = [f"{key}={_text(value)}" for key, value in values.items() if key not in UNNAMED]
    name = ",".join(parts)
    if len(name.encode()) > LONGEST:
        # Each part between commas must stay key=value, see `keep_commas`.
        kept = name[: LONGEST - 13].rpartition(",")[0]
        name = f"{kept}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return name or "all"


def _tuned(config: StepConfig) -> Content:
    """Tunable keys whose values differ from their defaults."""
    tuned = {}
    for key in TUNABLE:
        field = type(config).model_fields.get(key)
        if field is None:
            continue
        value = getattr(config, key)
        default = field.get_default()
        if isinstance(value, BaseModel):
            for name, content in value:
                if content != getattr(default, name):
                    tuned[f"{key}.{name}"] = content
        elif value != default:
            tuned[key] = value
    return tuned


def short(run: str) -> str:
    """A run's name without the keys that its values make clear, and without the timing.

    >>> short("kernel=torch,size=64,timing.windows=2,parallel.processes=2")
    'torch 64 processes=2'
    """
    words = []
    for part in run.split(","):
        if part.startswith("timing"):
            continue
        key, _, value = part.partition("=")
        if "." in key:
            last_key = key.rpartition(".")[2]
            words.append(f"{last_key}={value}")
        else:
            words.append(value or key)
    return " ".join(words)


def _text(value: Any) -> str:
    """A value as part of a file name: lists joined by x. If unusual characters had to be replaced,
    a hash is added."""
    if isinstance(value, list | tuple):
        value = "x".join(map(str, value))
    text = str(value)
    safe = re.sub(r"[^A-Za-z0-9_.+\-]", "-", text)
    if safe == text:
        return safe
    return f"{safe[:60]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
