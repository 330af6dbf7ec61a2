"""Details of runs for the page: config, samples, operators, the end of the log, and device
readings."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd
from pydantic import NonNegativeInt, TypeAdapter

from mfulab.core.files import UnreadableError, opened, read_tail, unquoted
from mfulab.core.json_text import parse_json
from mfulab.core.parts import Record, pick_all
from mfulab.lab.tables.records import Problems, read_config, read_lines
from mfulab.measurements.registry import SUPERSEDED

MOST_RUNS = 2000  # with more, the page would be too large for a browser
MOST_POINTS = 120  # of a curve
LOG_LINES = 15
LOG_CHARACTERS = 2000
OPERATORS = 12  # shown, the longest
OUTSIDE = {"idle", "input_wait", "graph"}  # kinds of a pass's time that are in no operator
# Names of ranges that torch and its wrappers mark, such as Optimizer.step#Adam.step.
RANGE = re.compile(r"#|^(autograd::engine|FSDP::|DistributedDataParallel\.|gloo:|forward$)")
MOST_EARLIER = 30  # earlier results of a run
EARLIER = ("started_at", "commit", "time_s")
WITHOUT = "run_shown_without"  # key of a problem with a file of a run
SKIPPED = {"window", "sample", "step", "repetition", "round"}
IDENTITY = ("hardware", "recorded", "run")
SPENT = TypeAdapter(dict[str, NonNegativeInt])
MOST_SERIES = 200  # runs in series.csv
SERIES_POINTS = 400  # of each run


def describe(folder: Path, problems: Problems) -> Record:
    """Collects the details of a run's folder. Missing and unreadable ones have no key."""
    samples = read_lines(folder / "samples.csv", problems, WITHOUT)
    polled = read_lines(folder / "series.csv", problems, WITHOUT)
    operators = read_lines(folder / "operators.csv", problems, WITHOUT)
    shown, outside = longest(operators, spent(folder))
    log = ""
    with suppress(FileNotFoundError, UnreadableError):
        lines = read_tail(folder / "log", 4 * LOG_CHARACTERS).splitlines()
        log = "\n".join(lines[-LOG_LINES:])[-LOG_CHARACTERS:]
    details: Record = {
        "folder": folder.as_posix(),
        "config": read_config(folder),
        "samples": curves(samples),
        "series": curves(polled),
        "operators": shown,
        "outside_operators": outside,
        "log": log,
        "earlier": earlier(folder),
    }
    return {name: value for name, value in details.items() if value}


def earlier(folder: Path) -> list[dict[str, str]]:
    """Start, commit and time of a run's earlier results in results/superseded/, oldest first."""
    rows: list[dict[str, str]] = []
    for root in folder.parents[1:3]:
        for path in (root / SUPERSEDED / folder.relative_to(root)).glob("*/row.csv"):
            rows += read_lines(path, [], WITHOUT)
    found = []
    for row in rows:
        if all(map(row.get, EARLIER)):
            found.append(pick_all(row, EARLIER))
    return sorted(found, key=lambda row: row["started_at"])[-MOST_EARLIER:]


def curves(lines: Sequence[Mapping[str, str]]) -> dict[str, list[float | None]]:
    """Numeric columns of a table, thinned evenly to at most MOST_POINTS points, including the first
    and last."""
    if not lines:
        return {}
    kept = [lines[index] for index in thin(len(lines), MOST_POINTS)]
    found = {}
    for name in lines[0]:
        values = [_number(line[name]) for line in kept]
        has_numbers = values.count(None) < len(values)
        if name not in SKIPPED and has_numbers:
            found[name] = values
    return found


def thin(count: int, most: int) -> list[int]:
    """Returns at most `most` indices below `count`, evenly spaced, including the first and last."""
    if count <= most:
        return list(range(count))
    return [round(index * (count - 1) / (most - 1)) for index in range(most)]


def spent(folder: Path) -> dict[str, int]:
    """Nanoseconds of the traced pass by kind, from the run's row; empty if it has none."""
    times: dict[str, int] = {}
    for row in read_lines(folder / "row.csv", [], WITHOUT):
        with suppress(ValueError):
            times = SPENT.validate_python(parse_json(row.get("spent") or "{}"))
    return times


def longest(
    lines: Sequence[Mapping[str, str]], spent_ns: Mapping[str, int]
) -> tuple[list[dict[str, str]], dict[str, float]]:
    """Returns the operators that took longest in the traced pass, and by kind the percentages of it
    that are in none. Shares are of the pass, whose time by kind is `spent_ns`; unknown without."""
    window_ns = sum(spent_ns.values())
    outside = {kind: time for kind, time in spent_ns.items() if kind in OUTSIDE and time}
    inside_s = (window_ns - sum(outside.values())) / 1e9
    timed = _timed(lines)
    total_s = sum(time for time, _ in timed)
    is_placed = inside_s > 0
    percent_per_s = 0.0
    if is_placed:
        # Operators of several streams or threads overlap: then their sum is the time inside.
        percent_per_s = 1e11 / window_ns * inside_s / max(total_s, inside_s)
    found = []
    for time, line in timed[:OPERATORS]:
        operator = {}
        for name in ("operator", "input_shapes", "calls", "flops"):
            if line.get(name):
                operator[name] = line[name]
        operator["time_s"] = f"{time:.4g}"
        operator["share_percent"] = ""
        if is_placed:
            operator["share_percent"] = f"{percent_per_s * time:.3g}"
        found.append(operator)
    if not (found and is_placed):
        return found, {}
    return found, {kind: round(100 * time / window_ns, 2) for kind, time in outside.items()}


def _timed(lines: Sequence[Mapping[str, str]]) -> list[tuple[float, Mapping[str, str]]]:
    """Operators with their own seconds, the longest first: on the device if any ran there. Without
    ranges, in which operators lie: a range's own time is between operators."""
    on_host = []
    on_device = []
    for line in lines:
        if RANGE.search(line.get("operator") or ""):
            continue
        host_s = _number(line.get("self_cpu_time_s")) or 0.0
        device_s = _number(line.get("self_device_time_s")) or 0.0
        on_host.append((host_s, line))
        if device_s and host_s:  # without host time it is a kernel, whose operator has its time
            on_device.append((device_s, line))
    return sorted(on_device or on_host, key=lambda pair: -pair[0])


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    if abs(value) < float("inf"):
        return float(f"{value:.6g}")
    return None


def series(runs: Iterable[tuple[Mapping[str, object], Path]]) -> list[Record]:
    """Lines of each run's series.csv, thinned, with the run's identity. Runs without one are
    skipped."""
    found: list[Record] = []
    count = 0
    for row, folder in runs:
        lines = read_lines(folder / "series.csv", [], WITHOUT)
        if not lines:
            continue
        run = pick_all(row, IDENTITY)
        found += [{**lines[index], **run} for index in thin(len(lines), SERIES_POINTS)]
        count += 1
        if count == MOST_SERIES:
            break
    return found


def series_columns(lines: Sequence[Mapping[str, object]]) -> list[str]:
    """Columns of series.csv: identity, time, then every quantity that any run polled."""
    polled = itertools.chain.from_iterable(lines)
    return list(dict.fromkeys([*IDENTITY, "time_s", "in_window", *polled]))


def cells(path: Path) -> pd.DataFrame:
    """Reads a table's cells as text. Raises FileNotFoundError, other OSErrors, or ValueError if it
    is not a table."""
    with opened(path) as file:
        return pd.read_csv(
            file, dtype=str, keep_default_na=False, na_filter=False, encoding_errors="replace"
        )


def read_series(path: Path) -> pd.DataFrame:
    """Reads series.csv with types: all columns are numbers except identity and `in_window`. Empty
    if the file is missing."""
    try:
        frame = cells(path)
    except (OSError, ValueError):
        frame = pd.DataFrame()
    names = dict.fromkeys([*frame, *series_columns([])])
    frame = frame.reindex(columns=[*names], fill_value="")
    texts = {name: frame[name].map(unquoted) for name in ("hardware", "run")}
    flags = {name: frame[name] == "True" for name in ("recorded", "in_window")}
    numbers = {}
    for name in frame.columns.drop([*texts, *flags]):
        numbers[name] = pd.to_numeric(frame[name], errors="coerce")
    return frame.assign(**texts, **flags, **numbers)
