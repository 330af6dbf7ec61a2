"""Reads a Chrome trace of torch.profiler as a stream, cut between events: memory holds a batch, never the file."""

import gzip
import json
import math
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from mfulab.core.files import UnreadableError, opened
from mfulab.device.cpu import memory_limit_bytes
from mfulab.tracing.trace import TraceError

BATCH_BYTES = 4 << 20
MOST_BATCHES = 16  # without an end of an event
LONGEST_WORD = 8  # characters of a number or name that a cut may leave half of, with a sign
MOST_US = 4 * 10**15  # a time, µs: the year 2096
HEAD_BYTES = 64 << 20  # of metadata before the first event
MOST_BYTES = 64 << 30  # unpacked
MEMORY_PER_BYTE, BASE_BYTES = 0.7, 300 << 20  # peak memory ÷ size of the JSON, and what any trace takes: docs/traces.md
RATIO = 400  # unpacked ÷ packed bytes: traces pack to a tenth or a thirtieth, a gzip bomb to a thousandth
SMALL_BYTES = 256 << 20  # below it no ratio is suspicious
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|s|bp|args)"\s*:)')
_ESCAPES = re.compile(rb"(\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4}))|\\")
_INFINITE = re.compile(rb"(?<=[:,\[])\s*-?(?:inf|nan)(?=\s*[,}\]])")
# A number with decimals of which a float of µs would lose nanoseconds.
_LONG = re.compile(rb"\.(?:(?<=\d{14}\.)|(?<=\d{10}\.)\d{4})")
_GZIP = b"\x1f\x8b"
_NSYS = "an Nsight Systems report: export it with `nsys export --type sqlite FILE`"
_PERFETTO = "a protobuf trace of Perfetto: make Chrome's JSON of it, `traceconv json FILE OUT.json`; "
_PERFETTO += "with rocprofv3 record by --output-format json"
_FOREIGN = {".nsys-rep": _NSYS, ".qdrep": _NSYS, ".ncu-rep": "an Nsight Compute report"}
_FOREIGN |= {".pftrace": _PERFETTO, ".perfetto-trace": _PERFETTO}
_SNAPSHOT = "a snapshot of CUDA's memory, which holds no times: https://pytorch.org/memory_viz shows it"
_BEGINS = {  # of other files
    (b"\x28\xb5\x2f\xfd", b"PK\x03\x04"): "packed as zip or zstd; unpack it first",
    (b"\xff\xfe", b"\xfe\xff"): "UTF-16 text, as PowerShell's > writes: save it as UTF-8",
    (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"): "a pickle, which is not opened, as it could run code",
}
WANTED = (
    "mfulab reads what torch.profiler's export_chrome_trace writes (*.json, *.json.gz), exports of Nsight Systems "
    "(*.sqlite), profiles of JAX (*.xplane.pb) and rocprofv3's JSON"
)


class Stream:
    """One file, read piece after piece: its bytes, unpacked, or its events; `metadata` is complete after the last.
    Raises TraceError: the file is missing, empty, cut off, no JSON, no trace, or unpacks to more than it should."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self._mends = False
        try:
            with opened(path, follow=True) as file:
                begin = file.read(64)
            self._size = path.stat().st_size
        except (OSError, UnreadableError) as error:
            raise TraceError(str(error)) from None
        says = next((says for begins, says in _BEGINS.items() if begin.startswith(begins)), "")
        if says and b"segments" in begin:  # the first key of torch.cuda.memory._dump_snapshot's
            says = _SNAPSHOT
        if foreign := _FOREIGN.get(Path(path.name.removesuffix(".gz")).suffix):
            says = f"this is {foreign}"
        if says or not begin:
            raise TraceError(f"{path}: {says}; {WANTED}" if begin else f"{path}: the file is empty")
        self._packed = begin.startswith(_GZIP)

    def chunks(self, size: int | None = None) -> Iterator[bytes]:
        """The file's bytes in order, unpacked, `size` at a time."""
        unpacked = 0
        try:
            with gzip.open(self.path) if self._packed else self.path.open("rb") as file:
                while chunk := file.read(size or BATCH_BYTES):  # type: ignore[union-attr]
                    unpacked += len(chunk)
                    if unpacked > MOST_BYTES or unpacked > max(SMALL_BYTES, RATIO * self._size):
                        why = f"{self._size:,} bytes unpack to more than {unpacked:,}: no trace packs so well"
                        raise TraceError(f"{self.path}: {why}")
                    yield chunk
        except EOFError:
            raise self._cut("its gzip stream ends early") from None
        except (OSError, zlib.error) as error:
            raise TraceError(f"{self.path}: cannot be unpacked: {error}") from None

    def batches(self) -> Iterator[list[dict[str, Any]]]:
        """Lists of events in the order of the file. Raises, before anything is read, where memory is too small."""
        size = unpacked_size(self.path, self._size)
        need, free = BASE_BYTES + MEMORY_PER_BYTE * size, free_memory_bytes()
        if need > free:
            raise TraceError(
                f"{self.path}: {size / 1e9:.1f} GB of JSON need about {need / 1e9:.1f} GB of memory and "
                f"{free / 1e9:.1f} GB are free: record fewer steps, or read it on a larger machine"
            )
        chunks, count = self.chunks(), 0
        buffer, opening = self._head(chunks)
        for chunk in chunks:
            buffer += chunk
            cuts = [match.start() + 1 for match in _BETWEEN.finditer(buffer, max(0, len(buffer) - (1 << 20)))]
            for cut in cuts[:-9:-1]:  # a list inside an event may look like a boundary
                events = self._parsed(b"[" + buffer[:cut] + b"]")
                if isinstance(events, list):
                    count += len(events)
                    yield events
                    buffer = buffer[cut:].lstrip()[1:]
                    break
            else:
                if len(buffer) > MOST_BATCHES * BATCH_BYTES:
                    raise self._damaged(self._parsed(b"[" + buffer), count)
        rest = self._parsed(opening + buffer)
        if isinstance(rest, Exception):
            raise self._damaged(rest, count)
        if isinstance(rest, dict):
            self.metadata |= {name: value for name, value in rest.items() if name != "traceEvents"}
            rest = rest["traceEvents"]
        yield rest

    def _parsed(self, text: bytes) -> Any:
        """The value, or what is wrong as an error; a text of faults that torch made is mended, and all after it."""
        with suppress(ValueError):  # of what a faster parser refuses the slower one says why, or mends it
            if not (self._mends or _LONG.search(text)):
                return from_json(text)
        value = _parsed(text, self._mends)
        if isinstance(value, Exception) and not self._mends:
            mended = _parsed(text, True)
            self._mends = not isinstance(mended, Exception)
            return mended if self._mends else value
        return value

    def _damaged(self, error: Any, count: int) -> TraceError:
        after = f"after {count:,} events"
        if not isinstance(error, json.JSONDecodeError):
            return TraceError(f"{self.path}: not valid JSON ({str(error)[:120] or type(error).__name__}), {after}")
        if "Unterminated" in error.msg or len(error.doc.rstrip()) - error.pos <= LONGEST_WORD:
            return self._cut(f"{error.msg}, {after}")
        near = error.doc[max(0, error.pos - 20) : error.pos + 20]
        return TraceError(f"{self.path}: damaged: {error.msg} at {near!r}, {after}; {WANTED}")

    def _head(self, chunks: Iterator[bytes]) -> tuple[bytes, bytes]:
        buffer = b""
        for chunk in chunks:
            buffer += chunk
            text = buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
            if text[:1] not in (b"{", b"[", b""):
                raise TraceError(f"{self.path}: not JSON: it begins with {text[:12]!r}; {WANTED}")
            if text[:1] == b"[":
                return text[1:], b"["
            if match := _EVENTS.search(text):
                head = self._parsed(text[: match.start()].rstrip().rstrip(b",") + b"}")
                self.metadata |= head if isinstance(head, dict) else {}
                return text[match.end() :], b'{"traceEvents":['
            if len(buffer) >= HEAD_BYTES:
                break
        if isinstance(problem := self._parsed(buffer), Exception):
            raise TraceError(f"{self.path}: not valid JSON: {str(problem)[:120]}; {WANTED}")
        raise TraceError(f"{self.path}: JSON without traceEvents; {WANTED}")

    def _cut(self, why: str) -> TraceError:
        return TraceError(f"{self.path}: cut in the middle ({why}); copy or record it anew")


def unpacked_size(path: Path, packed: int) -> int:
    """Bytes of a file, unpacked. A gzip's last four bytes hold them modulo 4 GiB; traces pack to about a fifteenth,
    which tells how many times to add."""
    with path.open("rb") as file:
        if file.read(2) != _GZIP or packed < 20:
            return packed
        file.seek(-4, os.SEEK_END)
        rest = int.from_bytes(file.read(4), "little")
    return rest + max(0, round((15 * packed - rest) / 2**32)) * 2**32


def free_memory_bytes() -> int:
    """Bytes that a process may still take: of the machine, and of the tightest cgroup."""
    import psutil

    limit = memory_limit_bytes() or math.inf
    return int(min(psutil.virtual_memory().available, limit - psutil.Process().memory_info().rss))


def nanoseconds(value: Any) -> int | None:
    """A time of the trace, in µs with fractions or as text, as whole nanoseconds; None for what is no time."""
    try:
        number = Decimal(value) if isinstance(value, str) else value
        is_time = isinstance(number, int | float | Decimal) and -MOST_US < number < MOST_US
        return round(number * 1000) if is_time else None
    except ArithmeticError:  # a Decimal of no number
        return None


def _number(text: str) -> float | Decimal:
    # A float holds 15 digits: microseconds since 1970 with three decimals have 19.
    return float(text) if len(text) < 18 else Decimal(text)


def _parsed(text: bytes, mend: bool = False) -> Any:
    """The value, or its fault as an error; `mend` reads C++'s infinities and backslashes that torch did not escape."""
    try:
        if mend:
            text = _INFINITE.sub(rb"null", _ESCAPES.sub(lambda match: match[1] or rb"\\", text))
        return json.loads(text.decode(errors="replace"), parse_float=_number, strict=False)
    except (ValueError, RecursionError, ArithmeticError) as error:
        return error
