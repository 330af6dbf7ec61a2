"""Reads a trace of any profiler into a `Trace`; recognises the profiler by the file's content."""

import re
from pathlib import Path
from types import ModuleType

from mfulab.core.said import Said
from mfulab.tracing import events, nsys, parquet, rocprof, xplane
from mfulab.tracing.chrome import Stream
from mfulab.tracing.trace import Trace, TraceError

_HEAD = 1 << 16
_XSPACE = re.compile(rb"\n.{1,24}?\x12.(?:/host:|/device:|Task |#Chip)", re.DOTALL)

# Message keys of why files of other tools are not read, by how the files begin.
_OTHERS = {
    rb'\[\s*\{\s*"(?:children|frame|metrics)"\s*:': "is_proton",
    rb'\{\s*"event_type"\s*:\s*"(?:compilation|launch|autotune)': "is_tritonparse",
    rb'\{[^{}\[\]]*"schema"\s*:[^{}\[\]]*"nodes"\s*:\s*\[': "is_chakra",
}


def read(path: Path) -> list[Trace]:
    """Reads a trace file of any profiler: one trace per process that launched work or marked steps.
    Raises TraceError if it cannot be read."""
    traces: list[Trace] = reader_of(path).read(path)
    return traces


def reader_of(path: Path) -> ModuleType:
    """Returns the module that reads a trace file, chosen by the file's first bytes; `events` if
    nothing else matches. Raises TraceError for a known format that is not supported."""
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
