"""Two traces held against each other: a step's difference by kind of time, operator and shapes,
exactly."""

from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import variance

from mfulab.tracing.analysis import Analysis

NOISE = 2.0  # standard errors of the difference that are taken for noise


@dataclass(frozen=True)
class Part:
    """Nanoseconds a step, before and after, of one kind of time, one operator and its shapes."""

    kind: str
    operator: str
    shapes: str
    before: Fraction
    after: Fraction

    @property
    def difference(self) -> Fraction:
        """Nanoseconds that a step takes more after than before; negative where it takes less."""
        return self.after - self.before


@dataclass(frozen=True)
class Difference:
    """Difference of one step of two traces; its parts, the largest first, sum to it."""

    parts: list[Part]
    before: Fraction
    after: Fraction
    noise: (
        float | None
    )  # share of the step in two standard errors of its difference; None below two marked steps

    @property
    def change(self) -> float:
        """(after − before) ÷ before."""
        return float((self.after - self.before) / self.before)

    @property
    def verdict(self) -> str:
        """`slower`, `faster` or `same`: `same` within the noise, or equal where that is not
        known."""
        if abs(self.change) <= (self.noise or 0.0):
            return "same"
        if self.change > 0:
            return "slower"
        return "faster"

    def kinds(self) -> list[Part]:
        """The parts summed by kind of time."""
        sums: dict[str, Part] = {}
        for part in self.parts:
            kind = sums.get(part.kind, Part(part.kind, "", "", Fraction(), Fraction()))
            sums[part.kind] = replace(
                kind, before=kind.before + part.before, after=kind.after + part.after
            )
        return sorted(sums.values(), key=lambda part: -abs(part.difference))


def difference(before: Analysis, after: Analysis) -> Difference:
    """The difference of one step of `after` to one of `before`."""
    old, new = (
        Fraction(analysis.window.length, analysis.window.steps) for analysis in (before, after)
    )
    keys = dict.fromkeys((*before.parts, *after.parts))
    parts = [
        Part(*key, *(Fraction(of.parts.get(key, 0), of.window.steps) for of in (before, after)))
        for key in keys
    ]
    lengths = [analysis.window.lengths for analysis in (before, after)]
    are_marked = all(len(steps) > 1 for steps in lengths)
    error = 0.0
    if are_marked:
        error = sum(variance(steps) / len(steps) for steps in lengths) ** 0.5
    ordered = sorted(parts, key=lambda part: -abs(part.difference))
    return Difference(ordered, old, new, NOISE * error / float(old) if are_marked else None)
