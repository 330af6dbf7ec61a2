"""Rows of many runs, on one machine or several, become the tables that everything later reads."""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mfulab.core.files import is_inside, write_csv, write_json
from mfulab.core.parts import Row
from mfulab.core.said import Said, cell_of, packed_all
from mfulab.device import is_gpu
from mfulab.lab.tables import cards, details, replicates
from mfulab.lab.tables import records as read
from mfulab.lab.tables.columns import LEADING, Column, Record, Records, columns, dictionary, written
from mfulab.lab.tables.records import Collected, ceiling_name, first_line, identity
from mfulab.measurements.registry import NO_MACHINE, TABLES
from mfulab.mfu import headroom, join, traced
from mfulab.mfu import job as jobs

PUBLIC = "public"  # rows that are no machine's of ours: public traces and runs
PRECISION = re.compile(r"\bprecision=\w+")  # in a run's name: with another one it is the same step


def collect(manifests: Iterable[Path] = (), root: Path = Path(), *, also: Iterable[Path] = (),
            results: Path | None = None, reference: Path | None = None, recorded: str = "",
            partial: bool = False) -> Collected:  # fmt: skip
    """Everything to be reported, joined; a run that was found is not replaced by a later one.
    `manifests` are the experiments asked for: a run without a row is failed, or to come if
    `partial`. `also` are other plans, whose finished rows are added. Machines without a plan are
    read under `results`, recorded ones under `reference`, of that name alone if `recorded`: all
    where nothing was measured here, else GPUs of other kinds."""
    everything = Collected()
    asked = [*map(Path, manifests)]
    for manifest in dict.fromkeys([*asked, *also]):
        is_asked = manifest in asked
        planned_runs = read.from_manifest(manifest, root, finished=partial or not is_asked)
        _extend(everything, planned_runs)
        if is_asked:
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
    """Folders of machines in `folder`, by name, of which no row is there yet."""
    known = set(NO_MACHINE)
    for rows in everything.records.values():
        known.update(row["hardware"] for row in rows)
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in known)


def _add_recorded(everything: Collected, reference: Path, name: str) -> None:
    """Adds the recorded machines, of that name alone if it is given, and what is public, as far as
    they are shown."""
    is_measured_here = any(everything.records.values())
    has_gpu = any(is_gpu(row.get("device")) for row in everything.records["environment"])
    for folder in _machines(reference, everything):
        if name not in ("", folder.name):
            continue
        if is_inside(folder, reference):
            _add_machine(everything, folder, is_measured_here)
        else:
            everything.upkeep.append(f"{folder}: leads out of the recordings and is not read.")
    public = read.from_recorded(reference / PUBLIC)
    if is_measured_here:
        # Public runs fill a page of their own; beside one's own GPU stands another, not its trace.
        for table in public.records:
            if not (TABLES[table].lines or has_gpu):
                public.records[table] = []
    elif name:  # a step of another device is no part of what one machine showed
        public.records["traces"] = []
    _extend(everything, public)


def _fault(problem: str | Said, *, of_recordings: bool) -> Record:
    """A line of problems.csv: a sentence, or its key and numbers as JSON."""
    if isinstance(problem, Said):
        return {"problem": "", "said": packed_all([problem]), "of_recordings": of_recordings}
    return {"problem": problem, "said": None, "of_recordings": of_recordings}


def _add_machine(everything: Collected, folder: Path, is_measured_here: bool) -> None:
    """Adds a recorded machine: beside one's own only a GPU, as a CPU is what one has."""
    machine = read.from_recorded(folder)
    on_gpu = any(is_gpu(row.get("device")) for row in machine.records["environment"])
    if is_measured_here and not on_gpu:
        return
    _extend(everything, machine)
    if not is_measured_here:  # told to whom reads recordings alone
        everything.upkeep.extend(read.aged(folder))


def _extend(everything: Collected, more: Collected) -> None:
    everything.problems.extend(more.problems)
    everything.upkeep.extend(more.upkeep)
    everything.excluded.extend(more.excluded)
    everything.series.extend(more.series)
    for table, rows in more.records.items():
        present = {_double(table, row) for row in everything.records[table]}
        everything.records[table].extend(row for row in rows if _double(table, row) not in present)
    everything.folders = {**more.folders, **everything.folders}


def _double(table: str, row: Record) -> str:
    """Equal for two rows of which one is enough: counts need no device, so a recorded one says what
    ours does."""
    if TABLES[table].on_device:
        return identity(table, row)
    return row["run"]


class _Beside:
    """Device of each machine, recorded apart from measured, and its ceilings, with conditions such
    as threads."""

    def __init__(self, records: Records) -> None:
        self._devices = {_machine(row): row.get("device") for row in records["environment"]}
        self._by_name: dict[tuple[Any, ...], Record] = {}
        self._by_format: dict[tuple[Any, ...], Record] = {}
        self._instead: dict[tuple[Any, ...], Record] = {}
        for row in records["ceilings"]:
            if row["status"] == "ok":
                name, _, conditions = ceiling_name(row["run"]).partition(",")
                self._by_name[_machine(row), name, conditions] = row
                self._by_format[_machine(row), row.get("format"), conditions] = row

    def of(self, row: Record) -> tuple[Record, Record, str | None]:
        """The ceilings of a row's matmuls and of its memory, empty where there is none, and its
        device."""
        machine = _machine(row)
        used = row.get("effective_precision")
        name, _, conditions = (row.get("ceiling") or "").partition(",")
        memory = self._by_name.get((machine, "memory", conditions), {})
        ceiling = self._by_name.get((machine, name, conditions), {})
        if used not in (
            None,
            ceiling.get("format"),
        ):  # that of the format which the matmuls really used
            ceiling = self._by_format.get((machine, used, conditions), {})
        if ceiling.get("emulated"):  # a copy of fp32's
            fp32 = self._by_format.get((machine, "fp32", conditions))
            copied = {}
            if fp32:
                copied = {**fp32, "emulates": ceiling["format"]}
            ceiling = self._instead.setdefault((machine, ceiling["format"], conditions), copied)
        return ceiling, memory, self._devices.get(machine)


def judged(records: Records) -> Records:
    """Records in which matmuls faster than their machine allows are marked as `incorrect`."""
    beside = _Beside(records)
    for row in records["matmul"]:
        if impossible := join.faster_than_possible(row, *beside.of(row)):
            row |= {"status": "incorrect", "message": cell_of(impossible)}
    return records


def joined(records: Records) -> Records:
    """Records with the joined columns; every lookup stays within one machine, recorded apart from
    measured."""
    beside = _Beside(judged(records))
    # FLOP counts have no hardware: measured ones serve every machine, recorded ones those that were
    # not counted here.
    flops = {
        row["run"]: row for row in sorted(records["flops"], key=lambda row: not row["recorded"])
    }
    steps = records["profile"]
    traces = records.get("traces", [])
    done = [(row, row.get("flops")) for row in records["matmul"]]
    done += [
        (row, join.counted_flops(row, flops.get(row["flops_run"], {}))["flops"]) for row in steps
    ]
    # Before anything is divided by a ceiling; fp32's before it stands for that of an emulated
    # format.
    for row, work in sorted(
        done, key=lambda pair: pair[0].get("effective_precision") not in (None, "fp32")
    ):
        if ceiling := beside.of(row)[0]:
            ceiling |= join.raised_ceiling(ceiling, row, work)
    in_fp32 = {
        (_machine(row), row["run"]): row.get("time_s") for row in steps if row["status"] == "ok"
    }

    def profile_columns(row: Record) -> Record:
        fp32_time_s = in_fp32.get((_machine(row), PRECISION.sub("precision=fp32", row["run"])))
        columns = join.profile_columns(
            row, flops.get(row["flops_run"], {}), *beside.of(row), fp32_time_s
        )
        jobs.rank_rows({**row, **columns})  # which `write` gives a table of their own
        return columns

    def trace_columns(row: Record) -> Record:
        jobs.collectives(row)  # which `jobs.joined` holds against those of other ranks
        return traced.trace_columns(row, bests.get(row.get("device") or ""))

    _fill(steps, profile_columns)
    _fill(
        records["matmul"], lambda row: join.matmul_columns(row, *beside.of(row)[::2])
    )  # memory's ceiling aside
    _fill(records.get("readings", []), lambda row: join.reading_columns(row, *beside.of(row)[::2]))
    names = {_machine(row): row.get("device_name") for row in records["environment"]}
    bests = headroom.best_speeds((names.get(_machine(row)), row) for row in records["matmul"])
    _fill(traces, trace_columns)
    if traces:
        from mfulab.measurements.read_trace import ranks

        ranks.joined(traces)
    return records


def _fill(rows: Iterable[Record], columns: Callable[[Record], Record]) -> None:
    for row in rows:
        try:
            row |= columns(row)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            row |= {
                "status": "failed",
                "message": cell_of(Said("cannot_be_joined", {"error": first_line(error)})),
            }


def _machine(row: Row) -> tuple[str, bool]:
    return row["hardware"], bool(row["recorded"])


def write(collected: Collected, folder: Path) -> None:
    """Writes the tables, of one without rows the header alone, and what the page shows beside
    them."""
    folder.mkdir(parents=True, exist_ok=True)
    for table, rows in collected.records.items():
        write_csv(folder / f"{table}.csv", written(table, rows), columns(table))
    write_csv(folder / "excluded.csv", collected.excluded, ["experiment", "step", "run", "because"])
    states = [
        {"step": step, "run": run, "state": state}
        for (step, run), state in collected.progress.items()
    ]
    write_csv(folder / "progress.csv", states, ["step", "run", "state"])
    meanings = [column.model_dump() for column in dictionary()]
    write_csv(folder / "columns.csv", meanings, list(Column.model_fields))
    polled = _series(collected)
    write_csv(folder / "series.csv", polled, details.series_columns(polled))
    shown_runs = itertools.islice(collected.folders.items(), details.MOST_RUNS)
    told = {name: details.describe(place, collected.problems) for name, place in shown_runs}
    faults = [_fault(problem, of_recordings=False) for problem in collected.problems]
    for problem in collected.upkeep:
        faults.append(_fault(problem, of_recordings=True))
    write_csv(folder / "problems.csv", faults, ["problem", "said", "of_recordings"])
    lines: list[Record] = []
    for row in collected.records["profile"]:
        if row.get("ranks") and row["status"] == "ok":
            who = {key: row.get(key) for key in LEADING}
            ranks = jobs.rank_rows(row)
            for rank in ranks:
                lines.append(who | rank)
            told.setdefault(identity("profile", row), {})["ranks"] = ranks
    write_csv(folder / "ranks.csv", lines, [*LEADING, *jobs.RANK])
    write_json(folder / "details.json", told)


def _series(collected: Collected) -> list[Record]:
    """Lines of what was polled during the runs with a folder, then those of recordings."""
    polled = []
    for table in ("readings", "profile"):
        for row in collected.records[table]:
            if folder := collected.folders.get(identity(table, row)):
                polled.append((row, folder))
    return [*details.series(polled), *collected.series]


def save(out: Path, manifest: Sequence[Path], **sources: Any) -> None:
    """Writes the tables of the experiments `manifest`, and of the other `sources` that `collect`
    takes, into `out`."""
    write(collect(manifest, **sources), out)
