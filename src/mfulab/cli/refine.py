"""`mfulab refine`: more processes for the runs that are known least, where a whole sweep would be measured again."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import read_json, remove, write_json
from mfulab.core.replicates import MOST_REPLICATES, numbered
from mfulab.core.rows import TimedRow
from mfulab.device.identity import hardware_slug
from mfulab.measurements.registry import MEASUREMENTS
from mfulab.tables.consistency import any_failed
from mfulab.tables.recording import gather

TIMED = {each.table: step for step, each in MEASUREMENTS.items() if issubclass(each.row, TimedRow)}
LONGER = 10.0  # a process ÷ the usual one of its run: then it hangs, and is ended
SHORTEST_S = 120.0  # that a process may always take
UNDECIDED = 3  # the exit status where minutes ended first


def run(hardware: str | None, results: Path, widest: float, minutes: float, most: int) -> int:
    """Adds processes to each run known to less than `widest`, a round of one each at a time, widest ÷ cost first.

    A run that fails a check of its columns is among them; one of a single process, which has no interval, is not, and
    one whose process ends without a row is not tried again. The status is 3 where some are left: `minutes` are over, or
    they have `most` processes. Raises ConfigurationError where nothing was measured.
    """
    hardware = hardware or hardware_slug()
    if not (results / hardware).is_dir():
        raise ConfigurationError(f"{results / hardware}/: nothing was measured. Measure first: snakemake report.")
    until, lost = time.monotonic() + 60 * minutes, set()
    while found := [each for each in _least_known(results, hardware, 100 * widest, most) if each[1]["run"] not in lost]:
        for number, (step, row) in enumerate(found, 1):
            took = row["process_s"] / row["replicates"]
            if time.monotonic() + took > until:
                continue
            folder = _next(results / hardware / step / row["run"])
            print(f"{number}/{len(found)} ±{row['precision_percent']:.3g} %  {step}  {folder.name}", flush=True)
            if not _measured(results, step, folder, max(SHORTEST_S, LONGER * took)):
                lost.add(row["run"])
        if all(time.monotonic() + row["process_s"] / row["replicates"] > until for _, row in found):
            break
    for table in TIMED:
        remove(results / "tables" / f"{table}.csv")  # it lacks the new processes: snakemake writes it anew
    left = len(list(_least_known(results, hardware, 100 * widest, MOST_REPLICATES)))
    print(f"{left} runs are known to less than ±{100 * widest:g} %, or fail a check; snakemake shows what is new")
    return UNDECIDED if left else 0


def _least_known(results: Path, hardware: str, widest: float, most: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Step and row of each run that lacks processes, most precision to gain a second first."""
    found = []
    for table, rows in gather(results, hardware).records.items():
        if table not in TIMED or not rows:
            continue
        frame = pd.DataFrame(rows)
        wanted = (frame["precision_percent"] > widest) | any_failed(frame)
        processes = frame["replicates"] + frame["left_out_replicates"].fillna(0)
        wanted &= (frame["status"] == "ok") & (processes < most) & frame["precision_percent"].notna()
        found += [(TIMED[table], rows[place]) for place in frame.index[wanted]]
    yield from sorted(found, key=lambda each: -each[1]["precision_percent"] / each[1]["process_s"])


def _next(first: Path) -> Path:
    """The folder of the first process that is not there yet, with its config."""
    number = 2
    while (folder := first.with_name(numbered(first.name, number))).joinpath("row.csv").exists():
        number += 1
    write_json(folder / "config.json", read_json(first / "config.json") | {"replicate": number}, indent=1)
    return folder


def _measured(results: Path, step: str, folder: Path, longest_s: float) -> bool:
    """Runs one process, as the workflow does without a worker; True if it left its row, else nothing of it stays."""
    command = [sys.executable, "scripts/run.py", step, "--config", str(folder.absolute() / "config.json")]
    ended = "without a row"
    with (folder / "log").open("w", encoding="utf-8") as log:
        try:
            subprocess.run(
                command, cwd=results.absolute().parent, stdout=log, stderr=subprocess.STDOUT, timeout=longest_s
            )
        except subprocess.TimeoutExpired:
            ended = f"after {longest_s:.0f} s"
    if (folder / "row.csv").exists():
        return True
    remove(folder)
    print(f"{folder.name}: ended {ended}; not tried again", file=sys.stderr)
    return False
