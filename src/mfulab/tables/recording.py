"""Keeps one machine's finished results for everyone, in results/reference/<hardware>/, as the report reads them back.

python scripts/record.py                          this machine's results
python scripts/record.py nvidia-h100-80gb-hbm3    those of a machine whose results/<hardware>/ was copied here
python scripts/record.py --check                  every recording: complete, of a known commit, ratios that add up
"""

import argparse
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import (
    LARGEST,
    UnreadableError,
    cannot_be_written,
    is_inside,
    read_csv,
    write_csv,
    write_json,
    write_text,
)
from mfulab.core.groups import SLUG
from mfulab.core.rows import NOT_MEASURED
from mfulab.device.identity import hardware_slug
from mfulab.measurements import manifest
from mfulab.measurements.registry import NO_MACHINE, RECORDED
from mfulab.tables import build, series
from mfulab.tables.columns import Record, Records, columns
from mfulab.tables.recording_check import ABOUT, CONFIGS, DIRTY, SERIES, check
from mfulab.tables.records import Collected, from_recorded, identity, read_config

RESULTS = Path("results")
REFERENCE = "reference"
MOST_SERIES = 20  # profiled runs whose series are kept, the busiest first: a figure shows the busiest


def gather(results: Path, hardware: str) -> Collected:
    """The finished rows of one machine and of what it counted without a device, joined, in the order of its plans."""
    plans = _plans(results, hardware)
    everything = build.collect(also=plans, root=results.parent, results=None if plans else results)
    found = Collected(folders=everything.folders)
    for table in RECORDED:
        rows = (row for row in everything.records[table] if row["status"] != NOT_MEASURED)
        found.records[table] = [row for row in rows if row["hardware"] in (hardware, "")]
    return found


def experiments(results: Path, hardware: str) -> dict[str, list[str]]:
    """Experiments planned on one machine, each with its latest overrides."""
    plans = []
    for path in _plans(results, hardware):
        with suppress(UnreadableError):  # the tables have named it
            plans.append(manifest.read(path))
    return {plan.experiment: plan.overrides for plan in plans}


def _plans(results: Path, hardware: str) -> list[Path]:
    return sorted((results / hardware / "plan").glob("*.json"))


def record(results: Path, hardware: str, commit: str = "", allow_dirty: bool = False, replace: bool = False) -> Path:
    """Writes the recording of `hardware` and gives its folder. Raises ConfigurationError, and writes nothing, where the
    results are not fit for it: no rows, no commit, a changed tree, or a recording that is there already.

    `commit` is that of the measuring code where it was copied without its repository, so that rows have none.
    """
    folder = folder_of(results, hardware)
    found = gather(results, hardware)
    rows = [row for table in found.records.values() for row in table]
    if not found.records["environment"] or len(rows) == 1:
        raise ConfigurationError(f"{results / hardware}/: holds no finished runs. Measure first: snakemake report.")
    for row in rows:
        row["commit"] = row["commit"] or commit
        row["recorded"] = True
    _refuse(rows, allow_dirty)
    if folder.exists() and not replace:
        raise ConfigurationError(f"{folder}/: is there already. Give --replace to write it anew.")

    partial = folder.with_name(f".{hardware}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    provenance = about(found.records, hardware, experiments(results, hardware), commit, allow_dirty)
    _write(found, provenance, partial)
    if folder.exists():
        old = folder.with_name(f".{hardware}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old)
    else:
        partial.rename(folder)
    return folder


def folder_of(results: Path, hardware: str) -> Path:
    """Folder of a machine's recording. Raises ConfigurationError for a name that is none, and for a link elsewhere."""
    if not re.fullmatch(SLUG, hardware):
        raise ConfigurationError(f"hardware={hardware}: no name of a device; see the folders in {results}/.")
    folder = results / REFERENCE / hardware
    if not is_inside(folder, results):
        raise ConfigurationError(f"{folder}: leads out of {results}/ and is not touched.")
    return folder


def _refuse(rows: Sequence[Record], allow_dirty: bool) -> None:
    """Raises ConfigurationError for rows whose measuring code nobody could look up."""
    without = [row["run"] for row in rows if not row["commit"]]
    if without:
        raise ConfigurationError(
            f"{len(without)} rows name no commit ({without[0]}, …): give --commit of the code that measured them."
        )
    dirty = [row["run"] for row in rows if row["commit"].endswith(DIRTY)]
    if dirty and not allow_dirty:
        raise ConfigurationError(
            f"{len(dirty)} rows were measured by changed code ({dirty[0]}, …): measure again from a clean tree, "
            "or give --allow-dirty."
        )


def _write(found: Collected, provenance: dict[str, Any], folder: Path) -> None:
    folders = {
        (table, row["run"]): found.folders[identity(table, {**row, "recorded": False})]
        for table, rows in found.records.items()
        for row in rows
    }
    for table in RECORDED:
        write_csv(folder / f"{table}.csv", [_plain(row, table) for row in found.records[table]], columns(table))
    lines = [
        json.dumps({"table": table, "run": run, "config": read_config(path)}, sort_keys=True)
        for (table, run), path in folders.items()
    ]
    write_text(folder / CONFIGS, "".join(f"{line}\n" for line in lines))
    busiest = sorted(found.records["profile"], key=lambda row: -(row.get("utilization_percent") or 0))[:MOST_SERIES]
    shown = [("readings", row) for row in found.records["readings"]] + [("profile", row) for row in busiest]
    polled = series.collect((row, folders[table, row["run"]]) for table, row in shown)
    write_csv(folder / SERIES, polled, series.columns(polled))
    write_json(folder / ABOUT, provenance, indent=1)


def _plain(row: Mapping[str, Any], table: str) -> Record:
    return {name: row.get(name) for name in columns(table)}


def about(
    records: Records, hardware: str, planned: Mapping[str, Sequence[str]], stated_commit: str, dirty_allowed: bool
) -> dict[str, Any]:
    """Provenance: the machine, its driver, packages and GPUs (with power limit and clocks), what was asked for, commits
    and times.
    """
    machine = records["environment"][0]
    rows = [row for table in records.values() for row in table]
    started = sorted(row["started_at"] for row in rows if row["started_at"])
    return {
        "hardware": hardware,
        "device_name": machine["device_name"],
        "driver": machine["driver"],
        "cuda": machine["cuda"],
        "python": machine["python"],
        "operating_system": machine["operating_system"],
        "packages": json.loads(machine["packages"] or "{}"),
        "gpus": json.loads(machine["gpus"] or "[]"),
        "experiments": planned,
        "commits": dict(sorted(Counter(row["commit"] for row in rows).items())),
        "commit_was_stated": stated_commit or None,
        "dirty_allowed": dirty_allowed,
        "first_started_at": started[0] if started else None,
        "last_started_at": started[-1] if started else None,
        "rows": {
            table: dict(sorted(Counter(row["status"] for row in kept).items())) for table, kept in records.items()
        },
    }


def rejoin(folder: Path) -> None:
    """Writes a recording's tables with their joined columns computed anew, after a formula was corrected.

    Raises ConfigurationError, and writes nothing, where a line cannot be read: it would be lost.
    """
    found = from_recorded(folder)
    if found.problems:
        raise ConfigurationError(found.problems[0])
    records = build.joined(found.records)
    for table in RECORDED:
        write_csv(folder / f"{table}.csv", [_plain(row, table) for row in records[table]], columns(table))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 where a recording is not valid, 2 where nothing could be recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hardware", nargs="?", help="a folder in results/; by default this machine's")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="of the code, for rows measured from a copy without repository")
    parser.add_argument("--allow-dirty", action="store_true", help="also record what uncommitted code has measured")
    parser.add_argument("--replace", action="store_true", help="overwrite the existing recording")
    parser.add_argument("--check", action="store_true", help="record nothing: validate the recordings")
    parser.add_argument("--rejoin", action="store_true", help="record nothing: compute joined columns anew")
    options = parser.parse_args(arguments)
    try:
        if options.check or options.rejoin:
            folders = recordings(options.results, options.hardware)
            for folder in folders if options.rejoin else ():
                rejoin(folder)
        else:
            hardware = options.hardware or hardware_slug()
            folders = [record(options.results, hardware, options.commit, options.allow_dirty, options.replace)]
    except ConfigurationError as error:
        print(f"mfulab: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"mfulab: {cannot_be_written(error.filename or options.results, error)}", file=sys.stderr)
        return 2
    problems = [f"{folder}: {problem}" for folder in folders for problem in check(folder)]
    for folder in folders:
        print(f"{folder}: {_summary(folder)}")
    print("".join(f"{problem}\n" for problem in problems), end="", file=sys.stderr)
    return 1 if problems else 0


def recordings(results: Path, hardware: str | None) -> list[Path]:
    """The folders of all recordings, or of one. Raises ConfigurationError if that one is not there."""
    if hardware is None:
        found = sorted(path for path in (results / REFERENCE).glob("[!.]*") if path.is_dir())
        return [folder_of(results, path.name) for path in found if path.name not in NO_MACHINE]
    folder = folder_of(results, hardware)
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}/: there is no such recording.")
    return [folder]


def _summary(folder: Path) -> str:
    rows = {table: _count(folder / f"{table}.csv") for table in RECORDED}
    size = sum(path.stat().st_size for path in folder.iterdir())
    return ", ".join(f"{count} {table}" for table, count in rows.items()) + f" rows, {size / 1e3:.0f} kB"


def _count(path: Path) -> int:
    try:
        return len(read_csv(path, LARGEST))
    except (FileNotFoundError, UnreadableError):
        return 0
