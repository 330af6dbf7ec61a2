"""Compares what runs took with what was predicted. Estimates, budgets and the rest of a budget are
corrected by it alone. Uses the standard library only."""

from collections import defaultdict
from collections.abc import Iterable, Sequence


class Ledger:
    """Predicted and actual seconds of each group of similar runs. A group is named `MEASUREMENT
    KIND`. `usual_s` is the mean prediction for a run."""

    def __init__(self, usual_s: float) -> None:
        self.took_s = 0.0  # of all runs
        self._usual_s = max(1e-3, usual_s)
        self._predicted_s = defaultdict[str, float](float)
        self._took_s = defaultdict[str, float](float)
        self._groups = defaultdict[str, dict[str, None]](dict)  # names by measurement, in order

    def note(self, group: str, predicted_s: float, took_s: float) -> None:
        """Adds a finished run."""
        took_s = max(1e-3, took_s)  # may be negative if a clock was set back
        self.took_s += took_s
        self._predicted_s[group] += max(1e-3, predicted_s)
        self._took_s[group] += took_s
        self._groups[_measurement(group)][group] = None

    def slower(self, group: str) -> float:
        """Expected ratio of actual to predicted seconds for a group's next run.

        Each measurement counts once for a measurement that has not been seen, and each group once
        for a group: otherwise ten counts of FLOPs, or one long model, would tell of all. At each
        level one more is assumed that took what the level above expects.
        """
        seen = [_mean(self._ratios(groups)) for groups in self._groups.values()]
        of_any = _mean([*seen, 1.0])
        alike = self._groups.get(_measurement(group), ())
        of_measurement = _mean([*self._ratios(alike), of_any])
        predicted_s = self._predicted_s.get(group, 0.0) + self._usual_s
        took_s = self._took_s.get(group, 0.0) + self._usual_s * of_measurement
        return took_s / predicted_s

    def _ratios(self, groups: Iterable[str]) -> list[float]:
        return [self._took_s[group] / self._predicted_s[group] for group in groups]


def _measurement(group: str) -> str:
    return group.partition(" ")[0]


def _mean(ratios: Sequence[float]) -> float:
    return sum(ratios) / len(ratios)
