"""Reads a Chrome trace of torch.profiler as a stream, cut between events: memory holds one batch,
never the file."""

import gzip
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from mfulab.core.files import UnreadableError, opened
from mfulab.core.parts import Content, leave_out, pick_present
from mfulab.core.said import Said, as_told
from mfulab.device.cpu import memory_limit_bytes
from mfulab.tracing.trace import MOST_OF_FAULT, TraceError

BATCH_BYTES = 512 << 10  # the events of a batch fit into caches
MOST_BATCHES = 128  # buffered at most without the end of an event
LONGEST_WORD = 8  # characters of a number or literal that a truncated file may end in
MOST_US = 4 * 10**15  # latest time, µs: the year 2096
HEAD_BYTES = 64 << 20  # of metadata before the first event
MOST_BYTES = 64 << 30  # unpacked
MEMORY_PER_BYTE = 0.7
BASE_BYTES = 300 << 20  # peak memory ÷ size of the JSON, and what any trace takes: docs/traces.md
# Highest unpacked ÷ packed bytes: 10 to 30 for traces, 1000 for a gzip bomb.
RATIO = 400
UNCHECKED_BYTES = 64 << 20  # any machine has memory for such a file
SMALL_BYTES = 256 << 20  # below it no ratio is suspicious
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|s|bp|args)"\s*:)')
_ESCAPES = re.compile(rb"(\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4}))|\\")
_INFINITE = re.compile(rb"(?<=[:,\[])\s*-?(?:inf|nan)(?=\s*[,}\]])")
# A number of µs so long that a float would lose nanoseconds.
_LONG = re.compile(rb"\.(?:(?<=\d{14}\.)|(?<=\d{10}\.)\d{4})")
_GZIP = b"\x1f\x8b"
# Message keys of why other programs' files are not read: by file name suffix, by first bytes.
_ENDINGS = {
    ".nsys-rep": "is_nsys_report",
    ".qdrep": "is_nsys_report",
    ".ncu-rep": "is_ncu_report",
    ".et": "is_chakra",
    ".chakra": "is_chakra",
    ".pftrace": "is_pftrace",
    ".perfetto-trace": "is_pftrace",
}
_BEGINS = {
    b"\x28\xb5\x2f\xfd": "is_packed",
    b"PK\x03\x04": "is_packed",
    b"\xff\xfe": "is_utf16",
    b"\xfe\xff": "is_utf16",
    b"\x80\x02": "is_pickle",
    b"\x80\x03": "is_pickle",
    b"\x80\x04": "is_pickle",
    b"\x80\x05": "is_pickle",
}
_SNAPSHOT = b"segments"  # the first key of torch.cuda.memory._dump_snapshot's pickle


class Args(msgspec.Struct, gc=False):
    """Arguments of an event that are read, under the names that profilers use."""

    device: Any = msgspec.UNSET
    stream: Any = msgspec.UNSET
    correlation: Any = None
    external: Any = msgspec.field(default=None, name="External id")
    old_external: Any = msgspec.field(default=-1, name="external id")
    grid: Any = None
    kernel: Any = ""
    shapes: Any = msgspec.field(default=msgspec.UNSET, name="Input Dims")
    old_shapes: Any = msgspec.field(default=(), name="Input dims")
    types: Any = msgspec.field(default=(), name="Input type")
    values: Any = msgspec.field(default=(), name="Concrete Inputs")
    sequence: Any = msgspec.field(default=msgspec.UNSET, name="Sequence number")
    forward_thread: Any = msgspec.field(default=0, name="Fwd thread id")
    collective: Any = msgspec.field(default=msgspec.UNSET, name="Collective name")
    dtype: Any = None
    sent: Any = msgspec.field(default=None, name="In msg nelems")
    received: Any = msgspec.field(default=None, name="Out msg nelems")
    group_size: Any = msgspec.field(default=None, name="Group size")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    source: Any = msgspec.field(default=None, name="Src Rank")
    target: Any = msgspec.field(default=None, name="Dst Rank")
    # Only to recognise device events of kinds that are not read.
    device_id: Any = msgspec.field(default=msgspec.UNSET, name="Device Id")
    lower_device_id: Any = msgspec.field(default=msgspec.UNSET, name="device id")
    stream_id: Any = msgspec.field(default=msgspec.UNSET, name="Stream Id")
    lower_stream_id: Any = msgspec.field(default=msgspec.UNSET, name="stream id")
    task_type: Any = msgspec.field(default=msgspec.UNSET, name="Task Type")
    lower_task_type: Any = msgspec.field(default=msgspec.UNSET, name="task type")


NO_ARGS = Args()


def with_formats(why: Said) -> Said:
    """Appends the formats that can be read to a reason why a file cannot."""
    return Said("both", first=why, second=Said("reads_formats"))


class Event(msgspec.Struct, gc=False):
    """One event of a Chrome trace. Its values may be of any type; other keys are skipped."""

    ph: Any = None
    cat: Any = ""
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


Events = Sequence[Event | None]  # None for a value that is no event
_typed = msgspec.json.Decoder(list[Event])


def _events(values: object) -> list[Event | None]:
    """Converts parsed JSON to events; None for each value that is not an object."""
    if not isinstance(values, list):
        return [None]
    events = list[Event | None]()
    for value in values:
        if not isinstance(value, dict):
            events.append(None)
            continue
        fields = pick_present(value, Event.__struct_fields__)
        args = fields.get("args")
        fields["args"] = None
        if isinstance(args, dict):
            known = {NAMES[name]: value for name, value in args.items() if name in NAMES}
            fields["args"] = Args(**known)
        events.append(Event(**fields))
    return events


NAMES = dict(zip(Args.__struct_encode_fields__, Args.__struct_fields__, strict=True))


class Stream:
    """Reads one trace file in pieces, as unpacked bytes or as events. `metadata` is complete after
    the last piece. Raises TraceError if the file is missing, empty, truncated, not JSON, not a
    trace, or unpacks to more than it should."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: Content = {}
        self._mends = False
        try:
            with opened(path, follow=True) as file:
                begin = file.read(64)
            self._size = path.stat().st_size
        except FileNotFoundError:
            key = "no_such_file"
            if path.is_symlink():
                key = "link_leads_nowhere"
            raise TraceError(path, Said(key)) from None
        except UnreadableError as error:
            raise TraceError(path, error.why) from None
        except OSError as error:
            raise TraceError(path, as_told(str(error).removeprefix(f"{path}: "))) from None
        if not begin:
            raise TraceError(path, Said("file_empty"))
        if foreign := _foreign(path, begin):
            raise TraceError(path, with_formats(Said(foreign)))
        self._packed = begin.startswith(_GZIP)

    def chunks(self, size: int | None = None) -> Iterator[bytes]:
        """Yields the file's unpacked bytes in order, `size` bytes at a time (default:
        `BATCH_BYTES`)."""
        unpacked = 0
        try:
            with gzip.open(self.path) if self._packed else self.path.open("rb") as file:
                while chunk := file.read(size or BATCH_BYTES):  # type: ignore[union-attr]
                    unpacked += len(chunk)
                    if unpacked > MOST_BYTES or unpacked > max(SMALL_BYTES, RATIO * self._size):
                        raise TraceError(
                            self.path,
                            Said("unpacks_without_end", packed=self._size, unpacked=unpacked),
                        )
                    yield chunk
        except EOFError:
            raise self._cut(Said("gzip_ends_early")) from None
        except (OSError, zlib.error) as error:
            raise TraceError(self.path, Said("cannot_be_unpacked", error=str(error))) from None

    @property
    def unpacked_bytes(self) -> int:
        """Estimated size of the unpacked file in bytes."""
        return unpacked_size(self.path, self._size)

    def batches(self, is_kept: bool = True) -> Iterator[Events]:
        """Yields lists of events in file order, with None for a value that is no event. If
        `is_kept`, the caller keeps all events: raises TraceError first if memory is too small for
        them."""
        if is_kept:
            self._check_memory()
        chunks = self.chunks()
        count = 0
        buffer, opening = self._head(chunks)
        for chunk in chunks:
            buffer += chunk
            boundaries = _BETWEEN.finditer(buffer, max(0, len(buffer) - (1 << 16)))
            cuts = [match.start() + 1 for match in boundaries]
            for cut in cuts[:-9:-1]:  # a list inside an event may look like a boundary
                events = self._typed(b"[" + buffer[:cut] + b"]")
                if events is not None:
                    count += len(events)
                    yield events
                    buffer = buffer[cut:].lstrip()[1:]
                    break
            else:
                if len(buffer) > MOST_BATCHES * BATCH_BYTES:
                    raise self._damaged(self._parsed(b"[" + buffer), count)
        last = self._parsed(opening + buffer)
        if isinstance(last, Exception):
            raise self._damaged(last, count)
        if isinstance(last, dict):
            self.metadata |= leave_out(last, ("traceEvents",))
            last = last["traceEvents"]
        yield _events(last)

    def _check_memory(self) -> None:
        size = self.unpacked_bytes
        if size < UNCHECKED_BYTES:
            return
        need = BASE_BYTES + MEMORY_PER_BYTE * size
        free = free_memory_bytes()
        if need > free:
            raise TraceError(self.path, Said("json_needs_memory", size=size, need=need, free=free))

    def _typed(self, text: bytes) -> Events | None:
        """Decodes a JSON list of events; None if the text is not a list. Text that a profiler would
        not write takes a slower parser."""
        if not (self._mends or _LONG.search(text)):
            with suppress(msgspec.DecodeError, RecursionError):
                return _typed.decode(text)
        values = self._parsed(text)
        if isinstance(values, list):
            return _events(values)
        return None

    def _parsed(self, text: bytes) -> Any:
        """Parses JSON; returns an error as a value instead of raising it. Repairs known mistakes of
        torch's output; once that has helped, it repairs all later text too."""
        # The slower parser explains, or repairs, what the faster one refuses.
        with suppress(ValueError):
            if not (self._mends or _LONG.search(text)):
                return msgspec.json.decode(text)
        value = _parsed(text, self._mends)
        if isinstance(value, Exception) and not self._mends:
            mended = _parsed(text, True)
            self._mends = not isinstance(mended, Exception)
            if self._mends:
                return mended
            return value
        return value

    def _damaged(self, error: object, count: int) -> TraceError:
        """Error for invalid JSON after `count` events."""
        if not isinstance(error, json.JSONDecodeError):
            fault = str(error)[:MOST_OF_FAULT] or type(error).__name__
            why = Said("json_invalid_after", error=fault, count=count)
            return TraceError(self.path, why)
        if "Unterminated" in error.msg or len(error.doc.rstrip()) - error.pos <= LONGEST_WORD:
            return self._cut(Said("ends_after", error=error.msg, count=count))
        near = error.doc[max(0, error.pos - 20) : error.pos + 20]
        return TraceError(
            self.path,
            with_formats(Said("json_damaged_at", error=error.msg, near=repr(near), count=count)),
        )

    def _head(self, chunks: Iterator[bytes]) -> tuple[bytes, bytes]:
        """Reads up to the first event. Returns the text from there on, and the opening that makes
        valid JSON of it and the file's end."""
        buffer = b""
        for chunk in chunks:
            buffer += chunk
            text = buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
            if text[:1] not in (b"{", b"[", b""):
                begin = Said("no_json", begin=repr(text[:12]))
                raise TraceError(self.path, with_formats(begin))
            if text[:1] == b"[":
                return text[1:], b"["
            if match := _EVENTS.search(text):
                head = self._parsed(text[: match.start()].rstrip().rstrip(b",") + b"}")
                if isinstance(head, dict):
                    self.metadata |= head
                return text[match.end() :], b'{"traceEvents":['
            if len(buffer) >= HEAD_BYTES:
                break
        if isinstance(problem := self._parsed(buffer), Exception):
            why = Said("json_invalid", error=str(problem)[:MOST_OF_FAULT])
            raise TraceError(self.path, with_formats(why))
        raise TraceError(self.path, with_formats(Said("no_trace_events")))

    def _cut(self, why: Said) -> TraceError:
        return TraceError(self.path, Said("cut_in_the_middle", why=why))


def _foreign(path: Path, begin: bytes) -> str:
    """Message key of the reason why another program's file is not read; empty for other files."""
    ending = Path(path.name.removesuffix(".gz")).suffix
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    for opening, reason in _BEGINS.items():
        if begin.startswith(opening):
            if _SNAPSHOT in begin:
                return "is_snapshot"
            return reason
    return ""


def unpacked_size(path: Path, packed: int) -> int:
    """Size of the unpacked file in bytes. The last four bytes of a gzip hold it modulo 4 GiB.
    Traces pack to about a fifteenth, which gives the missing multiple of 4 GiB."""
    with path.open("rb") as file:
        if file.read(2) != _GZIP or packed < 20:
            return packed
        file.seek(-4, os.SEEK_END)
        low_bits = int.from_bytes(file.read(4), "little")
    return low_bits + max(0, round((15 * packed - low_bits) / 2**32)) * 2**32


def free_memory_bytes() -> int:
    """Bytes that this process may still allocate: free memory, or what the tightest cgroup limit
    leaves."""
    import psutil

    limit = memory_limit_bytes() or math.inf
    return int(min(psutil.virtual_memory().available, limit - psutil.Process().memory_info().rss))


def nanoseconds(value: Any) -> int | None:
    """Converts a time of the trace in µs, a number or text, to whole nanoseconds; None if it is not
    a time."""
    try:
        number = Decimal(value) if isinstance(value, str) else value
        is_time = isinstance(number, int | float | Decimal) and -MOST_US < number < MOST_US
        if is_time:
            return round(number * 1000)
        return None
    except ArithmeticError:  # a Decimal of a text that is no number
        return None


def _number(text: str) -> float | Decimal:
    # A float holds 15 digits: microseconds since 1970 with three decimals have 19.
    if len(text) < 18:
        return float(text)
    return Decimal(text)


def _parsed(text: bytes, mend: bool = False) -> Any:
    """Parses JSON; returns an error as a value instead of raising it. `mend` accepts infinities as
    C++ prints them, and backslashes that torch did not escape."""
    try:
        if mend:
            text = _INFINITE.sub(rb"null", _ESCAPES.sub(lambda match: match[1] or rb"\\", text))
        # A piece of a trace, whose length is bounded and whose numbers are clocks of 19 digits.
        return json.loads(text.decode(errors="replace"), parse_float=_number, strict=False)  # noqa: TID251
    except (ValueError, RecursionError, ArithmeticError) as error:
        return error
