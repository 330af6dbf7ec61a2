"""Compares two sets of results run by run: faster, slower, same or ambiguous, by confidence
intervals."""

import itertools
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from rich.table import Table
from rich.text import Text

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import unquoted, write_csv
from mfulab.core.language import Texts
from mfulab.core.language.quantities import ABSENT, at_least, change, quantity
from mfulab.core.language.sentences import sentence
from mfulab.core.markdown import cell
from mfulab.core.parts import Record
from mfulab.core.printing import say, say_json
from mfulab.core.said import Said, as_told, cell_of, of_cell
from mfulab.core.terminal import Terminal
from mfulab.lab.planning.naming import short
from mfulab.lab.tables import build, replicates
from mfulab.lab.tables.details import cells
from mfulab.lab.tables.records import from_folder, from_recorded
from mfulab.measurements.registry import MEASUREMENTS
from mfulab.timing.paired import MARKS, NOTICEABLE, Compared, Run, decided, one_sided, verdict_of
from mfulab.timing.statistics import FEWEST_FAST, Stats, fast_variance, undisturbed, usual_variance

STEPS = ("profile_step", "bench_matmul")
TABLES = {step: MEASUREMENTS[step].table for step in STEPS}
# of each set, for an interval of their ratio: three processes may all be slow
FEWEST_PROCESSES = 4
UNDECIDED = 3  # exit status of a gate that has neither passed nor failed
LOGGED = 160  # width in a file or log, where no terminal limits it
HEADS = ("run", "old", "new", "change", "interval", "detects", "verdict")
MOST_UNFOLDED = 10  # ambiguous runs that a comment shows without folding
NO_BREAK = "\N{NO-BREAK SPACE}"
# Style of each verdict, in the order in which verdicts are shown.
STYLES = {
    "slower": "red",
    "faster": "green",
    "ambiguous": "yellow",
    "same": "dim",
    "not comparable": "dim",
}

Row = Mapping[str, object]
Rows = Mapping[Run, Row]


@dataclass(frozen=True)
class Interval:
    """A time in seconds with its 95 % confidence interval. If none was measured, both ends equal
    the time."""

    time_s: float
    low_s: float
    high_s: float
    is_measured: bool


# Columns of the CSV file: `old` and `new` are the folders.
COLUMNS = [*(field.name for field in fields(Compared)), "old", "new"]


class Line(NamedTuple):
    """A run of a comparison as displayed: its verdict, and its texts in the order of `HEADS`."""

    verdict: str
    texts: tuple[str, ...]


def verdict(
    old: Interval, new: Interval, noticeable: float = NOTICEABLE
) -> tuple[str, Said | None]:
    """Returns (verdict, reason) for two times. `faster` or `slower` if the 95 % interval of their
    ratio lies beyond `noticeable`. `same` if both one-sided tests at 5 % place the ratio within it.
    `ambiguous` otherwise, or if an interval is missing."""
    if old.is_measured and new.is_measured:
        return verdict_of(new.time_s / old.time_s, *ratio_interval(old, new), noticeable)
    sides = []
    for side, time in (("old", old), ("new", new)):
        if not time.is_measured:
            sides.append(side)
    return "ambiguous", Said("measured_by_one", sides=" and ".join(sides))


def ratio_interval(old: Interval, new: Interval) -> tuple[float, float]:
    """Returns the 95 % interval of new ÷ old: relative half-widths add as squares (Zou and Donner,
    2008)."""
    ratio = new.time_s / old.time_s
    new_below = math.log(new.time_s / new.low_s)
    new_above = math.log(new.high_s / new.time_s)
    old_below = math.log(old.time_s / old.low_s)
    old_above = math.log(old.high_s / old.time_s)
    low = math.hypot(new_below, old_above)
    high = math.hypot(new_above, old_below)
    return ratio * math.exp(-low), ratio * math.exp(high)


def interval(row: Row) -> Interval | None:
    """Returns the interval of a row's `time_s`, from the spread between its processes. None if the
    row has no time."""
    time, low, high = map(row.get, ("time_s", "time_ci_low_s", "time_ci_high_s"))
    if row.get("status") != "ok" or not isinstance(time, float):
        return None
    if isinstance(low, float) and isinstance(high, float) and low > 0:
        return Interval(time, low, high, True)
    return Interval(time, time, time, False)


def verdicts(
    before: Rows, after: Rows, noticeable: float = NOTICEABLE, drift: float = 0.0
) -> list[Compared]:
    """Returns a verdict for each run, by measurement and name, of two machines' merged rows.
    `drift` widens the intervals."""
    spreads = []
    for row in (*before.values(), *after.values()):
        times = replicates.times_of(row)
        if len(times) >= FEWEST_PROCESSES:
            spreads.append(replicates.jackknife_variance(times))
    usual = usual_variance(spreads)
    runs = dict.fromkeys([*before, *after])
    compared = []
    for run in sorted(runs, key=lambda run: STEPS.index(run[0])):
        old = before.get(run)
        new = after.get(run)
        compared.append(_compare(run, old, new, noticeable, drift, usual))
    return compared


def drift_between(before: Rows, after: Rows) -> float | None:
    """Spread of the machine between sweeps, from runs with enough processes in either set; None
    without any."""
    rows = (*before.values(), *after.values())
    return replicates.drift(map(replicates.times_of, rows))


def widened(measured: Interval, drift: float) -> Interval:
    """Adds a further spread to an interval: relative half-widths add as squares."""
    if not measured.is_measured or not drift:
        return measured
    time_s = measured.time_s
    further = 1.96 * drift
    below = math.hypot(math.log(time_s / measured.low_s), further)
    above = math.hypot(math.log(measured.high_s / time_s), further)
    low_s = time_s * math.exp(-below)
    high_s = time_s * math.exp(above)
    return Interval(time_s, low_s, high_s, True)


def widened_for_few(measured: Interval, row: Row, other: Row) -> Interval:
    """Raises the upper end to cover, in 95 % of cases, the time that as few processes as the other
    set's would give."""
    times = replicates.times_of(row)[:24]
    count = len(replicates.times_of(other))  # 10,626 combinations at most
    is_cpu = row.get("machine_cost_percent") is not None
    is_few = 1 < count < min(len(times), FEWEST_FAST)
    if not (is_cpu and is_few):
        return measured
    as_few = map(undisturbed, itertools.combinations(times, count))
    slowest_s = Stats(as_few).percentile(95)
    longer = max(1.0, slowest_s / undisturbed(times))
    return replace(measured, high_s=measured.high_s * longer)


def fast_s(row: Record) -> float | None:
    """Time in seconds by which a row is compared, or None. On a CPU it is the 5th percentile of
    steps, the steadiest."""
    time_s = float(row.get("time_s") or 0)
    median_s = float(row.get("median_time_s") or 0)
    fastest_s = float(row.get("time_p5_s") or 0)
    if fastest_s and time_s < median_s:
        return fastest_s
    return time_s or None


def merged(folder: Path, fast: bool = False) -> Rows:
    """Returns the rows of a machine's folder by measurement and run, merged and judged. If `fast`,
    they are timed by `fast_s`."""
    if is_recording(folder):
        records = from_recorded(folder).records
    else:
        records = from_folder(folder.parent, folder.name).records
        for step, table in TABLES.items():
            measured = []
            for row in records[table]:
                if (folder / step / row["run"] / "row.csv").exists():
                    measured.append({**row, "time_s": fast_s(row)} if fast else row)
            records[table] = measured
    judged = build.judged(replicates.merge(records))
    found = {}
    for step, table in TABLES.items():
        for row in judged[table]:
            found[(step, row["run"])] = row
    return found


def _compare(
    run: Run, old: Row | None, new: Row | None, noticeable: float, drift: float, usual: float | None
) -> Compared:
    """Compares a run's rows of both sets, either of which may be missing. `drift` and `usual` are
    as in `verdicts`: the spread between sweeps, and the variance between processes."""
    if old is None or new is None:
        key = "only_in_new" if old is None else "only_in_old"
        return Compared(*run, "not comparable", because=Said(key))
    before = interval(old)
    after = interval(new)
    if before is None or after is None:
        side, row = ("old", old) if before is None else ("new", new)
        return Compared(*run, "not comparable", because=untimed(side, row))
    of_medians = []
    for side, row in (("old", old), ("new", new)):
        if row.get("median_time_s") is None:
            of_medians.append(side)
    if len(of_medians) == 1:
        reason = Said("side_of_medians", side=of_medians[0])
        return Compared(*run, "not comparable", because=reason)
    ratio = after.time_s / before.time_s
    if not (before.is_measured and after.is_measured):
        outcome, because = verdict(before, after)
        return Compared(*run, outcome, before.time_s, after.time_s, ratio, because=because)
    half = _half_width(old, new, usual)
    if half:
        of_drift = 1.96 * math.sqrt(2) * drift
        factor = math.exp(math.hypot(half, of_drift))
        bounds = ratio / factor, ratio * factor
    else:
        wide_before = widened_for_few(widened(before, drift), old, new)
        wide_after = widened_for_few(widened(after, drift), new, old)
        bounds = ratio_interval(wide_before, wide_after)
    return decided(run, before.time_s, after.time_s, ratio, bounds, noticeable)


def untimed(side: str, row: Row) -> Said:
    """Reason why one side's row has no time: its status and message."""
    why = of_cell(str(row.get("message") or "")) or as_told("")
    return Said("side_untimed", side=side, status=str(row.get("status")), why=why)


def _half_width(old: Row, new: Row, usual: float | None) -> float | None:
    """Half-width of a log ratio's interval, from the processes of both rows. None for medians,
    disturbed processes or too few of them."""
    before = replicates.times_of(old)
    after = replicates.times_of(new)
    few, many = sorted((len(before), len(after)))
    if few < FEWEST_PROCESSES or (few < many and few < FEWEST_FAST):
        return None
    for row in (old, new):
        if row.get("machine_cost_percent") is None or row.get("disturbed_replicates"):
            return None
    return replicates.ratio_half_width(before, after, usual)


def is_recording(folder: Path) -> bool:
    """True if the folder is a machine's recording, as in results/reference/, which holds tables."""
    return any((folder / f"{table}.csv").is_file() for table in TABLES.values())


def machine_folder(path: Path) -> Path:
    """Finds the folder results/<hardware> at `path` or below it. Raises ConfigurationError if there
    is none, or several."""
    if any((path / step).is_dir() for step in STEPS) or is_recording(path):
        return path
    found = set[Path]()
    for pattern, step in itertools.product(("*/", "results/*/"), STEPS):
        found.update(folder.parent for folder in path.glob(pattern + step))
    machines = sorted(folder for folder in found if folder.name != "superseded")
    if not machines:
        looked_for = f"<hardware>/{STEPS[0]}/<run>/row.csv"
        raise ConfigurationError(Said("no_results_here", folder=str(path), looked_for=looked_for))
    if len(machines) > 1:
        names = ", ".join(map(str, machines))
        raise ConfigurationError(Said("results_of_several", folder=str(path), machines=names))
    return machines[0]


def lines_of(compared: Sequence[Compared], text: Texts) -> list[Line]:
    """Returns a line for each run that both sets have timed, slower ones first."""
    lines = list[Line]()
    for run in sorted(compared, key=lambda run: _rank(run.verdict)):
        if run.ratio is None:
            continue
        bounds = detects = ABSENT
        if (
            run.ratio_low is not None
            and run.ratio_high is not None
            and run.detects_percent is not None
        ):
            bounds = f"{change(run.ratio_low)} … {change(run.ratio_high)}"
            detects = at_least(1 + run.detects_percent / 100)
        times = quantity(run.old_s, "s"), quantity(run.new_s, "s")
        word = text.name("compared", run.verdict)
        texts = (short(run.run), *times, change(run.ratio), bounds, detects, word)
        lines.append(Line(run.verdict, tuple(map(text.written, texts))))
    return lines


def table(compared: Sequence[Compared], text: Texts) -> Table:
    """Comparison as a table for the terminal, of runs that both sets have timed, slower ones
    first."""
    run, *numbers, verdict = map(text, HEADS)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column(run, overflow="fold")
    for name in numbers:
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column(verdict)
    for line in lines_of(compared, text):
        shown.add_row(*map(Text, line.texts), style=STYLES[line.verdict])
    return shown


def markdown(compared: Sequence[Compared], title: str, basis: str, text: Texts) -> str:
    """Comparison as Markdown for a review comment: counts of verdicts, then a table of runs that
    differ. Unchanged runs are folded, as are many ambiguous ones."""
    lines = [f"### {_counts(compared, text)}", "", f"{title}.", ""]
    rows: dict[str, list[tuple[str, ...]]] = {verdict: [] for verdict in STYLES}
    for line in lines_of(compared, text):
        rows[line.verdict].append(line.texts)
    shown = [*rows["slower"], *rows["faster"]]
    folded = {"same": rows["same"]}
    if len(rows["ambiguous"]) > MOST_UNFOLDED:
        folded = {"ambiguous": rows["ambiguous"], **folded}
    else:
        shown += rows["ambiguous"]
    if shown:
        lines += [*_markdown_table(shown, text), ""]
    for verdict, folded_rows in folded.items():
        if folded_rows:
            summary = f"<summary>{_counted(verdict, len(folded_rows), text)}</summary>"
            unfolded = _markdown_table(folded_rows, text)
            lines += ["<details>", summary, "", *unfolded, "", "</details>", ""]
    for (verdict, reason), count in _reasons(compared).items():
        if reason:
            why = sentence(reason.key, reason.numbers, text.language)
            lines.append(f"- {_counted(verdict, count, text)}: {cell(why)}.")
    return "\n".join([*lines, "", f"{basis[:1].upper()}{basis[1:]}."])


def _rank(verdict: str) -> int:
    """Place of a verdict in tables, slower ones first; unknown ones last."""
    verdicts = list(STYLES)
    if verdict in verdicts:
        return verdicts.index(verdict)
    return len(verdicts)


def _reasons(compared: Sequence[Compared]) -> Counter[tuple[str, Said | None]]:
    """Counts runs by verdict and the reason for it."""
    return Counter((run.verdict, run.because) for run in compared)


def _counted(verdict: str, count: int, text: Texts) -> str:
    """Words for the number of runs with a verdict."""
    return text("count", count=count, verdict=text.name("compared", verdict))


def _counts(compared: Sequence[Compared], text: Texts) -> str:
    """Counts of the verdicts in words, after the mark of the worst."""
    counts = Counter(run.verdict for run in compared)
    worst_first = []
    for verdict in MARKS:
        if counts[verdict]:
            worst_first.append(verdict)
    if not worst_first:
        return text("nothing")
    listed = ", ".join(_counted(verdict, counts[verdict], text) for verdict in worst_first)
    return f"{MARKS[worst_first[0]]} {listed}"


def _markdown_table(rows: Sequence[Sequence[str]], text: Texts) -> list[str]:
    """Lines of a Markdown table with numbers aligned right and without line breaks in them."""
    numbers = len(HEADS) - 2
    lines = [f"| {' | '.join(map(text, HEADS))} |", f"|---|{'---:|' * numbers}---|"]
    for run, *values, verdict in rows:
        unbroken = [value.replace(" ", NO_BREAK) for value in values]
        lines.append(f"| {' | '.join(map(cell, (run, *unbroken, verdict)))} |")
    return lines


def write(compared: Sequence[Compared], path: Path, old: Path, new: Path) -> None:
    """Writes the comparison as CSV, with both folders. The page shows results/tables/comparison.csv
    as a section. A reason is stored like a row's message: {key: numbers}."""
    rows = []
    for run in compared:
        row = run.row()
        row |= {"because": cell_of(run.because), "old": old, "new": new}
        rows.append(row)
    write_csv(path, rows, COLUMNS)


def read(path: Path) -> pd.DataFrame:
    """Reads the comparison that `write` wrote, as texts in the terminal's order; empty if there is
    none."""
    try:
        table = cells(path).map(unquoted)
        order = table["verdict"].map(_rank)
    except (FileNotFoundError, ValueError, KeyError):
        return pd.DataFrame(columns=COLUMNS, dtype=str)
    in_order = order.sort_values(kind="stable").index
    return table.loc[in_order].reindex(columns=COLUMNS, fill_value="")


def show(
    old: Path,
    new: Path,
    noticeable: float,
    gate: float | None,
    out: Path | None,
    form: str,
    language: str,
) -> int:
    """Compares two folders of results and prints the comparison. Returns the exit status of
    `tell`."""
    old = machine_folder(old)
    new = machine_folder(new)
    fast = not (is_recording(old) or is_recording(new))
    both = merged(old, fast), merged(new, fast)
    drift = drift_between(*both)
    if gate is not None:
        noticeable = gate
    compared = verdicts(*both, noticeable, drift or 0.0)
    if out:
        write(compared, out, old, new)
    text = Texts(language, "compare")
    basis = [text("fast")] if fast else []
    basis.append(text("between_processes"))
    if drift is None:
        basis.append(text("drift_unknown"))
    else:
        basis.append(text("drift_known", percent=196 * drift))
    title = text("against", new=new, old=old)
    return tell(compared, title, "; ".join(basis), gate, form, language)


def tell(
    compared: Sequence[Compared],
    title: str,
    basis: str,
    gate: float | None,
    form: str,
    language: str,
) -> int:
    """Prints a comparison and what its intervals rest on, or a line of JSON for each run. Returns
    the exit status: 1 if a run is slower, 2 if nothing is comparable, and 3 if a run may be slower
    than `gate` allows."""
    text = Texts(language, "compare")
    if form == "json":
        for run in compared:
            say_json(run.answer.line(run.row()))
    elif form == "markdown":
        say(markdown(compared, title, basis, text))
    else:
        _print(compared, title, basis, text)
    return _status(compared, gate, text)


def _status(compared: Sequence[Compared], gate: float | None, text: Texts) -> int:
    """Returns the exit status of `tell`; prints the reason for 2 and 3 on stderr."""
    verdicts = {run.verdict for run in compared}
    if verdicts <= {"not comparable"}:
        say(text("none_comparable"), file=sys.stderr)
        return 2
    if "slower" in verdicts or gate is None:
        return int("slower" in verdicts)
    timed = []
    for run in compared:
        if run.ratio is not None:
            timed.append(run)
    may_be_slower = sum(_may_be_slower(run, gate) for run in timed)
    if not may_be_slower:
        return 0
    counts = {"count": may_be_slower, "total": len(timed)}
    say(text("may_be_slower", **counts, bound=100 * gate), file=sys.stderr)
    return UNDECIDED


def _may_be_slower(run: Compared, gate: float) -> bool:
    if not run.ratio_high:
        return True
    return one_sided(run.ratio or 1, run.ratio_high) > 1 + gate


def _print(compared: Sequence[Compared], title: str, basis: str, text: Texts) -> None:
    console = Terminal(width=None if sys.stdout.isatty() else LOGGED)
    console.print(title, soft_wrap=True)
    console.print(basis, style="dim", soft_wrap=True)
    console.print(table(compared, text))
    reasons = _reasons(compared)
    plain = []
    explained = []
    for verdict, because in sorted(reasons, key=lambda reason: _rank(reason[0])):
        count = reasons[verdict, because]
        counted = _counted(verdict, count, text)
        if because is None:
            plain.append(counted)
        else:
            why = sentence(because.key, because.numbers, text.language)
            explained.append(f"{counted}: {why}")
    if plain:
        console.print(", ".join(plain))
    for line in explained:
        console.print(line, style="dim", soft_wrap=True)


@dataclass(frozen=True)
class Trust:
    """Findings from repeated measurements of a machine. Shares and spreads are in percent, None if
    nothing was repeated."""

    runs: int  # with two processes or more
    # usual standard deviation between processes; None with fewer than eight runs
    spread_percent: float | None = None
    measurements: int = 0  # into which runs of many processes were split
    size: int = 0  # processes of a measurement
    # share of their intervals that contain the undisturbed time of all processes
    covered_percent: float | None = None
    verdicts: int = 0  # compared pairs of measurements, all of unchanged code
    false_percent: float | None = None  # share of pairs wrongly called faster or slower


def trust(runs: Sequence[Sequence[float]]) -> Trust:
    """Estimates how far a machine's intervals can be trusted. `runs` holds the process times (s) of
    each run."""
    several = []
    for times in runs:
        if len(times) > 1:
            several.append(list(times))
    usual = usual_variance(list(map(fast_variance, several)))
    basis = Trust(len(several))
    if usual is not None:
        basis = replace(basis, spread_percent=100 * math.sqrt(usual))
    split = list(filter(None, map(replicates.measurements, several)))
    if not split:
        return basis
    # The first measurements of all runs stand for one sweep, the second ones for another, and so
    # on: each has a usual spread of its own.
    usuals = []
    for sweep in itertools.zip_longest(*split):
        usuals.append(usual_variance([fast_variance(times) for times in sweep if times]))
    covered = []
    changed = []
    for measurements in split:
        intervals = []
        for times, usual in zip(measurements, usuals, strict=False):
            row = {"status": "ok", "time_s": undisturbed(times)}
            measured = interval(row | replicates.interval_columns(times, usual))
            if measured:
                intervals.append(measured)
        middle = undisturbed(itertools.chain(*measurements))
        for measured in intervals:
            covered.append(measured.low_s <= middle <= measured.high_s)
        for before, after in itertools.combinations(intervals, 2):
            changed.append(verdict(before, after)[0] in ("faster", "slower"))
    return replace(
        basis,
        measurements=len(covered),
        size=len(split[0][0]),
        covered_percent=100 * sum(covered) / len(covered),
        verdicts=len(changed),
        false_percent=100 * sum(changed) / len(changed),
    )
