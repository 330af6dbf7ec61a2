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
ENDINGS = (".json", ".json.gz", ".sqlite", ".xplane.pb")  # as mfulab.measurements.read_trace.reader, without numpy


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
    endings = [next(filter(path.name.endswith, ENDINGS), path.suffix) for path in paths]
    stems = [path.name.removesuffix(end).removesuffix(".pt.trace") for path, end in zip(paths, endings, strict=True)]
    counts = Counter(stems)
    for path, stem in zip(paths, stems, strict=True):
        name = re.sub(r"[^A-Za-z0-9_.\-]", "-", stem if counts[stem] == 1 else f"{path.parent.name}-{stem}")
        try:
            content = digest(path)
        except (FileNotFoundError, UnreadableError) as error:
            raise ConfigurationError(f"trace={given}: {error}.") from error
        yield {"name": re.sub(r"^[^A-Za-z0-9]+", "", name) or "trace", "path": str(path), "digest": content[:16]}


def stamps(given: str) -> list[tuple[str, int, int]]:
    """Path, size and time of change of each file that is meant now."""
    found = [path for word in given.split(",") for path in found_files(word, ENDINGS)]
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in found if path.exists()]
