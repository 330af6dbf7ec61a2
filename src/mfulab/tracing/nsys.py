"""Reads the SQLite export of Nsight Systems (`nsys export --type sqlite`) into a `Trace`. A column
that an export lacks reads as NULL. Tables and columns: NVIDIA, Nsight Systems User Guide, "SQLite
Schema Reference"."""

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol

from mfulab.core.json_text import parse_json
from mfulab.core.said import Said
from mfulab.flops.traced import is_traced_matmul
from mfulab.tracing.recorder import Recorder
from mfulab.tracing.trace import (
    COPY,
    MOST_OF_FAULT,
    Call,
    Trace,
    TraceError,
    kind_of,
    step_mark,
)

EXPORT = "nsys export --type sqlite"
LONGEST_CELL = 1 << 24  # bytes; names of kernels have some thousand
# Names that torch.autograd.profiler.emit_nvtx writes, with sizes if record_shapes is on.
_RANGE = re.compile(
    r"(?P<name>.*?)(?:, seq = (?P<seq>-?\d+))?(?:, op_id = \d+)?(?:, sizes = (?P<sizes>\[.*?\]))?"
    r"(?:, input_op_ids = .*)?",
    re.DOTALL,
)
_PLACE = (
    "globalPid",
    "deviceId",
    "contextId",
    "streamId",
    "correlationId",
    "gridX",
    "gridY",
    "gridZ",
)
# Tables of activities: the columns that name an activity, and the name that they make. Whole graphs
# are recorded with --cuda-graph-trace=graph.
_ACTIVITIES: dict[str, tuple[tuple[str, ...], Callable[[list[str]], str]]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        ("demangledName", "shortName"),
        lambda names: names[0] or names[1],
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ((), lambda _: "CUDA graph"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (("copyKind",), lambda kind: f"Memcpy {kind[0]}".strip()),
    "CUPTI_ACTIVITY_KIND_MEMSET": ((), lambda _: "Memset"),
}
_RANGES = (59, 60)  # NVTX's push/pop and start/end


def read(path: Path) -> list[Trace]:
    """Reads an export: kernels, copies, runtime calls and NVTX ranges. Raises TraceError if the
    file is not a readable export."""
    try:
        address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.text_factory = lambda text: text.decode(errors="replace")
            database.execute("PRAGMA trusted_schema = OFF")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_CELL)
            return Export(path, Database(database)).traces()
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise TraceError(path, damaged_export(error, EXPORT)) from None


def damaged_export(error: Exception, command: str) -> Said:
    """Reason why a damaged export cannot be read, with the command that writes it anew."""
    fault = str(error).partition("\n")[0][:MOST_OF_FAULT]
    return Said("damaged_export", error=fault, command=command)


class Tables(Protocol):
    """Tables of an export, whatever the format of its files."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the tables."""

    def columns(self, table: str) -> set[str]:
        """Names of a table's columns."""

    def rows(self, table: str, columns: Sequence[str]) -> Iterable[Sequence[Any]]:
        """Rows of a table's columns."""


class Database:
    """Tables of an SQLite file."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        # Leaves out views and virtual tables, which may compute for ever and have no root page: an
        # export has none.
        tables = (
            "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 ORDER BY name"
        )
        self.names = [str(name) for (name,) in database.execute(tables)]

    def columns(self, table: str) -> set[str]:
        """Names of a table's columns."""
        return {row[1] for row in self.database.execute(f'PRAGMA table_info("{table}")')}

    def rows(self, table: str, columns: Sequence[str]) -> Iterable[Sequence[Any]]:
        """Rows of a table's columns."""
        chosen = ", ".join(columns)
        return self.database.execute(f'SELECT {chosen} FROM "{table}"')  # noqa: S608 (our names)


class Export:
    """Builds traces from the tables of an export."""

    def __init__(self, path: Path, tables: Tables) -> None:
        self.path = path
        self.tables = tables
        self.recorder = Recorder(path)
        self.names: dict[int, str] = dict(self._rows("StringIds", "id", "value"))
        self.processes: dict[int, int] = {}
        self.devices = {
            ((pid or 0) & 0xFFFFFF, number): gpu
            for number, gpu, pid in self._rows("TARGET_INFO_CUDA_DEVICE", "cudaId", "gpuId", "pid")
        }
        self.has_processes = "globalPid" in self._columns("CUPTI_ACTIVITY_KIND_KERNEL")

    def traces(self) -> list[Trace]:
        """Returns one trace per process. Raises TraceError if the tables hold no CUDA activity, or
        a foreign schema."""
        if foreign := self._foreign():
            raise TraceError(self.path, Said(foreign))
        self._activities()
        calls = self._spans("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid", "correlationId", "nameId")
        for span, (thread, number, name) in calls:
            number = self._correlation(thread, number)
            called = self._name(name).partition("_v")[0]
            self.recorder.launch(span, (self._process(thread), thread), number, called)
        self._ranges()
        if not self.recorder.executed:
            raise TraceError(self.path, Said("no_cuda_work"))
        columns = ("id", "name", "smCount", "computeMajor", "computeMinor")
        names = ("id", "name", "numSms", "computeMajor", "computeMinor")
        rows = self._rows("TARGET_INFO_GPU", *columns)
        properties = [dict(zip(names, row, strict=True)) for row in rows]
        return self.recorder.done({"deviceProperties": properties})

    def _foreign(self) -> str:
        """Message key of the reason why the tables hold no CUDA activity; empty if they do."""
        if self._has("CUPTI_ACTIVITY_KIND_KERNEL") or self._has("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
            return ""
        if any(name.startswith("rocpd_") for name in self.tables.names):
            return "is_rocpd"
        if self._has("StringIds") or self._has("META_DATA_EXPORT"):
            return "without_cuda_activities"
        return "foreign_database"

    def _has(self, table: str) -> bool:
        return bool(self._columns(table))

    def _table(self, name: str) -> str:
        """Name of a table in the newest schema present, such as NAME_V2; NAME itself if there is
        none."""
        versions = [table for table in self.tables.names if re.fullmatch(rf"{name}(_V\d+)?", table)]
        return max(versions, key=lambda table: (len(table), table), default=name)

    def _columns(self, table: str) -> set[str]:
        """Names of a table's columns; empty if the export lacks the table."""
        name = self._table(table)
        if name not in self.tables.names:
            return set()
        return self.tables.columns(name)

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yields rows of a table, with None in columns that it lacks; nothing if the export lacks
        the table."""
        present = self._columns(table)
        known = [name for name in columns if name in present]
        if not known:
            return
        indices = [known.index(name) if name in present else -1 for name in columns]
        for row in self.tables.rows(self._table(table), known):
            yield tuple(None if index < 0 else row[index] for index in indices)

    def _spans(
        self, table: str, *columns: str
    ) -> Iterator[tuple[tuple[int, int], tuple[Any, ...]]]:
        """Yields begin and end (ns) and the given columns of each row that has both times. Raises
        TraceError if the table lacks them."""
        present = self._columns(table)
        if present and not {"start", "end"} <= present:
            raise TraceError(self.path, Said("table_without_times", table=table))
        for begin, end, *others in self._rows(table, "start", "end", *columns):
            # a range may never have ended
            if begin is not None and end is not None and begin <= end:
                yield (int(begin), int(end)), tuple(others)

    def _correlation(self, owner: int | None, number: int | None) -> int:
        """Number that links a launch to its work, unique across processes; -1 if there is none."""
        process = self._process(owner)
        if not number:
            return -1
        return self.processes.setdefault(process, len(self.processes)) << 32 | number

    def _process(self, owner: int | None) -> int:
        """Process of a global thread or process id; 0 if the export does not record the processes
        of kernels."""
        if self.has_processes:
            return (owner or 0) >> 24 & 0xFFFFFF
        return 0

    def _name(self, key: int | str | None) -> str:
        if isinstance(key, int):
            return self.names.get(key, "")
        return key or ""

    def _activities(self) -> None:
        copy_kinds = dict(self._rows("ENUM_CUDA_MEMCPY_OPER", "id", "label"))
        for table, (name_columns, name_of) in _ACTIVITIES.items():
            is_copy = "MEM" in table
            labels = {}
            if is_copy:
                labels = copy_kinds
            for span, row in self._spans(table, *_PLACE, *name_columns):
                owner, device, context, stream, number, x, y, z, *name_keys = row
                name = name_of([labels.get(key) or self._name(key) for key in name_keys])
                kind = COPY
                if not is_copy:
                    kind = kind_of(name)
                process = (owner or 0) >> 24 & 0xFFFFFF
                gpu = int(self.devices.get((process, device), device or 0))
                stream = (context or 0) << 32 | (stream or 0)
                blocks = (x or 0) * (y or 0) * (z or 0)
                place = self._process(owner), gpu
                linked = self._correlation(owner, number)
                self.recorder.activity(span, kind, name, place, stream, linked, -1, blocks)

    def _ranges(self) -> None:
        rows = self._spans("NVTX_EVENTS", "text", "textId", "eventType", "globalTid")
        for span, (text, key, kind, thread) in rows:
            text = text or self._name(key)
            if kind not in _RANGES or not text:
                continue
            match = _RANGE.fullmatch(text)
            name, sequence, sizes = text, None, None
            if match:
                name, sequence, sizes = match.group("name", "seq", "sizes")
            mark = step_mark(name)
            call = None
            if is_traced_matmul(name):
                call = Call(name, tuple(_sizes(sizes)), (), ())
            forward = sequence is not None and int(sequence) >= 0
            annotation = mark is not None or "::" not in name
            self.recorder.host_call(
                span, mark or name, (self._process(thread), thread), -1, forward, annotation, call
            )


def _sizes(text: str | None) -> list[Any]:
    """Sizes in the name of an emit_nvtx range; empty if the text is no JSON list."""
    with suppress(ValueError):
        sizes = parse_json(text or "[]")
        if isinstance(sizes, list):
            return sizes
    return []
