"""Builds traces as torch.profiler writes them, small enough to check by hand. Times are in µs."""

import gzip
import json
from pathlib import Path
from typing import Any

from mfulab.tracing.window import annotation

Event = dict[str, Any]
H100 = {
    "id": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "computeMajor": 9,
    "computeMinor": 0,
    "numSms": 132,
}


def event(
    category: str, name: str, begin: float, duration: float, thread: int = 7, **args: Any
) -> Event:
    found = {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": begin,
        "dur": duration,
        "pid": 0,
        "tid": thread,
    }
    return {**found, "args": args} if args else found


def operator(
    name: str, begin: float, duration: float, shapes: Any = (), kind: str = "float", **args: Any
) -> Event:
    """Operator on the host's thread 1, with one dtype for all tensors."""
    tensor_args = {
        "Input Dims": shapes,
        "Input type": [kind if shape else "Scalar" for shape in shapes],
        **args,
    }
    return event("cpu_op", name, begin, duration, 1, **(tensor_args if shapes else args))


def launched(
    name: str, at: float, begin: float, duration: float, number: int, call: str = "", **args: Any
) -> list[Event]:
    """Launch on the host's thread 1 at a time, and the kernel that it queued."""
    return [
        event("cuda_runtime", call or "cudaLaunchKernel", at, 1, 1, correlation=number),
        event("kernel", name, begin, duration, 7, correlation=number, device=0, stream=7, **args),
    ]


def steps(*spans: tuple[float, float], first: int = 3) -> list[Event]:
    """ProfilerStep annotations for spans from begin to end."""
    return [
        event("user_annotation", f"ProfilerStep#{first + place}", begin, end - begin, 1)
        for place, (begin, end) in enumerate(spans)
    ]


def trace(*events: Event | list[Event], **metadata: Any) -> dict[str, Any]:
    """Trace with these events (lists are flattened), by default of an H100."""
    flat: list[Event] = []
    for item in events:
        flat += item if isinstance(item, list) else [item]
    return {"schemaVersion": 1, "deviceProperties": [H100], **metadata, "traceEvents": flat}


def write(path: Path, content: Any) -> Path:
    """Writes a trace, or any bytes, to a file; gzipped if its name ends in .gz."""
    data = content if isinstance(content, bytes) else json.dumps(content, indent=1).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


# 100 µs of two steps: 40 of compute, 20 of communication, 10 of copies that are not hidden, 30
# idle.
TRACE = {
    "traceEvents": [
        {"ph": "M", "name": "process_name"},
        event("user_annotation", annotation(2), 0, 100),
        event("gpu_user_annotation", annotation(2), 10, 80),
        event("cpu_op", "aten::mm", 0, 5),
        event("kernel", "gemm", 10, 30),
        event("kernel", "relu", 35, 15, 8),  # overlaps gemm by 5 on another stream
        event("gpu_memcpy", "Memcpy HtoD", 45, 15, 9),  # 5 hidden by relu, 10 bare
        event("kernel", "ncclDevKernel_AllReduce", 70, 20),
    ]
}
