"""Validates the recordings in results/reference/: typed columns, joined values that follow, nothing without its source.

    python validation/check_recordings.py [HARDWARE …]

Prints each problem and ends with 1 where there is one.
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

RELATIVE = 1e-9  # of joined values: what printing and reading a float may change, and much more


def check(folder: Path) -> list[str]:
    """Problems of a recording, in words; empty if it is valid."""
    there = {path.name for path in folder.iterdir()}
    problems = [f"{name} is missing" for name in sorted(FILES - there)]
    problems += [f"{name} does not belong into a recording" for name in sorted(there - FILES)]
    if FILES - there:
        return problems
    found = from_recorded(folder)
    if found.upkeep:
        return [*problems, *map(str, found.upkeep)]
    build.joined(found.records)
    for table in RECORDED:
        problems += _table(folder / f"{table}.csv", table, found.records[table])
    try:
        return [*problems, *_rows(found, folder)]
    except UnreadableError as error:
        return [*problems, str(error)]


def _table(path: Path, table: str, rows: list[Record]) -> Iterator[str]:
    """Columns as they are today, joined ones as they follow from the others, and no ratio above 100
    % unexplained."""
    cells = read_csv(path, LARGEST)
    header = next(csv.reader(read_text(path).splitlines()))
    if header != columns(table):
        changed = sorted(set(header) ^ set(columns(table))) or ["their order"]
        yield f"{path.name}: its columns are not today's ({', '.join(changed)}): --rejoin writes them anew"
        return
    for line, row in zip(map(with_counters, cells), rows, strict=False):
        for name in computed(TABLES[table]):
            text, value = line.get(name, ""), row[name]
            is_same = text == ("" if value is None else str(value))
            with suppress(ValueError, TypeError):
                is_same = is_same or math.isclose(float(text), value, rel_tol=RELATIVE)
            if not is_same:
                yield f"{path.name}: {row['run']}: {name} is {text or 'empty'}, the join gives {value}"
        if row["status"] == "ok":
            yield from (f"{path.name}: {row['run']}: {problem}" for problem in _impossible(row))


def _impossible(row: Mapping[str, Any]) -> Iterator[str]:
    # Reported, never clipped: MFU above 100 % must say so of itself. Others are measured shares of
    # a whole.
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


def _rows(found: Collected, folder: Path) -> Iterator[str]:
    """Every row is of this machine, of a known commit, and has its config, its count and its
    ceiling."""
    devices = {
        row["device_name"] for row in found.records["environment"]
    }  # one row for each number of threads
    if len(devices) != 1:
        yield f"environment.csv: {len(devices)} machines instead of one"
    configs = set()
    for number, text in enumerate(read_text(folder / CONFIGS).splitlines(), start=1):
        try:
            line = parse_json(text)
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
            if table != "ceilings" and row.get("ceiling") and row["ceiling"] not in ceilings:
                yield f"{named}: its ceiling {row['ceiling']} is missing"
            if (table, row["run"]) not in configs:
                yield f"{CONFIGS}: {table}/{row['run']} is missing"
            if not row["commit"]:
                yield f"{named} names no commit"
            elif row["commit"] not in commits:
                yield f"{named}: {ABOUT} does not name its commit {row['commit']}"
    runs = {(table, row["run"]) for table, rows in found.records.items() for row in rows}
    yield from (
        f"{CONFIGS}: {table}/{run} belongs to no row" for table, run in sorted(configs - runs)
    )


def main(hardware: list[str]) -> int:
    """Checks the recordings of these machines, or all; 1 where one has a problem."""
    folders = [
        folder for name in (*hardware,) or (None,) for folder in recordings(Path("results"), name)
    ]
    problems = [f"{folder}: {problem}" for folder in folders for problem in check(folder)]
    print(
        "".join(f"{problem}\n" for problem in problems) or f"{len(folders)} recordings are valid\n",
        end="",
    )
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
