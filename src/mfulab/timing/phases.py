"""Times the phases of a step in separate steps, because marks would disturb the windows that
measure speed."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from mfulab.core.said import Said
from mfulab.device.samplers.reading import Reading, Readings, missing
from mfulab.timing.clocks import Clock
from mfulab.timing.statistics import Stats

FEWEST_PAIRS = 4
LONGEST_S = 2.0  # FEWEST_PAIRS pairs of steps are only required if they fit into these seconds
# pairs per block: if a period divides it, each of its steps is marked as often as not
BLOCKS = (48, 12, 4, 2, 1)
FEW_BLOCKS = 8  # with more blocks than this, the blocks become longer instead
DISTURBED = 1.25  # a block that takes this many times the median does not count
Phase = Literal["forward", "backward", "optimiser", "other"]
UNMARKED: Literal[""] = ""  # stands for a phase: that of a step without marks
Seconds = dict[Phase | Literal[""], float]
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
        columns = [f"{phase}_ms" for phase in get_args(Phase)]
        return missing(dict.fromkeys(columns, "ms"), "marked steps", marked)
    pairs, block = _pairs_of_steps(length_s, max(estimate_s, 1e-9))
    blocks = _undisturbed(_time_blocks(step, marked, clock, pairs, block))
    spent_s = _mean_seconds(blocks, block)
    unmarked_s = spent_s.pop(UNMARKED)
    source = f"marked steps, {clock.name}"
    readings: Readings = {}
    for phase, seconds in spent_s.items():
        readings[f"{phase}_ms"] = Reading(1e3 * seconds, "ms", source)
    percent = 100 * sum(spent_s.values()) / unmarked_s
    beside = f"{source}, among as many without marks"
    readings["phases_percent"] = Reading(percent, "%", beside)
    return readings


def _pairs_of_steps(length_s: float, estimate_s: float) -> tuple[int, int]:
    """Returns the number of pairs of steps to run, and the number of pairs in a block."""
    fitting = min(FEWEST_PAIRS, math.floor(LONGEST_S / estimate_s))
    wanted = max(1, fitting, math.ceil(length_s / 2 / estimate_s))
    least = next(pairs for pairs in BLOCKS if pairs <= wanted)
    block = least * max(1, wanted // least // FEW_BLOCKS)
    return block * round(wanted / block), block


def _time_blocks(
    step: Callable[[], object],
    marked: Callable[[Mark], object],
    clock: Clock,
    pairs: int,
    block: int,
) -> list[Seconds]:
    """Runs pairs of a marked and an unmarked step. Returns the seconds of each block of pairs."""
    ended: list[tuple[int, Phase | Literal[""]]] = []  # block and phase of each interval

    def mark(phase: Phase | Literal[""]) -> None:
        clock.mark()
        ended.append((pair // block, phase))

    clock.synchronise()
    clock.mark()
    for pair in range(pairs):
        # the order within a pair changes every half block: 0 1 1 0
        is_turned = (2 * pair // block + 1) // 2 % 2 == 1
        for is_marked in (not is_turned, is_turned):
            if is_marked:
                marked(mark)
            else:
                step()
                mark(UNMARKED)
    blocks = [Seconds() for _ in range(pairs // block)]
    for (index, phase), seconds in zip(ended, clock.intervals(), strict=True):
        blocks[index][phase] = blocks[index].get(phase, 0) + seconds
    return blocks


def _undisturbed(blocks: Sequence[Seconds]) -> list[Seconds]:
    """Blocks that took about as long as most."""
    totals_s = [sum(block.values()) for block in blocks]
    longest_s = DISTURBED * Stats(totals_s).median
    return [block for block, total_s in zip(blocks, totals_s, strict=True) if total_s <= longest_s]


def _mean_seconds(blocks: Sequence[Seconds], pairs: int) -> Seconds:
    """Mean seconds of each phase in a step, over blocks of `pairs` steps each."""
    means = Seconds()
    for phase in blocks[0]:
        means[phase] = sum(block.get(phase, 0) for block in blocks) / (pairs * len(blocks))
    return means
