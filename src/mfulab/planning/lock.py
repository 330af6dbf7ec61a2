"""One sweep at a time in a results folder: a lock that the kernel drops with its holder, whatever ends it."""

import atexit
import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mfulab.hardware import system
from mfulab.schema.errors import ConfigurationError

NAME = ".lock"
LONGEST_COMMAND = 200  # characters of a command that a message quotes
_held: dict[Path, int] = {}


def take(results: Path) -> bool:
    """Holds `results` until this process ends; true where the holder before was killed and left its work half done.

    Raises ConfigurationError, and changes nothing, where a holder lives, or where it was on another machine and may.
    """
    path = results.resolve() / NAME
    if path in _held:
        return False
    descriptor = _open(path)
    left = _lock(descriptor, path)
    if left and not _is_here(left):
        os.close(descriptor)
        raise ConfigurationError(
            f"{results}/: {_told(left)} and did not end it properly. Where it has ended, give `make unlock`."
        )
    _held[path] = descriptor
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)
    atexit.register(_release, path, os.getpid())
    return bool(left)


def clear(results: Path) -> None:
    """Forgets a holder that was killed, here or elsewhere. Raises ConfigurationError if one lives here."""
    path = results.resolve() / NAME
    if path.exists():
        descriptor = _open(path)
        _lock(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be opened ({error.strerror}). It must be a file of your own; remove it if no sweep runs."
        ) from error


def _lock(descriptor: int, path: Path) -> dict[str, Any]:
    """Locks the file, and gives what its last holder left in it. Raises ConfigurationError if one lives."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _read(descriptor)
        os.close(descriptor)
        raise ConfigurationError(
            f"{path.parent}/: {_told(holder)} and is still at it. Wait for its end, or measure from another checkout."
        ) from error
    except OSError:  # a file system without locks: Snakemake's own lock is left
        pass
    return _read(descriptor)


def _read(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 1 << 16, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _told(holder: Mapping[str, Any]) -> str:
    process, host = holder.get("process", "?"), holder.get("host", "this machine")
    since, command = str(holder.get("since", "?"))[:16].replace("T", " "), holder.get("command", "?")
    return f"process {process} on {host} began a sweep at {since} UTC ({command})"


def _this_process() -> dict[str, Any]:
    return {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "boot": system.boot(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:LONGEST_COMMAND],
    }


def _is_here(holder: Mapping[str, Any]) -> bool:
    """True if the lock's holder ran on this kernel, or on this machine before it was started anew."""
    return holder.get("host") == socket.gethostname() or holder.get("boot") == system.boot() != ""


def _release(path: Path, process: int) -> None:
    if os.getpid() == process and path in _held:
        descriptor = _held.pop(path)
        os.ftruncate(descriptor, 0)
        os.close(descriptor)
