"""Compares what runs took with what was predicted. Estimates, budgets and the rest of a budget are
corrected by it alone. Uses the standard library only."""

from collections import defaultdict


class Ledger:
    """Sums of predicted and actual seconds: of all runs, per measurement, and per group of similar
    runs. A group is named `MEASUREMENT KIND`. `usual_s` is the mean prediction for a run."""

    def __init__(self, usual_s: float) -> None:
        self._usual_s = max(1e-3, usual_s)
        self._predicted_s = defaultdict[str, float](float)
        self._took_s = defaultdict[str, float](float)

    @property
    def took_s(self) -> float:
        """Total seconds that all noted runs took."""
        return self._took_s[""]

    def note(self, group: str, predicted_s: float, took_s: float) -> None:
        """Adds a finished run."""
        for level in _levels(group):
            self._predicted_s[level] += predicted_s
            self._took_s[level] += max(1e-3, took_s)  # may be negative if a clock was set back

    def slower(self, group: str) -> float:
        """Expected ratio of actual to predicted seconds for a group's next run. At each level one
        additional run is assumed that took what the level above expects, so that few runs change
        little."""
        expected = 1.0
        for level in _levels(group):
            took_s = self._took_s[level] + self._usual_s * expected
            expected = took_s / (self._predicted_s[level] + self._usual_s)
        return expected


def _levels(group: str) -> tuple[str, str, str]:
    """Keys of the three sums: all runs, the measurement, and the group."""
    return "", group.partition(" ")[0], f"{group} "
