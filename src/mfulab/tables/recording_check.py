"""Checks a recording in results/reference/: complete, typed, of a known commit, its ratios right."""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mfulab.core.files import LARGEST, UnreadableError, read_csv, read_json, read_text
from mfulab.measurements.registry import RECORDED, TABLES
from mfulab.tables import build
from mfulab.tables.columns import Record, columns, computed
from mfulab.tables.records import Collected, ceiling_name, from_recorded

CONFIGS, SERIES, ABOUT = "configs.jsonl", "series.csv", "recording.json"
FILES = {*(f"{table}.csv" for table in RECORDED), CONFIGS, SERIES, ABOUT}
DIRTY = "-dirty"  # ends the commit of a row that changed code has measured
RELATIVE = 1e-9  # of joined values: what printing and reading a float may change, and much more


def check(folder: Path) -> list[str]:
    """Problems of a recording, in words; empty if it is valid."""
    there = {path.name for path in folder.iterdir()}
    problems = [f"{name} is missing" for name in sorted(FILES - there)]
    problems += [f"{name} does not belong into a recording" for name in sorted(there - FILES)]
    if FILES - there:
        return problems
    found = from_recorded(folder)
    problems += found.problems
    if found.problems:
        return problems
    build.joined(found.records)
    for table in RECORDED:
        problems += _table(folder / f"{table}.csv", table, found.records[table])
    return [*problems, *_links(found, folder), *_configs(found, folder), *_commits(found, folder)]


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
            if not _same(line[name], row[name]):
                yield f"{path.name}: {row['run']}: {name} is {line[name] or 'empty'}, the join gives {row[name]}"
        if row["status"] == "ok":
            yield from (f"{path.name}: {row['run']}: {problem}" for problem in _impossible(row))


def _same(text: str, value: Any) -> bool:
    if value is None or isinstance(value, str | bool):
        return text == ("" if value is None else str(value))
    try:
        return math.isclose(float(text), value, rel_tol=RELATIVE)
    except ValueError:
        return False


def _impossible(row: Mapping[str, Any]) -> Iterator[str]:
    """Values of one row that contradict one another or what a share can be."""
    for name, value in row.items():
        if not isinstance(value, float | int) or isinstance(value, bool):
            continue
        if name.endswith("_s") and value < 0:
            yield f"{name} is {value}"
        # Reported, never clipped: such a value must say so of itself. Others are measured shares of a whole.
        if name.endswith("_active_percent") and value > 101:
            yield f"{name} is {value:.1f} %"
    if "mfu_note" in row and (row.get("mfu_percent") or 0) > 100 and not row["mfu_note"]:
        yield f"MFU is {row['mfu_percent']:.1f} % without a note"
    low, time, high = (row.get(name) for name in ("time_ci_low_s", "time_s", "time_ci_high_s"))
    if low is not None and time is not None and high is not None and not low <= time <= high:
        yield f"time_s={time} lies outside its interval {low} to {high}"


def _links(found: Collected, folder: Path) -> Iterator[str]:
    """Every row is of this machine, once, and finds the counts and ceilings that it is joined with."""
    devices = {row["device_name"] for row in found.records["environment"]}  # one row for each number of threads
    if len(devices) != 1:
        yield f"environment.csv: {len(devices)} machines instead of one"
    counted = {row["run"] for row in found.records["flops"]}
    ceilings = {ceiling_name(row["run"]) for row in found.records["ceilings"]}
    for table, rows in found.records.items():
        runs = [row["run"] for row in rows]
        yield from (
            f"{table}.csv: {run} is there twice" for run in sorted({run for run in runs if runs.count(run) > 1})
        )
        for row in rows:
            if row["hardware"] not in ("", folder.name.lstrip(".")):
                yield f"{table}.csv: {row['run']} was measured on {row['hardware']}"
            if row.get("flops_run") and row["flops_run"] not in counted:
                yield f"{table}.csv: {row['run']}: its FLOP count {row['flops_run']} is missing"
            if row.get("ceiling") and row["ceiling"] not in ceilings:
                yield f"{table}.csv: {row['run']}: its ceiling {row['ceiling']} is missing"


def _configs(found: Collected, folder: Path) -> Iterator[str]:
    """Every row has the resolved config that it was measured with, and that is one of its step."""
    there = set()
    for number, text in enumerate(read_text(folder / CONFIGS).splitlines(), start=1):
        try:
            line = json.loads(text)
            table, run = str(line["table"]), str(line["run"])
            there.add((table, run))
            RECORDED[table].config.model_validate(line["config"])
        except (ValueError, KeyError, TypeError) as error:
            yield f"{CONFIGS}: line {number}: {str(error).splitlines()[0]}"
    wanted = {(table, row["run"]) for table, rows in found.records.items() for row in rows}
    yield from (f"{CONFIGS}: {table}/{run} is missing" for table, run in sorted(wanted - there))
    yield from (f"{CONFIGS}: {table}/{run} belongs to no row" for table, run in sorted(there - wanted))


def _commits(found: Collected, folder: Path) -> Iterator[str]:
    try:
        provenance = read_json(folder / ABOUT)
    except UnreadableError as error:
        yield str(error)
        return
    known = provenance.get("commits")
    if not isinstance(known, dict) or "dirty_allowed" not in provenance:
        yield f"{ABOUT}: names no commits"
        return
    for table, rows in found.records.items():
        for row in rows:
            if not row["commit"]:
                yield f"{table}.csv: {row['run']} names no commit"
            elif row["commit"] not in known:
                yield f"{table}.csv: {row['run']}: {ABOUT} does not name its commit {row['commit']}"
    if any(commit.endswith(DIRTY) for commit in known) and not provenance["dirty_allowed"]:
        yield f"{ABOUT}: some rows were measured by changed code"
