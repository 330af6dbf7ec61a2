"""Builds the tables that figures and page read, from the rows of many runs on one or several
machines."""

import gc
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mfulab.core.files import is_inside, write_csv, write_json
from mfulab.core.parts import Row
from mfulab.core.said import Said, cell_of, packed_all
from mfulab.device import is_gpu
from mfulab.lab.runtime.forked import in_parts
from mfulab.lab.tables import cards, details, replicates
from mfulab.lab.tables import records as read
from mfulab.lab.tables.columns import LEADING, Column, Record, Records, columns, dictionary, written
from mfulab.lab.tables.records import Collected, ceiling_name, first_fault, identity
from mfulab.measurements.registry import NO_MACHINE, TABLES
from mfulab.mfu import headroom, join, traced
from mfulab.mfu import job as jobs

OBJECTS_MADE = 100_000  # allocations between garbage collections; Python's default is 700 to 2,000
PUBLIC = "public"  # folder of public traces and runs, of other people's machines
# in a run's name; equal names without it are the same step
PRECISION = re.compile(r"\bprecision=\w+")


def collect(
    manifests: Iterable[Path] = (),
    root: Path = Path(),
    *,
    also: Iterable[Path] = (),
    results: Path | None = None,
    reference: Path | None = None,
    recorded: str = "",
    partial: bool = False,
) -> Collected:
    """Collects and joins everything to be reported. `manifests` are the requested experiments. A
    run without a row counts as failed, or as still to come if `partial`. `also` are further plans,
    whose finished rows are added. Machines without a plan are read below `results`, and recorded
    ones below `reference`, only the one named `recorded` if given. If nothing was measured here,
    all recordings are read, else only those of GPUs of other kinds. A row already found is not
    replaced by a later one."""
    everything = Collected()
    requested = [*map(Path, manifests)]
    for manifest in dict.fromkeys([*requested, *also]):
        is_requested = manifest in requested
        planned_runs = read.from_manifest(manifest, root, finished=partial or not is_requested)
        _extend(everything, planned_runs)
        if is_requested:
            everything.progress |= planned_runs.progress
    if results is not None:
        for folder in _machines(results, everything):
            if is_inside(folder, results):
                _extend(everything, read.from_folder(results, folder.name))
    if reference is not None and reference.is_dir():
        _add_recorded(everything, reference, recorded)
    joined(replicates.merge(everything.records))
    everything.problems.extend(cards.slow(everything.records))
    return everything


def _machines(folder: Path, everything: Collected) -> list[Path]:
    """Returns the machines' folders in `folder`, by name, that have no row in `everything` yet."""
    known = set(NO_MACHINE)
    for rows in everything.records.values():
        for row in rows:
            known.add(row["hardware"])
    machines = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in known:
            machines.append(path)
    return machines


def _add_recorded(everything: Collected, reference: Path, name: str) -> None:
    """Adds recorded machines that are to be shown (only the one called `name`, if not empty), and
    public rows."""
    is_measured_here = any(everything.records.values())
    has_gpu = _has_gpu(everything.records)
    for folder in _machines(reference, everything):
        if name not in ("", folder.name):
            continue
        if is_inside(folder, reference):
            _add_machine(everything, folder, is_measured_here)
        else:
            everything.upkeep.append(Said("recording_leads_out", path=str(folder)))
    public = read.from_recorded(reference / PUBLIC)
    if is_measured_here:
        # Public runs would crowd out one's own, and public traces are for those who have a GPU.
        for table in public.records:
            if not (TABLES[table].lines or has_gpu):
                public.records[table] = []
    elif name:  # public traces are not of that machine
        public.records["traces"] = []
    _extend(everything, public)


def _has_gpu(records: Records) -> bool:
    """True if one of the machines has a GPU."""
    return any(is_gpu(row.get("device")) for row in records["environment"])


def _fault(problem: str | Said, *, of_recordings: bool) -> Record:
    """Line of problems.csv: a sentence, or its key and numbers as JSON."""
    if isinstance(problem, Said):
        return {"problem": "", "said": packed_all([problem]), "of_recordings": of_recordings}
    return {"problem": problem, "said": None, "of_recordings": of_recordings}


def _add_machine(everything: Collected, folder: Path, is_measured_here: bool) -> None:
    """Adds a recorded machine. If something was measured here, only a machine with GPUs is
    added."""
    machine = read.from_recorded(folder)
    if is_measured_here and not _has_gpu(machine.records):
        return
    _extend(everything, machine)
    if not is_measured_here:  # relevant only if recordings are all there is
        everything.upkeep.extend(read.aged(folder))


def _extend(everything: Collected, more: Collected) -> None:
    """Adds `more` to `everything`, without rows that are there already."""
    everything.problems.extend(more.problems)
    everything.upkeep.extend(more.upkeep)
    everything.excluded.extend(more.excluded)
    everything.series.extend(more.series)
    for table, rows in more.records.items():
        known = everything.records[table]
        present = {_duplicate_key(table, row) for row in known}
        for row in rows:
            if _duplicate_key(table, row) not in present:
                known.append(row)
    everything.folders = {**more.folders, **everything.folders}


def _duplicate_key(table: str, row: Record) -> str:
    """Key under which duplicate rows collapse. FLOP counts need no device: a recorded one equals
    ours."""
    if TABLES[table].on_device:
        return identity(table, row)
    return row["run"]


class _Machine(NamedTuple):
    """Identifies a machine; recorded ones are apart from measured ones."""

    hardware: str
    is_recorded: bool


def _machine(row: Row) -> _Machine:
    """The machine of a row."""
    return _Machine(row["hardware"], bool(row["recorded"]))


class _Ceiling(NamedTuple):
    """Identifies a ceiling by its name or its number format, and conditions such as threads."""

    machine: _Machine
    name: str | None
    conditions: str


class _Machines:
    """Devices and ceilings of all machines, recorded ones apart from measured ones."""

    def __init__(self, records: Records) -> None:
        self._devices: dict[_Machine, str | None] = {}
        for row in records["environment"]:
            self._devices[_machine(row)] = row.get("device")
        self._by_name: dict[_Ceiling, Record] = {}
        self._by_format: dict[_Ceiling, Record] = {}
        self._of_emulated: dict[_Ceiling, Record] = {}
        for row in records["ceilings"]:
            if row["status"] == "ok":
                machine = _machine(row)
                name, _, conditions = ceiling_name(row["run"]).partition(",")
                self._by_name[_Ceiling(machine, name, conditions)] = row
                self._by_format[_Ceiling(machine, row.get("format"), conditions)] = row

    def of(self, row: Record) -> tuple[Record, Record, str | None]:
        """Returns for a row: the ceiling of its matmuls and that of its memory, each empty if
        unknown, and its device."""
        machine = _machine(row)
        used = row.get("effective_precision")
        name, _, conditions = (row.get("ceiling") or "").partition(",")
        memory = self._by_name.get(_Ceiling(machine, "memory", conditions), {})
        ceiling = self._by_name.get(_Ceiling(machine, name, conditions), {})
        if used not in (None, ceiling.get("format")):
            # The matmuls used another format than the one that was requested.
            ceiling = self._by_format.get(_Ceiling(machine, used, conditions), {})
        if ceiling.get("emulated"):  # computed in fp32, so its ceiling is a copy of that one
            fp32 = self._by_format.get(_Ceiling(machine, "fp32", conditions))
            copied = {}
            if fp32:
                copied = {**fp32, "emulates": ceiling["format"]}
            emulated = _Ceiling(machine, ceiling["format"], conditions)
            ceiling = self._of_emulated.setdefault(emulated, copied)
        return ceiling, memory, self._devices.get(machine)


def judged(records: Records) -> Records:
    """Marks matmuls that are faster than their machine allows as `incorrect`."""
    machines = _Machines(records)
    for row in records["matmul"]:
        if impossible := join.faster_than_possible(row, *machines.of(row)):
            row |= {"status": "incorrect", "message": cell_of(impossible)}
    return records


def joined(records: Records) -> Records:
    """Adds the joined columns to all records. Lookups stay within one machine, and recorded
    machines apart from measured ones."""
    lookups = _Lookups(judged(records))
    steps = records["profile"]
    matmuls = records["matmul"]
    traces = records.get("traces", [])
    _raise_ceilings(matmuls, steps, lookups)
    _fill(steps, lookups.profile_columns, _check_ranks)
    _fill(matmuls, lookups.matmul_columns)
    _fill(records.get("readings", []), lookups.reading_columns)
    lookups.find_best_speeds(matmuls)  # of matmuls that did not fail above
    _fill(traces, lookups.trace_columns, _check_collectives)
    if traces:
        from mfulab.measurements.read_trace import ranks

        ranks.joined(traces)
    return records


class _Lookups:
    """Looks up the values that rows of all machines are joined with: devices, ceilings, FLOP
    counts, and times in fp32."""

    def __init__(self, records: Records) -> None:
        self.machines = _Machines(records)
        # FLOP counts have no hardware. If a run was counted twice, the later wins: the measured
        # one.
        self._flops: dict[str, Record] = {}
        for row in sorted(records["flops"], key=lambda row: not row["recorded"]):
            self._flops[row["run"]] = row
        self._in_fp32_s: dict[tuple[_Machine, str], float | None] = {}
        for row in records["profile"]:
            if row["status"] == "ok":
                self._in_fp32_s[_machine(row), row["run"]] = row.get("time_s")
        self._device_names: dict[_Machine, str | None] = {}
        for row in records["environment"]:
            self._device_names[_machine(row)] = row.get("device_name")
        self._best_speeds: dict[str, dict[headroom.Matmul, float]] = {}

    def find_best_speeds(self, matmuls: Iterable[Record]) -> None:
        """Finds each device's best speed by format, with which traces are joined."""
        of_devices = []
        for row in matmuls:
            of_devices.append((self._device_names.get(_machine(row)), row))
        self._best_speeds = headroom.best_speeds(of_devices)

    def counted(self, step: Record) -> Record:
        """The FLOP count of a step; empty if there is none."""
        return self._flops.get(step["flops_run"], {})

    def profile_columns(self, row: Record) -> Record:
        """Columns that the join adds to a step."""
        same_in_fp32 = PRECISION.sub("precision=fp32", row["run"])
        in_fp32_s = self._in_fp32_s.get((_machine(row), same_in_fp32))
        ceiling, memory, device = self.machines.of(row)
        return join.profile_columns(row, self.counted(row), ceiling, memory, device, in_fp32_s)

    def matmul_columns(self, row: Record) -> Record:
        """Columns that the join adds to a matmul."""
        ceiling, _, device = self.machines.of(row)
        return join.matmul_columns(row, ceiling, device)

    def reading_columns(self, row: Record) -> Record:
        """Columns that the join adds to a reading."""
        ceiling, _, device = self.machines.of(row)
        return join.reading_columns(row, ceiling, device)

    def trace_columns(self, row: Record) -> Record:
        """Columns that the join adds to a trace."""
        return traced.trace_columns(row, self._best_speeds.get(row.get("device") or ""))


def _check_ranks(step: Record) -> None:
    """Raises if the ranks of a step are invalid; `write` reads them."""
    if step.get("ranks"):
        jobs.rank_rows(step)


def _check_collectives(trace: Record) -> None:
    """Raises if the collectives of a trace are invalid; the join of ranks reads them."""
    jobs.collectives(trace)


def _raise_ceilings(matmuls: Iterable[Record], steps: Iterable[Record], lookups: _Lookups) -> None:
    """Raises each ceiling that a matmul or step of its machine exceeded."""
    work = []
    for row in matmuls:
        work.append((row, row.get("flops")))
    for row in steps:
        counted = join.counted_flops(row, lookups.counted(row))
        work.append((row, counted["flops"]))
    # fp32 first, before its ceiling is copied for emulated formats.
    work.sort(key=lambda pair: pair[0].get("effective_precision") not in (None, "fp32"))
    for row, row_flops in work:
        compute, _, _ = lookups.machines.of(row)
        if compute:
            compute.update(join.raised_ceiling(compute, row, row_flops))


def _fill(
    rows: Iterable[Record],
    columns: Callable[[Record], Record],
    check: Callable[[Record], None] | None = None,
) -> None:
    """Adds `columns(row)` to each row. A row is marked as failed if this raises, or `check` of the
    joined row does."""
    filled = [*rows]
    added = in_parts(lambda part: [_added(row, columns, check) for row in part], filled)
    for row, more in zip(filled, added, strict=True):
        row |= more


def _added(
    row: Record,
    columns: Callable[[Record], Record],
    check: Callable[[Record], None] | None,
) -> Record:
    """Columns to add to a row; if they cannot be computed, those that say why."""
    try:
        added = columns(row)
        if check:
            check(row | added)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        why = Said("cannot_be_joined", error=first_fault(error))
        return {"status": "failed", "message": cell_of(why)}
    return added


def write(collected: Collected, folder: Path) -> None:
    """Writes all tables as CSV (only the header if there are no rows), and what else the page
    shows."""
    folder.mkdir(parents=True, exist_ok=True)
    for table, rows in collected.records.items():
        write_csv(folder / f"{table}.csv", written(table, rows), columns(table))
    write_csv(folder / "excluded.csv", collected.excluded, ["experiment", "step", "run", "because"])
    _write_progress(collected, folder)
    _write_dictionary(folder)
    polled = _series(collected)
    write_csv(folder / "series.csv", polled, details.series_columns(polled))
    by_run = _described(collected)  # adds problems
    _write_problems(collected, folder)
    _write_ranks(collected.records["profile"], by_run, folder)
    write_json(folder / "details.json", by_run)


def _write_progress(collected: Collected, folder: Path) -> None:
    states = []
    for (step, run), state in collected.progress.items():
        states.append({"step": step, "run": run, "state": state})
    write_csv(folder / "progress.csv", states, ["step", "run", "state"])


def _write_dictionary(folder: Path) -> None:
    meanings = []
    for column in dictionary():
        meanings.append(column.model_dump())
    write_csv(folder / "columns.csv", meanings, list(Column.model_fields))


def _described(collected: Collected) -> dict[str, Record]:
    """Details of the first runs with a folder, by the run's identity. Adds their problems."""
    by_run = {}
    for name, path in itertools.islice(collected.folders.items(), details.MOST_RUNS):
        by_run[name] = details.describe(path, collected.problems)
    return by_run


def _write_problems(collected: Collected, folder: Path) -> None:
    faults = []
    for problem in collected.problems:
        faults.append(_fault(problem, of_recordings=False))
    for problem in collected.upkeep:
        faults.append(_fault(problem, of_recordings=True))
    write_csv(folder / "problems.csv", faults, ["problem", "said", "of_recordings"])


def _write_ranks(steps: Iterable[Record], by_run: dict[str, Record], folder: Path) -> None:
    """Writes a line for each rank of a step, and adds the ranks to the details of their run."""
    lines: list[Record] = []
    for row in steps:
        if not (row.get("ranks") and row["status"] == "ok"):
            continue
        ranks = jobs.rank_rows(row)
        by_run.setdefault(identity("profile", row), {})["ranks"] = ranks
        leading = {name: row.get(name) for name in LEADING}
        for rank in ranks:
            lines.append(leading | rank)
    write_csv(folder / "ranks.csv", lines, [*LEADING, *jobs.RANK])


def _series(collected: Collected) -> list[Record]:
    """Lines of series.csv: readings polled during the runs with a folder, then those of
    recordings."""
    polled = []
    for table in ("readings", "profile"):
        for row in collected.records[table]:
            folder = collected.folders.get(identity(table, row))
            if folder:
                polled.append((row, folder))
    return [*details.series(polled), *collected.series]


def save(out: Path, manifest: Sequence[Path], **sources: Any) -> None:
    """Writes the tables of the experiments `manifest` and of further `sources`, arguments of
    `collect`, to `out`."""
    # Rows live as long as the command does; each collection visited them all.
    gc.set_threshold(OBJECTS_MADE)
    write(collect(manifest, **sources), out)
