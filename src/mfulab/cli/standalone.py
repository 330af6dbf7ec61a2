"""`mfulab run MEASUREMENT`: runs without Snakemake, each in a separate process, several forked from
a warm worker."""

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import click
import yaml
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from mfulab.cli.options import STEP, WORDS, Choice, command
from mfulab.core.answer import unanswered
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, read_csv, scratch, write_text
from mfulab.core.language import Texts
from mfulab.core.language.quantities import quantity
from mfulab.core.parts import Row, leave_out
from mfulab.core.printing import say, say_json
from mfulab.core.said import Numbers, Said
from mfulab.core.terminal import Terminal
from mfulab.core.terminal_language import usual_language
from mfulab.device import identity
from mfulab.lab.planning import keys, runs, store
from mfulab.lab.planning.composition import Composition, compose_experiments
from mfulab.lab.planning.load import CONFIG, RESULTS, place, script
from mfulab.lab.planning.runs import Plan, Run
from mfulab.lab.runtime import client, lifetime, processes
from mfulab.measurements.registry import MEASUREMENTS

CONFIG_FLAGS = ("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn")


def _refuse_elsewhere(context: click.Context, option: click.Parameter, given: str | None) -> None:
    """Raises ConfigurationError for Hydra's flags that name another configuration."""
    if given is not None:
        flags: Numbers = {"flags": ", ".join(CONFIG_FLAGS[::2]), "given": given}
        raise ConfigurationError(Said("one_configuration", flags))


@command(
    "run",
    "run profile_step model=resnet18 batch_size=4",
    more=(
        "KEY=VALUE are Hydra's overrides; `mfulab run MEASUREMENT --help` lists the keys and "
        "flags of one."
    ),
    ignore_unknown_options=True,
    help_option_names=[],
)
@click.argument("step", type=STEP, metavar="MEASUREMENT")
@click.argument("words", nargs=-1, type=WORDS, metavar="[KEY=VALUE]…")
@click.option(
    "-m", "--multirun", is_flag=True, help="Sweep over values with commas; one table at the end."
)
@click.option(
    "--row", "whole", is_flag=True, help="Every column of the row instead of its summary."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="The row as a line of JSON; progress goes to the standard error.",
)
@click.option("--cfg", type=Choice(["job"]), help="Show the composed config and measure nothing.")
@click.option(*CONFIG_FLAGS, hidden=True, expose_value=False, callback=_refuse_elsewhere)
def run(
    step: str, words: Sequence[str], multirun: bool, whole: bool, as_json: bool, cfg: str | None
) -> None:
    """Measures `step` for Hydra's overrides, after what it is joined with. Raises
    ConfigurationError for a mistake."""
    sys.path.insert(0, str(Path.cwd()))  # a user's own model stands beside the Snakefile
    if {"-h", "--help"} & set(words):
        say(click.get_current_context().get_help(), help_of(step), sep="\n\n")
        return
    compositions = compose_experiments(words, CONFIG, sweeps=multirun)
    if cfg:
        for composition in compositions:
            base = dict(composition.base)
            say(yaml.safe_dump(base, sort_keys=False, allow_unicode=True), end="")
        return
    command = _Command(step, multirun, whole, as_json)
    for composition in compositions:
        command.measure(_plan_of(step, composition, multirun))
    command.show_all()


def _plan_of(step: str, composition: Composition, multirun: bool) -> Plan:
    """The plan of a measurement alone, each run by one process."""
    alone: dict[str, Any] = {"steps": [step], "replicates": 1, "ceiling_replicates": 1}
    if not multirun:
        alone["exclude"] = []  # of a sweep's combinations; this one was asked for
    base = {**composition.base, **alone}
    plan = runs.plan(replace(composition, base=base), *place(base))
    is_chosen = base["device"]["type"] != "auto" or base["hardware"]
    if not is_chosen and (why := identity.unused()):
        say(f"mfulab: the CPU is measured, not the GPU. {why}", file=sys.stderr)
    return plan


@dataclass
class _Command:
    """One call of the command: how its rows are shown, and what it has measured."""

    step: str
    multirun: bool
    whole: bool
    as_json: bool
    done: set[str] = field(default_factory=set)
    rows: list[Row] = field(default_factory=list)

    def say(self, line: str) -> None:
        """Prints a line that is no result."""
        say(line, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def measure(self, plan: Plan) -> None:
        """Measures the runs of a plan, and shows each row."""
        for excluded in plan.excluded:
            self.say(f"left out: {excluded['run']}: {excluded['because']}")
        wanted = list(filter(self._is_wanted, plan.runs))
        if len(wanted) > 1 and client.SOCKET not in os.environ:
            _start_worker(wanted)
        for number, run in enumerate(wanted, start=1):
            self.done.add(run.folder)
            counted = ""
            if len(wanted) > 1:
                counted = f"{number}/{len(wanted)} "
            _measure(run, counted, self.say)
            if run.step == self.step:
                self._show(run, _joined(plan, run))

    def _is_wanted(self, run: Run) -> bool:
        """True for a run that was asked for, and for what it is joined with until that is there."""
        if run.folder in self.done:
            return False
        return run.step == self.step or not store.is_complete(RESULTS / run.folder / "row.csv")

    def _show(self, run: Run, joined: Sequence[Row]) -> None:
        """Shows the rows of one run, unless a table of all comes at the end."""
        self.rows += joined
        if self.as_json:
            from mfulab.lab.tables.answers import answer_of

            for row in joined:
                say_json(answer_of(row).line(row), default=str)
        elif len(joined) == 1 and not self.multirun:
            _show(run, joined[0], self.whole)

    def show_all(self) -> None:
        """Shows a table of several rows, or says that there is none."""
        if self.as_json and not self.rows:
            say_json(unanswered("", Said("no_row")).line({}))
        if self.as_json or not self.rows or not (self.multirun or len(self.rows) > 1):
            return
        console = Terminal()
        console.print(table_of(self.step, self.rows, console.width))


def _start_worker(wanted: Sequence[Run]) -> None:
    """Starts a warm worker for these runs; it ends with this process."""
    from mfulab.lab.planning.resources import imported

    work = ["rows", *imported([run.text for run in wanted])]
    lifetime.start(work=" ".join(work))
    atexit.register(lifetime.stop)


def help_of(step: str) -> str:
    """Text of what a measurement measures, the choices of its groups, and its other keys."""
    does = (sys.modules[MEASUREMENTS[step].config.__module__].__doc__ or "").strip()
    fields = MEASUREMENTS[step].config.model_fields
    groups = sorted(keys.groups(CONFIG) & set(fields))
    choices = "\n".join(f"  {group}={'|'.join(keys.choices(CONFIG, group))}" for group in groups)
    others = ", ".join(name for name in fields if name not in groups)
    return f"{does}\n\nGroups, one option of each:\n{choices}\n\nKeys: {others} (config/README.md)"


def _measure(run: Run, counted: str, tell: Callable[[str], None]) -> None:
    """Measures one run in a process of its own; if that fails, prints its log and ends with its
    status."""
    config = RESULTS / run.folder / "config.json"
    if config.exists():
        _leave_to_sweep(run)
    store.write_run(run, RESULTS)
    text = Texts(usual_language(), "lines")
    name = f"{counted}{run.step}: {run.name}"
    expected = expected_s(run)
    if expected:
        tell(text("expected", run=name, time=expected))
    else:
        tell(name)
    log = config.with_name("log")
    began = time.monotonic()
    command = [
        sys.executable,
        "-S",
        "-E",
        client.__file__,
        script("run"),
        run.step,
        "--config",
        str(config.absolute()),
    ]
    with log.open("w") as file:
        # Its client ends with this process, also where that is killed.
        environment = {**os.environ, processes.WORKFLOW: str(os.getpid())}
        ended = subprocess.run(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT
        ).returncode
    if ended:
        say(log.read_text(), file=sys.stderr)
        sys.exit(ended)
    took = text("done", time=time.monotonic() - began)
    tell(f"    {took}")


def _leave_to_sweep(run: Run) -> None:
    """Raises ConfigurationError for what a running sweep has planned: it is not planned anew, and
    not measured twice."""
    if store.state(run, RESULTS) is not store.State.KEPT:
        store.take(RESULTS)
    elif not store.is_complete(RESULTS / run.folder / "row.csv"):
        store.check_free(RESULTS)


def expected_s(run: Run) -> float | None:
    """Seconds that a run will take, by earlier runs of it or of its measurement; None without
    any."""
    before = RESULTS / run.folder / "row.csv"
    paths = [before]
    if not before.exists():
        paths = sorted(before.parent.parent.glob("*/row.csv"))[:50]
    times = list[float]()
    for path in paths:
        times += _process_times_s(path.absolute())
    if times:
        return median(times)
    return None


@cache  # a sweep's estimates read the same rows again and again
def _process_times_s(path: Path) -> list[float]:
    """Seconds of the processes in a file of rows; none where it cannot be read."""
    times = list[float]()
    with suppress(UnreadableError, ValueError, OSError):
        for row in read_csv(path):
            if row.get("process_s"):
                times.append(float(row["process_s"]))
    return times


def _joined(plan: Plan, run: Run) -> list[Row]:
    """A run's row, joined with its counts and ceilings; of a collection a row for each of its
    lines."""
    from mfulab.lab.tables import build

    alone = replace(
        plan, runs=[other for other in plan.runs if other is run or other.step != run.step]
    )
    with scratch() as folder:
        write_text(folder / "plan.json", alone.manifest)
        records = build.collect([folder / "plan.json"]).records[MEASUREMENTS[run.step].table]
    found = list[Row]()
    for record in records:
        if f"{record['run']},".startswith(f"{run.name},"):
            found.append(record)
    return found


def _show(run: Run, row: Row, whole: bool) -> None:
    """Prints a row's summary: ladder and verdict of a profiled step, layers of a count, or all
    columns."""
    console = Terminal()
    if (layers := RESULTS / run.folder / "layers.csv").exists():
        from mfulab.cli.flops import render

        rows = []
        for layer in read_csv(layers):
            rows.append({**layer, "share_percent": float(layer["share_percent"] or 0)})
        console.print(render(rows, Texts(usual_language(), "flops")))
    whole = whole or row["status"] != "ok"
    if run.step == "profile_step" and not whole:
        from mfulab.loop.interactive import show
        from mfulab.mfu import account, three_lines

        step = account.read(row)
        language = usual_language()
        show.show(SimpleNamespace(row=row, readings={}, verdict=step.verdict), console, language)
        tried = three_lines.tried_config(row)
        if tried and "=" in tried and "experiment=" not in tried:
            words = tried.replace("overrides=", "")
            tries = Texts(language, "lines")("command")
            console.print(Text(f"{tries} mfulab run {run.step} -m {words}"))
    else:
        shown = Table(Column(no_wrap=True), box=None, show_header=False, pad_edge=False)
        for key in row if whole else MEASUREMENTS[run.step].shown.split():
            if row.get(key) not in (None, "", False):
                shown.add_row(key, Text(with_unit(key, row[key])))
        console.print(shown)
    if not whole:
        console.print(Text(Texts(usual_language(), "lines")("every_column"), style="dim"))


# Endings of columns' names: the factor to a unit that takes prefixes, and the unit.
UNITS = {
    "tflop_s": (1e12, "FLOP/s"),
    "gb_s": (1e9, "B/s"),
    "mhz": (1e6, "Hz"),
    "ms": (1e-3, "s"),
    "per_s": (1, "/s"),
    "s": (1, "s"),
    "percent": (1, "%"),
    "flops": (1, "FLOP"),
    "macs": (1, "MAC"),
    "bytes": (1, "B"),
    "j": (1, "J"),
    "w": (1, "W"),
}


def with_unit(name: str, value: object) -> str:
    """A cell with the unit that its column's name ends in: `forward_flops` 3.63e9 is `3.63
    GFLOP`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    for ending, (factor, unit) in UNITS.items():
        if f"_{name}".endswith(f"_{ending}"):
            return quantity(value * factor, unit)
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}"


def table_of(step: str, rows: Sequence[Mapping[str, object]], width: int) -> Group:
    """A line a run with the first columns that fit `width` letters; what all runs have alike stands
    below."""
    cells = _filled_cells(step, rows)
    alike = {}
    for name, column in cells.items():
        if len(rows) > 1 and len(set(column)) == 1:
            alike[name] = column[0]
    columns = leave_out(cells, alike)
    drawn = _fitting(columns, width)
    shown = Table(
        *(Column(name, no_wrap=True) for name in drawn),
        box=None,
        header_style="bold",
        pad_edge=False,
    )
    for line in zip(*(columns[name] for name in drawn), strict=True):
        shown.add_row(*map(Text, line))
    notes = [", ".join(f"{name} {value}" for name, value in alike.items())]
    hidden = []
    for name in columns:
        if name not in drawn:
            hidden.append(name)
    if hidden:
        notes.append(f"in row.csv of each run: {', '.join(hidden)}")
    return Group(shown, *(Text(note, style="dim") for note in notes if note))


def _filled_cells(step: str, rows: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """Texts of the columns that a measurement shows, without those that are empty in every row."""
    cells = {}
    for name in MEASUREMENTS[step].shown.split():
        if name in ("hardware", "verdict"):
            continue
        values = [row.get(name) for row in rows]
        column = ["" if value is None else with_unit(name, value) for value in values]
        if any(column):
            cells[name] = column
    return cells


def _fitting(columns: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Names of the first columns that fit `width` letters, two between them; at least one."""
    drawn = list[str]()
    end = 0
    for name, column in columns.items():
        end += max(map(len, [name, *column]))
        if drawn and end > width:
            break
        drawn.append(name)
        end += 2
    return drawn
