"""Chooses representative rows of a very long table, from a few of its columns."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mfulab.core.parts import Record
from mfulab.core.said import Said

SHOWN = 20_000  # rows of a table, above which only representative ones are shown
KEYS = ("hardware", "recorded", "run", "status", "time_s")  # columns that the choice needs
ALIKE = ("hardware", "recorded", "status")


@dataclass(frozen=True)
class Choice:
    """Mask of the rows of a table that are shown, and the rule by which they were chosen."""

    rows: pd.Series
    rule: Said


def choose(keys: pd.DataFrame, columns: Iterable[str], file: str, shown: int) -> Choice | None:
    """Chooses at most about `shown` rows of a table with these `columns`; None if all are shown.
    Rows that differ only in axes without a column are grouped, and the one of median time
    represents its group. Axes with the most values are merged first. If that does not suffice, rows
    are spread evenly over all times. `keys` are the table's columns KEYS."""
    if len(keys) <= shown or "time_s" not in keys:
        return None
    numbers: Record = {"file": file, "all": len(keys)}
    with_columns = set(columns)
    merged = list[str]()
    names = keys["run"]
    for axis in _axes(names.tolist()):
        if axis in with_columns:
            continue
        merged.append(axis)
        names = names.str.replace(rf"(^|,){re.escape(axis)}=[^,]*", "", regex=True)
        alike = [names.rename("alike"), *(keys[name] for name in ALIKE)]
        if len(pd.concat(alike, axis=1).drop_duplicates()) <= shown:
            rows = _of_median_time(keys["time_s"], alike)
            numbers |= {"shown": int(rows.sum()), "axes": ", ".join(merged)}
            return Choice(rows, Said("rows_of_median_time", numbers))
    rows = _evenly_in_time(keys, shown)
    return Choice(rows, Said("rows_evenly_in_time", numbers | {"shown": int(rows.sum())}))


def _axes(names: Iterable[str]) -> list[str]:
    """Axes of the runs' names with two or more values, most values first."""
    parts = set[str]()
    for name in names:
        parts.update(name.split(","))
    values = Counter(part.partition("=")[0] for part in parts)
    found = []
    for axis, count in values.most_common():
        if count > 1:
            found.append(axis)
    return found


def _of_median_time(time_s: pd.Series, alike: list[pd.Series]) -> pd.Series:
    """True for the row of median time in each group; missing times count as longest."""
    rank = time_s.groupby(alike).rank(method="first", na_option="bottom")
    middle = (rank.groupby(alike).transform("size") + 1) // 2
    return rank == middle


def _evenly_in_time(keys: pd.DataFrame, shown: int) -> pd.Series:
    """True for about `shown` rows: an equal share of each machine and status, evenly from the
    shortest to the longest time."""
    rows = pd.Series(False, keys.index)
    for _, times in keys.groupby(list(ALIKE))["time_s"]:
        count = max(2, len(times) * shown // len(keys))
        ordered = times.sort_values(kind="stable").index
        positions = np.linspace(0, len(times) - 1, count).round().astype(int)
        rows[ordered[np.unique(positions)]] = True
    return rows
