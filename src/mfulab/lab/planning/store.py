"""The results folder: the plan, written only where it changed, results that are never lost, and one
sweep at a time. A finished run whose config changed is moved to results/superseded/, and comes back
untouched when its config does. The row of one whose code changed is copied there. The lock of a
sweep is dropped by the kernel with its holder."""

import atexit
import fcntl
import json
import math
import os
import shlex
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import (
    LARGEST,
    OF_A_RUN,
    UnreadableError,
    cannot_be_written,
    parse_csv,
    read_text,
    remove,
    write_text,
)
from mfulab.core.json_text import parse_json
from mfulab.core.parts import Content, Values
from mfulab.core.printing import say
from mfulab.core.replicates import STANDS_IN
from mfulab.core.rows import NOT_MEASURED
from mfulab.core.said import Numbers, Said
from mfulab.device import system
from mfulab.lab.planning.identity import digest, is_same
from mfulab.lab.planning.runs import Plan, Run
from mfulab.lab.runtime import endings, processes
from mfulab.measurements.registry import SUPERSEDED

Newest = Callable[[Run], float]  # time of the last change of a run's sources that counts
LOCK = ".lock"
LARGEST_PROCESS = 1 << 31  # above every number of a process
LONGEST_COMMAND = 200  # characters of a command that a message quotes
_held: dict[Path, int] = {}


class State(Enum):
    """State of a run's folder, compared with a plan."""

    KEPT = "its config is there as planned, its row too or not yet"
    NEW = "there is no config, or one without a finished row"
    CUT = "its config is there as planned, with a row that cannot be read, or that a smaller budget left unmeasured"
    CHANGED = "another config has a finished row, which is moved aside"
    RESTED = "a finished row of this config was moved aside and comes back"


def write(
    plan: Plan, results: Path, newest: Newest = lambda run: 0.0, budget_min: float = math.inf
) -> set[str]:
    """Writes every run's config and the experiment's manifest; returns the folders whose finished
    rows are there. Raises ConfigurationError if it cannot write."""
    finished = set[str]()
    try:
        for run in plan.runs:
            if write_run(run, results, newest, budget_min):
                finished.add(run.folder)
    except OSError as error:
        raise cannot_be_written(error.filename or results, error) from error
    write_if_changed(results / plan.manifest_path, plan.manifest)
    return finished


def state(
    run: Run, results: Path, newest: Newest = lambda run: 0.0, budget_min: float = math.inf
) -> State:
    """State that `write_run` would find; changes nothing. A result at rest must be as new as its
    sources (`newest`)."""
    row = results / run.folder / "row.csv"
    if is_planned(row.parent, run):
        if os.path.lexists(row) and not is_complete(row, budget_min):
            return State.CUT
        return State.KEPT
    rested = _rested(results, run)
    if rested is not None and (rested / "row.csv").stat().st_mtime >= newest(run):
        return State.RESTED
    if is_complete(row):
        return State.CHANGED
    return State.NEW


def write_run(
    run: Run, results: Path, newest: Newest = lambda run: 0.0, budget_min: float = math.inf
) -> bool:
    """Writes one run's config where it changed, after its finished results were moved aside or came
    back; true where its finished row is there, so that no caller reads it again."""
    folder = results / run.folder
    before = state(run, results, newest, budget_min)
    remove(folder / STANDS_IN)
    row = folder / "row.csv"
    if (
        before is State.KEPT
        and row.exists()
        and row.stat().st_mtime < newest(run)
        and is_complete(row)
    ):
        write_text(
            _resting_place(results, run, text := read_text(row)) / "row.csv", text
        )  # its code has changed
    if before is State.CUT:
        remove(row)  # left by a crash; a row that says something always ends in a line
    if before in (State.KEPT, State.CUT):
        return before is State.KEPT and row.exists()
    if is_complete(row):
        _move(folder, _resting_place(results, run, _read(folder / "config.json") or ""))
    rested = None
    if before is State.RESTED:
        rested = _rested(results, run)
    if rested is None:
        write_text(folder / "config.json", run.text)
        return False
    _move(rested, folder)
    return True


def is_planned(folder: Path, run: Run) -> bool:
    """True if a folder's config asks for this run, whatever defaults it leaves out."""
    return is_same(run.step, _read(folder / "config.json"), run.text)


def _rested(results: Path, run: Run) -> Path | None:
    """Folder to which a finished result of this run was moved; None without any."""
    for config in sorted((results / SUPERSEDED / run.folder).glob("*/config.json")):
        if is_complete(config.with_name("row.csv")) and is_planned(config.parent, run):
            return config.parent
    return None


def _resting_place(results: Path, run: Run, text: str) -> Path:
    return results / SUPERSEDED / run.folder / digest(text)


def _move(source: Path, target: Path) -> None:
    remove(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def is_complete(row: Path, budget_min: float = math.inf) -> bool:
    """True if a file holds a header and one whole row, other than one that a budget below
    `budget_min` left out."""
    text = _read(row, OF_A_RUN) or ""
    if not text.endswith("\n"):
        return False
    try:
        rows = parse_csv(text, row)
    except UnreadableError:
        return False
    return len(rows) == 1 and _left_out_of(rows[0]) >= budget_min


def _left_out_of(row: Mapping[str, str]) -> float:
    """Minutes of the budget that left a run out; infinity for any other row."""
    if row.get("status") != NOT_MEASURED:
        return math.inf
    budget_min = endings.budget_min(row.get("ended_by"))
    return -math.inf if budget_min is None else budget_min  # of no budget of ours: gives way to any


def check_writable(results: Path) -> None:
    """Raises ConfigurationError if `results` is no folder in which files can be made."""
    probe = results / f".writable-{os.getpid()}"
    try:
        results.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(bytes(1 << 16))  # a full disk takes an empty file
    except OSError as error:
        raise cannot_be_written(f"{results}/", error) from error
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)  # another node's process may bear the same number


def holds(path: Path, text: str) -> bool:
    """True if a file holds exactly this text."""
    return _read(path) == text


def write_if_changed(path: Path, text: str) -> bool:
    """Writes `text` by renaming a finished file; False if the file holds it already and is left
    untouched."""
    if is_new := not holds(path, text):
        write_text(path, text)
    return is_new


def _read(path: Path, most: int = LARGEST) -> str | None:
    try:
        return read_text(path, most)
    except (FileNotFoundError, UnreadableError):
        return None


def take(results: Path) -> bool:
    """Holds `results` until this process ends; true where the holder before was killed and left its
    work half done. Raises ConfigurationError, and changes nothing, where a holder lives, or may
    live on another machine."""
    if (path := results.resolve() / LOCK) in _held:
        return False
    descriptor, left, is_kept = _locked(path)
    # On this machine, maybe before it was started anew; in a container only if locks tell.
    is_here = left.get("host") == socket.gethostname() or (
        is_kept and left.get("boot") == system.boot() != ""
    )
    if left and not is_here:
        os.close(descriptor)
        began: Numbers = {"folder": f"{results}/", **_holder(left)}
        raise ConfigurationError(Said("results_left_held", began))
    if not is_kept:
        says = "its file system keeps no locks: a sweep on another machine is not noticed"
        say(f"mfulab: {results}/: {says}.", file=sys.stderr)
    _held[path] = descriptor
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)
    atexit.register(_release, path, os.getpid())
    return bool(left)


def check_free(results: Path) -> None:
    """Raises ConfigurationError where another command holds `results`; holds nothing itself, so
    that several may ask at once."""
    if (path := results.resolve() / LOCK) not in _held:
        os.close(_locked(path, fcntl.LOCK_SH)[0])


def clear(results: Path) -> None:
    """Forgets a holder that was killed, here or elsewhere. Raises ConfigurationError if one lives
    here."""
    if (path := results.resolve() / LOCK).exists():
        _close(_locked(path)[0])


def _locked(path: Path, kind: int = fcntl.LOCK_EX) -> tuple[int, Content, bool]:
    """The file's descriptor, who held it before, and false where the file system keeps no locks."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        shut: Numbers = {"file": str(path), "error": error.strerror}
        raise ConfigurationError(Said("lock_not_opened", shut)) from error
    is_kept = True
    remedy: Said | None = None
    holder = Content()
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        is_kept = isinstance(error, BlockingIOError)
        if is_kept:
            remedy = Said("wait_or_other_checkout")
    with suppress(ValueError):
        told = parse_json(os.pread(descriptor, 1 << 16, 0))
        holder = told if isinstance(told, dict) else {}
    if not is_kept:
        here = _this_process()
        process = holder.get("process")
        is_here = all(
            holder.get(name) == here[name] for name in ("host", "boot")
        )  # and not started anew since
        if (
            is_here
            and isinstance(process, int)
            and 0 < process < LARGEST_PROCESS
            and process != os.getpid()
            and processes.is_alive(process)
        ):
            remedy = Said("wait_or_remove_lock", {"file": str(path)})
    if remedy:
        os.close(descriptor)
        at_it: Numbers = {"folder": f"{path.parent}/", "remedy": remedy, **_holder(holder)}
        raise ConfigurationError(Said("results_held", at_it))
    return descriptor, holder, is_kept


def _holder(holder: Values) -> dict[str, str | Said]:
    """Names the process that holds results for a sentence, as far as the lock tells it."""
    host = holder.get("host")
    return {
        "process": str(holder.get("process", "?")),
        "host": Said("this_machine") if host is None else str(host),
        "since": str(holder.get("since", "?"))[:16].replace("T", " "),
        "command": str(holder.get("command", "?")),
    }


def _this_process() -> Content:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    who = {"process": os.getpid(), "host": socket.gethostname(), "boot": system.boot()}
    return {**who, "since": since, "command": shlex.join(command)[:LONGEST_COMMAND]}


def _release(path: Path, process: int) -> None:
    if os.getpid() == process and path in _held:
        _close(_held.pop(path))


def _close(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.close(descriptor)
