"""One speed as MFU by every convention: how each comes from ours, and which one gives a number that was reported."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from mfulab.core.errors import ConfigurationError, unknown
from mfulab.device.peaks import UNITS, peak
from mfulab.mfu.conventions import CONVENTIONS, ORDER, OURS, POSSIBLE, Choices, flops
from mfulab.mfu.roofline import peak_of
from mfulab.mfu.utilization import of_peak
from mfulab.mfu.work import Work

FALLBACK_TFLOP_S = 312.0  # peak that tools take for a device they do not know: an A100's, dense in bf16
# Formats whose peak stands under an MFU of another: by mistake, or because a part of the matmuls runs in them.
MISTAKEN = {
    **{"fp32": ("bf16", "fp16", "tf32"), "tf32": ("bf16", "fp32"), "fp16": ("fp32", "fp8")},
    **{"bf16": ("fp32", "fp4", "fp8", "tf32"), "fp8": ("bf16", "fp4"), "fp4": ("bf16", "fp8")},
}
TOLERANCE = 0.3  # points of MFU within which a convention gives a reported number
BY_CHANCE = 20.0  # percent of `Explanation.chance_percent` from which a match says little


@dataclass(frozen=True)
class Denominator:
    """A peak that could stand under an MFU, in TFLOP/s, and what it is."""

    name: str
    tflop_s: float


@dataclass(frozen=True)
class Row:
    """A speed in one convention."""

    convention: str  # its name, or its choices where it has none
    denominator: str  # which peak
    peak_tflop_s: float  # that peak, dense unless it says otherwise
    flops_per_token: float  # as the convention counts them; a sample's where the input is none of tokens
    mfu_percent: float  # of that peak
    steps: Mapping[str, float]  # points that each choice adds to our MFU, in order: mfu_percent − ours, exactly
    source: str = ""  # where the convention is written down

    @property
    def changes(self) -> int:
        """Number of choices that change our number visibly."""
        return sum(1 for points in self.steps.values() if abs(points) >= 0.05)


@dataclass(frozen=True)
class Explanation:
    """Explanation of a speed."""

    model: str  # its name
    device: str  # the datasheet's name
    ours: Row  # MFU of this project's convention
    tflop_s: float  # of each device, by this project's convention
    conventions: Sequence[Row]  # each named convention, over the device's dense peak
    denominators: Sequence[Row]  # each other peak, under this project's FLOPs
    matches: Sequence[Row]  # those that give the reported number to 0.3 points, the simplest first
    reported: float | None = None  # that number, in percent
    tried: int = 0  # combinations of choices and peaks that change ours no more often than the best match does
    chance_percent: float | None = None  # of all numbers within a quarter of the reported one, those that they give


def explained(
    model: str,
    device: str,
    counted: Work,
    samples_per_s: float,
    denominators: Sequence[Denominator],
    reported: float | None = None,
) -> Explanation:
    """Explanation of a speed in samples a second of each device, from the counted work of one sample."""
    first = denominators[0]
    ours, *others = (change("mfulab", OURS, denominator, counted, samples_per_s, first) for denominator in denominators)
    conventions = [
        change(convention.name, convention.choices, first, counted, samples_per_s, first, convention.source)
        for convention in CONVENTIONS
        if _matters(convention.choices, counted)
    ]
    matches, tried = list[Row](), list[float]()
    if reported is not None:
        rows = list(_everything(counted, samples_per_s, denominators))
        near = [row for row in rows if abs(row.mfu_percent - reported) <= TOLERANCE]
        named = {convention.name for convention in CONVENTIONS}
        near.sort(key=lambda row: (row.changes, row.convention not in named, abs(row.mfu_percent - reported)))
        alike = {(round(row.mfu_percent, 1), row.denominator, row.changes): row for row in reversed(near)}
        matches = [row for row in near if row in alike.values()]
        tried = [row.mfu_percent for row in rows if matches and row.changes <= matches[0].changes]
    tflop_s = flops(counted, OURS) * samples_per_s / 1e12
    chance = covered_percent(tried, reported) if tried and reported is not None else None
    return Explanation(model, device, ours, tflop_s, conventions, others, matches, reported, len(tried), chance)


def covered_percent(values: Sequence[float], reported: float) -> float:
    """Chance in percent that a number within a quarter of `reported` lies within `TOLERANCE` of a value."""
    low, high = sorted((0.75 * reported, 1.25 * reported))
    reached, covered = low, 0.0
    for value in sorted(values):
        begin, end = max(value - TOLERANCE, reached), min(value + TOLERANCE, high)
        covered += max(0.0, end - begin)
        reached = max(reached, end)
    return 100 * covered / (high - low) if high > low else 100.0


def denominators_of(device: str, precision: str, given: float | None = None) -> tuple[str, list[Denominator]]:
    """The device's name and every peak that could be meant, its dense one first. Raises ConfigurationError for none."""
    if given is not None:
        if precision not in UNITS:
            raise unknown("precision", precision, UNITS)
        if not 0 < given < math.inf:
            raise ConfigurationError(f"peak_tflop_s={given}: give a dense peak above 0")
        return device, [Denominator("as given", given)]
    sheet, dense, spec = peak_of(device, precision, "; or give its dense peak in TFLOP/s: peak_tflop_s=…")
    denominators = [Denominator(f"{precision} dense", spec)]
    if dense.sparse_factor != 1:
        denominators.append(Denominator(f"{precision} sparse", spec * dense.sparse_factor))
    if sheet.boost_mhz and dense.spec_clock_mhz and sheet.boost_mhz != dense.spec_clock_mhz:
        boosted = spec * sheet.boost_mhz / dense.spec_clock_mhz
        denominators.append(Denominator(f"{precision} dense at {sheet.boost_mhz:.0f} MHz", boosted))
    others = {other: peak(device, other).spec for other in MISTAKEN.get(precision, ())}
    denominators += [Denominator(f"{other} dense", value) for other, value in others.items() if value]
    if not any(abs(denominator.tflop_s / FALLBACK_TFLOP_S - 1) < 0.01 for denominator in denominators):
        denominators.append(Denominator("A100 bf16, for an unknown device", FALLBACK_TFLOP_S))
    alike = defaultdict[float, list[Denominator]](list)
    for denominator in denominators:
        alike[round(denominator.tflop_s, 3)].append(denominator)
    return sheet.device, [
        Denominator(" = ".join(denominator.name for denominator in same), same[0].tflop_s) for same in alike.values()
    ]


def change(
    name: str,
    choices: Choices,
    denominator: Denominator,
    counted: Work,
    samples_per_s: float,
    first: Denominator,
    source: str = "",
) -> Row:
    """A row of `choices` over `denominator`, with what each choice adds to ours over `first`; samples of one device."""

    def mfu(now: Choices, peak_tflop_s: float) -> float:
        return of_peak(flops(counted, now), counted.batch_size / samples_per_s, peak_tflop_s) or 0.0

    changed = [{choice: getattr(choices, choice) for choice in ORDER[:count]} for count in range(len(ORDER) + 1)]
    points = [mfu(replace(OURS, **change), first.tflop_s) for change in changed]
    result = mfu(choices, denominator.tflop_s)
    differences = (after - before for before, after in pairwise([*points, result]))
    steps = dict(zip((*ORDER, "peak"), differences, strict=True))
    per_token = flops(counted, choices) / counted.tokens
    return Row(name, denominator.name, denominator.tflop_s, per_token, result, steps, source)


def _matters(choices: Choices, counted: Work) -> bool:
    """True if every choice of a convention changes something for this model; ours always does."""
    if choices.elements:  # alone, and where it is not the same as 6N without embeddings
        kaplan = flops(counted, Choices(unmultiplied=True, attention="none"))
        return choices == Choices(elements=True) and counted.total_flos > 0 and counted.total_flos != kaplan
    if choices.unmultiplied and not counted.flops("attention"):
        return False  # formulas in N are those of transformers
    changed = {name: value for name, value in vars(choices).items() if value != getattr(OURS, name)}
    one_by_one = (replace(OURS, **{name: value}) for name, value in changed.items() if name != "unmultiplied")
    return all(flops(counted, choices) != flops(counted, OURS) for choices in one_by_one)


def _everything(counted: Work, samples_per_s: float, denominators: Sequence[Denominator]) -> Iterator[Row]:
    names = {convention.choices: convention for convention in CONVENTIONS}
    for values in product(*(POSSIBLE[choice] for choice in ORDER)):
        given = dict(zip(ORDER, values, strict=True))
        choices = Choices(**given)  # type: ignore[arg-type]
        if not _matters(choices, counted):
            continue
        changed = ((choice, value) for choice, value in given.items() if value != getattr(OURS, choice))
        words = ", ".join(choice if value is True else f"{choice}={value}" for choice, value in changed)
        name, source = (names[choices].name, names[choices].source) if choices in names else (words, "")
        for denominator in denominators:
            yield change(name, choices, denominator, counted, samples_per_s, denominators[0], source)
