"""Reads what `nsys export --type sqlite` writes into a `Trace`; a column that an export lacks is
NULL. Tables and columns: NVIDIA, Nsight Systems User Guide, "SQLite Schema Reference"."""

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
# What torch.autograd.profiler.emit_nvtx writes, with sizes where record_shapes is on.
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
# Columns of their own, and the name that these make; whole graphs are recorded with
# --cuda-graph-trace=graph.
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
    """Reads an export: kernels, copies, the runtime's calls and NVTX ranges. Raises TraceError for
    any other file."""
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        ) as database:
            database.text_factory = lambda text: text.decode(errors="replace")
            database.execute("PRAGMA trusted_schema = OFF")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_CELL)
            return Export(path, Database(database)).traces()
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise TraceError(path, damaged_export(error, EXPORT)) from None


def damaged_export(error: Exception, command: str) -> Said:
    """Reason that an export is not read, and the command that writes it anew."""
    fault = str(error).partition("\n")[0][:MOST_OF_FAULT]
    return Said("damaged_export", {"error": fault, "command": command})


class Tables(Protocol):
    """Tables of an export, however it was written."""

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
        # A view or a virtual table, which an export has none of, may compute for ever: neither has
        # a page of its own.
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
    """Traces of an export's tables, whatever wrote these."""

    def __init__(self, path: Path, held: Tables) -> None:
        self.path, self.held, self.recorder = path, held, Recorder(path)
        self.tables = held.names
        self.names: dict[int, str] = dict(self._rows("StringIds", "id", "value"))
        self.processes: dict[int, int] = {}
        self.devices = {
            ((pid or 0) & 0xFFFFFF, number): gpu
            for number, gpu, pid in self._rows("TARGET_INFO_CUDA_DEVICE", "cudaId", "gpuId", "pid")
        }
        self.apart = "globalPid" in self._columns("CUPTI_ACTIVITY_KIND_KERNEL")

    def traces(self) -> list[Trace]:
        """A trace of each process. Raises TraceError: no CUDA activity, or another schema."""
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
        rows = self._rows(
            "TARGET_INFO_GPU", "id", "name", "smCount", "computeMajor", "computeMinor"
        )
        names = ("id", "name", "numSms", "computeMajor", "computeMinor")
        return self.recorder.done(
            {"deviceProperties": [dict(zip(names, row, strict=True)) for row in rows]}
        )

    def _foreign(self) -> str:
        """Key of the reason that the tables hold no CUDA activity; empty where they do."""
        if self._has("CUPTI_ACTIVITY_KIND_KERNEL") or self._has("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
            return ""
        if any(name.startswith("rocpd_") for name in self.tables):
            return "is_rocpd"
        if self._has("StringIds") or self._has("META_DATA_EXPORT"):
            return "without_cuda_activities"
        return "foreign_database"

    def _has(self, table: str) -> bool:
        return bool(self._columns(table))

    def _table(self, name: str) -> str:
        """The newest schema's table of this name, NAME_V2 after NAME; the name itself where there
        is none."""
        return max(
            (table for table in self.tables if re.fullmatch(rf"{name}(_V\d+)?", table)),
            default=name,
        )

    def _columns(self, table: str) -> set[str]:
        if (name := self._table(table)) not in self.tables:
            return set()
        return self.held.columns(name)

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table; None in columns that it lacks, no row without the table."""
        held = self._columns(table)
        known = [name for name in columns if name in held]
        if not known:
            return
        places = [known.index(name) if name in held else -1 for name in columns]
        for row in self.held.rows(self._table(table), known):
            yield tuple(None if index < 0 else row[index] for index in places)

    def _spans(
        self, table: str, *columns: str
    ) -> Iterator[tuple[tuple[int, int], tuple[Any, ...]]]:
        held = self._columns(table)
        if held and not {"start", "end"} <= held:
            raise TraceError(self.path, Said("table_without_times", {"table": table}))
        for begin, end, *rest in self._rows(table, "start", "end", *columns):
            # a range may never have ended
            if begin is not None and end is not None and begin <= end:
                yield (int(begin), int(end)), tuple(rest)

    def _correlation(self, owner: int | None, number: int | None) -> int:
        """The number that links a launch to its work, different in each process."""
        process = self._process(owner)
        if not number:
            return -1
        return self.processes.setdefault(process, len(self.processes)) << 32 | number

    def _process(self, owner: int | None) -> int:
        """The number of the process of a global thread or process; 0 where the export does not tell
        kernels'."""
        if self.apart:
            return (owner or 0) >> 24 & 0xFFFFFF
        return 0

    def _name(self, key: Any) -> str:
        if isinstance(key, int):
            return self.names.get(key, "")
        return key or ""

    def _activities(self) -> None:
        copied = dict(self._rows("ENUM_CUDA_MEMCPY_OPER", "id", "label"))
        for table, (own, name_of) in _ACTIVITIES.items():
            held = {} if "MEM" not in table else copied
            for span, (owner, device, context, stream, number, x, y, z, *about) in self._spans(
                table, *_PLACE, *own
            ):
                name = name_of([held.get(key) or self._name(key) for key in about])
                kind = COPY if "MEM" in table else kind_of(name)
                gpu = int(self.devices.get(((owner or 0) >> 24 & 0xFFFFFF, device), device or 0))
                place = (context or 0) << 32 | (stream or 0)
                blocks = (x or 0) * (y or 0) * (z or 0)
                where = self._process(owner), gpu
                self.recorder.activity(
                    span, kind, name, where, place, self._correlation(owner, number), -1, blocks
                )

    def _ranges(self) -> None:
        for span, (text, key, kind, thread) in self._spans(
            "NVTX_EVENTS", "text", "textId", "eventType", "globalTid"
        ):
            if kind not in _RANGES or not (text := text or self._name(key)):
                continue
            match = _RANGE.fullmatch(text)
            name, sequence, sizes = (
                match.group("name", "seq", "sizes") if match else (text, None, None)
            )
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
    with suppress(ValueError):
        sizes = parse_json(text or "[]")
        if isinstance(sizes, list):
            return sizes
        return []
    return []
