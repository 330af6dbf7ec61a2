"""Checks of what cannot be among the columns of a row, or between rows of a machine, though each
reads well alone."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pandas as pd

from mfulab.core.json_text import parse_json
from mfulab.core.language import Texts
from mfulab.core.parts import Row
from mfulab.mfu.causes import ABOVE_PEAK

# % that the phases of a step, timed in steps with marks, may sum to above or below the step
PHASES = 10.0
WHOLE = 1.15  # a part ÷ its whole: both are medians of windows that met different moments
# An optimiser's time ÷ that of the same update after a larger batch: moments that are 0 cost it 3
# (docs/measuring.md).
UPDATE = 4.0
# by which a rung of the ladder may lie above the one before it: two counters, two clocks
POINTS = 5.0
# % to either side of a time that is recorded for everyone: one less known is measured again
WIDEST = 25.0
LEVELS = ("L1", "L2", "L3", "memory")
BATCH = r"(?<=batch_size=)\d+"  # in a run's name: what remains without it is the same step
# Each counts a part of what the one before counts, in the same windows.
RUNGS = ("utilization_percent", "sm_active_percent", "tensor_active_percent")
MODEL = ("hfu_percent", "mfu_percent", "useful_mfu_percent")


def failed(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """For each check that the columns of `rows` allow, by its key in section `trust`, True for a
    row that fails it."""
    has = set(rows).issuperset
    doubts = {}
    if has({"phases_percent"}):
        doubts["phases"] = (rows["phases_percent"] - 100).abs() > PHASES
    if has({"time_s", "forward_ms", "backward_ms", "optimiser_ms"}):
        whole = (
            rows["median_time_s"].fillna(rows["time_s"])
            if has({"median_time_s"})
            else rows["time_s"]
        )
        # Parts are as met, too.
        doubts["part"] = (
            rows[["forward_ms", "backward_ms", "optimiser_ms"]].max(axis=1) / 1e3 > WHOLE * whole
        )
    if has({"run", "hardware", "recorded", "optimiser_ms"}):
        doubts["update"] = _updates(rows)
    if has({"end_to_end_s", "time_s"}):
        doubts["end_to_end"] = rows["end_to_end_s"] * WHOLE < rows["time_s"]
    for rungs in (RUNGS, MODEL):
        for upper, lower in pairwise(rung for rung in rungs if rung in rows):
            doubts["rungs"] = doubts.get("rungs", False) | (rows[lower] > rows[upper] + POINTS)
    if has({"level", "pattern", "hardware", "recorded", "time_per_access_s"}):
        doubts["levels"] = _levels(rows)
    return {key: mask.fillna(False).astype(bool) for key, mask in doubts.items()}


def any_failed(rows: pd.DataFrame) -> pd.Series:
    """True for each row that fails a check."""
    return pd.DataFrame(failed(rows), index=rows.index).any(axis=1)


def above_peak(rows: pd.DataFrame) -> pd.Series:
    """True for a row whose MFU is above 100 %, also of the peak at the highest clock that its
    device allows."""
    highest = (
        rows["mfu_max_clock_percent"] if "mfu_max_clock_percent" in rows else rows["mfu_percent"]
    )
    return (rows["mfu_percent"] > ABOVE_PEAK) & ~(highest <= ABOVE_PEAK)


def unfit(records: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Yields what speaks against showing a machine's rows to everyone, a line for each reason and
    table."""
    text = Texts("en", "trust")
    for table, table_rows in records.items():
        rows = pd.DataFrame([row for row in table_rows if row["status"] == "ok"]).dropna(
            axis=1, how="all"
        )
        masks = failed(rows)
        if "mfu_percent" in rows:
            masks["above_peak"] = above_peak(rows)
        if "precision_percent" in rows:
            masks["imprecise"] = rows["precision_percent"] > WIDEST
        for key, mask in masks.items():
            if mask.any():
                yield f"{table}.csv: {text(key, count=int(mask.sum()), run=rows.loc[mask, 'run'].iloc[0])}"
    for row in records["environment"]:
        for name, value in parse_json(row["thread_settings"] or "{}").items():
            yield f"environment.csv: {row['run']}: {name}={value} was set, which most machines do not have."


def _updates(rows: pd.DataFrame) -> pd.Series:
    """True where an update takes far longer than with a larger batch, though it is of every weight
    in both."""
    update_ms = pd.to_numeric(rows["optimiser_ms"]).dropna()  # of objects, where all are empty
    timed = rows.loc[update_ms.index, ["run", "hardware", "recorded"]].assign(update_ms=update_ms)
    batch = pd.to_numeric(timed["run"].str.extract(f"({BATCH})", expand=False)).fillna(0)
    step = timed["run"].str.replace(BATCH, "", regex=True)
    falling = timed.assign(step=step, batch=batch).sort_values(
        "batch", ascending=False, kind="stable"
    )
    fastest = falling.groupby(["hardware", "recorded", "step"])["update_ms"].cummin()
    return (falling["update_ms"] > UPDATE * fastest).reindex(rows.index, fill_value=False)


def _levels(rows: pd.DataFrame) -> pd.Series:
    """True for a walk within a cache that is slower than the same walk through a larger one, or
    through memory."""
    keys = ["hardware", "recorded", "pattern"]
    placed = rows.assign(
        place=rows["level"].map({level: index for index, level in enumerate(LEVELS)})
    )
    fastest = placed.groupby([*keys, "place"])["time_per_access_s"].min()
    behind = fastest[::-1].groupby(keys).cummin().groupby(keys).shift()
    limits = WHOLE * behind.reindex(pd.MultiIndex.from_frame(placed[[*keys, "place"]])).to_numpy()
    return rows["time_per_access_s"] > limits
