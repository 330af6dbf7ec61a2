"""Foundations of a recorded number, in parts: each with a digest of its statements that the
measurement reaches."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from mfulab.core.errors import ConfigurationError
from mfulab.lab.planning.sources import PACKAGE, Sources, run_sources

# Parts by how their files' paths begin. What names devices, prints, plans or joins is none: it
# changes no number that was measured.
PARTS = {
    "kernels": ("kernels/",),
    "models": ("models/",),
    "counting": ("flops/",),
    "timing": ("timing/",),
    "devices": (
        "device/samplers/",
        "device/allocator",
        "device/compute",
        "device/cpu",
        "device/emulation",
        "device/vendors/gpm",
        "device/vendors/nvml",
        "device/vendors/cupti",
        "device/vendors/dcgm",
    ),
    "measuring": ("measurements/",),
}
DECLARED = "__init__.py"  # of a measurement: keys and columns, with what they mean


def foundations(name: str, hardware: str) -> dict[str, str]:
    """Digest of each part that a machine's rows of a `MEASUREMENT,TARGET` rest on; none where the
    target is gone."""
    step, _, target = name.partition(",")
    try:
        return digests_of(run_sources(step, target or None, hardware))
    except ConfigurationError:
        return {}


def digests_of(sources: Sources) -> dict[str, str]:
    """Digest of each part of these files."""
    lines = defaultdict[str, list[str]](list)
    for file, digest in sources.items():
        place = _place(file)
        for part, beginnings in PARTS.items():
            is_declared = part == "measuring" and file.name == DECLARED
            if place.startswith(beginnings) and not is_declared:
                lines[part].append(f"{digest}  {place}\n")
    return {
        part: hashlib.sha256("".join(held).encode()).hexdigest()[:16]
        for part, held in sorted(lines.items())
    }


def changed(recorded: Mapping[str, str], today: Mapping[str, str]) -> list[str]:
    """The parts whose digests differ, in the order of `PARTS`."""
    return [part for part in PARTS if recorded.get(part) != today.get(part)]


def _place(file: Path) -> str:
    if file.is_relative_to(PACKAGE):
        return file.relative_to(PACKAGE).as_posix()
    return file.name
