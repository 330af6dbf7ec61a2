"""Two sets of results run by run: faster, slower, same or ambiguous, by confidence intervals, never
by a bare ratio."""

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
# of each set, from which on a ratio has an interval of its own: three may all be slow
FEWEST_PROCESSES = 4
UNDECIDED = 3  # the exit status of a gate that nothing has passed or failed
LOGGED = 160  # columns of a file or a log, where no window bounds the lines
# Verdicts in the order in which they are shown.
HEADS = ("run", "old", "new", "change", "interval", "detects", "verdict")
MOST_UNFOLDED = 10  # ambiguous runs that a comment shows at once
NO_BREAK = "\N{NO-BREAK SPACE}"
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
    """A time in seconds with its 95 % confidence interval; an interval of a single value where none
    was measured."""

    time_s: float
    low_s: float
    high_s: float
    is_measured: bool


COLUMNS = [
    *(field.name for field in fields(Compared)),
    "old",
    "new",
]  # of the file, which also names both folders


class Line(NamedTuple):
    """A run of a comparison as it is shown: its texts by `HEADS`, the verdict in words."""

    verdict: str
    texts: tuple[str, ...]


def verdict(
    old: Interval, new: Interval, noticeable: float = NOTICEABLE
) -> tuple[str, Said | None]:
    """(verdict, reason) of two times: `faster` or `slower` where the 95 % interval of their ratio
    is beyond it; `same` where both one-sided tests at 5 % place it within `noticeable`; `ambiguous`
    where neither is known."""
    if old.is_measured and new.is_measured:
        return verdict_of(new.time_s / old.time_s, *ratio_interval(old, new), noticeable)
    which = " and ".join(
        name for name, interval in (("old", old), ("new", new)) if not interval.is_measured
    )
    return "ambiguous", Said("measured_by_one", {"sides": which})


def ratio_interval(old: Interval, new: Interval) -> tuple[float, float]:
    """The 95 % interval of new ÷ old: relative half-widths add as squares (Zou and Donner,
    2008)."""
    ratio = new.time_s / old.time_s
    low = math.hypot(math.log(new.time_s / new.low_s), math.log(old.high_s / old.time_s))
    high = math.hypot(math.log(new.high_s / new.time_s), math.log(old.time_s / old.low_s))
    return ratio * math.exp(-low), ratio * math.exp(high)


def interval(row: Row) -> Interval | None:
    """The interval of a row's `time_s`, from the spread between the processes that measured it.
    None without a time."""
    time, low, high = map(row.get, ("time_s", "time_ci_low_s", "time_ci_high_s"))
    if row.get("status") != "ok" or not isinstance(time, float):
        return None
    if isinstance(low, float) and isinstance(high, float) and low > 0:
        return Interval(time, low, high, True)
    return Interval(time, time, time, False)


def verdicts(
    before: Rows, after: Rows, noticeable: float = NOTICEABLE, drift: float = 0.0
) -> list[Compared]:
    """A verdict on each run of two machines' merged rows, by measurement and name; `drift` widens
    intervals."""
    runs = sorted(dict.fromkeys([*before, *after]), key=lambda run: STEPS.index(run[0]))
    processes = list(map(replicates.times_of, (*before.values(), *after.values())))
    spreads = []
    for times in processes:
        if len(times) >= FEWEST_PROCESSES:
            spreads.append(replicates.jackknife_variance(times))
    usual = usual_variance(spreads)
    return [_one(run, before.get(run), after.get(run), noticeable, drift, usual) for run in runs]


def drift_between(before: Rows, after: Rows) -> float | None:
    """The machine's spread between sweeps, of runs that either set has measured often enough; None
    without."""
    return replicates.drift(map(replicates.times_of, (*before.values(), *after.values())))


def widened(measured: Interval, drift: float) -> Interval:
    """The interval with a further spread in it: relative half-widths add as squares."""
    if not measured.is_measured or not drift:
        return measured
    time_s = measured.time_s
    ends = (measured.low_s, measured.high_s)
    low, high = (math.hypot(math.log(end / time_s), 1.96 * drift) for end in ends)
    return Interval(time_s, time_s * math.exp(-low), time_s * math.exp(high), True)


def of_as_few(measured: Interval, row: Row, other: Row) -> Interval:
    """Widens the interval to what as few processes as the other set has would give, in 95 % of
    cases."""
    times = replicates.times_of(row)[:24]
    count = len(replicates.times_of(other))  # 10,626 combinations at most
    if row.get("machine_cost_percent") is None or not 1 < count < min(len(times), FEWEST_FAST):
        return measured
    few = Stats(map(undisturbed, itertools.combinations(times, count))).percentile(95)
    return replace(measured, high_s=measured.high_s * max(1.0, few / undisturbed(times)))


def fast_s(row: Record) -> float | None:
    """The time in seconds that a row is compared by, or None: on a CPU the 5th percentile of steps,
    the steadiest."""
    time_s, median_s, fastest_s = (
        float(row.get(name) or 0) for name in ("time_s", "median_time_s", "time_p5_s")
    )
    return (fastest_s if fastest_s and time_s < median_s else time_s) or None


def merged(folder: Path, fast: bool = False) -> Rows:
    """The rows of a machine's folder by measurement and run, merged and judged; timed by `fast_s`
    where `fast`."""
    if is_recording(folder):
        records = from_recorded(folder).records
    else:
        records = from_folder(folder.parent, folder.name).records
        for step, table in TABLES.items():
            measured = (
                row for row in records[table] if (folder / step / row["run"] / "row.csv").exists()
            )
            records[table] = [{**row, "time_s": fast_s(row)} if fast else row for row in measured]
    judged = build.judged(replicates.merge(records))
    found = {}
    for step, table in TABLES.items():
        for row in judged[table]:
            found[(step, row["run"])] = row
    return found


def _one(
    run: Run, old: Row | None, new: Row | None, noticeable: float, drift: float, usual: float | None
) -> Compared:
    if old is None or new is None:
        only = Said("only_in_new" if old is None else "only_in_old")
        return Compared(*run, "not comparable", because=only)
    before = interval(old)
    after = interval(new)
    if before is None or after is None:
        which, row = ("old", old) if before is None else ("new", new)
        return Compared(*run, "not comparable", because=untimed(which, row))
    lacking = [
        name for name, row in (("old", old), ("new", new)) if row.get("median_time_s") is None
    ]
    if len(lacking) == 1:
        older = Said("side_of_medians", {"side": lacking[0]})
        return Compared(*run, "not comparable", because=older)
    ratio = after.time_s / before.time_s
    if not (before.is_measured and after.is_measured):
        says, because = verdict(before, after)
        return Compared(*run, says, before.time_s, after.time_s, ratio, because=because)
    if half := _half_width(old, new, usual):
        factor = math.exp(math.hypot(half, 1.96 * math.sqrt(2) * drift))
        bounds = ratio / factor, ratio * factor
    else:
        wide = (
            of_as_few(widened(before, drift), old, new),
            of_as_few(widened(after, drift), new, old),
        )
        bounds = ratio_interval(*wide)
    return decided(run, before.time_s, after.time_s, ratio, bounds, noticeable)


def untimed(side: str, row: Row) -> Said:
    """The reason why a side's row has no time: its status and message."""
    why = of_cell(str(row.get("message") or "")) or as_told("")
    return Said("side_untimed", {"side": side, "status": str(row.get("status")), "why": why})


def _half_width(old: Row, new: Row, usual: float | None) -> float | None:
    """Half the interval of a ratio by the processes of both; None of medians, disturbed or too few
    processes."""
    before = replicates.times_of(old)
    after = replicates.times_of(new)
    few, many = sorted((len(before), len(after)))
    if few < FEWEST_PROCESSES or (few < many and few < FEWEST_FAST):
        return None
    if any(
        row.get("machine_cost_percent") is None or row.get("disturbed_replicates")
        for row in (old, new)
    ):
        return None
    return replicates.ratio_half_width(before, after, usual)


def is_recording(folder: Path) -> bool:
    """True for a machine's recording, as in results/reference/, whose rows stand in tables."""
    return any((folder / f"{table}.csv").is_file() for table in TABLES.values())


def machine_folder(path: Path) -> Path:
    """The folder results/<hardware> that `path` is or holds. Raises ConfigurationError if there is
    none, or several."""
    if any((path / step).is_dir() for step in STEPS) or is_recording(path):
        return path
    steps = (
        folder
        for pattern in ("*/", "results/*/")
        for step in STEPS
        for folder in path.glob(pattern + step)
    )
    machines = sorted({folder.parent for folder in steps if folder.parent.name != "superseded"})
    if not machines:
        looked_for = f"<hardware>/{STEPS[0]}/<run>/row.csv"
        raise ConfigurationError(
            Said("no_results_here", {"folder": str(path), "looked_for": looked_for})
        )
    if len(machines) > 1:
        names = ", ".join(map(str, machines))
        raise ConfigurationError(
            Said("results_of_several", {"folder": str(path), "machines": names})
        )
    return machines[0]


def lines_of(compared: Sequence[Compared], text: Texts) -> list[Line]:
    """Each run that is in both sets, slower ones first."""
    lines = list[Line]()
    for run in sorted(compared, key=lambda run: list(STYLES).index(run.verdict)):
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
        lines.append(Line(run.verdict, texts))
    return lines


def table(compared: Sequence[Compared], text: Texts) -> Table:
    """Comparison for the terminal: runs that are in both sets, slower ones first."""
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
    """Comparison for a comment where code is reviewed: counts of verdicts, the worst first, a table
    of what is not the same, and the rest folded; folded too are many ambiguous runs."""
    lines = [f"### {_counts(compared, text)}", "", f"{title}.", ""]
    rows: dict[str, list[tuple[str, ...]]] = {verdict: [] for verdict in STYLES}
    for line in lines_of(compared, text):
        rows[line.verdict].append(line.texts)
    told = [*rows["slower"], *rows["faster"]]
    folded = {"same": rows["same"]}
    if len(rows["ambiguous"]) > MOST_UNFOLDED:
        folded = {"ambiguous": rows["ambiguous"], **folded}
    else:
        told += rows["ambiguous"]
    if told:
        lines += [*_markdown_table(told, text), ""]
    for verdict, alike in folded.items():
        if alike:
            summary = f"<summary>{_counted(verdict, len(alike), text)}</summary>"
            unfolded = _markdown_table(alike, text)
            lines += ["<details>", summary, "", *unfolded, "", "</details>", ""]
    for (verdict, why), count in _reasons(compared).items():
        if why:
            told_why = sentence(why.key, why.numbers, text.language)
            lines.append(f"- {_counted(verdict, count, text)}: {cell(told_why)}.")
    return "\n".join([*lines, "", f"{basis[:1].upper()}{basis[1:]}."])


def _reasons(compared: Sequence[Compared]) -> Counter[tuple[str, Said | None]]:
    """The number of runs by verdict and the reason for it."""
    return Counter((run.verdict, run.because) for run in compared)


def _counted(verdict: str, count: int, text: Texts) -> str:
    """The number of runs with a verdict in words."""
    return text("count", count=count, verdict=text.name("compared", verdict))


def _counts(compared: Sequence[Compared], text: Texts) -> str:
    """Counts of the verdicts, after the mark of the worst."""
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
    """A table whose numbers stand flush right, each in one line."""
    numbers = len(HEADS) - 2
    lines = [f"| {' | '.join(map(text, HEADS))} |", f"|---|{'---:|' * numbers}---|"]
    for run, *values, verdict in rows:
        unbroken = [value.replace(" ", NO_BREAK) for value in values]
        lines.append(f"| {' | '.join(map(cell, (run, *unbroken, verdict)))} |")
    return lines


def write(compared: Sequence[Compared], path: Path, old: Path, new: Path) -> None:
    """Writes the comparison as CSV, with both folders; results/tables/comparison.csv becomes a
    section of the page. A reason is {key: numbers}, as a row's message is."""
    rows = []
    for run in compared:
        rows.append(run.row() | {"because": cell_of(run.because), "old": old, "new": new})
    write_csv(path, rows, COLUMNS)


def read(path: Path) -> pd.DataFrame:
    """The comparison that `write` left, as texts and in the terminal's order; empty without one."""
    try:
        table = cells(path).map(unquoted)
        order = table["verdict"].map({says: index for index, says in enumerate(STYLES)})
    except (FileNotFoundError, ValueError, KeyError):
        return pd.DataFrame(columns=COLUMNS, dtype=str)
    return table.loc[order.sort_values(kind="stable").index].reindex(columns=COLUMNS, fill_value="")


def show(
    old: Path,
    new: Path,
    noticeable: float,
    gate: float | None,
    out: Path | None,
    form: str,
    language: str,
) -> int:
    """Compares two folders of results; the status is that of `tell`."""
    old = machine_folder(old)
    new = machine_folder(new)
    fast = not (is_recording(old) or is_recording(new))
    both = merged(old, fast), merged(new, fast)
    drift = drift_between(*both)
    compared = verdicts(*both, noticeable if gate is None else gate, drift or 0.0)
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
    """Prints a comparison and what its intervals rest on, or a line of JSON a run; returns its exit
    status: 1 where a run is slower, 2 where nothing is comparable, and 3 where one may be slower
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
    """The exit status of `tell`; says on stderr why it is not 0 or 1."""
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
    console.print(Text(title), soft_wrap=True)
    console.print(Text(basis, style="dim"), soft_wrap=True)
    console.print(table(compared, text))
    reasons = sorted(_reasons(compared).items(), key=lambda reason: [*STYLES].index(reason[0][0]))
    plain = []
    explained = []
    for (verdict, because), count in reasons:
        counted = _counted(verdict, count, text)
        if because is None:
            plain.append(counted)
        else:
            why = sentence(because.key, because.numbers, text.language)
            explained.append(f"{counted}: {why}")
    if plain:
        console.print(Text(", ".join(plain)))
    for line in explained:
        console.print(Text(line, style="dim"), soft_wrap=True)


@dataclass(frozen=True)
class Trust:
    """Findings of repeated measurements of a machine; shares and spreads in percent, None if
    nothing was repeated."""

    runs: int  # that two processes or more measured
    # usual standard deviation between processes; None with fewer than eight runs
    spread_percent: float | None = None
    measurements: int = 0  # that runs of many processes hold
    size: int = 0  # processes of each of these
    # of their intervals, those that contain the undisturbed time of all processes
    covered_percent: float | None = None
    verdicts: int = 0  # pairs of measurements that were compared, all of unchanged code
    false_percent: float | None = None  # pairs that were called faster or slower


def trust(runs: Sequence[Sequence[float]]) -> Trust:
    """The trust that the processes' times of each run of one machine deserve."""
    several = []
    for times in runs:
        if len(times) > 1:
            several.append(list(times))
    usual = usual_variance(list(map(fast_variance, several)))
    basis = Trust(len(several), None if usual is None else 100 * math.sqrt(usual))
    if not (split := list(filter(None, map(replicates.measurements, several)))):
        return basis
    # Of each turn the usual spread is known from that turn alone, as if it had been a sweep.
    turns = itertools.zip_longest(*split)
    usuals = [usual_variance([fast_variance(times) for times in turn if times]) for turn in turns]
    covered = []
    changed = []
    for measurements in split:
        rows = (
            {
                "status": "ok",
                "time_s": undisturbed(times),
                **replicates.interval_columns(times, usual),
            }
            for times, usual in zip(measurements, usuals, strict=False)
        )
        intervals = [*filter(None, map(interval, rows))]
        middle = undisturbed(itertools.chain(*measurements))
        for measured in intervals:
            covered.append(measured.low_s <= middle <= measured.high_s)
        verdicts = (verdict(*pair)[0] for pair in itertools.combinations(intervals, 2))
        changed += [verdict in ("faster", "slower") for verdict in verdicts]
    return replace(
        basis,
        measurements=len(covered),
        size=len(split[0][0]),
        covered_percent=100 * sum(covered) / len(covered),
        verdicts=len(changed),
        false_percent=100 * sum(changed) / len(changed),
    )
