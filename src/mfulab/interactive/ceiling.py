"""The best matmul of the device, measured in the user's own process, and what disturbed it meanwhile."""

from typing import NamedTuple

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.device.compute import matmuls_in
from mfulab.device.samplers.reading import first_available, sampling
from mfulab.device.samplers.selection import samplers_for
from mfulab.tables.verdict import OTHERS
from mfulab.timing.best_matmul import fastest_matmul, sweep_matmuls


class Ceiling(NamedTuple):
    """TFLOP/s of the best matmul, None without one in the format; the share of the CPUs that others took meanwhile."""

    tflop_s: float | None
    other_processes_percent: float | None = None
    other_processes: float | None = None

    @property
    def disturbed(self) -> bool:
        """Says whether others slowed it down, so that it reads too low, and MFU of it too high."""
        return (self.other_processes_percent or 0) >= OTHERS or (self.other_processes or 0) >= 1


_known: dict[tuple[str, str, int], Ceiling] = {}


def measured_ceiling(device: torch.device, precision: str, threads: int, limit_s: float, anew: bool = True) -> Ceiling:
    """The ceiling of as many threads, measured once a process; anew where others disturbed it, of which the best stays.

    Without `anew`, in the middle of a training, one that was disturbed is good enough for now.

    Neighbours can only slow a matmul down: the fastest is the nearest.
    """
    key = str(device), precision, threads
    for _ in range(2):
        before = _known.get(key)
        if before is not None and not (anew and before.disturbed):
            break
        found = _measure(device, precision, limit_s)
        better = before is None or not found.disturbed or (found.tflop_s or 0) > (before.tflop_s or 0)
        _known[key] = found if better or before is None else before
        if found.tflop_s is None:
            break
    return _known[key]


def _measure(device: torch.device, precision: str, limit_s: float) -> Ceiling:
    try:
        with sampling(samplers_for(device)) as sampled, matmuls_in(precision):
            rate = fastest_matmul(sweep_matmuls(precision, device, limit_s), device).tflop_s
    except UnsupportedError:
        return Ceiling(None)
    readings = first_available(sampled)
    values = {name: reading.value for name, reading in readings.items()}
    return Ceiling(rate, values.get("other_processes_percent"), values.get("other_processes"))
