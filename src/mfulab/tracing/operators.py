"""Traces steps with torch.profiler: which operators they call, how often, where time and memory go,
and how busy the GPU was."""

import contextlib
import functools
import gzip
import json
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from mfulab.core.parts import Content, pick_all
from mfulab.core.said import Said
from mfulab.device import GPU, is_gpu, synchronise
from mfulab.device.samplers.reading import Readings
from mfulab.flops.certainty import has_formula, is_product
from mfulab.tracing.analysis import Analysis, analyse
from mfulab.tracing.attribution import attribute
from mfulab.tracing.events import read
from mfulab.tracing.modules import ByModule, Module, Spans
from mfulab.tracing.of_window import OfWindow
from mfulab.tracing.shares import OF_KERNELS, OF_OPERATORS, readings
from mfulab.tracing.trace import MODULE, Trace, TraceError
from mfulab.tracing.window import STEPS, annotation, windows

NOT_TRACED = Said("not_traced")


class OperatorRow(TypedDict):
    """Calls of an operator with the same input shapes, with the time and memory of its own."""

    operator: str
    input_shapes: str | None
    calls: int
    self_cpu_time_s: float
    self_device_time_s: float
    flops: int | None  # of torch.profiler, None if it has none
    self_cpu_memory_bytes: int
    self_device_memory_bytes: int


OPERATOR_COLUMNS = tuple(OperatorRow.__annotations__)
OURS = (STEPS, "ProfilerStep", MODULE)  # begin the names of ranges that are no operators
READ = (*OF_KERNELS, *OF_OPERATORS)
KERNEL_COLUMNS = ("kernel", "kind", "calls", "time_s", "share_percent")


@dataclass(frozen=True)
class TracedPass:
    """Steps recorded by torch.profiler. They are slower than measured steps, so their times serve
    only as shares."""

    profiler: profile

    def export(self, path: Path) -> None:
        """Writes the Chrome or Perfetto trace, gzipped if `path` ends in .gz."""
        open_target = gzip.open if path.suffix == ".gz" else open
        with self.saved.open("rb") as source, open_target(path, "wb") as target:
            shutil.copyfileobj(source, target)

    @functools.cached_property
    def trace(self) -> Trace:
        """The trace, read once. Raises TraceError if it cannot be read."""
        return read(self.saved)[0]

    @functools.cached_property
    def analysis(self) -> Analysis:
        """Analysis of the traced steps. Raises TraceError if the trace cannot be read or holds no
        steps."""
        return analyse(self.trace, windows(self.trace)[0])

    @functools.cached_property
    def saved(self) -> Path:
        """Path of the profiler's own export, kept as long as this object: kineto saves a trace only
        once."""
        folder = tempfile.TemporaryDirectory()
        weakref.finalize(self, folder.cleanup)
        path = Path(folder.name) / "trace.json"
        self.profiler.export_chrome_trace(str(path))
        return path


def trace_steps(step: Callable[[], object], device: torch.device, steps: int) -> TracedPass:
    """Runs `steps` steps under torch.profiler with shapes, memory and FLOPs. On a GPU one more step
    runs before them, whose trace is dropped."""
    options: Content = {"record_shapes": True, "profile_memory": True, "with_flops": True}
    activities = [ProfilerActivity.CPU]
    if device.type == GPU:
        activities.append(ProfilerActivity.CUDA)
        options["schedule"] = schedule(wait=0, warmup=1, active=1)
    with profile(activities=activities, **options) as profiler:
        if device.type == GPU:
            step()
            synchronise(device)
            profiler.step()
        with record_function(annotation(steps)):
            for _ in range(steps):
                step()
            synchronise(device)
    return TracedPass(profiler)


class BlockTrace:
    """Runs torch.profiler around a block of a user's code, without shapes and memory, which cost
    the most."""

    def __init__(self, device: torch.device, path: Path) -> None:
        self._device = device
        self._path = path
        cuda = []
        if device.type == GPU:
            cuda = [ProfilerActivity.CUDA]
        self._profiler = profile(activities=[ProfilerActivity.CPU, *cuda])
        self.analysis: Analysis | None = None
        self._annotation = record_function(annotation(1))

    def start(self) -> None:
        """Starts the trace."""
        self._profiler.__enter__()
        self._annotation.__enter__()

    def stop(self) -> Readings:
        """Stops the trace and writes it; the device must be idle. Returns shares of the traced
        time."""
        self._annotation.__exit__(None, None, None)
        self._profiler.__exit__(None, None, None)
        traced = TracedPass(self._profiler)
        traced.export(self._path)
        shares, self.analysis = trace_readings(traced, self._device)
        return shares


def operator_table(traced: TracedPass) -> list[OperatorRow]:
    """Rows for each operator and its input shapes, most self time first. FLOPs are those of
    torch.profiler, None if it has none."""
    rows: list[OperatorRow] = []
    for event in traced.profiler.key_averages(group_by_input_shape=True):
        if event.key.startswith(OURS):
            continue
        row: OperatorRow = {
            "operator": event.key,
            "input_shapes": None,
            "calls": event.count,
            "self_cpu_time_s": event.self_cpu_time_total / 1e6,
            "self_device_time_s": event.self_device_time_total / 1e6,
            "flops": event.flops or None,
            "self_cpu_memory_bytes": event.self_cpu_memory_usage,
            "self_device_memory_bytes": event.self_device_memory_usage,
        }
        if event.input_shapes:
            row["input_shapes"] = str(event.input_shapes)
        rows.append(row)
    return sorted(rows, key=lambda row: -row["self_device_time_s"] - row["self_cpu_time_s"])


@contextlib.contextmanager
def module_ranges() -> Iterator[None]:
    """Marks each call of a torch.nn module in a trace with its class, as torch.profiler does if it
    records stacks."""
    ranges: list[record_function] = []

    def enter(module: torch.nn.Module, _: object) -> None:
        ranges.append(record_function(f"{MODULE}{type(module).__name__}_0"))
        ranges[-1].__enter__()

    def leave(module: torch.nn.Module, _: object, result: object) -> None:
        ranges.pop().__exit__(None, None, None)

    with (
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    ):
        yield


def trace_modules(step: Callable[[], object], device: torch.device, steps: int) -> TracedPass:
    """Traces `steps` steps with a range around each call of a module."""
    with module_ranges():
        return trace_steps(step, device, steps)


def modules_of(traced: TracedPass) -> list[Module]:
    """Time and FLOPs per module in one step of a traced pass; empty if the trace cannot be read."""
    with contextlib.suppress(TraceError):
        trace = traced.trace
        window = windows(traced.trace)[0]
        rows = ByModule(OfWindow(trace, attribute(trace), window), Spans(trace)).of()
        steps = window.steps
        return [
            Module(row.path, row.calls // steps, row.time_ns // steps, row.flops // steps)
            for row in rows
        ]
    return []


def uncounted_operators(traced: TracedPass) -> str | None:
    """JSON of operators without a FLOP formula, outside of products, that take at least 1 % of all
    operators' self time: name → percent. None if there are none."""
    events = [event for event in traced.profiler.events() if not event.name.startswith(OURS)]
    times = _self_times(events)
    total = sum(times.values())
    outside = set()
    for event in events:
        if times[event.name] >= total / 100 > 0 and not _inside_product(event):
            outside.add(event.name)
    shares = {}
    for name in outside:
        if not has_formula(name):
            shares[name] = round(100 * times[name] / total, 1)
    if shares:
        return json.dumps(dict(sorted(shares.items(), key=lambda item: -item[1])))
    return None


def _self_times(events: Sequence[Any]) -> Counter[str]:
    """Self time (µs) per operator: on the device if it ran any, else on the CPU."""
    on_device = any(event.self_device_time_total for event in events)
    times = Counter[str]()
    for event in events:
        if on_device:
            times[event.name] += event.self_device_time_total
        else:
            times[event.name] += event.self_cpu_time_total
    return times


def _inside_product(event: Any) -> bool:
    """True if a product called the operator, directly or through other operators."""
    parent = event.cpu_parent
    return parent is not None and (is_product(parent.name) or _inside_product(parent))


def trace_readings(
    traced: TracedPass, device: torch.device, step_s: float | None = None
) -> tuple[Readings, Analysis | None]:
    """Returns the traced steps' shares by kind of kernel and operator, and their analysis. If the
    trace cannot be read, returns empty readings with the reason, and None. With `step_s`, the
    seconds of a step without a trace, a GPU's shares are of that time."""
    try:
        analysis = traced.analysis if step_s is None else traced.analysis.untraced(step_s)
    except TraceError as error:
        return untraced(error.why), None  # without the name of the pass's own temporary file
    if is_gpu(device) and not analysis.on_gpu:
        why = Said("torch_sees_none", device=device.type)
        if device.type == GPU:
            why = Said("cupti_refused")
        return untraced(Said("no_kernel_in_trace", why=why)), None
    wanted: Sequence[str] = READ
    if not analysis.on_gpu:
        wanted = ("kernel_busy_percent", *OF_OPERATORS)
        if analysis.collectives:
            wanted = (*wanted, "communication_percent")
    return pick_all(analysis.readings, wanted), analysis


def untraced(reason: Said = NOT_TRACED) -> Readings:
    """Empty readings of a run without a trace, with the reason."""
    return readings(dict.fromkeys(READ), reason=reason)
