"""Reads a trace of torch.profiler into a `Recording`; nothing is interpreted but the kind of each event."""

import gc
import math
from pathlib import Path
from typing import Any

from mfulab.flops.recorded import is_recorded_matmul
from mfulab.tracing.chrome import WANTED, Stream, foreign, nanoseconds
from mfulab.tracing.recording import COPY, MODULE, Call, Collective, Recorder, Recording, TraceError, kind_of

_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "concurrent_kernel"}
_KERNEL = {"kernel", "Kernel", "concurrent_kernel"}
_HOST = {"cpu_op", "Operator", "user_annotation"}
COLLECTIVE = "Collective name"
# Bytes of torch's types as it names them in a trace; others have no size here.
BYTES = {"Bool": 1, "Byte": 1, "Char": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8}
BYTES |= {"Double": 8, "Float8_e4m3fn": 1, "Float8_e5m2": 1}
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
            elif category == "python_function" and str(event.get("name")).startswith(MODULE):
                self._call(event, annotation=True)
            elif category in _LAUNCH:
                self._launch(event)

    def _activity(self, event: dict[str, Any], category: str) -> None:
        span = _span(event)
        if span is None:
            self.without_duration += event.get("ph") == "X"
            return
        name, args = str(event.get("name", "")), event.get("args") or {}
        kind = kind_of(name) if category in _KERNEL else COPY
        grid, device = args.get("grid"), _integer(args.get("device", event.get("pid")))
        if what := _collective(args):
            self.recorder.collectives.append((*span, device, what))
        self.recorder.activity(
            span, kind, name, device, _integer(args.get("stream", event.get("tid"))),
            _integer(args.get("correlation")), _external(args),
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
        call = None
        if told or is_recorded_matmul(name):
            shapes = args.get("Input Dims", args.get("Input dims", ()))
            call = Call(name, tuple(shapes), tuple(args.get("Input type", ())), tuple(args.get("Concrete Inputs", ())))
        thread, sequence = (event.get("pid"), event.get("tid")), _integer(args.get("Sequence number"))
        self.recorder.host_call(span, name, thread, _external(args), forward, annotation, call, sequence)

    def _launch(self, event: dict[str, Any]) -> None:
        args = event.get("args") or {}
        if args.get("correlation") is not None and (span := _span(event)) is not None:
            thread, name = (event.get("pid"), event.get("tid")), str(event.get("name", ""))
            self.recorder.launch(span, thread, _integer(args["correlation"]), name, str(args.get("kernel", "")))


def _span(event: dict[str, Any]) -> tuple[int, int] | None:
    begin, length = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
    return None if begin is None or length is None or length < 0 else (begin, begin + length)


def _collective(args: dict[str, Any]) -> Collective | None:
    """What a kernel sends that torch describes as a collective."""
    counts = [args.get(name) for name in ("In msg nelems", "Out msg nelems", "Group size")]
    known = [one for one in counts if isinstance(one, int) and one >= 0]
    if COLLECTIVE not in args or args.get("dtype") not in BYTES or len(known) < len(counts):
        return None
    kind = str(args[COLLECTIVE]).replace("_", "").lower()
    return kind, BYTES[args["dtype"]] * max(known[:2]), known[2]


def _external(args: dict[str, Any]) -> int:
    return _integer(args.get("External id", args.get("external id")))


def _integer(value: Any) -> int:
    if isinstance(value, int):
        return value if abs(value) < 2**62 else -1
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
