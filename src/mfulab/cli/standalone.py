"""`mfulab run MEASUREMENT`: measures without Snakemake. Each run is a process of its own, forked
from a warm worker if there are several."""

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from mfulab.core.parts import Row, is_number
from mfulab.core.printing import say, say_json
from mfulab.core.said import Said
from mfulab.core.terminal import Terminal, bare_table
from mfulab.core.terminal_language import in_words, terminal_texts, usual_language
from mfulab.device import identity
from mfulab.lab.planning import keys, runs, store
from mfulab.lab.planning.composition import Composition, compose_experiments
from mfulab.lab.planning.load import CONFIG, RESULTS, device_of, script
from mfulab.lab.planning.runs import Plan, Run
from mfulab.lab.runtime import client, lifetime
from mfulab.measurements.registry import MEASUREMENTS

CONFIG_FLAGS = ("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn")


def _refuse_elsewhere(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """Raises ConfigurationError if one of Hydra's flags names another configuration."""
    if value is not None:
        raise ConfigurationError(
            Said("one_configuration", flags=", ".join(CONFIG_FLAGS[::2]), given=value)
        )


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
    "-m",
    "--multirun",
    is_flag=True,
    help="Measure every combination of values separated by commas, and of the axes of an "
    "experiment=NAME; print one table at the end.",
)
@click.option(
    "--row",
    "all_columns",
    is_flag=True,
    help="Print every column of the row instead of its summary.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the row as one line of JSON; progress goes to the standard error.",
)
@click.option("--cfg", type=Choice(["job"]), help="Print the composed config without measuring.")
@click.option(*CONFIG_FLAGS, hidden=True, expose_value=False, callback=_refuse_elsewhere)
def run(
    step: str,
    words: Sequence[str],
    multirun: bool,
    all_columns: bool,
    as_json: bool,
    cfg: str | None,
) -> None:
    """Measures `step` with Hydra's overrides, after the runs that it is joined with. Raises
    ConfigurationError for a mistake in the words."""
    sys.path.insert(0, str(Path.cwd()))  # a user's own model may be a module in this folder
    if {"-h", "--help"} & set(words):
        say(click.get_current_context().get_help(), help_of(step), sep="\n\n")
        return
    compositions = compose_experiments(words, CONFIG, sweeps=multirun, sweeps_default=False)
    if cfg:
        for composition in compositions:
            base = dict(composition.base)
            say(yaml.safe_dump(base, sort_keys=False, allow_unicode=True), end="")
        return
    command = _Command(step, multirun, all_columns, as_json)
    is_experiment = multirun and any(word.lstrip("+").startswith("experiment=") for word in words)
    for composition in compositions:
        command.measure(_plan_of(step, composition, is_experiment))
    command.show_all()


def _plan_of(step: str, composition: Composition, is_experiment: bool) -> Plan:
    """Plans a single measurement, with one process per run."""
    alone: dict[str, Any] = {"steps": [step], "replicates": 1, "ceiling_replicates": 1}
    if not is_experiment:
        alone["exclude"] = []  # meant for the experiment's combinations; these ones were chosen
    base = {**composition.base, **alone}
    plan = runs.plan(replace(composition, base=base), *device_of(base))
    is_chosen = base["device"]["type"] != "auto" or base["hardware"]
    why = None if is_chosen else identity.unused()
    if why:
        say(terminal_texts("sweep")("not_the_gpu", why=in_words(why)), file=sys.stderr)
    return plan


@dataclass
class _Command:
    """State of one call of the command: how to show rows, and what was measured."""

    step: str
    multirun: bool
    all_columns: bool
    as_json: bool
    done: set[str] = field(default_factory=set)
    rows: list[Row] = field(default_factory=list)

    def say(self, line: str) -> None:
        """Prints a line that is not a result: to stderr if the result is JSON."""
        say(line, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def measure(self, plan: Plan) -> None:
        """Measures the runs of a plan, and shows each row."""
        for excluded in plan.excluded:
            line = terminal_texts("sweep")(
                "left_out", run=excluded["run"], because=excluded["because"]
            )
            self.say(line)
        wanted = list(filter(self._is_wanted, plan.runs))
        if len(wanted) > 1 and client.SOCKET not in os.environ:
            _start_worker(wanted)
        for number, run in enumerate(wanted, start=1):
            self.done.add(run.folder)
            prefix = f"{number}/{len(wanted)} " if len(wanted) > 1 else ""
            _measure(run, prefix, self.say)
            if run.step == self.step:
                self._show(run, _joined(plan, run))

    def _is_wanted(self, run: Run) -> bool:
        """True for a run of the measurement, and for one that it is joined with and that has no row
        yet."""
        if run.folder in self.done:
            return False
        return run.step == self.step or not store.is_complete(RESULTS / run.folder / "row.csv")

    def _show(self, run: Run, joined: Sequence[Row]) -> None:
        """Shows the rows of one run, unless a table of all follows at the end."""
        self.rows += joined
        if self.as_json:
            from mfulab.lab.tables.answers import answer_of

            for row in joined:
                say_json(answer_of(row).line(row), default=str)
        elif len(joined) == 1 and not self.multirun:
            _show(run, joined[0], self.all_columns)

    def show_all(self) -> None:
        """Shows a table of several rows; in JSON, an answer without a value if there are none."""
        if self.as_json:
            if not self.rows:
                say_json(unanswered("", Said("no_row")).line({}))
            return
        is_table = self.multirun or len(self.rows) > 1
        if self.rows and is_table:
            console = Terminal()
            console.print(table_of(self.step, self.rows, console.width))


def _start_worker(wanted: Sequence[Run]) -> None:
    """Starts a warm worker that has imported what these runs need; it ends with this process."""
    from mfulab.lab.planning.resources import imported

    work = ["rows", *imported([run.text for run in wanted])]
    lifetime.start(work=" ".join(work))
    atexit.register(lifetime.stop)


def help_of(step: str) -> str:
    """Help of a measurement: its description, the choices of its groups, and its other keys."""
    config = MEASUREMENTS[step].config
    description = (sys.modules[config.__module__].__doc__ or "").strip()
    fields = config.model_fields
    groups = sorted(keys.groups(CONFIG) & set(fields))
    choices = "\n".join(f"  {group}={'|'.join(keys.choices(CONFIG, group))}" for group in groups)
    others = ", ".join(name for name in fields if name not in groups)
    listed = f"Groups, one option of each:\n{choices}\n\nKeys: {others} (config/README.md)"
    return f"{description}\n\n{listed}"


def _measure(run: Run, prefix: str, report: Callable[[str], None]) -> None:
    """Measures one run in its own process and reports progress in lines that begin with `prefix`.
    If the process fails, prints its log and exits with its status."""
    config = RESULTS / run.folder / "config.json"
    if config.exists():
        _leave_to_sweep(run)
    store.write_run(run, RESULTS)
    text = terminal_texts("lines")
    name = f"{prefix}{run.step}: {run.name}"
    expected = expected_s(run)
    if expected:
        report(text("expected", run=name, time=expected))
    else:
        report(name)
    log = config.with_name("log")
    began = time.monotonic()
    command = [script("run"), run.step, "--config", str(config.absolute())]
    status = client.in_child(command, str(log))
    if status:
        say(log.read_text(), file=sys.stderr)
        sys.exit(status)
    took = text("done", time=time.monotonic() - began)
    report(f"    {took}")


def _leave_to_sweep(run: Run) -> None:
    """Raises ConfigurationError if a running sweep has planned this run, so that it is neither
    planned again nor measured twice."""
    if store.state(run, RESULTS) is not store.State.KEPT:
        store.take(RESULTS)
    elif not store.is_complete(RESULTS / run.folder / "row.csv"):
        store.check_free(RESULTS)


def expected_s(run: Run) -> float | None:
    """Median seconds of earlier processes of this run, or else of other runs of its measurement;
    None if there are none."""
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
    """Seconds of the processes in a CSV file of rows; empty if it cannot be read."""
    times = list[float]()
    with suppress(UnreadableError, ValueError, OSError):
        for row in read_csv(path):
            if row.get("process_s"):
                times.append(float(row["process_s"]))
    return times


def _joined(plan: Plan, run: Run) -> list[Row]:
    """Rows of a run, joined with its counts and ceilings; several if the measurement reports
    lines."""
    from mfulab.lab.tables import build

    kept = [other for other in plan.runs if other is run or other.step != run.step]
    alone = replace(plan, runs=kept)
    with scratch() as folder:
        write_text(folder / "plan.json", alone.manifest)
        records = build.collect([folder / "plan.json"]).records[MEASUREMENTS[run.step].table]
    prefix = f"{run.name},"
    return [record for record in records if f"{record['run']},".startswith(prefix)]


def _show(run: Run, row: Row, all_columns: bool) -> None:
    """Prints a row: ladder and verdict of a profiled step, or the shown columns, or `all_columns`.
    Layers of a count come first."""
    console = Terminal()
    layers = RESULTS / run.folder / "layers.csv"
    if layers.exists():
        _print_layers(console, layers)
    if all_columns or row["status"] != "ok":
        _print_columns(console, row, row)
        return
    if run.step == "profile_step":
        _print_step(console, row)
    else:
        _print_columns(console, row, MEASUREMENTS[run.step].shown.split())
    console.print(terminal_texts("lines")("every_column"), style="dim")


def _print_layers(console: Terminal, file: Path) -> None:
    """Prints the tree of layers in a file of a count."""
    from mfulab.cli.flops import render

    rows = []
    for layer in read_csv(file):
        rows.append({**layer, "share_percent": float(layer["share_percent"] or 0)})
    console.print(render(rows, terminal_texts("flops")))


def _print_step(console: Terminal, row: Row) -> None:
    """Prints ladder and verdict of a profiled step, and the command that tries its remedy."""
    from mfulab.loop.interactive import show
    from mfulab.mfu import account, three_lines

    step = account.read(row)
    language = usual_language()
    show.show(SimpleNamespace(row=row, readings={}, verdict=step.verdict), console, language)
    advice = three_lines.tried_config(row)
    if advice and "=" in advice and "experiment=" not in advice:
        overrides = advice.replace("overrides=", "")
        label = Texts(language, "lines")("command")
        console.print(f"{label} mfulab run profile_step -m {overrides}")


def _print_columns(console: Terminal, row: Row, names: Iterable[str]) -> None:
    """Prints the columns of a row that are not empty."""
    shown = bare_table(Column(no_wrap=True))
    for name in names:
        if row.get(name) not in (None, "", False):
            shown.add_row(name, with_unit(name, row[name]))
    console.print(shown)


# Endings of column names: the factor to a unit that takes SI prefixes, and the unit.
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
    """A cell with the unit that its column's name ends in: `forward_flops` 3.63e9 becomes `3.63
    GFLOP`."""
    if not is_number(value):
        return str(value)
    for ending, (factor, unit) in UNITS.items():
        if f"_{name}".endswith(f"_{ending}"):
            return terminal_texts("common").written(quantity(value * factor, unit))
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}"


def table_of(step: str, rows: Sequence[Row], width: int) -> Group:
    """Table with a line per run and the first columns that fit `width` characters. Columns with the
    same value in all runs are listed below it."""
    columns = _filled_cells(step, rows)
    constant = []
    for name, column in list(columns.items()):
        if len(rows) > 1 and len(set(column)) == 1:
            constant.append(f"{name} {column[0]}")
            del columns[name]
    drawn = _fitting(columns, width)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name in drawn:
        shown.add_column(name, no_wrap=True)
    for line in zip(*(columns[name] for name in drawn), strict=True):
        shown.add_row(*line)
    notes = []
    if constant:
        notes.append(", ".join(constant))
    hidden = [name for name in columns if name not in drawn]
    if hidden:
        notes.append(f"in row.csv of each run: {', '.join(hidden)}")
    return Group(shown, *(Text(note, style="dim") for note in notes))


def _filled_cells(step: str, rows: Sequence[Row]) -> dict[str, list[str]]:
    """Cells by column, for the columns that a measurement shows and that are not empty in every
    row."""
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
    """Names of the first columns that fit `width` characters, separated by two; at least one."""
    drawn = list[str]()
    end = 0
    for name, column in columns.items():
        end += max(map(len, [name, *column]))
        if drawn and end > width:
            break
        drawn.append(name)
        end += 2
    return drawn
