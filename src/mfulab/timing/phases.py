"""Times the phases of a step, in separate steps: marking would disturb the windows in which speed is measured."""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Literal, get_args

from mfulab.device.samplers.reading import Reading, Readings, missing
from mfulab.timing.clocks import Clock
from mfulab.timing.statistics import Stats

FEWEST, LONGEST_S = 4, 2.0  # pairs of steps, where so many fit into these seconds
BLOCKS = 48, 12, 4, 2, 1  # pairs; in a block, each place of a period that divides it meets as many marks as none
FEW, DISTURBED = 8, 1.25  # blocks beyond which they grow longer; a block's time ÷ the median one's, if it is left out
Phase = Literal["forward", "backward", "optimiser", "other"]
Mark = Callable[[Phase], object]
"""Called at the end of each phase, with its name."""


def phase_readings(
    step: Callable[[], object], marked: Callable[[Mark], object] | str, clock: Clock, length_s: float, estimate_s: float
) -> Readings:
    """Mean ms of each phase of a step, over about `length_s` of steps of `estimate_s`; their sum ÷ the step. `marked`
    does the step and calls what it is given as each phase ends; a text says why it has none. As many steps without
    marks lie between: their quotient says what marking costs, whatever the machine does. Disturbed
    blocks of them do not count."""
    if isinstance(marked, str):
        return missing(dict.fromkeys((f"{phase}_ms" for phase in get_args(Phase)), "ms"), "marked steps", marked)
    fitting = min(FEWEST, math.floor(LONGEST_S / max(estimate_s, 1e-9)))
    wanted = max(1, fitting, math.ceil(length_s / 2 / max(estimate_s, 1e-9)))
    least = next(pairs for pairs in BLOCKS if pairs <= wanted)
    block = least * max(1, wanted // least // FEW)
    blocks = _blocks(step, marked, clock, block, round(wanted / block))
    longest_s = DISTURBED * Stats(sum(spent.values()) for spent in blocks).median
    kept = [spent for spent in blocks if sum(spent.values()) <= longest_s]
    spent_s = {phase: sum(spent[phase] for spent in kept) / (block * len(kept)) for phase in blocks[0]}
    source, unmarked_s = f"marked steps, {clock.name}", spent_s.pop("")
    readings = {f"{phase}_ms": Reading(1e3 * seconds, "ms", source) for phase, seconds in spent_s.items()}
    quotient = 100 * sum(spent_s.values()) / unmarked_s
    return {**readings, "phases_percent": Reading(quotient, "%", f"{source}, among as many without marks")}


def _blocks(
    step: Callable[[], object], marked: Callable[[Mark], object], clock: Clock, pairs: int, count: int
) -> list[dict[str, float]]:
    """Seconds of each phase in each of `count` blocks of `pairs`, and under "" of steps without marks. Which of a pair
    comes first turns at each half block: a loader's processes deliver in turn, so that every nth step is slow."""
    ended: list[tuple[int, str]] = []

    def mark(phase: str = "") -> None:
        clock.mark()
        ended.append((pair // pairs, phase))

    def unmarked(_: Mark) -> None:
        step()
        mark()

    clock.synchronise()
    clock.mark()
    for pair in range(pairs * count):
        is_turned = (2 * pair // pairs + 1) // 2 % 2  # 0 1 1 0, so that what drifts is shared alike
        for take in (unmarked, marked) if is_turned else (marked, unmarked):
            take(mark)
    blocks: list[dict[str, float]] = [defaultdict(float) for _ in range(count)]
    for (place, phase), seconds in zip(ended, clock.intervals(), strict=True):
        blocks[place][phase] += seconds
    return blocks
