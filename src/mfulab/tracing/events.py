"""Reads a trace of torch.profiler into a `Recording`; nothing is interpreted but the kind of each event."""

import gc
import math
from pathlib import Path
from typing import Any

from mfulab.flops.recorded import is_recorded_matmul
from mfulab.tracing.chrome import WANTED, Stream, nanoseconds
from mfulab.tracing.recording import COPY, MODULE, Call, Collective, Recorder, Recording, TraceError, kind_of

_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "concurrent_kernel"}
_KERNEL = {"kernel", "Kernel", "concurrent_kernel"}
_DEVICE = {*_KERNEL, "gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
_LAUNCH = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "Runtime", "runtime"}
_HOST = {"cpu_op", "Operator", "user_annotation"}
# Bytes of torch's types as it names them in a trace; others have no size here.
BYTES = {"Bool": 1, "Byte": 1, "Char": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8}
BYTES |= {"Double": 8, "Float8_e4m3fn": 1, "Float8_e5m2": 1}


def read(path: Path) -> Recording:
    """Reads a trace file, gzip or not. Raises TraceError where it is none, is damaged, or holds nothing to report."""
    stream, recorder = Stream(path), Recorder(path)
    count = endless = 0
    collects = gc.isenabled()
    gc.disable()  # millions of young objects without a circle make it look again and again
    try:
        for batch in stream.batches():
            count += len(batch)
            endless += sum(_take(recorder, event) for event in batch if isinstance(event, dict))
    finally:
        if collects:
            gc.enable()
    if endless:
        raise TraceError(
            f"{path}: {endless:,} device events have no usable `dur`: the trace was written "
            f"before they ended; synchronise before the profiler stops"
        )
    if not count:
        raise TraceError(f"{path}: the trace holds no events; was the profiler active in any step?")
    if not len(recorder):
        raise TraceError(f"{path}: the trace of another program, without events of torch.profiler; {WANTED}")
    recording = recorder.done(stream.metadata, count)
    if recording.properties and not len(recording.activities):  # torch writes them wherever there is a GPU
        raise TraceError(
            f"{path}: no GPU events, though the trace names {recording.properties[0].get('name')!r}: record "
            f"with ProfilerActivity.CUDA, and see that CUPTI or roctracer may be used"
        )
    return recording


def _take(recorder: Recorder, event: dict[str, Any]) -> bool:
    """Adds an event of a kind that is read; True for one of a device that never ended."""
    category, name = event.get("cat"), str(event.get("name", ""))
    of_device, of_launch = category in _DEVICE, category in _LAUNCH
    of_module = category == "python_function" and name.startswith(MODULE)
    if not (of_device or of_launch or of_module or category in _HOST):
        return False
    begin, length, args = nanoseconds(event.get("ts")), nanoseconds(event.get("dur")), event.get("args") or {}
    if begin is None or length is None or length < 0:
        return of_device and event.get("ph") == "X"
    span, thread = (begin, begin + length), (event.get("pid"), event.get("tid"))
    external = _integer(args.get("External id", args.get("external id", -1)))
    correlation = args.get("correlation")
    if of_device:
        device, stream = _integer(args.get("device", thread[0])), _integer(args.get("stream", thread[1]))
        if "Collective name" in args and (what := _collective(args)):
            recorder.collectives.append((*span, device, what))
        kind, grid = kind_of(name) if category in _KERNEL else COPY, args.get("grid")
        blocks = math.prod(map(_integer, grid)) if isinstance(grid, list) and grid else 0
        recorder.activity(span, kind, name, device, stream, _integer(correlation), external, blocks)
    elif of_launch:
        if correlation is not None:
            recorder.launch(span, thread, _integer(correlation), name, str(args.get("kernel", "")))
    else:
        annotation, call = of_module or category == "user_annotation", None
        # Gradients are enabled where an operator has a number of its own; in backward that is a recomputation.
        forward = "Sequence number" in args and args.get("Fwd thread id", 0) == 0
        if is_recorded_matmul(name) or (not annotation and any(args.get("Input Dims", ()))):
            shapes = args.get("Input Dims", args.get("Input dims", ()))
            call = Call(name, tuple(shapes), tuple(args.get("Input type", ())), tuple(args.get("Concrete Inputs", ())))
        sequence = _integer(args.get("Sequence number", -1))
        recorder.host_call(span, name, thread, external, forward, annotation, call, sequence)
    return False


def _collective(args: dict[str, Any]) -> Collective | None:
    """Bytes that a kernel sends, where torch describes it as a collective."""
    counts = [args.get(name) for name in ("In msg nelems", "Out msg nelems", "Group size")]
    known = [one for one in counts if isinstance(one, int) and one >= 0]
    if args.get("dtype") not in BYTES or len(known) < len(counts):
        return None
    return str(args["Collective name"]).replace("_", "").lower(), BYTES[args["dtype"]] * max(known[:2]), known[2]


def _integer(value: Any) -> int:
    if isinstance(value, int):
        return value if abs(value) < 2**62 else -1
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
