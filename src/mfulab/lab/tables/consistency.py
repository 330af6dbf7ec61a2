"""Plausibility checks: values that contradict each other, within a row or between rows of a
machine."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from mfulab.core.json_text import parse_json
from mfulab.core.parts import Row
from mfulab.core.said import Said
from mfulab.mfu.causes import ABOVE_PEAK

# % by which the sum of a step's phases, timed separately, may differ from the step's time
PHASES = 10.0
# largest plausible part ÷ whole: both are medians, of different windows
WHOLE = 1.15
# Largest plausible ratio of an optimiser's time to that at a larger batch. Moments that are 0 can
# make it 3 (docs/measuring.md).
UPDATE = 4.0
# percentage points by which a rung may exceed the one above: their counters and clocks differ
POINTS = 5.0
# % of half-width up to which a time's interval is precise enough for a recording
WIDEST = 25.0
PHASES_MS = ("forward_ms", "backward_ms", "optimiser_ms")
LEVELS = ("L1", "L2", "L3", "memory")
BATCH = r"(?<=batch_size=)\d+"  # in a run's name; equal names without it are the same step
# Each rung counts a part of what the one before counts, in the same windows.
RUNGS = ("utilization_percent", "sm_active_percent", "tensor_active_percent")
MODEL = ("hfu_percent", "mfu_percent", "useful_mfu_percent")


class Check(NamedTuple):
    """A check of a table's rows: columns that it needs, and the function that returns its mask, or
    None if it has nothing to compare."""

    needs: Collection[str]
    mask: Callable[[pd.DataFrame], pd.Series | None]


def failed(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Runs the checks that the columns of `rows` allow. Returns a mask for each, by its key in
    section `trust`; True marks a row that fails."""
    doubts = {}
    for key, check in CHECKS.items():
        if set(rows).issuperset(check.needs):
            mask = check.mask(rows)
            if mask is not None:
                doubts[key] = mask.fillna(False).astype(bool)
    return doubts


def any_failed(rows: pd.DataFrame) -> pd.Series:
    """True for each row that fails a check."""
    return pd.DataFrame(failed(rows), index=rows.index).any(axis=1)


def above_peak(rows: pd.DataFrame) -> pd.Series:
    """True for a row whose MFU exceeds 100 %, also relative to the peak at the device's highest
    clock."""
    above = rows["mfu_percent"] > ABOVE_PEAK
    if "mfu_max_clock_percent" in rows:
        above &= ~(rows["mfu_max_clock_percent"] <= ABOVE_PEAK)
    return above


def unfit(records: Mapping[str, Sequence[Row]]) -> Iterator[Said]:
    """Yields reasons not to publish a machine's rows: a sentence for each reason and table."""
    for table, table_rows in records.items():
        measured = [row for row in table_rows if row["status"] == "ok"]
        rows = pd.DataFrame(measured).dropna(axis=1, how="all")
        masks = failed(rows)
        if "mfu_percent" in rows:
            masks["above_peak"] = above_peak(rows)
        if "precision_percent" in rows:
            masks["imprecise"] = rows["precision_percent"] > WIDEST
        for key, mask in masks.items():
            if mask.any():
                first = str(rows.loc[mask, "run"].iloc[0])
                doubt = Said(f"trust.{key}", count=int(mask.sum()), run=first)
                yield Said("rows_unfit", table=table, doubt=doubt)
    for row in records["environment"]:
        for name, value in parse_json(row["thread_settings"] or "{}").items():
            setting = {"name": name, "value": str(value)}
            yield Said("variable_was_set", run=row["run"], **setting)


def _phases(rows: pd.DataFrame) -> pd.Series:
    """True where a step's phases do not add up to the step."""
    deviation = rows["phases_percent"] - 100
    return deviation.abs() > PHASES


def _parts(rows: pd.DataFrame) -> pd.Series:
    """True where a phase takes longer than the whole step."""
    step_s = rows["time_s"]
    if "median_time_s" in rows:  # preferred: phases include the machine's slow states too
        step_s = rows["median_time_s"].fillna(step_s)
    phases_ms = rows[[*PHASES_MS]]
    longest_s = phases_ms.max(axis=1) / 1e3
    return longest_s > WHOLE * step_s


def _end_to_end(rows: pd.DataFrame) -> pd.Series:
    """True where a matmul takes longer alone than with its transfers."""
    return rows["end_to_end_s"] * WHOLE < rows["time_s"]


def _rungs(rows: pd.DataFrame) -> pd.Series | None:
    """True where a rung of a ladder is above the one that holds it; None without two rungs."""
    is_above = None
    for ladder in (RUNGS, MODEL):
        present = [rung for rung in ladder if rung in rows]
        for upper, lower in pairwise(present):
            most = rows[upper] + POINTS
            is_higher = rows[lower] > most
            if is_above is None:
                is_above = is_higher
            else:
                is_above |= is_higher
    return is_above


def _updates(rows: pd.DataFrame) -> pd.Series:
    """True where an optimiser's update takes far longer than at a larger batch, though both update
    every weight."""
    update_ms = pd.to_numeric(rows["optimiser_ms"])  # dtype object if all are empty
    update_ms = update_ms.dropna()
    timed = rows.loc[update_ms.index, ["run", "hardware", "recorded"]].copy()
    batch = timed["run"].str.extract(f"({BATCH})", expand=False)
    timed["update_ms"] = update_ms
    timed["batch"] = pd.to_numeric(batch).fillna(0)
    timed["step"] = timed["run"].str.replace(BATCH, "", regex=True)
    timed = timed.sort_values("batch", ascending=False, kind="stable")
    steps = timed.groupby(["hardware", "recorded", "step"])
    fastest_ms = steps["update_ms"].cummin()
    is_slow = timed["update_ms"] > UPDATE * fastest_ms
    return is_slow.reindex(rows.index, fill_value=False)


def _levels(rows: pd.DataFrame) -> pd.Series:
    """True for a walk within a cache that is slower than the same walk through a larger cache or
    memory."""
    keys = ["hardware", "recorded", "pattern"]
    ranks = {level: index for index, level in enumerate(LEVELS)}
    ranked = rows.assign(rank=rows["level"].map(ranks))
    walks = ranked.groupby([*keys, "rank"])
    fastest_s = walks["time_per_access_s"].min()
    farthest_first = fastest_s[::-1]
    fastest_so_far = farthest_first.groupby(keys).cummin()
    fastest_beyond = fastest_so_far.groupby(keys).shift()
    index = pd.MultiIndex.from_frame(ranked[[*keys, "rank"]])
    beyond_s = fastest_beyond.reindex(index).to_numpy()
    return rows["time_per_access_s"] > WHOLE * beyond_s


# By key in section `trust`.
CHECKS = {
    "phases": Check({"phases_percent"}, _phases),
    "part": Check({"time_s", *PHASES_MS}, _parts),
    "update": Check({"run", "hardware", "recorded", "optimiser_ms"}, _updates),
    "end_to_end": Check({"end_to_end_s", "time_s"}, _end_to_end),
    "rungs": Check((), _rungs),
    "levels": Check({"level", "pattern", "hardware", "recorded", "time_per_access_s"}, _levels),
}
