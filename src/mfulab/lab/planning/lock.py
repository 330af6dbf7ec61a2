"""One sweep at a time in a results folder: a lock that the kernel drops with its holder, whatever ends it."""

import atexit
import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mfulab.core.errors import ConfigurationError
from mfulab.device import system
from mfulab.lab.runtime import processes

NAME = ".lock"
LONGEST_COMMAND = 200  # characters of a command that a message quotes
_held: dict[Path, int] = {}


def take(results: Path) -> bool:
    """Holds `results` until this process ends; true where the holder before was killed and left its work half done.

    Raises ConfigurationError, and changes nothing, where a holder lives, or may live on another machine.
    """
    path = results.resolve() / NAME
    if path in _held:
        return False
    descriptor, is_kept = _locked(path)
    left = _read(descriptor)
    # On this machine, maybe before it was started anew; in a container only if locks tell.
    is_here = left.get("host") == socket.gethostname() or (is_kept and left.get("boot") == system.boot() != "")
    if left and not is_here:
        os.close(descriptor)
        says = "and did not end it properly. Where it has ended, give `make unlock`."
        raise ConfigurationError(f"{results}/: {_told(left)} {says}")
    _held[path] = descriptor
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)
    atexit.register(_release, path, os.getpid())
    return bool(left)


def clear(results: Path) -> None:
    """Forgets a holder that was killed, here or elsewhere. Raises ConfigurationError if one lives here."""
    path = results.resolve() / NAME
    if path.exists():
        descriptor, _ = _locked(path)
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def _locked(path: Path) -> tuple[int, bool]:
    """The file's descriptor, and false where the file system keeps no locks: a holder then lives as its process."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        says = f"cannot be opened ({error.strerror}). It must be a file of your own; remove it if no sweep runs."
        raise ConfigurationError(f"{path}: {says}") from error
    is_kept, remedy = True, ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        remedy = "Wait for its end, or measure from another checkout."
    except OSError:
        is_kept = False
        holder, here = _read(descriptor), _this_process()
        process = holder.get("process")
        is_here = all(holder.get(name) == here[name] for name in ("host", "boot"))  # and not started anew since
        if is_here and isinstance(process, int) and process != os.getpid() and processes.is_alive(process):
            remedy = f"Wait for its end. Where that number is another program's by now, remove {path}."
    if remedy:
        holder = _read(descriptor)
        os.close(descriptor)
        raise ConfigurationError(f"{path.parent}/: {_told(holder)} and is still at it. {remedy}")
    return descriptor, is_kept


def _read(descriptor: int) -> dict[str, Any]:
    with suppress(ValueError):
        if isinstance(found := json.loads(os.pread(descriptor, 1 << 16, 0)), dict):
            return found
    return {}


def _told(holder: Mapping[str, Any]) -> str:
    told = {"process": "?", "host": "this machine", "since": "?", "command": "?", **holder}
    since = str(told["since"])[:16].replace("T", " ")
    return f"process {told['process']} on {told['host']} began a sweep at {since} UTC ({told['command']})"


def _this_process() -> dict[str, Any]:
    return {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "boot": system.boot(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:LONGEST_COMMAND],
    }


def _release(path: Path, process: int) -> None:
    if os.getpid() == process and path in _held:
        descriptor = _held.pop(path)
        os.ftruncate(descriptor, 0)
        os.close(descriptor)
