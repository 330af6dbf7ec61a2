"""Digests of the code that a recorded number rests on, by part of the package: only of statements
that the measurement reaches."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from mfulab.core.errors import ConfigurationError
from mfulab.lab.planning.sources import PACKAGE, Sources, run_sources

# Prefixes of the files of each part. Code that prints, plans or joins belongs to none, as it changes
# no measured number.
PARTS_OF_CODE = {
    "kernels": ("kernels/",),
    "models": ("models/",),
    "counting": ("flops/",),
    "timing": ("timing/",),
    "tracing": ("tracing/",),
    "devices": (
        "device/samplers/",
        "device/allocator",
        "device/compute",
        "device/cpu",
        "device/emulation",
        "device/gpu.",
        "device/vendors/",
    ),
    "measuring": ("measurements/",),
}
DECLARED = "__init__.py"  # of a measurement: declares its keys and columns


def foundations(name: str, hardware: str) -> dict[str, str]:
    """Digest of each part that a machine's rows of `MEASUREMENT,TARGET` rest on; empty if the
    target no longer exists."""
    step, _, target = name.partition(",")
    try:
        return digests_of(run_sources(step, target or None, hardware))
    except ConfigurationError:
        return {}


def digests_of(sources: Sources) -> dict[str, str]:
    """Digest of each part that these files belong to."""
    lines = defaultdict[str, list[str]](list)
    for file, digest in sources.items():
        path = _relative_path(file)
        for part, prefixes in PARTS_OF_CODE.items():
            is_declaration = part == "measuring" and file.name == DECLARED
            if path.startswith(prefixes) and not is_declaration:
                lines[part].append(f"{digest}  {path}\n")
    parts = dict[str, str]()
    for part, listed in sorted(lines.items()):
        parts[part] = hashlib.sha256("".join(listed).encode()).hexdigest()[:16]
    return parts


def changed(recorded: Mapping[str, str], today: Mapping[str, str]) -> list[str]:
    """The parts whose digests differ, in the order of `PARTS_OF_CODE`."""
    return [part for part in PARTS_OF_CODE if recorded.get(part) != today.get(part)]


def _relative_path(file: Path) -> str:
    if file.is_relative_to(PACKAGE):
        return file.relative_to(PACKAGE).as_posix()
    return file.name
