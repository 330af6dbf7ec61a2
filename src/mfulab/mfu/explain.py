"""One speed as MFU by every convention: how each comes from ours, and which one gives a number that
was reported."""

import html
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise, product

from rich.cells import cell_len

from mfulab.core.errors import ConfigurationError, unknown
from mfulab.core.language import Texts
from mfulab.core.language.quantities import in_percent, percent, quantity, with_minus
from mfulab.core.language.sentences import sentence
from mfulab.core.said import Numbers, Said, of_source
from mfulab.device.datasheets import Datasheet
from mfulab.device.peaks import UNITS, Peak, peak
from mfulab.mfu.conventions import CONVENTIONS, ORDER, OURS, POSSIBLE, Choices, flops
from mfulab.mfu.roofline import peak_of
from mfulab.mfu.utilization import of_peak
from mfulab.mfu.work import Work

# peak that tools take for a device they do not know: an A100's, dense in bf16
FALLBACK_TFLOP_S = 312.0
# Formats whose peak stands under an MFU of another: by mistake, or because a part of the matmuls
# runs in them.
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
# Of a reported number above 50 %: peaks are printed rounded, an H100 NVL's 60.3 TFLOP/s as 60.
RELATIVE_TOLERANCE = 0.006
SHOWN = 5  # conventions that are listed where a reported number has more
WIDTH = 80  # columns of a line
NAMED = frozenset(convention.name for convention in CONVENTIONS)
SEEN = 0.005  # points from which a number is shown
BY_CHANCE = 10.0  # percent of `Explanation.chance_percent` from which a match may be chance


@dataclass(frozen=True)
class Denominator:
    """A peak that could stand under an MFU, in TFLOP/s, and what it is."""

    name: str
    tflop_s: float
    said: Said | None = None  # the name for other languages; None where it has one alone


def _denominator(said: Said, tflop_s: float) -> Denominator:
    return Denominator(str(said), tflop_s, said)


@dataclass(frozen=True)
class Row:
    """A speed in one convention."""

    convention: str  # its name, or its choices where it has none
    denominator: str  # which peak
    peak_tflop_s: float  # that peak, dense unless it says otherwise
    flops_per_token: (
        float  # as the convention counts them; a sample's where the input is none of tokens
    )
    mfu_percent: float  # of that peak
    steps: Mapping[
        str, float
    ]  # points that each choice adds to our MFU, in order: mfu_percent − ours, exactly
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
    matches: Sequence[Row]  # those that give the reported number, the simplest first
    reported: float | None = None  # that number, in percent
    # combinations of choices and peaks that change ours no more often than the best match does;
    # all, where none matches
    tried: int = 0
    # of all numbers within a quarter of the reported one, those that they give
    chance_percent: float | None = None
    tolerance: float = TOLERANCE  # points within which a combination gives the reported number
    # name of each peak as a sentence, for other languages than that of `Row.denominator`
    peaks: Mapping[str, Said] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        """Our MFU, what gives the reported one, and a line for each convention and each peak."""
        return "\n".join(line.text for line in self.lines())

    def lines(self, language: str = "en") -> "Iterator[Line]":
        """Lines of the explanation, with the styles of a terminal; conventions keep their names."""
        text = Texts(language, "explain")
        ours = self.ours
        mfu = in_percent(ours.mfu_percent)
        yield Line(text("ours", model=self.model, device=self.device, mfu=mfu), "bold")
        speed = quantity(1e12 * self.tflop_s, "FLOP/s", 4)
        top = quantity(1e12 * ours.peak_tflop_s, "FLOP/s", 4)
        yield Line(text("speed", speed=speed, top=top, of=self._peak(ours, text)))
        if ours.mfu_percent > 100:
            yield Line(text("above_peak"), "red")
        if self.reported is not None:
            yield from self._reported_lines(self.reported, text)
        yield Line(f"\n{text('conventions')}")
        for row in self.conventions:
            yield from _row_lines(row, _convention(row.convention, text), text)
        yield Line(f"\n{text('denominators')}")
        for row in self.denominators:
            yield from _row_lines(row, self._peak(row, text), text)

    def _peak(self, row: Row, text: Texts) -> str:
        """The peak under a row, in words of the text's language."""
        said = self.peaks.get(row.denominator)
        if said is None:
            return row.denominator
        return sentence(said.key, said.numbers, text.language)

    def _reported_lines(self, reported: float, text: Texts) -> "Iterator[Line]":
        """Lines on the combinations that give the reported number, of how many tried, and on how
        many numbers those give."""
        told = {"reported": reported, "tolerance": self.tolerance}
        if not self.matches:
            yield Line(text("none", **told))
            yield Line(text("tried_both", count=self.tried, **told))
            return
        yield Line(text("is_one_of", **told))
        for row in self.matches[:SHOWN]:
            yield from _wrapped(
                f"  {in_percent(row.mfu_percent)}  {_convention(row.convention, text)}", 10
            )
            yield from _wrapped(f"{'':10}{text('over', peak=self._peak(row, text))}", 10)
        if len(self.matches) > SHOWN:
            yield Line(f"  {text('further', count=len(self.matches) - SHOWN)}")
        yield Line(text("tried", count=self.tried, **told))
        if self.chance_percent is not None:
            yield Line(text("of_numbers", chance=percent(self.chance_percent), **told))
        if self.may_be_chance:
            yield Line(text("chance"), "yellow")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    @property
    def may_be_chance(self) -> bool:
        """True where the combinations that were tried give many of the numbers nearby."""
        return bool(self.matches) and (self.chance_percent or 0) >= BY_CHANCE


@dataclass(frozen=True)
class Line:
    """A line of text, and its style on a terminal."""

    text: str
    style: str = ""


def _convention(name: str, text: Texts) -> str:
    """A convention's name, or its choices where it has none, in words of the text's language."""
    if name in NAMED:
        return text.name("convention", name)
    return ", ".join(text.name("choice", choice) for choice in name.split(", "))


def _row_lines(row: Row, name: str, text: Texts) -> Iterator[Line]:
    """Lines of an MFU with what it is, and of the points that each choice adds to ours."""
    yield from _wrapped(f"{row.mfu_percent:7.1f}  {name}", 9)
    added = []
    for step, points in row.steps.items():
        if abs(points) >= SEEN:
            choice = text.name("choice", step)
            added.append(f"{choice} {with_minus(f'{points:+.2f}')}")
    if added:
        yield from _wrapped(f"{'':9}{', '.join(added)}", 9, "dim")


def _wrapped(words: str, indent: int, style: str = "") -> Iterator[Line]:
    """Words in lines of at most 80 columns, all but the first indented; a wide letter takes two."""
    line = ""
    for word in re.split(r"(?<=\S) ", words):
        longer = f"{line} {word}" if line else word
        if cell_len(longer) > WIDTH and line.strip():
            yield Line(line, style)
            longer = f"{'':{indent}}{word.lstrip()}"
        line = longer
    yield Line(line, style)


@dataclass(frozen=True)
class _Search:
    """Combinations that were tried for a reported number: those that give it, and all MFUs."""

    matches: Sequence[Row]
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
    """Explanation of a speed in samples a second of each device, from the counted work of one
    sample."""
    first = denominators[0]
    ours, *others = (
        change("mfulab", OURS, denominator, counted, samples_per_s, first)
        for denominator in denominators
    )
    conventions = list[Row]()
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
        peaks={one.name: one.said for one in denominators if one.said is not None},
    )


def _search(rows: Sequence[Row], reported: float) -> _Search:
    """Combinations that give a reported number, the simplest first, each number and peak once."""

    def simplicity(row: Row) -> tuple[int, bool, float]:
        return row.changes, row.convention not in NAMED, abs(row.mfu_percent - reported)

    tolerance = tolerance_of(reported)
    near = [row for row in rows if abs(row.mfu_percent - reported) <= tolerance]
    near.sort(key=simplicity)
    simplest = dict[tuple[float, str, int], Row]()
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
    """The device's name and every peak that could be meant, its dense one first; `devices` share
    the work. Raises ConfigurationError for none."""
    if given is not None:
        if precision not in UNITS:
            raise unknown("precision", precision, UNITS)
        if not 0 < given < math.inf:
            above = Said("give_dense_peak")
            raise ConfigurationError(of_source(f"peak_tflop_s={given}", above))
        as_given = Said("peak_given")
        several = _of_several(as_given, given, devices)
        return device, [_denominator(as_given, given), *several]
    sheet, dense, spec = peak_of(device, precision, Said("or_give_peak"))
    denominators = _of_device(device, sheet, dense, precision)
    near_fallback = (abs(one.tflop_s / FALLBACK_TFLOP_S - 1) < 0.01 for one in denominators)
    if not any(near_fallback):
        denominators.append(_denominator(Said("peak_fallback"), FALLBACK_TFLOP_S))
    denominators += _of_several(_dense(precision), spec, devices)
    names = defaultdict[float, list[Denominator]](list)
    for denominator in denominators:
        names[round(denominator.tflop_s, 3)].append(denominator)
    merged = list[Denominator]()
    for alike in names.values():
        merged.append(reduce(_alike, alike))
    return sheet.device, merged


def _alike(first: Denominator, second: Denominator) -> Denominator:
    """One peak of two that are as high, by the names of both."""
    names: Numbers = {"first": first.said or first.name, "second": second.said or second.name}
    return _denominator(Said("peaks_alike", names), first.tflop_s)


def _dense(precision: str) -> Said:
    return Said("peak_dense", {"precision": precision})


def _of_device(device: str, sheet: Datasheet, dense: Peak, precision: str) -> list[Denominator]:
    """Peaks of a device: dense, sparse, at its boost clock, and of formats taken by mistake."""
    spec = float(dense)
    denominators = [_denominator(_dense(precision), spec)]
    if dense.sparse_factor != 1:
        sparse = Said("peak_sparse", {"precision": precision})
        denominators.append(_denominator(sparse, spec * dense.sparse_factor))
    clock = dense.spec_clock_mhz
    if sheet.boost_mhz and clock and sheet.boost_mhz != clock:
        boosted = Said("peak_at_clock", {"precision": precision, "mhz": sheet.boost_mhz})
        denominators.append(_denominator(boosted, spec * sheet.boost_mhz / clock))
    for other in MISTAKEN.get(precision, ()):
        tflop_s = peak(device, other).spec
        if tflop_s:
            denominators.append(_denominator(_dense(other), tflop_s))
    return denominators


def _of_several(name: Said, tflop_s: float, devices: int) -> Iterator[Denominator]:
    """Peaks that stand under an MFU where devices were forgotten: in the speed, or in the peak."""
    for count in sorted({*NODES, devices} - {1}):
        told: Numbers = {"peak": name, "count": count}
        yield _denominator(Said("peak_divided", told), tflop_s / count)
        yield _denominator(Said("peak_multiplied", told), tflop_s * count)


def change(
    name: str,
    choices: Choices,
    denominator: Denominator,
    counted: Work,
    samples_per_s: float,
    first: Denominator,
    source: str = "",
) -> Row:
    """A row of `choices` over `denominator`, with what each choice adds to ours over `first`;
    samples of one device."""

    def mfu(now: Choices, peak_tflop_s: float) -> float:
        return of_peak(flops(counted, now), counted.batch_size / samples_per_s, peak_tflop_s) or 0.0

    changed = [
        {choice: getattr(choices, choice) for choice in ORDER[:count]}
        for count in range(len(ORDER) + 1)
    ]
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
        return (
            choices == Choices(elements=True)
            and counted.total_flos > 0
            and counted.total_flos != kaplan
        )
    if choices.unmultiplied and not counted.flops("attention"):
        return False  # formulas in N are those of transformers
    changed = {}
    for name, value in vars(choices).items():
        if value != getattr(OURS, name):
            changed[name] = value
    one_by_one = (
        replace(OURS, **{name: value}) for name, value in changed.items() if name != "unmultiplied"
    )
    return all(flops(counted, choices) != flops(counted, OURS) for choices in one_by_one)


def _everything(
    counted: Work, samples_per_s: float, denominators: Sequence[Denominator]
) -> Iterator[Row]:
    names = {convention.choices: convention for convention in CONVENTIONS}
    for values in product(*(POSSIBLE[choice] for choice in ORDER)):
        given = dict(zip(ORDER, values, strict=True))
        choices = Choices(**given)  # type: ignore[arg-type]
        if not _matters(choices, counted):
            continue
        changed = (
            (choice, value) for choice, value in given.items() if value != getattr(OURS, choice)
        )
        parts = ", ".join(
            choice if value is True else f"{choice}={value}" for choice, value in changed
        )
        name, source = (
            (names[choices].name, names[choices].source) if choices in names else (parts, "")
        )
        for denominator in denominators:
            yield change(
                name, choices, denominator, counted, samples_per_s, denominators[0], source
            )
