"""Keeps a machine's finished results for everyone, in results/reference/<hardware>/, as the report reads them back."""

import csv
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from mfulab.core import files
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import LARGEST, UnreadableError, read_csv, read_json, read_text, write_csv
from mfulab.core.groups import SLUG
from mfulab.core.rows import NOT_MEASURED
from mfulab.device.identity import hardware_slug
from mfulab.lab.tables import build, details
from mfulab.lab.tables.columns import Record, Records, columns, computed
from mfulab.lab.tables.consistency import unfit
from mfulab.lab.tables.records import ABOUT, Collected, ceiling_name, code, from_recorded, identity, read_config
from mfulab.measurements import manifest
from mfulab.measurements.registry import MEASUREMENTS, NO_MACHINE, RECORDED, TABLES

REFERENCE = "reference"
CONFIGS, SERIES = "configs.jsonl", "series.csv"
FILES = {*(f"{table}.csv" for table in RECORDED), CONFIGS, SERIES, ABOUT}
EXPERIMENTS = "config/experiment/*.yaml"
NOT_WANTED = {"miniature", "gpu_record", "validity", "traces"}  # a part of others, windows too short, other machines
DIRTY = "-dirty"  # ends the commit of a row that changed code has measured
RELATIVE = 1e-9  # of joined values: what printing and reading a float may change, and much more
MOST_SERIES = 20  # profiled runs whose series are kept, the busiest first: a figure shows the busiest


def gather(results: Path, hardware: str) -> Collected:
    """The finished rows of one machine and of what it counted without a device, joined, in the order of its plans."""
    plans = _plans(results, hardware)
    everything = build.collect(also=plans, root=results.parent, results=None if plans else results)
    kept = Collected(folders=everything.folders)
    for table in RECORDED:
        rows = (row for row in everything.records[table] if row["hardware"] in (hardware, ""))
        kept.records[table] = [row for row in rows if row["status"] != NOT_MEASURED]
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
    """Writes the recording of `hardware` and gives its folder. Raises ConfigurationError, and writes nothing, if unfit.

    `commit` is that of the measuring code where it was copied without its repository, so that rows have none.
    """
    folder, found = folder_of(results, hardware), gather(results, hardware)
    rows = [row for table in found.records.values() for row in table]
    if not found.records["environment"] or len(rows) == 1:
        raise ConfigurationError(f"{results / hardware}/: holds no finished runs. Measure first: snakemake report.")
    for row in rows:
        row |= {"commit": row["commit"] or commit, "recorded": True}
    if without := [row["run"] for row in rows if not row["commit"]]:
        says = f"{len(without)} rows name no commit ({without[0]}, …)"
        raise ConfigurationError(f"{says}: give --commit of the code that measured them.")
    dirty = [row["run"] for row in rows if row["commit"].endswith(DIRTY)]
    if dirty and not allow_dirty:
        says = f"{len(dirty)} rows were measured by changed code ({dirty[0]}, …)"
        raise ConfigurationError(f"{says}: measure again from a clean tree, or give --allow-dirty.")
    planned, against = dict[str, Sequence[str]](), [*unfit(found.records)]
    for path in _plans(results, hardware):
        with suppress(UnreadableError):  # the tables have named it
            plan = manifest.read(path)
            planned[plan.experiment] = plan.overrides  # the latest
    steps = {path.stem: yaml.safe_load(read_text(path))["steps"] for path in results.parent.glob(EXPERIMENTS)}
    measures = {name for name, each in steps.items() if any(MEASUREMENTS[step].table in RECORDED for step in each)}
    if absent := sorted(measures - set(planned) - NOT_WANTED):
        against.append(f"config/experiment/: without rows of {', '.join(absent)}, their figures are empty.")
    if against and not allow_unfit:
        raise ConfigurationError("\n".join([*against, "Measure those again (mfulab refine), or give --allow-unfit."]))
    if folder.exists() and not replace:
        raise ConfigurationError(f"{folder}/: is there already. Give --replace to write it anew.")

    partial, old = folder.with_name(f".{hardware}"), folder.with_name(f".{hardware}.old")
    for left in (partial, old):
        files.remove(left)
    partial.mkdir(parents=True)
    provenance = about(found.records, hardware, planned, commit, allow_dirty)
    _write(found, {**provenance, "unfit": against}, partial)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    files.remove(old)
    return folder


def folder_of(results: Path, hardware: str) -> Path:
    """Folder of a machine's recording. Raises ConfigurationError for a name that is none, and for a link elsewhere."""
    if not re.fullmatch(SLUG, hardware) or hardware in NO_MACHINE:
        raise ConfigurationError(f"hardware={hardware}: no name of a device; see the folders in {results}/.")
    folder = results / REFERENCE / hardware
    if not files.is_inside(folder, results):
        raise ConfigurationError(f"{folder}: leads out of {results}/ and is not touched.")
    return folder


def _write(found: Collected, provenance: dict[str, Any], folder: Path) -> None:
    _write_tables(found.records, folder)
    configs, codes, folders = [], set(), {}
    for table, rows in found.records.items():
        for row in rows:
            place = folders[table, row["run"]] = found.folders[identity(table, {**row, "recorded": False})]
            config = read_config(place)
            configs.append({"table": table, "run": row["run"], "config": config})
            measured = config.get("model") or config.get("kernel") or {}
            codes.add(f"{TABLES[table].step},{measured.get('_target_', '')}")
    lines = (f"{json.dumps(line, sort_keys=True, separators=(',', ':'))}\n" for line in configs)
    files.write_text(folder / CONFIGS, "".join(lines))
    busiest = sorted(found.records["profile"], key=lambda row: -(row.get("utilization_percent") or 0))[:MOST_SERIES]
    shown = [("readings", row) for row in found.records["readings"]] + [("profile", row) for row in busiest]
    polled = details.series((row, folders[table, row["run"]]) for table, row in shown)
    write_csv(folder / SERIES, polled, details.series_columns(polled))
    digests = {name: code(name, provenance["hardware"]) for name in sorted(codes)}
    files.write_json(folder / ABOUT, {**provenance, "code": digests}, indent=1)


def _write_tables(records: Records, folder: Path) -> None:
    for table in RECORDED:
        write_csv(folder / f"{table}.csv", records[table], columns(table))


def about(
    records: Records, hardware: str, planned: Mapping[str, Sequence[str]], stated_commit: str, dirty_allowed: bool
) -> dict[str, Any]:
    """Provenance: machine, driver, packages, GPUs (with power limit and clocks), what was asked for, commits, times."""
    machine = records["environment"][0]
    rows = [row for table in records.values() for row in table]
    started = sorted(row["started_at"] for row in rows if row["started_at"])
    return {
        "hardware": hardware,
        **{name: machine[name] for name in ("device_name", "driver", "cuda", "python", "operating_system")},
        "packages": json.loads(machine["packages"] or "{}"),
        "gpus": json.loads(machine["gpus"] or "[]"),
        "experiments": planned,
        "commits": dict(sorted(Counter(row["commit"] for row in rows).items())),
        "commit_was_stated": stated_commit or None,
        "dirty_allowed": dirty_allowed,
        "first_started_at": started[0] if started else None,
        "last_started_at": started[-1] if started else None,
        "rows": {
            table: dict(sorted(Counter(row["status"] for row in kept).items())) for table, kept in records.items()
        },
    }


def rejoin(folder: Path) -> None:
    """Computes a recording's joined columns anew. Raises ConfigurationError, writing nothing, if it is unreadable."""
    found = from_recorded(folder)
    if found.problems:
        raise ConfigurationError(found.problems[0])
    _write_tables(build.joined(found.records), folder)


def check(folder: Path) -> list[str]:
    """Problems of a recording, in words; empty if it is valid."""
    there = {path.name for path in folder.iterdir()}
    problems = [f"{name} is missing" for name in sorted(FILES - there)]
    problems += [f"{name} does not belong into a recording" for name in sorted(there - FILES)]
    if FILES - there or (found := from_recorded(folder)).problems:
        return problems + ([] if FILES - there else found.problems)
    build.joined(found.records)
    for table in RECORDED:
        problems += _table(folder / f"{table}.csv", table, found.records[table])
    try:
        return [*problems, *_rows(found, folder)]
    except UnreadableError as error:
        return [*problems, str(error)]


def _table(path: Path, table: str, rows: list[Record]) -> Iterator[str]:
    """Columns as they are today, joined ones as they follow from the others, and no ratio above 100 % unexplained."""
    cells = read_csv(path, LARGEST)
    header = next(csv.reader(read_text(path).splitlines()))
    if header != columns(table):
        changed = sorted(set(header) ^ set(columns(table))) or ["their order"]
        yield f"{path.name}: its columns are not today's ({', '.join(changed)}): --rejoin writes them anew"
        return
    for line, row in zip(cells, rows, strict=False):
        for name in computed(TABLES[table]):
            text, value = line[name], row[name]
            is_same = text == ("" if value is None else str(value))
            with suppress(ValueError, TypeError):
                is_same = is_same or math.isclose(float(text), value, rel_tol=RELATIVE)
            if not is_same:
                yield f"{path.name}: {row['run']}: {name} is {text or 'empty'}, the join gives {value}"
        if row["status"] == "ok":
            yield from (f"{path.name}: {row['run']}: {problem}" for problem in _impossible(row))


def _impossible(row: Mapping[str, Any]) -> Iterator[str]:
    # Reported, never clipped: MFU above 100 % must say so of itself. Others are measured shares of a whole.
    for name, value in row.items():
        if name.endswith("_active_percent") and value is not None and value > 101:
            yield f"{name} is {value:.1f} %"
    if "mfu_note" in row and (row.get("mfu_percent") or 0) > 100 and not row["mfu_note"]:
        yield f"MFU is {row['mfu_percent']:.1f} % without a note"
    low, time, high = (row.get(name) for name in ("time_ci_low_s", "time_s", "time_ci_high_s"))
    if low is not None and time is not None and high is not None and not low <= time <= high:
        yield f"time_s={time} lies outside its interval {low} to {high}"


def _rows(found: Collected, folder: Path) -> Iterator[str]:
    """Every row is of this machine, of a known commit, and has its config, its count and its ceiling."""
    devices = {row["device_name"] for row in found.records["environment"]}  # one row for each number of threads
    if len(devices) != 1:
        yield f"environment.csv: {len(devices)} machines instead of one"
    configs = set()
    for number, text in enumerate(read_text(folder / CONFIGS).splitlines(), start=1):
        try:
            line = json.loads(text)
            configs.add((str(line["table"]), str(line["run"])))
            RECORDED[line["table"]].config.model_validate(line["config"])
        except (ValueError, KeyError, TypeError) as error:
            yield f"{CONFIGS}: line {number}: {str(error).splitlines()[0]}"
    provenance = read_json(folder / ABOUT)
    commits = provenance.get("commits")
    if not isinstance(commits, dict) or "dirty_allowed" not in provenance:
        yield f"{ABOUT}: names no commits"
        return
    if any(commit.endswith(DIRTY) for commit in commits) and not provenance["dirty_allowed"]:
        yield f"{ABOUT}: some rows were measured by changed code"
    counted = {row["run"] for row in found.records["flops"]}
    ceilings = {ceiling_name(row["run"]) for row in found.records["ceilings"]}
    for table, rows in found.records.items():
        for row in rows:
            named = f"{table}.csv: {row['run']}"
            if row["hardware"] not in ("", folder.name.lstrip(".")):
                yield f"{named} was measured on {row['hardware']}"
            if row.get("flops_run") and row["flops_run"] not in counted:
                yield f"{named}: its FLOP count {row['flops_run']} is missing"
            if row.get("ceiling") and row["ceiling"] not in ceilings:
                yield f"{named}: its ceiling {row['ceiling']} is missing"
            if (table, row["run"]) not in configs:
                yield f"{CONFIGS}: {table}/{row['run']} is missing"
            if not row["commit"]:
                yield f"{named} names no commit"
            elif row["commit"] not in commits:
                yield f"{named}: {ABOUT} does not name its commit {row['commit']}"
    runs = {(table, row["run"]) for table, rows in found.records.items() for row in rows}
    yield from (f"{CONFIGS}: {table}/{run} belongs to no row" for table, run in sorted(configs - runs))


def run(hardware: str | None, results: Path, only_check: bool, again: bool, **how: Any) -> int:
    """Records, as `record` with `how`, validates (`only_check`) or rejoins (`again`); 1 if a recording is not valid."""
    try:
        if only_check or again:
            folders = recordings(results, hardware)
            for folder in folders if again else ():
                rejoin(folder)
        else:
            folders = [record(results, hardware or hardware_slug(), **how)]
    except OSError as error:
        raise files.cannot_be_written(error.filename or results, error) from error
    problems = [f"{folder}: {problem}" for folder in folders for problem in check(folder)]
    for folder in folders:
        rows, size = from_recorded(folder).records, sum(path.stat().st_size for path in folder.iterdir())
        counts = ", ".join(f"{len(rows[table])} {table}" for table in RECORDED)
        print(f"{folder}: {counts} rows, {size / 1e3:.0f} kB")
    print("".join(f"{problem}\n" for problem in problems), end="", file=sys.stderr)
    return 1 if problems else 0


def recordings(results: Path, hardware: str | None) -> list[Path]:
    """The folders of all recordings, or of one. Raises ConfigurationError if that one is not there."""
    if hardware is None:
        names = sorted(path.name for path in (results / REFERENCE).glob("[!.]*") if path.is_dir())
        return [folder_of(results, name) for name in names if name not in NO_MACHINE]
    if not (folder := folder_of(results, hardware)).is_dir():
        raise ConfigurationError(f"{folder}/: there is no such recording.")
    return [folder]
