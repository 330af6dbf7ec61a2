"""Choice of the rows that stand for all of a very long table, by a few of its columns."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mfulab.core.parts import Record
from mfulab.core.said import Said

SHOWN = 20_000  # rows of a table; of more, some stand for all
KEYS = ("hardware", "recorded", "run", "status", "time_s")  # columns that tell which rows
ALIKE = ("hardware", "recorded", "status")


@dataclass(frozen=True)
class Choice:
    """Rows of a table that are shown: true for each of them; and by which rule, with its
    numbers."""

    rows: pd.Series
    rule: Said


def choose(keys: pd.DataFrame, columns: Iterable[str], file: str, shown: int) -> Choice | None:
    """Rows that stand for all of a table with these `columns`; None if all are shown. Of more than
    `shown` rows: of those alike but for axes that no column shows, the one of median time; the axes
    of the most values are merged first. Where such axes do not suffice: `shown` rows, spread evenly
    over all times. `keys` are the columns KEYS of the table."""
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
    """Axes of runs that have two values or more, those of the most values first."""
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
    """True for the row of median time of each group; missing times are the longest."""
    rank = time_s.groupby(alike).rank(method="first", na_option="bottom")
    middle = (rank.groupby(alike).transform("size") + 1) // 2
    return rank == middle


def _evenly_in_time(keys: pd.DataFrame, shown: int) -> pd.Series:
    """True for some `shown` rows: of each machine and status as large a share, from the shortest to
    the longest time."""
    rows = pd.Series(False, keys.index)
    for _, times in keys.groupby(list(ALIKE))["time_s"]:
        count = max(2, len(times) * shown // len(keys))
        ordered = times.sort_values(kind="stable").index
        places = np.linspace(0, len(times) - 1, count).round().astype(int)
        rows[ordered[np.unique(places)]] = True
    return rows
