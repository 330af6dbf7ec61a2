"""`mfulab refine`: more processes for the runs that are known least, also with what a sweep leaves of its budget."""

import itertools
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import read_json, remove, write_json
from mfulab.core.replicates import MOST_REPLICATES, numbered
from mfulab.core.rows import NOT_MEASURED, TimedRow
from mfulab.device.identity import hardware_slug
from mfulab.lab.runtime import budget, client, lifetime
from mfulab.lab.tables.columns import Records
from mfulab.lab.tables.consistency import any_failed
from mfulab.lab.tables.recording import gather
from mfulab.lab.tables.records import read_row
from mfulab.measurements.registry import MEASUREMENTS

TIMED = {measurement.table: step for step, measurement in MEASUREMENTS.items() if issubclass(measurement.row, TimedRow)}
LONGER = 10.0  # a process ÷ the usual one of its run: then it hangs, and is ended
SHORTEST_S = 120.0  # that a process may always take
UNDECIDED = 3  # the exit status where minutes ended first


def run(hardware: str | None, results: Path, widest: float, minutes: float, most: int, in_budget: bool = False) -> int:
    """Adds a process to each of the more promising half of the runs known to less than `widest`, repeatedly; the status
    is 3 where some are left or have no interval. `in_budget`: what the running sweep's budget leaves counts in place of
    `minutes`, for its own runs alone, with status 0. Raises ConfigurationError where nothing was measured."""
    hardware = hardware or hardware_slug()
    if not (results / hardware).is_dir():
        raise ConfigurationError(f"{results / hardware}/: nothing was measured. Measure first: snakemake report.")
    sweep = budget.read() if in_budget else None
    left_s = 60 * minutes if sweep is None else sweep.left_s()
    until, lost = time.monotonic() + left_s, set[str]()

    def fits(row: dict[str, Any]) -> bool:
        return row["run"] not in lost and time.monotonic() + _process_s(row) <= until

    with ExitStack() as undo:
        if client.SOCKET not in os.environ:
            lifetime.start(work="rows")
            undo.callback(lifetime.stop)
        while True:
            records = gather(results, hardware).records  # of which the last ones are those to tell of
            runs = [run for run in _least_known(records, hardware, 100 * widest, most, sweep) if fits(run[1])]
            if not runs:
                break
            for step, row in runs[: (len(runs) + 1) // 2]:
                if not fits(row):
                    continue
                folder = _next(results / hardware / step / row["run"])
                print(f"{len(runs)} left  ±{row['precision_percent']:.3g} %  {step}  {folder.name}", flush=True)
                if not _measured(results, step, folder, max(SHORTEST_S, LONGER * _process_s(row))):
                    lost.add(row["run"])
    if sweep is not None:
        return 0
    for table in TIMED:
        remove(results / "tables" / f"{table}.csv")  # it lacks the new processes: snakemake writes it anew
    left = len(list(_least_known(records, hardware, 100 * widest, MOST_REPLICATES)))
    why = f"are known to less than ±{100 * widest:g} %, fail a check or were not steady"
    print(f"{left} runs {why}; snakemake shows what is new")
    timed = pd.DataFrame([row for table in TIMED for row in records.get(table, ()) if row["status"] == "ok"])
    if alone := int(timed.reindex(columns=["precision_percent"]).isna().sum().iloc[0]):
        print(f"{alone} runs of one process have no interval: replicates=2 measures another of each")
    return UNDECIDED if left or alone else 0


def _least_known(
    records: Records, hardware: str, widest: float, most: int, sweep: budget.Budget | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measurement and row of each run that lacks processes, most precision to gain a second first."""
    runs = []
    for table, rows in records.items():
        if table not in TIMED or not rows:
            continue
        frame = pd.DataFrame(rows).astype({"precision_percent": float, "replicates": float})
        if sweep is not None:
            planned = [f"{hardware}/{TIMED[table]}/{numbered(run, 2)}" in sweep.plan["runs"] for run in frame["run"]]
            frame = frame[planned].fillna({"precision_percent": math.inf, "replicates": 1})
        wanted = (frame["precision_percent"] > widest) | any_failed(frame)
        wanted |= frame.get("steady", pd.Series(True, frame.index)).eq(False)  # of most processes: two may be one each
        processes = frame["replicates"] + frame["left_out_replicates"].fillna(0)
        wanted &= (frame["status"] == "ok") & (processes < most) & frame["precision_percent"].notna()
        runs += [(TIMED[table], row) for row in frame[wanted].to_dict("records")]
    yield from sorted(runs, key=lambda run: -run[1]["precision_percent"] / run[1]["process_s"])


def _process_s(row: dict[str, Any]) -> float:
    return float(row["process_s"] / row["replicates"])


def _next(first: Path) -> Path:
    """The folder of the first process that was not measured yet, with its config."""
    for number in itertools.count(2):
        folder = first.with_name(numbered(first.name, number))
        if not (folder / "row.csv").exists() or read_row(folder, folder.parent.name)["status"] == NOT_MEASURED:
            break
    write_json(folder / "config.json", read_json(first / "config.json") | {"replicate": number}, indent=1)
    return folder


def _measured(results: Path, step: str, folder: Path, longest_s: float) -> bool:
    """Runs one process as the workflow does; True if it measured. Without a row nothing of it stays."""
    script = [sys.executable, "-S", "-E", client.__file__, "scripts/run.py", step]
    command = [*script, "--config", str(folder.absolute() / "config.json")]
    here, ended = results.absolute().parent, "without a row"
    with (folder / "log").open("w", encoding="utf-8") as log:
        try:
            subprocess.run(command, cwd=here, stdout=log, stderr=subprocess.STDOUT, timeout=longest_s)
        except subprocess.TimeoutExpired:
            ended = f"after {longest_s:.0f} s"
    if (folder / "row.csv").exists():  # of a process that failed, too: it costs one replicate
        return bool(read_row(folder, step)["status"] == "ok")
    remove(folder)
    print(f"{folder.name}: ended {ended}; not tried again", file=sys.stderr)
    return False
