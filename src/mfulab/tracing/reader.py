"""Files to rows: what `mfulab trace` and the step `read_trace` share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mfulab.core.files import found_files
from mfulab.measurements.read_trace import TraceRow
from mfulab.tracing import graphs, timeline
from mfulab.tracing.analysis import Analysis, analyse, devices
from mfulab.tracing.attribution import attribute
from mfulab.tracing.device_time import DeviceTime
from mfulab.tracing.formats import read
from mfulab.tracing.modules import Spans, by_module, column_of
from mfulab.tracing.recording import TraceError
from mfulab.tracing.rows import trace_row
from mfulab.tracing.window import windows

ENDINGS = (".json", ".json.gz", ".sqlite", ".xplane.pb")


@dataclass
class Read:
    """A row of one file, with what it was made of; a file that cannot be read has a failed row alone."""

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
    """A row for each run of consecutive steps in the file, and of several devices for each.

    Args:
        path: a trace, gzip or not.
        steps: how many steps it holds, where it does not tell.
        peaks: dense peaks by format in TFLOP/s that the user states.
        label: what to call it; the file's name where empty.
        capture: the trace of the capture of graphs that this one replays; where None, one beside it if there is any.

    Raises TraceError: it cannot be read; the message says why.
    """
    if steps is not None and steps < 1:
        raise TraceError(f"{path}: steps={steps}: a trace holds one step or more")
    recording = read(path)
    if captured := capture or graphs.beside(path):
        recording = graphs.joined(recording, read(captured))
    attribution, spans = attribute(recording), Spans(recording)
    found = []
    for window in windows(recording, steps):
        for device in [*sorted(devices(recording, window))] or (None,):
            analysis = analyse(recording, window, attribution, device)
            row = trace_row(recording, analysis, label, peaks)
            row.modules = column_of(by_module(recording, attribution, window, spans, analysis.device))
            if isinstance(analysis.told, DeviceTime):
                row.timeline = timeline.short(analysis.told)
            found.append(Read(row, analysis))
    return found


def failed(path: Path, error: Exception) -> Read:
    """The row of a file that could not be read."""
    name = path.name.split(".")[0]
    return Read(TraceRow(trace=path.name, model=name, status="unsupported", message=str(error)))


def files(given: Iterable[str]) -> list[Path]:
    """Paths, folders (their traces) and globs as files, each once, in order. Raises TraceError for one of no file."""
    found: dict[Path, None] = {}
    for word in given:
        matches = found_files(word, ENDINGS)
        if not matches:
            raise TraceError(f"{word}: no file is there ({' or '.join(ENDINGS)})")
        found |= dict.fromkeys(matches)
    return list(found)
