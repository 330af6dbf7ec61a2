"""Reads rows: of a planned experiment, another machine's copied folder, or a recorded machine."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mfulab.core.files import (
    LARGEST,
    OF_A_RUN,
    UnreadableError,
    is_inside,
    read_csv,
    read_json,
    read_text,
)
from mfulab.core.formats import format_name
from mfulab.core.measurement import Measurement
from mfulab.core.parts import pick_all, pick_present
from mfulab.core.replicates import STANDS_IN, base_name, halved, numbered, replicate_of
from mfulab.core.rows import (
    NOT_MEASURED,
    Row,
    clock_was_ahead,
    impossible,
    is_in_range,
)
from mfulab.core.said import LONGEST_CELL, Said, with_sentence
from mfulab.lab.planning.foundations import PARTS, changed, foundations
from mfulab.lab.planning.identity import identity as identity_of
from mfulab.lab.tables.columns import Record, Records, kept, kind, marked, with_counters
from mfulab.measurements import manifest
from mfulab.measurements.count_flops import CountFlopsConfig
from mfulab.measurements.registry import MEASUREMENTS, TABLES

PROGRESS = ("measured", NOT_MEASURED, "to_come")  # best first
ABOUT = "recording.json"
Problems = list[str | Said]
AGAIN = "Remove its folder and give the command again: it is measured anew."


@dataclass
class Collected:
    """Rows by table, the folder of each row, runs left out on purpose, and what could not be read:
    `upkeep` is what only who keeps recordings can mend."""

    records: Records = field(default_factory=lambda: {table: [] for table in TABLES})
    folders: dict[str, Path] = field(default_factory=dict)
    excluded: list[dict[str, str]] = field(default_factory=list)
    series: list[dict[str, str]] = field(default_factory=list)
    problems: Problems = field(default_factory=list)
    upkeep: Problems = field(default_factory=list)
    # By measurement and name of each planned run: the best state of its processes, one of PROGRESS.
    progress: dict[tuple[str, str], str] = field(default_factory=dict)

    def add_run(
        self,
        step: str,
        place: Path,
        config: Record,
        links: Mapping[str, str | Path | None],
        **who: str,
    ) -> None:
        """Adds the rows of a run's folder, with what the join needs of its config; `who` are
        further columns."""
        table = MEASUREMENTS[step].table
        fields = from_config(table, config, links) | {"recorded": False, **who}
        for row in read_rows(place, step):
            self.records[table].append(row | fields)
            # a run's own row alone brings its folder: the page shows its samples once
            if row["run"] == place.name:
                self.folders[identity(table, row | fields)] = place


def identity(table: str, record: Mapping[str, object]) -> str:
    """One text for one row of all tables, also on the page."""
    return (
        f"{'recorded/' if record['recorded'] else ''}{record['hardware']}/{table}/{record['run']}"
    )


def parse(model: type[Row], cells: Mapping[str, str | None]) -> Record:
    """A CSV line as its row's typed values; empty cells, NaN and infinity are None. Raises
    ValueError for bad cells."""
    fields = model.model_fields  # asked once: pydantic looks it up anew each time
    row = model.model_validate(
        {name: text for name, text in cells.items() if name in fields and text}
    )
    if problem := impossible(row, datetime.now(UTC)):
        raise ValueError(problem)
    values = dict(row)
    for name, value in row:
        if isinstance(value, float) and not math.isfinite(value):
            values[name] = None
    return values


def read_row(folder: Path, step: str) -> Record:
    """The row of one run's folder. One that is missing, truncated or not a row comes back as
    `failed`, saying so."""
    path = folder / "row.csv"
    measurement = MEASUREMENTS[step]
    try:
        lines = read_csv(path)
        if len(lines) != 1:
            raise UnreadableError(path, Said("lines_instead_of_one", {"count": len(lines)}))
        row = parse(measurement.row, lines[0])
        who = {
            "run": folder.name,
            "hardware": folder.parents[1].name if measurement.on_device else "",
        }
        for name, value in who.items():
            if row[name] != value:
                raise ValueError(f"{name}={row[name]!r}: a row of another {name} than {value!r}")
        if not lines[0].get("status"):
            raise ValueError("status: empty, so that it does not say what became of the run")
        ahead = clock_was_ahead(row["started_at"], datetime.now(UTC))
        if ahead:
            return row | {"message": with_sentence(row["message"], ahead)}
        return row
    except FileNotFoundError:
        message = f"no row: {path} does not exist"
    except ValueError as error:
        says = str(error) if isinstance(error, UnreadableError) else f"{path}: {first_line(error)}"
        message = f"unreadable row: {says}. {AGAIN}"
    return _failed({**measurement.row().model_dump(), "run": folder.name}, message)


def _failed(row: Record, message: str) -> Record:
    return {**row, "status": "failed", "message": message[:LONGEST_CELL]}


def read_rows(folder: Path, step: str) -> list[Record]:
    """The rows that one run reports: its own, or its samples' lines where its measurement reports
    many and it is ok."""
    row = read_row(folder, step)
    path = folder / "samples.csv"
    if not MEASUREMENTS[step].lines or row["status"] != "ok":
        return [row]
    try:
        rows = [parse(MEASUREMENTS[step].row, cells) for cells in read_csv(path)]
    except (FileNotFoundError, ValueError) as error:
        return [_failed(row, f"unreadable samples: {path}: {first_line(error)}. {AGAIN}")]
    same = pick_all(row, ("commit", "started_at"))
    return [
        {**line, **same, "run": f"{folder.name},line={number}"}
        for number, line in enumerate(rows, 1)
    ]


def read_config(folder: Path, problems: Problems | None = None) -> Record:
    """A run's config, empty if it cannot be read; the reason is added to `problems`."""
    try:
        return read_json(folder / "config.json")
    except (FileNotFoundError, UnreadableError) as error:
        if problems is not None and isinstance(error, UnreadableError):
            problems.append(f"{error}. Its row is shown without what it is joined with. {AGAIN}")
        return {}


def from_manifest(path: Path, root: Path = Path(), *, finished: bool = False) -> Collected:
    """The rows of one planned experiment with folders below `root`; if `finished`, of its runs with
    a current row."""
    collected = Collected()
    try:
        plan = manifest.read(path)
    except (FileNotFoundError, UnreadableError) as error:
        collected.problems.append(
            f"{error}. Its experiment is not shown: plan it again, or remove the file."
        )
        return collected
    collected.excluded = [{"experiment": plan.experiment, **dict(run)} for run in plan.excluded]
    seen = set[str]()
    planned = {run.folder for run in plan.runs}
    for asked in plan.runs:
        for run in (asked, *_smaller(root, asked, planned)):
            if finished and _changed(root, run):
                continue
            for step, folder in _wanted(root, run, planned):
                is_absent = finished and not (root / folder / "row.csv").exists()
                if folder not in seen and not is_absent:
                    seen.add(folder)
                    _add_planned(collected, plan, run, step, root, folder)
    _add_progress(collected, plan, root)
    return collected


def _wanted(
    root: Path, run: manifest.PlannedRun, planned: Container[str]
) -> Iterator[tuple[str, str]]:
    """(measurement, folder) of what a planned run is joined with, then of its processes."""
    for folder in run.ceilings.values():
        yield "ceilings", folder
    if run.flops_folder:
        yield "count_flops", run.flops_folder
    yield run.step, run.folder
    for folder in _further(root, run.step, run.folder, planned):
        yield run.step, folder


def _add_planned(collected: Collected, plan: manifest.Manifest, run: manifest.PlannedRun, step: str,
                 root: Path, folder: str) -> None:  # fmt: skip
    """Adds the rows of one folder of a plan; a link out of the results is a problem instead."""
    path = root / folder
    if not is_inside(path, root / "results"):
        collected.problems.append(f"{path}: leads out of the results and is not read.")
        return
    config = read_config(path, collected.problems)
    hardware = ""
    if MEASUREMENTS[step].on_device:
        hardware = plan.hardware
    links: dict[str, str | None] = {}
    if step == run.step:
        links = {"flops": run.flops_folder, "compute": run.ceilings.get("compute")}
    collected.add_run(step, path, config, links, hardware=hardware, experiment=plan.experiment)


def _add_progress(collected: Collected, plan: manifest.Manifest, root: Path) -> None:
    """Notes the best state of each planned run's processes, by their rows, which are read
    already."""
    left_out = set[tuple[str, str]]()
    for table, rows in collected.records.items():
        left_out.update((table, row["run"]) for row in rows if row["status"] == NOT_MEASURED)
    for run in plan.runs:
        key = (run.step, base_name(run.run))
        state = "measured"
        if not (root / run.folder / "row.csv").exists() or _changed(root, run):
            state = "to_come"
        elif (MEASUREMENTS[run.step].table, run.run) in left_out:
            state = NOT_MEASURED
        collected.progress[key] = min(collected.progress.get(key, state), state, key=PROGRESS.index)


def _smaller(
    root: Path, run: manifest.PlannedRun, planned: Container[str]
) -> Iterator[manifest.PlannedRun]:
    """Runs of smaller batches that were measured because that of `run` did not fit."""
    half = halved(run.folder)
    while half not in planned and half != run.folder and (root / half / STANDS_IN).exists():
        if (
            not (root / half / "row.csv").exists()
            or read_row(root / run.folder, run.step)["status"] != "out_of_memory"
        ):
            return
        name = Path(half).name
        counted = (
            f"results/count_flops/{name}"
            if (root / "results/count_flops" / name).exists()
            else run.flops_folder
        )
        run = run.model_copy(
            update={"folder": half, "run": name, "flops_folder": counted, "config_digest": None}
        )
        yield run
        half = halved(run.folder)


def _further(root: Path, step: str, folder: str, planned: Container[str]) -> Iterator[str]:
    """Later processes of a run than are planned, as `mfulab refine` adds them: of its config, and
    of its code."""
    while (later := numbered(base_name(folder), replicate_of(folder) + 1)) not in planned:
        if not (root / later / "row.csv").exists():
            return
        if _asked(step, root / folder) != _asked(step, root / later):
            return
        if not _is_of_same_code(read_row(root / folder, step), read_row(root / later, step)):
            return
        yield later
        folder = later


def _is_of_same_code(row: Record, later: Record) -> bool:
    """True if a later process was measured by the same commit; where that says nothing, because
    code was changed or there is no git, if it is not older."""
    commit = row["commit"] or ""
    is_certain = commit != "" and not commit.endswith("-dirty")
    if is_certain and commit == later["commit"]:
        return True
    return later["started_at"] >= row["started_at"]


def _asked(step: str, folder: Path) -> str:
    """Identity of what a folder's config asks for, whichever of its processes it is."""
    return identity_of(step, json.dumps(read_config(folder) | {"replicate": 1}))


def _changed(root: Path, run: manifest.PlannedRun) -> bool:
    """True if a folder's config asks for another run than the plan."""
    if run.config_digest is None:
        return False
    try:
        text = read_text(root / run.folder / "config.json")
    except (FileNotFoundError, UnreadableError):
        return False
    return run.config_digest != identity_of(run.step, text)


def from_config(
    table: str, config: Mapping[str, Any], links: Mapping[str, str | Path | None]
) -> Record:
    """Values that the join needs besides a run's row; `links` are folders of the runs it is joined
    with."""
    flops = Path(links.get("flops") or "").name
    compute = Path(links.get("compute") or "").name
    dtype = _given(config, "precision.dtype", str) or ""
    values: Record = {}
    for name, (path, type_) in _kept_columns(table).items():
        if path:
            values[name] = _given(config, path, type_)
        elif name == "flops_run":
            values[name] = flops or None
        elif name == "ceiling":
            values[name] = ceiling_name(compute) if compute else None
        elif name == "format":
            values[name] = format_name(dtype, bool(_given(config, "precision.tf32", bool)))
    return values


@cache  # the same for every row of a table
def _kept_columns(table: str) -> dict[str, tuple[str, type]]:
    """Path in the config, empty for a link, and type of each column that recordings keep."""
    return {
        name: (marked(field, "config"), kind(field)) for name, field in kept(TABLES[table]).items()
    }


def _given(config: Mapping[str, object], path: str, wanted: type) -> Any:
    """The value of a config at `GROUP.KEY`; None if it is absent, of another type or out of
    range."""
    group, _, key = path.partition(".")
    content = config.get(group)
    value = None
    if isinstance(content, Mapping):
        value = content.get(key)
    if type(value) is wanted and (wanted is str or is_in_range(value)):
        return value
    return None


def ceiling_name(run: str) -> str:
    """Name of what a run of `ceilings` measured, with its conditions: `fp32`,
    `fp32,device.threads=1`."""
    return base_name(run).partition("=")[2]


def from_folder(results: Path, hardware: str) -> Collected:
    """The rows of a folder copied from another machine without its plan: links are found by equal
    configs."""
    collected = Collected()
    used = set[Path]()

    def runs(folder: Path, problems: Problems | None = None) -> Iterator[tuple[Path, Record]]:
        for path in sorted(folder.glob("*/config.json")):
            if is_inside(path.parent, folder):
                yield path.parent, read_config(path.parent, problems)

    counted = {_counted(config): folder for folder, config in runs(results / "count_flops")}
    ceilings = {_format(config): folder for folder, config in runs(results / hardware / "ceilings")}
    for step in MEASUREMENTS:
        for folder, config in runs(results / hardware / step, collected.problems):
            links = {"compute": ceilings.get(_format(config))}
            if step == "profile_step" and (flops := counted.get(_counted(config))):
                links["flops"] = flops
                used.add(flops)
            collected.add_run(step, folder, config, links, hardware=hardware, experiment="")
    for place in sorted(used):
        collected.add_run("count_flops", place, read_config(place), {}, hardware="", experiment="")
    return collected


def _format(config: Mapping[str, object]) -> tuple[object, ...] | None:
    """Number format and threads, which a ceiling and the runs that are held against it share."""
    if not isinstance(precision := config.get("precision"), Mapping):
        return None
    threads = None
    if isinstance(device := config.get("device"), Mapping):
        threads = device.get("threads")
    return str(precision.get("dtype")), bool(precision.get("tf32")), threads


def _counted(config: Mapping[str, object]) -> str:
    """The config on which counting FLOPs depends, as text: equal for two runs that share a
    count."""
    try:
        wanted = pick_present(config, CountFlopsConfig.model_fields)
        return CountFlopsConfig.model_validate(wanted).model_dump_json()
    except ValidationError:
        return ""


def from_recorded(folder: Path) -> Collected:
    """The rows of one recorded machine, or of what is public. Joined columns are dropped: they are
    joined anew."""
    collected = Collected()
    problems = collected.upkeep
    again = "Record the machine again, or take the file from the repository."
    for table, measurement in TABLES.items():
        seen: set[tuple[str, str]] = set()
        lines = read_lines(folder / f"{table}.csv", problems, again, LARGEST)
        for number, line in enumerate(lines, start=2):
            try:
                cells = with_counters(line)
                row = parse(measurement.row, cells) | _kept(measurement, cells)
                if not row["run"] or (row["hardware"], row["run"]) in seen:
                    raise ValueError(
                        f"run={row['run']!r}: {'there twice' if row['run'] else 'empty'}"
                    )
            except ValueError as error:
                problems.append(f"{folder / table}.csv, line {number}: {first_line(error)}")
                continue
            seen.add((row["hardware"], row["run"]))
            where = ""
            if measurement.on_device:
                where = row["hardware"] or folder.name
            row |= {
                "hardware": where,
                "experiment": cells.get("experiment") or "",
                "recorded": True,
            }
            collected.records[table].append(row)
    series = read_lines(folder / "series.csv", problems, again, LARGEST)
    collected.series = [line | {"recorded": "True"} for line in series]
    return collected


def aged(folder: Path) -> Problems:
    """Foundations of a machine's recorded numbers that have changed since: how many
    measurements, of which kind, by which part. None where the recording holds no digests."""
    try:
        recorded = read_json(folder / ABOUT).get("code", {})
    except FileNotFoundError:
        return []
    except UnreadableError as error:
        return [str(error)]
    if not isinstance(recorded, Mapping):
        return [f"{folder / ABOUT}: code: holds a {type(recorded).__name__} instead of an object"]
    stale: dict[str, set[str]] = {}
    parts = defaultdict[str, Counter[str]](Counter)
    for name, digests in recorded.items():
        found = [*PARTS]  # of a digest that is none, or of another layout
        if isinstance(digests, dict):
            found = changed(digests, foundations(name, folder.name))
        if found:
            stale[name] = set(found)
            parts[name.partition(",")[0]].update(found)
    if not stale:
        return []
    each = "; ".join(f"{step} ({_by_part(counts)})" for step, counts in sorted(parts.items()))
    counts = {"number": len(stale), "total": len(recorded)}
    names = {"folder": str(folder), "parts": each, "name": min(stale)}
    return [Said("recording_aged", {**counts, **names})]


def _by_part(counts: Counter[str]) -> str:
    return ", ".join(f"{part} of {count}" for part, count in counts.most_common())


def read_lines(
    path: Path, problems: Problems, consequence: str, most: int = OF_A_RUN
) -> list[dict[str, str]]:
    """The lines of a CSV file; none where it is absent or unreadable, of which the latter is added
    to `problems`."""
    try:
        return read_csv(path, most)
    except FileNotFoundError:
        return []
    except UnreadableError as error:
        problems.append(f"{error}. {consequence}")
        return []


def _kept(measurement: Measurement, cells: Mapping[str, str | None]) -> Record:
    names = _kept_columns(measurement.table)
    given = measurement.joined.model_validate(
        {name: cells[name] for name in names if cells.get(name)}
    )
    values = given.model_dump(include={*names})
    for name, value in values.items():
        if not isinstance(value, str) and not is_in_range(value):
            raise ValueError(f"{name}={cells[name]}: out of range")
    return values


def first_line(error: Exception) -> str:
    """Gives an error in one line: of pydantic's the first bad cell, with its column."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}={str(first['input'])[:80]!r}: {first['msg']}"
    if str(error):
        return str(error).splitlines()[0]
    return type(error).__name__
