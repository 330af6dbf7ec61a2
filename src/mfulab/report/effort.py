"""The duty cycle: how much of a sweep's wall time lay inside warm-up and measured windows."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

PAUSE_S = 60.0  # a longer gap between two runs is the user's pause, not a cost of the sweep
CLOCK_S = 1.0  # starts are told in whole seconds


@dataclass(frozen=True)
class Effort:
    """Of `runs` runs; `wall_s` counts each second once for every device that worked side by side."""

    runs: int
    wall_s: float
    measured_s: float

    @property
    def duty_percent(self) -> float:
        return 100 * self.measured_s / self.wall_s


def effort(rows: pd.DataFrame) -> Effort | None:
    """Of rows with `hardware`, `started_at`, `process_s` and `measured_s`; None where none has all of them.

    A machine's wall time runs from the start of its first run to the end of its last one, pauses left out: what happens
    between runs (the pipeline's own work, counting, waiting) is in it, Snakemake's start and the drawing are not.
    """
    begins = pd.to_datetime(rows["started_at"], utc=True, errors="coerce")
    timed = rows.assign(begin=(begins - pd.Timestamp(0, tz="UTC")).dt.total_seconds())
    timed = timed.dropna(subset=["begin", "process_s", "measured_s"])
    wall_s = sum(_wall_s(here["begin"], here["process_s"]) for _, here in timed.groupby("hardware"))
    return Effort(len(timed), wall_s, timed["measured_s"].sum()) if wall_s > 0 else None


def _wall_s(begin: pd.Series, length: pd.Series) -> float:
    """Seconds of one machine's stretches of work, each times the most runs that were under way at once in it."""
    order = np.argsort(begin.to_numpy(), kind="stable")
    begins, ends = begin.to_numpy()[order], (begin + length).to_numpy()[order]
    latest = np.maximum.accumulate(ends)
    cuts = np.flatnonzero(begins[1:] > latest[:-1] + PAUSE_S) + 1
    stretches = zip(np.split(begins, cuts), np.split(ends, cuts), strict=True)
    return float(sum((ends.max() - begins.min()) * _side_by_side(begins, ends) for begins, ends in stretches))


def _side_by_side(begins: np.ndarray, ends: np.ndarray) -> int:
    """The most runs at once; of runs that overlap by less than the clock tells, one had ended."""
    ended = np.sort(np.maximum(ends - CLOCK_S, begins))
    begun = np.arange(1, len(begins) + 1)
    return max(1, int((begun - np.searchsorted(ended, begins, side="right")).max()))
