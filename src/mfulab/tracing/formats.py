"""Reads a trace of any profiler into a `Trace`, recognised by its content."""

import re
from pathlib import Path
from types import ModuleType

from mfulab.core.said import Said
from mfulab.tracing import events, nsys, parquet, rocprof, xplane
from mfulab.tracing.chrome import Stream
from mfulab.tracing.trace import Trace, TraceError

_HEAD = 1 << 16
_XSPACE = re.compile(rb"\n.{1,24}?\x12.(?:/host:|/device:|Task |#Chip)", re.DOTALL)

# Reasons, as keys, that files of other tools, which begin so, are not read.
_OTHERS = {
    rb'\[\s*\{\s*"(?:children|frame|metrics)"\s*:': "is_proton",
    rb'\{\s*"event_type"\s*:\s*"(?:compilation|launch|autotune)': "is_tritonparse",
    rb'\{[^{}\[\]]*"schema"\s*:[^{}\[\]]*"nodes"\s*:\s*\[': "is_chakra",
}


def read(path: Path) -> list[Trace]:
    """Reads a trace file of any profiler, a trace of each process that launched or marked steps.
    Raises TraceError."""
    traces: list[Trace] = reader_of(path).read(path)
    return traces


def reader_of(path: Path) -> ModuleType:
    """Module that reads a trace file, by the file's first bytes; `events` where no other fits.
    Raises TraceError."""
    if path.is_dir():
        return parquet
    begin = next(Stream(path).chunks(_HEAD), b"")
    if begin.startswith(b"SQLite format 3\0"):
        return nsys
    if begin.startswith(b"PAR1"):
        return parquet
    if _XSPACE.match(begin):
        return xplane
    if rocprof.TOOL in begin:
        return rocprof
    for opening, reason in _OTHERS.items():
        if re.match(opening, begin.lstrip()):
            raise TraceError(path, Said(reason))
    return events
