"""Time for which the loop waited for its input: inside `iter()` and `next()` of every torch DataLoader here."""

import time
from collections.abc import Callable
from typing import Any, ClassVar

from torch.utils.data import dataloader

from mfulab.device.samplers.reading import Reading, Readings

SOURCE = "time inside the DataLoader's iter() and next()"
_Loader: Any = dataloader.DataLoader
_Iterator: Any = dataloader._BaseDataLoaderIter


class InputSampler:
    """Times `iter()` and `next()` of every DataLoader of this process, from `start` to `stop`. On a GPU it is the
    host that waits: queued kernels may hide it."""

    _running: ClassVar[list["InputSampler"]] = []
    _untimed: ClassVar[tuple[Callable[[Any], Any], Callable[[Any], Any]]]

    def __init__(self) -> None:
        self._batches, self._waited_s = 0, 0.0

    def start(self) -> None:
        self._batches, self._waited_s = 0, 0.0
        if not self._running:
            begins, goes_on = InputSampler._untimed = _Loader.__iter__, _Iterator.__next__
            _Loader.__iter__ = lambda loader: self._timed(begins, loader)
            _Iterator.__next__ = lambda iterator: self._timed(goes_on, iterator)
        self._running.append(self)
        self._began = time.perf_counter()

    def stop(self) -> Readings:
        length_s = time.perf_counter() - self._began
        self._running.remove(self)
        if not self._running:
            _Loader.__iter__, _Iterator.__next__ = InputSampler._untimed
        share = 100 * self._waited_s / length_s if self._batches else None
        reason = "" if self._batches else "no torch DataLoader was read: the batch lay on the device"
        return {"input_wait_percent": Reading(share, "%", SOURCE, length_s, reason)}

    @staticmethod
    def _timed(method: Callable[[Any], Any], one: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(one)
        finally:
            waited_s = time.perf_counter() - began
            for sampler in InputSampler._running:
                sampler._waited_s += waited_s
                sampler._batches += 1
