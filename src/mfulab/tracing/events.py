"""Reads a trace's events into the columns of a `Recording`; nothing is interpreted but the kind of each event."""

import gc
import math
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mfulab.flops.operators import FORMULAS
from mfulab.tracing.chrome import WANTED, Stream, TraceError, foreign, nanoseconds
from mfulab.tracing.recording import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    Activities,
    Call,
    HostCalls,
    Launches,
    Recording,
    launch_delays,
)

_COMMUNICATION = ("nccl", "rccl", "mscclpp", "nvshmem", "deep_ep", "void deep_ep")
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "concurrent_kernel"}
_KERNEL = {"kernel", "Kernel", "concurrent_kernel"}
_HOST = {"cpu_op", "Operator", "user_annotation"}
_LAUNCH = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "Runtime", "runtime"}
_CLOCKS_APART_NS = 1_000_000  # a kernel that begins so long before its launch was timed by another clock
# Operators beside those with formulas whose arguments tell what they multiply.
_MULTIPLYING = ("triton_tem_", "mkldnn::_linear", "mkldnn::_convolution", "mkl::_mkl_linear")


def read(path: Path) -> Recording:
    """Reads a trace file, gzip or not.

    Raises:
        TraceError: the file is no trace, is damaged, or holds nothing to report.
    """
    stream, reader = Stream(path), _Reader(path)
    first: list[dict[str, Any]] = []
    with _no_collection():
        for batch in stream.batches():
            first = first or batch[:500]
            reader.take(batch)
    if not len(reader.device.arrays["begin"]) and not len(reader.host.arrays["begin"]) and not reader.without_duration:
        if not reader.events:
            raise TraceError(f"{path}: the trace holds no events; was the profiler active in any step?")
        dicts = [event for event in first if isinstance(event, dict)]
        raise TraceError(f"{path}: {foreign(stream.metadata, dicts)}, without events of torch.profiler; {WANTED}")
    return reader.done(stream.metadata)


class Texts:
    """Names stored once each."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._ids: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        """The number of a name."""
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(self.names)
            self.names.append(name)
        return found


class _Columns:
    def __init__(self, *names: str) -> None:
        self.arrays = {name: array("q") for name in names}

    def add(self, *values: int) -> None:
        for column, value in zip(self.arrays.values(), values, strict=True):
            column.append(value)

    def numpy(self) -> dict[str, npt.NDArray[np.int64]]:
        return {name: np.frombuffer(column, np.int64) if column else np.empty(0, np.int64)
                for name, column in self.arrays.items()}  # fmt: skip


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path, self.texts = path, Texts()
        self.device = _Columns("begin", "end", "kind", "name", "device", "stream", "correlation", "external", "blocks")
        self.occupancy = array("d")
        self.host = _Columns("begin", "end", "name", "thread", "external", "forward", "annotation")
        self.launch = _Columns("begin", "end", "thread", "correlation", "graph")
        self.calls: dict[int, Call] = {}
        self.shared: dict[str, Call] = {}
        self.events = self.without_duration = self.odd = 0
        self.threads: dict[tuple[Any, Any], int] = {}

    def take(self, batch: list[dict[str, Any]]) -> None:
        self.events += len(batch)
        for event in batch:
            if not isinstance(event, dict):
                self.odd += 1
                continue
            category = event.get("cat")
            if category in _DEVICE:
                self._activity(event, category)
            elif category in _HOST:
                self._call(event, category == "user_annotation")
            elif category in _LAUNCH:
                self._launch(event)

    def _span(self, event: dict[str, Any], on_device: bool) -> tuple[int, int] | None:
        begin, length = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if begin is None or length is None or length < 0:
            if event.get("ph") == "X" and on_device:
                self.without_duration += 1
            return None
        return begin, begin + length

    def _activity(self, event: dict[str, Any], category: str) -> None:
        span = self._span(event, True)
        if span is None:
            return
        name, args = str(event.get("name", "")), event.get("args") or {}
        if category not in _KERNEL:
            kind = COPY
        else:
            kind = COMMUNICATION if name.lower().startswith(_COMMUNICATION) else COMPUTE
        grid = args.get("grid")
        blocks = math.prod(map(_integer, grid)) if isinstance(grid, list) and grid else 0
        self.device.add(
            *span, kind, self.texts(name), _integer(args.get("device", event.get("pid"))),
            _integer(args.get("stream", event.get("tid"))), _integer(args.get("correlation")),
            _integer(args.get("External id", args.get("external id"))), blocks,
        )  # fmt: skip
        occupancy = args.get("est. achieved occupancy %")
        self.occupancy.append(float(occupancy) if isinstance(occupancy, (int, float)) else np.nan)

    def _call(self, event: dict[str, Any], annotation: bool) -> None:
        span = self._span(event, False)
        if span is None:
            return
        name, args = str(event.get("name", "")), event.get("args") or {}
        thread = self._thread(event)
        # Gradients are enabled where an operator has a number of its own; in backward that is a recomputation.
        forward = "Sequence number" in args and args.get("Fwd thread id", 0) == 0
        if name in FORMULAS or ("Input Dims" in args and name.startswith(_MULTIPLYING)):
            self.calls[len(self.host.arrays["begin"])] = self._shared(name, args)
        self.host.add(
            *span, self.texts(name), thread, _integer(args.get("External id", args.get("external id"))),
            forward, annotation,
        )  # fmt: skip

    def _shared(self, name: str, args: dict[str, Any]) -> Call:
        shapes = args.get("Input Dims", args.get("Input dims", ()))
        types = args.get("Input type", ())
        values = args.get("Concrete Inputs", ())
        flops = args.get("Flops", args.get("flops"))
        key = f"{name}{shapes}{types}{values}{flops}"
        call = self.shared.get(key)
        if call is None:
            recorded = int(flops) if isinstance(flops, (int, float)) else None
            call = self.shared[key] = Call(name, tuple(shapes), tuple(types), tuple(values), recorded)
        return call

    def _launch(self, event: dict[str, Any]) -> None:
        args = event.get("args") or {}
        correlation = args.get("correlation")
        if correlation is None or (span := self._span(event, False)) is None:
            return
        graph = "GraphLaunch" in str(event.get("name", ""))
        self.launch.add(*span, self._thread(event), _integer(correlation), graph)

    def _thread(self, event: dict[str, Any]) -> int:
        return self.threads.setdefault((event.get("pid"), event.get("tid")), len(self.threads))

    def done(self, metadata: dict[str, Any]) -> Recording:
        device, host, launch = self.device.numpy(), self.host.numpy(), self.launch.numpy()
        activities = Activities(
            **{name: column for name, column in device.items() if name != "kind"},
            kind=device["kind"].astype(np.int8),
            occupancy=np.array(self.occupancy),
        )
        marks: dict[str, Any] = {name: host.pop(name).astype(bool) for name in ("forward", "annotation")}
        launches = Launches(**{**launch, "graph": launch["graph"].astype(bool)})
        recording = Recording(
            self.path, self.texts.names, activities, HostCalls(**(host | marks), calls=self.calls), launches,
            metadata, self.events,
        )  # fmt: skip
        self._check(recording)
        return recording

    def _check(self, recording: Recording) -> None:
        if self.without_duration:
            raise TraceError(
                f"{self.path}: {self.without_duration:,} device events have no usable `dur`: the trace was written "
                f"before they ended; synchronise before the profiler stops"
            )
        if len(recording.activities):
            _require_one_clock(recording)
        elif recording.properties:  # torch writes them wherever there is a GPU
            raise TraceError(
                f"{self.path}: no GPU events, though the trace names {recording.properties[0].get('name')!r}: record "
                f"with ProfilerActivity.CUDA, and see that CUPTI or roctracer may be used"
            )
        elif not len(recording.host):
            raise TraceError(f"{self.path}: no operator and no GPU event in {self.events:,} events; {WANTED}")


def _require_one_clock(recording: Recording) -> None:
    """Raises where kernels begin before they were launched: device and host were timed by different clocks."""
    for device in np.unique(recording.activities.device):
        delays = launch_delays(recording, device)
        if len(delays) and np.median(delays) < -_CLOCKS_APART_NS:
            apart = -float(np.median(delays)) / 1e6
            raise TraceError(
                f"{recording.path}: overlapping clocks: kernels of device {device} begin {apart:,.1f} ms before "
                f"they are launched (median), so device and host times cannot be joined"
            )


def _integer(value: Any) -> int:
    if isinstance(value, int):
        return value if abs(value) < 2**62 else -1
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return -1


@contextmanager
def _no_collection() -> Iterator[None]:
    """Leaves Python's collector off: millions of young objects without a circle make it look again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
