"""Answers to what readers ask of their runs: batch size, memory of common cards, DataLoader, number format."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mfulab.report import frames
from mfulab.report.drawing import curves, relative

OUT_OF_MEMORY = "out_of_memory"
KNEE = 0.9  # of the most samples per second measured: a larger batch gains less than it costs in memory
CARDS_GB = (16, 24, 40, 80)  # of common cards: T4 and V100, 4090 and L4, A100, H100
USABLE = 0.9  # of a card's memory: context, libraries' workspaces and fragments take the rest
WAITING = 5.0  # % of the time from which a loader is worth a thought
WORTH = 1.05  # speed-up from which another number format is worth its rounding


@dataclass(frozen=True)
class Batch:
    """Recommended batch size of one case, and the largest that fits each card."""

    case: Mapping[str, Any]  # by curves.KEYS
    batch_size: int | None  # None where a single batch size was measured, from which nothing can be recommended
    samples_per_s: float
    share_percent: float
    rising: bool
    too_large: int | None  # the smallest that was out of memory, beyond all that were measured
    fits: tuple[int | None, ...]  # None: not predicted
    at_least: bool  # `fits` are batch sizes that were measured: no line predicts larger ones


def batches(rows: pd.DataFrame) -> list[Batch]:
    """A recommendation for each case of measured profile rows with their machine; the knee of samples per second.

    The knee is the smallest batch size with KNEE of the most samples per second; `rising` if it is also the largest
    and none beyond it was out of memory.
    """
    rows = rows[["status", *curves.KEYS, "batch_size", "samples_per_s", "predicted_memory_bytes"]]
    lost = rows[rows["status"] == OUT_OF_MEMORY].drop_duplicates()
    lost_cases = lost[curves.KEYS].map(str)
    known = frames.ok(rows, "samples_per_s", "batch_size")
    known = frames.one_each(known, [*curves.KEYS, "batch_size"]) if len(known) else known
    found = []
    for _, case in known.groupby(curves.KEYS, dropna=False, sort=False):
        case = case.sort_values("batch_size")
        best, last = case["samples_per_s"].max(), case.iloc[-1]
        knee = case[case["samples_per_s"] >= KNEE * best].iloc[0]
        chosen = int(knee["batch_size"]) if len(case) > 1 else None
        alike = (lost_cases == last[curves.KEYS].map(str)).all(axis=1)
        beyond = lost.loc[alike & (lost["batch_size"] > last["batch_size"]), "batch_size"]
        found.append(
            Batch(
                case=last[curves.KEYS].to_dict(),
                batch_size=chosen,
                samples_per_s=knee["samples_per_s"],
                share_percent=100 * knee["samples_per_s"] / best,
                rising=len(case) > 1 and knee["batch_size"] == last["batch_size"] and beyond.empty,
                too_large=None if beyond.empty else int(beyond.min()),
                fits=tuple(largest_that_fits(case, gigabytes) for gigabytes in CARDS_GB),
                at_least=not bytes_a_sample(case),
            )
        )
    return found


def largest_that_fits(case: pd.DataFrame, gigabytes: float) -> int | None:
    """The largest batch size whose predicted memory stays within USABLE of a card; 0 if none does; None if unknown.

    Predicted memory grows with the batch by a line through the smallest and the largest that were measured. One alone,
    or a line that does not rise, says whether it fits, not what would: then the largest measured, or None, as a smaller
    one might.
    """
    known = case.dropna(subset=["predicted_memory_bytes"]).sort_values("batch_size")
    if known.empty:
        return None
    room, last, each = USABLE * gigabytes * 1e9, known.iloc[-1], bytes_a_sample(case)
    if not each:
        return int(last["batch_size"]) if last["predicted_memory_bytes"] <= room else None
    return max(0, int(last["batch_size"] + (room - last["predicted_memory_bytes"]) // each))


def bytes_a_sample(case: pd.DataFrame) -> float | None:
    """Slope of that line; None where one batch size alone is known, or the line does not rise."""
    known = case.dropna(subset=["predicted_memory_bytes"]).sort_values("batch_size")
    if known["batch_size"].nunique() < 2:
        return None
    ends = known[["batch_size", "predicted_memory_bytes"]].iloc[[0, -1]]
    samples, more = (ends.iloc[1] - ends.iloc[0]).astype(float)
    return more / samples if more > 0 else None


def bf16(rows: pd.DataFrame) -> pd.DataFrame:
    """Runs in bf16 beside the same run in fp32, with `speedup` and `worth`: bf16_yes, _no, _unclear or _once."""
    pairs = relative.against(frames.ok(rows, "samples_per_s"), "precision", "fp32")
    pairs = pairs[pairs["precision"].isin(["bf16", "amp_bf16"])]
    once = pairs["speedup_low"].isna()  # of a single process, which has no interval
    worth = pd.Series("bf16_unclear", index=pairs.index).mask(once, "bf16_once")
    worth = worth.mask(pairs["speedup_low"] >= WORTH, "bf16_yes").mask(pairs["speedup_high"] < WORTH, "bf16_no")
    return pairs.assign(worth=worth, emulated=frames.emulated(pairs))
