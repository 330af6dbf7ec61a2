"""Expresses one speed as MFU by every convention: how each differs from ours, and which one gives a
reported number."""

import html
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise, product
from typing import Any

from rich.cells import cell_len

from mfulab.core.errors import ConfigurationError, unknown
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import in_percent, percent, quantity, with_minus
from mfulab.core.said import Numbers, Said, of_source
from mfulab.device.datasheets import Datasheet
from mfulab.device.peaks import UNITS, Peak, peak
from mfulab.mfu.conventions import CONVENTIONS, ORDER, OURS, POSSIBLE, Choices, flops
from mfulab.mfu.roofline import peak_of
from mfulab.mfu.utilization import of_peak
from mfulab.mfu.work import Work

# Peak that tools assume for a device that they do not know: an A100's, dense in bf16.
FALLBACK_TFLOP_S = 312.0
# Formats whose peak is used for an MFU in another format: by mistake, or because a part of the
# matmuls runs in them.
MISTAKEN = {
    "fp32": ("bf16", "fp16", "tf32"),
    "tf32": ("bf16", "fp32"),
    "fp16": ("fp32", "fp8"),
    "bf16": ("fp32", "fp4", "fp8", "tf32"),
    "fp8": ("bf16", "fp4"),
    "fp4": ("bf16", "fp8"),
}
NODES = (2, 4, 8, 16)  # devices that a speed or a peak may be of by mistake
TOLERANCE = 0.3  # points of MFU within which a convention gives a reported number
# Tolerance relative to a reported number above 50 %: peaks are printed rounded, an H100 NVL's
# 60.3 TFLOP/s as 60.
RELATIVE_TOLERANCE = 0.006
SHOWN = 5  # number of matching conventions that are listed
WIDTH = 80  # columns of a line
NAMED = frozenset(convention.name for convention in CONVENTIONS)
SEEN = 0.005  # points from which a difference is shown
BY_CHANCE = 10.0  # percent of `Explanation.chance_percent` from which a match may be chance


@dataclass(frozen=True)
class Denominator:
    """A peak that an MFU could be a share of, in TFLOP/s, with its name."""

    name: str
    tflop_s: float
    said: Said | None = None  # the name in other languages; None if it is the same in all


def _denominator(said: Said, tflop_s: float) -> Denominator:
    return Denominator(str(said), tflop_s, said)


@dataclass(frozen=True)
class Candidate:
    """MFU of a speed by one convention and one peak."""

    convention: str  # its name, or its choices if it has none
    denominator: str  # name of the peak
    peak_tflop_s: float  # that peak, dense unless its name says otherwise
    flops_per_token: float  # by the convention; per sample if the input is no tokens
    mfu_percent: float  # of that peak
    # points that each choice adds to our MFU, in order; they sum to mfu_percent − ours, exactly
    steps: Mapping[str, float]
    source: str = ""  # where the convention is written down

    @property
    def changes(self) -> int:
        """Number of choices that change our number visibly."""
        return sum(1 for points in self.steps.values() if abs(points) >= 0.05)


@dataclass(frozen=True)
class Explanation:
    """Explanation of a speed as MFU."""

    model: str  # its name
    device: str  # the datasheet's name
    ours: Candidate  # MFU of this project's convention
    tflop_s: float  # of each device, by this project's convention
    conventions: Sequence[Candidate]  # each named convention, over the device's dense peak
    denominators: Sequence[Candidate]  # each other peak, under this project's FLOPs
    matches: Sequence[Candidate]  # rows that give the reported number, the simplest first
    reported: float | None = None  # that number, in percent
    # number of combinations of choices and peaks with no more changes than the best match; all of
    # them if none matches
    tried: int = 0
    # share that they give of all numbers within a quarter of the reported one
    chance_percent: float | None = None
    tolerance: float = TOLERANCE  # points within which a combination gives the reported number
    # name of each `Candidate.denominator` as a sentence, for other languages
    peaks: Mapping[str, Said] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        """Our MFU, what gives the reported one, and a line for each convention and each peak."""
        return "\n".join(line.text for line in self.lines())

    def lines(self, language: str = "en") -> "Iterator[StyledLine]":
        """Lines of the explanation, with the styles of a terminal; conventions keep their names."""
        text = Texts(language, "explain")
        ours = self.ours
        mfu = in_percent(ours.mfu_percent)
        yield StyledLine(text("ours", model=self.model, device=self.device, mfu=mfu), "bold")
        speed = quantity(1e12 * self.tflop_s, "FLOP/s", 4)
        top = quantity(1e12 * ours.peak_tflop_s, "FLOP/s", 4)
        yield StyledLine(text("speed", speed=speed, top=top, of=self._peak(ours, text)))
        if ours.mfu_percent > 100:
            yield StyledLine(text("above_peak"), "red")
        if self.reported is not None:
            yield from self._reported_lines(self.reported, text)
        yield StyledLine(f"\n{text('conventions')}")
        for row in self.conventions:
            yield from _row_lines(row, _convention(row.convention, text), text)
        yield StyledLine(f"\n{text('denominators')}")
        for row in self.denominators:
            yield from _row_lines(row, self._peak(row, text), text)

    def _peak(self, row: Candidate, text: Texts) -> str:
        """Name of the peak under a row, in the text's language."""
        said = self.peaks.get(row.denominator)
        if said is None:
            return row.denominator
        return verdicts.say(said, text.language)

    def _reported_lines(self, reported: float, text: Texts) -> "Iterator[StyledLine]":
        """Lines on the combinations that give the reported number, on how many were tried, and on
        how many numbers those give."""
        numbers = {"reported": reported, "tolerance": self.tolerance}
        if not self.matches:
            yield StyledLine(text("none", **numbers))
            yield StyledLine(text("tried_both", count=self.tried, **numbers))
            return
        yield StyledLine(text("is_one_of", **numbers))
        for row in self.matches[:SHOWN]:
            convention = _convention(row.convention, text)
            mfu = text.written(in_percent(row.mfu_percent))
            yield from _wrapped(f"  {mfu}  {convention}", 10)
            yield from _wrapped(f"{'':10}{text('over', peak=self._peak(row, text))}", 10)
        if len(self.matches) > SHOWN:
            yield StyledLine(f"  {text('further', count=len(self.matches) - SHOWN)}")
        yield StyledLine(text("tried", count=self.tried, **numbers))
        if self.chance_percent is not None:
            yield StyledLine(text("of_numbers", chance=percent(self.chance_percent), **numbers))
        if self.may_be_chance:
            yield StyledLine(text("chance"), "yellow")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    @property
    def may_be_chance(self) -> bool:
        """True if the combinations that were tried give many of the numbers nearby."""
        return bool(self.matches) and (self.chance_percent or 0) >= BY_CHANCE


@dataclass(frozen=True)
class StyledLine:
    """A line of text, and its style on a terminal."""

    text: str
    style: str = ""


def _convention(name: str, text: Texts) -> str:
    """Name of a convention, or its choices if it has none, in the text's language."""
    if name in NAMED:
        return text.name("convention", name)
    return ", ".join(text.name("choice", choice) for choice in name.split(", "))


def _row_lines(row: Candidate, name: str, text: Texts) -> Iterator[StyledLine]:
    """Lines with an MFU and its name, and with the points that each choice adds to ours."""
    yield from _wrapped(f"{row.mfu_percent:7.1f}  {name}", 9)
    added = []
    for step, points in row.steps.items():
        if abs(points) >= SEEN:
            choice = text.name("choice", step)
            added.append(f"{choice} {with_minus(f'{points:+.2f}')}")
    if added:
        yield from _wrapped(f"{'':9}{', '.join(added)}", 9, "dim")


def _wrapped(long: str, indent: int, style: str = "") -> Iterator[StyledLine]:
    """Breaks a sentence into lines of at most 80 columns, all but the first indented; a wide letter
    takes two."""
    line = ""
    for word in re.split(r"(?<=\S) ", long):
        longer = f"{line} {word}" if line else word
        if cell_len(longer) > WIDTH and line.strip():
            yield StyledLine(line, style)
            longer = f"{'':{indent}}{word.lstrip()}"
        line = longer
    yield StyledLine(line, style)


@dataclass(frozen=True)
class _Search:
    """Combinations that were tried for a reported number: those that give it, and the MFU of
    all."""

    matches: Sequence[Candidate]
    tried: Sequence[float]


NOT_SEARCHED = _Search((), ())


def explained(
    model: str,
    device: str,
    counted: Work,
    samples_per_s: float,
    denominators: Sequence[Denominator],
    reported: float | None = None,
) -> Explanation:
    """Explains a speed in samples per second of each device, from the counted work of one
    sample."""
    first = denominators[0]
    ours, *others = (
        change("mfulab", OURS, denominator, counted, samples_per_s, first)
        for denominator in denominators
    )
    conventions = list[Candidate]()
    for known in CONVENTIONS:
        if _matters(known.choices, counted):
            row = change(known.name, known.choices, first, counted, samples_per_s, first)
            conventions.append(replace(row, source=known.source))
    search = NOT_SEARCHED
    chance = None
    if reported is not None:
        search = _search(list(_everything(counted, samples_per_s, denominators)), reported)
        if search.tried:
            chance = covered_percent(search.tried, reported)
    return Explanation(
        model=model,
        device=device,
        ours=ours,
        tflop_s=flops(counted, OURS) * samples_per_s / 1e12,
        conventions=conventions,
        denominators=others,
        matches=search.matches,
        reported=reported,
        tried=len(search.tried),
        chance_percent=chance,
        tolerance=TOLERANCE if reported is None else tolerance_of(reported),
        peaks={known.name: known.said for known in denominators if known.said is not None},
    )


def _search(rows: Sequence[Candidate], reported: float) -> _Search:
    """Combinations that give a reported number, simplest first, each number and peak once."""

    def simplicity(row: Candidate) -> tuple[int, bool, float]:
        return row.changes, row.convention not in NAMED, abs(row.mfu_percent - reported)

    tolerance = tolerance_of(reported)
    near = [row for row in rows if abs(row.mfu_percent - reported) <= tolerance]
    near.sort(key=simplicity)
    simplest = dict[tuple[float, str, int], Candidate]()
    for row in near:
        simplest.setdefault((round(row.mfu_percent, 1), row.denominator, row.changes), row)
    matches = list(simplest.values())
    most = matches[0].changes if matches else math.inf
    return _Search(matches, [row.mfu_percent for row in rows if row.changes <= most])


def tolerance_of(reported: float) -> float:
    """Points within which a combination gives a reported MFU: 0.3, or 0.6 % of a number above
    50 %."""
    return max(TOLERANCE, round(RELATIVE_TOLERANCE * reported, 1))


def covered_percent(values: Sequence[float], reported: float) -> float:
    """Chance in percent that a number within a quarter of `reported` lies within the tolerance of a
    value."""
    tolerance = tolerance_of(reported)
    low, high = sorted((0.75 * reported, 1.25 * reported))
    reached = low
    covered = 0.0
    for value in sorted(values):
        begin = max(value - tolerance, reached)
        end = min(value + tolerance, high)
        covered += max(0.0, end - begin)
        reached = max(reached, end)
    if high > low:
        return 100 * covered / (high - low)
    return 100.0


def denominators_of(
    device: str, precision: str, given: float | None = None, devices: int = 1
) -> tuple[str, list[Denominator]]:
    """The device's name, and every peak that could be meant, its dense one first; `devices` share
    the work. Raises ConfigurationError if no peak is known, or if the given one is invalid."""
    if given is not None:
        if precision not in UNITS:
            raise unknown("precision", precision, UNITS)
        if not 0 < given < math.inf:
            above = Said("give_dense_peak")
            raise ConfigurationError(of_source(f"peak_tflop_s={given}", above))
        name = Said("peak_given")
        return device, [_denominator(name, given), *_of_several(name, given, devices)]
    sheet, dense, spec = peak_of(device, precision, Said("or_give_peak"))
    denominators = _of_device(device, sheet, dense, precision)
    ratios = [denominator.tflop_s / FALLBACK_TFLOP_S for denominator in denominators]
    if not any(abs(ratio - 1) < 0.01 for ratio in ratios):
        denominators.append(_denominator(Said("peak_fallback"), FALLBACK_TFLOP_S))
    denominators += _of_several(_dense(precision), spec, devices)
    names = defaultdict[float, list[Denominator]](list)
    for denominator in denominators:
        names[round(denominator.tflop_s, 3)].append(denominator)
    return sheet.device, [reduce(_alike, alike) for alike in names.values()]


def _alike(first: Denominator, second: Denominator) -> Denominator:
    """Merges two peaks of equal height under both names."""
    return _denominator(
        Said("peaks_alike", first=first.said or first.name, second=second.said or second.name),
        first.tflop_s,
    )


def _dense(precision: str) -> Said:
    return Said("peak_dense", precision=precision)


def _of_device(device: str, sheet: Datasheet, dense: Peak, precision: str) -> list[Denominator]:
    """Peaks of a device: dense, sparse, at its boost clock, and of formats taken by mistake."""
    spec = float(dense)
    denominators = [_denominator(_dense(precision), spec)]
    if dense.sparse_factor != 1:
        sparse = Said("peak_sparse", precision=precision)
        denominators.append(_denominator(sparse, spec * dense.sparse_factor))
    clock = dense.spec_clock_mhz
    if sheet.boost_mhz and clock and sheet.boost_mhz != clock:
        boosted = Said("peak_at_clock", precision=precision, mhz=sheet.boost_mhz)
        denominators.append(_denominator(boosted, spec * sheet.boost_mhz / clock))
    for other in MISTAKEN.get(precision, ()):
        tflop_s = peak(device, other).spec
        if tflop_s:
            denominators.append(_denominator(_dense(other), tflop_s))
    return denominators


def _of_several(name: Said, tflop_s: float, devices: int) -> Iterator[Denominator]:
    """Peaks that an MFU is a share of if the number of devices was forgotten, in the speed or in
    the peak."""
    for count in sorted({*NODES, devices} - {1}):
        numbers: Numbers = {"peak": name, "count": count}
        yield _denominator(Said("peak_divided", numbers), tflop_s / count)
        yield _denominator(Said("peak_multiplied", numbers), tflop_s * count)


def change(
    name: str,
    choices: Choices,
    denominator: Denominator,
    counted: Work,
    samples_per_s: float,
    first: Denominator,
    source: str = "",
) -> Candidate:
    """MFU of `choices` over `denominator`, with what each choice adds to ours over `first`.
    `samples_per_s` is that of one device."""

    def mfu(made: Choices, peak_tflop_s: float) -> float:
        step_s = counted.batch_size / samples_per_s
        return of_peak(flops(counted, made), step_s, peak_tflop_s) or 0.0

    points = [mfu(OURS, first.tflop_s)]
    changes = dict[str, Any]()
    for choice in ORDER:
        changes[choice] = getattr(choices, choice)
        points.append(mfu(replace(OURS, **changes), first.tflop_s))
    result = mfu(choices, denominator.tflop_s)
    differences = (after - before for before, after in pairwise([*points, result]))
    steps = dict(zip((*ORDER, "peak"), differences, strict=True))
    per_token = flops(counted, choices) / counted.tokens
    return Candidate(name, denominator.name, denominator.tflop_s, per_token, result, steps, source)


def _matters(choices: Choices, counted: Work) -> bool:
    """True if every choice of a convention changes the FLOPs of this model; also for our own
    convention."""
    if choices.elements:  # only by itself, and if it differs from 6N without embeddings
        kaplan = flops(counted, Choices(unmultiplied=True, attention="none"))
        is_alone = choices == Choices(elements=True)
        return is_alone and counted.total_flos > 0 and counted.total_flos != kaplan
    if choices.unmultiplied and not counted.flops("attention"):
        return False  # formulas in N are for transformers
    ours = flops(counted, OURS)
    for name, value in vars(choices).items():
        if name == "unmultiplied" or value == getattr(OURS, name):
            continue
        if flops(counted, replace(OURS, **{name: value})) == ours:
            return False
    return True


def _everything(
    counted: Work, samples_per_s: float, denominators: Sequence[Denominator]
) -> Iterator[Candidate]:
    """Yields every combination of choices and peaks that matters for this model."""
    conventions = {convention.choices: convention for convention in CONVENTIONS}
    for values in product(*(POSSIBLE[choice] for choice in ORDER)):
        choices = Choices(**dict(zip(ORDER, values, strict=True)))  # type: ignore[arg-type]
        if not _matters(choices, counted):
            continue
        name, source = _changes(choices), ""
        if choices in conventions:
            name = conventions[choices].name
            source = conventions[choices].source
        first = denominators[0]
        for denominator in denominators:
            yield change(name, choices, denominator, counted, samples_per_s, first, source)


def _changes(choices: Choices) -> str:
    """Choices that differ from ours, as text."""
    parts = list[str]()
    for choice in ORDER:
        value = getattr(choices, choice)
        if value is True:
            parts.append(choice)
        elif value != getattr(OURS, choice):
            parts.append(f"{choice}={value}")
    return ", ".join(parts)
