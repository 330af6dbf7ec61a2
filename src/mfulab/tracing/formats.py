"""Reads a trace of any profiler into a `Recording`, recognised by its content."""

import gzip
import re
import zlib
from pathlib import Path

from mfulab.core.files import UnreadableError, opened
from mfulab.tracing import events, nsys, rocprof, xplane
from mfulab.tracing.recording import Recording

_HEAD = 1 << 16
_XSPACE = re.compile(rb"\n.{1,24}?\x12.(?:/host:|/device:|Task |#Chip)", re.DOTALL)


def read(path: Path) -> Recording:
    """Reads a trace of torch.profiler, Nsight Systems, JAX or rocprofv3.

    Raises:
        TraceError: the file is no trace, is damaged, or holds nothing to report.
    """
    begin = _beginning(path)
    if begin.startswith(b"SQLite format 3\0"):
        return nsys.read(path)
    if _XSPACE.match(begin):
        return xplane.read(path)
    if rocprof.TOOL in begin:
        return rocprof.read(path)
    return events.read(path)


def is_chrome(path: Path) -> bool:
    """True for a trace of torch.profiler, whose text other events can be added to."""
    begin = _beginning(path)
    return not (begin.startswith(b"SQLite format 3\0") or _XSPACE.match(begin) or rocprof.TOOL in begin)


def _beginning(path: Path) -> bytes:
    """The first bytes, unpacked; none where they cannot be read, which torch.profiler's reader then explains."""
    try:
        with opened(path, follow=True) as file:
            begin = file.read(_HEAD)
        if begin.startswith(b"\x1f\x8b"):
            with gzip.open(path) as packed:
                return packed.read(_HEAD)
        return begin
    except (OSError, EOFError, UnreadableError, zlib.error):
        return b""
