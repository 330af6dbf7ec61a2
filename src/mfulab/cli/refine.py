"""`mfulab refine`: measures the runs with the widest intervals in further processes, also within
what a sweep leaves of its budget. Configs come from this checkout's plans, never from a result."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
import pandas as pd

from mfulab.cli.options import COUNT, FOLDER, MINUTES_OR_NONE, SHARE, command, several
from mfulab.cli.signals import ended_by_signals
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import remove, write_text
from mfulab.core.printing import say
from mfulab.core.replicates import MOST_REPLICATES, numbered
from mfulab.core.rows import NOT_MEASURED, TimedRow
from mfulab.core.said import Said, of_source
from mfulab.core.terminal_language import terminal_texts
from mfulab.device.identity import hardware_slug
from mfulab.lab.planning import again, store
from mfulab.lab.planning.load import script
from mfulab.lab.planning.naming import measures
from mfulab.lab.planning.runs import Run
from mfulab.lab.report import claims, trust
from mfulab.lab.runtime import budget, client, lifetime, processes
from mfulab.lab.tables.columns import Record, Records
from mfulab.lab.tables.consistency import any_failed
from mfulab.lab.tables.recording import gather
from mfulab.lab.tables.records import read_row
from mfulab.measurements.registry import MEASUREMENTS

TIMED = {
    measurement.table: step
    for step, measurement in MEASUREMENTS.items()
    if issubclass(measurement.row, TimedRow)
}
LONGER = 10.0  # a process that takes this many times as long as earlier ones is killed
SHORTEST_S = 120.0  # time that every process may take
UNDECIDED = 3  # exit status if some runs are still not known well enough
MOST_NAMED = 10  # left-out runs that are listed by name


@dataclass(frozen=True)
class Known:
    """A measured run and the precision of its time."""

    step: str
    row: Record

    @property
    def process_s(self) -> float:
        """Mean seconds that one of its processes took."""
        return float(self.row["process_s"] / self.row["replicates"])

    @property
    def gain(self) -> float:
        """Half-width of its interval in percent per second that it took; a priority for more
        processes."""
        return float(self.row["precision_percent"] / self.row["process_s"])


@dataclass
class Refinement:
    """State of one call of the command: what it may measure, until when, and what it has left
    out."""

    hardware: str
    results: Path
    planned: again.Again
    until: float  # of time.monotonic()
    in_sweep: bool
    lost: set[str] = field(default_factory=set)  # runs whose last process left no row
    left_out: set[str] = field(default_factory=set)  # folders of runs that are in no plan

    def folder(self, known: Known) -> str:
        """Folder of a run's first process, relative to the results."""
        return f"{self.hardware}/{known.step}/{known.row['run']}"

    def fits(self, known: Known) -> bool:
        """True if there is time for another process of a run."""
        return time.monotonic() + known.process_s <= self.until

    def run_of(self, known: Known) -> Run | None:
        """The planned run of a row; None, noted in `left_out`, if it was measured with another
        config than the plan's."""
        folder = self.folder(known)
        run = self.planned.runs.get(folder)
        if run is not None and store.is_planned(self.results / folder, run):
            return run
        self.left_out.add(folder)
        return None

    def candidates(self, records: Records, widest: float, most: int) -> list[Known]:
        """Runs that need processes and for which there is time. Those whose order with another run
        is undecided come first, then the most promising."""
        found = []
        least_known = _least_known(records, widest, most, self.in_sweep)
        undecided = _undecided(records)
        least_known.sort(key=lambda known: known.row["run"] not in undecided)
        for known in least_known:
            second = numbered(self.folder(known), 2)
            is_in_scope = not self.in_sweep or second in self.planned.runs
            if is_in_scope and known.row["run"] not in self.lost and self.fits(known):
                found.append(known)
        return [known for known in found if self.run_of(known) is not None]

    def measure(self, known: Known, remaining: int) -> None:
        """Measures one more process of a run. `remaining` is the number of runs that is printed."""
        run = self.run_of(known)
        if run is None or not self.fits(known):
            return
        process = _next(run, self.results)
        precision = known.row["precision_percent"]
        line = terminal_texts("sweep")(
            "refined", left=remaining, precision=precision, step=known.step, run=process.name
        )
        say(line, flush=True)
        longest_s = max(SHORTEST_S, LONGER * known.process_s)
        if not _measured(process, self.results, longest_s):
            self.lost.add(known.row["run"])

    def print_left_out(self) -> None:
        """Prints the runs that were left out because their config is in no plan of this
        checkout."""
        for reason in self.planned.refused:
            say(f"mfulab: {reason}", file=sys.stderr)
        names = sorted(self.left_out)
        text = terminal_texts("sweep")
        for folder in names[:MOST_NAMED]:
            say(text("no_plan", folder=folder), file=sys.stderr)
        if len(names) > MOST_NAMED:
            say(text("many_left_out", count=len(names)), file=sys.stderr)
        if names:
            say(text("plan_them"), file=sys.stderr)


@command("refine", "refine --minutes 10")
@click.argument("hardware", required=False)
@click.option("--results", type=FOLDER, default="results", help="Folder of the results to refine.")
@click.option(
    "--widest",
    type=SHARE,
    default="25%",
    help="Half-width of a time's confidence interval that is narrow enough: 10% or 0.1.",
)
@click.option(
    "--minutes",
    type=MINUTES_OR_NONE,
    default=10,
    help="Time limit in minutes: no process starts that would end after it.",
)
@click.option("--most", type=COUNT, default=8, help="Maximum number of processes per run.")
@several(
    "--sweep",
    "config",
    help=(
        "Sweep to refine, written as for snakemake --config; without it, every plan in the "
        "results that names no code or file."
    ),
)
@click.option(
    "--in-budget",
    is_flag=True,
    help="Use the time left in the running sweep's budget instead of --minutes.",
)
@ended_by_signals()
def run(
    hardware: str | None,
    results: Path,
    widest: float,
    minutes: float,
    most: int,
    in_budget: bool = False,
    config: Sequence[str] = (),
) -> int:
    """Repeatedly measures another process of the more promising half of the runs with intervals
    wider than `widest`. Returns 3 if some stay so or have no interval. With `in_budget`, the
    running sweep's budget replaces `minutes`, only its own runs count, and the status is 0. Raises
    ConfigurationError if nothing was measured, or another command holds the results."""
    hardware = hardware or hardware_slug()
    if not (results / hardware).is_dir():
        nothing = Said("nothing_measured_yet", command=measures())
        raise ConfigurationError(of_source(f"{results / hardware}/", nothing))
    sweep = None
    if in_budget:
        sweep = budget.read()
    if sweep is None:
        store.check_writable(results)
        store.take(results)
    left_s = 60 * minutes if sweep is None else sweep.left_s()
    planned = again.planned(hardware, results, config)
    until = time.monotonic() + left_s
    refinement = Refinement(hardware, results, planned, until, in_sweep=sweep is not None)
    records = _refine(refinement, 100 * widest, most)
    refinement.print_left_out()
    if sweep is not None:
        return 0
    for table in TIMED:
        # The table lacks the new processes; without it snakemake writes it again.
        remove(results / "tables" / f"{table}.csv")
    return _print_rest(records, 100 * widest)


def _refine(refinement: Refinement, widest: float, most: int) -> Records:
    """Measures until no candidate is left; returns the records as last read."""
    with ExitStack() as undo:
        if client.SOCKET not in os.environ:
            lifetime.start(work="rows")
            undo.callback(lifetime.stop)
        while True:
            records = gather(refinement.results, refinement.hardware).records
            runs = refinement.candidates(records, widest, most)
            if not runs:
                return records
            for known in runs[: (len(runs) + 1) // 2]:
                refinement.measure(known, len(runs))


def _print_rest(records: Records, widest: float) -> int:
    """Prints how many runs are still not known well enough; returns the exit status."""
    text = terminal_texts("sweep")
    left = len(_least_known(records, widest, MOST_REPLICATES))
    say(text("still_wide", count=left, widest=widest))
    single = 0
    for table in TIMED:
        for row in _measured_rows(records, table):
            single += bool(pd.isna(row.get("precision_percent")))
    if single:
        say(text("alone", count=single))
    if left or single:
        return UNDECIDED
    return 0


def _measured_rows(records: Records, table: str) -> list[Record]:
    return [row for row in records.get(table, ()) if row["status"] == "ok"]


def _undecided(records: Records) -> set[str]:
    """Names of measured runs whose order with a run of another setting is uncertain."""
    undecided: set[str] = set()
    for table in TIMED:
        rows = _measured_rows(records, table)
        if rows:
            undecided |= claims.contested(trust.with_doubts(pd.DataFrame(rows)))
    return undecided


def _least_known(
    records: Records, widest: float, most: int, with_alone: bool = False
) -> list[Known]:
    """Runs that need more processes, the highest gain first. `with_alone` includes runs of one
    process, which have no interval."""
    found = []
    for table, rows in records.items():
        if table in TIMED and rows:
            wanted = _wanted(pd.DataFrame(rows), widest, most, with_alone)
            for row in wanted.to_dict("records"):
                found.append(Known(TIMED[table], row))
    return sorted(found, key=lambda known: -known.gain)


def _wanted(frame: pd.DataFrame, widest: float, most: int, with_alone: bool) -> pd.DataFrame:
    """Rows of a table whose runs need more processes: too wide, inconsistent or unsteady."""
    frame = frame.astype({"precision_percent": float, "replicates": float})
    if with_alone:
        frame = frame.fillna({"precision_percent": float("inf"), "replicates": 1})
    # `steady` is that of most processes: one of two may have been unsteady.
    is_unsteady = frame.get("steady", pd.Series(True, frame.index)).eq(False)
    is_poor = (frame["precision_percent"] > widest) | any_failed(frame) | is_unsteady
    processes = frame["replicates"] + frame["left_out_replicates"].fillna(0)
    is_possible = (frame["status"] == "ok") & frame["precision_percent"].notna()
    return frame[is_poor & is_possible & (processes < most)]


def _next(run: Run, results: Path) -> Run:
    """The next process of a run to measure; its config is written as planned."""
    for number in itertools.count(2):
        process = run.replicate(number)
        folder = results / process.folder
        is_measured = (folder / "row.csv").exists()
        if not is_measured or read_row(folder, run.step)["status"] == NOT_MEASURED:
            break
    write_text(folder / "config.json", process.text)
    return process


def _measured(run: Run, results: Path, longest_s: float) -> bool:
    """Runs one process as the workflow does. Returns True if it measured. If it leaves no row, its
    folder is removed."""
    folder = results / run.folder
    measure = [sys.executable, "-S", "-E", client.__file__, script("run"), run.step]
    command = [*measure, "--config", str(folder.absolute() / "config.json")]
    here = results.absolute().parent
    ended = "no_row"
    with (folder / "log").open("w", encoding="utf-8") as log:
        try:
            subprocess.run(
                command,
                cwd=here,
                # Without a running sweep, the process ends when this one does.
                env={processes.WORKFLOW: str(os.getpid()), **os.environ},
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=longest_s,
            )
        except subprocess.TimeoutExpired:
            ended = "too_long"
    if (folder / "row.csv").exists():  # a failed process counts as a replicate too
        return bool(read_row(folder, run.step)["status"] == "ok")
    remove(folder)
    say(terminal_texts("sweep")(ended, run=folder.name, seconds=longest_s), file=sys.stderr)
    return False
