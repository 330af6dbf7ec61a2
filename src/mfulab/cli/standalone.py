"""One step without Snakemake: Hydra composes, the run is measured in a process of its own, and its row is shown."""

import csv
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import hydra
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from mfulab.planning import lock, runs, store
from mfulab.planning.composition import Composition, check, composed_by_hydra
from mfulab.planning.load import CONFIG, RESULTS, place
from mfulab.planning.overrides import complete
from mfulab.planning.runs import Plan, Run
from mfulab.runtime.client import USAGE
from mfulab.schema.errors import ConfigurationError


def main(step: str, arguments: Sequence[str]) -> None:
    """Runs `step` for Hydra's command line `arguments`. Raises ConfigurationError for a mistake in them."""
    flags = [argument for argument in arguments if argument.startswith("-")]
    overrides = complete([argument for argument in arguments if not argument.startswith("-")])
    check(overrides, CONFIG, sweeps=bool({"-m", "--multirun"} & set(flags)))
    sys.argv[1:] = [*flags, *overrides]
    done: set[str] = set()  # combinations that differ only in what this step does not read are one run

    def task(config: DictConfig) -> None:
        try:
            _measure(step, composed_by_hydra(config), done)
        except ConfigurationError as error:
            print(f"mfulab: {error}", file=sys.stderr)
            sys.exit(USAGE)

    hydra.main(version_base="1.3", config_path=str(CONFIG.resolve()), config_name="config")(task)()


def _measure(step: str, composition: Composition, done: set[str]) -> None:
    """Measures one composed run of `step`, after what its numbers are joined with where that is not there yet."""
    composition = replace(composition, base={**composition.base, "steps": [step], "replicates": 1})
    plan = runs.plan(composition, *place(composition.base))
    for excluded in plan.excluded:
        print(f"left out: {excluded['run']}: {excluded['because']}")
    for run in plan.runs:
        if run.folder in done or (run.step != step and (RESULTS / run.folder / "row.csv").exists()):
            continue
        done.add(run.folder)
        config = RESULTS / run.folder / "config.json"
        if config.exists() and store.state(run, RESULTS) is not store.State.KEPT:
            lock.take(RESULTS)  # what a running sweep has planned is not planned anew
        store.write_run(run, RESULTS)
        print(f"{run.step}: {run.name}", flush=True)
        log = config.with_name("log")
        with log.open("w") as file:
            command = [sys.executable, f"scripts/{run.step}.py", "--config", str(config)]
            ended = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
        if ended:
            print(log.read_text(), file=sys.stderr)
            sys.exit(ended)
        if run.step == step:
            _show(plan, run)


def _show(plan: Plan, run: Run) -> None:
    """Prints what the run's row holds, joined with its counts and ceilings; for a count, its layers."""
    from mfulab.schema.measurements import MEASUREMENTS
    from mfulab.tables import build

    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder, "plan.json")
        manifest.write_text(plan.manifest, encoding="utf-8")
        records = build.collect([manifest]).records[MEASUREMENTS[run.step].table]
    row = next(record for record in records if record["run"] == run.name)
    console = Console()
    layers = RESULTS / run.folder / "layers.csv"
    if layers.exists():
        console.print(_tree(layers))
    shown = Table(box=None, show_header=False, pad_edge=False)
    for key, value in row.items():
        if value not in (None, "", False):
            shown.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(shown)


def _tree(layers: Path) -> object:
    from mfulab.flops.tree import render

    with layers.open(newline="", encoding="utf-8") as file:
        rows: list[dict[str, object]] = list(csv.DictReader(file))  # type: ignore[arg-type]
    return render([{key: _number(value) for key, value in row.items()} for row in rows])


def _number(text: object) -> object:
    try:
        value = float(str(text))
    except ValueError:
        return text
    return value
