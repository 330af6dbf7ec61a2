"""The results folder. Plans are written only if they changed, results are never lost, and only one
sweep runs at a time. A finished run whose config changed is moved to results/superseded/, and comes
back unchanged when its config does. If only its code changed, its row is copied there. The kernel
releases a sweep's lock when its process ends."""

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
from mfulab.core.said import Said, of_source
from mfulab.core.terminal_language import in_words
from mfulab.device import system
from mfulab.lab.planning.identity import digest, is_same
from mfulab.lab.planning.runs import Plan, Run
from mfulab.lab.runtime import endings, processes
from mfulab.measurements.registry import SUPERSEDED

Newest = Callable[[Run], float]  # time of the last relevant change of a run's sources
LOCK = ".lock"
LARGEST_PROCESS = 1 << 31  # above every process id
LONGEST_COMMAND = 200  # characters of a command in a message
_held: dict[Path, int] = {}


class State(Enum):
    """State of a run's folder, compared with a plan."""

    KEPT = "the config is as planned; there may be a row"
    NEW = "there is no config, or another one without a finished row"
    INCOMPLETE = (
        "the config is as planned, but its row cannot be read, or a smaller budget left it out"
    )
    CHANGED = "another config has a finished row, which will be archived"
    ARCHIVED = "a finished row of this config is in the archive and comes back"


def write(
    plan: Plan, results: Path, newest: Newest = lambda run: 0.0, budget_min: float = math.inf
) -> set[str]:
    """Writes every run's config and the experiment's manifest. Returns the folders of runs that
    have a finished row. Raises ConfigurationError if it cannot write."""
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
    """State of a run's folder, without changing it. An archived result counts only if it is newer
    than its sources (`newest`)."""
    row = results / run.folder / "row.csv"
    if is_planned(row.parent, run):
        if os.path.lexists(row) and not is_complete(row, budget_min):
            return State.INCOMPLETE
        return State.KEPT
    archived = _archived(results, run)
    if archived is not None and (archived / "row.csv").stat().st_mtime >= newest(run):
        return State.ARCHIVED
    if is_complete(row):
        return State.CHANGED
    return State.NEW


def write_run(
    run: Run, results: Path, newest: Newest = lambda run: 0.0, budget_min: float = math.inf
) -> bool:
    """Writes one run's config if it changed, after archiving its finished results or restoring
    archived ones. Returns True if there is a finished row, so that callers need not read it."""
    folder = results / run.folder
    before = state(run, results, newest, budget_min)
    remove(folder / STANDS_IN)
    row = folder / "row.csv"
    if before is State.INCOMPLETE:
        remove(row)  # left by a crash; a complete row always ends with a line end
        return False
    if before is State.KEPT:
        if not row.exists():
            return False
        is_outdated = row.stat().st_mtime < newest(run)
        if is_outdated and is_complete(row):  # keeps a copy, as it will be measured again
            text = read_text(row)
            write_text(_archive_folder(results, run, text) / "row.csv", text)
        return True
    if is_complete(row):
        config = _read(folder / "config.json") or ""
        _move(folder, _archive_folder(results, run, config))
    archived = _archived(results, run) if before is State.ARCHIVED else None
    if archived is None:
        write_text(folder / "config.json", run.text)
        return False
    _move(archived, folder)
    return True


def is_planned(folder: Path, run: Run) -> bool:
    """True if the config in a folder describes this run, even if it omits defaults."""
    return is_same(run.step, _read(folder / "config.json"), run.text)


def _archived(results: Path, run: Run) -> Path | None:
    """Folder with an archived result of this run; None if there is none."""
    for config in sorted((results / SUPERSEDED / run.folder).glob("*/config.json")):
        if is_complete(config.with_name("row.csv")) and is_planned(config.parent, run):
            return config.parent
    return None


def _archive_folder(results: Path, run: Run, text: str) -> Path:
    return results / SUPERSEDED / run.folder / digest(text)


def _move(source: Path, target: Path) -> None:
    remove(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def is_complete(row: Path, budget_min: float = math.inf) -> bool:
    """True if a file holds a header and one complete row, unless a budget below `budget_min` left
    that run out."""
    text = _read(row, OF_A_RUN) or ""
    if not text.endswith("\n"):
        return False
    try:
        rows = parse_csv(text, row)
    except UnreadableError:
        return False
    return len(rows) == 1 and _left_out_of(rows[0]) >= budget_min


def _left_out_of(row: Mapping[str, str]) -> float:
    """Budget in minutes that left a run out; infinity for any other row."""
    if row.get("status") != NOT_MEASURED:
        return math.inf
    budget_min = endings.budget_min(row.get("ended_by"))
    # Without a stated budget, the row is replaced under any budget.
    return -math.inf if budget_min is None else budget_min


def check_writable(results: Path) -> None:
    """Raises ConfigurationError unless files can be created in `results`; creates the folder if
    needed."""
    probe = results / f".writable-{os.getpid()}"
    try:
        results.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(bytes(1 << 16))  # a full disk still accepts an empty file
    except OSError as error:
        raise cannot_be_written(f"{results}/", error) from error
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)  # a process on another node may have the same id


def holds(path: Path, text: str) -> bool:
    """True if a file holds exactly this text."""
    return _read(path) == text


def write_if_changed(path: Path, text: str) -> bool:
    """Writes a text unless the file holds it already. Returns True if it was written."""
    if holds(path, text):
        return False
    write_text(path, text)
    return True


def _read(path: Path, most: int = LARGEST) -> str | None:
    try:
        return read_text(path, most)
    except (FileNotFoundError, UnreadableError):
        return None


def take(results: Path) -> bool:
    """Locks `results` until this process ends. Returns True if the previous holder was killed
    before it finished. Raises ConfigurationError if a holder is alive, or may be alive on another
    machine."""
    path = results.resolve() / LOCK
    if path in _held:
        return False
    descriptor, before, has_locks = _locked(path)
    # The previous holder ran here if the host is the same, even before a reboot. A container may
    # have another host name: then the boot id must be the same.
    is_same_boot = before.get("boot") == system.boot() != ""
    is_here = before.get("host") == socket.gethostname() or (has_locks and is_same_boot)
    if before and not is_here:
        os.close(descriptor)
        raise ConfigurationError(Said("results_left_held", folder=f"{results}/", **_holder(before)))
    if not has_locks:
        warning = of_source(f"{results}/", Said("results_without_locks"))
        say(f"mfulab: {in_words(warning)}", file=sys.stderr)
    _held[path] = descriptor
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)
    atexit.register(_release, path, os.getpid())
    return bool(before)


def check_free(results: Path) -> None:
    """Raises ConfigurationError if another command holds `results`. Takes no lock, so that several
    commands may check at once."""
    path = results.resolve() / LOCK
    if path not in _held:
        os.close(_locked(path, fcntl.LOCK_SH)[0])


def clear(results: Path) -> None:
    """Clears a lock whose holder was killed, here or elsewhere. Raises ConfigurationError if the
    holder is alive on this machine."""
    path = results.resolve() / LOCK
    if path.exists():
        _close(_locked(path)[0])


def _locked(path: Path, kind: int = fcntl.LOCK_EX) -> tuple[int, Content, bool]:
    """Locks a file. Returns its descriptor, the previous holder (empty if it finished), and False
    if the file system has no locks. Raises ConfigurationError if another process holds it."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ConfigurationError(
            Said("lock_not_opened", file=str(path), error=error.strerror)
        ) from error
    has_locks = True
    remedy: Said | None = None
    holder = Content()
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        has_locks = isinstance(error, BlockingIOError)
        if has_locks:
            remedy = Said("wait_or_other_checkout")
    with suppress(ValueError):
        content = parse_json(os.pread(descriptor, 1 << 16, 0))
        holder = content if isinstance(content, dict) else {}
    if not has_locks and _is_other_alive(holder):
        remedy = Said("wait_or_remove_lock", file=str(path))
    if remedy:
        os.close(descriptor)
        raise ConfigurationError(
            Said("results_held", folder=f"{path.parent}/", remedy=remedy, **_holder(holder))
        )
    return descriptor, holder, has_locks


def _is_other_alive(holder: Values) -> bool:
    """True if the holder of a lock is another live process of this machine since its last boot."""
    here = _this_process()
    process = holder.get("process")
    if holder.get("host") != here["host"] or holder.get("boot") != here["boot"]:
        return False
    if not isinstance(process, int) or not 0 < process < LARGEST_PROCESS:
        return False
    return process != os.getpid() and processes.is_alive(process)


def _holder(holder: Values) -> dict[str, str | Said]:
    """Values for a sentence that names the process holding the results, "?" for unknown ones."""
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
