"""Times the phases of a step, in separate steps: marking would disturb the windows in which speed is measured."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Literal, get_args

from mfulab.device.samplers.reading import Reading, Readings, missing
from mfulab.timing.clocks import Clock
from mfulab.timing.statistics import Stats

FEWEST, LONGEST_S = 3, 2.0  # steps, where so many fit into these seconds
Phase = Literal["forward", "backward", "optimiser", "other"]
Mark = Callable[[Phase], object]
"""Called at the end of each phase, with its name."""


def phase_readings(
    step: Callable[[], object], marked: Callable[[Mark], object] | str, clock: Clock, length_s: float, estimate_s: float
) -> Readings:
    """Median ms of each phase of a step, over about `length_s` of steps of `estimate_s`; their sum ÷ the step. `marked`
    does the step and calls what it is given as each phase ends; a text says why it has none. After each marked step
    comes one without marks: their quotient says what marking costs, whatever the machine does."""
    if isinstance(marked, str):
        return missing(dict.fromkeys((f"{phase}_ms" for phase in get_args(Phase)), "ms"), "marked steps", marked)
    fitting = min(FEWEST, math.floor(LONGEST_S / max(estimate_s, 1e-9)))
    steps = max(1, fitting, math.ceil(length_s / 2 / max(estimate_s, 1e-9)))
    ended: list[list[str]] = []  # the phases of each step, in order

    def mark(phase: Phase) -> None:
        clock.mark()
        ended[-1].append(phase)

    clock.synchronise()
    clock.mark()
    for _ in range(steps):
        ended.append([])
        marked(mark)
        step()
        clock.mark()
    intervals = iter(clock.intervals())
    spent: dict[str, list[float]] = defaultdict(list)
    quotients = []
    for phases in ended:
        per_step: Counter[str] = Counter()
        for phase in phases:
            per_step[phase] += next(intervals)  # type: ignore[assignment]
        for phase, seconds in per_step.items():
            spent[phase].append(seconds)
        quotients.append(sum(per_step.values()) / next(intervals))
    source = f"marked steps, {clock.name}"
    readings = {f"{phase}_ms": Reading(1e3 * Stats(times).median, "ms", source) for phase, times in spent.items()}
    quotient = 100 * Stats(quotients).median
    return {**readings, "phases_percent": Reading(quotient, "%", f"{source}, each before one without marks")}
