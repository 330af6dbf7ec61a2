"""Answers to what readers ask of their runs: batch size, memory of common cards, DataLoader, number format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mfulab.lab.report import frames
from mfulab.lab.report.drawing import curves, relative

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
    """Recommends for each case of profile rows the smallest batch size with KNEE of the most samples per second."""
    rows = rows[["status", *curves.KEYS, "batch_size", "samples_per_s", "predicted_memory_bytes"]]
    failed = rows[rows["status"] == OUT_OF_MEMORY]
    lost = failed["batch_size"].groupby([failed[name].map(str) for name in curves.KEYS]).agg(list).to_dict()
    known = frames.ok(rows, "samples_per_s", "batch_size")
    known = frames.one_each(known, [*curves.KEYS, "batch_size"]) if len(known) else known
    cases, number = known[curves.KEYS].to_dict("records"), known.groupby(curves.KEYS, dropna=False, sort=False).ngroup()
    sizes, speeds, memory = known[["batch_size", "samples_per_s", "predicted_memory_bytes"]].to_numpy(dtype=float).T
    order, found = np.lexsort((sizes, number)), []
    for rising in np.split(order, np.flatnonzero(np.diff(number.iloc[order])) + 1) if len(order) else ():
        best, last = speeds[rising].max(), rising[-1]
        knee = rising[speeds[rising] >= KNEE * best][0]
        beyond = [size for size in lost.get(tuple(map(str, cases[last].values())), ()) if size > sizes[last]]
        predicted = [(sizes[place], memory[place]) for place in rising if memory[place] == memory[place]]
        found.append(
            Batch(
                case=cases[last],
                batch_size=int(sizes[knee]) if len(rising) > 1 else None,
                samples_per_s=speeds[knee],
                share_percent=100 * speeds[knee] / best,
                rising=len(rising) > 1 and sizes[knee] == sizes[last] and not beyond,
                too_large=int(min(beyond)) if beyond else None,
                fits=tuple(largest_that_fits(predicted, gigabytes) for gigabytes in CARDS_GB),
                at_least=not bytes_a_sample(predicted),
            )
        )
    return found


def largest_that_fits(predicted: Sequence[tuple[float, float]], gigabytes: float) -> int | None:
    """Largest batch size whose predicted memory stays within USABLE of a card; 0 if none does; None if unknown.

    `predicted` are batch sizes, rising, with their memory: a line through the smallest and the largest predicts others.
    """
    if not predicted:
        return None
    room, (batch_size, memory), each = USABLE * gigabytes * 1e9, predicted[-1], bytes_a_sample(predicted)
    if not each:
        return int(batch_size) if memory <= room else None
    return max(0, int(batch_size + (room - memory) // each))


def bytes_a_sample(predicted: Sequence[tuple[float, float]]) -> float | None:
    """Bytes that memory grows by with a sample; None for one batch size alone, or where memory does not rise."""
    if len(dict(predicted)) < 2:
        return None
    (smallest, least), (largest, most) = predicted[0], predicted[-1]
    return (most - least) / (largest - smallest) if most > least else None


def bf16(rows: pd.DataFrame) -> pd.DataFrame:
    """Runs in bf16 beside the same run in fp32, with `speedup`, and with `worth`, the key of what is said of it."""
    pairs = relative.against(frames.ok(rows, "samples_per_s"), "precision", "fp32")
    pairs = pairs[pairs["precision"].isin(["bf16", "amp_bf16"])]
    once = pairs["speedup_low"].isna()  # of a single process, which has no interval
    worth = pd.Series("bf16_unclear", index=pairs.index).mask(once, "bf16_once")
    worth = worth.mask(pairs["speedup_low"] >= WORTH, "bf16_yes").mask(pairs["speedup_high"] < WORTH, "bf16_no")
    worth = worth.where(frames.comparable(pairs) & frames.comparable(pairs, "_base"), "bf16_faults")
    return pairs.assign(worth=worth, emulated=frames.emulated(pairs))
