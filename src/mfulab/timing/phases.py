"""Times the phases of a step, in separate steps: marking would disturb the windows in which speed is measured."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable

from mfulab.timing.clocks import Clock
from mfulab.timing.statistics import Stats

FEWEST, LONGEST_S = 3, 1.0  # steps, where so many fit into a second
MarkedStep = Callable[..., object]


def measure_phases(
    step: MarkedStep, clock: Clock, length_s: float, estimate_s: float
) -> tuple[dict[str, float], float]:
    """Median seconds of each phase of a step, over about `length_s` of steps of `estimate_s`; their sum ÷ the step.

    The step calls what it is given, if anything, with the name of the phase that just ended. Marks follow one another
    without a gap, so the phases of one step sum to it; on a GPU they are events on its stream. A step without marks
    comes after each with them: the median of these quotients says what marking costs, whatever the machine does.
    """
    fitting = min(FEWEST, math.floor(LONGEST_S / max(estimate_s, 1e-9)))
    steps = max(1, fitting, math.ceil(length_s / 2 / max(estimate_s, 1e-9)))
    ended: list[list[str]] = []  # the phases of each step, in order

    def mark(phase: str) -> None:
        clock.mark()
        ended[-1].append(phase)

    clock.synchronise()
    clock.mark()
    for _ in range(steps):
        ended.append([])
        step(mark)
        step()
        clock.mark()
    intervals = iter(clock.intervals())
    spent: dict[str, list[float]] = defaultdict(list)
    quotients = []
    for phases in ended:
        one: Counter[str] = Counter()
        for phase in phases:
            one[phase] += next(intervals)  # type: ignore[assignment]
        for phase, seconds in one.items():
            spent[phase].append(seconds)
        quotients.append(sum(one.values()) / next(intervals))
    return {phase: Stats(seconds).median for phase, seconds in spent.items()}, Stats(quotients).median
