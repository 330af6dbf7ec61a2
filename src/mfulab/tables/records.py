"""Reads rows: of a planned experiment, another machine's copied folder, or a recorded machine."""

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mfulab.schema.configs import CountFlopsConfig
from mfulab.schema.formats import format_name
from mfulab.schema.measurements import MEASUREMENTS, RECORDED, TABLES
from mfulab.schema.rows import Row
from mfulab.tables.columns import FLAGS, TEXT, Record, Records


@dataclass
class Collected:
    """Rows by table, the folder of each row, runs left out on purpose, and what could not be read, in words."""

    records: Records = field(default_factory=lambda: {table: [] for table in TABLES})
    folders: dict[str, Path] = field(default_factory=dict)
    excluded: list[dict[str, str]] = field(default_factory=list)
    series: list[dict[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, table: str, record: Record, folder: Path | None = None) -> None:
        self.records[table].append(record)
        if folder is not None:
            self.folders[identity(table, record)] = folder


def identity(table: str, record: Mapping[str, Any]) -> str:
    """One text for one row of all tables, also on the page."""
    origin = "recorded/" if record["recorded"] else ""
    return f"{origin}{record['hardware']}/{table}/{record['run']}"


def parse(model: type[Row], cells: Mapping[str, str | None]) -> Record:
    """A CSV line as its row's typed values; empty cells and NaN are None. ValidationError where a cell does not fit."""
    known = {name: text for name, text in cells.items() if name in model.model_fields and text not in (None, "")}
    values = model.model_validate(known).model_dump()
    return {name: None if value != value else value for name, value in values.items()}


def read_row(folder: Path, step: str) -> Record:
    """The row of one run's folder. One that is missing, truncated or not a row comes back as `failed`, saying so."""
    path = folder / "row.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        if len(lines) != 1:
            raise ValueError(f"{len(lines)} lines instead of one")
        return parse(MEASUREMENTS[step].row, lines[0])
    except FileNotFoundError:
        message = f"no row: {path} does not exist"
    except (ValueError, csv.Error, OSError) as error:
        message = f"unreadable row: {path}: {_first_line(error)}"
    return {**MEASUREMENTS[step].row().model_dump(), "run": folder.name, "status": "failed", "message": message}


def read_rows(folder: Path, step: str) -> list[Record]:
    """The rows that one run reports: its own, or the lines of its samples where its step reports many and it is ok."""
    row = {**read_row(folder, step), "run": folder.name}
    if not MEASUREMENTS[step].lines or row["status"] != "ok":
        return [row]
    problems: list[str] = []
    try:
        found = [parse(MEASUREMENTS[step].row, cells) for cells in _lines(folder / "samples.csv", problems)]
    except ValueError as error:
        problems.append(f"unreadable rows: {folder / 'samples.csv'}: {_first_line(error)}")
    if problems or not found:
        return [{**row, "status": "failed", "message": "; ".join(problems) or f"no rows in {folder / 'samples.csv'}"}]
    same = {name: row[name] for name in ("commit", "started_at")}
    return [{**each, **same, "run": f"{folder.name},line={number}"} for number, each in enumerate(found, 1)]


def read_config(folder: Path) -> Record:
    """A run's config, empty if it cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return {}
    return config if isinstance(config, dict) else {}


def from_manifest(manifest: Path, root: Path = Path(), *, finished: bool = False) -> Collected:
    """The rows of one planned experiment. Folders in the manifest are relative to `root`, the project's folder.

    With `finished`, runs without a row, or whose config is no longer the planned one, are passed over: so an older
    experiment, or another machine's, adds what it has.
    """
    plan = json.loads(manifest.read_text(encoding="utf-8"))
    collected = Collected(excluded=[{"experiment": plan["experiment"], **run} for run in plan.get("excluded", ())])
    seen: set[str] = set()

    def add(step: str, folder: str, links: Mapping[str, Any]) -> None:
        if folder in seen or (finished and not (root / folder / "row.csv").exists()):
            return
        seen.add(folder)
        known = from_config(MEASUREMENTS[step].table, read_config(root / folder), links)
        where = plan["hardware"] if MEASUREMENTS[step].on_device else ""
        who = {"hardware": where, "experiment": plan["experiment"], "recorded": False, "run": Path(folder).name}
        for row in read_rows(root / folder, step):
            # Only a run's own row brings its folder: the page would hold the samples once a line.
            own = root / folder if row["run"] == Path(folder).name else None
            collected.add(MEASUREMENTS[step].table, {**row, **known, **who, "run": row["run"]}, own)

    for run in plan["runs"]:
        if finished and _changed(root / run["folder"], run.get("config_digest")):
            continue
        ceilings = run.get("ceilings") or {}
        for folder in ceilings.values():
            add("ceilings", folder, {})
        if run.get("flops_folder"):
            add("count_flops", run["flops_folder"], {})
        add(run["step"], run["folder"], {"flops": run.get("flops_folder"), "compute": ceilings.get("compute")})
    return collected


def _changed(folder: Path, digest: str | None) -> bool:
    try:
        text = (folder / "config.json").read_bytes()
    except OSError:
        return False
    return digest is not None and hashlib.sha256(text).hexdigest()[: len(digest)] != digest


def from_config(table: str, config: Mapping[str, Any], links: Mapping[str, str | None]) -> Record:
    """Values that the join needs besides a run's row; `links` are folders of the runs it is joined with."""
    precision, workload = config.get("precision") or {}, config.get("workload") or {}
    flops, compute = links.get("flops"), links.get("compute")
    known: Record = {
        "flops_run": Path(flops).name if flops else None,
        "ceiling": Path(compute).name.partition("=")[2] if compute else None,
        "mode": workload.get("mode"),
        "gradient_accumulation": workload.get("gradient_accumulation"),
        "checkpointing": workload.get("checkpointing"),
        "optimizer": workload.get("optimizer"),
        "autocast": precision.get("autocast"),
        "dtype": precision.get("dtype"),
        "format": format_name(precision.get("dtype", ""), bool(precision.get("tf32"))),
    }
    return {name: known[name] for name in TABLES[table].linked}


def from_folder(results: Path, hardware: str) -> Collected:
    """The rows of a folder copied from another machine without its plan: links are found by equal configs."""
    counted = {_key(config): folder for folder, config in _runs(results / "count_flops")}
    ceilings = {_format(config): folder for folder, config in _runs(results / hardware / "ceilings")}
    collected = Collected()
    used: set[Path] = set()
    for step, measurement in MEASUREMENTS.items():
        table = measurement.table
        for folder, config in _runs(results / hardware / step):
            flops = counted.get(_key(config)) if step == "profile_step" else None
            used |= {flops} if flops else set()
            links = {"flops": str(flops) if flops else None, "compute": str(ceilings.get(_format(config), "")) or None}
            who = {"hardware": hardware, "experiment": "", "recorded": False, "run": folder.name}
            for row in read_rows(folder, step):
                own = folder if row["run"] == folder.name else None
                collected.add(table, {**row, **from_config(table, config, links), **who, "run": row["run"]}, own)
    for folder in sorted(used):
        who = {"hardware": "", "experiment": "", "recorded": False, "run": folder.name}
        collected.add("flops", {**read_row(folder, "count_flops"), **who}, folder)
    return collected


def _runs(folder: Path) -> Iterator[tuple[Path, Record]]:
    for config in sorted(folder.glob("*/config.json")):
        yield config.parent, read_config(config.parent)


def _format(config: Mapping[str, Any]) -> tuple[str | None, bool] | None:
    precision = config.get("precision")
    return (precision.get("dtype"), bool(precision.get("tf32"))) if precision else None


def _key(config: Mapping[str, Any]) -> str:
    """The config on which counting FLOPs depends, as text: equal for two runs that share a count."""
    try:
        wanted = {name: config[name] for name in CountFlopsConfig.model_fields if name in config}
        return CountFlopsConfig.model_validate(wanted).model_dump_json()
    except ValidationError:
        return ""


def from_recorded(folder: Path) -> Collected:
    """The rows of one recorded machine: its tables, whose joined columns are dropped to be joined anew."""
    collected = Collected()
    for table, measurement in RECORDED.items():
        for number, cells in enumerate(_lines(folder / f"{table}.csv", collected.problems), start=2):
            try:
                row = parse(measurement.row, cells)
                known = {name: _typed(name, cells.get(name)) for name in measurement.linked}
            except ValueError as error:
                collected.problems.append(f"{folder / table}.csv, line {number}: {_first_line(error)}")
                continue
            where = (row["hardware"] or folder.name) if measurement.on_device else ""
            who = {"hardware": where, "experiment": cells.get("experiment") or "", "recorded": True}
            collected.add(table, {**row, **known, **who})
    collected.series = [{**line, "recorded": "True"} for line in _lines(folder / "series.csv", collected.problems)]
    return collected


def _lines(path: Path, problems: list[str]) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        problems.append(f"{path}: {_first_line(error)}")
        return []


def _typed(name: str, text: str | None) -> Any:
    if text in (None, ""):
        return None
    if name in FLAGS:
        return text == "True"
    return text if name in TEXT else int(float(str(text)))


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}={first['input']!r}: {first['msg']}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
