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
        raise TraceError(path, Said("steps_below_one", steps=steps))
    capture = capture or graphs.beside(path)
    rows = []
    try:
        traces = read(path)
        captures = read(capture) if capture else []
        for index, trace in enumerate(traces):
            if captures:  # one per process; if there are fewer, the last one serves the rest
                captured = captures[min(index, len(captures) - 1)]
                trace = graphs.joined(trace, captured)
            rows += _rows(trace, steps, label, peaks)
        return rows
    except (
        TypeError,
        ValueError,
        LookupError,
        ArithmeticError,
        AttributeError,
        RecursionError,
    ) as error:
        raise TraceError(path, Said("damaged_or_unknown", error=fault(error))) from error


def _rows(
    trace: Trace, steps: int | None, label: str, peaks: Mapping[str, float] | None
) -> list[Read]:
    """Rows of one trace: one per window and device."""
    attribution = attribute(trace)
    spans = Spans(trace)
    rows = []
    for window in windows(trace, steps):
        of_window = OfWindow(trace, attribution, window)
        by_module = ByModule(of_window, spans)
        for device in sorted(of_window.devices) or (None,):
            analysis = of_device(of_window, device)
            row = trace_row(trace, analysis, label, peaks)
            row.modules = column_of(by_module.of(analysis.device))
            if isinstance(analysis.told, DeviceTime):
                row.timeline = timeline.short(analysis.told)
            rows.append(Read(row, analysis))
    return rows


def failed(path: Path, error: Exception) -> Read:
    """Makes the row of a file that could not be read."""
    name = path.name.split(".")[0]
    message = cell_of(said_by(error))
    return Read(TraceRow(trace=path.name, model=name, status="unsupported", message=message))


def files(patterns: Iterable[str]) -> list[Path]:
    """Expands paths, folders (to the traces in them) and globs to files, each once, in order.
    Raises TraceError for an argument that matches no trace."""
    files: dict[Path, None] = {}
    for pattern in patterns:
        matches = found_files(pattern, ENDINGS)
        if not matches:
            raise TraceError(pattern, Said("no_trace_there", endings=", ".join(ENDINGS)))
        if len(matches) > 1:
            matches = [path for path in matches if not _is_copy(path, matches)]
        files |= dict.fromkeys(matches)
    return list(files)


def _is_copy(path: Path, others: Sequence[Path]) -> bool:
    """True if a trace is a JSON copy that the profiler wrote next to an .xplane.pb file."""
    name = path.name.removesuffix(".gz")
    copies = list[str]()
    for other in others:
        if other.parent == path.parent and other.name.endswith(XPLANE):
            copies += ("perfetto_trace.json", other.name.removesuffix(XPLANE) + ".trace.json")
    return name in copies


def trace_row(
    trace: Trace, analysis: Analysis, label: str = "", peaks: Mapping[str, float] | None = None
) -> TraceRow:
    """Makes the row of one window. `peaks` are the user's dense peaks by format, in TFLOP/s."""
    window = analysis.window
    properties = trace.device_properties(analysis.device)
    major = properties.get("computeMajor")
    rank, world, job = _job_of(trace, analysis)
    collectives = analysis.collectives if job else {}
    if sum(map(len, collectives.values())) > MOST_COLLECTIVES:
        collectives = {}
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
        collectives=json.dumps(collectives) if collectives else None,
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
    _set_flops(row, analysis, reasons)
    if row.device is None:
        reasons["device"] = {"no_device_name" if analysis.on_gpu else "no_cpu_name": {}}
    row.reasons = json.dumps(reasons | {"clock_ms": {"no_clock": {}}}, ensure_ascii=False)


def _job_of(trace: Trace, analysis: Analysis) -> tuple[int | None, int | None, str | None]:
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
    elif rank is None and job is None:
        rank_in_name = _RANK.search(name)
        if rank_in_name:
            rank = int(rank_in_name[1])
            job = f"{trace.path.parent.name}/{_RANK.sub('rank*', name, count=1)}"
    if rank is None:
        rank = analysis.device
    return rank, world, job


def _set_flops(row: TraceRow, analysis: Analysis, reasons: dict[str, Any]) -> None:
    """Sets a step's needed and executed FLOPs, the FLOPs by format, and the bytes."""
    _set_uncounted(row, analysis)
    flops = analysis.flops()
    executed = analysis.flops("executed_flops", recomputed=True)
    if not sum(executed.values()):
        reason = next((reason for _, reason in analysis.uncounted.values()), Said("no_matmul"))
        reasons["flops"] = {reason.key: reason.numbers}
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
    uncounted_ns = sum(time_ns for _, (time_ns, _) in uncounted)
    if not uncounted_ns:
        return
    counted_ns = sum(product.time_ns for product in analysis.counted)
    row.uncounted_percent = 100 * uncounted_ns / (uncounted_ns + counted_ns)
    shares = {}
    for name, (time_ns, reason) in uncounted[:LISTED]:
        percent = round(100 * time_ns / analysis.window.length, 2)
        shares[name] = [percent, {reason.key: reason.numbers}]
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
    by_shape = defaultdict[Any, list[Product]](list)
    for product in analysis.needed:
        if product.time_ns and product.flops:
            shape = product.matmul or (product.name, product.shapes)
            by_shape[product.format, shape].append(product)
    summaries = [_shape_summary(products) for products in by_shape.values()]
    longest = sorted(summaries, key=lambda summary: -summary["time_ns"])
    further = longest[MOST_SHAPES:]
    if further:  # summed to one entry without a shape
        summed = {}
        for name in ("flops", "time_ns", "best_ns"):
            summed[name] = sum(summary[name] for summary in further)
        longest[MOST_SHAPES:] = [{"format": None, "matmul": None, **summed}]
    return json.dumps(longest) if longest else None


def _shape_summary(products: Sequence[Product]) -> dict[str, Any]:
    """Sums over the matmuls of one shape."""
    time_ns = sum(product.time_ns for product in products)
    calls = sum(product.calls for product in products)
    shortest_ns = min(product.shortest_ns or product.time_ns for product in products)
    return {
        "format": products[0].format,
        "matmul": products[0].matmul,
        "flops": sum(product.flops for product in products),
        "time_ns": time_ns,
        "best_ns": min(time_ns, calls * shortest_ns),
    }


def _operators(analysis: Analysis) -> str | None:
    """JSON list of the operators with most time, and one entry that sums the rest. None if there
    are none."""
    longest = sorted(analysis.operators, key=lambda operator: -operator.time_ns)
    entries = list[dict[str, Any]]()
    for operator in longest[:MOST_SHAPES]:
        entry = vars(operator) | {"operator": operator.operator[:MOST_LETTERS]}
        reason = operator.reason
        entry["reason"] = reason and {reason.key: reason.numbers}
        entries.append(entry)
    further = longest[MOST_SHAPES:]
    if further:
        time_ns = sum(operator.time_ns for operator in further)
        entries.append({"kind": "rest", "time_ns": time_ns, "calls": len(further)})
    return json.dumps(entries, ensure_ascii=False) if entries else None


def _collective_sizes(analysis: Analysis) -> str | None:
    """JSON list of [kind, bytes, processes, ns of each kernel in order of begin] for the window's
    collectives. None if there are none."""
    nanoseconds = defaultdict[tuple[str, int, int], list[int]](list)
    for transfer in analysis.begun_transfers():
        collective = transfer.collective
        key = (collective.kind, collective.bytes, collective.processes)
        nanoseconds[key].append(transfer.end - transfer.begin)
    if nanoseconds:
        return json.dumps([[*key, times] for key, times in nanoseconds.items()])
    return None
