"""Compares a step of two traces: the exact difference by kind of time, operator and shapes."""

from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import variance

from mfulab.tracing.analysis import Analysis

NOISE = 2.0  # a difference within so many standard errors is noise


@dataclass(frozen=True)
class ComparedPart:
    """Nanoseconds per step, before and after, of one kind of time, operator and shapes."""

    kind: str
    operator: str
    shapes: str
    before: Fraction
    after: Fraction

    @property
    def difference(self) -> Fraction:
        """Nanoseconds that a step takes longer after than before; negative if it is shorter."""
        return self.after - self.before


@dataclass(frozen=True)
class Difference:
    """Difference of one step between two traces. Its parts, largest first, sum to it."""

    parts: list[ComparedPart]
    before: Fraction
    after: Fraction
    # two standard errors of the difference ÷ `before`; None without two marked steps in each trace
    noise: float | None

    @property
    def change(self) -> float:
        """Relative change of a step: (after − before) ÷ before."""
        return float((self.after - self.before) / self.before)

    @property
    def verdict(self) -> str:
        """`slower`, `faster` or `same`: `same` within the noise, or if exactly equal where the
        noise is unknown."""
        if abs(self.change) <= (self.noise or 0.0):
            return "same"
        if self.change > 0:
            return "slower"
        return "faster"

    def kinds(self) -> list[ComparedPart]:
        """Parts summed per kind of time, largest difference first."""
        sums: dict[str, ComparedPart] = {}
        for part in self.parts:
            kind = sums.get(part.kind, ComparedPart(part.kind, "", "", Fraction(), Fraction()))
            sums[part.kind] = replace(
                kind, before=kind.before + part.before, after=kind.after + part.after
            )
        return sorted(sums.values(), key=lambda part: -abs(part.difference))


def difference(before: Analysis, after: Analysis) -> Difference:
    """Compares one step of `after` with one of `before`."""
    old = Fraction(before.window.length, before.window.steps)
    new = Fraction(after.window.length, after.window.steps)
    parts = list[ComparedPart]()
    for key in dict.fromkeys((*before.parts, *after.parts)):
        old_part = Fraction(before.parts.get(key, 0), before.window.steps)
        new_part = Fraction(after.parts.get(key, 0), after.window.steps)
        parts.append(ComparedPart(*key, old_part, new_part))
    lengths = [analysis.window.lengths for analysis in (before, after)]
    are_marked = all(len(steps) > 1 for steps in lengths)
    noise = None
    if are_marked:
        error = sum(variance(steps) / len(steps) for steps in lengths) ** 0.5
        noise = NOISE * error / float(old)
    ordered = sorted(parts, key=lambda part: -abs(part.difference))
    return Difference(ordered, old, new, noise)
