"""Reads a trace of any profiler into a `Trace`, recognised by its content."""

import re
from pathlib import Path
from types import ModuleType

from mfulab.tracing import events, nsys, rocprof, xplane
from mfulab.tracing.chrome import Stream
from mfulab.tracing.trace import Trace

_HEAD = 1 << 16
_XSPACE = re.compile(rb"\n.{1,24}?\x12.(?:/host:|/device:|Task |#Chip)", re.DOTALL)


def read(path: Path) -> list[Trace]:
    """Reads a trace file of any profiler, a trace of each process that launched or marked steps. Raises TraceError."""
    traces: list[Trace] = reader_of(path).read(path)
    return traces


def reader_of(path: Path) -> ModuleType:
    """Module that reads a trace file, by the file's first bytes; `events` where no other fits. Raises TraceError."""
    begin = next(Stream(path).chunks(_HEAD), b"")
    if begin.startswith(b"SQLite format 3\0"):
        return nsys
    return xplane if _XSPACE.match(begin) else rocprof if rocprof.TOOL in begin else events
