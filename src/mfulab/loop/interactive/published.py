"""The rate of a measured process, in a small file that `mfulab watch` reads: written at most once a
second."""

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
from mfulab.device import is_gpu

if TYPE_CHECKING:
    import torch

    from mfulab.loop.interactive.costs import Cost, Format

INTERVAL_S = 1.0
# A rate older than this is of a process that waits, or whose steps are long: it is not shown as
# now.
STALE_S = 30.0
LARGEST = 1 << 16  # bytes of a file
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False))
class Rate:
    """Recent rate of a process over steps that ended before `unix_s`: its model's FLOPs a second by
    number format."""

    pid: int
    name: str
    device: str  # `cpu`, or the GPU's UUID
    formats: dict[str, float]
    step_s: float
    unix_s: float


def folder() -> Path:
    """Folder in which processes of this user publish: below XDG_RUNTIME_DIR, or in the temporary
    directory."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    has_own = base and Path(base).is_dir()
    if has_own:
        return Path(base, "mfulab")
    return Path(tempfile.gettempdir(), f"mfulab-{os.getuid()}")


def why_unsafe(folder: Path) -> str | None:
    """Says why nothing is published in, or read from, a folder that others may write; None for one
    that is safe."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
        return None
    return (
        f"{folder}: not a folder that only this user may write. Remove it, or set XDG_RUNTIME_DIR."
    )


def rates(now: Callable[[], float] = time.time) -> list[Rate]:
    """Rates that living processes have published lately; files of ended ones are removed."""
    import psutil

    recent: list[Rate] = []
    for file in [] if why_unsafe(folder()) else sorted(folder().glob("*.json")):
        with suppress(OSError, ValueError):
            if not psutil.pid_exists(int(file.stem)):
                file.unlink()
            elif now() - (rate := _read(file)).unix_s <= STALE_S:
                recent.append(rate)
    return recent


def _read(file: Path) -> Rate:
    """The rate in a regular file of this user. Raises OSError and ValueError for anything else."""
    with opened(file) as content:
        if os.fstat(content.fileno()).st_uid != os.getuid():
            raise ValueError(f"{file}: another user's")
        rate = TypeAdapter(Rate).validate_json(content.read(LARGEST))
    if not rate.formats or rate.formats.keys() - FORMATS.keys():
        raise ValueError(f"{file}: no rate")
    return rate


class Published:
    """Publishes until `close`, on the host's clock: nothing waits for the device. `dtype` gives the
    model's, of steps without matmuls."""

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
        self._steps, self._all_known, self._last = 0, True, time.perf_counter()

    def close(self) -> None:
        """Removes what was published."""
        with suppress(OSError):
            self._file.unlink()

    def note_steps(self, cost: "Cost | None", steps: int) -> None:
        """Adds steps that each cost so much, None if it is not known; publishes those of a second,
        if all are."""
        self._steps += steps
        self._all_known = self._all_known and cost is not None
        for key, flops in cost.formats.items() if cost is not None else ():
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
        a_second = {name: flops / passed for name, flops in formats.items()}
        rate = Rate(
            os.getpid(), Path(sys.argv[0]).name, device, a_second, passed / done, time.time()
        )
        with suppress(OSError):  # a full disk is no reason to stop a training
            beside = self._file.with_suffix(".part")
            beside.unlink(missing_ok=True)
            with open(os.open(beside, NEW, 0o600), "w", encoding="utf-8") as file:
                json.dump(asdict(rate), file)
            beside.replace(self._file)
