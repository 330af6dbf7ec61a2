"""The plan on disk: run configs and manifests, written only where their text changed, and results that are never lost.

A finished run whose config changed is not overwritten: its folder is moved to results/superseded/, and comes back
untouched when its config does, so that reverting a change measures nothing again.
"""

import csv
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from mfulab.planning.runs import Plan, Run
from mfulab.schema.errors import ConfigurationError

SUPERSEDED = "superseded"


def write(plan: Plan, results: Path, sources: Sequence[Path] = ()) -> None:
    """Writes every run's config and the experiment's manifest. `sources` are the files that results depend on.

    Raises ConfigurationError where `results` cannot be written, before anything is changed.
    """
    check_writable(results)
    newest = max((path.stat().st_mtime for path in sources), default=0.0)
    for run in plan.runs:
        write_run(run, results, newest)
    write_if_changed(results / plan.hardware / "plan" / f"{plan.experiment}.json", plan.manifest)


def write_run(run: Run, results: Path, newest_source: float = 0.0) -> None:
    """Writes one run's config where it changed, after its finished results were moved aside or came back.

    A result at rest comes back only if it is as new as `newest_source`, a modification time.
    """
    folder = results / run.folder
    config = folder / "config.json"
    row = folder / "row.csv"
    text = run.text
    old = _read(config)
    if old == text:
        if row.exists() and not is_complete(row):
            row.unlink()  # left by a crash; a row that says something always ends in a line
        return
    if old is not None and row.exists() and is_complete(row):
        _move(folder, _resting_place(results, run, old))
    resting = _resting_place(results, run, text)
    if resting.exists() and (resting / "row.csv").stat().st_mtime >= newest_source:
        shutil.rmtree(folder, ignore_errors=True)
        _move(resting, folder)
    else:
        write_if_changed(config, text)


def _resting_place(results: Path, run: Run, text: str) -> Path:
    return results / SUPERSEDED / run.folder / hashlib.sha256(text.encode()).hexdigest()[:12]


def _move(source: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
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
