"""Plausibility checks: values that contradict each other, within a row or between rows of a
machine."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

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
LEVELS = ("L1", "L2", "L3", "memory")
BATCH = r"(?<=batch_size=)\d+"  # in a run's name; equal names without it are the same step
# Each rung counts a part of what the one before counts, in the same windows.
RUNGS = ("utilization_percent", "sm_active_percent", "tensor_active_percent")
MODEL = ("hfu_percent", "mfu_percent", "useful_mfu_percent")


def failed(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Runs the checks that the columns of `rows` allow. Returns a mask for each, by its key in
    section `trust`; True marks a row that fails."""
    has = set(rows).issuperset
    doubts = {}
    if has({"phases_percent"}):
        doubts["phases"] = (rows["phases_percent"] - 100).abs() > PHASES
    if has({"time_s", "forward_ms", "backward_ms", "optimiser_ms"}):
        step_s = rows["time_s"]
        if has({"median_time_s"}):  # preferred: phases include the machine's slow states too
            step_s = rows["median_time_s"].fillna(step_s)
        longest_s = rows[["forward_ms", "backward_ms", "optimiser_ms"]].max(axis=1) / 1e3
        doubts["part"] = longest_s > WHOLE * step_s
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
                doubt = Said(f"trust.{key}", {"count": int(mask.sum()), "run": first})
                yield Said("rows_unfit", {"table": table, "doubt": doubt})
    for row in records["environment"]:
        for name, value in parse_json(row["thread_settings"] or "{}").items():
            setting = {"name": name, "value": str(value)}
            yield Said("variable_was_set", {"run": row["run"], **setting})


def _updates(rows: pd.DataFrame) -> pd.Series:
    """True where an optimiser's update takes far longer than at a larger batch, though both update
    every weight."""
    update_ms = pd.to_numeric(rows["optimiser_ms"]).dropna()  # dtype object if all are empty
    timed = rows.loc[update_ms.index, ["run", "hardware", "recorded"]].assign(update_ms=update_ms)
    batch = pd.to_numeric(timed["run"].str.extract(f"({BATCH})", expand=False)).fillna(0)
    step = timed["run"].str.replace(BATCH, "", regex=True)
    timed = timed.assign(step=step, batch=batch)
    timed = timed.sort_values("batch", ascending=False, kind="stable")
    fastest = timed.groupby(["hardware", "recorded", "step"])["update_ms"].cummin()
    return (timed["update_ms"] > UPDATE * fastest).reindex(rows.index, fill_value=False)


def _levels(rows: pd.DataFrame) -> pd.Series:
    """True for a walk within a cache that is slower than the same walk through a larger cache or
    memory."""
    keys = ["hardware", "recorded", "pattern"]
    ranks = {level: index for index, level in enumerate(LEVELS)}
    ranked = rows.assign(rank=rows["level"].map(ranks))
    fastest = ranked.groupby([*keys, "rank"])["time_per_access_s"].min()
    fastest_beyond = fastest[::-1].groupby(keys).cummin().groupby(keys).shift()
    index = pd.MultiIndex.from_frame(ranked[[*keys, "rank"]])
    return rows["time_per_access_s"] > WHOLE * fastest_beyond.reindex(index).to_numpy()
