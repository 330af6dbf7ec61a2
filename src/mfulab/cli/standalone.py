"""`mfulab run MEASUREMENT`: runs without Snakemake, each in a separate process, several forked from a warm worker."""

import atexit
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import click
import yaml
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from mfulab.core.files import UnreadableError, read_csv, scratch, write_text
from mfulab.core.language.quantities import duration, quantity
from mfulab.core.terminal import Terminal
from mfulab.device import identity
from mfulab.lab.planning import keys, runs, store
from mfulab.lab.planning.composition import compose_experiments
from mfulab.lab.planning.load import CONFIG, IS_CHECKOUT, RESULTS, place
from mfulab.lab.planning.runs import Plan, Run
from mfulab.lab.runtime import client, lifetime
from mfulab.measurements.registry import MEASUREMENTS

SCRIPT = "scripts/run.py" if IS_CHECKOUT else str(Path(client.__file__).with_name("run.py"))  # which measures a run


def run(step: str, words: Sequence[str], multirun: bool, whole: bool, as_json: bool, cfg: str | None) -> None:
    """Measures `step` for Hydra's overrides, after what it is joined with. Raises ConfigurationError for a mistake."""
    sys.path.insert(0, str(Path.cwd()))  # a user's own model stands beside the Snakefile
    if {"-h", "--help"} & set(words):
        return print(click.get_current_context().get_help(), help_of(step), sep="\n\n")
    compositions = compose_experiments(words, CONFIG, sweeps=multirun)
    if cfg:
        bases = (dict(composition.base) for composition in compositions)
        return print(*(yaml.safe_dump(base, sort_keys=False, allow_unicode=True) for base in bases), sep="", end="")
    say = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    alone: dict[str, Any] = {"steps": [step], "replicates": 1, "ceiling_replicates": 1}
    alone |= {} if multirun else {"exclude": []}  # of a sweep's combinations; this one was asked for
    done, rows = set[str](), list[Mapping[str, Any]]()
    for composition in compositions:
        base = {**composition.base, **alone}
        plan = runs.plan(replace(composition, base=base), *place(base))
        if base["device"]["type"] == "auto" and not base["hardware"] and (why := identity.unused()):
            print(f"mfulab: the CPU is measured, not the GPU. {why}", file=sys.stderr)
        for excluded in plan.excluded:
            say(f"left out: {excluded['run']}: {excluded['because']}")
        wanted = [run for run in plan.runs if run.folder not in done]
        wanted = [run for run in wanted if run.step == step or not (RESULTS / run.folder / "row.csv").exists()]
        if len(wanted) > 1 and client.SOCKET not in os.environ:
            from mfulab.lab.planning.workflow import imported

            lifetime.start(work=" ".join(["rows", *imported([run.text for run in wanted])]))  # ends with this process
            atexit.register(lifetime.stop)
        for number, run in enumerate(wanted, start=1):
            done.add(run.folder)
            _measure(run, f"{number}/{len(wanted)} " if len(wanted) > 1 else "", say)
            joined = _joined(plan, run) if run.step == step else []
            rows += joined
            for row in joined if as_json else ():
                print(json.dumps(row, ensure_ascii=False, default=str))
            if len(joined) == 1 and not (as_json or multirun):
                _show(run, joined[0], whole)
    if (multirun or len(rows) > 1) and rows and not as_json:
        console = Terminal()
        console.print(table_of(step, rows, console.width))


def help_of(step: str) -> str:
    """Text of what a measurement measures, the choices of its groups, and its other keys."""
    does = (sys.modules[MEASUREMENTS[step].config.__module__].__doc__ or "").strip()
    fields = MEASUREMENTS[step].config.model_fields
    groups = sorted(keys.groups(CONFIG) & set(fields))
    choices = "\n".join(f"  {group}={'|'.join(keys.choices(CONFIG, group))}" for group in groups)
    others = ", ".join(name for name in fields if name not in groups)
    return f"{does}\n\nGroups, one option of each:\n{choices}\n\nKeys: {others} (config/README.md)"


def _measure(run: Run, counted: str, say: Callable[[str], None]) -> None:
    """Measures one run in a process of its own; if that fails, prints its log and ends with its status."""
    config = RESULTS / run.folder / "config.json"
    if config.exists() and store.state(run, RESULTS) is not store.State.KEPT:
        store.take(RESULTS)  # what a running sweep has planned is not planned anew
    store.write_run(run, RESULTS)
    about = f" · about {duration(expected)}" if (expected := expected_s(run)) else ""
    say(f"{counted}{run.step}: {run.name}{about}")
    log, began = config.with_name("log"), time.monotonic()
    command = [sys.executable, "-S", "-E", client.__file__, SCRIPT, run.step, "--config", str(config.absolute())]
    with log.open("w") as file:
        ended = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    if ended:
        print(log.read_text(), file=sys.stderr)
        sys.exit(ended)
    say(f"    done in {duration(time.monotonic() - began)}")


def expected_s(run: Run) -> float | None:
    """Seconds that a run will take, by earlier runs of it or of its measurement; None without any."""
    before = RESULTS / run.folder / "row.csv"
    times = []
    for path in [before] if before.exists() else sorted(before.parent.parent.glob("*/row.csv"))[:50]:
        with suppress(UnreadableError, ValueError, OSError):
            times += [float(row["process_s"]) for row in read_csv(path) if row.get("process_s")]
    return median(times) if times else None


def _joined(plan: Plan, run: Run) -> list[Mapping[str, Any]]:
    """A run's row, joined with its counts and ceilings; of a collection a row for each of its lines."""
    from mfulab.lab.tables import build

    alone = replace(plan, runs=[other for other in plan.runs if other is run or other.step != run.step])
    with scratch() as folder:
        write_text(folder / "plan.json", alone.manifest)
        records = build.collect([folder / "plan.json"]).records[MEASUREMENTS[run.step].table]
    return [record for record in records if f"{record['run']},".startswith(f"{run.name},")]


def _show(run: Run, row: Mapping[str, Any], whole: bool) -> None:
    """Prints a row's summary: ladder and verdict of a profiled step, layers of a count, or all columns."""
    console = Terminal()
    if (layers := RESULTS / run.folder / "layers.csv").exists():
        from mfulab.cli.flops import render

        rows = read_csv(layers)
        console.print(render([{**layer, "share_percent": float(layer["share_percent"] or 0)} for layer in rows]))
    whole = whole or row["status"] != "ok"
    if run.step == "profile_step" and not whole:
        from mfulab.loop.interactive import show
        from mfulab.mfu import verdict

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
    """A line a run with the first columns that fit `width` letters; what all runs have alike stands below."""
    wanted = [name for name in MEASUREMENTS[step].shown.split() if name not in ("hardware", "verdict")]
    cells = {name: ["" if row.get(name) is None else with_unit(name, row[name]) for row in rows] for name in wanted}
    filled = {name: column for name, column in cells.items() if any(column)}
    alike = {name: column[0] for name, column in filled.items() if len(rows) > 1 and len(set(column)) == 1}
    columns = [name for name in filled if name not in alike]
    ends = itertools.accumulate(max(map(len, [name, *filled[name]])) + 2 for name in columns)
    drawn = columns[: max(1, sum(end - 2 <= width for end in ends))]
    shown = Table(*(Column(name, no_wrap=True) for name in drawn), box=None, header_style="bold", pad_edge=False)
    for line in zip(*(filled[name] for name in drawn), strict=True):
        shown.add_row(*map(Text, line))
    notes = [", ".join(f"{name} {value}" for name, value in alike.items())]
    if hidden := columns[len(drawn) :]:
        notes.append(f"in row.csv of each run: {', '.join(hidden)}")
    return Group(shown, *(Text(note, style="dim") for note in notes if note))
