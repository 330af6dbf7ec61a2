"""Two sets of results run by run: faster, slower, same or ambiguous, by confidence intervals, never by a bare ratio."""

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mfulab.report.quantities import percent, quantity
from mfulab.report.sources import read_row

STEPS = ("profile_step", "bench_matmul")
NOTICEABLE = 0.02  # relative: intervals that lie this close together are the same for every purpose
STYLES = {"faster": "green", "slower": "red", "ambiguous": "yellow", "same": "dim", "not comparable": "dim"}


@dataclass(frozen=True)
class Interval:
    """A time in seconds with its 95 % confidence interval; an interval of a single value where none was measured."""

    time_s: float
    low_s: float
    high_s: float
    known: bool


@dataclass(frozen=True)
class Compared:
    """One run in both sets. `ratio` is new ÷ old: below 1 is faster; its bounds are the intervals' at their worst."""

    step: str
    run: str
    verdict: str
    old_s: float | None = None
    new_s: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    because: str = ""


def verdict(old: Interval, new: Interval, noticeable: float = NOTICEABLE) -> tuple[str, str]:
    """(verdict, reason) of two times.

    `faster` or `slower` where the intervals are disjoint and even their nearest ends are further apart than
    `noticeable`; `same` where even their furthest ends are not; `ambiguous` where the intervals allow either, or one
    is missing.
    """
    if not (old.known and new.known):
        return "ambiguous", "a time has no confidence interval"
    low, high = new.low_s / old.high_s, new.high_s / old.low_s
    if high < 1 / (1 + noticeable):
        return "faster", ""
    if low > 1 + noticeable:
        return "slower", ""
    if low >= 1 / (1 + noticeable) and high <= 1 + noticeable:
        return "same", ""
    return "ambiguous", "the confidence intervals allow both a difference and none"


def interval(row: Mapping[str, object]) -> Interval | None:
    """The interval of a row's `time_s`: measured over windows, or for a matmul ± its interquartile range over √n.

    The latter is McGill's notch, 1.57·IQR/√n, a 95 % interval of a median. None where the row has no time.
    """
    time = row.get("time_s")
    if row.get("status") != "ok" or not isinstance(time, float):
        return None
    low, high = row.get("time_ci_low_s"), row.get("time_ci_high_s")
    spread, count = row.get("hot_iqr_s"), row.get("repetitions")
    if isinstance(spread, float) and isinstance(count, int) and count > 1:
        notch = 1.57 * spread / count**0.5
        low, high = time - notch, time + notch
    if isinstance(low, float) and isinstance(high, float) and low > 0:
        return Interval(time, low, high, True)
    return Interval(time, time, time, False)


def compare(old: Path, new: Path, noticeable: float = NOTICEABLE) -> list[Compared]:
    """Every run of two folders `results/<hardware>`, matched by step and run name; runs of one alone are told so."""
    compared = []
    for step in STEPS:
        before, after = _rows(old, step), _rows(new, step)
        for run in dict.fromkeys([*before, *after]):
            compared.append(_one(step, run, before.get(run), after.get(run), noticeable))
    return compared


def _rows(folder: Path, step: str) -> dict[str, Mapping[str, object]]:
    return {path.parent.name: read_row(path.parent, step) for path in sorted((folder / step).glob("*/row.csv"))}


def _one(
    step: str, run: str, old: Mapping[str, object] | None, new: Mapping[str, object] | None, noticeable: float
) -> Compared:
    if old is None or new is None:
        return Compared(step, run, "not comparable", because=f"only in {'new' if old is None else 'old'}")
    before, after = interval(old), interval(new)
    if before is None or after is None:
        which, row = ("old", old) if before is None else ("new", new)
        return Compared(step, run, "not comparable", because=f"{which} is {row['status']}: {row['message']}")
    says, because = verdict(before, after, noticeable)
    return Compared(
        step,
        run,
        says,
        before.time_s,
        after.time_s,
        after.time_s / before.time_s,
        after.low_s / before.high_s,
        after.high_s / before.low_s,
        because,
    )


def table(compared: Sequence[Compared]) -> Table:
    """The comparison as the terminal shows it."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column("run", overflow="fold")
    for name in ("old", "new", "change", "95 % interval"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("verdict")
    for each in compared:
        change, bounds = "–", "–"
        if each.ratio is not None and each.ratio_low is not None and each.ratio_high is not None:
            change = _change(each.ratio)
            bounds = f"{_change(each.ratio_low)} … {_change(each.ratio_high)}"
        says = f"{each.verdict}: {each.because}" if each.because else each.verdict
        cells = (each.run, quantity(each.old_s, "s"), quantity(each.new_s, "s"), change, bounds, says)
        shown.add_row(*(Text(cell) for cell in cells), style=STYLES[each.verdict])
    return shown


def _change(ratio: float) -> str:
    return f"{'+' if ratio >= 1 else '−'}{percent(abs(100 * (ratio - 1)))} %"


def write(compared: Sequence[Compared], path: Path) -> None:
    """The comparison as CSV; as results/tables/comparison.csv it becomes a section of the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Compared)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(each) for each in compared)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python scripts/compare.py OLD NEW`; the exit code is 1 where a run is slower, 2 where nothing is comparable."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="a folder results/<hardware>, of another commit or another machine")
    parser.add_argument("new", type=Path, help="the folder to judge")
    parser.add_argument("--noticeable", type=float, default=NOTICEABLE, help="the relative difference that matters")
    parser.add_argument("--out", type=Path, help="also write CSV, such as results/tables/comparison.csv")
    options = parser.parse_args(arguments)
    for folder in (options.old, options.new):
        if not folder.is_dir():
            parser.error(f"{folder}: no such folder; give two folders results/<hardware>")
    compared = compare(options.old, options.new, options.noticeable)
    console = Console()
    console.print(table(compared))
    counts = {says: sum(each.verdict == says for each in compared) for says in STYLES}
    console.print(Text(", ".join(f"{count} {says}" for says, count in counts.items() if count) or "no runs found"))
    if options.out:
        write(compared, options.out)
    if counts["not comparable"] == len(compared):
        print("nothing could be compared: no run is in both folders with a time", file=sys.stderr)
        return 2
    return int(counts["slower"] > 0)
