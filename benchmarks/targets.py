"""Prints a target, the measured value and whether the target is met: `target | got | holds`."""

from dataclasses import dataclass

HEADER = f"{'target':62}| {'got':9}| holds"


@dataclass(frozen=True)
class Target:
    """Target for a value in `unit`: at most `limit`, or at least `limit` if `is_least`."""

    name: str
    limit: float
    unit: str = ""
    is_least: bool = False

    def holds(self, got: float) -> bool:
        return got >= self.limit if self.is_least else got <= self.limit


def report(target: Target, got: float) -> bool:
    """Prints the line of a target. Returns True if the target is met."""
    unit = f" {target.unit}" if target.unit else ""
    aim = f"{target.name} {'≥' if target.is_least else '≤'} {target.limit:g}{unit}"
    holds = target.holds(got)
    print(f"{aim:62}| {f'{got:.3g}{unit}':9}| {'yes' if holds else 'no'}", flush=True)
    return holds
