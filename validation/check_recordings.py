"""Validates the recordings in results/reference/: types of columns, joined values, and completeness
of sources.

    python validation/check_recordings.py [HARDWARE …]

Prints each problem. Exit status 1 means that there are any.
"""

import csv
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mfulab.core.files import LARGEST, UnreadableError, read_csv, read_json, read_text
from mfulab.core.json_text import parse_json
from mfulab.lab.tables import build
from mfulab.lab.tables.columns import Record, columns, computed, with_counters
from mfulab.lab.tables.recording import CONFIGS, DIRTY, FILES, recordings
from mfulab.lab.tables.records import ABOUT, Collected, ceiling_name, from_recorded
from mfulab.measurements.registry import RECORDED, TABLES

RELATIVE = 1e-9  # tolerance of joined values, far above the rounding of printed floats


def check(folder: Path) -> list[str]:
    """Descriptions of the problems of a recording; empty if it is valid."""
    present = {path.name for path in folder.iterdir()}
    problems = [f"{name} is missing" for name in sorted(FILES - present)]
    problems += [f"{name} does not belong into a recording" for name in sorted(present - FILES)]
    if FILES - present:
        return problems
    recording = from_recorded(folder)
    if recording.upkeep:
        return [*problems, *map(str, recording.upkeep)]
    build.joined(recording.records)
    for table in RECORDED:
        problems += _table(folder / f"{table}.csv", table, recording.records[table])
    try:
        return [*problems, *_rows(recording, folder)]
    except UnreadableError as error:
        return [*problems, str(error)]


def _table(path: Path, table: str, rows: list[Record]) -> Iterator[str]:
    """Problems of a table: columns that are not current, joined values that do not follow from the
    others, impossible values."""
    cells = read_csv(path, LARGEST)
    header = next(csv.reader(read_text(path).splitlines()))
    if header != columns(table):
        changed = sorted(set(header) ^ set(columns(table))) or ["their order"]
        yield f"{path.name}: its columns are not today's ({', '.join(changed)}): --rejoin writes them anew"
        return
    for line, row in zip(map(with_counters, cells), rows, strict=False):
        for name in computed(TABLES[table]):
            text = line.get(name, "")
            value = row[name]
            expected = "" if value is None else str(value)
            is_same = text == expected
            with suppress(ValueError, TypeError):
                is_same = is_same or math.isclose(float(text), value, rel_tol=RELATIVE)
            if not is_same:
                yield f"{path.name}: {row['run']}: {name} is {text or 'empty'}, the join gives {value}"
        if row["status"] == "ok":
            yield from (f"{path.name}: {row['run']}: {problem}" for problem in _impossible(row))


def _impossible(row: Mapping[str, Any]) -> Iterator[str]:
    # MFU above 100 % is reported, never clipped, but needs a note. Counters are shares of the time.
    for name, value in row.items():
        if name.endswith("_active_percent") and value is not None and value > 101:
            yield f"{name} is {value:.1f} %"
    if "mfu_note" in row and (row.get("mfu_percent") or 0) > 100 and not row["mfu_note"]:
        yield f"MFU is {row['mfu_percent']:.1f} % without a note"
    low, time, high = (
        row.get(name, math.nan) for name in ("time_ci_low_s", "time_s", "time_ci_high_s")
    )
    if None not in (low, time, high) and (time < low or time > high):
        yield f"time_s={time} lies outside its interval {low} to {high}"


def _rows(recording: Collected, folder: Path) -> Iterator[str]:
    """Problems of rows: another machine, an unknown commit, a missing config, FLOP count or
    ceiling."""
    # one row per number of threads
    devices = {row["device_name"] for row in recording.records["environment"]}
    if len(devices) != 1:
        yield f"environment.csv: {len(devices)} machines instead of one"
    configs = set[tuple[str, str]]()
    yield from _configs(folder, configs)
    provenance = read_json(folder / ABOUT)
    commits = provenance.get("commits")
    if not isinstance(commits, dict) or "dirty_allowed" not in provenance:
        yield f"{ABOUT}: names no commits"
        return
    if any(commit.endswith(DIRTY) for commit in commits) and not provenance["dirty_allowed"]:
        yield f"{ABOUT}: some rows were measured by changed code"
    counted = {row["run"] for row in recording.records["flops"]}
    ceilings = {ceiling_name(row["run"]) for row in recording.records["ceilings"]}
    runs = set[tuple[str, str]]()
    for table, rows in recording.records.items():
        runs.update((table, row["run"]) for row in rows)
        for row in rows:
            place = f"{table}.csv: {row['run']}"
            if row["hardware"] not in ("", folder.name.lstrip(".")):
                yield f"{place} was measured on {row['hardware']}"
            if (table, row["run"]) not in configs:
                yield f"{CONFIGS}: {table}/{row['run']} is missing"
            yield from _joined(table, row, place, counted, ceilings)
            yield from _commit(row, place, commits)
    for table, run in sorted(configs - runs):
        yield f"{CONFIGS}: {table}/{run} belongs to no row"


def _configs(folder: Path, configs: set[tuple[str, str]]) -> Iterator[str]:
    """Problems of the recorded configs. Adds the table and run of each to `configs`."""
    for number, text in enumerate(read_text(folder / CONFIGS).splitlines(), start=1):
        try:
            line = parse_json(text)
            configs.add((str(line["table"]), str(line["run"])))
            RECORDED[line["table"]].config.model_validate(line["config"])
        except (ValueError, KeyError, TypeError) as error:
            yield f"{CONFIGS}: line {number}: {str(error).splitlines()[0]}"


def _joined(
    table: str, row: Record, place: str, counted: set[str], ceilings: set[str]
) -> Iterator[str]:
    """Problems of the FLOP count and the ceiling that a row is joined with."""
    if row.get("flops_run") and row["flops_run"] not in counted:
        yield f"{place}: its FLOP count {row['flops_run']} is missing"
    if table != "ceilings" and row.get("ceiling") and row["ceiling"] not in ceilings:
        yield f"{place}: its ceiling {row['ceiling']} is missing"


def _commit(row: Record, place: str, commits: Mapping[str, object]) -> Iterator[str]:
    """Problems of the commit of the code that measured a row."""
    if not row["commit"]:
        yield f"{place} names no commit"
    elif row["commit"] not in commits:
        yield f"{place}: {ABOUT} does not name its commit {row['commit']}"


def main(hardware: list[str]) -> int:
    """Checks the recordings of these machines, by default of all. Returns 1 if one has a
    problem."""
    folders: list[Path] = []
    names: list[str | None] = [*hardware] or [None]
    for name in names:
        folders += recordings(Path("results"), name)
    problems: list[str] = []
    for folder in folders:
        problems += [f"{folder}: {problem}" for problem in check(folder)]
    lines = problems or [f"{len(folders)} recordings are valid"]
    print("\n".join(lines))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
