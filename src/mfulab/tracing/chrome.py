"""Reads a Chrome trace of torch.profiler as a stream: batches of events, whatever the file's size.

The file is taken apart at the boundaries between events, so that memory holds one batch of them and never the file.
"""

import gzip
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

from mfulab.core.files import UnreadableError, opened
from mfulab.device.cpu import memory_limit_bytes
from mfulab.tracing.recording import TraceError

BATCH_BYTES = 8 << 20
MOST_BATCHES = 8  # without an end of an event
HEAD_BYTES = 64 << 20  # of metadata before the first event
MOST_BYTES = 64 << 30  # unpacked
MEMORY_PER_BYTE, BASE_BYTES = 0.7, 300 << 20  # peak memory ÷ size of the JSON, and what any trace takes: docs/traces.md
RATIO = 400  # unpacked ÷ packed bytes: traces pack to a tenth or a thirtieth, a gzip bomb to a thousandth
SMALL_BYTES = 256 << 20  # below it no ratio is suspicious
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|s|bp|args)"\s*:)')
_GZIP, _ZSTD, _ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
_FOREIGN = {
    ".nsys-rep": "an Nsight Systems report: export it with `nsys export --type sqlite FILE`",
    ".qdrep": "an Nsight Systems report: export it with `nsys export --type sqlite FILE`",
    ".ncu-rep": "an Nsight Compute report",
    ".pickle": "a snapshot of CUDA's memory",
}
WANTED = (
    "mfulab reads what torch.profiler's export_chrome_trace writes (*.json, *.json.gz), exports of Nsight Systems "
    "(*.sqlite), profiles of JAX (*.xplane.pb) and rocprofv3's JSON"
)


class Stream:
    """The events of one file, batch after batch; `metadata` is complete after the last.

    Raises:
        TraceError: the file is missing, empty, cut off, no JSON, no trace, or unpacks to more than it should.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.unpacked = 0
        self._packed = 0

    def batches(self) -> Iterator[list[dict[str, Any]]]:
        """Lists of events in the order of the file."""
        with self._open() as file:
            self._require_memory()
            try:
                yield from self._batches(file)
            except EOFError:
                raise self._cut("its gzip stream ends early") from None
            except (OSError, zlib.error) as error:
                raise TraceError(f"{self.path}: cannot be unpacked: {error}") from None

    def _open(self) -> IO[bytes]:
        try:
            with opened(self.path, follow=True) as file:
                begin = file.read(16)
            self._packed = self.path.stat().st_size
        except (OSError, UnreadableError) as error:
            raise TraceError(str(error)) from None
        if not begin:
            raise TraceError(f"{self.path}: the file is empty")
        if self.path.suffix in _FOREIGN:
            raise TraceError(f"{self.path}: this is {_FOREIGN[self.path.suffix]}; {WANTED}")
        if begin.startswith((_ZSTD, _ZIP)):
            raise TraceError(f"{self.path}: packed as zip or zstd; unpack it first: {WANTED}")
        return gzip.open(self.path) if begin.startswith(_GZIP) else self.path.open("rb")  # type: ignore[return-value]

    def _require_memory(self) -> None:
        """Raises, before anything is read, where the columns of so large a file would not fit into memory."""
        size = unpacked_size(self.path, self._packed)
        need, free = BASE_BYTES + MEMORY_PER_BYTE * size, free_memory_bytes()
        if free is not None and need > free:
            raise TraceError(
                f"{self.path}: {size / 1e9:.1f} GB of JSON need about {need / 1e9:.1f} GB of memory and "
                f"{free / 1e9:.1f} GB are free: record fewer steps, or read it on a larger machine"
            )

    def _batches(self, file: IO[bytes]) -> Iterator[list[dict[str, Any]]]:
        buffer, opening, ended = self._head(file)
        count = 0
        while not ended:
            more = self._read(file)
            ended = not more
            buffer += more
            if ended:
                break
            cuts = [match.start() + 1 for match in _BETWEEN.finditer(buffer, max(0, len(buffer) - (1 << 20)))]
            for cut in cuts[:-9:-1]:  # a list inside an event may look like a boundary
                events = _parsed(b"[" + buffer[:cut] + b"]")
                if isinstance(events, list):
                    count += len(events)
                    yield events
                    buffer = buffer[cut:].lstrip()[1:]
                    break
            else:
                if len(buffer) > MOST_BATCHES * BATCH_BYTES:
                    raise TraceError(f"{self.path}: not valid JSON after {count:,} events; {WANTED}")
        rest = _parsed(opening + buffer)
        if isinstance(rest, str):
            raise self._cut(f"{rest}, after {count:,} events")
        if isinstance(rest, list):
            yield rest
            return
        self.metadata |= {name: value for name, value in rest.items() if name != "traceEvents"}
        yield rest["traceEvents"]

    def _head(self, file: IO[bytes]) -> tuple[bytes, bytes, bool]:
        """Text after the opening of the list of events, that opening, and True at the file's end."""
        buffer = b""
        while len(buffer) < HEAD_BYTES:
            more = self._read(file)
            buffer += more
            text = buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
            if text[:1] not in (b"{", b"[", b""):
                raise TraceError(f"{self.path}: not JSON: it begins with {text[:12]!r}; {WANTED}")
            if text[:1] == b"[":
                return text[1:], b"[", not more
            if found := _EVENTS.search(text):
                head = _parsed(text[: found.start()].rstrip().rstrip(b",") + b"}")
                self.metadata |= head if isinstance(head, dict) else {}
                return text[found.end() :], b'{"traceEvents":[', not more
            if not more:
                break
        if isinstance(problem := _parsed(buffer), str):
            raise TraceError(f"{self.path}: not valid JSON: {problem}; {WANTED}")
        raise TraceError(f"{self.path}: JSON without traceEvents; {WANTED}")

    def _read(self, file: IO[bytes]) -> bytes:
        chunk = file.read(BATCH_BYTES)
        self.unpacked += len(chunk)
        if self.unpacked > MOST_BYTES or (self.unpacked > SMALL_BYTES and self.unpacked > RATIO * self._packed):
            raise TraceError(
                f"{self.path}: {self._packed:,} bytes unpack to more than {self.unpacked:,}: no trace packs so well"
            )
        return chunk

    def _cut(self, why: str) -> TraceError:
        return TraceError(f"{self.path}: cut in the middle ({why}); copy or record it anew")


def unpacked_size(path: Path, packed: int) -> int:
    """Bytes of a file, unpacked; of a gzip the size that its last four bytes hold modulo 4 GiB.

    Traces pack to about a fifteenth, which tells how many times 4 GiB to add.
    """
    with path.open("rb") as file:
        if file.read(2) != _GZIP or packed < 20:
            return packed
        file.seek(-4, os.SEEK_END)
        rest = int.from_bytes(file.read(4), "little")
    return rest + max(0, round((15 * packed - rest) / 2**32)) * 2**32


def free_memory_bytes() -> int | None:
    """Bytes that a process may still take: of the machine, and of the tightest cgroup; None if neither is known."""
    import psutil

    limit = memory_limit_bytes()
    left = [psutil.virtual_memory().available]
    if limit is not None:
        left.append(limit - psutil.Process().memory_info().rss)
    return min(left)


def nanoseconds(value: Any) -> int | None:
    """A time of the trace, in µs with fractions, as whole nanoseconds; None for what is no time."""
    if isinstance(value, int):
        return value * 1000
    if isinstance(value, float | Decimal):
        return round(value * 1000) if math.isfinite(value) and abs(float(value)) < 1e16 else None
    return None


def _number(text: str) -> float | Decimal:
    # A float holds 15 digits: microseconds since 1970 with three decimals have 19.
    return float(text) if len(text) < 18 else Decimal(text)


def _parsed(text: bytes) -> Any:
    """The value, or what is wrong as text."""
    try:
        return json.loads(text.decode(errors="replace"), parse_float=_number)
    except (ValueError, RecursionError) as error:
        return str(error)[:120]


def foreign(metadata: Mapping[str, Any], events: list[dict[str, Any]]) -> str:
    """Says whose trace a file without events of torch.profiler is."""
    names = " ".join(str(event.get("args", "")) for event in events[:200] if event.get("ph") == "M")
    if "/device:" in names or "/host:CPU" in names or "highres-ticks" in str(metadata.get("metadata", "")):
        return "a JAX or TensorFlow profile"
    if any("Type" in event for event in events[:20]):
        return "an Nsight Systems export"
    return "a trace of another program"
