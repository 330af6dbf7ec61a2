"""The plan on disk: run configs and manifests, written only where their text changed, and results that are never lost.

A finished run whose config changed is not overwritten: its folder is moved to results/superseded/, and comes back
untouched when its config does, so that reverting a change measures nothing again.
"""

import csv
import hashlib
import os
import shutil
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from mfulab.planning.runs import Plan, Run
from mfulab.schema.errors import ConfigurationError

SUPERSEDED = "superseded"


class State(Enum):
    """What a run's folder is to a plan."""

    KEPT = "its config is there as planned, its row too or not yet"
    NEW = "there is no config, or one without a finished row"
    CUT = "its config is there as planned, with a row that was cut off"
    CHANGED = "another config has a finished row, which is moved aside"
    RESTED = "a finished row of this config was moved aside and comes back"


def write(plan: Plan, results: Path, sources: Sequence[Path] = ()) -> None:
    """Writes every run's config and the experiment's manifest. `sources` are the files that results depend on."""
    newest = newest_of(sources)
    for run in plan.runs:
        write_run(run, results, newest)
    write_if_changed(results / plan.manifest_path, plan.manifest)


def newest_of(sources: Sequence[Path]) -> float:
    """The latest modification time of `sources`; 0 without any."""
    return max((path.stat().st_mtime for path in sources), default=0.0)


def state(run: Run, results: Path, newest_source: float = 0.0) -> State:
    """What `write_run` would find, without changing anything.

    A result at rest comes back only if it is as new as `newest_source`, a modification time.
    """
    folder = results / run.folder
    row = folder / "row.csv"
    old = _read(folder / "config.json")
    if old == run.text:
        return State.CUT if row.exists() and not is_complete(row) else State.KEPT
    resting = _resting_place(results, run, run.text) / "row.csv"
    if is_complete(resting) and resting.stat().st_mtime >= newest_source:
        return State.RESTED
    return State.CHANGED if is_complete(row) else State.NEW


def write_run(run: Run, results: Path, newest_source: float = 0.0) -> None:
    """Writes one run's config where it changed, after its finished results were moved aside or came back."""
    folder = results / run.folder
    found = state(run, results, newest_source)
    if found is State.KEPT:
        return
    if found is State.CUT:
        remove(folder / "row.csv")  # left by a crash; a row that says something always ends in a line
        return
    old = _read(folder / "config.json")
    if is_complete(folder / "row.csv"):
        _move(folder, _resting_place(results, run, old or ""))
    if found is State.RESTED:
        remove(folder)
        _move(_resting_place(results, run, run.text), folder)
    else:
        write_if_changed(folder / "config.json", run.text)


def remove(path: Path) -> None:
    """Removes a file or a folder, whatever stands there; nothing where nothing does."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _resting_place(results: Path, run: Run, text: str) -> Path:
    return results / SUPERSEDED / run.folder / hashlib.sha256(text.encode()).hexdigest()[:12]


def _move(source: Path, target: Path) -> None:
    remove(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def is_complete(row: Path) -> bool:
    """Whether a row file holds a header and one row of as many cells, ended by a newline."""
    text = _read(row) or ""
    lines = list(csv.reader(text.splitlines()))
    return text.endswith("\n") and len(lines) == 2 and len(lines[0]) == len(lines[1])


def check_writable(results: Path) -> None:
    """Raises ConfigurationError where `results` is no folder in which files can be made."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        probe = results / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)  # another node's process may bear the same number
    except OSError as error:
        raise ConfigurationError(
            f"{results}/: cannot be written ({error.strerror}). Give it write permission."
        ) from error


def write_if_changed(path: Path, text: str) -> bool:
    """Writes `text` by renaming a finished file, leaves a file that holds it already untouched; whether it wrote."""
    if _read(path) == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return True


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
