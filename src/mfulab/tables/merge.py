"""Merges results folders of several machines into one: checks every row, copies what is new, overwrites nothing.

python scripts/collect.py /mnt/h100/mfulab /mnt/laptop/results     then: snakemake --cores 1 report
"""

import argparse
import csv
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mfulab.planning.store import is_complete, write_if_changed
from mfulab.schema.errors import ConfigurationError
from mfulab.schema.measurements import MEASUREMENTS, NO_MACHINE

COLLECTED = "+collected"
OF_THE_DAY = {"commit", "started_at", "process_s", "measured_s"}  # columns in which the same result differs


@dataclass
class Merged:
    """Outcome for every run and plan that was found."""

    copied: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def collect(sources: Sequence[Path], results: Path) -> Merged:
    """Copies runs and plans of each of `sources` (a results folder, or a project with one) into `results`.

    A run that is here already stays as it is; where theirs says something else, that is a problem and not copied.
    Raises ConfigurationError, before anything is copied, for a source without results.
    """
    folders = [_results_of(source) for source in sources]
    merged = Merged()
    for folder in folders:
        for step, run in _runs(folder):
            _merge_run(step, run, results / run.relative_to(folder), merged)
        for plan in sorted(folder.glob("*/plan/*.json")):
            _merge_plan(plan, _collected(results / plan.relative_to(folder)), merged)
    return merged


def _results_of(source: Path) -> Path:
    folder = source / "results" if (source / "results").is_dir() else source
    if not any(_runs(folder)):
        raise ConfigurationError(f"{source}: no results here (no <hardware>/<step>/<run>/config.json).")
    return folder


def _runs(results: Path) -> Iterator[tuple[str, Path]]:
    """Each run's step and folder."""
    for measurement in MEASUREMENTS.values():
        place = f"*/{measurement.step}" if measurement.on_device else measurement.step
        for config in sorted(results.glob(f"{place}/*/config.json")):
            if not measurement.on_device or config.relative_to(results).parts[0] not in NO_MACHINE:
                yield measurement.step, config.parent


def _merge_run(step: str, theirs: Path, ours: Path, merged: Merged) -> None:
    if not (theirs / "row.csv").exists():
        return  # planned there, not measured
    problem = _why_bad(step, theirs)
    if problem:
        merged.problems.append(f"{theirs}: {problem}; not copied")
    elif not (ours / "row.csv").exists() or not is_complete(ours / "row.csv"):
        _copy(theirs, ours)
        merged.copied.append(str(ours))
    elif _says(theirs) == _says(ours):
        merged.known.append(str(ours))
    else:
        merged.problems.append(f"{theirs}: {ours} holds another result of this run; ours is kept")


def _why_bad(step: str, run: Path) -> str | None:
    """Reason not to take over a run: its row is cut off, does not fit its columns, or is another run's."""
    if not is_complete(run / "row.csv"):
        return "its row is incomplete"
    row = _row(run)
    hardware = run.parents[1].name if MEASUREMENTS[step].on_device else ""
    if (row.get("run"), row.get("hardware")) != (run.name, hardware):
        return f"its row is of run={row.get('run')} on hardware={row.get('hardware')}"
    try:
        MEASUREMENTS[step].config.model_validate_json((run / "config.json").read_text(encoding="utf-8"))
        MEASUREMENTS[step].row.model_validate({key: value for key, value in row.items() if value != ""})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return None


def _row(run: Path) -> dict[str, str]:
    with (run / "row.csv").open(newline="", encoding="utf-8") as file:
        return next(csv.DictReader(file))


def _says(run: Path) -> tuple[Any, dict[str, str]]:
    """A run's config and what its row says, to be compared: a FLOP count of another day is the same count."""
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    ignored = set() if MEASUREMENTS[run.parent.name].on_device else OF_THE_DAY
    return config, {key: value for key, value in _row(run).items() if key not in ignored}


def _copy(theirs: Path, ours: Path) -> None:
    """Copies a run, its config first, whose age is kept, and its row last: Snakemake then sees nothing to do again."""
    ours.mkdir(parents=True, exist_ok=True)
    shutil.copy2(theirs / "config.json", ours / "config.json")
    for path in sorted(theirs.iterdir(), key=lambda path: path.name == "row.csv"):
        if path.is_file() and path.name != "config.json":
            partial = ours / f".{path.name}.{os.getpid()}"
            shutil.copyfile(path, partial)
            partial.replace(ours / path.name)


def _collected(plan: Path) -> Path:
    """The file of a plan that came from elsewhere: not the one that the next sweep here writes."""
    return plan if plan.stem.endswith(COLLECTED) else plan.with_stem(plan.stem + COLLECTED)


def _merge_plan(theirs: Path, ours: Path, merged: Merged) -> None:
    """Two plans of one experiment on one kind of device become one that lists the runs of both."""
    plan = json.loads(theirs.read_text(encoding="utf-8"))
    if ours.exists():
        here = json.loads(ours.read_text(encoding="utf-8"))
        for part in ("runs", "excluded"):
            known = {(entry["step"], entry["run"]): entry for entry in here[part]}
            new = [entry for entry in plan[part] if (entry["step"], entry["run"]) not in known]
            changed = [entry["run"] for entry in plan[part] if known.get((entry["step"], entry["run"]), entry) != entry]
            merged.problems += [f"{theirs}: {run} was planned with another config; ours is kept" for run in changed]
            here[part] += new
        plan = here
    write_if_changed(ours, json.dumps(plan, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """`python scripts/collect.py DIR…`; exit status 1 where something was not taken over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", type=Path, metavar="DIR", help="a results folder, or a project with one")
    parser.add_argument("--into", type=Path, default=Path("results"), help="where to; results/ where not given")
    given = parser.parse_args(arguments)
    try:
        merged = collect(given.sources, given.into)
    except ConfigurationError as error:
        parser.error(str(error))
    print(f"{len(merged.copied)} runs copied, {len(merged.known)} here already, {len(merged.problems)} problems")
    for problem in merged.problems:
        print(f"  {problem}")
    return int(bool(merged.problems))
