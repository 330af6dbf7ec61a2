"""The rate of a measured process, in a small file that `mfulab watch` reads: written at most once a second."""

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfulab.device import is_gpu

if TYPE_CHECKING:
    from mfulab.loop.interactive.costs import Cost, Format

INTERVAL_S = 1.0
# A rate older than this is of a process that waits, or whose steps are long: it is not shown as now.
STALE_S = 30.0


@dataclass(frozen=True)
class Rate:
    """Recent rate of a process over steps that ended before `unix_s`: its model's FLOPs a second by number format."""

    pid: int
    name: str
    device: str  # `cpu`, or the GPU's UUID
    formats: dict[str, float]
    step_s: float
    unix_s: float


def folder() -> Path:
    """Folder in which processes of this user publish."""
    return Path(tempfile.gettempdir()) / f"mfulab-{os.getuid()}"


def rates(now: Callable[[], float] = time.time) -> list[Rate]:
    """The rates that living processes have published lately; files of ended ones are removed."""
    import psutil

    found = []
    for file in sorted(folder().glob("*.json")):
        with suppress(OSError, ValueError, TypeError):
            if not psutil.pid_exists(int(file.stem)):
                file.unlink()
                continue
            rate = Rate(**json.loads(file.read_text(encoding="utf-8")))
            if now() - rate.unix_s <= STALE_S:
                found.append(rate)
    return found


class Published:
    """Publishes until `close`, on the host's clock: nothing waits for the device."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._file = folder() / f"{os.getpid()}.json"
        self._begin()
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, exist_ok=True)

    def _begin(self) -> None:
        self._flops: Counter[Format] = Counter()
        self._steps, self._known, self._last = 0, True, time.perf_counter()

    def close(self) -> None:
        """Removes what was published."""
        with suppress(OSError):
            self._file.unlink()

    def note_steps(self, cost: "Cost | None", dtype: Any, steps: int = 1) -> None:
        """Adds steps that each cost so much, None if it is not known; publishes those of a second, if all are."""
        self._steps += steps
        self._known = self._known and cost is not None
        for key, flops in cost.formats.items() if cost is not None else ():
            self._flops[key] += steps * flops
        passed = time.perf_counter() - self._last
        if passed < INTERVAL_S:
            return
        done, known, flops_by_format = self._steps, self._known, self._flops
        self._begin()
        if not known:
            return
        from mfulab.device.gpu import uuid_of
        from mfulab.loop.interactive.peaks import by_precision

        formats = by_precision(self._device, flops_by_format or {(dtype(), False): 0})
        device = uuid_of(self._device) if is_gpu(self._device) else str(self._device.type)
        a_second = {name: flops / passed for name, flops in formats.items()}
        rate = Rate(os.getpid(), Path(sys.argv[0]).name, device, a_second, passed / done, time.time())
        with suppress(OSError):  # a full disk is no reason to stop a training
            beside = self._file.with_suffix(".part")
            beside.write_text(json.dumps(asdict(rate)), encoding="utf-8")
            beside.replace(self._file)
