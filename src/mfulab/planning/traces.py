"""Traces as a sweep: paths, folders and globs become one run a file, named by the file and keyed by its content."""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, digest, found_files

STEP = "read_trace"
EXAMPLE = "examples/small_cnn.pt.trace.json.gz"  # shipped, and read where no trace is given
ENDINGS = (".json", ".json.gz", ".sqlite", ".xplane.pb")  # as mfulab.tracing.reader, without numpy


def expanded(given: str | None) -> Iterator[dict[str, str]]:
    """Name, path and digest of each file that `trace` means. Raises ConfigurationError if no file matches."""
    if not given:
        if not Path(EXAMPLE).exists():
            raise ConfigurationError(f"trace={given}: give a file, a folder or a glob, such as trace='runs/*.json.gz'.")
        print(f"trace: none is given, so the example {EXAMPLE} is read; yours: trace='runs/*.json.gz'", file=sys.stderr)
        given = EXAMPLE
    paths = found_files(str(given), ENDINGS)
    if not paths:
        raise ConfigurationError(f"trace={given}: no file is there ({' or '.join(ENDINGS)}).")
    stems = Counter(map(_stem, paths))
    for path in paths:
        name = _stem(path) if stems[_stem(path)] == 1 else f"{path.parent.name}-{_stem(path)}"
        try:
            content = digest(path)
        except (FileNotFoundError, UnreadableError) as error:
            raise ConfigurationError(f"trace={given}: {error}.") from error
        yield {"name": _name(name), "path": str(path), "digest": content[:16]}


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
