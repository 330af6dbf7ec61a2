"""Publishes the rate of a measured process in a small file that `mfulab watch` reads, at most once
a second."""

import json
import os
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from mfulab.core.errors import warn
from mfulab.core.files import opened
from mfulab.core.formats import FORMATS
from mfulab.core.said import Said
from mfulab.device import is_gpu
from mfulab.device.samplers.reading import Now

if TYPE_CHECKING:
    import torch

    from mfulab.loop.interactive.costs import Format, PhaseCost

INTERVAL_S = 1.0
# An older rate is not shown: its process waits, or has long steps.
STALE_S = 30.0
LARGEST = 1 << 16  # bytes of a file
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False))
class Rate:
    """Recent rate of a process over steps that ended before `unix_s`: its model's FLOPs per second
    by number format."""

    pid: int
    name: str
    device: str  # `cpu`, or the GPU's UUID
    formats: dict[str, float]
    step_s: float
    unix_s: float


def folder() -> Path:
    """Folder in which this user's processes publish: below XDG_RUNTIME_DIR, or in the temporary
    directory."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and Path(base).is_dir():
        return Path(base, "mfulab")
    return Path(tempfile.gettempdir(), f"mfulab-{os.getuid()}")


def why_unsafe(folder: Path) -> Said | None:
    """Reason why a folder is not used, since others may write in it; None if it is safe or does not
    exist."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return Said("folder_not_read", folder=str(folder), error=error.strerror)
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
        return None
    return Said("folder_of_others", folder=str(folder))


def rates(now: Now = time.time) -> list[Rate]:
    """Rates that living processes have published lately. Removes the files of processes that
    ended."""
    import psutil

    recent: list[Rate] = []
    if why_unsafe(folder()):
        return recent
    for file in sorted(folder().glob("*.json")):
        with suppress(OSError, ValueError):
            if not psutil.pid_exists(int(file.stem)):
                file.unlink()
                continue
            rate = _read(file)
            if now() - rate.unix_s <= STALE_S:
                recent.append(rate)
    return recent


def _read(file: Path) -> Rate:
    """Reads a rate from a regular file of this user. Raises OSError or ValueError for anything
    else."""
    with opened(file) as content:
        if os.fstat(content.fileno()).st_uid != os.getuid():
            raise ValueError(f"{file}: another user's")
        rate = TypeAdapter(Rate).validate_json(content.read(LARGEST))
    if not rate.formats or rate.formats.keys() - FORMATS.keys():
        raise ValueError(f"{file}: no rate")
    return rate


class Published:
    """Publishes rates until `close`, by the host's clock: nothing waits for the device. `dtype`
    returns the model's dtype, for steps without matmuls."""

    def __init__(self, device: "torch.device", dtype: Callable[[], "torch.dtype"]) -> None:
        self._device = device
        self._dtype = dtype
        self._file = folder() / f"{os.getpid()}.json"
        self._begin()
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
        if reason := why_unsafe(self._file.parent):
            warn(f"publishes no rate for `mfulab watch`: {reason}")

    def _begin(self) -> None:
        self._flops: Counter[Format] = Counter()
        self._steps = 0
        self._all_known = True
        self._last = time.perf_counter()

    def close(self) -> None:
        """Removes what was published."""
        with suppress(OSError):
            self._file.unlink()

    def note_steps(self, cost: "PhaseCost | None", steps: int) -> None:
        """Adds steps that each have this cost, None if unknown. Publishes once a second, if all
        costs are known."""
        self._steps += steps
        self._all_known = self._all_known and cost is not None
        if cost is not None:
            for key, flops in cost.formats.items():
                self._flops[key] += steps * flops
        passed = time.perf_counter() - self._last
        if passed < INTERVAL_S:
            return
        done = self._steps
        all_known = self._all_known
        flops_by_format = self._flops
        self._begin()
        if not all_known or why_unsafe(self._file.parent):
            return
        from mfulab.device.gpu import uuid_of
        from mfulab.loop.interactive.peaks import by_precision

        formats = by_precision(self._device, flops_by_format or {(self._dtype(), False): 0})
        device = uuid_of(self._device) if is_gpu(self._device) else str(self._device.type)
        per_second = {name: flops / passed for name, flops in formats.items()}
        name = Path(sys.argv[0]).name
        rate = Rate(os.getpid(), name, device, per_second, passed / done, time.time())
        with suppress(OSError):  # a full disk is no reason to stop a training
            part = self._file.with_suffix(".part")
            part.unlink(missing_ok=True)
            with open(os.open(part, NEW, 0o600), "w", encoding="utf-8") as file:
                json.dump(asdict(rate), file)
            part.replace(self._file)
