"""The time series of all runs in one table: what the device reported while each of them ran."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mfulab.core.files import opened, unquoted
from mfulab.lab.tables.details import thin
from mfulab.lab.tables.records import read_lines

IDENTITY = ("hardware", "recorded", "run")
MOST_RUNS, MOST_POINTS = 200, 400


def collect(runs: Iterable[tuple[Mapping[str, Any], Path]]) -> list[dict[str, Any]]:
    """The lines of each run's series.csv with the run's identity, thinned; runs without one are passed over."""
    found = ((row, polled) for row, folder in runs if (polled := read_lines(folder / "series.csv", [], "")))
    return [
        {**polled[at], **{name: row[name] for name in IDENTITY}}
        for row, polled in itertools.islice(found, MOST_RUNS)
        for at in thin(len(polled), MOST_POINTS)
    ]


def columns(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Identity first, then every quantity that any run polled."""
    polled = dict.fromkeys(name for line in lines for name in line if name not in IDENTITY)
    return [*IDENTITY, *({"time_s": None, "in_window": None} | polled)]


def cells(path: Path) -> pd.DataFrame:
    """A table's cells as text. Raises FileNotFoundError, OSError, or ValueError where it is no table."""
    with opened(path) as file:
        return pd.read_csv(file, dtype=str, keep_default_na=False, na_filter=False, encoding_errors="replace")


def read(path: Path) -> pd.DataFrame:
    """The table with its types: numbers, but for the run's identity and `in_window`; empty without one."""
    try:
        frame = cells(path)
    except (OSError, ValueError):
        frame = pd.DataFrame()
    frame = frame.reindex(columns=[*dict.fromkeys([*frame, *columns([])])], fill_value="")
    texts = {name: frame[name].map(unquoted) for name in ("hardware", "run")}
    flags = {name: frame[name] == "True" for name in ("recorded", "in_window")}
    polled = frame.columns.drop([*texts, *flags])
    return frame.assign(**texts, **flags, **{name: pd.to_numeric(frame[name], errors="coerce") for name in polled})
