"""Writes a machine's finished results to results/reference/<hardware>/, where they are
published."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mfulab.core import files
from mfulab.core.errors import ConfigurationError
from mfulab.core.groups import SLUG
from mfulab.core.json_text import parse_json
from mfulab.core.parts import pick_all
from mfulab.core.printing import say
from mfulab.core.rows import NOT_MEASURED
from mfulab.core.said import Numbers, Said, as_told, joined, of_source
from mfulab.core.terminal_language import in_words
from mfulab.core.yaml_text import load_yaml
from mfulab.device import is_gpu
from mfulab.device.identity import hardware_slug
from mfulab.lab.planning.foundations import foundations
from mfulab.lab.planning.naming import measures
from mfulab.lab.tables import build, details
from mfulab.lab.tables.columns import Record, Records, columns, written
from mfulab.lab.tables.consistency import unfit
from mfulab.lab.tables.records import ABOUT, Collected, from_recorded, identity, read_config
from mfulab.measurements import manifest
from mfulab.measurements.registry import MEASUREMENTS, NO_MACHINE, RECORDED, TABLES

REFERENCE = "reference"
CONFIGS = "configs.jsonl"
SERIES = "series.csv"
FILES = {*(f"{table}.csv" for table in RECORDED), CONFIGS, SERIES, ABOUT}
EXPERIMENTS = "config/experiment/*.yaml"
# Experiments that a recording may lack: parts of others, too short windows, other machines.
OPTIONAL = {"miniature", "gpu_record", "validity", "traces"}
# Experiments that a recording without a GPU may lack.
OF_GPUS = ("quickstart_gpu", "seminar_gpu")
DIRTY = "-dirty"  # suffix of a commit measured with uncommitted changes
# profiled runs whose series are kept, highest utilization first: a figure shows the busiest
MOST_SERIES = 20


def gather(results: Path, hardware: str) -> Collected:
    """Returns the finished rows of one machine and of FLOP counts, joined, in the order of the
    machine's plans."""
    plans = _plans(results, hardware)
    everything = build.collect(also=plans, root=results.parent, results=None if plans else results)
    kept = Collected(folders=everything.folders)
    for table in RECORDED:
        rows = []
        for row in everything.records[table]:
            is_of_machine = row["hardware"] in (hardware, "")
            if is_of_machine and row["status"] != NOT_MEASURED:
                rows.append(row)
        kept.records[table] = rows
    return kept


def _plans(results: Path, hardware: str) -> list[Path]:
    return sorted((results / hardware / "plan").glob("*.json"))


def record(
    results: Path,
    hardware: str,
    commit: str = "",
    allow_dirty: bool = False,
    allow_unfit: bool = False,
    replace: bool = False,
) -> Path:
    """Writes the recording of `hardware` and returns its folder. Raises ConfigurationError, without
    writing, if the results are unfit."""
    folder = folder_of(results, hardware)
    if not results.is_dir():
        absent = Said("no_folder_measure_first", command=measures())
        raise ConfigurationError(of_source(f"{results}/", absent))
    gathered = gather(results, hardware)
    rows = list(itertools.chain.from_iterable(gathered.records.values()))
    if not gathered.records["environment"] or len(rows) == 1:
        unfinished = Said("no_runs_measure_first", command=measures())
        raise ConfigurationError(of_source(f"{results / hardware}/", unfinished))
    for row in rows:
        # Recordings are public, names of hosts are not.
        row |= {"commit": row["commit"] or commit, "recorded": True, "host": ""}
    _check_commits(rows, allow_dirty)
    planned = _planned_overrides(results, hardware)
    objections = _objections(gathered.records, results.parent, planned)
    reasons = joined(objections)
    if reasons and not allow_unfit:
        raise ConfigurationError(Said("recording_unfit", reasons=reasons))
    if folder.exists() and not replace:
        raise ConfigurationError(of_source(f"{folder}/", Said("recording_exists")))
    provenance = about(gathered.records, hardware, planned, commit, allow_dirty)
    # In words, as `recording.json` is read by people.
    _replace(folder, gathered, {**provenance, "unfit": list(map(str, objections))})
    _report_unplanned(results / hardware, gathered)
    return folder


def _objections(records: Records, project: Path, planned: Collection[str]) -> list[Said]:
    """Reasons not to record a machine: unfit rows, and experiments without rows."""
    reasons = list(unfit(records))
    known = set(planned)
    if not any(is_gpu(row.get("device")) for row in records["environment"]):
        known.update(OF_GPUS)
    missing = _missing_experiments(project, known)
    if missing:
        reasons.append(Said("experiments_without_rows", names=", ".join(missing)))
    return reasons


def _replace(folder: Path, gathered: Collected, provenance: dict[str, Any]) -> None:
    """Writes a recording next to its final place and then renames it, so that a partial one is
    never read."""
    partial = folder.with_name(f".{folder.name}")
    old = folder.with_name(f".{folder.name}.old")
    for leftover in (partial, old):
        files.remove(leftover)
    partial.mkdir(parents=True)
    _write(gathered, provenance, partial)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    files.remove(old)


def _report_unplanned(machine: Path, gathered: Collected) -> None:
    """Prints how many measured runs are left out because no plan has them."""
    measured: set[Path] = set()
    for kind in RECORDED.values():
        measured.update(row.parent for row in (machine / kind.step).glob("*/row.csv"))
    unplanned = measured.difference(gathered.folders.values())
    if unplanned:
        names: Numbers = {"run": str(min(unplanned)), "plan": f"{machine}/plan/EXPERIMENT.json"}
        say(in_words(Said("unplanned_left_out", count=len(unplanned), **names)))


def _check_commits(rows: Sequence[Record], allow_dirty: bool) -> None:
    without = []
    dirty = []
    for row in rows:
        if not row["commit"]:
            without.append(row["run"])
        elif row["commit"].endswith(DIRTY):
            dirty.append(row["run"])
    if without:
        raise ConfigurationError(Said("rows_without_commit", count=len(without), run=without[0]))
    if dirty and not allow_dirty:
        raise ConfigurationError(Said("rows_of_dirty", count=len(dirty), run=dirty[0]))


def _planned_overrides(results: Path, hardware: str) -> dict[str, list[str]]:
    """Overrides of each experiment planned on a machine, from all commands whose plans were
    kept."""
    planned: dict[str, list[str]] = {}
    for path in _plans(results, hardware):
        with suppress(files.UnreadableError):  # the tables report it
            plan = manifest.read(path)
            overrides = planned.setdefault(plan.experiment, [])
            overrides += [override for override in plan.overrides if override not in overrides]
    return planned


def _missing_experiments(project: Path, planned: Collection[str]) -> list[str]:
    """Names of the project's experiments that a recording should have and that were not planned."""
    missing = []
    for path in project.glob(EXPERIMENTS):
        steps = load_yaml(path)["steps"]
        is_recorded = any(MEASUREMENTS[step].table in RECORDED for step in steps)
        if is_recorded and path.stem not in planned and path.stem not in OPTIONAL:
            missing.append(path.stem)
    return sorted(missing)


def folder_of(results: Path, hardware: str) -> Path:
    """Returns the folder of a machine's recording. Raises ConfigurationError if the name is
    invalid, or the folder is a link elsewhere."""
    if not re.fullmatch(SLUG, hardware) or hardware in NO_MACHINE:
        raise ConfigurationError(Said("no_hardware_name", hardware=hardware, folder=f"{results}/"))
    folder = results / REFERENCE / hardware
    if not files.is_inside(folder, results):
        raise ConfigurationError(Said("leads_out", folder=str(folder), results=f"{results}/"))
    return folder


def _write(gathered: Collected, provenance: dict[str, Any], folder: Path) -> None:
    _write_tables(gathered.records, folder)
    lines = []
    codes = set()
    folders = {}
    for table, rows in gathered.records.items():
        for row in rows:
            measured = {**row, "recorded": False}
            run_folder = gathered.folders[identity(table, measured)]
            folders[table, row["run"]] = run_folder
            config = read_config(run_folder)
            codes.add(f"{TABLES[table].step},{_target(config)}")
            line = {"table": table, "run": row["run"], "config": config}
            lines.append(json.dumps(line, sort_keys=True, separators=(",", ":")))
    files.write_text(folder / CONFIGS, "".join(f"{line}\n" for line in lines))
    steps = gathered.records["profile"]
    by_utilization = sorted(steps, key=lambda row: -(row.get("utilization_percent") or 0))
    busiest = by_utilization[:MOST_SERIES]
    with_series = []
    for table, rows in (("readings", gathered.records["readings"]), ("profile", busiest)):
        for row in rows:
            with_series.append((row, folders[table, row["run"]]))
    polled = details.series(with_series)
    files.write_csv(folder / SERIES, polled, details.series_columns(polled))
    digests = {name: foundations(name, provenance["hardware"]) for name in sorted(codes)}
    files.write_json(folder / ABOUT, {**provenance, "code": digests}, indent=1)


def _target(config: Mapping[str, object]) -> str:
    """Dotted path of the model or kernel in a config; empty if it has neither."""
    for group in ("model", "kernel"):
        content = config.get(group)
        if isinstance(content, Mapping):
            return str(content.get("_target_", ""))
    return ""


def _write_tables(records: Records, folder: Path) -> None:
    for table in RECORDED:
        files.write_csv(folder / f"{table}.csv", written(table, records[table]), columns(table))


def about(
    records: Records,
    hardware: str,
    planned: Mapping[str, Sequence[str]],
    stated_commit: str,
    dirty_allowed: bool,
) -> dict[str, Any]:
    """Returns the provenance of a recording: machine, driver, packages, GPUs (with power limit and
    clocks), experiments, commits and times."""
    machine = records["environment"][0]
    rows = list(itertools.chain.from_iterable(records.values()))
    started = []
    commits = Counter[str]()
    for row in rows:
        commits[row["commit"]] += 1
        if row["started_at"]:
            started.append(row["started_at"])
    statuses = {}
    for table, of_table in records.items():
        counts = Counter(row["status"] for row in of_table)
        statuses[table] = dict(sorted(counts.items()))
    return {
        "hardware": hardware,
        **pick_all(machine, ("device_name", "driver", "cuda", "python", "operating_system")),
        "packages": parse_json(machine["packages"] or "{}"),
        "gpus": parse_json(machine["gpus"] or "[]"),
        "experiments": planned,
        "commits": dict(sorted(commits.items())),
        "commit_was_stated": stated_commit or None,
        "dirty_allowed": dirty_allowed,
        "first_started_at": min(started, default=None),
        "last_started_at": max(started, default=None),
        "rows": statuses,
    }


def rejoin(folder: Path) -> None:
    """Recomputes a recording's joined columns. Raises ConfigurationError, without writing, if it is
    unreadable."""
    recorded = from_recorded(folder)
    if recorded.upkeep:
        first = recorded.upkeep[0]
        message = first if isinstance(first, Said) else as_told(first)
        raise ConfigurationError(message)
    _write_tables(build.joined(recorded.records), folder)


def run(hardware: str | None, results: Path, again: bool, **options: Any) -> None:
    """Records a machine, with the `options` of `record`, or rejoins existing recordings if `again`.
    Prints the number of rows and the size."""
    try:
        if again:
            folders = recordings(results, hardware)
            for folder in folders:
                rejoin(folder)
        else:
            folders = [record(results, hardware or hardware_slug(), **options)]
    except OSError as error:
        raise files.cannot_be_written(error.filename or results, error) from error
    for folder in folders:
        rows = from_recorded(folder).records
        size = sum(path.stat().st_size for path in folder.iterdir())
        counts = ", ".join(f"{len(rows[table])} {table}" for table in RECORDED)
        say(in_words(Said("recorded_rows", folder=str(folder), counts=counts, kb=size / 1e3)))


def recordings(results: Path, hardware: str | None) -> list[Path]:
    """Returns the folders of all recordings, or of one machine. Raises ConfigurationError if that
    one does not exist."""
    if hardware is None:
        folders = []
        for path in sorted((results / REFERENCE).glob("[!.]*")):
            if path.is_dir() and path.name not in NO_MACHINE:
                folders.append(folder_of(results, path.name))
        return folders
    folder = folder_of(results, hardware)
    if not folder.is_dir():
        raise ConfigurationError(of_source(f"{folder}/", Said("no_such_recording")))
    return [folder]
