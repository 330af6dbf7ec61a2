"""Times the phases of a step, in separate steps: marking would disturb the windows in which speed
is measured."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Literal, get_args

from mfulab.core.said import Said
from mfulab.device.samplers.reading import Reading, Readings, missing
from mfulab.timing.clocks import Clock
from mfulab.timing.statistics import Stats

FEWEST = 4
LONGEST_S = 2.0  # pairs of steps, where so many fit into these seconds
BLOCKS = (
    48,
    12,
    4,
    2,
    1,
)  # pairs; in a block, each place of a period that divides it meets as many marks as none
FEW = 8
# blocks beyond which they grow longer; a block's time ÷ the median one's, if it is left out
DISTURBED = 1.25
Phase = Literal["forward", "backward", "optimiser", "other"]
Mark = Callable[[Phase], object]
"""Called at the end of each phase, with its name."""


def phase_readings(
    step: Callable[[], object],
    marked: Callable[[Mark], object] | Said,
    clock: Clock,
    length_s: float,
    estimate_s: float,
) -> Readings:
    """Mean ms of each phase of a step, over about `length_s` of steps of `estimate_s`; their sum ÷
    the step. `marked` does the step and calls what it is given as each phase ends; a sentence says
    why it has none. As many steps without marks lie between: their quotient says what marking costs. A
    loader's processes deliver in turn, so that every nth step is slow: both kinds meet as many.
    Disturbed blocks do not count."""
    if isinstance(marked, Said):
        return missing(
            dict.fromkeys((f"{phase}_ms" for phase in get_args(Phase)), "ms"),
            "marked steps",
            marked,
        )
    fitting = min(FEWEST, math.floor(LONGEST_S / max(estimate_s, 1e-9)))
    wanted = max(1, fitting, math.ceil(length_s / 2 / max(estimate_s, 1e-9)))
    least = next(pairs for pairs in BLOCKS if pairs <= wanted)
    block = least * max(1, wanted // least // FEW)
    ended: list[
        tuple[int, str]
    ] = []  # block and phase of each interval; a step without marks has the phase ""

    def mark(phase: str = "") -> None:
        clock.mark()
        ended.append((pair // block, phase))

    clock.synchronise()
    clock.mark()
    for pair in range(block * round(wanted / block)):
        is_turned = (
            2 * pair // block + 1
        ) // 2 % 2 == 1  # which comes first turns at half blocks: 0 1 1 0
        for is_marked in (not is_turned, is_turned):
            if is_marked:
                marked(mark)
            else:
                step()
                mark()
    blocks: dict[int, Counter[str]] = defaultdict(Counter)
    for (place, phase), seconds in zip(ended, clock.intervals(), strict=True):
        blocks[place][phase] += seconds  # type: ignore[assignment]
    longest_s = DISTURBED * Stats(spent.total() for spent in blocks.values()).median
    kept = [spent for spent in blocks.values() if spent.total() <= longest_s]
    spent_s = {
        phase: sum(spent[phase] for spent in kept) / (block * len(kept)) for phase in blocks[0]
    }
    source = f"marked steps, {clock.name}"
    unmarked_s = spent_s.pop("")
    readings = {
        f"{phase}_ms": Reading(1e3 * seconds, "ms", source) for phase, seconds in spent_s.items()
    }
    quotient = 100 * sum(spent_s.values()) / unmarked_s
    return {
        **readings,
        "phases_percent": Reading(quotient, "%", f"{source}, among as many without marks"),
    }
