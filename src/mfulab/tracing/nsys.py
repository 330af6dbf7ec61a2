"""Reads what `nsys export --type sqlite` writes into a `Recording`.

Tables and columns: NVIDIA, Nsight Systems User Guide, "SQLite Schema Reference". A column that an export lacks is NULL,
so that older schemas and cut-down exports are read as far as they go.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from mfulab.flops.recorded import is_recorded_matmul
from mfulab.tracing.recording import COPY, Call, Recorder, Recording, TraceError, kind_of, step_mark

EXPORT = "nsys export --type sqlite"
# What torch.autograd.profiler.emit_nvtx writes, with sizes where record_shapes is on.
_RANGE = re.compile(
    r"(?P<name>.*?)(?:, seq = (?P<seq>-?\d+))?(?:, op_id = \d+)?(?:, sizes = (?P<sizes>\[.*?\]))?"
    r"(?:, input_op_ids = .*)?",
    re.DOTALL,
)
_PLACE = (*("globalPid", "deviceId", "contextId", "streamId", "correlationId"), *("gridX", "gridY", "gridZ"))
# Columns of their own, and the name that these make; whole graphs are recorded with --cuda-graph-trace=graph.
_ACTIVITIES: dict[str, tuple[tuple[str, ...], Callable[[list[str]], str]]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (("demangledName", "shortName"), lambda names: names[0] or names[1]),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ((), lambda _: "CUDA graph"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (("copyKind",), lambda kind: f"Memcpy {kind[0]}".strip()),
    "CUPTI_ACTIVITY_KIND_MEMSET": ((), lambda _: "Memset"),
}
_RANGES = (59, 60)  # NVTX's push/pop and start/end


def read(path: Path) -> Recording:
    """Reads an export: kernels, copies, the runtime's calls and NVTX ranges. Raises TraceError for any other file."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            database.text_factory = lambda text: text.decode(errors="replace")
            return _Export(path, database).recording()
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: a damaged export ({error}); copy it, or write it anew: {EXPORT}") from None


class _Export:
    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path, self.database, self.recorder = path, database, Recorder(path)
        self.names: dict[int, str] = dict(self._rows("StringIds", "id", "value"))
        self.processes: dict[int, int] = {}
        self.devices = {
            ((pid or 0) & 0xFFFFFF, number): gpu
            for number, gpu, pid in self._rows("TARGET_INFO_CUDA_DEVICE", "cudaId", "gpuId", "pid")
        }
        self.apart = "globalPid" in self._columns("CUPTI_ACTIVITY_KIND_KERNEL")

    def recording(self) -> Recording:
        if not self._columns("CUPTI_ACTIVITY_KIND_KERNEL") and not self._columns("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
            what = "without CUDA activities: record with nsys profile --trace=cuda,nvtx"
            known = self._columns("StringIds") or self._columns("META_DATA_EXPORT")
            raise TraceError(f"{self.path}: {f'an export {what}' if known else 'a database of another program'}")
        self._activities()
        calls = self._spans("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid", "correlationId", "nameId")
        for span, (thread, number, name) in calls:
            self.recorder.launch(span, thread, self._correlation(thread, number), self._name(name).partition("_v")[0])
        self._ranges()
        if not len(self.recorder.activities):
            raise TraceError(f"{self.path}: no CUDA kernel or copy lies in this export")
        rows = self._rows("TARGET_INFO_GPU", "id", "name", "smCount", "computeMajor", "computeMinor")
        names = ("id", "name", "numSms", "computeMajor", "computeMinor")
        return self.recorder.done({"deviceProperties": [dict(zip(names, row, strict=True)) for row in rows]})

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self.database.execute(f'PRAGMA table_info("{table}")')}

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table's columns, NULL for one that it lacks; no row where there is no table."""
        held = self._columns(table)
        if held:
            chosen = ", ".join(name if name in held else "NULL" for name in columns)
            yield from self.database.execute(f'SELECT {chosen} FROM "{table}"')  # noqa: S608 (names of this module)

    def _spans(self, table: str, *columns: str) -> Iterator[tuple[tuple[int, int], tuple[Any, ...]]]:
        held = self._columns(table)
        if held and not {"start", "end"} <= held:
            raise TraceError(f"{self.path}: {table} has no columns start and end: a schema that is not known here")
        for begin, end, *rest in self._rows(table, "start", "end", *columns):
            if begin is not None and end is not None and begin <= end:  # a range may never have ended
                yield (int(begin), int(end)), tuple(rest)

    def _correlation(self, owner: int | None, number: int | None) -> int:
        """The number that links a launch to its work, different in each process."""
        process = (owner or 0) >> 24 if self.apart else 0
        return -1 if not number else self.processes.setdefault(process, len(self.processes)) << 32 | number

    def _name(self, key: Any) -> str:
        return self.names.get(key, "") if isinstance(key, int) else key or ""

    def _activities(self) -> None:
        copied = dict(self._rows("ENUM_CUDA_MEMCPY_OPER", "id", "label"))
        for table, (own, name_of) in _ACTIVITIES.items():
            held = {} if "MEM" not in table else copied
            for span, (owner, device, context, stream, number, x, y, z, *about) in self._spans(table, *_PLACE, *own):
                name = name_of([held.get(one) or self._name(one) for one in about])
                kind = COPY if "MEM" in table else kind_of(name)
                gpu = int(self.devices.get(((owner or 0) >> 24 & 0xFFFFFF, device), device or 0))
                place, blocks = (context or 0) << 32 | (stream or 0), (x or 0) * (y or 0) * (z or 0)
                self.recorder.activity(span, kind, name, gpu, place, self._correlation(owner, number), -1, blocks)

    def _ranges(self) -> None:
        for span, (text, key, kind, thread) in self._spans("NVTX_EVENTS", "text", "textId", "eventType", "globalTid"):
            if kind not in _RANGES or not (text := text or self._name(key)):
                continue
            found = _RANGE.fullmatch(text)
            name, sequence, sizes = found.group("name", "seq", "sizes") if found else (text, None, None)
            mark = step_mark(name)
            call = Call(name, tuple(_sizes(sizes)), (), ()) if is_recorded_matmul(name) else None
            forward = sequence is not None and int(sequence) >= 0
            annotation = mark is not None or "::" not in name
            self.recorder.host_call(span, mark or name, thread, -1, forward, annotation, call)


def _sizes(text: str | None) -> list[Any]:
    try:
        found = json.loads(text) if text else []
    except ValueError:
        return []
    return found if isinstance(found, list) else []
