"""Reads rows: of a planned experiment, another machine's copied folder, or a recorded machine."""

import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mfulab.core.files import (
    LARGEST,
    OF_A_RUN,
    AbsentError,
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
from mfulab.core.said import (
    Numbers,
    Said,
    as_told,
    cell_of,
    of_source,
    said_by,
    with_sentence,
)
from mfulab.lab.planning.foundations import changed, foundations
from mfulab.lab.planning.identity import identity as identity_of
from mfulab.lab.runtime.forked import in_parts
from mfulab.lab.tables.columns import (
    CellError,
    Record,
    Records,
    kept,
    kind,
    marked,
    with_counters,
)
from mfulab.measurements import manifest
from mfulab.measurements.count_flops import CountFlopsConfig
from mfulab.measurements.registry import MEASUREMENTS, TABLES

PROGRESS = ("measured", NOT_MEASURED, "to_come")  # states of a planned run, best first
ABOUT = "recording.json"
Problems = list[str | Said]
_Planned = tuple[manifest.PlannedRun, str, str]  # run, measurement, folder
OF_RECORDING = "recorded_file_unreadable"  # key of a problem with a file of a recording


@dataclass
class Collected:
    """Rows by table, the folder of each row, excluded runs, and problems met while reading.
    `upkeep` holds problems that only the maintainer of recordings can fix."""

    records: Records = field(default_factory=lambda: {table: [] for table in TABLES})
    folders: dict[str, Path] = field(default_factory=dict)
    excluded: list[dict[str, str]] = field(default_factory=list)
    series: list[dict[str, str]] = field(default_factory=list)
    problems: Problems = field(default_factory=list)
    upkeep: Problems = field(default_factory=list)
    # (measurement, run name) → best state of a planned run's processes, one of PROGRESS
    progress: dict[tuple[str, str], str] = field(default_factory=dict)

    def add_run(
        self,
        step: str,
        folder: Path,
        config: Record,
        links: Mapping[str, str | Path | None],
        **columns: str,
    ) -> None:
        """Adds the rows in a run's folder, with the columns that the join needs from its config.
        `columns` are added to each row."""
        table = MEASUREMENTS[step].table
        fields = from_config(table, config, links) | {"recorded": False, **columns}
        for row in read_rows(folder, step):
            self.records[table].append(row | fields)
            # Only the run's own row gets the folder, so that the page shows its samples once.
            if row["run"] == folder.name:
                self.folders[identity(table, row | fields)] = folder


def identity(table: str, record: Mapping[str, object]) -> str:
    """Returns a text that identifies a row across all tables. The page uses it too."""
    prefix = "recorded/" if record["recorded"] else ""
    return f"{prefix}{record['hardware']}/{table}/{record['run']}"


def parse(model: type[Row], cells: Mapping[str, str | None]) -> Record:
    """Converts a CSV line to its row's typed values; empty cells, NaN and infinity become None.
    Raises CellError, or pydantic's ValidationError, for invalid cells."""
    fields = model.model_fields  # read once, as pydantic looks it up each time
    row = model.model_validate(
        {name: text for name, text in cells.items() if name in fields and text}
    )
    if problem := impossible(row, datetime.now(UTC)):
        raise CellError(problem)
    values = dict(vars(row))  # iterating over a model takes ten times as long
    for name, value in vars(row).items():
        if isinstance(value, float) and not math.isfinite(value):
            values[name] = None
    return values


def read_row(folder: Path, step: str) -> Record:
    """Reads the row in a run's folder. If it is missing, truncated or invalid, returns a row of
    status `failed` whose message says so."""
    path = folder / "row.csv"
    measurement = MEASUREMENTS[step]
    try:
        row = _checked_row(path, measurement)
    except FileNotFoundError:
        problem = Said("row_absent", path=str(path))
    except ValueError as error:
        problem = Said("row_unreadable", reason=_fault_in(path, error))
    else:
        ahead = clock_was_ahead(row["started_at"], datetime.now(UTC))
        if ahead:
            row["message"] = with_sentence(row["message"], ahead)
        return row
    return _failed({**measurement.row().model_dump(), "run": folder.name}, problem)


def _checked_row(path: Path, measurement: Measurement) -> Record:
    """Reads a run's `row.csv`. Raises FileNotFoundError if it is missing, and ValueError if it does
    not hold one valid row of this run."""
    lines = read_csv(path)
    if len(lines) != 1:
        raise UnreadableError(path, Said("lines_instead_of_one", count=len(lines)))
    row = parse(measurement.row, lines[0])
    run = path.parent
    hardware = ""
    if measurement.on_device:
        hardware = run.parents[1].name
    if (row["run"], row["hardware"]) != (run.name, hardware):
        raise CellError(Said("row_of_another", pick_all(row, ("run", "hardware"))))
    if not lines[0].get("status"):
        raise CellError(Said("status_empty"))
    return row


def _failed(row: Record, problem: Said) -> Record:
    return {**row, "status": "failed", "message": cell_of(problem)}


def read_rows(folder: Path, step: str) -> list[Record]:
    """Reads the rows of a run: its own, or one for each line of samples.csv if its measurement
    reports many and succeeded."""
    row = read_row(folder, step)
    path = folder / "samples.csv"
    measurement = MEASUREMENTS[step]
    if not measurement.lines or row["status"] != "ok":
        return [row]
    common = pick_all(row, ("commit", "started_at"))
    rows = []
    try:
        for number, cells in enumerate(read_csv(path), start=1):
            line = parse(measurement.row, cells)
            rows.append({**line, **common, "run": f"{folder.name},line={number}"})
    except (FileNotFoundError, ValueError) as error:
        return [_failed(row, Said("samples_unreadable", reason=_fault_in(path, error)))]
    return rows


def _fault_in(path: Path, error: Exception) -> Said:
    """The sentence for an error of reading a file, which names the file once."""
    if isinstance(error, AbsentError | UnreadableError):
        return error.said
    return of_source(str(path), first_fault(error))


def read_config(folder: Path, problems: Problems | None = None) -> Record:
    """Reads a run's config; empty if it is missing or unreadable. An unreadable file is added to
    `problems`."""
    try:
        return read_json(folder / "config.json")
    except FileNotFoundError:
        return {}
    except UnreadableError as error:
        if problems is not None:
            problems.append(Said("config_unreadable", reason=error.said))
        return {}


def from_manifest(path: Path, root: Path = Path(), *, finished: bool = False) -> Collected:
    """Reads the rows of a planned experiment, in folders below `root`. If `finished`, runs without
    a row of their current config are left out."""
    collected = Collected()
    try:
        plan = manifest.read(path)
    except (FileNotFoundError, UnreadableError) as error:
        collected.problems.append(Said("experiment_not_shown", reason=said_by(error)))
        return collected
    collected.excluded = [{"experiment": plan.experiment, **dict(run)} for run in plan.excluded]

    def read(folders: Sequence[_Planned]) -> list[Collected]:
        return [_planned_rows(plan, root, folders)]

    for part in in_parts(read, [*_folders_to_read(plan, root, finished)]):
        for table, rows in part.records.items():
            collected.records[table].extend(rows)
        collected.folders |= part.folders
        collected.problems.extend(part.problems)
    _add_progress(collected, plan, root)
    return collected


def _planned_rows(plan: manifest.Manifest, root: Path, folders: Iterable[_Planned]) -> Collected:
    """Reads the rows in some folders of a plan."""
    collected = Collected()
    inside = _Inside(root / "results")
    for run, step, folder in folders:
        path = root / folder
        if inside.holds(path):
            _add_planned(collected, plan, run, step, path)
        else:
            collected.problems.append(Said("run_leads_out", path=str(path)))
    return collected


class _Inside:
    """A folder and those below it. Remembers the folders of runs, as each has thousands."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._resolved: dict[Path, bool] = {}

    def holds(self, path: Path) -> bool:
        """True if a path, with symbolic links resolved, lies in the folder."""
        if path.name == ".." or path.is_symlink():
            return path.resolve().is_relative_to(self._folder)
        parent = path.parent
        if parent not in self._resolved:
            self._resolved[parent] = parent.resolve().is_relative_to(self._folder)
        return self._resolved[parent]


def _folders_to_read(plan: manifest.Manifest, root: Path, finished: bool) -> Iterator[_Planned]:
    """Yields (run, measurement, folder) of each folder of a plan, once; if `finished`, only those
    with a row of their current config."""
    seen = set[str]()
    planned = {run.folder for run in plan.runs}
    for planned_run in plan.runs:
        for run in (planned_run, *_smaller(root, planned_run, planned)):
            if finished and _changed(root, run):
                continue
            for step, folder in _folders_of(root, run, planned):
                is_absent = finished and not (root / folder / "row.csv").exists()
                if folder not in seen and not is_absent:
                    seen.add(folder)
                    yield run, step, folder


def _folders_of(
    root: Path, run: manifest.PlannedRun, planned: Container[str]
) -> Iterator[tuple[str, str]]:
    """Yields (measurement, folder) of the runs that a planned run is joined with, then of its own
    processes."""
    for folder in run.ceilings.values():
        yield "ceilings", folder
    if run.flops_folder:
        yield "count_flops", run.flops_folder
    yield run.step, run.folder
    for folder in _unplanned_replicates(root, run.step, run.folder, planned):
        yield run.step, folder


def _add_planned(
    collected: Collected, plan: manifest.Manifest, run: manifest.PlannedRun, step: str, path: Path
) -> None:
    """Adds the rows in one folder of a plan."""
    config = read_config(path, collected.problems)
    hardware = ""
    if MEASUREMENTS[step].on_device:
        hardware = plan.hardware
    links: dict[str, str | None] = {}
    if step == run.step:
        links = {"flops": run.flops_folder, "compute": run.ceilings.get("compute")}
    collected.add_run(step, path, config, links, hardware=hardware, experiment=plan.experiment)


def _add_progress(collected: Collected, plan: manifest.Manifest, root: Path) -> None:
    """Sets the best state of each planned run's processes, from the rows already read."""
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
    """Yields the runs of halved batches that were measured because `run` ran out of memory."""
    half = halved(run.folder)
    while half not in planned and half != run.folder and (root / half / STANDS_IN).exists():
        if (
            not (root / half / "row.csv").exists()
            or read_row(root / run.folder, run.step)["status"] != "out_of_memory"
        ):
            return
        name = Path(half).name
        flops_folder: str | None = f"results/count_flops/{name}"
        if not (root / "results/count_flops" / name).exists():
            flops_folder = run.flops_folder
        changes = {"folder": half, "run": name, "flops_folder": flops_folder, "config_digest": None}
        run = run.model_copy(update=changes)
        yield run
        half = halved(run.folder)


def _unplanned_replicates(
    root: Path, step: str, folder: str, planned: Container[str]
) -> Iterator[str]:
    """Yields folders of replicates beyond those planned, as `mfulab refine` adds them, while config
    and code are the same."""
    while (later := numbered(base_name(folder), replicate_of(folder) + 1)) not in planned:
        if not (root / later / "row.csv").exists():
            return
        if _config_identity(step, root / folder) != _config_identity(step, root / later):
            return
        origin = _Origin.of(read_row(root / folder, step))
        if not origin.may_precede(_Origin.of(read_row(root / later, step))):
            return
        yield later
        folder = later


@dataclass(frozen=True)
class _Origin:
    """Commit and start of the process that measured a row; empty if not recorded."""

    commit: str
    started_at: str

    @classmethod
    def of(cls, row: Record) -> "_Origin":
        return cls(row["commit"] or "", row["started_at"])

    def may_precede(self, later: "_Origin") -> bool:
        """True if a later process ran the same clean commit, or did not start earlier."""
        is_clean = self.commit != "" and not self.commit.endswith("-dirty")
        if is_clean and self.commit == later.commit:
            return True
        return later.started_at >= self.started_at


def _config_identity(step: str, folder: Path) -> str:
    """Identity of a folder's config, the same for all replicates of a run."""
    return identity_of(step, json.dumps(read_config(folder) | {"replicate": 1}))


def _changed(root: Path, run: manifest.PlannedRun) -> bool:
    """True if the config in a run's folder differs from the planned config."""
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
    """Returns the columns that the join needs besides a run's row. `links` are the folders of its
    FLOP count (`flops`) and ceiling (`compute`)."""
    flops = Path(links.get("flops") or "").name
    compute = Path(links.get("compute") or "").name
    dtype = _config_value(config, "precision.dtype", str) or ""
    values: Record = {}
    for name, (path, type_) in _kept_columns(table).items():
        if path:
            values[name] = _config_value(config, path, type_)
        elif name == "flops_run":
            values[name] = flops or None
        elif name == "ceiling":
            values[name] = ceiling_name(compute) if compute else None
        elif name == "format":
            values[name] = format_name(dtype, bool(_config_value(config, "precision.tf32", bool)))
    return values


@cache  # called for every row of a table
def _kept_columns(table: str) -> dict[str, tuple[str, type]]:
    """Config path and type of each column that recordings keep; the path is empty for a link."""
    return {
        name: (marked(field, "config"), kind(field)) for name, field in kept(TABLES[table]).items()
    }


def _config_value(config: Mapping[str, object], path: str, wanted: type) -> Any:
    """Returns the value of a config at `GROUP.KEY`; None if absent, of another type or out of
    range."""
    group, _, key = path.partition(".")
    keys = config.get(group)
    value = None
    if isinstance(keys, Mapping):
        value = keys.get(key)
    if type(value) is wanted and (wanted is str or is_in_range(value)):
        return value
    return None


def ceiling_name(run: str) -> str:
    """Name of the ceiling that a run of `ceilings` measured, with its conditions: `fp32`,
    `fp32,device.threads=1`."""
    return base_name(run).partition("=")[2]


def from_folder(results: Path, hardware: str) -> Collected:
    """Reads the rows of a folder copied from another machine without its plan. Runs are linked by
    equal configs."""
    collected = Collected()
    used = set[Path]()

    def runs(folder: Path, problems: Problems | None = None) -> Iterator[tuple[Path, Record]]:
        for path in sorted(folder.glob("*/config.json")):
            if is_inside(path.parent, folder):
                yield path.parent, read_config(path.parent, problems)

    counted = _by_key(runs(results / "count_flops"), _count_key)
    ceilings = _by_key(runs(results / hardware / "ceilings"), _ceiling_key)
    for step in MEASUREMENTS:
        for folder, config in runs(results / hardware / step, collected.problems):
            links = {"compute": ceilings.get(_ceiling_key(config))}
            if step == "profile_step" and (flops := counted.get(_count_key(config))):
                links["flops"] = flops
                used.add(flops)
            collected.add_run(step, folder, config, links, hardware=hardware, experiment="")
    for folder in sorted(used):
        config = read_config(folder)
        collected.add_run("count_flops", folder, config, {}, hardware="", experiment="")
    return collected


def _by_key(
    runs: Iterable[tuple[Path, Record]], key: Callable[[Record], Hashable | None]
) -> Mapping[Hashable | None, Path]:
    """Folders of runs by the key of their config, without those that have none."""
    folders = dict[Hashable | None, Path]()
    for folder, config in runs:
        found = key(config)
        if found is not None:
            folders[found] = folder
    return folders


def _ceiling_key(config: Mapping[str, object]) -> tuple[object, ...] | None:
    """Number format and threads, by which a run finds its ceiling; None if the config has no
    precision."""
    precision = config.get("precision")
    if not isinstance(precision, Mapping):
        return None
    threads = None
    device = config.get("device")
    if isinstance(device, Mapping):
        threads = device.get("threads")
    return str(precision.get("dtype")), bool(precision.get("tf32")), threads


def _count_key(config: Mapping[str, object]) -> str | None:
    """Key by which runs share a FLOP count: the part of a config that counting depends on, as JSON.
    None if invalid."""
    try:
        wanted = pick_present(config, CountFlopsConfig.model_fields)
        return CountFlopsConfig.model_validate(wanted).model_dump_json()
    except ValidationError:
        return None


def from_recorded(folder: Path) -> Collected:
    """Reads the rows of a recorded machine, or of the public ones. Joined columns are dropped, to
    be computed anew."""
    collected = Collected()
    problems = collected.upkeep
    for table in TABLES:
        path = folder / f"{table}.csv"
        seen: set[tuple[str, str]] = set()
        lines = read_lines(path, problems, OF_RECORDING, LARGEST)
        for number, line in enumerate(lines, start=2):
            try:
                row = _recorded_row(table, line, seen)
            except ValueError as error:
                problems.append(
                    Said("line_unreadable", file=str(path), line=number, reason=first_fault(error))
                )
                continue
            if TABLES[table].on_device:
                row["hardware"] = row["hardware"] or folder.name
            else:
                row["hardware"] = ""
            collected.records[table].append(row)
    for line in read_lines(folder / "series.csv", problems, OF_RECORDING, LARGEST):
        collected.series.append(line | {"recorded": "True"})
    return collected


def _recorded_row(table: str, line: Mapping[str, str], seen: set[tuple[str, str]]) -> Record:
    """Converts a line of a recorded table to its row. Adds its machine and run to `seen`. Raises
    ValueError if a cell is invalid, or the run is empty or already seen."""
    measurement = TABLES[table]
    cells = with_counters(line)
    row = parse(measurement.row, cells) | _kept_values(measurement, cells)
    if not row["run"]:
        raise CellError(Said("run_empty"))
    identification = (row["hardware"], row["run"])
    if identification in seen:
        raise CellError(Said("run_there_twice", run=row["run"]))
    seen.add(identification)
    return row | {"experiment": cells.get("experiment") or "", "recorded": True}


def aged(folder: Path) -> Problems:
    """Reports how many recorded measurements have changed foundations, such as code, by measurement
    and part, and of how many nothing is known. Empty if none has, or the recording holds no
    digests."""
    try:
        recorded = read_json(folder / ABOUT).get("code", {})
    except FileNotFoundError:
        return []
    except UnreadableError as error:
        return [str(error)]
    if not isinstance(recorded, Mapping):
        return [f"{folder / ABOUT}: code: holds a {type(recorded).__name__} instead of an object"]
    stale = list[str]()
    unknown = list[str]()  # of an older form: one digest of all parts together
    parts = defaultdict[str, Counter[str]](Counter)
    for name, digests in recorded.items():
        if not isinstance(digests, dict):
            unknown.append(name)
        elif found := changed(digests, foundations(name, folder.name)):
            stale.append(name)
            parts[name.partition(",")[0]].update(found)
    problems: Problems = []
    about: Numbers = {"folder": str(folder), "total": len(recorded)}
    if unknown:
        numbers: Numbers = {"number": len(unknown), "name": min(unknown).rstrip(",")}
        problems.append(Said("recording_of_older_form", **about, **numbers))
    if stale:
        by_step = [f"{step} ({_by_part(counts)})" for step, counts in sorted(parts.items())]
        names: Numbers = {"parts": "; ".join(by_step), "name": min(stale).rstrip(",")}
        problems.append(Said("recording_aged", **about, number=len(stale), **names))
    return problems


def _by_part(counts: Counter[str]) -> str:
    return ", ".join(f"{part}: {count}" for part, count in counts.most_common())


def read_lines(
    path: Path, problems: Problems, consequence: str, most: int = OF_A_RUN
) -> list[dict[str, str]]:
    """Reads the lines of a CSV file; empty if it is missing or unreadable. An unreadable file is
    added to `problems`, as the sentence with key `consequence`."""
    if not os.path.lexists(path) and os.access(path.parent, os.X_OK):
        return []  # most runs lack most files, and the error that says so takes longer than reading
    try:
        return read_csv(path, most)
    except FileNotFoundError:
        return []
    except UnreadableError as error:
        problems.append(Said(consequence, reason=error.said))
        return []


def _kept_values(measurement: Measurement, cells: Mapping[str, str | None]) -> Record:
    names = _kept_columns(measurement.table)
    filled = {name: cells[name] for name in names if cells.get(name)}
    values = measurement.joined.model_validate(filled).model_dump(include={*names})
    for name, value in values.items():
        if not isinstance(value, str) and not is_in_range(value):
            raise CellError(Said("cell_out_of_range", cell=name, value=cells[name]))
    return values


def first_fault(error: Exception) -> Said:
    """The sentence that an error carries, or its first line; for pydantic's errors, the first
    invalid cell."""
    if isinstance(getattr(error, "said", None), Said):
        return said_by(error)
    return as_told(first_line(error))


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message; for pydantic's errors, the first invalid cell
    and its column."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}={str(first['input'])[:80]!r}: {first['msg']}"
    if str(error):
        return str(error).splitlines()[0]
    return type(error).__name__
