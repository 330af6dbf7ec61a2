"""The plan on disk, written only where its text changed, and results that are never lost.

A finished run whose config changed is moved to results/superseded/, and comes back untouched when its config does.
"""

import hashlib
import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path

from mfulab.core.files import UnreadableError, cannot_be_written, parse_csv, read_text, remove, write_text
from mfulab.core.rows import NOT_MEASURED
from mfulab.lab.planning.runs import Plan, Run
from mfulab.lab.runtime import budget

SUPERSEDED = "superseded"
LEFT_OUT = re.compile(rf"{budget.LEFT_OUT}([\d.e+-]+)")
Newest = Callable[[Run], float]  # time of the last change of a run's sources that counts


class State(Enum):
    """State of a run's folder, compared with a plan."""

    KEPT = "its config is there as planned, its row too or not yet"
    NEW = "there is no config, or one without a finished row"
    CUT = "its config is there as planned, with a row that cannot be read, or that a smaller budget left unmeasured"
    CHANGED = "another config has a finished row, which is moved aside"
    RESTED = "a finished row of this config was moved aside and comes back"


def write(plan: Plan, results: Path, newest: Newest = lambda run: 0.0, budget_min: float = math.inf) -> None:
    """Writes every run's config and the experiment's manifest. Raises ConfigurationError if it cannot."""
    try:
        for run in plan.runs:
            write_run(run, results, newest, budget_min)
    except OSError as error:
        raise cannot_be_written(error.filename or results, error) from error
    write_if_changed(results / plan.manifest_path, plan.manifest)


def holds(path: Path, text: str) -> bool:
    """True if a file holds exactly this text."""
    return _read(path) == text


def state(run: Run, results: Path, newest: Newest = lambda run: 0.0, budget_min: float = math.inf) -> State:
    """State that `write_run` would find; changes nothing. A result at rest must be as new as its sources (`newest`)."""
    folder = results / run.folder
    row = folder / "row.csv"
    if _read(folder / "config.json") == run.text:
        return State.CUT if os.path.lexists(row) and not is_complete(row, budget_min) else State.KEPT
    resting = _resting_place(results, run, run.text) / "row.csv"
    if is_complete(resting) and resting.stat().st_mtime >= newest(run):
        return State.RESTED
    return State.CHANGED if is_complete(row) else State.NEW


def write_run(run: Run, results: Path, newest: Newest = lambda run: 0.0, budget_min: float = math.inf) -> None:
    """Writes one run's config where it changed, after its finished results were moved aside or came back."""
    folder = results / run.folder
    found = state(run, results, newest, budget_min)
    if found is State.KEPT:
        return
    if found is State.CUT:
        remove(folder / "row.csv")  # left by a crash; a row that says something always ends in a line
        return
    if is_complete(folder / "row.csv"):
        _move(folder, _resting_place(results, run, _read(folder / "config.json") or ""))
    if found is State.RESTED:
        _move(_resting_place(results, run, run.text), folder)
    else:
        write_text(folder / "config.json", run.text)


def _resting_place(results: Path, run: Run, text: str) -> Path:
    return results / SUPERSEDED / run.folder / hashlib.sha256(text.encode()).hexdigest()[:12]


def _move(source: Path, target: Path) -> None:
    remove(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def is_complete(row: Path, budget_min: float = math.inf) -> bool:
    """True if a file holds a header and one whole row, other than one that a budget below `budget_min` left out."""
    text = _read(row) or ""
    try:
        rows = parse_csv(text, row) if text.endswith("\n") else []
    except UnreadableError:
        return False
    left_out_of = LEFT_OUT.match(rows[0].get("message", "")) if rows and rows[0].get("status") == NOT_MEASURED else None
    return len(rows) == 1 and (left_out_of is None or float(left_out_of[1]) >= budget_min)


def check_writable(results: Path) -> None:
    """Raises ConfigurationError if `results` is no folder in which files can be made."""
    probe = results / f".writable-{os.getpid()}"
    try:
        results.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(bytes(1 << 16))  # a full disk takes an empty file
        probe.unlink(missing_ok=True)  # another node's process may bear the same number
    except OSError as error:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
        raise cannot_be_written(f"{results}/", error) from error


def write_if_changed(path: Path, text: str) -> bool:
    """Writes `text` by renaming a finished file; False if the file holds it already and is left untouched."""
    if holds(path, text):
        return False
    write_text(path, text)
    return True


def _read(path: Path) -> str | None:
    try:
        return read_text(path)
    except (FileNotFoundError, UnreadableError):
        return None
