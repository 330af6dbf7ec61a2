"""Files to rows: what `mfulab trace` and the step `read_trace` share."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mfulab.core.files import found_files
from mfulab.measurements.read_trace import TraceRow
from mfulab.tracing import graphs, timeline
from mfulab.tracing.analysis import Analysis, analyse, devices
from mfulab.tracing.attribution import attribute
from mfulab.tracing.device_time import DeviceTime
from mfulab.tracing.formats import read
from mfulab.tracing.modules import by_module, collective_times, column_of, spans_of
from mfulab.tracing.products import products_of
from mfulab.tracing.recording import TraceError
from mfulab.tracing.rows import trace_row
from mfulab.tracing.window import windows

ENDINGS = (".json", ".json.gz", ".sqlite", ".xplane.pb")


@dataclass
class Read:
    """A row of one file, with what it was made of; a file that cannot be read has a failed row alone.

    `told` is the device's time in order, `flops` those of each counted product by its call.
    """

    row: TraceRow
    analysis: Analysis | None = None
    path: Path = field(default_factory=Path)
    told: DeviceTime | None = None
    flops: dict[int, int] = field(default_factory=dict)


def read_file(
    path: Path,
    *,
    steps: int | None = None,
    peaks: Mapping[str, float] | None = None,
    label: str = "",
    capture: Path | None = None,
) -> list[Read]:
    """A row for each run of consecutive steps in the file, and of several devices for each.

    Args:
        path: a trace, gzip or not.
        steps: how many steps it holds, where it does not tell.
        peaks: dense peaks by format in TFLOP/s that the user states.
        label: what to call it; the file's name where empty.
        capture: the trace of the capture of graphs that this one replays; where None, one beside it if there is any.

    Raises:
        TraceError: it cannot be read; the message says why.
    """
    if steps is not None and steps < 1:
        raise TraceError(f"{path}: steps={steps}: a trace holds one step or more")
    recording = read(path)
    if captured := capture or graphs.beside(path):
        recording = graphs.joined(recording, read(captured))
    attribution, spans = attribute(recording), spans_of(recording)
    found = []
    for window in windows(recording, steps):
        for device in [*sorted(devices(recording, window))] or (None,):
            analysis = analyse(recording, window, attribution, device)
            row = trace_row(recording, analysis, label, peaks)
            row.modules = column_of(by_module(recording, attribution, window, spans, analysis.device))
            sizes = [[*what, ns] for what, ns in collective_times(spans, window, analysis.device).items()]
            row.collective_sizes = json.dumps(sizes) if sizes else None
            read_one = Read(row, analysis, path)
            if analysis.on_gpu:
                _, _, of_call = products_of(recording, attribution, window, True, analysis.device)
                counted = {call: product for call, product in of_call.items() if not product.reason}
                read_one.told = DeviceTime(recording, attribution, window, set(counted), analysis.device)
                read_one.flops = {call: one.flops // one.calls for call, one in counted.items() if not one.recomputed}
                row.timeline = timeline.short(read_one.told)
            found.append(read_one)
    return found


def failed(path: Path, error: Exception) -> Read:
    """The row of a file that could not be read."""
    name = path.name.split(".")[0]
    return Read(TraceRow(trace=path.name, model=name, status="unsupported", message=str(error)), None, path)


def files(given: Iterable[str]) -> list[Path]:
    """Paths, folders (their traces) and globs as files, each once, in order.

    Raises:
        TraceError: one of them means no file.
    """
    found: dict[Path, None] = {}
    for word in given:
        matches = found_files(word, ENDINGS)
        if not matches:
            raise TraceError(f"{word}: no file is there ({' or '.join(ENDINGS)})")
        found |= dict.fromkeys(matches)
    return list(found)
