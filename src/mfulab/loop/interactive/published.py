"""The rate of a measured process, in a small file that `mfulab watch` reads: written at most once a second."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfulab.device import is_gpu

if TYPE_CHECKING:
    from mfulab.loop.interactive.phases import Phases

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
        self._seen, self._steps, self._last = 0, 0, time.perf_counter()
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, exist_ok=True)

    def close(self) -> None:
        """Removes what was published."""
        with suppress(OSError):
            self._file.unlink()

    def note_step(self, phases: "Phases", dtype: Any) -> None:
        """Publishes what ran since the last time, where a second has passed, no step was counted and all are known."""
        self._steps += 1
        passed = time.perf_counter() - self._last
        if passed < INTERVAL_S:
            return
        inside = phases.done[self._seen :] if self._seen <= len(phases.done) else phases.done
        cost = None if any(phase.counted for phase in inside) else phases.cost(inside)
        steps = self._steps
        self._seen, self._steps, self._last = len(phases.done), 0, time.perf_counter()
        if cost is None:
            return
        from mfulab.device.gpu import uuid_of
        from mfulab.loop.interactive.peaks import by_precision

        formats = by_precision(self._device, cost.formats or {(dtype(), False): 0})
        device = uuid_of(self._device) if is_gpu(self._device) else str(self._device.type)
        a_second = {name: flops / passed for name, flops in formats.items()}
        rate = Rate(os.getpid(), Path(sys.argv[0]).name, device, a_second, passed / steps, time.time())
        with suppress(OSError):  # a full disk is no reason to stop a training
            beside = self._file.with_suffix(".part")
            beside.write_text(json.dumps(asdict(rate)), encoding="utf-8")
            beside.replace(self._file)
