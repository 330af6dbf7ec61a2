"""The duty cycle: how much of the time that a sweep took lay inside warm-up and measured windows."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

PAUSE_S = 60.0  # a longer gap between two runs is the user's pause, not a cost of the sweep
CLOCK_S = 1.0  # starts are told in whole seconds


@dataclass(frozen=True)
class DutyCycle:
    """Measured and total time of `runs` runs, in seconds; a second that several share counts once for each."""

    runs: int
    total_s: float
    measured_s: float

    @property
    def duty_percent(self) -> float:
        return 100 * self.measured_s / self.total_s


def duty_cycle(rows: pd.DataFrame) -> DutyCycle | None:
    """Duty cycle of rows, gaps between their runs included, pauses left out; None where no row has its times."""
    begins = pd.to_datetime(rows["started_at"], utc=True, errors="coerce")
    timed = rows.assign(begin=(begins - pd.Timestamp(0, tz="UTC")).dt.total_seconds())
    timed = timed.dropna(subset=["begin", "process_s"])
    total_s = sum(_total_s(zip(here["begin"], here["process_s"], strict=True)) for _, here in timed.groupby("hardware"))
    return DutyCycle(len(timed), total_s, timed["measured_s"].sum()) if total_s > 0 else None


def _total_s(runs: Iterable[tuple[float, float]]) -> float:
    """Seconds of one machine's runs (start, length), and of the gaps in which none was under way."""
    ordered = sorted(runs)
    latest, between_s = ordered[0][0], 0.0
    for told, length in ordered:
        begin = latest if latest - CLOCK_S < told < latest else told  # in that second, once the one before had ended
        if begin - latest <= PAUSE_S:
            between_s += max(0.0, begin - latest)
        latest = max(latest, begin + length)
    return between_s + sum(length for _, length in ordered)
