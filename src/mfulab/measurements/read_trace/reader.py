"""Reads trace files into rows, for `mfulab trace` and the measurement `read_trace`."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mfulab.core.files import found_files
from mfulab.core.said import Said, as_json, cell_of, packed_all, said_by
from mfulab.device.samplers.reading import UNTOLD
from mfulab.measurements.read_trace import TraceRow
from mfulab.tracing import graphs, timeline
from mfulab.tracing.analysis import Analysis, Product, of_device
from mfulab.tracing.attribution import attribute
from mfulab.tracing.device_time import DeviceTime
from mfulab.tracing.formats import read
from mfulab.tracing.modules import ByModule, Spans, column_of
from mfulab.tracing.of_window import OfWindow
from mfulab.tracing.parquet import KERNELS
from mfulab.tracing.trace import Trace, TraceError, fault
from mfulab.tracing.window import windows

XPLANE = ".xplane.pb"
ENDINGS = (".json", ".json.gz", ".sqlite", XPLANE, "_results.db", KERNELS)
# the rank in a file's name, used if the trace itself has none
_RANK = re.compile(r"rank[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
LISTED = 10  # most uncounted operators that a row names
MOST_SHAPES = 40  # most shapes and operators that a row keeps apart; further ones are summed
MOST_LETTERS = 100  # longest operator name that a row keeps
MOST_COLLECTIVES = 5000  # most collectives whose times a row keeps


@dataclass
class Read:
    """A row of one file, and the analysis that it was made from. A file that cannot be read has
    only a failed row."""

    row: TraceRow
    analysis: Analysis | None = None


def read_file(
    path: Path,
    *,
    steps: int | None = None,
    peaks: Mapping[str, float] | None = None,
    label: str = "",
    capture: Path | None = None,
) -> list[Read]:
    """Reads a trace, gzipped or not, into one row for each range of consecutive steps and each
    device. Raises TraceError with the reason if the file cannot be read. `steps` is the number of
    steps, for traces that do not mark them. `peaks` are the user's dense peaks by format, in
    TFLOP/s. `capture` is the trace of capturing the CUDA graphs that this one replays; by default
    one next to it."""
    if steps is not None and steps < 1:
        raise TraceError(path, Said("steps_below_one", {"steps": steps}))
    captured = capture or graphs.beside(path)
    try:
        traces = read(path)
        captures = read(captured) if captured else []
        if captures:  # one per process; if there are fewer, the last one serves the rest
            held = [captures[min(number, len(captures) - 1)] for number in range(len(traces))]
            traces = [graphs.joined(*both) for both in zip(traces, held, strict=True)]
        return [row for trace in traces for row in _rows(trace, steps, label, peaks)]
    except (
        TypeError,
        ValueError,
        LookupError,
        ArithmeticError,
        AttributeError,
        RecursionError,
    ) as error:
        raise TraceError(path, Said("damaged_or_unknown", {"error": fault(error)})) from error


def _rows(
    trace: Trace, steps: int | None, label: str, peaks: Mapping[str, float] | None
) -> list[Read]:
    """Rows of one trace: one per window and device."""
    attribution = attribute(trace)
    spans = Spans(trace)
    rows = []
    for window in windows(trace, steps):
        held = OfWindow(trace, attribution, window)
        by_module = ByModule(held, spans)
        for device in sorted(held.devices) or (None,):
            analysis = of_device(held, device)
            row = trace_row(trace, analysis, label, peaks)
            row.modules = column_of(by_module.of(analysis.device))
            if isinstance(analysis.told, DeviceTime):
                row.timeline = timeline.short(analysis.told)
            rows.append(Read(row, analysis))
    return rows


def failed(path: Path, error: Exception) -> Read:
    """Makes the row of a file that could not be read."""
    name = path.name.split(".")[0]
    why = cell_of(said_by(error))
    return Read(TraceRow(trace=path.name, model=name, status="unsupported", message=why))


def files(given: Iterable[str]) -> list[Path]:
    """Expands paths, folders (to the traces in them) and globs to files, each once, in order.
    Raises TraceError for an argument that matches no trace."""
    files: dict[Path, None] = {}
    for word in given:
        matches = found_files(word, ENDINGS)
        if not matches:
            raise TraceError(word, Said("no_trace_there", {"endings": ", ".join(ENDINGS)}))
        if len(matches) > 1:
            matches = [path for path in matches if not _is_copy(path, matches)]
        files |= dict.fromkeys(matches)
    return list(files)


def _is_copy(path: Path, others: Sequence[Path]) -> bool:
    """True if a trace is a JSON copy that the profiler wrote next to an .xplane.pb file."""
    name = path.name.removesuffix(".gz")
    beside = [
        other.name
        for other in others
        if other.parent == path.parent and other.name.endswith(XPLANE)
    ]
    copied = [name.removesuffix(XPLANE) + ".trace.json" for name in beside]
    return bool(beside) and name in ("perfetto_trace.json", *copied)


def trace_row(
    trace: Trace, analysis: Analysis, label: str = "", peaks: Mapping[str, float] | None = None
) -> TraceRow:
    """Makes the row of one window. `peaks` are the user's dense peaks by format, in TFLOP/s."""
    window = analysis.window
    properties = trace.device_properties(analysis.device)
    major = properties.get("computeMajor")
    rank, world, job = _place(trace, analysis)
    held = (
        analysis.collectives
        if job and sum(map(len, analysis.collectives.values())) <= MOST_COLLECTIVES
        else {}
    )
    row = TraceRow(
        trace=trace.path.name,
        model=label or trace.path.name.split(".")[0],
        device=properties.get("name") or None,
        compute_capability=None if major is None else f"{major}.{properties.get('computeMinor')}",
        units=properties.get("numSms"),
        rank=rank,
        world_size=world,
        device_index=analysis.device,
        mode=window.phase or ("training" if analysis.backward else "inference"),
        first_step=window.first_step,
        last_step=window.last_step,
        steps=window.steps,
        window_s=window.length / 1e9,
        window_source=packed_all(window.source),
        time_s=window.length / 1e9 / window.steps,
        events=trace.events,
        spent=json.dumps(analysis.spent),
        idle_causes=json.dumps(analysis.idle_causes) if analysis.idle_causes else None,
        top_kernels=analysis.top_kernels(),
        top_other_operators=analysis.top_other_operators(),
        job=job,
        collectives=json.dumps(held) if held else None,
        given_peaks=json.dumps(dict(peaks)) if peaks else None,
        notes=packed_all(analysis.notes),
        collective_sizes=_collective_sizes(analysis),
        products=_products(analysis),
        operators=_operators(analysis),
    )
    _fill(row, analysis)
    return row


def _fill(row: TraceRow, analysis: Analysis) -> None:
    """Sets the columns that were read and counted in the window, and a reason for each column that
    stays empty."""
    reasons: dict[str, Any] = {
        name: as_json(reading.reason or UNTOLD)
        for name, reading in analysis.readings.items()
        if reading.value is None
    }
    for name in analysis.readings.keys() - reasons.keys():
        setattr(row, name, analysis.readings[name].value)
    if analysis.on_gpu:
        row.utilization_percent = row.kernel_busy_percent
        row.utilization_source = "kernel-busy, read from the trace"
    _count(row, analysis, reasons)
    if row.device is None:
        reasons["device"] = {"no_device_name" if analysis.on_gpu else "no_cpu_name": {}}
    row.reasons = json.dumps(reasons | {"clock_ms": {"no_clock": {}}}, ensure_ascii=False)


def _place(trace: Trace, analysis: Analysis) -> tuple[int | None, int | None, str | None]:
    """Returns the rank of a window, the number of ranks in its job, and the job's name, which all
    rows of the job share. Each is None if unknown."""
    rank = trace.distributed("rank")
    world = trace.distributed("world_size")
    name = trace.path.name
    job = None if analysis.device is None else name  # devices of one process are a job
    if trace.ranks > 1:
        job = name
    elif world and world > 1:
        job = f"{trace.path.parent.name}/{world} ranks"
    elif rank is None and job is None and (named := _RANK.search(name)):
        rank = int(named[1])
        job = f"{trace.path.parent.name}/{_RANK.sub('rank*', name, count=1)}"
    return analysis.device if rank is None else rank, world, job


def _count(row: TraceRow, analysis: Analysis, reasons: dict[str, Any]) -> None:
    """Sets a step's needed and executed FLOPs, the FLOPs by format, and the bytes."""
    _set_uncounted(row, analysis)
    flops = analysis.flops()
    executed = analysis.flops("executed_flops", recomputed=True)
    if not sum(executed.values()):
        why = next((reason for _, reason in analysis.uncounted.values()), Said("no_matmul"))
        reasons["flops"] = {why.key: why.numbers}
        return
    steps = analysis.window.steps
    row.flops = sum(flops.values()) / steps
    row.executed_flops = sum(executed.values()) / steps
    row.causal_flops = sum(analysis.flops("causal_flops").values()) / steps
    row.flops_by_format = _by_format(flops, steps)
    row.executed_by_format = _by_format(executed, steps)
    row.executed_ratio, row.issued_ratio = analysis.ratios().values()
    row.misaligned = analysis.misaligned()
    _set_bytes(row, analysis, reasons)
    if flops:
        row.effective_precision = row.precision = max(flops, key=lambda name: flops[name])
    row.flops_source = cell_of(Said("recorded_shapes"))


def _by_format(flops: Mapping[str, int], steps: int) -> str:
    """JSON: number format → FLOPs per step."""
    return json.dumps({name: count / steps for name, count in flops.items()})


def _set_uncounted(row: TraceRow, analysis: Analysis) -> None:
    """Sets the share of matmul time whose FLOPs are unknown, and the longest of these operators
    with their reasons."""
    uncounted = sorted(analysis.uncounted.items(), key=lambda item: -item[1][0])
    lost = sum(time for _, (time, _) in uncounted)
    if not lost:
        return
    counted = sum(product.time_ns for product in analysis.counted)
    row.uncounted_percent = 100 * lost / (lost + counted)
    shares = {}
    for name, (time, why) in uncounted[:LISTED]:
        shares[name] = [round(100 * time / analysis.window.length, 2), {why.key: why.numbers}]
    row.uncounted_operators = json.dumps(shares, ensure_ascii=False)


def _set_bytes(row: TraceRow, analysis: Analysis, reasons: dict[str, Any]) -> None:
    """Sets the bytes that a step's matmuls move, or the reason with the first matmul whose bytes
    are unknown."""
    moved = 0.0
    for product in analysis.needed:
        if product.call_bytes is None:
            reasons["bytes_moved"] = {"no_bytes": {"operator": product.name}}
            return
        moved += product.calls * product.call_bytes
    row.bytes_moved = moved / analysis.window.steps or None


def _products(analysis: Analysis) -> str | None:
    """JSON list with each shape's format, sides, FLOPs, time in ns, and time if all calls were as
    fast as the fastest. None without matmuls."""
    shapes = defaultdict[Any, list[Product]](list)
    for product in analysis.needed:
        if product.time_ns and product.flops:
            shapes[product.format, product.matmul or (product.name, product.shapes)].append(product)
    longest = sorted(map(_shape_summary, shapes.values()), key=lambda shape: -shape["time_ns"])
    if rest := longest[MOST_SHAPES:]:  # summed to one entry without a shape
        summed = {}
        for name in ("flops", "time_ns", "best_ns"):
            summed[name] = sum(shape[name] for shape in rest)
        longest[MOST_SHAPES:] = [{"format": None, "matmul": None, **summed}]
    return json.dumps(longest) if longest else None


def _shape_summary(same: Sequence[Product]) -> dict[str, Any]:
    """Sums over the matmuls of one shape."""
    time = sum(product.time_ns for product in same)
    calls = sum(product.calls for product in same)
    shortest = min(product.shortest_ns or product.time_ns for product in same)
    return {
        "format": same[0].format,
        "matmul": same[0].matmul,
        "flops": sum(product.flops for product in same),
        "time_ns": time,
        "best_ns": min(time, calls * shortest),
    }


def _operators(analysis: Analysis) -> str | None:
    """JSON list of the operators with most time, and one entry that sums the rest. None if there
    are none."""
    longest = sorted(analysis.operators, key=lambda operator: -operator.time_ns)
    listed = [
        {**vars(operator), "operator": operator.operator[:MOST_LETTERS]}
        for operator in longest[:MOST_SHAPES]
    ]
    for line in listed:
        line["reason"] = line["reason"] and {line["reason"].key: line["reason"].numbers}
    if rest := longest[MOST_SHAPES:]:
        listed.append(
            {
                "kind": "rest",
                "time_ns": sum(operator.time_ns for operator in rest),
                "calls": len(rest),
            }
        )
    return json.dumps(listed, ensure_ascii=False) if listed else None


def _collective_sizes(analysis: Analysis) -> str | None:
    """JSON list of [kind, bytes, processes, ns of each kernel in order of begin] for the window's
    collectives. None if there are none."""
    nanoseconds = defaultdict[tuple[str, int, int], list[int]](list)
    for transfer in analysis.held.transfers(analysis.device):
        if analysis.window.begin <= transfer.begin < analysis.window.end:
            what = transfer.collective
            key = what.kind, what.bytes, what.processes
            nanoseconds[key].append(transfer.end - transfer.begin)
    if nanoseconds:
        return json.dumps([[*what, times] for what, times in nanoseconds.items()])
    return None
