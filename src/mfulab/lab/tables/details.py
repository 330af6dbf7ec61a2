"""Details of runs for the page: config, samples, operators, the log's end, and what the device
reported meanwhile."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from mfulab.core.files import UnreadableError, opened, read_tail, unquoted
from mfulab.core.parts import Record, pick_all
from mfulab.lab.tables.records import Problems, read_config, read_lines
from mfulab.measurements.registry import SUPERSEDED

MOST_RUNS = 2000  # beyond it a page would grow past what a browser opens at once
MOST_POINTS = 120
LOG_LINES = 15
LOG_CHARACTERS = 2000
OPERATORS = 12
MOST_EARLIER = 30  # results of a run before the present one
EARLIER = ("started_at", "commit", "time_s")
PARTS = ("samples", "series", "operators")
SKIPPED = {"window", "sample", "step", "repetition", "round"}
IDENTITY = ("hardware", "recorded", "run")
MOST_SERIES = 200
SERIES_POINTS = 400  # runs, and points of each


def describe(folder: Path, problems: Problems) -> Record:
    """All that is there of one run's folder; what is absent, or a problem, has no key."""
    without = "The page shows its run without it."
    samples, polled, operators = (
        read_lines(folder / f"{name}.csv", problems, without) for name in PARTS
    )
    log = ""
    with suppress(FileNotFoundError, UnreadableError):
        log = "\n".join(read_tail(folder / "log", 4 * LOG_CHARACTERS).splitlines()[-LOG_LINES:])[
            -LOG_CHARACTERS:
        ]
    told: Record = {
        "folder": folder.as_posix(),
        "config": read_config(folder),
        "samples": curves(samples),
    }
    told |= {
        "series": curves(polled),
        "operators": longest(operators),
        "log": log,
        "earlier": earlier(folder),
    }
    return {name: value for name, value in told.items() if value}


def earlier(folder: Path) -> list[dict[str, str]]:
    """Start, commit and time of a run's results at rest in results/superseded/, the oldest
    first."""
    places = (root / SUPERSEDED / folder.relative_to(root) for root in folder.parents[1:3])
    rows = [
        row
        for place in places
        for path in place.glob("*/row.csv")
        for row in read_lines(path, [], "")
    ]
    told = [pick_all(row, EARLIER) for row in rows if all(map(row.get, EARLIER))]
    return sorted(told, key=lambda row: row["started_at"])[-MOST_EARLIER:]


def curves(lines: Sequence[Mapping[str, str]]) -> dict[str, list[float | None]]:
    """The numeric columns of a table, thinned evenly to MOST_POINTS points that keep the first and
    the last."""
    if not lines:
        return {}
    kept = [lines[index] for index in thin(len(lines), MOST_POINTS)]
    columns = {}
    for name in lines[0]:
        if name not in SKIPPED:
            columns[name] = [_number(line[name]) for line in kept]
    found = {}
    for name, values in columns.items():
        if any(value is not None for value in values):
            found[name] = values
    return found


def thin(count: int, most: int) -> list[int]:
    """At most `most` indices below `count`, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(index * (count - 1) / (most - 1)) for index in range(most)]


def longest(lines: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The operators that took longest, as the traced pass wrote them, each with its share of the
    time of all."""
    times = [
        _number(line.get("self_device_time_s")) or _number(line.get("self_cpu_time_s")) or 0.0
        for line in lines
    ]
    whole = sum(times)
    wanted = ("operator", "input_shapes", "calls", "flops")
    return [
        {name: line[name] for name in wanted if line.get(name)}
        | {"time_s": f"{time:.4g}", "share_percent": f"{100 * time / whole:.3g}" if whole else ""}
        for time, line in sorted(zip(times, lines, strict=True), key=lambda pair: -pair[0])[
            :OPERATORS
        ]
    ]


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    if abs(value) < float("inf"):
        return float(f"{value:.6g}")
    return None


def series(runs: Iterable[tuple[Mapping[str, object], Path]]) -> list[Record]:
    """The lines of each run's series.csv with the run's identity, thinned; runs without one are
    passed over."""
    polled_runs = (
        (row, polled)
        for row, folder in runs
        if (polled := read_lines(folder / "series.csv", [], ""))
    )
    return [
        {**polled[at], **pick_all(row, IDENTITY)}
        for row, polled in itertools.islice(polled_runs, MOST_SERIES)
        for at in thin(len(polled), SERIES_POINTS)
    ]


def series_columns(lines: Sequence[Mapping[str, object]]) -> list[str]:
    """Identity first, then every quantity that any run polled."""
    polled = dict.fromkeys(name for line in lines for name in line if name not in IDENTITY)
    return [*IDENTITY, *({"time_s": None, "in_window": None} | polled)]


def cells(path: Path) -> pd.DataFrame:
    """A table's cells as text. Raises FileNotFoundError, OSError, or ValueError where it is no
    table."""
    with opened(path) as file:
        return pd.read_csv(
            file, dtype=str, keep_default_na=False, na_filter=False, encoding_errors="replace"
        )


def read_series(path: Path) -> pd.DataFrame:
    """The table with its types: numbers, but for the run's identity and `in_window`; empty without
    one."""
    try:
        frame = cells(path)
    except (OSError, ValueError):
        frame = pd.DataFrame()
    frame = frame.reindex(columns=[*dict.fromkeys([*frame, *series_columns([])])], fill_value="")
    texts = {name: frame[name].map(unquoted) for name in ("hardware", "run")}
    flags = {name: frame[name] == "True" for name in ("recorded", "in_window")}
    polled = frame.columns.drop([*texts, *flags])
    return frame.assign(
        **texts, **flags, **{name: pd.to_numeric(frame[name], errors="coerce") for name in polled}
    )
