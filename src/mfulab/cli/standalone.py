"""One step without Snakemake: Hydra composes, the run is measured in a separate process, and its row is shown."""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import hydra
from omegaconf import DictConfig
from rich.console import Console, Group
from rich.table import Column, Table
from rich.text import Text

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import UnreadableError, read_csv, write_text
from mfulab.core.language.quantities import duration, quantity
from mfulab.measurements.registry import MEASUREMENTS
from mfulab.planning import keys, lock, runs, store
from mfulab.planning.composition import Composition, check, composed_by_hydra
from mfulab.planning.load import CONFIG, RESULTS, emulated, place
from mfulab.planning.overrides import complete
from mfulab.planning.runs import Plan, Run
from mfulab.runtime.client import USAGE

# Hydra's flags that show something and measure nothing.
SHOWING = {"--cfg", "-c", "--info", "-i", "--hydra-help"}
SWEEPING, OWN = {"-m", "--multirun"}, {"--row", "--json"}  # flags that Hydra does not know are our own
FLAGS = """
  -m               sweep over values with commas; one table at the end
  --row            every column of the row instead of its summary
  --json           the row as a line of JSON; progress goes to the standard error
  --cfg job        show the composed config and measure nothing
  --info defaults  show how it was composed
  --hydra-help     Hydra's own flags"""


def main(step: str, arguments: Sequence[str]) -> None:
    """Runs `step` for Hydra's command line `arguments`. Raises ConfigurationError for a mistake in them."""
    if {"-h", "--help"} & set(arguments):
        print(help_of(step))
        return
    flags, given = split(arguments)
    overrides = complete(given)
    many = bool(SWEEPING & set(flags))
    style = next((flag for flag in flags if flag in OWN), "")
    if not SHOWING & set(flags):
        check(overrides, CONFIG, sweeps=many)
    keys.register(CONFIG)
    sys.argv[1:] = [*(flag for flag in flags if flag not in OWN), *overrides]
    # Combinations that differ only in what this step does not read are one run.
    done: dict[str, Mapping[str, Any]] = {}

    def task(config: DictConfig) -> None:
        try:
            _measure(step, composed_by_hydra(config), done, None if many and style != "--json" else style)
        except ConfigurationError as error:
            print(f"mfulab: {error}", file=sys.stderr)
            sys.exit(USAGE)

    hydra.main(version_base="1.3", config_path=str(CONFIG.resolve()), config_name="config")(task)()
    if many and any(done.values()) and style != "--json":
        console = Console()
        console.print(table_of(step, [row for row in done.values() if row], console.width))


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(flags with their values, overrides) of a command line in Hydra's words."""
    flags, overrides = list[str](), list[str]()
    for before, word in itertools.pairwise(["", *arguments]):
        # A flag's value has no sign, which overrides have.
        is_value = before.startswith("-") and before not in SWEEPING | OWN and "=" not in word
        (flags if word.startswith("-") or is_value else overrides).append(word)
    return flags, overrides


def help_of(step: str) -> str:
    """Usage of `mfulab run <step>`: what it measures, the choices of its groups, and its flags."""
    does = (sys.modules[MEASUREMENTS[step].config.__module__].__doc__ or "").strip()
    fields = MEASUREMENTS[step].config.model_fields
    groups = sorted(keys.groups(CONFIG) & set(fields))
    choices = "\n".join(f"  {group}={'|'.join(keys.choices(CONFIG, group))}" for group in groups)
    others = ", ".join(name for name in fields if name not in groups)
    usage = f"mfulab run {step} [KEY=VALUE]…\n\n{does}\n\nGroups, one option of each:\n{choices}\n\n"
    return f"{usage}Keys: {others} (config/README.md)\n{FLAGS}"


def _measure(step: str, composition: Composition, done: dict[str, Mapping[str, Any]], style: str | None) -> None:
    """Measures one composed run of `step`, after what its numbers are joined with where that is not there yet.

    Shows the row's summary, or the row in one `style` of `OWN`; with None nothing, as in a sweep.
    """
    say = partial(print, file=sys.stderr if style == "--json" else sys.stdout, flush=True)
    alone = {"steps": [step], "replicates": 1, "ceiling_replicates": 1}
    composition = replace(composition, base={**composition.base, **alone})
    plan = runs.plan(composition, *place(composition.base), emulated(composition.base))
    for excluded in plan.excluded:
        if excluded["run"] not in done:
            say(f"left out: {excluded['run']}: {excluded['because']}")
        done[excluded["run"]] = {}
    wanted = [
        run
        for run in plan.runs
        if run.folder not in done and (run.step == step or not (RESULTS / run.folder / "row.csv").exists())
    ]
    for number, run in enumerate(wanted, start=1):
        done[run.folder] = {}
        config = RESULTS / run.folder / "config.json"
        if config.exists() and store.state(run, RESULTS) is not store.State.KEPT:
            lock.take(RESULTS)  # what a running sweep has planned is not planned anew
        store.write_run(run, RESULTS)
        about = f" · about {duration(expected)}" if (expected := expected_s(run)) else ""
        counted = f"{number}/{len(wanted)} " if len(wanted) > 1 else ""
        say(f"{counted}{run.step}: {run.name}{about}")
        log, began = config.with_name("log"), time.monotonic()
        with log.open("w") as file:
            command = [sys.executable, "scripts/run.py", run.step, "--config", str(config)]
            ended = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
        if ended:
            print(log.read_text(), file=sys.stderr)
            sys.exit(ended)
        say(f"    done in {duration(time.monotonic() - began)}")
        if run.step == step:
            done[run.folder] = row = _joined(plan, run)
            if style == "--json":
                print(json.dumps(row, ensure_ascii=False, default=str))
            elif style is not None:
                _show(run, row, bool(style))


def expected_s(run: Run) -> float | None:
    """Seconds that a run will take: as long as it, or as runs of its step, took before; None where there is none."""
    before = RESULTS / run.folder / "row.csv"
    times = []
    for path in [before] if before.exists() else sorted(before.parent.parent.glob("*/row.csv"))[:50]:
        with suppress(UnreadableError, ValueError, OSError):
            times += [float(row["process_s"]) for row in read_csv(path) if row.get("process_s")]
    return median(times) if times else None


def _joined(plan: Plan, run: Run) -> Mapping[str, Any]:
    """A run's row, joined with its counts and ceilings."""
    from mfulab.tables import build

    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder, "plan.json")
        write_text(manifest, plan.manifest)
        records = build.collect([manifest]).records[MEASUREMENTS[run.step].table]
    return next(record for record in records if record["run"] == run.name)


def _show(run: Run, row: Mapping[str, Any], whole: bool) -> None:
    """Prints a row's summary: of a step its ladder and verdict, of a count its layers, of others their columns."""
    console = Console()
    layers = RESULTS / run.folder / "layers.csv"
    if layers.exists():
        from mfulab.cli.flops import render

        rows = read_csv(layers)
        console.print(render([{**each, "share_percent": float(each["share_percent"] or 0)} for each in rows]))
    whole = whole or row["status"] != "ok"
    if run.step == "profile_step" and not whole:
        from mfulab.interactive import show
        from mfulab.tables import verdict

        show.show(SimpleNamespace(row=row, readings={}, verdict=verdict.judge(row)), console)
    else:
        shown = Table(Column(no_wrap=True), box=None, show_header=False, pad_edge=False)
        for key in row if whole else MEASUREMENTS[run.step].shown.split():
            if row.get(key) not in (None, "", False):
                shown.add_row(key, Text(with_unit(key, row[key])))
        console.print(shown)
    if not whole:
        console.print(Text("every column: --row", style="dim"))


# Endings of columns' names: the factor to a unit that takes prefixes, and the unit.
UNITS = {"tflop_s": (1e12, "FLOP/s"), "gb_s": (1e9, "B/s"), "mhz": (1e6, "Hz"), "ms": (1e-3, "s"), "per_s": (1, "/s")}
UNITS |= {"s": (1, "s"), "percent": (1, "%"), "flops": (1, "FLOP"), "macs": (1, "MAC"), "bytes": (1, "B")}
UNITS |= {"j": (1, "J"), "w": (1, "W")}


def with_unit(name: str, value: object) -> str:
    """A cell with the unit that its column's name ends in: `forward_flops` 3.63e9 is `3.63 GFLOP`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    for ending, (factor, unit) in UNITS.items():
        if f"_{name}".endswith(f"_{ending}"):
            return quantity(value * factor, unit)
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def table_of(step: str, rows: Sequence[Mapping[str, Any]], width: int) -> Group:
    """A line a run, with the columns that the page shows first; what all runs have alike stands below.

    Columns that do not fit `width` letters are left out from the right, and counted.
    """
    wanted = [name for name in MEASUREMENTS[step].shown.split() if name not in ("hardware", "verdict")]
    cells = {name: ["" if row.get(name) is None else with_unit(name, row[name]) for row in rows] for name in wanted}
    known = {name: column for name, column in cells.items() if any(column)}
    alike = {name: column[0] for name, column in known.items() if len(rows) > 1 and len(set(column)) == 1}
    columns = [name for name in known if name not in alike]
    ends = itertools.accumulate(max(map(len, [name, *known[name]])) + 2 for name in columns)
    drawn = columns[: max(1, sum(end - 2 <= width for end in ends))]
    shown = Table(*(Column(name, no_wrap=True) for name in drawn), box=None, header_style="bold", pad_edge=False)
    for line in zip(*(known[name] for name in drawn), strict=True):
        shown.add_row(*map(Text, line))
    notes = [", ".join(f"{name} {value}" for name, value in alike.items())]
    if rest := columns[len(drawn) :]:
        notes.append(f"in row.csv of each run: {', '.join(rest)}")
    return Group(shown, *(Text(note, style="dim") for note in notes if note))
