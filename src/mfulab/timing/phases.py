"""Times the phases of a step in separate steps, because marks would disturb the windows that
measure speed."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Literal, get_args

from mfulab.core.said import Said
from mfulab.device.samplers.reading import Reading, Readings, missing
from mfulab.timing.clocks import Clock
from mfulab.timing.statistics import Stats

FEWEST = 4
LONGEST_S = 2.0  # FEWEST pairs of steps are only required if they fit into these seconds
# pairs per block: if a period divides it, each of its steps is marked as often as not
BLOCKS = (48, 12, 4, 2, 1)
FEW = 8  # with more blocks than this, the blocks become longer instead
DISTURBED = 1.25  # a block that takes this many times the median does not count
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
    """Mean ms of each phase of a step, and the sum of the phases relative to an unmarked step.
    `marked` runs a step and calls its argument at the end of each phase; a Said is the reason why
    there are no phases. Runs steps for about `length_s`, given steps of `estimate_s`. Half of them
    are unmarked, so that the ratio shows the cost of marking. Both halves see equally many slow
    steps of a data loader with several workers. Disturbed blocks do not count."""
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
    # block and phase of each interval; an unmarked step has the phase ""
    ended: list[tuple[int, str]] = []

    def mark(phase: str = "") -> None:
        clock.mark()
        ended.append((pair // block, phase))

    clock.synchronise()
    clock.mark()
    for pair in range(block * round(wanted / block)):
        # the order within a pair changes every half block: 0 1 1 0
        is_turned = (2 * pair // block + 1) // 2 % 2 == 1
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
