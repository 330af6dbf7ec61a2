"""Time that the training loop waits for input, inside `iter()` and `next()` of every torch
DataLoader in this process."""

import time
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader

from mfulab.core.errors import drop_own_frames
from mfulab.core.said import Said
from mfulab.device.samplers.reading import Reading, Watched, sampler

SOURCE = "time inside the DataLoader's iter() and next()"
_Loader: Any = dataloader.DataLoader
_Iterator: Any = dataloader._BaseDataLoaderIter
_running: list[list[float]] = []  # [batches, seconds] of each running sampler
_untimed: list[Callable[[Any], Any]] = []  # torch's methods, restored when no sampler runs


def _timed(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def timed(batch: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(batch)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            waited_s = time.perf_counter() - began
            for counted in _running:
                counted[:] = counted[0] + 1, counted[1] + waited_s

    return timed


@sampler
def input_sampler() -> Watched:
    """Times every DataLoader of this process. On a GPU this is waiting time of the host, which
    queued kernels may hide."""
    if not _running:
        _untimed[:] = _Loader.__iter__, _Iterator.__next__
        _Loader.__iter__, _Iterator.__next__ = map(_timed, _untimed)
    counted = [0, 0.0]
    _running.append(counted)
    began = time.perf_counter()
    yield
    length_s = time.perf_counter() - began
    _running[:] = [other for other in _running if other is not counted]
    if not _running:
        _Loader.__iter__, _Iterator.__next__ = _untimed
    batches, waited_s = counted
    waited = None
    reason: Said | None = Said("no_loader")
    if batches:
        waited = 100 * waited_s / length_s
        reason = None
    return {"input_wait_percent": Reading(waited, "%", SOURCE, length_s, reason)}
