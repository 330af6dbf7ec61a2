"""Rows of many runs, on one machine or several, become the tables that everything later reads."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mfulab.core.files import is_inside, write_csv, write_json
from mfulab.core.rows import LONGEST_MESSAGE
from mfulab.device import is_gpu
from mfulab.device.emulation import emulated_by_cpu, emulated_by_gpu
from mfulab.measurements.registry import NO_MACHINE, TABLES
from mfulab.mfu import headroom
from mfulab.mfu import job as jobs
from mfulab.tables import details, join, replicates, series, trace_join
from mfulab.tables.columns import LEADING, Column, Record, Records, columns, dictionary
from mfulab.tables.records import (
    AGAIN,
    Collected,
    aged,
    ceiling_name,
    first_line,
    from_folder,
    from_manifest,
    from_recorded,
    identity,
    progress,
)

PUBLIC = "public"  # rows that are no machine's of ours: public traces and runs
PRECISION = re.compile(r"\bprecision=\w+")  # in a run's name: with another one it is the same step


def collect(
    manifests: Iterable[Path] = (),
    root: Path = Path(),
    *,
    also: Iterable[Path] = (),
    results: Path | None = None,
    reference: Path | None = None,
    partial: bool = False,
) -> Collected:
    """Everything to be reported, joined.

    `manifests` are the experiments asked for: a run of theirs without a row becomes a failed row, or with `partial` one
    that is still to come. `also` are other plans, which add the rows that they have. Under `results`, machines without
    any plan are read folder by folder; under `reference`, recorded machines: all where nothing was measured here, else
    the GPUs but for the kind measured here, whose every run would be there twice. A run that was found is not replaced
    by a later one.
    """
    everything, plans = Collected(), [*map(Path, manifests)]
    for manifest in plans:
        _extend(everything, from_manifest(manifest, root, finished=partial))
        everything.progress.update(progress(manifest, root))
    for manifest in also:
        if manifest not in plans:
            _extend(everything, from_manifest(manifest, root, finished=True))
    if results is not None:
        planned = {row["hardware"] for rows in everything.records.values() for row in rows}
        for folder in sorted(results.iterdir()):
            if folder.is_dir() and is_inside(folder, results) and folder.name not in NO_MACHINE | planned:
                _extend(everything, from_folder(results, folder.name))
    if reference is not None and reference.is_dir():
        measured = {row["hardware"] for rows in everything.records.values() for row in rows}
        machines = (path for path in reference.iterdir() if path.is_dir() and path.name not in measured | NO_MACHINE)
        for folder in sorted(machines):
            if not is_inside(folder, reference):
                everything.problems.append(f"{folder}: leads out of the recordings and is not read.")
                continue
            found = from_recorded(folder)
            # Beside one's own machine a recorded GPU is what one lacks; a CPU is what one has.
            if not measured or any(is_gpu(row.get("device")) for row in found.records["environment"]):
                _extend(everything, found)
                everything.problems.extend(aged(folder))
        public = from_recorded(reference / PUBLIC)
        if measured:  # public runs, which are no traces, fill a page of their own
            public.records = {table: [] if TABLES[table].lines else rows for table, rows in public.records.items()}
        _extend(everything, public)
    joined(replicates.merge(everything.records))
    return everything


def _extend(everything: Collected, more: Collected) -> None:
    everything.problems.extend(more.problems)
    everything.excluded.extend(more.excluded)
    everything.series.extend(more.series)
    for table, rows in more.records.items():
        known = {_double(table, row) for row in everything.records[table]}
        everything.records[table].extend(row for row in rows if _double(table, row) not in known)
    everything.folders = {**more.folders, **everything.folders}


def _double(table: str, row: Record) -> str:
    """Equal for two rows of which one is enough: counts need no device, so a recorded one says what ours does."""
    return identity(table, row) if TABLES[table].on_device else row["run"]


def _apart(ceiling: str) -> str:
    """Conditions of a ceiling, such as a number of threads: `fp32,device.threads=1` gives `device.threads=1`."""
    return ceiling.partition(",")[2]


class _Beside:
    """Device and ceilings of each machine, recorded apart from measured."""

    def __init__(self, records: Records) -> None:
        environments = {_machine(row): row for row in records["environment"]}
        self._devices = {machine: row.get("device") for machine, row in environments.items()}
        measured = [row for row in records["ceilings"] if row["status"] == "ok"]
        for row in measured:
            if row.get("format") and row.get("emulated") is None:  # recorded before rows said it
                row["emulated"] = _emulated(row["format"], environments.get(_machine(row), {}))
        self._by_name = {(_machine(row), ceiling_name(row["run"])): row for row in measured}
        self._by_format = {
            (_machine(row), row.get("format"), _apart(ceiling_name(row["run"]))): row for row in measured
        }

        self._instead: dict[tuple[Any, ...], Record] = {}

    def device(self, row: Record) -> str | None:
        return self._devices.get(_machine(row))

    def compute(self, row: Record) -> Record:
        """Gives the ceiling of the format that the matmuls really used, where it is known.

        Never another one's, except fp32's for a format that the device emulates. That is a copy, `emulates` the format:
        what an emulated format reaches raises no ceiling of fp32.
        """
        name, used = row.get("ceiling") or "", row.get("effective_precision")
        found = self._by_name.get((_machine(row), name), {})
        if used not in (None, found.get("format")):
            found = self._by_format.get((_machine(row), used, _apart(name)), {})
        if not found.get("emulated"):
            return found
        key = _machine(row), found["format"], _apart(name)
        if key not in self._instead:
            fp32 = self._by_format.get((_machine(row), "fp32", _apart(name)), {})
            self._instead[key] = {**fp32, "emulates": found["format"]} if fp32 else {}
        return self._instead[key]

    def emulated(self, row: Record) -> bool:
        """Says whether the machine emulates the format that a row's matmuls used."""
        used = self._by_format.get((_machine(row), row.get("effective_precision"), _apart(row.get("ceiling") or "")))
        return bool(used and used.get("emulated"))

    def memory(self, row: Record) -> Record:
        name = ",".join(filter(None, ("memory", _apart(row.get("ceiling") or ""))))
        return self._by_name.get((_machine(row), name), {})


def _emulated(precision: str, environment: Mapping[str, Any]) -> bool:
    """Says whether a machine emulates a format, by the flags or the compute capability in its environment's row."""
    if environment.get("device") == "cpu":
        return bool(emulated_by_cpu(precision, frozenset((environment.get("cpu_vector_flags") or "").split())))
    gpus = json.loads(environment.get("gpus") or "[]")
    major, _, minor = (gpus[0].get("compute_capability") or "" if gpus else "").partition(".")
    return bool(major and emulated_by_gpu(precision, (int(major), int(minor or 0))))


def judged(records: Records) -> Records:
    """The same rows, matmuls that were faster than their machine allows marked as `incorrect`."""
    beside = _Beside(records)
    for row in records["matmul"]:
        if impossible := join.faster_than_possible(row, beside.compute(row), beside.memory(row), beside.device(row)):
            row |= {"status": "incorrect", "message": impossible}
    return records


def joined(records: Records) -> Records:
    """The same rows with the joined columns; every lookup stays within one machine, recorded apart from measured."""
    beside = _Beside(judged(records))
    # FLOP counts have no hardware: measured ones serve every machine, recorded ones those that were not counted here.
    flops = {row["run"]: row for row in sorted(records["flops"], key=lambda row: not row["recorded"])}
    steps = [(row, flops.get(row["flops_run"], {})) for row in records["profile"]]
    done = [(row, row.get("flops")) for row in records["matmul"]]
    done += [(row, join.counted_flops(row, counted)["flops"]) for row, counted in steps]
    # Before anything is divided by a ceiling; fp32's before it stands for that of an emulated format.
    for row, work in sorted(done, key=lambda each: beside.emulated(each[0])):
        if ceiling := beside.compute(row):
            ceiling |= join.raised_ceiling(ceiling, row, work)
    in_fp32 = {(_machine(row), row["run"]): row.get("time_s") for row, _ in steps if row["status"] == "ok"}

    def profile_columns(row: Record) -> Record:
        counted = flops.get(row["flops_run"], {})
        fp32_time_s = in_fp32.get((_machine(row), PRECISION.sub("precision=fp32", row["run"])))
        ceilings = beside.compute(row), beside.memory(row)
        found = join.profile_columns(row, counted, *ceilings, beside.device(row), fp32_time_s)
        jobs.rank_rows({**row, **found})  # which `write` gives a table of their own
        return found

    _fill(records["profile"], profile_columns)
    _fill(records["matmul"], lambda row: join.matmul_columns(row, beside.compute(row), beside.device(row)))
    _fill(records.get("readings", []), lambda row: join.reading_columns(row, beside.compute(row), beside.device(row)))
    traces = records.get("traces", [])
    bests = best_matmuls(records) if traces else {}

    def trace_columns(row: Record) -> Record:
        jobs.collectives(row)  # which `jobs.joined` holds against those of other ranks
        return trace_join.trace_columns(row, bests.get(row.get("device") or ""))

    _fill(traces, trace_columns)
    jobs.joined(traces)
    return records


def _fill(rows: Iterable[Record], columns: Callable[[Record], Record]) -> None:
    """Adds joined columns to each row; one whose cells are of another shape than its step writes becomes `failed`."""
    for row in rows:
        try:
            row |= columns(row)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            row |= {"status": "failed", "message": f"cannot be joined: {first_line(error)}. {AGAIN}"[:LONGEST_MESSAGE]}


def best_matmuls(records: Records) -> dict[str, dict[Any, float]]:
    """TFLOP/s of the best joined matmul of each device's name, by format and class of shape."""
    names = {_machine(row): row.get("device_name") for row in records["environment"]}
    found: dict[str, dict[Any, float]] = {}
    for row in records["matmul"]:
        device, speed = names.get(_machine(row)), row.get("tflop_s")
        if device and speed and row["status"] == "ok" and row["m"] and row["n"] and row["k"]:
            shape = headroom.shape_class(row["batch"] or 1, row["m"], row["n"], row["k"])
            key = row.get("effective_precision") or row["precision"], shape
            best = found.setdefault(device, {})
            best[key] = max(speed, best.get(key, 0.0))
    return found


def _machine(row: Mapping[str, Any]) -> tuple[str, bool]:
    return row["hardware"], bool(row["recorded"])


def write(collected: Collected, folder: Path) -> None:
    """Writes the tables and what the page shows beside them.

    A table without rows has its header alone, so that readers need no special case.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for table, rows in collected.records.items():
        write_csv(folder / f"{table}.csv", rows, columns(table))
    write_csv(folder / "excluded.csv", collected.excluded, ["experiment", "step", "run", "because"])
    states = [{"step": step, "run": run, "state": state} for (step, run), state in collected.progress.items()]
    write_csv(folder / "progress.csv", states, ["step", "run", "state"])
    write_csv(folder / "columns.csv", [each.model_dump() for each in dictionary()], list(Column.model_fields))
    jobs_of_ranks = [row for row in collected.records.get("profile", []) if row.get("ranks") and row["status"] == "ok"]
    found = {identity("profile", row): row for row in jobs_of_ranks}
    ranks = {name: jobs.rank_rows(row) for name, row in found.items()}
    lines = [
        {**{key: found[name].get(key) for key in LEADING}, **rank} for name, each in ranks.items() for rank in each
    ]
    write_csv(folder / "ranks.csv", lines, [*LEADING, *jobs.RANK])
    polled = [*series.collect(polled_runs(collected)), *collected.series]
    write_csv(folder / "series.csv", polled, series.columns(polled))
    told = details.collect(collected.folders, collected.problems)
    write_csv(folder / "problems.csv", [{"problem": line} for line in collected.problems], ["problem"])
    for name, each in ranks.items():
        told.setdefault(name, {})["ranks"] = each
    write_json(folder / "details.json", told)


def polled_runs(collected: Collected) -> Iterator[tuple[Record, Path]]:
    """The rows of runs whose device was polled, each with its folder."""
    for table in ("readings", "profile"):  # of which the latter may be more than are kept
        for row in collected.records[table]:
            if folder := collected.folders.get(identity(table, row)):
                yield row, folder


def save(out: Path, manifest: Sequence[Path], **sources: Any) -> None:
    """Writes the tables of the experiments `manifest`, and of the other `sources` that `collect` takes, into `out`."""
    write(collect(manifest, **sources), out)
