"""Traces as a sweep: paths, folders and globs become one run a file, named by the file and keyed by its content."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mfulab.schema.errors import ConfigurationError
from mfulab.schema.files import found_files

if TYPE_CHECKING:
    from mfulab.planning.runs import Combination

STEP = "read_trace"
ENDINGS = (".json", ".json.gz")


def expanded(combination: Combination) -> Iterator[Combination]:
    """A combination for each file that its `trace` means. Raises ConfigurationError if no file matches."""
    given = combination.content["trace"]
    if not given:
        raise ConfigurationError(f"trace={given}: give a file, a folder or a glob, such as trace='runs/*.json.gz'.")
    paths = found_files(str(given), ENDINGS)
    if not paths:
        raise ConfigurationError(f"trace={given}: no file is there ({' or '.join(ENDINGS)}).")
    stems = Counter(map(_stem, paths))
    for path in paths:
        name = _stem(path) if stems[_stem(path)] == 1 else f"{path.parent.name}-{_stem(path)}"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        trace = {"name": _name(name), "path": str(path), "digest": digest}
        labels = {**combination.labels, "trace": trace["name"]}
        yield replace(combination, labels=labels, content={**combination.content, "trace": trace})


def stamps(given: str) -> list[tuple[str, int, int]]:
    """Path, size and time of change of each file that is meant now."""
    found = [path for word in given.split(",") for path in found_files(word, ENDINGS)]
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in found if path.exists()]


def _stem(path: Path) -> str:
    for ending in sorted(ENDINGS, key=len, reverse=True):
        if path.name.endswith(ending):
            return path.name.removesuffix(ending).removesuffix(".pt.trace")
    return path.stem


def _name(text: str) -> str:
    """A text as a name in a config: letters, digits, points and hyphens, beginning with one of the former."""
    return re.sub(r"^[^A-Za-z0-9]+", "", re.sub(r"[^A-Za-z0-9_.\-]", "-", text)) or "trace"
