"""Where rows lie and how they are read: a planned experiment, another machine's copied folder, a recorded machine."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mfulab.report.columns import FLAGS, FROM_CONFIG, TABLE_OF, TABLES, TEXT, Record, Records
from mfulab.schema import ROWS, CountFlopsStep, Row


@dataclass
class Collected:
    """Rows by table, and what could not be read, in words."""

    records: Records = field(default_factory=lambda: {table: [] for table in TABLES})
    problems: list[str] = field(default_factory=list)


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
        return parse(ROWS[step], lines[0])
    except FileNotFoundError:
        message = f"no row: {path} does not exist"
    except (ValueError, csv.Error, UnicodeDecodeError, OSError) as error:
        message = f"unreadable row: {path}: {_first_line(error)}"
    return {**ROWS[step]().model_dump(), "run": folder.name, "status": "failed", "message": message}


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}={first['input']!r}: {first['msg']}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def from_config(table: str, config: Mapping[str, Any], flops_run: str | None, ceiling: str | None) -> Record:
    """What the join needs to know of a run that its row does not say."""
    precision = config.get("precision") or {}
    workload = config.get("workload") or {}
    known: Record = {
        "flops_run": flops_run,
        "ceiling": ceiling,
        "mode": workload.get("mode"),
        "gradient_accumulation": workload.get("gradient_accumulation"),
        "checkpointing": workload.get("checkpointing"),
        "dtype": precision.get("dtype"),
    }
    return {name: known[name] for name in FROM_CONFIG.get(table, ())}


def from_manifest(manifest: Path, root: Path) -> Collected:
    """The rows of one planned experiment. Folders in the manifest are relative to `root`, the project's folder."""
    plan = json.loads(manifest.read_text(encoding="utf-8"))
    collected = Collected()
    seen: set[tuple[str, str]] = set()

    def add(step: str, folder: str, extra: Record, hardware: str) -> None:
        if (step, folder) in seen:
            return
        seen.add((step, folder))
        row = read_row(root / folder, step)
        identity = {"hardware": hardware, "experiment": plan["experiment"], "recorded": False, "run": Path(folder).name}
        collected.records[TABLE_OF[step]].append({**row, **extra, **identity})

    hardware = plan["hardware"]
    for run in plan["runs"]:
        step, links = run["step"], run.get("ceilings") or {}
        table = TABLE_OF[step]
        for folder in filter(None, links.values()):
            add("ceilings", folder, {}, hardware)
        if run.get("flops_folder"):
            add("count_flops", run["flops_folder"], {}, "")
        flops_run = Path(run["flops_folder"]).name if run.get("flops_folder") else None
        ceiling = _ceiling_name(links.get("compute"))
        add(
            step, run["folder"], from_config(table, run.get("config") or {}, flops_run, ceiling), _where(step, hardware)
        )
    return collected


def _where(step: str, hardware: str) -> str:
    return "" if step == "count_flops" else hardware


def _ceiling_name(folder: str | None) -> str | None:
    return Path(folder).name.partition("=")[2] if folder else None


def from_folder(results: Path, hardware: str) -> Collected:
    """The rows of a folder copied from another machine: no plan came with it, so links are found by equal configs."""
    counted = {_key(config): folder.name for folder, config in _runs(results / "count_flops")}
    ceilings = {
        (config["precision"]["dtype"], config["precision"].get("tf32", False)): config["ceiling"]
        for _, config in _runs(results / hardware / "ceilings")
        if config.get("precision")
    }
    collected = Collected()
    used: set[str] = set()
    for step, table in TABLE_OF.items():
        if step == "count_flops":
            continue
        for folder, config in _runs(results / hardware / step):
            precision = config.get("precision") or {}
            flops_run = counted.get(_key(config)) if step == "profile_step" else None
            used |= {flops_run} if flops_run else set()
            ceiling = ceilings.get((precision.get("dtype"), precision.get("tf32", False)))
            identity = {"hardware": hardware, "experiment": "", "recorded": False, "run": folder.name}
            row = {**read_row(folder, step), **from_config(table, config, flops_run, ceiling), **identity}
            collected.records[table].append(row)
    for name in sorted(used):
        row = read_row(results / "count_flops" / name, "count_flops")
        collected.records["flops"].append({**row, "hardware": "", "experiment": "", "recorded": False, "run": name})
    return collected


def _runs(folder: Path) -> Iterator[tuple[Path, Record]]:
    for config in sorted(folder.glob("*/config.json")):
        try:
            yield config.parent, json.loads(config.read_text(encoding="utf-8"))
        except (ValueError, OSError):
            yield config.parent, {}


def _key(config: Mapping[str, Any]) -> str:
    """What counting FLOPs depends on, as text: equal for two runs that share a count."""
    try:
        wanted = {name: config[name] for name in CountFlopsStep.model_fields if name in config}
        return CountFlopsStep.model_validate(wanted).model_dump_json()
    except ValidationError:
        return ""


def from_recorded(folder: Path) -> Collected:
    """The rows of one recorded machine: its five tables, whose joined columns are dropped to be joined anew."""
    collected = Collected()
    for table, step in TABLES.items():
        path = folder / f"{table}.csv"
        if not path.exists():
            continue
        for number, cells in enumerate(_lines(path, collected.problems), start=2):
            try:
                row = parse(ROWS[step], cells)
            except ValidationError as error:
                collected.problems.append(f"{path}, line {number}: {_first_line(error)}")
                continue
            extra = {name: _typed(name, cells.get(name)) for name in FROM_CONFIG.get(table, ())}
            where = _where(step, row["hardware"] or folder.name)
            identity = {"hardware": where, "experiment": cells.get("experiment") or "", "recorded": True}
            collected.records[table].append({**row, **extra, **identity})
    return collected


def _lines(path: Path, problems: list[str]) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        problems.append(f"{path}: {_first_line(error)}")
        return []


def _typed(name: str, text: str | None) -> Any:
    if text in (None, ""):
        return None
    if name in FLAGS:
        return text == "True"
    return text if name in TEXT else int(float(text))
