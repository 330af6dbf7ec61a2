"""Memory of what runs took, beside what was predicted: the one place by which an estimate, a budget
and what a budget leaves are corrected. Standard library alone."""

from collections import defaultdict


class Ledger:
    """Seconds predicted and taken, in all, by measurement, and by group of a measurement's alike
    runs. A group is `MEASUREMENT KIND`; `usual_s` is what a run takes on average by prediction."""

    def __init__(self, usual_s: float) -> None:
        self._usual_s = max(1e-3, usual_s)
        self._predicted_s = defaultdict[str, float](float)
        self._took_s = defaultdict[str, float](float)

    @property
    def took_s(self) -> float:
        """Seconds that all noted runs took together."""
        return self._took_s[""]

    def note(self, group: str, predicted_s: float, took_s: float) -> None:
        """Adds a run that has ended."""
        for level in _levels(group):
            self._predicted_s[level] += predicted_s
            self._took_s[level] += max(1e-3, took_s)  # of a clock that was set back, too

    def slower(self, group: str) -> float:
        """Seconds taken ÷ predicted, as is expected of a group's next run. At each level a usual
        run counts as one that took what the level above expects, so that few runs say little."""
        expected = 1.0
        for level in _levels(group):
            took_s = self._took_s[level] + self._usual_s * expected
            expected = took_s / (self._predicted_s[level] + self._usual_s)
        return expected


def _levels(group: str) -> tuple[str, str, str]:
    return "", group.partition(" ")[0], f"{group} "
