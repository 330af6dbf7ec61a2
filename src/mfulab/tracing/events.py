"""Reads a trace of torch.profiler into a `Recording`; nothing is interpreted but the kind of each event."""

import gc
import math
from pathlib import Path
from typing import Any

from mfulab.flops.recorded import is_recorded_matmul
from mfulab.tracing.chrome import WANTED, Stream, foreign, nanoseconds
from mfulab.tracing.recording import COPY, Call, Recorder, Recording, TraceError, kind_of

_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "concurrent_kernel"}
_KERNEL = {"kernel", "Kernel", "concurrent_kernel"}
_HOST = {"cpu_op", "Operator", "user_annotation"}
_LAUNCH = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "Runtime", "runtime"}


def read(path: Path) -> Recording:
    """Reads a trace file, gzip or not.

    Raises:
        TraceError: the file is no trace, is damaged, or holds nothing to report.
    """
    stream, reader = Stream(path), _Reader(path)
    first: list[dict[str, Any]] = []
    collects = gc.isenabled()
    gc.disable()  # millions of young objects without a circle make it look again and again
    try:
        for batch in stream.batches():
            first = first or batch[:500]
            reader.take(batch)
    finally:
        if collects:
            gc.enable()
    if reader.without_duration:
        raise TraceError(
            f"{path}: {reader.without_duration:,} device events have no usable `dur`: the trace was written "
            f"before they ended; synchronise before the profiler stops"
        )
    if not len(reader.recorder):
        if not reader.events:
            raise TraceError(f"{path}: the trace holds no events; was the profiler active in any step?")
        dicts = [event for event in first if isinstance(event, dict)]
        raise TraceError(f"{path}: {foreign(stream.metadata, dicts)}, without events of torch.profiler; {WANTED}")
    recording = reader.recorder.done(stream.metadata, reader.events)
    if recording.properties and not len(recording.activities):  # torch writes them wherever there is a GPU
        raise TraceError(
            f"{path}: no GPU events, though the trace names {recording.properties[0].get('name')!r}: record "
            f"with ProfilerActivity.CUDA, and see that CUPTI or roctracer may be used"
        )
    return recording


class _Reader:
    def __init__(self, path: Path) -> None:
        self.recorder = Recorder(path)
        self.events = self.without_duration = 0

    def take(self, batch: list[dict[str, Any]]) -> None:
        self.events += len(batch)
        for event in batch:
            category = event.get("cat") if isinstance(event, dict) else None
            if category in _DEVICE:
                self._activity(event, category)
            elif category in _HOST:
                self._call(event, category == "user_annotation")
            elif category in _LAUNCH:
                self._launch(event)

    def _activity(self, event: dict[str, Any], category: str) -> None:
        span = _span(event)
        if span is None:
            self.without_duration += event.get("ph") == "X"
            return
        name, args = str(event.get("name", "")), event.get("args") or {}
        kind = kind_of(name) if category in _KERNEL else COPY
        grid = args.get("grid")
        self.recorder.activity(
            span, kind, name, _integer(args.get("device", event.get("pid"))),
            _integer(args.get("stream", event.get("tid"))), _integer(args.get("correlation")), _external(args),
            math.prod(map(_integer, grid)) if isinstance(grid, list) and grid else 0,
        )  # fmt: skip

    def _call(self, event: dict[str, Any], annotation: bool) -> None:
        span = _span(event)
        if span is None:
            return
        name, args = str(event.get("name", "")), event.get("args") or {}
        # Gradients are enabled where an operator has a number of its own; in backward that is a recomputation.
        forward = "Sequence number" in args and args.get("Fwd thread id", 0) == 0
        told = not annotation and any(args.get("Input Dims", ()))
        call = _arguments(name, args) if told or is_recorded_matmul(name) else None
        self.recorder.host_call(span, name, _thread(event), _external(args), forward, annotation, call)

    def _launch(self, event: dict[str, Any]) -> None:
        args = event.get("args") or {}
        if args.get("correlation") is not None and (span := _span(event)) is not None:
            name, kernel = str(event.get("name", "")), str(args.get("kernel", ""))
            self.recorder.launch(span, _thread(event), _integer(args["correlation"]), name, kernel)


def _span(event: dict[str, Any]) -> tuple[int, int] | None:
    begin, length = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
    return None if begin is None or length is None or length < 0 else (begin, begin + length)


def _arguments(name: str, args: dict[str, Any]) -> Call:
    shapes = args.get("Input Dims", args.get("Input dims", ()))
    return Call(name, tuple(shapes), tuple(args.get("Input type", ())), tuple(args.get("Concrete Inputs", ())))


def _external(args: dict[str, Any]) -> int:
    return _integer(args.get("External id", args.get("external id")))


def _thread(event: dict[str, Any]) -> tuple[Any, Any]:
    return event.get("pid"), event.get("tid")


def _integer(value: Any) -> int:
    if isinstance(value, int):
        return value if abs(value) < 2**62 else -1
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
